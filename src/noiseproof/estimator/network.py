"""A scikit-learn classifier that does not memorise wrong labels."""

from __future__ import annotations

import math
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from scipy.sparse import csr_matrix, issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import assert_all_finite, check_is_fitted, validate_data
from torch import Tensor

from noiseproof.core.messages import preview
from noiseproof.data import Dataset, NoisyData, Split
from noiseproof.data.arrays import check_features
from noiseproof.data.augment import Standardise
from noiseproof.data.frames import as_frame, is_foreign_table, library_of
from noiseproof.data.tables import Columns, fit_columns
from noiseproof.estimator.choice import best_method, held_out
from noiseproof.estimator.files import read_estimator, write_estimator
from noiseproof.estimator.fitting import (
    FitRows,
    fabric_for,
    fit_trees,
    logged_epochs,
    positive_weights,
    right_by_trees,
    weighted_method,
)
from noiseproof.estimator.inputs import (
    EncodedInputs,
    Floats,
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
from noiseproof.train import Interrupted, Result, Settings, Task, prepare, train
from noiseproof.train.auto import choose_method, estimate_noise
from noiseproof.train.export import Predictor, export

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.train.job import EpochProgress

ROWS = 4096  # of a forward pass
NEAR = 0.05  # accuracy by which trees may be behind for their labels to be repaired


class NoisyLabelClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network for noisy labels, with the interface of a scikit-learn classifier.

    Args:
        method: as ``noiseproof train --method``, or ``trees``: boosted trees in a
            ``RobustClassifier``. ``auto`` chooses by the estimated noise and the accuracy on
            held-out rows; where rows have several labels it is ce.
        model: a backbone's spec; ``auto`` chooses by the shape of the inputs.
        epochs: passes over the data.
        batch_size: rows of a step; ``full`` is all of them.
        optimizer, schedule: specs of ``noiseproof.train.schedule``.
        validation: share of rows held out, for the accuracy on given labels in ``history_`` and for
            ``& early-stopping``.
        features: of texts and of paths of pictures, a name of ``noiseproof features``; ``auto`` is
            the choice of the audit.
        class_weight: a factor on the loss of each class, as a dict by label, or ``balanced``: N /
            (K·N_k), as in scikit-learn; with one label a row.
        verbose: 1 logs each epoch to the logger ``noiseproof``, which writes to stderr unless it
            has a handler.
        device: auto, cpu, cuda, cuda:1, … or mps.
        random_state: a seed for weights, batches and the method; a ``RandomState`` or ``Generator``
            to draw it from, or None for another one each time.

    Attributes:
        classes_: the labels, sorted; of rows with several labels the columns of ``y``.
        multilabel_: whether rows have several labels.
        method_: the method that was trained.
        held_out_accuracy_: the accuracy by the given labels of a fifth of the rows, of each method
            that ``auto`` tried; only if ``method`` is auto.
        noise_rate_: the estimated share of wrong labels, if ``method`` is auto and there are at
            least 50 rows.
        history_: metrics of every epoch.
        predictor_: the network as a PyTorch module, from inputs (encoded by ``columns_`` if that is
            not None) to class probabilities; with the method ``trees`` there is ``trees_`` instead.
        columns_: the encoding of categorical columns, of numbers with gaps, or of numbers far from
            zero, whose mean is subtracted; else None.
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

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, X_val: Any = None, y_val: Any = None
    ) -> Self:
        """Train on inputs and one label a row, several labels, or soft labels: rows (N, K) of
        probabilities or counts.

        Inputs are numbers (N, D), dense or sparse, images (N, C, H, W) or (N, H, W, C), a
        DataFrame, a list of texts or a list of paths of pictures. ``sample_weight`` multiplies each
        row's loss, after scaling to a mean of one; a row of weight 0 is left out. Several labels
        are a matrix (N, K) of zeros and ones, as in scikit-learn, whose classes are the columns of
        a DataFrame, or their numbers. ``X_val`` and ``y_val``, one label a row, are validated on
        instead of the share ``validation`` of the rows.
        """
        for name in ("predictor_", "trees_", "held_out_accuracy_"):
            # if this fit fails, the last model must not predict the new classes
            self.__dict__.pop(name, None)
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
        if self.class_weight is not None:
            if self.multilabel_ or soft is not None:
                raise ValueError(
                    "Expected one label a row beside `class_weight`, got a matrix. Use"
                    " `sample_weight`."
                )
            factors = compute_sample_weight(self.class_weight, self.classes_[codes])
            sample_weight = (
                factors if sample_weight is None else factors * np.asarray(sample_weight)
            )
        keep, weights = positive_weights(x, sample_weight)
        held = self._validation_rows(X_val, y_val)
        if soft is None and not self.multilabel_:
            present = int((torch.bincount(labels[keep]) > 0).sum())
            if present < 2:
                raise ValueError(
                    f"Expected rows of at least two classes, got {present} class. Check `y` and"
                    " `sample_weight`."
                )
        rows = FitRows(x, labels, None, soft)
        if not bool(keep.all()):
            rows = rows.where(keep)
        rows = replace(rows, weights=weights)
        self.method_ = self.method
        self.noise_rate_ = None
        if self.method == "auto":
            self.method_ = "ce" if self.multilabel_ else self._choose(rows, seed)
        if self.method_ == "trees":
            if self.multilabel_:
                raise ValueError(
                    "Expected one label a row for the method trees, got several. Use another"
                    " method, or sklearn.multioutput.MultiOutputClassifier(RobustClassifier())."
                )
            if soft is not None:
                raise ValueError(
                    "Expected one label a row for the method trees, got soft labels. Use"
                    " argmax(axis=1)."
                )
            self.trees_ = fit_trees(rows, seed)
            self.history_ = []
            return self
        with logged_epochs(self.verbose, self.epochs) as progress:
            result = self._train(self.method_, rows, seed, self.validation, held, progress)
        self.predictor_ = Predictor.of(result, variance=True)
        self.history_ = result.metrics
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each row, (N,).

        With several labels a row it is (N, K), 1 for each label that is more likely than not.
        """
        p = self.predict_proba(X)  # first: it checks that the estimator is fitted
        if self.multilabel_:
            return (p > 0.5).astype(np.int64)
        predicted = p.argmax(1)
        labels: NDArray[Any] = self.classes_[predicted]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """The probability of each class, (N, K), in the order of ``classes_``.

        With several labels a row, each label has a probability by itself.
        """
        check_is_fitted(self)
        x = self._inputs(X, reset=False)
        if hasattr(self, "trees_"):
            p = np.zeros((len(x), len(self.classes_)))
            p[:, self.trees_.classes_] = self.trees_.predict_proba(x.flatten(1).numpy())
            return p
        return self._network_outputs(self.predictor_, x)[0]

    def predict_log_proba(self, X: Any) -> Floats:
        """The logarithm of ``predict_proba``, (N, K); −inf where a probability is zero."""
        with np.errstate(divide="ignore"):
            logs: Floats = np.log(self.predict_proba(X))
        return logs

    def decision_function(self, X: Any) -> Floats:
        """Scores (N, K), of which the largest is predicted; of two classes log p₁ − log p₀, (N,).

        They are the logarithms of the probabilities; of several labels a row, log p − log (1 − p)
        of each.
        """
        p = np.maximum(self.predict_proba(X), np.finfo(np.float32).tiny)
        if self.multilabel_:
            odds: Floats = np.log(p) - np.log(np.maximum(1 - p, np.finfo(np.float32).eps))
            return odds
        scores = np.log(p)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_uncertainty(self, X: Any) -> Floats:
        """The variance of the logits that the head of ``ln`` or ``het`` predicts for each row,
        (N,), their mean.

        It is large where labels of such rows are noisy (LN paper, section 3.1), also where the
        prediction is certain.
        """
        check_is_fitted(self)
        x = self._inputs(X, reset=False)
        _check_variance(self)
        return self._network_outputs(self.predictor_, x)[1]

    def _predicts_variance(self) -> bool:
        return hasattr(self, "predictor_") and self.predictor_.has_variance

    def predict_frame(self, X: Any) -> pd.DataFrame:
        """``predicted_label``, its probability as ``confidence``, and a column for each class, by
        the index of X.

        After ``confidence`` there is the ``variance`` of ``predict_uncertainty``, where the method
        predicts one. Of several labels a row, there are the columns of the classes alone.
        """
        import pandas as pd

        p = self.predict_proba(X)
        if self.multilabel_:
            return pd.DataFrame(
                p,
                index=X.index if hasattr(X, "iloc") else None,
                columns=list(map(str, self.classes_)),
            )
        columns = [
            "predicted_label",
            "confidence",
            *(["variance"] if self._predicts_variance() else []),
        ]
        if taken := set(columns) & set(map(str, self.classes_)):
            raise ValueError(
                f"Expected classes with other names than {taken.pop()!r}, a column. Use"
                " predict_proba."
            )
        frame = pd.DataFrame(
            p,
            index=X.index if hasattr(X, "iloc") else None,
            columns=[str(c) for c in self.classes_],
        )
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
        """Inputs as float32 (N, D), or images (N, C, H, W) as bytes or float32.

        ``reset`` stores their shape.
        """
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
            expected, actual = (
                f"shape {shape} and {dtype}" for shape, dtype in (self._input, shape_dtype)
            )
            raise ValueError(f"Expected inputs of {expected} as in fit, got {actual}.")
        return x

    def _features(self, X: Any, reset: bool, seed: int) -> Tensor:
        """Texts, paths of pictures or a sparse matrix as features."""
        words = as_words(X)
        if reset and words is not None:
            for name in ("n_features_in_", "feature_names_in_"):
                self.__dict__.pop(name, None)
            self.encoder_ = (
                PictureInputs(self.features) if are_paths(words) else TextInputs(self.features)
            )
            return self.encoder_.fit_encode(words, seed)
        if reset:
            self.encoder_ = SparseInputs()
        if isinstance(self.encoder_, SparseInputs):
            matrix = validate_data(
                self, X, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32]
            )
            matrix = csr_matrix(matrix)
            return self.encoder_.fit_encode(matrix, seed) if reset else self.encoder_.encode(matrix)
        if self.encoder_ is None:  # fitted to dense numbers
            return self._numbers(X.toarray() if issparse(X) else X, reset)
        if words is None:
            raise ValueError(
                f"Expected {self.encoder_.kind} as in fit, a list, got {type(X).__name__}."
            )
        return self.encoder_.encode(words)

    def _numbers(self, X: Any, reset: bool) -> Tensor:
        """Numbers as float32.

        ``columns_`` fills gaps, and subtracts the mean where float32 is too coarse.
        """
        array = validate_data(
            self, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan"
        )
        with np.errstate(over="ignore"):  # infinite numbers are refused below
            assert_all_finite(array.astype(np.float32), input_name="X", allow_nan=True)
        if reset:
            self.columns_ = number_columns(array, getattr(self, "feature_names_in_", None))
        missing = np.isnan(array)
        if self.columns_ is not None:
            array = np.where(missing, self.columns_.fill.numpy(), array) if missing.any() else array
            array = array - self.columns_.shift.numpy()
        elif missing.any() and hasattr(self, "predictor_"):  # trees take NaN
            normalise = self.predictor_.normalise
            if isinstance(normalise, Standardise):  # the mean, as no number was missing in fit
                array = np.where(missing, normalise.mean.numpy(), array)
        return torch.from_numpy(np.require(array, np.float32, ["C_CONTIGUOUS", "WRITEABLE"]))

    def _encoded(self, X: Any, reset: bool) -> Tensor:
        """A DataFrame with categorical columns, one-hot."""
        if not hasattr(X, "columns"):
            raise ValueError(
                f"Expected a DataFrame with the columns of fit, got {type(X).__name__}."
            )
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

    def _validation_rows(self, X: Any, y: Any) -> FitRows | None:
        if X is None and y is None:
            return None
        if X is None or y is None:
            raise ValueError(
                f"Expected both `X_val` and `y_val`, got `{'y_val' if X is None else 'X_val'}`"
                " alone."
            )
        if self.validation or self.multilabel_:
            other = (
                f"validation={self.validation}"
                if self.validation
                else "several labels a row in `y`"
            )
            raise ValueError(
                "Expected no `validation` and one label a row beside `X_val` and `y_val`, got"
                f" {other}."
            )
        try:
            x = self._inputs(X, reset=False)
            labels = np.asarray(y)
        except ValueError as error:  # scikit-learn calls all inputs X
            text = re.sub(r"\bX\b", "X_val", str(error))
            raise ValueError(f"Expected inputs as `X` in `X_val`. {text}") from error
        if labels.shape != (len(x),):
            raise ValueError(
                f"Expected `y_val` of shape ({len(x)},), one label a row, got {labels.shape}."
            )
        if unknown := sorted({*labels.tolist()} - {*self.classes_.tolist()}, key=str):
            raise ValueError(f"Expected labels of `y` in `y_val`, got {preview(unknown)}.")
        # columns of soft labels are not sorted
        position = {label: k for k, label in enumerate(self.classes_.tolist())}
        return FitRows(x, torch.tensor([position[label] for label in labels.tolist()]), None)

    # Training

    def _choose(self, rows: FitRows, seed: int) -> str:
        """The method that ``auto`` stands for: candidates are trained without the held-out rows,
        and predict them.
        """
        task = self._task(rows, seed, self.validation)
        self.noise_rate_ = estimate_noise(task, seed=seed)
        preferred = choose_method(len(self.classes_), len(task.train), self.noise_rate_)
        self.held_out_accuracy_ = {}
        held = torch.from_numpy(held_out(rows.labels.numpy(), seed))
        if not bool(held.any()):
            return preferred
        fitted = rows.where(~held)
        held_rows = rows.where(held)
        is_right = {}
        for name in dict.fromkeys((preferred, "ce")):
            p, _ = self._network_outputs(Predictor.of(self._train(name, fitted, seed)), held_rows.x)
            is_right[name] = p.argmax(1) == held_rows.labels.numpy()
        weights = held_rows.numpy_weights()
        accuracy = {
            name: float(np.average(right, weights=weights)) for name, right in is_right.items()
        }
        if rows.x.dim() == 2 and self.encoder_ is None and rows.soft is None:
            is_right["trees"] = right_by_trees(
                fitted, held_rows, max(accuracy.values()) - NEAR, seed
            )
            accuracy["trees"] = float(np.average(is_right["trees"], weights=weights))
        self.held_out_accuracy_ = accuracy
        return best_method(preferred, is_right, weights)

    def _task(self, rows: FitRows, seed: int, validation: float) -> Task:
        data = Dataset(
            "arrays",
            tuple(map(str, range(len(self.classes_)))),
            Split(rows.x, rows.labels, soft=rows.soft),
        )
        task = prepare(data, seed=seed, validation=validation)
        if self.encoder_ is not None and self.encoder_.has_one_scale:
            return replace(task, normalise=None, augment=None)
        return task

    def _train(
        self,
        name: str,
        rows: FitRows,
        seed: int,
        validation: float = 0.0,
        held: FitRows | None = None,
        progress: EpochProgress | None = None,
    ) -> Result:
        task = self._task(rows, seed, validation)
        if held is not None:
            index = len(rows.x) + torch.arange(len(held.x))  # rows that no other row is
            task = replace(
                task, validation=NoisyData(held.x, held.labels, task.train.classes, index)
            )
        settings = Settings(self.model, self.epochs, self.batch_size, self.optimizer, self.schedule)
        method = weighted_method(name, task, settings, rows.weights)
        try:
            result = train(
                task, method, settings, seed=seed, fabric=fabric_for(self.device), progress=progress
            )
        except Interrupted:  # else a search over parameters would count Ctrl-C as a failed fit
            raise KeyboardInterrupt from None
        self._model = settings.model_for(task)
        self._head = method.head
        return result

    @torch.no_grad()
    def _network_outputs(self, predictor: Predictor, x: Tensor) -> tuple[Floats, Floats]:
        """Probabilities (N, K), and the variance (N,), NaN where the method predicts none."""
        device = fabric_for(self.device).device
        predictor = predictor.to(device)
        parts = [part.to(device) for part in torch.split(x, ROWS)]
        if predictor.has_variance:
            p, variance = (
                torch.cat(column).double().cpu()
                for column in zip(*map(predictor.with_variance, parts), strict=True)
            )
        else:
            p = torch.cat([predictor(part) for part in parts]).double().cpu()
            variance = p.new_full((len(p),), math.nan)
        return (p if self.multilabel_ else p / p.sum(1, keepdim=True)).numpy(), variance.numpy()

    # Files

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "predictor_"):
            self.predictor_.cpu()  # for machines without a GPU
        state: dict[str, Any] = super().__getstate__()
        return state

    def export(self, path: str | Path, *, variance: bool = False) -> Path:
        """Write the network as ``.onnx`` or ``.pt2`` (``noiseproof.train.export.export``).

        It takes the inputs of ``predict``, encoded by ``columns_.encode`` if ``columns_`` is not
        None. With ``variance`` it also returns that of ``predict_uncertainty``.
        """
        _check_network(self, "export")
        if variance:
            _check_variance(self)
        if self.columns_ is not None and bool(self.columns_.shift.any()):
            far = [
                name
                for name, shift in zip(
                    self.columns_.names, self.columns_.shift.tolist(), strict=True
                )
                if shift
            ]
            warnings.warn(
                f"The network expects the mean subtracted from {preview(far)}, since float32 is too"
                " coarse that far from zero. Pass it the output of `columns_.encode`.",
                stacklevel=2,
            )
        shape, dtype = self._input
        example = torch.zeros(1, *shape, dtype=dtype)
        names = list(map(str, self.classes_))
        return export(self.predictor_, path, example, classes=names, variance=variance)

    def save(self, folder: str | Path) -> Path:
        """Write the fitted estimator to ``folder``: weights as safetensors, everything else as
        JSON.
        """
        _check_network(self, "save")
        if self.encoder_ is not None:
            raise ValueError(
                "Expected an estimator of numbers or images to save, got one that is "
                f"fitted to {self.encoder_.kind}. Pickle it instead."
            )
        write_estimator(self, Path(folder))
        return Path(folder)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load an estimator that ``save`` wrote, without running any code from the files.

        Damaged ones are refused.
        """
        try:
            estimator: Self = read_estimator(cls, Path(folder))
        except (
            OSError,
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RuntimeError,
            SafetensorError,
        ) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error).strip().rstrip(".")
            raise ValueError(
                f"Expected an estimator that `save` wrote in {folder}, got: {what}. Save or copy it"
                " again."
            ) from error
        return estimator


def _check_variance(estimator: NoisyLabelClassifier) -> None:
    if not estimator._predicts_variance():
        raise ValueError(
            "Expected a method whose head predicts a variance, such as ln or het, got"
            f" {estimator.method_!r}."
        )


def _check_network(estimator: NoisyLabelClassifier, what: str) -> None:
    check_is_fitted(estimator)
    if hasattr(estimator, "trees_"):
        raise ValueError(
            f"Expected a network to {what}, got `trees`. Pickle the estimator instead."
        )


def _has_categories(X: Any) -> bool:
    if not (hasattr(X, "columns") and hasattr(X, "iloc")):
        return False
    from pandas.api import types

    # numbers, for NumPy too
    objects = ("integer", "floating", "mixed-integer-float", "decimal", "boolean")
    return not all(
        types.is_numeric_dtype(X.dtypes.iloc[i]) or types.infer_dtype(X.iloc[:, i]) in objects
        for i in range(X.shape[1])
    )
