"""What the runs of a stack do alike, done once for all of them: batches, losses, records, and updates of the networks.

The time of a captured step of small networks is that of starting its kernels, about 1.5 µs each on an H200, and eight
runs that fetch a batch, compute a loss and record it, each by itself, make 260 of 290 kernels. Runs without strategies
all do the same, so one kernel can do it for all of them, on tables (S, …) of which each run holds a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from noiseproof.accelerate.networks import Stack
from noiseproof.core.output import Output
from noiseproof.core.tensors import has_kernels
from noiseproof.strategies import Run
from noiseproof.train.guard import DivergenceGuard
from noiseproof.train.record import Record
from noiseproof.train.step import Stepper

if TYPE_CHECKING:
    from noiseproof.accelerate.stacks import Stacked


class Joint:
    """The batches, losses and records of S runs, which ``can_join``."""

    def __init__(self, members: Sequence[Stacked]) -> None:
        runs = [member.run for member in members]
        self.members, self.first = tuple(members), runs[0]
        self.order = _rows([member.order for member in members])  # (S, n): the rows of the epoch
        self.given = torch.stack([run.data.given for run in runs])  # (S, N)
        records, guards = zip(*map(_observers, members), strict=True)
        self.loss = _rows([record.seen["loss"] for record in records]).squeeze(1)  # (S, N), like the next
        self.prediction = _rows([record.seen["prediction"] for record in records]).squeeze(1)
        self.total = _rows([guard.total for guard in guards])  # (S,), like the next
        self.good_steps = _rows([guard.good_steps for guard in guards])
        # Runs of one loss: the number of the first, and of the one after the last.
        numbered = [list(group) for _, group in groupby(range(len(runs)), key=lambda i: _loss_key(runs[i]))]
        self.groups = [(group[0], group[-1] + 1) for group in numbered]
        for record in records:
            record.observed = True

    def next_batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs (S·B, …), given labels (S, B) and rows (S, B) of the coming step."""
        places = self.members[0].places
        rows = self.order.index_select(1, places[:size])
        places += size
        first = self.first
        assert isinstance(first.data.x, Tensor)
        return first.prepare(first.data.x[rows.flatten()], first.augment), self.given.gather(1, rows), rows

    def losses(self, out: Output, given: Tensor) -> Tensor:
        """The loss of each row, (S, B)."""
        size = given.shape[1]
        parts = [
            self.members[start].run.loss(_cut(out, start * size, end * size), given[start:end].flatten())
            for start, end in self.groups
        ]
        return torch.cat(parts).view_as(given)

    @torch.no_grad()
    def observe(self, out: Output, losses: Tensor, rows: Tensor) -> None:
        """Do what record and guard of each run do after a step."""
        size = rows.shape[1]
        scores = [
            self.members[start].run.loss.scores(_cut(out, start * size, end * size)) for start, end in self.groups
        ]
        self.loss.scatter_(1, rows, losses.detach().to(self.loss.dtype))
        self.prediction.scatter_(1, rows, torch.cat(scores).argmax(1).view_as(rows))
        self.total += losses.sum(1)
        self.good_steps += self.total * 0 == 0

    def release(self) -> None:
        """Let the runs go on by themselves, each with tables of its own."""
        for member in self.members:
            record, guard = _observers(member)
            for table in (member.order, record.seen["loss"], record.seen["prediction"], guard.total, guard.good_steps):
                table.data = table.data.clone()
            member.seek()


def can_join(members: Sequence[Stacked]) -> bool:
    """Whether all members only fetch rows of the same inputs, compute a loss of them and record it."""
    return all(map(_is_simple, members)) and len({_inputs_key(member.run) for member in members}) == 1


def _is_simple(member: Stacked) -> bool:
    run, observers = member.run, member.stepper.observers
    return (
        not run.strategies
        and not run.loss_draws
        and run.loss.independent_rows
        and run.data.soft is None
        and not run.data.multilabel
        and not run.loss.state_dict()  # such as weights of the classes, which may differ
        and (run.augment is None or not run.augment.columns)  # draws nothing
        and len(observers) == 2
        and not _observers(member)[0].samples
    )


def _inputs_key(run: Run) -> tuple[object, ...]:
    return id(run.data.x), run.augment, run.dtype, run.epochs


def _loss_key(run: Run) -> str:
    return str(run.loss)


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


def _cut(out: Output, start: int, end: int) -> Output:
    return Output._make(None if field is None else field[start:end] for field in out)


class JointSGD:
    """SGD with momentum of all members: m ← μm + g + λw, w ← w − ηm, with the learning rate η of each member."""

    def __init__(self, steppers: Sequence[Stepper], network: Stack) -> None:
        self.groups = [_optimizer(stepper).param_groups[0] for stepper in steppers]
        self.weights: list[Tensor] = []  # (S, …), like the next
        self.momenta: list[Tensor] = []
        self.members: list[Tensor] = []  # momenta of the members: views into those of the stack
        for stacked, layers in network.layers:
            for name, weight in stacked.named_parameters(recurse=False):
                parameters = [layer.get_parameter(name) for layer in layers]
                momenta = [_momentum(stepper, part) for stepper, part in zip(steppers, parameters, strict=True)]
                joined = torch.stack([stacked.inner(each) for each in momenta])
                for seat, each in enumerate(momenta):
                    each.data = stacked.outer(joined[seat])
                self.weights.append(weight)
                self.momenta.append(joined)
                self.members += momenta

    @torch.no_grad()
    def __call__(self) -> None:
        """Update the weights from the gradients of the stack."""
        first = self.groups[0]
        device, dtype = self.weights[0].device, self.weights[0].dtype
        rates = torch.stack([torch.as_tensor(group["lr"], device=device, dtype=dtype) for group in self.groups])
        for weight, momentum in zip(self.weights, self.momenta, strict=True):
            if weight.grad is not None:
                options = first["momentum"], first["weight_decay"], first["nesterov"]
                update(weight, weight.grad, momentum, rates, *options)

    def release(self) -> None:
        """Give each member a momentum of its own again."""
        for each in self.members:
            each.data = each.data.clone()


def can_update(steppers: Sequence[Stepper]) -> bool:
    """Whether all members take a step of SGD with the same options, the learning rate apart, and have a momentum."""
    options = set()
    for stepper in steppers:
        optimizer = _optimizer(stepper)
        groups, state = optimizer.param_groups, optimizer.state
        if stepper.clip is not None or not isinstance(optimizer, torch.optim.SGD) or len(groups) > 1:
            return False
        if not all(state[part].get("momentum_buffer") is not None for part in groups[0]["params"]):
            return False  # without momentum, or before the first step
        options.add(tuple(groups[0][name] for name in ("momentum", "weight_decay", "nesterov")))
    return len(options) == 1


def update(
    weight: Tensor, grad: Tensor, momentum: Tensor, rates: Tensor, factor: float, decay: float, nesterov: bool
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


def _optimizer(stepper: Stepper) -> torch.optim.Optimizer:
    optimizer = stepper.run.models[0].optimizer
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)  # Fabric wraps it
    return inner


def _momentum(stepper: Stepper, parameter: Tensor) -> Tensor:
    momentum: Tensor = _optimizer(stepper).state[parameter]["momentum_buffer"]
    return momentum
