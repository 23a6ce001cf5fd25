"""Which wrong labels the audit finds, beside cleanlab with the models that its users take.

    NOISEPROOF_DATA=… python benchmarks/audit.py [--dev] [--sets a,b] [--only ours] [--jobs 16]
    [--table]

The sets are those of ``tablesets.py``, real tables, texts and pictures: with ``--dev`` those that
constants are chosen on (seed 0), otherwise those reported (seeds 1, 2, 3). Their labels are taken
as right, and mistakes are planted: at random (``symmetric``), from each class to the next
(``asymmetric-next``), by the features (``xia``), where a network trained on clean labels is
uncertain (``chen``), or not at all (``none``). Three human labellings of CIFAR-10 and one vote for
each item of RTE are real mistakes.

The contenders, each on one thread:

* ``cleanlab-lr``, ``cleanlab-hgb``: cleanlab's defaults on out-of-fold probabilities, five folds,
  of a logistic regression (standardised numbers, one-hot categories; TF-IDF of texts) and of
  scikit-learn's HistGradientBoostingClassifier (categories and gaps as they are; tables only). For
  pictures the logistic regression has the features that our audit computes.
* ``judge-lr``, ``judge-hgb``: our ``find_label_issues`` on the same probabilities, and nothing
  else.
* ``thorough``, ``fast``: ``audit(read_rows(frame, label=…))`` with default settings, as a user
  calls it.
* ``network``, ``trees``, by name only (``--only network,trees``): ``thorough`` with that ``model``
  alone.

A row has the average precision of the ranking (``ap``; cleanlab's other scorers as ``ap_adjusted``,
``ap_margin``), F1 of the labels called wrong, their number, CPU and wall seconds with the training.
The file is written after each contender, and rows in it are not made again, unless ``--fresh``.
cleanlab is needed for its own rows alone; it is pure Python, so that a folder with copies of
cleanlab, tqdm and termcolor on PYTHONPATH is enough.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import tablesets
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.compose import make_column_transformer
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from threadpoolctl import threadpool_limits
from timing import write_rows

from noiseproof.audit import audit, find_label_issues, read_rows
from noiseproof.data import NoisyData
from noiseproof.noise import get_noise
from noiseproof.strategies.averages import TrainingAverages
from noiseproof.train import Settings, train
from noiseproof.train.methods import Method, get_method
from noiseproof.train.task import Task

Array = NDArray[Any]
Row = dict[str, Any]
Key = tuple[str, str, int, str]  # set, noise, seed, contender
OUT = Path(__file__).parent / "results" / "audit.json"
DEV_SEEDS, SEEDS = (0,), (1, 2, 3)
NOISES = (
    "symmetric:rate=0.08",
    "asymmetric-next:rate=0.15",
    "xia:rate=0.15",
    "chen:rate=0.1",
    "none",
)
AXES = 64  # of the features that mistakes are planted by
MAX_HGB_CATEGORIES = 255
MODELS = {"lr": ("cleanlab-lr", "judge-lr"), "hgb": ("cleanlab-hgb", "judge-hgb")}
OURS = {"fast": ("fast",), "thorough": ("thorough",)}
ALONE = {"network": ("network",), "trees": ("trees",)}
CONTENDERS = MODELS | OURS | ALONE
SCORERS: dict[str, dict[str, Any]] = {
    "ap": {},
    "ap_adjusted": {"method": "self_confidence", "adjust_pred_probs": True},
    "ap_margin": {"method": "normalized_margin"},
}
BAR = 0.02  # behind by more than this is behind

load = cache(tablesets.load)


# --- mistakes -------------------------------------------------------------------------------------


def columns_of(data: tablesets.LabelledSet) -> pd.DataFrame:
    return data.frame.drop(columns=[data.label, *data.human])


def standardised(frame: pd.DataFrame) -> Any:
    """Numbers standardised, their gaps filled with the median, and categories one-hot."""
    numbers = frame.select_dtypes("number").columns
    words = frame.columns.difference(numbers, sort=False)
    return make_column_transformer(
        (
            make_pipeline(
                SimpleImputer(strategy="median", keep_empty_features=True), StandardScaler()
            ),
            numbers,
        ),
        (
            make_pipeline(
                SimpleImputer(strategy="constant"), OneHotEncoder(handle_unknown="ignore")
            ),
            words,
        ),
    )


@cache
def axes(name: str) -> torch.Tensor:
    """What mistakes are planted by: at most 64 principal axes of a set, (N, D), their largest
    variance 1.
    """
    data = load(name)
    if data.images is not None:
        x: Any = data.images.reshape(len(data.images), -1) / 255 - (data.images / 255).mean(
            0
        ).reshape(1, -1)
    elif data.text is not None:
        x = TfidfVectorizer(min_df=2).fit_transform(data.frame[data.text])
    else:
        x = standardised(columns_of(data)).fit_transform(columns_of(data))
    if x.shape[1] > AXES:
        x = TruncatedSVD(AXES, random_state=0).fit_transform(x)
    x = x.toarray() if hasattr(x, "toarray") else x
    return torch.tensor(x / x.std(0).max(), dtype=torch.float32)


@cache
def doubted(name: str, seed: int) -> torch.Tensor:
    """Predictions of a network trained on clean labels, averaged over its epochs, which ``chen``
    flips by, (N, K).
    """
    data = load(name)
    classes, y = np.unique(data.frame[data.label].to_numpy(str), return_inverse=True)
    task = Task(NoisyData(axes(name), torch.from_numpy(y), tuple(classes), torch.arange(len(y))))
    settings = Settings(model="mlp:hidden=[64]", epochs=10, optimizer="adam:lr=1e-3")
    plain = get_method("ce", task, settings)
    averages = train(
        task, Method(plain.loss, plain.head, (TrainingAverages(),)), settings, seed=seed
    ).strategies[0]
    assert isinstance(averages, TrainingAverages)
    return averages.mean("probs")


def given_labels(data: tablesets.LabelledSet, noise: str, seed: int) -> Array:
    """Names of the given labels, (N,)."""
    if noise in data.human:
        return data.frame[noise].to_numpy(str)
    classes, y = np.unique(data.frame[data.label].to_numpy(str), return_inverse=True)
    name = noise.partition(":")[0]
    features = {"xia": lambda: axes(data.name), "chen": lambda: doubted(data.name, seed)}.get(
        name, lambda: None
    )()
    drawn = get_noise(noise).corrupt(y, generator=seed, features=features, num_classes=len(classes))
    return classes[drawn.given.numpy()]


# --- contenders -----------------------------------------------------------------------------------


class Clock:
    """CPU and wall seconds of a with block."""

    def __enter__(self) -> Clock:
        self.began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu, self.wall = (
            time.process_time() - self.began[0],
            time.perf_counter() - self.began[1],
        )


def measured(clock: Clock, scores: dict[str, Array], flagged: Array, wrong: Array) -> Row:
    """The figures of one contender; ``scores`` are low for wrong labels."""
    row: Row = {
        "flags": int(flagged.sum()),
        "cpu": round(clock.cpu, 2),
        "wall": round(clock.wall, 2),
    }
    if wrong.any():
        row |= {
            name: round(float(average_precision_score(wrong, -score)), 4)
            for name, score in scores.items()
        }
        row["f1"] = round(float(f1_score(wrong, flagged)), 4)
    return row


def model_of(who: str, data: tablesets.LabelledSet) -> tuple[ClassifierMixin, Any]:
    """What a user of cleanlab would take for this set, and its inputs."""
    linear = LogisticRegression(max_iter=1000)
    if data.images is not None:
        x = read_rows(data.images, labels=data.frame[data.label].to_numpy()).x
        return make_pipeline(StandardScaler(), linear), x
    if data.text is not None:
        return make_pipeline(TfidfVectorizer(), linear), data.frame[data.text].to_numpy(object)
    frame = columns_of(data)
    if who == "lr":
        return make_pipeline(standardised(frame), linear), frame
    words = frame.columns.difference(frame.select_dtypes("number").columns, sort=False)
    frame = frame.astype(dict.fromkeys(words, "category"))
    for word in words:
        if len(frame[word].cat.categories) > MAX_HGB_CATEGORIES:
            frame[word] = frame[word].cat.codes.where(frame[word].notna())
    return HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=0), frame


def by_model(who: str, data: tablesets.LabelledSet, names: Array, seed: int) -> dict[str, Row]:
    """cleanlab and our judge on the same out-of-fold probabilities."""
    from cleanlab.filter import find_label_issues as cleanlab_issues
    from cleanlab.rank import get_label_quality_scores

    wrong = names != data.frame[data.label].to_numpy(str)
    given = np.unique(names, return_inverse=True)[1]
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    with Clock() as training:
        model, x = model_of(who, data)
        probs = cross_val_predict(model, x, given, cv=folds, method="predict_proba")
    with Clock() as clock:
        flagged = cleanlab_issues(given, probs, n_jobs=1)
    scores = {name: get_label_quality_scores(given, probs, **how) for name, how in SCORERS.items()}
    with Clock() as judging:
        issues = find_label_issues(given, probs)
    for each in (clock, judging):
        each.cpu, each.wall = each.cpu + training.cpu, each.wall + training.wall
    return {
        f"cleanlab-{who}": measured(clock, scores, flagged, wrong),
        f"judge-{who}": measured(judging, {"ap": issues.quality}, issues.is_issue, wrong),
    }


def by_us(who: str, data: tablesets.LabelledSet, names: Array, seed: int) -> dict[str, Row]:
    """The audit through its public interface; a row that it leaves out is not called wrong."""
    frame = columns_of(data).assign(**{data.label: names})
    with Clock() as clock:
        if data.images is not None:
            rows = read_rows(data.images, labels=names)
        else:
            rows = read_rows(frame, label=data.label, text=data.text)
        choice: Any = {"model": who} if who in ALONE else {"mode": who}
        report = audit(rows, **choice, seed=seed, device="cpu")
    issues, audited = report.label_issues, report.data.row >= 0
    quality, flagged = np.ones(len(frame)), np.zeros(len(frame), dtype=bool)
    quality[report.data.row[audited]] = issues.quality[audited]
    flagged[report.data.row[audited]] = issues.is_issue[audited]
    row = measured(clock, {"ap": quality}, flagged, names != data.frame[data.label].to_numpy(str))
    return {who: row | {"rate": round(issues.noise_rate, 4)}}


def one_thread() -> None:
    torch.set_num_threads(1)
    # a class with fewer rows than folds, logistic regression that did not converge
    warnings.simplefilter("ignore")


def measure(name: str, noise: str, seed: int, contender: str, commit: str) -> list[Row]:
    """The rows of one set, noise, seed and contender: with cleanlab's models two, its own and our
    judge's.
    """
    data = load(name)
    with threadpool_limits(1):
        names = given_labels(data, noise, seed)
        by_who = (
            by_model(contender, data, names, seed)
            if contender in MODELS
            else by_us(contender, data, names, seed)
        )
    wrong = float((names != data.frame[data.label].to_numpy(str)).mean())
    about = {"rows": len(names), "wrong": round(wrong, 4), "commit": commit}
    key = {"data": name, "noise": noise, "seed": seed}
    return [{**key, "who": who, **about, **figures} for who, figures in by_who.items()]


# --- which rows -----------------------------------------------------------------------------------


def key_of(row: Row) -> Key:
    return row["data"], row["noise"], row["seed"], row["who"]


def in_order(rows: Iterable[Row]) -> list[Row]:
    """By set, kind of mistakes, seed and contender, whichever process was done first."""
    orders = [
        {name: number for number, name in enumerate(names)} for names in (tablesets.SETS, NOISES)
    ]
    return sorted(
        rows,
        key=lambda row: (
            orders[0][row["data"]],
            orders[1].get(row["noise"], 0),
            row["noise"],
            *key_of(row)[2:],
        ),
    )


def plan(options: argparse.Namespace, made: set[Key]) -> Iterator[Key]:
    """Set, noise, seed and contender of the rows that are not there; sets that are not here are
    named.
    """
    default = [*tablesets.DEV] if options.dev else [*tablesets.LARGE, *tablesets.REPORT]
    for name in options.sets or default:
        try:
            data = load(name)
        except tablesets.Missing as missing:
            print(f"{name} is left out: {missing}")
            continue
        is_large = name in tablesets.LARGE
        noises = data.human or (NOISES[:1] if is_large else NOISES)
        seeds = options.seeds or (
            DEV_SEEDS if name in tablesets.DEV else SEEDS[:1] if is_large else SEEDS
        )
        known = [who for who in options.only if who != "hgb" or data.kind == "table"]
        for noise in noises:
            if options.noises and noise.partition(":")[0] not in options.noises:
                continue
            items = ((name, noise, seed, who) for seed in seeds for who in known)
            yield from (item for item in items if (*item[:3], CONTENDERS[item[3]][0]) not in made)


def commit() -> str:
    try:
        command = [
            "git",
            "-C",
            str(Path(__file__).parent),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=7",
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("NOISEPROOF_COMMIT", "unknown")


def make_rows(options: argparse.Namespace, rows: list[Row]) -> list[Row]:
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    work = [*plan(options, set() if options.fresh else {key_of(row) for row in rows})]
    version, by_key = commit(), {key_of(row): row for row in rows}
    context = multiprocessing.get_context("spawn")  # so that the variables above count
    with ProcessPoolExecutor(options.jobs, mp_context=context, initializer=one_thread) as pool:
        waiting = {pool.submit(measure, *item, version): item for item in work}
        for number, done in enumerate(as_completed(waiting), 1):
            item = waiting[done]
            if (error := done.exception()) is not None:
                print(f"[{number}/{len(work)}] {item}: {type(error).__name__}: {error}", flush=True)
                continue
            by_key |= {key_of(row): row for row in done.result()}
            write_rows(options.out, in_order(by_key.values()))
            cpu = done.result()[0]["cpu"]
            print(
                f"[{number}/{len(work)}] {' '.join(map(str, item))}: {cpu:.0f} s of CPU time",
                flush=True,
            )
    return in_order(by_key.values())


# --- the table ------------------------------------------------------------------------------------

Cells = dict[tuple[str, str], dict[str, dict[str, float]]]


def cells_of(rows: list[Row]) -> Cells:
    """Means over seeds: {(set, noise): {contender: {figure: mean}}}."""
    grouped: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        grouped[row["data"], row["noise"]][row["who"]].append(row)
    return {
        cell: {
            who: {
                name: fmean(row[name] for row in own)
                for name in own[0]
                if isinstance(own[0][name], (int, float))
            }
            for who, own in by_who.items()
        }
        for cell, by_who in grouped.items()
    }


def better_of_cleanlab(cell: dict[str, dict[str, float]], figures: Sequence[str]) -> float | None:
    """The better of cleanlab's models, by the best of ``figures``; None where neither was run."""
    values = [
        cell[who][name]
        for who in ("cleanlab-lr", "cleanlab-hgb")
        if who in cell
        for name in figures
        if name in cell[who]
    ]
    return max(values, default=None)


def shown(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)


def table(cells: Cells) -> str:
    """AP and F1 of each contender and the lead of thorough over the better of cleanlab's two, in
    Markdown.
    """
    columns = ("cleanlab-lr", "cleanlab-hgb", "judge-lr", "judge-hgb", "fast", "thorough")
    timed = ("cleanlab-lr", "cleanlab-hgb", "fast", "thorough")
    head = " | ".join(
        f"{figure}: cleanlab LR | HGB | judge LR | HGB | fast | thorough | lead"
        for figure in ("AP", "F1")
    )
    lines = [
        f"| set, mistakes | wrong | {head} | CPU s: LR, HGB, fast, thorough |",
        "| --- " * 17 + "|",
    ]
    for (name, noise), cell in cells.items():
        if noise == "none":
            continue
        parts = [
            f"{name} {noise.replace(':rate=', ' ')}",
            f"{next(iter(cell.values()))['wrong']:.3f}",
        ]
        for figure in ("ap", "f1"):
            values = [cell.get(who, {}).get(figure) for who in columns]
            cleanlab, ours = better_of_cleanlab(cell, [figure]), values[-1]
            parts += [shown(value) for value in values]
            parts.append("-" if cleanlab is None or ours is None else f"{ours - cleanlab:+.3f}")
        parts.append(", ".join(shown(cell.get(who, {}).get("cpu"), ".1f") for who in timed))
        lines.append(f"| {' | '.join(parts)} |")
    return "\n".join(lines)


def set_table(cells: Cells) -> str:
    """AP and F1 of thorough and of the better of cleanlab's two by kind of mistakes, and per cent
    called wrong on clean labels: one line for each set, for docs/audit_measured.md.
    """
    by_set: dict[str, dict[str, dict[str, dict[str, float]]]] = defaultdict(dict)
    for (name, noise), cell in cells.items():
        by_set[name][noise.partition(":")[0]] = cell
    head = ["set", "rows", "AP: cleanlab", "ours", "F1: cleanlab", "ours"]
    head += ["clean, called wrong: cleanlab", "ours"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for name, kinds in by_set.items():
        clean = kinds.pop("none", {})
        rows = next(iter((clean or next(iter(kinds.values()))).values()))["rows"]
        texts = [name, f"{rows:.0f}"]
        for figure in ("ap", "f1"):
            theirs = [better_of_cleanlab(cell, [figure]) for cell in kinds.values()]
            ours = [cell["thorough"][figure] for cell in kinds.values()]
            texts += [", ".join(map(shown, values)) for values in (theirs, ours)]
        flags = {who: f"{100 * own['flags'] / own['rows']:.1f}" for who, own in clean.items()}
        shares = [flags[who] for who in ("cleanlab-lr", "cleanlab-hgb") if who in flags]
        texts += [", ".join(shares), flags.get("thorough", "")]
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def clean_table(cells: Cells) -> str:
    """Labels called wrong where none was changed, in per cent."""
    columns = ("cleanlab-lr", "cleanlab-hgb", "judge-lr", "judge-hgb", "fast", "thorough")
    lines = [f"| clean set | rows | {' | '.join(columns)} |", "| --- " * (2 + len(columns)) + "|"]
    shares: dict[str, list[float]] = defaultdict(list)
    for (name, noise), cell in cells.items():
        if noise == "none":
            values = [
                100 * cell[who]["flags"] / cell[who]["rows"] if who in cell else None
                for who in columns
            ]
            for who, value in zip(columns, values, strict=True):
                shares[who] += [] if value is None else [value]
            count = next(iter(cell.values()))["rows"]
            lines.append(
                f"| {name} | {count:.0f} | {' | '.join(shown(value, '.1f') for value in values)} |"
            )
    means = (shown(fmean(shares[who]) if shares[who] else None, ".1f") for who in columns)
    return "\n".join([*lines, f"| mean | | {' | '.join(means)} |"]) if shares else ""


def model_table(cells: Cells) -> str:
    """Means of AP and F1 over the rows that every contender has, by what the audit judges by."""
    columns = [*ALONE, "thorough"]
    common = [cell for cell in cells.values() if all("f1" in cell.get(who, {}) for who in columns)]
    if not common:
        return ""
    cleanlab = {
        figure: [better_of_cleanlab(cell, [figure]) for cell in common] for figure in ("ap", "f1")
    }
    lines = [f"| judged by, {len(common)} rows | AP | F1 |", "| --- " * 3 + "|"]
    if None not in cleanlab["ap"]:
        lines.append(
            "| cleanlab, the better of two |"
            f" {' | '.join(shown(fmean(v)) for v in cleanlab.values())} |"
        )  # type: ignore[arg-type]
    for who in columns:
        values = (fmean(cell[who][figure] for cell in common) for figure in ("ap", "f1"))
        lines.append(f"| {who} | {' | '.join(map(shown, values))} |")
    return "\n".join(lines)


def summary(cells: Cells) -> str:
    """In how many rows we are behind the better of cleanlab's two, and by how much."""
    lines = []
    for who in OURS:
        for figure, beside, of in (
            ("ap", ["ap"], ""),
            ("ap", [*SCORERS], ", best scorer of three"),
            ("f1", ["f1"], ""),
        ):
            leads = {
                cell: round(by_who[who][figure] - cleanlab, 4)
                for cell, by_who in cells.items()
                if figure in by_who.get(who, {})
                and (cleanlab := better_of_cleanlab(by_who, beside)) is not None
            }
            if not leads:
                continue
            far = sorted((lead, cell) for cell, lead in leads.items() if lead < -BAR)
            listed = ", ".join(f"{' '.join(cell)} {lead:+.3f}" for lead, cell in far) or "none"
            lines.append(
                f"* {who}, {figure.upper()}{of}: mean lead {fmean(leads.values()):+.3f} over"
                f" {len(leads)} rows; behind in {sum(lead < 0 for lead in leads.values())}, by more"
                f" than {BAR} in {len(far)}: {listed}"
            )
    return "\n".join(lines)


PARTS = (table, set_table, clean_table, model_table, summary)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    comma = lambda words: words.split(",")  # noqa: E731
    parser.add_argument("--dev", action="store_true", help="the sets that constants are chosen on")
    parser.add_argument("--sets", type=comma, help="names of sets, with commas")
    parser.add_argument("--noises", type=comma, help="kinds of mistakes, such as symmetric,none")
    parser.add_argument("--seeds", type=lambda words: tuple(map(int, comma(words))))
    parser.add_argument(
        "--only", type=comma, default=[*MODELS, *OURS], help="names above; ours; cleanlab"
    )
    parser.add_argument("--fresh", action="store_true", help="make rows again that are in the file")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each on one thread")
    parser.add_argument("--out", type=Path, default=OUT, help="the file of rows")
    parser.add_argument(
        "--table", action="store_true", help="only print the tables of what is there"
    )
    options = parser.parse_args()
    groups = {"ours": [*OURS], "cleanlab": [*MODELS]}
    options.only = [who for word in options.only for who in groups.get(word, [word])]
    for word in (options.sets or []) + options.only:
        if word not in tablesets.SETS and word not in CONTENDERS:
            parser.error(
                f"Expected sets of {', '.join(tablesets.SETS)} and contenders of"
                f" {', '.join(CONTENDERS)}, got {word!r}."
            )
    if find_spec("cleanlab") is None:
        print(
            "cleanlab is not here, so its rows and the judge's are not made. `pip install"
            " cleanlab==2.9.0` brings it."
        )
        options.only = [who for who in options.only if who not in MODELS]
    rows: list[Row] = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    if not options.table:
        rows = make_rows(options, rows)
    known = options.sets or (tablesets.DEV if options.dev else tablesets.SETS)
    cells = cells_of(in_order(row for row in rows if row["data"] in known))
    print("\n\n".join(filter(None, (part(cells) for part in PARTS))))


if __name__ == "__main__":
    main()
