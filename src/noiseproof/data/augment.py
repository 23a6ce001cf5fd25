"""Batched augmentation on the device.

Every transformation is a pure function of a batch (B, C, H, W), uint8 or floating point in [0, 1],
and of one tensor of uniform random numbers (B, columns), which ``draw`` creates and ``apply`` uses:
a distributed run draws for the global batch, and the images do not depend on the number of
processes. Random numbers of ½ are neutral: no shift, no flip, no rotation, no change of colour;
only what always cuts something out has no neutral ones.

No tensor is read by the host and no constant is copied to the device, so ``apply`` runs inside
``torch.compile(fullgraph=True)`` and inside a CUDA graph.
"""

import math
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.arrays import Array
from noiseproof.core.checks import check_count, check_fields, check_number, count, number, word
from noiseproof.core.grammar import parse_call
from noiseproof.models.pretrained import IMAGENET_MEAN, IMAGENET_STD
from noiseproof.papers import PAPERS, Paper, get_paper

Size = int | tuple[int, int]


def _pair(name: str, size: Size) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    return check_count(f"{name} (height)", height, 1), check_count(f"{name} (width)", width, 1)


class Transform(ABC):
    """A transformation of a batch of images by ``columns`` uniform random numbers per image."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def columns(self) -> int:
        """The number of random numbers for each image; by default none."""
        return 0

    @abstractmethod
    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        """``apply`` without checks."""

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Uniform numbers in [0, 1) for ``n`` images, (n, columns), on the generator's device."""
        if not self.columns:
            return torch.empty(n, 0)
        if generator is None:
            raise TypeError(
                f"Expected a torch.Generator for {type(self).__name__}, got None. The global"
                " generator is never used: pass torch.Generator().manual_seed(seed)."
            )
        return torch.rand(
            n, self.columns, generator=generator, device=generator.device, dtype=torch.float32
        )

    def check(self, images: Tensor) -> None:
        """Refuse what is not a batch of images."""
        if images.dim() != 4:
            raise ValueError(
                f"Expected images of shape (B, C, H, W), got {tuple(images.shape)}. Use"
                " images[None] for one image, images[:, None] for grey images without a channel"
                " axis."
            )
        if images.dtype is not torch.uint8 and not images.is_floating_point():
            raise TypeError(
                f"Expected images of dtype uint8 or floating point, got {images.dtype}."
            )

    def apply(self, images: Tensor, params: Tensor) -> Tensor:
        """Transform ``images`` with random numbers from ``draw``; row i of ``params`` is for image
        i.
        """
        self.check(images)
        if params.shape != (len(images), self.columns):
            raise ValueError(
                f"Expected params of shape {(len(images), self.columns)} for {type(self).__name__},"
                f" got {tuple(params.shape)}. Use draw(n, generator), then the rows of these"
                " images."
            )
        return self.transform(images, params)

    def __call__(self, images: Tensor | Array, generator: torch.Generator | None = None) -> Tensor:
        images = torch.as_tensor(images)
        self.check(images)
        params = self.draw(len(images), generator)
        return self.apply(images, params.to(images.device, non_blocking=True))


def _check_crop(size: int, length: int) -> None:
    if size > length:
        raise ValueError(
            f"Expected a crop no larger than the padded image, got {size} pixels of {length}. Pad"
            " more, or resize first."
        )


@dataclass(frozen=True)
class PadCrop(Transform):
    """Pad every side by ``padding`` pixels of zeros, then crop a random window of ``size`` (by
    default the size of the image).
    """

    padding: int
    size: Size | None = None

    def __post_init__(self) -> None:
        check_count("padding", self.padding, 0)
        if self.size is not None:
            _pair("size", self.size)

    columns = 2

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        B, C, h, w = images.shape
        if self.size is not None:
            h, w = _pair("size", self.size)
        padded = F.pad(images, (self.padding,) * 4).contiguous()
        height, width = padded.shape[2:]
        _check_crop(h, height)
        _check_crop(w, width)
        if not B:
            return images.new_empty(0, C, h, w)
        # Below the number of positions also after rounding, as every float32 below 1 is at most 1 −
        # 2⁻²⁴.
        top = (params[:, 0] * (height - h + 1)).long().view(B, 1, 1)
        left = (params[:, 1] * (width - w + 1)).long().view(B, 1, 1)
        # Every row of a window is a contiguous strip of the padded batch.
        plane = torch.arange(B * C, device=images.device).view(B, C, 1)
        row = torch.arange(h, device=images.device)
        start = ((plane * height + top) + row) * width + left  # (B, C, h)
        return padded.flatten().unfold(0, w, 1).index_select(0, start.flatten()).view(B, C, h, w)


@dataclass(frozen=True)
class Flip(Transform):
    """Mirror left to right with probability ``p``."""

    p: float = number("[0, 1]", 0.5)

    columns = 1

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        chosen = (params < self.p)[..., None, None]  # (B, 1, 1, 1)
        return torch.where(chosen, images.flip(3), images)


@dataclass(frozen=True)
class CenterCrop(Transform):
    """Crop the central window of ``size``."""

    size: Size

    def __post_init__(self) -> None:
        _pair("size", self.size)

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        for dim, size in enumerate(_pair("size", self.size), 2):
            length = images.shape[dim]
            _check_crop(size, length)
            images = images.narrow(dim, round((length - size) / 2), size)
        return images


@dataclass(frozen=True)
class Resize(Transform):
    """Resize the shorter side to ``size``, or to (height, width): bilinear and antialiased, as PIL
    does.
    """

    size: Size

    def __post_init__(self) -> None:
        _pair("size", self.size)

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        size = self.size
        if isinstance(size, int):
            short = min(images.shape[2:])
            size = (size * images.shape[2] // short, size * images.shape[3] // short)
        if size == images.shape[2:]:
            return images
        resized = F.interpolate(_floating(images), size, mode="bilinear", antialias=True)
        return _restore(resized, images)


@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """Crop a box of random area and shape, resize it to ``size``: bilinear and antialiased, as
    torchvision with PIL.

    The box has ``scale`` of the area of the image and a width : height in ``ratio`` (uniform in its
    logarithm): the first of ten draws that fits, else the largest central box. Two batched matrix
    products with PIL's triangle filter as weights resize it; call it outside autocast, which would
    round them to 8 bits.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    _TRIES = 10  # without annotation, which would make it a field
    columns = 2 * _TRIES + 2

    def __post_init__(self) -> None:
        _pair("size", self.size)
        check_number("scale[0]", self.scale[0], "(0, 1]")
        check_number("scale[1]", self.scale[1], f"[{self.scale[0]}, 1]")
        check_number("ratio[0]", self.ratio[0], "(0, inf)")
        check_number("ratio[1]", self.ratio[1], f"[{self.ratio[0]}, inf)")

    def boxes(
        self, params: Tensor, height: int, width: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Top, left, height and width of the box of each image in whole pixels, each (B,)."""
        area, shape, place = torch.split(params, [self._TRIES, self._TRIES, 2], dim=1)
        area = height * width * (self.scale[0] + (self.scale[1] - self.scale[0]) * area)
        low = math.log(self.ratio[0])
        high = math.log(self.ratio[1])
        shape = (low + (high - low) * shape).exp()
        w = (area * shape).sqrt().round()  # (B, tries)
        h = (area / shape).sqrt().round()
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        # One more column for the central box, which always fits.
        w = F.pad(w, (0, 1), value=min(width, round(height * self.ratio[1])))
        h = F.pad(h, (0, 1), value=min(height, round(width / self.ratio[0])))
        first = F.pad(fits.byte(), (0, 1), value=1).argmax(1, keepdim=True)  # (B, 1)
        w = w.gather(1, first)
        h = h.gather(1, first)
        room = torch.cat([height - h, width - w], 1)  # (B, 2)
        start = torch.where(first == self._TRIES, room / 2, place * (room + 1)).floor()
        return start[:, 0], start[:, 1], h[:, 0], w[:, 0]

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        height, width = images.shape[2:]
        size = _pair("size", self.size)
        top, left, h, w = self.boxes(params, height, width)
        pixels = _floating(images)
        rows = _resize_weights(top, h, size[0], height).to(pixels.dtype)
        cols = _resize_weights(left, w, size[1], width).to(pixels.dtype)
        wide = (pixels.flatten(1, 2) @ cols.mT).view(*images.shape[:3], size[1])  # (B, C, H, w')
        return _restore(torch.einsum("bky,bcyx->bckx", rows, wide), images)


def _resize_weights(start: Tensor, length: Tensor, size: int, full: int) -> Tensor:
    """Weights (B, size, full) that resize pixels start … start + length − 1 of a line to ``size``
    pixels.
    """
    start = start[:, None, None]
    scale = (length / size)[:, None, None]
    pixel = torch.arange(full, device=start.device) + 0.5
    # (B, size, 1)
    centre = start + (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    weight = (1 - (pixel - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    weight = weight * ((pixel > start) & (pixel < start + length[:, None, None]))
    return weight / weight.sum(2, keepdim=True)


@dataclass(frozen=True)
class Rotate(Transform):
    """Rotate about the centre by an angle uniform in ±``degrees``, filled with zeros (bias paper).

    The code that the bias paper cites for CIFAR-100 uses the default of torchvision,
    ``interpolation="nearest"``.
    """

    degrees: float = number("[0, 180]", 15.0)
    interpolation: str = word(("bilinear", "nearest"), "bilinear")

    columns = 1

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        height, width = images.shape[2:]
        pixels = _floating(images)
        angle = math.radians(self.degrees) * (2 * params.view(-1, 1, 1) - 1)  # counter-clockwise
        cos = angle.cos()
        sin = angle.sin()
        # Centres of the output pixels, each axis from −1 to 1, and their positions in the input.
        rows = torch.arange(height, device=images.device, dtype=pixels.dtype)[:, None]
        columns = torch.arange(width, device=images.device, dtype=pixels.dtype)
        y = (2 * rows + 1) / height - 1
        x = (2 * columns + 1) / width - 1
        right = cos * x - sin * (height / width) * y
        down = sin * (width / height) * x + cos * y
        grid = torch.stack([right, down], dim=3).to(pixels.dtype)
        rotated = F.grid_sample(pixels, grid, self.interpolation, align_corners=False)
        return _restore(rotated, images)


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue, with random amounts and a random order for
    each image.

    Brightness, contrast and saturation mix the image with black, its mean grey and its grey values
    by a factor uniform in 1 ± the given number, clamped after each step; hue is rotated by a
    uniform ± ``hue`` of the colour circle. The formulas are torchvision's, with one rounding
    at the end. Grey images (C = 1) change brightness and contrast only.
    """

    brightness: float = number("[0, 1]", 0.0)
    contrast: float = number("[0, 1]", 0.0)
    saturation: float = number("[0, 1]", 0.0)
    hue: float = number("[0, 0.5]", 0.0)

    columns = 8  # four for the order, four for the amounts

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        channels = _check_channels(self, images)
        x = _unit(images)
        swing = 2 * params[:, 4:, None, None, None] - 1  # (B, 4, 1, 1, 1) in ±1
        limits = (self.brightness, self.contrast, self.saturation, 0.0)
        factors = torch.stack([1 + limit * swing[:, i] for i, limit in enumerate(limits)], 1)
        factors = factors.to(x.dtype)
        angle = (self.hue * swing[:, 3]).to(x.dtype)
        steps = 2  # grey images have no saturation and no hue
        if channels == 3:
            steps = 4 if self.hue else 3
        # (B, steps): what each step changes, 0 to 3 in the order of ``factors``
        order = params[:, :steps].argsort(dim=1, stable=True)
        chosen = order[..., None] == torch.arange(4, device=x.device)
        chosen = chosen.to(x.dtype)[..., None, None, None]  # (B, steps, 4, 1, 1, 1)
        for step in range(steps):
            # each (B, 1, 1, 1): 1 for the images that this step changes in it, else 0
            _, contrast, saturation, hue = chosen[:, step].unbind(1)
            factor = (chosen[:, step] * factors).sum(1)
            grey = _luma(x)  # (B, 1, H, W)
            # what an image is mixed with: for brightness 0, black
            target = saturation * grey + contrast * grey.mean((2, 3), keepdim=True)
            mixed = torch.lerp(target.expand_as(x), x, factor).clamp(0, 1)
            x = torch.where(hue > 0, _rotate_hue(x, angle), mixed) if steps == 4 else mixed
        if not images.is_floating_point():
            x = x * 255
        return _restore(x, images)


def _check_channels(transform: Transform, images: Tensor) -> int:
    channels = images.shape[1]
    if channels not in (1, 3):
        raise ValueError(
            f"Expected images of 1 or 3 channels for {type(transform).__name__}, got {channels}."
        )
    return channels


def _luma(x: Tensor) -> Tensor:
    if x.shape[1] == 1:
        return x
    r, g, b = torch.split(x, 1, dim=1)
    return (0.299 * r).add(g, alpha=0.587).add(b, alpha=0.114)  # ITU-R 601, as PIL


def _rotate_hue(x: Tensor, angle: Tensor) -> Tensor:
    """Add ``angle`` (1 is a full turn) to the hue in HSV, which keeps the largest and smallest
    value of each pixel.
    """
    high = x.amax(1, keepdim=True)
    low = x.amin(1, keepdim=True)
    chroma = high - low
    r, g, b = torch.split(x, 1, dim=1)
    scale = 1 / chroma.clamp(min=1e-12)  # the hue of a grey pixel has no effect: its chroma is zero
    green_or_blue = torch.where(high == g, (b - r) * scale + 2, (r - g) * scale + 4)
    sixths = torch.where(high == r, (g - b) * scale, green_or_blue)
    # Over the circle each channel is a trapezoid: red about 0, green about ⅓, blue about ⅔. Two
    # more turns keep the phase positive, where frac is the remainder.
    about = torch.arange(6, 3, -1, device=x.device, dtype=x.dtype).view(3, 1, 1) / 3
    phase = (sixths / 6 + angle + about).frac() * 6
    return ((phase - 3).abs() - 1).clamp(0, 1) * chroma + low


# Operations of AutoAugment on whole numbers 0 … 255 in float32, by an amount for each image (B, 1,
# 1, 1), as in PIL: nearest pixels, black from outside the image, blends rounded down.


def _affine(
    x: Tensor, a: Any = 1, b: Any = 0, c: Any = 0, d: Any = 0, e: Any = 1, f: Any = 0
) -> Tensor:
    """Each pixel from the column a·x + b·y + c and the row d·x + e·y + f."""
    height, width = x.shape[2:]
    down = torch.arange(height, device=x.device)[:, None] + 0.5
    right = torch.arange(width, device=x.device) + 0.5
    row = d * right + e * down + f
    col = a * right + b * down + c
    inside: Tensor = (row >= 0) & (row < height) & (col >= 0) & (col < width)  # (B, 1, H, W)
    place = (row.floor() * width + col.floor()).where(inside, 0).long().flatten(2)
    return x.flatten(2).gather(2, place.expand(-1, x.shape[1], -1)).view_as(x) * inside


def _rotate(x: Tensor, v: Tensor) -> Tensor:
    cos = v.deg2rad().cos()
    sin = v.deg2rad().sin()
    h = x.shape[2] / 2
    w = x.shape[3] / 2
    return _affine(x, cos, -sin, w - cos * w + sin * h, sin, cos, h - sin * w - cos * h)


def _blend(x: Tensor, other: Tensor, v: Tensor) -> Tensor:
    return (other + v * (x - other)).clamp(0, 255).floor()


def _grey(x: Tensor) -> Tensor:
    if x.shape[1] == 1:
        return x
    r, g, b = torch.split(x, 1, dim=1)
    return ((19595 * r + 38470 * g + 7471 * b + 32768) / 65536).floor()


def _smooth(x: Tensor) -> Tensor:
    smooth = x.clone()  # keeps its border
    total = F.avg_pool2d(x, 3, 1, divisor_override=1) + 4 * x[..., 1:-1, 1:-1]
    smooth[..., 1:-1, 1:-1] = (total / 13).round()
    return smooth


def _autocontrast(x: Tensor) -> Tensor:
    low = x.amin((2, 3), keepdim=True)
    high = x.amax((2, 3), keepdim=True)
    return torch.where(high > low, ((x - low) * 255 / (high - low).clamp(min=1)).floor(), x)


def _equalize(x: Tensor) -> Tensor:
    flat = x.flatten(2).long()
    counts = flat.new_zeros(*flat.shape[:2], 256).scatter_add_(2, flat, torch.ones_like(flat))
    darker = (counts.cumsum(2) - counts).gather(2, flat)  # how many pixels of the channel are
    # as in PIL: all pixels but the brightest ones, over 255
    step = darker.amax(2, keepdim=True) // 255
    equal = torch.where(step > 0, (step // 2 + darker) // step.clamp(min=1), flat)
    return equal.clamp(max=255).view_as(x).float()


_OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "shear-y": lambda x, v: _affine(x, d=v),
    "translate-x": lambda x, v: _affine(x, c=v),
    "translate-y": lambda x, v: _affine(x, f=v),
    "rotate": _rotate,
    "autocontrast": lambda x, _: _autocontrast(x),
    "invert": lambda x, _: 255 - x,
    "equalize": lambda x, _: _equalize(x),
    "solarize": lambda x, v: torch.where(x < v, x, 255 - x),
    "posterize": lambda x, v: x - x % v.clamp(min=1),  # v = 2⁸⁻ᵇ for the b highest bits
    "contrast": lambda x, v: _blend(x, (_grey(x).mean((1, 2, 3), keepdim=True) + 0.5).floor(), v),
    "color": lambda x, v: _blend(x, _grey(x), v),
    "brightness": lambda x, v: _blend(x, x.new_zeros(()), v),
    "sharpness": lambda x, v: _blend(x, _smooth(x), v),
}
# either way
_PER_LEVEL = {
    "shear-y": 0.03,
    "translate-x": 1.0,
    "translate-y": 1.0,
    "rotate": 3.0,
}
# Cubuk et al. 2019, Table 7: pairs of operations, their probabilities in tenths, and levels.
_CIFAR10_POLICY = """
invert 1 7, contrast 2 6; rotate 7 2, translate-x 3 9; sharpness 8 1, sharpness 9 3;
shear-y 5 8, translate-y 7 9; autocontrast 5 8, equalize 9 2; shear-y 2 7, posterize 3 7;
color 4 3, brightness 6 7; sharpness 3 9, brightness 7 9; equalize 6 5, equalize 5 1;
contrast 6 7, sharpness 6 5; color 7 7, translate-x 5 8; equalize 3 7, autocontrast 4 8;
translate-y 4 3, sharpness 2 6; brightness 9 6, color 2 8; solarize 5 2, invert 0 3;
equalize 2 0, autocontrast 6 0; equalize 2 8, equalize 6 4; color 9 9, equalize 6 6;
autocontrast 8 4, solarize 2 8; brightness 1 3, color 7 0; solarize 4 5, autocontrast 9 3;
translate-y 9 9, translate-y 7 9; autocontrast 9 2, solarize 8 3; equalize 8 8, invert 1 3;
translate-y 7 9, autocontrast 9 1
"""


def _amount(name: str, level: int) -> float:
    if name == "solarize":
        return 256 - int(25.6 * level)
    if name == "posterize":
        return 2.0 ** (4 + int(0.4 * level))
    return _PER_LEVEL[name] * level if name in _PER_LEVEL else 0.1 + 0.18 * level


@dataclass(frozen=True)
class AutoAugment(Transform):
    """One of the 25 pairs of operations found on CIFAR-10, each operation with its probability
    (Cubuk et al. 2019).

    Amounts are as in SOP's released code, for pictures of 32 × 32 pixels. Operations are PIL's
    on 8 bits, to which floats are rounded.
    """

    columns = 5  # which pair; whether its operations happen; their directions

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        _check_channels(self, images)
        x = (images.float() * 255).round() if images.is_floating_point() else images.float()
        which, *drawn = params[..., None, None, None].unbind(1)  # each (B, 1, 1, 1)
        policy = [text.split(",") for text in _CIFAR10_POLICY.split(";")]
        for slot in range(2):
            # by operation, (B, 1, 1, 1): whether it happens to an image, and how much of it
            chosen: dict[str, Any] = {}
            amounts: dict[str, Any] = {}
            for place, operations in enumerate(policy):
                name, tenths, level = operations[slot].split()
                here = ((which * len(policy)).long() == place) & (drawn[slot] < int(tenths) / 10)
                chosen[name] = chosen.get(name, False) | here
                amounts[name] = amounts.get(name, 0) + here * _amount(name, int(level))
            before = x
            sign = 1 - 2 * (drawn[2 + slot] < 0.5).float()
            for name, v in amounts.items():
                if name in _PER_LEVEL:
                    v = v * sign
                result = _OPERATIONS[name](before, v)
                x = torch.where(chosen[name], result, x)
        if images.is_floating_point():
            x = x / 255
        return _restore(x, images)


@dataclass(frozen=True)
class Cutout(Transform):
    """Zeros, after ``Normalise`` the mean colour, in a square about a random pixel (DeVries &
    Taylor 2017).
    """

    size: int = count(1, 16)

    columns = 2

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        cut = []
        for length, u in zip(images.shape[2:], params.unbind(1), strict=True):
            first = (u * length).long()[:, None] - self.size // 2
            offset = torch.arange(length, device=images.device) - first
            cut.append((offset >= 0) & (offset < self.size))
        return images.masked_fill(cut[0][:, None, :, None] & cut[1][:, None, None], 0)


@dataclass(frozen=True)
class Normalise(Transform):
    """(x − mean) / std for each channel of x in [0, 1]; uint8 becomes float32 x / 255 first."""

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"Expected as many means as deviations, got {len(self.mean)} and {len(self.std)}."
            )
        mean = tuple(check_number("mean", value, "(-inf, inf)") for value in self.mean)
        std = tuple(check_number("std", value, "(0, inf)") for value in self.std)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        if images.shape[1] != len(self.mean):
            raise ValueError(
                f"Expected images of {len(self.mean)} channels, as many as means, got"
                f" {images.shape[1]}. Check the order of axes: (B, C, H, W)."
            )
        # In place: images / 255 would need a second buffer.
        out = images.clone() if images.is_floating_point() else images.float().div_(255)
        # By channel with Python numbers: a tensor of constants would have to be copied to the
        # device.
        for channel, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            out[:, channel].sub_(mean).div_(std)
        return out


@dataclass(frozen=True, eq=False)
class Standardise(Transform):
    """(x − mean) / std of each feature of vectors (B, D), clamped to ±10: features may be almost
    constant.
    """

    mean: Tensor
    std: Tensor
    _copies: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(
        default_factory=dict, repr=False
    )

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        x = images if images.is_floating_point() else images.float()
        kind = (x.device, x.dtype)
        if kind not in self._copies:  # a CUDA graph cannot copy from the host in every step
            self._copies[kind] = (self.mean.to(x), self.std.to(x))
        mean, std = self._copies[kind]
        return ((x - mean) / std).clamp(-10, 10)

    def check(self, images: Tensor) -> None:
        if images.dim() < 2 or images.shape[1:] != self.mean.shape:
            raise ValueError(
                f"Expected vectors of shape (B, {', '.join(map(str, self.mean.shape))}), got"
                f" {tuple(images.shape)}. Use x[None] for one vector."
            )


@dataclass(frozen=True)
class Compose(Transform):
    """A sequence of transformations.

    >>> augment = Compose([PadCrop(4), Flip(), Normalise((0.5,), (0.5,))])
    >>> augment(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 1, 8, 8])
    """

    transforms: Sequence[Transform]

    def __post_init__(self) -> None:
        object.__setattr__(self, "transforms", tuple(_flatten(self.transforms)))

    @property
    def columns(self) -> int:
        return sum(transform.columns for transform in self.transforms)

    def transform(self, images: Tensor, params: Tensor) -> Tensor:
        widths = [transform.columns for transform in self.transforms]
        for transform, u in zip(self.transforms, torch.split(params, widths, dim=1), strict=True):
            images = transform.transform(images, u)
        return images


def _flatten(transforms: Iterable[Transform]) -> Iterable[Transform]:
    for transform in transforms:
        if isinstance(transform, Compose):
            yield from transform.transforms
        elif isinstance(transform, Transform):
            yield transform
        else:
            raise TypeError(
                f"Expected transformations of noiseproof.data.augment, got {transform!r}."
            )


def _floating(images: Tensor) -> Tensor:
    return images if images.dtype in (torch.float32, torch.float64) else images.float()


def _unit(images: Tensor) -> Tensor:
    return _floating(images) if images.is_floating_point() else images.float() / 255


def _restore(values: Tensor, images: Tensor) -> Tensor:
    if not images.is_floating_point():
        values = values.round().clamp(0, 255)
    return values.to(images.dtype)


SAME_IMAGES = {"cifar10n": "cifar10", "cifar10h": "cifar10", "cifar100n": "cifar100"}
IMAGENET = Normalise(IMAGENET_MEAN, IMAGENET_STD)
_TRANSFORMS: dict[str, type[Transform]] = {  # as the papers' files name them
    "pad-crop": PadCrop,
    "flip": Flip,
    "resize": Resize,
    "center-crop": CenterCrop,
    "random-resized-crop": RandomResizedCrop,
    "rotate": Rotate,
    "color-jitter": ColorJitter,
    "auto-augment": AutoAugment,
    "cutout": Cutout,
    "normalise": Normalise,
}


def _transformations(recipe: Mapping[str, Any], part: str) -> Iterator[Transform]:
    """The transformations of a part; ``normalise`` is the last one unless it is named."""
    specs = recipe.get(part, ())
    if "normalise" not in specs:
        specs = [*specs, "normalise"]
    for spec in specs:
        name, params = parse_call(spec)
        if name == "normalise":
            params = {"mean": recipe["mean"], "std": recipe["std"]}
        # transformations have a hash
        lists = {key: tuple(value) for key, value in params.items() if isinstance(value, list)}
        yield _TRANSFORMS[name](**params | lists)


@cache
def _recipes() -> dict[tuple[str, str], dict[str, Any]]:
    """The augmentations of papers, and without a paper the usual ones, by paper and dataset."""
    usual = tomllib.loads((files(__package__) / "augmentation.toml").read_text("utf-8"))
    sources = [Paper("", usual), *map(get_paper, PAPERS)]
    return {key: recipe for paper in sources for key, recipe in paper.augmentations.items()}


def strong_augmentation(dataset: str, paper: str | None) -> Compose | None:
    """What ``paper`` applies to a second view of training images, if it is not what it applies to
    the first.
    """
    recipe = _recipes().get((paper or "", SAME_IMAGES.get(dataset, dataset)), {})
    return Compose([*_transformations(recipe, "strong")]) if "strong" in recipe else None


def augmentation(dataset: str, paper: str | None = None, *, train: bool = True) -> Compose:
    """The transformation that ``paper`` applies to ``dataset`` in training, or at test with
    ``train=False``.

    Without a paper it is the usual one: pad 4, crop and flip on CIFAR, random crops of the large
    datasets, and the moments of the dataset. ``noiseproof.papers.get_paper(paper).notes`` has what
    the text of a paper leaves open.

    >>> augmentation("cifar10", "bias").transforms[:2]
    (Flip(p=0.5), PadCrop(padding=4, size=None))
    """
    recipes = _recipes()
    key = (paper or "", SAME_IMAGES.get(dataset, dataset))
    if key not in recipes:
        known = ", ".join(f"{name}@{of}".rstrip("@") for of, name in sorted(recipes))
        raise ValueError(
            f"Expected a dataset with a known augmentation, got {dataset!r} of paper {paper!r}."
            f" There are: {known}. For your own images, write Compose([…, Normalise(mean, std)])."
        )
    part = "train" if train else "test"
    return Compose([*_transformations(recipes[key], part)])
