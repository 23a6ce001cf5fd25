"""Simulated crowds whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from noiseproof.data.votes import Votes


@dataclass(frozen=True)
class Crowd:
    votes: Votes
    truth: NDArray[np.int64]  # (N,)
    confusion: NDArray[np.float64]  # (A, K, K): P(label l | true k)


def simulate(
    seed: int,
    *,
    rows: int = 500,
    annotators: int = 60,
    classes: int = 3,
    per_row: int = 5,
    mean: float = 0.75,
    spread: float = 1.0,
    classwise: float = 0.6,
    spam: float = 0.15,
    difficulty: float = 0.0,
    skew: float = 1.0,
    batch: int = 1,
) -> Crowd:
    """Annotator a is right about class k with log odds logit(mean) + spread·u_a + classwise·v_ak,
    and errs as all do.

    A share ``spam`` answers without looking; some label many rows and most few (Zipf, ``skew``); of
    a row with difficulty d all log odds are lower by it. Rows come in batches of ``batch`` with the
    same annotators, as in RTE.
    """
    random = np.random.default_rng(seed)
    K, A = classes, annotators
    truth = random.choice(K, rows, p=random.dirichlet(np.full(K, 8.0)))
    odds = np.log(mean / (1 - mean)) + spread * random.standard_normal((A, 1))
    odds = odds + classwise * random.standard_normal((A, K))
    errors = np.zeros((K, K))
    errors[~np.eye(K, dtype=bool)] = random.dirichlet(np.ones(K - 1), size=K).ravel()
    right = 1 / (1 + np.exp(-odds))
    confusion = errors * (1 - right)[:, :, None] + right[:, :, None] * np.eye(K)
    is_spam = random.random(A) < spam
    confusion[is_spam] = random.dirichlet(np.ones(K), size=int(is_spam.sum()))[:, None, :]
    share = 1 / np.arange(1, A + 1) ** skew
    batches = range(0, rows, batch)
    chosen = [
        np.sort(random.choice(A, per_row, replace=False, p=share / share.sum())) for _ in batches
    ]
    chosen = [people for people in chosen for _ in range(batch)][:rows]
    row, annotator = np.repeat(np.arange(rows), per_row), np.concatenate(chosen)
    p = confusion[annotator, truth[row]]  # (V, K)
    if difficulty:
        at = np.arange(len(row)), truth[row]
        harder = np.exp(difficulty * random.standard_normal(rows))[row]
        p[at] = p[at] * harder / (p[at] * harder + 1 - p[at])
        others = np.ones_like(p)
        others[at] = 0
        p = np.where(
            others > 0, p * ((1 - p[at]) / np.maximum((p * others).sum(1), 1e-12))[:, None], p
        )
    label = (p.cumsum(1) / p.sum(1, keepdims=True) < random.random((len(p), 1))).sum(1)
    return Crowd(
        Votes(row, annotator, label, rows, tuple(f"w{a}" for a in range(A))), truth, confusion
    )
