"""Rows whose order is not random: sorted, in blocks, or drifting."""

from typing import Any, NamedTuple

import numpy as np

from noiseproof.core.arrays import Array, Ints
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
from noiseproof.judge.issues.leakage import identify

ALARM = 0.01  # how often data in random order is called ordered
BLOCKS = 10  # in a row, whose averages are compared
FEW = 50  # rows below which nothing is concluded
# correlations below which an order is not worth a line, and from which on it needs action
WEAK = 0.1
STRONG = 0.3


class Dependence(NamedTuple):
    """How much the values of one column depend on their place."""

    name: str
    correlation: float  # with the next row, the place or the block, in [0, 1]
    p_value: float
    blocks: list[float]  # average rank, or share of the most uneven class, in each block
    what: str


@register_issue("order")
class OrderedRows(FoundIssue):
    """Labels or columns whose values depend on the place of the row, or on the time of ``--time``.

    Numbers by their ranks: the correlation with the next row, of mean −1/(n−1) and variance about
    1/n in random order (Wald and Wolfowitz 1943), that with the place (Spearman 1904), and the
    spread of ten blocks (Kruskal and Wallis 1952). Classes: the number of runs (Mood 1940) and χ²
    of the ten blocks. Where the label depends on the order, numbers are compared within classes.
    All p-values together are held to 1 % by Bonferroni. The score follows the largest of these
    correlations, from 0.1 on.
    """

    remedy = (
        "Split such data by time or by group, never by chance alone, and shuffle it before"
        " training."
    )

    @classmethod
    def applies(cls, data: Rows) -> bool:
        return data.has_order

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        data = evidence.data
        cells = evidence.cells
        rows = np.asarray(cells.index)
        if len(rows) < FEW:
            return
        if data.time is not None:
            rows = rows[np.argsort(data.time[rows], kind="stable")]
        by_label = _of_classes("the label", data.given[rows], data.classes)
        is_sorted = by_label.p_value < ALARM / 3
        tests = [by_label, *_of_columns(evidence, rows, data.given[rows] if is_sorted else None)]
        limit = ALARM / (3 * len(tests))  # three p-values each
        by = "the order of the rows" if data.time is None else "time"
        found = [test for test in tests if test.p_value < limit and test.correlation >= WEAK]
        if by_label in found:
            found.remove(by_label)
            yield _finding(f"The label depends on {by}", by_label, by, len(rows))
        if found:
            worst = max(found, key=lambda test: test.correlation)
            said = f"Column {worst.name!r} depends on {by}"
            if len(found) > 1:
                said = (
                    f"{len(found)} of {len(tests) - 1} columns depend on {by}, most of all column"
                    f" {worst.name!r}"
                )
            yield _finding(said, worst, by, len(rows))


def _finding(said: str, test: Dependence, by: str, n: int) -> Finding:
    names = [f"rows {10 * k} to {10 * k + 10} %" for k in range(BLOCKS)]
    return Finding(
        test.name,
        graded(test.correlation, STRONG),
        f"{said}: correlation {test.correlation:.2f} (p = {max(test.p_value, 1e-300):.1g},"
        f" {n} rows).",
        Bars(
            f"{test.what} of {test.name} in ten parts of the rows, by {by}",
            [*zip(names, test.blocks, strict=True)],
            "%",
        ),
    )


def _of_columns(evidence: AuditEvidence, rows: Ints, given: Ints | None) -> list[Dependence]:
    """Return tests of all columns; with the labels ``given`` (n,), of the differences within each
    class.
    """
    cells = evidence.cells.loc[rows]
    x = evidence.data.x
    if len(cells.columns) == 0 and x is not None:
        return [_of_numbers(name, values, given) for name, values in projected(x[rows]).items()]
    tests = []
    for name in cells.columns:
        column = cells[name]
        if identify(str(name), column, evidence.data.row[rows]) == "numbers the rows":
            continue
        if column.dtype.kind in "iufb":
            values = column.to_numpy(dtype=np.float64, na_value=np.nan)
            known = np.isfinite(values)
            classes = None if given is None else given[known]
            tests.append(_of_numbers(str(name), values[known], classes))
            continue
        words, codes = np.unique(words_of(column), return_inverse=True)
        if 1 < len(words) <= len(rows) // 10 and given is None:
            tests.append(_of_classes(str(name), codes, words))
    return tests


def _of_numbers(name: str, values: Array, given: Ints | None = None) -> Dependence:
    from scipy.stats import chi2, norm, rankdata

    n = len(values)
    rank = rankdata(values)
    rank -= rank.mean()
    if given is not None:
        rank -= (np.bincount(given, rank) / np.maximum(np.bincount(given), 1))[given]
    spread = float(rank @ rank)
    if n < FEW or spread == 0:
        return Dependence(name, 0.0, 1.0, [], "")
    serial = float(rank[:-1] @ rank[1:]) / spread
    z = (serial + 1 / (n - 1)) * np.sqrt(n)
    parts = np.array_split(rank, BLOCKS)
    between = sum(len(part) * part.mean() ** 2 for part in parts) / spread
    place = np.arange(n) - (n - 1) / 2
    trend = float(rank @ place) / np.sqrt(spread * float(place @ place))
    p_values = 2 * norm.sf([abs(z), abs(trend) * np.sqrt(n - 1)])
    p_value = min(*p_values, chi2.sf((n - 1) * between, BLOCKS - 1))
    beyond_chance = np.sqrt(max(0.0, between - (BLOCKS - 1) / (n - 1)))
    correlation = max(abs(serial), abs(trend), beyond_chance)
    blocks = [round(100 * (part.mean() / n + 0.5), 1) for part in parts]
    return Dependence(name, correlation, float(p_value), blocks, "average rank")


def _of_classes(name: str, codes: Ints, names: Any) -> Dependence:
    from scipy.stats import chi2_contingency, norm

    n = len(codes)
    counts = np.bincount(codes).astype(float)
    squares = float((counts**2).sum())
    cubes = float((counts**3).sum())
    runs = 1 + int((codes[1:] != codes[:-1]).sum())
    expected = (n * (n + 1) - squares) / n
    variance = squares * (squares + n * (n + 1)) - 2 * n * cubes - float(n) ** 3
    variance /= float(n) ** 2 * (n - 1)
    if variance <= 0:
        return Dependence(name, 0.0, 1.0, [], "")
    p_value = 2 * norm.sf(abs(expected - runs) / np.sqrt(variance))
    # 1 where each class is one run
    correlation = abs(expected - runs) / max(expected - (counts > 0).sum(), 1)
    # (10, K)
    parts = [np.bincount(part, minlength=len(counts)) for part in np.array_split(codes, BLOCKS)]
    table = np.stack(parts)
    # χ² is approximate for few rows: rare classes are counted as one
    is_rare = counts < 5 * BLOCKS
    joined = np.c_[table[:, ~is_rare], table[:, is_rare].sum(1)]
    joined = joined[:, joined.sum(0) >= 5 * BLOCKS]
    if joined.shape[1] > 1:
        test = chi2_contingency(joined, correction=False)
        p_value = min(p_value, test.pvalue)
        most = joined.sum() * min(BLOCKS - 1, joined.shape[1] - 1)
        correlation = max(correlation, np.sqrt(max(0.0, test.statistic - test.dof) / most))
    shares = table / table.sum(1, keepdims=True)
    uneven = int(np.ptp(shares, axis=0).argmax())
    blocks = (100 * shares[:, uneven]).round(1).tolist()
    return Dependence(
        name, float(correlation), float(p_value), blocks, f"share of {str(names[uneven])!r}"
    )
