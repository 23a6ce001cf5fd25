"""A trained classifier for prediction only, from raw inputs to class probabilities, and its export
to a file.

``.pt2`` is PyTorch's format (``torch.export.load(path).module()(x)``), ``.onnx`` is read by all
others.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from noiseproof.core.messages import install_command
from noiseproof.core.output import Output
from noiseproof.data.augment import Transform
from noiseproof.losses import Loss
from noiseproof.losses.base import predictors
from noiseproof.models.classifier import Classifier
from noiseproof.train.loop import Result


class Predictor(nn.Module):
    """Raw inputs (B, …) to class probabilities (B, K): normalised, through every model, averaged
    over models.

    It shares the weights of ``models`` and is in evaluation mode. Only ``het`` averages over its
    noise in prediction, too.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import Settings, prepare, train
    >>> data = get_dataset("digits")
    >>> predictor = Predictor.of(
    ...     train(prepare(data), "ln", Settings(epochs=1, model="mlp:hidden=[16]"))
    ... )
    >>> predictor(data.test.x[:3]).shape
    torch.Size([3, 10])
    """

    def __init__(
        self, models: Sequence[nn.Module], loss: Loss | None, normalise: Transform | None
    ) -> None:
        super().__init__()
        self.trained = "plain logits" if loss is None else str(loss)
        if loss is not None and not predictors(loss) and not loss.multilabel:
            loss = None  # the softmax of its logits
        self.loss = loss
        self.models = nn.ModuleList(models)
        self.normalise = normalise
        self.eval()

    @classmethod
    def of(cls, result: Result) -> Predictor:
        """Return the predictor of a finished run."""
        return cls(result.models, result.run.loss, result.run.normalise)

    @property
    def has_variance(self) -> bool:
        """Whether the head predicts the variance of its logits."""
        return self.loss is not None and bool(self.loss.needs & {"root", "scale"})

    def forward(self, x: Tensor) -> Tensor:
        return self._mean([self._probabilities(out) for out in self._outputs(x)])

    def with_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return class probabilities (B, K), and the variance of the logits that the head predicts,
        their mean (B,).
        """
        outs = self._outputs(x)
        variances = [None if self.loss is None else self.loss.variance(out) for out in outs]
        means = [variance.mean(1) for variance in variances if variance is not None]
        if not self.has_variance or not means:
            raise ValueError(
                "Expected a method whose head predicts a variance, such as ln or het, got"
                f" `{self.trained}`."
            )
        return self._mean([self._probabilities(out) for out in outs]), self._mean(means)

    def _outputs(self, x: Tensor) -> list[Output]:
        if self.normalise is not None:
            # len would be a constant
            x = self.normalise.transform(x, x.new_empty(x.shape[0], 0, dtype=torch.float32))
        return [model(x) for model in self.models]

    @staticmethod
    def _mean(each: list[Tensor]) -> Tensor:
        return torch.stack(each).mean(0) if len(each) > 1 else each[0]

    def _probabilities(self, out: Output) -> Tensor:
        return out.logits.softmax(1) if self.loss is None else self.loss.probabilities(out)


class _WithVariance(nn.Module):
    """A predictor whose call returns probabilities and variance."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.predictor.with_variance(x)


def export(
    trained: Result | Predictor,
    path: str | Path,
    example: Tensor,
    *,
    classes: Sequence[str] | None = None,
    variance: bool = False,
) -> Path:
    """Write ``trained`` to ``path``, whose ending chooses the format: ``.pt2`` (torch.export) or
    ``.onnx``.

    The exported model takes ``input``, raw inputs before any normalisation, of the dtype and shape
    of ``example`` (B, …) and any number of rows, and returns ``probabilities`` (B, K), with
    ``variance`` also the variance of the logits (B,), which the head of ``ln`` predicts. The names
    of ``classes`` are stored as JSON: in ONNX's metadata under ``classes``, in a ``.pt2`` as the
    extra file ``classes.json``. Methods that do not predict by a deterministic network, ``het`` and
    ``gp``, are refused.
    """
    path = Path(path)
    predictor = Predictor.of(trained) if isinstance(trained, Result) else trained
    if path.suffix not in (".pt2", ".onnx"):
        raise ValueError(f"Expected a path that ends in .pt2 or .onnx, got {str(path)!r}.")
    if path.suffix == ".onnx" and find_spec("onnxscript") is None:
        raise ImportError(f"Expected onnx and onnxscript. Run `{install_command('onnx')}`.")
    others = [
        type(model).__name__ for model in predictor.models if not isinstance(model, Classifier)
    ]
    draws = predictor.loss is not None and predictor.loss.samples is not None
    if others or draws:
        actual = str(predictor.loss) if predictor.loss is not None else others[0]
        raise ValueError(
            f"Expected a network with plain logits to export, got `{actual}`. Train another method."
        )
    plain = copy.deepcopy(predictor).cpu()
    module = _WithVariance(plain) if variance else plain
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    # a batch of one would be exported as a constant
    rows = example[:1].cpu().repeat(2, *[1] * (example.dim() - 1))
    names = json.dumps(list(classes)) if classes is not None else None
    path.parent.mkdir(parents=True, exist_ok=True)
    shapes = ({0: torch.export.Dim("batch")},)  # any number of rows
    program = torch.export.export(module, (rows,), dynamic_shapes=shapes)
    if path.suffix == ".pt2":
        torch.export.save(
            program, path, extra_files=None if names is None else {"classes.json": names}
        )
    else:
        outputs = ["probabilities", *(["variance"] if variance else [])]
        with _quiet():
            written = torch.onnx.export(
                program,
                dynamo=True,
                input_names=["input"],
                output_names=outputs,
                verbose=False,
                optimize=True,
                dynamic_shapes=shapes,  # for the name of the axis, which the program has lost
            )
        assert written is not None
        if names is not None:
            written.model.metadata_props["classes"] = names
        written.save(path)
    return path


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about torchvision, which is not needed, and about its own
    deprecations.
    """
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
