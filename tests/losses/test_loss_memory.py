"""A margin loss makes no (B, K) tensor that cross entropy does not make: its extra memory is
O(B).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from test_loss_contract import OF_LOGITS
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from noiseproof.losses import LOSSES, get_loss

B, K = 256, 500
MARGIN = [
    name
    for name in OF_LOGITS
    if "loss" not in LOSSES.parameters(name) and LOSSES[name].kind == "margin"
]


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


@pytest.mark.parametrize(
    "name", [*MARGIN, "remargin:loss=mae,shift=3", "unit:loss=gce", "ce + 0.5*mae"]
)
def test_margin_losses_add_only_vectors(name: str) -> None:
    ours, baseline = allocations(get_loss(name)), allocations(F.cross_entropy)
    large = [size for size in ours if size > 4 * B]
    assert large == [size for size in baseline if size > 4 * B]
    assert sum(ours) - sum(baseline) <= 100 * B


@pytest.mark.parametrize(
    "name", ["ce", "gce", "focal", "remargin:loss=mae,shift=3", "ce + 0.5*mae"]
)
def test_a_compiled_backward_saves_no_matrix_but_the_logits(name: str) -> None:
    """And where no slope is given, it only goes from number to number, so that one kernel can make
    it.
    """
    graphs: list[GraphModule] = []

    def look(graph: GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=look,
        bw_compiler=look,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table,
    )
    torch._dynamo.reset()
    loss = get_loss(name)
    logits = torch.randn(
        B, K, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    torch.compile(lambda z, y: loss(z, y), backend=backend, fullgraph=True)(
        logits, torch.arange(B) % K
    ).backward()
    forward, backward = graphs
    saved = [node.meta["val"] for node in forward.graph.output_node().args[0] if "val" in node.meta]
    assert [v.shape for v in saved if v.numel() > 4 * B] == [(B, K)]  # which are the logits
    matrices = [
        n
        for n in backward.graph.nodes
        if isinstance(v := n.meta.get("val"), Tensor) and v.numel() == B * K
    ]
    kinds = {str(n.target).split(".")[1] for n in matrices if n.op == "call_function"}
    if not loss._closed:
        assert not kinds & {"scatter", "scatter_add", "index_put"}, kinds
