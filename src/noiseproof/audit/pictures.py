"""Pictures as the review page and exports show them; and columns of a table that are a picture."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from noiseproof.core.arrays import Floats
from noiseproof.data.images import to_rgb

SMALLEST = 8  # pixels of a side, of columns that are a picture
SAMPLE = 200  # rows that say what is black and what is white
PIXEL = re.compile(r"pix(?:el)?[ _]?(\d+)|(\d+)x(\d+)", re.IGNORECASE)  # pixel0, or 1x1

Picture = tuple[bytes, str]  # the bytes of a file, and its media type


def encode_picture(image: Any, side: int) -> Picture:
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
class PixelColumns:
    """Columns of a table that are the pixels of a square picture in grey, line by line."""

    positions: list[int]
    low: float  # drawn as black
    high: float  # drawn as white

    def picture(self, cells: Sequence[str], side: int) -> Picture | None:
        """Return the picture of a row and its media type; None if one of its pixels is not a
        number.
        """
        from PIL import Image

        try:
            numbers = np.nan_to_num(_numbers(cells, self.positions), nan=self.low)
        except (ValueError, IndexError):
            return None
        width = isqrt(len(numbers))
        scaled = (numbers - self.low) * (255 / max(self.high - self.low, 1e-12))
        grid = scaled.round().clip(0, 255).astype(np.uint8).reshape(width, width)
        return encode_picture(Image.fromarray(grid), side)


def _numbers(cells: Sequence[str], positions: Sequence[int]) -> Floats:
    return np.array([float(cells[k]) for k in positions])


def find_pixels(names: Sequence[str], rows: Any) -> PixelColumns | None:
    """Return the columns that are the pixels of a picture, with the range that some of the rows
    have; None for none.
    """
    positions = pixel_columns(names)
    if not positions or not len(rows):
        return None
    sample = np.unique(np.linspace(0, len(rows) - 1, SAMPLE).astype(int)).tolist()
    try:
        numbers = np.array([_numbers(rows[row], positions) for row in sample])
    except (ValueError, IndexError):
        return None
    if not np.isfinite(numbers).all():
        return None
    return PixelColumns(positions, float(numbers.min(initial=0.0)), float(numbers.max()))


def pixel_columns(names: Sequence[str]) -> list[int]:
    """Return the positions of the columns that are called as the pixels of a square picture, in
    their order: by number (pixel0, pixel1, …), or by line and column (1x1, 1x2, …); none for other
    names.

    >>> pixel_columns(["label", *(f"pixel{i}" for i in range(64))])[:3]
    [1, 2, 3]
    """
    numbered = []
    for at, name in enumerate(names):
        if match := PIXEL.fullmatch(name):
            numbered.append(([int(number) for number in match.groups() if number], at))
    width = isqrt(len(numbered))
    if width < SMALLEST or width**2 != len(numbered):
        return []
    return [at for _, at in sorted(numbered)]
