"""Steps as CUDA graphs: captured once and replayed, so that the host does almost nothing.

What a graph needs: data in the GPU's memory, one process, strategies and a loss that only move tensors. Whatever
changes by epoch lies in tensors that are filled in place (learning rate, order of rows, logit bias, tables of
strategies), or is told by ``Strategy.phase``, whose change captures the step anew. All random numbers of a step come
from one generator, seeded on the host before each replay, so a graph, an eager step and a resumed run draw the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence

import torch
from torch import Tensor

from noiseproof.strategies import Batch, Run, Strategy

log = logging.getLogger("noiseproof")

WARM = 3  # eager steps of a kind before it is captured: kernels are chosen and the optimiser's state is made in them
IN_STEP = ("targets", "outputs", "revise", "weights", "step", "gradients", "after_step")


def obstacle(run: Run, strategies: Sequence[Strategy]) -> str | None:
    """Why steps cannot be captured, or None."""
    if run.device.type != "cuda":
        return "the run is not on a GPU"
    if run.world_size > 1 or run.is_sharded:
        return "several processes share a step"
    if not isinstance(run.data.x, Tensor):
        return "the inputs are read from disk"
    for strategy in strategies:
        touched = any(getattr(type(strategy), hook) is not getattr(Strategy, hook) for hook in IN_STEP)
        if touched and not strategy.capturable:
            return f"`{strategy}` cannot be captured"
    return None


class GraphedSteps:
    """Replays a step over the rows of an epoch."""

    def __init__(self, run: Run, strategies: Sequence[Strategy], step: Callable[[Batch], None]) -> None:
        self.run, self.strategies, self.step = run, strategies, step
        self.order = torch.zeros(0, dtype=torch.int64, device=run.device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=run.device)
        self.phase: Hashable = None
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.seen: dict[Hashable, int] = {}
        self.trouble: str | None = None  # why a capture failed; steps are eager from then on

    def epoch(self, parts: Sequence[Tensor], done: int) -> Iterator[int]:
        """Train on each part in turn, after the first ``done``; yields how many are done."""
        run = self.run
        rows = torch.cat(list(parts))
        phase = tuple(strategy.phase(run) for strategy in self.strategies)
        if self.order.shape != rows.shape or self.phase != phase:
            self.graphs.clear()  # they read the old order, or do what is no longer to be done
            self.order, self.phase = torch.empty_like(rows, device=run.device), phase
        self.order.copy_(rows)
        self.cursor.fill_(sum(map(len, parts[:done])))
        for position, part in enumerate(parts[done:], done + 1):
            self._advance(len(part), (len(part), phase))
            run.step += 1
            yield position

    def _advance(self, size: int, kind: Hashable) -> None:
        run = self.run
        run.begin_step()
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if kind not in self.graphs and self.trouble is None and self.seen[kind] > WARM:
            self._capture(size, kind)
            run.begin_step()
        with run.own_randomness():
            if kind in self.graphs:
                self.graphs[kind].replay()
            else:
                self._step(size)

    def _step(self, size: int) -> None:
        run = self.run
        rows = self.order[self.cursor + torch.arange(size, device=run.device)]
        self.cursor += size
        self.step(run.make_batch(rows))

    def _capture(self, size: int, kind: Hashable) -> None:
        graph = torch.cuda.CUDAGraph()
        assert self.run.step_generator is not None
        graph.register_generator_state(self.run.step_generator)
        try:
            # On this run's own stream: graphs captured on one stream share the scratch memory of its matrix products,
            # and would spoil each other's when they are replayed on several at a time.
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()), self.run.in_step():
                self._step(size)
        except Exception as error:  # whatever a strategy or a loss did that a graph cannot hold
            self.trouble = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            torch.cuda.synchronize(self.run.device)
            log.warning("A step could not be captured as a CUDA graph and stays eager: %s", self.trouble)
            return
        self.graphs[kind] = graph
