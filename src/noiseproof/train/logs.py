"""Loggers of metrics: CSV and TensorBoard from Lightning Fabric, MLflow and Weights & Biases from
here.
"""

import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from lightning_fabric.loggers.csv_logs import CSVLogger
from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger
from lightning_fabric.utilities.rank_zero import rank_zero_only

from noiseproof.core.messages import install_command

Log: TypeAlias = Callable[[dict[str, float], int | None], Any]
Describe: TypeAlias = Callable[[dict[str, Any]], Any]
End: TypeAlias = Callable[[str], Any]


class Service(Logger):
    """A tracking service as a logger of Fabric: a run for each training, which the first process
    starts and ends.

    ``start`` starts a run and returns three functions: of metrics and their step, of parameters,
    and of how it ended. A service that cannot be reached at the start is refused; one that is lost
    later is warned about, and left out.
    """

    is_service = True  # whose run `train` ends

    def __init__(
        self, name: str, remedy: str, start: Callable[[], tuple[Log, Describe, End]]
    ) -> None:
        self._name = name
        self._remedy = remedy
        self._start = start
        self._run: tuple[Log, Describe, End] | None = None
        self._lost = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def version(self) -> None:
        return None

    def _open(self) -> tuple[Log, Describe, End]:
        if self._run is None:
            try:
                self._run = self._start()
            except Exception as error:  # of the service's own kinds
                raise ConnectionError(
                    f"Expected to log to {self._name}, got {type(error).__name__}:"
                    f" {_first_line(error)} {self._remedy}"
                ) from error
        return self._run

    def _tell(self, which: int, *content: Any) -> None:
        function = self._open()[which]
        if self._lost:
            return
        try:
            function(*content)
        except Exception as error:  # hours of training are worth more than their curves
            self._lost = True
            warnings.warn(
                f"{self._name} was lost ({_first_line(error)}): this run is not logged to it any"
                " more.",
                stacklevel=2,
            )

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._tell(0, dict(metrics), step)

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        self._tell(1, dict(params) if isinstance(params, dict) else vars(params))

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run; what is logged after it is of another one."""
        if self._run is not None:
            if self._lost:  # the library still holds the run open in this process
                with suppress(Exception):
                    self._open()[2](status)
            self._tell(2, status)
            self._run = None
            self._lost = False


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{line[:300].rstrip('.')}."


def _mlflow(folder: Path) -> Logger:
    import mlflow

    def start() -> tuple[Log, Describe, End]:
        # With `nested`, a run that the user has started is its parent, and not the same.
        run = mlflow.start_run(nested=True).info.run_id
        client = mlflow.MlflowClient()

        def log(metrics: dict[str, float], step: int | None) -> None:
            now = int(time.time() * 1000)
            values = [
                mlflow.entities.Metric(name, value, now, step or 0)
                for name, value in metrics.items()
            ]
            client.log_batch(run, metrics=values)

        def describe(params: dict[str, Any]) -> None:
            client.log_batch(
                run,
                params=[mlflow.entities.Param(name, str(value)) for name, value in params.items()],
            )

        def end(status: str) -> None:
            active = mlflow.active_run()
            state = {"success": "FINISHED", "interrupted": "KILLED"}.get(status, "FAILED")
            if active is not None and active.info.run_id == run:
                mlflow.end_run(state)
            else:  # the user has started another one since
                client.set_terminated(run, state)

        return log, describe, end

    remedy = "Start the server, set MLFLOW_TRACKING_URI to another place, or do not log to mlflow."
    return Service("mlflow", remedy, start)


def _wandb(folder: Path) -> Logger:
    import wandb

    def start() -> tuple[Log, Describe, End]:
        run = wandb.init(dir=str(folder), reinit="create_new")  # and not the one that is active
        return (
            lambda metrics, step: run.log(metrics, step=step),
            run.config.update,
            lambda status: run.finish(exit_code=int(status != "success")),
        )

    return Service("wandb", "Run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline.", start)


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
