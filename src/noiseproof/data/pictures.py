"""Features of pictures: pretrained, or learned from their own patches without labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any, Self, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.arrays import Floats32
from noiseproof.core.checks import check_count
from noiseproof.core.messages import Progress
from noiseproof.data.augment import IMAGENET
from noiseproof.data.base import derive_generator, shuffled, take
from noiseproof.data.features import (
    FEATURES,
    Extractor,
    compute,
    describe,
    digest,
    encode_blocks,
    get_extractor,
)
from noiseproof.data.images import ImageFiles, decode, open_image
from noiseproof.data.sources import PathLike
from noiseproof.models import Backbone, get_model
from noiseproof.models.pretrained import EfficientNetLite0, Weights, loaded_weights

PATCH = 6  # pixels of the side of a patch
STRIDE = 2
SMALLEST = 16  # pixels; a smaller picture is its own feature vector
THUMBNAIL = 32  # pixels of a picture file for patches
FIT_IMAGES = 5_000
PATCHES = 50_000
BLOCK = 256
PER_TASK = 32  # batches that a task on another machine looks at
# pictures whose 1280 features would take half a gigabyte: a sample is encoded twice instead
MANY = 100_000
PRETRAINED = "efficientnet-lite0"  # where installed: measured in docs/audit_features.md
_Encode: TypeAlias = Callable[[Tensor], Tensor]  # uint8 (B, 3, size, size) -> (B, F)


class MainAxes:
    """Projection onto the ``dim`` principal axes of x (N, D), each scaled by 1/√(d_i·d_0).

    d_i is the standard deviation of x along axis i, and d_0 the largest one. Half-way to unit
    variance on each axis is best for linear models and neighbours together
    (docs/audit_features.md).
    """

    def __init__(self, x: Tensor, dim: int) -> None:
        self.mean = x.mean(0)
        _, singular, directions = torch.linalg.svd(x - self.mean, full_matrices=False)
        # The later axes of few pictures are noise, which the scaling below would amplify.
        dim = min(dim, max(8, len(x) // 4), int((singular > 1e-4 * singular[0]).sum()))
        if dim == 0 or bool((x == x[0]).all()):
            raise ValueError(
                f"Expected pictures that differ, got {len(x)} that all look the same. Check the"
                " files, or pass other features as `embeddings`."
            )
        # singular values are √N·d_i
        products = singular[:dim] * singular[0] / len(x)  # d_i·d_0
        self.axes = directions[:dim].T / products.sqrt()  # (D, dim)

    def __call__(self, x: Tensor) -> Tensor:  # (B, D) -> (B, dim)
        projected: Tensor = (x - self.mean) @ self.axes
        return projected


class Pictures:
    """N pictures as bytes (N, C, H, W), or as files that are decoded when they are needed."""

    def __init__(self, source: Tensor | ImageFiles | Sequence[PathLike]) -> None:
        if not isinstance(source, Tensor | ImageFiles):
            source = ImageFiles("", [os.fspath(path) for path in source])
        self.source = source
        if isinstance(source, Tensor) and (source.dim() != 4 or source.dtype is not torch.uint8):
            raise ValueError(
                f"Expected pictures as bytes of shape (N, C, H, W), got {tuple(source.shape)},"
                f" {source.dtype}."
            )

    def __len__(self) -> int:
        return len(self.source)

    def _sample(self) -> range:
        """Up to about a hundred pictures, evenly spread."""
        return range(0, len(self), max(1, len(self) // 100))

    def subset(self, index: Tensor) -> Pictures:
        """Return the pictures ``index``, in that order."""
        source: Any = take(self.source, index)
        return Pictures(source)

    def side(self) -> int:
        """Return the median of the shorter sides of up to a hundred pictures."""
        if isinstance(self.source, Tensor):
            return min(self.source.shape[2:])
        sides = []
        for i in self._sample():
            with open_image(self.source.path(i)) as image:
                sides.append(min(image.size))
        return int(np.median(sides))

    def read(self, start: int, stop: int, size: int) -> Tensor:
        """Return pictures in colour, each scaled to a square, uint8 (B, 3, size, size)."""
        if not isinstance(self.source, Tensor):
            rows = range(start, min(stop, len(self)))
            return torch.stack([decode(self.source.path(i), size, "squash") for i in rows])
        colour = self.source[start:stop, :3]
        if colour.shape[1] < 3:
            colour = colour[:, :1].expand(-1, 3, -1, -1)
        scaled = F.interpolate(
            colour.float(), (size, size), mode="bilinear", align_corners=False, antialias=True
        )
        return scaled.round().clamp(0, 255).to(torch.uint8)

    def has_colours(self) -> bool:
        """Return whether any of up to a hundred pictures is not grey."""
        pictures = torch.cat([self.read(i, i + 1, THUMBNAIL) for i in self._sample()])
        return bool((pictures != pictures[:, :1]).any())

    def thumbnails(self) -> Tensor:
        """Return bytes (N, C, H, W): arrays as they are, files scaled to 32 × 32 pixels."""
        if isinstance(self.source, Tensor):
            return self.source
        return self.read(0, len(self), THUMBNAIL)

    def digest(self) -> str:
        """Return the SHA-256 of the content."""
        if isinstance(self.source, Tensor):
            content = self.source.contiguous().numpy().tobytes()
            return digest([str(tuple(self.source.shape)), content])
        # one file in memory at a time
        return digest(self.source.path(i).read_bytes() for i in range(len(self)))


@FEATURES.register_class("pixels")
class PixelFeatures(Extractor):
    """The pixels, scaled together."""

    kind = "pictures"
    summary = "the pixels"

    def fit(self, rows: Pictures, *, seed: int = 0) -> Self:
        pixels = rows.thumbnails().flatten(1).float()
        self.mean = pixels.mean(0)
        self.spread = pixels.std(0).square().mean().sqrt().clamp(min=1e-6)
        return self

    def encode(self, rows: Pictures, *, progress: Progress | None = None) -> Floats32:
        pixels = rows.thumbnails().flatten(1).float()
        return np.asarray(((pixels - self.mean) / self.spread).numpy())


@FEATURES.register_class("patches")
class PatchFeatures(Extractor):
    """Similarity of each quarter of a picture to typical patches of all pictures, learned without
    labels; files are scaled to 32 × 32 pixels.

    Patches of 6 × 6 pixels are scaled to unit contrast and whitened, k-means finds ``centres``
    typical ones, and a patch activates centre k by max(0, mean distance − distance to k), averaged
    over each quarter (Coates, Ng and Lee, AISTATS 2011). Brightness and colour are added as a
    picture of 4 × 4 pixels with a quarter of their total variance, and all is projected onto its
    ``dim`` principal axes.
    """

    kind = "pictures"
    summary = "similarity to typical patches, learned from the pictures"

    def __init__(self, dim: int = 256, centres: int = 400) -> None:
        self.dim = check_count("dim", dim, 1)
        self.centres = check_count("centres", centres, 1)

    def fit(self, rows: Pictures, *, seed: int = 0) -> Self:
        images = rows.thumbnails()  # (N, C, H, W)
        generator = derive_generator(seed)
        sample = images[shuffled(len(images), generator)[:FIT_IMAGES]]
        patches = self._patches(sample[: 4 * PATCHES // self._count(images)]).flatten(0, 1)
        patches = patches[shuffled(len(patches), generator)[:PATCHES]]  # (P, D)
        self.mean = patches.mean(0)
        covariance = (patches - self.mean).T @ (patches - self.mean) / len(patches)
        values, axes = torch.linalg.eigh(covariance)
        # zero-phase; 0.1 keeps noise small
        self.whitening = axes @ torch.diag((values + 0.1).rsqrt()) @ axes.T
        self.typical = self._kmeans(patches, min(self.centres, len(patches)), generator)
        self.colour = 1.0
        pooled = torch.cat([self._pool(block) for block in torch.split(sample, BLOCK)])
        variance = pooled.var(0)
        texture = float(variance[: 4 * len(self.typical)].sum())
        colour = float(variance[4 * len(self.typical) :].sum())
        if texture > 0 and colour > 0:
            self.colour = (texture / colour / 4) ** 0.5
        pooled[:, 4 * len(self.typical) :] *= self.colour
        if bool((sample == sample[0]).all()):  # rounding may leave an axis for equal pictures
            pooled[:] = pooled[0]
        self.axes = MainAxes(pooled, self.dim)
        return self

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
        squares = (
            white.square().sum(2, keepdim=True)
            - 2 * white @ self.typical.T
            + self.typical.square().sum(1)
        )
        distance = squares.clamp(min=0).sqrt()  # (B, P, centres)
        activation = (distance.mean(2, keepdim=True) - distance).clamp(min=0)
        height = (images.shape[2] - PATCH) // STRIDE + 1
        grid = activation.transpose(1, 2).unflatten(2, (height, -1))
        small = F.adaptive_avg_pool2d(images.float(), 4).flatten(1)
        return torch.cat([F.adaptive_avg_pool2d(grid, 2).flatten(1), self.colour * small], 1)

    def encode(self, rows: Pictures, *, progress: Progress | None = None) -> Floats32:
        blocks = torch.split(rows.thumbnails(), BLOCK)
        return np.asarray(torch.cat([self.axes(self._pool(block)) for block in blocks]).numpy())


def _in_batches(
    encode: _Encode, pictures: Pictures, size: int, batch: int, progress: Progress | None
) -> Floats32:
    """The features of ``pictures`` of ``size`` pixels."""
    return encode_blocks(
        _encode_batch,
        range(0, len(pictures), batch),
        encode,
        pictures,
        size,
        batch,
        total=len(pictures),
        what="looking at pictures",
        progress=progress,
        per_task=PER_TASK,
    )


def _encode_batch(start: int, encode: _Encode, pictures: Pictures, size: int, batch: int) -> Tensor:
    return encode(pictures.read(start, start + batch, size)).float().cpu()


@FEATURES.register_class("efficientnet-lite0")
class EfficientNetFeatures(Extractor):
    """The 1280 pooled features of EfficientNet-Lite0 for pictures of ``size`` pixels, on their
    ``dim`` main axes.
    """

    kind = "pictures"
    summary = "EfficientNet-Lite0, trained on ImageNet"
    packages = EfficientNetLite0.packages
    extra = "vision"

    def __init__(self, size: int = 224, dim: int = 128) -> None:
        self.size = check_count("size", size, 32)
        self.dim = check_count("dim", dim, 1)
        self.axes: MainAxes | None = None

    def weights(self) -> Weights:
        return EfficientNetLite0.weights()

    def fit(self, rows: Pictures, *, seed: int = 0) -> Self:
        self.axes = None
        sample = rows.subset(shuffled(len(rows), derive_generator(seed))[:FIT_IMAGES])
        self.axes = MainAxes(torch.from_numpy(self._features(sample)), self.dim)
        return self

    def fit_encode(
        self, rows: Pictures, *, seed: int = 0, progress: Progress | None = None
    ) -> Floats32:
        if len(rows) > MANY:
            return super().fit_encode(rows, seed=seed, progress=progress)
        self.axes = None
        x = torch.from_numpy(self._features(rows, progress))
        self.axes = MainAxes(x[shuffled(len(x), derive_generator(seed))[:FIT_IMAGES]], self.dim)
        return np.asarray(self.axes(x).numpy())

    def encode(self, rows: Pictures, *, progress: Progress | None = None) -> Floats32:
        assert self.axes is not None, "fit comes first"
        return self._features(rows, progress)

    def _features(self, rows: Pictures, progress: Progress | None = None) -> Floats32:
        """Return (N, 1280), or (N, dim) on the axes once there are any."""
        # Batches that leave the processor's cache are slow: at 224 pixels, 32 pictures take 1.6
        # times as long as 8.
        batch = 8 if self.size > 160 else 16
        return _in_batches(self.encode_batch, rows, self.size, batch, progress)

    def encode_batch(self, pictures: Tensor) -> Tensor:
        features = _efficientnet(self.size)(pictures)
        return features if self.axes is None else self.axes(features)


@cache
def _efficientnet(size: int) -> EfficientNetLite0:
    return EfficientNetLite0(size)


@FEATURES.register_class("timm")
class TimmFeatures(Extractor):
    """Features of a model of timm, pretrained or from a local ``checkpoint_path``, at 224 × 224
    pixels.
    """

    kind = "pictures"
    summary = "a pretrained model of timm, or a local checkpoint"
    packages = ("timm",)
    extra = "timm"
    loads_by_name = True

    def __init__(self, model: str, checkpoint_path: str | None = None) -> None:
        self.model = str(model)
        self.checkpoint_path = checkpoint_path

    @cached_property
    def network(self) -> Backbone:
        weights: dict[str, Any] = {"pretrained": True}
        if self.checkpoint_path:
            weights = {"checkpoint_path": self.checkpoint_path}
        return get_model(f"timm:{self.model}", **weights).eval()

    def weights(self) -> Weights:
        return loaded_weights("timm", self.network)

    def encode(self, rows: Pictures, *, progress: Progress | None = None) -> Floats32:
        return _in_batches(self.encode_batch, rows, 224, 32, progress)

    @torch.inference_mode()
    def encode_batch(self, pictures: Tensor) -> Tensor:
        features: Tensor = self.network(IMAGENET.apply(pictures, torch.empty(len(pictures), 0)))
        return features


def picture_extractor(name: str, pictures: Pictures) -> Extractor:
    """Return the extractor ``name``; ``auto`` is pretrained where the packages are installed, else
    ``patches``.

    Pictures below 16 pixels are seen by their pixels.
    """
    if name == "auto" and pictures.side() < SMALLEST:
        name = "pixels"
    elif name == "auto":
        is_pretrained = EfficientNetFeatures.is_available() and pictures.has_colours()
        name = PRETRAINED if is_pretrained else "patches"
    return get_extractor(name, "pictures")


def encode_pictures(
    pictures: Tensor | ImageFiles | Sequence[PathLike],
    name: str = "auto",
    *,
    seed: int = 0,
    progress: Progress | None = None,
    cache: PathLike | None = None,
) -> tuple[Floats32, dict[str, Any]]:
    """Return features (N, F) of pictures, bytes (N, C, H, W) or paths of files, and a description
    of how they were made.

    Args:
        name: of ``FEATURES``, as ``patches``, ``efficientnet-lite0:size=160`` or
            ``timm:resnet50.a1_in1k``.
        seed: of what is learned from the pictures.
        cache: folder where features are kept and looked for, by a digest of pictures and extractor.
    """
    rows = Pictures(pictures)
    extractor = picture_extractor(name, rows)
    x = compute(extractor, rows, rows.digest, seed=seed, progress=progress, cache=cache)
    return x, describe(extractor)
