"""A user's texts: a table with a column of texts and a column of labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.data.base import Dataset, Split
from noiseproof.data.frames import Table, read_table, reading_notes, table_name
from noiseproof.data.labels import TrainingLabels, describe_labels
from noiseproof.data.sources import DATASETS

if TYPE_CHECKING:
    import pandas as pd

# Scripts without spaces between words: ideographs, kana, Thai, Lao, Myanmar, Khmer.
_SPACELESS = (
    "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u109f\u1780-\u17d3"
)
# A word of two letters or more, as in scikit-learn, or one character of those scripts with its marks.
TOKEN = rf"[{_SPACELESS}](?:(?!\w)[{_SPACELESS}])*|[^\W{_SPACELESS}]{{2,}}"
FIT_ROWS = 50_000  # texts that the axes are fitted to
BLOCK = 10_000


class TextFeatures:
    """Words and word pairs, hashed, weighted by TF-IDF and projected onto their main axes: (N, dim) of unit length.

    In scripts without spaces between words, every character counts as a word.
    """

    def __init__(self, texts: Sequence[str], dim: int = 256, seed: int = 0) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

        self.hash = HashingVectorizer(
            ngram_range=(1, 2), n_features=2**17, alternate_sign=False, norm=None, dtype=np.float32, token_pattern=TOKEN
        )
        self.weigh = TfidfTransformer(sublinear_tf=True)
        sample = np.random.default_rng(seed).permutation(len(texts))[:FIT_ROWS]
        counts = self.hash.transform([texts[i] for i in np.sort(sample)])
        if counts.nnz == 0:
            raise ValueError("Expected words of two letters or more in the texts, got none.")
        self.known = np.unique(counts.indices)  # other hashes are zero: leaving them out makes the fit fast
        weighted = self.weigh.fit_transform(counts[:, self.known])
        axes = min(check_count("dim", dim, 1), *weighted.shape)
        self.project = TruncatedSVD(axes, random_state=seed).fit(weighted)

    def encode(self, rows: Iterable[str]) -> Tensor:
        """(N, dim) float32, computed in blocks to save memory."""
        texts = list(rows)
        blocks = [
            torch.from_numpy(
                self.project.transform(self.weigh.transform(self.hash.transform(texts[i : i + BLOCK])[:, self.known]))
            ).float()
            for i in range(0, len(texts), BLOCK)
        ]
        none = torch.zeros(0, self.project.n_components)
        return torch.nn.functional.normalize(torch.cat([none, *blocks]), dim=1)


def _texts(frame: pd.DataFrame, text: str) -> list[str]:
    if row_numbers := np.flatnonzero(frame[text].isna()).tolist():
        raise ValueError(
            f"Expected a text in every row of {text!r}, got none in {len(row_numbers)} rows, the first of them "
            f"{row_numbers[0]}. Drop those rows or fill them in."
        )
    return [str(value) for value in frame[text].tolist()]


@DATASETS.register("text")
def from_text(
    table: Table,
    *,
    text: str,
    label: str,
    classes: Sequence[str] | None = None,
    dim: int = 256,
    seed: int = 0,
    header: bool = True,
    test: Table | None = None,
    validation: Table | None = None,
    trusted: Table | None = None,
) -> Dataset:
    """A dataset from a text column; ``raw`` has the texts, and ``dataset.encoder`` encodes new ones."""
    if text == label:
        raise ValueError(f"Expected a column of texts beside the labels, got {text!r} for both.")
    frame = read_table(table, label, text, header=header)
    texts = _texts(frame, text)
    labels = TrainingLabels(frame[label], classes, label)
    notes = [*reading_notes(frame), *describe_labels(labels.y, labels.classes, label)]
    features = TextFeatures(texts, dim, seed)
    x = features.encode(texts)
    if num_empty := int((x == 0).all(1).sum()):
        notes.append(f"{num_empty} of {len(texts)} texts contain no words: nothing can be learned from them.")
    splits = {"train": Split(x, labels.y, raw=texts)}
    for part, other in {"test": test, "validation": validation, "trusted": trusted}.items():
        if other is not None:
            frame = read_table(other, label, text, header=header)
            texts = _texts(frame, text)
            x = features.encode(texts)
            splits[part] = Split(x, labels.encode(frame[label], f"{label} of {part}"), raw=texts)
            if num_empty := int((x == 0).all(1).sum()):
                notes.append(
                    f"{num_empty} of {len(texts)} texts of the {part} set contain no word of the training texts."
                )
    return Dataset(table_name(table, "text"), labels.classes, **splits, encoder=features, notes=tuple(notes), spec="")
