"""The distribution of log Σ exp z_i over independent N(0, σ²) logits, on a grid to about 1e-8: nothing is sampled."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Distribution(NamedTuple):
    """Quadrature weights at start, start + step, …; in numpy, since PyTorch's threads only cost time here."""

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
        """The same on a finer grid, by Fourier interpolation: the density is smooth and ends in zeros."""
        weights = np.fft.irfft(np.fft.rfft(self.weights), len(self.weights) * times)
        return Distribution(self.start, self.step / times, weights)


def normal(sigma: float, step: float) -> Distribution:
    """N(0, σ²) up to ±8.5σ, beyond which 2e-17 is left; the trapezoidal rule is exact to rounding for it."""
    reach = math.ceil(8.5 * sigma / step)
    weights = np.exp(-((np.arange(-reach, reach + 1) * (step / sigma)) ** 2) / 2)
    return Distribution(-reach * step, step, weights / weights.sum())


def combined(f: np.ufunc, a: Distribution, b: Distribution) -> Distribution:
    """The distribution of f(X, Y) for independent X and Y on grids of the same step.

    The mass of each pair is shared by the six points around f(x, y) so that its moments up to the fifth are kept.
    """
    mass, values = np.outer(a.weights, b.weights), f.outer(a.points, b.points)
    kept = np.abs(mass) > 1e-18
    mass, values = mass[kept], values[kept]
    start = values.min() - 3 * a.step
    position = (values - start) / a.step
    whole = np.floor(position)
    fraction, index = position - whole, whole.astype(int)
    weights = np.zeros(int(index.max()) + 4)
    for i, coefficients in zip(_SIX, _LAGRANGE.T, strict=True):
        share = np.polyval(coefficients, fraction)  # not as a matrix product: BLAS' threads take longer
        weights += np.bincount(index + i, mass * share, len(weights))
    inside = np.flatnonzero(np.abs(weights) > 1e-17)
    weights = weights[inside[0] : inside[-1] + 1]
    return Distribution(float(start + inside[0] * a.step), a.step, weights / weights.sum())


_SIX = np.arange(-2, 4)
_LAGRANGE = np.linalg.inv(np.vander(_SIX))  # coefficients of the polynomials that are one at one of the six


@functools.lru_cache(maxsize=512)
def log_sum(count: int, sigma: float, times: int = 1) -> Distribution:
    """The distribution of log Σ exp z_i over ``count`` logits, by halves; on a grid so many ``times`` finer."""
    if times > 1:
        return log_sum(count, sigma).finer(times)
    if count == 1:
        return normal(sigma, max(min(sigma, 1.0) / 8, sigma / 40))  # fine for σ and for w(Δ), but 700 points at most
    a, b = log_sum(count // 2, sigma), log_sum(count - count // 2, sigma)
    step = min(a.step, b.step)
    total = combined(np.logaddexp, *(d.finer(2) if d.step > step else d for d in (a, b)))
    variance = total.weights @ (total.points - total.mean) ** 2
    return total.finer(2) if variance < (5 * step) ** 2 else total  # the sum of many logits varies little
