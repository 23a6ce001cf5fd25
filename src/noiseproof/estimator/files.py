"""The files of a fitted ``NoisyLabelClassifier``: weights as safetensors, the rest as JSON."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from noiseproof.data.augment import Normalise, Standardise, Transform
from noiseproof.data.tables import Columns
from noiseproof.heads.linear import Linear
from noiseproof.losses import get_loss
from noiseproof.models.classifier import Classifier, build_classifier
from noiseproof.models.pretrained import without_weights
from noiseproof.train.checkpoint import to_json, write_tensors, write_text
from noiseproof.train.export import Predictor

FORMAT = "noiseproof-estimator-1"
DESCRIPTION = "estimator.json"
WEIGHTS = "weights.safetensors"
DTYPES = {"torch.float32": torch.float32, "torch.uint8": torch.uint8}
ATTRIBUTES = ("n_features_in_", "method_", "noise_rate_", "history_")  # numbers, words, lists
MOMENTS = ("fill", "mean", "std")  # tensors of an encoding of columns


def write_estimator(estimator: Any, folder: Path) -> None:
    """Write a fitted estimator with a network."""
    predictor = estimator.predictor_.cpu()
    classes = estimator.classes_
    _check_classes(classes.dtype, classes.tolist())
    if not all(isinstance(model, Classifier) for model in predictor.models):
        raise ValueError(
            f"Expected a network to save, got `{estimator.method_}`. Pickle the estimator instead."
        )
    tensors = {name: value.detach().contiguous() for name, value in predictor.state_dict().items()}
    normalise = predictor.normalise
    if isinstance(normalise, Standardise):
        tensors |= {"normalise.mean": normalise.mean, "normalise.std": normalise.std}
    columns = estimator.columns_
    encoding = None
    if columns is not None:
        tensors |= {f"columns.{name}": getattr(columns, name) for name in MOMENTS}
        encoding = {name: getattr(columns, name) for name in ("numeric", "categories", "missing")}
    write_tensors(folder / WEIGHTS, tensors)
    shape, dtype = estimator._input
    description = {
        "format": FORMAT,
        "parameters": {name: _plain(value) for name, value in estimator.get_params().items()},
        "attributes": {name: getattr(estimator, name) for name in ATTRIBUTES},
        "classes": {"dtype": classes.dtype.str, "values": classes.tolist()},
        "input": {"shape": list(shape), "dtype": str(dtype)},
        "feature_names": list(getattr(estimator, "feature_names_in_", [])),
        "columns": encoding,
        "model": estimator._model,
        "head": "linear" if type(predictor.models[0].head) is Linear else estimator._head,
        "loss": None if predictor.loss is None else str(predictor.loss),
        "normalise": vars(normalise) if isinstance(normalise, Normalise) else None,
        "weights": hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest(),
    }
    write_text(folder / DESCRIPTION, to_json(description))


def _plain(value: Any) -> Any:
    """A parameter as JSON has it; generators are not saved."""
    if isinstance(value, (np.random.RandomState, np.random.Generator)):
        return None
    return value.item() if isinstance(value, np.generic) else value


def read_estimator(cls: Any, folder: Path) -> Any:
    """Read what ``write_estimator`` wrote; damaged files raise errors of many kinds."""
    description = json.loads((folder / DESCRIPTION).read_text("utf-8"))
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ValueError(f"{DESCRIPTION} of another format than {FORMAT!r}")
    if hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest() != description["weights"]:
        raise ValueError(f"{WEIGHTS} that do not belong to {DESCRIPTION}, or were changed later")
    tensors = load_file(folder / WEIGHTS)
    estimator = cls(**description["parameters"])
    for name in ATTRIBUTES:
        setattr(estimator, name, description["attributes"][name])
    dtype = np.dtype(description["classes"]["dtype"])
    values = description["classes"]["values"]
    _check_classes(dtype, values)
    estimator.classes_ = np.array(values, dtype=dtype)
    shape = tuple(description["input"]["shape"])
    estimator._input = (shape, DTYPES[description["input"]["dtype"]])
    if description["feature_names"]:
        estimator.feature_names_in_ = np.array(description["feature_names"], dtype=object)
    estimator.columns_ = estimator.encoder_ = None
    encoding = description["columns"]
    if encoding is not None:
        fill, mean, std = (tensors.pop(f"columns.{name}") for name in MOMENTS)
        categories = {column: tuple(words) for column, words in encoding["categories"].items()}
        numeric = tuple(encoding["numeric"])
        estimator.columns_ = Columns(numeric, fill, categories, encoding["missing"], mean, std)
    predictor = _read_predictor(description, tensors, len(values), shape)
    estimator.predictor_ = predictor
    estimator.multilabel_ = predictor.loss is not None and predictor.loss.multilabel
    estimator._model = description["model"]
    estimator._head = description["head"]
    return estimator


def _read_predictor(
    description: dict[str, Any],
    tensors: dict[str, Tensor],
    num_classes: int,
    shape: tuple[int, ...],
) -> Predictor:
    normalise: Transform | None = None
    if description["normalise"] is not None:
        normalise = Normalise(**description["normalise"])
    elif "normalise.mean" in tensors:
        normalise = Standardise(tensors.pop("normalise.mean"), tensors.pop("normalise.std"))
    loss = None if description["loss"] is None else get_loss(description["loss"])
    model = without_weights(description["model"])  # the file has all weights
    num_models = len({name.split(".")[1] for name in tensors if name.startswith("models.")})
    models = [
        build_classifier(
            model,
            description["head"],
            input_shape=shape,
            num_outputs=num_classes if loss is None else loss.num_outputs(num_classes),
            generator=torch.Generator(),
        )
        for _ in range(num_models)
    ]
    predictor = Predictor(models, loss, normalise)
    predictor.load_state_dict(tensors)
    if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
        raise ValueError("weights that are not finite")
    return predictor


def _check_classes(dtype: np.dtype[Any], values: list[Any]) -> None:
    if dtype.kind not in "biufUO" or not all(isinstance(v, (str, int, float)) for v in values):
        raise ValueError(
            "Expected strings or numbers as classes, to save them as JSON, got classes of dtype"
            f" {dtype}."
        )
