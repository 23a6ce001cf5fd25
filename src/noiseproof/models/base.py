"""What every backbone shares: the registry, the contract, the papers' initialisations, and the
spread of the logits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn import init
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from noiseproof.core.checks import check_count, check_word
from noiseproof.core.registry import Registry

Fill = Callable[..., Tensor]  # fills a weight in place, with generator=…

uniform: Fill = partial(init.kaiming_uniform_, a=sqrt(5))  # U(±1/√fan_in), as PyTorch's own layers
he_uniform: Fill = partial(init.kaiming_uniform_, nonlinearity="relu")  # U(±√(6/fan_in))
he_normal: Fill = partial(init.kaiming_normal_, nonlinearity="relu")  # N(0, 2/fan_in)
# N(0, 2/fan_out)
he_normal_out: Fill = partial(init.kaiming_normal_, mode="fan_out", nonlinearity="relu")
glorot: Fill = init.xavier_uniform_  # U(±√(6/(fan_in + fan_out)))
small_normal: Fill = partial(init.normal_, std=0.01)  # N(0, 0.01²)


def he_truncated(weight: Tensor, generator: Generator | None) -> Tensor:
    """N(0, s²) cut at ±2s, where s makes the variance after the cut 2/fan_in: Keras'
    ``he_normal``.
    """
    std = sqrt(2 / weight[0].numel()) / 0.87962566103423978
    return init.trunc_normal_(weight, 0.0, std, -2 * std, 2 * std, generator=generator)


@dataclass(frozen=True)
class Init:
    """How a paper fills convolutions, linear layers (the head's too) and biases (zero, or as
    PyTorch does).
    """

    conv: Fill
    linear: Fill
    zero_bias: bool

    def __call__(self, layer: nn.Conv2d | nn.Linear, generator: Generator | None) -> None:
        # so drawn, however it lies
        filled = torch.empty_like(layer.weight, memory_format=torch.contiguous_format)
        if isinstance(layer, nn.Conv2d):
            self.conv(filled, generator=generator)
        else:
            self.linear(filled.flatten(1), generator=generator)
        layer.weight.data.copy_(filled)
        if layer.bias is not None:
            bound = 0.0 if self.zero_bias else 1 / sqrt(layer.weight[0].numel())
            init.uniform_(layer.bias, -bound, bound, generator=generator)


INITS = {
    "pytorch": Init(uniform, uniform, zero_bias=False),  # SLN (WRN-28-2) and NAL papers, DivideMix
    # bias paper (MLP1024); Keras' default, so LN paper (LeNet-5)
    "xavier": Init(glorot, glorot, zero_bias=True),
    "keras-he": Init(he_truncated, glorot, zero_bias=True),  # The LN paper (WRN-28-2)
    # The bias paper (ResNet-32, ResNet-34)
    "kaiming-normal": Init(he_normal, he_normal, zero_bias=False),
    "kaiming-out": Init(he_normal_out, uniform, zero_bias=False),  # torchvision's ResNets
    # Active Passive Losses, followed by the curriculum paper
    "apl": Init(he_uniform, glorot, zero_bias=False),
    "vgg": Init(he_normal_out, small_normal, zero_bias=True),  # torchvision's VGGs
}


def reset_layers(part: nn.Module, fill: Init, generator: Generator | None) -> None:
    """Draw the weights of all layers in ``part`` again and restart their batch statistics."""
    for layer in part.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            fill(layer, generator)
        elif isinstance(layer, _BatchNorm):
            layer.reset_parameters()


class Backbone(nn.Module):
    """Inputs (B, C, H, W) or (B, D) to features (B, num_features); a head comes on top.

    :func:`noiseproof.models.get_model` builds and initialises one.
    """

    num_features: int
    pretrained: bool = False  # whether its weights are worth keeping as they are (``freeze``)

    def __init__(self, init: str = "pytorch") -> None:
        super().__init__()
        self.init: str = check_word("init", init, INITS)

    def reset_parameters(self, generator: Generator | None) -> None:
        """Draw all weights again from ``generator`` and restart the batch statistics."""
        reset_layers(self, INITS[self.init], generator)

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


MODELS: Registry[Backbone] = Registry("model", returns=Backbone)


def initialise_head(backbone: Backbone, head: nn.Linear, generator: Generator | None) -> None:
    """Fill a last layer as the paper of ``backbone`` does, which need not be as PyTorch does."""
    INITS[backbone.init](head, generator)


@torch.no_grad()
def initial_logit_spread(
    backbone: Backbone,
    num_classes: int,
    inputs: Tensor,
    generator: Generator | None,
    *,
    draws: int = 2000,
) -> float:
    """σ of the logits z_k ~ N(μ, σ²) of an untrained network (bias paper, appendix 3; curriculum
    paper, Eq. 4).

    σ² is the variance over the classes of a row, averaged over ``inputs`` (B, …) and over last
    layers drawn as the paper of ``backbone`` does, with at least ``draws`` classes in all: accurate
    to a share of about 1/√(2·draws). Batch normalisation uses the statistics of ``inputs``;
    ``backbone`` is left as it was.
    """
    check_count("num_classes", num_classes, 2)
    heads = -(-check_count("draws", draws, 1) // num_classes)
    modes = [(module, module.training) for module in backbone.modules()]
    # keeps the running statistics
    buffers = {name: buffer.clone() for name, buffer in backbone.named_buffers()}
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
