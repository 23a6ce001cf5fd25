"""Figures 1, 2 and 9 to 13 of the NAL paper, from two runs on CIFAR-10 with 40 % symmetric noise.

    python benchmarks/nal_figures.py                   draw docs/images/nal-*.svg
    python benchmarks/nal_figures.py --runs NAL CE     read the folders of two runs, then draw

The folders are those of ``noiseproof bench run benchmarks/sweeps/nal-figures.toml``. What the
figures show is kept in ``benchmarks/results/nal_cifar10.json``: curves of the record, histograms
of τ and counts of labels, so that they can be drawn without the runs. It prints the numbers of
docs/nal_figures.md, which shows the figures.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score
from timing import write_rows

from noiseproof.analysis import Figure, Layer, open_runs, to_matplotlib
from noiseproof.analysis.after.predictions import confusion, confusion_figure, predict
from noiseproof.analysis.during.curves import accuracy_figure
from noiseproof.analysis.during.samples import distributions, trust_figure
from noiseproof.analysis.runs import ALL, RunFolder

ROOT = Path(__file__).parents[1]
DATA = ROOT / "benchmarks/results/nal_cifar10.json"
IMAGES = ROOT / "docs/images"
CYCLE = 10  # epochs between two restarts of the learning rate
STAGES = (1, 50, 120, 250)  # epochs of figures 11 to 13; targets are estimated from epoch 60 on
EDGES = np.linspace(0, 1, 51)
MADE_BY = {
    "command": "noiseproof bench run benchmarks/sweeps/nal-figures.toml",
    "changed": "only cifar10, epochs = 290",
    "note": "both runs at once, stopped after 277 epochs",
    "gpu": "NVIDIA H200",
    "python": "3.12",
    "torch": "2.11.0+cu130",
    "commit": "0f9d9a0 or a later one of 2026-11-19",
}
Row = dict[str, Any]


def collect(nal: RunFolder, ce: RunFolder) -> Iterator[Row]:
    """Yield what the figures show."""
    yield from accuracies({"NAL": nal, "CE": ce})
    yield from label_counts(nal)
    yield from attention(nal)
    for epoch in nal.sample_epochs:
        yield {"part": "separation", "epoch": epoch} | separation(nal, epoch)


def accuracies(runs: Mapping[str, RunFolder]) -> Iterator[Row]:
    table = accuracy_figure(runs).data
    for (method, rows, labels), curve in table.groupby(["method", "rows", "labels"], sort=False):
        values = [round(value, 5) for value in curve["value"]]  # from epoch 1 on
        yield {
            "part": "accuracy",
            "method": method,
            "rows": rows,
            "labels": labels,
            "values": values,
        }


def label_counts(run: RunFolder) -> Iterator[Row]:
    """The given labels of the training rows, and those that NAL corrected them to, by class."""
    saved = run.folder / "predictions.npz"  # of the last checkpoint, which was not kept
    corrected = np.load(saved)["corrected"] if saved.exists() else predict(run, "train").corrected
    for name, labels in (("given", run.given), ("corrected", corrected)):
        counts = confusion(labels, run.clean, run.classes)["samples"].tolist()
        yield {"part": "labels", "labels": name, "classes": run.classes, "counts": counts}
    is_true, is_right = corrected == run.clean, run.given == run.clean
    kept, mended = (round(float(is_true[rows].mean()), 4) for rows in (is_right, ~is_right))
    yield {"part": "corrected", "right_labels_kept": kept, "wrong_labels_mended": mended}


def attention(run: RunFolder) -> Iterator[Row]:
    table = distributions(run, "trust", run.sample_epochs, edges=EDGES)
    for (epoch, labels), bins in table.groupby(["epoch", "labels"], sort=False):
        counts = bins["samples"].tolist()
        yield {"part": "attention", "epoch": epoch, "labels": labels, "counts": counts}


def separation(run: RunFolder, epoch: int) -> Row:
    """Return means of τ and φ of right and wrong labels, and the AUC of each for right ones."""
    samples, is_right = run.samples(epoch), run.given == run.clean
    tau = samples["trust"].astype(np.float64)
    p = 1 / (1 + np.exp(-samples["margin"].astype(np.float64)))
    row = {}
    for name, values in (("tau", tau), ("phi", p / (p - 1 + 1 / tau))):
        row[f"{name}_right"] = round(float(values[is_right].mean()), 4)
        row[f"{name}_wrong"] = round(float(values[~is_right].mean()), 4)
        row[f"{name}_auc"] = round(float(roc_auc_score(is_right, values)), 4)
    return row


def figures(rows: list[Row]) -> dict[str, Figure]:
    """Return the figures by the names of their files."""
    curves = Layer("line", "epoch", "value", color="method", dash="labels")
    accuracy = accuracy_figure.fields | {"layers": (curves,), "panel": "panel"}
    return {
        "nal-labels": Figure(**confusion_figure.fields, data=table(rows, "labels", labels_of)),
        "nal-accuracy": Figure(**accuracy, data=table(rows, "accuracy", curve_of)),
        "nal-attention": Figure(**trust_figure.fields, data=table(rows, "attention", density_of)),
    }


def table(rows: list[Row], part: str, table_of: Any) -> pd.DataFrame:
    return pd.concat([table_of(row) for row in rows if row["part"] == part], ignore_index=True)


def labels_of(row: Row) -> pd.DataFrame:
    classes, counts = row["classes"], np.array(row["counts"])
    pairs = np.repeat(np.arange(len(counts)), counts)  # a number for each row
    clean, label = np.divmod(pairs, len(classes))
    title = f"{row['labels']} ({np.mean(clean == label):.1%} right)"
    return confusion(label, clean, classes).assign(labels=title)


def curve_of(row: Row) -> pd.DataFrame:
    """Return every epoch of a curve over all rows, only the ends of cycles of the others."""
    curve = pd.DataFrame({"epoch": range(1, len(row["values"]) + 1), "value": row["values"]})
    panel = "training rows, given labels" if row["rows"] == "training rows" else row["rows"]
    if row["labels"] != ALL:
        panel = "training rows, ends of cycles"
        curve = curve[curve["epoch"] % CYCLE == 0]
    return curve.assign(method=row["method"], labels=row["labels"], panel=panel)


def density_of(row: Row) -> pd.DataFrame:
    counts = np.array(row["counts"])
    density = counts / (counts.sum() * np.diff(EDGES))
    bins = pd.DataFrame({"trust": (EDGES[:-1] + EDGES[1:]) / 2, "density": density})
    bins = bins.assign(labels=row["labels"], panel=f"epoch {row['epoch']}")
    return bins if row["epoch"] in STAGES else bins[:0]


def draw(rows: list[Row]) -> None:
    for name, figure in figures(rows).items():
        with matplotlib.rc_context({"svg.hashsalt": name}):  # the same data, the same file
            canvas = to_matplotlib(figure)
            canvas.savefig(IMAGES / f"{name}.svg", facecolor="white", metadata={"Date": None})


def report(rows: list[Row]) -> None:
    """Print the numbers of docs/nal_figures.md."""
    for row in rows:
        if row["part"] == "accuracy":
            ends = row["values"][CYCLE - 1 :: CYCLE][-4:]
            print(row["method"], row["rows"], row["labels"], "at the last cycle ends", ends)
        if row["part"] in ("corrected", "separation"):
            print(*(f"{name} {value}" for name, value in row.items() if name != "part"))


def main() -> None:
    look = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=look)
    parser.add_argument("--runs", nargs=2, metavar=("NAL", "CE"), help="folders of two runs")
    args = parser.parse_args()
    if args.runs:
        write_rows(DATA, list(collect(*open_runs(args.runs).values())), dict(MADE_BY))
    rows = json.loads(DATA.read_text("utf-8"))["rows"]
    draw(rows)
    report(rows)


if __name__ == "__main__":
    main()
