"""What separates two classes at a row: columns, words, and the nearest and typical rows of each."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from noiseproof.core.arrays import Array, Floats, Floats32, Ints
from noiseproof.core.messages import Json

MOST_COLUMNS = 8  # columns that are shown first
ROWS = 2000  # of a class that are compared
SHARES = (0, 5, 10, 25, 50, 75, 90, 95, 100)  # percentiles that a strip shows
RARE = 5  # rows of both classes below which a word counts among the others
MOST_WORDS = 6
CHANCE = 0.01  # probability that any column is shown first though it separates nothing
FREQUENT = np.log(2)  # a marked word is at least twice as frequent in one class
CLEAR = 2.0  # standard deviations from no difference
TYPICAL = 0.1  # share of a class, the best labels, among which the most central rows are typical


class ColumnRanking:
    """Columns (N,) of numbers or words, by how much they separate the rows of two classes.

    The separation is the largest difference of the two distribution functions (Kolmogorov–Smirnov)
    for numbers, half the sum of the differences of the shares (total variation) for words: both are
    0 for equal classes, 1 for classes that have no value in common. Columns that separate no more
    than by chance are left out.
    """

    def __init__(self, columns: Mapping[str, Array], given: Ints) -> None:
        self.columns = columns
        self.given = given
        self.between = lru_cache(maxsize=1024)(self._between)

    def _between(self, given: int, suggested: int) -> list[Json]:
        one = self._rows(given)
        two = self._rows(suggested)
        if not len(one) or not len(two):
            return []
        clear = []
        for name, column in self.columns.items():
            compare = compare_numbers if column.dtype.kind == "f" else compare_words
            difference = compare(column[one], column[two], len(self.columns))
            if difference is not None:
                clear.append({"name": name, **difference})
        return sorted(clear, key=lambda column: -column["separation"])[:MOST_COLUMNS]

    def _rows(self, label: int) -> Ints:
        rows = np.flatnonzero(self.given == label)
        if len(rows) > ROWS:
            rows = rows[np.linspace(0, len(rows) - 1, ROWS).astype(int)]
        return rows


def compare_numbers(one: Floats, two: Floats, columns: int = 1) -> Json | None:
    """Return the Kolmogorov–Smirnov statistic of two samples and their percentiles; None if it is
    no more than chance.

    >>> compare_numbers(np.arange(50.0), np.arange(100.0, 150.0))["separation"]
    1.0
    """
    from scipy.stats import ks_2samp

    one = one[~np.isnan(one)]
    two = two[~np.isnan(two)]
    if not len(one) or not len(two):
        return None
    test = ks_2samp(one, two, method="asymp")
    if test.pvalue > CHANCE / columns:
        return None
    return {
        "separation": round(float(test.statistic), 4),
        "given": _percentiles(one),
        "suggested": _percentiles(two),
    }


def _percentiles(values: Floats) -> list[float]:
    return [float(f"{value:.5g}") for value in np.percentile(values, SHARES)]


def compare_words(one: Array, two: Array, columns: int = 1) -> Json | None:
    """Return the total variation of two samples of words and the shares of both; None if it is no
    more than chance, by the chi-squared test.
    """
    from scipy.stats import chi2_contingency
    from scipy.stats.contingency import crosstab

    side = np.repeat([0, 1], [len(one), len(two)])
    (_, words), counts = crosstab(side, np.concatenate([one, two]).astype(str))  # (2, words)
    is_rare = counts.sum(axis=0) < RARE
    words = words[~is_rare]
    counts = np.column_stack([counts[:, ~is_rare], counts[:, is_rare].sum(axis=1)])
    table = counts[:, counts.any(axis=0)]
    if table.shape[1] < 2 or chi2_contingency(table).pvalue > CHANCE / columns:
        return None
    shares = counts / counts.sum(axis=1, keepdims=True)  # (2, words + 1)
    separation = np.abs(shares[0] - shares[1]).sum() / 2
    most = np.argsort(-shares[:, :-1].max(axis=0), kind="stable")[:MOST_WORDS]
    shown = [[str(words[k]), *shares[:, k].round(3).tolist()] for k in most.tolist()]
    return {"separation": round(float(separation), 4), "words": shown}


class WordRanking:
    """Log-ratios of the frequencies of words in texts (N,) with class numbers (N,), −1 for rows of
    no class.

    With n_w of the n other texts of a class that contain the word w, its frequency is (n_w + ½)/(n
    + 1), and the variance of its logarithm is 1/(n_w + ½) − 1/(n + ½). The row itself is not
    counted.
    """

    def __init__(self, texts: Sequence[str], given: Ints) -> None:
        from sklearn.feature_extraction.text import CountVectorizer

        vectorizer = CountVectorizer(binary=True, token_pattern=r"(?u)\w+", dtype=np.int32)
        self.given = given
        self.words: Any = None  # (N, V), None where no text has any word
        if any(any(map(str.isalnum, text)) for text in texts):
            self.words = vectorizer.fit_transform(texts).tocsr()
            self.names = vectorizer.get_feature_names_out()
        self.texts_with = lru_cache(maxsize=1024)(self._texts_with)

    def _texts_with(self, label: int) -> Ints:
        """Return the number of texts of a class that have each word, (V,)."""
        return np.asarray(self.words[self.given == label].sum(axis=0), np.int64).ravel()

    def between(self, row: int, given: int, suggested: int) -> dict[str, float]:
        """Return log P(w | suggested) − log P(w | given) of the words w of a row where it is
        clearly not 0.
        """
        if self.words is None or given == suggested:
            return {}
        words = self.words[row].indices
        logs = []
        variance = 0.0
        for label in (given, suggested):
            is_own = int(self.given[row] == label)
            n = self.texts_with(label)[words] - is_own
            total = (self.given == label).sum() - is_own
            logs.append(np.log((n + 0.5) / (total + 1)))
            variance = variance + 1 / (n + 0.5) - 1 / (total + 0.5)
        ratio = logs[1] - logs[0]
        is_clear = np.abs(ratio) >= np.maximum(FREQUENT, CLEAR * np.sqrt(variance))
        return {
            str(self.names[word]): round(float(r), 3)
            for word, r in zip(words[is_clear], ratio[is_clear], strict=True)
        }


class Nearby:
    """Rows of the source by their features (N, D): exact search among the rows of one class."""

    def __init__(
        self,
        x: Floats32,
        row: Ints,
        given: Ints,
        quality: Floats,
    ) -> None:
        self.x = x
        self.row = row
        self.given = given
        self.quality = quality
        self.position = {number: i for i, number in enumerate(row.tolist())}
        self.typical = lru_cache(maxsize=1024)(self._typical)

    def nearest(self, row: int, label: int, count: int) -> list[int]:
        """Return the ``count`` rows of a class nearest to ``row``, without itself."""
        at = self.position.get(row)
        if at is None:
            return []
        others = np.flatnonzero((self.given == label) & (self.row != row))
        return self._closest(others, self.x[at], count)

    def _closest(self, among: Array, center: Array, count: int) -> list[int]:
        """Return the rows with the smallest euclidean distance to ``center``."""
        distance = np.linalg.norm(self.x[among] - center, axis=1)
        rows = self.row[among]
        return [int(row) for row in rows[np.lexsort((rows, distance))[:count]]]

    def _typical(self, label: int) -> list[int]:
        """Return rows of a class, the most central first, of those with the best labels."""
        of_class = np.flatnonzero(self.given == label)
        if not len(of_class):
            return []
        most = max(10, round(TYPICAL * len(of_class)))
        best = of_class[np.argsort(-self.quality[of_class], kind="stable")[:most]]
        center = np.median(self.x[best], axis=0)
        return self._closest(best, center, 10)
