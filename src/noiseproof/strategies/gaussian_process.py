"""A Gaussian process in place of a trained model (LN paper, section 6)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from noiseproof.core.output import Output
from noiseproof.heads.gaussian_process import GaussianProcessClassifier
from noiseproof.strategies.batch import Batch, Step
from noiseproof.strategies.run import Run, Strategy, register


class _Solved(nn.Module):
    """A Gaussian process as a model: its logits are log-probabilities."""

    process: GaussianProcessClassifier

    def forward(self, x: Tensor) -> Output:
        p = self.process.predict_proba(x)
        return Output(p.clamp_min(torch.finfo(p.dtype).tiny).log())


@register("gp")
@dataclass(eq=False)
class GaussianProcess(Strategy):
    """``heads.gaussian_process.GaussianProcessClassifier`` on all rows, flattened and normalised,
    not augmented.

    It is solved before the first epoch, which is the only one and whose steps do nothing. Every
    process solves it by itself. A checkpoint holds the parameters of the kernel, from which a
    resumed run solves it again.
    """

    length_scale: float | None = None
    signal: float | None = None
    noise: float | None = None
    t: float = 0.01
    dummy: bool = True
    steps: int = 50
    max_samples: int = 5000

    def __post_init__(self) -> None:
        GaussianProcessClassifier(**self.parameters)  # checks the parameters

    def setup(self, run: Run) -> None:
        # before all inputs are read
        GaussianProcessClassifier(**self.parameters).check_size(run.num_rows)
        self._x = run.fetch(run.data.x, torch.arange(run.num_rows), run.normalise)
        self._y = run.data.labels
        self._num_classes = run.num_classes
        self.model = _Solved()
        for model in run.models:
            model.trained = model.evaluated = self.model

    def start_epoch(self, run: Run) -> None:
        self._solve({})

    def _solve(self, kernel: dict[str, float]) -> None:
        process = GaussianProcessClassifier(**{**self.parameters, **kernel})
        self.model.process = process.fit(self._x, self._y, self._num_classes)

    def step(self, batch: Batch, run: Run) -> Step:
        return Step([], torch.zeros(1, len(batch.rows), device=run.device), None)

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        run.stop("a Gaussian process is solved, not trained")

    def state_dict(self) -> dict[str, Any]:
        process = self.model.process
        return {
            "length_scale": process.length_scale,
            "signal": process.signal,
            "noise": process.noise,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._solve(state)
