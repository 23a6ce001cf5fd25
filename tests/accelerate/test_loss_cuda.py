"""The losses on a GPU: the same numbers as on the CPU, no synchronisation, and capture into a CUDA
graph.
"""

from __future__ import annotations

import pytest
import torch
from test_loss_contract import OF_LOGITS
from torch import Tensor

from noiseproof.losses import LOSSES, Loss, get_loss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

B, K = 64, 10
REQUIRED = {"T": (0.6 * torch.eye(K) + 0.04).tolist(), "loss": "gce:q=0.7", "num_classes": K}
LINEAR = ("remargin", "tau-shift", "tau-scale")  # take class indices only


def build(name: str) -> Loss:
    needed = {k: v for k, v in REQUIRED.items() if k in LOSSES.parameters(name)}
    return get_loss(name, reduction="none", **needed)


def inputs(device: str, soft: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(B, K, generator=generator, dtype=torch.float64) * 5
    target = torch.randint(K, (B,), generator=generator)
    if soft:
        target = torch.rand(B, K, generator=generator, dtype=torch.float64)
    return logits.to(device).requires_grad_(), target.to(device)


def run(loss: Loss, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    value = loss(logits, target)
    return value.detach(), torch.autograd.grad(value.sum(), logits)[0]


@pytest.mark.parametrize("soft", [False, True], ids=["classes", "real"])
@pytest.mark.parametrize("name", OF_LOGITS)
def test_same_as_on_the_cpu_and_never_synchronises(name: str, soft: bool) -> None:
    if soft and name in LINEAR:
        pytest.skip("class indices only")
    expected = run(build(name), *inputs("cpu", soft))
    loss, (logits, target) = build(name).cuda(), inputs("cuda", soft)
    run(loss, logits, target)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = run(loss, logits, target)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", OF_LOGITS)
def test_a_captured_step_follows_its_inputs(name: str) -> None:
    loss, (logits, target) = build(name).cuda(), inputs("cuda", False)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(loss, logits, target)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value, gradient = run(loss, logits, target)
    with torch.no_grad():
        logits.copy_(logits.flip(0))
    graph.replay()
    expected = run(loss, logits, target)
    torch.testing.assert_close((value, gradient), expected)
