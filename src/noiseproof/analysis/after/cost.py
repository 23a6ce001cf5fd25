"""What runs cost, and what their hyperparameters change."""

import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from noiseproof.analysis.figures import Layer, Needs, all_runs, figure, stack
from noiseproof.analysis.runs import RunFolder, Runs, seeds_of, told_apart
from noiseproof.core.grammar import format_value, parse_call, parse_line, parse_sum


def costs(records: Mapping[str, Sequence[pd.DataFrame]]) -> pd.DataFrame:
    """Seconds of training, with the passes of the record, and the last test accuracy, each a mean
    over records.

    ``low`` and ``high`` are the smallest and the largest accuracy.

    >>> import pandas as pd
    >>> epochs = pd.DataFrame({"seconds": [3.0, 2.0], "test_accuracy": [0.5, 0.7]})
    >>> costs({"ce": [epochs]}).values.tolist()
    [['ce', 2, 5.0, 0.7, 0.7, 0.7, 1]]
    """
    rows = []
    for name, group in records.items():
        for record in group:
            _check_columns(record, ["seconds", "test_accuracy"])
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
)
def cost_figure(runs: Runs) -> tuple[pd.DataFrame, dict[str, Any]] | None:
    tested = {name: run for name, run in runs.items() if "test_accuracy" in run.rows}
    records = {name: [run.rows for run in group] for name, group in seeds_of(tested).items()}
    if not records:
        return None
    table = costs(records)
    return table, {"log_x": bool(table["seconds"].max() > 10 * table["seconds"].min())}


def sensitivity(
    runs: pd.DataFrame, by: Sequence[str], metric: str = "test_accuracy"
) -> pd.DataFrame:
    """Mean, standard deviation (over seeds, n − 1) and number of runs of each combination of the
    columns ``by``.
    """
    _check_columns(runs, [*by, metric])
    groups = runs.groupby(list(by), sort=True)[metric]
    table = groups.agg(mean="mean", std="std", runs="count").reset_index()
    spread = table["std"].fillna(0)
    table["low"] = table["mean"] - spread
    table["high"] = table["mean"] + spread
    return table


class Trials(NamedTuple):
    """A table of results, one row per run, and the columns of the hyperparameters that vary;
    ``method`` are curves.
    """

    results: pd.DataFrame
    by: Sequence[str]
    metric: str = "test_accuracy"
    note: str = ""  # a sentence for the reader


def trials(runs: Runs) -> list[Trials]:
    """Runs that differ only in their seed and in one or two parameters of their method, by these
    parameters.
    """
    groups: dict[Any, list[RunFolder]] = {}
    for run in (run for run in runs.values() if "test_accuracy" in run.rows):
        parameters = tuple(_parameters(run.config["method"]))
        groups.setdefault((_short(run), parameters, run.alike("method", "name")), []).append(run)
    found: dict[tuple[str, ...], list[tuple[RunFolder, pd.DataFrame]]] = {}
    note = ""
    for group in groups.values():
        table = varied([run.config["method"] for run in group], [run.name for run in group])
        if len(by := tuple(map(str, table))) in (1, 2):
            accuracy = [run.rows["test_accuracy"].iloc[-1] for run in group]
            found.setdefault(by, []).append((group[0], table.assign(test_accuracy=accuracy)))
        elif by:
            note += f" Not shown: {_short(group[0])}, whose runs differ in {', '.join(by)}."
    if not found:
        raise Needs(
            "runs of one method and data, with test rows, that differ in one or two"
            f" parameters.{note}"
        )
    return [Trials(_curves(tables), by, note=note) for by, tables in found.items()]


def _short(run: RunFolder) -> str:
    return re.split("[:@]", run.name)[0]


def _curves(tables: Sequence[tuple[RunFolder, pd.DataFrame]]) -> pd.DataFrame:
    firsts = [run for run, _ in tables]
    names = told_apart([_short(run) for run in firsts], firsts)
    return stack({name: table for name, (_, table) in zip(names, tables, strict=True)})


@figure(  # type: ignore[arg-type]  # of each in the list
    "sensitivity-",
    "Sensitivity to hyperparameters",
    subject=trials,
    reading="",
    paper="LN paper, Figs. 5, 8, SLN paper, Fig. 6",
)
def sensitivity_figure(trials: Trials) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A band over one hyperparameter (SLN paper, Fig. 6), a heat map over two (LN paper, Figs. 5,
    8).
    """
    by = list(trials.by)
    words = trials.metric.replace("_", " ")
    if len(by) not in (1, 2):
        raise ValueError(f"Expected one or two hyperparameters, got {by}.")
    several = None
    if "method" in trials.results and trials.results["method"].nunique() > 1:
        several = "method"
    columns = [several, *by] if several else by
    table = sensitivity(trials.results, columns, trials.metric)
    panel = None
    if len(by) == 1:
        layer = Layer("line", by[0], "mean", color=several, low="low", high="high")
        y_label = words
        paper = "SLN paper, Fig. 6"
    else:
        table = table.astype(dict.fromkeys(by, str))  # the values tried, not a scale
        layer = Layer("heat", by[0], by[1], z="mean", label=words)
        y_label = by[1]
        panel = several
        paper = "LN paper, Figs. 5, 8"
    return table, {
        "name": "sensitivity-" + "-".join(by),
        "title": f"Sensitivity to {' and '.join(by)}",
        "reading": (
            f"Mean {words} over seeds: where it changes little around the best value, little tuning"
            " is needed."
        ),
        "paper": paper,
        "layers": (layer,),
        "panel": panel,
        "x_label": by[0],
        "y_label": y_label,
    }


def varied(methods: Sequence[str], names: Sequence[str] = ()) -> pd.DataFrame:
    """The parameters in which methods of the same parts, as run.json has them, differ, one column
    each.

    Those that differ between runs of one of the ``names`` follow from the data of each, and are
    left out. A column is called as the parameter in ``names`` that it follows from, where one has
    its values.

    >>> varied(["ce × sln:sigma=0.1,max_norm=2", "ce × sln:sigma=0.5,max_norm=2"]).to_dict("list")
    {'sigma': [0.1, 0.5]}
    """
    rows = [_parameters(method) for method in methods]
    columns = {(part, key): [row[part, key] for row in rows] for part, key in rows[0]}
    given = [str(name) for name in names] or [str(method) for method in methods]
    differ = {at: values for at, values in columns.items() if _differs(values, given)}
    named: dict[str, list[Any]] = {}
    specs = [_given(name) for name in given]
    keys = {key for _, key in differ}
    others = dict.fromkeys(key for spec in specs for key in spec if key not in keys)
    for (part, key), values in differ.items():
        key = _source(values, specs, others) or key
        if not all(isinstance(value, (int, float)) for value in values):
            values = [format_value(value) for value in values]
        # two parts may share a parameter
        named[key if named.get(key, values) == values else f"{part} {key}"] = values
    return pd.DataFrame(named)


def _differs(values: Sequence[Any], names: Sequence[str]) -> bool:
    """Whether ``values`` differ, but not between runs of one name."""
    written = [str(value) for value in values]
    return len(set(written)) > 1 and len(set(zip(names, written, strict=True))) == len(set(names))


def _source(
    values: Sequence[Any], specs: Sequence[Mapping[str, Any]], keys: Iterable[str]
) -> str | None:
    """The first of ``keys`` whose values in ``specs`` are ``values``, wherever a spec has it."""
    rows = list(zip(specs, values, strict=True))
    return next(
        (key for key in keys if all(spec.get(key, value) == value for spec, value in rows)), None
    )


def _parameters(method: str) -> dict[tuple[str, str], Any]:
    """All parameters of a method with their parts, and the factors of losses in a sum."""
    loss, *parts = str(method).split(" × ")
    try:
        calls = [
            (factor, *parse_call(term))
            for factor, term in [*parse_sum(loss), *((1.0, part) for part in parts)]
        ]
    except ValueError:  # of parts that are not registered
        return {(method, ""): None}
    return {
        (name, key): value
        for factor, name, given in calls
        for key, value in {"factor": factor, **given}.items()
    }


def _given(spec: str) -> dict[str, Any]:
    try:
        return {
            key: value
            for part in parse_line(spec)
            for _, given in part
            for key, value in given.items()
        }
    except ValueError:  # of parts that are not registered
        return {}


def _check_columns(table: pd.DataFrame, needed: Sequence[str]) -> None:
    if absent := [name for name in needed if name not in table.columns]:
        raise ValueError(
            f"Expected the columns {', '.join(needed)}, {', '.join(absent)} not among"
            f" {list(table)}."
        )
