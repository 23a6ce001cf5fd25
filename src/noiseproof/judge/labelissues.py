"""The judgement of labels: the quality of each one, rates, and what judges a single row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.arrays import Bools, Floats, Floats32, Ints
from noiseproof.core.messages import Brief
from noiseproof.data.votes import Votes
from noiseproof.judge.crowd.confusion import Annotators, VotedRows
from noiseproof.judge.cut import Cut
from noiseproof.judge.interval import NEGLIGIBLE
from noiseproof.judge.posterior import SMALL, ClassNoise, RowPosterior, reduce_posterior
from noiseproof.judge.rate import shift_to_mean

MIN_TRUSTED = 20  # rows that suffice to fit β


MAY_HIDE = 0.05  # share that may be wrong, at most, where predictions show that labels look fine


# share of a class up to which labels look fine; of clean rare classes, 0.07 were measured
NEGLIGIBLE_OF_CLASS = 0.1


@dataclass(frozen=True, eq=False, repr=False)
class LabelIssues:
    """The quality of N given labels of K classes; rates, matrix and cuts refer to the counted
    rows.
    """

    quality: Floats32  # (N,) in [0, 1]: the probability that the given label is right
    is_issue: Bools  # (N,)
    suggested: Ints  # (N,) the most likely label other than the given one
    # (N,) in [0, 1]: the probability that the suggested label is right
    suggestion_quality: Floats32
    predicted: Ints  # (N,) the most likely label by the predictions alone
    noise_rate: float
    noise_interval: tuple[float, float]  # at least and at most
    class_rates: Floats  # (K,): share of wrong labels in each given class
    transition: Floats  # (K, K): T[i, j] = P(given j | true i), rows sum to one
    cut: Floats  # (K,): a label of class k whose quality is below cut[k] is an issue
    false_positive_rate: float  # expected share of right labels that are called issues
    margin: Floats32  # (N,): log p_given − log p of the best other class
    confidence: Floats32  # (N,): the predictions' probability of the given label
    # (N,): the predictions' probability of the suggested label
    suggested_confidence: Floats32
    # (N,): share of neighbours with the given label
    neighbour_agreement: Floats32 | None = None
    unlearned: Floats32 | None = None  # (N,) as in Evidence
    doubt: Floats32 | None = None  # (N,) as in Evidence
    hit_rate: float = 1.0  # share of the given labels that match predictions made without them
    chance_rate: float = 0.0  # share that predictions of the same frequencies match by chance
    is_predictable: bool = True  # whether labels are predictable from the features
    # share that confident neighbours contradict, where models count fewer errors
    contradicted: float | None = None
    # (K,) of labels that are words, or (C,) the words of sets; None where labels are class numbers
    classes: tuple[Any, ...] | None = None
    judge: RowJudge | None = None  # that a row is judged by, given predictions for it
    voted: VotedRows | None = None  # the rows with the votes of annotators and all other evidence

    def __repr__(self) -> str:
        share = "hardly predictable"
        if self.is_predictable:
            share = f"about {self.noise_rate:.1%} wrong"
        return f"{type(self).__name__}({self._counts()}, {share})"

    def _counts(self) -> str:
        number = int(self.is_issue.sum())
        return f"{len(self.quality)} labels of {len(self.cut)} classes, {number} issues"

    def labels_of(self, numbers: Ints) -> NDArray[Any]:
        """Labels of class numbers such as ``suggested``, as the given labels are written."""
        return numbers if self.classes is None else np.array(self.classes)[numbers]

    def consensus(self, given: Ints) -> Ints:
        """The most likely label of each row by all evidence, (N,)."""
        return np.where(self.suggestion_quality > self.quality, self.suggested, given)

    @property
    def lost_rates(self) -> Floats:
        """P(given ≠ k | true k), (K,): the share of each class whose rows have other labels."""
        return 1 - self.transition.diagonal()

    @property
    def may_be_fine(self) -> bool:
        """Whether overlap between classes may explain all but 1 % of what the predictions
        contradict.
        """
        return self.is_predictable and self.noise_interval[0] < NEGLIGIBLE

    @property
    def looks_fine(self) -> bool:
        """Whether at most 1 % of the labels are estimated to be wrong, and at most a tenth of any
        class.
        """
        by_class = max(self.class_rates.max(initial=0), self.lost_rates.max(initial=0))
        is_low = self.noise_rate <= NEGLIGIBLE and by_class <= NEGLIGIBLE_OF_CLASS
        is_shown = self.contradicted is None and self.noise_interval[1] <= MAY_HIDE
        return self.may_be_fine and is_shown and bool(is_low)

    @property
    def is_undecided(self) -> bool:
        """Whether all labels might be right if neighbours did not contradict them."""
        return self.may_be_fine and self.contradicted is not None


@dataclass(frozen=True, eq=False, repr=False)
class RowJudge(Brief):
    """What all rows share: with it, the label of a row is judged by the predictions for that row
    alone.
    """

    noise: ClassNoise
    annotators: Annotators | None = None
    shift: float = 0.0  # of the log odds of P(wrong)

    def posterior(self, given: Tensor, probs: Tensor, votes: Votes | None) -> RowPosterior:
        """The posterior of labels (N,), without the shift, by predictions (N, K) and votes."""
        truth = self.noise.posterior(given, probs)
        if votes is not None and self.annotators is not None:
            truth = self.voted(given, probs, votes).posterior(self.annotators)
        return reduce_posterior(given, probs, truth)

    def describe(
        self,
        given: Tensor,
        probs: Tensor,
        posterior: RowPosterior,
        wrong: Tensor,
        cut: Cut,
        counted: Tensor,
    ) -> dict[str, Any]:
        """Fields of ``LabelIssues`` that follow from P(wrong) (N,) and the cut, by the ``counted``
        rows (N,).
        """
        each = torch.arange(len(given))
        counts = select(counted)
        right = 1 - wrong
        transition = self.noise.adjusted_transition(given[counts], wrong[counts], probs[counts])
        return {
            "quality": cut.quality.numpy(),
            "is_issue": cut.is_issue.numpy(),
            "suggested": posterior.suggested.numpy(),
            "suggestion_quality": (wrong * posterior.suggested_share).float().numpy(),
            "predicted": posterior.predicted.numpy(),
            "transition": transition.numpy(),
            "cut": cut.thresholds.numpy(),
            "false_positive_rate": float(
                right[cut.is_issue].sum() / right[counted].sum().clamp(min=SMALL)
            ),
            "margin": posterior.margin.numpy(),
            "confidence": probs[each, given].numpy(),
            "suggested_confidence": probs[each, posterior.suggested].numpy(),
        }

    def voted(self, given: Tensor, probs: Tensor, votes: Votes) -> VotedRows:
        """The rows that annotators voted on, with all other evidence."""
        return VotedRows(votes, probs.shape[1], probs, given, self.noise.transition)


@dataclass(frozen=True, eq=False)
class CountedRows:
    """Which rows rates refer to, and which labels are known to be right."""

    counted: Tensor  # (N,) bool
    trusted: Tensor  # (N,) bool
    uncertain: Tensor  # (N,) bool: counted and not trusted
    uncertain_share: float  # of the counted rows
    calibrate: bool  # whether there are trusted rows enough to fit β

    @classmethod
    def of(cls, trusted: Any, counted: Any, num_rows: int) -> CountedRows:
        is_trusted = torch.zeros(num_rows, dtype=torch.bool)
        if trusted is not None:
            is_trusted = torch.from_numpy(row_mask("trusted", trusted, num_rows))
        is_counted = torch.ones_like(is_trusted)
        if counted is not None:
            is_counted = torch.from_numpy(row_mask("counted", counted, num_rows))
        if not bool(is_counted.any()):
            raise ValueError(
                "Expected rows that are counted, got none. Leave `counted` out to count all."
            )
        uncertain = is_counted & ~is_trusted
        share = float(uncertain.sum() / is_counted.sum())
        return cls(
            is_counted,
            is_trusted,
            uncertain,
            share,
            MIN_TRUSTED <= int(is_trusted.sum()) < num_rows,
        )

    def shift_to_rate(self, wrong: Tensor, rate: float) -> tuple[Tensor, float]:
        """P(wrong) of the uncertain rows, shifted so that all counted rows have this ``rate``; and
        the shift.
        """
        return shift_to_mean(wrong[self.uncertain], rate / max(self.uncertain_share, SMALL))


def select(mask: Tensor) -> Any:
    """An index for the rows of a mask (N,); of all rows, one that copies nothing."""
    return slice(None) if bool(mask.all()) else mask


def class_means(values: Tensor, classes: Tensor, num_classes: int, counted: Tensor) -> Floats:
    """The mean of ``values`` (N,) in each class, (K,), over the ``counted`` rows (N,); 0 without
    rows.
    """
    chosen = select(counted)
    sums = torch.bincount(classes[chosen], values[chosen], num_classes)
    counts = torch.bincount(classes[chosen], minlength=num_classes).clamp(min=1)
    return np.asarray((sums / counts).numpy())


def row_mask(name: str, rows: Any, num_rows: int) -> Bools:
    """Booleans (N,), or row numbers, as a mask."""
    chosen = np.asarray(rows)
    if chosen.dtype == bool and chosen.shape == (num_rows,):
        return chosen.copy()
    is_numbers = chosen.dtype.kind in "iu" and chosen.ndim == 1 and (chosen >= 0).all()
    if chosen.size and not is_numbers:
        raise ValueError(
            f"Expected `{name}` to hold {num_rows} booleans or row numbers, got {chosen.dtype} of"
            f" shape {chosen.shape}."
        )
    if chosen.size and chosen.max() >= num_rows:
        raise ValueError(
            f"Expected row numbers below {num_rows} in `{name}`, got {int(chosen.max())}. The first"
            " row is 0."
        )
    mask = np.zeros(num_rows, dtype=bool)
    if chosen.size:
        mask[chosen] = True
    return mask


def with_votes(given: Tensor, probs: Tensor, votes: Tensor) -> Tensor:
    """(1 − a)·p + a·v, with the a of 0, ¼, ½ under which the given labels are most likely."""
    pair = torch.cat([each.gather(1, given[:, None]) for each in (probs, votes)], 1).double()
    shares = torch.tensor([[1.0, 0.75, 0.5], [0.0, 0.25, 0.5]], dtype=torch.float64)
    a = float(shares[1, int((pair @ shares).clamp(min=0.001).log().mean(0).argmax())])
    return probs if a == 0 else torch.lerp(probs, votes, a)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LabelSetIssues(LabelIssues):
    """The quality of N rows with several of K labels, and of each label of a row.

    ``quality`` is the quality of the worst label of a row, and ``suggested_answers`` are the labels
    without the ones that are issues and with the missing ones. ``class_rates`` (K,) are shares of
    wrong labels among the given ones, ``transition`` (K, 2, 2) the probabilities of no and yes by
    the true answer, ``cut`` (K, 2) the cuts of no and yes.
    """

    names: tuple[str, ...]  # (K,)
    answers: Bools  # (N, K): the given labels
    label_quality: Floats32  # (N, K): P(the answer is right)
    label_is_issue: Bools  # (N, K)
    label_probs: Floats32  # (N, K): the predictions' probability of yes
    suggested_answers: Bools  # (N, K)
    is_judged: Bools  # (K,): whether enough rows have the label

    def _counts(self) -> str:
        return (
            f"{len(self.quality)} rows of {len(self.names)} labels,"
            f" {int(self.label_is_issue.sum())} labels to add or remove in"
            f" {int(self.is_issue.sum())} rows"
        )

    @property
    def lost_rates(self) -> Floats:
        """The share of rows that should have each label and lack it, (K,)."""
        return np.asarray(self.transition[:, 1, 0])

    def changes(self, row: int) -> tuple[list[str], list[str]]:
        """The labels to add to a row, and those to remove from it."""
        names = np.array(self.names, dtype=object)
        is_issue = self.label_is_issue[row]
        given = self.answers[row]
        return names[is_issue & ~given].tolist(), names[is_issue & given].tolist()
