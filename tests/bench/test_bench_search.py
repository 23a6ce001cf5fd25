"""The papers' search: grids by hand, the choice by noisy validation alone, seeds and rows as the
papers have them.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from typer.testing import CliRunner

from noiseproof.accelerate import fit_many
from noiseproof.bench import BadExperiment, Experiment, read_results, run_all
from noiseproof.bench.results import write_result
from noiseproof.bench.search import (
    Pruned,
    Range,
    _run,
    _suggest,
    expand,
    free_parts,
    search_all,
)
from noiseproof.bench.tables import load_table
from noiseproof.cli import app
from noiseproof.core.grammar import parse_call
from noiseproof.data import get_dataset
from noiseproof.papers import PAPERS, get_paper, loss_presets, method_presets
from noiseproof.train import Settings, get_method, prepare, train

SHORT = Settings(model="mlp:hidden=[8]", epochs=2)
GRID = Experiment("digits", "symmetric:rate=0.4", "gce:q=[0.1,0.9]", 3, SHORT, 0.1)


def search(grid: Experiment, folder: Path, **options: Any) -> Any:
    return search_all([grid], folder, **options)[0]


def fails(*args: Any, **options: Any) -> Any:
    raise AssertionError("This was not to be run.")


# Grids


@pytest.mark.parametrize(
    "spec, points",
    [
        ("ce", ["ce"]),
        ("gce:q=[0.1, 0.3]", ["gce:q=0.1", "gce:q=0.3"]),
        (
            "ln:tau=[1,2],t=0.1,lam=[3,4]",
            [f"ln:tau={tau},t=0.1,lam={lam}" for tau in (1, 2) for lam in (3, 4)],
        ),
        ("2*nce + mae:scale=[1,2]", ["2*nce + mae:scale=1", "2*nce + mae:scale=2"]),
        (
            "cr:loss=(phuber:tau=[1e5,10])",
            ["cr:loss=(phuber:tau=100000.0)", "cr:loss=(phuber:tau=10)"],
        ),
        ("cr:prior=[[0.5,0.5],[0.1,0.9]]", ["cr:prior=[0.5, 0.5]", "cr:prior=[0.1, 0.9]"]),
        (
            'sln-mo-lc:against=["current","original"]',
            ["sln-mo-lc:against=current", "sln-mo-lc:against=original"],
        ),
        ("ln:dummy=[true,false]", ["ln:dummy=true", "ln:dummy=false"]),
    ],
)
def test_a_list_stands_for_its_values(spec: str, points: list[str]) -> None:
    assert list(expand(spec)) == points


@pytest.mark.parametrize(
    "spec, message", [("gce:q=[]", "Expected values in every"), ("gce:q=[a]", "JSON list")]
)
def test_grids_of_nothing_are_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(expand(spec))


def test_what_the_papers_chose_is_in_their_grids() -> None:
    """Tables 5 and 6 of the LN paper, and App. B.1 of the SLN paper, name points of the grids that
    the same papers give.
    """
    seen = set()
    for name, paper, holds, spec in [*method_presets(), *loss_presets()]:
        if name not in get_paper(paper).grids("") or (
            paper == "sln" and holds.get("dataset") == "clothing1m"
        ):
            continue
        searched = get_paper(paper).grids(holds.get("dataset", ""))[name]
        assert parse_call(spec) in [parse_call(point) for point in expand(searched)], (
            spec,
            searched,
        )
        seen.add((paper, name))
    assert seen == {(paper, name) for paper in PAPERS for name in get_paper(paper).grids("")}


def test_every_point_of_the_papers_grids_is_a_method() -> None:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    count = 0
    for paper in PAPERS:
        for grid in get_paper(paper).grids("").values():
            for point in expand(grid):
                get_method(point, task, Settings(epochs=300))
                count += 1
    assert count == 5 + 5 + 5 + 15 + 5 + 6 + 3 + 5 + 5 + 4 + 3 + 20


# Searches


def test_the_choice_is_by_noisy_validation_with_one_seed_and_the_report_by_test_with_all(
    tmp_path: Path,
) -> None:
    found = search(GRID, tmp_path, seeds=3)
    results = read_results(tmp_path)
    points = {f"gce:q={q}": replace(GRID, method=f"gce:q={q}") for q in (0.1, 0.9)}
    scores = {
        method: results[run.key]["last"]["validation_accuracy"] for method, run in points.items()
    }
    assert found.validation == scores and scores[found.method] == max(scores.values())
    runs = [replace(points[found.method], seed=seed) for seed in (3, 4, 5)]
    assert found.results == [results[run.key] for run in runs]
    accuracies = [results[run.key]["last"]["test_accuracy"] for run in runs]
    assert found.accuracies == accuracies and (found.failed, found.measured_on) == (0, "test")
    assert (found.mean, found.std) == (fmean(accuracies), stdev(accuracies))
    # two points, and two seeds more of one: the chosen run is the first seed's
    assert len(results) == 4
    assert search(GRID, tmp_path, seeds=3, fit=fails) == found


def test_the_test_rows_have_no_say(tmp_path: Path) -> None:
    """Results written by hand: the point that is better on noisy validation is worse on test."""
    run_all([replace(GRID, method=method) for method in expand(GRID.method)], tmp_path)
    for q, validation, test in ((0.1, 0.5, 0.9), (0.9, 0.6, 0.1)):
        path = tmp_path / f"{replace(GRID, method=f'gce:q={q}').key}.json"
        result = json.loads(path.read_text())
        result["last"] |= {"validation_accuracy": validation, "test_accuracy": test}
        result["best"]["validation_accuracy"] = 1 - validation  # nor has any epoch but the last
        del result["checksum"]
        write_result(tmp_path, result)
    found = search(GRID, tmp_path, seeds=1, fit=fails)
    assert (found.method, found.accuracies, found.std) == ("gce:q=0.9", [0.1], None)


def test_the_first_of_equals_is_chosen(tmp_path: Path) -> None:
    for order in ("[0.1,0.9]", "[0.9,0.1]"):
        grid = replace(GRID, method=f"gce:q={order}")
        for method in expand(grid.method):
            made: Any = {"key": replace(grid, method=method).key, "experiment": grid.as_dict()}
            last = {"validation_accuracy": 0.5, "test_accuracy": 0.5}
            done = {"status": "done", "last": last, "error": None, "seconds": 1.0}
            write_result(tmp_path, made | done)
        assert search(grid, tmp_path, seeds=1, fit=fails).method == next(expand(grid.method))


def test_full_trains_on_the_held_out_rows_too(tmp_path: Path) -> None:
    found = search(GRID, tmp_path, seeds=2, full=True)
    assert [result["experiment"]["validation"] for result in found.results] == [0.0, 0.0]
    assert [result["experiment"]["seed"] for result in found.results] == [3, 4]
    assert all("validation_accuracy" not in result["last"] for result in found.results)
    assert len(read_results(tmp_path)) == 4


def test_without_test_rows_the_noisy_ones_are_reported(tmp_path: Path) -> None:
    rows = "".join(f"{i % 7},{i % 5},{'ab'[i % 7 > 3]}\n" for i in range(60))
    (tmp_path / "mine.csv").write_text(f"u,v,kind\n{rows}")
    grid = replace(GRID, dataset=f"table:table={tmp_path / 'mine.csv'},label=kind", noise="none")
    with pytest.raises(ValueError, match="Expected a dataset with a test part for `full`"):
        search(grid, tmp_path / "results", full=True, fit=fails)
    found = search(grid, tmp_path / "results", seeds=2)
    results = read_results(tmp_path / "results")
    runs = [replace(grid, method=found.method, seed=seed) for seed in (3, 4)]
    assert found.accuracies == [results[run.key]["last"]["validation_accuracy"] for run in runs]
    assert (found.failed, found.measured_on) == (0, "noisy validation")
    command = [
        "bench",
        "search",
        grid.method,
        "--dataset",
        grid.dataset,
        "--seeds",
        "1",
        "--epochs",
        "1",
    ]
    shown = (
        CliRunner()
        .invoke(app, [*command, "--results", str(tmp_path / "results")])
        .stdout.splitlines()[-1]
    )
    assert re.fullmatch(r"gce:q=0\.\d: noisy validation [01]\.\d{4}, 1 seed", shown)


def test_a_point_that_fails_is_not_chosen_and_all_that_fail_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(jobs: Any, *, finished: Any, **options: Any) -> Any:
        for number, job in enumerate(jobs):
            if job.method == "gce:q=0.1":
                finished(number, ValueError("Too wild."))
            else:
                fit_many(
                    [job], finished=lambda _, outcome, n=number: finished(n, outcome), **options
                )

    found = search(GRID, tmp_path, seeds=1, fit=fit)
    assert found.validation["gce:q=0.1"] is None and found.method == "gce:q=0.9"
    assert found.errors == {"gce:q=0.1": "ValueError: Too wild."}
    one = replace(found, results=[{"error": "Diverged: Wilder.", "last": None}])
    with monkeypatch.context() as patch:
        patch.setattr("noiseproof.bench.search.search_all", lambda *args, **options: [one])
        shown = CliRunner().invoke(app, ["bench", "search", GRID.method]).stdout.splitlines()
    assert shown[2].split("  ")[-1] == "failed: ValueError: Too wild."
    assert shown[-1].endswith(", 1 run failed (Diverged: Wilder.)")
    with pytest.raises(
        ValueError,
        match=r"Expected a point of 'gce:q=\[0.1\]' that trains, got ValueError: Too wild",
    ):
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
    command = [
        "bench",
        "search",
        "gce:q=[0.1,0.9]",
        "--noise",
        "symmetric:rate=0.4",
        "--epochs",
        "2",
        "--seeds",
        "2",
    ]
    command += ["--model", "mlp:hidden=[8]", "--results", str(tmp_path)]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    (again,) = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    head, first, second, last = ran.stdout.splitlines()
    assert (
        head.split("  ")[0] == "method"
        and first.startswith(again["method"])
        and second.startswith("gce:q=")
    )
    expected = (
        f"{again['method']}: test {fmean(again['accuracies']):.4f} ±"
        f" {stdev(again['accuracies']):.4f}"
    )
    assert last == f"{expected} (standard deviation), 2 seeds" and not math.isnan(again["mean"])
    path = tmp_path / f"{replace(GRID, method='gce:q=0.1', seed=0).key}.json"
    result = json.loads(path.read_text())
    del result["checksum"]
    failed = {"status": "failed", "error": "ValueError: Too wild.", "last": None}
    write_result(tmp_path, {**result, **failed})
    assert "failed: ValueError: Too wild." in CliRunner().invoke(app, command).stdout
    assert CliRunner().invoke(app, [*command, "--retry-failed"]).stdout == ran.stdout
    refused = CliRunner().invoke(app, [*command, "--validation", "0"])
    assert refused.exit_code == 2 and "Expected --validation above 0" in refused.stderr


def test_several_grids_are_searched_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    monkeypatch.setattr(
        "noiseproof.bench.search.run_all",
        lambda runs, *a, **o: (calls.append(len(runs)), run_all(runs, *a, **o))[1],
    )
    grids = [GRID, replace(GRID, method="ls:alpha=[0.1,0.3,0.5]")]
    many = search_all(grids, tmp_path / "both", seeds=2)
    assert calls == [5, 4] and [found.method.partition(":")[0] for found in many] == ["gce", "ls"]
    for found, grid in zip(many, grids, strict=True):
        alone = search(grid, tmp_path / "alone", seeds=2)
        assert (found.method, found.validation, found.accuracies) == (
            alone.method,
            alone.validation,
            alone.accuracies,
        )


def test_a_papers_grids_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def found(grids: Any, *args: Any, **options: Any) -> list[Any]:
        asked.extend(grid.method for grid in grids)
        raise ValueError("Expected no more.")

    monkeypatch.setattr("noiseproof.bench.search.search_all", found)
    CliRunner().invoke(app, ["bench", "search", "sln", "gce:q=[0.5]", "--results", str(tmp_path)])
    assert asked == [*get_paper("sln").grids("").values(), "gce:q=[0.5]"]


def test_the_cells_of_a_table_are_searched_as_they_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Experiment] = []

    def found(grids: Any, *args: Any, **options: Any) -> list[Any]:
        asked.extend(grids)
        return []

    monkeypatch.setattr("noiseproof.bench.search.search_all", found)
    command = [
        "bench",
        "search",
        "ln-table1",
        "--only",
        "mnist",
        "--only",
        "symmetric 40 %",
        "--precision",
        "bf16",
    ]
    assert CliRunner().invoke(app, [*command, "--json"]).exit_code == 0
    column = load_table("ln-table1").only("mnist", "symmetric 40 %")
    by_method = {
        run.method.partition("@")[0]: replace(run, precision="bf16")
        for run in column.experiments([0])
    }
    assert {grid.method.partition(":")[0] for grid in asked} == set(get_paper("ln").grids(""))
    for grid in asked:  # the first 50 000 rows of MNIST, for one
        name = grid.method.partition(":")[0]
        assert (
            grid == replace(by_method[name], method=get_paper("ln").grids("mnist")[name])
            and grid.rows == 50_000
        )
    asked.clear()
    command = [
        "bench",
        "search",
        "sln-table1",
        "--only",
        "symmetric",
        "--validation",
        "0.2",
        "--epochs",
        "7",
        "--full",
    ]
    assert CliRunner().invoke(app, [*command, "--json"]).exit_code == 0
    assert {(grid.validation, grid.rows, grid.settings.epochs) for grid in asked} == {
        (0.2, None, 7)
    }
    assert {grid.settings.model for grid in asked} == {"wrn-28-2-sln"}


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ("ln-table1", "--only", "CE"),
            "Expected cells of ln-table1 whose parameters the paper searched, got none.",
        ),
        (
            ("gce:q=[0.5]", "--only", "CE"),
            "Expected a table of `noiseproof bench table` for --only, got gce:q=[0.5].",
        ),
        (
            ("ln-table1", "--noise", "none", "--protocol", "ln"),
            (
                "Expected no --noise or --protocol, since a table's cells have their own. Leave it"
                " out."
            ),
        ),
    ],
)
def test_a_table_with_nothing_to_search_is_refused(words: tuple[str, ...], message: str) -> None:
    ran = CliRunner().invoke(app, ["bench", "search", *words])
    assert ran.exit_code == 2 and ran.stderr.strip() == f"noiseproof: {message}"


# Optuna's choice

optuna = pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="needs optuna")
OPEN = replace(
    GRID,
    method="gce:q=0.05..0.95 & momentum:alpha=[0.5,0.9]",
    settings=replace(SHORT, checkpoint_steps=1),
)


@pytest.mark.parametrize(
    "spec, free",
    [
        ("gce:q=0.1..0.9", [Range(0.1, 0.9)]),
        ("ln:tau=log 1e-2..1,lam=[1,2]", [Range(0.01, 1, True), [1, 2]]),
        ("het-tau-full:rank=1..4", [Range(1, 4)]),
        ("mae:scale=.5..2. + nce", [Range(0.5, 2.0)]),
        ("gce:q=0.7", []),
    ],
)
def test_ranges_are_read(spec: str, free: list[Any]) -> None:
    text, found = free_parts(spec)
    assert found == free and len(text) == len(free) + 1


@pytest.mark.parametrize(
    "grid, options, message",
    [
        (
            OPEN,
            {},
            (
                "Expected lists of values in a grid, got the range 0.05..0.95. Give a number of"
                " `trials`"
            ),
        ),
        (OPEN, {"trials": 0}, "Expected `trials` to be an integer of at least 1, got 0"),
        (
            OPEN,
            {"trials": 2, "engine": "processes"},
            "Expected the engine local with `trials`, got 'processes'",
        ),
        (
            replace(GRID, method="gce:q=0.9..0.1"),
            {"trials": 2},
            "Expected a range from low to high, got '0.9..0.1'",
        ),
        (replace(GRID, method="sln:sigma=log 0..1"), {"trials": 2}, "from low to high above 0"),
        (replace(GRID, method="gce:q=0.5..1.5"), {"trials": 2}, "Expected `q` in"),
        (replace(GRID, method="gce"), {"trials": 2}, "Expected a list or a range in 'gce'"),
    ],
)
def test_refusals_of_ranges(
    grid: Experiment, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as refused:
        search(grid, tmp_path, fit=fails, **options)
    assert message in str(refused.value)


@optuna
def test_rounded_points_stay_within_the_range() -> None:
    import optuna

    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [_suggest(study.ask(), 0, Range(0.999912, 0.999991)) for _ in range(50)]
    assert set(drawn) == {0.999912, 0.999991}  # 0.9999 and 1.0 are beyond


@optuna
def test_trials_are_runs_like_others_and_are_made_once(tmp_path: Path) -> None:
    told: list[Any] = []
    found = search(
        OPEN,
        tmp_path,
        seeds=2,
        trials=4,
        progress=lambda run, result, *n: told.append((run.method, *n)),
    )
    results = read_results(tmp_path)
    assert len(found.validation) + len(found.pruned) == 4
    for method, accuracy in found.validation.items():
        assert results[replace(OPEN, method=method).key]["last"]["validation_accuracy"] == accuracy
        q, alpha = (parse_call(part.strip())[1] for part in method.split("&"))
        assert 0.05 <= q["q"] <= 0.95 and alpha["alpha"] in (0.5, 0.9)
    assert found.validation[found.method] == max(
        v for v in found.validation.values() if v is not None
    )
    assert [one[1:] for one in told[:4]] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert search(OPEN, tmp_path, seeds=2, trials=4, fit=fails) == found
    more = search(OPEN, tmp_path, seeds=1, trials=6)
    assert list(more.validation)[:4] == list(found.validation) and len(read_results(tmp_path)) >= 6


@optuna
def test_what_begins_badly_is_given_up(tmp_path: Path) -> None:
    """Made-up accuracies, which rise to q: the later trials of small q are not trained to their
    end.
    """
    epochs = 6
    grid = replace(GRID, method="gce:q=0.05..0.95", settings=replace(SHORT, epochs=epochs))
    real = train(grid.make_task(), "ce", replace(SHORT, epochs=1))
    ended: dict[float, int] = {}

    def fit(jobs: Any, *, finished: Any, **options: Any) -> list[Any]:
        (job,), q = jobs, parse_call(jobs[0].method)[1]["q"]
        outcome: Any = None
        for epoch in range(epochs):
            row = {**real.last, "validation_accuracy": q * (epoch + 1) / epochs}
            try:
                job.progress(epoch, 1, 1, row)
            except Pruned as error:
                outcome = error
                break
        ended[q] = epoch + 1
        outcome = outcome or replace(real, metrics=[row])
        finished(0, outcome)
        return [outcome]

    found = search(grid, tmp_path, seeds=1, trials=25, fit=fit)
    assert len(found.validation) + len(found.pruned) == 25 and len(found.pruned) >= 3
    scores = {parse_call(method)[1]["q"]: accuracy for method, accuracy in found.validation.items()}
    assert all(accuracy == pytest.approx(q) for q, accuracy in scores.items())
    assert parse_call(found.method)[1]["q"] == max(scores) > 0.85
    # TPE looks where it is best; at random it would be 0.5, give or take 0.07
    assert fmean(list(ended)[10:25]) > 0.7
    given_up = {parse_call(method)[1]["q"] for method in found.pruned}
    # at once when a third of the epochs is over
    assert {ended[q] for q in given_up} == {epochs // 3 + 1}
    assert max(given_up) < max(scores) and len(read_results(tmp_path)) == 25 - len(found.pruned)


@optuna
def test_what_another_driver_gave_up_is_no_failure(tmp_path: Path) -> None:
    """Two drivers: the second waits for the trial of the first, which gives it up; so does the
    second.
    """
    import optuna

    study = optuna.create_study(direction="maximize")
    trial, point = study.ask(), replace(GRID, method="gce:q=0.5")
    study.tell(trial.number, state=optuna.trial.TrialState.PRUNED)
    with pytest.raises(Pruned, match="was stopped after epoch 1 of 2"):
        _run(trial, point, tmp_path, 1, {})
    assert not read_results(tmp_path)


KILLED = """
import sys, json
from noiseproof.bench import Experiment
from noiseproof.bench.search import search_all
import torch
torch.set_num_threads(1)
search_all([Experiment.from_dict(json.loads(sys.argv[1]))], sys.argv[2], seeds=1, trials=3)
"""


@optuna
def test_a_search_that_is_killed_goes_on_with_the_same_points(tmp_path: Path) -> None:
    slow = replace(OPEN, settings=replace(OPEN.settings, epochs=5, checkpoint_steps=3))
    expected = search(slow, tmp_path / "whole", seeds=1, trials=3)
    folder = tmp_path / "killed"

    def unfinished() -> list[str]:
        begun = {path.parents[1].name for path in folder.glob("runs/*/checkpoints/*.safetensors")}
        # a result is written before its checkpoints are dropped
        return sorted(begun - set(read_results(folder)))

    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, json.dumps(slow.as_dict()), str(folder)]
    )
    try:
        while process.poll() is None and not (len(read_results(folder)) == 1 and unfinished()):
            time.sleep(0.005)
        assert process.poll() is None, "It was to be killed in the middle of its second run."
    finally:
        os.kill(process.pid, signal.SIGKILL) if process.poll() is None else None
        process.wait()
    before = {path: path.stat().st_mtime_ns for path in folder.glob("*.json")}
    begun = unfinished()
    trained: list[str] = []

    def fit(jobs: Any, **options: Any) -> Any:
        trained.extend(Path(job.out).name for job in jobs)
        return fit_many(jobs, **options)

    found = search(slow, folder, seeds=1, trials=3, fit=fit)
    assert found.validation == expected.validation and found.pruned == expected.pruned
    assert trained[: len(begun)] == begun and len(trained) == len(set(trained)) == 3 - len(before)
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
