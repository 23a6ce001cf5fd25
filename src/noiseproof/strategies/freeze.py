"""Fine-tuning of a pretrained backbone: its head alone, or its head first."""

from dataclasses import dataclass
from typing import Any

from noiseproof.core.checks import count
from noiseproof.models.classifier import Classifier
from noiseproof.strategies.run import Run, Strategy, register


@register("freeze")
@dataclass(eq=False)
class Freeze(Strategy):
    """Train the head alone, on the features of a pretrained backbone; from the epoch ``until`` on,
    the whole network.

    A frozen backbone stays in evaluation mode, so that its batch statistics do not move. Without
    ``until`` it stays frozen; with it, the whole network starts with a trained head, since a random
    one distorts pretrained features (Kumar et al. 2022).
    """

    multilabel = True
    remembers = ("is_frozen",)

    until: int | None = count(1, None)
    is_frozen = True

    def setup(self, run: Run) -> None:
        if run.processes.world_size > 1 or run.is_sharded:
            raise ValueError(
                "Expected one process to freeze a backbone, got several. Train on one device."
            )
        self._classifiers = [
            model.plain for model in run.models if isinstance(model.plain, Classifier)
        ]
        if not self._classifiers or not all(
            model.backbone.pretrained for model in self._classifiers
        ):
            raise ValueError(
                "Expected a pretrained backbone to freeze, got one with random weights. Choose one,"
                " such as efficientnet-lite0 or timm:NAME,pretrained=true."
            )
        self._apply()

    def start_epoch(self, run: Run) -> None:
        self.is_frozen = self.phase(run)
        self._apply()

    def phase(self, run: Run) -> bool:
        return self.until is None or run.epoch < self.until

    def gradients(self, run: Run) -> None:
        if self.is_frozen:  # weights without a gradient do not move, nor decay
            for model in self._classifiers:
                for weight in model.backbone.parameters():
                    weight.grad = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._apply()

    def _apply(self) -> None:
        for model in self._classifiers:
            model.freeze(self.is_frozen)
