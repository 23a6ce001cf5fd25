"""Rows that are in the test set, too."""

from typing import ClassVar

import numpy as np
import torch

from noiseproof.core.arrays import Bools, Ints, evenly
from noiseproof.judge.issues.base import (
    NEEDS_ACTION,
    AuditEvidence,
    Bars,
    Finding,
    Findings,
    FoundIssue,
    LabelIssues,
    register_issue,
)

MOST_PAIRS = 500_000_000  # of a row and a test row that are compared
ALARM = 0.01  # how often any of the test rows is as close as that by chance
BLOCK = 2**22  # distances at a time


@register_issue("test-overlap")
class TestOverlap(FoundIssue):
    """Rows that are equal, or closer than by chance (`find_duplicates`), to a row of ``--test``.

    Of large sets, a sample of the test rows is compared. The score is 0.5 and half of the share of
    test rows that are in the data.
    """

    flag = "is_in_test"
    multilabel = True
    badges: ClassVar = {"is_in_test": "also in the test set"}
    needs = ("test", "x")
    remedy = "Take these rows out of the training data, or measure on a test set without them."
    fixes = "Leaves out rows that are in the test set, too."

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        data = evidence.data
        test = data.test
        assert test is not None and data.x is not None
        match, is_equal, first, searched = _matches(evidence)
        at = np.flatnonzero(match >= 0)
        if not len(at):
            return
        # with all rows that equal a match
        is_in = np.isin(first, first[match[at]]) & (data.row >= 0)
        differs = ~data.labels[match[at]].equal(test.labels[at])
        share = len(at) / len(match)
        exactly = int(is_equal.sum())
        are = "is" if len(at) == 1 else "are"
        have = "has" if differs.sum() == 1 else "have"
        sentence = (
            f"{len(at)} of {len(match)} rows of the test set ({share:.1%}) {are} in the data, too,"
            f" {exactly} of them exactly; {differs.sum()} {have} another label there."
        )
        if searched < len(match):
            sentence += f" Near ones were looked for among {searched} of them."
        bars = [
            ("not in the data", len(match) - len(at)),
            ("exactly", exactly),
            ("nearly", len(at) - exactly),
        ]
        yield Finding(
            "the test set",
            NEEDS_ACTION + share / 2,
            sentence,
            Bars("rows of the test set", bars, "rows", (1, 2)),
            rows=tuple(data.row[is_in].tolist()),
        )


def _matches(
    evidence: AuditEvidence,
) -> tuple[Ints, Bools, Ints, int]:
    """For each test row a row that is nearly the same, −1 for none, and whether it is equal, (T,).

    Also the first row that equals each row of the data, (N,), and how many test rows were compared.
    """
    from noiseproof.judge.evidence.neighbours import near_limit, same_rows

    data = evidence.data
    test = data.test
    near = evidence.surroundings.neighbours
    assert test is not None and data.x is not None
    N = len(data)
    T = len(test.x)
    known = data.unlike()
    unlike = None
    if known is not None and test.unlike is not None:
        unlike = np.concatenate([known, test.unlike])
    first = same_rows(np.concatenate([data.x, test.x]), unlike)
    copies = np.bincount(first, minlength=N + T)
    is_common = copies > max(20, (N + T) // 100)  # a frequent value, not a copy
    match = np.where((first[N:] < N) & ~is_common[first[N:]], first[N:], -1)
    is_equal = match >= 0
    if near is None or near.index.shape[1] < 2:
        return match, is_equal, first[:N], T
    limit = torch.from_numpy(near_limit(near, ALARM / T).astype(np.float32))
    limit[torch.from_numpy(is_common[first[:N]])] = 0
    x = torch.from_numpy(data.x)
    left = evenly(np.flatnonzero(~is_equal), MOST_PAIRS // N)
    for part in np.array_split(left, max(1, len(left) * N // BLOCK)):
        distance, nearest = torch.cdist(torch.from_numpy(test.x[part]), x).min(1)
        is_near = (distance < limit[nearest]).numpy()
        if unlike is not None:
            is_near &= unlike[nearest.numpy()] == unlike[N + part]
        match[part] = np.where(is_near, nearest, -1)
    return match, is_equal, first[:N], int(is_equal.sum()) + len(left)
