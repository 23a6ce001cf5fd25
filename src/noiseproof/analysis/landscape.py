"""The loss around a trained model: filter-normalised landscapes (Li et al. 2018; SLN paper, Fig. 2), their sharpness.

A point (α, β) of a landscape is the model with the weights θ + α·d₁ + β·d₂. The directions are random, each filter of
them as long as the model's own filter, so that models whose weights differ in scale can be compared: at distance 1 the
change of a filter is as large as the filter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call

from noiseproof.analysis.figure import Figure, Layer
from noiseproof.analysis.predictions import stacked
from noiseproof.core.checks import check_count, check_number
from noiseproof.core.output import Output
from noiseproof.core.progress import Progress
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.losses.engine import wide
from noiseproof.strategies.sweeps import evaluating

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.analysis.runs import RunFolder

Direction = dict[str, Tensor]  # by parameter
Criterion = Callable[[Any, Tensor], Tensor]  # a model's answer and labels to losses (B,)

BATCH = {"cpu": 256}  # rows that fit a CPU's cache; elsewhere as many as keep a GPU busy
RADIUS = 0.25  # within which it is said how sharp a minimum is
CUT = 10.0  # where figures cut the loss off, as the contours of Li et al.'s code: far out it grows without bound


def filter_normalised_direction(model: nn.Module, generator: Generator) -> Direction:
    """A random direction in which ‖d_f‖ = ‖θ_f‖ for each filter f: d_f ← d_f/‖d_f‖ · ‖θ_f‖ (Li et al. 2018, section 4).

    A filter is one output of a convolution or of a linear layer. Parameters with less than two dimensions, which are
    biases and those of batch normalisation, do not move. ``generator`` is one of the CPU, on every device.
    """
    direction = {}
    for name, weight in model.named_parameters():
        drawn = torch.randn(weight.shape, generator=generator, device="cpu", dtype=torch.float32).to(weight)
        if weight.dim() < 2:
            direction[name] = torch.zeros_like(weight)
        else:
            lengths = weight.detach().flatten(1).norm(dim=1, keepdim=True)  # (filters, 1)
            scaled = F.normalize(drawn.flatten(1), dim=1) * lengths
            direction[name] = scaled.view_as(weight).contiguous(memory_format=_layout(weight))
    return direction


def _layout(weight: Tensor) -> torch.memory_format:
    """Convolutions of a GPU's tensor cores want the channels last."""
    return torch.channels_last if weight.is_cuda and weight.dim() == 4 else torch.contiguous_format


@dataclass(frozen=True, eq=False)
class Landscape:
    """Mean losses around a model; the one in the middle is the model's own."""

    points: Tensor  # (P,): coordinates along each direction, from −span to span
    losses: Tensor  # (P, P) float64: at θ + points[i]·d₁ + points[j]·d₂
    made_by: dict[str, int | str] = field(default_factory=dict)  # of a run: ``seed``, ``rows`` and ``criterion``

    @property
    def centre(self) -> float:
        """The loss of the model itself."""
        middle = len(self.points) // 2
        return float(self.losses[middle, middle])

    def sharpness(self, radius: float = RADIUS) -> float:
        """100 · (max_{‖(α, β)‖ ≤ radius} L − L(0)) / (1 + L(0)), over the points of the grid.

        The relative rise of Keskar et al. (2017), who maximise it over a box around the weights: numbers differ.
        """
        check_number("radius", radius, "(0, inf)", 0)
        distance = torch.hypot(self.points[:, None], self.points[None, :])
        inside = self.losses[distance <= radius * (1 + 1e-9)]  # 3 · 0.1 is more than 0.3
        if len(inside) == 1:
            raise ValueError(f"Expected `radius` to reach a point beside the model, got {radius:g}. Use more points.")
        return 100 * (float(inside.max()) - self.centre) / (1 + self.centre)

    @property
    def curvature(self) -> float:
        """Mean second derivative along both directions at the model: central differences over one step of the grid."""
        middle = len(self.points) // 2
        step = float(self.points[middle + 1])
        row, column = self.losses[middle], self.losses[:, middle]
        around = row[middle - 1] + row[middle + 1] + column[middle - 1] + column[middle + 1]
        return float(around - 4 * self.centre) / (2 * step**2)

    def table(self) -> pd.DataFrame:
        """One row a point: ``alpha``, ``beta``, ``loss``, and what made it, the same in every row."""
        import pandas as pd

        alpha, beta = torch.meshgrid(self.points, self.points, indexing="ij")
        columns = {"alpha": alpha, "beta": beta, "loss": self.losses}
        table = pd.DataFrame({name: values.flatten().cpu().numpy() for name, values in columns.items()})
        return table.assign(**self.made_by)


def cross_entropy(out: Output | Tensor, target: Tensor) -> Tensor:
    """−log p_y of each row."""
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
    span: float = 1.0,
    batch_size: int | None = None,
    precision: torch.dtype | None = None,
    directions: tuple[Direction, Direction] | None = None,
    progress: Progress | None = None,
) -> Landscape:
    """The mean loss of ``model`` over ``x``, ``y`` on a grid of ``points`` × ``points`` weights around its own.

    Everything happens on the model's device, where the rows stay. The model is in evaluation mode and is not changed:
    each point is computed with weights of its own.

    Args:
        x: inputs as the model takes them, normalised, (N, …).
        generator: of the CPU; the same seed gives the same directions on every device.
        criterion: a model's answer and labels to the losses of the rows.
        points: how many along each direction, an odd number: the model itself is the middle.
        span: the directions are followed from −span to span.
        batch_size: rows of a forward pass; by default 256 on a CPU, 2048 elsewhere.
        precision: compute in ``torch.bfloat16``, say, where it is supported.
        directions: use these in place of random ones.
        progress: called after each point.
    """
    if check_count("points", points, 3) % 2 == 0:
        raise ValueError(f"Expected an odd number of `points`, so that the model is one of them, got {points}.")
    check_number("span", span, "(0, inf)", 0)
    if len(x) != len(y) or not len(x):
        raise ValueError(f"Expected as many labels as inputs, at least one, got {len(x)} inputs and {len(y)} labels.")
    weights = {name: p.detach().contiguous(memory_format=_layout(p)) for name, p in model.named_parameters()}
    if not weights:
        raise ValueError(
            "Expected a model with weights, got one without. A Gaussian process has no landscape: leave its run out."
        )
    device = next(iter(weights.values())).device
    size = BATCH.get(device.type, 2048) if batch_size is None else check_count("batch_size", batch_size, 1)
    x, y = x.to(device), y.to(device)
    if device.type == "cuda" and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    batches = list(zip(torch.split(x, size), torch.split(y, size), strict=True))
    first, second = directions or [filter_normalised_direction(model, generator) for _ in range(2)]
    half = points // 2
    steps = torch.arange(-half, half + 1, dtype=torch.float64) * (span / half)  # zero is exactly zero
    losses = torch.zeros(points, points, dtype=torch.float64, device=device)
    autocast = nullcontext() if precision is None else torch.autocast(device.type, precision)
    with evaluating([model]), autocast:
        for i, alpha in enumerate(steps.tolist()):
            row = {name: torch.add(w, first[name], alpha=alpha) for name, w in weights.items()}
            for j, beta in enumerate(steps.tolist()):
                here = {name: torch.add(w, second[name], alpha=beta) for name, w in row.items()}
                for inputs, labels in batches:
                    losses[i, j] += criterion(functional_call(model, here, (inputs,)), labels).double().sum()
                if progress is not None:
                    progress("landscape", i * points + j + 1, points**2)
    return Landscape(steps, (losses / len(y)).cpu())


def run_landscape(
    run: RunFolder,
    *,
    rows: int = 1000,
    loss: Literal["ce", "own"] = "ce",
    seed: int = 0,
    accelerator: str = "cpu",
    points: int = 21,
    span: float = 1.0,
    batch_size: int | None = None,
    precision: torch.dtype | None = None,
    progress: Progress | None = None,
) -> Landscape:
    """The landscape of a run's (first) model over given training labels: cross entropy, or the ``own`` loss of the run.

    ``rows`` training rows, as the model evaluates them, are drawn with ``seed``, and so are the directions.
    """
    if loss not in ("ce", "own"):
        raise ValueError(f"Expected `loss` to be ce or own, got {loss!r}.")
    result = run.result(accelerator)
    state, own = result.run, result.run.loss
    chosen = shuffled(state.num_rows, derive_generator(seed, 0))[: check_count("rows", rows, 1)].sort().values

    def criterion(out: Output, target: Tensor) -> Tensor:
        out = Output._make(v if v is None else v.to(state.dtype) for v in out)
        return own(out, target) if loss == "own" else cross_entropy(own.scores(out), target)

    with evaluating([own]):  # one that draws its scores draws the same ones at every point
        found = landscape(
            result.models[0],
            state.fetch(run.inputs("train"), chosen, state.normalise),
            run.labels["given"][chosen],
            generator=derive_generator(seed, 1),
            criterion=criterion,
            points=points,
            span=span,
            batch_size=batch_size,
            precision=precision,
            progress=progress,
        )
    return replace(found, made_by={"seed": seed, "rows": len(chosen), "criterion": loss})


def landscape_figures(landscapes: Mapping[str, Landscape]) -> tuple[Figure, Figure]:
    """Contours and surfaces of landscapes, by name, on one scale (SLN paper, Fig. 2); other seeds are not compared."""
    if not landscapes:
        raise ValueError("Expected a landscape at least, got none.")
    made = {name: [found.made_by.get(key) for key in ("seed", "criterion")] for name, found in landscapes.items()}
    first = next(iter(made.values()))
    if any(other != first for other in made.values()):
        got = "; ".join(f"{name} of seed {seed} and criterion {criterion}" for name, (seed, criterion) in made.items())
        raise ValueError(
            f"Expected landscapes of one seed and criterion, to compare them, got {got}. "
            "Make them together: `noiseproof analyze landscape RUN RUN`."
        )
    tables = {}
    radius = max(RADIUS, *(float(found.points.diff().max()) for found in landscapes.values()))
    for name, found in landscapes.items():
        table = found.table()
        tables[name] = table.assign(shown=table["loss"].clip(upper=max(CUT, found.centre)))
    data = stacked(tables)
    each = ", ".join(f"{name} {found.sharpness(radius):.3g}" for name, found in landscapes.items())
    numbers = f"Sharpness within {radius:g}: {each}."
    if first[0] is not None:
        numbers += f" Rows and directions by seed {first[0]}."
    labels = ("along the first direction", "along the second direction")
    shared = {"panel": "method", "equal": True, "stage": "After training"}
    contour = Figure(
        "landscape-contour",
        "Loss around the trained model",
        "Lines close together are a sharp minimum, wide plains a flat one; one unit changes each filter by its own "
        f"length, losses above {CUT:g} are cut off. {numbers}",
        "SLN paper, Fig. 2",
        data,
        (Layer("contour", "alpha", "beta", z="shown", label="loss"),),
        *labels,
        **shared,  # type: ignore[arg-type]
    )
    surface = Figure(
        "landscape-surface",
        "Loss around the trained model as a surface",
        f"The steeper the bowl, the sharper the minimum; all surfaces have one scale. {numbers}",
        "SLN paper, Fig. 2",
        data,
        (Layer("surface", "alpha", "beta", z="shown", label="loss"),),
        *labels,
        panel="method",
        stage="After training",
    )
    return contour, surface
