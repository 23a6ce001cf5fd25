"""A scikit-learn classifier that does not memorise wrong labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from safetensors import SafetensorError
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from noiseproof.core.arrays import Array, Floats
from noiseproof.core.messages import preview
from noiseproof.data.tables import Columns
from noiseproof.estimator.files import read_estimator, write_estimator
from noiseproof.estimator.fitting import FitRows, Fits, fit_trees, logged_epochs, network_outputs
from noiseproof.estimator.inputs import (
    EncodedInputs,
    RandomState,
    draw_seed,
    encode_inputs,
)
from noiseproof.estimator.robust import RobustClassifier
from noiseproof.estimator.targets import Targets, read_targets
from noiseproof.train import Settings
from noiseproof.train.export import Predictor, export

if TYPE_CHECKING:
    import pandas as pd


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
            (K·N_k), as in scikit-learn; for one label in each row.
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

    classes_: Array
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
        """Train on inputs and their labels.

        Args:
            X: numbers (N, D), dense or sparse, images (N, C, H, W) or (N, H, W, C), a DataFrame, a
                list of texts or a list of paths of pictures.
            y: one label for each row; several labels as a matrix (N, K) of zeros and ones, as in
                scikit-learn; or soft labels (N, K), probabilities or counts. The classes of a
                matrix are the columns of a DataFrame, or their numbers.
            sample_weight: multiplies the loss of each row, after scaling to a mean of one; a row
                of weight 0 is left out.
            X_val, y_val: rows with one label each to validate on, instead of the share
                ``validation`` of the rows.
        """
        for name in ("predictor_", "trees_", "held_out_accuracy_"):
            # if this fit fails, the last model must not predict the new classes
            self.__dict__.pop(name, None)
        seed = draw_seed(self.random_state)
        x = encode_inputs(self, X, reset=True, seed=seed)
        targets = read_targets(x, y)
        self.classes_ = targets.classes
        self.multilabel_ = targets.codes.ndim == 2
        is_plain = not self.multilabel_ and targets.soft is None
        rows = FitRows(x, torch.from_numpy(targets.codes), soft=targets.soft)
        rows = rows.weighted(self._row_weights(targets, sample_weight, is_plain))
        held = self._validation_rows(X_val, y_val)
        if is_plain and len(present := torch.unique(rows.labels)) < 2:
            raise ValueError(
                f"Expected rows of at least two classes, got {len(present)} class. Check `y` and"
                " `sample_weight`."
            )
        is_scaled = self.encoder_ is not None and self.encoder_.has_one_scale
        settings = Settings(self.model, self.epochs, self.batch_size, self.optimizer, self.schedule)
        num_classes = len(self.classes_)
        fits = Fits(settings, seed, num_classes, self.device, is_scaled)
        self.method_ = self.method
        self.noise_rate_ = None
        self.history_ = []
        if self.method == "auto" and self.multilabel_:
            self.method_ = "ce"
        elif self.method == "auto":
            with_trees = is_plain and x.dim() == 2 and self.encoder_ is None
            choice = fits.choose(rows, self.validation, with_trees)
            self.method_, self.noise_rate_, self.held_out_accuracy_ = choice
        if self.method_ == "trees":
            if not is_plain:
                raise ValueError(
                    "Expected one label for each row for the method trees, got several or soft"
                    " labels. Use argmax(axis=1) of soft labels, or another method, or"
                    " sklearn.multioutput.MultiOutputClassifier(RobustClassifier())."
                )
            self.trees_ = fit_trees(rows, seed)
            return self
        with logged_epochs(self.verbose, self.epochs) as progress:
            result, method, task = fits.train(self.method_, rows, self.validation, held, progress)
        self._model = settings.model_for(task)
        self._head = method.head
        self.predictor_ = Predictor.of(result)
        self.history_ = result.metrics
        return self

    def predict(self, X: Any) -> Array:
        """Return the most probable label of each row, (N,).

        With several labels for each row it is (N, K), 1 for each that is more likely than not.
        """
        p = self.predict_proba(X)  # first: it checks that the estimator is fitted
        if self.multilabel_:
            return (p > 0.5).astype(np.int64)
        labels: Array = self.classes_[p.argmax(1)]
        return labels

    def predict_proba(self, X: Any) -> Floats:
        """Return the probability of each class, (N, K), in the order of ``classes_``.

        With several labels for each row, each label has a probability by itself.
        """
        return self._outputs(X)[0]

    def predict_log_proba(self, X: Any) -> Floats:
        """Return the logarithm of ``predict_proba``, (N, K); −inf where a probability is zero."""
        with np.errstate(divide="ignore"):
            logs: Floats = np.log(self.predict_proba(X))
        return logs

    def decision_function(self, X: Any) -> Floats:
        """Return scores (N, K), of which the largest is predicted; log p₁ − log p₀ of two classes.

        They are the logarithms of the probabilities; of several labels for each row,
        log p − log (1 − p) of each.
        """
        p = self.predict_proba(X)
        logs: Floats = np.log(np.maximum(p, np.finfo(np.float32).tiny))
        if self.multilabel_:
            return logs - np.log(np.maximum(1 - p, np.finfo(np.float32).eps))
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    def predict_uncertainty(self, X: Any) -> Floats:
        """Return the mean variance of the logits that the head of ``ln`` or ``het`` predicts, (N,).

        It is large where labels of such rows are noisy (LN paper, section 3.1), also where the
        prediction is certain.
        """
        variance = self._outputs(X)[1]
        if variance is None:
            raise ValueError(
                "Expected a method whose head predicts a variance, such as ln or het, got"
                f" {self.method_!r}."
            )
        return variance

    def predict_frame(self, X: Any) -> pd.DataFrame:
        """Return a table of predictions by the index of ``X``.

        Its columns are ``predicted_label``, its probability ``confidence``, the ``variance`` of
        ``predict_uncertainty`` where the method predicts one, and one for each class; with several
        labels for each row the columns of the classes alone.
        """
        import pandas as pd

        p, variance = self._outputs(X)
        index = X.index if hasattr(X, "iloc") else None
        frame = pd.DataFrame(p, index=index, columns=list(map(str, self.classes_)))
        if self.multilabel_:
            return frame
        first = {"predicted_label": self.classes_[p.argmax(1)], "confidence": p.max(1)}
        if variance is not None:
            first["variance"] = variance
        for position, (name, column) in enumerate(first.items()):
            if name in frame:
                raise ValueError(
                    f"Expected classes with other names than {name!r}, a column. Use predict_proba."
                )
            frame.insert(position, name, column)
        return frame

    def export(self, path: str | Path, *, variance: bool = False) -> Path:
        """Write the network as ``.onnx`` or ``.pt2`` (``noiseproof.train.export.export``).

        It takes the inputs of ``predict``, encoded by ``columns_.encode`` if ``columns_`` is not
        None.

        Args:
            path: the file, whose ending says the format.
            variance: whether the network returns that of ``predict_uncertainty``, too.
        """
        self._check_network("export")
        shape, dtype = self._input
        example = torch.zeros(1, *shape, dtype=dtype)
        names = list(map(str, self.classes_))
        return export(self.predictor_, path, example, classes=names, variance=variance)

    def save(self, folder: str | Path) -> Path:
        """Write the fitted estimator to ``folder``: weights as safetensors, the rest as JSON."""
        self._check_network("save")
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
        damage = (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError)
        try:
            estimator: Self = read_estimator(cls, Path(folder))
        except (*damage, SafetensorError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error).strip().rstrip(".")
            raise ValueError(
                f"Expected an estimator that `save` wrote in {folder}, got: {what}. Save or copy it"
                " again."
            ) from error
        return estimator

    def __getstate__(self) -> dict[str, Any]:
        if hasattr(self, "predictor_"):
            self.predictor_.cpu()  # for machines without a GPU
        state: dict[str, Any] = super().__getstate__()
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.classifier_tags.multi_label = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "predictor_") or hasattr(self, "trees_")

    def _outputs(self, X: Any) -> tuple[Floats, Floats | None]:
        """Probabilities (N, K), and the variance (N,) where the method predicts one."""
        check_is_fitted(self)
        x = encode_inputs(self, X, reset=False)
        if hasattr(self, "trees_"):
            p = np.zeros((len(x), len(self.classes_)))
            p[:, self.trees_.classes_] = self.trees_.predict_proba(x.flatten(1).numpy())
            return p, None
        p, variance = network_outputs(self.predictor_, x, self.device)
        if not self.multilabel_:
            p = p / p.sum(1, keepdims=True)
        return p, variance

    def _row_weights(self, targets: Targets, sample_weight: Any, is_plain: bool) -> Any:
        """The ``sample_weight`` times the weights of the classes; None if there are neither."""
        if self.class_weight is None:
            return sample_weight
        if not is_plain:
            raise ValueError(
                "Expected one label for each row with `class_weight`, got a matrix. Use"
                " `sample_weight`."
            )
        factors = compute_sample_weight(self.class_weight, targets.classes[targets.codes])
        return factors if sample_weight is None else factors * np.asarray(sample_weight)

    def _validation_rows(self, X: Any, y: Any) -> FitRows | None:
        if X is None and y is None:
            return None
        if X is None or y is None:
            raise ValueError("Expected both `X_val` and `y_val`, got one of them alone.")
        if self.validation or self.multilabel_:
            raise ValueError(
                "Expected validation=0 and one label for each row with `X_val` and `y_val`, got"
                f" validation={self.validation}, multilabel {self.multilabel_}."
            )
        try:
            x: Tensor = encode_inputs(self, X, reset=False)
        except ValueError as error:
            raise ValueError(f"Expected inputs as `X` in `X_val`. {error}") from error
        labels = np.asarray(y)
        if labels.shape != (len(x),):
            raise ValueError(
                f"Expected `y_val` of shape ({len(x)},), one label for each row, got"
                f" {labels.shape}."
            )
        # columns of soft labels are not sorted
        position = {label: k for k, label in enumerate(self.classes_.tolist())}
        if unknown := sorted({*labels.tolist()} - position.keys(), key=str):
            raise ValueError(f"Expected labels of `y` in `y_val`, got {preview(unknown)}.")
        return FitRows(x, torch.tensor([position[label] for label in labels.tolist()]))

    def _check_network(self, what: str) -> None:
        check_is_fitted(self)
        if hasattr(self, "trees_"):
            raise ValueError(
                f"Expected a network to {what}, got `trees`. Pickle the estimator instead."
            )
