"""Comparisons: ranks against scipy and by hand, parts that lose no row, recommendations that call a
tie a tie.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from noiseproof.bench import BadExperiment, Experiment, read_results
from noiseproof.bench.compare import compare_methods, split_table
from noiseproof.bench.ranking import Place, _holm, rank, recommend, wilson
from noiseproof.bench.results import write_result
from noiseproof.cli import app
from noiseproof.core.grammar import parse_call
from noiseproof.data import Dataset, get_dataset
from noiseproof.data.base import Split, find_copies
from noiseproof.train import Interrupted, Settings
from noiseproof.train.estimate import estimate

nan = math.nan
SHORT = Settings(model="mlp:hidden=[8]", epochs=2)
RUNS = {
    "a": [0.90, 0.92, 0.91, 0.93, 0.89],
    "b": [0.89, 0.92, 0.90, 0.92, 0.89],
    "c": [0.70, 0.72, 0.75, 0.71, 0.69],
    "d": [0.91, 0.90, 0.91, 0.90, 0.91],
}


def digits_csv(folder: Path) -> Path:
    data = load_digits()
    frame = pd.DataFrame(data.data[:300], columns=[f"pixel {i}" for i in range(64)]).assign(
        kind=data.target[:300]
    )
    frame.to_csv(folder / "digits.csv", index=False)
    return folder / "digits.csv"


# Ranks


def test_means_intervals_and_tests_are_scipys() -> None:
    places = rank(RUNS)
    assert [place.method for place in places] == ["a", "d", "b", "c"]
    for place in places:
        low, high = stats.t.interval(
            0.95, 4, np.mean(RUNS[place.method]), stats.sem(RUNS[place.method])
        )
        assert place.mean == pytest.approx(np.mean(RUNS[place.method]), rel=1e-14)
        assert place.margin == pytest.approx((high - low) / 2, rel=1e-10)
        assert (place.seeds, place.failed) == (5, 0)
    p = {method: stats.ttest_rel(RUNS["a"], RUNS[method]).pvalue for method in "bcd"}
    assert p["c"] < p["b"] < p["d"]  # Holm: times 3, 2, 1
    found = {place.method: place.p for place in places}
    assert found["a"] is None
    assert found["c"] == pytest.approx(3 * p["c"], rel=1e-9)
    assert found["b"] == pytest.approx(2 * p["b"], rel=1e-9)
    assert found["d"] == pytest.approx(max(2 * p["b"], p["d"]), rel=1e-9)


def test_two_seeds_by_hand() -> None:
    """One degree of freedom is Cauchy's: t = 12.7062 at 97.5 %, p = 1 − 2·arctan(t)/π."""
    best, other = rank({"a": [0.8, 0.9], "b": [0.6, 0.8]})
    assert best.margin == pytest.approx(math.tan(math.pi * 0.475) * 0.05)
    t = 0.15 / 0.05
    assert other.p == pytest.approx(1 - 2 * math.atan(t) / math.pi)


def test_holm_by_hand() -> None:
    """Times 4, 3, 2 and 1; the last, 0.04, may not be below the one before it."""
    raw = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    adjusted = {place.method: place.p for place in _holm([Place(m, p=p) for m, p in raw.items()])}
    assert adjusted == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert [place.p for place in _holm([Place("a", p=0.6), Place("b", p=0.9)])] == [1.0, 1.0]


def test_differences_without_spread() -> None:
    same, constant = (
        rank({"a": [0.5, 0.75], "b": [0.5, 0.75]}),
        rank({"a": [0.5, 0.75], "b": [0.25, 0.5]}),
    )
    assert same[1].p == 1.0 and constant[1].p == 0.5  # two coins that agree
    assert rank({"a": [0.5, 0.75], "b": [0.75, 0.5]}, rows=8)[1].p == 1.0
    # equal but for rounding
    five = rank({"a": [0.95, 0.90, 0.85, 0.80, 0.75], "b": [0.90, 0.85, 0.80, 0.75, 0.70]})
    assert five[1].p == 2 * 0.5**5
    assert [place.margin for place in rank({"a": [0.5] * 3})] == [0.0]


def test_differences_without_spread_on_so_many_rows() -> None:
    """An accuracy on N rows is rounded to 1/N: deviation 1/(N·√12), of a difference √2 times that,
    and no less.
    """
    best, other = rank({"a": [1.0] * 5, "b": [0.5] * 5}, rows=30)
    t = 0.5 / (1 / (30 * math.sqrt(6)) / math.sqrt(5))
    assert other.p == pytest.approx(2 * stats.t.sf(t, 4)) and other.p < 1e-5
    assert best.margin == pytest.approx(stats.t.ppf(0.975, 4) / (30 * math.sqrt(12)) / math.sqrt(5))
    one_row = rank({"a": [0.5] * 5, "b": [0.5 + 1 / 30] * 5}, rows=30)[1].p
    one_seed_less = rank({"a": [0.5] * 5, "b": [0.5 + 1 / 30] * 4 + [0.5]}, rows=30)[1].p
    assert one_row is not None and one_seed_less is not None and one_row < one_seed_less < 0.05
    assert rank({"a": [0.5] * 5, "b": [0.5] * 5}, rows=30)[1].p == 1.0
    assert rank(RUNS, rows=10_000) == rank(RUNS)  # spreads beyond that of rounding stay as they are


@pytest.mark.parametrize("sigma", [0.3, 1.0, 3.0])
def test_alike_methods_on_few_rows_are_seldom_told_apart(sigma: float) -> None:
    """Of two methods whose counts of right rows differ by rounded normal numbers, hardly one in
    twenty is worse.
    """
    generator = np.random.default_rng(0)
    d = np.round(generator.normal(0, sigma, (300, 5)))
    p = np.array(
        [rank({"a": (one / 30).tolist(), "b": [0.0] * 5}, rows=30)[1].p for one in d], dtype=float
    )
    assert (p < 0.05).mean() < 0.08


def test_failed_runs_have_no_part_and_their_method_comes_after_the_others() -> None:
    places = rank(
        {
            "wild": [0.99, nan, 0.97],
            "a": [0.90, 0.91, 0.93],
            "gone": [nan] * 3,
            "b": [0.8, 0.8, 0.85],
        }
    )
    assert [place.method for place in places] == ["a", "b", "wild", "gone"]
    wild, gone = places[2:]
    assert (wild.mean, wild.seeds, wild.failed) == (pytest.approx(0.98), 2, 1)
    pair = stats.ttest_rel([0.90, 0.93], [0.99, 0.97]).pvalue
    b = stats.ttest_rel([0.90, 0.91, 0.93], [0.8, 0.8, 0.85]).pvalue
    assert b < pair and wild.p == pytest.approx(pair)
    assert (gone.mean, gone.margin, gone.p, gone.seeds, gone.failed) == (None, None, None, 0, 3)


def test_one_seed_has_a_mean_and_nothing_else() -> None:
    best, other = rank({"a": [0.8], "b": [0.9]})
    assert best == Place("b", 0.9, seeds=1) and other == Place("a", 0.8, seeds=1, shared=1)


@pytest.mark.parametrize("accuracies", [{}, {"a": []}, {"a": [0.1], "b": [0.1, 0.2]}])
def test_ranks_of_nothing_are_refused(accuracies: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="Expected one accuracy for each method and seed"):
        rank(accuracies)


# Recommendations


@pytest.mark.parametrize(
    "accuracies, said",
    [
        (RUNS, "No clear winner: a comes first with 0.910, but over 5 seeds d, b may be as good."),
        (
            {key: RUNS[key] for key in "ac"},
            "Use a: with 0.910 it is ahead of all others, and by more than chance",
        ),
        (
            {"a": [0.8], "b": [0.9]},
            "Nothing is settled: b comes first with 0.900, but without two seeds in common",
        ),
        ({"a": [0.8, 0.9]}, "Nothing to recommend: only a was run, with 0.850."),
        ({"a": [nan, nan], "b": [nan, nan]}, "Nothing to recommend: every run failed."),
        (
            {"a": [0.8, 0.9, 0.85], "b": [0.2, 0.3, 0.26], "c": [0.98, 0.99, nan]},
            "No clear winner: a comes first with 0.850, but over 2 seeds c (1 failed) may be as",
        ),
        ({"a": [0.8, 0.9, nan], "b": [0.2, 0.31, nan]}, "Use a (1 failed): with 0.850"),
        (
            {"a": [0.90, 0.91, 0.92], "b": [0.5, 0.52, 0.51], "c": [0.90, nan, nan]},
            (
                "Use a: with 0.910 it is ahead of b, and by more than chance explains (p ≤ 0.001"
                " over 3 seeds); too few seeds to judge c (2 failed)."
            ),
        ),
    ],
)
def test_recommendations(accuracies: dict[str, list[float]], said: str) -> None:
    found = recommend(rank(accuracies))
    assert found.startswith(said) and found.count(". ") == 0


def test_a_tie_names_the_quickest_where_clocks_can_tell() -> None:
    places = rank({key: RUNS[key] for key in "ad"} | {"b": [0.91, 0.91, 0.90, 0.92, 0.88]})

    def said(*seconds: float) -> str:
        return recommend(
            [replace(place, seconds=s) for place, s in zip(places, seconds, strict=True)]
        )

    assert said(3.0, 1.0, 1.05).endswith("d, b may be as good; the quickest of these: d, b.")
    assert said(1.0, 1.02, 1.05).endswith("d, b may be as good.")


@pytest.mark.parametrize("right, n", [(30, 30), (0, 7), (5, 9), (880, 1000)])
def test_what_other_rows_would_say_is_wilson_s_interval(right: int, n: int) -> None:
    assert wilson(right / n, n) == pytest.approx(
        stats.binomtest(right, n).proportion_ci(method="wilson"), abs=1e-12
    )


# The parts of a table


def test_every_row_is_in_one_part_and_every_class_in_both(tmp_path: Path) -> None:
    source = digits_csv(tmp_path)
    spec, notes = split_table(source, "kind", tmp_path)
    data, whole = get_dataset(spec), pd.read_csv(source)
    assert data.test is not None and len(data.train) + len(data.test) == 300
    (folder,) = (tmp_path / "data").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["table.csv", "test.csv"]
    parts = pd.concat([pd.read_csv(folder / "table.csv"), pd.read_csv(folder / "test.csv")])
    columns = list(whole.columns)
    pd.testing.assert_frame_equal(
        parts.sort_values(columns, ignore_index=True), whole.sort_values(columns, ignore_index=True)
    )
    expected = {str(kind): round(0.2 * n) for kind, n in whole["kind"].value_counts().items()}
    held = pd.read_csv(folder / "test.csv", dtype={"kind": str})["kind"].value_counts()
    assert held.to_dict() == expected
    assert (
        notes[-1].startswith(f"{sum(expected.values())} of 300 rows were held out")
        and "may be wrong" in notes[-1]
    )


def test_the_same_rows_are_the_same_experiment_and_others_are_others(tmp_path: Path) -> None:
    source = digits_csv(tmp_path)
    first, _ = split_table(source, "kind", tmp_path)
    assert split_table(source, "kind", tmp_path) == (
        first,
        split_table(source, "kind", tmp_path)[1],
    )
    changed = pd.read_csv(source)
    changed.loc[0, "kind"] = (changed.loc[0, "kind"] + 1) % 10
    changed.to_csv(source, index=False)
    assert split_table(source, "kind", tmp_path)[0] != first


def test_tables_of_every_kind(tmp_path: Path) -> None:
    """Odd names, rare classes, missing values, an index that repeats, parquet, texts."""
    words = ["good and fine", "bad or worse", "so so"] * 20
    frame = pd.DataFrame(
        {"a,b": [1.5, None] * 30, "words": words, "it is": ["yes", "no", "NA"] * 20}, index=[7] * 60
    )
    frame.loc[7, "it is"] = [*["yes", "no", "NA"] * 19, "yes", "no", "rare"]
    frame.to_parquet(tmp_path / "t.parquet")
    spec, _ = split_table(
        tmp_path / "t.parquet", "it is", tmp_path / "odd, folder", missing="impute"
    )
    data = get_dataset(spec)
    assert data.test is not None and (len(data.train), len(data.test)) == (48, 12)
    assert (
        data.classes == ("NA", "no", "rare", "yes") and 2 in data.train.y and 2 not in data.test.y
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    spec, notes = split_table(tmp_path / "t.csv", "it is", tmp_path, text="words")
    others = ", ".join(repr(name) for name in frame.columns if name not in ("it is", "words"))
    assert f"Only the text was used, not the columns {others}." in notes
    texts = get_dataset(spec)
    assert texts.test is not None and len(texts.test) == 12 and texts.train.raw is not None


def test_a_column_that_is_left_out_of_the_table_is_in_neither_part(tmp_path: Path) -> None:
    """Of 80 % of the rows, numbers of rows have gaps and 110 words are fewer than 100: these would
    be kept.
    """
    draw = np.random.default_rng(0)
    y = np.sort(draw.integers(0, 3, 300))
    frame = pd.DataFrame({"position": range(300), "f": draw.normal(size=300), "y": y})
    frame["word"] = [f"w{i}" if i < 110 else "w0" for i in range(300)]
    frame.to_csv(tmp_path / "t.csv", index=False)
    spec, notes = split_table(tmp_path / "t.csv", "y", tmp_path)
    params = parse_call(spec)[1]
    for part in ("table", "test"):
        assert list(pd.read_csv(params[part]).columns) == ["f", "y"]
    assert get_dataset(spec).encoder.names == ("f",)  # type: ignore[attr-defined]
    assert (
        notes[0].startswith("Column 'position' numbers the rows and was left out")
        and len(notes) == 3
    )
    assert notes[1] == "Column 'word' holds 110 different words and was left out."
    named, _ = split_table(tmp_path / "t.csv", "y", tmp_path, features=["position", "f"])
    assert get_dataset(named).encoder.names == ("position", "f")  # type: ignore[attr-defined]
    # The one row that contradicts a code of the label is in the test part: what trains is a code
    # without doubt.
    held = pd.read_csv(params["test"])["f"][0]
    frame["code"] = np.where(frame["f"] == held, 99, 7 * y)
    spec, notes = split_table(frame, "y", tmp_path)
    assert get_dataset(spec).encoder.names == ("f",)  # type: ignore[attr-defined]
    assert any(
        note.startswith("Column 'code' corresponds one-to-one to the label and was left out")
        for note in notes
    )


@pytest.mark.parametrize("label", ["007", "[y]", "y & z"])
def test_a_label_column_may_have_any_name(label: str, tmp_path: Path) -> None:
    pd.read_csv(digits_csv(tmp_path)).rename(columns={"kind": label}).to_csv(
        tmp_path / "odd.csv", index=False
    )
    spec, _ = split_table(tmp_path / "odd.csv", label, tmp_path)
    assert parse_call(spec)[1]["label"] == label and len(get_dataset(spec).classes) == 10


def test_tables_that_cannot_be_compared_on(tmp_path: Path) -> None:
    source = digits_csv(tmp_path)
    few = pd.read_csv(source).groupby("kind").head(2)
    with pytest.raises(ValueError, match=r"Expected a column 'kinds' .*Did you mean 'kind'\?"):
        split_table(source, "kinds", tmp_path)
    with pytest.raises(
        ValueError, match="Expected enough rows to hold out 20% of each class, got 20"
    ):
        split_table(few, "kind", tmp_path)
    assert not (tmp_path / "data").exists()


# Runs


def test_a_comparison_is_its_runs(tmp_path: Path) -> None:
    found = compare_methods(
        "digits",
        ["ce", "gce"],
        results_dir=tmp_path,
        noise="symmetric:rate=0.4",
        seeds=3,
        settings=SHORT,
    )
    results = read_results(tmp_path)
    accuracies: dict[str, list[float]] = {}
    for method in ("ce", "gce"):
        runs = [
            Experiment("digits", "symmetric:rate=0.4", method, seed, SHORT, 0.1)
            for seed in range(3)
        ]
        accuracies[method] = [results[run.key]["last"]["test_accuracy"] for run in runs]
    assert len(results) == 6
    bare = [replace(place, seconds=None, memory=None) for place in found.places]
    assert bare == rank(accuracies, rows=360)
    for place in found.places:
        first = Experiment("digits", "symmetric:rate=0.4", place.method, 0, SHORT, 0.1)
        assert place.memory == estimate(first.make_task(), place.method, SHORT).total_memory
        assert place.seconds == fmean(
            results[replace(first, seed=seed).key]["seconds"] for seed in range(3)
        )
    best = found.places[0]
    assert best.mean is not None and "the same 360 test rows" in found.notes[0]
    low, high = wilson(best.mean, 360)
    assert f"the {best.mean:.3f} of {best.method} may be {low:.3f} to {high:.3f}" in found.notes[0]
    assert found.recommendation == recommend(found.places)
    for path in tmp_path.glob("*.json"):
        result = json.loads(path.read_text())
        del result["checksum"]
        result["last"]["test_accuracy"] = 0.5 if result["experiment"]["method"] == "ce" else 0.9
        write_result(tmp_path, result)
    again = compare_methods(
        "digits",
        ["ce", "gce"],
        results_dir=tmp_path,
        noise="symmetric:rate=0.4",
        seeds=3,
        settings=SHORT,
    )
    # the very same difference over 360 rows is one
    assert again.recommendation.startswith("Use gce: with 0.900")


def test_runs_are_ranked_though_their_memory_cannot_be_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble: Exception = RuntimeError("No CUDA GPUs are available")

    def fails(*args: object, **options: object) -> None:
        raise trouble

    for place in ("make_fabric", "estimate"):
        with monkeypatch.context() as patch:
            patch.setattr(f"noiseproof.bench.compare.{place}", fails)
            found = compare_methods("digits", ["ce"], results_dir=tmp_path, seeds=1, settings=SHORT)
        assert found.places[0].mean is not None and found.places[0].memory is None
    trouble = Interrupted("Asked to stop.")  # which is no trouble
    monkeypatch.setattr("noiseproof.bench.compare.estimate", fails)
    with pytest.raises(Interrupted):
        compare_methods("digits", ["ce"], results_dir=tmp_path, seeds=1, settings=SHORT)


def test_a_method_that_diverges_is_last_and_told(tmp_path: Path) -> None:
    wild = replace(SHORT, optimizer="sgd:lr=1e30")
    found = compare_methods("digits", ["ce"], results_dir=tmp_path, seeds=2, settings=wild)
    assert found.places[0].failed == 2 and found.places[0].memory is None
    (note,) = found.notes
    assert note.startswith(
        "2 runs of ce failed: Diverged: Loss or weights are not finite at step 2"
    )
    assert found.recommendation.endswith("every run failed.")


@pytest.mark.parametrize(
    "dataset, methods, options, message",
    [
        ("digits", ["ce", "nothing"], {}, "Unknown method 'nothing'"),
        ("digits", [], {}, "Expected methods to compare, got none"),
        ("digits", ["ce"], {"seeds": 0}, "Expected `seeds` to be an integer of at least 1, got 0"),
    ],
)
def test_refusals_before_anything_trains(
    dataset: str, methods: list[str], options: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, BadExperiment), match=message):
        compare_methods(dataset, methods, results_dir=tmp_path, settings=SHORT, **options)  # type: ignore[arg-type]
    assert read_results(tmp_path) == {}


def test_data_without_a_test_part_is_refused(tmp_path: Path) -> None:
    source = digits_csv(tmp_path)
    with pytest.raises(ValueError, match="Expected a dataset with a test part"):
        compare_methods(f"table:table={source},label=kind", ["ce"], results_dir=tmp_path)


def _leaky(leaked: int, repeated: int, seed: int = 0) -> Dataset:
    """300 training rows, and 100 to test on, of which some are training rows; some are
    ``repeated``, of five kinds.
    """
    generator = torch.Generator().manual_seed(seed)
    train, test = torch.rand(300, 3, generator=generator), torch.rand(100, 3, generator=generator)
    kinds = torch.rand(5, 3, generator=generator)
    for x, count in ((train, 3 * repeated), (test, repeated)):
        x[:count] = kinds[torch.randint(5, (count,), generator=generator)]
    test[100 - leaked :] = train[300 - leaked :]
    return Dataset("mine", ("a", "b"), *(Split(x, torch.arange(len(x)) % 2) for x in (train, test)))


@pytest.mark.parametrize(
    "repeated, leaked, beyond", [(0, 1, False), (0, 2, True), (40, 0, False), (40, 30, True)]
)
def test_test_rows_that_are_training_rows_are_told_from_chance(
    repeated: int, leaked: int, beyond: bool
) -> None:
    for seed in range(5):
        text, is_beyond = find_copies(_leaky(leaked, repeated, seed))
        assert is_beyond == beyond
        assert text.startswith(
            f"{repeated + leaked} of the 100 test rows equal training rows in all but the label, "
        )
        assert (
            f"{' no' * (not beyond)} more than chance gives where {repeated}.0% of the training"
            " rows" in text
        )
    assert find_copies(_leaky(0, 0)) == ("", False)


def test_honest_splits_of_tables_with_repeated_rows_are_not_beyond_chance() -> None:
    """Two dice and a coin: nearly all of the 72 rows are in both parts."""
    generator = torch.Generator().manual_seed(0)
    for size in (40, 300):
        for _ in range(20):
            x = torch.stack(
                [torch.randint(n, (size,), generator=generator) for n in (6, 6, 2)], 1
            ).float()
            y = torch.arange(size) % 2
            parts = (Split(x[rows], y[rows]) for rows in (slice(size // 5, None), slice(size // 5)))
            assert not find_copies(Dataset("dice", ("a", "b"), *parts))[1]
    # each row twice, most of them for the test
    twice = torch.randn(100, 4, generator=generator).repeat(2, 1)
    for _ in range(20):
        x, y = twice[torch.randperm(200, generator=generator)], torch.arange(200) % 2
        assert not find_copies(
            Dataset("twice", ("a", "b"), Split(x[:60], y[:60]), Split(x[60:], y[60:]))
        )[1]
    empty = Split(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))
    assert find_copies(Dataset("empty", ("a", "b"), Split(x, y), empty)) == ("", False)


def test_comparing_on_training_rows_is_refused_though_their_labels_were_checked(
    tmp_path: Path,
) -> None:
    rows = pd.read_csv(digits_csv(tmp_path))
    rows[:240].to_csv(tmp_path / "train.csv", index=False)
    rows[200:].assign(kind=rows["kind"][200:].iloc[::-1].to_numpy()).to_csv(
        tmp_path / "test.csv", index=False
    )
    files = [
        "--data",
        str(tmp_path / "train.csv"),
        "--label",
        "kind",
        "--test",
        str(tmp_path / "test.csv"),
    ]
    command = [
        "bench",
        "compare",
        *files,
        "--methods",
        "ce",
        "--results",
        str(tmp_path / "results"),
    ]
    refused = CliRunner().invoke(
        app, [*command, "--seeds", "1", "--epochs", "1", "--model", "mlp:hidden=[8]"]
    )
    assert refused.exit_code == 2 and read_results(tmp_path / "results") == {}
    assert (
        "Expected --test rows that no method is trained on: 40 of the 100 test rows equal"
        in refused.stderr
    )
    assert "Remove them from one of the two, or leave --test out" in refused.stderr
    spec = f"table:table={tmp_path / 'train.csv'},label=kind,test={tmp_path / 'test.csv'}"
    options = ["--epochs", "1", "--model", "mlp:hidden=[8]", "--out", str(tmp_path / "run")]
    ran = CliRunner().invoke(app, ["train", "--dataset", spec, *options])
    assert ran.exit_code == 0 and "40 of the 100 test rows equal training rows" in ran.stderr


# The command line


def test_the_command_line_ranks_and_goes_on(tmp_path: Path) -> None:
    command = [
        "bench",
        "compare",
        "--data",
        str(digits_csv(tmp_path)),
        "--label",
        "kind",
        "--methods",
        "ce,gce:q=0.5",
    ]
    command += [
        "--seeds",
        "2",
        "--epochs",
        "2",
        "--model",
        "mlp:hidden=[8]",
        "--results",
        str(tmp_path / "results"),
    ]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    head, *rows = ran.stdout.splitlines()
    assert head.split("  ")[0] == "method" and {row.split()[0] for row in rows[:2]} == {
        "ce",
        "gce:q=0.5",
    }
    assert "may be wrong, too" in rows[2] and rows[-1].startswith(("Use ", "No clear winner"))
    assert ran.stderr.count("/4 ") == 4
    again = CliRunner().invoke(app, [*command, "--json"])
    found = json.loads(again.stdout)
    assert "/4 " not in again.stderr and found["recommendation"] == rows[-1]
    assert [place["seeds"] for place in found["ranking"]] == [2, 2]
    for path in (tmp_path / "results").glob("*.json"):
        result = json.loads(path.read_text())
        if result["experiment"]["method"] == "ce" and result["experiment"]["seed"] == 1:
            del result["checksum"]
            failed = {"status": "failed", "error": "ValueError: Too wild.", "last": None}
            write_result(tmp_path / "results", {**result, **failed})
    assert "1 run of ce failed: ValueError: Too wild." in CliRunner().invoke(app, command).stdout
    anew = json.loads(CliRunner().invoke(app, [*command, "--retry-failed", "--json"]).stdout)
    assert [(place["mean"], place["failed"]) for place in anew["ranking"]] == [
        (place["mean"], 0) for place in found["ranking"]
    ]


@pytest.mark.parametrize(
    "words", [("compare", "--data", "digits"), ("search", "gce:q=[0.5]"), ("run", "ln-table1")]
)
def test_the_command_line_says_that_it_goes_on(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: object, **options: object) -> None:
        raise Interrupted("Stopped after step 3.")

    monkeypatch.setattr("noiseproof.cli.bench._experiments", lambda *args, **options: [])
    for module in ("compare", "search"):
        monkeypatch.setattr(f"noiseproof.bench.{module}.run_all", stopped)
    monkeypatch.setattr("noiseproof.bench.run_all", stopped)
    ran = CliRunner().invoke(app, ["bench", *words])
    assert ran.exit_code == 130
    assert ran.stderr == "noiseproof: Stopped after step 3. The same command resumes.\n"


def test_a_method_in_two_spellings_is_compared_once(tmp_path: Path) -> None:
    found = compare_methods(
        "digits", ["ce", "gce", "gce:q=0.7", "ce"], results_dir=tmp_path, seeds=2, settings=SHORT
    )
    assert sorted(place.method for place in found.places) == ["ce", "gce"]


def test_a_test_is_over_the_seeds_that_both_have() -> None:
    places = rank({"a": [0.9, nan, 0.9, 0.91], "b": [nan, 0.5, 0.51, 0.5]})
    assert (places[0].seeds, places[1].seeds, places[1].shared) == (3, 3, 2)
    assert "over 2 seeds" in recommend(places)
