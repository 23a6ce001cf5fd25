"""Pictures: a folder with a folder of picture files for each class."""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noiseproof.audit.correction import Correction
from noiseproof.audit.files import is_utf8, labels_digest
from noiseproof.audit.pictures import Picture, encode_picture
from noiseproof.audit.rows import Digests, digest_rows, digest_words
from noiseproof.audit.sources.base import (
    ANOTHER_ROW,
    SOURCES,
    AuditData,
    Content,
    Request,
    Source,
    note_features,
    picture_features,
)
from noiseproof.core.arrays import Array, Bools
from noiseproof.core.files import writing_folder
from noiseproof.core.limits import LimitExceeded, limit, variable_of
from noiseproof.core.messages import preview
from noiseproof.data.base import Dataset
from noiseproof.data.images import ImageFiles, decode, from_image_folder, open_image
from noiseproof.data.labelsets import Labels
from noiseproof.data.pictures import THUMBNAIL, Pictures, picture_extractor
from noiseproof.data.rows import OtherRows


@SOURCES.register_class("folder")
class PictureSource(Source):
    """A folder of pictures, whose label is the folder they are in and whose id is their path."""

    files = "a folder of pictures"
    is_pictures = True
    feature_kind = "pictures"

    def accepts(self, request: Request) -> bool:
        return request.path is not None and request.path.is_dir() and request.tool is None

    # Reading

    def read(self, request: Request) -> AuditData:
        path = request.path
        assert path is not None
        if request.labels is not None:
            raise ValueError(
                "Expected no `labels` with a folder of pictures: the names of its folders are the"
                " labels."
            )
        dataset = from_image_folder(path, size=THUMBNAIL, fit="squash")
        files = dataset.train.x
        assert isinstance(files, ImageFiles)
        classes = _check_classes(dataset.classes, request.classes, files.root)
        # repeated for the readable rows
        notes = [note for note in dataset.notes if "training example" not in note]
        if files.root != path:
            notes.append(
                f"Only {files.root.name}/ was audited. Name another folder to audit that one."
            )
        labels = [dataset.classes[k] for k in dataset.train.y.tolist()]
        self.config["data"] = str(files.root)
        return self._read_pictures(request, files, _relative_names(files), labels, classes, notes)

    def _read_pictures(
        self,
        request: Request,
        files: ImageFiles,
        names: Sequence[str],
        labels: Sequence[str],
        classes: tuple[str, ...],
        notes: list[str],
    ) -> AuditData:
        """Return the rows of picture files; one without a label, "", or that can't be read, is
        skipped.
        """
        ids = np.array([*names], dtype=object)
        unreadable = _unreadable(files, ids, request)
        readable = np.ones(len(files), dtype=bool)
        for mask in unreadable.values():
            readable &= ~mask
        if not readable.any():
            raise ValueError(
                f"Expected readable pictures in {request.path}, got none among {len(files)}."
            )
        x = None
        if request.needs_features:
            pictures = files.subset(torch.from_numpy(np.flatnonzero(readable)))
            x, description = picture_features(self, pictures, readable, request)
            notes.append(note_features(self, description))
        self.config["labels_sha256"] = labels_digest(labels)
        number = {name: k for k, name in enumerate(classes)}
        given = np.array([number.get(name, -1) for name in labels], dtype=np.int64)
        data = AuditData(
            Labels.of_classes(classes, given),
            np.arange(len(files)),
            len(files),
            x,
            ids=ids,
            notes=tuple(notes),
            has_order=False,
            source=self,
        )
        return data.without([("no label", given < 0), *unreadable.items()])

    def read_test(self, test: Any, data: AuditData, request: Request) -> OtherRows:
        known = Pictures(self.image_files.subset(torch.from_numpy(data.row)))
        other = from_image_folder(test, size=THUMBNAIL, fit="squash")
        labels = data.labels.read([other.classes[k] for k in other.train.y.tolist()])
        extractor = picture_extractor(self.config["features"], known).fit(known, seed=request.seed)
        assert isinstance(other.train.x, ImageFiles)
        return OtherRows(extractor.encode(Pictures(other.train.x)), labels)

    # Showing

    @cached_property
    def dataset(self) -> Dataset:
        return from_image_folder(self.config["data"])

    @property
    def image_files(self) -> ImageFiles:
        files = self.dataset.train.x
        assert isinstance(files, ImageFiles)
        return files

    @property
    def has_ids(self) -> bool:
        return True

    @cached_property
    def ids(self) -> list[str]:
        return _relative_names(self.image_files)

    @cached_property
    def labels(self) -> list[str]:
        return [self.dataset.classes[k] for k in self.dataset.train.y.tolist()]

    @cached_property
    def row_digests(self) -> Digests:
        """The digest of each file's bytes with its class: a file that gets another name is found
        again.
        """
        contents = digest_rows(map(_file_digest, map(self.image_files.path, range(len(self)))))
        return contents + digest_words(self.labels)

    def __len__(self) -> int:
        return len(self.image_files)

    def show(self, row: int, id: str) -> Content:
        if self.ids[row] != id:
            return {"note": ANOTHER_ROW}
        if self._real_path(row) is None:
            return {
                "note": (
                    "This picture is not in the folder of the dataset: it was moved, or is a link"
                    " to elsewhere. Audit a copy of the folder with files in place of links (cp"
                    " -rL) to see it."
                )
            }
        return {"has_image": True}

    @property
    def has_pictures(self) -> bool:
        return True

    def picture(self, row: int, id: str, side: int) -> Picture | None:
        path = self._real_path(row) if self.ids[row] == id else None
        if path is None:
            return None
        try:
            with open_image(path) as image:
                image.draft("RGB", (side, side))  # a large JPEG is read at a fraction of its size
                return encode_picture(image, side)
        except Exception:  # PIL raises many kinds of error on damaged files
            return None

    def _real_path(self, row: int) -> Path | None:
        """Return the file of a row if it really lies in the folder of the dataset."""
        real = self.image_files.path(row).resolve()
        return real if real.is_relative_to(self.root) and real.is_file() else None

    @property
    def root(self) -> Path:
        """The folder that the pictures lie in, without links."""
        return Path(self.config["data"]).resolve()

    def file(self, id: str) -> Path:
        return Path(self.config["data"], id)

    def row_names(self, rows: Sequence[int]) -> list[str]:
        # names may not be UTF-8
        return [self.ids[row].encode(errors="backslashreplace").decode() for row in rows]

    # Correcting

    def default_out(self) -> Path:
        return Path("corrected")

    def write(self, correction: Correction, out: Path) -> None:
        """Copy, or link, all files, each picture into the folder of its class; links out of the
        folder stay links.
        """
        changes = correction.labels
        root = Path(self.config["data"])
        if odd := [
            name
            for name in changes.values()
            if name in (".", "..") or "/" in name or os.sep in name
        ]:
            raise ValueError(
                f"Expected classes that can be names of folders, got {odd[0]!r}. Undo the decisions"
                " for it."
            )
        places = _places(root, {self.ids[row]: name for row, name in changes.items()})
        for row in correction.left_out:
            del places[self.ids[row]]
        with writing_folder(out, beside=root) as part:
            for old, new in places.items():
                (part / new).parent.mkdir(parents=True, exist_ok=True)
                real = (root / old).resolve()
                if correction.link:
                    (part / new).symlink_to((root / old).absolute())
                elif real.is_relative_to(root.resolve()):
                    shutil.copy2(real, part / new)
                else:  # what lies elsewhere stays there
                    (part / new).symlink_to(real)


def _file_digest(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "blake2b").digest()
    except OSError:
        return b""  # it was not audited, either


def _relative_names(files: ImageFiles) -> list[str]:
    return [files.path(i).relative_to(files.root).as_posix() for i in range(len(files))]


def _check_classes(
    folders: tuple[str, ...], classes: Sequence[str] | None, root: Path
) -> tuple[str, ...]:
    """Return the classes in the order that the user named, by default of the folders."""
    names = folders if classes is None else tuple(classes)
    if sorted(names) != sorted(folders):
        odd = sorted({*names} - {*folders})
        absent = sorted({*folders} - {*names})
        raise ValueError(
            f"Expected each of the {len(folders)} folders of {root} once in `classes`, got"
            f" {len(names)} names. No folders: {preview(odd) or 'none'}; not named:"
            f" {preview(absent) or 'none'}."
        )
    if odd := [name for name in names if not is_utf8(name)]:
        raise ValueError(
            f"Expected names of folders in UTF-8 in {root}, got {preview(odd)}. Rename them."
        )
    return names


def _unreadable(files: ImageFiles, ids: Array, request: Request) -> dict[str, Bools]:
    """Return masks (N,) of files that can't be read, by reason."""
    unreadable: dict[str, Bools] = {}
    for i in range(len(files)):
        reason = None if is_utf8(ids[i]) else "file name is not UTF-8"  # issues.csv can't hold it
        try:
            decode(files.path(i), THUMBNAIL, "squash")
        except ValueError as error:
            reason = (
                f"not a readable picture ({error.__cause__ and type(error.__cause__).__name__})"
            )
            if isinstance(error, LimitExceeded):
                reason = (
                    f"a picture of more than {limit('pixels')} pixels ({variable_of('pixels')}"
                    " raises that)"
                )
        if reason:
            unreadable.setdefault(reason, np.zeros(len(files), dtype=bool))[i] = True
        if request.progress is not None and (i % 100 == 99 or i + 1 == len(files)):
            request.progress("reading pictures", i + 1, len(files))
    return unreadable


def _places(root: Path, moves: Mapping[str, str]) -> dict[str, str]:
    """Return where each file below ``root`` goes: to the folder of its class, under a name that is
    free there.
    """
    # A class may be a link to a folder elsewhere, which the audit has followed.
    linked = [folder for folder in root.iterdir() if folder.is_symlink() and folder.is_dir()]
    files = sorted(
        Path(folder, name).relative_to(root).as_posix()
        for top in (root, *linked)
        for folder, _, names in os.walk(top)
        for name in names
        if os.path.isfile(os.path.join(folder, name))  # the audit skipped broken links, too
    )
    places = {name: name for name in files if name not in moves}
    taken = {*places.values()}
    for old, to in moves.items():
        origin, _, rest = old.partition("/")
        stem, ending = os.path.splitext(f"{to}/{rest}")
        suffixes = (
            "",
            f"-from-{origin}",
            *(f"-from-{origin}-{n}" for n in range(2, len(files) + 2)),
        )
        places[old] = next(
            name for suffix in suffixes if (name := f"{stem}{suffix}{ending}") not in taken
        )
        taken.add(places[old])
    return places
