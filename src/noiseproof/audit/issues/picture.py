"""Pictures that are blank, dark, overexposed, blurred, or of an odd size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from noiseproof.audit.sources.base import AuditData
from noiseproof.core.arrays import Ints
from noiseproof.judge.issues.base import (
    NEEDS_ACTION,
    Bars,
    Finding,
    Findings,
    FoundIssue,
    register_issue,
)

if TYPE_CHECKING:
    from noiseproof.data.rows import Rows
    from noiseproof.judge.evidence.gather import AuditEvidence
    from noiseproof.judge.labelissues import LabelIssues

SIDE = 256  # pixels to which large pictures are reduced
BLANK = 3.0  # deviation of brightness, of 255, below which a picture shows nothing
DARK = 0.2  # of 255: 95 % of a dark picture are below
BRIGHT = 0.85  # and 95 % of a bright one above
BLURRED = 0.08  # sharpness of blurred pictures; sharp ones have 0.1 to 2
LESS = 0.5  # and their share of the usual one
SIZE = 4.0  # factor between the side and the usual one
SHAPE = 2.5  # the same of the ratio of both sides
KINDS = ("blank", "dark", "bright", "blurred", "of an odd size")


@register_issue("picture")
class BadPictures(FoundIssue):
    """Pictures that show nothing or little, by their brightness, sharpness or size.

    Sharpness is the ratio of the deviations of the Laplacian and of the brightness. What more than
    a fifth of the pictures have is usual. The score is 0.5 and the share of the pictures.
    """

    flag = "is_picture_issue"
    badges: ClassVar = {"is_picture_issue": "bad picture"}
    remedy = "Take such pictures again, or leave them out."
    fixes = "Leaves out pictures that are blank, dark, overexposed, blurred or of an odd size."

    @classmethod
    def applies(cls, data: Rows) -> bool:
        return isinstance(data, AuditData) and data.source.is_pictures

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        data = evidence.data
        assert isinstance(data, AuditData)
        rows = np.flatnonzero(data.row >= 0)
        files = [data.source.file(str(id)) for id in data.names[rows]]
        deviation, low, high, sharp, width, height = np.array([_measure(file) for file in files]).T
        known = sharp[(deviation >= BLANK) & (sharp > 0)]
        usual = float(np.median(known)) if len(known) else 0.0
        is_blank = deviation < BLANK
        sides = np.log(width * height) / 2
        ratio = np.log(width / height)
        masks = [
            is_blank,
            ~is_blank & (high < 255 * DARK),
            ~is_blank & (low > 255 * BRIGHT),
            ~is_blank & (sharp < min(BLURRED, LESS * usual)),
            (np.abs(sides - np.median(sides)) > np.log(SIZE))
            | (np.abs(ratio - np.median(ratio)) > np.log(SHAPE)),
        ]
        masks = [mask if mask.mean() <= 0.2 else np.zeros_like(mask) for mask in masks]
        counts = [(kind, int(mask.sum())) for kind, mask in zip(KINDS, masks, strict=True)]
        bars = [("all pictures", len(rows)), *counts]
        for k, (kind, mask) in enumerate(zip(KINDS, masks, strict=True)):
            if mask.any():
                yield Finding(
                    f"{kind} pictures",
                    min(1.0, NEEDS_ACTION + mask.mean()),
                    f"{mask.sum()} of {len(rows)} pictures {'is' if mask.sum() == 1 else 'are'}"
                    f" {kind}, such as {data.names[rows[mask]][0]}.",
                    Bars("pictures", bars, "pictures", (k + 1,)),
                    rows=tuple(data.row[rows[mask]].tolist()),
                )

    def explain(self, data: Rows, rows: Ints) -> list[str]:
        return ["the picture shows little" if odd else "" for odd in self.mask[rows]]


def _measure(path: Any) -> tuple[float, ...]:
    """Deviation, 5th and 95th percentile of brightness, sharpness, and the sides of a picture
    file.
    """
    from noiseproof.data.images import open_image, to_rgb

    with open_image(path) as image:
        width, height = image.size
        image.draft("RGB", (SIDE, SIDE))  # a large JPEG is read at a fraction of its size
        grey = to_rgb(image).convert("L")
    grey.thumbnail((SIDE, SIDE))
    pixels = np.asarray(grey, np.float32)
    deviation = float(pixels.std())
    inner = pixels[1:-1, 1:-1]
    laplacian = (
        4 * inner - pixels[:-2, 1:-1] - pixels[2:, 1:-1] - pixels[1:-1, :-2] - pixels[1:-1, 2:]
    )
    # less the variance of rounded pixels
    variance = max(0.0, float(laplacian.var()) - 20 / 12) if laplacian.size else 0.0
    sharp = variance**0.5 / max(deviation, 1e-6) if laplacian.size else 1.0
    low, high = np.percentile(pixels, [5, 95])
    return deviation, float(low), float(high), sharp, float(width), float(height)
