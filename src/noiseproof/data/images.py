"""Image files that are decoded on access, so that a million of them need no memory."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from noiseproof.core.checks import check_count, check_word
from noiseproof.core.limits import LIMITS, LimitExceeded, check_limit, limit
from noiseproof.core.messages import counted
from noiseproof.data.base import Dataset, Inputs, NoisyData, Split
from noiseproof.data.labels import NUMBER, describe_labels
from noiseproof.data.sources import DATASETS, PathLike

Fit = Literal["crop", "squash"]
# no format whose decoder starts another program
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
PARTS = {"train": "train", "test": "test", "trusted": "trusted"} | dict.fromkeys(
    ("val", "valid", "validation"), "validation"
)
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
TURNS = {  # by EXIF's orientation
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def open_image(source: Any) -> Any:
    """A PIL image that is not decoded yet; one of too many pixels is refused."""
    from PIL import Image

    if limit("pixels") > LIMITS["pixels"]:  # PIL's own limit is raised with ours
        Image.MAX_IMAGE_PIXELS = max(limit("pixels"), Image.MAX_IMAGE_PIXELS or 0)
    image = Image.open(source, formats=FORMATS)
    try:
        check_limit(
            "pixels",
            image.width * image.height,
            "pixels",
            getattr(image, "filename", "") or "a picture",
        )
    except ValueError:
        image.close()
        raise
    return image


def to_rgb(image: Any) -> Any:
    """A PIL image in RGB as viewers show it: upright, 16 bits reduced to 8, transparency on
    white.
    """
    from PIL import ExifTags, Image

    image.load()  # rotates a TIFF
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # PIL raises many kinds of error on damaged EXIF data, which is not needed
        turn = None
    if image.mode.startswith("I"):  # 16 bits, which PIL would clip at 255
        values = np.asarray(image)
        image = Image.fromarray(
            (values >> 8 if values.max() > 255 else values).clip(0, 255).astype(np.uint8)
        )
    elif image.mode == "F":
        raise ValueError("real-valued pixels of unknown range")
    # PIL alone would show the pixels below, often black
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    image.info = {}  # the orientation is applied below, and saved files must not leak metadata
    return image if turn is None else image.transpose(Image.Transpose[turn])


def to_pixels(image: Any, size: int | None, fit: Fit = "crop") -> Tensor:
    """RGB pixels of a PIL image, uint8 (3, H, W).

    ``crop`` scales the shorter side to ``size`` and keeps the middle; ``squash`` scales both sides
    to ``size``.
    """
    from PIL import Image, ImageOps

    image = to_rgb(image)
    if size is not None and image.size != (size, size):
        bilinear = Image.Resampling.BILINEAR
        square = (size, size)
        image = (
            image.resize(square, bilinear)
            if fit == "squash"
            else ImageOps.fit(image, square, bilinear)
        )
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def decode(
    source: Path | bytes, size: int | None, fit: Fit = "crop", name: object = None
) -> Tensor:
    """An image file, or its bytes, decoded to uint8 (3, H, W)."""
    try:
        with open_image(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            return to_pixels(image, size, fit)
    except LimitExceeded:
        raise
    except Exception as error:  # PIL raises many kinds of error on damaged files
        raise ValueError(
            f"Expected an image in {name or source}, got {type(error).__name__}: {error}. "
            "Replace the file, or remove it from the list."
        ) from error


class ImageFiles:
    """Images on disk as lazy inputs: ``files[i]`` decodes one to uint8 (3, size, size)."""

    def __init__(
        self, root: PathLike, names: Iterable[str], *, size: int = 256, fit: Fit = "crop"
    ) -> None:
        self.root = Path(root)
        self.size = check_count("size", size, 1)
        self.fit: Fit = check_word("fit", fit, get_args(Fit))
        # One buffer: the reference counts of a million strings would copy memory into every worker.
        self._names = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, i: int) -> Tensor:
        return decode(self.path(i), self.size, self.fit)

    def path(self, i: int) -> Path:
        """The file of row ``i``."""
        return self.root / os.fsdecode(bytes(self._names[i]))

    def subset(self, index: Tensor) -> ImageFiles:
        """The files ``index``, in that order."""
        part = ImageFiles(self.root, (), size=self.size, fit=self.fit)
        part._names = self._names[index.numpy()]
        return part


def stream(
    data: NoisyData | Split,
    batch_size: int,
    *,
    sampler: Sampler[int] | None = None,
    workers: int = 0,
    drop_last: bool = False,
) -> DataLoader[tuple[Tensor, Tensor, Tensor]]:
    """Batches of inputs, given labels and row numbers, read by ``workers`` processes; in order
    without a sampler.
    """
    return DataLoader(
        data,  # type: ignore[arg-type]  # has a length and items, which is all that is needed
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        drop_last=drop_last,
        persistent_workers=workers > 0,
        generator=torch.Generator(),  # otherwise it draws from the global one
    )


def read_batches(x: Inputs, parts: Sequence[Tensor], workers: int = 0) -> Iterator[Tensor]:
    """The raw inputs of the rows of each part, in order; lazy inputs are read by ``workers``
    processes.
    """
    if isinstance(x, Tensor):
        yield from (x[index.to(x.device)] for index in parts)
    else:
        yield from DataLoader(
            x,  # type: ignore[arg-type]  # has a length and items, which is all that is needed
            batch_sampler=[index.tolist() for index in parts],
            num_workers=workers,
            generator=torch.Generator(),  # otherwise it draws from the global one
        )


def _list_folder(root: Path, classes: tuple[str, ...]) -> tuple[list[str], list[int], int]:
    names, labels, skipped = [], [], 0
    for name in _subfolders(root):
        if name not in classes:
            raise ValueError(
                f"Expected a folder for each class of the training images in {root}, got also"
                f" {name!r}."
            )
        files = list(_walk(root, name))
        images = sorted(
            f
            for f in files
            if f.lower().endswith(SUFFIXES) and not os.path.basename(f).startswith(".")
        )
        names += images
        labels += [classes.index(name)] * len(images)
        skipped += len(files) - len(images)
    return names, labels, skipped


def _walk(root: Path, folder: str) -> Iterator[str]:
    """The files below ``folder``; links to folders are not followed, as they may be circular."""
    for entry in os.scandir(root / folder):
        if entry.is_file():
            yield f"{folder}/{entry.name}"
        elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _walk(root, f"{folder}/{entry.name}")


def _subfolders(root: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(root)
        if entry.is_dir() and not entry.name.startswith(".")
    )


@DATASETS.register("folder")
def from_image_folder(path: PathLike, *, size: int = 224, fit: Fit = "crop") -> Dataset:
    """Images in (or below) one folder per class, which may lie in ``train/``, ``val/``, ``test/``
    and ``trusted/``.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"Expected a folder of images at {root}, found none.")
    parts = {"train": root}
    notes: list[str] = []
    # otherwise a class is called train
    if (root / "train").is_dir() and _subfolders(root / "train"):
        part_folders = [name for name in _subfolders(root) if name in PARTS]
        if len(same := [name for name in part_folders if PARTS[name] == "validation"]) > 1:
            raise ValueError(
                f"Expected one folder to validate on in {root}, got {' and '.join(same)}. Move all"
                " but one elsewhere."
            )
        parts = {PARTS[name]: root / name for name in part_folders}
        notes += [
            f"The folder {name} beside train was left out."
            for name in _subfolders(root)
            if name not in PARTS
        ]
    classes = tuple(_subfolders(parts["train"]))
    if all(map(NUMBER.fullmatch, classes)):
        classes = tuple(sorted(classes, key=float))
    splits: dict[str, Split] = {}
    for part, folder in parts.items():
        names, labels, skipped = _list_folder(folder, classes)
        if not names:
            raise ValueError(
                f"Expected images ({', '.join(SUFFIXES)}) in one folder per class in {folder},"
                " found none."
            )
        if skipped:
            notes.append(
                f"{counted(skipped, 'file that is no image', 'files that are no images')} left out"
                f" of {folder}."
            )
        splits[part] = Split(ImageFiles(folder, names, size=size, fit=fit), torch.tensor(labels))
    notes += describe_labels(splits["train"].y, classes)
    return Dataset(root.name, classes, **splits, encoder=None, notes=tuple(notes), spec="")
