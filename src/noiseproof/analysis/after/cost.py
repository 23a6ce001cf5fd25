"""What runs cost, and what their hyperparameters change."""

import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import pandas as pd

from noiseproof.analysis.figures import Layer, Needs, Subjects, all_runs, figure, stack
from noiseproof.analysis.runs import RunFolder, Runs, distinct_names, seeds_of
from noiseproof.core.grammar import format_value, parse_call, parse_sum


def costs(records: Mapping[str, Sequence[pd.DataFrame]]) -> pd.DataFrame:
    """Return seconds of training, with the passes of the record, and the last test accuracy, each a
    mean over records.

    ``low`` and ``high`` are the smallest and the largest accuracy.

    >>> import pandas as pd
    >>> epochs = pd.DataFrame({"seconds": [3.0, 2.0], "test_accuracy": [0.5, 0.7]})
    >>> costs({"ce": [epochs]}).values.tolist()
    [['ce', 2, 5.0, 0.7, 0.7, 0.7, 1]]
    """
    rows = []
    for name, group in records.items():
        last = [float(record["test_accuracy"].iloc[-1]) for record in group]
        seconds = fmean(float(record["seconds"].sum()) for record in group)
        row = {
            "method": name,
            "epochs": max(map(len, group)),
            "seconds": seconds,
            "accuracy": fmean(last),
        }
        rows.append(row | {"low": min(last), "high": max(last), "runs": len(last)})
    return pd.DataFrame(rows)


@figure(
    "cost",
    "Accuracy against training time",
    Layer("points", "seconds", "accuracy", color="method", low="low", high="high"),
    subject=all_runs,
    reading=(
        "The nearer to the upper left corner, the more accuracy for the time; compare only runs on"
        " one machine. Of several seeds the mean, with bars from the smallest to the largest"
        " accuracy."
    ),
    paper="SLN paper, Fig. 8",
    axes=("seconds of training", "test accuracy of the last epoch"),
    log_x=True,
)
def cost_figure(runs: Runs) -> pd.DataFrame | None:
    tested = {name: run for name, run in runs.items() if "test_accuracy" in run.rows}
    records = {name: [run.rows for run in group] for name, group in seeds_of(tested).items()}
    return costs(records) if records else None


def sensitivity(runs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the mean, standard deviation (over seeds, n − 1) and number of runs of each
    combination of the columns ``by``.
    """
    groups = runs.groupby(list(by), sort=True)["test_accuracy"]
    table = groups.agg(mean="mean", std="std", runs="count").reset_index()
    spread = table["std"].fillna(0)
    table["low"] = table["mean"] - spread
    table["high"] = table["mean"] + spread
    return table


def trials(runs: Runs) -> Subjects[pd.DataFrame]:
    """Return the test accuracy of runs that differ only in their seed and in one or two parameters
    of their method, by the names of these parameters; ``method`` are curves.
    """
    groups: dict[Any, list[RunFolder]] = {}
    for run in runs.values():
        if "test_accuracy" in run.rows:
            parts = tuple(_parameters(run.config["method"]))
            groups.setdefault((_short(run), parts, run.alike("method", "name")), []).append(run)
    firsts = [group[0] for group in groups.values()]
    names = distinct_names([_short(run) for run in firsts], firsts)
    compared: dict[str, dict[str, pd.DataFrame]] = {}
    note = ""
    for name, group in zip(names, groups.values(), strict=True):
        table = varied([run.config["method"] for run in group], [run.name for run in group])
        parameters = ", ".join(map(str, table))
        if len(table.columns) in (1, 2):
            accuracy = [run.rows["test_accuracy"].iloc[-1] for run in group]
            compared.setdefault(parameters, {})[name] = table.assign(test_accuracy=accuracy)
        elif len(table.columns):
            note += f" Not shown: {name}, whose runs differ in {parameters}."
    if not compared:
        raise Needs(
            "runs of one method and data, with test rows, that differ in one or two"
            f" parameters.{note}"
        )
    return Subjects({parameters: stack(tables) for parameters, tables in compared.items()}, note)


def _short(run: RunFolder) -> str:
    return re.split("[:@]", run.name)[0]


@figure(
    "sensitivity",
    "Sensitivity to hyperparameters",
    Layer("line", "value", "accuracy", color="method", low="low", high="high"),
    Layer("heat", "first", "second", z="mean", label="test accuracy"),
    subject=trials,
    reading=(
        "Mean test accuracy over seeds: where it changes little around the best value, little"
        " tuning is needed."
    ),
    paper="LN paper, Figs. 5, 8, SLN paper, Fig. 6",
    axes=("first parameter", "test accuracy, or second parameter"),
    panel="parameters",
    share_y=False,
)
def sensitivity_figure(trials: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Draw a band over one hyperparameter (SLN paper, Fig. 6), a heat map over two (LN paper, Figs.
    5, 8).
    """
    tables = []
    for parameters, results in trials.items():
        by = parameters.split(", ")
        table = sensitivity(results, ["method", *by])
        if len(by) == 1:
            table = table.rename(columns={by[0]: "value", "mean": "accuracy"})
            tables.append(table.assign(parameters=parameters))
        else:
            table = table.astype(dict.fromkeys(by, str))  # the values tried, not a scale
            table["parameters"] = table["method"] + ": " + parameters
            tables.append(table.rename(columns={by[0]: "first", by[1]: "second"}))
    columns = ["value", "accuracy", "low", "high", "first", "second", "mean"]
    return pd.concat(tables, ignore_index=True).reindex(
        columns=["parameters", "method", *columns, "std", "runs"]
    )


def varied(methods: Sequence[str], names: Sequence[str]) -> pd.DataFrame:
    """Return the parameters in which methods of the same parts differ, one column each.

    Args:
        methods: as run.json has them.
        names: as they were specified. What differs between runs of one name follows from the data
            of each, and is left out.

    >>> methods = ["ce × sln:sigma=0.1,max_norm=2", "ce × sln:sigma=0.5,max_norm=2"]
    >>> varied(methods, ["sln:sigma=0.1", "sln:sigma=0.5"]).to_dict("list")
    {'sigma': [0.1, 0.5]}
    """
    rows = [_parameters(method) for method in methods]
    named: dict[str, list[Any]] = {}
    for part, key in rows[0]:
        values = [row[part, key] for row in rows]
        written = [format_value(value) for value in values]
        chosen = set(zip(names, written, strict=True))
        if len(set(written)) == 1 or len(chosen) > len(set(names)):
            continue
        if not all(isinstance(value, (int, float)) for value in values):
            values = written
        # two parts may share a parameter
        named[key if named.get(key, values) == values else f"{part} {key}"] = values
    return pd.DataFrame(named)


def _parameters(method: str) -> dict[tuple[str, str], Any]:
    """Return all parameters of a method with their parts, and the factors of losses in a sum."""
    loss, *parts = str(method).split(" × ")
    try:
        terms = parse_sum(loss) + [(1.0, part) for part in parts]
        calls = [(factor, *parse_call(term)) for factor, term in terms]
    except ValueError:  # of parts that are not registered
        return {(method, ""): None}
    return {
        (name, key): value
        for factor, name, given in calls
        for key, value in {"factor": factor, **given}.items()
    }
