"""Labels judged again, by models that learned what a reviewer decided on other rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from noiseproof.audit.judge.cut import cut_labels
from noiseproof.audit.judge.goal import parse_goal
from noiseproof.audit.judge.rate import shifted
from noiseproof.audit.labels import LabelIssues, class_means, with_dynamics

if TYPE_CHECKING:
    from noiseproof.audit.evidence.network import Evidence
    from noiseproof.audit.sources.base import AuditData


def judge_decided(
    issues: LabelIssues, data: AuditData, training: Evidence, undecided: Evidence, goal: str = "f1"
) -> LabelIssues:
    """Judge the labels of ``data`` by a ``training`` with decisions, from ``issues`` by one without, ``undecided``.

    What all rows share, or a row's own label has trained (T, β, the shift of the log odds, predictions for training
    rows), stays as without decisions: the quality of a row does not depend on the decision on it. Only the noise rate
    counts decided rows as decided.
    """
    assert data.decided is not None and issues.judge is not None
    given, counted = torch.from_numpy(data.given), torch.from_numpy(data.row >= 0)
    K = len(data.classes)
    trusted = torch.zeros_like(counted) if data.trusted is None else torch.tensor(data.trusted)
    probs = with_dynamics(torch.from_numpy(training.pred_probs), undecided, data.annotators)
    posterior = issues.judge.posterior(given, probs, data.annotators)
    wrong = shifted(posterior.wrong, issues.judge.shift).masked_fill(trusted, 0)
    uncertain = counted & ~trusted
    cut = cut_labels(
        given, wrong, uncertain, float(wrong[counted].mean()), K, goal=parse_goal(goal),
        may_be_fine=issues.may_be_fine, is_predictable=issues.is_predictable,
    )  # fmt: skip
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
        voted=None if data.annotators is None else issues.judge.voted(given, probs, data.annotators),
    )
