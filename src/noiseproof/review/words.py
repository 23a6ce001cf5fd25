"""The words of a text that are more frequent in one of two classes than in the other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORD = r"(?u)\w+"
FREQUENT = np.log(2)  # a marked word is at least twice as frequent in one class
CLEAR = 2.0  # standard deviations from no difference


class WordRanking:
    """Log-ratios of the frequencies of words in texts (N,) with class numbers (N,), −1 for rows of no class.

    With n_w of the n other texts of a class that contain the word w, its frequency is (n_w + ½)/(n + 1), and the
    variance of its logarithm is 1/(n_w + ½) − 1/(n + ½). The row itself is not counted.
    """

    def __init__(self, texts: Sequence[str], given: NDArray[np.int64], num_classes: int) -> None:
        self.texts, self.given, self.num_classes = texts, given, num_classes

    @property
    def has_words(self) -> bool:
        return len(self.counts[2]) > 0

    @cached_property
    def counts(self) -> tuple[Any, Any, NDArray[np.str_], NDArray[np.int64]]:
        """Return words of texts (N, V), texts of classes with a word (K, V), words (V,), texts of classes (K,)."""
        from sklearn.feature_extraction.text import CountVectorizer

        csr_matrix = import_module("scipy.sparse").csr_matrix
        vectorizer = CountVectorizer(binary=True, token_pattern=WORD, dtype=np.int32)
        try:
            words = vectorizer.fit_transform(self.texts)
        except ValueError:  # no text has any word
            words = csr_matrix((len(self.texts), 0), dtype=np.int32)
        names = np.array([] if not words.shape[1] else vectorizer.get_feature_names_out(), dtype=str)
        rows = np.flatnonzero(self.given >= 0)
        is_class = csr_matrix(
            (np.ones(len(rows), np.int32), (self.given[rows], rows)), shape=(self.num_classes, len(self.texts))
        )
        sizes = np.bincount(self.given[rows], minlength=self.num_classes)
        return words.tocsr(), (is_class @ words).tocsr(), names, sizes

    def between(self, row: int, given: int, suggested: int) -> dict[str, float]:
        """Return log P(w | suggested) − log P(w | given) of the words w of a row where it is clearly not 0."""
        words, in_class, names, sizes = self.counts
        found = words[row].indices
        if given == suggested or not len(found):
            return {}
        logs, variances = [], []
        for label in (given, suggested):
            is_own = int(self.given[row] == label)
            n, total = np.asarray(in_class[label, found].todense()).ravel() - is_own, sizes[label] - is_own
            logs.append(np.log((n + 0.5) / (total + 1)))
            variances.append(1 / (n + 0.5) - 1 / (total + 0.5))
        ratio, deviation = logs[1] - logs[0], np.sqrt(variances[0] + variances[1])
        is_clear = (np.abs(ratio) >= FREQUENT) & (np.abs(ratio) >= CLEAR * deviation)
        return {str(names[k]): round(float(r), 3) for k, r in zip(found[is_clear], ratio[is_clear], strict=True)}
