"""A scikit-learn classifier that does not memorise wrong labels."""

from __future__ import annotations

import hashlib
import json
import math
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import _check_sample_weight, assert_all_finite, check_is_fitted, validate_data
from torch import Tensor

from noiseproof.core.checks import check_count
from noiseproof.data import Dataset, Split
from noiseproof.data.arrays import check_features
from noiseproof.data.augment import Normalise, Standardise, Transform
from noiseproof.data.labels import preview
from noiseproof.data.tables import Columns, fit_columns, shifted_columns
from noiseproof.estimator.labels import encode_labels
from noiseproof.heads.linear import Linear
from noiseproof.losses import get_loss
from noiseproof.models.classifier import Classifier, build_classifier
from noiseproof.models.timm import without_weights
from noiseproof.strategies.base import check_scores
from noiseproof.strategies.row_tables import SampleWeights
from noiseproof.train import Interrupted, Method, Settings, Task, get_method, prepare, train
from noiseproof.train.auto import choose_method, estimate_noise
from noiseproof.train.checkpoint import to_json, write_tensors, write_text
from noiseproof.train.export import Predictor, export
from noiseproof.train.settings import make_fabric

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "noiseproof-estimator-1"
ROWS = 4096  # of a forward pass
_DESCRIPTION, _WEIGHTS = "estimator.json", "weights.safetensors"
_DTYPES = {"float32": torch.float32, "uint8": torch.uint8}


class NoisyLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network for noisy labels, with the interface of a scikit-learn classifier.

    Args:
        method: as ``noiseproof train --method``; ``auto`` chooses by the number of classes and rows and the estimated
            noise (``noiseproof.train.auto.choose_method``).
        model: a backbone's spec; ``auto`` chooses by the shape of the inputs.
        epochs: passes over the data.
        batch_size: rows of a step; ``full`` is all of them.
        optimizer, schedule: specs of ``noiseproof.train.schedule``.
        validation: share of rows held out, for the accuracy on given labels in ``history_`` and for
            ``& early-stopping``.
        device: auto, cpu, cuda, cuda:1, … or mps.
        random_state: a seed for weights, batches and the method; a ``RandomState`` or ``Generator`` to draw it from, or
            None for another one each time.

    Attributes:
        classes_: the labels, sorted.
        method_: the method that was trained.
        noise_rate_: the estimated share of wrong labels, if ``method`` is auto and there are at least 50 rows.
        history_: metrics of every epoch.
        predictor_: the network as a PyTorch module, from inputs (encoded by ``columns_`` if that is not None) to class
            probabilities.
        columns_: the encoding of categorical columns, or of numbers far from zero, whose mean is subtracted; else None.

    >>> from sklearn.datasets import load_wine
    >>> x, y = load_wine(return_X_y=True)
    >>> wrong = y.copy()
    >>> wrong[::5] = (wrong[::5] + 1) % 3
    >>> model = NoisyLabelClassifier(epochs=30, model="mlp:hidden=[32]").fit(x, wrong)
    >>> model.method_, round(model.noise_rate_, 1), bool((model.predict(x) == y).mean() > 0.9)
    ('elr', 0.2, True)
    """

    classes_: NDArray[Any]
    n_features_in_: int
    predictor_: Predictor
    columns_: Columns | None

    def __init__(
        self,
        method: str = "auto",
        model: str = "auto",
        *,
        epochs: int = 100,
        batch_size: int | Literal["full"] = 128,
        optimizer: str = "sgd:lr=0.05,momentum=0.9,nesterov=true,weight_decay=5e-4",
        schedule: str = "cosine",
        validation: float = 0.0,
        device: str = "auto",
        random_state: int | np.random.RandomState | np.random.Generator | None = 0,
    ) -> None:
        self.method = method
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.schedule = schedule
        self.validation = validation
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on inputs (N, D), images (N, C, H, W) or (N, H, W, C), or a DataFrame, and one label a row.

        ``sample_weight`` multiplies each row's loss, after scaling to a mean of one; a row of weight 0 is left out.
        """
        self.__dict__.pop("predictor_", None)  # if this fit fails, the last network must not predict the new classes
        x = self._inputs(X, reset=True)
        self.classes_, codes = encode_labels(X, y, "NoisyLabelClassifier")
        labels = torch.from_numpy(codes)
        keep, weights = self._weights(X, labels, sample_weight)
        settings = Settings(self.model, self.epochs, self.batch_size, self.optimizer, self.schedule)
        seed = self._seed()
        split = Split(x if bool(keep.all()) else x[keep], labels[keep])
        data = Dataset("arrays", tuple(map(str, range(len(self.classes_)))), split)
        task = prepare(data, seed=seed, validation=self.validation)
        method = self._method(task, settings, seed, weights)
        try:
            result = train(task, method, settings, seed=seed, fabric=self._fabric())
        except Interrupted:  # else a search over parameters would count Ctrl-C as a failed fit
            raise KeyboardInterrupt from None
        self.predictor_ = Predictor.of(result)
        self.history_ = result.metrics
        self._model, self._head = settings.model_for(task), method.head
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each row, (N,)."""
        predicted = self.predict_proba(X).argmax(1)  # first: it checks that the estimator is fitted
        labels: NDArray[Any] = self.classes_[predicted]
        return labels

    @torch.no_grad()
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, (N, K), in the order of ``classes_``."""
        check_is_fitted(self, "predictor_")
        x = self._inputs(X, reset=False)
        device = self._fabric().device
        predictor = self.predictor_.to(device)
        p = torch.cat([predictor(part.to(device)).double().cpu() for part in torch.split(x, ROWS)])
        probabilities: NDArray[np.float64] = (p / p.sum(1, keepdim=True)).numpy()
        return probabilities

    def predict_frame(self, X: Any) -> pd.DataFrame:
        """``predicted_label``, its probability as ``confidence``, and a column for each class, by the index of X."""
        import pandas as pd

        p = self.predict_proba(X)
        if taken := {"predicted_label", "confidence"} & set(map(str, self.classes_)):
            raise ValueError(f"Expected classes with other names than {taken.pop()!r}, a column. Use predict_proba.")
        frame = pd.DataFrame(p, index=getattr(X, "index", None), columns=[str(c) for c in self.classes_])
        frame.insert(0, "predicted_label", self.classes_[p.argmax(1)])
        frame.insert(1, "confidence", p.max(1))
        return frame

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _inputs(self, X: Any, *, reset: bool) -> Tensor:
        """Inputs as float32 (N, D), or images (N, C, H, W) as bytes or float32; ``reset`` stores their shape."""
        if reset:
            self.columns_ = None
        if getattr(X, "ndim", 2) == 4:
            x, _ = check_features(X, "X")
            if reset:
                self.n_features_in_ = math.prod(x.shape[1:])
                self.__dict__.pop("feature_names_in_", None)
        elif (reset or self.columns_ is not None) and (
            _has_categories(X) or (self.columns_ and self.columns_.categories)
        ):
            x = self._encoded(X, reset)
        else:
            x = self._numbers(X, reset)
        shape_dtype = tuple(x.shape[1:]), x.dtype
        if reset:
            self._input = shape_dtype
        elif shape_dtype != self._input:
            expected, actual = (f"shape {shape} and {dtype}" for shape, dtype in (self._input, shape_dtype))
            raise ValueError(f"Expected inputs of {expected} as in fit, got {actual}.")
        return x

    def _numbers(self, X: Any, reset: bool) -> Tensor:
        """Numbers as float32; where that is too coarse, ``columns_`` subtracts their mean first."""
        array = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32])
        with np.errstate(over="ignore"):  # infinite numbers are refused below
            numbers = np.require(array, np.float32, ["C_CONTIGUOUS", "WRITEABLE"])
        assert_all_finite(numbers, input_name="X")
        if reset:
            self.columns_ = shifted_columns(array, getattr(self, "feature_names_in_", None))
        if self.columns_ is not None:
            numbers = (array - self.columns_.shift.numpy()).astype(np.float32)
        return torch.from_numpy(numbers)

    def _encoded(self, X: Any, reset: bool) -> Tensor:
        """A DataFrame with categorical columns, one-hot."""
        if not hasattr(X, "columns"):
            raise ValueError(f"Expected a DataFrame with the columns of fit, got {type(X).__name__}.")
        validate_data(self, X, reset=reset, skip_check_array=True)
        if gaps := [str(c) for c in X.columns if bool(X[c].isna().any())]:
            raise ValueError(
                f"Input X contains NaN in {', '.join(gaps[:5])}. Drop these rows, or put a SimpleImputer before."
            )
        frame = X.set_axis([str(c) for c in X.columns], axis=1)
        if reset:
            try:
                self.columns_, _ = fit_columns(frame, list(frame.columns), "refuse", requested=True)
            except ValueError as error:
                remedy = "For gaps, put a SimpleImputer before, for text a TfidfVectorizer (ColumnTransformer)."
                raise ValueError(f"{error} {remedy}") from None
        assert self.columns_ is not None
        return self.columns_.encode(frame)

    def _weights(self, X: Any, labels: Tensor, sample_weight: Any) -> tuple[Tensor, Tensor | None]:
        """Rows of positive weight, and their weights with a mean of one, or None if all are the same."""
        keep, weights = torch.ones(len(labels), dtype=torch.bool), None
        if sample_weight is not None:
            given = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            table = torch.from_numpy(np.array(given))
            keep = table > 0
            weights = table[keep] / table[keep].mean() if bool((table[keep] != table.max()).any()) else None
        if (present := int((torch.bincount(labels[keep]) > 0).sum())) < 2:
            raise ValueError(
                f"Expected rows of at least two classes, got {present} class. Check `y` and `sample_weight`."
            )
        return keep, weights

    # --- training -----------------------------------------------------------------------------------------------------

    def _method(self, task: Task, settings: Settings, seed: int, weights: Tensor | None) -> Method:
        self.method_, self.noise_rate_ = self.method, None
        if self.method == "auto":
            self.noise_rate_ = estimate_noise(task, seed=seed)
            self.method_ = choose_method(task.train.num_classes, len(task.train), self.noise_rate_)
        method = get_method(self.method_, task, settings)
        check_scores(method.loss, "NoisyLabelClassifier")
        if weights is None:
            return method
        for strategy in method.strategies:
            if strategy.overrides("step") or strategy.mixes:
                raise ValueError(
                    f"Expected a method with a loss for each row to multiply by `sample_weight`, got {self.method_!r}: "
                    f"`{strategy}` has none. Leave the weights out, or choose another method."
                )
        return Method(method.loss, method.head, (*method.strategies, SampleWeights(weights[task.train.index])))

    def _seed(self) -> int:
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31 - 1))
        if isinstance(self.random_state, np.random.Generator):
            return int(self.random_state.integers(2**31 - 1))
        if self.random_state is None:
            return int(np.random.SeedSequence().generate_state(1)[0])
        return check_count("random_state", self.random_state, 0, "It is a seed.")

    def _fabric(self) -> Fabric:
        if self.device == "auto":
            return make_fabric(accelerator="auto", devices=1)
        if not re.fullmatch(r"cpu|(cuda|mps)(:\d+)?", str(self.device), re.ASCII):
            raise ValueError(f"Expected `device` to be auto, cpu, cuda, cuda:1, … or mps, got {self.device!r}.")
        device = torch.device(self.device)
        return make_fabric(accelerator=device.type, devices=1 if device.index is None else [device.index])

    # --- files --------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "predictor_"):
            self.predictor_.cpu()  # for machines without a GPU
        state: dict[str, Any] = super().__getstate__()
        return state

    def export(self, path: str | Path) -> Path:
        """Write the network as ``.onnx`` or ``.pt2`` (``noiseproof.train.export.export``).

        It takes the inputs of ``predict``, encoded by ``columns_.encode`` if ``columns_`` is not None.
        """
        check_is_fitted(self, "predictor_")
        if self.columns_ is not None and bool(self.columns_.shift.any()):
            far = [name for name, shift in zip(self.columns_.names, self.columns_.shift.tolist(), strict=True) if shift]
            warnings.warn(
                f"The network expects the mean subtracted from {preview(far)}, since float32 is too coarse that far "
                "from zero. Pass it the output of `columns_.encode`.",
                stacklevel=2,
            )
        shape, dtype = self._input
        return export(self.predictor_, path, torch.zeros(1, *shape, dtype=dtype), classes=list(map(str, self.classes_)))

    def save(self, folder: str | Path) -> Path:
        """Write the fitted estimator to ``folder``: weights as safetensors, everything else as JSON."""
        check_is_fitted(self, "predictor_")
        folder, predictor = Path(folder), self.predictor_.cpu()
        _check_classes(self.classes_.dtype, self.classes_.tolist())
        if not all(isinstance(model, Classifier) for model in predictor.models):
            raise ValueError(f"Expected a network to save, got `{self.method_}`. Pickle the estimator instead.")
        tensors = {name: value.detach().contiguous() for name, value in predictor.state_dict().items()}
        normalise, shape_dtype = predictor.normalise, self._input
        if isinstance(normalise, Standardise):
            tensors |= {"normalise.mean": normalise.mean, "normalise.std": normalise.std}
        columns = self.columns_
        if columns is not None:
            tensors |= {f"columns.{name}": getattr(columns, name) for name in ("fill", "mean", "std")}
        write_tensors(folder / _WEIGHTS, tensors)
        loss = predictor.loss
        parameters = {name: v.item() if isinstance(v, np.generic) else v for name, v in self.get_params().items()}
        if isinstance(self.random_state, (np.random.RandomState, np.random.Generator)):
            parameters["random_state"] = None
        description = {
            "format": FORMAT,
            "parameters": parameters,
            "classes": {"dtype": self.classes_.dtype.str, "values": self.classes_.tolist()},
            "input": {"shape": list(shape_dtype[0]), "dtype": str(shape_dtype[1]).removeprefix("torch.")},
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", [])),
            "columns": columns and {"numeric": columns.numeric, "categories": columns.categories},
            "model": self._model,
            "head": "linear" if type(predictor.models[0].head) is Linear else self._head,
            "loss": None if loss is None else str(loss),
            "models": len(predictor.models),
            "normalise": vars(normalise) if isinstance(normalise, Normalise) else None,
            "method": self.method_,
            "noise_rate": self.noise_rate_,
            "history": [{key: None if math.isnan(v) else v for key, v in row.items()} for row in self.history_],
            "weights": hashlib.sha256((folder / _WEIGHTS).read_bytes()).hexdigest(),
        }
        write_text(folder / _DESCRIPTION, to_json(description))
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load an estimator that ``save`` wrote, without running any code from the files; damaged ones are refused."""
        folder = Path(folder)
        try:
            return cls._read(folder)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error).strip().rstrip(".")
            raise ValueError(
                f"Expected an estimator that `save` wrote in {folder}, got: {what}. Save or copy it again."
            ) from error

    @classmethod
    def _read(cls, folder: Path) -> Self:
        description = json.loads((folder / _DESCRIPTION).read_text("utf-8"))
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise ValueError(f"{_DESCRIPTION} of another format than {FORMAT!r}")
        content = (folder / _WEIGHTS).read_bytes()
        if hashlib.sha256(content).hexdigest() != description["weights"]:
            raise ValueError(f"{_WEIGHTS} that do not belong to {_DESCRIPTION}, or were changed later")
        tensors = load_file(folder / _WEIGHTS)
        estimator = cls(**description["parameters"])
        dtype = np.dtype(description["classes"]["dtype"])
        _check_classes(dtype, description["classes"]["values"])
        estimator.classes_ = np.array(description["classes"]["values"], dtype=dtype)
        estimator._input = tuple(map(int, description["input"]["shape"])), _DTYPES[description["input"]["dtype"]]
        estimator.n_features_in_ = int(description["n_features_in"])
        if description["feature_names_in"]:
            estimator.feature_names_in_ = np.array(description["feature_names_in"], dtype=object)
        estimator.columns_ = None
        if description["columns"] is not None:
            estimator.columns_ = Columns(
                tuple(map(str, description["columns"]["numeric"])),
                tensors.pop("columns.fill"),
                {str(c): tuple(map(str, words)) for c, words in description["columns"]["categories"].items()},
                "refuse",
                tensors.pop("columns.mean"),
                tensors.pop("columns.std"),
            )
        estimator.predictor_ = estimator._rebuild(description, tensors)
        estimator.method_, estimator.noise_rate_ = str(description["method"]), description["noise_rate"]
        estimator._model, estimator._head = description["model"], description["head"]
        estimator.history_ = [
            {k: math.nan if v is None else float(v) for k, v in row.items()} for row in description["history"]
        ]
        return estimator

    def _rebuild(self, description: dict[str, Any], tensors: dict[str, Tensor]) -> Predictor:
        normalise: Transform | None = None
        if description["normalise"] is not None:
            normalise = Normalise(**description["normalise"])
        elif "normalise.mean" in tensors:
            normalise = Standardise(tensors.pop("normalise.mean"), tensors.pop("normalise.std"))
        loss = None if description["loss"] is None else get_loss(description["loss"])
        outputs = len(self.classes_) if loss is None else loss.num_outputs(len(self.classes_))
        model = without_weights(description["model"])  # the file has all weights
        models = [
            build_classifier(
                model, description["head"], input_shape=self._input[0], num_outputs=outputs,
                generator=torch.Generator(),
            )
            for _ in range(description["models"])
        ]  # fmt: skip
        predictor = Predictor(models, loss, normalise)
        state = predictor.state_dict()
        if other := sorted(state.keys() ^ tensors.keys()):
            raise ValueError(f"weights of another model, which differ in {', '.join(other[:3])}")
        state.update(tensors)  # keeps the metadata on versions, without which batch statistics count as an old format
        predictor.load_state_dict(state)
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            raise ValueError("weights that are not finite")
        return predictor


def _check_classes(dtype: np.dtype[Any], values: list[Any]) -> None:
    if dtype.kind not in "biufUO" or not all(isinstance(v, (str, int, float)) for v in values):
        raise ValueError(f"Expected strings or numbers as classes, to save them as JSON, got classes of dtype {dtype}.")


def _has_categories(X: Any) -> bool:
    """Whether X is a DataFrame with a column that is not numeric."""
    if not (hasattr(X, "columns") and hasattr(X, "iloc")):
        return False
    from pandas.api import types

    objects = ("integer", "floating", "mixed-integer-float", "decimal", "boolean")  # numbers, for NumPy too
    return not all(
        types.is_numeric_dtype(X.dtypes.iloc[i]) or types.infer_dtype(X.iloc[:, i]) in objects
        for i in range(X.shape[1])
    )
