"""A training run that is killed, finds the disk full, meets another writer or reads damaged
files.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from chaos import (
    THOROUGH,
    Outcome,
    bits,
    clock_set_back,
    exact,
    flipped,
    interruptions,
    outcome_of,
    writers,
)
from lightning_fabric import Fabric

from noiseproof.analysis import open_run
from noiseproof.data import get_dataset
from noiseproof.train import Interrupted, Settings, prepare, train
from noiseproof.train.checkpoint import checkpoints, load

SETTINGS = Settings(
    model="mlp:hidden=[4]", epochs=2, batch_size=40, optimizer="adam:lr=0.01", checkpoint_steps=2
)


def short_run(folder: Path, max_steps: int | None = None) -> dict[str, Any]:
    """A run of six steps, resumed where there is something to resume; what it says, and all that
    its folder says.
    """
    task = prepare(get_dataset("two-moons:n=120,n_test=30"), "symmetric:rate=0.4", validation=0.2)
    fabric = Fabric(accelerator="cpu", devices=1)
    options: Any = {
        "fabric": fabric,
        "out": folder,
        "resume": True,
        "samples": True,
        "max_steps": max_steps,
    }
    result = train(task, "ce & momentum", SETTINGS, **options)
    return {"metrics": _timeless(result.metrics), "read": read_folder(folder)}


def read_folder(folder: Path) -> dict[str, Any]:
    """Everything in the folder of a run that is read by someone, without times."""
    run = open_run(folder)
    state = load(checkpoints(folder / "checkpoints")[-1])
    state["record"]["rows"] = _timeless(state["record"]["rows"])
    content: dict[str, Any] = {
        "rows": _timeless(run.rows.to_dict("records")),
        "config": {key: value for key, value in run.config.items() if key != "source"},
        "labels": run.labels,
        "samples": [run.samples(epoch) for epoch in run.sample_epochs],
        "state": {**state, "seconds": 0},
        "best": [dict(model.state_dict()) for model in run.models("best")],
    }
    return {
        name: hashlib.sha256(repr(exact(value)).encode()).hexdigest()
        for name, value in content.items()
    }


def _timeless(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    short_run(folder)
    return folder


@pytest.fixture(scope="module")
def whole(finished: Path) -> Any:
    return json.loads(json.dumps(short_run(finished)))  # it reads what is there


@pytest.mark.parametrize("how", ["kill", "full"])
def test_a_run_that_is_stopped_at_any_write_ends_like_one_that_was_not(
    how: Any, whole: Any, tmp_path: Path
) -> None:
    cases = list(interruptions(short_run, tmp_path, how))
    assert cases
    for case in cases:
        assert how == "full" or case.first.killed, case
        if how == "full":  # the last operations only remove files
            assert case.first.is_refusal or case.first.value == whole, case.first
        assert case.again == Outcome(whole), f"{case.operation}: {case.again}"
        assert not list(case.folder.rglob("*.part")) or how == "kill"


def test_of_two_writers_one_trains_and_the_other_is_refused(whole: Any, tmp_path: Path) -> None:
    for attempt in range(6 if THOROUGH else 1):
        outcomes = writers(short_run, tmp_path / str(attempt), 3)
        assert sum(outcome.error == "BlockingIOError" for outcome in outcomes) >= 1
        for outcome in outcomes:
            assert outcome == Outcome(whole) or outcome.is_refusal, outcome
        assert read_folder(tmp_path / str(attempt)) == whole["read"]


def test_a_flipped_bit_anywhere_in_the_folder_is_refused_or_changes_nothing(
    finished: Path, whole: Any, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished, tmp_path / "run")
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    assert {path.name for path in paths} >= {
        "run.json",
        "record.csv",
        "checksums.json",
        "labels.safetensors",
    }
    for path in paths:
        for bit in bits(path):
            with flipped(path, bit):
                outcome = outcome_of(lambda: read_folder(folder))
                assert outcome == Outcome(whole["read"]) or outcome.is_refusal, (
                    f"bit {bit} of {path.name}: {outcome}"
                )


def test_a_run_resumed_after_a_flipped_bit_ends_like_one_without(
    finished: Path, whole: Any, tmp_path: Path
) -> None:
    names = sorted(
        str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()
    )
    for name in names:
        for bit in bits(finished / name, 1):
            folder = shutil.copytree(finished, tmp_path / f"{name.replace('/', '-')}-{bit}")
            damaged = bytearray((folder / name).read_bytes())
            damaged[bit // 8] ^= 1 << bit % 8
            (folder / name).write_bytes(damaged)
            outcome = outcome_of(lambda: short_run(folder))  # noqa: B023
            assert outcome == Outcome(whole) or outcome.is_refusal, (
                f"bit {bit} of {name}: {outcome}"
            )


def test_a_clock_that_was_set_back_changes_nothing(whole: Any, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        short_run(tmp_path / "stopped", max_steps=3)
    with clock_set_back():
        assert outcome_of(lambda: short_run(tmp_path / "stopped")) == Outcome(whole)
        assert outcome_of(lambda: short_run(tmp_path / "new")) == Outcome(whole)


def test_a_folder_that_cannot_be_made_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    outcome = outcome_of(lambda: short_run(tmp_path / "file" / "run"))
    assert (
        outcome.is_refusal
        and str(tmp_path / "file") in outcome.message
        and "Free some space" not in outcome.message
    )
