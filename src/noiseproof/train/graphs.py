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
from typing import Any, TypeVar

import torch
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.models.stacked import Stack, Unstackable, release
from noiseproof.strategies import Batch, Run, Strategy
from noiseproof.train.step import Stepper, aim, judge

T = TypeVar("T")
log = logging.getLogger("noiseproof")

WARM = 3  # eager steps of a kind before it is captured: kernels are chosen and the optimiser's state is made in them
SEATS = 8  # of a stack: more fill a GPU no better, and what each run does by itself overlaps with the other stacks
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


class Seating:
    """Puts runs of one shape into one convoy, as long as it has not set out."""

    def __init__(self) -> None:
        self.waiting: dict[Hashable, Convoy] = {}

    def convoy_for(self, shape: Hashable) -> Convoy:
        convoy = self.waiting.get(shape)
        if convoy is None or convoy.under_way or len(convoy.members) == SEATS:
            convoy = self.waiting[shape] = Convoy(under_way=False)
        return convoy


class Convoy:
    """Runs that make their steps together. Alone, a run is a convoy by itself, and its network is not stacked."""

    def __init__(self, *, under_way: bool = True) -> None:
        self.members: list[CapturedSteps] = []
        self.under_way = under_way  # until then others may join
        self.changed = False  # since the stack was made
        self.stack: Stack | None = None
        self.stream: torch.cuda.Stream | None = None  # of the stack; a run alone has one already
        self.branches: list[torch.cuda.Stream] = []  # of that stream, one for each member
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.seen: dict[Hashable, int] = {}
        self.trouble: str | None = None  # why a capture failed; steps are eager from then on
        self.learning = False  # at the end of a stacked step
        self.broken: Exception | None = None  # what went wrong then

    def advance(self) -> None:
        """Make the step that all members wait for; nothing happens before the last of them does."""
        if self.broken is not None:
            raise self.broken
        if any(member.wants is None for member in self.members):
            return
        if not self.under_way:
            self.under_way = self.changed = True
        if self.changed:
            self._form()
        if len({member.wants for member in self.members}) > 1:
            self._part("their batches differ in size")
        try:
            if self.stack is not None and self.members[0].run.device.type == "cuda":
                self._on_own_stream()
            else:
                self._make_step()
        except Exception as error:
            if self.stack is None or self.learning:  # some have learned from this step, so none can make it again
                self.broken = error
                raise
            self._part(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            return  # whoever caused it will meet it again, alone
        for member in self.members:
            member.wants = None

    def leave(self, member: CapturedSteps) -> None:
        """Go on without ``member``."""
        self.members.remove(member)
        if self.stack is not None:
            if member.run.device.type == "cuda":
                torch.cuda.synchronize(member.run.device)  # its tensors are still in use
            release(member.run.plain_models[0])
            self.changed = True

    def _form(self) -> None:
        self.changed = False
        self.stack = None
        self.graphs.clear()
        self.seen.clear()
        if len(self.members) > 1:
            try:
                self.stack = Stack([member.run.plain_models[0] for member in self.members])
                log.info("%d runs are stacked into one network", len(self.members))
            except Unstackable as error:
                self._part(str(error))

    def _part(self, why: str) -> None:
        """Every member goes alone from here on."""
        log.info("%d runs of one shape are not stacked: %s", len(self.members), why)
        if self.stream is not None:
            self.stream.synchronize()
        for member in self.members:
            member.cursor.fill_(member.behind)
        rest, self.members = self.members[1:], self.members[:1]
        for member in rest:
            member.convoy = Convoy()
            member.convoy.members.append(member)
        self._form()

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
        assert size is not None
        runs = [member.run for member in self.members]
        kind = size, *(member.phase for member in self.members)
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if kind not in self.graphs and self.trouble is None and self.seen[kind] > WARM:
            self._capture(size, kind, runs)
        graph = self.graphs.get(kind)
        for run in runs:
            if graph is None or run.draws:
                run.begin_step()
        if graph is not None and self.stack is not None:  # whose layers draw nothing
            graph.replay()
            return
        with ExitStack() as randomness:
            for run in runs:
                randomness.enter_context(run.own_randomness())
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

        batches = self._each(begin, [() for _ in self.members])
        stack.zero_grad()
        first = self.members[0].run
        out = first.forward(stack, torch.cat([aimed.x for _, aimed in batches]))
        fields = ([None] * len(batches) if v is None else v.chunk(len(batches)) for v in out)
        outs = [Output(*own) for own in zip(*fields, strict=True)]
        judged = self._each(
            lambda member, out, aimed: judge([out], aimed, member.run, member.stepper.strategies),
            [(out, aimed) for out, (_, aimed) in zip(outs, batches, strict=True)],
        )
        first.fabric.backward(torch.stack([loss for _, loss in judged]).sum())
        stack.share_gradients()
        self.learning = True
        self._each(
            lambda member, batch, step: member.stepper.finish(batch, step),
            [(batch, step) for (batch, _), (step, _) in zip(batches, judged, strict=True)],
        )
        self.learning = False

    def _each(self, work: Callable[..., T], values: Sequence[tuple[Any, ...]]) -> list[T]:
        """``work`` of every member; on a GPU side by side, since what a run does by itself are many small kernels."""
        if self.stream is None:
            return [work(member, *own) for member, own in zip(self.members, values, strict=True)]
        found = []
        while len(self.branches) < len(values):
            self.branches.append(torch.cuda.Stream(self.stream.device))  # type: ignore[no-untyped-call]
        for member, own, branch in zip(self.members, values, self.branches, strict=False):
            branch.wait_stream(self.stream)
            with torch.cuda.stream(branch):
                found.append(work(member, *own))
        for branch in self.branches[: len(values)]:
            self.stream.wait_stream(branch)
        return found

    def _capture(self, size: int, kind: Hashable, runs: Sequence[Run]) -> None:
        if obstacle(runs[0], ()):
            return
        graph = torch.cuda.CUDAGraph()
        for run in runs:
            assert run.step_generator is not None
            if run.draws:
                graph.register_generator_state(run.step_generator)
            run.begin_step()
        try:
            # On a stream of its own: graphs captured on one stream share the scratch memory of its matrix products,
            # and would spoil each other's when they are replayed on several at a time.
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()), ExitStack() as inside:
                for run in runs:
                    inside.enter_context(run.in_step())
                self._step(size)
        except Exception as error:  # whatever a strategy or a loss did that a graph cannot hold
            self.trouble = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            torch.cuda.synchronize(runs[0].device)
            log.warning("A step could not be captured as a CUDA graph and stays eager: %s", self.trouble)
            return
        self.graphs[kind] = graph


class CapturedSteps:
    """A run's steps over the rows of an epoch, made by its convoy."""

    def __init__(self, stepper: Stepper, convoy: Convoy) -> None:
        self.stepper, self.run, self.convoy = stepper, stepper.run, convoy
        self.order = torch.zeros(0, dtype=torch.int64, device=self.run.device)
        self.cursor = torch.zeros((), dtype=torch.int64, device=self.run.device)
        self.phase: Hashable = None
        self.wants: int | None = None  # rows of the step that it waits for
        self.behind = 0  # rows of the epoch before that
        self.stream: torch.cuda.Stream  # on a GPU, of what this run does between its steps
        self.began = False  # an epoch, of which the convoy's stream has not heard
        convoy.members.append(self)

    def epoch(self, parts: Sequence[Tensor], done: int) -> Iterator[int | None]:
        """Train on each part in turn, after the first ``done``; yields how many are done, None while it waits."""
        run = self.run
        rows = torch.cat(list(parts))
        phase = tuple(strategy.phase(run) for strategy in self.stepper.strategies)
        if self.order.shape != rows.shape or self.phase != phase:
            self.convoy.graphs.clear()  # they read the old order, or do what is no longer to be done
            self.order, self.phase = torch.empty_like(rows, device=run.device), phase
        self.order.copy_(rows)
        self.behind = sum(map(len, parts[:done]))
        self.cursor.fill_(self.behind)
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
            self.behind += len(part)
            run.step += 1
            yield position

    def next_batch(self, size: int) -> Batch:
        """The rows under the cursor, which moves on."""
        rows = self.order[self.cursor + torch.arange(size, device=self.run.device)]
        self.cursor += size
        return self.run.make_batch(rows)
