"""A sweep that is killed, finds the disk full, is started twice or reads damaged results."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chaos import Outcome, bits, flipped, interruptions, outcome_of, writers

from noiseproof.bench import Experiment, read_results, run_all
from noiseproof.train import Settings

SETTINGS = Settings(model="mlp:hidden=[4]", epochs=1, batch_size=50, checkpoint_steps=1)
FIRST = Experiment(
    "two-moons:n=100,n_test=20", "symmetric:rate=0.4", "ce", 0, SETTINGS, validation=0.2
)
SWEEP = [FIRST, replace(FIRST, method="gce", seed=1)]
MEASURED = ("seconds", "peak_memory", "provenance")  # not the same twice


def sweep(folder: Path) -> Any:
    """Two runs; their results, as returned and as read, without times."""
    made = run_all(SWEEP, folder / "results", checked=True)
    assert made == read_results(folder / "results")
    return _timeless(made)


def _timeless(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _timeless(v) for key, v in sorted(value.items()) if key not in MEASURED}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    sweep(folder)
    return folder


@pytest.fixture(scope="module")
def whole(finished: Path) -> Any:
    return json.loads(json.dumps(sweep(finished)))


@pytest.mark.parametrize("how", ["kill", "full"])
def test_a_sweep_that_is_stopped_at_any_write_ends_like_one_that_was_not(
    how: Any, whole: Any, tmp_path: Path
) -> None:
    for case in interruptions(sweep, tmp_path, how):
        assert (
            case.first.killed
            if how == "kill"
            else case.first.is_refusal or case.first.value == whole
        ), case.first
        assert case.again == Outcome(whole), f"{case.operation}: {case.again}"
        kept = {path.name for path in (case.folder / "results").iterdir()}
        assert kept - {"locks", "runs"} == {f"{experiment.key}.json" for experiment in SWEEP}


def test_two_drivers_share_a_sweep(whole: Any, tmp_path: Path) -> None:
    assert writers(sweep, tmp_path / "shared", 2) == [Outcome(whole)] * 2


def test_a_flipped_bit_in_a_result_is_refused_or_changes_nothing(
    finished: Path, whole: Any, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished / "results", tmp_path / "results")
    for path in folder.glob("*.json"):
        for bit in bits(path, 40):
            with flipped(path, bit):
                outcome = outcome_of(lambda: _timeless(read_results(folder)))
                assert outcome == Outcome(whole) or outcome.is_refusal, f"bit {bit}: {outcome}"


def test_a_file_of_results_that_another_one_was_copied_over_is_refused(
    finished: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished / "results", tmp_path / "results")
    one, other = (folder / f"{experiment.key}.json" for experiment in SWEEP)
    shutil.copy(one, other)
    outcome = outcome_of(lambda: read_results(folder))
    assert (
        outcome.is_refusal
        and f"Expected a result in {other}, got that of '{one.stem}'" in outcome.message
    )
