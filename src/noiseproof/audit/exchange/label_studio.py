"""Label Studio: tasks with predictions out, annotations (its exports JSON and JSON-MIN) in."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import quoteattr

from noiseproof.audit.exchange.base import (
    TOOLS,
    Files,
    Item,
    Labels,
    NewLabels,
    Row,
    Tool,
    find_file,
    only_question,
    read_json,
    to_json,
)
from noiseproof.core.messages import Json

if TYPE_CHECKING:
    from noiseproof.audit.sources.base import AuditData

# characters that XML cannot hold
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
FILES = "/data/local-files/?d="  # what Label Studio serves from its document root
QUESTION = "label"  # the name of the choices
# names in a task of JSON-MIN that are not questions: of Label Studio, and of `write`
OWN = {"id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time"}
OWN |= {"text", "image", "source_id", "given_label", "suggested_label", "why"}


@TOOLS.register_class("label-studio")
class LabelStudio(Tool):
    """Tasks of texts or pictures, with the suggested label as the prediction of each, and the
    labelling set-up.

    Pictures are addressed as local files below the folder that holds the audited one: Label Studio
    serves them if that is its LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT and the audited folder is a
    local storage of the project.
    """

    asks = True

    def files(self, data: AuditData, path: Path, rows: Sequence[Row]) -> Files:
        source = data.source
        classes = data.labels.names
        if odd := [name for name in classes if NO_XML.search(name)]:
            raise ValueError(
                f"Expected names of classes that the XML of Label Studio can hold, got {odd[0]!r}."
                " Remove control characters, and audit again."
            )
        what = "image" if source.is_pictures else "text"
        tasks = [_task(data, row, what) for row in rows]
        choice = "multiple" if data.labels.are_sets else "single"
        set_up = _set_up(what, classes, choice)
        return {path.with_suffix(".json"): to_json(tasks), path.with_suffix(".xml"): set_up}

    def parse(self, path: Path) -> Any:
        content = read_json(path)
        if not isinstance(content, list):
            return None
        tasks = [task for task in content if isinstance(task, dict)]
        return content if any(_data(task) is not task or _is_flat(task) for task in tasks) else None

    @cached_property
    def question(self) -> str:
        """The name of the choices that are the labels."""
        tasks = [task for task in self.content if isinstance(task, dict)]
        flat = (task for task in tasks if _data(task) is task)
        words = (name for task in flat for name, value in task.items() if _flat_labels(value))
        asked = (name for task in tasks for name in _asked(task))
        names = [name for name in dict.fromkeys(words) if name not in OWN]
        names += dict.fromkeys(asked)
        return only_question(names, QUESTION, "the tasks of Label Studio")

    def items(self) -> Iterator[Item]:
        question = self.question
        for at, task in enumerate(self.content):
            try:
                answers = list(_answers(task, question)) or [("", None)]
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                name = f"task {task.get('id', at) if isinstance(task, dict) else at}"
                why = "its annotations are not as in Label Studio"
                if isinstance(error, ValueError):
                    why = str(error)
                yield Item(at, None, str(at), problem=f"{name}: {why}")
                continue
            data = _data(task)
            place: Json = {"text": data.get("text")}
            if "image" in data:
                place = {"file": _file(data["image"], self.path)}
            for reviewer, labels in answers:
                yield Item.of(at, labels, data, task.get("id", at), reviewer=reviewer, **place)

    def relabelled(self, changes: NewLabels, left_out: Collection[int]) -> str:
        tasks = copy.deepcopy(self.content)
        question = self.question
        for at, labels in changes.items():
            task = tasks[at]
            if _data(task) is not task:
                what = "image" if "image" in task["data"] else "text"
                for annotation in _given(task):
                    _answer(annotation, question, labels, what)
                continue
            task.pop(question, None)
            if labels:
                task[question] = labels[0] if len(labels) == 1 else {"choices": list(labels)}
        return to_json([task for at, task in enumerate(tasks) if at not in left_out])


def _task(data: AuditData, row: Row, what: str) -> Json:
    source = data.source
    shown = _address(source, row.id) if what == "image" else source.describe(row.row, row.id)
    facts = {name: value for name, value in row.facts.items() if name != "predicted_label"}
    result = {
        "id": row.key,
        "from_name": QUESTION,
        "to_name": what,
        "type": "choices",
        "value": {"choices": list(row.suggested_labels)},
    }
    prediction = {
        "model_version": "noiseproof",
        "score": row.confidence,
        "result": [result] if row.suggested_labels else [],
    }
    return {"data": {what: shown, **facts}, "predictions": [prediction]}


def _set_up(what: str, classes: Sequence[str], choice: str) -> str:
    tag = f'<{what.capitalize()} name="{what}" value="${what}"/>'
    choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
    return (
        f'<View>\n  {tag}\n  <Text name="why" value="$why"/>\n  <Choices name="{QUESTION}"'
        f' toName="{what}" choice="{choice}">\n{choices}\n  </Choices>\n</View>\n'
    )


def _given(task: Mapping[str, Any]) -> list[Json]:
    return [one for one in task.get("annotations") or () if not one.get("was_cancelled")]


def _is_choice(result: Mapping[str, Any], question: str) -> bool:
    return result.get("type") == "choices" and result.get("from_name", question) == question


def _answer(annotation: Json, question: str, labels: Labels, what: str) -> None:
    """Write other labels into an annotation: in place of its first choices, or at the end."""
    results = annotation.get("result", [])
    usual = {"from_name": question, "to_name": what, "type": "choices", "value": {}}
    chosen: Mapping[str, Any] = usual
    new = []
    place = None
    for result in results:
        if not _is_choice(result, question):
            new.append(result)
        elif place is None:
            place = len(new)
            chosen = result
    if labels:
        value = {**chosen["value"], "choices": list(labels)}
        new.insert(len(new) if place is None else place, {**chosen, "value": value})
    annotation["result"] = new


def _data(task: Any) -> Any:
    """Return what a task is about: its data, or in JSON-MIN the task itself."""
    return task["data"] if isinstance(task.get("data"), dict) else task


def _is_flat(task: Mapping[str, Any]) -> bool:
    """Return whether this is a task of JSON-MIN, by what Label Studio adds to each; some versions
    leave one of it out.
    """
    return "annotation_id" in task or ("lead_time" in task and "annotator" in task)


def _asked(task: Any) -> Iterator[str]:
    """Yield the names of choices in the annotations of a task; one that can't be read has none."""
    with suppress(TypeError, AttributeError, KeyError):
        yield from (
            r["from_name"]
            for one in _given(task)
            for r in one["result"]
            if r.get("type") == "choices"
        )


def _flat_labels(value: Any) -> list[str]:
    """Return the labels in a value of JSON-MIN: one as a word, several as {"choices": …}, none as
    nothing.
    """
    choices = value.get("choices") if isinstance(value, dict) else None
    if isinstance(choices, list) and all(isinstance(one, str) for one in choices):
        return choices
    return [value] if isinstance(value, str) and value else []


def _answers(task: Mapping[str, Any], question: str) -> Iterator[tuple[str, Labels | None]]:
    """Yield who answered a task, and the labels; None if it was skipped."""
    if _data(task) is task:  # in JSON-MIN, which has the answer among the data
        yield str(task.get("annotator", "")), _flat_labels(task.get(question))
    for annotation in task.get("annotations") or ():
        person = annotation.get("completed_by", "")
        if isinstance(person, dict):
            person = person.get("email", person.get("id", ""))
        results = [one for one in annotation.get("result", ()) if _is_choice(one, question)]
        labels = dict.fromkeys(
            label for one in results for label in one["value"].get("choices", ())
        )
        yield str(person), None if annotation.get("was_cancelled") else list(labels)


def _address(source: Any, id: str) -> str:
    """Return the address of a picture below the folder that holds the audited folder or file."""
    folder = Path(source.config["data"])
    if not folder.is_dir():
        folder = folder.resolve().parent
    path = Path(os.path.relpath(source.file(id), folder.parent))
    return FILES + quote(path.as_posix())


def _file(address: Any, listing: Path) -> Path:
    """Return the picture that an address stands for: a local file, or one that was uploaded."""
    parts = urlsplit(str(address))
    name = ""
    if parts.path.startswith("/data/local-files"):
        name = parse_qs(parts.query).get("d", [""])[0]
    return find_file(name or Path(parts.path).name, listing)
