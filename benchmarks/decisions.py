"""What decisions of a person add to an audit: reviewers simulated on real audits, from 0 to 400
decisions.

    NOISEPROOF_DATA=… python benchmarks/decisions.py --evidence FOLDER [--dev] [--jobs 16]     #
    audits the sets python benchmarks/decisions.py --from FOLDER [--dev] [--jobs 16]
    # simulates, writes rows python benchmarks/decisions.py --real --evidence FOLDER
    # and again with --from python benchmarks/decisions.py --table
    # prints what is there

The sets are those of ``tablesets.py``: CIFAR-10N (three labellings), CIFAR-100N and RTE have
mistakes of people; MNIST, digits, a table (phoneme) and a text set (packages) have planted ones, 20
% symmetric, asymmetric or by the features (``xia``), or 10 % where a network is uncertain
(``chen``), seed 1. The constants of ``audit/measure`` were chosen on two other groups: with
``--dev`` sets with planted mistakes, seed 0; with ``--real`` the tables and texts of real.py.

Each set is audited once. Then 200 reviewers, who know the true labels, or err in 5 % of their
answers (they name a random other class; 20 % of their rows are asked twice), answer the questions
of ``audit.measure.Design``, each with another seed. ``decisions`` counts all answers, second ones,
too. A row has, over the repetitions,

* ``coverage`` of the 95 % interval of the noise rate, its mean width over that of as many decisions
  on a simple random sample with the same reviewers (``width``; the interval of one stratum), and
  the error of the estimate over that of the random sample (``rmse``);
* ``f1`` of what is called wrong after recalibration over that of the best cut of the same ranking,
  both on all rows;
* ``found``: errors among the next ``decisions`` rows of our ranking, ``cleanlab`` among those of
  cleanlab's;
* ``after``: share of wrong labels after ``apply --accept-all``, mean and worst of the repetitions,
  with ``before``, ``refused`` (share of the repetitions in which it refuses, and applies the
  decisions alone) and ``worse`` (share in which more labels are wrong than before).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import real
from audit import columns_of, commit, given_labels, load, model_of, one_thread
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from threadpoolctl import threadpool_limits
from timing import write_rows

from noiseproof.audit import audit, read_rows
from noiseproof.audit.decisions import Decision
from noiseproof.audit.files import Audit
from noiseproof.judge.measure.calibrate import Calibrated, find_slips, recalibrate
from noiseproof.judge.measure.design import Design
from noiseproof.judge.measure.estimate import Population, gain, measure

Array = NDArray[Any]
Row = dict[str, Any]
OUT = Path(__file__).parent / "results" / "decisions.json"
PLANTED = ("symmetric:rate=0.2", "asymmetric-next:rate=0.2", "xia:rate=0.2", "chen:rate=0.1")
DEV = (
    "cifar10n_dev",
    "letter",
    "vehicle",
    "dna",
    "spam",
    "weather",
    "diamonds",
    "fortunes",
    "verbs",
)
REPORT = ("cifar10n", "cifar100n", "mnist", "digits", "phoneme", "packages", "rte")
DEV_SEED, SEED = 0, 1
COUNTS = (0, 25, 50, 100, 200, 400)
ERRORS, REPEATS = (0.0, 0.05), 0.2
REPETITIONS = 200


# --- audits ---------------------------------------------------------------------------------------


def make_evidence(name: str, noise: str, seed: int, folder: Path) -> None:
    """Audit one set, and keep what a simulated reviewer needs."""
    from cleanlab.rank import get_label_quality_scores

    path = folder / f"{name}--{noise.replace(':', '-')}--{seed}.npz"
    if path.exists():
        return
    with threadpool_limits(1):
        if noise == "real":
            found = real.from_csv(real.FOLDER / f"{name}.csv.gz")
            data, names = found.data, found.given
        else:
            data = load(name)
            names = given_labels(data, noise, seed)
        if data.images is not None:
            rows = read_rows(data.images, labels=names)
        else:
            rows = read_rows(
                columns_of(data).assign(**{data.label: names}), label=data.label, text=data.text
            )
        report = audit(rows, seed=seed, device="cpu")
        at, issues = report.order, report.label_issues
        number = {word: k for k, word in enumerate(report.data.classes)}
        truth = np.array([number.get(word, -1) for word in data.frame[data.label].to_numpy(str)])
        codes = np.unique(names, return_inverse=True)[1]
        model, x = model_of("lr", data)
        folds = StratifiedKFold(5, shuffle=True, random_state=seed)
        probs = cross_val_predict(model, x, codes, cv=folds, method="predict_proba")
    table = report.table()
    arrays: dict[str, Any] = {
        "given": report.data.given[at],
        "truth": truth[report.data.row[at]],
        "suggested": issues.suggested[at],
        "quality": table["model_quality"],
        "suggestion": table["suggestion_quality"],
        "is_issue": table["is_label_issue"],
        "num_classes": len(number),
        "cleanlab": get_label_quality_scores(codes, probs)[report.data.row[at]],
    }
    with open(part := path.with_suffix(".part"), "wb") as file:
        np.savez_compressed(file, **arrays)
    part.replace(path)


# --- simulated reviewers --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Evidence:
    """An audited set with its true labels, from the worst row to the best."""

    given: Array  # (N,)
    truth: Array  # (N,)
    suggested: Array  # (N,)
    quality: Array  # (N,)
    suggestion: Array  # (N,)
    is_issue: Array  # (N,)
    cleanlab: Array  # (N,) low for wrong labels
    num_classes: int

    @classmethod
    def load(cls, path: Path) -> Evidence:
        with np.load(path) as file:
            return cls(
                **{name: file[name] if file[name].ndim else int(file[name]) for name in file.files}
            )

    @cached_property
    def wrong(self) -> NDArray[np.bool_]:
        return np.asarray(self.given != self.truth)

    @cached_property
    def best_f1(self) -> float:
        """Of the best cut of the ranking."""
        hits = self.wrong.cumsum()
        return float((2 * hits / (np.arange(1, len(hits) + 1) + hits[-1])).max())

    @cached_property
    def audit(self) -> Audit:
        """As `read_audit` returns it; the rows are numbered by their rank."""
        names = np.array([str(k) for k in range(self.num_classes)], dtype=object)
        rows = np.arange(len(self.given))
        issues = pd.DataFrame(
            {
                "row": rows,
                "id": rows.astype(str),
                "is_label_issue": self.is_issue,
                "model_quality": self.quality,
                "label_quality": self.quality,
                "model_suggestion_quality": self.suggestion,
                "given_label": names[self.given],
                "suggested_label": names[self.suggested],
            }
        )
        return Audit(Path(), issues, {"source_rows": len(rows)}, {"classes": names.tolist()}, "")


class Reviewer:
    """Knows the true labels, and names a random other class with probability ``error``."""

    def __init__(self, data: Evidence, error: float, seed: int) -> None:
        self.data, self.error, self.generator = data, error, np.random.default_rng([seed, 1])

    def answer(
        self, row: int, asked: Any = "measure", probability: float | None = None
    ) -> Decision:
        data = self.data
        label = int(data.truth[row])
        if self.generator.random() < self.error:
            label = int((label + self.generator.integers(1, data.num_classes)) % data.num_classes)
        given = int(data.given[row])
        choice: Any = (
            "keep" if label == given else "accept" if label == data.suggested[row] else "other"
        )
        return Decision(row, str(row), str(given), choice, str(label), "", asked, probability)


def answers_of(design: Design, reviewer: Reviewer, count: int, repeats: float) -> list[Decision]:
    """All answers up to ``count``, second ones included."""
    answers: list[Decision] = []
    while len(answers) < count:
        questions = design.questions(answers, count, repeats=repeats)
        # so that some rows are asked again
        batch = questions if repeats == 0 else questions[: max(10, count // 10)]
        answers += [
            reviewer.answer(q.row, q.asked, q.probability) for q in batch[: count - len(answers)]
        ]
    return answers


def figures(data: Evidence, population: Population, answers: list[Decision]) -> Row:
    """Of one repetition with decisions."""
    measured = measure(population, answers)
    assert measured is not None
    rate, truth = measured.rate, float(data.wrong.mean())
    calibrated = recalibrate(data.audit, population, answers)
    return {
        "covered": rate.low - 1e-9 <= truth <= rate.high + 1e-9,
        "width": rate.high - rate.low,
        "square": (rate.value - truth) ** 2,
        "f1": f1(data, calibrated.is_issue) / data.best_f1,
        **applied(data, answers, calibrated, gain(population, answers, calibrated.accepted)),
    }


def f1(data: Evidence, called: NDArray[np.bool_]) -> float:
    return float(2 * (data.wrong & called).sum() / max(data.wrong.sum() + called.sum(), 1))


def applied(data: Evidence, answers: list[Decision], calibrated: Calibrated, expected: Any) -> Row:
    """Wrong labels after `apply --accept-all`: where it refuses, after the decisions alone."""
    refused = expected is None or not expected.is_clear
    slips = find_slips(data.audit, answers, calibrated)
    labels = data.given.copy()
    if not refused:
        labels[calibrated.accepted] = data.suggested[calibrated.accepted]
    for decision in answers:
        if decision.asked == "measure" and decision.row not in slips:
            labels[decision.row] = int(decision.label)
    after = float((labels != data.truth).mean())
    return {"refused": refused, "after": after, "worse": after > float(data.wrong.mean()) + 1e-12}


def simulate(path: Path, count: int, error: float, repetitions: int, version: str) -> Row:
    """The row of one set, number of decisions and kind of reviewer."""
    data = Evidence.load(path)
    name, noise, _ = path.stem.split("--")
    before = float(data.wrong.mean())
    row: Row = {
        "data": name,
        "noise": noise,
        "decisions": count,
        "error": error,
        "rows": len(data.given),
        "before": round(before, 4),
        "best_f1": round(data.best_f1, 4),
        "found": int(data.wrong[:count].sum()),
        "cleanlab": int(data.wrong[data.cleanlab.argsort()[:count]].sum()),
    }
    if count == 0:  # nothing is measured: the audit's own cut, and apply refuses
        return row | {
            "f1": round(f1(data, data.is_issue) / data.best_f1, 4),
            "after": row["before"],
            "commit": version,
        }
    drawn = Design.draw(data.audit)
    one = np.zeros_like(drawn.strata)
    runs, random_runs = [], []
    repeats = REPEATS if error else 0.0
    for seed in range(repetitions):
        design = replace(drawn, seed=seed)
        simple = Design(seed, one, np.array([before]))
        answers = answers_of(design, Reviewer(data, error, seed), count, repeats)
        runs.append(figures(data, Population.of(data.audit, design), answers))
        answers = answers_of(simple, Reviewer(data, error, seed), count, repeats)
        measured = measure(Population.of(data.audit, simple), answers)
        assert measured is not None
        random_runs.append(
            (measured.rate.high - measured.rate.low, (measured.rate.value - before) ** 2)
        )
    mean = {name: fmean(run[name] for run in runs) for name in runs[0]}
    width, square = (fmean(values) for values in zip(*random_runs, strict=True))
    return row | {
        "coverage": round(mean["covered"], 4),
        "interval": round(mean["width"], 4),
        "width": round(mean["width"] / width, 4),
        "rmse": round((mean["square"] / square) ** 0.5, 4),
        "f1": round(mean["f1"], 4),
        "refused": round(mean["refused"], 4),
        "after": round(mean["after"], 4),
        "worst_after": round(max(run["after"] for run in runs), 4),
        "worse": round(mean["worse"], 4),
        "repetitions": repetitions,
        "commit": version,
    }


# --- which rows -----------------------------------------------------------------------------------


def pool(jobs: int) -> ProcessPoolExecutor:
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=one_thread
    )


def seed_of(options: argparse.Namespace) -> int:
    return DEV_SEED if options.dev else SEED


def sets_of(options: argparse.Namespace) -> list[str]:
    if options.sets:
        return list(options.sets)
    if options.real:
        return [file.name.removesuffix(".csv.gz") for file in sorted(real.FOLDER.glob("*.csv.gz"))]
    return list(DEV if options.dev else REPORT)


def noises_of(name: str, options: argparse.Namespace) -> tuple[str, ...]:
    return ("real",) if options.real else load(name).human or PLANTED


def make_audits(options: argparse.Namespace) -> None:
    options.evidence.mkdir(parents=True, exist_ok=True)
    seed = seed_of(options)
    work = [
        (name, noise, seed, options.evidence)
        for name in sets_of(options)
        for noise in noises_of(name, options)
    ]
    with pool(options.jobs) as processes:
        waiting = {processes.submit(make_evidence, *item): item for item in work}
        for number, done in enumerate(as_completed(waiting), 1):
            error = done.exception()
            print(
                f"[{number}/{len(work)}] {waiting[done][:3]}"
                f" {'' if error is None else repr(error)}",
                flush=True,
            )


def files_of(options: argparse.Namespace) -> Iterator[Path]:
    for name in sets_of(options):
        yield from sorted(options.source.glob(f"{name}--*--{seed_of(options)}.npz"))


def make_rows(options: argparse.Namespace) -> list[Row]:
    work = [
        (path, count, error, options.repetitions, commit())
        for path in files_of(options)
        for error in ERRORS
        for count in options.counts
        if count or not error
    ]
    rows = []
    with pool(options.jobs) as processes:
        for number, row in enumerate(processes.map(simulate, *zip(*work, strict=True)), 1):
            rows.append(row)
            print(f"[{number}/{len(work)}] {row}", flush=True)
            write_rows(options.out, rows)
    return rows


def table(rows: list[Row]) -> str:
    """A line for each set and kind of reviewer, and the bars."""
    head = (
        "set, mistakes | wrong | reviewers err | decisions | coverage | width | F1 of best | found,"
        " cleanlab | after"
    )
    lines = [f"| {head} | worse |", "| --- " * 10 + "|"]
    for row in rows:
        counted = "coverage" in row
        cells = [
            f"{row['data']} {row['noise']}",
            f"{row['before']:.1%}",
            f"{row['error']:.0%}",
            str(row["decisions"]),
            f"{row['coverage']:.3f}" if counted else "-",
            f"{row['width']:.2f}" if counted else "-",
            f"{row['f1']:.3f}",
            f"{row['found']}, {row['cleanlab']}",
            f"{row['after']:.1%}",
            f"{row['worse']:.3f}" if counted else "-",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    late = [row for row in rows if row["decisions"] >= 50]
    hundred = [row for row in rows if row["decisions"] == 100 and not row["error"]]
    low = [
        f"{r['data']} {r['noise']} {r['decisions']} {r['error']}: {r['coverage']}"
        for r in late
        if r["coverage"] < 0.93
    ]
    poor = [f"{r['data']} {r['noise']}: {r['f1']}" for r in hundred if r["f1"] < 0.93]
    worse = [
        f"{r['data']} {r['noise']} {r['decisions']} {r['error']}: {r['worse']}"
        for r in rows
        if r.get("worse")
    ]
    bars = [
        (
            f"coverage from 50 decisions on: least {min(r['coverage'] for r in late)}, mean"
            f" {fmean(r['coverage'] for r in late):.3f}; below 0.93 in {len(low)} of {len(late)}:"
            f" {low}"
        ),
        f"width at 100 decisions: mean {fmean(r['width'] for r in hundred):.3f}",
        (
            f"F1 at 100 decisions: mean {fmean(r['f1'] for r in hundred):.3f}; below 0.93 in"
            f" {len(poor)}: {poor}"
        ),
        f"more wrong labels than before in some repetition: {len(worse)} rows: {worse}",
    ]
    return "\n".join([*lines, "", *(f"* {bar}" for bar in bars)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dev", action="store_true", help="planted mistakes that constants are chosen on"
    )
    parser.add_argument(
        "--real", action="store_true", help="real mistakes that constants are chosen on"
    )
    parser.add_argument("--sets", type=lambda words: words.split(","))
    parser.add_argument(
        "--counts", type=lambda words: tuple(map(int, words.split(","))), default=COUNTS
    )
    parser.add_argument(
        "--evidence",
        type=Path,
        help="audit the sets, and write what is needed of them to this folder",
    )
    parser.add_argument("--from", type=Path, dest="source", help="folder that --evidence wrote")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT, help="the file of rows")
    parser.add_argument(
        "--table", action="store_true", help="only print the table of what is there"
    )
    options = parser.parse_args()
    if options.evidence:
        make_audits(options)
    if options.source:
        make_rows(options)
    if not options.evidence:
        print(table(json.loads(options.out.read_text())["rows"]))


if __name__ == "__main__":
    main()
