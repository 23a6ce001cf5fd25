"""Metrics beside the record: files read back, services stood in for, and what is said where a
package is missing.
"""

from __future__ import annotations

import csv
import math
import re
import struct
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers import tensorboard
from lightning_fabric.utilities.rank_zero import rank_zero_only

from noiseproof.core.messages import install_command
from noiseproof.data import get_dataset
from noiseproof.train import Interrupted, Result, Settings, prepare, train
from noiseproof.train.logs import LOGGERS, describe, make_loggers

SETTINGS = Settings(model="mlp:hidden=[4]", epochs=3, batch_size=256)


def logged(
    names: list[str], folder: Path, noise: str = "symmetric:rate=0.4", **options: Any
) -> Result:
    fabric = Fabric(accelerator="cpu", devices=1, loggers=make_loggers(names, folder))
    task = prepare(get_dataset("digits"), noise, validation=0.1)
    try:
        return train(task, "ce", SETTINGS, fabric=fabric, **options)
    finally:
        for logger in fabric.loggers:
            logger.finalize("success")  # as the end of the process would


def events(folder: Path) -> dict[str, dict[int, float]]:
    """The scalars of a TensorBoard file by tag and step: records of a length, its checksum, an
    event, its checksum.
    """
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, dict[int, float]] = {}
    (path,) = folder.glob("events.out.tfevents.*")
    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + length])
        at += 12 + length + 4
        for value in event.summary.value:
            assert event.step not in found.setdefault(value.tag, {})
            found[value.tag][event.step] = value.simple_value
    return found


def test_csv_and_tensorboard_hold_every_metric_of_every_epoch(tmp_path: Path) -> None:
    rows = logged(["csv", "tensorboard"], tmp_path).metrics
    with open(tmp_path / "csv" / "version_0" / "metrics.csv", newline="") as file:
        read = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    # to the last digit
    assert read == [{**row, "step": epoch} for epoch, row in enumerate(rows, 1)]

    scalars = events(tmp_path / "tensorboard" / "version_0")
    assert set(scalars) == set(rows[0]) and len(rows) == 3
    for tag, values in scalars.items():
        expected = {
            epoch: float(torch.tensor(row[tag], dtype=torch.float32))
            for epoch, row in enumerate(rows, 1)
        }
        assert values == expected, tag


def test_what_was_not_measured_is_left_out(tmp_path: Path) -> None:
    """Without noise no wrong label can be repeated: the record says NaN, and a chart has no point
    there.
    """
    rows = logged(["csv"], tmp_path, noise="none").metrics
    missing = {name for name, value in rows[0].items() if math.isnan(value)}
    header = (tmp_path / "csv" / "version_0" / "metrics.csv").read_text().splitlines()[0].split(",")
    assert "false_label_accuracy" in missing and set(header) == {*rows[0], "step"} - missing


def test_a_resumed_run_logs_the_epochs_that_are_left(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        logged(["csv"], tmp_path, out=tmp_path, max_steps=8)  # in the second epoch of six steps
    rows = logged(["csv"], tmp_path, out=tmp_path, resume=True).metrics
    found = []
    for version in ("version_0", "version_1"):
        with open(tmp_path / "csv" / version / "metrics.csv", newline="") as file:
            found.append(
                [(int(row["step"]), float(row["test_loss"])) for row in csv.DictReader(file)]
            )
    assert [[step for step, _ in part] for part in found] == [[1], [2, 3]]
    assert [loss for part in found for _, loss in part] == [row["test_loss"] for row in rows]


class Service(ModuleType):
    """Stands in for mlflow and for wandb: notes what it is told."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.params: list[dict[str, Any]] = []
        self.started: list[dict[str, Any]] = []

        self.ended: list[Any] = []
        self.entities = SimpleNamespace(Metric=lambda *fact: fact, Param=lambda *fact: fact)
        self.is_down = False

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if self.is_down:
            raise RuntimeError("no route to host\nand more")
        self.metrics.append((step, metrics))

    # --- as mlflow

    def MlflowClient(self) -> Any:
        return self

    def start_run(self, nested: bool) -> Any:
        self.started.append({"nested": nested})
        return self.active_run()

    def active_run(self) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id=len(self.started)))

    def log_batch(self, run: int, metrics: Any = (), params: Any = ()) -> None:
        assert run == len(self.started)
        for step in {step for *_, step in metrics}:
            self.log_metrics({name: value for name, value, *_ in metrics}, step)
        self.params += [dict(params)] if params else []

    def end_run(self, state: str) -> None:
        self.ended.append(state)

    # --- as wandb

    def init(self, **options: Any) -> Any:
        if self.is_down:
            raise RuntimeError("No API key configured.")
        self.started.append(options)
        config = SimpleNamespace(update=self.params.append)
        return SimpleNamespace(
            log=self.log_metrics,
            config=config,
            finish=lambda exit_code: self.ended.append(exit_code),
        )


@pytest.fixture(params=["mlflow", "wandb"])
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Service:
    module = Service(request.param)
    monkeypatch.setitem(sys.modules, request.param, module)
    return module


def test_a_service_is_told_every_metric(service: Service, tmp_path: Path) -> None:
    rows = logged([service.__name__], tmp_path).metrics
    assert service.metrics == list(enumerate(rows, 1))
    options = (
        {"dir": str(tmp_path), "reinit": "create_new"}
        if service.__name__ == "wandb"
        else {"nested": True}
    )
    assert service.started == [options] and service.ended == [
        0 if service.__name__ == "wandb" else "FINISHED"
    ]


def test_two_trainings_of_a_process_are_two_runs(service: Service, tmp_path: Path) -> None:
    fabric = Fabric(
        accelerator="cpu", devices=1, loggers=make_loggers([service.__name__], tmp_path)
    )
    task = prepare(get_dataset("digits"))
    train(task, "ce", SETTINGS, fabric=fabric)
    with pytest.raises(Interrupted):
        train(task, "ce", SETTINGS, fabric=fabric, max_steps=8)
    with pytest.raises(ValueError, match="Unknown"):
        # nothing was logged: there is no run to end
        train(task, "no-such-method", SETTINGS, fabric=fabric)
    ends = {"wandb": [0, 1], "mlflow": ["FINISHED", "KILLED"]}
    assert len(service.started) == 2 and service.ended == ends[service.__name__]


def test_a_service_that_cannot_be_reached_is_refused_in_one_line(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "is_down", True)
    monkeypatch.setattr(service, "start_run", service.init)
    remedy = {"wandb": "Run `wandb login`", "mlflow": "Start the server, set MLFLOW_TRACKING_URI"}[
        service.__name__
    ]
    message = (
        f"Expected to log to {service.__name__}, got RuntimeError: No API key configured. {remedy}"
    )
    with pytest.raises(ConnectionError, match=message):
        describe(make_loggers([service.__name__], tmp_path), {"method": "ce"})


def test_a_service_that_is_lost_does_not_stop_the_training(
    service: Service, tmp_path: Path
) -> None:
    (logger,) = make_loggers([service.__name__], tmp_path)
    logger.log_metrics({"loss": 1.0}, step=1)
    service.is_down = True
    with pytest.warns(
        UserWarning,
        match=rf"{service.__name__} was lost \(no route to host\.\): this run is not logged",
    ):
        logger.log_metrics({"loss": 1.0}, step=2)
    service.is_down = False
    logger.log_metrics({"loss": 1.0}, step=3)  # a curve with a hole would mislead
    assert service.metrics == [(1, {"loss": 1.0})]
    logger.finalize("success")  # else the next run would be a child of this one
    assert service.ended == [0 if service.__name__ == "wandb" else "FINISHED"]


def test_a_service_is_told_what_is_run_and_files_are_not(service: Service, tmp_path: Path) -> None:
    loggers = make_loggers(["csv", service.__name__, "tensorboard"], tmp_path)
    assert service.started == []  # nobody has logged anything yet
    describe(loggers, {"method": "ce", "seed": 3})
    seed = 3 if service.__name__ == "wandb" else "3"  # MLflow has words alone
    assert service.params == [{"method": "ce", "seed": seed}] and list(tmp_path.iterdir()) == []
    assert [logger.name for logger in loggers] == ["csv", service.__name__, "tensorboard"]


def test_only_the_first_process_speaks_to_a_service(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    (logger,) = loggers = make_loggers([service.__name__], tmp_path)
    logger.log_metrics({"loss": 1.0}, step=1)
    describe(loggers, {"method": "ce"})
    assert service.metrics == service.params == service.started == []


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_service_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ImportError,
        match=re.escape(
            f"Expected {name} to be installed to log to {name}. Run `{install_command(name)}`."
        ),
    ):
        make_loggers(["csv", name], tmp_path)


def test_tensorboard_without_a_writer_names_the_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorboard, "_TENSORBOARD_AVAILABLE", False)
    monkeypatch.setattr(tensorboard, "_TENSORBOARDX_AVAILABLE", False)
    with pytest.raises(
        ImportError, match="Expected tensorboardX to be installed to log to tensorboard."
    ):
        make_loggers(["tensorboard"], tmp_path)


def test_an_unknown_name_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match="Expected one of csv, tensorboard, mlflow, wandb to log to, got 'tensorbord'",
    ):
        make_loggers(["csv", "tensorbord"], tmp_path)
    assert list(tmp_path.iterdir()) == [] and list(LOGGERS) == [
        "csv",
        "tensorboard",
        "mlflow",
        "wandb",
    ]
