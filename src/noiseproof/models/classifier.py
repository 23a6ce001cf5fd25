"""A backbone with a head on top: what is trained."""

from collections.abc import Mapping, Sequence
from typing import Self

from torch import Generator, Tensor, nn

from noiseproof.core.output import Output
from noiseproof.heads import Head, get_head
from noiseproof.models import get_model
from noiseproof.models.base import INITS, Backbone


class Classifier(nn.Module):
    """Inputs (B, …) to a head's ``Output``."""

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.is_frozen = False

    def freeze(self, frozen: bool = True) -> None:
        """Train the head alone: the backbone has no gradients and stays in evaluation mode.

        With ``frozen=False``, train both again.
        """
        self.is_frozen = frozen
        self.backbone.requires_grad_(not frozen)
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.is_frozen:
            self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Output:
        out: Output = self.head(self.backbone(x))
        return out


def build_classifier(
    model: str,
    head: str,
    *,
    input_shape: Sequence[int],
    num_outputs: int,
    generator: Generator,
    starts: Mapping[str, float] | None = None,
) -> Classifier:
    """A classifier whose weights come from ``generator``, the backbone's first, filled as the
    model's paper fills them.

    ``starts`` are factors of the head's first weights by field of ``Output``, which a loss has
    (``Loss.starts``).
    """
    backbone = get_model(model, input_shape=input_shape, generator=generator)
    if not isinstance(getattr(backbone, "num_features", None), int):
        raise TypeError(
            f"Expected the model {model!r} to have an integer `num_features`, the width of its"
            " features, got none. Write `self.num_features = …` in its __init__."
        )
    top = get_head(head, backbone.num_features, num_outputs)
    top.reset_parameters(INITS[backbone.init], generator, starts)
    return Classifier(backbone, top)
