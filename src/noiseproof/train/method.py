"""A method: a loss, a head and strategies; what its defaults may depend on."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from noiseproof.core.grammar import parse_call
from noiseproof.core.output import FROM_STRATEGIES, Output
from noiseproof.data import NoisyData
from noiseproof.heads import Head, get_head, head_for
from noiseproof.losses import Loss
from noiseproof.losses.sums import check_factors
from noiseproof.strategies import STRATEGIES, Strategy
from noiseproof.strategies.combine import Combination, check_targets, check_together
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task, noise_kind

FEATURES = 64  # of a head that is built to be checked: a multiple of what it may divide them by
# datasets whose own labels are noisy
HUMAN = ("cifar10n", "cifar100n", "clothing1m", "animal10n", "webvision")


@dataclass(frozen=True, eq=False)
class Method:
    """Loss × head × strategies; by default the head is the smallest that gives what the loss
    needs.
    """

    loss: Loss
    head: str = "auto"
    strategies: tuple[Strategy, ...] = ()

    def __post_init__(self) -> None:
        if self.head == "auto":
            object.__setattr__(self, "head", head_for(self.loss.needs - FROM_STRATEGIES))

    def check(self, num_classes: int, epochs: float = math.inf) -> None:
        """Refuse parts that cannot be trained together, or need more than ``epochs``."""
        self._check_fields(self._build_head(num_classes).gives)
        check_factors(self.loss)
        check_together(Combination(self.loss, self.strategies, num_classes, epochs))

    def _build_head(self, num_classes: int) -> Head:
        return get_head(self.head, FEATURES, self.loss.num_outputs(num_classes)).eval()

    def _check_fields(self, given: frozenset[str]) -> None:
        """Refuse a head that gives too little for the loss, or more than it uses."""
        missing = self.loss.needs - given - self.adds
        unused = given - self.loss.needs - {"logits"}
        if missing:
            chosen = Method(self.loss).head
            remedy = f"Use {chosen}, or leave it out: the loss then chooses its head."
            if missing <= FROM_STRATEGIES:
                adding = [
                    name
                    for name in STRATEGIES
                    if missing & getattr(STRATEGIES[name], "adds", frozenset())
                ]
                remedy = f"Name a strategy that adds it, such as {' or '.join(adding)}."
            needed = ", ".join(sorted(missing))
            raise ValueError(
                f"Expected a head that gives {needed} for `{self.loss}`, got {self.head!r}."
                f" {remedy}"
            )
        if unused:
            raise ValueError(
                f"Expected a loss that uses the {' and '.join(sorted(unused))} of the head"
                f" {self.head!r}, which would learn nothing, got `{self.loss}`. Leave the head out:"
                " the loss then chooses its own."
            )

    def _check_shapes(self, num_classes: int) -> None:
        """Refuse a loss that does not take what the head gives, such as one scale where it needs
        one for each class.
        """
        head = self._build_head(num_classes)
        loss = copy.deepcopy(self.loss).cpu().eval()
        with torch.no_grad():
            out: Output = head(torch.zeros(2, FEATURES))
            zeros = torch.zeros_like(out.logits)
            fields = {"memory": zeros, "noise": torch.stack([zeros, zeros], 1)}
            out = out._replace(**{name: fields[name] for name in self.adds})
            loss(out, zeros if loss.multilabel else torch.zeros(2, dtype=torch.int64))

    def check_labels(self, data: NoisyData) -> None:
        """Refuse labels of a kind, and outputs of a shape, that the loss does not take."""
        if self.loss.multilabel != data.multilabel:
            expected = "several labels" if data.multilabel else "one label"
            raise ValueError(
                f"Expected a loss of {expected} a row, as the data has, got `{self.loss}`."
            )
        if data.soft is not None:
            check_targets(self.loss, "probabilities", "soft labels (N, K)", "give single labels")
        self._check_shapes(data.num_classes)

    @property
    def models(self) -> int:
        """How many models are trained side by side."""
        return max([1, *(strategy.models for strategy in self.strategies)])

    @property
    def adds(self) -> frozenset[str]:
        """The fields of ``Output`` that strategies fill."""
        return frozenset().union(*(strategy.adds for strategy in self.strategies))

    def __str__(self) -> str:
        head = [] if self.head == "linear" else [self.head]
        return " × ".join([str(self.loss), *head, *map(str, self.strategies)])


@dataclass(frozen=True)
class MethodContext:
    """What the defaults of a method may depend on."""

    num_classes: int
    epochs: int
    steps: int  # over all epochs
    seen: int  # rows, over all epochs
    shares: tuple[float, ...]  # (K,): of rows with each given label
    dataset: str = ""
    noise: str | None = None  # its kind, as the papers' tables have it; None: unknown
    rate: float | None = None
    given: Mapping[str, Any] = field(default_factory=dict)  # parameters that a user gives a method

    @classmethod
    def of(cls, task: Task, settings: Settings) -> MethodContext:
        """Return the context of a task and the settings of a run."""
        dataset = task.dataset
        noise: str | None
        noise, rate = noise_kind(task.noise)
        if noise == "human":  # CIFAR-N's labels, put on CIFAR's images
            dataset, params = parse_call(task.noise)
            noise = params.get("which") if dataset == "cifar10n" else "human"
        elif (
            noise == "none" and dataset in HUMAN
        ):  # the name does not say which labels of CIFAR-10N
            noise = None if dataset == "cifar10n" else "human"
            rate = None
        shares = task.train.shares.tolist()
        plain = cls.of_rows(len(task.train), shares, settings)
        return replace(plain, dataset=dataset, noise=noise, rate=rate)

    @classmethod
    def of_classes(cls, num_classes: int) -> MethodContext:
        """Return the context without a task: 100 rows of each class, in batches and epochs of the
        default settings.
        """
        return cls.of_rows(100 * num_classes, [1 / num_classes] * num_classes, Settings())

    @classmethod
    def of_rows(cls, rows: int, shares: Sequence[float], settings: Settings) -> MethodContext:
        """Return the context of ``rows`` rows whose classes have these ``shares``."""
        epochs = settings.epochs
        steps = epochs * math.ceil(rows / settings.batch_rows(rows))
        return cls(len(shares), epochs, steps, seen=epochs * rows, shares=tuple(shares))

    @property
    def many(self) -> bool:
        """Whether the number of classes is nearer to 100 than to 10, in ratio."""
        return self.num_classes**2 > 1000

    def epoch(self, share: float) -> int:
        """Return the epoch after that share of training, neither the first nor past the last."""
        return min(max(1, round(share * self.epochs)), self.epochs - 1)

    def every(self, share: float) -> int:
        """Return that share of the training in epochs, at least one."""
        return max(1, round(share * self.epochs))

    @property
    def forget(self) -> float:
        """The share of wrong labels; 0.2 where it is not known."""
        known = self.known_rate
        return 0.2 if known is None else known

    @property
    def known_rate(self) -> float | None:
        """The share of wrong labels that a user gives, or the rate of synthetic noise, which the
        papers take as known.

        Without noise it is not known, since labels may be wrong nonetheless.
        """
        rate = None if self.noise == "none" else self.rate
        known: float | None = self.given.get("forget", rate)
        return known
