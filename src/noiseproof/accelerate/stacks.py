"""Runs of one shape that make their steps together, their networks stacked into one.

Each kernel is started once for all runs of a stack, where the kernels of one small network would
leave a GPU idle between two starts. What a run does by itself (targets, loss, optimiser) goes on a
stream for each run.

The time of a captured step of small networks is that of starting its kernels, about 1.5 µs each on
an H200, and eight runs that fetch a batch, compute a loss and record it, each by itself, make 260
of 290 kernels. Where all do the same, without strategies or with equal ones that ``joins``, one
kernel can do it for all of them (:class:`Joint`), on tables (S, …) of which each run holds a row;
each draws its own random numbers. :class:`JointSGD` updates all networks at once.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from noiseproof.accelerate import hopper
from noiseproof.accelerate.graphs import IN_STEP, ON_CPU, Graphed, StepGraphs, obstacle
from noiseproof.accelerate.networks import Stack, Unstackable, _Stacked, draws, release
from noiseproof.core.output import Output
from noiseproof.core.tensors import has_kernels
from noiseproof.losses import Loss
from noiseproof.strategies import Batch, Run, Step
from noiseproof.strategies.randomness import Randomness
from noiseproof.train.executor import Executor, make_executor
from noiseproof.train.guard import DivergenceGuard, StopRequest
from noiseproof.train.record import Record
from noiseproof.train.step import Stepper, compute_loss, make_targets

T = TypeVar("T")
log = logging.getLogger("noiseproof")

# Runs of a stack at most. More convolutions fill a GPU no better, and what each run does by itself
# overlaps with other stacks; the kernels of linear layers are so short that starting them takes
# half of the time of eight runs.
STACK_SIZE = 8
LINEAR_STACK_SIZE = 16
# called for each run by itself
APART = {*IN_STEP, "start_epoch", "end_epoch"} - {"targets", "after_step"}
SPARE = 16  # a stack's prepared inputs take at most the free memory over this


class StackPool:
    """Puts runs of one shape into one stack, until the stack makes its first step."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop
        self.open: dict[Hashable, RunStack] = {}
        self.stack_size = 1  # the most runs of a stack like the last one that was made

    def make_executor(self, stepper: Stepper) -> Executor:
        """An executor that stacks the run with others of its shape, or one for the run alone where
        that cannot be.
        """
        if stepper.is_plain and obstacle(stepper) in (None, ON_CPU):
            return Stacked(stepper, self)
        return make_executor(stepper)

    def stack_for(self, shape: Hashable, network: nn.Module) -> RunStack:
        stack = self.open.get(shape)
        if stack is None or stack.is_closed or len(stack.members) == max_members(network):
            stack = self.open[shape] = RunStack(self)
        return stack


class Stacked(Graphed):
    """Executes the steps of one run together with the other runs of its stack; alone once it has
    left the stack.
    """

    def __init__(self, stepper: Stepper, pool: StackPool) -> None:
        super().__init__(stepper)
        self.pool = pool
        # None before the first step, and once the run goes on alone
        self.stack: RunStack | None = None
        self.has_joined = False
        self.position = 0  # steps of the epoch that are done
        self.next_position = 0  # once those that are pending are made
        # rows of each step that the run waits for; empty once they are made
        self.pending: deque[int] = deque()
        self.error: Exception | None = None  # of this run alone, in a step of the stack
        self.was_stacked = False
        self.stream: torch.cuda.Stream  # on a GPU, of what this run does between its steps
        self.stream_is_ahead = False  # whether it has work that the stack's stream must wait for

    def steps(self, parts: Sequence[Tensor], start: int) -> Iterator[int]:
        if self.load_epoch(parts, start) and self.stack is not None:
            self.stack.graphs.clear()
            self.stack.part()
        self.stream_is_ahead = True
        if self.run.device.type == "cuda":
            self.stream = torch.cuda.current_stream(self.run.device)
        sizes = list(map(len, parts))
        self._await_steps(sizes, start)
        if not self.has_joined:
            self.has_joined = True
            shape = self.stepper.architecture, self.run.num_rows, *sizes, self.run.step, start
            self.stack = self.pool.stack_for(shape, self.run.models[0].plain)
            self.stack.members.append(self)
        if self.stack is not None and not self.stack.is_closed:
            yield start  # others join before this run is resumed
        while self.position < len(sizes):
            while self.pending:
                if self.stack is not None:
                    self.stack.advance()
                else:
                    self.make_step(self.pending[0])
                    self.count_step(self.pending.popleft())
                if self.pending:
                    yield self.position
            if self.error is not None:
                raise self.error
            # The next steps are pending before the run is resumed, so that one round of all runs
            # makes them.
            self._await_steps(sizes, self.next_position)
            yield self.position

    def _await_steps(self, sizes: Sequence[int], position: int) -> None:
        """Wait for the next steps, ``position`` of an epoch with batches of these ``sizes`` being
        done.
        """
        self.pending.extend(sizes[position : position + self.stepper.steps_at_once()])
        self.position = position
        self.next_position = position + len(self.pending)

    def close(self) -> None:
        if self.stack is not None:
            self.stack.leave(self)
        super().close()


class RunStack:
    """Runs that make their steps together, until one leaves; the others then form a smaller
    stack.
    """

    def __init__(self, pool: StackPool) -> None:
        self.pool = pool
        self.members: list[Stacked] = []
        self.is_closed = False  # from the first step on: no other run can join
        self.has_changed = True  # since the networks were stacked
        self.network: Stack | None = None  # None for a single member
        self.can_join = False  # whether the members do all but their updates alike
        self.joint: Joint | None = None  # does it for all of them, from the next step on
        self.joint_update: JointSGD | None = None  # and their updates, where they are alike
        self.graphs = StepGraphs()
        self.stream: torch.cuda.Stream | None = None  # of the stacked network
        self.branches: list[torch.cuda.Stream] = []  # from that stream, one for each member

    def advance(self) -> None:
        """Make the steps that the members wait for, as soon as all of them do."""
        if not all(member.pending for member in self.members):
            return
        if self.pool.stop.requested and self.members[0].position:
            return  # all members stop after the same step, so that they can be stacked again
        self.is_closed = True
        if self.has_changed:
            self._form()
        if not self.members:  # dissolved: each makes this step alone when it is resumed
            return
        try:
            if self.network is not None and self.members[0].run.device.type == "cuda":
                self._steps_on_stream()
            else:
                self._make_steps()
        except Exception as error:
            if self.network is None:
                raise
            # the stack itself failed (no kernel, no memory): each makes this step alone
            self._dissolve(error)

    def leave(self, member: Stacked) -> None:
        """Go on without ``member``."""
        if self.network is not None:
            _synchronize(member.run)  # its tensors are still in use
        self.part()
        if member.was_stacked:
            release(member.run.models[0].plain)
        self.members.remove(member)
        self.has_changed = True
        if not self.members:
            self._unstack()

    def part(self) -> None:
        """Give each member tables of its own again."""
        shared = [each for each in (self.joint, self.joint_update) if each is not None]
        for each in shared:
            each.release()
        if shared and self.members:
            # each member goes on, on its own stream, with what was copied here
            _synchronize(self.members[0].run)
        self.joint = self.joint_update = None

    def _unstack(self) -> None:
        self.part()
        self.network = None
        self.graphs.clear()

    def _form(self) -> None:
        self._unstack()
        self.has_changed = False
        runs = [member.run for member in self.members]
        if len(runs) == 1:
            return
        try:
            if not self.members[0].was_stacked:
                two_rows = runs[0].fetch(runs[0].data.x, torch.arange(2), runs[0].normalise)
                if draws(runs[0].models[0].plain, partial(runs[0].forward, x=two_rows)):
                    raise Unstackable("its layers draw random numbers")
            self.network = Stack([run.models[0].plain for run in runs], widest=self._widest())
        except Exception as error:
            self._dissolve(error)
            return
        for member in self.members:
            # the copies made here come before the step
            member.was_stacked = member.stream_is_ahead = True
        self.can_join = can_join(self.members)
        self.pool.stack_size = max_members(runs[0].models[0].plain)
        log.info("%d runs are stacked into one network", len(runs))

    def _widest(self) -> int:
        """Return how many channels stacked convolutions have at most.

        There are more for images of some sizes, in 16-bit precision and full stacks, where that was
        measured to pay.
        """
        run = self.members[0].run
        is_full = len(self.members) >= STACK_SIZE or self.members[0].was_stacked
        is_16_bit = "16" in str(run.fabric._precision.precision)  # such as bf16-mixed
        # without the sides of images, `hopper.widest` gives what holds everywhere else
        sides = (
            run.data.x.shape[2:] if isinstance(run.data.x, Tensor) and is_16_bit and is_full else ()
        )
        return hopper.widest(next(run.models[0].plain.parameters()), sides)

    def _dissolve(self, error: Exception) -> None:
        """Let every member go on alone, on the stream of its run."""
        reason = (
            str(error) if isinstance(error, Unstackable) else f"{type(error).__name__}: {error}"
        )
        log.info(
            "%d runs of one shape are not stacked: %s",
            len(self.members),
            " ".join(reason.split())[:200],
        )
        _synchronize(self.members[0].run)
        self._unstack()
        for member in self.members:
            release(member.run.models[0].plain)
            member.seek()
            member.stack = None
            if member.error is not None:
                member.pending.clear()
        _synchronize(self.members[0].run)
        self.members = []

    def _steps_on_stream(self) -> None:
        """Make the steps after what members did between two epochs, and before what they do
        next.
        """
        self.stream = self.stream or torch.cuda.Stream(self.members[0].run.device)  # type: ignore[no-untyped-call]
        for member in self.members:
            if member.stream_is_ahead:
                self.stream.wait_stream(member.stream)
                member.stream_is_ahead = False
        with torch.cuda.stream(self.stream):
            self._make_steps()
            done = self.stream.record_event()
        for member in self.members:
            member.stream.wait_event(done)

    def _make_steps(self) -> None:
        """Make all steps that are pending; an error leaves those that were not made."""
        while all(member.pending for member in self.members):
            size = self.members[0].pending[0]
            assert all(member.pending[0] == size for member in self.members)
            self._make_step(size)
            for member in self.members:
                member.pending.popleft()
                if member.error is None:
                    member.count_step(size)

    def _make_step(self, size: int) -> None:
        network = self.network
        if network is None:
            (member,) = self.members
            member.make_step(size)
            return
        kind = size, *(member.phase for member in self.members)
        runs = [member.run for member in self.members]
        # here, on the stream that has waited for what the members did
        if self.joint is None and self.can_join:
            self.joint = Joint(self.members, network)
        step = self._stacked_step if self.joint is None else self._joint_step

        def step_and_note() -> None:
            step(network, size)
            if not self.graphs.is_capturing:
                for run in runs:
                    run.random.note_draws()

        self.graphs.run(kind, runs, step_and_note, layers_draw=False)

    def _joint_step(self, network: Stack, size: int) -> None:
        """All is done once for all members, but for updates of different kinds."""
        joint = self.joint
        assert joint is not None
        for member in self.members:
            member.stepper.begin(size)
        network.clear_gradients()
        first = self.members[0].run
        with self._restored_on_error(network):
            batch = make_targets(joint.next_batch(size), joint.run, joint.run.strategies)
            out = first.forward(network, batch.x)
            losses = joint.losses(out, batch)
            first.fabric.backward(losses, torch.full_like(losses, 1 / size))
        self._update(network)
        joint.observe(out, losses, batch)

    def _update(self, network: Stack) -> None:
        steppers = [member.stepper for member in self.members]
        if self.joint_update is None and not self.graphs.is_capturing and can_update(steppers):
            self.joint_update = JointSGD(steppers, network)
        if self.joint_update is not None:
            assert self.joint is not None
            self.joint_update()
            for strategy in self.joint.run.strategies:
                strategy.after_step(self.joint.run)
            return
        network.share_gradients()
        self._for_each(lambda member: member.stepper.update())

    def _stacked_step(self, network: Stack, size: int) -> None:
        """Each member makes its targets, its loss and its update; one network computes the outputs
        of all.
        """

        def begin(member: Stacked) -> tuple[Batch, Batch]:
            batch = member.next_batch(size)
            member.stepper.begin(batch.count)
            return batch, make_targets(batch, member.run, member.stepper.strategies)

        def loss_of(member: Stacked, out: Output) -> tuple[Step, Tensor]:
            return compute_loss([out], batches[member][1], member.run, member.stepper.strategies)

        def finish(member: Stacked) -> None:
            member.stepper.finish(batches[member][0], losses[member][0])

        with self._restored_on_error(network):
            batches = self._for_each(begin)
            network.clear_gradients()
            first = self.members[0].run
            count = len(self.members)
            # in place of the inputs of a member that has failed
            filler = next(iter(batches.values()))[1].x
            x = torch.cat(
                [batches[member][1].x if member in batches else filler for member in self.members]
            )
            columns = (
                [None] * count if v is None else v.chunk(count) for v in first.forward(network, x)
            )
            outs = [Output(*fields) for fields in zip(*columns, strict=True)]
            losses = self._for_each(loss_of, outs)
            first.fabric.backward(torch.stack([loss for _, loss in losses.values()]).sum())
        network.share_gradients()
        self._for_each(finish)

    @contextmanager
    def _restored_on_error(self, network: Stack) -> Iterator[None]:
        """Put back what an eager step has written before it failed."""
        is_eager = not self.graphs.is_capturing
        backups = [(value, value.clone()) for value in self._written(network)] if is_eager else []
        try:
            yield
        except Exception:
            for value, backup in backups:
                value.copy_(backup)
            raise

    def _written(self, network: Stack) -> Iterator[Tensor]:
        """What a step writes before its gradients are known: a member may have to make the step
        again, alone.
        """
        yield from network.buffers()
        for strategy in (
            strategy for member in self.members for strategy in member.stepper.strategies
        ):
            if strategy.overrides("targets", "outputs", "revise"):
                yield from (
                    value for value in strategy.state_dict().values() if isinstance(value, Tensor)
                )

    def _for_each(self, work: Callable[..., T], *values: Sequence[Any]) -> dict[Stacked, T]:
        """``work`` of every member with its ``values``; on a GPU side by side, since these are many
        small kernels.

        A member that fails fails alone: the step of the others goes on, and the error is raised
        when it is resumed.
        """
        results: dict[Stacked, T] = {}
        # from another pool than the streams of the runs
        while self.stream is not None and len(self.branches) < len(self.members):
            self.branches.append(torch.cuda.Stream(self.stream.device, priority=-1))  # type: ignore[no-untyped-call]
        for i, member in enumerate(self.members):
            if member.error is not None:
                continue
            if self.stream is not None:
                self.branches[i].wait_stream(self.stream)
            try:
                with torch.cuda.stream(None if self.stream is None else self.branches[i]):
                    results[member] = work(member, *(value[i] for value in values))
            except Exception as error:
                if self.graphs.is_capturing:
                    raise
                member.error = error
        if not results:
            raise RuntimeError("All members of a stack have failed.")
        if self.stream is not None:
            for branch in self.branches[: len(self.members)]:
                self.stream.wait_stream(branch)
        return results


def max_members(network: nn.Module) -> int:
    """How many networks like ``network`` are stacked at most."""
    return (
        STACK_SIZE
        if any(isinstance(layer, nn.Conv2d) for layer in network.modules())
        else LINEAR_STACK_SIZE
    )


def _synchronize(run: Run) -> None:
    if run.device.type == "cuda":
        torch.cuda.synchronize(run.device)


class Joint:
    """The batches, losses and records of S runs, which ``can_join``."""

    def __init__(self, members: Sequence[Stacked], network: Stack) -> None:
        runs = [member.run for member in members]
        self.members = tuple(members)
        self.first = runs[0]
        self.run = _joint_run(runs, network)
        self.inputs = _prepared(runs[0])
        self.order = _rows([member.order for member in members])  # (S, n): the rows of the epoch
        self.given = torch.stack([run.data.given for run in runs])  # (S, N)
        records, guards = zip(*map(_observers, members), strict=True)
        # (S, N), like the next
        self.loss = _rows([record.seen["loss"] for record in records]).squeeze(1)
        self.prediction = _rows([record.seen["prediction"] for record in records]).squeeze(1)
        self.total = _rows([guard.total for guard in guards])  # (S,), like the next
        self.good_steps = _rows([guard.good_steps for guard in guards])
        # Neighbours of one loss: the number of the first, and of the one after the last.
        groups = groupby(range(len(runs)), key=lambda number: str(runs[number].loss))
        numbered = [list(group) for _, group in groups]
        self.groups = [(group[0], group[-1] + 1) for group in numbered]
        for record in records:
            record.observed = True

    def next_batch(self, size: int) -> Batch:
        """The S·B rows of the coming step."""
        places = self.members[0].places
        first = self.first
        augment = self.first.augment
        self.run.epoch = first.epoch
        self.run.count = size
        table = self.order.index_select(1, places[:size])
        places += size
        rows = table.flatten()
        if self.inputs is None:
            drawn = None
            if augment is not None and augment.columns:
                runs = [member.run for member in self.members]
                drawn = torch.cat(
                    [augment.draw(size, run.random.generator("augment", run.step)) for run in runs]
                )
            x = first.prepare(first.data.x[rows], augment, drawn)  # type: ignore[index]
        else:
            x = self.inputs[rows]
            x = x.permute(0, 3, 1, 2) if x.dim() == 4 else x
        given = self.given.gather(1, table).flatten()
        return Batch(x=x, target=given, given=given, rows=rows, all_rows=rows, count=size)

    def losses(self, out: Output, batch: Batch) -> Tensor:
        """The loss of each row, (S, B)."""
        parts = [
            loss(_cut(out, rows), batch.target[rows]) for loss, rows in self._by_loss(batch.count)
        ]
        return _concatenated(parts).view(-1, batch.count)

    def _by_loss(self, size: int) -> list[tuple[Loss, slice]]:
        """Return each loss with its rows, ``size`` of each run."""
        return [
            (self.members[start].run.loss, slice(start * size, end * size))
            for start, end in self.groups
        ]

    @torch.no_grad()
    def observe(self, out: Output, losses: Tensor, batch: Batch) -> None:
        """Do what record and guard of each run do after a step."""
        rows = batch.rows.view_as(losses)
        scores = [loss.scores(_cut(out, part)) for loss, part in self._by_loss(batch.count)]
        self.loss.scatter_(1, rows, losses.detach().to(self.loss.dtype))
        self.prediction.scatter_(1, rows, _concatenated(scores).argmax(1).view_as(rows))
        self.total += losses.sum(1)
        self.good_steps += self.total * 0 == 0

    def release(self) -> None:
        """Let the runs go on by themselves, each with tables of its own."""
        for member in self.members:
            record, guard = _observers(member)
            for table in (
                member.order,
                record.seen["loss"],
                record.seen["prediction"],
                guard.total,
                guard.good_steps,
            ):
                table.data = table.data.clone()
            member.seek()
            if self.run.evaluated[0] is not self.run.models[0].plain:
                release(member.run.evaluated[0])


class _Draws(Randomness):
    """Numbers for the rows of several runs, each from the generator of its run."""

    def __init__(self, parts: Sequence[Randomness]) -> None:
        self.parts = parts

    def _draw(
        self, draw: Callable[..., Tensor], purpose: str, batch: Batch, shape: tuple[int, ...]
    ) -> Tensor:
        return torch.cat([part._draw(draw, purpose, batch, shape) for part in self.parts])


def _joint_run(runs: Sequence[Run], network: Stack) -> Run:
    """The runs as their strategies see them when one call serves all: of S·B rows, and with stacked
    models.
    """
    run = copy.copy(runs[0])
    models = [run.models[0] for run in runs]
    run.random = _Draws([each.random for each in runs])
    own = (
        network
        if models[0].evaluated is models[0].trained
        else Stack([m.evaluated for m in models], trains=False)
    )
    run.models = [replace(models[0], plain=network, evaluated=own)]
    run.strategies = [copy.copy(strategy) for strategy in run.strategies]
    for strategy in run.strategies:
        strategy.bind(run)
    return run


def _prepared(run: Run) -> Tensor | None:
    """All inputs as models take them, images (N, H, W, C); None where they change, or would fill a
    GPU.

    Normalising each batch starts a kernel per operation, which takes longer than its computation.
    """
    x = run.data.x
    augment = run.augment
    assert isinstance(x, Tensor)
    if augment is not None and augment.columns:
        return None
    one = run.prepare(x[:1], augment)
    free = torch.cuda.mem_get_info(run.device)[0] if run.device.type == "cuda" else 2**30
    if one.nbytes * len(x) > free / SPARE:
        return None
    whole = torch.cat([run.prepare(part, augment) for part in torch.split(x, 4096)])
    return whole.permute(0, 2, 3, 1).contiguous() if whole.dim() == 4 else whole


def can_join(members: Sequence[Stacked]) -> bool:
    """Whether all members do the same with rows of the same inputs, up to the loss and its
    record.
    """
    return (
        all(map(_is_simple, members)) and len({_inputs_key(member.run) for member in members}) == 1
    )


def _is_simple(member: Stacked) -> bool:
    run = member.run
    observers = member.stepper.observers
    return (
        all(
            each.joins and each.name and not each.remembers and not each.overrides(*APART)
            for each in run.strategies
        )
        and not run.loss_draws
        and run.loss.independent_rows
        and run.data.soft is None
        and not run.data.multilabel
        and not run.loss.state_dict()  # such as weights of the classes, which may differ
        and len(observers) == 2
        and not _observers(member)[0].samples
    )


def _inputs_key(run: Run) -> tuple[object, ...]:
    return id(run.data.x), run.augment, run.dtype, run.epochs, *map(str, run.strategies)


def _observers(member: Stacked) -> tuple[Record, DivergenceGuard]:
    record, guard = (getattr(observe, "__self__", None) for observe in member.stepper.observers)
    assert isinstance(record, Record) and isinstance(guard, DivergenceGuard)
    return record, guard


def _rows(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors stacked, (S, …); each becomes a view into the stack."""
    stacked = torch.stack(list(tensors))
    for seat, tensor in enumerate(tensors):
        tensor.data = stacked[seat]
    return stacked


def _cut(out: Output, rows: slice) -> Output:
    return Output._make(None if field is None else field[rows] for field in out)


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0]  # each copy is one more kernel


class JointSGD:
    """SGD with momentum of all members: m ← μm + g + λw, w ← w − ηm, with the learning rate η of
    each member.
    """

    def __init__(self, steppers: Sequence[Stepper], network: Stack) -> None:
        self.groups = [_optimizer(stepper).param_groups[0] for stepper in steppers]
        self.clip = steppers[0].clip
        # with momenta (S, …) of their parameters
        self.layers: list[tuple[_Stacked, dict[str, Tensor]]] = []
        self.members: list[Tensor] = []  # momenta of the members: views into those of the stack
        for stacked, layers in network.layers:
            self.layers.append((stacked, {}))
            stacked.defer(self.clip is None)
            for name, _ in stacked.named_parameters(recurse=False):
                parameters = [layer.get_parameter(name) for layer in layers]
                momenta = [
                    _momentum(stepper, part)
                    for stepper, part in zip(steppers, parameters, strict=True)
                ]
                joined = torch.stack([stacked.inner(each) for each in momenta])
                for seat, each in enumerate(momenta):
                    each.data = stacked.outer(joined[seat])
                self.layers[-1][1][name] = joined
                self.members += momenta

    @torch.no_grad()
    def __call__(self) -> None:
        first = self.groups[0]
        weight = self.layers[0][0].weight
        device = weight.device
        dtype = weight.dtype
        rates = torch.stack(
            [torch.as_tensor(group["lr"], device=device, dtype=dtype) for group in self.groups]
        )
        options = rates, first["momentum"], first["weight_decay"], first["nesterov"]
        if self.clip is not None:
            self._limit(self.clip)
        for stacked, momenta in self.layers:
            if stacked.factors is not None:
                update_products(stacked, momenta, *options)
                continue
            for name, momentum in momenta.items():
                weight = stacked.get_parameter(name)
                if weight.grad is not None:
                    update(weight, weight.grad, momentum, *options)
            if stacked.rounded is not None:  # the first update, from gradients
                stacked.rounded.copy_(stacked.weight)

    def _limit(self, clip: float) -> None:
        """Limit the norm of each member's gradient to ``clip``, as PyTorch does."""
        parts = [
            p.grad for layer, _ in self.layers for p in layer.parameters() if p.grad is not None
        ]
        grads = [part.view(len(part), -1) for part in parts]
        norms = torch.stack([grad.norm(dim=1) for grad in grads]).norm(dim=0)  # (S,)
        scales = (clip / (norms + 1e-6)).clamp(max=1)[:, None]
        for grad in grads:
            grad.mul_(scales)

    def release(self) -> None:
        """Give each member a momentum of its own again."""
        for each in self.members:
            each.data = each.data.clone()
        for stacked, _ in self.layers:
            stacked.defer(False)


def can_update(steppers: Sequence[Stepper]) -> bool:
    """Whether all members take a step of SGD with the same options, the learning rate apart, and
    have a momentum.
    """
    options = set()
    for stepper in steppers:
        optimizer = _optimizer(stepper)
        groups = optimizer.param_groups
        state = optimizer.state
        if not isinstance(optimizer, torch.optim.SGD) or len(groups) > 1:
            return False
        if not all(state[part].get("momentum_buffer") is not None for part in groups[0]["params"]):
            return False  # without momentum, or before the first step
        options.add(
            (stepper.clip, *(groups[0][name] for name in ("momentum", "weight_decay", "nesterov")))
        )
    return len(options) == 1


def update(
    weight: Tensor,
    grad: Tensor,
    momentum: Tensor,
    rates: Tensor,
    factor: float,
    decay: float,
    nesterov: bool,
) -> None:
    """A step of SGD of S tensors (S, …) in place, with a learning rate each, (S,)."""
    if has_kernels(weight) and weight.dtype == torch.float32:
        from noiseproof.accelerate.layer_kernels import sgd  # needs Triton

        sgd(weight, grad.contiguous(), momentum, rates, factor, decay, nesterov)
        return
    grad = grad.add(weight, alpha=decay) if decay else grad
    momentum.mul_(factor).add_(grad)
    step = grad.add(momentum, alpha=factor) if nesterov else momentum
    weight.addcmul_(step, rates.view(-1, *[1] * (weight.dim() - 1)), value=-1)


def update_products(layer: _Stacked, momenta: dict[str, Tensor], *options: Any) -> None:
    """``update`` of S linear layers from the factors of their gradients, which are used up."""
    weight = layer.weight
    bias = layer.bias
    rounded = layer.rounded
    assert layer.factors is not None and rounded is not None
    grad, x = layer.factors
    layer.factors = None
    if rounded.dtype != weight.dtype == torch.float32 and has_kernels(weight):
        from noiseproof.accelerate.layer_kernels import linear_sgd  # needs Triton

        linear_sgd(grad, x, rounded, weight, momenta["weight"], bias, momenta.get("bias"), *options)
        return
    update(
        weight, torch.bmm(grad.mT, x).to(weight.dtype).view_as(weight), momenta["weight"], *options
    )
    if bias is not None:
        update(bias, grad.sum(1, dtype=bias.dtype), momenta["bias"], *options)
    rounded.copy_(weight)


def _optimizer(stepper: Stepper) -> torch.optim.Optimizer:
    optimizer = stepper.run.models[0].optimizer
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)  # Fabric wraps it
    return inner


def _momentum(stepper: Stepper, parameter: Tensor) -> Tensor:
    momentum: Tensor = _optimizer(stepper).state[parameter]["momentum_buffer"]
    return momentum
