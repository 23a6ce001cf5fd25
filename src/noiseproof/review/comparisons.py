"""What separates two classes at a row: columns, words, and the nearest and typical rows of each."""

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_COLUMNS = 8  # columns that are shown first
ROWS = 2000  # of a class that are compared
PREFERRED = 64  # columns of numbers, by the difference of their means, that are compared as a whole
SHARES = (0, 5, 10, 25, 50, 75, 90, 95, 100)  # percentiles that a strip shows
RARE = 5  # rows of both classes below which a word counts among the others
MOST_WORDS = 6
CHANCE = 0.01  # probability that any column is shown first though it separates nothing
WORD = r"(?u)\w+"
FREQUENT = np.log(2)  # a marked word is at least twice as frequent in one class
CLEAR = 2.0  # standard deviations from no difference
TYPICAL = 0.1  # share of a class, the best labels, among which the most central rows are typical
MARGIN = 16  # more rows than requested whose distance is computed again without cancellation


class ColumnRanking:
    """Columns (N,) of numbers or words, by how much they separate the rows of two classes.

    The separation is the largest difference of the two distribution functions (Kolmogorov–Smirnov)
    for numbers, half the sum of the differences of the shares (total variation) for words: both are
    0 for equal classes, 1 for classes that have no value in common. Columns that separate no more
    than by chance are left out.
    """

    def __init__(self, columns: Mapping[str, NDArray[Any]], given: NDArray[np.int64]) -> None:
        self.columns, self.given = columns, given
        self.between = lru_cache(maxsize=1024)(self._between)

    def _between(self, given: int, suggested: int) -> list[dict[str, Any]]:
        sides = [self._rows(given), self._rows(suggested)]
        if not min(map(len, sides)):
            return []
        compared = [self._compare(name, *sides) for name in self._candidates(*sides)]
        clear = [column for column in compared if column is not None]
        return sorted(clear, key=lambda column: -column["separation"])[:MOST_COLUMNS]

    def _rows(self, label: int) -> NDArray[np.int64]:
        rows = np.flatnonzero(self.given == label)
        return rows[np.linspace(0, len(rows) - 1, ROWS).astype(int)] if len(rows) > ROWS else rows

    def _candidates(self, *sides: NDArray[np.int64]) -> list[str]:
        """Return all columns, of many numbers those with the largest standardised differences of
        the means.
        """
        numbers = [name for name, values in self.columns.items() if values.dtype.kind == "f"]
        words = [name for name in self.columns if name not in {*numbers}]
        if len(numbers) > PREFERRED:
            (m, v), (n, w) = (self._moments(numbers, rows) for rows in sides)
            difference = np.abs(m - n) / np.sqrt((v + w) / 2 + 1e-300)
            best = np.argsort(-np.nan_to_num(difference), kind="stable")[:PREFERRED]
            numbers = [numbers[k] for k in best.tolist()]
        return [*numbers, *words]

    def _moments(
        self, names: list[str], rows: NDArray[np.int64]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        values = np.stack([self.columns[name][rows] for name in names])  # (D, n)
        is_known = ~np.isnan(values)
        count = np.maximum(is_known.sum(1), 1)
        mean = np.where(is_known, values, 0).sum(1) / count
        return mean, np.where(is_known, (values - mean[:, None]) ** 2, 0).sum(1) / count

    def _compare(self, name: str, *sides: NDArray[np.int64]) -> dict[str, Any] | None:
        one, two = (self.columns[name][rows] for rows in sides)
        compare = compare_numbers if one.dtype.kind == "f" else compare_words
        found = compare(one, two, len(self.columns))
        return None if found is None else {"name": name, **found}


def _limit(one: NDArray[Any], two: NDArray[Any], columns: int) -> float:
    """Return the value that the largest Kolmogorov–Smirnov statistic of the columns exceeds by
    chance.
    """
    return float(np.sqrt(-np.log(CHANCE / (2 * columns)) / 2 * (1 / len(one) + 1 / len(two))))


def compare_numbers(
    one: NDArray[np.float64], two: NDArray[np.float64], columns: int = 1
) -> dict[str, Any] | None:
    """Return the Kolmogorov–Smirnov statistic of two samples and their percentiles; None if it is
    no more than chance.

    >>> compare_numbers(np.arange(50.0), np.arange(100.0, 150.0))["separation"]
    1.0
    """
    one, two = np.sort(one[~np.isnan(one)]), np.sort(two[~np.isnan(two)])
    if not len(one) or not len(two):
        return None
    at = np.concatenate([one, two])
    below = [np.searchsorted(side, at, side="right") / len(side) for side in (one, two)]
    separation = float(np.abs(below[0] - below[1]).max())
    if separation <= _limit(one, two, columns):
        return None
    percentiles = {
        side: [float(f"{value:.5g}") for value in np.percentile(values, SHARES)]
        for side, values in (("given", one), ("suggested", two))
    }
    return {"separation": round(separation, 4), **percentiles}


def compare_words(one: NDArray[Any], two: NDArray[Any], columns: int = 1) -> dict[str, Any] | None:
    """Return the total variation of two samples of words and the shares of both; None if it is no
    more than chance.
    """
    known, codes = np.unique(np.concatenate([one, two]).astype(str), return_inverse=True)
    counts = np.stack(
        [np.bincount(part, minlength=len(known)) for part in (codes[: len(one)], codes[len(one) :])]
    )
    is_rare = counts.sum(0) < RARE
    lumped = np.concatenate([counts[:, ~is_rare], counts[:, is_rare].sum(1, keepdims=True)], 1)
    shares = lumped / np.maximum(lumped.sum(1, keepdims=True), 1)  # (2, words + 1)
    separation, num_words = (
        float(np.abs(shares[0] - shares[1]).sum() / 2),
        int((lumped.sum(0) > 0).sum()),
    )
    # By chance, the total variation grows with the number of words: its mean is at most
    # 0.4·√words·√(1/n + 1/m).
    if (
        separation
        <= _limit(one, two, columns)
        + 0.4 * (max(num_words - 2, 0) * (1 / len(one) + 1 / len(two))) ** 0.5
    ):
        return None
    names, order = known[~is_rare], np.argsort(-shares[:, :-1].max(0), kind="stable")[:MOST_WORDS]
    words = [
        [str(names[k]), round(float(shares[0, k]), 3), round(float(shares[1, k]), 3)]
        for k in order.tolist()
    ]
    return {"separation": round(separation, 4), "words": words}


class WordRanking:
    """Log-ratios of the frequencies of words in texts (N,) with class numbers (N,), −1 for rows of
    no class.

    With n_w of the n other texts of a class that contain the word w, its frequency is (n_w + ½)/(n
    + 1), and the variance of its logarithm is 1/(n_w + ½) − 1/(n + ½). The row itself is not
    counted.
    """

    def __init__(self, texts: Sequence[str], given: NDArray[np.int64], num_classes: int) -> None:
        self.texts, self.given, self.num_classes = texts, given, num_classes

    @property
    def has_words(self) -> bool:
        return len(self.counts[2]) > 0

    @cached_property
    def counts(self) -> tuple[Any, Any, NDArray[np.str_], NDArray[np.int64]]:
        """Return words of texts (N, V), texts of classes with a word (K, V), words (V,), texts of
        classes (K,).
        """
        from sklearn.feature_extraction.text import CountVectorizer

        csr_matrix = import_module("scipy.sparse").csr_matrix
        vectorizer = CountVectorizer(binary=True, token_pattern=WORD, dtype=np.int32)
        try:
            words = vectorizer.fit_transform(self.texts)
        except ValueError:  # no text has any word
            words = csr_matrix((len(self.texts), 0), dtype=np.int32)
        names = np.array(
            [] if not words.shape[1] else vectorizer.get_feature_names_out(), dtype=str
        )
        rows = np.flatnonzero(self.given >= 0)
        is_class = csr_matrix(
            (np.ones(len(rows), np.int32), (self.given[rows], rows)),
            shape=(self.num_classes, len(self.texts)),
        )
        sizes = np.bincount(self.given[rows], minlength=self.num_classes)
        return words.tocsr(), (is_class @ words).tocsr(), names, sizes

    def between(self, row: int, given: int, suggested: int) -> dict[str, float]:
        """Return log P(w | suggested) − log P(w | given) of the words w of a row where it is
        clearly not 0.
        """
        words, in_class, names, sizes = self.counts
        found = words[row].indices
        if given == suggested or not len(found):
            return {}
        logs, variances = [], []
        for label in (given, suggested):
            is_own = int(self.given[row] == label)
            n, total = (
                np.asarray(in_class[label, found].todense()).ravel() - is_own,
                sizes[label] - is_own,
            )
            logs.append(np.log((n + 0.5) / (total + 1)))
            variances.append(1 / (n + 0.5) - 1 / (total + 0.5))
        ratio, deviation = logs[1] - logs[0], np.sqrt(variances[0] + variances[1])
        is_clear = (np.abs(ratio) >= FREQUENT) & (np.abs(ratio) >= CLEAR * deviation)
        return {
            str(names[k]): round(float(r), 3)
            for k, r in zip(found[is_clear], ratio[is_clear], strict=True)
        }


class Nearby:
    """Rows of the source by their features (N, D): exact search among the rows of one class."""

    def __init__(
        self,
        x: NDArray[np.float32],
        row: NDArray[np.int64],
        given: NDArray[np.int64],
        quality: NDArray[np.float64],
    ) -> None:
        # rows of a class lie together: a search copies nothing
        order = np.argsort(given, kind="stable")
        # less cancellation in ‖a‖² + ‖b‖² − 2ab
        self.x = np.ascontiguousarray((x - x.mean(0))[order], np.float32)
        self.square = np.einsum("nd,nd->n", self.x, self.x)
        self.row, self.given, self.quality = row[order], given[order], quality[order]
        self.position = {row: i for i, row in enumerate(self.row.tolist())}
        self.typical = lru_cache(maxsize=1024)(self._typical)

    def _part(self, label: int) -> slice:
        return slice(*np.searchsorted(self.given, [label, label + 1]).tolist())

    def nearest(self, row: int, label: int, count: int) -> list[tuple[int, float]]:
        """Return the ``count`` rows of a class nearest to ``row``, without itself, and their
        euclidean distances.
        """
        if (at := self.position.get(row)) is None:
            return []
        part = self._part(label)
        # (n,): squared distance less ‖x‖²
        apart = self.square[part] - 2 * (self.x[part] @ self.x[at])
        if part.start <= at < part.stop:
            apart[at - part.start] = np.inf
        few = (
            np.argsort(apart)[: count + MARGIN]
            if len(apart) <= count + MARGIN
            else (np.argpartition(apart, count + MARGIN)[: count + MARGIN])
        )
        few = few[np.isfinite(apart[few])]
        return self._by_distance(part.start + few, self.x[at])[:count]

    def _by_distance(self, at: NDArray[Any], center: NDArray[Any]) -> list[tuple[int, float]]:
        distance = np.linalg.norm(self.x[at].astype(np.float64) - center, axis=1)
        order = np.lexsort((self.row[at], distance))
        return [(int(self.row[at[i]]), float(distance[i])) for i in order.tolist()]

    def _typical(self, label: int) -> list[int]:
        """Return rows of a class, the most central first, of those with the best labels."""
        part = self._part(label)
        if part.start == part.stop:
            return []
        size = part.stop - part.start
        best = (
            np.argsort(-self.quality[part], kind="stable")[: max(10, round(TYPICAL * size))]
            + part.start
        )
        return [
            row
            for row, _ in self._by_distance(
                best, np.median(self.x[best].astype(np.float64), axis=0)
            )[:10]
        ]
