"""What a loss does before training, from its formula and the margins that an untrained network gives its labels.

Functions return tables; those called ``…_figure`` draw them. Logits are taken as independent N(0, σ²), or are a model's
own (:func:`initial_logits`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from noiseproof.analysis.figure import Figure, Layer
from noiseproof.core.checks import check_count
from noiseproof.core.margin import LabelProb, margin
from noiseproof.core.output import Output
from noiseproof.data.images import read_batches
from noiseproof.losses import Loss
from noiseproof.losses.averages import combined, log_sum, normal
from noiseproof.losses.base import terms_of
from noiseproof.losses.calibrate import average_error, calibrate, expected_margin, logit_bias
from noiseproof.losses.gaussian import LN
from noiseproof.losses.logistic_normal import LogisticNormal, softmax_centred
from noiseproof.losses.spec import as_loss
from noiseproof.strategies import Run, Strategy
from noiseproof.train import Method, Settings, Task, get_method, train

if TYPE_CHECKING:
    import pandas as pd

STAGE = "Before training"
ROWS = 2048  # whose margins are looked at


def more_than_logits(loss: Loss, num_classes: int) -> str | None:
    """In what a loss looks at more than one row's logits, or takes another number of them; None where it does not."""
    if loss.needs != {"logits"}:
        return f"needs {', '.join(sorted(loss.needs))}"
    if not loss.independent_rows:
        return "looks at the other rows of a batch"
    outputs = loss.num_outputs(num_classes)
    return None if outputs == num_classes else f"takes {outputs} logits"


def check_of_logits(loss: Loss, num_classes: int) -> None:
    """Refuse a loss that looks at more than one row's logits, or takes another number of them."""
    if (why := more_than_logits(loss, num_classes)) is not None:
        raise ValueError(f"Expected a loss of one row's {num_classes} logits alone, got `{loss}`, which {why}.")


# Weights over the margins of an untrained network


def mean_weight(loss: Loss | str, margins: Tensor, num_classes: int, *, sigma: float = 1.0) -> Tensor:
    """The weight w(Δ) = −dl/dΔ of margin losses and, for losses that look at other classes too, its mean over those.

    The mean is −⟨δ_k⟩(z_k) (bias paper, Eq. 3) where z_k puts the margin at Δ: z_k = Δ − E[Δ].

    >>> mean_weight("0.7*nce + 0.3*mae", torch.tensor([-5.0, 0.0]), 100)
    tensor([0.0034, 0.0757], dtype=torch.float64)
    """
    at, start = margins.double(), expected_margin(num_classes, sigma=sigma)
    total = torch.zeros_like(at)
    for scale, term in terms_of(as_loss(loss)):
        if term.kind == "margin":
            total += scale * term.sample_weight(at).detach()
        else:
            total -= scale * average_error(term, at - start, num_classes, sigma=sigma)
    return total


def weights(
    losses: Sequence[Loss | str], num_classes: int, *, sigma: float = 1.0, unit: bool = True, points: int = 81
) -> pd.DataFrame:
    """``weight`` over ``margin`` of each ``loss``, over its maximum if ``unit`` (curriculum paper, Figs. 2, 5, 7, 8).

    >>> table = weights(["ce", "mae"], 100)
    >>> float(table.loc[table["loss"] == "mae", "weight"].max().round(3))
    1.0
    """
    import pandas as pd

    start = expected_margin(num_classes, sigma=sigma)
    found = []
    for given in losses:
        loss = as_loss(given)
        few = points if loss.kind == "margin" else min(points, 25)  # those average over a sample at every point
        at = torch.linspace(min(start - 4, -6.0), max(6.0, -start), few, dtype=torch.float64)
        weight = mean_weight(loss, at, num_classes, sigma=sigma)
        if unit:
            weight = weight / (loss.max_weight if loss.kind == "margin" else float(weight.max()))
        found.append(pd.DataFrame({"loss": str(given), "margin": at.numpy(), "weight": weight.numpy()}))
    return pd.concat(found, ignore_index=True)


def margin_density(num_classes: int, *, sigma: float = 1.0) -> pd.DataFrame:
    """The ``density`` of margins of N(0, σ²) logits, exact (curriculum paper, Fig. 6).

    >>> table = margin_density(100)
    >>> round(float(np.trapezoid(table["density"] * table["margin"], table["margin"])), 4)  # E[Δ]
    -5.0867
    """
    import pandas as pd

    others = log_sum(check_count("num_classes", num_classes, 2) - 1, sigma)
    found = combined(np.subtract, normal(sigma, others.step), others)
    seen = found.weights > 1e-6 * found.weights.max()
    return pd.DataFrame({"margin": found.points[seen], "density": found.weights[seen] / found.step})


def weights_figure(
    losses: Sequence[Loss | str], num_classes: int, *, margins: Tensor | None = None, sigma: float = 1.0
) -> Figure:
    """Weights over the margins that a simulated network starts with, and over a model's own ``margins`` (N,)."""
    import pandas as pd

    simulated = margin_density(num_classes, sigma=sigma).assign(margins=f"Δ at the start, {num_classes} classes")
    parts = [weights(losses, num_classes, sigma=sigma), simulated]
    if margins is not None:
        parts.append(_histogram(margins, "margin").assign(margins="Δ of your model"))
    return Figure(
        name="loss-weights",
        title="What weight each margin gets",
        reading="A loss learns from labels whose margins lie where its weight is large; one that is near zero over all "
        "margins of an untrained network cannot begin.",
        paper="curriculum paper, Figs. 2, 5-8",
        data=pd.concat(parts, ignore_index=True),
        layers=(Layer("area", "margin", "density", color="margins"), Layer("line", "margin", "weight", color="loss")),
        x_label="margin Δ of the label",
        y_label="weight over its maximum; density",
        stage=STAGE,
    )


def _histogram(values: Tensor, column: str) -> pd.DataFrame:
    """A density as steps: two points a bin, zeros at its ends."""
    import pandas as pd

    flat = values.detach().cpu().double().flatten().numpy()
    density, edges = np.histogram(flat, bins=min(60, max(10, math.isqrt(len(flat)))), density=True)
    at = np.repeat(edges, 2)
    return pd.DataFrame({column: at, "density": np.concatenate([[0.0], np.repeat(density, 2), [0.0]])})


# A model's own margins


class _Enough(Exception):
    pass


class _FirstLook(Strategy):
    """Takes what the untrained model says of training batches, then ends the run."""

    def __init__(self, rows: int) -> None:
        self.limit = rows
        self.logits: list[Tensor] = []
        self.labels: list[Tensor] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> _FirstLook:
        return self  # the loop works on a copy of the method, and this one must come back

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        parts = torch.split(rows[: self.limit], run.batch_size)
        with torch.no_grad(), run.random.eager_step():
            # As in training: without batch statistics, logits of an untrained network have another scale.
            for part in parts:
                batch = run.make_batch(part, next(read_batches(run.data.x, [part])))
                self.logits.append(run.loss.scores(run.forward(run.models[0].wrapped, batch.x)).cpu())
                self.labels.append(batch.given.cpu())
        raise _Enough


def initial_logits(
    task: Task, method: Method | str = "ce", settings: Settings | None = None, *, seed: int = 0, rows: int = ROWS
) -> tuple[Tensor, Tensor]:
    """Logits (N, K) and labels (N,) of the first training rows, as ``train`` with the same arguments would begin.

    >>> from noiseproof.core.margin import margin
    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import prepare
    >>> logits, labels = initial_logits(prepare(get_dataset("digits")), rows=256)
    >>> logits.shape, margin(logits, labels).shape
    (torch.Size([256, 10]), torch.Size([256]))
    """
    settings = settings or Settings()
    method = get_method(method, task, settings) if isinstance(method, str) else method
    look = _FirstLook(check_count("rows", rows, 1))
    with suppress(_Enough):
        train(task, replace(method, strategies=(*copy.deepcopy(method.strategies), look)), settings, seed=seed)
    return torch.cat(look.logits), torch.cat(look.labels)


# The average error of the labelled logit


def average_errors(
    losses: Sequence[Loss | str], num_classes: Sequence[int], *, sigma: float = 1.0, points: int = 33
) -> pd.DataFrame:
    """``error`` ⟨δ_k⟩ over ``logit`` z_k of each ``loss`` and number of ``classes`` (bias paper, Eq. 3).

    >>> average_errors(["mae:scale=2"], [10, 100], points=3)
              loss  classes  logit     error
    0  mae:scale=2       10   -4.0 -0.002881
    1  mae:scale=2       10    4.0 -0.320443
    2  mae:scale=2       10   12.0 -0.000182
    3  mae:scale=2      100   -4.0 -0.000228
    4  mae:scale=2      100    4.0 -0.376830
    5  mae:scale=2      100   12.0 -0.002002
    """
    import pandas as pd

    found = []
    for classes in num_classes:
        for given in losses:
            loss = as_loss(given)
            few = points if loss.kind == "margin" else min(points, 17)  # those average over a sample at every point
            at = torch.linspace(-4 * sigma, 12.0, few, dtype=torch.float64)
            error = average_error(loss, at, classes, sigma=sigma)
            columns = {"loss": str(given), "classes": classes, "logit": at.numpy(), "error": error.numpy()}
            found.append(pd.DataFrame(columns))
    return pd.concat(found, ignore_index=True)


def average_error_figure(
    losses: Sequence[Loss | str],
    num_classes: Sequence[int] = (10, 100, 1000),
    *,
    logits: Tensor | None = None,
    sigma: float = 1.0,
) -> Figure:
    """⟨δ_k⟩(z_k), with the logits of an untrained network below: N(0, σ²), or a model's own ``logits``."""
    import pandas as pd

    if logits is None:
        z = np.linspace(-4 * sigma, 4 * sigma, 65)
        density = np.exp(-((z / sigma) ** 2) / 2) / (sigma * math.sqrt(2 * math.pi))
        below = pd.DataFrame(
            {"logit": z, "density": -density, "logits": f"logits of an untrained network, N(0, {sigma:g}²)"}
        )
    else:
        below = _histogram(logits, "logit").assign(logits="logits of your untrained model")
        below["density"] = -below["density"]
    table = average_errors(losses, num_classes, sigma=sigma)
    table["pull"] = -table["error"]
    parts = [table, *(below.assign(classes=classes) for classes in num_classes)]
    data = pd.concat(parts, ignore_index=True)
    data["panel"] = data["classes"].map("{} classes".format)
    return Figure(
        name="average-error",
        title="How hard the labelled logit is pulled, before training",
        reading="A loss starts where its curve rises above the logits drawn below it; with more classes the curves of "
        "bounded losses move to the right, and the logits stay.",
        paper="bias paper, Figs. 1-3, appendix Figs. 2, 3",
        data=data,
        layers=(Layer("area", "logit", "density", color="logits"), Layer("line", "logit", "pull", color="loss")),
        x_label="logit z_k of the label",
        y_label="−⟨δ_k⟩; below zero: density of z_k",
        panel="panel",
        stage=STAGE,
    )


def error_map(
    loss: Loss | str, num_classes: int, free: tuple[str, str], *, like: int = 100, sigma: float = 1.0, points: int = 11
) -> pd.DataFrame:
    """``pull`` −⟨δ_k⟩(0) over two hyperparameters, and the ``solution`` that keeps it as with ``like`` classes.

    The first of the pair runs over ``x``, the second over ``y`` or ``solution``, a tenth to ten times their values each
    (bias paper, appendix Fig. 4).

    >>> table = error_map("agce:a=0.6,q=0.6", 1000, ("a", "q"), points=3)
    >>> len(table.dropna(subset="pull")), bool(table["solution"].notna().any())
    (9, True)
    """
    import pandas as pd

    loss = as_loss(loss)
    known = {name: value for name, value in loss.hyperparameters.items() if isinstance(value, float) and value}
    if len(free) != 2 or not set(free) <= set(known):
        raise ValueError(f"Expected two of {', '.join(known) or 'no parameters'} of `{loss}`, got {', '.join(free)}.")
    grids = [known[name] * np.logspace(-1, 1, points) for name in free]
    found = calibrate(loss, num_classes, like, free=free, grid=grids[0].tolist(), sigma=sigma)
    rows = []
    for x in grids[0]:
        for y in grids[1]:
            with suppress(ValueError):  # not admitted
                changed = loss.with_hyperparameters(**{free[0]: float(x), free[1]: float(y)})
                rows.append({"x": x, "y": y, "pull": -average_error(changed, 0.0, num_classes, sigma=sigma)})
    inside = [p for p in found.curve if all(g[0] <= v <= g[-1] for g, v in zip(grids, p.values(), strict=True))]
    line = [{"x": point[free[0]], "solution": point[free[1]]} for point in inside]
    return pd.concat([pd.DataFrame(rows), pd.DataFrame(line, columns=["x", "solution"])], ignore_index=True)


def error_map_figure(
    loss: Loss | str, num_classes: int, free: tuple[str, str], *, like: int = 100, sigma: float = 1.0
) -> Figure:
    """−⟨δ_k⟩(0) over two hyperparameters, with those that start as with ``like`` classes."""
    table = error_map(loss, num_classes, free, like=like, sigma=sigma)
    table["log_pull"] = np.log10(table["pull"].where(table["pull"] > 0))
    return Figure(
        name="error-map",
        title=f"Where {loss} starts with {num_classes} classes as with {like}",
        reading=f"At the points an untrained network has the average error that {loss} gives it with {like} classes; "
        "equal colours start equally hard.",
        paper="bias paper, appendix Fig. 4",
        data=table,
        layers=(
            Layer("contour", "x", "y", z="log_pull", label="log₁₀ −⟨δ_k⟩(0)"),
            Layer("points", "x", "solution", label=f"as with {like} classes"),
        ),
        x_label=free[0],
        y_label=free[1],
        log_x=True,
        log_y=True,
        stage=STAGE,
    )


def logit_biases(
    num_classes: Sequence[int] = (2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
    *,
    C: Sequence[float] = (0.15,),
    sigma: float = 1.0,
) -> pd.DataFrame:
    """``bias`` ε over the number of ``classes``, for mean probabilities ``C`` of the label (bias paper, Eq. 4).

    >>> logit_biases([10, 100])["bias"].round(4).tolist()
    [0.5246, 3.0341]
    """
    import pandas as pd

    rows = [(f"C = {c:g}", K, logit_bias(K, c, sigma=sigma)) for c in C for K in num_classes]
    return pd.DataFrame(rows, columns=["probability", "classes", "bias"])


def logit_bias_figure(*, C: Sequence[float] = (0.1, 0.15, 0.2), sigma: float = 1.0) -> Figure:
    """ε(K)."""
    return Figure(
        name="logit-bias",
        title="The logit bias that makes any number of classes start alike",
        reading="ε is added to the labelled logit in training, so that an untrained network gives the label the "
        "probability C on average; it grows like the logarithm of the number of classes.",
        paper="bias paper, appendix Fig. 1",
        data=logit_biases(C=C, sigma=sigma),
        layers=(Layer("line", "classes", "bias", color="probability"),),
        x_label="classes K",
        y_label="logit bias ε",
        log_x=True,
        stage=STAGE,
    )


# The Logistic-Normal likelihood


def attenuation(lams: Sequence[float] = (0.1, 0.5, 1.0), *, reach: float = 3.0, points: int = 121) -> pd.DataFrame:
    """LN's ``loss`` term r²/σ² and the size of its ``gradient`` r/σ² over the ``residual`` r, at the best variance.

    In one dimension the best variance that Σ^½ = c² + λ reaches is σ² = max(λ², r²) (LN paper, section 3.1 and B.4).

    >>> attenuation([0.5], points=3)
       lambda  residual  loss  gradient
    0     0.5       0.0   0.0  0.000000
    1     0.5       1.5   1.0  0.666667
    2     0.5       3.0   1.0  0.333333
    """
    import pandas as pd

    r = np.linspace(0, reach, points)
    tables = []
    for lam in lams:
        variance = np.maximum(lam**2, r**2)
        tables.append(pd.DataFrame({"lambda": lam, "residual": r, "loss": r**2 / variance, "gradient": r / variance}))
    return pd.concat(tables, ignore_index=True)


def attenuation_figure(lams: Sequence[float] = (0.1, 0.5, 1.0)) -> Figure:
    """LN's loss and gradient against the residual for several λ."""
    table = attenuation(lams).melt(["lambda", "residual"], ["loss", "gradient"], "quantity", "value")
    table["λ"] = table["lambda"].map("λ = {:g}".format)
    table["quantity"] = table["quantity"].map(
        {"loss": "label-dependent loss r²/σ²", "gradient": "gradient |∂L/∂μ| = r/σ²"}
    )
    return Figure(
        name="ln-attenuation",
        title="How the Logistic-Normal likelihood attenuates large residuals",
        reading="Up to a residual of λ the loss is a squared error; beyond it the learned variance keeps the loss at "
        "one, and the larger the residual, the smaller its gradient.",
        paper="LN paper, Fig. 2",
        data=table,
        layers=(Layer("line", "residual", "value", color="λ"),),
        x_label="residual r = |y − μ|",
        y_label="at the best variance",
        panel="quantity",
        share_y=False,
        stage=STAGE,
    )


def simplex_density(
    loc: Sequence[float] = (0.5, 0.3), root: Sequence[float] = (0.7, -0.5), lam: float = 0.4, *, points: int = 81
) -> pd.DataFrame:
    """The ``density`` of a Logistic-Normal of three classes, in logit space and on the simplex (LN paper, Eq. 4).

    ``x`` and ``y`` are the logits; on the simplex they lay out (p_1, p_2, p_3) as a triangle whose corners are the
    classes: x = p_2 + p_3/2, y = p_3·√3/2. The density there is that of p over the area of (p_1, p_2).

    >>> table = simplex_density(points=201)
    >>> logits = table[table["space"] == "logits"]
    >>> step = logits["x"].unique()
    >>> round(float(logits["density"].sum() * (step[1] - step[0]) ** 2), 3)
    1.0
    """
    import pandas as pd

    mean, c = torch.tensor(loc, dtype=torch.float64), torch.tensor(root, dtype=torch.float64)
    if mean.shape != (2,) or c.shape != (2,):
        raise ValueError(f"Expected two logits and a root of two, got {tuple(loc)} and {tuple(root)}.")
    distribution = LogisticNormal(mean, root=c, lam=lam)
    reach = 4 * (lam + float(c @ c))  # standard deviations along c
    side = torch.linspace(-reach, reach, points, dtype=torch.float64)
    z1, z2 = torch.meshgrid(mean[0] + side, mean[1] + side, indexing="ij")
    z = torch.stack([z1, z2], -1)  # (n, n, 2)
    probs = softmax_centred(z)
    # p(z) = p(q)·|∂q/∂z|, and the determinant of the centred softmax is the product of all probabilities.
    flat = (distribution.log_prob(probs) + probs.log().sum(-1)).exp()
    logits = {"space": "logits", "x": z1.flatten(), "y": z2.flatten(), "density": flat.flatten()}
    x, y = torch.meshgrid(torch.linspace(0, 1, points), torch.linspace(0, 1, points), indexing="ij")
    x, y = x.double(), y.double() * math.sqrt(0.75)
    p3 = y / math.sqrt(0.75)
    p2 = x - p3 / 2
    p = torch.stack([1 - p2 - p3, p2, p3], -1)
    inside = (p > 1e-9).all(-1)
    density = torch.full_like(x, math.nan)
    density[inside] = distribution.log_prob(p[inside]).exp()
    simplex = {"space": "simplex", "x": x.flatten(), "y": y.flatten(), "density": density.flatten()}
    tables = [
        pd.DataFrame({k: v.numpy() if isinstance(v, Tensor) else v for k, v in part.items()})
        for part in (logits, simplex)
    ]
    return pd.concat(tables, ignore_index=True)


def simplex_figure(
    loc: Sequence[float] = (0.5, 0.3), root: Sequence[float] = (0.7, -0.5), lam: float = 0.4, *, points: int = 81
) -> Figure:
    """The simplex picture: a normal distribution of two logits, and the same on the probabilities of three classes."""
    table = simplex_density(loc, root, lam, points=points)
    table["panel"] = table["space"].map(
        {"logits": "logits z_1, z_2", "simplex": "probabilities, a class at each corner"}
    )
    top = table.groupby("panel")["density"].transform("max")
    table["share"] = table["density"] / top  # one colour scale for both
    return Figure(
        name="simplex",
        title="A normal distribution of logits is a Logistic-Normal one of probabilities",
        reading="The centred softmax carries the ellipse of the logits to the triangle of three classes, so that "
        "regression noise becomes label noise; colours are each density over its maximum.",
        paper="LN paper, Fig. 1",
        data=table,
        layers=(Layer("contour", "x", "y", z="share", label="density over its maximum"),),
        x_label="first coordinate",
        y_label="second coordinate",
        panel="panel",
        share_y=False,
        equal=True,
        stage=STAGE,
    )


# Which robustness condition holds


@dataclass(frozen=True)
class Robustness:
    """Which theorem covers a loss, with the numbers it rests on."""

    symmetric: bool  # Σ_y L(z, y) is the same for all z (bias paper, Eq. 1): robust to symmetric noise below (K − 1)/K
    total: float  # that sum, its mean over random logits
    spread: float  # largest less smallest sum over random logits
    largest_ratio: float | None  # asymmetric up to this r̃ (curriculum paper, §3.1); None where not a function of p_y
    noise_ratio: float | None  # r̃ of the transition matrix; None without one
    asymmetric: bool | None  # whether r̃ < 1 and r̃ ≤ largest_ratio; None where either is unknown


def robustness(loss: Loss | str, num_classes: int, transition: Tensor | None = None) -> Robustness:
    """Test a loss against the conditions of bias paper, Eq. 1 (symmetric) and curriculum paper, §3.1 (asymmetric, for
    this transition).

    ``transition`` (K, K) is T[i, j] = P(given j | true i). The infimum of (l(p_i) − l(p_i + p_j))/(l(0) − l(p_j)) is
    computed, not taken from A.3, which has AUL's cases swapped: AUL is asymmetric for every r̃ ≤ 1 where q ≤ 1, and up
    to ((a − 1)/a)^(q−1) where q > 1.

    >>> robustness("mae", 10).symmetric, robustness("ce", 10).symmetric
    (True, False)
    >>> round(robustness("aul:a=2,q=3", 10).largest_ratio, 6)  # ((a − 1)/a)^(q−1)
    0.25
    """
    loss, K = as_loss(loss), check_count("num_classes", num_classes, 2, "A classifier has at least two classes.")
    check_of_logits(loss, K)
    sums = _sums_over_labels(loss, K)
    total, spread = float(sums.mean()), float(sums.max() - sums.min())
    largest = _largest_ratio(loss) if loss.kind == "margin" else None
    ratio = None if transition is None else _noise_ratio(transition, K)
    holds = None if largest is None or ratio is None else ratio < 1 and ratio <= largest * (1 + 1e-9)
    return Robustness(spread <= 1e-6 * max(1.0, abs(total)), total, spread, largest, ratio, holds)


def _sums_over_labels(loss: Loss, num_classes: int, draws: int = 16) -> Tensor:
    """Σ_y L(z, y) for random logits of several sizes."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(num_classes)
    sums = []
    for size in (0.1, 1.0, 5.0, 20.0):
        for z in size * torch.randn(draws, num_classes, generator=generator, dtype=torch.float64):
            with torch.no_grad():
                sums.append(loss.per_sample(Output(z.expand(num_classes, -1)), labels).sum())
    return torch.stack(sums)


def _noise_ratio(transition: Tensor, num_classes: int) -> float:
    """r̃ = max over i ≠ y of P(given i | true y)/P(given y | true y), infinite where the true label is never given."""
    T = torch.as_tensor(transition, dtype=torch.float64)
    if T.shape != (num_classes, num_classes) or bool((T < 0).any()) or not torch.allclose(T.sum(1), T.new_ones(())):
        raise ValueError(
            f"Expected `transition` ({num_classes}, {num_classes}) with rows that sum to one, got {tuple(T.shape)}."
        )
    right = T.diagonal().clone()
    wrong = T.clone().fill_diagonal_(0).amax(1)
    return float(torch.where(wrong > 0, wrong / right, 0.0).max())


def _largest_ratio(loss: Loss) -> float:
    """inf (l(p_i) − l(p_i + p_j))/(l(0) − l(p_j)) over p_i + p_j ≤ 1: zero for losses without bound, at most one."""

    def value(p: Tensor) -> Tensor:
        return loss.evaluate(LabelProb.from_margin(torch.logit(p)))

    def slope(at: Tensor) -> Tensor:
        """−dl/dp = w(Δ)/(p(1 − p))."""
        return loss.sample_weight(at) * (2 + at.exp() + (-at).exp())

    with torch.no_grad():
        far = loss.evaluate(LabelProb.from_margin(torch.tensor([-1e6, -1e12], dtype=torch.float64)))
        if not bool(torch.isclose(far[0], far[1], rtol=1e-6, atol=0)):
            return 0.0  # l(0) is infinite, as of cross entropy
        near, at_zero = slope(torch.tensor([-30.0, -60.0], dtype=torch.float64)).tolist()
        if at_zero > 1.001 * near:
            return 0.0  # dl/dp(0) is infinite, as of GCE: for p_j → 0 no rise of p_i is worth as much
        step = torch.logspace(-4, 0, 400, dtype=torch.float64)  # p_j
        start = torch.linspace(0, 1, 400, dtype=torch.float64) * (1 - step[:, None])  # (p_j, p_i)
        fall = value(start) - value((start + step[:, None]).clamp_max(1))
        first = far[1] - value(step)
        found = float((fall[first > 0] / first[first > 0, None]).min())
        if at_zero > 0.999 * near > 0:  # p_j → 0: the slope at p_i over that at zero
            found = min(found, float(slope(torch.linspace(-30, 30, 601, dtype=torch.float64)).min()) / at_zero)
        return max(0.0, min(1.0, found))


# All of it


def loss_figures(
    losses: Sequence[Loss | str],
    num_classes: int,
    *,
    logits: Tensor | None = None,
    labels: Tensor | None = None,
    sigma: float = 1.0,
) -> list[Figure]:
    """What can be seen of ``losses`` before training; ``logits`` and ``labels`` are of a model of the user's own.

    Of the Logistic-Normal likelihood, whose margin is not that of its logits, it is attenuation and simplex.

    >>> [figure.name for figure in loss_figures(["ce", "ln"], 10)]
    ['loss-weights', 'average-error', 'logit-bias', 'ln-attenuation', 'simplex']
    """
    plain = [loss for loss in losses if not isinstance(as_loss(loss), LN)]
    others = [made for made in map(as_loss, losses) if isinstance(made, LN)]
    for loss in plain:
        check_of_logits(as_loss(loss), num_classes)
    figures = []
    if plain:
        margins = None if logits is None or labels is None else margin(logits, labels)
        counts = sorted({10, 100, 1000, num_classes} if logits is None else {num_classes})
        figures += [
            weights_figure(plain, num_classes, margins=margins, sigma=sigma),
            average_error_figure(plain, counts, logits=logits, sigma=sigma),
            logit_bias_figure(sigma=sigma),
        ]
    if others:
        lams = sorted({0.1, 0.5, 1.0, *(float(loss.hyperparameters["lam"]) for loss in others)})
        figures += [attenuation_figure(lams), simplex_figure()]
    return figures
