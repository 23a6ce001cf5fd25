"""FiftyOne: the folder of a ``FiftyOneImageClassificationDataset``, out and in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noiseproof.audit.exchange.base import (
    TOOLS,
    Item,
    Row,
    Tool,
    picture_link,
    read_json,
    remove_links,
    row_of,
    to_json,
    write_new,
)  # fmt: skip
from noiseproof.audit.files import check_folder

if TYPE_CHECKING:
    from noiseproof.audit.report import LabelReport


@TOOLS.register_class("fiftyone")
class FiftyOne(Tool):
    """Links to the pictures in ``data/``, and their given labels in labels.json with the audit as attributes."""

    listing = "labels.json"
    takes_all_rows = True
    takes_texts = False

    def write(self, report: LabelReport, path: Path, rows: Sequence[Row], *, force: bool) -> None:
        folder = check_folder(path, force=force)
        remove_links(folder / "data")
        labels = {}
        for row in rows:
            picture_link(report, row, folder / "data")
            labels[row.key] = {"label": row.given, "confidence": row.quality, "attributes": row.facts}
        write_new(folder / self.listing, to_json({"classes": list(report.data.classes), "labels": labels}), force=True)

    def parse(self, path: Path) -> Any:
        is_alone = path.is_dir() and not (path / "data").is_dir()  # maybe some other file of that name
        try:
            content = read_json(self.file(path))
        except ValueError:
            if is_alone:
                return None
            raise
        names = {"labels", "classes"} if is_alone else {"labels"}
        is_ours = isinstance(content, dict) and names <= {*content} and isinstance(content["labels"], dict)
        return content if is_ours else None

    def items(self, content: Any, path: Path) -> Iterator[Item]:
        folder = (path if path.is_dir() else path.parent) / "data"
        files = {file.stem: file for file in folder.iterdir()} if folder.is_dir() else {}
        for at, (key, entry) in enumerate(content["labels"].items()):
            label = _label(entry, content.get("classes"), key)
            facts = entry.get("attributes") or {} if isinstance(entry, dict) else {}
            yield Item.of(at, label, facts, key, row_of(key), file=files.get(key, folder / key))

    def relabelled(self, content: Any, changes: Mapping[int, str], left_out: Collection[int]) -> bytes:
        labels: dict[str, Any] = {}
        classes = list(content.get("classes") or ())
        classes += [name for name in dict.fromkeys(changes.values()) if name not in classes]
        for at, (key, entry) in enumerate(content["labels"].items()):
            new = changes.get(at)
            if new is not None:
                old = entry.get("label") if isinstance(entry, dict) else entry
                value = classes.index(new) if isinstance(old, int) else new
                entry = {**entry, "label": value} if isinstance(entry, dict) else value
            if at not in left_out:
                labels[key] = entry
        return to_json(
            {**content, **({"classes": classes} if content.get("classes") else {}), "labels": labels}
        ).encode()


def _label(entry: Any, classes: Any, key: str) -> str | None:
    """Return the label of an entry, which may be its number among the classes; None for none."""
    label = entry.get("label") if isinstance(entry, dict) else entry
    if label is None or isinstance(label, str):
        return label
    is_number = isinstance(label, int) and not isinstance(label, bool)
    if not is_number or not isinstance(classes, list) or not 0 <= label < len(classes):
        count = len(classes) if isinstance(classes, list) else 0
        raise ValueError(
            f"Expected one label for each picture in labels.json, a word or a number below the {count} of its "
            f"`classes`, got {label!r} for {key!r}."
        )
    return str(classes[label])
