"""The files of a fitted ``NoisyLabelClassifier``: weights as safetensors, the rest as JSON."""

import hashlib
import json
import math
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
DTYPES = {"float32": torch.float32, "uint8": torch.uint8}


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
    if columns is not None:
        tensors |= {f"columns.{name}": getattr(columns, name) for name in ("fill", "mean", "std")}
    write_tensors(folder / WEIGHTS, tensors)
    shape, dtype = estimator._input
    description = {
        "format": FORMAT,
        "parameters": {name: _plain(value) for name, value in estimator.get_params().items()},
        "classes": {"dtype": classes.dtype.str, "values": classes.tolist()},
        "input": {"shape": list(shape), "dtype": str(dtype).removeprefix("torch.")},
        "n_features_in": estimator.n_features_in_,
        "feature_names_in": list(getattr(estimator, "feature_names_in_", [])),
        "columns": None
        if columns is None
        else {name: getattr(columns, name) for name in ("numeric", "categories", "missing")},
        "model": estimator._model,
        "head": "linear" if type(predictor.models[0].head) is Linear else estimator._head,
        "loss": None if predictor.loss is None else str(predictor.loss),
        "models": len(predictor.models),
        "normalise": vars(normalise) if isinstance(normalise, Normalise) else None,
        "method": estimator.method_,
        "noise_rate": estimator.noise_rate_,
        "history": [
            {key: None if math.isnan(value) else value for key, value in epoch.items()}
            for epoch in estimator.history_
        ],
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
    content = (folder / WEIGHTS).read_bytes()
    if hashlib.sha256(content).hexdigest() != description["weights"]:
        raise ValueError(f"{WEIGHTS} that do not belong to {DESCRIPTION}, or were changed later")
    tensors = load_file(folder / WEIGHTS)
    estimator = cls(**description["parameters"])
    dtype = np.dtype(description["classes"]["dtype"])
    values = description["classes"]["values"]
    _check_classes(dtype, values)
    estimator.classes_ = np.array(values, dtype=dtype)
    shape = tuple(map(int, description["input"]["shape"]))
    estimator._input = shape, DTYPES[description["input"]["dtype"]]
    estimator.n_features_in_ = int(description["n_features_in"])
    if description["feature_names_in"]:
        estimator.feature_names_in_ = np.array(description["feature_names_in"], dtype=object)
    estimator.columns_ = estimator.encoder_ = None
    encoding = description["columns"]
    if encoding is not None:
        estimator.columns_ = Columns(
            tuple(encoding["numeric"]),
            tensors.pop("columns.fill"),
            {column: tuple(words) for column, words in encoding["categories"].items()},
            encoding["missing"],
            tensors.pop("columns.mean"),
            tensors.pop("columns.std"),
        )
    predictor = _read_predictor(description, tensors, len(values), shape)
    estimator.predictor_ = predictor
    estimator.multilabel_ = predictor.loss is not None and predictor.loss.multilabel
    estimator.method_ = description["method"]
    estimator.noise_rate_ = description["noise_rate"]
    estimator._model = description["model"]
    estimator._head = description["head"]
    estimator.history_ = [
        {key: math.nan if value is None else value for key, value in epoch.items()}
        for epoch in description["history"]
    ]
    return estimator


def _read_predictor(
    description: dict[str, Any],
    tensors: dict[str, Tensor],
    num_classes: int,
    input_shape: tuple[int, ...],
) -> Predictor:
    normalise: Transform | None = None
    if description["normalise"] is not None:
        normalise = Normalise(**description["normalise"])
    elif "normalise.mean" in tensors:
        normalise = Standardise(tensors.pop("normalise.mean"), tensors.pop("normalise.std"))
    loss = None if description["loss"] is None else get_loss(description["loss"])
    outputs = num_classes if loss is None else loss.num_outputs(num_classes)
    model = without_weights(description["model"])  # the file has all weights
    saved = len({name.split(".")[1] for name in tensors if name.startswith("models.")})
    if saved != description["models"]:
        raise ValueError(f"weights of another model, {saved} of {description['models']} networks")
    generator = torch.Generator()
    models = [
        build_classifier(
            model,
            description["head"],
            input_shape=input_shape,
            num_outputs=outputs,
            generator=generator,
        )
        for _ in range(saved)
    ]
    predictor = Predictor(models, loss, normalise, variance=True)
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
