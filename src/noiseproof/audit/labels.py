"""Which labels are wrong, and how sure: the class-noise posterior of each given label, and a cut for each class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.audit.evidence import VOTERS, Evidence
from noiseproof.audit.neighbours import nearest, neighbour_votes
from noiseproof.audit.posterior import SMALL, ClassNoise, blocks, fit_class_noise, sharpened
from noiseproof.core.checks import check_count

LEAST_VOTED = 50  # rows with neighbours that may vote, below which the models' guesses count
LEAST_TRUSTED = 20  # rows that β is worth being fitted to
RARE = 20.0  # rows' worth of the overall noise rate that each class's own is averaged with
FINE = 0.01  # a share of wrong labels that is no matter
SKILL = 0.1  # by which predictions should meet more labels than by chance; of many rows 3σ are enough
DYNAMICS = 0.4  # weight of what was said of training rows beside what was said out of sample


@dataclass(frozen=True, eq=False)
class LabelIssues:
    """What is known of N given labels of K classes."""

    quality: NDArray[np.float32]  # (N,) in [0, 1]: the probability that the given label is right
    is_issue: NDArray[np.bool_]  # (N,)
    suggested: NDArray[np.int64]  # (N,) the most likely label other than the given one
    predicted: NDArray[np.int64]  # (N,) the most likely label by the predictions alone
    noise_rate: float  # this and what follows up to `false_positive_rate`: of the rows that are counted
    noise_interval: tuple[float, float]
    transition: NDArray[np.float64]  # (K, K): T[i, j] = P(given j | true i), rows sum to one
    cut: NDArray[np.float64]  # (K,): a label of class k whose quality is below cut[k] is an issue
    false_positive_rate: float  # expected share of right labels that are called issues
    margin: NDArray[np.float32]  # (N,): log p_given − log p of the best other class
    confidence: NDArray[np.float32]  # (N,): the predictions' probability of the given label
    suggested_confidence: NDArray[np.float32]  # (N,): the predictions' probability of the suggested label
    neighbour_agreement: NDArray[np.float32] | None = None  # (N,): share of neighbours that bear the given label
    unlearned: NDArray[np.float32] | None = None  # (N,) as in Evidence
    doubt: NDArray[np.float32] | None = None  # (N,) as in Evidence
    hit_rate: float = 1.0  # share of the given labels that predictions meet which have not seen them
    chance_rate: float = 0.0  # share that predictions as frequent would meet if they knew nothing of the rows
    is_told: bool = True  # whether the rows tell anything of their labels
    contradicted: float | None = None  # share that the surest neighbours contradict, where models count fewer errors

    @property
    def looks_fine(self) -> bool:
        """Whether overlap between classes may explain all but 1 % of the labels that the predictions contradict."""
        return self.is_told and self.contradicted is None and self.noise_interval[0] < FINE

    @property
    def is_undecided(self) -> bool:
        """Whether labels would look fine, but for neighbours that contradict them."""
        return self.is_told and self.contradicted is not None and self.noise_interval[0] < FINE


def find_label_issues(
    labels: Any,
    pred_probs: Any = None,
    *,
    features: Any = None,
    evidence: Evidence | None = None,
    trusted: Any = None,
    annotators: Any = None,
    groups: Any = None,
    counted: Any = None,
    neighbours: int = VOTERS,
    seed: int = 0,
) -> LabelIssues:
    """Rank the given labels from bad to good by the class-noise posterior, and cut the list, class by class.

    Overlap between classes and noise look alike, so the noise rate has an interval: from what is left where overlap
    explains all it can, to the confident joint's, for which every sure contradiction is an error. The estimate is the
    geometric mean of the posterior's and the confident joint's, and the posterior's log odds are moved until its mean
    agrees. The cut is where the expected F1 is largest (where labels look fine: where wrong is likelier than right),
    but in no class more rows are called issues than its own noise rate allows. Predictions that meet no more labels
    than by chance, Σ_k P(given k)·P(predicted k), contradict none: nothing is an issue, and the noise rate may be zero.
    Models that saw the labels may know them by heart: where the surest neighbours contradict more labels than the
    interval has room for, its upper end is raised to theirs, and labels do not look fine; ranking and cut stay.

    Args:
        labels: (N,) classes as integers from 0.
        pred_probs: (N, K), made without having seen the row's own label.
        features: (N, F): neighbours vote beside ``pred_probs`` as far as that makes the labels more likely.
        evidence: of ``cross_validate`` or ``watch_training``, in place of ``pred_probs`` and ``features``.
        trusted: (N,) bool, or row numbers: labels known to be right. From 20 on they calibrate the predictions, so that
            the noise rate is no longer between two estimates.
        annotators: (N, A) labels of several annotators, −1 where one did not speak.
        groups: (N,): rows of one group (near-duplicates) are no neighbours.
        counted: (N,) bool, or row numbers: the rows that rates, matrix and cuts are of; all others only help.
        neighbours: how many vote.

    >>> issues = find_label_issues([0, 0, 1, 1, 0], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.05, 0.95]])
    >>> int(issues.quality.argmin()), int(issues.suggested[4])
    (4, 1)
    """
    given, probs = _checked(labels, evidence.pred_probs if evidence is not None else pred_probs)
    N, K = probs.shape
    generator = torch.Generator().manual_seed(seed)
    known = _mask("trusted", trusted, N)
    own = _mask("counted", counted, N)
    own = torch.ones(N, dtype=torch.bool) if own is None else own
    if not bool(own.any()):
        raise ValueError("Expected rows that are counted, got none. Leave `counted` out to count all.")
    agreement = None if evidence is None else evidence.neighbour_agreement
    if features is not None and agreement is None and N > 2:
        near = nearest(features, min(check_count("neighbours", neighbours, 1), N - 1), seed=seed)
        votes, agreement = neighbour_votes(given, near, K, apart=groups)
        if evidence is None:
            probs = _with_votes(given, probs, torch.from_numpy(votes))
    calibrated = known is not None and LEAST_TRUSTED <= int(known.sum()) < N
    fitted_to = known if calibrated else None
    some: Any = slice(None) if bool(own.all()) else own  # no copy of all that is predicted
    fitted: Any = slice(None) if calibrated else some
    guess, sureness, asked = _guesses(probs, evidence, own.numpy())
    spoken = given.numpy()[asked]
    hits = float((guess == spoken).mean())
    chance = float(np.bincount(guess, minlength=K) @ np.bincount(spoken, minlength=K)) / len(guess) ** 2
    sigma = math.sqrt(chance * (1 - chance) / len(guess))
    told = calibrated or annotators is not None or hits - chance > min(3 * sigma, SKILL)
    noise = fit_class_noise(given[fitted], probs[fitted], trusted=fitted_to, generator=generator)
    least, mean, sure, most = noise.least_rate, noise.mean_rate, noise.confident_rate, noise.most_rate
    if evidence is not None and evidence.dynamics is not None:  # they rank well, but agree too much to count errors by
        probs = torch.lerp(probs, torch.from_numpy(evidence.dynamics), DYNAMICS)
        noise = fit_class_noise(given[fitted], probs[fitted], trusted=fitted_to, generator=generator, rates=False)
    crowd = None if annotators is None else _Crowd(_columns(annotators, N, K), given, probs, noise)

    right = torch.empty(N, dtype=torch.float64)  # P(true = given)
    suggested, predicted = torch.empty(N, dtype=torch.int64), torch.empty(N, dtype=torch.int64)
    margins = torch.empty(N, dtype=torch.float32)
    for rows, truth in noise.truth(given, probs) if crowd is None else crowd.truth():
        y, p = given[rows, None], probs[rows]
        right[rows] = truth.gather(1, y)[:, 0]
        suggested[rows] = truth.scatter(1, y, -1.0).argmax(1)
        predicted[rows] = p.argmax(1)
        best = p.scatter(1, y, -1.0).amax(1)
        margins[rows] = torch.log((p.gather(1, y)[:, 0] + SMALL) / (best + SMALL)).float()
    wrong = 1 - right
    if known is not None:
        wrong[known] = 0
    doubtful = own if known is None else own & ~known
    share = float(doubtful.sum() / own.sum())
    least, mean, sure, most = share * least, share * mean, share * sure, share * most
    rate = least if calibrated else math.sqrt(mean * max(mean, sure))
    if crowd is not None:
        rate = float(wrong[own].mean())
    low, high = (rate, rate) if calibrated or crowd is not None else (min(least, rate) * told, max(sure, rate))
    wrong[doubtful] = _moved(wrong[doubtful], rate / max(share, SMALL))
    count = int(own.sum())
    error = 1.96 * math.sqrt(max(rate * (1 - rate), 1 / count) / count)
    high += error
    contradicted = None
    if told and crowd is None and sureness is not None:
        share_contradicted, its_error = _contradicted_by_the_surest(spoken, guess, sureness)
        if share_contradicted - its_error > high + FINE:  # models that saw the labels may know them by heart
            contradicted, high = share_contradicted, share_contradicted + its_error
    if not calibrated and crowd is None:
        high = max(high, most + error)
    cut = _cuts(given, wrong, K, rate, doubtful, at_most=0.5 if low - error < FINE else 1.0)
    quality = (1 - wrong).to(torch.float32)
    is_issue = (quality.double() < cut[given]) & doubtful & told
    at = torch.arange(N)
    return LabelIssues(
        quality=quality.numpy(),
        is_issue=is_issue.numpy(),
        suggested=suggested.numpy(),
        predicted=predicted.numpy(),
        noise_rate=rate,
        noise_interval=(max(0.0, low - error), min(1.0, high)),
        transition=_transition(given[some], wrong[some], noise, probs[some]).numpy(),
        cut=cut.numpy(),
        false_positive_rate=float((1 - wrong)[is_issue].sum() / (1 - wrong)[own].sum().clamp(min=SMALL)),
        margin=margins.numpy(),
        confidence=probs[at, given].numpy(),
        suggested_confidence=probs[at, suggested].numpy(),
        neighbour_agreement=agreement,
        unlearned=None if evidence is None else evidence.unlearned,
        doubt=None if evidence is None else evidence.doubt,
        hit_rate=hits,
        chance_rate=chance,
        is_told=told,
        contradicted=contradicted,
    )


def _checked(labels: Any, pred_probs: Any) -> tuple[Tensor, Tensor]:
    """Labels (N,) int64 and probabilities (N, K) float32 whose rows sum to one."""
    if pred_probs is None:
        raise ValueError("Expected `pred_probs` (N, K) or `evidence`, got neither. cross_validate makes evidence.")
    probs = torch.as_tensor(np.asarray(pred_probs)).to(torch.float32)
    if probs.dim() != 2 or len(probs) == 0 or probs.shape[1] < 2:
        raise ValueError(
            f"Expected `pred_probs` of shape (N, K) with at least two classes, got {tuple(probs.shape)}. "
            "Of one probability p a row, make the columns 1 − p and p."
        )
    given = np.asarray(labels)
    if given.ndim != 1 or len(given) != len(probs):
        raise ValueError(f"Expected `labels` of shape ({len(probs)},), one for each row, got {given.shape}.")
    if given.dtype.kind not in "iu":
        raise TypeError(f"Expected integer `labels` from 0, got dtype {given.dtype}. Encode the classes as integers.")
    y = torch.as_tensor(given.astype(np.int64))
    if int(y.min()) < 0 or int(y.max()) >= probs.shape[1]:
        raise ValueError(
            f"Expected labels in 0 … {probs.shape[1] - 1}, the columns of `pred_probs`, "
            f"got {int(y.min())} … {int(y.max())}."
        )
    total = probs.sum(1)
    sound = torch.isfinite(total) & (probs.amin(1) >= 0) & ((total - 1).abs() < 0.02)
    if not bool(sound.all()):
        row = int((~sound).nonzero()[0])
        raise ValueError(
            f"Expected rows of `pred_probs` to be probabilities that sum to one, row {row} is not "
            f"({int((~sound).sum())} of {len(probs)} rows). Apply softmax to scores."
        )
    return y, probs / total[:, None]


def _mask(name: str, rows: Any, num_rows: int) -> Tensor | None:
    if rows is None:
        return None
    chosen = np.asarray(rows)
    mask = np.zeros(num_rows, dtype=bool)
    if chosen.dtype == bool and chosen.shape == (num_rows,):
        mask = chosen.copy()
    elif chosen.dtype.kind in "iu" and chosen.ndim == 1 and ((chosen >= 0) & (chosen < num_rows)).all():
        mask[chosen] = True
    elif chosen.size:
        raise ValueError(
            f"Expected `{name}` to be row numbers below {num_rows}, or one true or false a row, "
            f"got {chosen.dtype} of shape {chosen.shape}."
        )
    return torch.from_numpy(mask)


def _columns(annotators: Any, num_rows: int, num_classes: int) -> Tensor:
    table = np.asarray(annotators)
    if table.ndim != 2 or len(table) != num_rows or table.dtype.kind not in "iu":
        raise ValueError(
            f"Expected `annotators` to be integers of shape ({num_rows}, A), −1 where one did not speak, "
            f"got {table.dtype} of shape {table.shape}."
        )
    if table.size and (table.min() < -1 or table.max() >= num_classes):
        raise ValueError(f"Expected annotators' labels in −1 … {num_classes - 1}, got {table.min()} … {table.max()}.")
    return torch.from_numpy(table.astype(np.int64))


def _guesses(
    probs: Tensor, evidence: Evidence | None, counted: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None, NDArray[np.int64]]:
    """The likeliest classes (n,), untouched by the rows' own labels if that can be; how sure neighbours are; whose."""
    rows = np.flatnonzero(counted)
    if evidence is None or evidence.first_guess is None:
        return probs.argmax(1).numpy()[rows], None, rows
    if evidence.sureness is None or evidence.neighbour_agreement is None:
        return evidence.first_guess[rows], None, rows
    voted = rows[np.isfinite(evidence.neighbour_agreement[rows])]  # of the others nobody may speak
    if len(voted) < min(LEAST_VOTED, len(rows)):
        return probs.argmax(1).numpy()[rows], None, rows
    return evidence.first_guess[voted], evidence.sureness[voted], voted


def _with_votes(given: Tensor, probs: Tensor, votes: Tensor) -> Tensor:
    """(1 − a)·p + a·v, with the a of 0, ¼, ½ under which the given labels are most likely."""
    own = torch.stack([probs.gather(1, given[:, None])[:, 0], votes.gather(1, given[:, None])[:, 0]], 1).double()
    shares = torch.tensor([[1.0, 0.75, 0.5], [0.0, 0.25, 0.5]], dtype=torch.float64)
    a = float(shares[1, int((own @ shares).clamp(min=0.001).log().mean(0).argmax())])
    return probs if a == 0 else torch.lerp(probs, votes, a)


def _contradicted_by_the_surest(
    given: NDArray[np.int64], guess: NDArray[np.int64], sureness: NDArray[np.float32]
) -> tuple[float, float]:
    """Share of labels that differ from the guess in the surer half of each guessed class, and 1.96 standard errors.

    The surer half, for there classes overlap least: of clean labels it contradicts few even where neighbours are weak.
    """
    order = np.lexsort((-sureness, guess))
    count = np.bincount(guess)
    rank = np.arange(len(order)) - np.repeat(count.cumsum() - count, count)
    surest = order[rank < np.repeat((count + 1) // 2, count)]
    share = float((given[surest] != guess[surest]).mean())
    return share, 1.96 * math.sqrt(max(share * (1 - share), 1 / len(surest)) / len(surest))


def _moved(wrong: Tensor, rate: float) -> Tensor:
    """Probabilities whose log odds are all moved by one number, so that their mean is ``rate``."""
    odds = torch.logit(wrong, eps=1e-9)
    below, above = -50.0, 50.0
    for _ in range(60):
        middle = (below + above) / 2
        if float(torch.sigmoid(odds + middle).mean()) < rate:
            below = middle
        else:
            above = middle
    return torch.sigmoid(odds + below)


def _cuts(given: Tensor, wrong: Tensor, num_classes: int, rate: float, doubtful: Tensor, at_most: float) -> Tensor:
    """The quality below which a label is an issue, (K,).

    Calling the n worst labels issues has the expected F1 2·Σ_{n} P(wrong)/(n + Σ P(wrong)). Of a class, no more rows
    are called issues than 1.5 times what P(wrong) sums to in it, averaged with ``RARE`` rows of the overall rate: of a
    class of five rows that the model never learned, almost none.
    """
    worst = wrong[doubtful].sort(descending=True).values
    n = torch.arange(1, len(worst) + 1, dtype=torch.float64)
    at = int((worst.cumsum(0) / (n + worst.sum())).argmax()) if len(worst) else 0
    overall = min(at_most, 1 - float(worst[at])) if len(worst) else 0.0
    cut = torch.full((num_classes,), float(np.nextafter(np.float32(overall), np.float32(2))), dtype=torch.float64)
    rows = doubtful.nonzero()[:, 0]
    order = rows[wrong[rows].argsort(descending=True, stable=True)]
    order = order[given[order].argsort(stable=True)]  # class by class, worst first
    count = torch.bincount(given[rows], minlength=num_classes)
    sums = torch.zeros(num_classes, dtype=torch.float64).index_add_(0, given[rows], wrong[rows])
    allowed = (count * (1.5 * sums + RARE * rate) / (count + RARE)).ceil().long()
    full = allowed < count
    first_kept = (count.cumsum(0) - count + allowed)[full]
    limit = (1 - wrong[order[first_kept]]).to(torch.float32).double()
    cut[full] = cut[full].minimum(limit)
    return cut


def _transition(given: Tensor, wrong: Tensor, noise: ClassNoise, probs: Tensor) -> Tensor:
    """T of the moved posterior: the given class keeps 1 − P(wrong), the others share P(wrong) as before."""
    K = probs.shape[1]
    by_given = torch.zeros(K, K, dtype=torch.float64)
    for rows, truth in noise.truth(given, probs):
        y, bad = given[rows, None], wrong[rows, None]
        truth.scatter_(1, y, 0.0)
        truth.mul_(bad / truth.sum(1, keepdim=True).clamp_(min=SMALL)).scatter_(1, y, 1 - bad)
        by_given.index_add_(0, given[rows], truth)
    joint = by_given.T
    total = joint.sum(1, keepdim=True)
    T = torch.where(total > SMALL, joint / total.clamp(min=SMALL), torch.eye(K, dtype=torch.float64))
    return T / T.sum(1, keepdim=True)


class _Crowd:
    """Several annotators a row (Dawid and Skene 1979), with the predictions as the prior of each row.

    Annotator a is right with probability r_a, and errs as T does: P(l | k) = r_a for l = k, else
    (1 − r_a)·T[k, l]/Σ_{j≠k} T[k, j]. EM finds the r_a. Where the given label is one of theirs (a majority, say),
    it adds nothing to them; else it is one more voice, with its own T.
    """

    def __init__(self, table: Tensor, given: Tensor, probs: Tensor, noise: ClassNoise, rounds: int = 10) -> None:
        self.table, self.given, self.probs, self.noise = table, given, probs, noise
        off = noise.transition.clone().fill_diagonal_(0)
        self.off = (off / off.sum(1, keepdim=True).clamp(min=SMALL)).T.contiguous()  # (K said, K true)
        spoken = table >= 0
        any_spoken = spoken.any(1)
        self.repeats = (
            bool(any_spoken.any())
            and float(((table == given[:, None]) & spoken).any(1)[any_spoken].double().mean()) > 0.95
        )
        self.right = torch.full((table.shape[1],), 0.8, dtype=torch.float64)
        for _ in range(rounds):
            hits, said = torch.ones_like(self.right), torch.full_like(self.right, 1.25)  # one row of 80 %
            for rows, truth in self.truth():
                spoke = spoken[rows]
                agreed = truth.gather(1, table[rows].clamp(min=0)) * spoke
                hits += agreed.sum(0)
                said += spoke.sum(0)
            self.right = (hits / said).clamp(0.02, 0.999)

    def truth(self) -> Iterator[tuple[slice, Tensor]]:
        """P(true k | x, all that was said) of each row, in blocks, as of ClassNoise."""
        of_given = self.noise.transition.T.contiguous()
        for rows in blocks(self.probs):
            log_q = sharpened(self.probs[rows], self.noise.beta).log_()
            said = self.table[rows]
            for a in range(said.shape[1]):
                label, r = said[:, a].clamp(min=0), self.right[a]
                chance = self.off[label].mul_(1 - r).scatter_(1, label[:, None], float(r))
                log_q += torch.where((said[:, a] >= 0)[:, None], chance.clamp_(min=1e-9).log_(), 0.0)
            silent = (said < 0).all(1) if self.repeats else torch.ones(len(said), dtype=torch.bool)
            log_q += torch.where(silent[:, None], of_given[self.given[rows]].clamp(min=1e-9).log_(), 0.0)
            yield rows, log_q.softmax(1)
