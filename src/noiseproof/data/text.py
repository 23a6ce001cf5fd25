"""A user's texts: a table with a column of texts and a column of labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from noiseproof.core.arrays import Floats32
from noiseproof.core.checks import check_count
from noiseproof.core.cluster import map_jobs
from noiseproof.core.messages import Progress, counted, preview
from noiseproof.data.base import Dataset, Split
from noiseproof.data.features import (
    FEATURES,
    Extractor,
    compute,
    describe,
    digest,
    encode_blocks,
    get_extractor,
)
from noiseproof.data.frames import Table, read_table, reading_notes, table_name
from noiseproof.data.labels import TrainingLabels, describe_labels
from noiseproof.data.sources import DATASETS, PathLike
from noiseproof.models.pretrained import Weights, WordVectors, loaded_weights, word_vectors

if TYPE_CHECKING:
    import pandas as pd

# Scripts without spaces between words: ideographs, kana, Thai, Lao, Myanmar, Khmer.
_SPACELESS = (
    "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9f"
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u109f\u1780-\u17d3"
)
# A word of two letters or more, as in scikit-learn, or one character of those scripts with its
# marks.
TOKEN = rf"[{_SPACELESS}](?:(?!\w)[{_SPACELESS}])*|[^\W{_SPACELESS}]{{2,}}"
FIT_ROWS = 50_000  # texts that the axes are fitted to
BLOCK = 10_000  # texts at once, by a network, and batches of a task
BATCH = 64
PER_TASK = 32
PRETRAINED = "wordllama"  # where installed: measured in docs/audit_features.md


class TextFeatures:
    """Words and word pairs, hashed, weighted by TF-IDF and projected onto their main axes: (N, dim)
    of unit length.

    In scripts without spaces between words, every character counts as a word.
    """

    def __init__(self, texts: Sequence[str], dim: int = 256, seed: int = 0) -> None:
        from sklearn.decomposition import TruncatedSVD
        from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

        self.hash = HashingVectorizer(
            ngram_range=(1, 2),
            n_features=2**17,
            alternate_sign=False,
            norm=None,
            dtype=np.float32,
            token_pattern=TOKEN,
        )
        self.weigh = TfidfTransformer(sublinear_tf=True)
        sample = np.random.default_rng(seed).permutation(len(texts))[:FIT_ROWS]
        counts = self.hash.transform([texts[i] for i in np.sort(sample)])
        if counts.nnz == 0:
            raise ValueError("Expected words of two letters or more in the texts, got none.")
        # other hashes are zero: leaving them out makes the fit fast
        self.known = np.unique(counts.indices)
        weighted = self.weigh.fit_transform(counts[:, self.known])
        axes = min(check_count("dim", dim, 1), *weighted.shape)
        self.project = TruncatedSVD(axes, random_state=seed).fit(weighted)

    def encode(self, rows: Iterable[str]) -> Tensor:
        """(N, dim) float32, computed in blocks to save memory."""
        texts = list(rows)
        blocks = map_jobs(TextFeatures._encode_block, _split(texts, BLOCK), self)
        empty = torch.zeros(0, self.project.n_components)
        return torch.nn.functional.normalize(torch.cat([empty, *blocks]), dim=1)

    @staticmethod
    def _encode_block(texts: Sequence[str], features: TextFeatures) -> Tensor:
        counts = features.hash.transform(texts)[:, features.known]
        return torch.from_numpy(
            features.project.transform(features.weigh.transform(counts))
        ).float()


@FEATURES.register_class("tfidf")
class TfidfFeatures(Extractor):
    """TF-IDF of words and word pairs on their main axes."""

    kind = "texts"
    summary = "words and word pairs by TF-IDF, on their main axes"

    def __init__(self, dim: int = 256) -> None:
        self.dim = check_count("dim", dim, 1)
        self.fitted: TextFeatures | None = None

    def fit(self, rows: Sequence[str], *, seed: int = 0) -> Self:
        self.fitted = TextFeatures([text for text in rows if text], self.dim, seed)
        return self

    def encode(self, rows: Sequence[str], *, progress: Progress | None = None) -> Floats32:
        assert self.fitted is not None, "fit comes first"
        return np.asarray(self.fitted.encode(rows).numpy())


@FEATURES.register_class("wordllama")
class WordLlamaFeatures(Extractor):
    """Mean of WordLlama's pretrained token vectors, of unit length; zeros for a text without
    tokens.
    """

    kind = "texts"
    summary = "mean of WordLlama's pretrained token vectors"
    packages = WordVectors.packages
    extra = "text"

    def weights(self) -> Weights:
        return WordVectors.weights()

    def encode(self, rows: Sequence[str], *, progress: Progress | None = None) -> Floats32:
        blocks = _split(rows, BLOCK)
        return encode_blocks(
            _mean_vectors, blocks, total=len(rows), what="encoding texts", progress=progress
        )


def _split(texts: Sequence[str], size: int) -> list[list[str]]:
    return [list(texts[i : i + size]) for i in range(0, len(texts), size)]


def _mean_vectors(texts: list[str]) -> Tensor:
    return word_vectors().mean(texts)


def _encode_batch(texts: list[str], extractor: Any) -> Tensor:
    batch: Tensor = extractor.encode_batch(texts)
    return batch.float().cpu()


class _NetworkFeatures(Extractor):
    """Features of texts by a network, which encodes batches of them."""

    kind = "texts"
    extra = "transformers"
    loads_by_name = True

    def encode(self, rows: Sequence[str], *, progress: Progress | None = None) -> Floats32:
        # texts of similar length together, which need less padding
        order = np.argsort([len(text) for text in rows], kind="stable")
        joined = encode_blocks(
            _encode_batch,
            _split([rows[i] for i in order], BATCH),
            self,
            total=len(rows),
            what="encoding texts",
            progress=progress,
            per_task=PER_TASK,
        )
        x = np.empty_like(joined)
        x[order] = joined
        return x


@FEATURES.register_class("sentence-transformers")
class SentenceTransformerFeatures(_NetworkFeatures):
    """Sentence embeddings of a model of the library sentence-transformers, from its cache or a
    folder.
    """

    summary = "a model of sentence-transformers, by name or folder"
    packages = ("sentence_transformers",)

    def __init__(self, model: str) -> None:
        self.model = str(model)

    @cached_property
    def network(self) -> Any:
        return import_module("sentence_transformers").SentenceTransformer(self.model)

    def weights(self) -> Weights:
        return loaded_weights("sentence_transformers", self.network)

    def encode_batch(self, texts: list[str]) -> Tensor:
        return torch.as_tensor(self.network.encode(texts, show_progress_bar=False))


@FEATURES.register_class("transformers")
class TransformerFeatures(_NetworkFeatures):
    """Last hidden states of a model of the library transformers, averaged over the tokens of each
    text.
    """

    summary = "last hidden states of a model of transformers, averaged over tokens"
    packages = ("transformers",)

    def __init__(self, model: str, max_length: int = 256) -> None:
        self.model = str(model)
        self.max_length = check_count("max_length", max_length, 1)

    @cached_property
    def network(self) -> Any:
        return import_module("transformers").AutoModel.from_pretrained(self.model).eval()

    @cached_property
    def tokenizer(self) -> Any:
        return import_module("transformers").AutoTokenizer.from_pretrained(self.model)

    def weights(self) -> Weights:
        return loaded_weights("transformers", self.network)

    @torch.inference_mode()
    def encode_batch(self, texts: list[str]) -> Tensor:
        inputs = self.tokenizer(
            texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
        )
        states: Tensor = self.network(**inputs).last_hidden_state  # (B, T, F)
        mask = inputs["attention_mask"][..., None].to(states.dtype)
        mean: Tensor = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return mean


def text_extractor(name: str = "auto") -> Extractor:
    """Return the extractor ``name``; ``auto`` is pretrained where the package is installed, else
    ``tfidf``.
    """
    if name == "auto":
        name = PRETRAINED if WordLlamaFeatures.is_available() else "tfidf"
    return get_extractor(name, "texts")


def encode_texts(
    texts: Sequence[str],
    name: str = "auto",
    *,
    seed: int = 0,
    progress: Progress | None = None,
    cache: PathLike | None = None,
) -> tuple[Floats32, dict[str, Any]]:
    """Return features (N, F) of texts, zeros for one without words, and a description of how they
    were made.

    Args:
        name: of ``FEATURES``, as ``tfidf``, ``wordllama + tfidf`` or
            ``sentence-transformers:NAME``.
        seed: of fitted axes.
        cache: folder where features are kept and looked for, by a digest of texts and extractor.

    >>> x, description = encode_texts(["good film", "bad film", "good book"], "tfidf")
    >>> x.shape, description["name"]
    ((3, 3), 'tfidf')
    """
    texts = list(texts)
    extractor = text_extractor(name)
    x = compute(extractor, texts, lambda: digest(texts), seed=seed, progress=progress, cache=cache)
    return x, describe(extractor)


def _texts(frame: pd.DataFrame, text: str) -> list[str]:
    if row_numbers := np.flatnonzero(frame[text].isna()).tolist():
        raise ValueError(
            f"Expected a text in every row of {text!r}, got none in"
            f" {counted(len(row_numbers), 'row')}, the first of them {row_numbers[0]}. Drop those"
            " rows or fill them in."
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
    """A dataset from a column of texts, which words and word pairs describe.

    ``raw`` has the texts, and ``dataset.encoder`` encodes new ones.

    Args:
        table, label, classes, header, test, validation, trusted: as in ``from_table``.
        text: the column of the texts.
        dim: features of each text.
        seed: of their axes.
    """
    if text == label:
        raise ValueError(
            f"Expected a column of texts as well as the labels, got {text!r} for both."
        )
    frame = read_table(table, label, text, header=header)
    texts = _texts(frame, text)
    labels = TrainingLabels(frame[label], classes, label)
    notes = [*reading_notes(frame), *describe_labels(labels.y, labels.classes, label)]
    if others := [column for column in frame.columns if column not in (text, label)]:
        notes.append(f"Only the text was used, not the columns {preview(others, 12)}.")
    features = TextFeatures(texts, dim, seed)
    splits: dict[str, Any] = {"train": Split(features.encode(texts), labels.y, raw=texts)}
    for part, other in {"test": test, "validation": validation, "trusted": trusted}.items():
        if other is not None:
            frame = read_table(other, label, text, header=header)
            texts = _texts(frame, text)
            y, _ = labels.encode(frame[label], f"{label} of {part}")
            splits[part] = Split(features.encode(texts), y, raw=texts)
    for part, split in splits.items():
        if num_empty := int((split.x == 0).all(1).sum()):
            words = "no words: nothing can be learned from them"
            if part != "train":
                words = f"no word of the training texts, in the {part} set"
            notes.append(f"{num_empty} of {len(split)} texts contain {words}.")
    return Dataset(
        table_name(table, "text"),
        labels.classes,
        **splits,
        encoder=features,
        notes=tuple(notes),
    )
