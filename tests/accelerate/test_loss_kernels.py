"""The softmax averaged over noise in Triton, against the same in float64 by PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from test_kernels import CUDA, DEVICE, HAS_TRITON, here
from torch import Tensor

# rows, classes, samples, factors, one noise for all rows, one scale a row
CASES = {
    "ten classes": (19, 10, 70, 0, False, False),
    "factors": (5, 10, 130, 3, False, False),
    "shared": (5, 7, 65, 0, True, False),
    "shared factors": (3, 7, 20, 2, True, True),
    "many classes": (3, 700, 9, 1, False, True),
    "one sample": (1, 2, 1, 0, False, False),
}


def inputs(name: str, spread: float = 1.0) -> tuple[list[Tensor], list[Tensor | None]]:
    rows, K, samples, rank, shared, narrow = CASES[name]
    generator = torch.Generator().manual_seed(len(name))
    normal = lambda *shape: torch.randn(*shape, generator=generator).to(DEVICE)  # noqa: E731
    weights = [spread * normal(rows, K), normal(rows, 1 if narrow else K).abs()]
    weights += [normal(rows, K, rank)] if rank else []
    wide = 1 if shared else rows
    return weights, [normal(samples, wide, K), normal(samples, wide, rank) if rank else None]


def exact(
    weights: list[Tensor], noise: list[Tensor | None], tau: float
) -> tuple[Tensor, list[Tensor]]:
    """log Σ_s softmax and the gradients of a weighted mean of log-probabilities, by autograd in
    float64.
    """
    mean, scale, *factors = (w.double().requires_grad_() for w in weights)
    each, across = (None if n is None else n.double() for n in noise)
    assert each is not None
    u = mean + scale * each
    if across is not None:
        u = u + torch.einsum("sbr,bkr->sbk", across, *factors)
    log_sum = torch.logsumexp((u / tau).log_softmax(-1), 0)
    return log_sum.detach(), list(
        torch.autograd.grad((log_sum * toll(log_sum)).sum(), [mean, scale, *factors])
    )


def toll(like: Tensor) -> Tensor:
    return torch.linspace(-1, 2, like.numel(), dtype=like.dtype, device=like.device).view_as(like)


@here
@pytest.mark.parametrize("spread", [1.0, 300.0])
@pytest.mark.parametrize("tau", [0.5, 10.0])
@pytest.mark.parametrize("name", CASES)
def test_averages_and_gradients(name: str, tau: float, spread: float) -> None:
    from noiseproof.accelerate.loss_kernels import log_sum_softmax, mean_softmax_gradients

    weights, noise = inputs(name, spread)
    padded = weights if len(weights) == 3 else [*weights, None]
    expected, gradients = exact(weights, noise, tau)
    found = log_sum_softmax(*padded, tau, *noise)
    assert found.dtype is torch.float64
    rounding = 2e-6 + 2**-23 * float(weights[0].abs().max()) / tau  # of a logit in float32
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=rounding)
    log_mean = expected.float()
    grad = (toll(expected) * (log_mean - expected).exp() / tau).float()
    of_mean, of_scale, *of_factors = mean_softmax_gradients(*padded, tau, *noise, log_mean, grad)
    ours = [of_mean, of_scale.sum_to_size(weights[1].shape)]
    ours += [torch.stack(of_factors, 2)] if of_factors else []
    for one, other in zip(ours, gradients, strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=1e-4, atol=5 * rounding * float(other.abs().max())
        )


@here
def test_a_row_does_not_depend_on_the_others() -> None:
    from noiseproof.accelerate.loss_kernels import log_sum_softmax

    weights, noise = inputs("factors")
    alone = log_sum_softmax(
        *(w[3:] for w in weights), 1.0, *(None if n is None else n[:, 3:] for n in noise)
    )
    assert torch.equal(log_sum_softmax(*weights, 1.0, *noise)[3:], alone)


@here
def test_nothing_is_hidden() -> None:
    from noiseproof.accelerate.loss_kernels import log_sum_softmax

    weights, noise = inputs("ten classes")
    weights[0][2, 3], weights[0][4, 5] = float("nan"), float("-inf")
    found = log_sum_softmax(*weights, None, 1.0, *noise)
    assert found[2].isnan().all() and found[4, 5] == float("-inf")
    assert found[[r for r in range(19) if r not in (2, 4)]].isfinite().all()


@here
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("spec", ["het:samples=90", "het:samples=90,covariance=full,tau=0.7"])
def test_chunks_are_put_together(
    spec: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the interpreter, too: the kernels in the loss, by several chunks, against its
    operators.
    """
    from noiseproof.accelerate import loss_kernels as kernels
    from noiseproof.core.output import Output
    from noiseproof.losses import get_loss, het

    weights, _ = inputs("factors")
    monkeypatch.setattr(het, "CHUNK", 20 * 50 // (8 if DEVICE == "cuda" else 1))
    draw = het.draw_noise  # the same noise for both, which kernels take as it lies
    monkeypatch.setattr(
        het, "draw_noise", lambda *args, **how: draw(*args, **{**how, "classes_first": True})
    )
    found = []
    for chosen in (kernels, None):
        monkeypatch.setattr(het, "_kernels_for", lambda mean, factors, chosen=chosen: chosen)
        logits, scale, factors = (w.clone().requires_grad_() for w in weights)
        value = get_loss(spec).train(training)(
            Output(logits, scale=scale, factors=factors if "full" in spec else None),
            torch.arange(5, device=DEVICE),
        )
        leaves = [logits, scale, *([factors] if "full" in spec else [])]
        found.append([value.detach(), *torch.autograd.grad(value, leaves)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(not (CUDA and HAS_TRITON), reason="needs a GPU")
def test_the_loss_chooses_them() -> None:
    from noiseproof.accelerate import loss_kernels as kernels
    from noiseproof.losses import het

    mean, factors = zeros(8, 10), zeros(8, 10, 4)
    assert het._kernels_for(mean, None) is kernels and het._kernels_for(mean, factors) is kernels
    assert het._kernels_for(mean.double(), None) is None
    assert het._kernels_for(mean, zeros(8, 10, 9)) is None


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, device=DEVICE)


def test_losses_do_not_load_triton() -> None:
    code = "import sys, noiseproof, noiseproof.losses; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
