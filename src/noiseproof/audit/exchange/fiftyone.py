"""FiftyOne: the folder of a ``FiftyOneImageClassificationDataset``, out and in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
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
    paired,
    picture_link,
    read_json,
    remove_links,
    row_of,
    to_json,
)
from noiseproof.core.messages import Json

if TYPE_CHECKING:
    from noiseproof.audit.sources.base import AuditData


@TOOLS.register_class("fiftyone")
class FiftyOne(Tool):
    """Links to the pictures in ``data/``, and their given labels in labels.json with the audit as
    attributes.
    """

    listing = "labels.json"
    takes_all_rows = True
    takes_texts = False

    def files(self, data: AuditData, path: Path, rows: Sequence[Row]) -> Files:
        remove_links(path / "data")
        labels: Json = {}
        for row in rows:
            picture_link(data, row, path / "data")
            entries = [
                {"label": name, "confidence": quality, "attributes": row.facts}
                for name, quality in row.labels.items()
            ]
            labels[row.key] = entries if data.labels.are_sets else entries[0]
        content = {"classes": list(data.labels.names), "labels": labels}
        return {path / self.listing: to_json(content)}

    def parse(self, path: Path) -> Any:
        # maybe some other file of that name
        is_alone = path.is_dir() and not (path / "data").is_dir()
        try:
            content = read_json(self.file(path))
        except ValueError:
            if is_alone:
                return None
            raise
        if not isinstance(content, dict) or not isinstance(content.get("labels"), dict):
            return None
        return None if is_alone and "classes" not in content else content

    def items(self) -> Iterator[Item]:
        folder = self.folder / "data"
        files = {file.stem: file for file in folder.glob("*")}
        for at, (key, entry) in enumerate(self.content["labels"].items()):
            labels = None
            facts: Mapping[str, Any] = {}
            if entry is not None:
                words = [_label(one, self.content.get("classes"), key) for one in _entries(entry)]
                labels = [label for label in words if label is not None]
            for one in _entries(entry):
                if isinstance(one, dict):
                    facts = facts or one.get("attributes") or {}
            yield Item.of(at, labels, facts, key, row_of(key), file=files.get(key, folder / key))

    def has_lists(self) -> bool:
        return any(isinstance(entry, list) for entry in self.content["labels"].values())

    def relabelled(self, changes: NewLabels, left_out: Collection[int]) -> str:
        known = self.content.get("classes")
        classes = list(known or ())
        new = dict.fromkeys(name for names in changes.values() for name in names)
        classes += [name for name in new if name not in classes]
        every = [one for entry in self.content["labels"].values() for one in _entries(entry)]
        labels: Json = {}
        for at, (key, entry) in enumerate(self.content["labels"].items()):
            if at in left_out:
                continue
            if at in changes:
                old = [(_label(one, known, key), one) for one in _entries(entry)]
                entries = []
                for name, ones in paired(old, changes[at]):
                    like = [_without_facts(one) for one in [*_entries(entry), *every, ""][:1]]
                    entries += [_labelled(one, str(name), classes) for one in ones or like]
                entry = entries if is_list_of(changes[at], entry) else entries[0]
            labels[key] = entry
        written = {**self.content, "labels": labels}
        if known:
            written["classes"] = classes
        return to_json(written)


def _entries(entry: Any) -> list[Any]:
    """Return the labels of a picture, each a word, a number or a dict with one of them."""
    if isinstance(entry, list):
        return entry
    return [] if entry is None else [entry]


def _without_facts(entry: Any) -> Any:
    """Return an entry of the same kind, without what is said of its label."""
    return {"label": entry.get("label")} if isinstance(entry, dict) else entry


def _labelled(entry: Any, name: str, classes: Sequence[str]) -> Any:
    """Return an entry with another label, which stays a number where it is one."""
    if isinstance(entry, dict):
        return {**entry, "label": _labelled(entry.get("label"), name, classes)}
    return classes.index(name) if isinstance(entry, int) else name


def _label(entry: Any, classes: Any, key: str) -> str | None:
    """Return the label of an entry, which may be its number among the classes; None for none."""
    label = entry.get("label") if isinstance(entry, dict) else entry
    if label is None or isinstance(label, str):
        return label
    names = classes if isinstance(classes, list) else []
    if type(label) is not int or not 0 <= label < len(names):
        raise ValueError(
            "Expected labels of each picture in labels.json, a word or a number below the"
            f" {len(names)} of its `classes`, got {label!r} for {key!r}."
        )
    return str(names[label])
