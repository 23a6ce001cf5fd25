"""Reruns that the package has: rows belong to cells as they are now, the page is what they give,
results are added.
"""

from __future__ import annotations

import csv
import json
import math
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from typer.testing import CliRunner

from noiseproof.bench import load_experiments, reruns, run_all
from noiseproof.bench.experiment import Experiment
from noiseproof.bench.ranking import NOTE
from noiseproof.bench.reruns import (
    DIGITS,
    PRECISIONS,
    count_cells,
    explain,
    find_diagnosis,
    load_reruns,
    rerun_cells,
    row_key,
    runs_left,
)
from noiseproof.bench.tables import PaperTable, list_tables, load_table
from noiseproof.cli import app
from noiseproof.core.grammar import parse_line
from noiseproof.papers import PAPERS
from noiseproof.train import Settings

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import reruns as script  # noqa: E402


def every_row() -> Iterator[tuple[str, dict[str, Any]]]:
    for paper in PAPERS:
        yield from ((paper, row) for row in load_reruns(paper).rows.values())


def test_every_row_is_of_a_cell_as_it_is_now() -> None:
    """A preset that is revised, or a typing error in a key, would leave a row without a cell."""
    count = 0
    for paper, row in every_row():
        table, cell, reported = script.cells_of(paper)[row["key"]]
        assert table.paper == paper
        assert row_key(replace(cell.experiment(0), precision=row["precision"])) == row["key"]
        lengths = {len(row[metric]) for metric in {one.metric for one in reported} & set(row)}
        assert lengths == {len(set(row["seeds"]))} == {len(row["seeds"])}
        assert row.get("epoch", "last") == cell.epoch  # what the accuracy is of
        assert (
            all(0 <= number < len(load_reruns(paper).made_by) for number in row["made_by"])
            and row["made_by"]
        )
        count += 1
    assert count >= 152
    for paper in PAPERS:
        for session in load_reruns(paper).made_by:
            assert session["commit"] and session["torch"] and (session.get("gpu") or session["cpu"])


def test_the_commands_of_a_row_run_its_cell() -> None:
    """A command that the repository does not have, or one for other cells, would leave a row that
    nobody can redo.
    """
    for paper, row in every_row():
        for session in (load_reruns(paper).made_by[number] for number in row["made_by"]):
            commands = [shlex.split(one) for one in session["command"].split("; ")]
            assert all(words[:3] == ["noiseproof", "bench", "run"] for words in commands)
            if "the same training, written as" not in session.get("note", ""):
                assert row["key"] in set().union(
                    *(keys_of(tuple(words), row["precision"]) for words in commands)
                )


@cache
def keys_of(words: tuple[str, ...], precision: str) -> set[str]:
    """The rows that a command gives, with any seeds."""
    (spec,) = (word for word in words if word in list_tables() or word.endswith(".toml"))
    if spec.endswith(".toml"):
        return {row_key(run) for run in load_experiments(ROOT / spec, check_runs=False)}
    only = [value for option, value in pairwise(words) if option == "--only"]
    return {
        row_key(replace(run, precision=precision))
        for run in load_table(spec).only(*only).experiments([0])
    }


def test_no_two_rows_can_have_the_same_key() -> None:
    """Rows have the first digits of a key: no two runs of the tables, or of the sweeps on them, may
    share those.
    """
    parts = [part.experiment(0) for id in list_tables() for part in load_table(id).parts]
    runs = [replace(run, precision=precision) for run in parts for precision in PRECISIONS]
    for path in (ROOT / "benchmarks" / "sweeps").glob("*.toml"):
        runs += [replace(run, seed=0) for run in load_experiments(path, check_runs=False)]
    full = {run.key for run in runs}
    assert len({key[:DIGITS] for key in full}) == len(full) > 2_500


@pytest.mark.parametrize(
    ("id", "words", "mean", "spread", "z"),
    [  # as docs/results.md had them when they were typed by hand
        ("ln-table1", ("mnist", "CE", "symmetric 40 %"), 70.93, 0.58, 0.41),
        ("ln-table1", ("mnist", "LN", "symmetric 40 %"), 97.93, 0.20, 3.7),
        ("bias-table-a3", ("fashion-mnist", "CE", "20 %"), 82.64, 0.08, 19.95),
        ("bias-table-a2", ("fashion-mnist", "CE", "0.008"), 90.36, 0.03, 6.5),
        ("sln-table1", ("SLN-MO", "symmetric"), 84.95, 0.03, 1.24),
    ],
)
def test_rows_give_the_numbers_that_were_reported(
    id: str, words: tuple[str, ...], mean: float, spread: float, z: float
) -> None:
    (one,) = rerun_cells(load_table(id).only(*words))
    assert (one.mean, one.spread, one.z) == (
        pytest.approx(mean, abs=0.006),
        pytest.approx(spread, abs=0.006),
        pytest.approx(z, abs=0.06),
    )


def test_a_cell_is_found_from_another_table_that_has_its_run() -> None:
    """The bias paper's appendix has CE at 0.005 without noise in Tables 2 and 3; the file has it
    once.
    """
    (searched,) = rerun_cells(load_table("bias-table-a2").only("fashion-mnist", "CE", "0.005"))
    (clean,) = rerun_cells(load_table("bias-table-a3").only("fashion-mnist", "CE", "0 %"))
    assert searched.values == clean.values != ()
    (shared,) = rerun_cells(load_table("curriculum-table10").only("CE ‡", "symmetric 0.4"))
    assert shared.values == (40.2,)


def test_a_precision_is_chosen() -> None:
    table = load_table("ln-table1").only("mnist", "LN", "symmetric 40 %")
    (half,), (full,) = rerun_cells(table), rerun_cells(table, "32")
    assert (half.precision, full.precision) == ("bf16", "32")
    assert full.mean == pytest.approx(98.0, abs=0.01)
    assert rerun_cells(table, "64")[0].mean is None


def test_counts_by_hand() -> None:
    table = load_table("sln-table1").only("symmetric,asymmetric")
    counts = count_cells(table)
    compared = rerun_cells(table)
    assert counts.published == counts.runnable == 16
    assert counts.rerun == sum(bool(one.values) for one in compared) >= 11
    outside = [one for one in compared if one.z is not None and abs(one.z) > 2]
    assert counts.judged - counts.within == len(outside)
    assert counts.with_all_seeds == sum(len(one.values) >= 5 for one in compared)
    (gce,) = (one for one in compared if (one.cell.row, one.cell.column) == ("GCE", "symmetric"))
    assert gce.z == pytest.approx((79.01 - 79.27) / (0.54 * math.sqrt(1 + 1 / 5)))


def every_diagnosis() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The paper of each, its entry in the package, and the values beside its experiments."""
    for paper in PAPERS:
        for one in load_reruns(paper).diagnoses:
            yield (
                paper,
                one,
                json.loads((ROOT / one["sweep"]).with_suffix(".json").read_text("utf-8")),
            )


def test_every_diagnosis_has_its_experiment_in_the_repository() -> None:
    for paper, one, values in every_diagnosis():
        for id, *words in one["cells"]:
            assert load_table(id).paper == paper and load_table(id).only(*words).cells
        keys = {row_key(run) for run in load_experiments(ROOT / one["sweep"], check_runs=False)}
        assert one["seeds"].keys() <= keys
        assert one["seeds"] == {row["key"]: row["seeds"] for row in values["rows"]}
        assert bool(one["finding"]) == bool(one["seeds"])  # said once it has run
        for row in values["rows"]:
            assert row["made_by"] and all(
                values["made_by"][number]["commit"] for number in row["made_by"]
            )


def test_a_large_difference_is_diagnosed_or_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = load_table("bias-table-a3").only("fashion-mnist")
    compared = rerun_cells(table)
    found = explain(table, compared)
    files = (
        "bias-mlp1024-rows.toml",
        "bias-mlp1024.toml",
        "bias-symce.toml",
        "bias-mlp1024-schedule.toml",
    )
    assert len(found) == len(files) and all(any(file in text for text in found) for file in files)
    (diagnosed,) = load_table("bias-table-a3").only("fashion-mnist", "CE", "20 %").cells
    assert find_diagnosis(table, diagnosed)
    monkeypatch.setattr(reruns, "find_diagnosis", lambda table, cell: None)
    (listed,) = explain(table, [one for one in compared if one.cell.row == "symCE"])
    assert (
        listed
        == "|z| > 2 without an experiment on why: Fashion-MNIST symCE: 0 %, 10 %, 20 %, 40 %, 60 %."
    )


def parts_of(method: str) -> list[str]:
    """The names of its losses and strategies; ``tgce`` and ``noise-f`` are names for two of
    them.
    """
    names = [name.partition("@")[0] for part in parse_line(method) for name, _ in part]
    of_two = {"tgce": ["gce", "prune"], "noise-f": ["ce", "noise-f"]}
    return of_two.get(names[0], names) if len(names) == 1 else names


def test_an_experiment_on_a_cell_has_its_method_and_data() -> None:
    """Experiments with other methods or data say nothing about a cell."""
    assert parts_of("nfl+mae@bias") == parts_of("nfl:gamma=0.5 + 20*mae:scale=2") == ["nfl", "mae"]
    assert parts_of("gce+@bias") == ["gce+"]
    for _, one, values in every_diagnosis():
        run = [(row["dataset"], parts_of(row["method"])) for row in values["rows"]]
        for cell in (
            cell for id, *words in one["cells"] for cell in load_table(id).only(*words).cells
        ):
            assert (cell.fields["dataset"], parts_of(cell.fields["method"])) in run, (
                one["sweep"],
                cell.row,
            )
    table2 = load_table("bias-table2").only("cifar10")
    assert find_diagnosis(table2, table2.only("NF-MAE").cells[0])
    assert find_diagnosis(table2, table2.only("NCE-MAE").cells[0]) is None


def test_rows_of_a_diagnosis_can_be_told_apart() -> None:
    for _, one, values in every_diagnosis():
        rows = [
            tuple(
                sorted(
                    (k, str(v))
                    for k, v in row.items()
                    if k not in ("key", "seeds", "made_by", "test_accuracy")
                )
            )
            for row in values["rows"]
        ]
        assert len(set(rows)) == len(rows), one["sweep"]
        runs = {
            row_key(run): run for run in load_experiments(ROOT / one["sweep"], check_runs=False)
        }
        for row in values["rows"]:
            run = runs[row["key"]]
            assert (row["dataset"], row["schedule"]) == (run.dataset, run.settings.schedule)


def test_the_page_is_what_the_rows_give() -> None:
    text = script.PAGE.read_text("utf-8")
    assert script.page(text) == text, "Run `python benchmarks/reruns.py`."
    assert "\n1 of 56 cells" in text  # curriculum-table2, of which no other mark shows a cell


def test_another_reading_of_a_row_stays_visible() -> None:
    """NAN of the LN paper: its runs as noise on labels moved to a sweep, and are compared from
    there.
    """
    table = load_table("ln-table1").only("mnist", "NAN")
    lines = script.readings(table, "sln@ln", 3).splitlines()
    assert lines[0].startswith(
        "| setting | published | `noise-f@ln` | z | without seed 3 | z | `sln@ln` | z |"
    )
    of = {
        line.split(" | ")[0].removeprefix("| "): line.removesuffix(" |").split(" | ")[1:]
        for line in lines[2:]
    }
    assert of["symmetric 40 %"] == [
        "90.03±0.95",
        "90.43±3.18",
        "+0.3",
        "89.09±1.17",
        "−1.3",
        "95.56±0.73",
        "+10.3",
    ]
    (one,) = rerun_cells(table.only("symmetric 40 %"))
    assert (round(one.mean or 0, 2), one.seeds) == (90.43, 5)
    left = {line.cell.column for line in rerun_cells(table) if line.mean is None}
    assert {setting for setting, texts in of.items() if texts[1] == "–"} == left
    assert all(texts[5] != "–" for texts in of.values())


def test_cells_that_were_not_run_are_named_where_asked() -> None:
    table = load_table("sln-table2").only("CE,GCE", "symmetric,asymmetric")
    every, done = script.reruns(table, whole=True), script.reruns(table)
    assert every.count("| – (") == 2 and "–" not in done
    counts = "2 of 4 cells, 2 of 2 within |z| ≤ 2; n=1 unless given."
    assert every.splitlines()[-1] == done.splitlines()[-1] == counts


def test_a_cell_shows_what_was_published_its_z_and_its_seeds() -> None:
    mnist = script.reruns(load_table("ln-table1").only("mnist", "CE,LN"))
    assert "| 87.46±1.40 (88.41±0.34; −2.0!; n=10) |" in mnist
    assert "| 97.93±0.20 (97.21±0.38; +3.7!) |" in mnist
    far = script.reruns(load_table("ln-table1").only("cifar100", "CE", "asymmetric 40 %"))
    assert "| CE | 35.38 (36.95±0.58; −2.5!!) |" in far
    (without_z,) = script.reruns(load_table("curriculum-table2").only("MAE", "test")).splitlines()[
        2:3
    ]
    assert without_z == "| MAE | 3.44 (9.85) |"


def test_the_page_shows_every_rerun_once_or_more() -> None:
    text = script.PAGE.read_text("utf-8")
    shown = re.findall(r"\| [\d.]+(?:±[\d.]+)? \(\d", text)
    assert len(shown) >= sum(count_cells(load_table(id)).rerun for id in list_tables())


# Adding results


@pytest.fixture
def digits_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[PaperTable]:
    """A table of two cells on digits, in place of the NAL paper's."""
    table = load_table("nal-table2")
    settings = Settings(epochs=1, model="mlp:hidden=[8]")
    fields = {
        "dataset": "digits",
        "noise": "none",
        "validation": 0.0,
        "paper": None,
        "noise_seed": 0,
    }

    class OnDigits(type(table.cells[0])):  # type: ignore[misc]
        def experiment(self, seed: int) -> Experiment:
            return Experiment(**self.fields, seed=seed, settings=settings)

    cells = tuple(
        OnDigits(
            c.block,
            c.row,
            "accuracy",
            c.published,
            {**fields, "method": method},
            {},
            "test_accuracy",
        )
        for c, method in zip(table.only("accuracy").cells, ("ce", "gce"), strict=False)
    )
    small = replace(table, cells=cells, runs=2)
    monkeypatch.setattr(script, "load_table", lambda id: small)
    monkeypatch.setattr(script, "list_tables", lambda: ["nal-table2"])
    script.cells_of.cache_clear()
    yield small
    script.cells_of.cache_clear()


def test_results_become_rows(digits_table: PaperTable, tmp_path: Path) -> None:
    content: dict[str, Any] = {"made_by": [], "rows": [], "diagnoses": []}
    first, other = digits_table.cells
    done = run_all(
        [
            first.experiment(0),
            other.experiment(0),
            Experiment("two-moons:n=50", settings=first.experiment(0).settings),
        ],
        tmp_path,
    )
    grown = script.add_results(content, "nal", done, "a test")
    assert len(grown) == len(content["rows"]) == 2  # two-moons is in no table
    row = content["rows"][0]
    accuracy = 100 * done[first.experiment(0).key]["last"]["test_accuracy"]
    assert (row["seeds"], row["test_accuracy"]) == ([0], [pytest.approx(accuracy, abs=1e-4)])
    assert (row["precision"], row["key"]) == ("32", first.experiment(0).key[:8])
    (session,) = content["made_by"]
    assert (
        session["note"] == "a test"
        and session["cpu"]
        and len(session["commit"].partition("-")[0]) == 7
    )
    more = run_all([first.experiment(seed) for seed in (2, 1, 0)], tmp_path)
    more[first.experiment(0).key]["last"]["test_accuracy"] = 0.0  # what is there already stays
    script.add_results(content, "nal", more)
    values = [
        accuracy,
        *(100 * more[first.experiment(seed).key]["last"]["test_accuracy"] for seed in (1, 2)),
    ]
    assert row["seeds"] == [0, 1, 2] and row["test_accuracy"] == [
        pytest.approx(v, abs=1e-4) for v in values
    ]
    assert row["made_by"] == [0, 1] and "note" not in content["made_by"][1]
    path = tmp_path / "nal.json"
    script.write(path, content)
    assert json.loads(path.read_text("utf-8")) == content


def test_results_of_a_diagnosis_go_beside_its_experiments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "ROOT", tmp_path)
    (tmp_path / "why.toml").write_text(
        '[[experiment]]\ndataset = "digits"\nmodel = "mlp:hidden=[8]"\nepochs = 1\n'
    )
    (run,) = load_experiments(tmp_path / "why.toml")
    diagnosis = {"cells": [], "sweep": "why.toml", "finding": "", "seeds": {}}
    content: dict[str, Any] = {"made_by": [], "rows": [], "diagnoses": [diagnosis]}
    for seed in (1, 0):
        script.add_results(content, "nal", run_all([replace(run, seed=seed)], tmp_path / "mine"))
    assert (
        diagnosis["seeds"] == {row_key(run): [0, 1]} and content["rows"] == content["made_by"] == []
    )
    (row,) = json.loads((tmp_path / "why.json").read_text("utf-8"))["rows"]
    assert (row["dataset"], row["method"], row["seeds"], len(row["test_accuracy"])) == (
        "digits",
        "ce",
        [0, 1],
        2,
    )


# A sweep of one's own

SWEEP = """
[[experiment]]
dataset = "digits"
noise = "symmetric:rate=0.4"
method = ["ce", "gce:q=0.7"]
model = "mlp:hidden=[16]"
epochs = 3
seed = [0, 1, 2]
"""


def test_a_sweep_is_summarised(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    runs = load_experiments(path)
    results = run_all(
        [run for run in runs if (run.method, run.seed) != ("ce", 2)], tmp_path / "mine"
    )
    shown = CliRunner().invoke(
        app, ["bench", "table", str(path), "--results", str(tmp_path / "mine")]
    )
    assert shown.exit_code == 0, shown.stderr
    data, titles, best, second, note, sentence = shown.stdout.splitlines()
    assert note == NOTE
    assert data == "dataset digits, noise symmetric:rate=0.4"
    head = "method test accuracy 95 % p against the first seeds s a run"
    assert titles.split() == head.split()
    of = {
        m: [results[r.key]["last"]["test_accuracy"] for r in runs if r.method == m and r.seed < 2]
        for m in ("ce", "gce:q=0.7")
    }
    means = {method: fmean(values) for method, values in of.items()}
    ahead = max(means, key=means.__getitem__)
    assert best.split()[0] == ahead
    assert best.split()[1:4] == [f"{means[ahead]:.4f}", "±", f"{stdev(of[ahead]):.4f}"]
    assert best.split()[-2] == second.split()[-2] == "2/3"  # the seeds that both have
    assert ahead in sentence
    entries = json.loads(
        CliRunner()
        .invoke(app, ["bench", "table", str(path), "--results", str(tmp_path / "mine"), "--json"])
        .stdout
    )
    assert entries[0]["method"] == ahead and entries[0]["recommendation"] == sentence
    values = {entry["method"]: entry["values"] for entry in entries}
    assert values["ce"] == [
        {"seed": s, "noise_seed": s, "value": value} for s, value in enumerate(of["ce"])
    ]
    assert [one["seed"] for one in values["gce:q=0.7"]] == [0, 1, 2]  # one more than were compared
    for _ in range(2):
        nothing = CliRunner().invoke(
            app, ["bench", "table", str(path), "--results", str(tmp_path / "none")]
        )
        assert nothing.exit_code == 0 and "Nothing to compare yet" in nothing.stdout
        assert f"There are no results of yours in {tmp_path / 'none'}/" in nothing.stderr
        (tmp_path / "none").mkdir(exist_ok=True)  # an empty one has none, either
    options = ["--results", str(tmp_path / "mine"), "--format", "markdown"]
    text = CliRunner().invoke(app, ["bench", "table", str(path), *options]).stdout
    assert text.startswith(
        "### dataset digits, noise symmetric:rate=0.4\n\n| method | test accuracy |"
    )
    assert (
        f"\n| {ahead} | {means[ahead]:.4f} ± {stdev(of[ahead]):.4f} |" in text
        and f"\n{NOTE}\n" in text
    )
    text = CliRunner().invoke(app, ["bench", "table", str(path), *options[:3], "csv"]).stdout
    first, *_ = csv.DictReader(text.splitlines())
    assert (first["noise"], first["method"], first["metric"]) == (
        "symmetric:rate=0.4",
        ahead,
        "test_accuracy",
    )
    assert (float(first["mean"]), float(first["std"])) == (means[ahead], stdev(of[ahead]))
    assert (first["seeds"], first["failed"], first["wanted"]) == ("2", "0", "3")
    text = CliRunner().invoke(app, ["bench", "table", str(path), *options[:-1], "latex"]).stdout
    assert NOTE.replace("±", r"$\pm$") in text


def test_status_needs_no_data() -> None:
    shown = CliRunner().invoke(
        app, ["bench", "status", "sln-table1", "--only", "symmetric", "--data-dir", "/nowhere"]
    )
    assert shown.exit_code == 0 and shown.stdout.endswith("\n40 to do\n")
    refused = CliRunner().invoke(
        app, ["bench", "run", "sln-table1", "--only", "symmetric", "--data-dir", "/nowhere"]
    )
    assert refused.exit_code == 2 and "Expected the files of cifar10" in refused.stderr
    assert "--only" not in refused.stderr


def test_a_run_whose_metric_was_not_recorded_is_left() -> None:
    table = load_table("curriculum-table2").only("MAE")
    by_metric = {cell.metric: len(runs_left(replace(table, cells=(cell,)))) for cell in table.cells}
    assert (
        by_metric["test_accuracy"] == table.runs - 1 and by_metric["train_accuracy"] == table.runs
    )


def test_runs_of_a_sweep_that_are_left(tmp_path: Path) -> None:
    # all of it was run
    sweep = Path(__file__).parents[2] / "benchmarks" / "sweeps" / "bias-mlp1024.toml"
    command = ["bench", "run", str(sweep), "--left", "--data-dir", str(tmp_path)]
    nothing = CliRunner().invoke(app, command)
    assert nothing.exit_code == 0 and "Nothing is left to run" in nothing.stderr
    more = tmp_path / "sweep.toml"
    more.write_text(sweep.read_text("utf-8").replace("seed = [0, 1, 2]", "seed = [2, 3]"), "utf-8")
    left = CliRunner().invoke(app, ["bench", "status", str(more), "--left", "--json"])
    runs = [(run["method"], run["noise"], run["seed"]) for run in json.loads(left.stdout)]
    assert runs == [("ce@bias", f"symmetric:rate={rate}", 3) for rate in (0.2, 0.6)]
