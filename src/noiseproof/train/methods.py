"""Named methods: each a loss, a head and strategies; ``METHOD@PAPER`` has a paper's hyperparameters.

Defaults work for any data: where the papers' choices differ, they depend on the number of classes, the length of the
training and the given labels. The papers tuned on 10 and on 100 classes; a dataset takes the choice of the nearer one,
in ratio.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from noiseproof.core.grammar import (
    calls_in,
    format_call,
    format_value,
    parse_call,
    parse_line,
    parse_sum,
    split_outside_brackets,
    split_specs,
)
from noiseproof.core.output import FROM_STRATEGIES, Output
from noiseproof.core.plugins import load_plugins
from noiseproof.core.registry import Registry, unknown_name
from noiseproof.data import NoisyData
from noiseproof.heads import HEADS, get_head
from noiseproof.heads.base import gives, head_for
from noiseproof.losses import (
    LOSSES,
    Loss,
    MultiLabel,
    NoSolution,
    Remargin,
    calibrate,
    expected_margin,
    get_loss,
    logit_bias,
    remargin_for,
)
from noiseproof.losses.base import OPTIONS
from noiseproof.losses.remargin import BIAS_CYCLE, Unit
from noiseproof.losses.sums import check_factors
from noiseproof.papers import QUALIFIERS, method_preset, pop_qualifiers, presets_of
from noiseproof.strategies import STRATEGIES, Strategy, get_strategy
from noiseproof.strategies.base import check_targets, check_together
from noiseproof.strategies.momentum import default_alpha
from noiseproof.strategies.run import Plan
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task, noise_kind

HUMAN = ("cifar10n", "cifar100n", "clothing1m", "animal10n", "webvision")  # datasets whose own labels are noisy


@dataclass(frozen=True, eq=False)
class Method:
    """Loss × head × strategies; by default the head is the smallest that gives what the loss needs."""

    loss: Loss
    head: str = "auto"
    strategies: tuple[Strategy, ...] = ()

    def __post_init__(self) -> None:
        if self.head == "auto":
            object.__setattr__(self, "head", self.loss.head or head_for(self.loss.needs - FROM_STRATEGIES))

    def check(self, num_classes: int, epochs: float = math.inf) -> None:
        """Refuse parts that cannot be trained together, or need more than ``epochs``."""
        given = gives(self.head)
        if given is not None and (missing := self.loss.needs - given - self.adds):
            needed = ", ".join(sorted(missing))
            remedy = (
                f"Name a strategy that adds it, such as {' or '.join(_adding(missing))}."
                if missing <= FROM_STRATEGIES
                else f"Use {Method(self.loss).head}, or leave it out: the loss then chooses its head."
            )
            raise ValueError(f"Expected a head that gives {needed} for `{self.loss}`, got {self.head!r}. {remedy}")
        if given is not None and (unused := given - self.loss.needs - {"logits"}):
            raise ValueError(
                f"Expected a loss that uses the {' and '.join(sorted(unused))} of the head {self.head!r}, which would "
                f"learn nothing, got `{self.loss}`. Leave the head out: the loss then chooses its own."
            )
        check_factors(self.loss)
        check_together(Plan(self.loss, self.strategies, num_classes, epochs))

    def _check_shapes(self, num_classes: int) -> None:
        """Refuse a loss that does not take what the head gives, such as one scale where it needs one for each class."""
        features = 64  # a multiple of what a head may divide them by
        head = get_head(self.head, features, self.loss.num_outputs(num_classes)).eval()
        if missing := self.loss.needs - head.gives - self.adds:
            raise ValueError(f"Expected a head that gives {', '.join(sorted(missing))} for `{self.loss}`, got {head}.")
        loss = copy.deepcopy(self.loss).cpu().eval()
        with torch.no_grad():
            out: Output = head(torch.zeros(2, features))
            zeros = torch.zeros_like(out.logits)
            fields = {"memory": zeros, "noise": torch.stack([zeros, zeros], 1)}
            out = out._replace(**{name: fields[name] for name in self.adds})
            loss(out, zeros if loss.multilabel else torch.zeros(2, dtype=torch.int64))

    def check_labels(self, data: NoisyData) -> None:
        """Refuse labels of a kind, and outputs of a shape, that the loss does not take."""
        if self.loss.multilabel != data.multilabel:
            expected = "several labels" if data.multilabel else "one label"
            raise ValueError(f"Expected a loss of {expected} a row, as the data has, got `{self.loss}`.")
        if data.soft is not None:
            check_targets(self.loss, "probabilities", "soft labels (N, K)", "Give single labels")
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
        parts = [str(self.loss), *([] if self.head == "linear" else [self.head]), *map(str, self.strategies)]
        return " × ".join(parts)


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

    @classmethod
    def of(cls, task: Task, settings: Settings) -> MethodContext:
        """The context of a task and the settings of a run."""
        rows, K = len(task.train), task.train.num_classes
        dataset = task.dataset
        noise: str | None
        noise, rate = noise_kind(task.noise)
        if noise == "human":  # CIFAR-N's labels, put on CIFAR's images
            dataset, params = parse_call(task.noise)
            noise = params.get("which") if dataset == "cifar10n" else "human"
        elif noise == "none" and dataset in HUMAN:  # the name does not tell which labels of CIFAR-10N
            noise, rate = (None if dataset == "cifar10n" else "human"), None
        return cls(
            num_classes=K,
            epochs=settings.epochs,
            steps=settings.epochs * math.ceil(rows / settings.batch_rows(rows)),
            seen=settings.epochs * rows,
            shares=tuple(task.train.shares.tolist()),
            dataset=dataset,
            noise=noise,
            rate=rate,
        )

    @classmethod
    def of_classes(cls, num_classes: int) -> MethodContext:
        """The context without a task: 100 rows of each class, in batches and epochs of the default settings."""
        settings, rows = Settings(), 100 * num_classes
        steps = settings.epochs * math.ceil(rows / settings.batch_rows(rows))
        return cls(num_classes, settings.epochs, steps, settings.epochs * rows, (1 / num_classes,) * num_classes)

    @property
    def many(self) -> bool:
        """Whether the number of classes is nearer to 100 than to 10, in ratio."""
        return self.num_classes**2 > 1000

    def epoch(self, share: float) -> int:
        """The epoch after that share of the training: not the first, and not after the last."""
        return min(max(1, round(share * self.epochs)), self.epochs - 1)

    def every(self, share: float) -> int:
        """That share of the training in epochs, at least one."""
        return max(1, round(share * self.epochs))

    @property
    def forget(self) -> float:
        """The share of wrong labels: the rate of synthetic noise, which the papers take as known; otherwise 0.2."""
        return 0.2 if self.known_rate is None else self.known_rate

    @property
    def known_rate(self) -> float | None:
        """The rate of synthetic noise; without noise it is not known, since labels may be wrong nonetheless."""
        return None if self.noise == "none" else self.rate


def _adding(fields: frozenset[str]) -> list[str]:
    return [name for name in STRATEGIES if fields & getattr(STRATEGIES[name], "adds", frozenset())]


METHODS: Registry[Method] = Registry("method", returns=Method)


def get_method(spec: str, task: Task, settings: Settings) -> Method:
    """Build the method that ``spec`` names for this task.

    ``NAME:key=value,…`` is a named method or any loss; sums of losses are methods too. ``NAME@PAPER`` has the paper's
    hyperparameters for this dataset and noise, or for those given after it (``ln@ln:dataset=mnist``). ``& STRATEGY``
    adds a strategy, and may be repeated; ``& HEAD`` chooses a head, by default the one that gives what the loss needs.
    Parts that cannot be trained together are refused. Where rows have several labels, the loss is that of each label.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train.task import prepare
    >>> task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    >>> print(get_method("gce:q=0.3 & momentum:alpha=0.99 & early-stopping", task, Settings()))
    gce:q=0.3 × momentum:alpha=0.99 × early-stopping:patience=10
    >>> print(get_method("ls@ln:dataset=mnist", task, Settings()))
    ls:alpha=0.9
    >>> get_method("2*ln:lam=1 + ce", task, Settings()).head
    'gaussian-root'
    """
    if not isinstance(spec, str):
        raise TypeError(f"Expected the name or spec of a method, got {type(spec).__name__}.")
    method = _assembled(spec, MethodContext.of(task, settings))
    if task.train.multilabel and not method.loss.multilabel:
        method = replace(method, loss=MultiLabel(method.loss))
    method.check(task.train.num_classes, settings.epochs)
    method.check_labels(task.train)
    return method


def method_loss(spec: str, context: MethodContext) -> Loss:
    """The loss of the method or loss ``spec``; with parameters that only the loss of that name has, of the loss.

    >>> hundred = MethodContext.of_classes(100)
    >>> print(method_loss("nal", hundred), method_loss("het:tau=5", hundred).tau)
    nal:lam=10.0,beta=0.0,floor=0.0,warmup=5 5.0
    """
    first = split_outside_brackets(spec, "&")[0].strip()
    name = _first_word(first)
    if _is_named(first) and name in LOSSES and not parse_call(first)[1].keys() <= METHODS.parameters(name).keys():
        return get_loss(first)
    method = _assembled(spec, context)
    method.check(context.num_classes)
    return method.loss


def _assembled(spec: str, context: MethodContext) -> Method:
    _check_single(spec)
    first, *more = split_outside_brackets(spec, "&")
    method = _build(first.strip(), context)
    head, *others = [part.strip() for part in more if _first_word(part) in HEADS] or [method.head]
    if others:
        raise ValueError(f"Expected one head, got {' and '.join([head, *others])}. Leave one out.")
    if methods := [word for word in map(_first_word, more) if word in METHODS and word not in STRATEGIES]:
        raise ValueError(
            f"Expected one method, before the first &, got {methods[0]!r} behind it. What follows are strategies: "
            "`noiseproof methods` shows those that a method is made of."
        )
    added = [get_strategy(part) for part in more if _first_word(part) not in HEADS]
    return Method(method.loss, head, (*method.strategies, *added))


def plain_method(spec: str) -> str:
    """The canonical spelling of ``spec``.

    >>> plain_method("gce:q=0.70 & momentum:alpha=.9"), plain_method("mae + 1.0*gce:q=0.7")
    ('gce & momentum:alpha=0.9', 'mae + gce')
    """
    first, *more = split_outside_brackets(spec, "&")
    if "@" in _first_word(first) or _is_named(first):
        first = METHODS.canonical(first)
    else:
        first = " + ".join(f"{weight!r}*" * (weight != 1) + LOSSES.canonical(term) for weight, term in parse_sum(first))
    return " & ".join(
        [first, *((HEADS if _first_word(part) in HEADS else STRATEGIES).canonical(part) for part in more)]
    )


def _first_word(spec: str) -> str:
    return spec.partition(":")[0].strip()


def _is_named(spec: str) -> bool:
    """Whether it is one of METHODS, and not a sum that begins like one."""
    name = _first_word(spec)
    return name in METHODS and len(split_outside_brackets(spec.strip()[len(name) :], "+")) == 1


def _check_single(spec: str) -> None:
    if len(several := split_specs(spec)) > 1:
        raise ValueError(f"Expected one method, got {len(several)}: {' and '.join(several)}. Take one at a time.")


def check_method(spec: str) -> None:
    """Refuse a spec with a name that no method, loss, strategy or head has, without a task."""
    _check_single(spec)
    first, *more = split_outside_brackets(spec, "&")
    name = _first_word(first)
    if more or (name not in METHODS and name not in LOSSES):
        load_plugins()
    bare = name.rstrip("*+")  # a name that ends with these is no sum of losses
    if bare and not set(bare) & set("+*@=()[]{}") and name not in LOSSES and not _is_named(first):
        raise ValueError(unknown_name("method", name, sorted({*METHODS, *LOSSES})))
    if "@" in name:
        presets_of(*map(str.strip, name.split("@", 1)))
    elif not _is_named(first):
        for term, _ in parse_line(first)[0]:
            _ = LOSSES[term.partition("@")[0]]
    for word in map(_first_word, more):
        _ = word in HEADS or STRATEGIES[word]


def _build(spec: str, context: MethodContext) -> Method:
    if "@" in _first_word(spec):
        return _build(_from_paper(spec, context), context)
    try:
        check_method(spec)
        if _is_named(spec):
            name, params = parse_call(spec)
            return METHODS.create(name, context, **params)
        return Method(get_loss(spec))
    except ValueError:
        if why := _misplaced(spec, context):
            raise ValueError(why) from None
        raise


def _misplaced(spec: str, context: MethodContext) -> str:
    """What ``spec`` names in the place of a loss, and the remedy; empty if nothing."""
    for name in [name for name, _ in calls_in(spec)][_is_named(spec) :]:
        if name in METHODS and name not in LOSSES:
            own = METHODS.create(name, context).loss
            return f"Expected a loss, got the method {name!r}. Write its loss, `{own}`."
        if name in STRATEGIES and name not in LOSSES:
            return f"Expected a loss, got the strategy {name!r}. Add it to one with &: `ce & {name}`."
    return ""


def _from_paper(spec: str, context: MethodContext) -> str:
    """The spec that ``NAME@PAPER:…`` stands for in this context."""
    name, _, rest = spec.partition("@")
    paper, params = parse_call(rest)
    data = {key: getattr(context, key) for key in QUALIFIERS if getattr(context, key) is not None}
    given = pop_qualifiers(params)
    if "dataset" in given or "num_classes" in given:  # other data than those of the run
        data = {key: value for key, value in data.items() if key not in ("dataset", "num_classes")}
    if given.get("noise", data.get("noise")) != data.get("noise"):  # other noise, whose rate may differ
        data.pop("rate", None)
    preset = method_preset(name.strip(), paper, {**data, **given})
    if not params:
        return preset
    if len(parse_sum(preset)) > 1:
        raise ValueError(f"Expected no parameters beside {', '.join(QUALIFIERS)} for the sum {preset!r}, got {spec!r}.")
    inner, values = parse_call(preset)
    return format_call(inner, {**values, **params})


# How a method is defined

Finish = Callable[[Loss, MethodContext, Mapping[str, Any]], Loss]


def define(
    name: str,
    summary: str,
    loss: str,
    /,
    *strategies: str,
    head: str = "auto",
    finish: Finish | None = None,
    **defaults: Any,
) -> None:
    """Add a method made of specs, in which ``{q}`` stands for its parameter q and ``{K}`` for the number of classes.

    ``summary`` is its docstring. ``defaults`` are values, or functions of the context, which users see as ``auto``.
    ``finish`` changes the loss, by context and parameters, where a spec cannot express it.
    """
    shown = {key: "auto" if callable(default) else default for key, default in defaults.items()}

    def recipe(context: MethodContext, /, **given: Any) -> Method:
        if given.get("forget", "auto") != "auto":  # who says how many labels are wrong knows the rate
            context = replace(context, noise=None, rate=given["forget"])
        if "until" in shown and "start" in given:  # a correction that you start ends the noise
            given = {"until": given["start"], **given}
        values = {**shown, **given, "K": context.num_classes}
        if values.get("prior", 0) is None and values["warmup"] == "auto":  # nothing to wait for
            values["warmup"] = None
        values |= {key: find(context) for key, find in defaults.items() if callable(find) and values[key] == "auto"}
        others = [key for key in given if key != "start"]
        if values.get("start", 0) is None and others:
            by_default = given.get("start", "auto") == "auto"
            raise ValueError(
                f"Expected a `start` beside parameters of {name}, "
                + f"which in {context.epochs} epochs has none, " * by_default
                + f"without which they would change nothing, got {', '.join(others)}. Give it as well"
                + (", or train longer." if by_default else ".")
            )
        written = {key: format_value(value) for key, value in values.items()}
        plain_loss = get_loss(loss.format_map(written))
        finished = finish(plain_loss, context, values) if finish else plain_loss
        parts = [get_strategy(strategy.format_map(written)) for strategy in strategies]
        return Method(finished, head.format_map(written), tuple(parts))

    recipe.__doc__ = summary
    recipe.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)]
        + [inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=value) for key, value in shown.items()]
    )
    METHODS.register(name)(recipe)


def by_classes(few: Any, many: Any) -> Callable[[MethodContext], Any]:
    """One default for about 10 classes, another for about 100."""
    return lambda context: many if context.many else few


def momentum(most: float) -> Callable[[MethodContext], float]:
    """The papers' α, or one that averages over a twentieth of the steps at most."""
    return lambda context: default_alpha(context.steps, most)


def _sigma(context: MethodContext) -> float:
    """The SLN paper's σ, 0.5 on CIFAR-10 (1 for symmetric noise) and 0.1 or 0.2 on CIFAR-100; less in short trainings.

    Over n rows the gradients of a class's weights add up to about n/K, and the noise on them to σ√n: the ratio of the
    two, √n/(Kσ), is at least 40.
    """
    enough = math.sqrt(context.seen) / (40 * context.num_classes)
    return float(f"{min(0.1 if context.many else 0.5, enough):.2g}")


def _noise_norm(context: MethodContext) -> float:
    """The largest norm of SLN's gradient: 1, or more where a training has fewer than 300 rows of a class in all.

    Shorter steps memorise less, but learn less, too.
    """
    return max(1.0, round(300 * context.num_classes / context.seen, 2))


def _noise_end(context: MethodContext) -> int:
    """SLN's noise ends after two thirds of the training: the rest fits clean rows that it kept from being fitted.

    In half of a long training, wrong labels are fitted as well.
    """
    return max(1, context.epoch(2 / 3))


def epoch(share: float) -> Callable[[MethodContext], int]:
    """The epoch after that share of the training."""
    return lambda context: context.epoch(share)


def _until_learned(context: MethodContext) -> int:
    """The epochs with 100 rows of a class, half of the training at most: before, small losses tell classes, not labels.

    On 50 000 images it is 0, as in the papers.
    """
    return min(context.epoch(0.5), round(100 * context.num_classes * context.epochs / context.seen))


def _selection_start(context: MethodContext) -> int:
    """The first epoch that leaves rows out: with a guessed share half of the training, which learns right labels first.

    The fifth of the largest losses among right labels is mostly of a few hard classes, which are then never learned.
    """
    return context.epoch(0.5) if context.known_rate is None else _until_learned(context)


def _selection_ramp(context: MethodContext) -> int:
    """The epochs until all of the share is left out: the papers' 10, a tenth of the training at most.

    A guessed share is reached over a quarter: where labels are clean, it takes hard rows away from what still learns.
    """
    return min(10, context.every(0.25 if context.known_rate is None else 0.1))


def _backward_start(context: MethodContext) -> int:
    """The epochs before T is estimated: a fifth, and where training goes on from there, those of ``_until_learned``."""
    return max(context.epoch(0.2), 0 if context.epochs >= 10 else _until_learned(context))


def _right_rows(context: MethodContext) -> float:
    """The right rows that ``backward`` takes T as estimated with: 100 as ``forward``, and as many as a class has.

    T⁻¹ makes errors of T larger, and wrong labels that are fitted as well: with classes of equal size, T is halfway to
    the identity at least.
    """
    return 100.0 + round(context.seen / context.epochs / context.num_classes)


def _is_short(context: MethodContext) -> bool:
    """Whether a second start would leave too little of the training, or have too little to start from.

    Layers that are kept have seen an eighth of the training: 100 rows of a class at least.
    """
    return context.epochs < 10 or context.steps < 200 or context.seen < 800 * context.num_classes


def _pes_start(context: MethodContext) -> int | None:
    """PES's epochs of all layers: 25 of 200, half where none are renewed, and all of fewer than ten.

    In these no label is memorised yet, so that there is nothing to stop early.
    """
    return None if context.epochs < 10 else context.epoch(0.5 if _is_short(context) else 0.125)


def _renewed_epochs(context: MethodContext) -> tuple[int, int]:
    """PES's epochs of the block and of the head, 7 and 5 of 200, but 50 steps where possible; some are left after them.

    With ten steps each on 1200 rows, the layers predicted too few labels to go on from. In fewer than ten epochs or
    200 steps there is no time for it: nothing is renewed.
    """
    if _is_short(context):
        return 0, 0
    enough, left = math.ceil(50 * context.epochs / context.steps), context.epochs - context.epoch(0.125) - 1
    head = min(max(context.every(0.025), enough), (left + 1) // 2)
    return min(max(context.every(0.035), enough), (left - head) // 2), head


def _renewed_rate(context: MethodContext) -> float:
    """PES's rate of Adam, 1e-4 for 1755 steps of the head, and more for fewer, which would leave it as it was drawn."""
    steps = context.steps / context.epochs * max(1, _renewed_epochs(context)[1])
    return round(min(0.01, max(1e-4, 0.1755 / steps)), 6)


def root_start(context: MethodContext) -> float:
    """The start of LN's heads at which the first squares of the other logits, (K − 1)·start², sum to about 1."""
    return round(1 / math.sqrt(context.num_classes), 3)


def _half_balanced(context: MethodContext) -> list[float]:
    """Halfway between the shares of the given labels and equal ones.

    L = nll_y − Σ_k π_k nll_k prefers the class of the largest P(y = k | x) − π_k, which is right where all π_k are
    equal (Liu & Guo 2020 have another factor elsewhere, which depends on the noise). With the shares, features that
    tell nothing leave it to chance; with equal ones, nothing holds it from the largest class.
    """
    total = sum(context.shares)  # more than 1 with several labels a row, for which the loss is refused by the task
    return [(share / total + 1 / context.num_classes) / 2 for share in context.shares]


# Losses fitted to the number of classes (bias and curriculum papers)


def _bias(context: MethodContext, C: float) -> float:
    """ε of the bias paper's Eq. 4, or 0 where few classes make it negative."""
    return max(0.0, logit_bias(context.num_classes, C))


def _biased(loss: Loss, context: MethodContext, params: Mapping[str, Any]) -> Loss:
    return Remargin(loss, shift=_bias(context, params["C"]) if params["shift"] == "auto" else params["shift"])


def _cycled(loss: Loss, context: MethodContext, params: Mapping[str, Any]) -> Loss:
    """The bias paper's cycle in the proportion of ε(K) to ε(1000)."""
    ratio = _bias(context, params["C"]) / logit_bias(1000, params["C"])
    return Remargin(loss, shift=[round(epsilon * ratio, 4) for epsilon in BIAS_CYCLE], every=params["every"])


def _calibrated(loss: Loss, context: MethodContext, params: Mapping[str, Any]) -> Loss:
    if context.num_classes <= params["like"]:  # a larger q would be nearer to MAE, and learn more slowly
        return loss
    return calibrate(loss, context.num_classes, params["like"], check=False).loss or loss


def _calibrated_sum(loss: Loss, context: MethodContext, params: Mapping[str, Any]) -> Loss:
    with suppress(NoSolution):
        like = 100 if context.many else 10
        loss = calibrate(loss, context.num_classes, like, free=params["free"], check=False).loss or loss
    return loss


def _moved(by: Literal["shift", "scale"]) -> Finish:
    """The curriculum paper's w⁺ or w*, of unit maximum; up to ten classes there is nothing to cancel unless a τ is
    given."""

    def move(loss: Loss, context: MethodContext, params: Mapping[str, Any]) -> Loss:
        unit, tau = Unit(loss), None if params["tau"] == "auto" else params["tau"]
        if tau is None and expected_margin(context.num_classes) >= expected_margin(10):
            return unit
        return remargin_for(unit, context.num_classes, by=by, tau=tau)

    return move


# The methods. ELR has λ = 3 and β = 0.7, or 7 and 0.9 (Liu et al. 2020).
# fmt: off

PLAIN = (
    "ce", "ls", "gls", "gce", "mae", "sce", "nce", "agce", "aul", "ael", "tce", "focal", "mse", "phuber", "bitemp",
)
for _name in PLAIN:
    _loss = {"bitemp": "bitempered"}.get(_name, _name)
    _own = {key: value for key, value in LOSSES.parameters(_loss).items() if key not in OPTIONS}
    _call = _loss + ":" * bool(_own) + ",".join(f"{key}={{{key}}}" for key in _own)
    define(_name, (inspect.getdoc(LOSSES[_loss]) or "").partition("\n\n")[0], _call, **_own)

# Cross entropy up to 6.9, then bounded by 7.9. The released code of peer loss bounds it at 11.5, with which 50 and 150
# classes learned less.
BOUNDED = "phuber:tau=1e3"
define("peer", "Peer loss of a bounded cross entropy; random labels are drawn half by their shares, half equally.",
       "peer:loss={loss},prior={prior},warmup={warmup}",
       loss=BOUNDED, prior=_half_balanced, warmup=epoch(0.1))
define("cr", "Confidence regulariser, with the bounded cross entropy and the prior of peer.",
       "cr:beta={beta},prior={prior},loss={loss},warmup={warmup}",
       beta=1.0, prior=_half_balanced, loss=BOUNDED, warmup=epoch(0.1))

define("nce+mae", "α·NCE + β·MAE; α is K/10, which is 1 and 10 where Ma et al. (2020) have it so.",
       "{alpha}*nce + {beta}*mae",
       alpha=lambda s: s.num_classes / 10, beta=1.0)
_NFL_MAE: dict[str, Any] = {"alpha": lambda s: s.num_classes / 10, "beta": 1.0, "gamma": 0.5}
define("nfl+mae", "α·NFL + β·MAE, with the α of nce+mae.",
       "{alpha}*nfl:gamma={gamma} + {beta}*mae", **_NFL_MAE)
_NCE_AGCE: dict[str, Any] = {"alpha": by_classes(1, 10), "beta": by_classes(4, 0.1),
                             "a": by_classes(6, 1.8), "q": by_classes(1.5, 3)}
define("nce+agce", "α·NCE + β·AGCE(a, q) as in Zhou et al. (2021), the bias paper: 1, 4, 6, 1.5, or 10, 0.1, 1.8, 3.",
       "{alpha}*nce + {beta}*agce:a={a},q={q}", **_NCE_AGCE)
define("nce+aul", "α·NCE + β·AUL(a, q) as Zhou et al. (2021) have it: 1, 4, 6.3, 1.5, or 10, 0.015, 6, 3.",
       "{alpha}*nce + {beta}*aul:a={a},q={q}",
       alpha=by_classes(1, 10), beta=by_classes(4, 0.015), a=by_classes(6.3, 6), q=by_classes(1.5, 3))

define("mae*", "MAE with the logit bias ε(K) that makes the label's first mean probability C (bias paper, Eq. 4).",
       "mae:scale={scale}", finish=_biased,
       shift="auto", C=0.15, scale=2.0)
define("mae**", "MAE with a logit bias that falls from ε(K) in three cycles of six steps (bias paper, appendix 2).",
       "mae:scale={scale}", finish=_cycled,
       every=lambda s: s.every(1 / 18), C=0.15, scale=2.0)
define("gce**", "GCE with the logit bias of mae**.",
       "gce:q={q}", finish=_cycled,
       q=0.7, every=lambda s: s.every(1 / 18), C=0.15)
define("nfl+mae**", "nfl+mae with the logit bias of mae**.",
       "{alpha}*nfl:gamma={gamma} + {beta}*mae", finish=_cycled,
       **_NFL_MAE, every=lambda s: s.every(1 / 18), C=0.15)
define("gce+", "GCE whose q gives more than ``like`` classes the first error that ``q`` gives these.",
       "gce:q={q}", finish=_calibrated,
       q=0.7, like=100)
define("nce+agce+", "nce+agce, by ``free`` with the first error that it has of 10 or 100 classes (bias paper, §3.3).",
       "{alpha}*nce + {beta}*agce:a={a},q={q}", finish=_calibrated_sum,
       **_NCE_AGCE, free="nce.factor")
for _by in ("shift", "scale"):
    define(f"mae-{_by}", f"MAE whose mean margin starts at −τ by {_by} (curriculum paper); τ is that of 10 classes.",
           "mae", finish=_moved(_by),
           tau="auto")
    define(f"agce-{_by}", f"AGCE as the curriculum paper tuned it, moved as by mae-{_by}.",
           "agce:a={a},q={q}", finish=_moved(_by),
           tau="auto", a=0.1, q=0.1)

define("sln", "Cross entropy with stochastic label noise.",
       "ce", "sln:sigma={sigma},until={until},max_norm={max_norm}",
       sigma=_sigma, until=_noise_end, max_norm=_noise_norm)
define("sln-mo", "SLN, and the momentum model predicts.",
       "ce", "sln:sigma={sigma},until={until},max_norm={max_norm}", "momentum:alpha={alpha}",
       sigma=_sigma, until=_noise_end, alpha=momentum(0.999), max_norm=_noise_norm)
define("sln-mo-lc", "SLN-MO, with label correction in the last sixth of the training, after the noise.",
       "ce", "sln:sigma={sigma},until={until},max_norm={max_norm}", "momentum:alpha={alpha}",
       "label-correction:start={start},soft={soft},invert={invert},against={against}",
       sigma=_sigma, until=_noise_end, alpha=momentum(0.999), start=epoch(5 / 6), soft=False, invert=False,
       against="current", max_norm=_noise_norm)
define("noise-f", "Cross entropy with noise on the gradient in the logits.",
       "ce", "noise-f:sigma={sigma}",
       sigma=0.1)
define("noise-theta", "Cross entropy with noise on the gradient in the weights.",
       "ce", "noise-theta:sigma={sigma}",
       sigma=0.1)

define("tgce", "GCE that prunes samples of p ≤ k from a third of the training on (Zhang & Sabuncu: 40 of 120 epochs).",
       "gce:q={q}", "prune:start={start},every={every},k={k},lasts={lasts},spare={spare}",
       q=0.7, k=0.5, start=epoch(1 / 3), every=lambda s: min(10, s.every(1 / 12)), lasts=None,
       spare=True)
_TRANSITION = "estimate-transition:warmup={warmup},percentile={percentile},restart={restart},right={right}"
_ESTIMATE: dict[str, Any] = {"warmup": epoch(0.2), "percentile": by_classes(97.0, None),
                             "restart": lambda s: s.epochs >= 10, "right": 100.0}
define("forward", "Forward correction, its T estimated after a fifth of the training, which then starts anew.",
       "forward:T={K}", _TRANSITION, **_ESTIMATE)
define("backward", "Backward correction, T as of forward but closer to the identity, bounded as in the released code.",
       "backward:T={K},clip={clip}", _TRANSITION,
       **{**_ESTIMATE, "warmup": _backward_start, "right": _right_rows}, clip=1e-7)

define("ln", "Logistic-Normal likelihood with Σ^½ = ccᵀ + λI; λ is the largest that the LN paper tries.",
       "ln:lam={lam},tau={tau},t={t},dummy={dummy},predict={predict},start={start}", head="gaussian-root",
       tau=0.5, lam=1.0, t=0.01, dummy=True, predict="classes", start=root_start)
define("ln-nodummy", "LN without the dummy class (LN paper, Table 3).",
       "ln:lam={lam},tau={tau},t={t},dummy=false,start={start}", head="gaussian-root",
       tau=0.5, lam=1.0, t=0.01, start=root_start)
define("ln-identity", "LN with Σ = I (LN paper, Table 3).",
       "ln:tau={tau},t={t},covariance=identity,start={start}",
       tau=0.5, t=0.01, start=0.1)
define("ln-isotropic", "LN with one standard deviation a sample (LN paper, Table 3).",
       "ln:lam={lam},tau={tau},t={t},covariance=isotropic,start={start}", head="gaussian-scale:isotropic=true",
       tau=0.5, lam=1.0, t=0.01, start=0.1)
define("ln-diagonal", "LN with a standard deviation for each logit (LN paper, Table 3).",
       "ln:lam={lam},tau={tau},t={t},covariance=diagonal,start={start}", head="gaussian-scale",
       tau=0.5, lam=1.0, t=0.01, start=0.1)
define("het", "Heteroscedastic classifier with diagonal noise on the logits, at temperature 1.",
       "het:samples={samples}", head="gaussian-scale",
       samples=100)
define("het-tau", "Het at temperature τ: 10 or 20 in most of the LN paper's rows.",
       "het:tau={tau},samples={samples}", head="gaussian-scale",
       tau=10.0, samples=100)
define("het-tau-full", "Het-τ with ``rank`` factors of the covariance beside its diagonal.",
       "het:tau={tau},samples={samples},covariance=full", head="gaussian-factors:rank={rank}",
       tau=10.0, rank=4, samples=100)
define("gp", "A Gaussian process, solved at once from up to 5000 samples, in place of a model (LN paper, section 6).",
       "ce", "gp:length_scale={length_scale},signal={signal},noise={noise},t={t},dummy={dummy}",
       length_scale=None, signal=None, noise=None, t=0.01, dummy=True)

# The NAL paper lets targets follow from epoch 60 of 500, in every 10th, which ends a cycle of its learning rate. Where
# the rate falls but once, as by default here, it is from 40 of 100 on, in every one (ANIMAL-10N); SELC: from 20 to 40
# of 120.
define("nal", "Noise attention learning; λ is K/10, from 0.5 to 10, and targets follow from 40 % of the training.",
       "nal:lam={lam},beta={beta},floor={floor},warmup={warmup}",
       "estimated-targets:start={start},every={every},alpha={alpha},delta={delta},floor={floor},spare={spare}",
       head="attention",
       lam=lambda s: min(10, max(0.5, s.num_classes / 10)), alpha=0.9, start=epoch(0.4), every=lambda s: s.every(0.01),
       delta=0.0, beta=0.0, floor=0.0, warmup=epoch(0.05), spare=True)
define("selc", "Cross entropy against targets that follow the model from a quarter of the training on.",
       "ce", "estimated-targets:start={start},alpha={alpha},spare={spare}",
       start=epoch(0.25), alpha=0.9, spare=True)
_LAM, _BETA = by_classes(3.0, 7.0), by_classes(0.7, 0.9)
define("elr", "Early-learning regularisation.",
       "elr:lam={lam}", "target-memory:beta={beta}",
       lam=_LAM, beta=_BETA)
define("elr+", "ELR with two models, each held to what the other's momentum model (α = 0.997) said, and mixup.",
       "elr:lam={lam},clip=1e-4",
       "exchanged-memory:beta={beta},reweigh={reweigh}", "mixup:alpha={mixup}", "momentum:alpha={alpha}",
       lam=_LAM, beta=_BETA, mixup=1.0, alpha=momentum(0.997), reweigh=by_classes(False, True))
# Ten times the SOP paper's rates of u and v, which are for 50 000 images: networks memorise few rows sooner.
_RATES: dict[str, Any] = {"lr_u": by_classes(100.0, 10.0), "lr_v": 100.0}
define("sop", "Sparse over-parameterisation: what is wrong with a label is learned as its noise, apart from the model.",
       "sop", "sparse-noise:lr_u={lr_u},lr_v={lr_v}", **_RATES)
define("sop+", "SOP, with predictions that agree for two augmentations of a row, and have every class as often.",
       "sop", "sparse-noise:lr_u={lr_u},lr_v={lr_v}", "consistency:lambda_c={lambda_c},lambda_b={lambda_b}",
       **_RATES, lambda_c=0.9, lambda_b=0.1)
_PES: dict[str, Any] = {
    "start": _pes_start,
    "block_epochs": lambda s: _renewed_epochs(s)[0], "head_epochs": lambda s: _renewed_epochs(s)[1],
    "lr": _renewed_rate, "released": False, "balance": False,
}
define("pes", "Progressive early stopping: later layers train anew, for few epochs, then on the labels they predict.",
       "ce", "progressive-stopping:start={start},block_epochs={block_epochs},head_epochs={head_epochs},lr={lr},"
       "released={released},balance={balance}",
       **_PES)
define("pes-semi", "PES, whose rows with labels that it does not predict train without them, by MixMatch.",
       "ce", "progressive-mixmatch:start={start},block_epochs={block_epochs},head_epochs={head_epochs},lr={lr},"
       "released={released},balance={balance},lambda_u={lambda_u},ramp={ramp},alpha={alpha},late_alpha={late_alpha}",
       **_PES, lambda_u=0.0, ramp=16.0, alpha=4.0, late_alpha=0.75)

# The SLN paper's ramp of 10 epochs, but no more than a tenth of the training, and its γ of 0.001; Table 4 puts SLN
# before each.
_FORGET: dict[str, Any] = {"forget": lambda s: s.forget, "ramp": _selection_ramp}
_FIRST: dict[str, Any] = {"sigma": _sigma, "start": epoch(0.5), "max_norm": _noise_norm}
_FIRST_SLN = "sln:sigma={sigma},until={start},max_norm={max_norm}"
define("co-teaching", "Two models, each trained on what the other finds easy; ``forget`` is the noise's rate, or 0.2.",
       "ce", "co-teaching:forget={forget},ramp={ramp},start={start}", **_FORGET, start=_selection_start)
define("sln-co-teaching", "SLN for the first half of the training, then Co-teaching.",
       "ce", _FIRST_SLN, "co-teaching:forget={forget},ramp={ramp},start={start}", **_FORGET, **_FIRST)
define("sigua", "Training on what is easy, and a little away from the next; ``forget`` as for co-teaching.",
       "ce", "sigua:forget={forget},ramp={ramp},rate={rate},scale={scale},start={start}",
       **_FORGET, rate=0.3, scale=0.001, start=_selection_start)
define("sln-sigua", "SLN for the first half of the training, then SIGUA.",
       "ce", _FIRST_SLN, "sigua:forget={forget},ramp={ramp},rate={rate},scale={scale},start={start}",
       **_FORGET, rate=0.3, scale=0.001, **_FIRST)
# Without the term for equal classes, and with MixMatch's α of 0.75: mixtures halfway between rows (α = 4) blur what
# classes that curve around each other have learned.
_DIVIDEMIX: dict[str, Any] = {"lambda_u": 0.0, "ramp": 16.0, "balance": False, "agreed": True, "alpha": 0.75}
define("dividemix", "DivideMix: warm-up of 10 or 30 epochs, 30 % of the training at most; λ_u = 0 as in the SLN paper.",
       "ce", "dividemix:warmup={warmup},lambda_u={lambda_u},penalty={penalty},ramp={ramp},balance={balance},"
       "agreed={agreed},alpha={alpha}",
       warmup=lambda s: max(_until_learned(s), min(30 if s.many else 10, s.epoch(0.3))), penalty=False,
       **_DIVIDEMIX)
define("promix", "ProMix: two models trained on labels of small loss or high confidence, and late on those both guess.",
       "ce", "promix:warmup={warmup},rho={rho},tau={tau},ramp={ramp},guess_from={guess_from},equal={equal},"
       "agreed={agreed}",
       warmup=lambda s: min(30 if s.many else 10, s.epoch(0.1)), rho=lambda s: round(max(0.5, 0.9 - s.forget), 2),
       tau=by_classes(0.99, 0.95),
       ramp=lambda s: min(50, s.every(1 / 12)), guess_from=epoch(7 / 12), equal=False, agreed=True)
define("sln-dividemix", "SLN for the first half of the training in place of the warm-up, then DivideMix.",
       "ce", _FIRST_SLN, "dividemix:warmup={start},lambda_u={lambda_u},ramp={ramp},balance={balance},agreed={agreed},"
       "alpha={alpha}",
       **_FIRST, **_DIVIDEMIX)
