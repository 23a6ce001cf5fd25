"""A scikit-learn classifier that does not memorise wrong labels."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from scipy.sparse import csr_matrix, issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import _check_sample_weight, assert_all_finite, check_is_fitted, validate_data
from torch import Tensor

from noiseproof.core.cluster import NUMBER_WORK, threads_for
from noiseproof.core.messages import preview
from noiseproof.data import Dataset, NoisyData, Split
from noiseproof.data.arrays import check_features
from noiseproof.data.augment import Normalise, Standardise, Transform
from noiseproof.data.frames import as_frame, is_foreign_table, library_of
from noiseproof.data.tables import Columns, fit_columns
from noiseproof.estimator.choice import best_method, held_out
from noiseproof.estimator.inputs import (
    EncodedInputs,
    PictureInputs,
    RandomState,
    SparseInputs,
    TextInputs,
    are_paths,
    as_words,
    draw_seed,
    encode_indicators,
    encode_soft_labels,
    number_columns,
)
from noiseproof.estimator.robust import RobustClassifier
from noiseproof.heads.linear import Linear
from noiseproof.losses import get_loss
from noiseproof.models.classifier import Classifier, build_classifier
from noiseproof.models.pretrained import without_weights
from noiseproof.strategies.base import check_scores
from noiseproof.strategies.row_tables import SampleWeights
from noiseproof.train import Interrupted, Method, Result, Settings, Task, get_method, prepare, train
from noiseproof.train.auto import choose_method, estimate_noise
from noiseproof.train.checkpoint import to_json, write_tensors, write_text
from noiseproof.train.export import Predictor, export
from noiseproof.train.settings import make_fabric

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.train.job import EpochProgress

FORMAT = "noiseproof-estimator-1"
ROWS = 4096  # of a forward pass
NEAR = 0.05  # accuracy by which trees may be behind for their labels to be repaired
MIN_STOPPING = 20  # rows of a class with which trees stop early: a tenth of four fifths must have all classes
_DESCRIPTION = "estimator.json"
_WEIGHTS = "weights.safetensors"
_DTYPES = {"float32": torch.float32, "uint8": torch.uint8}


class NoisyLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network for noisy labels, with the interface of a scikit-learn classifier.

    Args:
        method: as ``noiseproof train --method``, or ``trees``: boosted trees in a ``RobustClassifier``. ``auto``
            chooses by the estimated noise and the accuracy on held-out rows; where rows have several labels it is ce.
        model: a backbone's spec; ``auto`` chooses by the shape of the inputs.
        epochs: passes over the data.
        batch_size: rows of a step; ``full`` is all of them.
        optimizer, schedule: specs of ``noiseproof.train.schedule``.
        validation: share of rows held out, for the accuracy on given labels in ``history_`` and for
            ``& early-stopping``.
        features: of texts and of paths of pictures, a name of ``noiseproof features``; ``auto`` is that of the audit.
        class_weight: a factor on the loss of each class, as a dict by label, or ``balanced``: N / (K·N_k), as in
            scikit-learn; with one label a row.
        verbose: 1 logs each epoch to the logger ``noiseproof``, which writes to stderr unless it has a handler.
        device: auto, cpu, cuda, cuda:1, … or mps.
        random_state: a seed for weights, batches and the method; a ``RandomState`` or ``Generator`` to draw it from, or
            None for another one each time.

    Attributes:
        classes_: the labels, sorted; of rows with several labels the columns of ``y``.
        multilabel_: whether rows have several labels.
        method_: the method that was trained.
        held_out_accuracy_: the accuracy by the given labels of a fifth of the rows, of each method that ``auto`` tried;
            only if ``method`` is auto.
        noise_rate_: the estimated share of wrong labels, if ``method`` is auto and there are at least 50 rows.
        history_: metrics of every epoch.
        predictor_: the network as a PyTorch module, from inputs (encoded by ``columns_`` if that is not None) to class
            probabilities; with the method ``trees`` there is ``trees_`` instead.
        columns_: the encoding of categorical columns, of numbers with gaps, or of numbers far from zero, whose mean is
            subtracted; else None.
        encoder_: the encoding of texts, of paths of pictures or of a sparse matrix; else None.

    >>> from sklearn.datasets import load_wine
    >>> x, y = load_wine(return_X_y=True)
    >>> wrong = y.copy()
    >>> wrong[::5] = (wrong[::5] + 1) % 3
    >>> model = NoisyLabelClassifier(epochs=30, model="mlp:hidden=[32]").fit(x, wrong)
    >>> model.method_, round(model.noise_rate_, 1), bool((model.predict(x) == y).mean() > 0.9)
    ('elr', 0.2, True)
    """

    classes_: NDArray[Any]
    multilabel_: bool
    n_features_in_: int
    predictor_: Predictor
    trees_: RobustClassifier
    columns_: Columns | None
    encoder_: EncodedInputs | None
    held_out_accuracy_: dict[str, float]
    noise_rate_: float | None

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
        features: str = "auto",
        class_weight: Literal["balanced"] | dict[Any, float] | None = None,
        verbose: int = 0,
        device: str = "auto",
        random_state: RandomState = 0,
    ) -> None:
        self.method = method
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.schedule = schedule
        self.validation = validation
        self.features = features
        self.class_weight = class_weight
        self.verbose = verbose
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None) -> Self:
        """Train on inputs and one label a row, several labels, or soft labels: rows (N, K) of probabilities or counts.

        Inputs are numbers (N, D), dense or sparse, images (N, C, H, W) or (N, H, W, C), a DataFrame, a list of texts or
        a list of paths of pictures. ``sample_weight`` multiplies each row's loss, after scaling to a mean of one; a row
        of weight 0 is left out. Several labels are a matrix (N, K) of zeros and ones, as in scikit-learn, whose classes
        are the columns of a DataFrame, or their numbers. ``X_val`` and ``y_val``, one label a row, are validated on
        instead of the share ``validation`` of the rows.
        """
        for name in ("predictor_", "trees_", "held_out_accuracy_"):
            self.__dict__.pop(name, None)  # if this fit fails, the last model must not predict the new classes
        seed = draw_seed(self.random_state)
        x = self._inputs(X, reset=True, seed=seed)
        indicators = encode_indicators(x, y)
        self.multilabel_ = indicators is not None
        soft = None
        if indicators is None:
            self.classes_, codes, soft = encode_soft_labels(x, y, "NoisyLabelClassifier")
        else:
            self.classes_, codes = indicators
        labels = torch.from_numpy(codes)
        keep, weights = self._weights(x, labels, self._with_class_weight(codes, soft, sample_weight))
        held = self._validation_rows(X_val, y_val)
        if soft is None and not self.multilabel_ and (present := int((torch.bincount(labels[keep]) > 0).sum())) < 2:
            raise ValueError(
                f"Expected rows of at least two classes, got {present} class. Check `y` and `sample_weight`."
            )
        x = x if bool(keep.all()) else x[keep]
        rows = _Rows(x, labels[keep], weights, None if soft is None else soft[keep])
        self.method_ = self.method
        self.noise_rate_ = None
        if self.method == "auto":
            self.method_ = "ce" if self.multilabel_ else self._choose(rows, seed)
        if self.method_ == "trees":
            if self.multilabel_:
                raise ValueError(
                    "Expected one label a row for the method trees, got several. Use another method, or "
                    "sklearn.multioutput.MultiOutputClassifier(RobustClassifier())."
                )
            if soft is not None:
                raise ValueError("Expected one label a row for the method trees, got soft labels. Use argmax(axis=1).")
            self.trees_ = self._fit_trees(rows, seed)
            self.history_ = []
            return self
        with told_epochs(self.verbose, self.epochs) as progress:
            result = self._train(self.method_, rows, seed, self.validation, held, progress)
        self.predictor_ = Predictor.of(result, variance=True)
        self.history_ = result.metrics
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each row, (N,); of several, (N, K), 1 for each that is more likely than not."""
        p = self.predict_proba(X)  # first: it checks that the estimator is fitted
        if self.multilabel_:
            return (p > 0.5).astype(np.int64)
        predicted = p.argmax(1)
        labels: NDArray[Any] = self.classes_[predicted]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of each class, (N, K), in the order of ``classes_``; of several labels, of each by itself."""
        check_is_fitted(self)
        x = self._inputs(X, reset=False)
        if hasattr(self, "trees_"):
            return np.asarray(self._trees_proba(x), dtype=np.float64)
        return self._network_proba(self.predictor_, x)

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithm of ``predict_proba``, (N, K); −inf where a probability is zero."""
        with np.errstate(divide="ignore"):
            logs: NDArray[np.float64] = np.log(self.predict_proba(X))
        return logs

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores (N, K), of which the largest is predicted; of two classes log p₁ − log p₀, (N,).

        They are the logarithms of the probabilities; of several labels a row, log p − log (1 − p) of each.
        """
        p = np.maximum(self.predict_proba(X), np.finfo(np.float32).tiny)
        if self.multilabel_:
            odds: NDArray[np.float64] = np.log(p) - np.log(np.maximum(1 - p, np.finfo(np.float32).eps))
            return odds
        scores = np.log(p)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_uncertainty(self, X: Any) -> NDArray[np.float64]:
        """The variance of the logits that the head of ``ln`` or ``het`` predicts for each row, (N,), their mean.

        It is large where labels of such rows are noisy (LN paper, section 3.1), also where the prediction is certain.
        """
        check_is_fitted(self)
        x = self._inputs(X, reset=False)
        self._check_variance()
        return self._network_outputs(self.predictor_, x)[1]

    def _check_variance(self) -> None:
        if not self._predicts_variance():
            raise ValueError(
                f"Expected a method whose head predicts a variance, such as ln or het, got {self.method_!r}."
            )

    def _predicts_variance(self) -> bool:
        return hasattr(self, "predictor_") and self.predictor_.has_variance

    def predict_frame(self, X: Any) -> pd.DataFrame:
        """``predicted_label``, its probability as ``confidence``, and a column for each class, by the index of X.

        After ``confidence`` there is the ``variance`` of ``predict_uncertainty``, where the method predicts one. Of
        several labels a row, there are the columns of the classes alone.
        """
        import pandas as pd

        p = self.predict_proba(X)
        if self.multilabel_:
            return pd.DataFrame(p, index=X.index if hasattr(X, "iloc") else None, columns=list(map(str, self.classes_)))
        columns = ["predicted_label", "confidence", *(["variance"] if self._predicts_variance() else [])]
        if taken := set(columns) & set(map(str, self.classes_)):
            raise ValueError(f"Expected classes with other names than {taken.pop()!r}, a column. Use predict_proba.")
        frame = pd.DataFrame(p, index=X.index if hasattr(X, "iloc") else None, columns=[str(c) for c in self.classes_])
        frame.insert(0, "predicted_label", self.classes_[p.argmax(1)])
        frame.insert(1, "confidence", p.max(1))
        if self._predicts_variance():
            frame.insert(2, "variance", self.predict_uncertainty(X))
        return frame

    # Inputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.classifier_tags.multi_label = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_") or hasattr(self, "trees_")

    def _inputs(self, X: Any, *, reset: bool, seed: int = 0) -> Tensor:
        """Inputs as float32 (N, D), or images (N, C, H, W) as bytes or float32; ``reset`` stores their shape."""
        X = as_frame(X) if library_of(X) in ("polars", "pyarrow") and is_foreign_table(X) else X
        if reset:
            self.columns_ = self.encoder_ = None
        if self.encoder_ is not None or as_words(X) is not None or issparse(X):
            x = self._features(X, reset, seed)
        elif getattr(X, "ndim", 2) == 4:
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

    def _features(self, X: Any, reset: bool, seed: int) -> Tensor:
        """Texts, paths of pictures or a sparse matrix as features."""
        words = as_words(X)
        if reset and words is not None:
            for name in ("n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)
            self.encoder_ = PictureInputs(self.features) if are_paths(words) else TextInputs(self.features)
            return self.encoder_.fit_encode(words, seed)
        if reset:
            self.encoder_ = SparseInputs()
        if isinstance(self.encoder_, SparseInputs):
            matrix = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32])
            matrix = csr_matrix(matrix)
            return self.encoder_.fit_encode(matrix, seed) if reset else self.encoder_.encode(matrix)
        if self.encoder_ is None:  # fitted to dense numbers
            return self._numbers(X.toarray() if issparse(X) else X, reset)
        if words is None:
            raise ValueError(f"Expected {self.encoder_.kind} as in fit, a list, got {type(X).__name__}.")
        return self.encoder_.encode(words)

    def _numbers(self, X: Any, reset: bool) -> Tensor:
        """Numbers as float32; ``columns_`` fills gaps, and subtracts the mean where float32 is too coarse."""
        array = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan")
        with np.errstate(over="ignore"):  # infinite numbers are refused below
            assert_all_finite(array.astype(np.float32), input_name="X", allow_nan=True)
        if reset:
            self.columns_ = number_columns(array, getattr(self, "feature_names_in_", None))
        if np.isnan(array).any():
            array = np.where(np.isnan(array), self._fill(), array)
        if self.columns_ is not None:
            array = array - self.columns_.shift.numpy()
        return torch.from_numpy(np.require(array, np.float32, ["C_CONTIGUOUS", "WRITEABLE"]))

    def _fill(self) -> NDArray[np.float64]:
        """What replaces missing numbers, (D,): the median, or the mean where no number was missing in fit."""
        if self.columns_ is not None:
            return self.columns_.fill.numpy()
        normalise = self.predictor_.normalise if hasattr(self, "predictor_") else None
        return normalise.mean.numpy() if isinstance(normalise, Standardise) else np.array(np.nan)  # trees take NaN

    def _encoded(self, X: Any, reset: bool) -> Tensor:
        """A DataFrame with categorical columns, one-hot."""
        if not hasattr(X, "columns"):
            raise ValueError(f"Expected a DataFrame with the columns of fit, got {type(X).__name__}.")
        validate_data(self, X, reset=reset, skip_check_array=True)
        frame = X.set_axis([str(c) for c in X.columns], axis=1)
        if reset:
            try:
                self.columns_, _ = fit_columns(frame, list(frame.columns), "impute", requested=True)
            except ValueError as error:
                remedy = "For text, put a TfidfVectorizer before (ColumnTransformer)."
                raise ValueError(f"{error} {remedy}") from None
        assert self.columns_ is not None
        return self.columns_.encode(frame)

    def _weights(self, x: Tensor, labels: Tensor, sample_weight: Any) -> tuple[Tensor, Tensor | None]:
        """Rows of positive weight, and their weights with a mean of one, or None if all are the same."""
        keep = torch.ones(len(labels), dtype=torch.bool)
        weights = None
        if sample_weight is not None:
            given = _check_sample_weight(sample_weight, x.numpy(), dtype=np.float64, ensure_non_negative=True)
            table = torch.from_numpy(np.array(given))
            keep = table > 0
            weights = table[keep] / table[keep].mean() if bool((table[keep] != table.max()).any()) else None
        return keep, weights

    def _with_class_weight(self, codes: NDArray[np.int64], soft: Tensor | None, sample_weight: Any) -> Any:
        if self.class_weight is None:
            return sample_weight
        if self.multilabel_ or soft is not None:
            raise ValueError("Expected one label a row beside `class_weight`, got a matrix. Use `sample_weight`.")
        weights = compute_sample_weight(self.class_weight, self.classes_[codes])
        return weights if sample_weight is None else weights * np.asarray(sample_weight)

    def _validation_rows(self, X: Any, y: Any) -> _Rows | None:
        if X is None and y is None:
            return None
        if X is None or y is None:
            raise ValueError(f"Expected both `X_val` and `y_val`, got `{'y_val' if X is None else 'X_val'}` alone.")
        if self.validation or self.multilabel_:
            other = f"validation={self.validation}" if self.validation else "several labels a row in `y`"
            raise ValueError(f"Expected no `validation` and one label a row beside `X_val` and `y_val`, got {other}.")
        try:
            x = self._inputs(X, reset=False)
            labels = np.asarray(y)
        except ValueError as error:  # scikit-learn calls all inputs X
            text = re.sub(r"\bX\b", "X_val", str(error))
            raise ValueError(f"Expected inputs as `X` in `X_val`. {text}") from error
        if labels.shape != (len(x),):
            raise ValueError(f"Expected `y_val` of shape ({len(x)},), one label a row, got {labels.shape}.")
        if unknown := sorted({*labels.tolist()} - {*self.classes_.tolist()}, key=str):
            raise ValueError(f"Expected labels of `y` in `y_val`, got {preview(unknown)}.")
        position = {label: k for k, label in enumerate(self.classes_.tolist())}  # columns of soft labels are not sorted
        return _Rows(x, torch.tensor([position[label] for label in labels.tolist()]), None)

    # Training

    def _choose(self, rows: _Rows, seed: int) -> str:
        """The method that ``auto`` stands for: candidates are trained without the held-out rows, and predict them."""
        task = self._task(rows, seed, self.validation)
        self.noise_rate_ = estimate_noise(task, seed=seed)
        preferred = choose_method(len(self.classes_), len(task.train), self.noise_rate_)
        self.held_out_accuracy_ = {}
        held = torch.from_numpy(held_out(rows.labels.numpy(), seed))
        if not bool(held.any()):
            return preferred
        fitted = rows.where(~held)
        asked = rows.where(held)
        is_right = {}
        for name in dict.fromkeys((preferred, "ce")):
            p = self._network_proba(Predictor.of(self._train(name, fitted, seed)), asked.x)
            is_right[name] = p.argmax(1) == asked.labels.numpy()
        weights = asked.numpy_weights()
        accuracy = {name: float(np.average(right, weights=weights)) for name, right in is_right.items()}
        if rows.x.dim() == 2 and self.encoder_ is None and rows.soft is None:
            is_right["trees"] = self._trees_right(fitted, asked, max(accuracy.values()) - NEAR, seed)
            accuracy["trees"] = float(np.average(is_right["trees"], weights=weights))
        self.held_out_accuracy_ = accuracy
        return best_method(preferred, is_right, weights)

    def _trees_right(self, fitted: _Rows, asked: _Rows, worth: float, seed: int) -> NDArray[np.bool_]:
        """Which rows trees predict as given, (H,); below an accuracy of ``worth``, without repaired labels."""
        x = asked.x.numpy()
        labels = asked.labels.numpy()
        plain = boosted_trees(fitted.labels, seed)
        with threads_for(NUMBER_WORK * fitted.x.numel()):
            plain.fit(fitted.x.numpy(), fitted.labels.numpy(), fitted.numpy_weights())
            is_right: NDArray[np.bool_] = plain.predict(x) == labels
        if float(np.average(is_right, weights=asked.numpy_weights())) < worth:
            return is_right
        return np.asarray(self._fit_trees(fitted, seed).predict(x) == labels)

    def _task(self, rows: _Rows, seed: int, validation: float) -> Task:
        data = Dataset("arrays", tuple(map(str, range(len(self.classes_)))), Split(rows.x, rows.labels, soft=rows.soft))
        task = prepare(data, seed=seed, validation=validation)
        return (
            replace(task, normalise=None, augment=None)
            if self.encoder_ is not None and self.encoder_.has_one_scale
            else task
        )

    def _train(
        self,
        name: str,
        rows: _Rows,
        seed: int,
        validation: float = 0.0,
        held: _Rows | None = None,
        progress: EpochProgress | None = None,
    ) -> Result:
        task = self._task(rows, seed, validation)
        if held is not None:
            index = len(rows.x) + torch.arange(len(held.x))  # rows that no other row is
            task = replace(task, validation=NoisyData(held.x, held.labels, task.train.classes, index))
        settings = Settings(self.model, self.epochs, self.batch_size, self.optimizer, self.schedule)
        method = self._method(name, task, settings, rows.weights)
        try:
            result = train(task, method, settings, seed=seed, fabric=self._fabric(), progress=progress)
        except Interrupted:  # else a search over parameters would count Ctrl-C as a failed fit
            raise KeyboardInterrupt from None
        self._model = settings.model_for(task)
        self._head = method.head
        return result

    def _method(self, name: str, task: Task, settings: Settings, weights: Tensor | None) -> Method:
        method = get_method(name, task, settings)
        check_scores(method.loss, "NoisyLabelClassifier")
        if weights is None:
            return method
        for strategy in method.strategies:
            if strategy.overrides("step", "penalties") or strategy.mixes:
                raise ValueError(
                    f"Expected a method with a loss for each row to multiply by `sample_weight`, got {name!r}: "
                    f"`{strategy}` adds others. Leave the weights out, or choose another method."
                )
        return Method(method.loss, method.head, (*method.strategies, SampleWeights(weights[task.train.index])))

    def _fit_trees(self, rows: _Rows, seed: int) -> RobustClassifier:
        model = RobustClassifier(boosted_trees(rows.labels, seed), random_state=seed % 2**31)
        return model.fit(rows.x.flatten(1).numpy(), rows.labels.numpy(), rows.numpy_weights())

    def _trees_proba(self, x: Tensor) -> NDArray[np.float64]:
        p = np.zeros((len(x), len(self.classes_)))
        p[:, self.trees_.classes_] = self.trees_.predict_proba(x.flatten(1).numpy())
        return p

    def _network_proba(self, predictor: Predictor, x: Tensor) -> NDArray[np.float64]:
        return self._network_outputs(predictor, x)[0]

    @torch.no_grad()
    def _network_outputs(self, predictor: Predictor, x: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Probabilities (N, K), and the variance (N,), NaN where the method predicts none."""
        device = self._fabric().device
        predictor = predictor.to(device)
        parts = [part.to(device) for part in torch.split(x, ROWS)]
        if predictor.has_variance:
            p, variance = (
                torch.cat(column).double().cpu() for column in zip(*map(predictor.with_variance, parts), strict=True)
            )
        else:
            p = torch.cat([predictor(part) for part in parts]).double().cpu()
            variance = p.new_full((len(p),), math.nan)
        return (p if self.multilabel_ else p / p.sum(1, keepdim=True)).numpy(), variance.numpy()

    def _fabric(self) -> Fabric:
        if self.device == "auto":
            return make_fabric(accelerator="auto", devices=1)
        if not re.fullmatch(r"cpu|(cuda|mps)(:\d+)?", str(self.device), re.ASCII):
            raise ValueError(f"Expected `device` to be auto, cpu, cuda, cuda:1, … or mps, got {self.device!r}.")
        device = torch.device(self.device)
        return make_fabric(accelerator=device.type, devices=1 if device.index is None else [device.index])

    # Files

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "predictor_"):
            self.predictor_.cpu()  # for machines without a GPU
        state: dict[str, Any] = super().__getstate__()
        return state

    def export(self, path: str | Path, *, variance: bool = False) -> Path:
        """Write the network as ``.onnx`` or ``.pt2`` (``noiseproof.train.export.export``).

        It takes the inputs of ``predict``, encoded by ``columns_.encode`` if ``columns_`` is not None. With
        ``variance`` it also returns that of ``predict_uncertainty``.
        """
        self._check_network("export")
        if variance:
            self._check_variance()
        if self.columns_ is not None and bool(self.columns_.shift.any()):
            far = [name for name, shift in zip(self.columns_.names, self.columns_.shift.tolist(), strict=True) if shift]
            warnings.warn(
                f"The network expects the mean subtracted from {preview(far)}, since float32 is too coarse that far "
                "from zero. Pass it the output of `columns_.encode`.",
                stacklevel=2,
            )
        shape, dtype = self._input
        example = torch.zeros(1, *shape, dtype=dtype)
        names = list(map(str, self.classes_))
        return export(self.predictor_, path, example, classes=names, variance=variance)

    def _check_network(self, what: str) -> None:
        check_is_fitted(self)
        if hasattr(self, "trees_"):
            raise ValueError(f"Expected a network to {what}, got `trees`. Pickle the estimator instead.")

    def save(self, folder: str | Path) -> Path:
        """Write the fitted estimator to ``folder``: weights as safetensors, everything else as JSON."""
        self._check_network("save")
        if self.encoder_ is not None:
            raise ValueError(
                "Expected an estimator of numbers or images to save, got one that is "
                f"fitted to {self.encoder_.kind}. Pickle it instead."
            )
        folder = Path(folder)
        predictor = self.predictor_.cpu()
        _check_classes(self.classes_.dtype, self.classes_.tolist())
        if not all(isinstance(model, Classifier) for model in predictor.models):
            raise ValueError(f"Expected a network to save, got `{self.method_}`. Pickle the estimator instead.")
        tensors = {name: value.detach().contiguous() for name, value in predictor.state_dict().items()}
        normalise = predictor.normalise
        shape_dtype = self._input
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
            "columns": columns
            and {"numeric": columns.numeric, "categories": columns.categories, "missing": columns.missing},
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
        estimator.columns_ = estimator.encoder_ = None
        if description["columns"] is not None:
            estimator.columns_ = Columns(
                tuple(map(str, description["columns"]["numeric"])),
                tensors.pop("columns.fill"),
                {str(c): tuple(map(str, words)) for c, words in description["columns"]["categories"].items()},
                "impute" if description["columns"]["missing"] == "impute" else "refuse",
                tensors.pop("columns.mean"),
                tensors.pop("columns.std"),
            )
        estimator.predictor_ = estimator._rebuild(description, tensors)
        estimator.method_ = str(description["method"])
        estimator.noise_rate_ = description["noise_rate"]
        estimator._model = description["model"]
        estimator._head = description["head"]
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
        self.multilabel_ = loss is not None and loss.multilabel
        outputs = len(self.classes_) if loss is None else loss.num_outputs(len(self.classes_))
        model = without_weights(description["model"])  # the file has all weights
        saved = len({name.split(".")[1] for name in tensors if name.startswith("models.")})
        if saved != description["models"]:
            raise ValueError(f"weights of another model, {saved} of {description['models']} networks")
        models = [
            build_classifier(
                model, description["head"], input_shape=self._input[0], num_outputs=outputs,
                generator=torch.Generator(),
            )
            for _ in range(description["models"])
        ]  # fmt: skip
        predictor = Predictor(models, loss, normalise, variance=True)
        state = predictor.state_dict()
        if other := sorted(state.keys() ^ tensors.keys()):
            raise ValueError(f"weights of another model, which differ in {', '.join(other[:3])}")
        state.update(tensors)  # keeps the metadata on versions, without which batch statistics count as an old format
        predictor.load_state_dict(state)
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            raise ValueError("weights that are not finite")
        return predictor


@dataclass(frozen=True)
class _Rows:
    """Inputs, labels and weights of the same rows; weights have a mean of one, None if they are equal."""

    x: Tensor
    labels: Tensor  # (N,)
    weights: Tensor | None  # (N,)
    soft: Tensor | None = None  # (N, K)

    def where(self, mask: Tensor) -> _Rows:
        optional = (None if column is None else column[mask] for column in (self.weights, self.soft))
        return _Rows(self.x[mask], self.labels[mask], *optional)

    def numpy_weights(self) -> NDArray[np.float64] | None:
        return None if self.weights is None else self.weights.numpy()


@contextmanager
def told_epochs(verbose: int, epochs: int) -> Iterator[EpochProgress | None]:
    """Log the metrics of each epoch, if ``verbose``; to stderr where nobody has given the logger a handler."""
    if not verbose:
        yield None
        return
    logger = logging.getLogger("noiseproof")
    handler = logging.StreamHandler()
    level = logger.level
    is_bare = not logger.hasHandlers()
    if is_bare:
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def tell(epoch: int, done: int, steps: int, metrics: dict[str, float] | None) -> None:
        if metrics is not None:
            shown = ("train_loss", "train_accuracy", "validation_loss", "validation_accuracy")
            values = (f"{name.replace('_', ' ')} {metrics[name]:.4f}" for name in shown if name in metrics)
            logger.info("epoch %d of %d: %s", epoch + 1, epochs, ", ".join(values))

    try:
        yield tell
    finally:
        logger.setLevel(level)
        if is_bare:
            logger.removeHandler(handler)


def boosted_trees(labels: Tensor, seed: int) -> Any:
    """The trees of the method ``trees``; they stop early on a tenth of the rows, before they fit wrong labels."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    counts = torch.bincount(labels)
    can_stop = int(counts[counts > 0].min()) >= MIN_STOPPING
    return HistGradientBoostingClassifier(early_stopping=can_stop, random_state=seed % 2**31)


def _check_classes(dtype: np.dtype[Any], values: list[Any]) -> None:
    if dtype.kind not in "biufUO" or not all(isinstance(v, (str, int, float)) for v in values):
        raise ValueError(f"Expected strings or numbers as classes, to save them as JSON, got classes of dtype {dtype}.")


def _has_categories(X: Any) -> bool:
    if not (hasattr(X, "columns") and hasattr(X, "iloc")):
        return False
    from pandas.api import types

    objects = ("integer", "floating", "mixed-integer-float", "decimal", "boolean")  # numbers, for NumPy too
    return not all(
        types.is_numeric_dtype(X.dtypes.iloc[i]) or types.infer_dtype(X.iloc[:, i]) in objects
        for i in range(X.shape[1])
    )
