"""Losses over the logits of an untrained network: weights of margins, average errors, logit biases.

Logits are independent N(0, 1), or the logits of a model (``untrained.initial_logits``).
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from noiseproof.analysis.before.robustness import check_of_logits
from noiseproof.analysis.before.untrained import initial_logits
from noiseproof.analysis.figures import Figure, Layer, Needs, figure, figure_makers
from noiseproof.analysis.runs import NotARun, Runs
from noiseproof.core.checks import check_count
from noiseproof.core.margin import margin
from noiseproof.losses import Loss
from noiseproof.losses.base import terms_of
from noiseproof.losses.calibrate import calibrate
from noiseproof.losses.gaussian import LN
from noiseproof.losses.initial import (
    DRAWS,
    average_error,
    combined,
    expected_margin,
    log_sum,
    logit_bias,
    normal,
)
from noiseproof.losses.sums import as_loss

# for each point of a curve, where an error of 4e-4 is thinner than its line
CURVE_DRAWS = DRAWS // 8
LIKE = 100  # classes with which losses learn, to whose average error maps compare


@dataclass(frozen=True)
class Start:
    """Losses and the logits (N, K) and labels (N,) that they start with; simulated N(0, 1) logits
    by default.
    """

    losses: Sequence[Loss | str]
    num_classes: int
    logits: Tensor | None = None
    labels: Tensor | None = None

    @property
    def of_logits(self) -> list[Loss | str]:
        """The losses whose margin is one of logits: all but the Logistic-Normal likelihood."""
        return [loss for loss in self.losses if not isinstance(as_loss(loss), LN)]

    @property
    def logistic_normal(self) -> list[LN]:
        return [loss for loss in map(as_loss, self.losses) if isinstance(loss, LN)]


def starting_losses(runs: Runs) -> Start:
    """Return the losses of runs, each once, and the first logits of the first run's model.

    They are functions of the logits of one row, or LN, which has figures of its own; losses that
    need other outputs or other rows are left out. The logits are simulated if the data of the first
    run is not at hand.
    """
    losses = {}
    for run in runs.values():
        with suppress(NotARun):  # a method that has to be passed
            loss = run.method.loss
            is_of_logits = loss.needs == {"logits"} and loss.independent_rows
            if is_of_logits or isinstance(loss, LN):
                losses[str(loss)] = loss
    run = next(iter(runs.values()))
    start = Start(list(losses.values()), run.num_classes)
    if losses:
        # What is not at hand: data without a name or with other rows (NotARun is a ValueError), or
        # data whose files are missing.
        with suppress(ValueError, OSError):
            logits, labels = initial_logits(run.task, run.method, run.settings, seed=run.seed)
            return replace(start, logits=logits, labels=labels)
    return start


def loss_figures(start: Start, *, over: Sequence[str] = ()) -> list[Figure]:
    """Return all figures of losses before training; with ``over``, two parameters of a single loss,
    also its error map.

    >>> [figure.name for figure in loss_figures(Start(["ce", "ln"], 10))]
    ['loss-weights', 'average-error', 'logit-bias', 'ln-attenuation', 'simplex']
    """
    for loss in start.of_logits:
        check_of_logits(as_loss(loss), start.num_classes)
    if over and (len(start.losses) != 1 or len(over) != 2):
        losses = ", ".join(map(str, start.losses))
        names = ", ".join(over)
        raise ValueError(
            f"Expected one loss and two of its parameters for a map, got {losses} and {names}."
        )
    made = [maker(start) for maker in figure_makers() if maker.subject is starting_losses]
    drawn = [one for one in made if isinstance(one, Figure)]
    if over:
        drawn.append(error_map_figure(start.losses[0], start.num_classes, (over[0], over[1])))
    return drawn


# Weights over the margins of an untrained network


def mean_weight(
    loss: Loss | str, margins: Tensor, num_classes: int, *, draws: int = DRAWS
) -> Tensor:
    """Return the weight w(Δ) = −dl/dΔ of margin losses and, for losses that depend on the other
    classes, its mean over them.

    The mean is −⟨δ_k⟩(z_k) (bias paper, Eq. 3) at the z_k that gives the margin Δ: z_k = Δ − E[Δ].
    """
    at = margins.double()
    start = expected_margin(num_classes)
    total = torch.zeros_like(at)
    for scale, term in terms_of(as_loss(loss)):
        if term.kind == "margin":
            total += scale * term.sample_weight(at).detach()
        else:
            total -= scale * average_error(term, at - start, num_classes, draws=draws)
    return total


def weights(losses: Sequence[Loss | str], num_classes: int) -> pd.DataFrame:
    """Return ``weight`` over ``margin`` of each ``loss``, divided by its maximum (curriculum paper,
    Figs. 2, 5-8).
    """
    start = expected_margin(num_classes)
    tables = []
    for spec in losses:
        loss = as_loss(spec)
        # others average over a sample at each point
        count = 81 if loss.kind == "margin" else 25
        at = torch.linspace(min(start - 4, -6.0), max(6.0, -start), count, dtype=torch.float64)
        weight = mean_weight(loss, at, num_classes, draws=CURVE_DRAWS)
        weight = weight / (loss.max_weight if loss.kind == "margin" else float(weight.max()))
        tables.append(
            pd.DataFrame({"loss": str(spec), "margin": at.numpy(), "weight": weight.numpy()})
        )
    return pd.concat(tables, ignore_index=True)


def margin_density(num_classes: int) -> pd.DataFrame:
    """Return the ``density`` of margins of N(0, 1) logits, exact (curriculum paper, Fig. 6)."""
    others = log_sum(check_count("num_classes", num_classes, 2) - 1, sigma=1.0)
    margins = combined(np.subtract, normal(1.0, others.step), others)
    visible = margins.weights > 1e-6 * margins.weights.max()
    return pd.DataFrame(
        {"margin": margins.points[visible], "density": margins.weights[visible] / margins.step}
    )


@figure(
    "loss-weights",
    "What weight each margin gets",
    Layer("area", "margin", "density", color="margins"),
    Layer("line", "margin", "weight", color="loss"),
    subject=starting_losses,
    reading=(
        "A loss learns from labels whose margins lie where its weight is large; one that is near"
        " zero over all margins of an untrained network does not start to learn."
    ),
    paper="curriculum paper, Figs. 2, 5-8",
    axes=("margin Δ of the label", "weight over its maximum; density"),
)
def weights_figure(start: Start) -> pd.DataFrame | None:
    losses = start.of_logits
    K = start.num_classes
    if not start.losses:
        raise Needs("a run whose loss is a function of logits alone, or `ln`")
    if not losses:
        return None
    simulated = margin_density(K).assign(margins=f"Δ at the start, {K} classes")
    tables = [weights(losses, K), simulated]
    if start.logits is not None and start.labels is not None:
        margins = margin(start.logits, start.labels)
        tables.append(_density_steps(margins, "margin").assign(margins="Δ of your model"))
    return pd.concat(tables, ignore_index=True)


def _density_steps(values: Tensor, column: str) -> pd.DataFrame:
    """Return the outline of a histogram: two points per bin, zeros at the ends."""
    flat = values.detach().cpu().double().flatten().numpy()
    density, edges = np.histogram(flat, bins=min(60, max(10, math.isqrt(len(flat)))), density=True)
    at = np.repeat(edges, 2)
    return pd.DataFrame(
        {column: at, "density": np.concatenate([[0.0], np.repeat(density, 2), [0.0]])}
    )


# The average error of the labelled logit


def average_errors(losses: Sequence[Loss | str], num_classes: Sequence[int]) -> pd.DataFrame:
    """Return ``error`` ⟨δ_k⟩ over ``logit`` z_k of each ``loss`` and number of ``classes`` (bias
    paper, Eq. 3).
    """
    tables = []
    for classes in num_classes:
        for spec in losses:
            loss = as_loss(spec)
            # others average over a sample at each point
            count = 33 if loss.kind == "margin" else 17
            at = torch.linspace(-4, 12, count, dtype=torch.float64)
            error = average_error(loss, at, classes, draws=CURVE_DRAWS)
            columns = {"loss": str(spec), "classes": classes, "logit": at, "error": error}
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


@figure(
    "average-error",
    "How hard the labelled logit is pulled, before training",
    Layer("area", "logit", "density", color="logits"),
    Layer("line", "logit", "pull", color="loss"),
    subject=starting_losses,
    reading=(
        "A loss starts to learn where its curve rises above the logits drawn below it; with more"
        " classes the curves of bounded losses move to the right, and the logits stay."
    ),
    paper="bias paper, Figs. 1-3, appendix Figs. 2, 3",
    axes=("logit z_k of the label", "−⟨δ_k⟩; below zero: density of z_k"),
    panel="panel",
)
def average_error_figure(start: Start) -> pd.DataFrame | None:
    if not start.of_logits:
        return None
    if start.logits is None:
        counts = sorted({10, 100, 1000, start.num_classes})
        z = np.linspace(-4, 4, 65)
        density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        name = "logits of an untrained network, N(0, 1)"
        below = pd.DataFrame({"logit": z, "density": -density, "logits": name})
    else:
        counts = [start.num_classes]
        below = _density_steps(start.logits, "logit").assign(
            logits="logits of your untrained model"
        )
        below["density"] = -below["density"]
    table = average_errors(start.of_logits, counts)
    table["pull"] = -table["error"]
    data = pd.concat([table, *(below.assign(classes=count) for count in counts)], ignore_index=True)
    return data.assign(panel=data["classes"].map("{} classes".format))


def error_map(loss: Loss | str, num_classes: int, free: tuple[str, str]) -> pd.DataFrame:
    """Return ``pull`` −⟨δ_k⟩(0) over two hyperparameters, and the ``solution`` where it equals that
    for 100 classes.

    The first one is ``x``, the second one ``y`` or ``solution``, each from a tenth to ten times its
    value (bias paper, appendix Fig. 4).
    """
    loss = as_loss(loss)
    known = {
        name: value
        for name, value in loss.hyperparameters.items()
        if isinstance(value, float) and value
    }
    if len(free) != 2 or not set(free) <= set(known):
        raise ValueError(
            f"Expected two of {', '.join(known) or 'no parameters'} of `{loss}`, got"
            f" {', '.join(free)}."
        )
    grids = [known[name] * np.logspace(-1, 1, 11) for name in free]
    calibrated = calibrate(loss, num_classes, LIKE, free=free, grid=grids[0].tolist(), check=False)
    rows = []
    for x in grids[0]:
        for y in grids[1]:
            with suppress(ValueError):  # outside the range of a parameter
                changed = loss.with_hyperparameters(**{free[0]: float(x), free[1]: float(y)})
                rows.append({"x": x, "y": y, "pull": -average_error(changed, 0.0, num_classes)})
    inside = [
        p
        for p in calibrated.curve
        if all(g[0] <= v <= g[-1] for g, v in zip(grids, p.values(), strict=True))
    ]
    line = [{"x": point[free[0]], "solution": point[free[1]]} for point in inside]
    return pd.concat(
        [pd.DataFrame(rows), pd.DataFrame(line, columns=["x", "solution"])], ignore_index=True
    )


def error_map_figure(loss: Loss | str, num_classes: int, free: tuple[str, str]) -> Figure:
    """Return −⟨δ_k⟩(0) over two hyperparameters, with the line on which it equals that for 100
    classes.
    """
    table = error_map(loss, num_classes, free)
    table["log_pull"] = np.log10(table["pull"].where(table["pull"] > 0))
    return Figure(
        name="error-map",
        title=f"Where {loss} starts with {num_classes} classes as with {LIKE}",
        reading=(
            f"At the points the average error of an untrained network is that of {loss} with {LIKE}"
            " classes; equal colours are equal average errors."
        ),
        paper="bias paper, appendix Fig. 4",
        data=table,
        layers=(
            Layer("contour", "x", "y", z="log_pull", label="log₁₀ −⟨δ_k⟩(0)"),
            Layer("points", "x", "solution", label=f"as with {LIKE} classes"),
        ),
        x_label=free[0],
        y_label=free[1],
        log_x=True,
        log_y=True,
        stage="Before training",
    )


def logit_biases() -> pd.DataFrame:
    """Return ``bias`` ε over the number of ``classes``, for mean probabilities C of the label (bias
    paper, Eq. 4).
    """
    counts = (2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
    rows = [(f"C = {c:g}", K, logit_bias(K, c)) for c in (0.1, 0.15, 0.2) for K in counts]
    return pd.DataFrame(rows, columns=["probability", "classes", "bias"])


@figure(
    "logit-bias",
    "The logit bias with which any number of classes starts alike",
    Layer("line", "classes", "bias", color="probability"),
    subject=starting_losses,
    reading=(
        "ε is added to the labelled logit in training, so that an untrained network gives the label"
        " the probability C on average; it grows like the logarithm of the number of classes."
    ),
    paper="bias paper, appendix Fig. 1",
    axes=("classes K", "logit bias ε"),
    log_x=True,
)
def logit_bias_figure(start: Start) -> pd.DataFrame | None:
    return logit_biases() if start.of_logits else None
