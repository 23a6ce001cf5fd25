"""The noise rate: the share of wrong labels, with bounds for what the predictions leave open."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from noiseproof.judge.posterior import EM_ROUNDS, ClassNoise, NoisyRows, run_em
from noiseproof.judge.prior import (
    balanced_contradictions,
    bounds,
    certain_contradictions,
    likely_rate,
)

CONVERGED = 30  # rounds of EM after which the rate hardly moves


@dataclass(frozen=True)
class RateEstimates:
    """Shares of wrong labels, estimated in four ways."""

    converged: float  # the posterior's after many rounds: overlap explains as much as it can
    posterior: float
    certain: tuple[float, float]  # what the most certain predictions contradict, and at least
    contradicted: float  # every contradiction is an error, with all classes alike

    def times(self, share: float) -> RateEstimates:
        """The rates among more rows, of which ``share`` may be wrong."""
        return RateEstimates(
            share * self.converged,
            share * self.posterior,
            (share * self.certain[0], share * self.certain[1]),
            share * self.contradicted,
        )


@dataclass(frozen=True)
class NoiseRate:
    """The estimated share of wrong labels and its bounds, without sampling error."""

    estimate: float
    low: float
    high: float

    @classmethod
    def exact(cls, rate: float) -> NoiseRate:
        """Of trusted rows or several annotators, which distinguish overlap from noise."""
        return cls(rate, rate, rate)

    @classmethod
    def likely(cls, estimates: RateEstimates, *, is_predictable: bool) -> NoiseRate:
        """What sets like this one turned out to have."""
        rate = likely_rate(estimates.posterior, estimates.certain, estimates.contradicted)
        low, high = bounds(rate, estimates.converged, estimates.contradicted)
        return cls(rate, low if is_predictable else 0.0, high)


def estimate_rates(rows: NoisyRows, sample: NoisyRows, beta: float) -> RateEstimates:
    """Rates of ``rows``; those of the posterior, which take most of the work, on a ``sample`` of
    them.
    """
    posterior = _mean_wrong(sample, ClassNoise(beta, run_em(sample, beta, EM_ROUNDS)))
    converged = _mean_wrong(sample, ClassNoise(beta, run_em(sample, beta, CONVERGED)))
    return RateEstimates(
        converged,
        posterior,
        certain_contradictions(rows.labels, rows.probs),
        balanced_contradictions(rows.labels, rows.probs),
    )


def _mean_wrong(rows: NoisyRows, noise: ClassNoise) -> float:
    right = [
        truth.gather(1, rows.labels[block, None])
        for block, truth in noise.posterior(rows.labels, rows.probs)
    ]
    return 1 - float(torch.cat(right).mean())


def shift_to_mean(probs: Tensor, mean: float) -> tuple[Tensor, float]:
    """Probabilities (n,) whose log odds are shifted by one number, so that they have this ``mean``;
    and that number.
    """
    log_odds = torch.logit(probs, eps=1e-9)
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        if float(torch.sigmoid(log_odds + middle).mean()) < mean:
            low = middle
        else:
            high = middle
    return shifted(probs, low), low


def shifted(probs: Tensor, shift: float) -> Tensor:
    """Probabilities (n,) whose log odds are larger by ``shift``."""
    return torch.sigmoid(torch.logit(probs, eps=1e-9) + shift)
