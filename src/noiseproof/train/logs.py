"""Loggers of metrics: CSV and TensorBoard from Lightning Fabric, MLflow and Weights & Biases from
here.
"""

import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.csv_logs import CSVLogger
from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from lightning_fabric.utilities.rank_zero import rank_zero_only

from noiseproof.core.messages import install_command


class Service(Logger):
    """A tracking service as a logger of Fabric: a run for each training, which the first process
    starts and ends.

    A service that cannot be reached at the start is refused; one that is lost later is warned
    about, and left out.
    """

    is_service = True  # whose run `train` ends
    service = ""
    remedy = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._is_open = False
        self._is_lost = False

    def start(self) -> None:
        """Start a run of the service."""
        raise NotImplementedError

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        """Log the metrics of a step."""
        raise NotImplementedError

    def describe(self, params: dict[str, Any]) -> None:
        """Log the parameters of the run."""
        raise NotImplementedError

    def end(self, status: str) -> None:
        """End the run: success, interrupted or failed."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        return self.service

    @property
    def version(self) -> None:
        return None

    def _call(self, function: Callable[..., None], *content: Any) -> None:
        if not self._is_open:
            try:
                self.start()
            except Exception as error:  # of the service's own kinds
                raise ConnectionError(
                    f"Expected to log to {self.service}, got {type(error).__name__}:"
                    f" {_first_line(error)} {self.remedy}"
                ) from error
            self._is_open = True
        if self._is_lost:
            return
        try:
            function(*content)
        except Exception as error:  # hours of training are worth more than their curves
            self._is_lost = True
            warnings.warn(
                f"{self.service} was lost ({_first_line(error)}): this run is not logged to it any"
                " more.",
                stacklevel=2,
            )

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._call(self.log, dict(metrics), step)

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        self._call(self.describe, params if isinstance(params, dict) else vars(params))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run; what is logged after it is of another one."""
        if not self._is_open:
            return
        if self._is_lost:  # the library still holds the run open in this process
            with suppress(Exception):
                self.end(status)
        self._call(self.end, status)
        self._is_open = False
        self._is_lost = False


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{line[:300].rstrip('.')}."


class MLflow(Service):
    """A run of MLflow, within the one that the user has started."""

    service = "mlflow"
    remedy = "Start the server, set MLFLOW_TRACKING_URI to another place, or do not log to mlflow."

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._mlflow: Any = import_module("mlflow")

    def start(self) -> None:
        self._run = self._mlflow.start_run(nested=True).info.run_id
        self._client = self._mlflow.MlflowClient()

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        now = int(time.time() * 1000)
        entity = self._mlflow.entities.Metric
        values = [entity(name, value, now, step or 0) for name, value in metrics.items()]
        self._client.log_batch(self._run, metrics=values)

    def describe(self, params: dict[str, Any]) -> None:
        entity = self._mlflow.entities.Param
        values = [entity(name, str(value)) for name, value in params.items()]
        self._client.log_batch(self._run, params=values)

    def end(self, status: str) -> None:
        state = {"success": "FINISHED", "interrupted": "KILLED"}.get(status, "FAILED")
        active = self._mlflow.active_run()
        if active is not None and active.info.run_id == self._run:
            self._mlflow.end_run(state)
        else:  # the user has started another one since
            self._client.set_terminated(self._run, state)


class WandB(Service):
    """A run of Weights & Biases, next to the one that is active."""

    service = "wandb"
    remedy = "Run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline."

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._wandb: Any = import_module("wandb")

    def start(self) -> None:
        self._run = self._wandb.init(dir=str(self.folder), reinit="create_new")

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        self._run.log(metrics, step=step)

    def describe(self, params: dict[str, Any]) -> None:
        self._run.config.update(params)

    def end(self, status: str) -> None:
        self._run.finish(exit_code=int(status != "success"))


LOGGERS: dict[str, Callable[[Path], Logger]] = {
    "csv": lambda folder: CSVLogger(folder, "csv", flush_logs_every_n_steps=1),
    "tensorboard": lambda folder: TensorBoardLogger(folder, "tensorboard"),
    "mlflow": MLflow,
    "wandb": WandB,
}


def make_loggers(names: Iterable[str], folder: Path) -> list[Logger]:
    """Return the loggers of these names, with their files in ``folder``.

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
                f"Expected {package} to be installed to log to {name}. Run"
                f" `{install_command(name)}`."
            ) from error
    return loggers


def describe(loggers: Iterable[Logger], params: dict[str, Any]) -> None:
    """Log the parameters of the run to the services.

    Log files are next to ``run.json``, which has them.
    """
    for logger in loggers:
        if isinstance(logger, Service):
            logger.log_hyperparams(params)
