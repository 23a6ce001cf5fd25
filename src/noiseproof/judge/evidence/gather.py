"""All evidence on the rows of an audit: their surroundings among the features, then trainings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from noiseproof.core.arrays import Bools, Floats32, Ints, evenly
from noiseproof.core.messages import Brief, Progress
from noiseproof.core.plugins import load_object, load_plugins
from noiseproof.core.registry import unknown_name
from noiseproof.data.frames import ParquetColumns
from noiseproof.data.tables import FeatureTable
from noiseproof.judge.evidence.folds import in_one_fold, make_folds, merge_groups
from noiseproof.judge.evidence.neighbours import (
    VOTERS,
    Duplicates,
    Neighbours,
    find_duplicates,
    nearest,
    outlier_scores,
)
from noiseproof.judge.evidence.network import (
    CONSTANTS,
    LARGE,
    Evidence,
    Taught,
    cross_validate,
    soft_labels,
    watch_training,
)
from noiseproof.judge.evidence.questions import (
    fit_question_estimator,
    fit_question_trees,
    question_evidence,
    question_folds,
)
from noiseproof.judge.evidence.trees import (
    MANY_ROWS,
    TREES,
    check_classifier,
    cross_fit,
    fit_trees,
)
from noiseproof.judge.evidence.witness import consult_witness
from noiseproof.models import MODELS
from noiseproof.models.pretrained import spelled_out
from noiseproof.train.methods import check_method

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.data.rows import Rows

Mode = Literal["thorough", "fast"]
SURVEY = "near-duplicates and outliers"  # the name of the first stage
MOST_CELLS = 20_000  # rows whose columns issue types look at
NESTED = (list, tuple, dict, set, np.ndarray)  # cells that are not looked at
CLOSE = 10  # neighbours that decide what is a near-duplicate or an outlier
ENOUGH = 0.75  # weight of trees, next to neighbours, that makes networks for many rows unnecessary
FAST_FOLDS = 3  # of trees and estimators in a fast audit
FAST_SECONDS = 30.0  # that trees may take there, by an estimate; else networks are faster
# rows below which a fast audit misses much, and below which no audit is reliable
FEW = 2000
VERY_FEW = 50


@dataclass(frozen=True, eq=False, repr=False)
class Surroundings(Brief):
    """Neighbours, near-duplicates and outliers among the features of N rows."""

    duplicates: Duplicates
    outlier_scores: Floats32  # (N,), NaN without features
    outlier_cut: float | None = None
    neighbour_recall: float | None = None
    neighbours: Neighbours | None = None

    @classmethod
    def none(cls, num_rows: int) -> Surroundings:
        """The surroundings of rows without features."""
        return cls(
            Duplicates(np.full(num_rows, -1), np.zeros(num_rows, dtype=bool), 0),
            np.full(num_rows, np.nan, np.float32),
        )

    @classmethod
    def search(
        cls,
        x: Floats32,
        labels: Ints,
        seed: int,
        progress: Progress | None = None,
        unlike: Ints | None = None,
    ) -> Surroundings:
        def report(done: int, total: int) -> None:
            if progress is not None and done < total:  # outliers come after the last row
                progress(SURVEY, done, total)

        near = nearest(x, min(VOTERS, len(x) - 1), seed=seed, report=report)
        close = Neighbours(near.index[:, :CLOSE], near.distance[:, :CLOSE], near.recall)
        duplicates = find_duplicates(x, labels, close, unlike)
        return cls(duplicates, *outlier_scores(close, duplicates.is_duplicate), near.recall, near)

    def subset(self, keep: Bools) -> Surroundings:
        """Without some rows; neighbours are lost, since row numbers change."""
        return replace(
            self,
            duplicates=Duplicates(
                self.duplicates.group[keep],
                self.duplicates.conflict[keep],
                self.duplicates.common,
            ),
            outlier_scores=self.outlier_scores[keep],
            neighbours=None,
        )


@dataclass(frozen=True, eq=False, repr=False)
class AuditEvidence(Brief):
    """Rows to judge, and all that speaks for or against their labels."""

    data: Rows
    surroundings: Surroundings
    training: Evidence | None = None  # none where predictions of another model were given
    undecided: Evidence | None = None  # from the same models without decisions, where there are any

    @property
    def groups(self) -> Ints:
        """Rows that belong together, (N,): by the user's groups or as near-duplicates."""
        return merge_groups(self.data.groups, self.surroundings.duplicates.group)

    @property
    def several_groups(self) -> Ints | None:
        """The same without near-duplicates where all rows would belong together."""
        groups = self.groups
        return groups if np.ptp(groups) else self.data.groups

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The columns as in the source, by position among the rows: of audited rows only, and of
        ``MOST_CELLS`` of them at most, in order.

        Arrays have numbered columns; texts, pictures and predictions none.
        """
        import pandas as pd

        rows = evenly(np.flatnonzero(self.data.row >= 0), MOST_CELLS)
        table = self.data.table
        if table is None:
            return pd.DataFrame(index=rows)
        if table.frame is None:
            return pd.DataFrame(table.values[rows], index=rows)
        columns = {}
        for name in table.frame.columns:
            cells = table.frame[name].iloc[rows].array
            if not any(isinstance(cell, NESTED) for cell in cells[:9]):
                columns[name] = cells
        return pd.DataFrame(columns, index=rows)

    def with_note(self, note: str) -> AuditEvidence:
        return replace(self, data=replace(self.data, notes=(*self.data.notes, note)))

    def with_words(self, words: Iterable[str]) -> AuditEvidence:
        """With further words of sets, as `Labels.with_words`."""
        return replace(self, data=replace(self.data, labels=self.data.labels.with_words(words)))


class StageClock:
    """Forwards progress, and records the seconds of each stage."""

    def __init__(self, progress: Progress | None, reading: float) -> None:
        self.progress = progress
        self.seconds = {"reading": round(reading, 3)}

    @contextmanager
    def __call__(self, stage: str, *, is_single_step: bool = True) -> Iterator[None]:
        """Time a stage; one of several steps reports its progress itself."""
        began = time.perf_counter()
        if is_single_step and self.progress is not None:
            self.progress(stage, 0, 1)
        yield
        if is_single_step and self.progress is not None:
            self.progress(stage, 1, 1)
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + time.perf_counter() - began, 3)


# any other model is a backbone
CHOICES = ("auto", "trees", "network", "both", "lightgbm", "xgboost", "catboost")


def backbone_of(model: str | None) -> str:
    """The backbone of networks that an audit's ``model`` stands for."""
    return "auto" if model is None or model in CHOICES else model


def check_models(method: str | None, model: str | None, estimator: Any) -> None:
    """Refuse a method, model or estimator that does not exist or is not installed, before any data
    is read.
    """
    from noiseproof.models.trees import PACKAGES, check_installed

    if method is not None:
        check_method(method)
    if estimator is not None:
        check_classifier(load_object(estimator) if isinstance(estimator, str) else estimator)
    if model in PACKAGES:
        check_installed(model)
    elif model is not None and model not in CHOICES:
        # parse refuses a model that is not a word
        spec = spelled_out(model) if isinstance(model, str) else model
        name, _ = MODELS.parse(spec, {})
        load_plugins()  # which may register a model of this name
        if name not in (*MODELS, "timm"):
            raise ValueError(unknown_name("model", name, [*CHOICES, *sorted(MODELS)]))


def default_model(data: Rows, mode: Mode) -> str:
    """Both for tables; in a fast audit trees, which predict labels they did not see, unless they
    take minutes.

    Forests of several labels are quick for wide arrays, too.
    """
    from noiseproof.models.trees import FAST_ROUNDS, round_seconds

    if data.labels.are_sets and len(data) <= MANY_ROWS:
        return "both" if mode == "thorough" else "trees"
    if data.table is None:
        return "network"
    if mode == "thorough":
        return "both"
    num_rows, num_columns = data.table.values.shape
    fitted_rows = num_rows * (FAST_FOLDS - 1) // FAST_FOLDS
    seconds = FAST_FOLDS * FAST_ROUNDS * round_seconds(fitted_rows, num_columns, len(data.classes))
    return "trees" if seconds <= FAST_SECONDS else "network"


@dataclass(frozen=True)
class ModelChoice:
    """The models that judge the labels with neighbours."""

    network: str | None = "auto"  # a backbone
    trees: tuple[str, ...] = ()
    estimator: Any = None

    @classmethod
    def of(cls, model: str, estimator: Any, data: Rows, mode: Mode) -> ModelChoice:
        """By the name of a choice or of a backbone; auto is `default_model`."""
        from noiseproof.models.trees import PACKAGES

        if model == "auto" and estimator is not None:
            return cls(None, (), estimator)
        if model in PACKAGES:
            return cls(None, (model,), estimator)
        if model == "auto":
            model = default_model(data, mode)
        if model == "trees":
            return cls(None, TREES, estimator)
        return cls(backbone_of(model), TREES if model == "both" else (), estimator)


def gather(
    data: Rows,
    *,
    mode: Mode,
    folds: int,
    seed: int,
    clock: StageClock,
    model: str = "auto",
    estimator: Any = None,
    **training: Any,
) -> AuditEvidence:
    """Search the surroundings of all rows, and fit models unless the data has predictions.

    ``training`` are further options of ``cross_validate`` and ``watch_training``. Rows whose class
    lies in a single fold are dropped. Where a reviewer decided on some labels, models are fitted to
    the given ones first, then to the decided ones, by folds also in a fast audit.
    """
    evidence = _survey(data, seed, clock)
    if data.pred_probs is not None:
        if data.similarities is not None:
            joined = consult_witness(data.pred_probs, data.similarities, data.given)
            evidence = replace(evidence, data=replace(evidence.data, pred_probs=joined))
        return evidence
    if data.x is None:
        raise ValueError("Expected features to train on, or predictions, got neither.")
    # exact, and before any model is fitted: the mean of a constant is rounded
    if not (data.x != data.x[0]).any():
        raise ValueError(CONSTANTS)
    choice = ModelChoice.of(model, estimator, data, mode)
    is_fast = mode == "fast"
    if is_fast:
        folds = FAST_FOLDS
    can_spare_network = model == "auto" and len(data) > MANY_ROWS
    fitter_type = ModelFitter
    watches = is_fast and data.decided is None
    fold = None
    if data.labels.are_sets:
        fitter_type = QuestionFitter
        watches = can_spare_network = False
        fold = question_folds(
            data.labels.answers,
            folds=folds,
            groups=evidence.several_groups,
            time=data.time,
            seed=seed,
        )
    else:
        is_fast = watches
        if is_fast and len(data) < FEW and choice.network is not None:
            evidence = evidence.with_note(
                f"With {len(data)} rows, one training shows little: a thorough audit finds more, in"
                " a minute."
            )
        if not is_fast or choice.trees or choice.estimator is not None:
            evidence, fold = _split(evidence, folds, seed)
    fitter = fitter_type(
        evidence, choice, is_fast, watches, can_spare_network, fold, seed, clock, training
    )
    first = fitter.fit()
    if first.training is None or first.data.decided is None:
        return first
    taught = fitter.teach(first.training)
    return replace(first, training=fitter.fit(taught).training, undecided=first.training)


@dataclass(frozen=True, eq=False)
class ModelFitter:
    """Fits the chosen models to the labels of an audit, and joins their predictions."""

    evidence: AuditEvidence
    choice: ModelChoice
    is_fast: bool
    watches: bool  # one training on all rows, in place of networks of folds
    can_spare_network: bool  # where trees predict the labels well
    fold: Ints | None  # (N,); None where one network is trained on all rows
    seed: int
    clock: StageClock
    training: Mapping[str, Any]  # further options of the network

    fit_trees: ClassVar[Callable[..., dict[str, Floats32]]] = staticmethod(fit_trees)
    fit_estimator: ClassVar[Callable[..., Floats32]] = staticmethod(cross_fit)
    cross_validate: ClassVar[Callable[..., Evidence]] = staticmethod(cross_validate)

    def fit(self, taught: Taught | None = None) -> AuditEvidence:
        """The evidence with predictions by models that learned the given labels, or the ``taught``
        ones.
        """
        evidence = self.evidence
        network = self.choice.network
        others: dict[str, Floats32] = {}
        if self.fold is not None:
            others = self._fit_others(self.fold, taught)
        training = None
        if others and (network is None or self.can_spare_network):
            with self.clock("joining predictions"):
                training = self._train(None, others, taught)
            share = sum(training.weights[name] for name in others)
            if network is not None and share >= ENOUGH:
                evidence = evidence.with_note(
                    "No network was trained: among many rows, trees predict labels well enough"
                    f" ({share:.0%} next to neighbours); --model both trains one."
                )
            elif network is not None:
                training = None
        if training is None:
            with self.clock("training", is_single_step=False):
                training = self._train(network, others, taught)
        if evidence.data.similarities is not None:
            joined = consult_witness(
                training.pred_probs, evidence.data.similarities, evidence.data.given
            )
            training = replace(training, pred_probs=joined)
        return replace(evidence, training=training)

    def _fit_others(self, fold: Ints, taught: Taught | None) -> dict[str, Floats32]:
        """Out-of-fold predictions (N, K) of trees and of the user's estimator, by name."""
        data = self.evidence.data
        estimator = self.choice.estimator
        learned = data.labels.targets if taught is None else taught.labels
        others: dict[str, Floats32] = {}
        if self.choice.trees:
            assert data.x is not None
            table = FeatureTable.of_numbers(data.x) if data.table is None else data.table
            with self.clock("trees", is_single_step=False):
                others |= self.fit_trees(
                    table,
                    learned,
                    len(data.labels.names),
                    self._fold_of_trees(fold),
                    self.choice.trees,
                    seed=self.seed,
                    fast=self.is_fast,
                    progress=self.clock.progress,
                )
        if estimator is not None:
            inputs = estimator_inputs(estimator, data)
            with self.clock("estimator", is_single_step=False):
                others["estimator"] = self.fit_estimator(
                    estimator,
                    inputs,
                    learned,
                    len(data.labels.names),
                    fold,
                    progress=self.clock.progress,
                )
        return others

    def _fold_of_trees(self, fold: Ints) -> Ints:
        """Fewer folds for many rows, of which two thirds are enough to fit trees on."""
        data = self.evidence.data
        if len(data) <= MANY_ROWS or fold.max() < FAST_FOLDS:
            return fold
        groups = self.evidence.several_groups
        large = make_folds(
            data.given, folds=FAST_FOLDS, groups=groups, time=data.time, seed=self.seed
        )
        # trees would exclude a class that lies in one fold
        return fold if in_one_fold(data.given, large).any() else large

    def _train(
        self, network: str | None, others: Mapping[str, Any], taught: Taught | None
    ) -> Evidence:
        """Predictions of the ``network``, if any, joined with neighbours and ``others``."""
        data = self.evidence.data
        num_classes = len(data.labels.names)
        options: dict[str, Any] = {
            **self.training,
            "model": network,
            "others": others,
            "neighbours": self.evidence.surroundings.neighbours,
            "seed": self.seed,
            "progress": self.clock.progress,
        }
        if not self.watches or network is None:
            return self.cross_validate(
                data.x, data.labels.targets, num_classes, self.fold, taught=taught, **options
            )
        if data.groups is not None:
            # found in other groups: neighbours of its own do not vote on a row
            options["neighbours"] = None
        return watch_training(
            data.x, data.given, num_classes, groups=self.evidence.groups, **options
        )

    def teach(self, undecided: Evidence) -> Taught:
        """Return the labels with the decisions, for models to learn, and soft labels.

        ``undecided`` is the evidence of models that saw no decision. Soft labels come from it, but
        for decided rows: these have probability 1 for the decided label.
        """
        data = self.evidence.data
        assert data.decided is not None
        labels = data.labels.changed(data.decided).codes
        if undecided.pred_probs.size > LARGE:
            return Taught(labels, undecided)
        truth = soft_labels(torch.from_numpy(data.given), torch.from_numpy(undecided.pred_probs))
        decided_rows = torch.from_numpy(np.flatnonzero(data.decided >= 0))
        one_hot = torch.eye(truth.shape[1])
        truth[decided_rows] = one_hot[torch.from_numpy(labels)[decided_rows]]
        return Taught(labels, undecided, truth)


class QuestionFitter(ModelFitter):
    """Fits them to rows with several labels, each of which is a question."""

    fit_trees = staticmethod(fit_question_trees)
    fit_estimator = staticmethod(fit_question_estimator)
    cross_validate = staticmethod(question_evidence)

    def _fold_of_trees(self, fold: Ints) -> Ints:
        return fold

    def teach(self, undecided: Evidence) -> Taught:
        data = self.evidence.data
        assert data.decided is not None
        return Taught(data.labels.changed(data.decided).targets, undecided)


def estimator_inputs(estimator: Any, data: Rows) -> Any:
    """What a user's estimator is fitted to: the columns of the table if it chooses among them, else
    the features.
    """
    parts = [estimator, *estimator.get_params().values()]
    is_pipeline = any(hasattr(part, "steps") or hasattr(part, "transformers") for part in parts)
    if is_pipeline and data.table is not None and (frame := data.table.frame) is not None:
        return frame.read() if isinstance(frame, ParquetColumns) else frame
    return data.x


def _survey(data: Rows, seed: int, clock: StageClock) -> AuditEvidence:
    """The surroundings of all rows, with notes on what is missing."""
    notes = []
    if data.x is None or len(data) <= 2:
        around = Surroundings.none(len(data))
        notes.append(
            "Without features there is no search for neighbours, near-duplicates and outliers."
        )
    else:
        with clock(SURVEY):
            labels = data.labels.comparable
            around = Surroundings.search(data.x, labels, seed, clock.progress, data.unlike())
    if common := around.duplicates.common:
        notes.append(
            f"{common} rows have inputs that more than twenty rows, and more than a hundredth,"
            " share: they are not called duplicates."
        )
    if len(data) < VERY_FEW:
        notes.append(
            f"With {len(data)} rows, rates and counts mean little: look at each row yourself."
        )
    return AuditEvidence(replace(data, notes=(*data.notes, *notes)), around)


def _split(evidence: AuditEvidence, folds: int, seed: int) -> tuple[AuditEvidence, Ints]:
    """Folds that keep groups and near-duplicates together, and the evidence without rows whose
    class is in one fold.

    Near-duplicates are split where that leaves fewer such rows.
    """
    data = evidence.data
    groups = evidence.groups

    def split(groups: Ints | None) -> Ints:
        return make_folds(data.given, folds=folds, groups=groups, time=data.time, seed=seed)

    fold = split(groups) if np.ptp(groups) else np.zeros(len(data), np.int64)
    alone = in_one_fold(data.given, fold)
    if alone.any():
        loose = split(data.groups)
        loose_alone = in_one_fold(data.given, loose)
        if loose_alone.sum() < alone.sum():
            fold = loose
            alone = loose_alone
            evidence = evidence.with_note(
                "Near-duplicates were split between folds: some classes consist of little else."
            )
    if not alone.any():
        return evidence, fold
    data = evidence.data.subset(
        ~alone, "all rows of its class are in one fold: no model learned it without them"
    )
    if len(np.unique(data.given)) < 2:
        raise ValueError(
            "Expected classes with rows in several groups or times, got one at most: each class"
            " lies in a group or a time of its own. Leave out the group or the time, or train one"
            " network on all rows: mode fast, model network."
        )
    return AuditEvidence(data, evidence.surroundings.subset(~alone)), fold[~alone]
