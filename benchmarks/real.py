"""Which wrong labels are found where nobody planted them: the audit, cleanlab, and plain scores.

    python benchmarks/real.py [FOLDER] [--only thorough,fast] [--sets a,b] [--jobs 2] [--table]

FOLDER holds the sets: every .csv or .csv.gz file with the columns ``given`` and ``true``; all
others are features, or the column ``text`` is a text. Any set of your own will do. The default,
``../shared/data/real`` (``NOISEPROOF_SHARED``), has two kinds more, which are read where they are
there: pictures with the list of the wrong ones (roman numerals), and published predictions without
any features (``predictions`` below). CIFAR-10N, CIFAR-100N and RTE come from ``tablesets.py``. As
controls, ``--controls report`` adds its sets for reports with planted mistakes, half of them
between look-alikes (the class that a cross-validated model confuses most with each), and without
any; ``--controls dev`` and ``--controls unseen`` those that constants are chosen on (prior.py).

The contenders, each on one thread:

* ``thorough``, ``fast``: the audit with default settings; for published predictions ``judge``.
* ``cleanlab-lr``, ``cleanlab-hgb``: cleanlab's defaults on the out-of-fold probabilities of
  logistic regression (TF-IDF of texts) and of gradient boosting (tables only); for published
  predictions ``cleanlab``.
* ``self``, ``margin``: self-confidence and normalised margin of the predictions that ``thorough``
  judges by. As many labels are called wrong as these predictions contradict.
* ``aum``, ``forgetting``, ``votes``: the plain detectors of the literature on the features of the
  audit: area under the margin (Pleiss et al. 2020) and forgetting counts (Toneva et al. 2019) of a
  network of one hidden layer, and the share of ten neighbours with another label. They only rank.

A row has F1 of what is called wrong, average precision, precision at 50 and 200, F1 of the best cut
of the ranking, the rate and whether the printed range holds it, seconds. Those of ``thorough`` and
``judge`` have the signals that the rate is estimated from, ``explained``, ``converged``,
``certain`` with its lower bound, and ``contradicted`` of noiseproof/judge/rate.py, and as ``curve``
the F1 of calling each of `SHARES` of the ranking wrong.

``--evidence FOLDER`` keeps there what the models of ``thorough`` say about each set. Where it is
there, labels are judged anew by the code of today, in a second per set, and nothing is trained: for
changes of the judge alone. Rows say at which commit the models were trained (``trained``) and at
which the labels were judged (``commit``); seconds are those of the training.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import tarfile
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import audit as planted
import numpy as np
import pandas as pd
import tablesets
import torch
from audit import Array, Clock, Row, one_thread
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from timing import write_rows

from noiseproof.audit import audit, find_label_issues, read_rows
from noiseproof.audit import run as auditing
from noiseproof.judge import labels as judging
from noiseproof.judge.evidence.network import prepare_inputs
from noiseproof.judge.rate import RateEstimates

OUT = Path(__file__).parent / "results" / "real.json"
SHARED = Path(os.environ.get("NOISEPROOF_SHARED", tablesets.ROOT.parent / "shared"))
FOLDER = SHARED / "data" / "real"
OURS = ("thorough", "fast")
CLEANLAB = ("cleanlab-lr", "cleanlab-hgb")
PLAIN = ("self", "margin")
DETECTORS = ("aum", "forgetting", "votes")
CONTENDERS = (*OURS, *CLEANLAB, *DETECTORS)  # PLAIN come with thorough
PEOPLE = {"rte": ("vote",), "cifar10n": ("aggregate", "random1", "worst"), "cifar100n": ("noisy",)}
CONTROLS = (
    "alike:rate=0.05",
    "alike:rate=0.15",
    "symmetric:rate=0.08",
    "asymmetric-next:rate=0.15",
    "none",
)
EPOCHS, HIDDEN, BATCH = 30, 128, 128  # of the detectors' network
VOTERS = 10
SHARES = np.geomspace(0.002, 0.7, 30)  # of labels called wrong, for the curve of F1


@dataclass(frozen=True, eq=False)
class RealSet:
    """N rows with given labels, and which of them are wrong."""

    name: str
    given: Array  # (N,) names
    wrong: Array  # (N,) bool
    data: tablesets.LabelledSet | None = None  # features and true labels
    folder: Path | None = None  # of pictures, a folder for each class
    pred_probs: Array | None = None  # (N, K), published; `given` are then class numbers


# --- the sets -----------------------------------------------------------------


def from_csv(path: Path) -> RealSet:
    words = {"given": str, "true": str, "text": str}
    header = pd.read_csv(path, nrows=0).columns
    text = "text" if "text" in header else None
    frame = pd.read_csv(
        path, dtype={c: words[c] for c in header if c in words}, keep_default_na=text is None
    )
    given = frame.pop("given").to_numpy(str)
    name = path.name.removesuffix(".gz").removesuffix(".csv")
    data = tablesets.LabelledSet(name, "true", text, (), frame)
    return RealSet(name, given, given != frame["true"].to_numpy(str), data)


@cache
def unpacked(archive: Path) -> Path:
    """The folder of pictures in ``archive``, unpacked once by each process."""
    target = Path(tempfile.mkdtemp())
    with tarfile.open(archive) as files:
        files.extractall(target, filter="data")
    return target / archive.name.split(".")[0]


def from_pictures(archive: Path) -> RealSet:
    folder = unpacked(archive)
    files = sorted(folder.glob("*/*"))
    is_wrong = (
        pd.read_csv(archive.with_name(f"{folder.name}_errors.csv")).set_index("picture").wrong
    )
    wrong = np.array([bool(is_wrong[file.name]) for file in files])
    return RealSet(
        folder.name, np.array([file.parent.name for file in files]), wrong, folder=folder
    )


def from_predictions(folder: Path, name: str) -> RealSet:
    """Published out-of-sample predictions: ``roman/resnet18`` or ``cifar10n-worst/resnet18``."""
    what, model = name.split("/")
    if what == "roman":
        arrays = np.load(folder / "roman_predictions.npz")
        given, wrong = arrays[f"roman_labels_{model}"], arrays[f"roman_wrong_{model}"]
        probs = arrays[f"roman_{model}"]
    else:
        which = what.removeprefix("cifar10n-")
        arrays = np.load(folder / "cifar10n_predictions.npz")
        given, probs = arrays[f"{which}_given_{model}"], arrays[f"{which}_{model}"]
        wrong = given != arrays[f"{which}_true_{model}"]
    probs = probs.astype(np.float32)
    return RealSet(
        name, given.astype(np.int64), wrong, pred_probs=probs / probs.sum(1, keepdims=True)
    )


def predictions_in(folder: Path) -> Iterator[str]:
    """Names of the published predictions in ``folder``."""
    if (roman := folder / "roman_predictions.npz").exists():
        models = [key.removeprefix("roman_labels_") for key in np.load(roman) if "_labels_" in key]
        yield from (f"roman/{model}" for model in models)
    if (cifar := folder / "cifar10n_predictions.npz").exists():
        keys = [key.partition("_given_") for key in np.load(cifar) if "_given_" in key]
        yield from (f"cifar10n-{which}/{model}" for which, _, model in keys)


@cache
def look_alikes(name: str) -> tuple[Array, Array, Array]:
    """Classes (K,), clean labels (N,), and the class that a model confuses most with each, (K,)."""
    data = planted.load(name)
    classes, y = np.unique(data.frame[data.label].to_numpy(str), return_inverse=True)
    model, x = planted.model_of("hgb" if data.kind == "table" else "lr", data)
    probs = cross_val_predict(model, x, y, cv=3, method="predict_proba")
    confused = np.zeros((len(classes), len(classes)))
    np.add.at(confused, y, probs)
    np.fill_diagonal(confused, -1)
    return classes, y, confused.argmax(1)


def with_look_alikes(name: str, rate: float, seed: int) -> Array:
    """Given labels (N,), ``rate`` of which are the class most confused with theirs."""
    classes, y, other = look_alikes(name)
    is_changed = np.random.default_rng(seed).random(len(y)) < rate
    return classes[np.where(is_changed, other[y], y)]


def from_tablesets(name: str, noise: str, seed: int = 0) -> RealSet:
    data = planted.load(name)
    kind, _, rate = noise.partition(":rate=")
    if kind == "alike":
        given = with_look_alikes(name, float(rate), seed)
    else:
        given = planted.given_labels(data, noise, seed)
    return RealSet(f"{name} {noise}", given, given != data.frame[data.label].to_numpy(str), data)


def names_of_sets(folder: Path, *, controls: str | None) -> list[str]:
    """All that is here, named as `load` takes it."""
    names = [
        file.name for file in sorted(folder.glob("*.csv*")) if not file.name.endswith("_errors.csv")
    ]
    names += [file.name for file in sorted(folder.glob("*.tar.xz"))]
    names += predictions_in(folder)
    if folder == FOLDER:
        names += [f"{name} {noise}" for name, noises in PEOPLE.items() for noise in noises]
    if controls is not None:
        sets = [name for name in tablesets.PARTS[controls] if name not in (*PEOPLE, "flights")]
        names += [f"{name} {noise}" for name in sets for noise in CONTROLS]
    return names


def load(folder: Path, name: str) -> RealSet:
    if ".csv" in name:
        return from_csv(folder / name)
    if name.endswith(".tar.xz"):
        return from_pictures(folder / name)
    if "/" in name:
        return from_predictions(folder, name)
    return from_tablesets(*name.split(" "))


# --- figures ------------------------------------------------------------------


def figures(wrong: Array, score: Array, called: Array | None, seconds: float) -> Row:
    """Of a ranking, high for wrong labels, and of what is ``called`` wrong."""
    row: Row = {"seconds": round(seconds, 1)}
    if called is not None:
        row["called"] = round(float(called.mean()), 4)
    if not wrong.any():
        return row
    order = np.argsort(-score, kind="stable")
    hits = wrong[order].cumsum()
    row["ap"] = round(float(average_precision_score(wrong, score)), 4)
    row |= {f"p{n}": round(float(wrong[order[:n]].mean()), 3) for n in (50, 200) if n <= len(wrong)}
    row["best"] = round(float((2 * hits / (np.arange(1, len(hits) + 1) + wrong.sum())).max()), 4)
    if called is not None:
        row["f1"] = round(float(f1_score(wrong, called)), 4)
    return row


@dataclass(frozen=True)
class Call:
    args: tuple[Any, ...]
    options: dict[str, Any]
    result: Any


@contextmanager
def recorded(module: Any, name: str) -> Iterator[list[Call]]:
    """The calls of a function of ``module`` meanwhile."""
    calls: list[Call] = []
    function = getattr(module, name)

    def record(*args: Any, **options: Any) -> Any:
        calls.append(Call(args, options, function(*args, **options)))
        return calls[-1].result

    setattr(module, name, record)
    try:
        yield calls
    finally:
        setattr(module, name, function)


def f1_curve(wrong: Array, score: Array) -> list[float]:
    """F1 of calling each of the `SHARES` of the ranking wrong."""
    hits = np.append(0, wrong[np.argsort(-score, kind="stable")].cumsum())
    counts = np.rint(SHARES * len(wrong)).astype(int)
    return [round(float(f1), 3) for f1 in 2 * hits[counts] / (counts + wrong.sum())]


def with_signals(row: Row, wrong: Array, issues: Any, estimates: RateEstimates) -> Row:
    low, high = issues.noise_interval
    numbers = {
        "rate": issues.noise_rate,
        "low": low,
        "high": high,
        "explained": estimates.posterior,
        "converged": estimates.converged,
        "certain": estimates.certain[0],
        "certain_low": estimates.certain[1],
        "contradicted": estimates.contradicted,
    }
    row |= {name: round(float(value), 4) for name, value in numbers.items()}
    row["holds"] = bool(low <= wrong.mean() <= high)
    if wrong.any():
        row["curve"] = f1_curve(wrong, 1 - issues.quality.astype(float))
    return row


def as_many_as_contradicted(given: Array, probs: Array, score: Array) -> Array:
    """The highest scores, as many as ``probs`` contradict labels."""
    called = np.zeros(len(given), dtype=bool)
    number = int((probs.argmax(1) != given).sum())
    called[np.argsort(-score, kind="stable")[:number]] = True
    return called


def plain_scores(given: Array, probs: Array) -> dict[str, Array]:
    own = probs[np.arange(len(given)), given]
    others = probs.copy()
    others[np.arange(len(given)), given] = -1
    return {"self": -own, "margin": others.max(1) - own}


# --- contenders ---------------------------------------------------------------


def rows_of(real: RealSet) -> Any:
    """The set as the audit reads it."""
    if real.folder is not None:
        return read_rows(real.folder)
    data = real.data
    assert data is not None
    if data.images is not None:
        return read_rows(data.images, labels=real.given)
    return read_rows(
        planted.columns_of(data).assign(given=real.given), label="given", text=data.text
    )


@dataclass(frozen=True, eq=False)
class Trained:
    """What an audit judges labels by, kept in a file by ``--evidence``."""

    name: str
    wrong: Array  # (N,) bool
    row: Array  # of the labels that are judged
    given: Array  # their class numbers
    options: dict[str, Any]  # of find_label_issues
    out_of_sample: Array | None
    seconds: float
    commit: str


def trained_on(real: RealSet, mode: str, commit: str) -> Trained:
    with Clock() as clock, recorded(auditing, "find_label_issues") as judged:
        report = audit(rows_of(real), mode=mode, device="cpu")
    options = dict(judged[0].options)
    if options["evidence"].neighbour_agreement is not None:  # neighbours have voted
        del options["features"]
    row, given = report.data.row, report.data.given
    probs = report.out_of_sample
    return Trained(real.name, real.wrong, row, given, options, probs, clock.wall, commit)


def by_us(who: str, trained: Trained) -> dict[str, Row]:
    """The judge; and what plain scores make of the out-of-sample predictions."""
    with recorded(judging, "estimate_rates") as estimated:
        issues = find_label_issues(trained.given, **trained.options)
    wrong = trained.wrong[trained.row]
    score = 1 - issues.quality.astype(float)
    judged = figures(wrong, score, issues.is_issue, trained.seconds)
    found = {who: with_signals(judged, wrong, issues, estimated[-1].result)}
    probs = trained.out_of_sample
    if probs is not None:
        found |= by_plain_scores(trained.given, probs, wrong, trained.seconds)
    return {one: {"trained": trained.commit, **row} for one, row in found.items()}


def by_plain_scores(given: Array, probs: Array, wrong: Array, seconds: float) -> dict[str, Row]:
    return {
        name: figures(wrong, score, as_many_as_contradicted(given, probs, score), seconds)
        for name, score in plain_scores(given, probs).items()
    }


def by_cleanlab(given: Array, probs: Array, wrong: Array, seconds: float) -> Row:
    from cleanlab.filter import find_label_issues as cleanlab_issues
    from cleanlab.rank import get_label_quality_scores

    with Clock() as clock:
        called = cleanlab_issues(given, probs, n_jobs=1)
        scores = get_label_quality_scores(given, probs)
    return figures(wrong, -scores, called, seconds + clock.wall)


def by_cleanlab_model(who: str, real: RealSet) -> dict[str, Row]:
    given = np.unique(real.given, return_inverse=True)[1]
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    with Clock() as clock:
        if real.data is None:  # pictures, by the features of our audit
            model, x = (
                make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
                rows_of(real).x,
            )
        else:
            model, x = planted.model_of(who.removeprefix("cleanlab-"), real.data)
        probs = cross_val_predict(model, x, given, cv=folds, method="predict_proba")
    return {who: by_cleanlab(given, probs, real.wrong, clock.wall)}


def by_predictions(real: RealSet) -> dict[str, Row]:
    """The judge, cleanlab and plain scores, all on the published predictions."""
    probs = real.pred_probs
    assert probs is not None
    with Clock() as clock, recorded(judging, "estimate_rates") as estimated:
        issues = find_label_issues(real.given, probs)
    ours = figures(real.wrong, 1 - issues.quality.astype(float), issues.is_issue, clock.wall)
    return {
        "judge": with_signals(ours, real.wrong, issues, estimated[-1].result),
        "cleanlab": by_cleanlab(real.given, probs, real.wrong, 0.0),
        **by_plain_scores(real.given, probs, real.wrong, 0.0),
    }


def margins_in_training(x: torch.Tensor, given: torch.Tensor, num_classes: int) -> Array:
    """Margins (E, N) of the given labels after each epoch of a training on all rows."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, num_classes)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3, weight_decay=1e-4)
    margins = []
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(x[rows]), given[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            logits = network(x)
        own = logits.gather(1, given[:, None])[:, 0]
        margins.append(own - logits.scatter(1, given[:, None], -torch.inf).amax(1))
    return torch.stack(margins).numpy()


def forgetting_counts(margins: Array) -> Array:
    """How often each row was learned and then forgotten, (N,); never learned is more than any
    count.
    """
    is_right = margins > 0
    counts = (is_right[:-1] & ~is_right[1:]).sum(0)
    return np.where(is_right.any(0), counts, len(margins))


def by_detectors(real: RealSet) -> dict[str, Row]:
    """The plain detectors on the audit's features."""
    rows = rows_of(real)
    wrong = real.wrong[rows.row]
    inputs, given = prepare_inputs(rows.x, rows.given, len(rows.classes))
    x = inputs.flatten(1)
    with Clock() as clock:
        margins = margins_in_training(x, given, len(rows.classes))
    with Clock() as voting:
        near = (
            NearestNeighbors(n_neighbors=VOTERS + 1)
            .fit(x.numpy())
            .kneighbors(return_distance=False)
        )
    votes = (rows.given[near[:, 1:]] != rows.given[:, None]).mean(1)
    return {
        "aum": figures(wrong, -margins.mean(0), None, clock.wall),
        "forgetting": figures(wrong, forgetting_counts(margins).astype(float), None, clock.wall),
        "votes": figures(wrong, votes, None, voting.wall),
    }


def measure(folder: Path, name: str, who: str, commit: str, kept: Path | None) -> list[Row]:
    """The rows of one set and contender; of published predictions those of all."""
    file = None if kept is None or who != "thorough" else kept / f"{name}.pickle"
    with threadpool_limits(1):
        if file is not None and file.exists():
            trained = Trained(**pickle.loads(file.read_bytes()))
            return with_set(trained.name, trained.wrong, commit, by_us(who, trained))
        real = load(folder, name)
        if real.pred_probs is not None:
            by_who = by_predictions(real)
        elif who in OURS:
            trained = trained_on(real, who, commit)
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(pickle.dumps(vars(trained)))
            by_who = by_us(who, trained)
        elif who in CLEANLAB:
            by_who = by_cleanlab_model(who, real)
        else:
            by_who = by_detectors(real)
    return with_set(real.name, real.wrong, commit, by_who)


def with_set(name: str, wrong: Array, commit: str, by_who: dict[str, Row]) -> list[Row]:
    about = {"rows": len(wrong), "wrong": round(float(wrong.mean()), 4), "commit": commit}
    return [{"data": name, "who": who, **about, **row} for who, row in by_who.items()]


# --- which rows, and the table ------------------------------------------------


def plan(
    folder: Path, options: argparse.Namespace, made: set[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Set and contender of the rows that are not there."""
    for name in names_of_sets(folder, controls=options.controls):
        key = name.removesuffix(".gz").removesuffix(".csv").removesuffix(".tar.xz")
        if options.sets and key.split(" ")[0] not in options.sets:
            continue
        if "/" in name:
            who = ["judge"]
        else:
            who = [one for one in options.only if one not in ("forgetting", "votes")]
        for one in who:
            if (one == "cleanlab-hgb" and name.endswith(".tar.xz")) or (key, one) in made:
                continue
            yield name, one


def make_rows(folder: Path, options: argparse.Namespace, rows: list[Row]) -> list[Row]:
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    by_key = {(row["data"], row["who"]): row for row in rows}
    work = [*plan(folder, options, set() if options.fresh else set(by_key))]
    version = planted.commit()
    context = multiprocessing.get_context("spawn")  # so that the variables above count
    with ProcessPoolExecutor(options.jobs, mp_context=context, initializer=one_thread) as pool:
        waiting = {
            pool.submit(measure, folder, *item, version, options.evidence): item for item in work
        }
        for number, done in enumerate(as_completed(waiting), 1):
            item = " ".join(waiting[done])
            if (error := done.exception()) is not None:
                print(f"[{number}/{len(work)}] {item}: {type(error).__name__}: {error}", flush=True)
                continue
            by_key |= {(row["data"], row["who"]): row for row in done.result()}
            write_rows(options.out, [by_key[key] for key in sorted(by_key)])
            print(f"[{number}/{len(work)}] {item}", flush=True)
    return [by_key[key] for key in sorted(by_key)]


def ours_of(cell: dict[str, Row]) -> Row | None:
    return cell.get("thorough") or cell.get("judge")


def cleanlab_of(cell: dict[str, Row]) -> Row | None:
    """The better of cleanlab's models by F1."""
    rows = [row for who, row in cell.items() if who.startswith("cleanlab") and "f1" in row]
    return max(rows, key=lambda row: row["f1"], default=None)


Cell = tuple[Row, Row, dict[str, Row]]  # ours, cleanlab's better one, and all by contender


def cells_of(rows: list[Row]) -> list[Cell]:
    """Sets that both have judged, the ones where we are furthest behind cleanlab first."""
    by_set: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_set.setdefault(row["data"], {})[row["who"]] = row
    found = [
        (ours, theirs, cell)
        for cell in by_set.values()
        if (ours := ours_of(cell)) and (theirs := cleanlab_of(cell)) and "f1" in ours
    ]
    return sorted(found, key=lambda item: item[0]["f1"] - item[1]["f1"])


def kind_of(name: str) -> str:
    """``real``, or what was planted."""
    data, _, noise = name.partition(" ")
    return "real" if not noise or noise in PEOPLE.get(data, ()) else noise


def table(rows: list[Row]) -> str:
    """A line for each real set in Markdown."""
    cells = cells_of(rows)
    lines = [
        (
            "| set | rows | wrong | estimate | range | F1 | fast | cleanlab | best cut | AP | self"
            " | cleanlab |"
        ),
        "| --- " * 12 + "|",
    ]
    for ours, theirs, cell in cells:
        if kind_of(ours["data"]) != "real":
            continue
        fast, plain = cell.get("fast", {}), cell.get("self", {})
        numbers = [
            ours["f1"],
            fast.get("f1"),
            theirs["f1"],
            ours["best"],
            ours["ap"],
            plain.get("ap"),
            theirs["ap"],
        ]
        shown = " | ".join("" if value is None else f"{value:.3f}" for value in numbers)
        within = f"{ours['low']:.3f} to {ours['high']:.3f}{'' if ours['holds'] else ' (no)'}"
        lines.append(
            f"| {ours['data']} | {ours['rows']} | {ours['wrong']:.3f} | {ours['rate']:.3f} |"
            f" {within} | {shown} |"
        )
    return "\n".join(lines)


def means(rows: list[Row]) -> str:
    """The means over the sets of each kind in Markdown, and the share called wrong of clean
    sets.
    """
    kinds: dict[str, list[Cell]] = {}
    for cell in cells_of(rows):
        kinds.setdefault(kind_of(cell[0]["data"]), []).append(cell)
    lines = [
        "| mistakes | sets | F1 | cleanlab | best cut | AP | self | cleanlab | range holds |",
        "| --- " * 9 + "|",
    ]
    for kind, cells in sorted(kinds.items(), key=lambda item: (item[0] != "real", item[0])):
        figures_of_sets = [
            (
                ours["f1"],
                theirs["f1"],
                ours["best"],
                ours["ap"],
                cell["self"]["ap"],
                theirs["ap"],
                ours["holds"],
            )
            for ours, theirs, cell in cells
        ]
        shown = " | ".join(f"{fmean(column):.3f}" for column in zip(*figures_of_sets, strict=True))
        lines.append(f"| {kind} | {len(cells)} | {shown} |")
    lines.append("")
    clean = [row for row in rows if kind_of(row["data"]) == "none" and is_reported(row)]
    for who in (*OURS, *CLEANLAB):
        if called := [row["called"] for row in clean if row["who"] == who]:
            lines.append(f"{who} calls {fmean(called):.1%} of {len(called)} clean sets wrong")
    return "\n".join(lines)


def is_reported(row: Row) -> bool:
    """Not one of the sets that constants are chosen on."""
    return row["data"].split(" ")[0] in tablesets.REPORT


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument(
        "--sets", type=lambda words: words.split(","), help="names of sets, with commas"
    )
    parser.add_argument("--only", type=lambda words: words.split(","), default=list(CONTENDERS))
    parser.add_argument(
        "--controls",
        choices=("dev", "unseen", "report"),
        help="planted mistakes and clean sets, too",
    )
    parser.add_argument("--fresh", action="store_true", help="make rows again that are in the file")
    parser.add_argument(
        "--evidence", type=Path, help="a folder that keeps what models say, to judge it again"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, each on one thread")
    parser.add_argument("--out", type=Path, default=OUT, help="the file of rows")
    parser.add_argument(
        "--table", action="store_true", help="only print the table of what is there"
    )
    options = parser.parse_args()
    if unknown := set(options.only) - set(CONTENDERS):
        parser.error(
            f"Expected contenders of {', '.join(CONTENDERS)}, got {', '.join(sorted(unknown))}."
        )
    rows: list[Row] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    if not options.table:
        rows = make_rows(options.folder, options, rows)
    print(table(rows), means(rows), sep="\n\n")


if __name__ == "__main__":
    main()
