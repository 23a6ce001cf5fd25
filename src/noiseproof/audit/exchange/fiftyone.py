"""FiftyOne: the folder of a ``FiftyOneImageClassificationDataset``, out and in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noiseproof.audit.exchange.base import (
    TOOLS,
    Item,
    Labels,
    Row,
    Tool,
    is_list_of,
    paired,
    picture_link,
    read_json,
    remove_links,
    row_of,
    to_json,
    write_new,
)
from noiseproof.audit.files import check_folder

if TYPE_CHECKING:
    from noiseproof.audit.result import AuditResult


@TOOLS.register_class("fiftyone")
class FiftyOne(Tool):
    """Links to the pictures in ``data/``, and their given labels in labels.json with the audit as
    attributes.
    """

    listing = "labels.json"
    takes_all_rows = True
    takes_texts = False

    def write(self, report: AuditResult, path: Path, rows: Sequence[Row], *, force: bool) -> None:
        folder = check_folder(path, force=force)
        remove_links(folder / "data")
        labels: dict[str, Any] = {}
        for row in rows:
            picture_link(report, row, folder / "data")
            entries = [
                {"label": name, "confidence": quality, "attributes": row.facts}
                for name, quality in row.labels.items()
            ]
            labels[row.key] = entries if report.data.labels.are_sets else entries[0]
        write_new(
            folder / self.listing,
            to_json({"classes": list(report.data.labels.names), "labels": labels}),
            force=True,
        )

    def parse(self, path: Path) -> Any:
        # maybe some other file of that name
        is_alone = path.is_dir() and not (path / "data").is_dir()
        try:
            content = read_json(self.file(path))
        except ValueError:
            if is_alone:
                return None
            raise
        names = {"labels", "classes"} if is_alone else {"labels"}
        is_ours = (
            isinstance(content, dict)
            and names <= {*content}
            and isinstance(content["labels"], dict)
        )
        return content if is_ours else None

    def items(self, content: Any, path: Path) -> Iterator[Item]:
        folder = (path if path.is_dir() else path.parent) / "data"
        files = {file.stem: file for file in folder.iterdir()} if folder.is_dir() else {}
        for at, (key, entry) in enumerate(content["labels"].items()):
            labels = [_label(one, content.get("classes"), key) for one in _entries(entry)]
            attributes = (one.get("attributes") for one in _entries(entry) if isinstance(one, dict))
            facts: Mapping[str, Any] = next(filter(None, attributes), {})
            found = None if entry is None else [label for label in labels if label is not None]
            yield Item.of(at, found, facts, key, row_of(key), file=files.get(key, folder / key))

    def has_lists(self, content: Any) -> bool:
        return any(isinstance(entry, list) for entry in content["labels"].values())

    def relabelled(
        self, content: Any, changes: Mapping[int, Labels], left_out: Collection[int]
    ) -> bytes:
        labels: dict[str, Any] = {}
        classes = list(content.get("classes") or ())
        has_lists = self.has_lists(content)
        classes += [
            n
            for n in dict.fromkeys(n for names in changes.values() for n in names)
            if n not in classes
        ]

        def labelled(entry: Any, name: str) -> Any:
            old = entry.get("label") if isinstance(entry, dict) else entry
            value = classes.index(name) if isinstance(old, int) else name
            return {**entry, "label": value} if isinstance(entry, dict) else value

        for at, (key, entry) in enumerate(content["labels"].items()):
            new = changes.get(at)
            if new is not None:
                old = [(_label(one, content.get("classes"), key), one) for one in _entries(entry)]
                like = old[0][1] if old else next(iter(_any_entry(content)), "")
                entries = [
                    labelled(one, str(n))
                    for n, ones in paired(old, new)
                    for one in ones or [_plain(like)]
                ]
                entry = entries if is_list_of(new, entry, has_lists) else entries[0]
            if at not in left_out:
                labels[key] = entry
        return to_json(
            {
                **content,
                **({"classes": classes} if content.get("classes") else {}),
                "labels": labels,
            }
        ).encode()


def _entries(entry: Any) -> list[Any]:
    """The labels of a picture, each a word, a number or a dict with one of them."""
    return entry if isinstance(entry, list) else [] if entry is None else [entry]


def _any_entry(content: Any) -> Iterator[Any]:
    return (one for entry in content["labels"].values() for one in _entries(entry))


def _plain(entry: Any) -> Any:
    """An entry of the same kind for another label, without what is said of this one."""
    return {"label": entry.get("label")} if isinstance(entry, dict) else entry


def _label(entry: Any, classes: Any, key: str) -> str | None:
    """Return the label of an entry, which may be its number among the classes; None for none."""
    label = entry.get("label") if isinstance(entry, dict) else entry
    if label is None or isinstance(label, str):
        return label
    is_number = isinstance(label, int) and not isinstance(label, bool)
    if not is_number or not isinstance(classes, list) or not 0 <= label < len(classes):
        count = len(classes) if isinstance(classes, list) else 0
        raise ValueError(
            f"Expected labels of each picture in labels.json, a word or a number below the {count}"
            f" of its `classes`, got {label!r} for {key!r}."
        )
    return str(classes[label])
