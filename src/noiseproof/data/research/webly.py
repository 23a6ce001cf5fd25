"""Datasets with labels from the web: ANIMAL-10N, Clothing1M, WebVision. Images stay on disk;
``FILES`` says how to get them.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

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


def _image_split(root: Path, labelled: Sequence[tuple[str, int]], size: int, fit: Fit) -> Split:
    names = [name for name, _ in labelled]
    if names and not (root / names[0]).exists():  # checking a million files would take too long
        raise FileNotFoundError(
            f"Expected the image {root / names[0]}, found none. Unpack the images there."
        )
    y = torch.tensor([label for _, label in labelled], dtype=torch.int64)
    return Split(ImageFiles(root, names, size=size, fit=fit), y)


@DATASETS.register("animal10n")
def animal10n(data_dir: PathLike | None = None, size: int = 64) -> Dataset:
    """55 000 images of ten animals that people confuse, about 8 % mislabelled (Song 2019)."""
    root = find("animal10n", data_dir)
    if not (root / "training").is_dir():
        raise FileNotFoundError(
            f"Expected the folders training and testing in {root}, the raw images. Unpack the"
            " dataset there."
        )
    train = _by_prefix(root / "training", size)
    test = _by_prefix(root / "testing", size)
    return Dataset("animal10n", ANIMALS, train, replace(test, clean=test.y))


def _by_prefix(folder: Path, size: int) -> Split:
    """The images of a folder, named ``LABEL_…``."""
    files = (entry for entry in os.scandir(folder) if entry.is_file())
    names = sorted(entry.name for entry in files if not entry.name.startswith("."))
    for name in names:
        if name.partition("_")[0] not in set("0123456789"):
            raise ValueError(
                f"Expected image names LABEL_… with a label in 0 … 9 in {folder}, got {name!r}."
            )
    return _image_split(folder, [(name, int(name[0])) for name in names], size, "squash")


@DATASETS.register("clothing1m")
def clothing1m(data_dir: PathLike | None = None, size: int = 256, fit: Fit = "squash") -> Dataset:
    """A million images of 14 kinds of clothing, labelled by shops (Xiao et al. 2015).

    About 38.5 % of the labels are wrong. ``trusted`` is its clean training set (47 570), which the
    papers leave unused; see ``noiseproof.data.ClassBalanced``.
    """
    root = find("clothing1m", data_dir)
    lists = root / "annotations" if (root / "annotations").is_dir() else root
    names = lists / "category_names_eng.txt"
    classes = tuple(_lines(names)) if names.exists() else CLOTHES
    splits = {}
    for kind, part in (("noisy", "train"), ("clean", "train"), ("clean", "val"), ("clean", "test")):
        labels = dict(_labelled(lists / f"{kind}_label_kv.txt", len(classes)))
        keys = list(_lines(lists / f"{kind}_{part}_key_list.txt"))
        if absent := [key for key in keys if key not in labels]:
            raise ValueError(
                f"Expected a label for every image of {kind}_{part}_key_list.txt in"
                f" {lists / kind}_label_kv.txt, got none for {len(absent)}, the first of them"
                f" {absent[0]}. Download both lists again."
            )
        split = _image_split(root, [(key, labels[key]) for key in keys], size, fit)
        splits[kind, part] = replace(split, clean=split.y) if kind == "clean" else split
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
    """WebVision 1.0's Google images of its first ``classes`` (Li et al. 2017).

    There are 1000 of them; 50 are called "mini".
    """
    if check_count("classes", classes, 2) > 1000:
        raise ValueError(f"Expected `classes` of at most 1000, got {classes}.")
    root = find("webvision", data_dir)
    info = root / "info"
    class_names = tuple(map(str, range(classes)))
    if (info / "synsets.txt").exists():  # "n01440764 tench, Tinca tinca"
        names = [line.partition(" ")[2] for line in _lines(info / "synsets.txt")]
        class_names = tuple(names[:classes]) if len(names) >= classes else class_names
    large = root / "val_images"
    small = root / "val_images_256"
    validation = large if large.is_dir() and not small.is_dir() else small
    splits = []
    for file, folder in (("train_filelist_google.txt", root), ("val_filelist.txt", validation)):
        labelled = [pair for pair in _labelled(info / file, 1000) if pair[1] < classes]
        splits.append(_image_split(folder, labelled, size, fit))
    train, test = splits
    return Dataset("webvision", class_names, train, replace(test, clean=test.y))
