"""Batched augmentation against slow references: one image at a time, in NumPy, PIL, SciPy and
colorsys.
"""

from __future__ import annotations

import colorsys
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from noiseproof.data.augment import (
    _OPERATIONS,
    AutoAugment,
    CenterCrop,
    ColorJitter,
    Compose,
    Cutout,
    Flip,
    Normalise,
    PadCrop,
    RandomResizedCrop,
    Resize,
    Rotate,
    Standardise,
    Transform,
    _transformations,
    augmentation,
    strong_augmentation,
)

TRANSFORMS: list[Transform] = [
    PadCrop(4),
    PadCrop(0, size=(9, 7)),
    PadCrop(3, size=15),
    Flip(),
    CenterCrop((8, 9)),
    Resize(20),
    Resize((7, 15)),
    Compose([Resize(16), CenterCrop(11)]),
    RandomResizedCrop(8),
    RandomResizedCrop((20, 6), scale=(0.5, 0.6), ratio=(0.9, 1.1)),
    Rotate(15),
    Rotate(180, interpolation="nearest"),
    ColorJitter(0.4, 0.4, 0.4, 0.2),
    ColorJitter(brightness=0.4),
    AutoAugment(),
    Cutout(5),
    Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
    Compose(
        [
            PadCrop(4),
            Flip(),
            Rotate(15),
            ColorJitter(0.1, 0.2, 0.3, 0.4),
            Normalise((0.5,) * 3, (0.2,) * 3),
        ]
    ),
    Compose([]),
]
EVERY = pytest.mark.parametrize("transform", TRANSFORMS, ids=repr)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(
    n: int = 6, height: int = 12, width: int = 10, channels: int = 3, seed: int = 1
) -> Tensor:
    return torch.randint(
        0, 256, (n, channels, height, width), dtype=torch.uint8, generator=seeded(seed)
    )


def to_pil(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def from_pil(image: Image.Image) -> np.ndarray:
    return np.asarray(image).transpose(2, 0, 1)


# The papers' pipelines in PIL, one image at a time. benchmarks/data.py imports them as its
# baseline.


def pil_crop_flip(image: Image.Image, padding: int, top: int, left: int, flip: bool) -> Image.Image:
    width, height = image.size
    image = ImageOps.expand(image, padding, 0).crop((left, top, left + width, top + height))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image


def pil_normalise(image: Image.Image, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)
    return pixels.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))


# Placements: exact.


@pytest.mark.parametrize("size", [None, (7, 13)])
def test_pad_crop_equals_numpy_for_every_offset(size):
    p, (height, width) = 3, (12, 10)
    h, w = size or (height, width)
    rows, cols = height + 2 * p - h + 1, width + 2 * p - w + 1
    offsets = list(itertools.product(range(rows), range(cols)))
    images = batch(len(offsets), height, width)
    params = torch.tensor([((i + 0.5) / rows, (j + 0.5) / cols) for i, j in offsets])
    result = PadCrop(p, size=size).apply(images, params)
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (p, p), (p, p)))
    for k, (i, j) in enumerate(offsets):
        np.testing.assert_array_equal(result[k].numpy(), padded[k, :, i : i + h, j : j + w])


def test_crop_flip_normalise_equals_the_pipeline_of_the_papers_in_pil():
    mean, std, n = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010), 64
    images = batch(n, 32, 32)
    augment = Compose([PadCrop(4), Flip(), Normalise(mean, std)])
    params = augment.draw(n, seeded())
    result = augment.apply(images, params)
    for k in range(n):
        top, left = (int(u * 9) for u in params[k, :2].tolist())
        view = pil_crop_flip(to_pil(images[k]), 4, top, left, bool(params[k, 2] < 0.5))
        assert torch.equal(result[k], pil_normalise(view, mean, std))


def test_pad_crop_without_a_size_shifts_as_scipy_does():
    moves = list(itertools.product(range(-3, 4), range(-3, 4)))
    images = batch(len(moves))
    params = torch.tensor([((3 - dy + 0.5) / 7, (3 - dx + 0.5) / 7) for dy, dx in moves])
    result = PadCrop(3).apply(images, params).numpy()
    for k, (dy, dx) in enumerate(moves):
        expected = [
            scipy.ndimage.shift(plane, (dy, dx), order=0, cval=0) for plane in images[k].numpy()
        ]
        np.testing.assert_array_equal(result[k], expected)


def test_flip_happens_below_p():
    images = batch(4)
    result = Flip(0.3).apply(images, torch.tensor([[0.0], [0.29], [0.3], [0.99]]))
    np.testing.assert_array_equal(result.numpy()[:2], images.numpy()[:2, ..., ::-1])
    assert torch.equal(result[2:], images[2:])
    assert torch.equal(Flip(0)(images, seeded()), images)
    assert torch.equal(Flip(1)(images, seeded()), images.flip(-1))


# Distribution.


def test_the_largest_draw_stays_inside():
    """Largest float32 below one times n must not round to n, else a crop would leave the image."""
    choices = torch.arange(1, 5000)
    starts = (torch.tensor(1 - 2.0**-24) * choices).long()
    assert torch.equal(starts, choices - 1)
    images = batch(2)
    top = torch.full((2, 2), 1 - 2.0**-24)
    expected = np.pad(images.numpy(), ((0, 0), (0, 0), (4, 4), (4, 4)))[..., -12:, -10:]
    np.testing.assert_array_equal(PadCrop(4).apply(images, top).numpy(), expected)


# Resampling and colour: within rounding.


@pytest.mark.parametrize(
    ("shape", "size"), [((40, 60), 32), ((40, 60), 50), ((33, 20), (11, 47)), ((16, 16), 16)]
)
def test_resize_is_pils(shape, size):
    images = batch(2, *shape)
    result = Resize(size)(images)
    height, width = size if isinstance(size, tuple) else (size * n // min(shape) for n in shape)
    for image, got in zip(images, result, strict=True):
        expected = from_pil(to_pil(image).resize((width, height), Image.Resampling.BILINEAR))
        assert np.abs(got.numpy().astype(int) - expected).max() <= 1


def torchvision_box(
    u: list[float], height: int, width: int, scale, ratio
) -> tuple[int, int, int, int]:
    for area, shape in zip(u[:10], u[10:20], strict=True):
        target = height * width * (scale[0] + (scale[1] - scale[0]) * area)
        aspect = math.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * shape)
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(u[20] * (height - h + 1)), int(u[21] * (width - w + 1)), h, w
    if width / height < ratio[0]:
        h, w = round(width / ratio[0]), width
    elif width / height > ratio[1]:
        h, w = height, round(height * ratio[1])
    else:
        h, w = height, width
    return (height - h) // 2, (width - w) // 2, h, w


@pytest.mark.parametrize(
    ("height", "width", "scale"),
    [(40, 50, (0.08, 1.0)), (20, 90, (0.5, 1.0)), (90, 21, (0.9, 1.0))],
)
def test_random_resized_crop_is_crop_and_resize_in_pil(height, width, scale):
    n, size = 60, (24, 18)
    crop = RandomResizedCrop(size, scale=scale)
    images, params = batch(n, height, width), crop.draw(n, seeded(5))
    boxes = torch.stack(crop.boxes(params, height, width), 1).int().tolist()
    result = crop.apply(images, params)
    central = 0
    for k in range(n):
        box = top, left, h, w = torchvision_box(
            params[k].tolist(), height, width, scale, crop.ratio
        )
        assert tuple(boxes[k]) == box
        central += h in (height, round(width * 4 / 3)) and w in (width, round(height * 4 / 3))
        view = (
            to_pil(images[k])
            .crop((left, top, left + w, top + h))
            .resize(size[::-1], Image.Resampling.BILINEAR)
        )
        assert np.abs(result[k].numpy().astype(int) - from_pil(view)).max() <= 1
    assert scale == (0.08, 1.0) or central > n // 4  # long images do reach the fallback


@pytest.mark.parametrize("angle", [-15.0, -3.0, 0.0, 7.5, 15.0])
def test_rotation_is_scipys(angle):
    images = torch.rand(2, 3, 12, 17, dtype=torch.float64, generator=seeded())
    params = torch.full((2, 1), (angle / 15 + 1) / 2, dtype=torch.float64)
    result = Rotate(15).apply(images, params)
    a = math.radians(angle)
    # (row, column) of output → input
    matrix = np.array([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]])
    centre = np.array([5.5, 8.0])
    for image, got in zip(images.numpy(), result.numpy(), strict=True):
        for plane, turned in zip(image, got, strict=True):
            expected = scipy.ndimage.affine_transform(
                plane, matrix, centre - matrix @ centre, order=1, mode="grid-constant"
            )
            np.testing.assert_allclose(turned, expected, atol=1e-12)


def jitter_one_image(image: np.ndarray, order: list[int], amounts: list[float]) -> np.ndarray:
    """torchvision's documented adjustments, one after another, on float values in [0, 1] of shape
    (3, H, W).
    """
    x = image.copy()
    for kind in order:
        grey = 0.299 * x[0] + 0.587 * x[1] + 0.114 * x[2]
        if kind == 3:
            for i, j in np.ndindex(*x.shape[1:]):
                h, s, v = colorsys.rgb_to_hsv(*x[:, i, j])
                x[:, i, j] = colorsys.hsv_to_rgb((h + amounts[3]) % 1.0, s, v)
        else:
            other = (
                np.zeros_like(x),
                np.full_like(x, grey.mean()),
                np.broadcast_to(grey, x.shape),
            )[kind]
            x = np.clip(amounts[kind] * x + (1 - amounts[kind]) * other, 0, 1)
    return x


def test_colour_jitter_is_the_sequence_of_adjustments_of_each_image():
    n, limits = 48, (0.4, 0.6, 0.9, 0.5)
    jitter = ColorJitter(*limits)
    params = jitter.draw(n, seeded()).double()
    images = torch.rand(n, 3, 5, 4, dtype=torch.float64, generator=seeded(1))
    images[0, :, 0, 0] = 0.5  # grey, black, white, and a tie of the two largest values
    images[0, :, 0, 1], images[0, :, 0, 2] = 0, 1
    images[0, :, 0, 3] = torch.tensor([0.7, 0.7, 0.1])
    result = jitter.apply(images, params)
    orders = set()
    for k in range(n):
        order = np.argsort(params[k, :4].numpy()).tolist()
        swing = 2 * params[k, 4:].numpy() - 1
        amounts = [1 + limits[i] * swing[i] for i in range(3)] + [limits[3] * swing[3]]
        expected = jitter_one_image(images[k].numpy(), order, amounts)
        np.testing.assert_allclose(result[k].numpy(), expected, atol=1e-12)
        orders.add(tuple(order))
    assert len(orders) > 12
    levels = (images * 255).round().to(torch.uint8)
    exact = (jitter.apply(levels.double() / 255, params) * 255).round()
    assert torch.equal(jitter.apply(levels, params.float()).double(), exact)


# AutoAugment: each operation against PIL, and which of them happen by enumeration.


def pil_affine(image: Image.Image, *matrix: float) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix)


PIL_OPERATIONS = {
    "ShearY": lambda image, v: pil_affine(image, 1, 0, 0, v, 1, 0),
    "TranslateX": lambda image, v: pil_affine(image, 1, 0, v, 0, 1, 0),
    "TranslateY": lambda image, v: pil_affine(image, 1, 0, 0, 0, 1, v),
    "Rotate": lambda image, v: image.rotate(v),
    "AutoContrast": lambda image, v: ImageOps.autocontrast(image),
    "Invert": lambda image, v: ImageOps.invert(image),
    "Equalize": lambda image, v: ImageOps.equalize(image),
    "Solarize": ImageOps.solarize,
    "Posterize": ImageOps.posterize,
    "Contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "Color": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "Brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "Sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
}
AMOUNTS = {
    "ShearY": (-0.3, -0.21, -0.03, 0.0, 0.12, 0.24, 0.3),
    **dict.fromkeys(("TranslateX", "TranslateY"), (-10, -3, 0, 1, 9)),
    "Rotate": (-30, -6, 0, 3, 6, 27),
    "Solarize": (0, 52, 128, 180, 205, 256),
    "Posterize": (1, 2, 3, 4, 8),
    **dict.fromkeys(
        ("Contrast", "Color", "Brightness", "Sharpness"), (0.0, 0.1, 0.28, 1.0, 1.18, 1.36, 1.9)
    ),
}
OURS = {
    "ShearY": "shear-y",
    "TranslateX": "translate-x",
    "TranslateY": "translate-y",
}


def pictures(n: int, height: int = 32, width: int = 32) -> Tensor:
    """Noise, smooth pictures of little contrast, and one of a single colour."""
    smooth = torch.nn.functional.interpolate(
        torch.rand(n, 3, 4, 4, generator=seeded(3)), (height, width), mode="bicubic"
    )
    return torch.cat(
        [
            batch(n, height, width),
            (smooth * 140 + 50).clamp(0, 255).byte(),
            torch.full((1, 3, height, width), 77).byte(),
        ]
    )


def is_on_an_edge(name: str, v: float, height: int, width: int) -> np.ndarray:
    """Whether a pixel comes from where four meet, or two: PIL's 16-bit fractions may then take
    another than we.
    """
    y, x = np.meshgrid(np.arange(height) + 0.5, np.arange(width) + 0.5, indexing="ij")
    sources = {"ShearY": y + v * x}
    if name == "Rotate":
        turn, dy, dx = math.radians(v), y - height / 2, x - width / 2
        ends = (
            math.cos(turn) * dx - math.sin(turn) * dy + width / 2,
            math.sin(turn) * dx + math.cos(turn) * dy + height / 2,
        )
    else:
        ends = (sources.get(name, y),)
    return np.any([abs(end - end.round()) < 1e-3 for end in ends], axis=0)


@pytest.mark.parametrize("name", PIL_OPERATIONS)
@pytest.mark.parametrize("shape", [(32, 32), (21, 30)])
def test_an_operation_is_pils(name, shape):
    """Exactly, but for AutoContrast: PIL's floating point may fall one short of a whole number, 254
    for 255.
    """
    images = pictures(4, *shape)
    for v in AMOUNTS.get(name, (0,)):
        amounts = torch.full(
            (len(images), 1, 1, 1), float(2 ** (8 - v) if name == "Posterize" else v)
        )
        result = _OPERATIONS[OURS.get(name, name.lower())](images.float(), amounts).numpy()
        same = ~is_on_an_edge(name, v, *shape)
        assert same.mean() > 0.9
        for ours, image in zip(result, images, strict=True):
            wanted = from_pil(PIL_OPERATIONS[name](to_pil(image), v))
            tolerance = 1 if name == "AutoContrast" else 0
            np.testing.assert_allclose(ours[:, same], wanted[:, same], rtol=0, atol=tolerance)


# Cubuk et al. 2019, Table 7.
TABLE7 = [
    (("Invert", 0.1, 7), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 8), ("Equalize", 0.9, 2)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 5), ("Equalize", 0.5, 1)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 7), ("AutoContrast", 0.4, 8)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 3)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 8), ("Equalize", 0.6, 4)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 6)),
    (("AutoContrast", 0.8, 4), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 3)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 2), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 8), ("Invert", 0.1, 3)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 1)),
]
SIGNED = {"ShearY": 0.03, "TranslateX": 1, "TranslateY": 1, "Rotate": 3}


def amount_of(name: str, level: int, is_positive: bool) -> float:
    """Of the released code of SOP: the largest amount is that of level 10."""
    if name in SIGNED:
        return SIGNED[name] * level * (1 if is_positive else -1)
    whole = {"Solarize": 256 - int(level / 10 * 256), "Posterize": 4 - int(level / 10 * 4)}
    return whole.get(name, 0.1 + level / 10 * 1.8)


def test_every_pair_of_the_policy_happens_with_its_probabilities():
    """All 25 pairs, with numbers in the middle of every part of [0, 1) that the probabilities, in
    tenths, tell apart.

    The images that come out are those of PIL for the operations that these numbers choose, so that
    each has the exact probability of Table 7.
    """
    tenths = [(i + 0.5) / 10 for i in range(10)]
    rows = [
        (pair, first, second, *signs)
        for pair in range(25)
        for first, second in itertools.product(tenths, tenths)
        for signs in (
            [(0.25, 0.75), (0.75, 0.25)]
            if {n for n, _, _ in TABLE7[pair]} & SIGNED.keys()
            else [(0.25, 0.75)]
        )
    ]
    image = pictures(1, 12, 12)[1]
    params = torch.tensor([((pair + 0.5) / 25, *rest) for pair, *rest in rows])
    result = AutoAugment().apply(image.expand(len(rows), -1, -1, -1), params).numpy()
    count = dict.fromkeys(itertools.product(range(25), range(2)), 0)
    seen: dict[tuple[object, ...], np.ndarray] = {}
    for ours, (pair, *drawn) in zip(result, rows, strict=True):
        happening = [
            (slot, *TABLE7[pair][slot]) for slot in range(2) if drawn[slot] < TABLE7[pair][slot][1]
        ]
        key = (pair, *((slot, drawn[2 + slot]) for slot, *_ in happening))
        if key not in seen:
            view = to_pil(image)
            for slot, name, _, level in happening:
                view = PIL_OPERATIONS[name](view, amount_of(name, level, drawn[2 + slot] >= 0.5))
            seen[key] = from_pil(view).astype(int)
        # AutoContrast may differ by one, which a solarisation, an equalisation or a blend after it
        # can enlarge.
        is_exact = all(name != "AutoContrast" for _, name, *_ in happening)
        assert (abs(ours - seen[key]) <= (0 if is_exact else 1)).mean() >= (1 if is_exact else 0.99)
        for slot, *_ in happening:
            count[pair, slot] += 1
    for (pair, slot), times in count.items():
        runs = sum(row[0] == pair for row in rows)
        assert times / runs == pytest.approx(TABLE7[pair][slot][1], abs=1e-12)


@pytest.mark.parametrize("size", [1, 4, 5, 16])
def test_cutout_removes_the_square_about_every_pixel(size):
    height, width = 9, 7
    centres = list(itertools.product(range(height), range(width)))
    images = batch(len(centres), height, width).clamp(min=1)
    params = torch.tensor([((i + 0.5) / height, (j + 0.5) / width) for i, j in centres])
    result = Cutout(size).apply(images, params)
    for k, (i, j) in enumerate(centres):
        expected = images[k].clone()
        top, left = i - size // 2, j - size // 2
        expected[:, max(0, top) : max(0, top + size), max(0, left) : max(0, left + size)] = 0
        assert torch.equal(result[k], expected)


def test_normalise_takes_uint8_and_floats():
    images = batch()
    normalise = Normalise((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    expected = (
        images.numpy().astype(np.float32) / np.float32(255)
        - np.float32([0.5, 0.4, 0.3])[:, None, None]
    ) / (np.float32([0.2, 0.3, 0.4])[:, None, None])
    np.testing.assert_array_equal(normalise(images).numpy(), expected)
    np.testing.assert_array_equal(normalise(images.numpy()).numpy(), expected)
    floats = images.float() / 255
    before = floats.clone()
    np.testing.assert_array_equal(normalise(floats).numpy(), expected)
    assert torch.equal(floats, before)


# What every transformation promises.


@EVERY
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.bfloat16])
def test_dtype_is_kept_and_pixels_stay_valid(transform, dtype):
    images = batch() if dtype is torch.uint8 else (batch() / 255).to(dtype)
    result = transform(images, seeded())
    normalises = "Normalise" in repr(transform)
    assert result.dtype == (torch.float32 if dtype is torch.uint8 and normalises else dtype)
    assert len(result) == len(images) and result.shape[1] == 3
    if not normalises and dtype is not torch.uint8:
        assert -1e-6 <= float(result.min()) and float(result.max()) <= 1 + 1e-6


@EVERY
def test_rows_of_the_global_draw_are_the_images_of_a_process(transform):
    images = batch(9)
    params = transform.draw(9, seeded(2))
    whole = transform.apply(images, params)
    for a, b in ((0, 4), (4, 5), (5, 9)):
        assert torch.equal(transform.apply(images[a:b], params[a:b]), whole[a:b])
    order = torch.randperm(9, generator=seeded())
    assert torch.equal(transform.apply(images[order], params[order]), whole[order])


@pytest.mark.parametrize(
    "transform",
    [
        t
        for t in TRANSFORMS
        if not isinstance(t, (CenterCrop, Resize, RandomResizedCrop, Cutout, Normalise, Compose))
    ],
    ids=repr,
)
def test_a_draw_of_one_half_changes_nothing(transform):
    images = batch()[..., :10, :]
    if isinstance(transform, PadCrop) and transform.size is not None:
        transform = PadCrop(transform.padding)
    half = torch.full((6, transform.columns), 0.5)
    assert torch.equal(transform.apply(images, half), images)
    floats = images / 255
    torch.testing.assert_close(transform.apply(floats, half), floats, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "transform",
    [
        Compose(
            [
                PadCrop(4),
                Flip(),
                Rotate(15),
                ColorJitter(0.1, 0.2, 0.3, 0.4),
                Normalise((0.5,) * 3, (0.2,) * 3),
            ]
        ),
        Compose([RandomResizedCrop(8), PadCrop(2), Resize(6), CenterCrop(5)]),
        Compose([AutoAugment(), Cutout(3)]),
    ],
    ids=repr,
)
def test_apply_compiles_into_one_graph(transform):
    images = batch()
    params = transform.draw(6, seeded())
    torch._dynamo.reset()
    compiled = torch.compile(transform.apply, fullgraph=True, backend="eager")
    assert torch.equal(compiled(images, params), transform.apply(images, params))


# Refusals.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PadCrop(-1), "`padding` to be an integer of at least 0, got -1"),
        (lambda: PadCrop(1, size=0), r"`size \(height\)` to be an integer of at least 1, got 0"),
        (lambda: Flip(1.5), r"`p` in \[0, 1\], got 1.5"),
        (lambda: Rotate(-3), r"`degrees` in \[0, 180\], got -3"),
        (lambda: Rotate(3, interpolation="cubic"), "`interpolation` to be one of"),
        (lambda: ColorJitter(hue=0.6), r"`hue` in \[0, 0.5\], got 0.6"),
        (lambda: Cutout(0), "`size` to be an integer of at least 1, got 0"),
        (lambda: RandomResizedCrop(8, scale=(0.5, 0.4)), r"`scale\[1\]` in \[0.5, 1\], got 0.4"),
        (lambda: Normalise((0.5,), (0.0,)), r"`std` in \(0, inf\), got 0.0"),
        (lambda: Normalise((0.5,), (0.5, 0.5)), "as many means as deviations, got 1 and 2"),
    ],
)
def test_bad_parameters_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("transform", "images", "error", "message"),
    [
        (Flip(), torch.zeros(3, 8, 8), ValueError, r"shape \(B, C, H, W\), got \(3, 8, 8\)"),
        (
            Flip(),
            torch.zeros(1, 3, 8, 8, dtype=torch.int64),
            TypeError,
            "uint8 or floating point, got torch.int64",
        ),
        (
            PadCrop(2, size=40),
            torch.zeros(1, 3, 32, 32),
            ValueError,
            "got 40 pixels of 36. Pad more",
        ),
        (
            CenterCrop(9),
            torch.zeros(1, 3, 8, 8),
            ValueError,
            "got 9 pixels of 8. Pad more, or resize first",
        ),
        (
            Normalise((0.5,), (0.5,)),
            torch.zeros(1, 3, 8, 8),
            ValueError,
            "images of 1 channels, .* got 3",
        ),
        (
            ColorJitter(0.1),
            torch.zeros(1, 4, 8, 8),
            ValueError,
            "1 or 3 channels for ColorJitter, got 4",
        ),
        (
            AutoAugment(),
            torch.zeros(1, 2, 8, 8),
            ValueError,
            "1 or 3 channels for AutoAugment, got 2",
        ),
    ],
)
def test_bad_images_are_refused(transform, images, error, message):
    with pytest.raises(error, match=message):
        transform(images, seeded())


# The papers' settings.

CIFAR100 = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    ("dataset", "paper", "training", "mean", "std"),
    [
        ("fashion-mnist", "bias", (Flip(0.5), PadCrop(4)), (0.286,), (0.353,)),
        ("cifar10", "bias", (Flip(0.5), PadCrop(4)), *IMAGENET),
        (
            "cifar100",
            "bias",
            (PadCrop(4), Flip(0.5), Rotate(15)),
            (0.507, 0.487, 0.441),
            (0.267, 0.256, 0.276),
        ),
        (
            "cifar10",
            "sln",
            (PadCrop(4), Flip(0.5)),
            (0.4914, 0.4822, 0.4465),
            (0.2023, 0.1994, 0.2010),
        ),
        (
            "cifar10n",
            "ln",
            (PadCrop(2), Flip(0.5)),
            (0.4914, 0.4822, 0.4465),
            (0.2470, 0.2435, 0.2616),
        ),
        ("mnist", "ln", (), (0,), (1,)),
        ("cifar100", "curriculum", (PadCrop(4), Flip(0.5)), *CIFAR100),
        ("cifar100", "zhou2021", (PadCrop(4), Flip(0.5), Rotate(20, "nearest")), *CIFAR100),
        (
            "cifar10",
            "curriculum",
            (PadCrop(4), Flip(0.5)),
            (0.4914, 0.4822, 0.4465),
            (0.2470, 0.2435, 0.2616),
        ),
    ],
)
def test_recipes_are_the_papers(dataset, paper, training, mean, std):
    normalise = Normalise(mean, std)
    assert augmentation(dataset, paper) == Compose([*training, normalise])
    assert augmentation(dataset, paper, train=False) == Compose([normalise])


@pytest.mark.parametrize(("paper", "cut"), [("sop+", (Cutout(16),)), ("promix", ())])
def test_second_views_are_the_papers(paper, cut):
    """Cutout comes after normalisation, where zero is the mean; the papers without a second view
    have none.
    """
    for dataset in ("cifar10", "cifar10n", "cifar100"):
        normalise = augmentation(dataset, paper).transforms[-1]
        expected = Compose([AutoAugment(), PadCrop(4), Flip(), normalise, *cut])
        assert strong_augmentation(dataset, paper) == expected
        assert AutoAugment() not in augmentation(dataset, paper).transforms
        assert strong_augmentation(dataset, "sop") is strong_augmentation(dataset, None) is None


def test_compose_applies_one_after_another_and_flattens():
    chain = [
        PadCrop(2),
        Rotate(15),
        Flip(),
        CenterCrop(6),
        ColorJitter(0.2),
        Normalise((0.5,) * 3, (0.2,) * 3),
    ]
    nested = Compose([Compose(chain[:2]), chain[2], Compose([Compose(chain[3:])])])
    assert nested == Compose(chain)
    images, params = batch(), nested.draw(6, seeded())
    stepwise, column = images, 0
    for transform in chain:
        stepwise = transform.apply(stepwise, params[:, column : column + transform.columns])
        column += transform.columns
    assert column == nested.columns
    assert torch.equal(nested.apply(images, params), stepwise)


def test_vectors_are_standardised_by_a_call() -> None:
    x = torch.tensor([[1.0, 30.0], [3.0, 10.0]])
    standardise = Standardise(torch.tensor([1.0, 10.0]), torch.tensor([2.0, 10.0]))
    assert standardise(x).tolist() == [[0.0, 2.0], [1.0, 0.0]]
    for wrong in (x[0], x[:, :1], x[:, :, None]):
        with pytest.raises(ValueError, match=r"Expected vectors of shape \(B, 2\), got"):
            standardise(wrong)


def test_lists_of_a_file_become_tuples() -> None:
    moments = {"mean": [0.5], "std": [0.5]}
    transforms = [*_transformations({"train": ["resize:size=[8, 6]"], **moments}, "train")]
    assert transforms == [Resize((8, 6)), Normalise((0.5,), (0.5,))]
    assert len({*transforms}) == 2
