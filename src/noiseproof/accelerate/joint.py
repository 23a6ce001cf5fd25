"""What the runs of a stack do alike, done once for all of them.

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

from noiseproof.core.output import Output
from noiseproof.strategies import Run
from noiseproof.train.guard import DivergenceGuard
from noiseproof.train.record import Record

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
