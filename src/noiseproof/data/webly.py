"""Datasets with labels from the web: ANIMAL-10N, Clothing1M, WebVision. Images stay on disk;
``FILES`` says how to get them.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.data.base import Dataset, Split
from noiseproof.data.images import Fit, ImageFiles
from noiseproof.data.sources import DATASETS, FILES, OfficialFiles, PathLike, find

ANIMALS = (
    "cat",
    "lynx",
    "wolf",
    "coyote",
    "cheetah",
    "jaguar",
    "chimpanzee",
    "orangutan",
    "hamster",
    "guinea pig",
)
CLOTHES = (
    "T-Shirt",
    "Shirt",
    "Knitwear",
    "Chiffon",
    "Sweater",
    "Hoodie",
    "Windbreaker",
    "Jacket",
    "Downcoat",
    "Suit",
    "Shawl",
    "Dress",
    "Vest",
    "Underwear",
)

FILES["animal10n"] = OfficialFiles(
    (("ANIMAL-10N", "animal10n", "Animal-10N", "animal-10n"),),
    request=(
        "Fill in the form on https://dm.kaist.ac.kr/datasets/animal-10n and unpack the raw images "
        "(folders training and testing) into the folder ANIMAL-10N"
    ),
)
FILES["clothing1m"] = OfficialFiles(
    (("clothing1M", "Clothing1M", "clothing1m"),),
    request=(
        "The authors send the link on request: see https://github.com/Cysu/noisy_label. Unpack the"
        " images and the annotation lists into the folder clothing1M"
    ),
)
FILES["webvision"] = OfficialFiles(
    (("webvision", "WebVision", "webvision1.0"),),
    request=(
        "Accept the terms on https://data.vision.ee.ethz.ch/cvl/webvision/dataset2017.html and"
        " unpack the resized Google images, the validation images and info into the folder"
        " webvision"
    ),
    marker="info",
)


def _lines(path: Path) -> Iterator[str]:
    if not path.is_file():
        raise FileNotFoundError(
            f"Expected the list {path}, found none. Unpack the annotations of the dataset there."
        )
    with path.open(encoding="utf-8") as file:
        yield from (line.strip() for line in file if line.strip())


def _labelled(path: Path, num_classes: int) -> Iterator[tuple[str, int]]:
    """File names and labels of a list with lines ``name label``."""
    for number, line in enumerate(_lines(path), 1):
        name, _, label = line.rpartition(" ")
        if not name or not label.isdecimal() or int(label) >= num_classes:
            raise ValueError(
                f"Expected a file name and a label in 0 … {num_classes - 1} in line {number} of"
                f" {path}, got {line!r}. Download the list again."
            )
        yield name, int(label)


def _image_split(
    root: Path, labelled: Iterable[tuple[str, int]], size: int, fit: Fit, clean: bool = False
) -> Split:
    pairs = list(labelled)
    names = [name for name, _ in pairs]
    if names and not (root / names[0]).exists():  # checking a million files would take too long
        raise FileNotFoundError(
            f"Expected the image {root / names[0]}, found none. Unpack the images there."
        )
    y = torch.tensor([label for _, label in pairs], dtype=torch.int64)
    return Split(ImageFiles(root, names, size=size, fit=fit), y, clean=y if clean else None)


@DATASETS.register("animal10n")
def animal10n(data_dir: PathLike | None = None, size: int = 64) -> Dataset:
    """55 000 images of ten animals that people confuse, about 8 % mislabelled (Song et al.
    2019).
    """
    root = find("animal10n", data_dir)
    if (root / "training").is_dir():
        parts = [(root / "training", False), (root / "testing", True)]
        train, test = (_by_prefix(folder, size, clean) for folder, clean in parts)
        return Dataset("animal10n", ANIMALS, train, test)
    batches = sorted(
        root.glob("data_batch_*.bin"), key=lambda path: int(path.stem.rpartition("_")[2])
    )
    if not batches or size != 64:
        raise FileNotFoundError(
            f"Expected the folders training and testing in {root}, or data_batch_1.bin … and size"
            " 64 for the binary version. Unpack the dataset there."
        )
    x, y = (torch.cat(parts) for parts in zip(*map(_read_records, batches), strict=True))
    x_test, y_test = _read_records(root / "test_batch.bin")
    return Dataset("animal10n", ANIMALS, Split(x, y), Split(x_test, y_test, clean=y_test))


def _by_prefix(folder: Path, size: int, clean: bool) -> Split:
    """The images of a folder, named ``LABEL_…``."""
    names = sorted(
        entry.name
        for entry in os.scandir(folder)
        if entry.is_file() and not entry.name.startswith(".")
    )
    if wrong := [name for name in names if name.partition("_")[0] not in set("0123456789")]:
        raise ValueError(
            f"Expected image names LABEL_… with a label in 0 … 9 in {folder}, got {wrong[0]!r}."
        )
    return _image_split(folder, ((name, int(name[0])) for name in names), size, "squash", clean)


def _read_records(path: Path) -> tuple[Tensor, Tensor]:
    """Pixels and labels of records: 4 bytes number, 4 bytes label, 3 × 64 × 64 pixels."""
    blob = path.read_bytes()
    width = 8 + 3 * 64 * 64
    if not blob or len(blob) % width:
        raise ValueError(
            f"Expected records of {width} bytes in {path}, got {len(blob)} bytes. Download the file"
            " again."
        )
    records = np.frombuffer(blob, dtype=np.uint8).reshape(-1, width)
    labels = records[:, 4:8].sum(1, dtype=np.int64)  # either byte order: all but one byte are zero
    return torch.from_numpy(records[:, 8:].reshape(-1, 3, 64, 64).copy()), torch.from_numpy(labels)


@DATASETS.register("clothing1m")
def clothing1m(data_dir: PathLike | None = None, size: int = 256, fit: Fit = "squash") -> Dataset:
    """A million images of 14 kinds of clothing with labels from shops, about 38.5 % wrong (Xiao et
    al. 2015).

    ``trusted`` is its clean training set (47 570), which the papers leave unused; see
    ``sampling.ClassBalanced``.
    """
    root = find("clothing1m", data_dir)
    lists = root / "annotations" if (root / "annotations").is_dir() else root
    names = lists / "category_names_eng.txt"
    classes = tuple(_lines(names)) if names.exists() else CLOTHES
    splits = {}
    for kind, parts in (("noisy", ["train"]), ("clean", ["train", "val", "test"])):
        labels = dict(_labelled(lists / f"{kind}_label_kv.txt", len(classes)))
        for part in parts:
            keys = list(_lines(lists / f"{kind}_{part}_key_list.txt"))
            if absent := [key for key in keys if key not in labels]:
                raise ValueError(
                    f"Expected a label for every image of {kind}_{part}_key_list.txt in"
                    f" {lists / kind}_label_kv.txt, got none for {len(absent)}, the first of them"
                    f" {absent[0]}. Download both lists again."
                )
            splits[kind, part] = _image_split(
                root, ((key, labels[key]) for key in keys), size, fit, kind == "clean"
            )
    return Dataset(
        "clothing1m",
        classes,
        splits["noisy", "train"],
        test=splits["clean", "test"],
        validation=splits["clean", "val"],
        trusted=splits["clean", "train"],
    )


@DATASETS.register("webvision")
def webvision(
    data_dir: PathLike | None = None, classes: int = 50, size: int = 256, fit: Fit = "crop"
) -> Dataset:
    """WebVision 1.0's Google images of the first 50 ("mini"), 200, 400 or all 1000 ``classes`` (Li
    et al. 2017).
    """
    if check_count("classes", classes, 2) > 1000:
        raise ValueError(f"Expected `classes` of at most 1000, got {classes}.")
    root = find("webvision", data_dir)
    synsets = root / "info" / "synsets.txt"
    # "n01440764 tench, Tinca tinca"
    names = [line.partition(" ")[2] for line in _lines(synsets)] if synsets.exists() else []
    validation = next(
        (name for name in ("val_images_256", "val_images") if (root / name).is_dir()),
        "val_images_256",
    )
    splits = []
    for file, folder in (
        ("train_filelist_google.txt", root),
        ("val_filelist.txt", root / validation),
    ):
        labelled = (pair for pair in _labelled(root / "info" / file, 1000) if pair[1] < classes)
        splits.append(_image_split(folder, labelled, size, fit, clean=folder != root))
    class_names = (
        tuple(names[:classes]) if len(names) >= classes else tuple(map(str, range(classes)))
    )
    return Dataset("webvision", class_names, train=splits[0], test=splits[1])
