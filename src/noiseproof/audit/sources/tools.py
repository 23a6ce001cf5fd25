"""Texts and pictures with labels in a file of another tool, such as Label Studio or CVAT."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from noiseproof.audit.correction import Correction
from noiseproof.audit.exchange import find_tool
from noiseproof.audit.exchange.base import Item, Labels, Tool
from noiseproof.audit.records import FrameRecords, Records
from noiseproof.audit.sources.base import SOURCES, AuditData, Request, Source
from noiseproof.audit.sources.pictures import PictureSource
from noiseproof.audit.sources.text import TextSource
from noiseproof.core.files import replacing, writing_folder
from noiseproof.core.messages import counted, preview
from noiseproof.data.images import SUFFIXES, ImageFiles
from noiseproof.data.labelsets import NONE as NO_LABEL
from noiseproof.data.labelsets import spelled_lists
from noiseproof.data.pictures import THUMBNAIL

if TYPE_CHECKING:
    from noiseproof.data.tables import Frame


SLIPS = 0.05  # share of entries with several labels up to which one is meant, and others are slips


class Annotated(Source):
    """Rows in the order of a tool's file, with the last label of each; corrected copies are in the
    same format.
    """

    @cached_property
    def tool(self) -> Tool:
        found = find_tool(self.path)
        assert found is not None
        return found

    @property
    def path(self) -> Path:
        return Path(self.config["data"])

    @cached_property
    def items(self) -> list[Item]:
        last: dict[int, Item] = {}
        for item in self.tool.items():
            if item.labels is not None or item.at not in last:
                last[item.at] = item
        items = list(last.values())
        counts = [len(item.labels) for item in items if item.labels]
        several = sum(count > 1 for count in counts)
        are_lists = self.tool.has_lists() or several > SLIPS * len(counts)
        if not are_lists and not self.multi_label:
            return [item.alone() for item in items]
        # where the user has named a separator, a few lists are not slips
        self._note_sets(
            {label for item in items for label in item.labels or ()}, are_lists or several > 0
        )
        return items

    def _note_sets(self, labels: set[str], are_lists: bool) -> None:
        """Keep in ``config`` how words spell the labels of an entry: by the separator of the user,
        or any that does.
        """
        multi = self.config["multi_label"]
        if are_lists or multi is None:
            multi = spelled_lists(labels, multi, str(self.path))
        self.config["multi_label"] = {**multi, "kind": "lists" if are_lists else "words"}

    def word(self, labels: Labels | None) -> str:
        """The labels of an entry as one word, empty where it is not labelled."""
        return "" if labels is None else self.words.join(labels)

    @cached_property
    def item_ids(self) -> list[str]:
        ids = [item.id for item in self.items]
        if len({*ids}) < len(ids):
            return [str(i) for i in range(len(ids))]
        return ids

    def is_of(self, request: Request, kind: str) -> bool:
        """Whether the request is a tool's file whose items have a ``kind`` of input, text or
        file.
        """
        path = request.path
        if request.tool is None:
            return False
        self.tool = request.tool
        readable = [item for item in self.items if not item.problem]
        if 2 * len(readable) < len(self.items):
            problem = next(item.problem for item in self.items if item.problem)
            raise ValueError(
                f"Expected entries with labels in {path}, got others for"
                f" {len(self.items) - len(readable)} of {len(self.items)}, such as {problem}."
            )
        return all(getattr(item, kind) is not None for item in readable)

    @property
    def skip_notes(self) -> list[str]:
        """What is said about entries that can't be read."""
        problems = [item.problem for item in self.items if item.problem]
        left_out = f"{counted(len(problems), 'entry was', 'entries were')} left out"
        return [f"{left_out}: {preview(problems)}."] if problems else []

    def default_out(self) -> Path:
        return Path(f"corrected{self.path.suffix if self.path.is_file() else ''}")

    def _labels_of(self, word: str) -> Labels:
        """Return the labels that a word spells, as the tool's file has them."""
        if self.multi_label.get("kind") == "lists":
            return self.words.split(word)
        if self.multi_label and word == NO_LABEL:
            return [""]
        return [word]

    def write(self, correction: Correction, out: Path) -> None:
        """Write the tool's file with other labels; of a folder, a copy with that file."""
        root = self.path
        labels = {row: self._labels_of(word) for row, word in correction.labels.items()}
        written = self.tool.relabelled(labels, correction.left_out).encode()
        if root.is_file():
            with replacing(out, overwrite=False) as part:
                part.write_bytes(written)
            return
        with writing_folder(out, beside=root) as part:
            copy = _link if correction.link else shutil.copy2
            shutil.copytree(
                root, part, symlinks=not correction.link, copy_function=copy, dirs_exist_ok=True
            )
            listing = self.tool.file(part)
            listing.unlink()
            listing.write_bytes(written)


def _link(file: str, at: str) -> None:
    Path(at).symlink_to(Path(file).absolute())


@SOURCES.register_class("annotated-texts")
class AnnotatedTexts(Annotated, TextSource):
    """Texts with the labels that people gave them in another tool."""

    files = "a file of Label Studio, Argilla, CVAT, FiftyOne or COCO"
    can_leave_out = True  # unlike an Excel file

    def accepts(self, request: Request) -> bool:
        return self.is_of(request, "text")

    def read(self, request: Request) -> AuditData:
        self.config |= {"label": "label", "text": "text", "id": "id"}
        data = super().read(self.without_names(request))
        return replace(data, notes=(*data.notes, *self.skip_notes))

    def _open_table(self, request: Request) -> Frame:
        return self._table

    @cached_property
    def _table(self) -> pd.DataFrame:
        labels = [self.word(item.labels) or None for item in self.items]
        cells = {"id": self.item_ids, "text": [item.text for item in self.items], "label": labels}
        return pd.DataFrame(cells, dtype=object)

    @cached_property
    def records(self) -> Records:
        return FrameRecords(self._table)


@SOURCES.register_class("annotated-pictures")
class AnnotatedPictures(Annotated, PictureSource):
    """Pictures with the labels that people gave them in another tool."""

    files = ""  # as texts

    def accepts(self, request: Request) -> bool:
        return self.is_of(request, "file")

    def read(self, request: Request) -> AuditData:
        if request.labels is not None:
            raise ValueError(f"Expected no `labels` with {self.path}, which has them.")
        if self.items and not any(
            item.file is not None and item.file.is_file() for item in self.items
        ):
            raise FileNotFoundError(
                f"Expected the pictures that {self.path} names, such as {self.items[0].id!r},"
                " next to it, or in a folder data or images next to it, found none. Move the file"
                " to where its paths lead to them."
            )
        self._check_places()
        request = self.without_names(request)
        names = request.classes or sorted({word for word in self.labels if word})
        notes = [*self.skip_notes, *self._unlisted()]
        return self._read_pictures(
            request, self.image_files, self.ids, self.labels, tuple(names), notes
        )

    def _unlisted(self) -> list[str]:
        """What is said about pictures in a folder that its file of labels does not have."""
        if not self.path.is_dir():
            return []
        listed = {item.file.resolve() for item in self.items if item.file is not None}
        files = sorted(file for file in self.path.rglob("*") if file.suffix.lower() in SUFFIXES)
        absent = [
            file.relative_to(self.path).as_posix() for file in files if file.resolve() not in listed
        ]
        listing = self.tool.file(self.path).name
        count = counted(len(absent), "picture was", "pictures were")
        return (
            [f"{count} left out as not labelled, without an entry in {listing}: {preview(absent)}."]
            if absent
            else []
        )

    @cached_property
    def image_files(self) -> ImageFiles:
        return ImageFiles(
            self.path.parent, [str(item.file) for item in self.items], size=THUMBNAIL, fit="squash"
        )

    @cached_property
    def ids(self) -> list[str]:
        return self.item_ids

    @cached_property
    def labels(self) -> list[str]:
        return [self.word(item.labels) for item in self.items]

    def _check_places(self) -> None:
        """Refuse files outside the folder; links in it are read, as in a folder of pictures, and
        never shown.
        """
        for item in self.items:
            if item.file is not None and item.file.is_file():
                place = item.file.parent.resolve() / item.file.name
                if not place.is_relative_to(self.root):
                    raise ValueError(
                        f"Expected pictures below {self.root}, the folder of {self.path.name}, got"
                        f" {place}. Move it below that folder."
                    )

    @property
    def root(self) -> Path:
        path = self.path.resolve()
        return path if path.is_dir() else path.parent

    @cached_property
    def _row_of_id(self) -> dict[str, int]:
        return {id: row for row, id in enumerate(self.ids)}

    def file(self, id: str) -> Path:
        return self.image_files.path(self._row_of_id[id])
