"""Settings of a run that do not depend on the method: model, epochs, batches, optimiser,
schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from noiseproof.core.checks import check_count, check_fields, count, flag, number
from noiseproof.losses import Loss
from noiseproof.strategies import Strategy
from noiseproof.train.schedule import OPTIMIZERS, SCHEDULES, Factor
from noiseproof.train.task import Task

if TYPE_CHECKING:  # its import takes a second, and audits do without it
    from lightning_fabric import Fabric

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "64": "64-true"}  # names in Lightning Fabric
_IRRELEVANT = ("workers", "checkpoint_steps", "checkpoint_seconds")  # do not change the result


@dataclass(frozen=True)
class Settings:
    """Everything about a run that is neither data nor method.

    Args:
        model: spec of a backbone; ``auto`` chooses one by the shape of the inputs.
        batch_size: rows of a step over all processes; ``full`` for all rows (gradient descent).
        optimizer, schedule: specs of ``noiseproof.train.schedule``.
        clip: largest norm of the gradient; 0 for none. By default ``max_norm`` of the loss or
            a strategy, where it gives large gradients: 5 for ``ln``, 1 for ``sln``
            and for noise on gradients with selection; and 1 for ``lenet5`` where ``auto`` chose
            it, whose units the first steps otherwise leave without a gradient.
        drop_last: drop a last batch that is smaller than the others.
        compile: train the model with ``torch.compile``: minutes at the start, faster steps.
        workers: processes that read inputs from disk.
        checkpoint_steps: save a checkpoint every ``checkpoint_steps`` steps, and at the ends of
            epochs.
        checkpoint_seconds: save at the end of an epoch if the last checkpoint is older.

    >>> settings = Settings(epochs=100, batch_size=64, schedule="step:at=[0.5],factor=0.1")
    >>> (
    ...     [settings.make_schedule()(epoch, settings.epochs) for epoch in (49, 50)],
    ...     settings.batch_rows(40),
    ... )
    ([1.0, 0.1], 40)
    """

    model: str = "auto"
    epochs: int = count(1, 100)
    batch_size: int | Literal["full"] = 128
    optimizer: str = "sgd:lr=0.05,momentum=0.9,nesterov=true,weight_decay=5e-4"
    schedule: str = "cosine"
    clip: float | None = number("[0, inf)", None)
    drop_last: bool = flag(False)
    compile: bool = flag(False)
    workers: int = count(0, 0)
    checkpoint_steps: int | None = count(1, None)
    checkpoint_seconds: float = number("[0, inf)", 30.0)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.batch_size != "full":
            remedy = "Or 'full' for all rows at once."
            rows = check_count("batch_size", self.batch_size, 1, remedy)
            object.__setattr__(self, "batch_size", rows)
        self.make_optimizer()
        self.make_schedule()

    def make_optimizer(self) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
        """Return the factory of the optimiser, called with the parameters."""
        name, params = OPTIMIZERS.parse(self.optimizer, {})
        return OPTIMIZERS.create(name, **params)

    def make_schedule(self) -> Factor:
        """Return the factor of the learning rate as a function of the epoch."""
        name, params = SCHEDULES.parse(self.schedule, {})
        return SCHEDULES.create(name, **params)

    def batch_rows(self, num_rows: int) -> int:
        """Return the number of rows of a step."""
        return num_rows if self.batch_size == "full" else min(self.batch_size, num_rows)

    def clip_for(self, loss: Loss, strategies: Sequence[Strategy], task: Task) -> float | None:
        """Return the largest norm of the gradient; None: any."""
        if self.clip is not None:
            return self.clip or None
        norms = [loss.max_norm, *(strategy.max_norm for strategy in strategies)]
        if self.model == "auto" and self.model_for(task) == "lenet5":
            norms.append(1.0)
        return min(filter(None, norms), default=None)

    def model_for(self, task: Task) -> str:
        """Return the spec of the backbone.

        ``auto`` chooses one that suits the inputs and trains on a CPU.
        """
        if self.model != "auto":
            return self.model
        shape = task.input_shape
        if len(shape) != 3 or max(shape[1:]) <= 16:
            return "mlp:hidden=[256,256]"
        if max(shape[1:]) <= 28:
            return "lenet5"
        return "resnet32" if max(shape[1:]) <= 64 else "resnet50"

    def as_dict(self) -> dict[str, Any]:
        """Return the settings that determine the result."""
        return {name: value for name, value in asdict(self).items() if name not in _IRRELEVANT}


def make_fabric(precision: str = "32", **machine: Any) -> Fabric:
    """Return a Lightning Fabric with one of ``PRECISIONS``.

    Devices that this machine does not have are refused.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    if precision not in PRECISIONS:
        raise ValueError(
            f"Expected one of {', '.join(PRECISIONS)} as precision, got {precision!r}."
        )
    try:
        return Fabric(precision=PRECISIONS[precision], **machine)  # type: ignore[arg-type]  # a plain str
    except (RuntimeError, MisconfigurationException) as error:
        raise ValueError(str(error)) from error
