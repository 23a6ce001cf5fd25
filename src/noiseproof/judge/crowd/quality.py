"""How good each annotator is, with an interval; what they confuse; whom to pay and whom to
retrain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from noiseproof.core.arrays import Bools, Floats, Ints
from noiseproof.core.messages import Brief
from noiseproof.judge.crowd.confusion import Annotators, VotedRows, count_pairs, draw_annotators
from noiseproof.judge.posterior import SMALL

if TYPE_CHECKING:
    import pandas as pd

# accuracies at which the likelihood is computed
RATES = (torch.arange(401, dtype=torch.float64) + 0.5) / 401
# log odds of labels at which it is tabulated
ODDS = torch.linspace(-12, 12, 241, dtype=torch.float64)
LEVEL = 0.95
# annotators that rows are given to: the best by the lower end of their interval
MAX_CANDIDATES = 20
FEW = 5  # labels below which nothing is advised
CONCENTRATED = 0.5  # share of the errors that one confusion must have to be named as the remedy
CHANCE = "no better than chance: do not rely on these labels"
TRAIN = "worse than the others: retrain"
BETTER = "better than the others: give difficult rows"
USUAL = "as the others"
UNKNOWN = "too few labels to tell"


@dataclass(frozen=True, eq=False, repr=False)
class AnnotatorQuality(Brief):
    """The share of right labels of A annotators, and what they confuse."""

    names: tuple[str, ...]
    labels: Ints  # (A,): how many
    accuracy: Floats  # (A,): P(a label is right)
    low: Floats  # (A,): of the 95 % interval
    high: Floats  # (A,)
    chance: Floats  # (A,): of one who gives the same labels to rows at random
    confusion: Floats  # (A, K, K): expected labels, a row for each true class

    def most_confused(self) -> tuple[Ints, Ints, Floats]:
        """Return the true class, the label and the expected number of the most frequent error of
        each annotator, (A,) each.
        """
        K = self.confusion.shape[-1]
        errors = np.where(np.eye(K, dtype=bool), 0.0, self.confusion).reshape(len(self.names), -1)
        at = errors.argmax(1)
        return at // K, at % K, errors[np.arange(len(at)), at]

    def others(self) -> Floats:
        """Return the accuracy of all other annotators together, (A,), NaN where there are none."""
        right = self.accuracy * self.labels
        total = self.labels.astype(np.float64)
        left = total.sum() - total
        return np.asarray(np.where(left > 0, (right.sum() - right) / np.maximum(left, 1), np.nan))

    def advice(self, classes: Sequence[str]) -> list[str]:
        """Return one sentence for each annotator, by the interval of their accuracy against chance
        and against the others.
        """
        advised = []
        others = self.others()
        true, label, count = self.most_confused()
        errors = self.labels * (1 - self.accuracy)
        for a in range(len(self.names)):
            if self.labels[a] < FEW:
                advised.append(UNKNOWN)
            elif self.low[a] <= self.chance[a]:
                advised.append(CHANCE if self.high[a] < others[a] else UNKNOWN)
            elif self.high[a] < others[a]:
                about = ""
                if count[a] >= CONCENTRATED * errors[a]:
                    about = f" on {classes[true[a]]!r}, often labelled {classes[label[a]]!r}"
                advised.append(TRAIN + about)
            else:
                advised.append(BETTER if self.low[a] > others[a] else USUAL)
        return advised

    def headline(self, classes: Sequence[str]) -> str:
        """Return one line for the terminal."""
        counts = Counter(advice.partition(":")[0] for advice in self.advice(classes))
        of_all = float(np.average(self.accuracy, weights=np.maximum(self.labels, 1e-9)))
        text = f"annotators: {len(self.names)}, {of_all:.1%} of their labels right"
        names = [advice.partition(":")[0] for advice in (CHANCE, TRAIN, BETTER)]
        if listed := [f"{counts[name]} {name}" for name in names if counts[name]]:
            text += f"; {', '.join(listed)}"
        return f"{text}."

    def table(self, classes: Sequence[str]) -> pd.DataFrame:
        """Return the rows of annotators.csv, from the worst annotator to the best by the upper end
        of the interval.
        """
        import pandas as pd

        true, label, count = self.most_confused()
        is_known = count >= 0.5
        names = np.array([*classes, ""], dtype=object)
        columns = {
            "annotator": self.names,
            "labels": self.labels,
            "quality": self.accuracy.round(4),
            "low": self.low.round(4),
            "high": self.high.round(4),
            "chance": self.chance.round(4),
            "confuses": names[np.where(is_known, true, -1)],
            "with": names[np.where(is_known, label, -1)],
            "confused": np.where(is_known, count, 0.0).round(1),
            "advice": self.advice(classes),
        }
        order = ["high", "quality", "annotator"]
        return pd.DataFrame(columns).sort_values(order, kind="stable", ignore_index=True)


def measure_quality(rows: VotedRows, fitted: Annotators) -> AnnotatorQuality:
    """Measure the accuracy r_a of each annotator, with an interval for the labels that they gave.

    A label l on row i is right with probability w_i = P(true l | x, labels of the others), and its
    likelihood under r is r·w_i + (1 − r)·e_i, where e_i = Σ_{k≠l} P(true k | x, others)·P(l | k,
    wrong). The interval has 95 % of the posterior of r on a grid, with Jeffreys' prior, averaged
    over draws of the confusions of all annotators. A label counts by the certainty of its row
    without it, (max_k P(true k | x, others) − 1/K)/(1 − 1/K): the errors of an uncertain consensus
    are shared by all who voted.
    """
    A = len(rows.votes.names)
    K = rows.num_classes
    counts = torch.zeros(A, K, K, dtype=torch.float64)
    truth_counts = torch.zeros(A, K, dtype=torch.float64)
    for block, votes, truth in rows.posterior_and_votes(fitted):
        rows.add_counts(truth, votes, block.start, counts)
        truth_counts.index_add_(
            0, rows.annotator[votes], _without_own(rows, fitted, truth, block, votes)
        )
    drawn = [_posterior_density(rows, annotators) for annotators in draw_annotators(rows, fitted)]
    density = torch.stack(drawn).mean(0)
    below = density.cumsum(1)
    given = count_pairs(rows.annotator, rows.label, (A, K))
    labels = given.sum(1).long()
    total = labels.clamp(min=1)[:, None]
    chance = (given / total * truth_counts / total).sum(1)
    return AnnotatorQuality(
        names=rows.votes.names,
        labels=labels.numpy(),
        accuracy=(density @ RATES).numpy(),
        low=_quantile(below, (1 - LEVEL) / 2),
        high=_quantile(below, (1 + LEVEL) / 2),
        chance=chance.numpy(),
        confusion=counts.transpose(1, 2).numpy(),
    )


def _posterior_density(rows: VotedRows, fitted: Annotators) -> Tensor:
    """Return the posterior of r_a at each of ``RATES``, (A, 401), where the confusions of the
    others are known.

    The log likelihood of a vote, log(r·w + (1 − r)·e), is log(r·exp(u) + 1 − r) up to a constant,
    with the log odds u = log(w/e). It is tabulated at ``ODDS``: each vote counts at the two of
    these next to its u, which is linear interpolation.
    """
    A = len(rows.votes.names)
    K = rows.num_classes
    errors = fitted.confusion * (1 - torch.eye(K, dtype=torch.float64))
    errors = errors / errors.sum(2, keepdim=True).clamp(min=SMALL)  # P(l | k, wrong)
    weights = torch.zeros(A, len(ODDS), dtype=torch.float64)  # votes, counted by their odds
    for block, votes, truth in rows.posterior_and_votes(fitted):
        annotator = rows.annotator[votes]
        label = rows.label[votes]
        without = _without_own(rows, fitted, truth, block, votes)  # (v, K)
        right = without.gather(1, label[:, None])[:, 0]
        wrong = (without * errors[annotator, :, label]).sum(1)
        odds = (right.clamp(min=SMALL) / wrong.clamp(min=SMALL)).log()
        place = (odds.clamp(ODDS[0], ODDS[-1]) - ODDS[0]) / (ODDS[1] - ODDS[0])
        below = place.long().clamp(max=len(ODDS) - 2)
        above = below + 1
        # from 0, where all classes are alike, to 1
        certainty = (without.amax(1) - 1 / K) / (1 - 1 / K)
        weights.index_put_((annotator, below), certainty * (above - place), accumulate=True)
        weights.index_put_((annotator, above), certainty * (place - below), accumulate=True)
    log_likelihood = (RATES * ODDS.exp()[:, None] + 1 - RATES).log()  # (241, 401)
    log_prior = -0.5 * (RATES.log() + (1 - RATES).log())  # of Jeffreys
    return (weights @ log_likelihood + log_prior).softmax(1)


def _without_own(
    rows: VotedRows, fitted: Annotators, truth: Tensor, block: slice, votes: slice
) -> Tensor:
    """P(true k | x, labels of the others) for each vote, (v, K): the posterior without the
    likelihood of one's own.
    """
    others = (
        truth[rows.row[votes] - block.start]
        / fitted.confusion[rows.annotator[votes], :, rows.label[votes]]
    )
    return others / others.sum(1, keepdim=True).clamp(min=SMALL)


def _quantile(below: Tensor, q: float) -> Floats:
    at = (below < q).sum(1).clamp(max=len(RATES) - 1)
    return RATES[at].numpy()


# Rows to label again


def label_again(
    rows: VotedRows,
    fitted: Annotators,
    quality: AnnotatorQuality,
    count: int,
    *,
    most: int | None = None,
    among: Bools | None = None,
) -> pd.DataFrame:
    """Rows whose next label is worth most, and who should give it: columns ``row``, ``annotator``
    and ``gain``.

    The gain of a label by annotator a is the information about the true one, in bits, I = H(q) −
    Σ_l P(l)·H(q | l) with P(l) = Σ_k q_k·P_a(l | k), over the number of labels that the row has.
    The annotator is the best of those who have not labelled the row. With ``most``, no one gets
    more rows than that; other rows than ``among`` (N,) are left out.
    """
    candidates = torch.from_numpy(np.argsort(-quality.low, kind="stable")[:MAX_CANDIDATES].copy())
    gains = []
    who = []
    for block, votes, truth in rows.posterior_and_votes(fitted):
        taken = _taken(rows, block, votes, candidates)
        # (n, C)
        bits = torch.stack([information(truth, fitted.confusion[a]) for a in candidates], 1)
        labels = np.diff(rows.votes.first[block.start : block.stop + 1])
        bits /= torch.from_numpy(np.maximum(labels, 1))[:, None]
        order = bits.masked_fill(taken, -1.0).sort(1, descending=True)
        gains.append(order.values)
        who.append(candidates[order.indices])
    gain = torch.cat(gains).numpy()  # (N, C), the best first
    annotator = torch.cat(who).numpy()  # (N, C)
    if among is not None:
        gain[~among] = -1
    return _assign(gain, annotator, count, most)


def _taken(rows: VotedRows, block: slice, votes: slice, candidates: Tensor) -> Tensor:
    """Return which of the candidates have labelled each row of a block, (n, C)."""
    place = torch.full((len(rows.votes.names),), -1)
    place[candidates] = torch.arange(len(candidates))
    at = place[rows.annotator[votes]]
    row = rows.row[votes] - block.start
    taken = torch.zeros(block.stop - block.start, len(candidates), dtype=torch.bool)
    taken[row[at >= 0], at[at >= 0]] = True
    return taken


def information(truth: Tensor, confusion: Tensor) -> Tensor:
    """Return what a label with these confusions (K, K) says about rows (n, K), in bits, (n,)."""
    says = (truth @ confusion).clamp(min=SMALL)
    per_class = (confusion * confusion.log2()).sum(1)  # −H(l | k)
    return (truth @ per_class - (says * says.log2()).sum(1)).clamp(min=0)


def _assign(gain: Floats, annotator: Ints, count: int, most: int | None) -> pd.DataFrame:
    """Return the ``count`` rows of the largest gain, each with the best annotator who has room."""
    import pandas as pd

    chosen: list[tuple[int, int, float]] = []
    given: Counter[int] = Counter()
    for row in np.argsort(-gain[:, 0], kind="stable").tolist():
        if len(chosen) == count or gain[row, 0] < 0:
            break
        for a, value in zip(annotator[row].tolist(), gain[row].tolist(), strict=True):
            if value >= 0 and (most is None or given[a] < most):
                given[a] += 1
                chosen.append((row, a, value))
                break
    chosen.sort(key=lambda one: -one[2])
    table = pd.DataFrame(chosen, columns=["row", "annotator", "gain"])
    return table.astype({"row": np.int64, "annotator": np.int64, "gain": np.float64})
