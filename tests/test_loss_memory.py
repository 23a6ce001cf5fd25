"""A margin loss makes no (B, K) tensor that cross entropy does not make: its extra memory is O(B)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_loss_contract import OF_LOGITS
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from noiseproof.losses import LOSSES, get_loss

B, K = 256, 500
MARGIN = [name for name in OF_LOGITS if "loss" not in LOSSES.parameters(name) and LOSSES[name].kind == "margin"]


class Allocations(TorchDispatchMode):
    """Sizes of the tensors that operations create."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.sizes += [x.numel() for x in tree_leaves(result) if isinstance(x, Tensor)]
        return result


def allocations(loss: Any) -> list[int]:
    logits = torch.randn(B, K, generator=torch.Generator().manual_seed(0), requires_grad=True)
    target = torch.arange(B) % K
    with Allocations() as seen:
        loss(logits, target).backward()
    return seen.sizes


@pytest.mark.parametrize("name", [*MARGIN, "remargin:loss=mae,shift=3", "unit:loss=gce", "ce + 0.5*mae"])
def test_margin_losses_add_only_vectors(name: str) -> None:
    ours, baseline = allocations(get_loss(name)), allocations(F.cross_entropy)
    large = [size for size in ours if size > 4 * B]
    assert large == [size for size in baseline if size > 4 * B]
    assert sum(ours) - sum(baseline) <= 100 * B
