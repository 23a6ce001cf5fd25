"""What runs cost, and what their hyperparameters change."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from noiseproof.analysis.figures import Layer, all_runs, figure
from noiseproof.analysis.runs import Runs
from noiseproof.core.grammar import parse_call
from noiseproof.core.registry import Registry
from noiseproof.losses import LOSSES
from noiseproof.train import METHODS


def costs(records: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Seconds of training, with the passes of the record, and the last test accuracy of each run's record.

    >>> import pandas as pd
    >>> costs({"ce": pd.DataFrame({"seconds": [3.0, 2.0], "test_accuracy": [0.5, 0.7]})}).values.tolist()
    [['ce', 2, 5.0, 0.7]]
    """
    rows = []
    for name, record in records.items():
        _check_columns(record, ["seconds", "test_accuracy"])
        accuracy = float(record["test_accuracy"].iloc[-1])
        seconds = float(record["seconds"].sum())
        rows.append({"method": name, "epochs": len(record), "seconds": seconds, "accuracy": accuracy})
    return pd.DataFrame(rows)


@figure(
    "cost",
    "Accuracy against training time",
    Layer("points", "seconds", "accuracy", color="method"),
    subject=all_runs,
    reading="The nearer to the upper left corner, the more accuracy for the time; compare only runs on one machine.",
    paper="SLN paper, Fig. 8",
    axes=("seconds of training", "test accuracy of the last epoch"),
)
def cost_figure(runs: Runs) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    records = {name: run.rows for name, run in runs.items() if "test_accuracy" in run.rows}
    if not records:
        return None
    table = costs(records)
    return table, {"log_x": bool(table["seconds"].max() > 10 * table["seconds"].min())}


def sensitivity(runs: pd.DataFrame, by: Sequence[str], metric: str = "test_accuracy") -> pd.DataFrame:
    """Mean, standard deviation (over seeds, n − 1) and number of runs of each combination of the columns ``by``."""
    _check_columns(runs, [*by, metric])
    groups = runs.groupby(list(by), sort=True)[metric]
    table = groups.agg(mean="mean", std="std", runs="count").reset_index()
    table["low"], table["high"] = table["mean"] - table["std"].fillna(0), table["mean"] + table["std"].fillna(0)
    return table


class Trials(NamedTuple):
    """A table of results, one row per run, and the columns of the hyperparameters that vary."""

    results: pd.DataFrame
    by: Sequence[str]
    metric: str = "test_accuracy"


def trials(runs: Runs) -> Trials | None:
    """Runs of one method that differ only in one or two of its parameters, and in their seed; None for others."""
    tested = {name: run for name, run in runs.items() if "test_accuracy" in run.rows}
    parameters = varied([run.name for run in tested.values()]) if tested else None
    alike = len({run.alike("method", "name") for run in tested.values()}) == 1
    if not alike or parameters is None or len(parameters.columns) > 2:
        return None
    accuracy = [run.rows["test_accuracy"].iloc[-1] for run in tested.values()]
    return Trials(parameters.assign(test_accuracy=accuracy), parameters.columns.tolist())


@figure(
    "sensitivity-",
    "Sensitivity to hyperparameters",
    subject=trials,
    reading="",
    paper="",
)
def sensitivity_figure(trials: Trials | None) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    """A band over one hyperparameter (SLN paper, Fig. 6), a heat map over two (LN paper, Figs. 5, 8)."""
    if trials is None:
        return None
    by, words = list(trials.by), trials.metric.replace("_", " ")
    if len(by) not in (1, 2):
        raise ValueError(f"Expected one or two hyperparameters, got {by}.")
    table = sensitivity(trials.results, by, trials.metric)
    if len(by) == 1:
        layer, y_label, paper = Layer("line", by[0], "mean", low="low", high="high"), words, "SLN paper, Fig. 6"
    else:
        table = table.astype(dict.fromkeys(by, str))  # the values tried, not a scale
        layer, y_label, paper = Layer("heat", by[0], by[1], z="mean", label=words), by[1], "LN paper, Figs. 5, 8"
    return table, {
        "name": "sensitivity-" + "-".join(by),
        "title": f"Sensitivity to {' and '.join(by)}",
        "reading": f"Mean {words} over seeds: where it changes little around the best value, little tuning is needed.",
        "paper": paper,
        "layers": (layer,),
        "x_label": by[0],
        "y_label": y_label,
    }


def varied(specs: Sequence[str]) -> pd.DataFrame | None:
    """The parameters in which specs of one method differ, one column each; None if they differ in more than that.

    A parameter that a spec leaves out has its default, since runs of benchmarks are named without defaults.

    >>> varied(["ln:tau=2,lam=0.5", "ln:lam=0.5"]).to_dict("list")
    {'tau': [2.0, 0.5]}
    """
    calls = []
    for spec in specs:
        if "&" in spec or "+" in spec:  # more than one call
            return None
        calls.append(parse_call(spec))
    given = list(dict.fromkeys(key for _, params in calls for key in params))
    table = pd.DataFrame([{**_defaults(name, given), **params} for name, params in calls])
    if len({name for name, _ in calls}) != 1 or table.isna().any(axis=None):
        return None
    table = table[[name for name in table if table[name].astype(str).nunique() > 1]]
    return None if table.empty else table


def _defaults(name: str, keys: Collection[str]) -> dict[str, Any]:
    """The plain defaults that the method or loss ``name`` has for ``keys``."""
    registry: Registry[Any] | None = METHODS if name in METHODS else LOSSES if name in LOSSES else None
    known = registry.parameters(name) if registry else {}
    return {key: known[key] for key in keys if isinstance(known.get(key), (int, float))}


def _check_columns(table: pd.DataFrame, needed: Sequence[str]) -> None:
    if absent := [name for name in needed if name not in table.columns]:
        raise ValueError(f"Expected the columns {', '.join(needed)}, {', '.join(absent)} not among {list(table)}.")
