"""Triton kernels of stacked networks against plain PyTorch, one network after another, in
float64.
"""

from __future__ import annotations

import copy
import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CUDA = torch.cuda.is_available()
HAS_TRITON = importlib.util.find_spec("triton") is not None
here = pytest.mark.skipif(
    not (HAS_TRITON and (CUDA or INTERPRETED)), reason="needs Triton, and a GPU or its interpreter"
)
DEVICE = "cuda" if CUDA and not INTERPRETED else "cpu"

# The interpreter's product takes bfloat16 for the integers of its bits.
PRODUCTS = (
    [torch.float32, torch.float16]
    if INTERPRETED
    else [torch.float32, torch.float16, torch.bfloat16]
)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# networks, rows of each, inputs, outputs, height, width, kernel, stride, padding, bias
CONVOLUTIONS = {
    "lenet-1": (2, 3, 1, 6, 12, 11, 5, 1, 2, True),
    "lenet-2": (2, 3, 6, 16, 9, 9, 5, 1, 2, True),
    "lenet-3": (1, 2, 16, 120, 7, 7, 5, 1, 2, True),
    "valid": (2, 2, 6, 16, 9, 8, 5, 1, 0, True),
    "stem": (3, 2, 3, 16, 9, 7, 3, 1, 1, False),
    "same": (2, 3, 32, 32, 7, 9, 3, 1, 1, False),
    "wide": (1, 2, 64, 160, 5, 5, 3, 1, 1, True),
    "halving": (2, 3, 32, 64, 8, 8, 3, 2, 1, True),
    "halving-odd": (2, 3, 16, 32, 9, 7, 3, 2, 1, False),
    "shortcut": (2, 3, 32, 64, 8, 8, 1, 2, 0, False),
    "shortcut-odd": (2, 3, 16, 32, 7, 9, 1, 2, 0, True),
    "point": (2, 3, 16, 32, 5, 5, 1, 1, 0, False),
    # which hopper.py's kernels compute, where there are any
    "side 32": (2, 1, 16, 32, 32, 32, 3, 1, 1, True),
    "side 16": (3, 2, 64, 64, 16, 16, 3, 1, 1, True),
    "side 8": (2, 5, 64, 32, 8, 8, 3, 1, 1, False),
    "side 4": (2, 19, 32, 64, 4, 4, 3, 1, 1, True),
    "256 outputs": (2, 2, 64, 256, 4, 4, 3, 1, 1, False),
    "256 back": (2, 2, 256, 64, 4, 4, 3, 2, 1, False),
    "256 inputs": (2, 1, 256, 64, 8, 9, 3, 1, 1, False),
    "linear": (2, 37, 1100, 10, 1, 1, 1, 1, 0, True),  # longer sums than convolutions have
    "hidden": (2, 33, 1176, 84, 1, 1, 1, 1, 0, True),
    "long": (2, 5, 2, 3, 29, 29, 1, 1, 0, True),  # more rows than one part of the sums has
}
# networks, shape of each one's rows
NORMS = {
    "images": (2, (3, 6, 9, 7)),
    "wide": (2, (5, 160, 3, 3)),
    "vectors": (3, (37, 20)),
    "long": (2, (9, 32, 17, 17)),
    "very long": (1, (16_500, 128)),  # more parts of the sums than are added at a time
}


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def close(value: Tensor, exact: Tensor, dtype: torch.dtype, terms: int = 1) -> bool:
    """Within the rounding of a result of this dtype, next to the largest; float32 sums err with
    √terms.
    """
    error = float(
        (value.detach().double() - exact.detach()).abs().max() / exact.detach().abs().max()
    )
    nearest = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 1e-6 * terms**0.5}[
        dtype
    ]
    # the interpreter cuts off where a GPU rounds
    return error < (2 if INTERPRETED else 1.1) * nearest


@pytest.fixture(autouse=True)
def _exact_products() -> None:
    torch.backends.cudnn.allow_tf32 = False


def convolve(
    name: str, dtype: torch.dtype, *, members: slice = slice(None), last: bool = True
) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients of x, weight, bias, from the kernels and from float64."""
    from noiseproof.accelerate.layer_kernels import stacked_conv

    s, b, i, o, h, w, k, stride, padding, has_bias = CONVOLUTIONS[name]
    x = normal(s, b, i, h, w, seed=0, dtype=dtype)[members].flatten(0, 1).clone()
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    weight = normal(s, o, k, k, i, seed=1)[members] / (k * k * i) ** 0.5
    bias = normal(s, o, seed=2)[members] if has_bias else None
    inputs = [value for value in (x, weight, bias) if value is not None]
    for value in inputs:
        value.requires_grad_()
    out = stacked_conv(x, weight, bias, stride, padding)
    grad = normal(s, b, *out.shape[1:], seed=3, dtype=dtype)[members].flatten(0, 1)
    found = [out, *torch.autograd.grad(out, inputs, grad)]
    exact = [value.detach().double().requires_grad_() for value in inputs]
    rounded = exact[1] + (weight.to(dtype).double() - exact[1]).detach()
    each = [
        F.conv2d(
            rows, rounded[n].permute(0, 3, 1, 2), exact[2][n] if has_bias else None, stride, padding
        )
        for n, rows in enumerate(exact[0].unflatten(0, (len(weight), -1)))
    ]
    reference = torch.cat(each)
    return found, [reference, *torch.autograd.grad(reference, exact, grad.double())]


@here
@pytest.mark.parametrize("dtype", PRODUCTS, ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_those_of_each_network(name: str, dtype: torch.dtype) -> None:
    found, exact = convolve(name, dtype)
    assert [value.dtype for value in found] == [dtype, dtype, torch.float32, torch.float32][
        : len(found)
    ]
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    for label, value, reference in zip(("out", "x", "weight", "bias"), found, exact, strict=False):
        assert value.shape == reference.shape
        # The gradients of parameters are float32 sums of exact products, whatever the inputs.
        precision = torch.float32 if label in ("weight", "bias") else dtype
        assert close(value, reference, precision, terms=64), label


@here
def test_rows_need_not_have_their_channels_last() -> None:
    for one, other in zip(
        *(convolve("same", torch.float32, last=last)[0] for last in (True, False)), strict=True
    ):
        assert torch.equal(one, other)


@here
@pytest.mark.parametrize("name", ["lenet-1", "halving", "stem", "long", "side 16", "side 4"])
def test_a_convolution_does_not_depend_on_the_other_networks(name: str) -> None:
    together, alone = (
        convolve(name, PRODUCTS[-1], members=each)[0] for each in (slice(None), slice(1, 2))
    )
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.reshape(CONVOLUTIONS[name][0], -1)[1], other.flatten())


@here
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 6, 7, 5), (2, 16, 8, 8), (5, 1, 1, 9)], ids=str)
def test_pooling_is_pytorchs(shape: tuple[int, ...], dtype: torch.dtype, ceil: bool) -> None:
    from noiseproof.accelerate.layer_kernels import pool

    x = normal(*shape, seed=0, dtype=dtype).mul(2).round()  # with ties
    if not ceil and min(shape[2:]) < 2:
        pytest.skip("nothing would be left")
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    expected = F.max_pool2d(x.float(), 2, ceil_mode=ceil)
    out = pool(x, ceil)
    grad = normal(*out.shape, seed=1, dtype=dtype)
    assert out.dtype is dtype and torch.equal(out.float(), expected)
    (found,) = torch.autograd.grad(out, x, grad)
    (reference,) = torch.autograd.grad(expected, x, grad.float())
    assert torch.equal(found.float(), reference.float())


@here
def test_pooling_hides_no_nan() -> None:
    from noiseproof.accelerate.layer_kernels import pool

    x = torch.zeros(1, 1, 4, 4, device=DEVICE)
    x[0, 0, 1, 2] = torch.nan
    assert pool(x, False).isnan().nonzero().tolist() == [[0, 0, 0, 1]]


def normalise(
    name: str,
    dtype: torch.dtype,
    relu: bool,
    *,
    members: slice = slice(None),
    mean: float = 0.5,
    shortcut: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """Output, gradients of x, weight, bias (and of the shortcut), running statistics, by kernels
    and in float64.
    """
    from noiseproof.accelerate.layer_kernels import stacked_norm

    s, shape = NORMS[name]
    c, momentum, eps = shape[1], 0.1, 1e-5
    spread = (
        torch.logspace(-1, 1, c, device=DEVICE).view(c, *(1 for _ in shape[2:]))
        if mean < 100
        else 1.0
    )
    # aligned like a whole one
    x = (normal(s, *shape, seed=0) * spread + mean).to(dtype)[members].flatten(0, 1).clone()
    x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    weight, bias = normal(s, c, seed=1)[members], normal(s, c, seed=2)[members]
    running = [normal(s, c, seed=3)[members].clone(), normal(s, c, seed=4)[members].exp()]
    inputs = [x, weight, bias] + (
        [2 * normal(s, *shape, seed=6, dtype=dtype)[members].flatten(0, 1)] if shortcut else []
    )
    exact = [value.detach().double().requires_grad_() for value in inputs]
    exact_running = [value.double() for value in running]
    inputs = [value.requires_grad_() for value in inputs]
    values = x, weight, bias, *running, momentum, eps, relu, *inputs[3:]
    grad = normal(s, *shape, seed=5, dtype=dtype)[members].flatten(0, 1)
    out = stacked_norm(*values)
    found = [out, *torch.autograd.grad(out, inputs, grad), *running]
    each = [
        F.batch_norm(
            rows, *(r[n] for r in exact_running), exact[1][n], exact[2][n], True, momentum, eps
        )
        for n, rows in enumerate(exact[0].unflatten(0, (len(weight), -1)))
    ]
    reference = sum(exact[3:], torch.cat(each))
    reference = F.relu(reference) if relu else reference
    return found, [reference, *torch.autograd.grad(reference, exact, grad.double()), *exact_running]


@here
@pytest.mark.parametrize("shortcut", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["images", "wide", "vectors", "long"])
def test_normalisations_are_those_of_each_network(
    name: str, dtype: torch.dtype, relu: bool, shortcut: bool
) -> None:
    found, exact = normalise(name, dtype, relu, shortcut=shortcut)
    labels = [
        "out",
        "x",
        "weight",
        "bias",
        *(["shortcut"] if shortcut else []),
        "running_mean",
        "running_var",
    ]
    for label, value, reference in zip(labels, found, exact, strict=True):
        expected = dtype if label in ("out", "x", "shortcut") else torch.float32
        assert value.dtype is expected and close(value, reference, expected, terms=64), label


@here
def test_a_variance_far_below_the_square_of_the_mean_is_exact() -> None:
    found, exact = normalise("very long", torch.float32, False, mean=1e3)
    variance, reference = (
        values[-1] - normal(1, 128, seed=4).exp().double() * 0.9 for values in (found, exact)
    )
    assert float(((variance - reference) / reference).abs().max()) < 1e-4
    # Means near 1000 have steps of 6e-5 in float32.
    for value, expected in zip(found, exact, strict=True):
        assert (
            float(
                (value.detach().double() - expected.detach()).abs().max()
                / expected.detach().abs().max()
            )
            < 3e-4
        )


@here
@pytest.mark.parametrize("name", ["vectors", "long"])
def test_a_normalisation_does_not_depend_on_the_other_networks(name: str) -> None:
    together, alone = (
        normalise(name, torch.bfloat16, True, members=each)[0]
        for each in (slice(None), slice(1, 2))
    )
    for one, other in zip(together, alone, strict=True):
        assert torch.equal(one.reshape(NORMS[name][0], -1)[1], other.flatten())


@here
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 20, 9, 7), (3, 160, 4, 4)], ids=str)
def test_a_normalisation_that_predicts_is_pytorchs(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    from noiseproof.accelerate.layer_kernels import affine

    x = normal(*shape, seed=0, dtype=dtype).contiguous(memory_format=torch.channels_last)
    weight, bias, mean, var = (normal(shape[1], seed=seed) for seed in range(1, 5))
    exact = F.batch_norm(
        x.double(), mean.double(), var.double().abs(), weight.double(), bias.double(), eps=1e-5
    )
    shortcut = normal(*shape, seed=5, dtype=dtype)
    for relu, more in itertools.product((False, True), (None, shortcut)):
        found = affine(x, weight, bias, mean, var.abs(), 1e-5, relu, more)
        whole = exact if more is None else exact + more.double()
        assert found.dtype is dtype and close(
            found, whole.relu() if relu else whole, dtype, terms=4
        )


@here
@pytest.mark.parametrize("relu", [False, True])
def test_normalisations_hide_no_nan(relu: bool) -> None:
    from noiseproof.accelerate.layer_kernels import affine, stacked_norm

    x = normal(6, 8, 3, 3, seed=0).contiguous(memory_format=torch.channels_last)
    x[1, 2, 0, 0] = float("nan")  # of the first of two networks
    ones, zeros = (torch.full((2, 8), float(value), device=DEVICE) for value in (1, 0))
    x.requires_grad_()
    out = stacked_norm(x, ones, zeros, zeros.clone(), ones.clone(), 0.1, 1e-5, relu)
    (grad,) = torch.autograd.grad(out.sum(), x)
    for value in (out, grad):
        assert (
            value[:3, 2].isnan().all()
            and value[3:].isfinite().all()
            and value[:, 3:].isfinite().all()
        )
    predicted = affine(x.detach(), ones[0], zeros[0], zeros[0], ones[0], 1e-5, relu)
    assert predicted.isnan().sum() == 1 and predicted[1, 2, 0, 0].isnan()


def note_folds(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each layer that could be folded was, from now on."""
    from noiseproof.models import layers

    folded: list[bool] = []
    fold = layers._folded
    monkeypatch.setattr(
        layers, "_folded", lambda *values: (out := fold(*values), folded.append(out is not None))[0]
    )
    return folded


@pytest.mark.skipif(not (CUDA and HAS_TRITON), reason="needs a GPU")
@pytest.mark.parametrize(
    "model",
    [
        "lenet5",
        "wrn-28-2-sln:depth=10",
        "resnet32",
        "resnet34",
        "resnet50:stem=cifar,layers=[1,1,1,1]",
        "preact-resnet18",
    ],
)
def test_what_a_network_predicts_does_not_depend_on_who_computes_it(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from noiseproof.accelerate import layer_kernels as kernels
    from noiseproof.models import get_model, layers

    network = (
        get_model(model, generator=torch.Generator().manual_seed(0))
        .cuda()
        .to(memory_format=torch.channels_last)
    )
    x = normal(40, *((1, 28, 28) if model == "lenet5" else (3, 32, 32)), seed=0)
    network(x)  # so that batch statistics are not the first ones
    network.eval()
    calls: list[int] = []
    monkeypatch.setattr(
        kernels, "_check", lambda *values, check=kernels._check: (calls.append(1), check(*values))
    )
    folded = note_folds(monkeypatch)
    layers_of_ours = sum(
        isinstance(layer, (layers.Conv2d, layers.NormReLU)) for layer in network.modules()
    )
    with torch.no_grad():
        exact = network.double()(x.double())
        network.float()
        folded.clear()
        with torch.autocast("cuda", torch.bfloat16):
            ours = network(x)
            assert len(calls) + sum(folded) == layers_of_ours
            assert any(folded) == (
                "resnet" in model and torch.cuda.get_device_capability() == (9, 0)
            )
            monkeypatch.setattr(layers, "_only_predicts", lambda *values: False)
            calls.clear()
            theirs = network(x)
    assert not calls and float((ours - exact).norm() / exact.norm()) < 0.02
    assert float((ours - exact).norm()) < 1.5 * float((theirs - exact).norm())


@pytest.mark.skipif(not (CUDA and HAS_TRITON), reason="needs a GPU")
def test_predictions_hide_no_nan() -> None:
    from noiseproof.models import get_model

    network = get_model("resnet32", generator=torch.Generator().manual_seed(0)).cuda().eval()
    x = normal(4, 3, 32, 32, seed=0).contiguous(memory_format=torch.channels_last)
    x[1, 0, 5, 5] = torch.nan
    # so that memory which is not written is NaN
    torch.full((2**28,), torch.nan, dtype=torch.bfloat16, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        assert network(x).isnan().any(1).tolist() == [False, True, False, False]


@pytest.mark.skipif(not (CUDA and HAS_TRITON), reason="needs a GPU")
def test_layers_with_hooks_and_exact_predictions_are_not_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from noiseproof.models import get_model

    network = get_model("resnet32", generator=torch.Generator().manual_seed(0)).cuda().eval()
    x, seen = normal(4, 3, 32, 32, seed=0).contiguous(memory_format=torch.channels_last), []
    network.layer1[0].bn1.register_forward_hook(lambda *values: seen.append(1))
    folded = note_folds(monkeypatch)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        network(x)
        assert len(seen) == 1
        folded.clear()
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
        network(x)
    assert folded and not any(folded)


@pytest.mark.skipif(not (CUDA and HAS_TRITON), reason="needs a GPU")
@pytest.mark.parametrize("model", ["resnet32", "resnet34", "resnet50:stem=cifar,layers=[1,1,1,1]"])
def test_what_a_network_learns_does_not_depend_on_who_computes_it(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from noiseproof.accelerate import layer_kernels as kernels
    from noiseproof.models import get_model, layers

    network = (
        get_model(model, generator=torch.Generator().manual_seed(0))
        .cuda()
        .to(memory_format=torch.channels_last)
    )
    x = normal(40, 3, 32, 32, seed=0).contiguous(memory_format=torch.channels_last)
    calls: list[int] = []
    monkeypatch.setattr(
        kernels, "_check", lambda *values, check=kernels._check: (calls.append(1), check(*values))
    )

    def learned(network: torch.nn.Module, x: Tensor) -> list[Tensor]:
        network.zero_grad()
        network(x).square().sum().backward()
        norms = [layer for layer in network.modules() if isinstance(layer, layers.NormReLU)]
        assert {int(layer.num_batches_tracked) for layer in norms} == {1}
        gradients = torch.cat([value.grad.flatten().double() for value in network.parameters()])
        return [gradients, torch.cat([layer.running_var.double() for layer in norms])]

    exact = learned(copy.deepcopy(network).double(), x.double())
    with torch.autocast("cuda", torch.bfloat16):
        theirs = learned(copy.deepcopy(network), x)
        assert not calls
        for layer in network.modules():
            if isinstance(layer, layers.NormReLU):
                layer.is_captured = True
        ours = learned(network, x)
    assert len(calls) == sum(isinstance(layer, layers.NormReLU) for layer in network.modules())
    for own, other, right in zip(ours, theirs, exact, strict=True):
        assert float((own - right).norm()) < 1.2 * float((other - right).norm())


@here
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("shape", [(3, 40, 7), (2, 5), (1, 3000)], ids=str)
def test_updates_are_those_of_pytorchs_sgd(shape: tuple[int, ...], nesterov: bool) -> None:
    from noiseproof.accelerate.layer_kernels import sgd

    generator = torch.Generator(device=DEVICE).manual_seed(0)
    weight, momentum = (torch.randn(shape, generator=generator, device=DEVICE) for _ in range(2))
    rates = torch.logspace(-3, 0, shape[0], device=DEVICE)
    expected = []
    for seat, rate in enumerate(rates.tolist()):
        alone = torch.nn.Parameter(weight[seat].double())
        optimizer = torch.optim.SGD(
            [alone], lr=rate, momentum=0.9, weight_decay=0.1, nesterov=nesterov
        )
        optimizer.state[alone]["momentum_buffer"] = momentum[seat].double()
        expected.append((alone, optimizer))
    for _ in range(3):
        grad = torch.randn(shape, generator=generator, device=DEVICE)
        sgd(weight, grad, momentum, rates, 0.9, 0.1, nesterov)
        for seat, (alone, optimizer) in enumerate(expected):
            alone.grad = grad[seat].double()
            optimizer.step()
    for seat, (alone, _) in enumerate(expected):
        torch.testing.assert_close(weight[seat].double(), alone.detach(), rtol=1e-5, atol=1e-5)


def linear_layers(inputs: int, outputs: int, bias: bool) -> list[torch.nn.Module]:
    layers = [torch.nn.Linear(inputs, outputs, bias=bias).to(DEVICE) for _ in range(3)]
    for seed, layer in enumerate(layers):
        layer.weight.data = normal(outputs, inputs, seed=seed) / inputs**0.5
        if bias:
            layer.bias.data = normal(outputs, seed=seed + 9)
    return layers  # type: ignore[return-value]


@here
@pytest.mark.parametrize(("decay", "nesterov"), [(0.0, False), (0.1, True)])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "bias"),
    [
        (5, 24, 16, True),
        (33, 136, 40, False),
        (32, 144, 10, True),
        (20, 8, 72, True),
        (4, 20, 8, True),
    ],
)
@pytest.mark.parametrize("dtype", PRODUCTS[1:], ids=str)
def test_updates_from_factors_are_those_from_gradients(
    rows: int,
    inputs: int,
    outputs: int,
    bias: bool,
    decay: float,
    nesterov: bool,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three steps of three stacked layers of different learning rates, as a stack makes them, with
    and without.
    """
    from noiseproof.accelerate import networks, stacks

    for module in (networks, stacks):
        monkeypatch.setattr(module, "has_kernels", lambda x: True)
    rates = torch.logspace(-3, -1, 3, device=DEVICE)
    options = rates, 0.9, decay, nesterov
    ends: list[list[Tensor]] = []
    for deferred in (False, True):
        layer = networks.StackedLinear(linear_layers(inputs, outputs, bias))
        momenta = {
            name: normal(*value.shape, seed=5) / 9 for name, value in layer.named_parameters()
        }
        results: list[Tensor] = []
        for step in range(3):
            layer.zero_grad()
            x = normal(3 * rows, inputs, seed=20 + step).requires_grad_()
            with torch.autocast(DEVICE, dtype):
                if step == 1 and deferred:  # from the second step on
                    layer.defer(True)
                out = layer(x)
            (out.float() * normal(3 * rows, outputs, seed=30 + step)).sum().backward()
            if step and deferred:
                # which our convolutions multiply, and leave gradients
                odd = inputs % 8 or outputs % 8
                assert (layer.factors is None) == (layer.rounded is None) == bool(odd)
            if layer.factors is not None:
                assert layer.weight.grad is None
                stacks.update_products(layer, momenta, *options)
                assert layer.factors is None
                assert torch.equal(layer.rounded, layer.weight.to(dtype))  # type: ignore[arg-type]
            else:
                for name, value in layer.named_parameters():
                    assert value.grad is not None
                    with torch.no_grad():
                        stacks.update(value, value.grad, momenta[name], *options)
            results += [out.detach().float(), x.grad]
        layer.defer(False)
        assert layer.rounded is None
        ends.append([*results, layer.weight.detach(), *momenta.values()])
    for one, other in zip(*ends, strict=True):
        assert float((other - one).norm()) < 2 * torch.finfo(dtype).eps * float(one.norm())


@here
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(5, 20, 16), (32, 136, 40), (70, 300, 10), (33, 17, 33), (1, 1, 1)],
)
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("dtype", PRODUCTS[1:], ids=str)
def test_updates_from_factors_are_exact(
    rows: int, inputs: int, outputs: int, nesterov: bool, dtype: torch.dtype
) -> None:
    from noiseproof.accelerate.layer_kernels import linear_sgd

    shape = 2, outputs, inputs
    weight, momentum, bias, bias_momentum = (
        normal(*s, seed=i) for i, s in enumerate((shape, shape, *[shape[:2]] * 2))
    )
    grad, x = (
        normal(2, rows, outputs, seed=4, dtype=dtype),
        normal(2, rows, inputs, seed=5, dtype=dtype),
    )
    rates = torch.tensor([0.3, 0.01], device=DEVICE)
    expected = []
    for seat in range(2):
        alone = [torch.nn.Parameter(value[seat].double()) for value in (weight, bias)]
        optimizer = torch.optim.SGD(
            alone, lr=float(rates[seat]), momentum=0.9, weight_decay=0.1, nesterov=nesterov
        )
        for each, moving in zip(alone, (momentum, bias_momentum), strict=True):
            optimizer.state[each]["momentum_buffer"] = moving[seat].double()
        alone[0].grad, alone[1].grad = (
            grad[seat].double().T @ x[seat].double(),
            grad[seat].double().sum(0),
        )
        optimizer.step()
        expected.append([*alone, *(optimizer.state[each]["momentum_buffer"] for each in alone)])
    rounded = torch.zeros(shape, dtype=dtype, device=DEVICE)
    linear_sgd(grad, x, rounded, weight, momentum, bias, bias_momentum, rates, 0.9, 0.1, nesterov)
    assert torch.equal(rounded, weight.to(dtype))
    for found, *exact in zip((weight, bias, momentum, bias_momentum), *expected, strict=True):
        assert close(found, torch.stack(exact), torch.float32, terms=rows)


@pytest.mark.skipif(not (CUDA and HAS_TRITON), reason="needs a GPU")
def test_an_ensemble_by_vmap_predicts_without_them() -> None:
    from torch.func import functional_call, stack_module_state, vmap

    from noiseproof.models import get_model

    members = [
        get_model("lenet5", generator=torch.Generator().manual_seed(seed)).cuda().eval()
        for seed in (0, 1)
    ]
    x = normal(4, 1, 28, 28, seed=0)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        together = vmap(lambda weights: functional_call(members[0], weights, (x,)))(
            stack_module_state(members)[0]
        )
        apart = torch.stack([member(x) for member in members])
    # vmap adds a float32 bias
    torch.testing.assert_close(together.float(), apart.float(), rtol=0.02, atol=0.02)


@here
def test_what_the_kernels_cannot_do_is_refused() -> None:
    from noiseproof.accelerate.layer_kernels import stacked_conv, stacked_norm

    weight, per = torch.zeros(2, 4, 3, 3, 3, device=DEVICE), torch.ones(2, 3, device=DEVICE)
    with pytest.raises(TypeError, match="Expected float32, bfloat16 or float16"):
        stacked_conv(
            torch.zeros(2, 3, 5, 5, dtype=torch.float64, device=DEVICE), weight.double(), None, 1, 1
        )
    with pytest.raises(TypeError, match="Expected parameters in float32"):
        stacked_conv(torch.zeros(2, 3, 5, 5, device=DEVICE), weight.double(), None, 1, 1)
    with pytest.raises(TypeError, match="in one piece"):
        stacked_conv(torch.zeros(2, 3, 5, 5, device=DEVICE), weight.transpose(2, 3), None, 1, 1)
    with pytest.raises(ValueError, match="for each of 2 networks, got 3 rows"):
        stacked_conv(torch.zeros(3, 3, 5, 5, device=DEVICE), weight, None, 1, 1)
    with pytest.raises(ValueError, match="more than one number per channel"):
        stacked_norm(torch.zeros(2, 3, device=DEVICE), per, per, per, per, 0.1, 1e-5, False)
    with pytest.raises(
        ValueError, match=r"Expected `shortcut` of shape \(4, 3\), as x has, got \(4, 2\)"
    ):
        x, shortcut = (torch.zeros(4, width, device=DEVICE) for width in (3, 2))
        stacked_norm(x, per, per, per, per, 0.1, 1e-5, False, shortcut)


@pytest.mark.skipif(not (CUDA and HAS_TRITON), reason="needs a GPU")
def test_a_graph_replays_the_same_bits() -> None:
    from noiseproof.accelerate.layer_kernels import stacked_conv, stacked_norm

    x = normal(6, 16, 9, 9, seed=0, dtype=torch.bfloat16).contiguous(
        memory_format=torch.channels_last
    )
    weight, bias = (
        normal(3, 16, 3, 3, 16, seed=1).requires_grad_(),
        normal(3, 16, seed=2).requires_grad_(),
    )
    running = [torch.zeros(3, 16, device=DEVICE), torch.ones(3, 16, device=DEVICE)]

    def step() -> list[Tensor]:
        out = stacked_conv(x, weight, bias, 1, 1)
        out = stacked_norm(
            out, weight[:, :, 0, 0, 0].detach().contiguous(), bias, *running, 0.0, 1e-5, True
        )
        return [out, *torch.autograd.grad(out.float().square().sum(), (weight, bias))]

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is made on the default stream cannot enter a graph
        expected = [value.clone() for value in step()]
        with torch.cuda.graph(graph, stream=stream):
            replayed = step()
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(one, other) for one, other in zip(replayed, expected, strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="needs Triton")
@pytest.mark.skipif(INTERPRETED, reason="is what runs these tests in the interpreter")
@pytest.mark.skipif(CUDA, reason="the kernels themselves have just been tested on a GPU")
def test_the_kernels_interpreted() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    files = [__file__, str(Path(__file__).with_name("test_loss_kernels.py"))]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        *files,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


def test_models_do_not_load_triton() -> None:
    code = "import sys, noiseproof, noiseproof.models; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
