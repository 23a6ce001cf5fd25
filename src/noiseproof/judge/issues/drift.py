"""A test set that is distributed differently."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from noiseproof.judge.issues.base import (
    NEEDS_ACTION,
    Bars,
    Finding,
    FoundIssue,
    projected,
    register_issue,
    words_of,
)

if TYPE_CHECKING:
    from noiseproof.data.rows import OtherRows, Rows
    from noiseproof.judge.evidence.gather import AuditEvidence
    from noiseproof.judge.labelissues import LabelIssues

ALARM = 0.01  # how often two samples of one distribution are called different
FEW = 20  # rows of either part below which nothing is concluded
# differences of shares below which nothing is said, and from which on it needs action
SMALL, LARGE = 0.1, 0.3
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
    remedy = (
        "Find out what changed; measure on data like that which models will see, and weight or"
        " collect rows for it."
    )

    @classmethod
    def applies(cls, data: Rows) -> bool:
        return data.test is not None

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> Drift:
        data, test = evidence.data, evidence.data.test
        assert test is not None
        rows = np.asarray(evidence.cells.index)
        if min(len(rows), len(test.labels)) < FEW:
            return cls.of(data, [])
        by_label, by_column = _of_labels(data, test, rows), _of_columns(evidence, rows)
        limit = ALARM / (len(by_label) + len(by_column))
        found = [one for one in by_column if one.p_value < limit and one.size >= SMALL]
        findings = []
        if labels_found := [one for one in by_label if one.p_value < limit and one.size >= SMALL]:
            worst = max(labels_found, key=lambda one: one.size)
            findings.append(_finding(f"{worst.name}{DIFFERS}", worst, len(rows), len(test.labels)))
        if found:
            worst = max(found, key=lambda one: one.size)
            said = f"column {worst.name!r}{DIFFERS}"
            if len(found) > 1:
                said = (
                    f"{len(found)} of {len(by_column)} columns differ, most of all column"
                    f" {worst.name!r}"
                )
            findings.append(_finding(said, worst, len(rows), len(test.labels)))
        return cls.of(data, findings)


def _of_labels(data: Rows, test: OtherRows, rows: NDArray[np.int64]) -> list[Difference]:
    """How the labels differ; of sets of labels, each of them."""
    labels, others = data.labels[rows], test.labels
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
    score = (
        max(one.size, NEEDS_ACTION) if one.size >= LARGE else 0.9 * NEEDS_ACTION * one.size / LARGE
    )
    return Finding(
        one.name,
        float(score),
        f"{said[0].upper()}{said[1:]}: shares differ by {one.size:.2f} "
        f"(p = {max(one.p_value, 1e-300):.1g}, {n} and {m} rows).",
        Bars(f"shares of {one.name} in the data and in the test set", one.bars, "%"),
    )


def _of_columns(evidence: AuditEvidence, rows: NDArray[np.int64]) -> list[Difference]:
    data, test = evidence.data, evidence.data.test
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
        here, there = evidence.cells[name], test.frame[name]
        if (parts := _as_numbers(here, there)) is not None:
            if min(map(len, parts)) >= FEW:
                differences.append(_of_numbers(str(name), *parts))
        elif len({*(words := words_of(here))}) <= max(10, len(words) // 10):
            differences.append(_of_words(str(name), words, words_of(there)))
    return differences


def _as_numbers(here: Any, there: Any) -> list[NDArray[np.float64]] | None:
    """The finite numbers of both parts of a column; None unless one part has numbers alone, and
    most of the other.
    """
    import pandas as pd

    columns, are_numbers = (here, there), [column.dtype.kind in "iufb" for column in (here, there)]
    if not any(are_numbers):
        return None
    if not all(are_numbers):
        columns = tuple(pd.to_numeric(column, errors="coerce") for column in columns)
        if any(
            2 * new.notna().sum() < old.notna().sum()
            for new, old in zip(columns, (here, there), strict=True)
        ):
            return None
    parts = [column.to_numpy(dtype=np.float64, na_value=np.nan) for column in columns]
    return [part[np.isfinite(part)] for part in parts]


def _of_numbers(name: str, here: NDArray[Any], there: NDArray[Any]) -> Difference:
    from scipy.stats import ks_2samp

    test = ks_2samp(here, there, method="asymp")
    edges = np.unique(np.quantile(here, np.linspace(0, 1, BINS + 1)))
    bars = []
    for low, high in pairwise(edges.tolist()):
        shares = [
            float(((part >= low) & ((part < high) | (high == edges[-1]))).mean())
            for part in (here, there)
        ]
        bars += [
            (f"{low:.3g} to {high:.3g}, {where}", round(100 * share, 1))
            for where, share in zip(("data", "test"), shares, strict=True)
        ]
    bars = bars if len(bars) > 1 else [("data", 100.0), ("test", 100.0)]
    return Difference(name, float(test.statistic), float(test.pvalue), bars)


def _of_words(name: str, here: NDArray[Any], there: NDArray[Any]) -> Difference:
    from scipy.stats import chi2

    words, codes = np.unique(np.concatenate([here, there]), return_inverse=True)
    parts = codes[: len(here)], codes[len(here) :]
    # (2, W)
    table = np.stack([np.bincount(part, minlength=len(words)) for part in parts]).astype(float)
    shares = table / table.sum(1, keepdims=True)
    expected = table.sum(1, keepdims=True) * table.sum(0) / table.sum()
    # χ² is approximate for few rows: the others are counted as one word
    often = expected.min(0) >= 5
    joined = np.c_[table[:, often], table[:, ~often].sum(1)]
    expected = joined.sum(1, keepdims=True) * joined.sum(0) / joined.sum()
    known = expected.min(0) > 0
    statistic = float(((joined - expected)[:, known] ** 2 / expected[:, known]).sum())
    p_value = float(chi2.sf(statistic, known.sum() - 1)) if known.sum() > 1 else 1.0
    most = np.argsort(-np.abs(shares[0] - shares[1]), kind="stable")[:BINS]
    bars = [
        (f"{str(words[k])[:30]!r}, {where}", round(100 * float(shares[i, k]), 1))
        for k in most
        for i, where in enumerate(("data", "test"))
    ]
    return Difference(name, float(np.abs(shares[0] - shares[1]).sum() / 2), p_value, bars)
