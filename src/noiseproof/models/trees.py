"""Decision trees for tables: scikit-learn's, and by name those of LightGBM, XGBoost and CatBoost
where installed.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin

from noiseproof.core.arrays import Array, Floats, Floats32, Ints

Kind = Literal["boosting", "forest", "extra", "lightgbm", "xgboost", "catboost"]
PACKAGES = ("lightgbm", "xgboost", "catboost")  # not dependencies of noiseproof
MAX_CATEGORIES = 255  # of a column, in scikit-learn's histograms
FIT_SECONDS = 1.0  # that a fit may take while the number of rounds is above MIN_ROUNDS
MIN_ROUNDS = 80
MAX_ROUNDS = 400
# the least where there is little time: larger steps find nearly as many wrong labels
FAST_ROUNDS = 40
TREE_SECONDS = 4e-4
CELL_SECONDS = 6e-9  # of a tree, and of each cell it is built from, as measured on one core
RATE = 8.0  # learning rate times rounds
FOREST_TREES = 30
# rows up to which boosting takes larger steps: smaller ones find no more wrong labels there
SMALL = 20_000


class TreeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn classifier on numbers with gaps and on categories, with parameters by the size
    of the data.

    ``boosting`` is scikit-learn's histogram gradient boosting, stopped early on a tenth of the
    rows; ``forest`` and ``extra`` are its random forest and its extremely randomised trees; the
    others are libraries of these names. Labels may be noisy: rates are small, leaves have several
    rows, and each split sees half of the columns.

    Args:
        num_categories: of each column, 0 for numbers; a column of categories holds their codes from
            0, NaN for gaps.
        min_rounds: of boosting, however long they take.

    >>> x = np.array([[0.0, 1], [0.1, np.nan], [0.9, 0], [1.0, 0]] * 20)
    >>> TreeClassifier("boosting", (0, 2)).fit(x, [0, 0, 1, 1] * 20).predict(x[:4]).tolist()
    [0, 0, 1, 1]
    """

    def __init__(
        self,
        kind: Kind = "boosting",
        num_categories: tuple[int, ...] = (),
        seed: int = 0,
        min_rounds: int = MIN_ROUNDS,
    ) -> None:
        self.kind = kind
        self.num_categories = num_categories
        self.seed = seed
        self.min_rounds = min_rounds

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> Self:
        check_installed(self.kind)
        labels = np.asarray(y)
        values = np.asarray(x, np.float32)
        self.merges_ = {}
        if self.kind == "boosting":
            self.merges_ = _merges(values, self.num_categories)
        counts = np.unique(labels, return_counts=True)[1]
        self.model_ = _MAKERS[self.kind](self, len(x), values.shape[1], counts)
        options: dict[str, Any] = {"sample_weight": sample_weight}
        if self.kind == "lightgbm":
            options["categorical_feature"] = self.categorical.tolist()
        self.model_.fit(self._prepared(values), labels, **options)
        self.classes_ = np.asarray(self.model_.classes_).ravel()
        return self

    def predict_proba(self, x: Any) -> Floats:
        """(N, K)"""
        return np.asarray(self.model_.predict_proba(self._prepared(np.asarray(x, np.float32))))

    def predict(self, x: Any) -> Array:
        """(N,)"""
        return np.asarray(self.classes_[self.predict_proba(x).argmax(1)])

    @property
    def categorical(self) -> Ints:
        """The columns of categories."""
        return np.flatnonzero(np.asarray(self.num_categories, np.int64))

    def _prepared(self, x: Floats32) -> Any:
        if self.kind == "catboost" and len(self.categorical):
            import pandas as pd

            frame = pd.DataFrame(x)
            # it refuses codes that are not integers
            words = frame[self.categorical].fillna(-1).astype(np.int64)
            return frame.drop(columns=self.categorical).join(words)[list(range(x.shape[1]))]
        if not self.merges_:
            return x
        x = x.copy()
        for column, codes in self.merges_.items():
            known = ~np.isnan(x[:, column])
            at = x[known, column].astype(np.int64)
            x[known, column] = codes[np.minimum(at, len(codes) - 1)]
        return x


def check_installed(kind: str) -> None:
    """Refuse an unknown kind of trees, or one whose package is not installed."""
    if kind not in _MAKERS:
        raise ValueError(f"Expected trees of one of {', '.join(_MAKERS)}, got {kind!r}.")
    if kind in PACKAGES and find_spec(kind) is None:
        raise ModuleNotFoundError(
            f"Expected the package {kind}, which is not installed. Use: pip install {kind}"
        )


def _merges(x: Floats32, num_categories: tuple[int, ...]) -> dict[int, Ints]:
    """New codes (n,) for the columns with more categories than scikit-learn takes: the rarest share
    the last one.
    """
    merges = {}
    for column, n in enumerate(num_categories):
        if n > MAX_CATEGORIES:
            known = x[~np.isnan(x[:, column]), column].astype(np.int64)
            by_count = np.argsort(-np.bincount(known, minlength=n), kind="stable")
            merges[column] = np.minimum(np.argsort(by_count), MAX_CATEGORIES - 1)
    return merges


def round_seconds(num_rows: int, num_columns: int, num_classes: int) -> float:
    """Expected time of a round of boosting: of one tree, or one for each of more than two
    classes.
    """
    num_trees = num_classes if num_classes > 2 else 1
    return num_trees * (TREE_SECONDS + CELL_SECONDS * num_rows * num_columns)


def boosting_rounds(
    num_rows: int, num_columns: int, num_classes: int, min_rounds: int = MIN_ROUNDS
) -> int:
    """How many rounds fit into the time for a fit."""
    rounds = FIT_SECONDS / round_seconds(num_rows, num_columns, num_classes)
    return int(np.clip(rounds, min_rounds, MAX_ROUNDS))


def _boosting(self: TreeClassifier, n: int, d: int, counts: Ints) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    rounds = boosting_rounds(n, d, len(counts), self.min_rounds)
    # else no tenth has all classes
    stops_early = counts.min() >= 2 and n >= max(50, 10 * len(counts))
    max_rounds = rounds if stops_early else min(rounds, MIN_ROUNDS // 2)
    min_rate = 0.15 if n <= SMALL else 0.05
    return HistGradientBoostingClassifier(
        learning_rate=max(min_rate, RATE / rounds),
        max_iter=max_rounds,
        max_leaf_nodes=int(np.clip(16 * (n / 5000) ** 0.5, 8, 63)),
        l2_regularization=1.0,
        max_features=0.5,
        early_stopping=stops_early,
        n_iter_no_change=5,
        categorical_features=self.categorical if len(self.categorical) else None,
        random_state=self.seed,
    )


def _forest(self: TreeClassifier, n: int, d: int, counts: Ints) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(FOREST_TREES, min_samples_leaf=2, random_state=self.seed)


def _extra(self: TreeClassifier, n: int, d: int, counts: Ints) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(
        FOREST_TREES, min_samples_leaf=2, max_features=None, random_state=self.seed
    )


def _lightgbm(self: TreeClassifier, n: int, d: int, counts: Ints) -> Any:
    rounds = min(100, boosting_rounds(n, d, len(counts)))
    return import_module("lightgbm").LGBMClassifier(
        n_estimators=rounds,
        learning_rate=max(0.05, RATE / 2 / rounds),
        num_leaves=16,
        reg_lambda=1.0,
        feature_fraction_bynode=0.5,
        min_data_per_group=10,
        random_state=self.seed,
        verbose=-1,
        n_jobs=torch.get_num_threads(),
    )


def _xgboost(self: TreeClassifier, n: int, d: int, counts: Ints) -> Any:
    rounds = min(100, boosting_rounds(n, d, len(counts)))
    return import_module("xgboost").XGBClassifier(
        n_estimators=rounds,
        learning_rate=max(0.05, RATE / 2 / rounds),
        max_depth=4,
        reg_lambda=1.0,
        colsample_bynode=0.5,
        enable_categorical=True,
        tree_method="hist",
        random_state=self.seed,
        n_jobs=torch.get_num_threads(),
        feature_types=["c" if j in self.categorical else "q" for j in range(d)],
    )


def _catboost(self: TreeClassifier, n: int, d: int, counts: Ints) -> Any:
    rounds = min(200, 2 * boosting_rounds(n, d, len(counts)))
    return import_module("catboost").CatBoostClassifier(
        iterations=rounds,
        learning_rate=max(0.05, RATE / rounds),
        depth=5,
        random_seed=self.seed,
        verbose=False,
        allow_writing_files=False,
        cat_features=self.categorical.tolist(),
        thread_count=torch.get_num_threads(),
    )


_MAKERS = {
    "boosting": _boosting,
    "forest": _forest,
    "extra": _extra,
    "lightgbm": _lightgbm,
    "xgboost": _xgboost,
    "catboost": _catboost,
}
