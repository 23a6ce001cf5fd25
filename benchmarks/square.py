"""Every strategy beside every other, and with every loss: what trains, how well, and what is
refused with which reason.

    python benchmarks/square.py [--seeds 0,1,2] [--processes 12] [--out FILE] [--seconds 450]
    python benchmarks/square.py --only promix,sop    # cells of these, which replace those in the
    table or join them python benchmarks/square.py --only changed,gce/mixup  # cells whose line is
    another than in the table, and one cell

A cell trains a pair for 40 epochs on digits and on a table of overlapping Gaussian classes, both
with 30 % symmetric noise, and compares the accuracy on clean test rows with the better of its two
parts alone: each strategy with its own loss, each loss by itself. Runs are kept in FILE, one line
each, so that a run that is stopped continues; the table is written to
benchmarks/results/square.json once all are there, and its verdicts to docs/strategies.md
(``--table-only`` does only that). tests/strategies/test_square.py builds every cell again.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import torch
from timing import provenance, write_rows
from trials import Row, add_options, outcome, run_all

from noiseproof.data import Dataset, get_dataset
from noiseproof.data.arrays import from_arrays
from noiseproof.train import Settings, Task, prepare

SETTINGS = Settings(epochs=40, model="mlp:hidden=[64]")
NOISE = "symmetric:rate=0.3"
SETS = {"digits": 10, "gaussians": 5}  # and their classes
TOLERANCE = 0.03  # of the accuracy
RESULTS = Path(__file__).parent / "results" / "square.json"
PAGE = Path(__file__).parents[1] / "docs" / "strategies.md"
REASONS = {  # why a cell is refused: part of the message, and words for it
    "t": ("each strategy once", "a strategy twice"),
    "s": ("makes steps of its own", "its own steps would skip what the other does"),
    "c": ("Expected the loss `ce` for", "its own loss takes the place of any but `ce`"),
    "b": (
        "the loss `backward` for sigua-bc",
        "the sign of a sum, or of another loss, says nothing of the correction",
    ),
    "g": (
        "sigua-bc that changes targets",
        "`sigua-bc` judges a row by the corrected loss of its given label alone",
    ),
    "n": (
        "Expected no selection",
        "new layers would learn from only the rows that are kept",
    ),
    "k": ("Expected a loss whose targets", "the loss does not take such targets"),
    "m": ("inputs of single rows", "mixed inputs belong to no single row"),
    "o": ("Expected class-balanced before", "`class-balanced` comes first: it replaces the rows"),
    "p": (
        "no noise on targets from the `start` of prune",
        "noise keeps right labels below `prune`'s `k`, too",
    ),
    "1": ("one model to predict", "both predict with a model of their own"),
    "l": ("a loss that learns noise", "`sparse-noise` needs `sop`"),
    "e": (
        "probabilities of the given labels to estimate T",
        "T cannot be read from predictions that are too certain",
    ),
}

STRATEGIES = {
    "sln": "sln:sigma=0.3",
    "noise-f": "noise-f:sigma=0.1",
    "noise-theta": "noise-theta:sigma=0.1",
    "momentum": "momentum:alpha=0.95",
    "class-balanced": "class-balanced:total=1000",
    "early-stopping": "early-stopping:patience=10",
    "small-loss": "small-loss:forget=0.3",
    "co-teaching": "co-teaching:forget=0.3",
    "sigua": "sigua:forget=0.3,scale=0.001",
    "sigua-bc": "sigua-bc",
    "prune": "prune:start=13",
    "label-correction": "label-correction:start=33",
    "estimated-targets": "estimated-targets:start=10",
    "target-memory": "target-memory",
    "exchanged-memory": "exchanged-memory",
    "mixup": "mixup",
    "sparse-noise": "sparse-noise",
    "progressive-stopping": "progressive-stopping:start=10,block_epochs=2,head_epochs=2,lr=0.01",
    "progressive-mixmatch": (
        "progressive-mixmatch:start=10,block_epochs=2,head_epochs=2,lr=0.01,lambda_u=0"
    ),
    "consistency": "consistency",
    "estimate-transition": "estimate-transition:warmup=8",
    "dividemix": "dividemix:warmup=10,lambda_u=0",
    "promix": "promix:warmup=4,ramp=3,guess_from=23",
    "gp": "gp:length_scale=8,signal=2,noise=2",
}
OWN_LOSSES = {  # of strategies that need one; all others take cross entropy
    "target-memory": "(elr)",
    "exchanged-memory": "(elr:clip=1e-4)",
    "sparse-noise": "(sop)",
    "estimate-transition": "(forward:T={K})",
    "sigua-bc": "(backward:T={T},clip=1e-7)",
}
LOSSES = {
    "gce": "gce",
    "mae": "mae",
    "sce": "sce",
    "nce + mae": "nce + mae",
    "mse": "mse",
    "ls": "ls",
    "bitempered": "bitempered:t1=0.8,t2=1.2",
    "remargin": "remargin:loss=gce,shift=0.5",
    "peer": "peer:loss=(phuber:tau=1e5)",
    "cr": "cr:loss=(phuber:tau=1e5)",
    "forward": "(forward:T={T})",
    "backward": "(backward:T={T},clip=1e-7)",
    "elr": "(elr)",
    "sop": "(sop)",
    "ln": "(ln:lam=1)",
    "ln diagonal": "(ln:lam=1,covariance=diagonal)",
    "ln + ce": "ln:lam=1 + ce",
    "het": "(het:samples=20)",
    "het full": "(het:samples=20,covariance=full)",
    "nal": "(nal:lam=2)",
}
# strategies that a loss cannot do without
WITH_LOSS = {"elr": "target-memory", "sop": "sparse-noise"}


class Job(NamedTuple):
    line: str
    set: str
    seed: int


class Cell(NamedTuple):
    """A row's part, a column's part, and the lines of both together and of each alone."""

    kind: str
    row: str
    column: str
    line: str
    alone: tuple[str, str]


def line(loss: str, *names: str) -> str:
    """The line of a loss and strategies in the method language."""
    return " & ".join([loss, *(STRATEGIES[name] for name in names)])


def own(name: str) -> str:
    return OWN_LOSSES.get(name, "ce")


def mean(*losses: str) -> str:
    """The mean of losses: their sum would take steps as many times as long, with which each alone
    is less accurate.
    """
    terms = [term for loss in losses for term in loss.split(" + ")]
    return (
        losses[0]
        if len(losses) == 1
        else " + ".join(f"{1 / len(losses):g}*{term}" for term in terms)
    )


def cells() -> Iterator[Cell]:
    """All cells: ordered pairs of strategies, and losses with strategies."""
    for first in STRATEGIES:
        for second in STRATEGIES:
            losses = sorted(
                {own(name) for name in (first, second)} - {"ce"},
                key=lambda loss: ("backward" not in loss, loss),
            )
            both = (
                losses[:1]
                if losses and "backward" in losses[0] and "estimate-transition" in (first, second)
                else losses
            )
            alone = line(own(first), first), line(own(second), second)
            yield Cell(
                "strategies",
                first,
                second,
                line(mean(*both) if both else "ce", first, second),
                alone,
            )
    for loss, spec in LOSSES.items():
        needed = [WITH_LOSS[loss]] if loss in WITH_LOSS else []
        for name in STRATEGIES:
            if name in needed or (name == "exchanged-memory" and loss == "elr"):
                continue  # it is what the strategy has alone
            is_corrected = all(
                loss.startswith(("(forward", "(backward")) for loss in (spec, own(name))
            )
            both = line(
                spec if own(name) == "ce" or is_corrected else mean(spec, own(name)), *needed, name
            )
            yield Cell("losses", loss, name, both, (line(spec, *needed), line(own(name), name)))


@cache
def dataset(name: str) -> Dataset:
    if name == "digits":
        return get_dataset("digits")
    generator = torch.Generator().manual_seed(0)
    K, D, rows = SETS[name], 12, 3000
    centres = torch.randn(K, D, generator=generator) * 1.1
    y = torch.randint(K, (rows,), generator=generator)
    x = centres[y] + torch.randn(rows, D, generator=generator)
    return from_arrays(x[:1200], y[:1200], test=(x[1200:], y[1200:]), name=name)


@cache
def task(name: str, seed: int) -> Task:
    return prepare(dataset(name), NOISE, seed=seed, validation=0.1)


def transition(K: int) -> str:
    """T of the noise, as a spec writes it."""
    return json.dumps(
        [[0.7 if i == j else 0.3 / (K - 1) for j in range(K)] for i in range(K)]
    ).replace(" ", "")


def run(job: Job) -> Row:
    K = SETS[job.set]
    method = job.line.replace("{K}", str(K)).replace("{T}", transition(K))
    return job._asdict() | outcome(lambda: task(job.set, job.seed), method, SETTINGS, job.seed)


def gap(own: Sequence[Row], part: Sequence[Row]) -> tuple[float, float]:
    """How much more accurate a cell is than a part of it alone, by the seeds of both, and the
    standard error.
    """
    by_seed = {run["seed"]: run.get("accuracy", 0.0) for run in part}
    gaps = [run["accuracy"] - by_seed[run["seed"]] for run in own if run["seed"] in by_seed]
    return statistics.mean(gaps), (
        statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
    )


def compare(cell: Cell, runs: dict[tuple[str, str], list[Row]]) -> Row:
    """A row of the table: of each set, the cell's mean accuracy and how far it is from its better
    part.

    A cell *trains* to within 0.03 of its better part on average; it is *limited* by its weaker part
    if it is as near to that one, and *fails* if it is worse than both.
    """
    row: Row = {"kind": cell.kind, "row": cell.row, "column": cell.column, "line": cell.line}
    verdicts = set()
    for name in SETS:
        own_runs = runs[cell.line, name]
        if reason := next((run["refused"] for run in own_runs if "refused" in run), None):
            return row | {"verdict": "refused", "reason": reason}
        if any("diverged" in run for run in own_runs):
            return row | {"verdict": "diverges"}
        parts = sorted(
            (runs[part, name] for part in cell.alone),
            key=lambda part: statistics.mean(r.get("accuracy", 0.0) for r in part),
        )
        (to_weaker, _), (to_better, error) = (gap(own_runs, part) for part in parts)
        row |= {name: round(statistics.mean(r["accuracy"] for r in own_runs), 3)}
        row |= {
            f"{name}, difference": round(to_better, 3),
            f"{name}, error": round(error, 3),
            "seeds": len(own_runs),
        }
        row |= {f"{name}, to the weaker": round(to_weaker, 3)}
        verdicts.add(
            "trains"
            if to_better >= -TOLERANCE
            else "limited"
            if to_weaker >= -TOLERANCE
            else "fails"
        )
    return row | {
        "verdict": next(word for word in ("fails", "limited", "trains") if word in verdicts)
    }


def joined(rows: Sequence[Row], only: str) -> tuple[list[Row], Row]:
    """The rows of the table with these in place of earlier ones or beside them, and how both were
    made.
    """
    table, here = json.loads(RESULTS.read_text("utf-8")), provenance()
    by_cell = {(row["kind"], row["row"], row["column"]): row for row in (*table["rows"], *rows)}
    order = [key for cell in cells() if (key := cell[:3]) in by_cell]
    note = f"{only}: {here['cpu']}, one thread, Python {here['python']}, torch {here['torch']}"
    return [by_cell[key] for key in order], table["made_by"] | {
        "note": f"{table['made_by'].get('note', 'all')}. {note}"
    }


def reason(message: str) -> str:
    """The letter of the reason for which a cell is refused."""
    return next(letter for letter, (part, _) in REASONS.items() if part in message)


def pairs(rows: Sequence[Row], verdict: str) -> str:
    """The pairs of a verdict: each first part with all of its second ones."""
    partners: dict[str, list[str]] = {}
    for row in rows:
        if row["verdict"] == verdict:
            partners.setdefault(row["row"], []).append(f"`{row['column']}`")
    return "; ".join(f"`{name}` with {', '.join(others)}" for name, others in partners.items())


def tables(rows: Sequence[Row]) -> str:
    """What docs/strategies.md shows of the rows: counts, the pairs that lose, and the reasons for
    which pairs are refused.
    """
    count = Counter((row["verdict"], row["kind"]) for row in rows)
    words = {
        "trains": "train: on both sets within 0.03 of the better part on average",
        "limited": "are limited: within 0.03 of the weaker part, but not of the better one",
        "fails": "are worse than both parts",
        "diverges": "diverge",
        "refused": "are refused before the first step, with a reason",
    }
    head = [f"| of {len(rows)} cells | strategies | losses with strategies |", "| --- " * 3 + "|"]
    for verdict, title in words.items():
        head.append(f"| {title} | {count[verdict, 'strategies']} | {count[verdict, 'losses']} |")
    refused = Counter(reason(row["reason"]) for row in rows if row["verdict"] == "refused")
    why = ["| refused | because |", "| --- " * 2 + "|"]
    why += [
        f"| {refused[letter]} | {words} |"
        for letter, (_, words) in REASONS.items()
        if refused[letter]
    ]
    listed = [f"Limited: {pairs(rows, 'limited')}.", f"Worse: {pairs(rows, 'fails')}."]
    wrapped = [fill(line, 100, break_on_hyphens=False) for line in listed]
    return "\n".join([*head, "", "\n\n".join(wrapped), "", *why])


def written(page: str, rows: Sequence[Row]) -> str:
    """``page`` with the tables of ``rows`` between its marks."""
    before, rest = page.split("<!-- square -->\n")
    return f"{before}<!-- square -->\n\n{tables(rows)}\n\n{rest[rest.index('<!-- end -->') :]}"


def write_page() -> None:
    rows = json.loads(RESULTS.read_text("utf-8"))["rows"]
    PAGE.write_text(written(PAGE.read_text("utf-8"), rows), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser, "runs/square.jsonl", "0,1,2")
    parser.add_argument(
        "--only", default="", help="names, separated by commas, one of which a cell must have"
    )
    parser.add_argument(
        "--table-only", action="store_true", help="write the page from the rows that are there"
    )
    options = parser.parse_args()
    if options.table_only:
        return write_page()
    names = set(filter(None, options.only.split(",")))
    known = {row["line"] for row in json.loads(RESULTS.read_text("utf-8"))["rows"]}
    chosen = [
        cell
        for cell in cells()
        if not names
        or names & {cell.row, cell.column, f"{cell.row}/{cell.column}"}
        or ("changed" in names and cell.line not in known)
    ]
    lines = list(dict.fromkeys(text for cell in chosen for text in (cell.line, *cell.alone)))
    jobs = [
        Job(text, name, int(seed))
        for seed in options.seeds.split(",")
        for text in lines
        for name in SETS
    ]
    done = run_all(run, jobs, options.out, options.processes, options.seconds)
    runs: dict[tuple[str, str], list[Row]] = {}
    for row in done:
        runs.setdefault((row["line"], row["set"]), []).append(row)
    rows = [compare(cell, runs) for cell in chosen]
    for row in rows:
        if row["verdict"] in ("limited", "fails", "diverges"):
            print(json.dumps(row, ensure_ascii=False))
    made_by = None
    if names:
        rows, made_by = joined(rows, options.only)
    write_rows(RESULTS, rows, made_by)
    write_page()
    for (kind, verdict), count in sorted(
        Counter((row["kind"], row["verdict"]) for row in rows).items()
    ):
        print(f"{kind}, {verdict}: {count}")


if __name__ == "__main__":
    main()
