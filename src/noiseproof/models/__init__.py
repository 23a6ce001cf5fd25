"""The backbones of the five papers: inputs to features; a head comes on top."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Generator

from noiseproof.core.checks import check_count
from noiseproof.core.lazy import import_modules
from noiseproof.models.base import INITS, MODELS, Backbone, initial_logit_spread, initialise_head
from noiseproof.models.pretrained import EfficientNetBackbone, TimmBackbone, spelled_out

__all__ = [
    "INITS",
    "MODELS",
    "Backbone",
    "get_model",
    "initial_logit_spread",
    "initialise_head",
]

# Backbones of optional packages, with their weights
WITH_WEIGHTS: dict[str, Callable[..., Backbone]] = {
    "timm": TimmBackbone,
    "efficientnet-lite0": EfficientNetBackbone,
}


def get_model(
    spec: str,
    *,
    generator: Generator | None = None,
    input_shape: Sequence[int] | None = None,
    **params: Any,
) -> Backbone:
    """Build the backbone that ``spec`` names, its weights drawn from ``generator`` as its paper
    draws them.

    Args:
        spec: ``wrn-28-2``, ``resnet50:stem=cifar``, ``mlp:hidden=[64,64],in_features=8``;
            ``timm:NAME`` or ``timm:NAME,pretrained=true`` for any model of timm;
            ``efficientnet-lite0:size=128``, pretrained.
        generator: a generator on the CPU. None is a new one with seed 0: models built so are equal.
        input_shape: shape of one input, (C, H, W) or (D,): sets ``in_channels``, ``image_size`` or
            ``in_features``, and a model that cannot take such inputs raises an error.
        params: parameters of the model, as in ``spec``.

    >>> get_model("mlp:hidden=[64,32]", input_shape=(8,))(torch.zeros(5, 8)).shape
    torch.Size([5, 32])
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    if isinstance(spec, str):
        spec = spelled_out(spec)
    name, values = MODELS.parse(spec, params)
    if input_shape is not None:
        for key, size in _sizes(name, input_shape).items():
            if values.setdefault(key, size) != size:
                raise ValueError(
                    f"Expected {key}={size} for inputs of shape {tuple(input_shape)}, got"
                    f" {values[key]}."
                )
    if "in_channels" in values:
        check_count("in_channels", values["in_channels"], 1)
    if name in WITH_WEIGHTS:
        return WITH_WEIGHTS[name](generator=generator, **values)
    # A layer fills itself from the global generator as it is made: without a trace, and then as the
    # paper does.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        model = MODELS.create(name, **values)
    model.reset_parameters(generator)
    if input_shape is not None:
        _try(model, spec, input_shape)
    return model


def _sizes(name: str, shape: Sequence[int]) -> dict[str, int]:
    known = MODELS.parameters(name) if name not in WITH_WEIGHTS else {"in_channels"}
    if "in_features" in known:
        return {"in_features": prod(shape)}
    if len(shape) != 3:
        raise ValueError(
            f"Expected inputs of shape (C, H, W) for the model {name!r}, got {tuple(shape)}. "
            "Use a model for vectors, such as mlp:hidden=[256,256]."
        )
    if "image_size" in known and shape[1] != shape[2]:
        raise ValueError(
            f"Expected square images for the model {name!r}, got {tuple(shape)}. "
            "Resize them, or choose a model for any shape, such as wrn-28-2."
        )
    return {
        key: size
        for key, size in zip(("in_channels", "image_size"), shape, strict=False)
        if key in known
    }


@torch.no_grad()
def _try(model: Backbone, spec: str, shape: Sequence[int]) -> None:
    try:
        model.eval()(torch.zeros(1, *shape, device="cpu"))
    except RuntimeError as error:
        raise ValueError(
            f"The model {spec!r} cannot take inputs of shape {tuple(shape)}: {error}. "
            "Resize the images, or choose a model for small ones, such as cnn4."
        ) from None
    model.train()


# here, for one needs `get_model`; trees need scikit-learn, slowly
import_modules(__name__, __path__, but=["trees"])
