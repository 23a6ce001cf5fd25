"""Steps as CUDA graphs: captured once and replayed, so that the host does almost nothing.

A graph needs data in the GPU's memory, one process, strategies and a loss that only move tensors.
What changes by epoch is in tensors that are filled in place (learning rate, order of rows, logit
bias, tables of strategies), or is named by ``Strategy.phase``, whose change captures it again.
All random numbers of a step come from one generator, seeded on the host before each replay, so a
graph, an eager step and a resumed run draw the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from noiseproof.models.layers import NormReLU
from noiseproof.strategies import Batch, Run
from noiseproof.train.step import Stepper

log = logging.getLogger("noiseproof")

# eager steps of a kind before it is captured: in them kernels are chosen and optimisers make their
# state
WARM_UP = 3
ON_CPU = "the run is not on a GPU"
IN_STEP = (
    "targets",
    "outputs",
    "revise",
    "weights",
    "penalties",
    "step",
    "gradients",
    "after_step",
)


def make_executor(stepper: Stepper) -> Graphed | None:
    """An executor that replays CUDA graphs; None where steps cannot be captured."""
    why = obstacle(stepper)
    if why is None:
        return Graphed(stepper)
    if stepper.run.device.type == "cuda":
        log.info("Steps are not captured as a CUDA graph: %s.", why)
    return None


def obstacle(stepper: Stepper) -> str | None:
    """Why steps cannot be captured, or None; ``ON_CPU`` where there is no other reason."""
    run = stepper.run
    if run.processes.world_size > 1 or run.is_sharded:
        return "several processes share a step"
    if not isinstance(run.data.x, Tensor):
        return "the inputs are read from disk"
    for strategy in stepper.strategies:
        if strategy.overrides(*IN_STEP) and not strategy.capturable:
            return f"`{strategy}` cannot be captured"
    return None if run.device.type == "cuda" else ON_CPU


class StepGraphs:
    """The CUDA graphs of a step, one for each kind of step: number of rows and phases of the
    strategies.
    """

    def __init__(self) -> None:
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.counts: dict[Hashable, int] = {}  # steps of each kind so far
        self.is_capturing = False
        self.has_failed = False  # to capture a step: all are eager from then on

    def clear(self) -> None:
        self.graphs.clear()
        self.counts.clear()

    def run(
        self, kind: Hashable, runs: Sequence[Run], step: Callable[[], None], *, layers_draw: bool
    ) -> None:
        """Make a step of ``runs``: eager at first, then captured, then replayed.

        With ``layers_draw``, layers such as dropout may draw from the global generator.
        """
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if kind not in self.graphs and not self.has_failed and self.counts[kind] > WARM_UP:
            self._capture(kind, runs, step)
        graph = self.graphs.get(kind)
        for run in runs:
            if graph is None or run.random.step_draws:
                run.random.begin_step()
        if graph is not None and not layers_draw:
            graph.replay()
            return
        with ExitStack() as randomness:
            for run in runs:
                randomness.enter_context(
                    run.random.eager_step() if layers_draw else run.random.in_step()
                )
            if graph is None:
                step()
            else:
                graph.replay()

    def _capture(self, kind: Hashable, runs: Sequence[Run], step: Callable[[], None]) -> None:
        if runs[0].device.type != "cuda":
            return
        graph = torch.cuda.CUDAGraph()
        for run in runs:
            assert run.random.step_generator is not None
            if run.random.step_draws:
                graph.register_generator_state(run.random.step_generator)
            run.random.begin_step()
        self.is_capturing = True
        try:
            # On a separate stream: graphs captured on one stream share the scratch memory of its
            # matrix products, and would overwrite each other's when they are replayed on several at
            # a time.
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()), ExitStack() as inside:
                for run in runs:
                    inside.enter_context(run.random.in_step())
                step()
        except Exception as error:  # whatever a strategy or a loss did that a graph cannot hold
            self.has_failed = True
            torch.cuda.synchronize(runs[0].device)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            log.warning("A step could not be captured as a CUDA graph and stays eager: %s", reason)
            return
        finally:
            self.is_capturing = False
        self.graphs[kind] = graph


class Graphed:
    """Executes the steps of one run as CUDA graphs."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.run = stepper.run
        self.graphs = StepGraphs()
        self.phase: Hashable = None  # of the strategies in this epoch
        # the rows of the epoch
        self.order = torch.zeros(0, dtype=torch.int64, device=self.run.device)
        # in that order, of the coming step
        self.places = torch.zeros(0, dtype=torch.int64, device=self.run.device)
        self.rows_done = 0  # of the epoch
        for model in self.run.models:
            for layer in model.plain.modules():
                if isinstance(layer, NormReLU):
                    layer.is_captured = True

    def steps(self, parts: Sequence[Tensor], start: int) -> Iterator[int]:
        self.load_epoch(parts, start)
        position = start
        while position < len(parts):
            for part in parts[position : position + self.stepper.steps_at_once()]:
                self.make_step(len(part))
                self.count_step(len(part))
                position += 1
            yield position

    def close(self) -> None:
        self.graphs.clear()

    def load_epoch(self, parts: Sequence[Tensor], start: int) -> bool:
        """Copy the rows of an epoch to where graphs read them; whether earlier graphs are invalid
        now.
        """
        rows = torch.cat(list(parts))
        full = len(parts[0])
        phase = tuple(strategy.phase(self.run) for strategy in self.stepper.strategies)
        is_other = (self.order.shape, self.places.shape, self.phase) != (rows.shape, (full,), phase)
        if is_other:
            self.graphs.clear()
            self.order = torch.empty_like(rows, device=self.run.device)
            self.phase = phase
            self.places = self.order.new_empty(full)
        self.order.copy_(rows)
        self.rows_done = sum(map(len, parts[:start]))
        self.seek()
        return is_other

    def seek(self) -> None:
        """Point ``places`` at the rows of the coming step."""
        torch.arange(self.rows_done, self.rows_done + len(self.places), out=self.places)

    def next_batch(self, size: int) -> Batch:
        """The batch of the coming step; ``places`` moves on."""
        rows = self.order[self.places[:size]]
        self.places += size
        return self.run.make_batch(rows)

    def make_step(self, size: int) -> None:
        self.graphs.run(
            (size, self.phase),
            [self.run],
            lambda: self.stepper(self.next_batch(size)),
            layers_draw=True,
        )

    def count_step(self, size: int) -> None:
        self.rows_done += size
        self.run.step += 1
