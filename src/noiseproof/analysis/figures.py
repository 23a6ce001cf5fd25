"""Every figure that runs can make, from one table of the functions that make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from noiseproof.analysis.dynamics import dynamics_figures
from noiseproof.analysis.features import (
    boundary_figure,
    decision_boundary,
    feature_figure,
    feature_map,
    is_in_the_plane,
)
from noiseproof.analysis.figure import Figure, Missing
from noiseproof.analysis.initialization import initial_logits, loss_figures
from noiseproof.analysis.landscape import Landscape, landscape_figures
from noiseproof.analysis.predictions import prediction_figures
from noiseproof.analysis.runs import NotARun, RunFolder, open_runs
from noiseproof.core.progress import Progress
from noiseproof.losses.gaussian import LN

Runs = Mapping[str, RunFolder]
Figures = Sequence[Figure | Missing]
ROWS = 500  # of a map of features: t-SNE takes seconds for them, and dots stay apart
LANDSCAPE = "landscape.csv"  # in a run's folder


class Maker(NamedTuple):
    names: tuple[str, ...]  # of the figures; one that ends in - begins them
    make: Callable[[Runs], Figures]


def start_figures(runs: Runs) -> Figures:
    """What the runs' losses do to an untrained model, that of the first run where its data is within reach."""
    run, found = next(iter(runs.values())), {}
    for other in runs.values():
        with suppress(NotARun):  # one of a method that has to be given
            found[str(other.method.loss)] = other.method.loss
    losses = [
        loss for loss in found.values() if isinstance(loss, LN) or (loss.needs == {"logits"} and loss.independent_rows)
    ]
    if not losses:
        needs = "a run whose loss is a function of logits alone, or `ln`"
        return [
            Missing(
                "loss-weights",
                "What weight each margin gets",
                "curriculum paper, Figs. 2, 5-8",
                needs,
                "Before training",
            )
        ]
    try:
        logits, labels = initial_logits(run.task, run.method, run.settings, seed=run.seed)
    except (ValueError, OSError):  # then simulated ones
        return loss_figures(losses, run.num_classes)
    return loss_figures(losses, run.num_classes, logits=logits, labels=labels)


def feature_figures(runs: Runs) -> Figures:
    """Maps of features of every run whose data and weights are within reach."""
    maps, why = {}, ""
    for name, run in runs.items():
        try:
            maps[name] = feature_map(run, rows=ROWS)
        except (ValueError, OSError) as error:
            why += f"{name}: {error} "
    if maps:
        return [feature_figure(maps)]
    return [Missing("features", "Penultimate features, t-SNE", "SLN paper, Fig. 7", why.strip(), "After training")]


def plane_figures(runs: Runs) -> Figures:
    """Decision boundaries of the runs on points in the plane."""
    tables = {}
    for name, run in runs.items():
        try:
            if is_in_the_plane(run):
                tables[name] = decision_boundary(run)
        except (ValueError, OSError):
            continue
    return [boundary_figure(tables)]


def kept_landscape_figures(runs: Runs) -> Figures:
    """Landscapes that ``noiseproof analyze landscape`` has left in the runs' folders."""
    found = {name: kept for name, run in runs.items() if (kept := kept_landscape(run)) is not None}
    needs = "noiseproof analyze landscape RUN"
    if found:
        try:
            return landscape_figures(found)
        except ValueError as error:  # not made alike
            needs = str(error).removeprefix("Expected ")
    about = ("SLN paper, Fig. 2", needs, "After training")
    return [
        Missing("landscape-contour", "Loss around the trained model", *about),
        Missing("landscape-surface", "Loss around the trained model as a surface", *about),
    ]


def keep_landscape(run: RunFolder, found: Landscape) -> Path:
    """Write a landscape of ``run_landscape`` into the run's folder, where pages find it, with what made it."""
    path = run.folder / LANDSCAPE
    found.table().to_csv(path, index=False, lineterminator="\n")
    return path


def kept_landscape(run: RunFolder) -> Landscape | None:
    """The landscape in a run's folder."""
    import pandas as pd

    path = run.folder / LANDSCAPE
    if not path.is_file():
        return None
    try:
        cells = pd.read_csv(path, dtype=str)  # str: read back exactly
        ((seed, rows, criterion),) = cells[["seed", "rows", "criterion"]].drop_duplicates().to_numpy()
        table = cells[["alpha", "beta", "loss"]].astype(float).sort_values(["alpha", "beta"])
        points = torch.tensor(sorted(table["alpha"].unique()), dtype=torch.float64)
        losses = torch.tensor(table["loss"].to_numpy(copy=True)).reshape(len(points), len(points))
        made_by: dict[str, int | str] = {"seed": int(seed), "rows": int(rows), "criterion": str(criterion)}
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        remedy = f"Make it again: `noiseproof analyze landscape {run.folder}`."
        raise NotARun(f"Expected a landscape and what made it in {path}, got: {error!r}. {remedy}") from error
    return Landscape(points, losses, made_by)


MAKERS = (
    Maker(("loss-weights", "average-error", "logit-bias", "ln-attenuation", "simplex"), start_figures),
    Maker(
        (
            "accuracy-curves", "loss-curves", "false-labels", "margins", "sample-weights", "attention", "sgd-noise",
            "label-correction", "kept-labels", "schedules", "residuals",
        ),
        dynamics_figures,
    ),
    Maker(
        (
            "dissection", "label-probability", "confusion", "reliability", "calibration", "annotators", "cost",
            "sensitivity-",
        ),
        prediction_figures,
    ),
    Maker(("features",), feature_figures),
    Maker(("boundary",), plane_figures),
    Maker(("landscape-contour", "landscape-surface"), kept_landscape_figures),
)  # fmt: skip


def collect(
    runs: Runs | Sequence[str | Path],
    *,
    only: Sequence[str] = (),
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> list[Figure | Missing]:
    """All figures of a set of runs, or ``only`` those of these names; what lacks its data says what records it.

    Args:
        runs: folders of runs, or what ``open_runs`` made of them.
        progress: called with the next group of figures, how many groups are done, and how many there are.
    """
    opened = runs if isinstance(runs, Mapping) else open_runs(runs, data_dir=data_dir)
    if not opened:
        raise ValueError("Expected the folder of a run at least, got none.")
    known = [name for maker in MAKERS for name in maker.names]
    if strange := [name for name in only if not _is_named(name, known)]:
        names = ", ".join(name + "…" * name.endswith("-") for name in known)
        raise ValueError(f"Expected figures of {names}, got {', '.join(strange)}.")
    makers = [maker for maker in MAKERS if not only or any(_is_named(name, maker.names) for name in only)]
    found: list[Figure | Missing] = []
    for number, maker in enumerate(makers):
        if progress is not None:
            progress(maker.names[0], number, len(makers))
        found += [figure for figure in maker.make(opened) if not only or figure.name in only]
    if progress is not None:
        progress("", len(makers), len(makers))
    made = {figure.name for figure in found}
    return found + [
        Missing(name, name, "", "other runs: these have nothing for it") for name in only if name not in made
    ]


def _is_named(name: str, names: Sequence[str]) -> bool:
    return name in names or any(known.endswith("-") and name.startswith(known) for known in names)


def runs_table(runs: Runs) -> list[dict[str, Any]]:
    """What stands at the top of a page about its runs."""
    rows = []
    for name, run in runs.items():
        row: dict[str, Any] = {"run": name, "dataset": run.dataset, "noise": run.noise}
        try:
            row |= {"wrong labels": "unknown" if run.rate is None else f"{run.rate:.1%}"}
        except ValueError:  # an earlier version's folder, without its labels
            row |= {"wrong labels": "unknown"}
        record = run.rows
        row |= {"model": str(run.config.get("model", "")), "epochs": int(record["epoch"].max()), "seed": run.seed}
        last = record.iloc[-1]
        shown = {"validation_accuracy": "noisy validation", "test_accuracy": "test accuracy"}
        row |= {words: f"{last[column]:.4f}" for column, words in shown.items() if column in record}
        rows.append(row)
    return rows


def page_title(runs: Runs) -> str:
    """What a page about these runs is called."""
    where = " and ".join(dict.fromkeys(run.dataset for run in runs.values()))
    return f"{next(iter(runs))} on {where}" if len(runs) == 1 else f"{len(runs)} runs on {where}"
