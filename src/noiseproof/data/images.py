"""Image files that are decoded on access, so that a million of them need no memory."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
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


def open_image(source: Any) -> Any:
    """A PIL image that is not decoded yet; one of too many pixels is refused."""
    from PIL import Image

    if limit("pixels") > LIMITS["pixels"]:  # PIL's own limit is raised with ours
        Image.MAX_IMAGE_PIXELS = max(limit("pixels"), Image.MAX_IMAGE_PIXELS or 0)
    image = Image.open(source, formats=FORMATS)
    name = getattr(image, "filename", "") or "a picture"
    try:
        check_limit("pixels", image.width * image.height, "pixels", name)
    except ValueError:
        image.close()
        raise
    return image


def to_rgb(image: Any) -> Any:
    """Return a PIL image in RGB as viewers show it: upright, 16 bits reduced to 8, transparency on
    white.
    """
    from PIL import Image, ImageOps

    image.load()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            image = ImageOps.exif_transpose(image)
    except Exception:  # PIL raises many kinds of error on damaged EXIF data, which is not needed
        pass
    if image.mode.startswith("I"):  # 16 bits, which PIL would clip at 255
        values = np.asarray(image)
        if values.max() > 255:
            values = values >> 8
        image = Image.fromarray(values.clip(0, 255).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("real-valued pixels of unknown range")
    # PIL alone would show the pixels below, often black
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    image.info = {}  # saved files must not leak metadata
    return image


def to_pixels(image: Any, size: int | None, fit: Fit = "crop") -> Tensor:
    """Return the RGB pixels of a PIL image, uint8 (3, H, W).

    ``crop`` scales the shorter side to ``size`` and keeps the middle; ``squash`` scales both sides
    to ``size``.
    """
    from PIL import Image, ImageOps

    image = to_rgb(image)
    if size is not None and image.size != (size, size):
        scale = image.resize if fit == "squash" else partial(ImageOps.fit, image)
        image = scale((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def decode(
    source: Path | bytes, size: int | None, fit: Fit = "crop", name: object = None
) -> Tensor:
    """An image file, or its bytes, decoded to uint8 (3, H, W)."""
    try:
        file = io.BytesIO(source) if isinstance(source, bytes) else source
        with open_image(file) as image:
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
    """Return batches of inputs, given labels and row numbers, read by ``workers`` processes.

    They are in order without a sampler.
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
    """Yield the raw inputs of the rows of each part, in order; lazy inputs are read by ``workers``
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


def _walk(root: Path, folder: str) -> Iterator[str]:
    """The files below ``folder``; links to folders are not followed, as they may be circular."""
    for entry in os.scandir(root / folder):
        if entry.is_file():
            yield f"{folder}/{entry.name}"
        elif entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield from _walk(root, f"{folder}/{entry.name}")


def _is_picture(path: str) -> bool:
    return path.lower().endswith(SUFFIXES) and not os.path.basename(path).startswith(".")


def _subfolders(root: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in os.scandir(root)
        if entry.is_dir() and not entry.name.startswith(".")
    )


@DATASETS.register("folder")
def from_image_folder(path: PathLike, *, size: int = 224, fit: Fit = "crop") -> Dataset:
    """Images in, or below, one folder for each class.

    The folders of the classes may lie in ``train/``, ``val/``, ``test/`` and ``trusted/``.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"Expected a folder of images at {root}, found none.")
    parts = {"train": root}
    notes: list[str] = []
    # otherwise a class is called train
    if (root / "train").is_dir() and _subfolders(root / "train"):
        parts = {}
        for name in _subfolders(root):
            if name not in PARTS:
                notes.append(f"The folder {name} next to train was left out.")
            elif PARTS[name] in parts:
                raise ValueError(
                    f"Expected one folder to validate on in {root}, got"
                    f" {parts[PARTS[name]].name} and {name}. Move all but one elsewhere."
                )
            else:
                parts[PARTS[name]] = root / name
    classes = tuple(_subfolders(parts["train"]))
    if all(map(NUMBER.fullmatch, classes)):
        classes = tuple(sorted(classes, key=float))
    splits: dict[str, Any] = {}
    for part, folder in parts.items():
        names: list[str] = []
        labels: list[int] = []
        skipped = 0
        for name in _subfolders(folder):
            if name not in classes:
                raise ValueError(
                    f"Expected a folder for each class of the training images in {folder}, got also"
                    f" {name!r}."
                )
            files = list(_walk(folder, name))
            pictures = sorted(filter(_is_picture, files))
            names += pictures
            labels += [classes.index(name)] * len(pictures)
            skipped += len(files) - len(pictures)
        if not names:
            raise ValueError(
                f"Expected images ({', '.join(SUFFIXES)}) in one folder per class in {folder},"
                " found none."
            )
        if skipped:
            others = counted(skipped, "file that is not an image", "files that are not images")
            notes.append(f"{others} left out of {folder}.")
        splits[part] = Split(ImageFiles(folder, names, size=size, fit=fit), torch.tensor(labels))
    notes += describe_labels(splits["train"].y, classes)
    return Dataset(root.name, classes, **splits, notes=tuple(notes))
