"""Pictures as the review page and exports show them; and rows of numbers that are a picture."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.data.images import to_rgb

SMALLEST = 8  # pixels of a side, of a row of numbers that is a picture
SAMPLE = 200  # rows that decide on it
SMOOTH = 0.8  # difference of adjacent numbers over that of any two, below which numbers are pixels
SERIES = 2.2  # difference of numbers one line apart over that of adjacent ones: larger in series


def encode_picture(image: Any, side: int) -> tuple[bytes, str]:
    """Return a PIL image as a new file of at most ``side`` pixels, without metadata, and its media
    type.
    """
    image = to_rgb(image)  # the reviewer sees what the audit saw
    image.thumbnail((side, side))
    file = io.BytesIO()
    is_small = max(image.size) <= 64
    image.save(
        file, "PNG" if is_small else "JPEG", **({"optimize": True} if is_small else {"quality": 85})
    )
    return file.getvalue(), "image/png" if is_small else "image/jpeg"


@dataclass(frozen=True)
class Layout:
    """How D numbers of a row are the pixels of a picture."""

    shape: tuple[int, ...]  # (H, W), (3, H, W) or (H, W, 3)
    low: float  # drawn as black
    high: float  # drawn as white

    def pixels(self, numbers: NDArray[Any]) -> NDArray[np.uint8]:
        """Return (H, W) or (H, W, 3) bytes of D numbers; gaps are black."""
        grid = _channels_last(
            np.nan_to_num(np.asarray(numbers, np.float64), nan=self.low).reshape(1, *self.shape)
        )[0]
        scaled = (grid - self.low) * (255 / max(self.high - self.low, 1e-12))
        return np.ascontiguousarray(scaled.round().clip(0, 255).astype(np.uint8).squeeze())


def find_layout(sample: NDArray[Any], *, named: bool = False) -> Layout | None:
    """Return the layout of rows (n, D) that are square pictures, grey or in colour; None if they
    are none.

    D numbers are a picture if adjacent ones differ less than any two, along both sides alike:
    numbers in any order do not, and those of a series only along one side. With ``named``, the
    columns are called pixels and need no test.
    """
    shapes = _shapes(sample.shape[1])
    numbers = np.asarray(sample, np.float64)
    if not shapes or not len(numbers) or not np.isfinite(numbers).all() or not np.ptp(numbers) > 0:
        return None
    roughness = {shape: _roughness(numbers.reshape(-1, *shape)) for shape in shapes}
    shape = min(shapes, key=lambda shape: sum(roughness[shape]))
    down, across = roughness[shape]
    is_smooth = max(down, across) < SMOOTH and down < SERIES * across
    if not (named or is_smooth):
        return None
    return Layout(shape, min(0.0, float(numbers.min())), float(numbers.max()))


@dataclass(frozen=True)
class PixelColumns:
    """Columns of a table that are the pixels of a picture."""

    positions: list[int]
    layout: Layout

    def picture(self, cells: Sequence[str], side: int) -> tuple[bytes, str] | None:
        """Return the picture of a row and its media type; None if one of its pixels is not a
        number.
        """
        from PIL import Image

        try:
            numbers = _pixels(cells, self.positions)
        except (ValueError, IndexError):
            return None
        return encode_picture(Image.fromarray(self.layout.pixels(np.array(numbers))), side)


def _pixels(cells: Sequence[str], positions: Sequence[int]) -> list[float]:
    return [float(cells[k]) for k in positions]


def find_pixels(names: Sequence[str], rows: Any) -> PixelColumns | None:
    """Return the columns that are the pixels of a picture by their names and by some of the rows;
    None for none.
    """
    positions = pixel_columns(names)
    if not positions or not len(rows):
        return None
    sample = np.unique(np.linspace(0, len(rows) - 1, SAMPLE).astype(int)).tolist()
    try:
        numbers = np.array([_pixels(rows[row], positions) for row in sample], np.float64)
    except (ValueError, IndexError):
        return None
    layout = find_layout(numbers, named="pix" in names[positions[0]].lower())
    return None if layout is None else PixelColumns(positions, layout)


def pixel_columns(names: Sequence[str]) -> list[int]:
    """Return the positions of the columns that may be the pixels of a picture, in their order; none
    if there is none.

    They are numbered without a gap, from 0 or 1 (pixel0, pixel1, …), or by line and column (1x1,
    1x2, … or p_0_0, …).

    >>> pixel_columns(["label", *(f"p{i}" for i in range(64))])[:3]
    [1, 2, 3]
    """
    groups: dict[str, dict[tuple[int, ...], int]] = {}
    for at, name in enumerate(names):
        if match := re.fullmatch(r"(\D*)(\d+)(?:(\D{1,3})(\d+))?", name):
            prefix, first, comma, second = match.groups()
            number = (int(first),) if second is None else (int(first), int(second))
            groups.setdefault(f"{prefix}\0{comma}", {})[number] = at
    for group in sorted(groups.values(), key=len, reverse=True):
        order = sorted(group)
        if _shapes(len(order)) and _has_no_gap(order):
            return [group[number] for number in order]
    return []


def _has_no_gap(order: Sequence[tuple[int, ...]]) -> bool:
    width = isqrt(len(order))
    if min(order) not in ((0,), (1,), (0, 0), (1, 1)):
        return False
    if len(order[0]) == 1:
        return all(two[0] - one[0] == 1 for one, two in pairwise(order))
    start = order[0][0]
    return list(order) == [(start + i // width, start + i % width) for i in range(len(order))]


def _shapes(count: int) -> list[tuple[int, ...]]:
    """Return the shapes of square pictures with this number of values: grey, or in three
    colours.
    """
    side = isqrt(count)
    colour = isqrt(count // 3)
    if side * side == count and side >= SMALLEST:
        return [(side, side)]
    return (
        [(3, colour, colour), (colour, colour, 3)]
        if 3 * colour * colour == count and colour >= SMALLEST
        else []
    )


def _channels_last(pictures: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n, H, W), (n, 3, H, W) or (n, H, W, 3) as (n, H, W, C)."""
    if pictures.ndim == 3:
        return pictures[..., None]
    return np.moveaxis(pictures, 1, 3) if pictures.shape[1] == 3 else pictures


def _roughness(pictures: NDArray[np.float64]) -> tuple[float, float]:
    """Return the mean difference of adjacent pixels, down and across, over that of any two
    pixels.
    """
    grid = _channels_last(pictures)
    flat = grid.reshape(len(grid), -1, grid.shape[3])
    random = np.random.default_rng(0)
    usual = np.mean(
        [np.abs(flat - flat[:, random.permutation(flat.shape[1])]).mean() for _ in range(8)]
    )
    usual = max(float(usual), 1e-300)
    return (
        float(np.abs(np.diff(grid, axis=1)).mean()) / usual,
        float(np.abs(np.diff(grid, axis=2)).mean()) / usual,
    )
