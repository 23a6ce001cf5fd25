"""The noise rate: the share of wrong labels, with bounds for what overlap between classes leaves open."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from noiseproof.audit.judge.posterior import (
    EM_ROUNDS,
    SMALL,
    ClassNoise,
    NoisyRows,
    confident_joint,
    one_way_mass,
    run_em,
)

CONVERGED = 30  # rounds of EM after which the rate hardly moves
ONE_WAY = 10.0  # one-way mass of a tenth of all contradictions suffices to count all of them


@dataclass(frozen=True)
class RateEstimates:
    """Shares of wrong labels, estimated in four ways."""

    converged: float  # the posterior's after many rounds: overlap explains as much as it can
    posterior: float
    confident: float  # the confident joint's: every confident contradiction is an error
    one_way: float  # every contradiction is, as far as they go one way

    def times(self, share: float) -> RateEstimates:
        """The rates among more rows, of which ``share`` may be wrong."""
        return RateEstimates(
            share * self.converged, share * self.posterior, share * self.confident, share * self.one_way
        )


@dataclass(frozen=True)
class NoiseRate:
    """The estimated share of wrong labels and its bounds, without sampling error."""

    estimate: float
    low: float
    high: float
    highest: float  # `high` if noise goes one way

    @classmethod
    def exact(cls, rate: float) -> NoiseRate:
        """Of trusted rows or several annotators, which tell overlap from noise."""
        return cls(rate, rate, rate, rate)

    @classmethod
    def between(cls, estimates: RateEstimates, *, is_predictable: bool) -> NoiseRate:
        """The geometric mean of the posterior's rate and the confident joint's, between the lowest and the highest."""
        rate = math.sqrt(estimates.posterior * max(estimates.posterior, estimates.confident))
        low = min(estimates.converged, rate) if is_predictable else 0.0
        return cls(rate, low, max(estimates.confident, rate), estimates.one_way)


def estimate_rates(rows: NoisyRows, sample: NoisyRows, beta: float) -> RateEstimates:
    """Rates of ``rows``; those of the posterior, which take most of the work, on a ``sample`` of them."""
    posterior, converged = (
        _mean_wrong(sample, ClassNoise(beta, run_em(sample, beta, rounds))) for rounds in (EM_ROUNDS, CONVERGED)
    )
    confident = 1 - float(rows.joint.trace())
    # Where one class alone loses labels to another, half of its rows are less confident than their mean and not
    # counted. Overlap does not explain what goes one way by more than chance: McNemar's measure, in rows, is then χ² of
    # one degree of freedom for each pair of classes.
    joint = confident_joint(rows.labels, rows.probs, confident=False)
    contradicted = 1 - float(joint.trace())
    pairs = int(((joint + joint.T).fill_diagonal_(0) > 0).sum()) / 2
    excess = float(one_way_mass(joint).sum()) - (pairs + 2 * math.sqrt(2 * pairs)) / len(rows.labels)
    share = min(1.0, ONE_WAY * max(0.0, excess) / max(contradicted, SMALL))
    return RateEstimates(converged, posterior, confident, confident + share * max(0.0, contradicted - confident))


def _mean_wrong(rows: NoisyRows, noise: ClassNoise) -> float:
    right = [truth.gather(1, rows.labels[block, None]) for block, truth in noise.posterior(rows.labels, rows.probs)]
    return 1 - float(torch.cat(right).mean())


def shift_to_mean(probs: Tensor, mean: float) -> tuple[Tensor, float]:
    """Probabilities (n,) whose log odds are shifted by one number, so that they have this ``mean``; and that number."""
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
