"""Backbones: published sizes and costs, the papers' initialisations, and the spread of the first
logits.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Iterator
from itertools import pairwise
from math import isfinite, sqrt
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noiseproof.core.grammar import parse_call
from noiseproof.models import (
    INITS,
    MODELS,
    Backbone,
    get_model,
    initial_logit_spread,
    initialise_head,
)
from noiseproof.models.layers import FlatLinear, is_plain

MLP = "mlp:in_features=8,hidden=[16,12]"


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def on_meta(spec: str) -> Backbone:
    """The shapes of a model without its numbers."""
    name, params = parse_call(spec)
    with torch.device("meta"):
        return MODELS.create(name, **params)


# --- Sizes and costs ----------------------------------------------------------------------------

# Parameters with a linear head on the given number of classes.
PUBLISHED = {
    # torchvision's documentation, `num_params` of the weights:
    "resnet18": (1000, 11_689_512),
    "resnet34:stem=imagenet": (1000, 21_797_672),
    "resnet50": (1000, 25_557_032),
    "wrn-101-2": (1000, 126_886_696),
    "vgg19-bn": (1000, 143_678_248),
    # timm and pytorchcv (their inceptionresnetv2 tests this very number):
    "inception-resnet-v2": (1000, 55_843_464),
    # The CIFAR variants of the kuangliu/pytorch-cifar family, as listed in the tables of several
    # repositories:
    "resnet18:stem=cifar": (10, 11_173_962),
    "resnet34": (10, 21_282_122),
    "resnet50:stem=cifar": (10, 23_520_842),
    "vgg19-bn:pool=1,hidden=[]": (10, 20_040_522),
    # 11,171,146 in the same tables, and 2·64 for DivideMix's batch normalisation after the first
    # convolution:
    "preact-resnet18": (10, 11_171_146 + 2 * 64),
    # He et al. (2016), Table 6: 0.46M; the exact number in the tables of ResNet-32 implementations
    # with option A:
    "resnet32": (10, 464_154),
    # Zagoruyko & Komodakis (2016): 36.5M; Oliver et al. (2018): 1.5M; the exact numbers in
    # pytorchcv and flax-cifar:
    "wrn-28-10": (10, 36_479_194),
    "wrn-28-2": (10, 1_467_610),
    # … and the SLN paper's biases, one for each channel that a convolution makes:
    "wrn-28-2-sln": (10, 1_467_610 + 16 + 9 * (32 + 64 + 128)),
    "wrn-28-2-sln:width=10": (10, 36_479_194 + 16 + 9 * (160 + 320 + 640)),  # Chen et al. (2020)
}


def layers(*sizes: tuple[int, int, int], norm: bool) -> int:
    """Parameters of biased layers (in, out, kernel area), each with batch normalisation or not."""
    return sum(a * b * k + b + 2 * b * norm for a, b, k in sizes)


# The rest, from the sizes of the layers: the LN paper's code and C.1, the bias paper's appendix 1,
# APL's and Co-teaching's code.
COUNTED = {
    "lenet5": (
        10,
        layers((1, 6, 25), (6, 16, 25), (16, 120, 25), (120 * 49, 84, 1), (84, 10, 1), norm=False),
    ),
    "cnn4": (10, layers((1, 32, 9), (32, 64, 9), (64 * 49, 128, 1), norm=True) + 1290),
    "cnn8": (
        10,
        layers(
            (3, 64, 9),
            (64, 64, 9),
            (64, 128, 9),
            (128, 128, 9),
            (128, 196, 9),
            (196, 196, 9),
            norm=True,
        )
        + layers((196 * 16, 256, 1), norm=True)
        + 2570,
    ),
    "cnn9": (
        10,
        layers((3, 128, 9), *[(128, 128, 9)] * 2, (128, 256, 9), *[(256, 256, 9)] * 2, norm=True)
        + layers((256, 512, 9), (512, 256, 9), (256, 128, 9), norm=True)
        + 1290,
    ),
    "mlp-2x2000": (2, layers((2, 2000, 1), (2000, 2000, 1), (2000, 2, 1), norm=False)),
    "mlp1024": (
        10,
        layers((3072, 1024, 1), (1024, 512, 1), (512, 512, 1), (512, 10, 1), norm=False),
    ),
}


@pytest.mark.parametrize("spec", [*PUBLISHED, *COUNTED])
def test_parameter_count(spec: str) -> None:
    num_classes, expected = {**PUBLISHED, **COUNTED}[spec]
    backbone = on_meta(spec)
    assert count(backbone) + (backbone.num_features + 1) * num_classes == expected


def test_every_model_is_counted() -> None:
    assert {spec.partition(":")[0] for spec in (*PUBLISHED, *COUNTED)} | {"mlp"} == set(MODELS)


# Multiplications of one image with a head of 1000 classes, in 10⁹: `GFLOPS` in torchvision's
# tables; timm's card of Inception-ResNet-v2 says 13.2. A stride or a pooling in the wrong place
# shows here, not in the parameters.
@pytest.mark.parametrize(
    ("spec", "side", "digits", "expected"),
    [
        ("resnet18", 224, 3, 1.814),
        ("resnet34:stem=imagenet", 224, 3, 3.664),
        ("resnet50", 224, 3, 4.089),
        ("wrn-101-2", 224, 3, 22.753),
        ("vgg19-bn", 224, 3, 19.632),
        ("inception-resnet-v2", 299, 1, 13.2),
    ],
)
def test_cost(spec: str, side: int, digits: int, expected: float) -> None:
    backbone, total = on_meta(spec), 0

    def add(layer: nn.Conv2d | nn.Linear, args: tuple[Tensor], out: Tensor) -> None:
        nonlocal total
        total += out[0].numel() * layer.weight[0].numel()

    for module in backbone.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(add)
    backbone(torch.empty(2, 3, side, side, device="meta"))
    assert round((total + backbone.num_features * 1000) / 1e9, digits) == expected


# The inputs each network is for, and the side of the map that its last convolution makes (None: it
# has none).
INPUTS = {
    "mlp-2x2000": ((2,), None),
    "mlp1024": ((3, 32, 32), None),
    "lenet5": ((1, 28, 28), 7),
    "cnn4": ((1, 28, 28), 14),
    "cnn8": ((3, 32, 32), 8),
    "cnn9": ((3, 32, 32), 2),
    "wrn-28-2": ((3, 32, 32), 8),
    "wrn-28-2-sln": ((3, 32, 32), 8),
    "wrn-28-10": ((3, 32, 32), 8),
    "resnet32": ((3, 32, 32), 8),
    "resnet34": ((3, 32, 32), 4),
    "preact-resnet18": ((3, 32, 32), 4),
    "vgg19-bn": ((3, 64, 64), 4),  # ANIMAL-10N
    "resnet18": ((3, 224, 224), 7),
    "resnet50": ((3, 224, 224), 7),
    "wrn-101-2": ((3, 224, 224), 7),
    "inception-resnet-v2": ((3, 227, 227), 5),  # The NAL paper's WebVision; 8 at 299
}


@pytest.mark.parametrize("name", INPUTS)
def test_feature_shape(name: str) -> None:
    shape, side = INPUTS[name]
    backbone = on_meta(name)
    sides: list[tuple[int, ...]] = []
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(
                lambda module, args, out: sides.append(tuple(out.shape[2:]))
            )
    assert backbone(torch.empty(2, *shape, device="meta")).shape == (2, backbone.num_features)
    assert sides[-1:] == ([] if side is None else [(side, side)])


@pytest.mark.parametrize(
    ("spec", "shape", "num_features"),
    [
        ("lenet5", (3, 32, 32), 84),
        ("lenet5", (1, 30, 30), 84),  # the second pooling rounds up
        ("cnn8", (1, 28, 28), 256),
        ("cnn9", (1, 28, 28), 128),
        ("cnn4", (1, 8, 8), 128),
        ("wrn-28-2", (1, 28, 28), 128),
        ("resnet32", (1, 28, 40), 64),
        ("mlp1024", (1, 28, 28), 512),
        ("mlp:hidden=[]", (5,), 5),
        ("mlp:hidden=7", (5,), 7),
        ("vgg19-bn:pool=1,hidden=[]", (3, 32, 32), 512),
    ],
)
def test_other_input_shapes(spec: str, shape: tuple[int, ...], num_features: int) -> None:
    backbone = get_model(spec, input_shape=shape, generator=seeded())
    assert backbone.training
    assert backbone(torch.randn(3, *shape, generator=seeded())).shape == (3, num_features)
    assert backbone.num_features == num_features


# --- Details of the papers' code ----------------------------------------------------------------


def test_sln_variant() -> None:
    ours, theirs = on_meta("wrn-28-2"), on_meta("wrn-28-2-sln")
    assert all(conv.bias is None for conv in ours.modules() if isinstance(conv, nn.Conv2d))
    assert all(conv.bias is not None for conv in theirs.modules() if isinstance(conv, nn.Conv2d))
    strides = [
        [(b.conv1.stride[0], b.conv2.stride[0]) for b in model.blocks] for model in (ours, theirs)
    ]
    assert strides[0] == [(1, 1)] * 4 + [(2, 1)] + [(1, 1)] * 3 + [(2, 1)] + [(1, 1)] * 3
    assert strides[1] == [stride[::-1] for stride in strides[0]]
    momenta = [m.momentum for m in theirs.modules() if isinstance(m, nn.BatchNorm2d)]
    assert momenta == [0.1] * 24 + [0.9]


def test_wide_block_by_hand() -> None:
    model = get_model("wrn-28-2", generator=seeded()).eval()
    block = model.blocks[4]  # 32 → 64 channels, 32 → 16 pixels
    x = torch.randn(2, 32, 32, 32, generator=seeded(1))
    scale = 1 / sqrt(1 + 1e-5)  # fresh running statistics
    inner = F.conv2d(F.relu(x * scale), block.conv1.weight, stride=2, padding=1)
    expected = F.conv2d(F.relu(inner * scale), block.conv2.weight, padding=1)
    expected = expected + F.conv2d(x, block.shortcut.weight, stride=2)  # past the activation
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize(
    ("name", "stage"), [("wrn-28-2:depth=10", "blocks"), ("resnet18", "layer4")]
)
def test_stages_are_called_so_that_hooks_and_shards_work(name: str, stage: str) -> None:
    calls: list[object] = []
    model = get_model(name, generator=seeded()).eval()
    model.get_submodule(stage).register_forward_hook(lambda *values: calls.append(values))
    model(torch.zeros(1, 3, 32, 32))
    assert len(calls) == 1


def test_preact_block_passes_the_activated_input() -> None:
    model = get_model("preact-resnet18", generator=seeded()).eval()
    block = model.layer1[0]  # same shape: the identity
    x = torch.randn(2, 64, 8, 8, generator=seeded(1))
    block.conv2.weight.data.zero_()
    torch.testing.assert_close(block(x), F.relu(x / sqrt(1 + 1e-5)))


def test_resnet32_pads_with_zeros() -> None:
    model = get_model("resnet32", generator=seeded()).eval()
    block = model.layer2[0]  # 16 → 32 channels
    x = torch.rand(2, 16, 32, 32, generator=seeded(1))
    block.conv2.weight.data.zero_()
    out = block(x)
    assert out.shape == (2, 32, 16, 16)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert not out[:, :8].any() and not out[:, 24:].any()


@pytest.mark.parametrize(("name", "entries"), [("resnet18", 122), ("resnet50", 320)])
def test_parameters_have_torchvisions_names(name: str, entries: int) -> None:
    """torchvision's checkpoints of these have 122 and 320 entries, ``fc.weight`` and ``fc.bias``
    among them.
    """
    state = on_meta(name).state_dict()
    assert len(state) == entries - 2
    shapes = {key: tuple(value.shape) for key, value in state.items()}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["bn1.running_var"] == (64,)
    assert shapes["layer2.0.downsample.0.weight"] == (
        (128, 64, 1, 1) if name == "resnet18" else (512, 256, 1, 1)
    )
    assert "layer2.0.downsample.1.num_batches_tracked" in shapes
    assert shapes["layer4.1.conv2.weight"] == (512, 512, 3, 3)
    assert ("layer1.0.downsample.0.weight" in shapes) == (name == "resnet50")


def test_vgg_has_torchvisions_names() -> None:
    shapes = {key: tuple(value.shape) for key, value in on_meta("vgg19-bn").state_dict().items()}
    assert shapes["features.0.weight"] == (64, 3, 3, 3)
    assert shapes["features.49.weight"] == (512, 512, 3, 3)  # the last convolution of vgg19_bn
    assert shapes["features.50.running_mean"] == (512,)
    assert shapes["classifier.0.weight"] == (4096, 25088)
    assert shapes["classifier.3.weight"] == (4096, 4096)


# --- Initialisation -----------------------------------------------------------------------------


def moments(kind: str, conv: bool, fan_in: int, fan_out: int) -> tuple[float, float]:
    """Standard deviation of a weight and its largest possible size, from the definitions."""
    he = {"uniform": (sqrt(2 / fan_in), sqrt(6 / fan_in)), "in": (sqrt(2 / fan_in), torch.inf)}
    he["out"] = (sqrt(2 / fan_out), torch.inf)
    he["cut"] = (sqrt(2 / fan_in), 2 * sqrt(2 / fan_in) / 0.8796256610342398)
    plain = (1 / sqrt(3 * fan_in), 1 / sqrt(fan_in))
    glorot = (sqrt(2 / (fan_in + fan_out)), sqrt(6 / (fan_in + fan_out)))
    return {
        "pytorch": (plain, plain),
        "xavier": (glorot, glorot),
        "keras-he": (he["cut"], glorot),
        "kaiming-normal": (he["in"], he["in"]),
        "kaiming-out": (he["out"], plain),
        "apl": (he["uniform"], glorot),
        "vgg": (he["out"], (0.01, torch.inf)),
    }[kind][not conv]


@pytest.mark.parametrize("kind", INITS)
def test_initialisation(kind: str) -> None:
    backbone = get_model("cnn4", init=kind, generator=seeded(3))
    head = nn.Linear(128, 300)
    initialise_head(backbone, head, seeded(4))
    conv, dense = backbone.features[4], backbone.hidden[0]  # 32 → 64 channels; 3136 → 128
    for layer, fan_in, fan_out in ((conv, 32 * 9, 64 * 9), (dense, 3136, 128), (head, 128, 300)):
        std, bound = moments(kind, layer is conv, fan_in, fan_out)
        weight = layer.weight.detach()
        draws = weight.numel()
        assert float(weight.std()) == pytest.approx(std, rel=4 / sqrt(draws))
        assert abs(float(weight.mean())) < 4 * std / sqrt(draws)
        if bound < torch.inf:
            assert 0.995 * bound < float(weight.abs().max()) <= bound * (1 + 1e-6)
        if kind in ("xavier", "keras-he", "vgg"):
            assert not layer.bias.any()
        else:
            assert 0.9 / sqrt(fan_in) < float(layer.bias.detach().abs().max()) <= 1 / sqrt(fan_in)


def test_each_paper_keeps_its_initialisation() -> None:
    """README section 3, and the code of the papers where their text says nothing."""
    expected = {
        # bias paper: Xavier-uniform, zero biases
        "mlp": "xavier",
        "mlp-2x2000": "xavier",
        "mlp1024": "xavier",
        "lenet5": "xavier",
        "wrn-28-2": "keras-he",
        "wrn-28-10": "keras-he",  # The LN paper: Keras
        "wrn-28-2-sln": "pytorch",  # The SLN paper: none of its own
        # The bias paper: Kaiming Normal
        "resnet32": "kaiming-normal",
        "resnet34": "kaiming-normal",
        "inception-resnet-v2": "pytorch",  # The NAL paper: none of its own
        "vgg19-bn": "vgg",
        "resnet18": "kaiming-out",
        "resnet50": "kaiming-out",
        "wrn-101-2": "kaiming-out",
        "cnn4": "apl",
        "cnn8": "apl",  # The curriculum paper, through APL
        "cnn9": "pytorch",
        "preact-resnet18": "pytorch",
    }
    assert {name: on_meta(MLP if name == "mlp" else name).init for name in MODELS} == expected


SMALL = [
    MLP,
    "lenet5",
    "cnn4",
    "cnn8",
    "cnn9",
    "wrn-28-2-sln",
    "wrn-28-2",
    "resnet32",
    "preact-resnet18",
    "resnet18",
]


@pytest.mark.parametrize("spec", SMALL)
def test_same_seed_same_weights(spec: str) -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = get_model(spec, generator=seeded(1)).state_dict()
    torch.rand(5)
    state = torch.get_rng_state()
    again = get_model(spec, generator=seeded(1))
    other = get_model(spec, generator=seeded(2)).state_dict()
    assert torch.equal(state, torch.get_rng_state()) and not torch.equal(state, before)
    assert all(torch.equal(first[key], value) for key, value in again.state_dict().items())
    assert not all(torch.equal(first[key], value) for key, value in other.items())
    # Nothing is left as it was: not the weights, not the running statistics.
    for tensor in (*again.parameters(), *again.buffers()):
        tensor.data.fill_(3)
    again.reset_parameters(seeded(1))
    assert all(torch.equal(first[key], value) for key, value in again.state_dict().items())


def test_one_generator_makes_different_models() -> None:
    """Co-teaching's two networks; without a generator, models are equal."""
    generator = seeded()
    a, b = (get_model("lenet5", generator=generator).features[0].weight for _ in range(2))
    assert not torch.equal(a, b)
    c, d = (get_model("lenet5").features[0].weight for _ in range(2))
    assert torch.equal(c, d) and torch.equal(a, c)


def test_default_device_does_not_matter() -> None:
    # what `set_default_device` enters, which PyTorch 2.8 cannot take back
    with torch.device("meta"):
        assert get_model(MLP, generator=seeded()).layers[0][0].weight.device.type == "cpu"


# --- Running ------------------------------------------------------------------------------------

# Small inputs that every layer can still work on, for networks too large to run at their own size
# here.
RUN = {
    "mlp": (8,),
    "wrn-28-10": (3, 16, 16),
    "resnet18": (3, 64, 64),
    "resnet50": (3, 64, 64),
    "wrn-101-2": (3, 64, 64),
    "inception-resnet-v2": (3, 107, 107),
}
# their shapes are tested without numbers, too
LARGE = ("wrn-101-2", "wrn-28-10", "vgg19-bn", "inception-resnet-v2")
MODELS_TO_RUN = [
    pytest.param(name, marks=pytest.mark.slow) if name in LARGE else MLP if name == "mlp" else name
    for name in MODELS
]


@functools.cache
def built(spec: str) -> Backbone:
    """One model for several tests that leave its weights as they are."""
    return get_model(spec, generator=seeded())


@pytest.fixture(scope="module", autouse=True)
def forget() -> Iterator[None]:
    yield
    built.cache_clear()  # 2 GB


def batch(spec: str, size: int = 4, seed: int = 5) -> Tensor:
    """Unit-variance noise."""
    name = spec.partition(":")[0]
    return torch.randn(
        size, *(RUN[name] if name in RUN else INPUTS[name][0]), generator=seeded(seed)
    )


@pytest.mark.parametrize("spec", MODELS_TO_RUN)
def test_gradient_reaches_every_parameter(spec: str) -> None:
    backbone = built(spec).train()
    torch.manual_seed(0)  # dropout
    features = backbone(batch(spec))
    (features * torch.randn(features.shape, generator=seeded(1))).sum().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        if parameter.dim() > 1:  # a bias before batch normalisation has no effect
            assert parameter.grad.any(), name
        parameter.grad = None


@pytest.mark.parametrize(
    "spec", [MLP, "lenet5", "cnn4", "cnn8", "cnn9", "wrn-28-2", "wrn-28-2-sln", "resnet32"]
)
def test_train_and_eval(spec: str) -> None:
    backbone, x = get_model(spec, generator=seeded()), batch(spec, 8)
    buffers = {name: buffer.clone() for name, buffer in backbone.named_buffers()}
    backbone.eval()
    out = backbone(x)
    assert torch.equal(out, backbone(x))
    # rows do not see each other
    torch.testing.assert_close(out[:3], backbone(x[:3]), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in backbone.named_buffers())
    backbone.train()
    torch.manual_seed(0)
    trained = backbone(x)
    norms = [
        module
        for module in backbone.modules()
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    ]
    assert all(int(norm.num_batches_tracked) == 1 for norm in norms)
    assert torch.equal(out, trained) == (not norms)


def test_cnn9_dropout() -> None:
    x = batch("cnn9", 2)
    for dropout in (0.25, 0):
        backbone = get_model("cnn9", dropout=dropout, generator=seeded())
        torch.manual_seed(0)
        assert torch.equal(backbone(x), backbone(x)) == (dropout == 0)


@pytest.mark.parametrize("spec", ["cnn8", "wrn-28-2", "resnet32", "preact-resnet18", "resnet50"])
def test_channels_last(spec: str) -> None:
    backbone, x = get_model(spec, generator=seeded()).eval(), batch(spec, 2)
    expected = backbone(x)
    out = backbone.to(memory_format=torch.channels_last)(
        x.contiguous(memory_format=torch.channels_last)
    )
    torch.testing.assert_close(
        out, expected, rtol=1e-3, atol=1e-4 * float(expected.detach().abs().max())
    )


@pytest.mark.parametrize(
    "spec", [MLP, "cnn8", pytest.param("wrn-28-2", marks=pytest.mark.slow), "resnet32"]
)
def test_compiles_in_one_piece(spec: str) -> None:
    backbone, x = get_model(spec, generator=seeded()).eval(), batch(spec, 2)
    # no graph break, or it raises
    compiled = torch.compile(backbone, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), backbone(x))


# --- The spread of the first logits -------------------------------------------------------------

# The number of classes it is for, inputs, and σ as measured with seed 0 on unit-variance noise.
# Papers the bias paper and the curriculum paper assume σ = 1 for all of them.
SPREAD: dict[str, tuple[int, int, float]] = {
    "lenet5": (10, 256, 0.1482),
    "cnn4": (10, 256, 0.9575),
    "cnn8": (10, 64, 0.9761),
    "cnn9": (10, 16, 0.2874),
    "inception-resnet-v2": (50, 8, 0.2926),
    MLP: (10, 256, 0.3169),
    "mlp-2x2000": (2, 256, 0.0312),
    "mlp1024": (10, 256, 0.7006),
    "resnet18": (10, 32, 0.5332),
    "resnet50": (14, 16, 0.6739),
    "wrn-101-2": (1000, 8, 0.6749),
    "resnet34": (100, 16, 1.5331),
    "resnet32": (10, 64, 2.7218),
    "preact-resnet18": (10, 16, 0.2610),
    "vgg19-bn": (10, 16, 0.3873),
    "wrn-28-2": (10, 32, 0.5412),
    "wrn-28-10": (10, 16, 0.5743),
    "wrn-28-2-sln": (10, 32, 0.2368),
}


@pytest.mark.parametrize("spec", MODELS_TO_RUN)
def test_initial_logit_spread(spec: str) -> None:
    from noiseproof.losses.calibrate import expected_margin, logit_bias

    K, size, expected = SPREAD[spec]
    sigma = initial_logit_spread(built(spec), K, batch(spec, size), seeded(1))
    assert sigma == pytest.approx(expected, rel=0.01)
    # The calibration takes it: a wider spread makes the largest other logit larger, the margin
    # smaller.
    assert (expected_margin(K, sigma=sigma) < expected_margin(K)) == (sigma > 1) or K == 2
    assert isfinite(logit_bias(K, sigma=sigma))


@pytest.mark.parametrize(
    ("spec", "tolerance"), [("mlp1024", 0.02), ("cnn4", 0.02), ("wrn-28-2", 0.02)]
)
def test_spread_predicts_the_margin(spec: str, tolerance: float) -> None:
    """E[Δ] of the network's own logits is that of N(0, σ²) with σ as measured."""
    from noiseproof.core.margin import margins
    from noiseproof.losses.calibrate import expected_margin

    K, backbone, x = 10, built(spec).train(), batch(spec, 64)
    sigma = initial_logit_spread(backbone, K, x, seeded(1), draws=3000)
    features, total = copy.deepcopy(backbone)(x).detach(), 0.0
    head, generator = nn.Linear(backbone.num_features, K), seeded(1)
    for _ in range(300):
        initialise_head(backbone, head, generator)
        total += float(margins(head(features).detach()).mean()) / 300
    assert total == pytest.approx(expected_margin(K, sigma=sigma), abs=tolerance)
    assert sigma > 0.4  # far enough from 0, where every margin is −log(K − 1)


def test_spread_by_theory() -> None:
    """Layer by layer, E[h²] ← fan_in·Var(w)·E[h²]/2 behind a ReLU, exact for wide layers and zero
    biases.
    """
    for spec, sizes in (
        ("mlp1024", (3072, 1024, 512, 512)),
        ("mlp:in_features=500,hidden=[2000,2000]", (500, 2000, 2000)),
    ):
        for K in (10, 100):
            square = 1.0
            for a, b in pairwise(sizes):
                square *= a * 2 / (a + b) / 2
            sigma = sqrt(square * sizes[-1] * 2 / (sizes[-1] + K))
            found = []
            for seed in range(3):
                backbone = get_model(spec, generator=seeded(seed))
                x = torch.randn(64, sizes[0], generator=seeded(9))
                found.append(initial_logit_spread(backbone, K, x, seeded(seed)))
            assert sqrt(sum(f * f for f in found) / len(found)) == pytest.approx(sigma, rel=0.04)


def test_spread_leaves_no_trace() -> None:
    backbone, x = get_model("cnn9", generator=seeded()).eval(), batch("cnn9", 4)
    backbone.features[0].train()  # a mode of its own
    modes = [module.training for module in backbone.modules()]
    before = copy.deepcopy(backbone.state_dict())
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = initial_logit_spread(backbone, 10, x, seeded())
    assert first == initial_logit_spread(backbone, 10, x, seeded())
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [module.training for module in backbone.modules()]
    assert all(torch.equal(before[key], value) for key, value in backbone.state_dict().items())
    assert all(parameter.grad is None for parameter in backbone.parameters())


def test_spread_is_of_batch_statistics() -> None:
    """As in the first training step: scaling the inputs changes nothing behind batch
    normalisation.
    """
    backbone, x = get_model("cnn8", generator=seeded()), batch("cnn8", 16)
    assert initial_logit_spread(backbone.eval(), 10, 5 * x, seeded()) == pytest.approx(
        initial_logit_spread(backbone.train(), 10, x, seeded()), rel=0.01
    )


# --- Names, parameters, errors ------------------------------------------------------------------


def test_spec_and_keywords_are_the_same() -> None:
    a = get_model("wrn-28-2:depth=10,width=1", generator=seeded())
    b = get_model("wrn-28-2", depth=10, width=1, generator=seeded())
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    assert a.num_features == 64


@pytest.mark.parametrize(
    ("spec", "params", "message"),
    [
        ("wrn28-2", {}, "Unknown model 'wrn28-2'. Did you mean 'wrn-28-2'"),
        ("wrn-28-2:depth=27", {}, r"Expected `depth` to be 6n \+ 4 .* got 27"),
        (
            "wrn-28-2:stride_on=third",
            {},
            "Expected `stride_on` to be one of first, second, got 'third'",
        ),
        ("wrn-28-2:width=2", {"width": 3}, "given both in 'wrn-28-2:width=2' and as keywords"),
        ("resnet50:stem=small", {}, "Expected `stem` to be one of imagenet, cifar, got 'small'"),
        ("resnet32:init=magic", {}, "Expected `init` to be one of pytorch, xavier, .* got 'magic'"),
        (
            "mlp:in_features=3,hidden=[8,0]",
            {},
            "Expected `hidden` to be an integer of at least 1, got 0",
        ),
        (
            "cnn8",
            {"input_shape": (12,)},
            r"Expected inputs of shape \(C, H, W\) for the model 'cnn8', got \(12,\)",
        ),
        (
            "cnn8:in_channels=1",
            {"input_shape": (3, 32, 32)},
            r"Expected in_channels=3 for inputs of shape .* got 1",
        ),
        (
            "cnn8",
            {"input_shape": (3, 32, 48)},
            r"Expected square images for the model 'cnn8', got \(3, 32, 48\)",
        ),
        (
            "cnn8",
            {"in_channels": 0},
            "Expected `in_channels` to be an integer of at least 1, got 0",
        ),
        (
            "cnn8",
            {"input_shape": (3, 4, 4)},
            "Expected `image_size` to be an integer of at least 8, got 4",
        ),
        (
            "cnn9",
            {"input_shape": (3, 16, 16)},
            r"'cnn9' cannot take inputs of shape \(3, 16, 16\).*Resize the images",
        ),
        ("inception-resnet-v2", {"input_shape": (3, 32, 32)}, "cannot take inputs of shape"),
        ("timm", {}, "Expected the name of a model after 'timm:'"),
    ],
)
def test_errors(spec: str, params: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_model(spec, **params)


def test_unknown_parameter() -> None:
    with pytest.raises(
        TypeError, match="parameters of the model 'cnn9': in_channels, dropout, init; got 'depth'"
    ):
        get_model("cnn9:depth=3")
    with pytest.raises(TypeError, match="'in_features' is missing"):
        get_model("mlp:hidden=[3]")
    with pytest.raises(TypeError, match="Expected the name or spec of a model, got MLP"):
        get_model(built(MLP))


# --- timm ---------------------------------------------------------------------------------------


class StubModel(nn.Module):
    """A model with timm's interface: ``num_features`` features, or ``head_hidden_size`` where its
    head has layers.
    """

    def __init__(
        self, in_chans: int, num_classes: int, num_features: int, head_hidden_size: int | None
    ) -> None:
        super().__init__()
        self.num_features, self.num_classes = num_features, num_classes
        if head_hidden_size is not None:
            self.head_hidden_size = head_hidden_size
        self.conv = nn.Conv2d(in_chans, head_hidden_size or num_features, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """timm as far as ``create_model`` goes; the calls it got."""
    calls: list[dict[str, object]] = []

    def create_model(
        model_name: str,
        pretrained: bool = False,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        **kwargs: object,
    ) -> StubModel:
        calls.append(
            {
                "model_name": model_name,
                "pretrained": pretrained,
                "num_classes": num_classes,
                **kwargs,
            }
        )
        # timm 1.0's MobileNetV3 has 960 features, 1280 behind its head's hidden layer; 0.9 lacks
        # `head_hidden_size`.
        hidden = {"mobilenetv3_large_100": 1280, "resnet50.a1_in1k": 2048}.get(model_name)
        model = StubModel(in_chans, num_classes, 960 if hidden == 1280 else 2048, hidden)
        if pretrained:
            nn.init.constant_(model.conv.weight, 0.5)
        return model

    module = ModuleType("timm")
    module.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", module)
    return calls


def test_timm(timm: list[dict[str, object]]) -> None:
    state = torch.get_rng_state()
    backbone = get_model(
        "timm:resnet50.a1_in1k,pretrained=true", input_shape=(1, 16, 16), drop_path_rate=0.1
    )
    expected = {
        "model_name": "resnet50.a1_in1k",
        "pretrained": True,
        "num_classes": 0,
        "drop_path_rate": 0.1,
    }
    assert timm == [expected]
    assert isinstance(backbone, Backbone) and backbone.num_features == 2048
    assert backbone(torch.zeros(2, 1, 16, 16)).shape == (2, 2048)
    assert bool((backbone.model.conv.weight == 0.5).all())
    assert get_model("timm:mobilenetv3_large_100").num_features == 1280
    assert get_model("timm:old").num_features == 2048
    assert torch.equal(state, torch.get_rng_state())


def test_timm_draws_from_the_generator(timm: list[dict[str, object]]) -> None:
    a, b, c = (
        get_model("timm:resnet18", generator=seeded(seed)).model.conv.weight for seed in (0, 0, 1)
    )
    assert torch.equal(a, b) and not torch.equal(a, c)
    backbone = get_model("timm:resnet18", generator=seeded(1))
    backbone.reset_parameters(seeded(0))
    assert torch.equal(backbone.model.conv.weight, a)
    assert not timm[0]["pretrained"]
    assert 0 < initial_logit_spread(
        backbone, 10, torch.randn(4, 3, 8, 8, generator=seeded()), seeded()
    )


def test_timm_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        ModuleNotFoundError, match="'timm:resnet50' needs timm, which is not installed. Install it"
    ):
        get_model("timm:resnet50")


# --- Layers of ours -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lenet5", "wrn-28-2:depth=10"])
def test_weights_are_drawn_alike_however_they_lie(name: str) -> None:
    plain, last = (get_model(name, generator=seeded(1)) for _ in range(2))
    last = last.to(memory_format=torch.channels_last)
    for network in (plain, last):
        network.reset_parameters(seeded(2))
    for (key, one), other in zip(
        plain.state_dict().items(), last.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), key


@pytest.mark.parametrize("last", [False, True])
def test_a_linear_layer_of_images_is_one_of_flattened_images(last: bool) -> None:
    layer = FlatLinear(3, 4, 5)
    x = torch.randn(2, 3, 4, 4, generator=seeded())
    expected = F.linear(x.flatten(1), layer.weight.flatten(1), layer.bias)
    if last:
        layer, x = (
            layer.to(memory_format=torch.channels_last),
            x.contiguous(memory_format=torch.channels_last),
        )
    torch.testing.assert_close(layer(x), expected)


def test_which_convolutions_our_kernels_know() -> None:
    assert is_plain(nn.Conv2d(4, 4, 3, padding=1)) and is_plain(nn.Conv2d(4, 8, 5, stride=2))
    others: list[dict[str, Any]] = [
        {"groups": 2},
        {"dilation": 2},
        {"padding": "same"},
        {"padding": (1, 0)},
        {"stride": (2, 1)},
        {"stride": 3},
        {"padding": 1, "padding_mode": "reflect"},
    ]
    assert not any(is_plain(nn.Conv2d(4, 4, 3, **options)) for options in others)
