"""Argilla: the folder of ``rg.Dataset.from_disk``, with suggestions; out and, as ``to_disk`` writes
it, in.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noiseproof.audit.exchange.base import (
    TOOLS,
    Files,
    Item,
    NewLabels,
    Row,
    Tool,
    is_list_of,
    only_question,
    read_json,
    row_of,
    to_json,
)
from noiseproof.core.messages import Json
from noiseproof.data.labelsets import NONE

if TYPE_CHECKING:
    from noiseproof.audit.sources.base import AuditData

QUESTION = "label"
SIDE = 512  # pixels of a picture, which is part of its record


@TOOLS.register_class("argilla")
class Argilla(Tool):
    """Records with the suggested label, and the settings of their dataset: one question, and why it
    is asked.
    """

    listing = "records.json"
    asks = True

    def files(self, data: AuditData, path: Path, rows: Sequence[Row]) -> Files:
        source = data.source
        what = "image" if source.is_pictures else "text"
        has_several = data.labels.are_sets
        records = [_record(source, row, what, has_several) for row in rows]
        settings = _settings(what, data.labels.names, has_several)
        dataset = {
            "name": "noiseproof",
            "guidelines": settings["guidelines"],
            "allow_extra_metadata": True,
        }
        contents = {
            ".argilla/dataset.json": dataset,
            ".argilla/settings.json": settings,
            self.listing: records,
        }
        return {path / name: to_json(content) for name, content in contents.items()}

    def parse(self, path: Path) -> Any:
        content = read_json(self.file(path))
        names = {"fields", "responses"}
        is_ours = isinstance(content, list) and all(
            isinstance(one, dict) and names <= {*one} for one in content
        )
        return content if content and is_ours else None

    @cached_property
    def question(self) -> str:
        """The question of labels: the one that ours is called, or the only one with answers in
        words.
        """
        asked = dict.fromkeys(name for one in self.content for name in one.get("responses") or {})
        names = [name for name in asked if any(_answers(one, name) for one in self.content)]
        return only_question(names, QUESTION, "the records of Argilla")

    def items(self) -> Iterator[Item]:
        for at, record in enumerate(self.content):
            facts = record.get("metadata") or {}
            id = record.get("id", at)
            text = record["fields"].get("text")
            for answer in _answers(record, self.question) or [{}]:
                reviewer = str(answer.get("user_id") or "")
                labels = answer.get("value")
                if isinstance(labels, list):
                    labels = [label for label in labels if label != NONE]
                elif labels:
                    labels = [labels]
                yield Item.of(at, labels, facts, id, row_of(id), reviewer=reviewer, text=text)

    def has_lists(self) -> bool:
        return any(
            isinstance(answer["value"], list)
            for record in self.content
            for answer in _answers(record, self.question)
        )

    def relabelled(self, changes: NewLabels, left_out: Collection[int]) -> str:
        records = copy.deepcopy(self.content)
        for at, labels in changes.items():
            for answer in _answers(records[at], self.question):
                is_list = is_list_of(labels, answer["value"])
                answer["value"] = list(labels) if is_list else labels[0]
        return to_json([record for at, record in enumerate(records) if at not in left_out])


def _record(source: Any, row: Row, what: str, has_several: bool) -> Json:
    shown = source.describe(row.row, row.id)
    if what == "image":
        picture, media = source.picture(row.row, row.id, SIDE) or (b"", "image/png")
        shown = f"data:{media};base64,{base64.b64encode(picture).decode()}"
    suggestion: Json = {"value": row.suggested, "score": row.confidence}
    if has_several:
        scores = row.suggested_labels or {NONE: row.confidence}
        suggestion = {"value": list(scores), "score": list(scores.values())}
    return {
        "id": row.key,
        "fields": {what: shown, "why": row.facts["why"]},
        "metadata": {name: value for name, value in row.facts.items() if name != "why"},
        "suggestions": {QUESTION: {**suggestion, "agent": "noiseproof"}},
        "responses": {},
        "vectors": {},
    }


def _answers(record: Mapping[str, Any], question: str) -> list[Json]:
    answers = (record.get("responses") or {}).get(question) or []
    return [answer for answer in answers if _is_label(answer.get("value"))]


def _is_label(value: Any) -> bool:
    """Return whether a value is a word, or a list of words: rankings and spans are lists of other
    things.
    """
    words = value if isinstance(value, list) else [value]
    return all(isinstance(one, str) for one in words)


def _settings(what: str, classes: Sequence[str], has_several: bool) -> Json:
    """Return the settings of the dataset.

    A question must be answered, so ``(none)`` is an option for rows without any label.
    """
    fields = [
        {"name": name, "title": name, "required": True, "type": kind, "settings": {"type": kind}}
        for name, kind in ((what, what), ("why", "text"))
    ]
    kind = "label_selection"
    if has_several:
        kind = "multi_label_selection"
        classes = (*classes, NONE)
    options = [{"value": name, "text": name} for name in classes]
    question = {
        "name": QUESTION,
        "title": QUESTION,
        "required": True,
        "type": kind,
        "settings": {"type": kind, "options": options},
    }
    chosen = f"all labels that are right, or {NONE}" if has_several else "the right label"
    return {
        "guidelines": f"Choose {chosen}. The suggestion and its reason come from noiseproof.",
        "fields": fields,
        "questions": [question],
        "vectors": [],
        "metadata": [],
        "allow_extra_metadata": True,
        "distribution": {"strategy": "overlap", "min_submitted": 1},
        "mapping": None,
    }
