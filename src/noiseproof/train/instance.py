"""Predictions of a model trained on clean labels, averaged over epochs, for instance-dependent
noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from noiseproof.data import Dataset
from noiseproof.losses import get_loss
from noiseproof.strategies import Run, Strategy, log_probs, per_row
from noiseproof.train.job import EpochProgress
from noiseproof.train.loop import train
from noiseproof.train.methods import Method
from noiseproof.train.settings import Settings
from noiseproof.train.task import prepare

if TYPE_CHECKING:  # its import takes a second, and audits do without it
    from lightning_fabric import Fabric

# Chen et al. 2020 on CIFAR-10. Their code creates a new optimiser in every epoch, which resets its
# momentum; this one does not.
CHEN_CIFAR10 = Settings(
    model="wrn-28-2-sln:width=10",
    epochs=150,
    optimizer="sgd:lr=0.1,momentum=0.9,weight_decay=5e-4",
    schedule="step:at=[60,120],factor=0.2",
)


class _Average(Strategy):
    """The average of the predictions on the augmented training inputs after every epoch (Chen et
    al. 2020).
    """

    remembers = ("total", "epochs")
    epochs = 0

    def setup(self, run: Run) -> None:
        shape = (run.num_rows, run.num_classes)
        self.total = torch.zeros(shape, dtype=torch.float64, device=run.device)

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        self.epochs += 1
        self.total += per_row(
            run, lambda _, outs: log_probs(run.loss, outs).double().exp(), augment="chen"
        )


def averaged_predictions(
    data: Dataset,
    settings: Settings | None = None,
    *,
    seed: int = 0,
    fabric: Fabric | None = None,
    out: str | Path | None = None,
    progress: EpochProgress | None = None,
) -> Tensor:
    """Return S̄ (N, K): the average over epochs of the predictions of a model trained with cross
    entropy on the dataset.

    ``corrupt(data, "chen:rate=0.4", features=averaged_predictions(data, CHEN_CIFAR10))`` is the
    noise of Chen et al. 2020, Algorithm 1 (SLN paper, section 4.1). With ``out``, an interrupted
    training resumes.

    >>> from noiseproof.data import get_dataset
    >>> averaged_predictions(
    ...     get_dataset("digits"), Settings(epochs=2, model="mlp:hidden=[8]")
    ... ).shape
    torch.Size([1437, 10])
    """
    method = Method(get_loss("ce"), strategies=(_Average(),))
    result = train(
        prepare(data),
        method,
        settings,
        seed=seed,
        fabric=fabric,
        out=out,
        resume=out is not None,
        progress=progress,
    )
    (averaging,) = result.strategies
    assert isinstance(averaging, _Average)
    return (averaging.total / averaging.epochs).cpu()
