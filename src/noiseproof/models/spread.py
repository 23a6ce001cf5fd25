"""How far apart the logits of an untrained network lie: what decides whether a bounded loss starts to learn."""

from __future__ import annotations

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn.modules.dropout import _DropoutNd

from noiseproof.core.checks import check_count
from noiseproof.models.base import Backbone, initialise_head


@torch.no_grad()
def initial_logit_spread(
    backbone: Backbone, num_classes: int, inputs: Tensor, generator: Generator | None, *, draws: int = 2000
) -> float:
    """σ of the logits z_k ~ N(μ, σ²) of an untrained network (bias paper, appendix 3; curriculum paper, Eq. 4).

    σ² is the variance over the classes of a row, averaged over ``inputs`` (B, …) and over last layers drawn as the
    paper of ``backbone`` does, with at least ``draws`` classes in all: accurate to a share of about 1/√(2·draws). Batch
    normalisation uses the statistics of ``inputs``; ``backbone`` is left as it was.
    """
    check_count("num_classes", num_classes, 2)
    heads = -(-check_count("draws", draws, 1) // num_classes)
    modes = [(module, module.training) for module in backbone.modules()]
    buffers = {name: buffer.clone() for name, buffer in backbone.named_buffers()}  # keeps the running statistics
    try:
        for module, _ in modes:
            module.training = not isinstance(module, _DropoutNd)
        features: Tensor = functional_call(backbone, buffers, (inputs,))  # (B, num_features)
    finally:
        for module, training in modes:
            module.training = training
    with torch.random.fork_rng(devices=[]):
        head = nn.Linear(backbone.num_features, num_classes, device="cpu")
    variance = 0.0
    for _ in range(heads):
        initialise_head(backbone, head, generator)
        logits = F.linear(features, head.weight.to(features), head.bias.to(features))  # (B, K)
        variance += float(logits.var(1).mean()) / heads
    return sqrt(variance)
