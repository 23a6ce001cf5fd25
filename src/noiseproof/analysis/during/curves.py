"""Curves by epoch, averaged over runs that differ only in their seed."""

from collections.abc import Mapping, Sequence

import pandas as pd

from noiseproof.analysis.figures import Layer, Needs, all_runs, figure
from noiseproof.analysis.runs import ALL, RIGHT, WRONG, Runs, seeds_of


def curves(runs: Runs, columns: Sequence[str]) -> pd.DataFrame:
    """Return columns of the record by epoch: mean, smallest and largest over seeds, and the number
    of runs.

    Returns columns ``method``, ``epoch``, ``quantity``, ``value``, ``low``, ``high`` and ``runs``,
    without epochs in which a quantity was not measured.
    """
    tables = []
    for name, group in seeds_of(runs).items():
        rows = pd.concat([run.rows for run in group])
        present = [column for column in columns if column in rows]
        long = rows.melt("epoch", present, "quantity").dropna(subset="value")
        merged = long.groupby(["quantity", "epoch"], sort=False)["value"].agg(
            ["mean", "min", "max", "count"]
        )
        tables.append(merged.reset_index().assign(method=name))
    order = {column: place for place, column in enumerate(columns)}
    table = pd.concat(tables).rename(
        columns={"mean": "value", "min": "low", "max": "high", "count": "runs"}
    )
    table = table.sort_values(
        "quantity", key=lambda column: column.map(order), kind="stable", ignore_index=True
    )
    return table[["method", "epoch", "quantity", "value", "low", "high", "runs"]]


def curves_by(
    runs: Runs, columns: Mapping[str, tuple[str, str]], names: tuple[str, str]
) -> pd.DataFrame:
    """Return :func:`curves` with two columns, called ``names``, that describe each quantity."""
    table = curves(runs, list(columns))
    for place, name in enumerate(names):
        table[name] = [columns[quantity][place] for quantity in table["quantity"]]
    return table


def curve(color: str = "method", dash: str | None = None) -> Layer:
    """Return the mean of each curve as a line, with a band from smallest to largest value."""
    return Layer("line", "epoch", "value", color=color, low="low", high="high", dash=dash)


@figure(
    "accuracy-curves",
    "Accuracy by epoch",
    curve(dash="labels"),
    subject=all_runs,
    reading=(
        "Whether predictions for training rows come to match their wrong labels, and what that does"
        " to the accuracy on test rows."
    ),
    paper="LN paper, Fig. 4, SLN paper, Fig. 1, bias paper, Fig. 5, NAL paper, Figs. 7-10",
    axes=("epoch", "accuracy"),
    panel="rows",
)
def accuracy_figure(runs: Runs) -> pd.DataFrame:
    columns = {
        "test_accuracy": ("test rows", ALL),
        "validation_accuracy_clean": ("held-out rows, true labels", ALL),
        "train_accuracy": ("training rows", ALL),
        "train_accuracy_clean": ("training rows", RIGHT),
        "false_label_accuracy": ("training rows", WRONG),
    }
    return curves_by(runs, columns, ("rows", "labels"))


@figure(
    "loss-curves",
    "Loss by epoch",
    curve(dash="labels"),
    subject=all_runs,
    reading=(
        "A loss that falls for wrong labels too memorises them; losses of different methods have no"
        " common scale."
    ),
    paper="SLN paper, Fig. 1",
    axes=("epoch", "loss"),
    panel="rows",
    share_y=False,
)
def loss_figure(runs: Runs) -> pd.DataFrame:
    columns = {
        "train_loss": ("training rows", ALL),
        "train_loss_clean": ("training rows", RIGHT),
        "train_loss_flipped": ("training rows", WRONG),
        "test_loss": ("test rows, −log p", ALL),
    }
    return curves_by(runs, columns, ("rows", "labels"))


@figure(
    "false-labels",
    "Rows with a wrong label",
    curve(),
    subject=all_runs,
    reading=(
        "For how many rows with a wrong label the model predicts their true class (the bias paper's"
        " false-label accuracy), and for how many their wrong label."
    ),
    paper="bias paper, Fig. 4",
    axes=("epoch", "accuracy"),
    panel="panel",
)
def false_label_figure(runs: Runs) -> pd.DataFrame:
    columns = {
        "test_accuracy": ("test rows: true class", "test"),
        "train_accuracy_corrected": ("mislabelled rows: true class", "true class"),
        "false_label_accuracy": ("mislabelled rows: their wrong label", "wrong label"),
    }
    table = curves_by(runs, columns, ("panel", "predicted"))
    if not set(table["predicted"]) - {"test"}:
        raise Needs("a dataset with wrong labels whose true classes are known")
    return table
