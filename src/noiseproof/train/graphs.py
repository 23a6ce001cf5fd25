"""Steps as CUDA graphs: captured once and replayed, so that the host does almost nothing; of one run, or of a stack.

What a graph needs: data in the GPU's memory, one process, strategies and a loss that only move tensors. Whatever
changes by epoch lies in tensors that are filled in place (learning rate, order of rows, logit bias, tables of
strategies), or is told by ``Strategy.phase``, whose change captures the step anew. All random numbers of a step come
from one generator, seeded on the host before each replay, so a graph, an eager step and a resumed run draw the same.

Runs of one shape go in step as a ``Convoy``: their networks are stacked into one, and each kernel is started once for
all of them, where the kernels of one small network would leave a GPU idle between two starts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.models.layers import NormReLU
from noiseproof.models.stacked import Stack, Unstackable, draws, release
from noiseproof.strategies import Batch, Run, Step, Strategy
from noiseproof.train.step import Stepper, aim, judge

T = TypeVar("T")
log = logging.getLogger("noiseproof")

WARM = 3  # eager steps of a kind before it is captured: kernels are chosen and the optimiser's state is made in them
SEATS = 8  # of a stack: more fill a GPU no better, and what each run does by itself overlaps with the other stacks
ON_CPU = "the run is not on a GPU"
IN_STEP = ("targets", "outputs", "revise", "weights", "step", "gradients", "after_step")


def obstacle(run: Run, strategies: Sequence[Strategy]) -> str | None:
    """Why steps cannot be captured, or None; ``ON_CPU`` where there is nothing else."""
    if run.processes.world_size > 1 or run.is_sharded:
        return "several processes share a step"
    if not isinstance(run.data.x, Tensor):
        return "the inputs are read from disk"
    for strategy in strategies:
        if strategy.overrides(*IN_STEP) and not strategy.capturable:
            return f"`{strategy}` cannot be captured"
    return None if run.device.type == "cuda" else ON_CPU


class Seating:
    """Puts runs of one shape into one convoy, as long as it has not set out."""

    def __init__(self) -> None:
        self.waiting: dict[Hashable, Convoy] = {}
        self.has_stacked = False

    def convoy_for(self, shape: Hashable) -> Convoy:
        convoy = self.waiting.get(shape)
        if convoy is None or convoy.under_way or len(convoy.members) == SEATS:
            convoy = self.waiting[shape] = Convoy(self)
        return convoy


class Convoy:
    """Runs that make their steps together. Alone, a run is a convoy by itself, and its network is not stacked."""

    def __init__(self, seating: Seating | None = None) -> None:
        self.seating = seating
        self.members: list[CapturedSteps] = []
        self.under_way = seating is None  # until then others may join
        self.changed = True  # since the stack was made
        self.stack: Stack | None = None
        self.stream: torch.cuda.Stream | None = None  # of the stack; a run alone has one already
        self.branches: list[torch.cuda.Stream] = []  # of that stream, one for each member
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.seen: dict[Hashable, int] = {}
        self.capturing = False
        self.trouble: str | None = None  # why a capture failed; steps are eager from then on

    def advance(self) -> None:
        """Make the step that all members wait for; nothing happens before the last of them does."""
        if any(member.wants is None for member in self.members):
            return
        self.under_way = True
        if self.changed:
            self._form()
        if not self.members:  # they go alone now, each when it is asked again
            return
        try:
            if self.stack is not None and self.members[0].run.device.type == "cuda":
                self._on_own_stream()
            else:
                self._make_step()
        except Exception as error:
            if self.stack is None:
                raise
            self._part(error)  # of the stack's own making (no kernel, no memory): each makes this step alone
            return
        for member in self.members:
            member.wants = None

    def leave(self, member: CapturedSteps) -> None:
        """Go on without ``member``."""
        if self.stack is not None:
            _synchronize(member.run)  # its tensors are still in use
        if member.was_stacked:
            release(member.run.models[0].plain)
        self.members.remove(member)
        self.changed = True
        if not self.members:
            self._forget()

    def _forget(self) -> None:
        self.stack = None
        self.graphs.clear()
        self.seen.clear()

    def _form(self) -> None:
        """Stack the members that there are."""
        self._forget()
        self.changed = False
        runs = [member.run for member in self.members]
        if len(runs) == 1:
            return
        try:
            if not self.members[0].was_stacked:
                two = runs[0].fetch(runs[0].data.x, torch.arange(2), runs[0].normalise)
                if draws(runs[0].models[0].plain, partial(runs[0].forward, x=two)):
                    raise Unstackable("its layers draw random numbers")
            self.stack = Stack([run.models[0].plain for run in runs])
        except Exception as error:
            self._part(error)
            return
        for member in self.members:
            member.was_stacked = member.began = True  # what was copied here comes before the step
        if self.seating is not None:
            self.seating.has_stacked = True
        log.info("%d runs are stacked into one network", len(runs))

    def _part(self, error: Exception) -> None:
        """Every member goes alone from here on, on its own stream."""
        told = str(error) if isinstance(error, Unstackable) else f"{type(error).__name__}: {error}"
        log.info("%d runs of one shape are not stacked: %s", len(self.members), " ".join(told.split())[:200])
        _synchronize(self.members[0].run)
        self._forget()
        for member in self.members:
            release(member.run.models[0].plain)
            member.seek()
            member.convoy = Convoy()
            member.convoy.members.append(member)
            if member.error is not None:
                member.wants = None
        _synchronize(self.members[0].run)
        self.members = []

    def _on_own_stream(self) -> None:
        """What members did between two epochs comes before the step; what they do after it waits for it."""
        self.stream = self.stream or torch.cuda.Stream(self.members[0].run.device)  # type: ignore[no-untyped-call]
        for member in self.members:
            if member.began:
                self.stream.wait_stream(member.stream)
                member.began = False
        with torch.cuda.stream(self.stream):
            self._make_step()
            done = self.stream.record_event()
        for member in self.members:
            member.stream.wait_event(done)

    def _make_step(self) -> None:
        size = self.members[0].wants
        assert size is not None and all(member.wants == size for member in self.members)
        runs = [member.run for member in self.members]
        kind = size, *(member.phase for member in self.members)
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if kind not in self.graphs and self.trouble is None and self.seen[kind] > WARM:
            self._capture(size, kind, runs)
        graph = self.graphs.get(kind)
        for run in runs:
            if graph is None or run.random.step_draws:
                run.random.begin_step()
        if graph is not None and self.stack is not None:
            graph.replay()
            return
        with ExitStack() as randomness:
            for run in runs:  # the layers of a stack draw nothing
                randomness.enter_context(run.random.eager_step() if self.stack is None else run.random.in_step())
            if graph is None:
                self._step(size)
            else:
                graph.replay()

    def _step(self, size: int) -> None:
        if self.stack is None:
            (member,) = self.members
            member.stepper(member.next_batch(size))
        else:
            self._stacked_step(self.stack, size)

    def _stacked_step(self, stack: Stack, size: int) -> None:
        """Each member aims, judges and learns by itself; the networks answer as one."""

        def begin(member: CapturedSteps) -> tuple[Batch, Batch]:
            batch = member.next_batch(size)
            member.stepper.begin(batch)
            return batch, aim(batch, member.run, member.stepper.strategies)

        def weigh(member: CapturedSteps, out: Output) -> tuple[Step, Tensor]:
            return judge([out], batches[member][1], member.run, member.stepper.strategies)

        def finish(member: CapturedSteps) -> None:
            member.stepper.finish(batches[member][0], judged[member][0])

        kept = [] if self.capturing else [(one, one.clone()) for one in self._written(stack)]
        batches = self._each(begin)
        stack.zero_grad()
        first, seats = self.members[0].run, len(self.members)
        some = next(iter(batches.values()))[1].x  # in the seat of who has failed
        x = torch.cat([batches[member][1].x if member in batches else some for member in self.members])
        try:
            fields = ([None] * seats if v is None else v.chunk(seats) for v in first.forward(stack, x))
            outs = [Output(*own) for own in zip(*fields, strict=True)]
            judged = self._each(weigh, outs)
            first.fabric.backward(torch.stack([loss for _, loss in judged.values()]).sum())
        except Exception:
            for one, old in kept:
                one.copy_(old)
            raise
        stack.share_gradients()
        self._each(finish)
        if not self.capturing:
            for member in self.members:
                member.run.random.note_draws()

    def _written(self, stack: Stack) -> Iterator[Tensor]:
        """What a step writes before it learns: each member may have to make it again, alone."""
        yield from stack.buffers()
        for strategy in (one for member in self.members for one in member.stepper.strategies):
            if strategy.overrides("targets", "outputs", "revise"):
                yield from (value for value in strategy.state_dict().values() if isinstance(value, Tensor))

    def _each(self, work: Callable[..., T], *values: Sequence[Any]) -> dict[CapturedSteps, T]:
        """``work`` of every member; on a GPU side by side, since what a run does by itself are many small kernels.

        Whoever fails has failed alone: the others' step goes on, and it will hear of it when it is asked again.
        """
        found: dict[CapturedSteps, T] = {}
        while self.stream is not None and len(self.branches) < len(self.members):  # of another pool than runs' streams
            self.branches.append(torch.cuda.Stream(self.stream.device, priority=-1))  # type: ignore[no-untyped-call]
        for seat, member in enumerate(self.members):
            if member.error is not None:
                continue
            if self.stream is not None:
                self.branches[seat].wait_stream(self.stream)
            try:
                with torch.cuda.stream(None if self.stream is None else self.branches[seat]):
                    found[member] = work(member, *(value[seat] for value in values))
            except Exception as error:
                if self.capturing:
                    raise
                member.error = error
        if not found:
            raise RuntimeError("All members of a stack have failed.")
        if self.stream is not None:
            for branch in self.branches[: len(self.members)]:
                self.stream.wait_stream(branch)
        return found

    def _capture(self, size: int, kind: Hashable, runs: Sequence[Run]) -> None:
        if runs[0].device.type != "cuda":
            return
        graph = torch.cuda.CUDAGraph()
        for run in runs:
            assert run.random.step_generator is not None
            if run.random.step_draws:
                graph.register_generator_state(run.random.step_generator)
            run.random.begin_step()
        self.capturing = True
        try:
            # On a stream of its own: graphs captured on one stream share the scratch memory of its matrix products,
            # and would spoil each other's when they are replayed on several at a time.
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()), ExitStack() as inside:
                for run in runs:
                    inside.enter_context(run.random.in_step())
                self._step(size)
        except Exception as error:  # whatever a strategy or a loss did that a graph cannot hold
            self.trouble = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            torch.cuda.synchronize(runs[0].device)
            log.warning("A step could not be captured as a CUDA graph and stays eager: %s", self.trouble)
            return
        finally:
            self.capturing = False
        self.graphs[kind] = graph


class CapturedSteps:
    """A run's steps over the rows of an epoch, made by its convoy."""

    def __init__(self, stepper: Stepper, convoy: Convoy) -> None:
        self.stepper, self.run, self.convoy = stepper, stepper.run, convoy
        self.order = torch.zeros(0, dtype=torch.int64, device=self.run.device)
        self.places = torch.zeros(0, dtype=torch.int64, device=self.run.device)  # in that order, of the coming step
        self.phase: Hashable = None
        self.wants: int | None = None  # rows of the step that it waits for
        self.behind = 0  # rows of the epoch before that
        self.error: Exception | None = None  # that it made in a step of its convoy
        self.was_stacked = False
        self.stream: torch.cuda.Stream  # on a GPU, of what this run does between its steps
        self.began = False  # an epoch, of which the convoy's stream has not heard
        convoy.members.append(self)
        for model in self.run.models:
            for layer in model.plain.modules():
                if isinstance(layer, NormReLU):
                    layer.is_captured = True

    def epoch(self, parts: Sequence[Tensor], done: int) -> Iterator[int | None]:
        """Train on each part in turn, after the first ``done``; yields how many are done, None while it waits."""
        run = self.run
        rows, full = torch.cat(list(parts)), len(parts[0])
        phase = tuple(strategy.phase(run) for strategy in self.stepper.strategies)
        if (self.order.shape, self.places.shape, self.phase) != (rows.shape, (full,), phase):
            self.convoy.graphs.clear()  # they read the old order, or do what is no longer to be done
            self.convoy.seen.clear()
            self.order, self.phase = torch.empty_like(rows, device=run.device), phase
            self.places = self.order.new_empty(full)
        self.order.copy_(rows)
        self.behind = sum(map(len, parts[:done]))
        self.seek()
        self.began = True
        if run.device.type == "cuda":
            self.stream = torch.cuda.current_stream(run.device)
        for position, part in enumerate(parts[done:], done + 1):
            self.wants = len(part)
            if not self.convoy.under_way:
                yield None  # whoever joins does so before this run is asked again
            self.convoy.advance()
            while self.wants is not None:
                yield None
                self.convoy.advance()
            if self.error is not None:
                raise self.error
            self.behind += len(part)
            run.step += 1
            yield position

    @property
    def is_alone(self) -> bool:
        return len(self.convoy.members) == 1

    def seek(self) -> None:
        """Put the places where the coming step is."""
        self.places.copy_(torch.arange(self.behind, self.behind + len(self.places)))

    def next_batch(self, size: int) -> Batch:
        """The rows at the places, which move on."""
        rows = self.order[self.places[:size]]
        self.places += size
        return self.run.make_batch(rows)


def _synchronize(run: Run) -> None:
    if run.device.type == "cuda":
        torch.cuda.synchronize(run.device)
