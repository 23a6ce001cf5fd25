"""Columns that say nothing: empty, mostly empty or constant ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.judge.issues.base import (
    NEEDS_ACTION,
    Bars,
    Finding,
    FoundIssue,
    register_issue,
    words_of,
)

if TYPE_CHECKING:
    from noiseproof.data.rows import Rows
    from noiseproof.judge.evidence.gather import AuditEvidence
    from noiseproof.judge.labelissues import LabelIssues

MOST_MISSING = 0.5  # share of gaps from which on a column needs action
SOME_MISSING = 0.05  # below, gaps are not worth a line
CONSTANT = 0.999  # share of one value that makes a column constant


@register_issue("columns")
class EmptyColumns(FoundIssue):
    """Columns of which at least a twentieth is missing, or all but one value in a thousand are the
    same.

    The score of a column with gaps is their share, that of a constant one the share of its value.
    """

    multilabel = True
    remedy = "Leave such columns out, or find out why their cells are missing."
    fixes = "Leaves out columns that are constant or without any value."

    @classmethod
    def applies(cls, data: Rows) -> bool:
        return data.table is not None

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> EmptyColumns:
        from noiseproof.data.given import is_missing

        cells = evidence.cells
        shares = {str(name): float(is_missing(cells[name]).mean()) for name in cells.columns}
        ordered = sorted(shares, key=lambda name: -shares[name])
        findings = []
        for name in cells.columns:
            missing, column = shares[str(name)], cells[name]
            about, counted = f"column {str(name)!r}", f"of {len(cells)} rows"
            value, share = _most_frequent(column[~is_missing(column)])
            if missing == 1:
                findings.append(
                    Finding(
                        about,
                        1.0,
                        f"Column {str(name)!r} has no value in any {counted}.",
                        columns=(str(name),),
                    )
                )
            elif missing < 1 - CONSTANT and share >= CONSTANT:
                sentence = f"Column {str(name)!r} is {value} in {share:.2%} {counted}".replace(
                    "100.00%", "all"
                )
                findings.append(Finding(about, share, f"{sentence}.", columns=(str(name),)))
            elif missing >= SOME_MISSING:
                at = ordered.index(str(name))
                first = max(0, min(at - 5, len(ordered) - 11))
                bars = [
                    (other, round(100 * shares[other], 1)) for other in ordered[first : first + 11]
                ]
                findings.append(
                    Finding(
                        about,
                        max(missing, NEEDS_ACTION) if missing >= MOST_MISSING else 0.9 * missing,
                        f"{missing:.1%} of the cells of column {str(name)!r} are missing"
                        f" ({counted}).",
                        Bars("missing cells of columns", bars, "%", (at - first,)),
                    )
                )
        return cls.of(evidence.data, findings)


def _most_frequent(values: Any) -> tuple[Any, float]:
    """A value that would be the most frequent one of a constant column without gaps, and its
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
