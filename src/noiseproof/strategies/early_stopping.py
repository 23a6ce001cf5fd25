"""Early stopping by the accuracy on held-out noisy labels."""

import math
from dataclasses import dataclass

from noiseproof.core.checks import count
from noiseproof.core.messages import counted
from noiseproof.strategies.run import Run, Strategy, register


@register("early-stopping")
@dataclass(eq=False)
class EarlyStopping(Strategy):
    """End the run after ``patience`` epochs without a better accuracy on held-out noisy labels.

    A restart of the weights (``estimate-transition:restart=true``) restarts the count.
    """

    multilabel = True
    remembers = ("best", "waited")

    patience: int = count(1, 10)
    best = -math.inf
    waited = 0

    def setup(self, run: Run) -> None:
        if not run.validates:
            raise ValueError(
                "Expected noisy labels held out for early-stopping, got none. Hold out a share"
                " (validation=0.1)."
            )

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        accuracy = metrics["validation_accuracy"]
        if any(strategy.restarts(run.epoch) for strategy in run.strategies):
            self.best = -math.inf
        self.waited = 0 if accuracy > self.best else self.waited + 1
        self.best = max(self.best, accuracy)
        if self.waited >= self.patience:
            run.stop(
                f"no better noisy validation accuracy than {self.best:.4f} in"
                f" {counted(self.patience, 'epoch')}"
            )
