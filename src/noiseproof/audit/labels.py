"""Which labels are wrong: the stages posterior → noise rate → interval → cut, from labels and
evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.audit.crowd.confusion import Annotators, VotedRows, fit_annotators
from noiseproof.audit.evidence import VOTERS, Evidence
from noiseproof.audit.evidence.neighbours import nearest, neighbour_votes
from noiseproof.audit.judge.cut import Cut, parse_goal, worst_labels
from noiseproof.audit.judge.interval import NEGLIGIBLE, Guesses, rate_interval
from noiseproof.audit.judge.posterior import (
    SMALL,
    ClassNoise,
    NoisyRows,
    RowPosterior,
    fit_class_noise,
    reduce_posterior,
)
from noiseproof.audit.judge.rate import (
    NoiseRate,
    RateEstimates,
    estimate_rates,
    shift_to_mean,
    shifted,
)
from noiseproof.audit.sets import are_lists, is_matrix
from noiseproof.core.checks import check_count
from noiseproof.core.messages import Brief, preview
from noiseproof.core.probs import check_probabilities
from noiseproof.data.votes import Votes

if TYPE_CHECKING:
    from noiseproof.audit.sources.base import AuditData

P = ParamSpec("P")
MIN_VOTED = 50  # rows with neighbours that may vote, below which the models' guesses count
MIN_TRUSTED = 20  # rows that suffice to fit β
MAY_HIDE = 0.05  # share that may be wrong, at most, where predictions show that labels look fine
# share of a class up to which labels look fine; of clean rare classes, 0.07 were measured
NEGLIGIBLE_OF_CLASS = 0.1
DYNAMICS = 0.4  # weight of predictions for training rows beside those out of sample


@dataclass(frozen=True, eq=False, repr=False)
class LabelIssues:
    """The quality of N given labels of K classes; rates, matrix and cuts are those of the counted
    rows.
    """

    quality: NDArray[np.float32]  # (N,) in [0, 1]: the probability that the given label is right
    is_issue: NDArray[np.bool_]  # (N,)
    suggested: NDArray[np.int64]  # (N,) the most likely label other than the given one
    # (N,) in [0, 1]: the probability that the suggested label is right
    suggestion_quality: NDArray[np.float32]
    predicted: NDArray[np.int64]  # (N,) the most likely label by the predictions alone
    noise_rate: float
    noise_interval: tuple[float, float]  # at least and at most
    class_rates: NDArray[np.float64]  # (K,): share of wrong labels among those of each given class
    transition: NDArray[np.float64]  # (K, K): T[i, j] = P(given j | true i), rows sum to one
    cut: NDArray[np.float64]  # (K,): a label of class k whose quality is below cut[k] is an issue
    false_positive_rate: float  # expected share of right labels that are called issues
    margin: NDArray[np.float32]  # (N,): log p_given − log p of the best other class
    confidence: NDArray[np.float32]  # (N,): the predictions' probability of the given label
    # (N,): the predictions' probability of the suggested label
    suggested_confidence: NDArray[np.float32]
    # (N,): share of neighbours with the given label
    neighbour_agreement: NDArray[np.float32] | None = None
    unlearned: NDArray[np.float32] | None = None  # (N,) as in Evidence
    doubt: NDArray[np.float32] | None = None  # (N,) as in Evidence
    hit_rate: float = 1.0  # share of the given labels that match predictions made without them
    chance_rate: float = 0.0  # share that predictions of the same frequencies match by chance
    is_predictable: bool = True  # whether labels are predictable from the features
    # share that confident neighbours contradict, where models count fewer errors
    contradicted: float | None = None
    # (K,) of labels that are words; None where labels are class numbers
    classes: tuple[Any, ...] | None = None
    judge: RowJudge | None = None  # that a row is judged by, given predictions for it
    voted: VotedRows | None = None  # the rows with the votes of annotators and all other evidence

    def __repr__(self) -> str:
        share = (
            f"about {self.noise_rate:.1%} wrong" if self.is_predictable else "hardly predictable"
        )
        counts = (
            f"{len(self.quality)} labels of {len(self.cut)} classes, {int(self.is_issue.sum())}"
            " issues"
        )
        return f"LabelIssues({counts}, {share})"

    def labels_of(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Labels of class numbers such as ``suggested``, as the given labels are written."""
        return numbers if self.classes is None else np.array(self.classes)[numbers]

    def consensus(self, given: NDArray[np.int64]) -> NDArray[np.int64]:
        """The most likely label of each row by all evidence, (N,)."""
        return np.where(self.suggestion_quality > self.quality, self.suggested, given)

    @property
    def lost_rates(self) -> NDArray[np.float64]:
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


def _judging_sets(judge: Callable[P, LabelIssues]) -> Callable[P, LabelIssues]:
    """``judge`` for one label a row, and the judgement on each label of rows with several of
    them.
    """

    @wraps(judge)
    def judge_any(*args: P.args, **options: P.kwargs) -> LabelIssues:
        labels = args[0] if args else options.get("labels")
        if not is_matrix(labels) and not are_lists(labels):
            return judge(*args, **options)
        # which judges by this function
        from noiseproof.audit.labelsets import find_label_set_issues

        return find_label_set_issues(*args, **options)  # type: ignore[arg-type]

    return judge_any


@_judging_sets
def find_label_issues(
    labels: Any,
    pred_probs: Any = None,
    *,
    classes: Sequence[Any] | None = None,
    features: Any = None,
    evidence: Evidence | None = None,
    trusted: Any = None,
    annotators: Any = None,
    groups: Any = None,
    counted: Any = None,
    goal: str = "f1",
    neighbours: int = VOTERS,
    seed: int = 0,
) -> LabelIssues:
    """Rank the given labels from bad to good by the class-noise posterior, and cut the list.

    Mistakes of people, rules and tools look like overlap between classes, so predictions alone
    cannot tell how many labels are wrong. The noise rate is what sets like this one turned out to
    have (`judge/prior.py`), between the errors that no overlap explains and the most that such sets
    had; the posterior's log odds are shifted until their mean agrees. The cut maximises the
    expected F1. Predictions that match no more labels than by chance contradict none: nothing is an
    issue. Where confident neighbours contradict more labels than the range allows, its upper end is
    raised to their share. Decisions on a sample of rows measure the rate without assumptions.

    Args:
        labels: (N,) classes as integers from 0, or as words; of several labels a row (N, K) zeros
            and ones, or lists, for which each label is judged by itself (``LabelSetIssues``).
        pred_probs: (N, K), from models that did not see the row's own label; of several labels, of
            each by itself.
        classes: names of the K columns; by default, the labels that are words, sorted as
            scikit-learn does.
        features: (N, F): neighbours vote beside ``pred_probs`` as far as that makes the labels more
            likely.
        evidence: of ``cross_validate`` or ``watch_training``, in place of ``pred_probs`` and
            ``features``.
        trusted: (N,) bool, or row numbers: labels known to be right. 20 or more calibrate the
            predictions, so that the noise rate has no range but the sampling error.
        annotators: ``Votes``, or (N, A) labels of several annotators, −1 where one gave none.
        groups: (N,): rows of one group (near-duplicates) are not neighbours.
        counted: (N,) bool, or row numbers: the rows that rates, matrix and cuts refer to; all
            others only help.
        goal: what the cut is made for: ``f1``, ``precision=0.9``, ``recall=0.9`` (as expected from
            P(wrong)), or ``budget=300`` rows; class limits apply to ``f1`` alone.
        neighbours: how many vote.

    >>> issues = find_label_issues(
    ...     [0, 0, 1, 1, 0], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.05, 0.95]]
    ... )
    >>> int(issues.quality.argmin()), int(issues.suggested[4])
    (4, 1)
    """
    # (N, K)
    probs = _checked_probabilities(evidence.pred_probs if evidence is not None else pred_probs)
    given, names = _checked_labels(labels, probs, classes)
    N, K = probs.shape
    rows = CountedRows.of(trusted, counted, N)
    people = None if annotators is None else _votes(annotators, N, K)
    probs, agreement = _with_neighbours(given, probs, evidence, features, groups, neighbours, seed)
    guesses = _guesses(given, probs, evidence, rows)
    predictability = guesses.predictability(K)
    is_predictable = rows.calibrate or people is not None or predictability.is_predictable
    judge, estimates, probs, posterior = _fit(given, probs, rows, evidence, people, seed)
    wrong = posterior.wrong.masked_fill(rows.trusted, 0)
    rate = _noise_rate(
        estimates, wrong, rows, has_annotators=people is not None, is_predictable=is_predictable
    )
    contradiction = guesses.confident_contradiction() if is_predictable and people is None else None
    interval = rate_interval(rate, int(rows.counted.sum()), contradiction)
    wrong[rows.uncertain], shift = rows.shift_to_rate(wrong, rate.estimate)
    cut = worst_labels(wrong, rows.uncertain, K, parse_goal(goal), is_predictable=is_predictable)
    return LabelIssues(
        **judge.describe(given, probs, posterior, wrong, cut, rows.counted),
        noise_rate=rate.estimate,
        noise_interval=(interval.low, interval.high),
        class_rates=class_means(wrong, given, K, rows.counted),
        neighbour_agreement=agreement,
        unlearned=None if evidence is None else evidence.unlearned,
        doubt=None if evidence is None else evidence.doubt,
        **asdict(replace(predictability, is_predictable=is_predictable)),
        contradicted=interval.contradicted,
        classes=names,
        judge=replace(judge, shift=shift),
        voted=None if people is None else judge.voted(given, probs, people),
    )


@dataclass(frozen=True, eq=False, repr=False)
class RowJudge(Brief):
    """What all rows share: with it, the label of a row is judged by the predictions for that row
    alone.
    """

    noise: ClassNoise
    annotators: Annotators | None = None
    shift: float = 0.0  # of the log odds of P(wrong)

    def posterior(self, given: Tensor, probs: Tensor, votes: Votes | None) -> RowPosterior:
        """Of labels (N,), predictions (N, K) and the votes of annotators, without the shift."""
        if votes is None or self.annotators is None:
            return reduce_posterior(given, probs, self.noise.posterior(given, probs))
        return reduce_posterior(
            given, probs, self.voted(given, probs, votes).posterior(self.annotators)
        )

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
        at, counts, right = torch.arange(len(given)), select(counted), 1 - wrong
        return {
            "quality": cut.quality.numpy(),
            "is_issue": cut.is_issue.numpy(),
            "suggested": posterior.suggested.numpy(),
            "suggestion_quality": (wrong * posterior.suggested_share).float().numpy(),
            "predicted": posterior.predicted.numpy(),
            "transition": (
                self.noise.adjusted_transition(given[counts], wrong[counts], probs[counts]).numpy()
            ),
            "cut": cut.thresholds.numpy(),
            "false_positive_rate": float(
                right[cut.is_issue].sum() / right[counted].sum().clamp(min=SMALL)
            ),
            "margin": posterior.margin.numpy(),
            "confidence": probs[at, given].numpy(),
            "suggested_confidence": probs[at, posterior.suggested].numpy(),
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
        is_trusted = _mask("trusted", () if trusted is None else trusted, num_rows)
        is_counted = _mask(
            "counted", np.ones(num_rows, dtype=bool) if counted is None else counted, num_rows
        )
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
        """P(wrong) of the uncertain rows, shifted so that ``rate`` is that of all counted ones; and
        the shift.
        """
        return shift_to_mean(wrong[self.uncertain], rate / max(self.uncertain_share, SMALL))


def select(mask: Tensor) -> Any:
    """An index for the rows of a mask (N,); of all rows, one that copies nothing."""
    return slice(None) if bool(mask.all()) else mask


def class_means(
    values: Tensor, classes: Tensor, num_classes: int, counted: Tensor
) -> NDArray[np.float64]:
    """The mean of ``values`` (N,) in each class, (K,), over the ``counted`` rows (N,); 0 without
    rows.
    """
    values, classes = values[select(counted)], classes[select(counted)]
    sums = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, classes, values)
    return np.asarray((sums / torch.bincount(classes, minlength=num_classes).clamp(min=1)).numpy())


def _fit(
    given: Tensor,
    probs: Tensor,
    rows: CountedRows,
    evidence: Evidence | None,
    votes: Votes | None,
    seed: int,
) -> tuple[RowJudge, RateEstimates, Tensor, RowPosterior]:
    """T and β, the noise rates, the predictions to rank by (with those for training rows, if any),
    and what follows.
    """
    generator = torch.Generator().manual_seed(seed)
    fitted = select(~rows.trusted if rows.calibrate else rows.counted)

    def fit(p: Tensor) -> tuple[ClassNoise, NoisyRows, NoisyRows]:
        noisy = NoisyRows.of(given[fitted], p[fitted])
        sample = noisy.sample(generator)
        trusted = (given[rows.trusted], p[rows.trusted]) if rows.calibrate else None
        return fit_class_noise(noisy, sample, trusted), noisy, sample

    noise, noisy, sample = fit(probs)
    estimates = estimate_rates(noisy, sample, noise.beta)
    ranking = probs if evidence is None else with_dynamics(probs, evidence, votes)
    if ranking is not probs:
        probs = ranking
        noise, _, sample = fit(probs)
    if votes is None and not rows.calibrate:
        noise = noise.for_ranking(sample)
    judge = RowJudge(noise)
    if votes is not None:
        judge = replace(judge, annotators=fit_annotators(judge.voted(given, probs, votes)))
    return judge, estimates, probs, judge.posterior(given, probs, votes)


def _checked_probabilities(pred_probs: Any) -> Tensor:
    """Probabilities (N, K) float32 whose rows sum to one."""
    if pred_probs is None:
        raise ValueError(
            "Expected `pred_probs` (N, K) or `evidence`, got neither. cross_validate makes"
            " evidence."
        )
    probs = check_probabilities(
        "pred_probs", np.ascontiguousarray(pred_probs), tolerance=0.02, dtype=torch.float32
    )
    return probs / probs.sum(1, keepdim=True)


def _checked_labels(
    labels: Any, probs: Tensor, classes: Sequence[Any] | None
) -> tuple[Tensor, tuple[Any, ...] | None]:
    """Class numbers (N,) int64, and the classes of labels that are words."""
    given, K = np.asarray(labels), probs.shape[1]
    if given.ndim != 1 or len(given) != len(probs):
        raise ValueError(
            f"Expected `labels` of shape ({len(probs)},), one for each row, got {given.shape}."
        )
    if classes is not None or given.dtype.kind in "USOb":
        return _numbered(given, K, classes)
    if given.dtype.kind not in "iu":
        raise TypeError(f"Expected words or integers from 0 as `labels`, got dtype {given.dtype}.")
    y = torch.as_tensor(given.astype(np.int64))
    if int(y.min()) < 0 or int(y.max()) >= K:
        raise ValueError(
            f"Expected labels in 0 … {K - 1}, the columns of `pred_probs`, got {int(y.min())} …"
            f" {int(y.max())}."
        )
    return y, None


def _numbered(
    given: NDArray[Any], num_columns: int, classes: Sequence[Any] | None
) -> tuple[Tensor, tuple[Any, ...]]:
    """Class numbers (N,) of labels by their ``classes``, which are by default their sorted
    values.
    """
    words = given.tolist()
    if missing := [i for i, word in enumerate(words) if word is None or word != word]:
        raise ValueError(
            f"Expected a label in every row, got none in {len(missing)}, the first of them"
            f" {missing[0]}."
        )
    names = tuple(np.unique(given).tolist() if classes is None else classes)
    if len(names) != num_columns:
        raise ValueError(
            f"Expected a class for each of the {num_columns} columns of `pred_probs`, got"
            f" {len(names)}: {preview(names)}. Name all classes, in the order of the columns, with"
            " `classes`."
        )
    number = {name: k for k, name in enumerate(names)}
    if unknown := sorted({str(word) for word in words if word not in number}):
        raise ValueError(
            f"Expected `labels` among `classes`, {preview(names)}, got {preview(unknown)}."
        )
    return torch.tensor([number[word] for word in words], dtype=torch.int64), names


def _noise_rate(
    estimates: RateEstimates,
    wrong: Tensor,
    rows: CountedRows,
    *,
    has_annotators: bool,
    is_predictable: bool,
) -> NoiseRate:
    """The rate of the counted rows; annotators and trusted rows tell overlap from noise."""
    if has_annotators:
        return NoiseRate.exact(float(wrong[rows.counted].mean()))
    estimates = estimates.times(rows.uncertain_share)
    if rows.calibrate:
        return NoiseRate.exact(estimates.converged)
    return NoiseRate.likely(estimates, is_predictable=is_predictable)


def _mask(name: str, rows: Any, num_rows: int) -> Tensor:
    """Booleans (N,), or row numbers, as a mask."""
    chosen = np.asarray(rows)
    mask = np.zeros(num_rows, dtype=bool)
    if chosen.dtype == bool and chosen.shape == (num_rows,):
        mask = chosen.copy()
    elif (
        chosen.dtype.kind in "iu"
        and chosen.ndim == 1
        and ((chosen >= 0) & (chosen < num_rows)).all()
    ):
        mask[chosen] = True
    elif chosen.size:
        raise ValueError(
            f"Expected `{name}` to be row numbers below {num_rows}, or one true or false a row, "
            f"got {chosen.dtype} of shape {chosen.shape}."
        )
    return torch.from_numpy(mask)


def _votes(annotators: Any, num_rows: int, num_classes: int) -> Votes:
    if isinstance(annotators, Votes):
        return annotators
    table = np.asarray(annotators)
    if table.ndim != 2 or len(table) != num_rows or table.dtype.kind not in "iu":
        raise ValueError(
            f"Expected `annotators` to be integers of shape ({num_rows}, A), −1 where one gave no"
            f" label, got {table.dtype} of shape {table.shape}."
        )
    if table.size and (table.min() < -1 or table.max() >= num_classes):
        raise ValueError(
            f"Expected annotators' labels in −1 … {num_classes - 1}, got {table.min()} …"
            f" {table.max()}."
        )
    return Votes.of_table(table)


def _guesses(given: Tensor, probs: Tensor, evidence: Evidence | None, rows: CountedRows) -> Guesses:
    """Guesses for the counted rows; where neighbours made them, for those whose neighbours may
    vote.
    """
    labels, counted = given.numpy(), np.flatnonzero(rows.counted.numpy())
    if evidence is not None and evidence.guess is not None:
        if evidence.guess_confidence is None or evidence.neighbour_agreement is None:
            return Guesses(labels[counted], evidence.guess[counted])
        voted = counted[np.isfinite(evidence.neighbour_agreement[counted])]
        if len(voted) >= min(MIN_VOTED, len(counted)):
            return Guesses(labels[voted], evidence.guess[voted], evidence.guess_confidence[voted])
    return Guesses(labels[counted], probs.argmax(1).numpy()[counted])


def _with_neighbours(
    given: Tensor,
    probs: Tensor,
    evidence: Evidence | None,
    features: Any,
    groups: Any,
    neighbours: int,
    seed: int,
) -> tuple[Tensor, NDArray[np.float32] | None]:
    """Predictions (N, K) with the votes of neighbours among ``features``, and the share that
    agrees, (N,).
    """
    agreement = None if evidence is None else evidence.neighbour_agreement
    if features is None or agreement is not None or len(probs) <= 2:
        return probs, agreement
    near = nearest(
        features, min(check_count("neighbours", neighbours, 1), len(probs) - 1), seed=seed
    )
    votes, agreement = neighbour_votes(given, near, probs.shape[1], apart=groups)
    return (
        probs if evidence is not None else with_votes(given, probs, torch.from_numpy(votes))
    ), agreement


def with_dynamics(probs: Tensor, evidence: Evidence, votes: Votes | None) -> Tensor:
    """Predictions (N, K) with those for training rows, which rank well, but agree too much to count
    errors by.

    Beside ``votes`` they are left out: the labels that taught these models are the votes, which
    would count twice.
    """
    if evidence.dynamics is None or votes is not None:
        return probs
    return torch.lerp(probs, torch.from_numpy(evidence.dynamics), DYNAMICS)


def with_votes(given: Tensor, probs: Tensor, votes: Tensor) -> Tensor:
    """(1 − a)·p + a·v, with the a of 0, ¼, ½ under which the given labels are most likely."""
    pair = torch.stack(
        [probs.gather(1, given[:, None])[:, 0], votes.gather(1, given[:, None])[:, 0]], 1
    ).double()
    shares = torch.tensor([[1.0, 0.75, 0.5], [0.0, 0.25, 0.5]], dtype=torch.float64)
    a = float(shares[1, int((pair @ shares).clamp(min=0.001).log().mean(0).argmax())])
    return probs if a == 0 else torch.lerp(probs, votes, a)


def judge_decided(
    issues: LabelIssues, data: AuditData, training: Evidence, undecided: Evidence, goal: str = "f1"
) -> LabelIssues:
    """Judge the labels of ``data`` by a ``training`` with decisions, from ``issues`` by one
    without, ``undecided``.

    What all rows share, or a row's own label has trained (T, β, the shift of the log odds,
    predictions for training rows), stays as without decisions: the quality of a row does not depend
    on the decision on it. Only the noise rate counts decided rows as decided.
    """
    assert data.decided is not None and issues.judge is not None
    given, counted = torch.from_numpy(data.given), torch.from_numpy(data.row >= 0)
    K = len(data.classes)
    trusted = torch.zeros_like(counted) if data.trusted is None else torch.tensor(data.trusted)
    probs = with_dynamics(torch.from_numpy(training.pred_probs), undecided, data.annotators)
    posterior = issues.judge.posterior(given, probs, data.annotators)
    wrong = shifted(posterior.wrong, issues.judge.shift).masked_fill(trusted, 0)
    uncertain = counted & ~trusted
    cut = worst_labels(wrong, uncertain, K, parse_goal(goal), is_predictable=issues.is_predictable)
    decided = torch.from_numpy(data.decided)
    known = torch.where(decided >= 0, (decided != given).double(), wrong)
    rate, (low, high) = float(known[counted].mean()), issues.noise_interval
    return replace(
        issues,
        **issues.judge.describe(given, probs, posterior, wrong, cut, counted),
        noise_rate=rate,
        noise_interval=(min(low, rate), max(high, rate)),
        class_rates=class_means(known, given, K, counted),
        neighbour_agreement=training.neighbour_agreement,
        unlearned=training.unlearned,
        doubt=training.doubt,
        voted=(
            None if data.annotators is None else issues.judge.voted(given, probs, data.annotators)
        ),
    )
