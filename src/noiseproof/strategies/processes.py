"""The processes of a run: which rows of a step each one has, and how they exchange values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import Tensor, nn

from noiseproof.strategies.batch import Batch

if TYPE_CHECKING:  # its import takes a second, and audits do without it
    from lightning_fabric import Fabric


class _Sum(torch.autograd.Function):
    """The sum over all processes, whose gradient is the sum of theirs.

    PyTorch's own, in ``torch.distributed.nn``, is deprecated and warns from 2.13 on.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        values = values.clone()
        torch.distributed.all_reduce(values)
        return values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return _Sum.apply(grad)  # type: ignore[no-untyped-call]


class Processes:
    """The processes that share the rows of each step; with one process, every method is the
    identity.

    All processes have equally many rows of a step. Where they do not divide evenly, the first rows
    fill the last shares up, and do not count.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.world_size = fabric.world_size
        self.rank = fabric.global_rank
        self.device = fabric.device

    def gather(self, values: Tensor, batch: Batch) -> Tensor:
        """Join the values (b, …) of all processes to (count, …), in the order of
        ``batch.all_rows``.
        """
        if self.world_size == 1:
            return values
        parts = [torch.empty_like(values) for _ in range(self.world_size)]
        torch.distributed.all_gather(parts, values.contiguous())
        return torch.cat(parts)[: batch.count]

    def share(self, values: Tensor) -> Tensor:
        """Return the values (b, …) of this process's rows, out of the whole step (count, …)."""
        if self.world_size == 1:
            return values
        return values[(self.places(len(values)) % len(values)).to(values.device)]

    def places(self, count: int) -> Tensor:
        """Return the positions of this process's rows in a step of ``count`` rows.

        Those from ``count`` on do not count.
        """
        size = -(-count // self.world_size)
        return torch.arange(self.rank * size, (self.rank + 1) * size)

    def merge(self, parts: Sequence[tuple[Tensor, Tensor, Tensor]], num_rows: int) -> Tensor:
        """Return values (N, …) by row number, from the (rows, counts, values) of every process's
        ``sweep``.
        """
        rows, counts, values = (torch.cat(column) for column in zip(*parts, strict=True))
        merged = values.new_zeros(num_rows, *values.shape[1:])
        merged[rows[counts]] = values[counts]
        return self.sum(merged)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes, whose gradient is the sum of theirs."""
        if self.world_size > 1:
            values = _Sum.apply(values)  # type: ignore[no-untyped-call]
        return values

    def max(self, values: Tensor) -> Tensor:
        """Return the maximum over all processes."""
        if self.world_size > 1:
            values = values.clone()
            torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX)
        return values

    def any(self, flag: bool) -> bool:
        """Return whether ``flag`` is set in any process."""
        return bool(self.max(torch.tensor(int(flag), device=self.device)))

    def broadcast_buffers(self, models: Sequence[nn.Module]) -> None:
        """Give all processes the batch statistics of the first."""
        if self.world_size > 1:
            for model in models:
                for buffer in model.buffers():
                    torch.distributed.broadcast(buffer, 0)
