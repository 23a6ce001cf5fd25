"""Pictures as the review page and exports show them."""

from __future__ import annotations

import io
from typing import Any

from noiseproof.data.images import to_rgb


def encode_picture(image: Any, side: int) -> tuple[bytes, str]:
    """Return a PIL image as a new file of at most ``side`` pixels, without metadata, and its media type."""
    image = to_rgb(image)  # the reviewer sees what the audit saw
    image.thumbnail((side, side))
    file, is_small = io.BytesIO(), max(image.size) <= 64
    image.save(file, "PNG" if is_small else "JPEG", **({"optimize": True} if is_small else {"quality": 85}))
    return file.getvalue(), "image/png" if is_small else "image/jpeg"
