"""Likelihoods over logits, whose spread a head predicts too: Logistic-Normal (paper 000) and Het (its section 4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from noiseproof.core.checks import check_count, check_flag, check_number
from noiseproof.core.output import Output
from noiseproof.losses.base import Kind, Loss, countable, register
from noiseproof.losses.engine import functional, readable
from noiseproof.losses.logistic_normal import LogisticNormal, negative_log_normal

Covariance = Literal["full", "diagonal", "isotropic", "identity"]
Predict = Literal["classes", "released"]
NEEDS = {"full": {"root"}, "diagonal": {"scale"}, "isotropic": {"scale"}, "identity": set()}
CHUNK = 2**20  # logits of Het in memory at once


def _field(out: Output, name: str, *shapes: tuple[int, ...]) -> Tensor:
    """A field of ``out``, refused where it is missing or would broadcast."""
    field: Tensor | None = getattr(out, name)
    if field is None or field.shape not in shapes:
        got = "none" if field is None else f"shape {tuple(field.shape)}"
        raise ValueError(
            f"Expected an output with `{name}` of shape {' or '.join(map(str, shapes))}, got {got}. "
            f"Use a head that gives it, or a loss with another `covariance`."
        )
    return field
