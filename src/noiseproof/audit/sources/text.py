"""Texts: a table with a column of texts."""

import pandas as pd

from noiseproof.audit.sources.base import SOURCES, AuditData, Request, note_features
from noiseproof.audit.sources.table import TableSource
from noiseproof.audit.sources.tablereader import Features, OtherFeatures, Unusable
from noiseproof.core.arrays import Bools, Ints
from noiseproof.core.messages import preview
from noiseproof.data.given import is_missing
from noiseproof.data.tables import Frame
from noiseproof.data.text import encode_texts, text_extractor


@SOURCES.register_class("text")
class TextSource(TableSource):
    """A table with a column of texts, audited by these alone."""

    files = ""  # as a table
    feature_kind = "texts"

    def accepts(self, request: Request) -> bool:
        return self.has_table(request) and self.config["text"] is not None

    def describe(self, row: int, id: str) -> str:
        return str(self.frame[self.config["text"]].iloc[row])

    def texts(self) -> list[str]:
        return self.records.column(self.config["text"])

    def _missing(self, table: Frame) -> Unusable:
        text = self.config["text"]
        return [(f"no text in {text!r}", is_missing(table[text]))]

    def _test_features(
        self, frame: pd.DataFrame, data: AuditData, request: Request
    ) -> OtherFeatures:
        """Encode the texts of a test set by an extractor fitted to the audited texts."""
        text = self.config["text"]
        extractor = text_extractor(self.config["features"])
        rows = data.row[data.row >= 0]
        known = self.frame[text].iloc[rows].astype(str).tolist()
        fitted = extractor.fit(known, seed=request.seed)
        return OtherFeatures(fitted.encode(frame[text].fillna("").astype(str).tolist()))

    def _features(
        self,
        table: Frame,
        columns: list[str],
        given: Ints,
        usable: Bools,
        request: Request,
    ) -> Features:
        """Return the features of texts; a text without words has none."""
        text = self.config["text"]
        texts = table[text].astype(str).where(usable, "").tolist()
        if not any(texts):
            raise ValueError(f"Expected texts in column {text!r}, got none.")
        x, description = encode_texts(
            texts,
            self.config["features"] or "auto",
            seed=request.seed,
            progress=request.progress,
            cache=request.cache,
        )
        notes = [note_features(self, description)]
        if columns:
            both = "To use both, join features of your own into `--embeddings`"
            notes.append(f"Only the text was used, not the columns {preview(columns, 12)}. {both}.")
        # they would all be the same to neighbours
        return x, notes, [(f"no words in {text!r}", (x == 0).all(1))]
