"""Executors make the steps of an epoch; the loop does not know which one it has.

``Eager`` is here. A faster one for GPUs is provided by ``noiseproof.accelerate``, which this
package does not import: ``noiseproof/__init__.py`` names the module, and the first training loads
it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Protocol

from torch import Tensor

from noiseproof.core.lazy import provided
from noiseproof.data.images import read_batches
from noiseproof.train.step import Stepper


class Executor(Protocol):
    """Makes the steps of a run."""

    def steps(self, parts: Sequence[Tensor], start: int) -> Iterator[int]:
        """Train on the rows of each part in turn, from number ``start`` on.

        Yields the number of steps done.

        The same number again means that no step was made: the run waits for others. It may grow by
        up to ``Stepper.steps_at_once``, which spares a GPU the time that the host takes between two
        steps.
        """
        ...

    def close(self) -> None:
        """Free what the executor holds; the weights stay."""
        ...


def make_executor(stepper: Stepper) -> Executor:
    """Return the fastest executor for the run."""
    accelerate = provided("executors")
    executor: Executor | None = accelerate and accelerate.make_executor(stepper)
    return executor or Eager(stepper)


@dataclass(eq=False)
class Eager:
    """Steps as PyTorch runs them, one kernel after the other."""

    stepper: Stepper

    def steps(self, parts: Sequence[Tensor], start: int) -> Iterator[int]:
        run = self.stepper.run
        todo = parts[start:]
        inputs: Iterator[Tensor | None] = repeat(None)
        if not isinstance(run.data.x, Tensor):  # read from disk ahead of the steps
            inputs = read_batches(
                run.data.x, [run.processes.share(rows) for rows in todo], run.workers
            )
        for position, (rows, raw) in enumerate(zip(todo, inputs, strict=False), start + 1):
            run.random.begin_step()
            with run.random.eager_step():
                self.stepper(run.make_batch(rows, raw))
            run.step += 1
            yield position

    def close(self) -> None:
        pass
