"""Labels with the predictions of another model, or with embeddings, and no other data."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from noiseproof.audit.files import Audit, same_labels
from noiseproof.audit.sources.annotations import voted_labels
from noiseproof.audit.sources.arrays import LabelSource, load_array
from noiseproof.audit.sources.base import SOURCES, AuditData, Content, Request
from noiseproof.core.arrays import Array, Ints
from noiseproof.data.given import column_names

NO_ROW = "The audit had labels and predictions only: there is no row to show."
MOST_CLASSES = 10  # whose probabilities the page shows


@SOURCES.register_class("predictions")
class PredictionSource(LabelSource):
    """An array of labels, (N,), with predictions or embeddings of the same rows."""

    files = ""

    def accepts(self, request: Request) -> bool:
        return request.data is None

    def read(self, request: Request) -> AuditData:
        parts = {
            "labels": request.labels,
            "pred_probs": request.pred_probs,
            "embeddings": request.embeddings,
        }
        labels = request.labels
        predicted = request.pred_probs
        has_labels = labels is not None or request.annotations is not None
        if not has_labels or (predicted is None and request.embeddings is None):
            named = [f"`{name}`" for name, value in parts.items() if value is not None]
            got = f"{' and '.join(named)} alone" if named else "none"
            raise ValueError(
                "Expected data to audit, or both `labels` and `pred_probs` (or `embeddings`), got"
                f" {got}."
            )
        if labels is None:
            known = next(name for name in ("pred_probs", "embeddings") if parts[name] is not None)
            num_rows = len(load_array(parts[known], known))
            labels = voted_labels(request, num_rows, self.config["consensus"])
            self.config["voted"] = True
        labels, request = self._as_words(load_array(labels, "labels"), request)
        classes = request.classes
        if (
            classes is None
            and predicted is not None
            and column_names(predicted) is None
            and labels.dtype.kind in "iuf"
        ):
            probabilities = load_array(predicted, "pred_probs")
            if probabilities.ndim == 2:
                # a label is the number of its column
                classes = [str(k) for k in range(probabilities.shape[1])]
        return self._with_labels(labels, classes)

    @cached_property
    def predictions(self) -> Array | None:
        """The audited probabilities (N, K), None where they are in no .npy file, or the labels have
        changed.
        """
        path = Path(self.config.get("pred_probs") or "")
        classes = self.config.get("classes") or ()
        if (
            path.suffix != ".npy"
            or not path.is_file()
            or self.labels is None
            or not same_labels(self.config, self.labels)
        ):
            return None
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return (
            array
            if array.shape == (len(self.labels), len(classes)) and not self.multi_label
            else None
        )

    def find_rows(self, audit: Audit, outcomes: Mapping[int, object]) -> Ints:
        if self.is_voted:  # nothing but the predictions has rows
            return np.arange(audit.config["source_rows"])
        return super().find_rows(audit, outcomes)

    def problem(self) -> str | None:
        return NO_ROW if self.predictions is None else None

    def check_inputs(self, folder: Path) -> None:
        if not self.config.get("embeddings"):
            raise ValueError(
                "Expected inputs to train on, the audit had labels and predictions only. Leave out"
                " --retrain."
            )

    def __len__(self) -> int:
        return len(self.row_words)

    def show(self, row: int, id: str) -> Content:
        """Return the most likely classes; whoever is asked blind does not see them."""
        if self.predictions is None:
            return {"note": NO_ROW}
        probs = np.asarray(self.predictions[row], np.float64)
        classes = self.config["classes"]
        likely = np.argsort(-probs, kind="stable")[:MOST_CLASSES].tolist()
        return {
            "predictions": [[classes[k], f"{100 * probs[k]:.1f} %"] for k in likely],
            "note": NO_ROW,
        }
