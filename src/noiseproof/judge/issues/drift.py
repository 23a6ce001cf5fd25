"""A test set that is distributed differently."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from noiseproof.core.arrays import Array, Floats, Ints
from noiseproof.judge.issues.base import (
    AuditEvidence,
    Bars,
    Finding,
    Findings,
    FoundIssue,
    LabelIssues,
    Rows,
    graded,
    projected,
    register_issue,
    words_of,
)

ALARM = 0.01  # how often two samples of one distribution are called different
FEW = 20  # rows of either part below which nothing is concluded
# differences of shares below which nothing is said, and from which on it needs action
SMALL = 0.1
LARGE = 0.3
BINS = 8
DIFFERS = " is distributed differently in the test set"


class Difference(NamedTuple):
    """How differently one column is distributed in both parts."""

    name: str
    size: float  # the largest difference of shares, in [0, 1]
    p_value: float
    bars: list[tuple[str, float]]


@register_issue("drift")
class Drift(FoundIssue):
    """Labels or columns that are distributed differently in the data and in ``--test``.

    Numbers by the two-sample test of Kolmogorov and Smirnov, words and labels by χ², all together
    at 1 % by Bonferroni. The score follows the largest difference of shares, sup |F − G| or half of
    Σ |p − q|, from 0.1 on.
    """

    multilabel = True
    needs = ("test",)
    remedy = (
        "Find out what changed; measure on data like that which models will see, and weight or"
        " collect rows for it."
    )

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        data = evidence.data
        test = data.test
        assert test is not None
        rows = np.asarray(evidence.cells.index)
        if min(len(rows), len(test.labels)) < FEW:
            return
        by_label = _of_labels(data, rows)
        by_column = _of_columns(evidence, rows)
        limit = ALARM / (len(by_label) + len(by_column))
        for tests in (by_label, by_column):
            found = [one for one in tests if one.p_value < limit and one.size >= SMALL]
            if not found:
                continue
            worst = max(found, key=lambda one: one.size)
            said = f"{worst.name}{DIFFERS}"
            if tests is by_column:
                said = f"column {worst.name!r}{DIFFERS}"
                if len(found) > 1:
                    said = (
                        f"{len(found)} of {len(by_column)} columns differ, most of all column"
                        f" {worst.name!r}"
                    )
            yield _finding(said, worst, len(rows), len(test.labels))


def _of_labels(data: Rows, rows: Ints) -> list[Difference]:
    """Return how the labels differ, or each of several labels per row."""
    assert data.test is not None
    labels = data.labels[rows]
    others = data.test.labels
    if not labels.are_sets:
        names = np.array([*labels.names, "a class that the data does not have"], dtype=object)
        return [_of_words("the label", names[labels.codes], names[others.codes])]
    yes_no = np.array(["no", "yes"], dtype=object)
    here = yes_no[labels.answers.astype(int)]
    there = yes_no[others.answers.astype(int)]
    return [
        _of_words(f"the label {name!r}", here[:, k], there[:, k])
        for k, name in enumerate(labels.names)
    ]


def _finding(said: str, one: Difference, n: int, m: int) -> Finding:
    return Finding(
        one.name,
        graded(one.size, LARGE),
        f"{said[0].upper()}{said[1:]}: shares differ by {one.size:.2f} "
        f"(p = {max(one.p_value, 1e-300):.1g}, {n} and {m} rows).",
        Bars(f"shares of {one.name} in the data and in the test set", one.bars, "%"),
    )


def _of_columns(evidence: AuditEvidence, rows: Ints) -> list[Difference]:
    data = evidence.data
    test = data.test
    assert test is not None
    if test.frame is None:
        if data.x is None:
            return []
        there = projected(test.x)
        return [
            _of_numbers(name, values, there[name])
            for name, values in projected(data.x[rows]).items()
        ]
    differences = []
    for name in evidence.cells.columns:
        here = evidence.cells[name]
        there = test.frame[name]
        if (parts := _as_numbers(here, there)) is not None:
            if min(map(len, parts)) >= FEW:
                differences.append(_of_numbers(str(name), *parts))
        elif len({*(words := words_of(here))}) <= max(10, len(words) // 10):
            differences.append(_of_words(str(name), words, words_of(there)))
    return differences


def _as_numbers(here: Any, there: Any) -> list[Floats] | None:
    """Return the finite numbers of both parts of a column; None unless one part has numbers alone,
    and most of the other.
    """
    import pandas as pd

    columns = [here, there]
    are_numbers = [column.dtype.kind in "iufb" for column in columns]
    if not any(are_numbers):
        return None
    if not all(are_numbers):
        numbers = [pd.to_numeric(column, errors="coerce") for column in columns]
        for new, old in zip(numbers, columns, strict=True):
            if 2 * new.notna().sum() < old.notna().sum():
                return None
        columns = numbers
    parts = [column.to_numpy(dtype=np.float64, na_value=np.nan) for column in columns]
    return [part[np.isfinite(part)] for part in parts]


def _of_numbers(name: str, here: Array, there: Array) -> Difference:
    from scipy.stats import ks_2samp

    test = ks_2samp(here, there, method="asymp")
    edges = np.unique(np.quantile(here, np.linspace(0, 1, BINS + 1)))
    bars = [("data", 100.0), ("test", 100.0)]
    if len(edges) > 1:
        # shares of all rows: test rows may lie beyond the edges
        shares = [
            np.histogram(np.minimum(part, edges[-1]), edges)[0] / len(part)
            for part in (here, there)
        ]
        names = [f"{low:.3g} to {high:.3g}" for low, high in pairwise(edges.tolist())]
        bars = _pairs(names, *shares)
    return Difference(name, float(test.statistic), float(test.pvalue), bars)


def _of_words(name: str, here: Array, there: Array) -> Difference:
    from scipy.stats import chi2_contingency

    words, codes = np.unique(np.concatenate([here, there]), return_inverse=True)
    parts = np.split(codes, [len(here)])
    table = np.stack([np.bincount(part, minlength=len(words)) for part in parts])  # (2, W)
    # χ² is approximate for few rows: rare words are counted as one
    least = table.sum(0) * min(len(here), len(there)) / len(codes)
    joined = np.c_[table[:, least >= 5], table[:, least < 5].sum(1)]
    joined = joined[:, joined.sum(0) > 0]
    p_value = 1.0
    if joined.shape[1] > 1:
        p_value = float(chi2_contingency(joined, correction=False).pvalue)
    shares = table / table.sum(1, keepdims=True)
    most = np.argsort(-np.abs(shares[0] - shares[1]), kind="stable")[:BINS]
    bars = _pairs([f"{str(words[k])[:30]!r}" for k in most], *shares[:, most])
    return Difference(name, float(np.abs(shares[0] - shares[1]).sum() / 2), p_value, bars)


def _pairs(names: Sequence[str], here: Array, there: Array) -> list[tuple[str, float]]:
    """Return two bars for each name, in per cent."""
    bars = []
    for name, data, test in zip(names, here.tolist(), there.tolist(), strict=True):
        bars.append((f"{name}, data", round(100 * data, 1)))
        bars.append((f"{name}, test", round(100 * test, 1)))
    return bars
