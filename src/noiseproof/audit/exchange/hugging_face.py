"""Hugging Face: a folder that ``load_dataset("imagefolder")`` reads, with the audit as columns; out
and in.

Labels of the pictures are in metadata.jsonl, or in metadata.csv, in the columns file_name and
label: a word, a number, or a list of several.
"""

from __future__ import annotations

import csv
import io
import json
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
    picture_link,
    remove_links,
    row_of,
)
from noiseproof.data.labelsets import list_values, lists_as_sets, value_of

if TYPE_CHECKING:
    from noiseproof.audit.sources.base import AuditData


TABLE = "metadata.csv"


@TOOLS.register_class("imagefolder")
class ImageFolder(Tool):
    """Links to the pictures, and metadata.jsonl with a line for each: its given label and the
    results of the audit.
    """

    listing = "metadata.jsonl"
    takes_all_rows = True
    takes_texts = False

    def files(self, data: AuditData, path: Path, rows: Sequence[Row]) -> Files:
        remove_links(path)
        has_several = data.labels.are_sets
        lines = [
            {
                "file_name": picture_link(data, row, path),
                "label": list(row.labels) if has_several else row.given,
                **row.facts,
            }
            for row in rows
        ]
        return {path / self.listing: _to_lines(lines)}

    def file(self, path: Path) -> Path:
        is_table = path.is_dir() and not (path / self.listing).exists() and (path / TABLE).is_file()
        return path / TABLE if is_table else super().file(path)

    def parse(self, path: Path) -> Any:
        file = self.file(path)
        if path.is_dir() and file.name == TABLE:
            return _read_table(file)
        if file.suffix.lower() != ".jsonl" or not file.is_file():
            return None
        try:
            text = file.read_text("utf-8")
            lines = [json.loads(line) for line in text.split("\n") if line.strip()]
        except ValueError as error:
            raise ValueError(f"Expected JSON in every line of {file}, got {error}.") from error
        is_ours = all(isinstance(line, dict) and "file_name" in line for line in lines)
        return lines if is_ours and any("label" in line for line in lines) else None

    def items(self) -> Iterator[Item]:
        if self.has_lists():
            list_values(map(_as_list, self.content))
        for at, line in enumerate(self.content):
            name = line["file_name"]
            labels = None
            if line.get("label") is not None:
                (labels,) = lists_as_sets([_as_list(line)])
            stem = Path(name).stem
            row = row_of(stem)
            id = name if row is None else stem
            yield Item.of(at, labels, line, id, row, file=self.folder / name)

    def has_lists(self) -> bool:
        return any(isinstance(line.get("label"), list) for line in self.content)

    def relabelled(self, changes: NewLabels, left_out: Collection[int]) -> str:
        values = list_values(map(_as_list, self.content))
        lines = []
        for at, line in enumerate(self.content):
            if at in left_out:
                continue
            if at in changes:
                label = [value_of(name, values) for name in changes[at]]
                is_list = is_list_of(changes[at], line.get("label"))
                line = {**line, "label": label if is_list else label[0]}
            lines.append(line)
        if isinstance(self.content, _Table):
            file = io.StringIO(newline="")
            writer = csv.DictWriter(file, self.content.header, lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)
            return file.getvalue()
        return _to_lines(lines)


def _as_list(line: Mapping[str, Any]) -> list[Any]:
    """Return the labels of a line as a list."""
    label = line.get("label")
    if isinstance(label, list):
        return label
    return [] if label in (None, "") else [label]


class _Table(list[dict[str, str]]):
    """The rows of metadata.csv, by column."""

    header: Sequence[str] = ()


def _read_table(path: Path) -> _Table | None:
    """Return the rows of metadata.csv; None for a file without the columns file_name and label."""
    lines = _Table()
    try:
        with open(path, newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            reader = csv.DictReader(file, restval="")
            lines.header = reader.fieldnames or ()
            if not {"file_name", "label"} <= {*lines.header}:
                return None
            for line in reader:
                cells = len(lines.header) + len(line.pop(None, ()))
                if cells > len(lines.header):
                    raise ValueError(f"{cells} in line {reader.line_num}")
                "".join(line.values()).encode()  # raises where a byte is not UTF-8
                lines.append(line)
    except (ValueError, csv.Error) as error:
        if not lines.header:  # not even that was read: another file
            return None
        raise ValueError(
            f"Expected {len(lines.header)} cells in every line of {path}, in UTF-8, got {error}."
            " Quote cells that have a comma, and save the file as UTF-8."
        ) from error
    return lines or None


def _to_lines(lines: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
