"""The papers' search: grids by hand, the choice by noisy validation alone, seeds and rows as the papers have them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from typer.testing import CliRunner

from noiseproof.bench import BadExperiment, Experiment, read_results, run_all
from noiseproof.bench.search import GRIDS, expand, search
from noiseproof.cli import app
from noiseproof.core.registry import parse_call
from noiseproof.data import get_dataset
from noiseproof.losses import presets as loss_presets
from noiseproof.train import Settings, get_method, prepare
from noiseproof.train.fleet import fit_many
from noiseproof.train.presets import PRESETS

SHORT = Settings(model="mlp:hidden=[8]", epochs=2)
GRID = Experiment("digits", "symmetric:rate=0.4", "gce:q=[0.1,0.9]", 3, SHORT, 0.1)


def fails(*args: Any, **options: Any) -> Any:
    raise AssertionError("This was not to be run.")


# Grids


@pytest.mark.parametrize(
    "spec, points",
    [
        ("ce", ["ce"]),
        ("gce:q=[0.1, 0.3]", ["gce:q=0.1", "gce:q=0.3"]),
        ("ln:tau=[1,2],t=0.1,lam=[3,4]", [f"ln:tau={tau},t=0.1,lam={lam}" for tau in (1, 2) for lam in (3, 4)]),
        ("2*nce + mae:scale=[1,2]", ["2*nce + mae:scale=1", "2*nce + mae:scale=2"]),
        ("cr:loss=(phuber:tau=[1e5,10])", ["cr:loss=(phuber:tau=100000.0)", "cr:loss=(phuber:tau=10)"]),
        ("cr:prior=[[0.5,0.5],[0.1,0.9]]", ["cr:prior=[0.5, 0.5]", "cr:prior=[0.1, 0.9]"]),
        ('sln-mo-lc:against=["current","original"]', ["sln-mo-lc:against=current", "sln-mo-lc:against=original"]),
        ("ln:dummy=[true,false]", ["ln:dummy=true", "ln:dummy=false"]),
    ],
)
def test_a_list_stands_for_its_values(spec: str, points: list[str]) -> None:
    assert list(expand(spec)) == points


@pytest.mark.parametrize("spec, message", [("gce:q=[]", "Expected values in every"), ("gce:q=[a]", "JSON list")])
def test_grids_of_nothing_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(expand(spec))


def test_what_the_papers_chose_is_in_their_grids() -> None:
    """Tables 5 and 6 of 000, and App. B.1 of 001, name points of the grids that the same papers give."""
    seen = set()
    for name, paper, holds, spec in [*PRESETS, *loss_presets.PRESETS]:
        if name not in GRIDS.get(paper, {}) or (paper == "001" and holds.get("dataset") == "clothing1m"):
            continue
        grid = [parse_call(point) for point in expand(GRIDS[paper][name])]
        assert parse_call(spec) in grid, (spec, GRIDS[paper][name])
        seen.add((paper, name))
    assert seen == {(paper, name) for paper, grids in GRIDS.items() for name in grids}


def test_every_point_of_the_papers_grids_is_a_method() -> None:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    count = 0
    for grids in GRIDS.values():
        for grid in grids.values():
            for point in expand(grid):
                get_method(point, task, Settings(epochs=300))
                count += 1
    assert count == 5 + 5 + 5 + 15 + 5 + 9 + 3 + 5 + 5 + 4


# Searches


def test_the_choice_is_by_noisy_validation_with_one_seed_and_the_report_by_test_with_all(tmp_path: Path) -> None:
    found = search(GRID, tmp_path, seeds=3)
    results = read_results(tmp_path)
    points = {f"gce:q={q}": replace(GRID, method=f"gce:q={q}") for q in (0.1, 0.9)}
    scores = {method: results[run.key]["last"]["validation_accuracy"] for method, run in points.items()}
    assert found.validation == scores and scores[found.method] == max(scores.values())
    runs = [replace(points[found.method], seed=seed) for seed in (3, 4, 5)]
    assert found.results == [results[run.key] for run in runs]
    accuracies = [results[run.key]["last"]["test_accuracy"] for run in runs]
    assert found.accuracies == accuracies and found.failed == 0
    assert (found.mean, found.std) == (fmean(accuracies), stdev(accuracies))
    assert len(results) == 4  # two points, and two seeds more of one: the chosen run is the first seed's
    assert search(GRID, tmp_path, seeds=3, fit=fails) == found


def test_the_test_rows_have_no_say(tmp_path: Path) -> None:
    """Results written by hand: the point that is better on noisy validation is worse on test."""
    run_all([replace(GRID, method=method) for method in expand(GRID.method)], tmp_path)
    for q, validation, test in ((0.1, 0.5, 0.9), (0.9, 0.6, 0.1)):
        path = tmp_path / f"{replace(GRID, method=f'gce:q={q}').key}.json"
        result = json.loads(path.read_text())
        result["last"] |= {"validation_accuracy": validation, "test_accuracy": test}
        result["best"]["validation_accuracy"] = 1 - validation  # nor has any epoch but the last
        path.write_text(json.dumps(result))
    found = search(GRID, tmp_path, seeds=1, fit=fails)
    assert (found.method, found.accuracies, found.std) == ("gce:q=0.9", [0.1], None)


def test_full_trains_on_the_held_out_rows_too(tmp_path: Path) -> None:
    found = search(GRID, tmp_path, seeds=2, full=True)
    assert [result["experiment"]["validation"] for result in found.results] == [0.0, 0.0]
    assert [result["experiment"]["seed"] for result in found.results] == [3, 4]
    assert all("validation_accuracy" not in result["last"] for result in found.results)
    assert len(read_results(tmp_path)) == 4


def test_a_point_that_fails_is_not_chosen_and_all_that_fail_are_refused(tmp_path: Path) -> None:
    def fit(jobs: Any, *, finished: Any, **options: Any) -> Any:
        for number, job in enumerate(jobs):
            if job.method == "gce:q=0.1":
                finished(number, ValueError("Too wild."))
            else:
                fit_many([job], finished=lambda _, outcome, n=number: finished(n, outcome), **options)

    found = search(GRID, tmp_path, seeds=1, fit=fit)
    assert found.validation["gce:q=0.1"] is None and found.method == "gce:q=0.9"
    with pytest.raises(ValueError, match=r"Expected a point of 'gce:q=\[0.1\]' that trains, got ValueError: Too wild"):
        search(replace(GRID, method="gce:q=[0.1]"), tmp_path, fit=fails)


@pytest.mark.parametrize(
    "grid, options, message",
    [
        (replace(GRID, validation=0.0), {}, "Expected `validation` above 0"),
        (GRID, {"seeds": 0}, "Expected `seeds` to be an integer of at least 1, got 0"),
        (replace(GRID, method="gce:q=[0.5,1.5]"), {}, "Expected `q` in"),
        (replace(GRID, method="gce:p=[0.5]"), {}, "'p'"),
    ],
)
def test_refusals_before_anything_trains(
    grid: Experiment, options: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, BadExperiment), match=message):
        search(grid, tmp_path, fit=fails, **options)  # type: ignore[arg-type]


def test_the_command_line(tmp_path: Path) -> None:
    command = ["bench", "search", "gce:q=[0.1,0.9]", "--noise", "symmetric:rate=0.4", "--epochs", "2", "--seeds", "2"]
    command += ["--model", "mlp:hidden=[8]", "--results", str(tmp_path)]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    again = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    head, first, second, last = ran.stdout.splitlines()
    assert head.split("  ")[0] == "method" and first.startswith(again["method"]) and second.startswith("gce:q=")
    expected = f"{again['method']}: test {fmean(again['accuracies']):.4f} ± {stdev(again['accuracies']):.4f}"
    assert last == f"{expected} (standard deviation), 2 seeds" and not math.isnan(again["mean"])
    refused = CliRunner().invoke(app, [*command, "--validation", "0"])
    assert refused.exit_code == 2 and "Expected `validation` above 0" in refused.stderr
