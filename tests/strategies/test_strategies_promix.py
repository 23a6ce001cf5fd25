"""ProMix against steps typed from its paper and released code: what is chosen, and the loss of each
network.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from handmade_run import make_batch, make_run
from torch import Tensor

from noiseproof.data import get_dataset
from noiseproof.strategies.mixing import draw_mix
from noiseproof.strategies.promix import ProMix, agreed_counts
from noiseproof.train import Task, prepare
from noiseproof.train.step import Stepper

K = 10


@pytest.fixture(scope="module")
def task() -> Task:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.3")
    return replace(task, train=task.train.subset(torch.arange(200)))


def cross_entropy(z: Tensor, t: Tensor) -> Tensor:
    return -(t * z.log_softmax(1)).sum(1)


def chosen_by_hand(
    p: list[np.ndarray],
    m: int,
    small: np.ndarray,
    given: np.ndarray,
    tau: float,
    share: float | None,
) -> tuple[np.ndarray, np.ndarray]:
    """The rows of a step and their labels for network ``m``: class-wise small loss, MHCS and LGA,
    one row at a time.
    """
    labels, rows = np.empty(len(given), dtype=int), []
    for i, y in enumerate(given):
        trusted = small[i] or p[m][i, y] > tau
        labels[i] = y if trusted else p[m][i].argmax()
        if trusted:
            rows.append(i)
    if share is not None and len(rows) / len(given) < share:
        agreed = [
            i
            for i in range(len(given))
            if i not in rows
            and p[0][i].max() > tau
            and p[1][i].max() > tau
            and p[0][i].argmax() == p[1][i].argmax()
        ]
        agreed.sort(key=lambda i: -(p[0][i].max() + p[1][i].max()))
        rows += agreed[: int(len(given) * share) - len(rows)]
    return np.array(sorted(rows)), labels


def counts_by_hand(p: np.ndarray, given: np.ndarray, wanted: list[int]) -> list[int]:
    """The rows of each class that are trusted with ``agreed``, one class at a time."""
    least = []
    for k, most in enumerate(wanted):
        own, chance = p[given == k, k], (given == k).mean()
        likely = sum(q / (1 - q) > 2 * chance / (1 - chance) for q in own)
        least.append(max(min(most, likely), int((p[given == k].argmax(1) == k).sum())))
    sizes = [int((given == k).sum()) for k in range(len(wanted))]
    large = [k for k, size in enumerate(sizes) if size >= len(given) / len(wanted)]
    share = Fraction(sum(least[k] for k in large), sum(sizes[k] for k in large))
    least = [
        count if k in large else min(count, math.floor(share * sizes[k]))
        for k, count in enumerate(least)
    ]
    lacking = [max(0, most - count) for most, count in zip(wanted, least, strict=True)]
    room = max(0, sum(wanted) - sum(least))
    return [
        count + math.ceil(room * lack / max(1, sum(lacking)))
        for count, lack in zip(least, lacking, strict=True)
    ]


@pytest.mark.parametrize(
    # groups: of how many rows, their label, what is predicted of them
    ("groups", "wanted", "counts"),
    # labels 1 are wrong: none is trusted
    [
        ([(60, 0, [0.6, 0.4]), (40, 1, [0.6, 0.4])], [30, 20], [60, 0]),
        # nothing is learned: shares
        ([(60, 0, [0.1, 0.1, 0.8]), (40, 1, [0.1, 0.1, 0.8])], [30, 20, 0], [30, 20, 0]),
        # a rare class that is being learned
        ([(97, 0, [0.9, 0.1]), (3, 1, [0.7, 0.3])], [50, 2], [97, 2]),
        # 1 is not the larger one
        ([(10, 0, [0.9, 0.1]), (50, 0, [0.4, 0.6]), (40, 1, [0.4, 0.6])], [30, 20], [30, 20]),
        # 4/5 of 0, so of 1
        ([(48, 0, [0.9, 0.1]), (12, 0, [0.4, 0.6]), (40, 1, [0.1, 0.9])], [30, 20], [48, 32]),
        (
            [
                (30, 0, [0.8, 0.1, 0.1]),
                (10, 0, [0.1, 0.1, 0.8]),
                (40, 1, [0.1, 0.1, 0.8]),
                (5, 2, [0.1, 0.1, 0.8]),
                # 30, 0 and 5 are predicted; 15 are filled up, 4 to 1
                (15, 2, [0.8, 0.1, 0.1]),
            ],
            [20, 20, 10],
            [30, 12, 8],
        ),
    ],
)
def test_counts_of_rows_follow_predictions(
    groups: list[tuple[int, int, list[float]]], wanted: list[int], counts: list[int]
) -> None:
    p = torch.tensor([row for size, _, row in groups for _ in range(size)])
    given = torch.tensor([label for size, label, _ in groups for _ in range(size)])
    assert agreed_counts(p, given, torch.tensor(wanted)).tolist() == counts
    assert counts_by_hand(p.double().numpy(), given.numpy(), wanted) == counts


@pytest.mark.parametrize(
    ("share", "equal", "agreed"),
    [
        (None, True, False),
        (0.6, True, False),
        (1.0, True, False),
        (0.6, False, False),
        (0.6, False, True),
    ],
)
def test_steps_are_the_papers(task: Task, share: float | None, equal: bool, agreed: bool) -> None:
    build = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    run = make_run(task, models=2, build=build, weight_scale=3.0, epoch=6, epochs=20)
    strategy = ProMix(
        warmup=2,
        rho=0.2,
        tau=0.6,
        ramp=8,
        guess_from=None if share is None else 5,
        share=share or 0.9,
        equal=equal,
        agreed=agreed,
    )
    run.strategies = [strategy]
    strategy.setup(run)
    nets = [copy.deepcopy(model.plain) for model in run.models]
    optimisers = [build(net.parameters()) for net in nets]
    x, given = make_batch(run).x, run.data.given.numpy()
    random, guesses, other_than_share = np.random.default_rng(0), 0, 0
    for epoch in (6, 7):
        run.epoch = epoch
        strategy.start_epoch(run)
        small = np.zeros((len(given), 2), dtype=bool)
        with torch.no_grad():
            both = sum(net(x).logits.softmax(1) for net in nets).numpy() / 2
        of_classes = [np.flatnonzero(given == k) for k in range(K)]
        counts = [math.ceil(0.2 * (200 / K if equal else len(rows))) for rows in of_classes]
        if agreed:
            by_share, counts = counts, counts_by_hand(both, given, counts)
            other_than_share += counts != by_share
        for m, net in enumerate(nets):
            with torch.no_grad():
                losses = cross_entropy(net(x).logits, torch.eye(K).double()[given]).numpy()
            for of_class, count in zip(of_classes, counts, strict=True):
                small[of_class[losses[of_class].argsort(kind="stable")[:count]], m] = True
        np.testing.assert_array_equal(strategy.small, small)
        for _ in range(3):
            rows = random.permutation(200)[:60]
            with torch.no_grad():
                p = [net(x[rows]).logits.softmax(1).numpy() for net in nets]
            Stepper(run, None, ())(make_batch(run, rows))
            for m, net in enumerate(nets):
                chosen, labels = chosen_by_hand(p, m, small[rows, m], given[rows], 0.6, share)
                guesses += int((labels[chosen] != given[rows][chosen]).sum())
                t = torch.eye(K).double()[labels]
                lam, order = draw_mix(f"promix {m}", 4.0, len(chosen), run)
                a, b = rows[chosen], rows[chosen[order.numpy()]]
                mixed, target = (
                    lam * x[a] + (1 - lam) * x[b],
                    lam * t[chosen] + (1 - lam) * t[chosen[order.numpy()]],
                )
                loss = cross_entropy(net(x[a]).logits, t[chosen]).mean()
                # the same view twice
                loss = loss + epoch / 8 * (
                    cross_entropy(net(x[a]).logits, t[chosen]).mean()
                    + cross_entropy(net(mixed).logits, target).mean()
                )
                optimisers[m].zero_grad()
                loss.backward()
                optimisers[m].step()
            run.step += 1
    assert (guesses > 0) == (share is not None) and (other_than_share > 0) == agreed
    for model, net in zip(run.models, nets, strict=True):
        for ours, theirs in zip(model.plain.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
