"""Loggers of metrics: CSV and TensorBoard from Lightning Fabric, MLflow and Weights & Biases from here."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.csv_logs import CSVLogger
from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from lightning_fabric.utilities.rank_zero import rank_zero_only


class _Service(Logger):
    """A tracking service as a logger of Fabric: two functions of an optional package, called by one process."""

    def __init__(self, name: str, log: Callable[..., Any], describe: Callable[[dict[str, Any]], Any]) -> None:
        self._name, self._log, self._describe = name, log, describe

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> None:
        return None

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._log(dict(metrics), step=step)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self._describe(dict(params) if isinstance(params, dict) else vars(params))


def _mlflow(folder: Path) -> Logger:
    import mlflow

    return _Service("mlflow", mlflow.log_metrics, mlflow.log_params)


def _wandb(folder: Path) -> Logger:
    import wandb

    start = cache(lambda: wandb.init(dir=str(folder)))  # when the logging process first logs
    return _Service(
        "wandb", lambda metrics, step: start().log(metrics, step=step), lambda params: start().config.update(params)
    )


LOGGERS: dict[str, Callable[[Path], Logger]] = {
    "csv": lambda folder: CSVLogger(folder, "csv", flush_logs_every_n_steps=1),
    "tensorboard": lambda folder: TensorBoardLogger(folder, "tensorboard"),
    "mlflow": _mlflow,
    "wandb": _wandb,
}


def make_loggers(names: Iterable[str], folder: Path) -> list[Logger]:
    """The loggers of these names, with their files in ``folder``.

    >>> make_loggers(["paper"], Path("."))
    Traceback (most recent call last):
    ValueError: Expected one of csv, tensorboard, mlflow, wandb to log to, got 'paper'.
    """
    loggers = []
    for name in names:
        if name not in LOGGERS:
            raise ValueError(f"Expected one of {', '.join(LOGGERS)} to log to, got {name!r}.")
        try:
            loggers.append(LOGGERS[name](folder))
        except ModuleNotFoundError as error:
            package = "tensorboardX" if name == "tensorboard" else name
            raise ImportError(
                f"Expected {package} to be installed to log to {name}. Run: pip install {package}"
            ) from error
    return loggers


def describe(loggers: Iterable[Logger], params: dict[str, Any]) -> None:
    """Log the parameters of the run to the services; log files are beside ``run.json``, which has them."""
    for logger in loggers:
        if isinstance(logger, _Service):
            logger.log_hyperparams(params)
