"""Features of pictures without labels: from their own patches, or from a frozen backbone of timm."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.core.progress import Progress
from noiseproof.data.augment import IMAGENET
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.data.images import to_rgb
from noiseproof.models import get_model

PATCH, STRIDE, SMALLEST = 6, 2, 16  # pixels; a smaller picture is its own feature vector
FIT_IMAGES, PATCHES, BLOCK = 5_000, 50_000, 256


class PatchFeatures:
    """Similarity of each quarter of a picture to typical patches of all pictures; learned without labels.

    Patches of 6 × 6 pixels are scaled to unit contrast and whitened, k-means finds ``centres`` typical ones, and a
    patch activates centre k by max(0, mean distance − distance to k), averaged over each quarter (Coates, Ng and Lee,
    AISTATS 2011). Brightness and colour, which the patches lack, are added as a picture of 4 × 4 pixels with a quarter
    of their total variance. All is projected onto its ``dim`` principal axes. Weaker than a pretrained backbone, much
    stronger than pixels.
    """

    def __init__(self, images: Tensor, *, centres: int = 400, dim: int = 256, seed: int = 0) -> None:  # (N, C, H, W)
        generator = derive_generator(seed)
        sample = images[shuffled(len(images), generator)[:FIT_IMAGES]]
        patches = self._patches(sample[: 4 * PATCHES // self._count(images)]).flatten(0, 1)
        patches = patches[shuffled(len(patches), generator)[:PATCHES]]  # (P, D)
        self.mean = patches.mean(0)
        covariance = (patches - self.mean).T @ (patches - self.mean) / len(patches)
        values, axes = torch.linalg.eigh(covariance)
        self.whitening = axes @ torch.diag((values + 0.1).rsqrt()) @ axes.T  # zero-phase; 0.1 keeps noise small
        self.centres = self._kmeans(patches, min(centres, len(patches)), generator)
        self.colour = 1.0
        pooled = torch.cat([self._pool(block) for block in torch.split(sample, BLOCK)])
        texture, colour = (float(part.var(0).sum()) for part in pooled.tensor_split([4 * len(self.centres)], 1))
        self.colour = (texture / colour / 4) ** 0.5 if texture > 0 and colour > 0 else 1.0
        pooled[:, 4 * len(self.centres) :] *= self.colour
        self.pooled_mean = pooled.mean(0)
        _, spread, directions = torch.linalg.svd(pooled - self.pooled_mean, full_matrices=False)
        # The later axes of few pictures are noise, which the scaling below would amplify.
        dim = min(dim, max(8, len(sample) // 4), int((spread > 1e-4 * spread[0]).sum()))
        if dim == 0 or bool((sample == sample[0]).all()):  # rounding may leave an axis for equal pictures
            raise ValueError(
                f"Expected pictures that differ, got {len(sample)} that all look the same. Check the files, or pass "
                "other features as `embeddings`."
            )
        # Half-way to unit variance on each axis: best for linear models and neighbours together (docs/audit.md).
        self.axes = directions[:dim].T / (spread[:dim] * spread[0] / len(pooled)).sqrt()

    @staticmethod
    def _count(images: Tensor) -> int:
        height, width = ((side - PATCH) // STRIDE + 1 for side in images.shape[2:])
        return int(height * width)

    def _patches(self, images: Tensor) -> Tensor:
        """Return (B, patches, D), each with mean 0 and unit contrast."""
        patches = F.unfold(images.float(), PATCH, stride=STRIDE).transpose(1, 2)
        patches = patches - patches.mean(2, keepdim=True)
        # 10: the contrast, in grey levels squared, below which a patch counts as uniform
        return patches / (patches.square().mean(2, keepdim=True) + 10).sqrt()

    def _kmeans(self, patches: Tensor, count: int, generator: torch.Generator) -> Tensor:
        white = (patches - self.mean) @ self.whitening
        centres: Tensor = white[shuffled(len(white), generator)[:count]].clone()
        for _ in range(10):
            nearest = (white @ centres.T - centres.square().sum(1) / 2).argmax(1)
            counts = torch.bincount(nearest, minlength=count)
            sums = torch.zeros_like(centres).index_add_(0, nearest, white)
            centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
        return centres

    def _pool(self, images: Tensor) -> Tensor:
        """Return (B, 4 · centres + 16 · C)."""
        white = (self._patches(images) - self.mean) @ self.whitening  # (B, P, D)
        squares = white.square().sum(2, keepdim=True) - 2 * white @ self.centres.T + self.centres.square().sum(1)
        distance = squares.clamp(min=0).sqrt()  # (B, P, centres)
        activation = (distance.mean(2, keepdim=True) - distance).clamp(min=0)
        height = (images.shape[2] - PATCH) // STRIDE + 1
        grid = activation.transpose(1, 2).unflatten(2, (height, -1))
        small = F.adaptive_avg_pool2d(images.float(), 4).flatten(1)
        return torch.cat([F.adaptive_avg_pool2d(grid, 2).flatten(1), self.colour * small], 1)

    def encode(self, images: Tensor) -> Tensor:
        """Return (N, dim) float32."""
        return torch.cat([(self._pool(block) - self.pooled_mean) @ self.axes for block in torch.split(images, BLOCK)])


def picture_features(pictures: Tensor, readable: NDArray[np.bool_], seed: int) -> NDArray[np.float32]:
    """Return features of uint8 pictures (N, C, H, W), of small ones the pixels, with unit spread all together."""
    if min(pictures.shape[2:]) < SMALLEST:
        pixels = pictures.flatten(1).float()
        return ((pixels - pixels.mean(0)) / pixels.std(0).square().mean().sqrt().clamp(min=1e-6)).numpy()
    return PatchFeatures(pictures[torch.from_numpy(readable)], seed=seed).encode(pictures).numpy()


def backbone_features(spec: str, read: Callable[[int], Tensor], count: int, progress: Progress | None = None) -> Tensor:
    """Return features (N, F) of ``count`` pictures from a frozen timm backbone; ``read(i)`` is uint8 (3, S, S)."""
    if not spec.startswith("timm:"):
        raise ValueError(
            f"Expected `backbone` to be timm:NAME, a model with pretrained weights, got {spec!r}. Leave it out for "
            "features without weights, or pass other features as `embeddings`."
        )
    model = get_model(spec if "pretrained=" in spec else f"{spec},pretrained=true").eval()
    blocks = []
    with torch.inference_mode():
        for start in range(0, count, 32):
            images = torch.stack([read(i) for i in range(start, min(start + 32, count))])
            blocks.append(model(IMAGENET.apply(images, torch.empty(len(images), 0))).float())
            if progress is not None:
                progress("looking at pictures", min(start + 32, count), count)
    return torch.cat(blocks).clone()


def encode_picture(image: Any, side: int) -> tuple[bytes, str]:
    """Return a PIL image as a new file of at most ``side`` pixels, without metadata, and its media type."""
    image = to_rgb(image)  # the reviewer sees what the audit saw
    image.thumbnail((side, side))
    file, is_small = io.BytesIO(), max(image.size) <= 64
    image.save(file, "PNG" if is_small else "JPEG", **({"optimize": True} if is_small else {"quality": 85}))
    return file.getvalue(), "image/png" if is_small else "image/jpeg"
