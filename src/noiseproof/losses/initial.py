"""Margins and gradients of an untrained network, by the number of classes (bias and curriculum
papers).

At initialisation the logits are taken as independent N(0, σ²). A margin loss sees one random number
of them, L = log Σ_{i≠k} exp z_i, whose distribution is computed here on a grid to about 1e-8:
nothing is sampled. Losses that depend on the other classes too are averaged over a fixed sample.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.checks import check_count, check_number
from noiseproof.core.output import Output
from noiseproof.losses.base import Loss, terms_of
from noiseproof.losses.coupled import CR, Peer
from noiseproof.losses.sums import as_loss

Z = TypeVar("Z", float, Tensor)
DRAWS = 2**20  # logits of the sample that losses without an exact average are averaged over
_SIX = np.arange(-2, 4)
# coefficients of the polynomials that are one at one of the six
_LAGRANGE = np.linalg.inv(np.vander(_SIX))


def logit_bias(num_classes: int, C: float = 0.15, *, sigma: float = 1.0) -> float:
    """Return the bias ε of the labelled logit that makes its mean probability ``C`` in an untrained
    network.

    Solves ⟨exp(z_k + ε)/(exp(z_k + ε) + Σ_{i≠k} exp z_i)⟩ = C over all logits (bias paper, Eq. 4,
    which trains with the roundings 0.5 and 3.0, and with 5.2 at 1000). It is negative where
    C < 1/K.

    >>> [round(logit_bias(K), 4) for K in (10, 100, 1000)]
    [0.5246, 3.0341, 5.3576]
    """
    K = check_classes(num_classes)
    sigma = check_sigma(sigma)
    C = check_number("C", C, "(0, 1)", "It is a mean probability.")
    others = log_sum(K - 1, sigma)
    margin = combined(np.subtract, normal(sigma, others.step), others)

    def gap(epsilon: float) -> float:
        return margin.average(lambda delta: torch.sigmoid(delta + epsilon)) - C

    # It lies between the biases that bring the largest and the smallest margin to C. One more on
    # either side keeps the signs different where all margins are nearly the same.
    smallest, largest = margin.points[[0, -1]].tolist()
    log_odds = math.log(C / (1 - C))
    return find_root(gap, log_odds - largest - 1, log_odds - smallest + 1)


def expected_margin(num_classes: int, *, sigma: float = 1.0) -> float:
    """Return the mean margin E[Δ_y] of an untrained network.

    The curriculum paper's Eq. 4 is an approximation, −log(K − 1) − σ²/2 + (e^{σ²} − 1)/(2(K − 1)).
    """
    K = check_classes(num_classes)
    sigma = check_sigma(sigma)
    return -log_sum(K - 1, sigma).mean if K > 2 else 0.0


def average_error(
    loss: Loss | str, z: Z, num_classes: int, *, sigma: float = 1.0, draws: int = DRAWS
) -> Z:
    """Return the mean gradient ⟨δ_k⟩(z) that the labelled logit gets where it is ``z`` and the
    others are N(0, σ²).

    ⟨δ_k⟩(z) = ⟨∂L/∂z_k⟩ over z_i, i ≠ k (bias paper, Eq. 3), which is −⟨w(z − log Σ_{i≠k} exp z_i)⟩
    for a margin loss. Where it vanishes around z = 0, the loss doesn't learn. Other losses are
    averaged over a fixed sample of ``draws`` logits (relative error about 1e-4, or 4e-4 of 2¹⁷);
    ``peer``, and ``cr`` without a prior, as in a batch with equally many labels of each class.
    ``z`` may be a tensor of any shape.

    >>> round(average_error("gce:q=0.7", 0.0, 100), 6)  # The bias paper prints −0.279
    -0.028234
    """
    K = check_classes(num_classes)
    sigma = check_sigma(sigma)
    loss = as_loss(loss)
    draws = check_count("draws", draws, 1)
    if isinstance(z, Tensor):
        errors = [
            average_error(loss, at, K, sigma=sigma, draws=draws) for at in z.flatten().tolist()
        ]
        return torch.tensor(errors, dtype=torch.float64).reshape(z.shape)
    z = check_number("z", z, "(-inf, inf)")
    # The error of a sum is the sum of the errors, so only the terms that need a sample are sampled.
    return sum(scale * mean_error(term, z, K, sigma, draws) for scale, term in terms_of(loss))


def check_classes(value: object, name: str = "num_classes") -> int:
    return check_count(name, value, 2, "A classifier has at least two classes.")


def check_sigma(value: object) -> float:
    sigma = check_number("sigma", value, "(0, 1e6]", "It is the standard deviation of the logits.")
    return max(sigma, 1e-9)  # below, logits are equal to the last digit of every average


def find_root(f: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of ``f`` between two points where its signs differ."""
    from scipy.optimize import brentq  # its import takes half a second

    return float(brentq(f, low, high, xtol=1e-14))


class Distribution(NamedTuple):
    """Quadrature weights at start, start + step, …; in numpy, since PyTorch's threads only cost
    time here.
    """

    start: float
    step: float
    weights: NDArray[np.float64]

    @property
    def points(self) -> NDArray[np.float64]:
        return self.start + np.arange(len(self.weights), dtype=np.float64) * self.step

    @property
    def mean(self) -> float:
        return float(self.weights @ self.points)

    def average(self, f: Callable[[Tensor], Tensor]) -> float:
        return float(self.weights @ f(torch.from_numpy(self.points)).detach().numpy())

    def finer(self, times: int) -> Distribution:
        """Return the same on a finer grid, by Fourier interpolation: the density is smooth and ends
        in zeros.
        """
        weights = np.fft.irfft(np.fft.rfft(self.weights), len(self.weights) * times)
        return Distribution(self.start, self.step / times, weights)


def normal(sigma: float, step: float) -> Distribution:
    """Return the distribution N(0, σ²) up to ±8.5σ, beyond which 2e-17 is left.

    The trapezoidal rule is exact to rounding for it.
    """
    reach = math.ceil(8.5 * sigma / step)
    weights = np.exp(-((np.arange(-reach, reach + 1) * (step / sigma)) ** 2) / 2)
    return Distribution(-reach * step, step, weights / weights.sum())


def combined(f: np.ufunc, a: Distribution, b: Distribution) -> Distribution:
    """Return the distribution of f(X, Y) for independent X and Y on grids of the same step.

    The mass of each pair is shared by the six points around f(x, y) so that its moments up to the
    fifth are kept.
    """
    mass = np.outer(a.weights, b.weights)
    values = f.outer(a.points, b.points)
    relevant = np.abs(mass) > 1e-18
    mass = mass[relevant]
    values = values[relevant]
    start = values.min() - 3 * a.step
    position = (values - start) / a.step
    floor = np.floor(position)
    fraction = position - floor
    index = floor.astype(int)
    weights = np.zeros(int(index.max()) + 4)
    for i, coefficients in zip(_SIX, _LAGRANGE.T, strict=True):
        # not as a matrix product: BLAS' threads take longer
        share = np.polyval(coefficients, fraction)
        weights += np.bincount(index + i, mass * share, len(weights))
    inside = np.flatnonzero(np.abs(weights) > 1e-17)
    weights = weights[inside[0] : inside[-1] + 1]
    return Distribution(float(start + inside[0] * a.step), a.step, weights / weights.sum())


@functools.lru_cache(maxsize=512)
def log_sum(count: int, sigma: float, times: int = 1) -> Distribution:
    """Return the distribution of log Σ exp z_i over ``count`` logits, by halves.

    On a grid ``times`` finer.
    """
    if times > 1:
        return log_sum(count, sigma).finer(times)
    if count == 1:
        # fine for σ and for w(Δ), but 700 points at most
        return normal(sigma, max(min(sigma, 1.0) / 8, sigma / 40))
    a = log_sum(count // 2, sigma)
    b = log_sum(count - count // 2, sigma)
    step = min(a.step, b.step)
    total = combined(np.logaddexp, *(d.finer(2) if d.step > step else d for d in (a, b)))
    variance = total.weights @ (total.points - total.mean) ** 2
    # the sum of many logits varies little
    return total.finer(2) if variance < (5 * step) ** 2 else total


def mean_error(loss: Loss, z: float, num_classes: int, sigma: float, draws: int = DRAWS) -> float:
    """Return ⟨δ_k⟩(z) = ⟨∂L/∂z_k⟩ over z_i, i ≠ k (bias paper, Eq. 3), of a loss that is not a sum
    of others.
    """
    if loss.needs != frozenset({"logits"}):
        raise ValueError(
            f"Expected a loss of logits alone, got `{loss}`, which needs"
            f" {', '.join(sorted(loss.needs))}."
        )
    if loss.kind != "margin":
        return _sampled(_of_rows(loss, num_classes), z, num_classes, sigma, draws)
    value = math.nan
    # the second settles it, except where the weight has a bend or a jump
    for times in (1, 8, 64, 512):
        others = log_sum(num_classes - 1, sigma, times)
        before = value
        value = -others.average(lambda rest: loss.sample_weight(z - rest))
        if abs(value - before) <= 1e-9 * abs(value):
            break
    return value


def _of_rows(loss: Loss, num_classes: int) -> Loss:
    """Return ``loss`` of single rows, in a batch where every class is the label equally often if it
    depends on that.
    """
    if isinstance(loss, Peer):  # the mean over the batch of what it takes away
        loss = CR(loss=_of_rows(loss.loss, num_classes))
    if isinstance(loss, CR):
        prior = (
            torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)
            if loss.prior is None
            else loss.prior
        )
        loss = loss.with_hyperparameters(prior=prior, warmup=0)  # as it is after the warm-up
    if not loss.independent_rows:
        raise ValueError(
            f"Expected a loss that doesn't depend on the batch, got `{loss}`. Give its cr a"
            " `prior`."
        )
    return loss


def _controls(rest: Tensor, z: float) -> Tensor:
    """Return what the grid can average: L = log Σ_{i≠k} exp z_i, L², p and p², of which CE's and
    MAE's errors are made.
    """
    p = torch.sigmoid(z - rest)
    return torch.stack([rest, rest.square(), p, p.square()], 1)


def _sampled(loss: Loss, z: float, num_classes: int, sigma: float, draws: int) -> float:
    """Return ⟨δ_k⟩(z) over antithetic pairs of the same draws each time, regressed on averages that
    are known exactly.
    """
    K = num_classes
    generator = torch.Generator().manual_seed(0)
    others = log_sum(K - 1, sigma)
    known = others.weights @ _controls(torch.from_numpy(others.points), z).numpy()
    known = torch.from_numpy(np.append(known, (K - 1) * sigma**2))
    size = max(1, 2**17 // K)  # of a batch: 1 MiB
    design = []
    errors = []
    for batch in range(max(math.ceil(64 / size), draws // (size * K))):
        drawn = torch.randn(size, K, generator=generator, dtype=torch.float64) * sigma
        label = (torch.arange(size)[:, None] + batch * size) % K  # (B, 1)
        for noise in (drawn, -drawn):  # (B, K)
            with torch.enable_grad():
                at = torch.full((size, 1), z, dtype=torch.float64, requires_grad=True)
                losses = loss.per_sample(Output(noise.scatter(1, label, at)), label[:, 0])
                errors.append(torch.autograd.grad(losses.sum(), at)[0])
            rest = noise.scatter(1, label, -torch.inf).logsumexp(1)
            squares = noise.scatter(1, label, 0.0).square().sum(1, keepdim=True)
            control = torch.cat([_controls(rest, z), squares], 1) - known  # (B, 5)
            design.append(torch.cat([torch.ones(size, 1, dtype=torch.float64), control], 1))
    # The mean is the intercept. Where p is small the controls are all but collinear: directions as
    # small as the grid's error are left out.
    columns = torch.cat(design)
    norm = torch.linalg.vector_norm(columns, dim=0).clamp_min(torch.finfo(torch.float64).tiny)
    fit = torch.linalg.lstsq(columns / norm, torch.cat(errors), rcond=1e-8, driver="gelsd")
    return float(fit.solution[0, 0] / norm[0])
