"""Any backbone of timm, pretrained or not, where timm is installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Generator, Tensor, nn

from noiseproof.core.grammar import format_call, parse_call
from noiseproof.models.base import Backbone


class TimmBackbone(Backbone):
    """``timm.create_model(name, pretrained, num_classes=0)``, with its random weights drawn from ``generator``.

    Args:
        name: timm's name of the model, with or without the tag of its weights (``resnet50.a1_in1k``).
        pretrained: load weights, which timm downloads or takes from its cache.
        in_channels: channels of the images; timm adapts pretrained weights to it.
        options: ``checkpoint_path``, a local file of weights, with or without its classifier; further arguments of
            ``timm.create_model``, such as ``img_size`` or ``drop_path_rate``.
    """

    pretrained = True  # or a checkpoint's, or those of a run, which are loaded later

    def __init__(
        self,
        name: str,
        *,
        pretrained: bool = False,
        in_channels: int = 3,
        generator: Generator | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        try:
            self._create = import_module("timm").create_model
        except ModuleNotFoundError as error:
            if error.name != "timm":
                raise
            raise ModuleNotFoundError(
                f"The model 'timm:{name}' needs timm, which is not installed. Install it with "
                "`pip install noiseproof[timm]`, or choose one of noiseproof's own backbones.",
                name="timm",
            ) from None
        except (RuntimeError, AttributeError, OSError) as error:  # torchvision, which timm imports, raises all of these
            raise ImportError(
                f"Expected a torchvision that fits PyTorch {torch.__version__} beside timm, its import ended with "
                f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}. Install torch and torchvision "
                "together, from one index: https://pytorch.org/get-started/locally.",
                name="torchvision",
            ) from error
        self._checkpoint = options.pop("checkpoint_path", None)
        self._arguments = {"pretrained": bool(pretrained), "num_classes": 0, "in_chans": in_channels, **options}
        self.name = name
        self.reset_parameters(generator)
        # With hidden layers in its head (MobileNetV3, VGG), a model returns more than its `num_features`.
        self.num_features = int(getattr(self.model, "head_hidden_size", None) or self.model.num_features)

    def reset_parameters(self, generator: Generator | None) -> None:
        """Create the model anew; pretrained weights are the same each time."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):  # timm draws from the global generator
            torch.default_generator.manual_seed(seed)
            self.model = self._create(self.name, **self._arguments)
        if self._checkpoint is not None:
            _load_checkpoint(self.model, Path(self._checkpoint))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out


def _load_checkpoint(model: nn.Module, path: Path) -> None:
    """Load the weights in a file, with or without those of the classifier, which the backbone lacks."""
    if not path.is_file():
        raise FileNotFoundError(f"Expected weights at `checkpoint_path` {path}, found no file.")
    state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    for key in ("state_dict", "model"):  # what training scripts of timm and torchvision save
        state = state[key] if isinstance(state.get(key), Mapping) else state
    state = {key.removeprefix("module."): value for key, value in state.items()}
    classifier = getattr(model, "pretrained_cfg", {}).get("classifier") or "fc"
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    known = model.state_dict()
    extra = [key for key in state if key not in known and not key.startswith(tuple(f"{name}." for name in names))]
    if extra or (absent := [key for key in known if key not in state]):
        raise ValueError(
            f"Expected the weights of this model in {path}, got "
            + (f"others, as {extra[0]!r}." if extra else f"none for {absent[0]!r}.")
            + " Name the model that they belong to."
        )
    model.load_state_dict({key: value for key, value in state.items() if key in known})


def spelled_out(spec: str) -> str:
    """``timm:NAME,key=value,…`` as a call like any other."""
    prefix, _, rest = spec.strip().partition(":")
    if prefix.strip() != "timm" or rest.startswith("name="):
        return spec
    if not rest:
        raise ValueError(f"Expected the name of a model after 'timm:', as in timm:resnet50, got {spec!r}.")
    return f"timm:name={rest}"


def without_weights(model: str) -> str:
    """The spec of a backbone whose weights are loaded later, so that timm reads no file."""
    name, params = parse_call(spelled_out(model))
    if name != "timm":
        has_weights = "pretrained" in params or name == "efficientnet-lite0"
        return format_call(name, params | {"pretrained": False}) if has_weights else model
    reads = any(key.startswith(("checkpoint", "pretrained_")) for key in params)
    if reads or not re.fullmatch(r"[\w./-]+", str(params["name"]), re.ASCII):  # a colon: from a hub, or a folder
        raise ValueError(f"Expected a model that is built without files, got {model!r}.")
    return format_call("timm", params | {"pretrained": False})
