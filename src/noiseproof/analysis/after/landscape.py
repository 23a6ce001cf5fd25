"""The loss around a trained model: filter-normalised landscapes (Li et al. 2018; SLN paper, Fig.
2), their sharpness.

A point (α, β) of a landscape is the model with the weights θ + α·d₁ + β·d₂ in random directions.
Each filter of them has the norm of the model's filter, so that models whose weights differ in scale
can be compared.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call

from noiseproof.analysis.figures import Figure, Layer, Needs, Subjects, figure, stack
from noiseproof.analysis.runs import NotARun, RunFolder, Runs
from noiseproof.core.checks import check_count, check_number
from noiseproof.core.messages import Progress
from noiseproof.core.output import Output
from noiseproof.core.tensors import wide
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.strategies.sweeps import evaluating

Direction = dict[str, Tensor]  # by parameter
Criterion = Callable[[Any, Tensor], Tensor]  # a model's output and labels to losses (B,)

BATCH = {"cpu": 256}  # rows that fit the cache of a CPU; a GPU needs more to be busy
RADIUS = 0.25  # of the sharpness of a minimum
# of losses in figures, as in the contours of Li et al.'s code: far out they grow without bound
CUT = 10.0
FILE = "landscape.csv"  # in the folder of a run


def filter_normalised_direction(model: nn.Module, generator: Generator) -> Direction:
    """Return a random direction in which ‖d_f‖ = ‖θ_f‖ for each filter f: d_f ← d_f/‖d_f‖ · ‖θ_f‖
    (Li et al. 2018, section 4).

    A filter is one output of a convolution or of a linear layer; biases and batch normalisation do
    not move.
    """
    direction = {}
    for name, weight in model.named_parameters():
        drawn = torch.randn(
            weight.shape, generator=generator, device="cpu", dtype=torch.float32
        ).to(weight)
        if weight.dim() < 2:
            direction[name] = torch.zeros_like(weight)
        else:
            lengths = weight.detach().flatten(1).norm(dim=1, keepdim=True)  # (filters, 1)
            scaled = F.normalize(drawn.flatten(1), dim=1) * lengths
            direction[name] = scaled.view_as(weight).contiguous(memory_format=_layout(weight))
    return direction


def _layout(weight: Tensor) -> torch.memory_format:
    """Channels last for convolutions on a GPU: its tensor cores need it."""
    return torch.channels_last if weight.is_cuda and weight.dim() == 4 else torch.contiguous_format


@dataclass(frozen=True, eq=False)
class Landscape:
    """Mean losses around a model, which is the point in the middle."""

    points: Tensor  # (P,): coordinates along each direction, from −span to span
    losses: Tensor  # (P, P) float64: at θ + points[i]·d₁ + points[j]·d₂
    seed: int | None = None  # of the rows and directions, for a run
    rows: int | None = None  # number of rows of the run

    @property
    def centre(self) -> float:
        """The loss of the model itself."""
        middle = len(self.points) // 2
        return float(self.losses[middle, middle])

    def sharpness(self, radius: float = RADIUS) -> float:
        """Return 100 · (max_{‖(α, β)‖ ≤ radius} L − L(0)) / (1 + L(0)) over the points of the grid
        (Keskar et al. 2017, in a circle).
        """
        check_number("radius", radius, "(0, inf)")
        distance = torch.hypot(self.points[:, None], self.points[None, :])
        inside = self.losses[distance <= radius * (1 + 1e-9)]  # 3 · 0.1 is more than 0.3
        if len(inside) == 1:
            raise ValueError(
                f"Expected `radius` to reach a point next to the model, got {radius:g}. Use more"
                " points."
            )
        return 100 * (float(inside.max()) - self.centre) / (1 + self.centre)

    @property
    def curvature(self) -> float:
        """Mean second derivative along both directions at the model: central differences over one
        step of the grid.
        """
        middle = len(self.points) // 2
        step = float(self.points[middle + 1])
        row = self.losses[middle]
        column = self.losses[:, middle]
        around = row[middle - 1] + row[middle + 1] + column[middle - 1] + column[middle + 1]
        return float(around - 4 * self.centre) / (2 * step**2)

    def table(self) -> pd.DataFrame:
        """Return one row per point: ``alpha``, ``beta``, ``loss`` and, the same in all rows,
        ``seed`` and ``rows``.
        """
        alpha, beta = torch.meshgrid(self.points, self.points, indexing="ij")
        columns = {"alpha": alpha, "beta": beta, "loss": self.losses}
        table = pd.DataFrame(
            {name: values.flatten().cpu().numpy() for name, values in columns.items()}
        )
        return table.assign(seed=self.seed, rows=self.rows)


def cross_entropy(out: Output | Tensor, target: Tensor) -> Tensor:
    """Return −log p_y of each row."""
    logits = out if isinstance(out, Tensor) else out.logits
    return F.cross_entropy(logits.to(wide(logits.dtype)), target, reduction="none")


@torch.no_grad()
def landscape(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    generator: Generator,
    criterion: Criterion = cross_entropy,
    points: int = 21,
    progress: Progress | None = None,
) -> Landscape:
    """Return the mean loss of ``model`` over ``x``, ``y`` on a grid of ``points`` × ``points``
    weights around its own.

    Computed on the model's device, in evaluation mode and under the caller's autocast; the model is
    not changed.

    Args:
        x: inputs as the model takes them, normalised, (N, …).
        generator: on the CPU; the same seed gives the same directions on every device.
        criterion: from a model's output and labels to the losses of the rows.
        points: along each direction, from −1 to 1; an odd number: the model itself is the middle.
        progress: called after each point.
    """
    if check_count("points", points, 3) % 2 == 0:
        raise ValueError(
            f"Expected an odd number of `points`, so that the model is one of them, got {points}."
        )
    if len(x) != len(y) or not len(x):
        raise ValueError(
            f"Expected as many labels as inputs, at least one, got {len(x)} inputs and {len(y)}"
            " labels."
        )
    weights = {
        name: p.detach().contiguous(memory_format=_layout(p))
        for name, p in model.named_parameters()
    }
    if not weights:
        raise ValueError(
            "Expected a model with weights, got one without. A Gaussian process has no landscape:"
            " leave its run out."
        )
    device = next(iter(weights.values())).device
    size = BATCH.get(device.type, 2048)
    x = x.to(device)
    y = y.to(device)
    if device.type == "cuda" and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    batches = list(zip(torch.split(x, size), torch.split(y, size), strict=True))
    first, second = (filter_normalised_direction(model, generator) for _ in range(2))
    half = points // 2
    # zero is exactly zero
    steps = torch.arange(-half, half + 1, dtype=torch.float64) * (1 / half)
    losses = torch.zeros(points, points, dtype=torch.float64, device=device)
    with evaluating([model]):
        for i, alpha in enumerate(steps.tolist()):
            row = {name: torch.add(w, first[name], alpha=alpha) for name, w in weights.items()}
            for j, beta in enumerate(steps.tolist()):
                moved = {name: torch.add(w, second[name], alpha=beta) for name, w in row.items()}
                for inputs, labels in batches:
                    losses[i, j] += (
                        criterion(functional_call(model, moved, (inputs,)), labels).double().sum()
                    )
                if progress is not None:
                    progress("landscape", i * points + j + 1, points**2)
    return Landscape(steps, (losses / len(y)).cpu())


def check_spacing(points: int) -> None:
    """Refuse a grid whose points are too far apart for the sharpness."""
    spacing = 1 / (points // 2)
    if spacing > RADIUS:
        raise ValueError(
            f"Expected points at most {RADIUS:g} apart, to compute the sharpness, got {spacing:g}."
            f" Use --points {2 * math.ceil(1 / RADIUS) + 1}."
        )


def run_landscape(
    run: RunFolder,
    *,
    rows: int = 1000,
    seed: int = 0,
    accelerator: str = "cpu",
    **options: Any,
) -> Landscape:
    """Return the landscape of cross entropy of a run's (first) model over given training labels.

    ``rows`` training rows, not augmented, and the directions are drawn with ``seed``; ``options``
    go to :func:`landscape`.
    """
    result = run.result(accelerator)
    state = result.run
    loss = state.loss
    count = check_count("rows", rows, 1)
    chosen = shuffled(state.num_rows, derive_generator(seed, 0))[:count].sort().values
    x = state.fetch(run.inputs("train"), chosen, state.normalise)
    y = run.labels["given"][chosen]

    def criterion(out: Output, target: Tensor) -> Tensor:
        out = Output._make(v if v is None else v.to(state.dtype) for v in out)
        return cross_entropy(loss.scores(out), target)

    generator = derive_generator(seed, 1)
    # a loss that samples its scores uses the same samples at every point
    with evaluating([loss]):
        around = landscape(
            result.models[0], x, y, generator=generator, criterion=criterion, **options
        )
    return replace(around, seed=seed, rows=len(chosen))


# Landscapes in the folders of runs


def keep_landscape(run: RunFolder, around: Landscape) -> Path:
    """Write a landscape into the folder of its run, where :func:`collect` finds it."""
    path = run.folder / FILE
    around.table().to_csv(path, index=False, lineterminator="\n")
    return path


def kept_landscape(run: RunFolder) -> Landscape | None:
    """Return the landscape in the folder of a run."""
    path = run.folder / FILE
    if not path.is_file():
        return None
    try:
        cells = pd.read_csv(path, dtype=str)  # str: numbers are read exactly
        ((seed, rows),) = cells[["seed", "rows"]].drop_duplicates().astype(int).to_numpy().tolist()
        table = cells[["alpha", "beta", "loss"]].astype(float).sort_values(["alpha", "beta"])
        points = torch.tensor(table["alpha"].unique())
        losses = torch.tensor(table["loss"].to_numpy(copy=True)).reshape(len(points), len(points))
        return Landscape(points, losses, seed, rows)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        remedy = f"Make it again: `noiseproof analyze landscape {run.folder}`."
        raise NotARun(
            f"Expected a landscape with its seed and rows in {path}, got: {error!r}. {remedy}"
        ) from error


def comparable(landscapes: Mapping[str, Landscape]) -> Subjects[pd.DataFrame]:
    """Return the tables of landscapes of one seed, refused otherwise, with their sharpness as a
    note.
    """
    seeds = {around.seed for around in landscapes.values()}
    if len(seeds) > 1:
        each = "; ".join(f"{name} of seed {one.seed}" for name, one in landscapes.items())
        raise ValueError(
            f"Expected landscapes of one seed, to compare them, got {each}. "
            "Make them together: `noiseproof analyze landscape RUN RUN`."
        )
    radius = max([RADIUS, *(float(around.points.diff().max()) for around in landscapes.values())])
    sharpness = ", ".join(
        f"{name} {around.sharpness(radius):.3g}" for name, around in landscapes.items()
    )
    note = f" Sharpness within {radius:g}: {sharpness}."
    if seeds != {None}:
        note += f" Rows and directions by seed {seeds.pop()}."
    tables = {name: around.table() for name, around in landscapes.items()}
    for name, table in tables.items():
        table["shown"] = table["loss"].clip(upper=max(CUT, landscapes[name].centre))
    return Subjects(tables, note)


def kept_landscapes(runs: Runs) -> Subjects[pd.DataFrame]:
    """Return the landscapes that ``noiseproof analyze landscape`` wrote, by run."""
    kept = {
        name: around for name, run in runs.items() if (around := kept_landscape(run)) is not None
    }
    if not kept:
        raise Needs("noiseproof analyze landscape RUN")
    try:
        return comparable(kept)
    except ValueError as error:
        raise Needs(str(error).removeprefix("Expected ")) from error


def landscape_figures(landscapes: Mapping[str, Landscape]) -> list[Figure]:
    """Return contours and surfaces of landscapes, by name (SLN paper, Fig. 2)."""
    made = [maker(comparable(landscapes)) for maker in (contour_figure, surface_figure)]
    return [drawn for drawn in made if isinstance(drawn, Figure)]


@figure(
    "landscape-contour",
    "Loss around the trained model",
    Layer("contour", "alpha", "beta", z="shown", label="loss"),
    subject=kept_landscapes,
    reading=(
        "Lines close together are a sharp minimum, wide plains a flat one; one unit changes each"
        f" filter by its own norm, losses above {CUT:g} are cut off."
    ),
    paper="SLN paper, Fig. 2",
    axes=("along the first direction", "along the second direction"),
    panel="method",
    equal=True,
)
def contour_figure(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    return stack(tables)


@figure(
    "landscape-surface",
    "Loss around the trained model as a surface",
    Layer("surface", "alpha", "beta", z="shown", label="loss"),
    subject=kept_landscapes,
    reading="The steeper the bowl, the sharper the minimum; all surfaces have one scale.",
    paper="SLN paper, Fig. 2",
    axes=("along the first direction", "along the second direction"),
    panel="method",
)
def surface_figure(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    return stack(tables)
