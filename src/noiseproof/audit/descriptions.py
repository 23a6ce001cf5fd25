"""What descriptions of the classes say of texts: their similarity to each."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from noiseproof.audit.sources.base import AuditData
from noiseproof.core.arrays import Floats32
from noiseproof.core.messages import preview
from noiseproof.data.frames import as_frame, read_file
from noiseproof.data.sources import PATHS
from noiseproof.data.text import PRETRAINED, text_extractor


def with_descriptions(rows: AuditData, describe: Any) -> AuditData:
    """Return the rows with the similarity (N, K) of each text to the description of each class.

    Args:
        rows: texts with one label each.
        describe: a dict of class and description, or a table or its file with the columns ``class``
            and ``description``.
    """
    if rows.texts is None:
        raise ValueError(
            "Expected texts with `describe`, whose words are compared with the descriptions, got a"
            f" {rows.source.name}. Name their column with `text`."
        )
    if rows.labels.are_sets:
        raise ValueError("Expected one label per row with `describe`, got several.")
    descriptions = _read(describe)
    if missing := [name for name in rows.classes if not descriptions.get(name, "").strip()]:
        raise ValueError(
            f"Expected a description of every class in `describe`, got none of {preview(missing)}."
        )
    # Descriptions are no sample of texts, so only pretrained features compare them.
    extractor = text_extractor(rows.source.config["features"] or PRETRAINED)
    if not extractor.loads_by_name:
        extractor = text_extractor(PRETRAINED)
    texts = _unit(extractor.encode(rows.texts.tolist()))
    classes = _unit(extractor.encode([descriptions[name] for name in rows.classes]))
    return replace(rows, similarities=texts @ classes.T)


def _read(describe: Any) -> dict[str, str]:
    if isinstance(describe, Mapping):
        return {str(name): str(text) for name, text in describe.items()}
    is_file = isinstance(describe, PATHS)
    columns = ["class", "description"]
    frame = read_file(Path(describe), columns) if is_file else as_frame(describe)
    if missing := [name for name in columns if name not in frame.columns]:
        raise ValueError(
            f"Expected the columns class and description in `describe`, got"
            f" {preview(list(frame.columns))}: no {' and no '.join(missing)}."
        )
    frame = frame[columns].dropna().astype(str)
    return dict(zip(frame["class"], frame["description"], strict=True))


def _unit(vectors: Floats32) -> Floats32:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, np.finfo(np.float32).tiny))
