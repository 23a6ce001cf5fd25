"""One page for each named method, made from the registry, the margin engine and
benchmarks/results/defaults.json.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from noiseproof.analysis import Figure, Layer, to_matplotlib
from noiseproof.analysis.before.losses import margin_density, weights
from noiseproof.core.grammar import format_value
from noiseproof.losses import LOSSES, Loss, describe
from noiseproof.losses.base import terms_of
from noiseproof.strategies import STRATEGIES
from noiseproof.train.methods import METHODS, Method, MethodContext

CLASSES = 10
EXAMPLE = MethodContext(
    CLASSES, epochs=100, steps=10_000, seen=5_000_000, shares=(1 / CLASSES,) * CLASSES
)
# else: by people
NOISES = {"none": "clean", "symmetric:rate=0.2": "20 % wrong", "symmetric:rate=0.4": "40 % wrong"}
WHEN = Path(__file__).with_name("when.toml")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "defaults.json"
SOURCE = (
    "Accuracy on clean test labels at default settings, less the accuracy of `ce` with the same"
    " data, noise and seed: mean over {sets} sets and {seeds} seeds at most, from"
    " `benchmarks/results/defaults.json`, made by `{command}` ({cpu}; Python {python}, torch"
    " {torch}). [The sets, and what is left out](../methods.md#which-method-should-i-use)."
)


def write_pages(folder: Path) -> None:
    """Write a page and, for losses of margins, a figure for each method, and an index of all."""
    folder.mkdir(exist_ok=True)
    # of small tensors; on busy cores threads wait for one another, five times as long
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text("utf-8"))
    against = compared(pd.DataFrame(results["rows"]))
    for name in sorted(METHODS):
        method = METHODS.create(name, EXAMPLE)
        drawn = draw_weights(name, method.loss, folder / f"{file_name(name)}.svg")
        page = "\n".join(
            [
                *head(name, method),
                *when(name),
                *formula(method),
                *(picture(name) if drawn else ()),
                *evidence(against[against["method"] == name], results["made_by"]),
            ]
        )
        write(folder / f"{file_name(name)}.md", page)
    write(folder / "index.md", index(against))


def index(against: pd.DataFrame) -> str:
    """All methods with their mean gain over ``ce`` by kind of labels, and their cost."""
    kinds = [*NOISES.values(), "by people"]
    by_set = against.groupby(["method", "labels", "set"])["gain"].mean()
    gain, cost = (
        by_set.groupby(["method", "labels"]).mean().unstack(),
        against.groupby("method")["cost"].median(),
    )
    lines = [
        f"| method | {' | '.join(kinds)} | time | what it does |",
        "| --- " * (len(kinds) + 3) + "|",
    ]
    for name in sorted(METHODS, key=lambda name: -gain["40 % wrong"].get(name, -2)):
        gains = [f"{gain[kind][name]:+.3f}" if name in gain.index else "" for kind in kinds]
        time = f"{cost[name]:.1f}" if name in cost.index else ""
        lines.append(
            f"| [{name}]({file_name(name)}.md) | {' | '.join(gains)} | {time} |"
            f" {paragraph(METHODS[name])} |"
        )
    names = "\n".join(file_name(name) for name in sorted(METHODS))
    return "\n".join(
        [
            "# Method pages\n",
            (
                "One page for each named method: what it does, when to use it, its formula, what it"
                " learns from, and its evidence. The columns are its mean gain in accuracy over"
                " cross entropy at default settings, on up to 15 sets with clean labels, with 20 %"
                " and 40 % wrong at random and with labels that people gave, and its time over"
                " cross entropy's; the pages say how they were measured. Without a number, a method"
                " was not measured with the others.\n"
            ),
            *lines,
            f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n",
        ]
    )


def write(path: Path, text: str) -> None:
    """Write a file whose text has changed: Sphinx reads the others from its cache."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")


def file_name(name: str) -> str:
    """A name for a file and an address: ``mae**`` becomes ``mae-star-star``."""
    bare = f"{name[:-1]}-plus" if name.endswith("+") else name
    return bare.replace("*", "-star").replace("+", "-and-")


def head(name: str, method: Method) -> list[str]:
    given = METHODS.parameters(name)
    rows = [
        f"| `{key}` | `{format_value(value)}` |"
        for key, value in given.items()
        if value is not inspect.Parameter.empty
    ]
    models = f" It trains {method.models} models side by side." if method.models > 1 else ""
    return [
        f"# {name}\n",
        f"{paragraph(METHODS[name])}{models}\n",
        f"```console\n$ noiseproof train --method '{name}' --noise symmetric:rate=0.4\n```\n",
        *(["| parameter | default |", "| --- | --- |", *rows, ""] if rows else []),
        f"With 10 classes and 100 epochs it is `{method}`.\n",
    ]


def when(name: str) -> list[str]:
    """When to use it. What it says of results is from the evidence below it."""
    text = tomllib.loads(WHEN.read_text("utf-8"))[name]
    linked = re.sub(
        "`([^` ]+)`",
        lambda at: f"[{at[0]}]({file_name(at[1])}.md)" if at[1] in METHODS else at[0],
        text,
    )
    return ["## When to use it\n", f"{linked}\n"]


def formula(method: Method) -> list[str]:
    """The formula and source of each loss in it, and the first paragraph on each of its
    strategies.
    """
    lines = ["## Formula\n"]
    for name in dict.fromkeys(term.name for _, term in terms_of(method.loss)):
        if name in LOSSES:
            about = describe(name)
            lines.append(f"- [`{name}`](../losses.md): `{about['formula']}` ({about['source']})")
    for strategy in method.strategies:
        lines.append(
            f"- [`{strategy.name}`](../strategies.md): {paragraph(STRATEGIES[strategy.name])}"
        )
    return [*lines, ""]


def paragraph(documented: object) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(documented) or "").split("\n\n")[0].replace("``", "`").split())


def draw_weights(name: str, loss: Loss, path: Path) -> bool:
    """Draw w(Δ) of a loss of logits and of cross entropy; return False where there is no such
    weight.
    """
    if str(loss) == "ce" or loss.needs != {"logits"}:
        return False
    if path.exists():  # coupled losses take 2 seconds: `make clean` removes them
        return True
    data = pd.concat(
        [weights([loss], CLASSES).assign(loss=name), cross_entropy()], ignore_index=True
    )
    layers = (
        Layer("area", "margin", "density", color="margins"),
        Layer("line", "margin", "weight", color="loss"),
    )
    axes = "margin Δ of the label", "weight over its maximum; density"
    to_matplotlib(Figure("weights", "", "", "", data, layers, *axes)).savefig(
        path, metadata={"Date": None}
    )
    return True


@cache
def cross_entropy() -> pd.DataFrame:
    """w(Δ) of cross entropy, and the distribution of Δ before training."""
    start = margin_density(CLASSES).assign(margins=f"Δ at the start, {CLASSES} classes")
    return pd.concat([weights(["ce"], CLASSES), start], ignore_index=True)


def picture(name: str) -> list[str]:
    return [
        "## What it learns from\n",
        f"![The weight of a label over its margin]({file_name(name)}.svg)\n",
        (
            "The weight w(Δ) = −dl/dΔ says how much a label with the margin Δ moves the network;"
            " the area is the distribution of Δ before training. Wrong labels have small margins"
            " ([what that means](../concepts/margins.md)).\n"
        ),
    ]


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the runs, each with the gain over ``ce`` on the same set, noise and seed."""
    rows = rows[rows["accuracy"].notna()].assign(
        labels=rows["noise"].map(NOISES).fillna("by people")
    )
    plain = rows[rows["method"] == "ce"][["set", "noise", "seed", "accuracy", "seconds"]]
    both = rows.merge(plain, on=["set", "noise", "seed"], suffixes=("", "_ce"))
    return both.assign(
        gain=both["accuracy"] - both["accuracy_ce"], cost=both["seconds"] / both["seconds_ce"]
    )


def evidence(rows: pd.DataFrame, made_by: dict[str, Any]) -> list[str]:
    lines = ["## Evidence\n"]
    if rows.empty:
        return [*lines, "It has not been measured with the other methods yet.\n"]
    if (rows["method"] == "ce").all():
        return [*lines, "The other methods are compared with it: see their pages.\n"]
    lines += [
        "| labels | sets | mean gain | worst set | best set |",
        "| --- | --- | --- | --- | --- |",
    ]
    for labels in [*NOISES.values(), "by people"]:
        by_set = rows[rows["labels"] == labels].groupby("set")["gain"].mean()
        if len(by_set):
            ends = (f"{by_set[at]:+.3f} ({at})" for at in (by_set.idxmin(), by_set.idxmax()))
            lines.append(
                f"| {labels} | {len(by_set)} | {by_set.mean():+.3f} | {' | '.join(ends)} |"
            )
    seeds = rows.groupby(["set", "noise"])["seed"].nunique().max()
    source = SOURCE.format(sets=rows["set"].nunique(), seeds=seeds, **made_by)
    return [*lines, "", f"{source} It took {rows['cost'].median():.1f} times as long (median).\n"]
