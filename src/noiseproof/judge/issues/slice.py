"""Parts of the data where predictions disagree with the labels more often."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.core.arrays import Array, Bools, Floats32, Ints
from noiseproof.judge.issues.base import (
    NEEDS_ACTION,
    AuditEvidence,
    Bars,
    Finding,
    Findings,
    FoundIssue,
    LabelIssues,
    register_issue,
    words_of,
)

if TYPE_CHECKING:
    import pandas as pd


ALARM = 0.01  # how often a slice is found where all rows are alike
DEPTH = 3  # of the tree: a slice has three conditions at most
FEW = 200  # rows below which nothing is concluded
MIN_SLICE = 20  # rows of a slice in each half
# by how much the rate of disagreement is higher: to be listed, and to need action
WORSE = 0.1
MUCH_WORSE = 0.2
MOST_WORDS = 10  # of a column that become conditions


@register_issue("slice")
class WeakSlices(FoundIssue):
    """Slices, such as ``age > 60 and sex is 'f'``, where predictions made without the label match
    it less often.

    A tree of depth three learns on half of the rows where predictions disagree with the labels; its
    leaves are tested on the other half against all other rows (Fisher's exact test), at 1 % for all
    leaves together. The score follows the difference of both rates, from 0.1 on.
    """

    needs = ("table",)
    remedy = (
        "Look at these rows: their labels are worse, or models need more of them or other columns."
    )

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        data = evidence.data
        cells = evidence.cells
        rows = np.asarray(cells.index)
        differs = labels.predicted[rows] != data.given[rows]
        if len(rows) < FEW or not labels.is_predictable or not MIN_SLICE / 2 <= differs.sum():
            return
        together = evidence.groups
        half = _halves(None if together is None else together[rows], len(rows))
        values, names = _conditions(cells)
        yield from _slices(values, names, differs, half, data.row[rows])


def _halves(groups: Ints | None, n: int) -> Bools:
    """Half of the rows at random, (n,); the rows of a group together."""
    random = np.random.default_rng(0)
    if groups is None:
        return random.random(n) < 0.5
    numbers = np.unique(groups, return_inverse=True)[1].ravel()
    return np.asarray(random.random(numbers.max() + 1)[numbers] < 0.5)


def _conditions(cells: pd.DataFrame) -> tuple[Floats32, list[tuple[str, str | None]]]:
    """Columns of numbers as they are, and one for each of the most frequent words; with their
    columns and words.
    """
    parts: list[Array] = []
    names: list[tuple[str, str | None]] = []
    for name in cells.columns:
        column = cells[name]
        if column.dtype.kind in "iufb" and column.nunique() > 2:
            parts.append(column.to_numpy(dtype=np.float32, na_value=np.nan))
            names.append((str(name), None))
            continue
        words = words_of(column)
        different, counts = np.unique(words, return_counts=True)
        for word in different[np.argsort(-counts, kind="stable")][:MOST_WORDS]:
            parts.append((words == word).astype(np.float32))
            names.append((str(name), str(word)))
    return np.stack(parts, 1), names


def _slices(
    values: Floats32,
    names: list[tuple[str, str | None]],
    differs: Bools,
    half: Bools,
    row: Ints,
) -> Findings:
    from scipy.stats import fisher_exact
    from sklearn.tree import DecisionTreeClassifier

    least = max(MIN_SLICE, int(half.sum()) // 50)
    tree = DecisionTreeClassifier(max_depth=DEPTH, min_samples_leaf=least, random_state=0)
    tree.fit(values[half], differs[half])
    leaf = tree.apply(values)
    tested = ~half
    learned_rate = differs[half].mean()
    candidates = [k for k in np.unique(leaf) if differs[half & (leaf == k)].mean() > learned_rate]
    for k in candidates:
        inside = tested & (leaf == k)
        outside = tested & (leaf != k)
        n = int(inside.sum())
        m = int(outside.sum())
        if n < MIN_SLICE or m < MIN_SLICE:
            continue
        wrong = int(differs[inside].sum())
        others = int(differs[outside].sum())
        p_value = fisher_exact([[wrong, n - wrong], [others, m - others]], "greater").pvalue
        worse = wrong / n - others / m
        if p_value * len(candidates) >= ALARM or worse < WORSE:
            continue
        words = _path(tree.tree_, k, names)
        score = 0.9 * NEEDS_ACTION
        if worse >= MUCH_WORSE:
            score = min(1.0, NEEDS_ACTION + worse / 2)
        bars = [(words, round(100 * wrong / n, 1)), ("all other rows", round(100 * others / m, 1))]
        yield Finding(
            words,
            score,
            f"Where {words}, predictions disagree with {wrong / n:.0%} of {n} labels, elsewhere"
            f" with {others / m:.0%} (p = {p_value:.1g}, on rows that did not choose the slice).",
            Bars("labels that predictions disagree with", bars, "%", (0,)),
            rows=tuple(row[leaf == k].tolist()),
        )


def _path(tree: Any, leaf: int, names: list[tuple[str, str | None]]) -> str:
    """Return the conditions that lead to a leaf: of several bounds on one side of a column the
    closest.
    """
    parent = {
        int(child): node
        for node in range(tree.node_count)
        for child in (tree.children_left[node], tree.children_right[node])
        if child >= 0
    }
    conditions: dict[str, str] = {}
    while leaf in parent:  # upwards: the first bound is the closest
        node = parent[leaf]
        name, word = names[tree.feature[node]]
        is_left = tree.children_left[node] == leaf
        if word is None:
            sign = "≤" if is_left else ">"
            conditions.setdefault(f"{name} {sign}", f" {tree.threshold[node]:.4g}")
        else:
            verb = "is not" if is_left else "is"
            conditions[f"{name} {verb} {word!r}"] = ""
        leaf = node
    return " and ".join(condition + bound for condition, bound in reversed(conditions.items()))
