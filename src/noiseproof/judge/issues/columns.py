"""Columns that say nothing: empty, mostly empty or constant ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from noiseproof.judge.issues.base import (
    AuditEvidence,
    Bars,
    Finding,
    Findings,
    FoundIssue,
    LabelIssues,
    graded,
    of_column,
    register_issue,
    words_of,
)

MOST_MISSING = 0.5  # share of gaps from which on a column needs action
SOME_MISSING = 0.05  # below, gaps are not worth a line
CONSTANT = 0.999  # share of one value that makes a column constant


@register_issue("columns")
class EmptyColumns(FoundIssue):
    """Columns of which at least a twentieth is missing, or all but one value in a thousand are the
    same.

    The score is the share of the gaps, or of the value of a constant column.
    """

    multilabel = True
    needs = ("table",)
    remedy = "Leave such columns out, or find out why their cells are missing."
    fixes = "Leaves out columns that are constant or without any value."

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        from noiseproof.data.given import is_missing

        cells = evidence.cells
        shares = {str(name): float(is_missing(cells[name]).mean()) for name in cells.columns}
        for at, (name, missing) in enumerate(shares.items()):
            counted = f"of {len(cells)} rows"
            column = cells.iloc[:, at]
            value, share = _most_frequent(column[~is_missing(column)])
            if missing == 1:
                sentence = f"Column {name!r} has no value in any {counted}."
                yield of_column(name, 1.0, sentence)
            elif missing < 1 - CONSTANT and share >= CONSTANT:
                percent = f"{share:.2%}".replace("100.00%", "all")
                sentence = f"Column {name!r} is {value} in {percent} {counted}."
                yield of_column(name, share, sentence)
            elif missing >= SOME_MISSING:
                sentence = f"{missing:.1%} of the cells of column {name!r} are missing ({counted})."
                score = graded(missing, MOST_MISSING)
                yield Finding(f"column {name!r}", score, sentence, _bars(shares, name))


def _bars(shares: Mapping[str, float], name: str) -> Bars:
    """Return the column among the ten nearest to it in missing cells."""
    ordered = sorted(shares, key=lambda name: -shares[name])
    at = ordered.index(name)
    first = max(0, min(at - 5, len(ordered) - 11))
    bars = [(other, round(100 * shares[other], 1)) for other in ordered[first : first + 11]]
    return Bars("missing cells of columns", bars, "%", (at - first,))


def _most_frequent(values: Any) -> tuple[Any, float]:
    """Return a value that would be the most frequent one of a constant column without gaps, and its
    share.
    """
    if not len(values):
        return None, 0.0
    if values.dtype.kind in "iufb":
        numbers = values.to_numpy()
        median = np.partition(numbers, len(numbers) // 2)[len(numbers) // 2]
        return median, float((numbers == median).mean())
    words = words_of(values)
    value = max(words[:9], key=words[:9].tolist().count)
    return value, float((words == value).mean())
