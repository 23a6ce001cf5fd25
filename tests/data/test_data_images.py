"""Images on disk: folders, the three web-labelled sets in exactly their layout, and samplers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from noiseproof.data import (
    ClassBalanced,
    ImageFiles,
    corrupt,
    from_image_folder,
    get_dataset,
    stream,
)
from noiseproof.data.images import decode
from noiseproof.data.pictures import PatchFeatures, Pictures
from noiseproof.data.research.webly import CLOTHES


def paint(path: Path, colour: int, size: tuple[int, int] = (8, 8)) -> None:
    """One colour all over: PNG keeps it exactly, JPEG nearly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, 255 - colour, 7)).save(path)


# Decoding


def test_pixels_are_exact_and_channels_first(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    image = ImageFiles(tmp_path, ["a.png"], size=9)[0]
    assert image.dtype is torch.uint8 and torch.equal(
        image, torch.from_numpy(pixels).permute(2, 0, 1)
    )


@pytest.mark.parametrize(
    ("mode", "colour", "pixel"),
    [
        ("L", 77, [77, 77, 77]),
        ("LA", (77, 0), [255, 255, 255]),  # nothing of it is seen
        ("RGBA", (0, 102, 255, 51), [204, 224, 255]),  # a fifth of it, on white
        ("RGBA", (1, 2, 3, 255), [1, 2, 3]),
        ("CMYK", (0, 255, 255, 0), [255, 0, 0]),
        ("1", 1, [255, 255, 255]),
        ("I;16", 30_000, [117, 117, 117]),  # 30 000 / 256: PIL alone would clip it to 255
        ("I;16", 200, [200, 200, 200]),  # 8 bits in a file of 16
        ("I", 65_535, [255, 255, 255]),
    ],
)
def test_every_kind_of_picture_becomes_rgb(
    tmp_path: Path, mode: str, colour: Any, pixel: list[int]
) -> None:
    Image.new(mode, (5, 4), colour).save(tmp_path / "a.tiff")
    image = ImageFiles(tmp_path, ["a.tiff"], size=4)[0]
    assert image.shape == (3, 4, 4) and image[:, 2, 2].tolist() == pixel


@pytest.mark.parametrize("kind", ["jpg", "png", "tiff", "webp"])
@pytest.mark.parametrize("orientation", [1, 2, 6, 7])
def test_pictures_are_upright(tmp_path: Path, orientation: int, kind: str) -> None:
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :8] = 255  # at the top left
    # What EXIF 2.3 says of the stored row 0 and column 0: which sides of the picture they are.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: upright.swapaxes(0, 1)[::-1],
        7: upright.swapaxes(0, 1)[::-1, ::-1],
        8: upright.swapaxes(0, 1)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / f"a.{kind}", exif=exif)
    image = decode(tmp_path / f"a.{kind}", None)
    assert image.shape == (3, 16, 32) and torch.equal(
        image[0] > 127, torch.from_numpy(upright[:, :, 0] > 127)
    )


def test_damaged_exif_damages_no_picture(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), (9, 9, 9)).save(
        tmp_path / "a.jpg", exif=b"Exif\0\0nonsense that is no TIFF"
    )
    assert decode(tmp_path / "a.jpg", None).unique().tolist() == [9]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "L"])
def test_black_on_transparent_is_black_on_white(tmp_path: Path, mode: str) -> None:
    if mode in ("RGB", "L"):  # of which one colour is transparent
        below: Any = (255, 0, 0) if mode == "RGB" else 99
        icon, options = Image.new(mode, (8, 8), below), {"transparency": below}
    else:
        icon, options = Image.new("RGBA", (8, 8), (0, 0, 0, 0)), {}
    icon.paste("black", (2, 2, 6, 6))
    icon.convert(mode).save(tmp_path / "a.png", **options)
    expected = torch.full((3, 8, 8), 255, dtype=torch.uint8)
    expected[:, 2:6, 2:6] = 0
    assert torch.equal(decode(tmp_path / "a.png", None), expected)


def test_pictures_that_are_all_the_same_are_refused() -> None:
    noise = torch.randint(256, (3, 16, 16), generator=torch.Generator().manual_seed(0)).byte()
    for picture in (torch.zeros_like(noise), noise):
        # of blocks of two sizes, which round differently
        with pytest.raises(ValueError, match="Expected pictures that differ, got 300 that"):
            PatchFeatures(centres=20, dim=8).fit(Pictures(picture.expand(300, 3, 16, 16)))


def test_palettes_become_their_colours_and_real_pixels_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), (10, 200, 30)).quantize(4).save(tmp_path / "a.gif")
    assert decode(tmp_path / "a.gif", None)[:, 0, 0].tolist() == [10, 200, 30]
    Image.new("F", (4, 4), 0.5).save(tmp_path / "a.tiff")
    with pytest.raises(ValueError, match="a.tiff, got ValueError: real-valued pixels"):
        decode(tmp_path / "a.tiff", None)


def test_crop_keeps_the_middle_and_squash_keeps_everything(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200  # the middle third
    Image.fromarray(wide).save(tmp_path / "a.png")
    assert ImageFiles(tmp_path, ["a.png"], size=10, fit="crop")[0].unique().tolist() == [200]
    squashed = ImageFiles(tmp_path, ["a.png"], size=10, fit="squash")[0]
    assert squashed[0, 5, 0] == 0 and squashed[0, 5, 5] == 200 and squashed[0, 5, 9] == 0
    with pytest.raises(ValueError, match="Expected `fit` to be one of crop, squash"):
        ImageFiles(tmp_path, [], fit="stretch")  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["truncated", "text", "empty", "eps", "bomb"])
def test_damaged_and_dangerous_images_are_named(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jpg"
    paint(path, 50, (64, 64))
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-300])
    elif damage == "eps":  # whose reader would start Ghostscript
        path.write_bytes(
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"
        )
    elif damage == "bomb":
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64)
    else:
        path.write_bytes(b"" if damage == "empty" else b"<html>")
    with pytest.raises(ValueError, match=f"Expected an image in {path}, got "):
        decode(path, 8)


# A folder of one's own


def test_a_folder_of_classes(tmp_path: Path) -> None:
    for colour, name in enumerate(["b/2.png", "b/1.jpeg", "a/x.PNG", "b/3.webp"]):
        paint(tmp_path / name, 40 * colour)
    (tmp_path / "b/notes.txt").write_text("hello")
    (tmp_path / "a/.hidden.png").touch()
    data = from_image_folder(tmp_path, size=8)
    assert (
        data.classes == ("a", "b")
        and data.train.y.tolist() == [0, 1, 1, 1]
        and data.train.clean is None
    )
    assert [data.train.x.path(i).name for i in range(4)] == ["x.PNG", "1.jpeg", "2.png", "3.webp"]
    assert data.train.x[2][0].unique().tolist() == [0]
    assert any(note.startswith("2 files that are not images left out of ") for note in data.notes)
    assert any("'a'" in note and "single" in note for note in data.notes)
    assert get_dataset(f"folder:path={tmp_path},size=16").train.x[0].shape == (3, 16, 16)


def test_folders_in_folders_and_links(tmp_path: Path) -> None:
    for name in ("a/1", "a/deep/er/2", "a/.git/3", "b/4"):
        paint(tmp_path / f"{name}.png", 1)
    (tmp_path / "a/5.png").symlink_to(tmp_path / "b/4.png")
    (tmp_path / "a/6.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "a/circle").symlink_to(tmp_path)
    files = from_image_folder(tmp_path).train.x
    names = [str(files.path(i).relative_to(tmp_path)) for i in range(len(files))]
    assert names == ["a/1.png", "a/5.png", "a/deep/er/2.png", "b/4.png"]


def test_a_folder_of_parts(tmp_path: Path) -> None:
    for part, names in {
        "train": ["a/1", "a/2", "b/1", "c/1"],
        "test": ["c/1", "a/1"],
        "validation": ["b/1"],
        "trusted": ["b/9"],
        "drafts": ["a/1"],
    }.items():
        for name in names:
            paint(tmp_path / part / f"{name}.png", 3)
    data = from_image_folder(tmp_path)
    assert (
        data.classes == ("a", "b", "c")
        and "The folder drafts next to train was left out." in data.notes
    )
    assert (data.test.y.tolist(), data.validation.y.tolist(), data.trusted.y.tolist()) == (
        [0, 2],
        [1],
        [1],
    )
    paint(tmp_path / "test/d/1.png", 3)
    with pytest.raises(ValueError, match="got also 'd'"):
        from_image_folder(tmp_path)


def test_folders_without_classes_or_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Expected a folder of images"):
        from_image_folder(tmp_path / "none")
    (tmp_path / "a").mkdir()
    with pytest.raises(ValueError, match="Expected images .* found none"):
        from_image_folder(tmp_path)
    paint(tmp_path / "a/1.png", 1)
    with pytest.raises(
        ValueError, match="Expected at least two classes in `y`, every label is 'a'"
    ):
        from_image_folder(tmp_path)


# The web-labelled sets


def clothing_tree(root: Path, annotations: str = "") -> Path:
    """Clothing1M's own layout, with 3 noisy images a class and 1 clean one a class and part."""
    root = root / "clothing1M"
    lists = root / annotations
    lists.mkdir(parents=True, exist_ok=True)
    kv: dict[str, list[str]] = {"noisy": [], "clean": []}
    for kind, part, count in (
        ("noisy", "train", 3),
        ("clean", "train", 1),
        ("clean", "val", 1),
        ("clean", "test", 1),
    ):
        keys = []
        for label in range(14):
            for i in range(count):
                key = f"images/{i}/{label:02d}/{kind}{part}{i},{label}.jpg"
                paint(root / key, 10 * label, (20, 30))
                keys.append(key)
                kv[kind].append(f"{key} {label}")
        (lists / f"{kind}_{part}_key_list.txt").write_text("\n".join(keys) + "\n")
    kv["noisy"] += ["images/9/99/labelled-twice.jpg 3"]  # the official list has 37 497 of these
    for kind, lines in kv.items():
        (lists / f"{kind}_label_kv.txt").write_text("\n".join(lines) + "\n")
    (lists / "category_names_eng.txt").write_text("\n".join(CLOTHES) + "\n")
    return root


@pytest.mark.parametrize("annotations", ["", "annotations"])
def test_clothing1m_reads_its_lists(tmp_path: Path, annotations: str) -> None:
    clothing_tree(tmp_path, annotations)
    data = get_dataset("clothing1m:size=16", tmp_path)
    assert data.num_classes == 14 and data.classes[8] == "Downcoat"
    assert (len(data.train), len(data.validation), len(data.test), len(data.trusted)) == (
        42,
        14,
        14,
        14,
    )
    assert data.train.clean is None and data.test.clean is data.test.y
    for split in (data.train, data.test):
        for i in (0, 5, 13):
            image, label, _ = split[i]
            assert image.shape == (3, 16, 16)
            assert abs(float(image[0].float().mean()) - 10 * int(label)) < 4  # JPEG
    noisy = corrupt(data)
    assert noisy.clean is None and noisy.rate is None and noisy.is_flipped is None


def test_clothing1m_names_lists_that_do_not_fit(tmp_path: Path) -> None:
    root = clothing_tree(tmp_path)
    for name, text, error in (
        (
            "noisy_label_kv.txt",
            "images/0/00/a.jpg\n",
            "Expected a file name and a label in 0 … 13 in line 1 of",
        ),
        ("noisy_label_kv.txt", "images/0/00/a.jpg 14\n", "got 'images/0/00/a.jpg 14'"),
        (
            "noisy_label_kv.txt",
            "images/0/00/a.jpg 1\n",
            "got none for 42, the first of them images/0/00/noisytrain0,0.jpg",
        ),
        (
            "noisy_train_key_list.txt",
            "images/9/99/labelled-twice.jpg\n",
            "Expected the image .*labelled-twice.jpg",
        ),
    ):
        before = (root / name).read_text()
        (root / name).write_text(text)
        with pytest.raises((ValueError, FileNotFoundError), match=error):
            get_dataset("clothing1m", tmp_path)
        (root / name).write_text(before)
    (root / "clean_val_key_list.txt").unlink()
    with pytest.raises(FileNotFoundError, match="Expected the list .*clean_val_key_list.txt"):
        get_dataset("clothing1m", tmp_path)


@pytest.fixture
def webvision_tree(tmp_path: Path) -> Path:
    """WebVision 1.0, resized: Google images in query folders, validation images in val_images_256,
    lists in info.
    """
    root = tmp_path / "webvision"
    (root / "info").mkdir(parents=True)
    train, val = [], []
    for label in (0, 7, 49, 50, 199, 200, 399, 400, 999):
        for i in range(2):
            name = f"google/q{label + 1:04d}/img{i}_{label}.jpg"
            paint(root / name, label % 200, (20 + i, 12))
            train.append(f"{name} {label}")
        paint(root / f"val_images_256/val{label:06d}.jpg", label % 200)
        val.append(f"val{label:06d}.jpg {label}")
    (root / "info/train_filelist_google.txt").write_text("\n".join(train))
    (root / "info/train_filelist_flickr.txt").write_text("flickr/q0001/x.jpg 0\n")
    (root / "info/val_filelist.txt").write_text("\n".join(val))
    (root / "info/synsets.txt").write_text(
        "".join(f"n{k:08d} thing {k}, alias\n" for k in range(1000))
    )
    return tmp_path


@pytest.mark.parametrize(("classes", "kept"), [(50, 3), (200, 5), (400, 7), (1000, 9)])
def test_webvision_keeps_the_first_classes_of_google(
    webvision_tree: Path, classes: int, kept: int
) -> None:
    data = get_dataset(f"webvision:classes={classes},size=12", webvision_tree)
    assert data.num_classes == classes and data.classes[7] == "thing 7, alias"
    assert (len(data.train), len(data.test)) == (2 * kept, kept)
    assert data.train.y[:4].tolist() == [0, 0, 7, 7] and data.train.clean is None
    assert data.train.x.path(3).relative_to(webvision_tree / "webvision") == Path(
        "google/q0008/img1_7.jpg"
    )
    assert (
        data.test.x[1].shape == (3, 12, 12) and abs(float(data.test.x[1][0].float().mean()) - 7) < 4
    )


def test_animal10n_raw_images(tmp_path: Path) -> None:
    for part, count in (("training", 3), ("testing", 1)):
        for label in range(10):
            for i in range(count):
                paint(tmp_path / f"ANIMAL-10N/{part}/{label}_{part}{i}.jpg", 20 * label, (64, 64))
    data = get_dataset("animal10n", tmp_path)
    assert data.classes[5] == "jaguar" and torch.bincount(data.train.y).tolist() == [3] * 10
    assert data.train.clean is None and len(data.test) == 10
    assert data.train.x[0].shape == (3, 64, 64)
    assert abs(float(data.test.x[4][0].float().mean()) - 80) < 4
    paint(tmp_path / "ANIMAL-10N/testing/cat_1.jpg", 0)
    with pytest.raises(ValueError, match="Expected image names LABEL_… .* got 'cat_1.jpg'"):
        get_dataset("animal10n", tmp_path)


# What an epoch sees


def test_balanced_epochs_of_the_sln_paper() -> None:
    labels = torch.tensor([0] * 50 + [1] * 20 + [3] * 200)  # class 2 has no rows
    sampler = ClassBalanced(labels, per_class=20, seed=1)
    rows = torch.tensor(list(sampler))
    assert len(sampler) == len(rows) == 60 and len(rows.unique()) == 60
    assert torch.bincount(labels[rows]).tolist() == [20, 20, 0, 20]
    assert labels[rows].tolist() != sorted(labels[rows].tolist())
    assert torch.equal(rows, ClassBalanced(labels, per_class=20, seed=1).draw(0))
    sampler.set_epoch(1)
    assert list(sampler) != rows.tolist()
    seen = torch.cat([sampler.draw(epoch) for epoch in range(200)]).unique()
    assert len(seen) == 270  # every row has its turn


def test_balanced_epochs_of_the_nal_paper() -> None:
    labels = torch.arange(14).repeat_interleave(30)
    sampler = ClassBalanced(labels, total=10 * 32, seed=0)  # 320 = 14·22 + 12
    counts = torch.stack(
        [torch.bincount(labels[sampler.draw(epoch)], minlength=14) for epoch in range(300)]
    )
    assert counts.sum(1).tolist() == [320] * 300
    assert set(counts.unique().tolist()) == {22, 23}
    # the remainder falls on every class
    assert float(counts.double().mean(0).sub(320 / 14).abs().max()) < 0.1


@pytest.mark.parametrize("workers", [0, 2])
def test_images_stream_through_worker_processes(tmp_path: Path, workers: int) -> None:
    clothing_tree(tmp_path)
    data = corrupt(get_dataset("clothing1m:size=16", tmp_path))
    before = torch.get_rng_state()
    sampler = ClassBalanced(data.given, total=30, seed=3)
    batches = list(stream(data, 8, sampler=sampler, workers=workers))
    assert torch.equal(torch.get_rng_state(), before)
    images, labels, rows = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert images.shape == (30, 3, 16, 16) and images.dtype is torch.uint8
    assert torch.equal(rows, sampler.draw(0)) and torch.equal(labels, data.given[rows])
    assert bool((images[:, 0].float().mean((1, 2)) - 10 * labels).abs().max() < 4)
