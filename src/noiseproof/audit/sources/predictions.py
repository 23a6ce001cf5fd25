"""Labels with the predictions of another model, or with embeddings, and no other data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.early import check_parts
from noiseproof.audit.sources.arrays import ArraySource, load_array
from noiseproof.audit.sources.base import SOURCES, AuditData, Columns, Content, Request
from noiseproof.audit.sources.labels import column_names


@SOURCES.register_class("predictions")
class PredictionSource(ArraySource):
    """An array of labels, (N,), beside predictions or embeddings."""

    files = ""

    def accepts(self, request: Request) -> bool:
        return request.data is None

    def read(self, request: Request) -> AuditData:
        check_parts({"labels": request.labels, "pred_probs": request.pred_probs, "embeddings": request.embeddings})
        labels, classes, predicted = load_array(request.labels, "labels"), request.classes, request.pred_probs
        if classes is None and predicted is not None and column_names(predicted) is None and labels.dtype.kind in "iuf":
            probabilities = load_array(predicted, "pred_probs")
            if probabilities.ndim == 2:
                classes = [str(k) for k in range(probabilities.shape[1])]  # a label is the number of its column
        return self._with_labels(labels, classes)

    def problem(self) -> str:
        return "The audit had labels and predictions only: there is no row to show."

    def check_inputs(self, folder: Path) -> None:
        if not self.config.get("embeddings"):
            raise ValueError(
                "Expected inputs to train on, the audit had labels and predictions only. Leave out --retrain."
            )

    def show(self, row: int, id: str) -> Content:
        return {"note": self.problem()}

    @property
    def has_pictures(self) -> bool:
        return False

    def picture(self, row: int, id: str, side: int) -> None:
        return None

    def columns(self, given: NDArray[np.int64]) -> Columns:
        return {}
