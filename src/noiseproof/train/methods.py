"""Named methods: each a loss, a head and strategies; ``METHOD@PAPER`` has a paper's hyperparameters.

Defaults are for any data: where the papers' choices differ, they follow the number of classes, the length of the
training and the labels at hand. The papers tuned on 10 and on 100 classes; nearer to which of the two, in ratio, a
dataset is decides between their choices.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch

from noiseproof.core.checks import check_number
from noiseproof.core.registry import Registry, format_call, parse_call, parse_sum, split_outside_brackets
from noiseproof.losses import (
    LOSSES,
    Loss,
    NoSolution,
    Remargin,
    calibrate,
    expected_margin,
    get_loss,
    logit_bias,
    remargin_for,
)
from noiseproof.losses.base import OPTIONS
from noiseproof.losses.presets import QUALIFIERS
from noiseproof.losses.remargin import CYCLE_002, Unit
from noiseproof.strategies import Strategy, get_strategy
from noiseproof.train.presets import preset
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task, noise_kind

BOUNDED = "phuber:tau=1e5"  # cross entropy up to 11.5, where the released code of peer loss ends as well
HUMAN = ("cifar10n", "cifar100n", "clothing1m", "animal10n", "webvision")  # datasets whose own labels are noisy


@dataclass(frozen=True, eq=False)
class Method:
    """Loss × head × strategies."""

    loss: Loss
    head: str = "linear"
    strategies: tuple[Strategy, ...] = ()

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
class Setting:
    """All that a recipe knows of where it will be used."""

    num_classes: int
    epochs: int
    steps: int  # over all epochs
    shares: tuple[float, ...]  # (K,): of the given labels
    dataset: str = ""
    noise: str | None = None  # its kind, as the papers' tables have it; None: unknown
    rate: float | None = None

    @classmethod
    def of(cls, task: Task, settings: Settings) -> Setting:
        """What a task and the settings of a run say."""
        rows, K = len(task.train), task.train.num_classes
        counts = torch.bincount(task.train.given.cpu(), minlength=K)
        dataset = task.dataset
        noise: str | None
        noise, rate = noise_kind(task.noise)
        if noise == "human":  # CIFAR-N's labels, put on CIFAR's images
            dataset, params = parse_call(task.noise)
            noise = params.get("which") if dataset == "cifar10n" else "human"
        elif noise == "none" and dataset in HUMAN:  # which labels of CIFAR-10N, the name does not say
            noise, rate = (None if dataset == "cifar10n" else "human"), None
        return cls(
            num_classes=K,
            epochs=settings.epochs,
            steps=settings.epochs * math.ceil(rows / settings.batch_rows(rows)),
            shares=tuple((counts.double() / rows).tolist()),
            dataset=dataset,
            noise=noise,
            rate=rate,
        )

    @property
    def many(self) -> bool:
        """Whether there are more like 100 classes than like 10."""
        return self.num_classes**2 > 1000

    def epoch(self, share: float) -> int:
        """The epoch after that share of the training: not the first, and not after the last."""
        return min(max(1, round(share * self.epochs)), self.epochs - 1)

    def every(self, share: float) -> int:
        """That share of the training in epochs, at least one."""
        return max(1, round(share * self.epochs))

    @property
    def forget(self) -> float:
        """The share of wrong labels: the rate of synthetic noise, which the papers take as known; else a fifth."""
        return self.rate or 0.2


METHODS: Registry[Method] = Registry("method")


def get_method(spec: str, task: Task, settings: Settings) -> Method:
    """Build the method that ``spec`` names for this task.

    ``NAME:key=value,…`` is a named method or any loss; sums of losses are methods too. ``NAME@PAPER`` has the paper's
    hyperparameters for this dataset and noise, or for those said after it (``ln@000:dataset=mnist``). ``& STRATEGY``
    adds a strategy, as often as you like.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train.task import prepare
    >>> task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    >>> print(get_method("gce:q=0.3 & momentum:alpha=0.99 & early-stopping", task, Settings()))
    gce:q=0.3 × momentum:alpha=0.99 × early-stopping:patience=10
    >>> print(get_method("ls@000:dataset=mnist", task, Settings()))
    ls:alpha=0.9
    """
    if not isinstance(spec, str):
        raise TypeError(f"Expected the name or spec of a method, got {type(spec).__name__}.")
    first, *more = split_outside_brackets(spec, "&")
    method = _build(first.strip(), Setting.of(task, settings))
    return Method(method.loss, method.head, (*method.strategies, *map(get_strategy, more)))


def _build(spec: str, setting: Setting) -> Method:
    name = spec.partition(":")[0].strip()
    if "@" in name:
        return _build(_from_paper(spec, setting), setting)
    if name in METHODS and len(split_outside_brackets(spec[len(name) :], "+")) == 1:
        return METHODS.create(name, setting, **parse_call(spec)[1])
    if name == "gp":
        raise ValueError(
            "The Gaussian process is solved in closed form, without steps to train in. "
            "Use noiseproof.heads.process.GaussianProcessClassifier().fit(x, y)."
        )
    bare = name.rstrip("*+")  # with these at its end it is no sum of losses
    if bare.replace("-", "").isalnum() and name not in LOSSES:
        known = {*METHODS, *LOSSES}
        near = difflib.get_close_matches(name, sorted(known), n=3)
        hint = f"Did you mean {', '.join(map(repr, near))}?" if near else f"There are: {', '.join(sorted(known))}."
        raise ValueError(f"Unknown method {name!r}. {hint}")
    return Method(get_loss(spec))


def _from_paper(spec: str, setting: Setting) -> str:
    """The spec that ``NAME@PAPER:…`` stands for, here."""
    name, _, rest = spec.partition("@")
    paper, params = parse_call(rest)
    data = {key: getattr(setting, key) for key in QUALIFIERS if getattr(setting, key) is not None}
    said = {key: params.pop(key) for key in QUALIFIERS if key in params}
    if "noise" in said:
        said["noise"] = said["noise"] or "none"  # a word of its own here, not the absence of a value
    if "dataset" in said or "num_classes" in said:  # other data, known by what is said
        data = {key: value for key, value in data.items() if key not in ("dataset", "num_classes")}
    found = preset(name.strip(), paper, {**data, **said})
    if not params:
        return found
    if len(parse_sum(found)) > 1:
        raise ValueError(f"Expected no parameters beside {', '.join(QUALIFIERS)} for the sum {found!r}, got {spec!r}.")
    inner, values = parse_call(found)
    return format_call(inner, {**values, **params})


# Losses alone


def _loss(loss: str) -> Callable[..., Method]:
    """A recipe with the parameters of a loss, and nothing beside it."""

    def recipe(setting: Setting, /, **params: Any) -> Method:
        return Method(get_loss(loss, **params))

    first, *_ = inspect.signature(recipe).parameters.values()
    own = [p for p in inspect.signature(LOSSES[loss]).parameters.values() if p.name not in (*OPTIONS, "options")]
    recipe.__signature__ = inspect.Signature([first, *own])  # type: ignore[attr-defined]
    recipe.__doc__ = inspect.getdoc(LOSSES[loss])
    return recipe


PLAIN = "ce ls gls gce mae sce nce agce aul ael tce focal mse phuber"
for _name in PLAIN.split():
    METHODS.register(_name)(_loss(_name))
METHODS.register("bitemp")(_loss("bitempered"))


@METHODS.register("peer")
def peer(setting: Setting, /, loss: str = BOUNDED) -> Method:
    """Peer loss of a cross entropy that is bounded: without a bound, confidence pays without end."""
    return Method(get_loss("peer", loss=loss))


@METHODS.register("cr")
def cr(setting: Setting, /, beta: float = 1.0, loss: str = BOUNDED) -> Method:
    """Confidence regulariser, whose prior is the distribution of the given labels; bounded as peer is."""
    return Method(get_loss("cr", beta=beta, prior=list(setting.shares), loss=loss))


@METHODS.register("nce+mae")
def nce_mae(setting: Setting, /, alpha: float | None = None, beta: float = 1.0) -> Method:
    """α·NCE + β·MAE; α is K/10, which is 1 and 10 where Ma et al. (2020) have it so."""
    return Method(_active(setting, alpha) * get_loss("nce") + beta * get_loss("mae"))


@METHODS.register("nfl+mae")
def nfl_mae(setting: Setting, /, alpha: float | None = None, beta: float = 1.0, gamma: float = 0.5) -> Method:
    """α·NFL + β·MAE, with the α of nce+mae."""
    return Method(_active(setting, alpha) * get_loss("nfl", gamma=gamma) + beta * get_loss("mae"))


def _active(setting: Setting, alpha: float | None) -> float:
    return setting.num_classes / 10 if alpha is None else check_number("alpha", alpha, "(-inf, inf)")


def _sum_of(setting: Setting, passive: str, few: Sequence[float], many: Sequence[float], **given: float | None) -> Loss:
    """alpha·NCE + beta·passive(a, q), from (alpha, beta, a, q) for few or many classes where they are not given."""
    chosen = dict(zip(("alpha", "beta", "a", "q"), many if setting.many else few, strict=True))
    chosen |= {name: value for name, value in given.items() if value is not None}
    return chosen["alpha"] * get_loss("nce") + chosen["beta"] * get_loss(passive, a=chosen["a"], q=chosen["q"])


def _nce_agce(setting: Setting, **given: float | None) -> Loss:
    return _sum_of(setting, "agce", (1, 4, 6, 1.5), (10, 0.1, 1.8, 3), **given)


@METHODS.register("nce+agce")
def nce_agce(
    setting: Setting,
    /,
    alpha: float | None = None,
    beta: float | None = None,
    a: float | None = None,
    q: float | None = None,
) -> Method:
    """α·NCE + β·AGCE as Zhou et al. (2021) and 002 have it: NCE + 4·AGCE(6, 1.5), or 10·NCE + 0.1·AGCE(1.8, 3)."""
    return Method(_nce_agce(setting, alpha=alpha, beta=beta, a=a, q=q))


@METHODS.register("nce+aul")
def nce_aul(
    setting: Setting,
    /,
    alpha: float | None = None,
    beta: float | None = None,
    a: float | None = None,
    q: float | None = None,
) -> Method:
    """α·NCE + β·AUL as Zhou et al. (2021) have it: NCE + 4·AUL(6.3, 1.5), or 10·NCE + 0.015·AUL(6, 3)."""
    few, many = (1, 4, 6.3, 1.5), (10, 0.015, 6, 3)
    return Method(_sum_of(setting, "aul", few, many, alpha=alpha, beta=beta, a=a, q=q))


# Losses fitted to the number of classes (papers 002 and 004)


def _bias(setting: Setting, C: float) -> float:
    """ε of 002's Eq. 4, or 0 where few classes make it negative: there the label needs no help."""
    return max(0.0, logit_bias(setting.num_classes, C))


def _cycled(setting: Setting, loss: Loss, C: float, every: int | None) -> Method:
    """002's cycle in the proportion of ε(K) to ε(1000), three times over the training (appendix 2)."""
    ratio = _bias(setting, C) / logit_bias(1000, C)
    shifts = [round(epsilon * ratio, 4) for epsilon in CYCLE_002]
    return Method(Remargin(loss, shift=shifts, every=setting.every(1 / 18) if every is None else every))


@METHODS.register("mae*")
def mae_biased(setting: Setting, /, shift: float | None = None, C: float = 0.15, scale: float = 2.0) -> Method:
    """MAE with the logit bias ε(K) that makes the label's first mean probability C (002 Eq. 4; not below 0)."""
    return Method(Remargin(get_loss("mae", scale=scale), shift=_bias(setting, C) if shift is None else shift))


@METHODS.register("mae**")
def mae_cycled(setting: Setting, /, every: int | None = None, C: float = 0.15, scale: float = 2.0) -> Method:
    """MAE with a logit bias that falls step by step from ε(K), in three cycles of six steps (002 appendix 2)."""
    return _cycled(setting, get_loss("mae", scale=scale), C, every)


@METHODS.register("gce**")
def gce_cycled(setting: Setting, /, q: float = 0.7, every: int | None = None, C: float = 0.15) -> Method:
    """GCE with the logit bias of mae**."""
    return _cycled(setting, get_loss("gce", q=q), C, every)


@METHODS.register("nfl+mae**")
def nfl_mae_cycled(
    setting: Setting,
    /,
    alpha: float | None = None,
    beta: float = 1.0,
    gamma: float = 0.5,
    every: int | None = None,
    C: float = 0.15,
) -> Method:
    """nfl+mae with the logit bias of mae**."""
    return _cycled(setting, nfl_mae(setting, alpha, beta, gamma).loss, C, every)


@METHODS.register("gce+")
def gce_calibrated(setting: Setting, /, q: float = 0.7, like: int = 100) -> Method:
    """GCE whose q gives the first error that ``q`` gives ``like`` classes (002 §3.3); 1 where it would be above."""
    try:
        loss = calibrate(get_loss("gce", q=q), setting.num_classes, like).loss
    except NoSolution:  # of few classes even MAE learns faster than that
        loss = get_loss("gce", q=1.0)
    assert loss is not None
    return Method(loss)


@METHODS.register("nce+agce+")
def nce_agce_calibrated(setting: Setting, /, free: str = "nce.factor") -> Method:
    """nce+agce with the first error that it has of 10, or of 100 classes (002 §3.3), by changing ``free``.

    Where no value does it, as for fewer classes than 10, it is nce+agce itself.
    """
    loss = _nce_agce(setting)
    with suppress(NoSolution):
        loss = calibrate(loss, setting.num_classes, 100 if setting.many else 10, free=free).loss or loss
    return Method(loss)


def _moved(setting: Setting, loss: Loss, by: Literal["shift", "scale"], tau: float | None) -> Method:
    """004's w⁺ or w*, of unit maximum; up to ten classes there is nothing to cancel unless a τ is given."""
    unit = Unit(loss)
    if tau is None and expected_margin(setting.num_classes) >= expected_margin(10):
        return Method(unit)
    return Method(remargin_for(unit, setting.num_classes, by=by, tau=tau))


@METHODS.register("mae-shift")
def mae_shift(setting: Setting, /, tau: float | None = None) -> Method:
    """MAE whose mean margin starts at −τ by shifting (004 §5.1.1); τ is that of 10 classes."""
    return _moved(setting, get_loss("mae"), "shift", tau)


@METHODS.register("mae-scale")
def mae_scale(setting: Setting, /, tau: float | None = None) -> Method:
    """MAE whose mean margin starts at −τ by scaling (004 §5.1.1); τ is that of 10 classes."""
    return _moved(setting, get_loss("mae"), "scale", tau)


@METHODS.register("agce-shift")
def agce_shift(setting: Setting, /, tau: float | None = None, a: float = 0.1, q: float = 0.1) -> Method:
    """AGCE as 004 tuned it, shifted like mae-shift."""
    return _moved(setting, get_loss("agce", a=a, q=q), "shift", tau)


@METHODS.register("agce-scale")
def agce_scale(setting: Setting, /, tau: float | None = None, a: float = 0.1, q: float = 0.1) -> Method:
    """AGCE as 004 tuned it, scaled like mae-scale."""
    return _moved(setting, get_loss("agce", a=a, q=q), "scale", tau)


# Noise against noise (paper 001)


def _sigma(setting: Setting, sigma: float | None) -> float:
    """001's σ where nothing is known of the noise: 0.5 on CIFAR-10 (1 for symmetric noise), 0.2 on CIFAR-100."""
    return (0.2 if setting.many else 0.5) if sigma is None else sigma


def _averaging(setting: Setting, alpha: float | None, most: float = 0.999) -> Strategy:
    """The momentum model of the papers' α, or of one that looks back over no more than a twentieth of the steps."""
    own = min(most, max(0.0, round(1 - 20 / setting.steps, 4)))
    return get_strategy("momentum", alpha=own if alpha is None else alpha)


@METHODS.register("sln")
def sln(setting: Setting, /, sigma: float | None = None, until: int | None = None) -> Method:
    """Cross entropy with stochastic label noise."""
    return Method(get_loss("ce"), strategies=(get_strategy("sln", sigma=_sigma(setting, sigma), until=until),))


@METHODS.register("sln-mo")
def sln_mo(setting: Setting, /, sigma: float | None = None, alpha: float | None = None) -> Method:
    """SLN, and the momentum model predicts."""
    noise = get_strategy("sln", sigma=_sigma(setting, sigma))
    return Method(get_loss("ce"), strategies=(noise, _averaging(setting, alpha)))


@METHODS.register("sln-mo-lc")
def sln_mo_lc(
    setting: Setting,
    /,
    sigma: float | None = None,
    alpha: float | None = None,
    start: int | None = None,
    soft: bool = False,
    invert: bool = False,
    against: str = "current",
) -> Method:
    """SLN-MO, then label correction in place of the noise, in the last sixth of the training (001 B.1)."""
    start = setting.epoch(5 / 6) if start is None else start
    noise = get_strategy("sln", sigma=_sigma(setting, sigma), until=start)
    correction = get_strategy("label-correction", start=start, soft=soft, invert=invert, against=against)
    return Method(get_loss("ce"), strategies=(noise, _averaging(setting, alpha), correction))


@METHODS.register("noise-f")
def noise_f(setting: Setting, /, sigma: float = 0.1) -> Method:
    """Cross entropy with noise on the gradient in the logits."""
    return Method(get_loss("ce"), strategies=(get_strategy("noise-f", sigma=sigma),))


@METHODS.register("noise-theta")
def noise_theta(setting: Setting, /, sigma: float = 0.1) -> Method:
    """Cross entropy with noise on the gradient in the weights."""
    return Method(get_loss("ce"), strategies=(get_strategy("noise-theta", sigma=sigma),))


# Selection and correction


@METHODS.register("tgce")
def tgce(
    setting: Setting, /, q: float = 0.7, k: float = 0.5, start: int | None = None, every: int | None = None
) -> Method:
    """Truncated GCE: GCE that prunes samples of p ≤ k from a third of the training on (Zhang & Sabuncu: 40 of 120)."""
    start = setting.epoch(1 / 3) if start is None else start
    every = min(10, setting.every(1 / 12)) if every is None else every
    return Method(get_loss("gce", q=q), strategies=(get_strategy("prune", start=start, every=every, k=k),))


def _corrected(
    setting: Setting, loss: str, warmup: int | None, percentile: float | Literal["auto"] | None, restart: bool
) -> Method:
    """Patrini et al. (2017): T is the identity until it is estimated; they leave outliers out but for CIFAR-100."""
    estimate = get_strategy(
        "estimate-transition",
        warmup=setting.epoch(0.2) if warmup is None else warmup,
        percentile=(None if setting.many else 97.0) if percentile == "auto" else percentile,
        restart=restart,
    )
    return Method(get_loss(loss, T=torch.eye(setting.num_classes).tolist()), strategies=(estimate,))


@METHODS.register("forward")
def forward(
    setting: Setting,
    /,
    warmup: int | None = None,
    percentile: float | Literal["auto"] | None = "auto",
    restart: bool = True,
) -> Method:
    """Forward correction, its T estimated after a fifth of the training, which then starts anew."""
    return _corrected(setting, "forward", warmup, percentile, restart)


@METHODS.register("backward")
def backward(
    setting: Setting,
    /,
    warmup: int | None = None,
    percentile: float | Literal["auto"] | None = "auto",
    restart: bool = True,
) -> Method:
    """Backward correction, its T estimated as for forward."""
    return _corrected(setting, "backward", warmup, percentile, restart)


# Likelihoods over logits (paper 000)


@METHODS.register("ln")
def ln(
    setting: Setting,
    /,
    tau: float = 0.5,
    lam: float = 1.0,
    t: float = 0.01,
    dummy: bool = True,
    predict: str = "classes",
) -> Method:
    """Logistic-Normal likelihood with Σ^½ = ccᵀ + λI; λ is the largest that 000 tries, which learns at any rate."""
    return Method(get_loss("ln", lam=lam, tau=tau, t=t, dummy=dummy, predict=predict), "gaussian-root")


@METHODS.register("ln-nodummy")
def ln_nodummy(setting: Setting, /, tau: float = 0.5, lam: float = 1.0, t: float = 0.01) -> Method:
    """LN without the dummy class (000 Table 3)."""
    return Method(get_loss("ln", lam=lam, tau=tau, t=t, dummy=False), "gaussian-root")


@METHODS.register("ln-identity")
def ln_identity(setting: Setting, /, tau: float = 0.5, t: float = 0.01) -> Method:
    """LN with Σ = I (000 Table 3)."""
    return Method(get_loss("ln", tau=tau, t=t, covariance="identity"))


@METHODS.register("ln-isotropic")
def ln_isotropic(setting: Setting, /, tau: float = 0.5, lam: float = 1.0, t: float = 0.01) -> Method:
    """LN with one standard deviation a sample (000 Table 3)."""
    return Method(get_loss("ln", lam=lam, tau=tau, t=t, covariance="isotropic"), "gaussian-scale:isotropic=true")


@METHODS.register("ln-diagonal")
def ln_diagonal(setting: Setting, /, tau: float = 0.5, lam: float = 1.0, t: float = 0.01) -> Method:
    """LN with a standard deviation for each logit (000 Table 3)."""
    return Method(get_loss("ln", lam=lam, tau=tau, t=t, covariance="diagonal"), "gaussian-scale")


@METHODS.register("het")
def het(setting: Setting, /, samples: int = 100) -> Method:
    """Heteroscedastic classifier with diagonal noise on the logits, at temperature 1."""
    return Method(get_loss("het", samples=samples), "gaussian-scale")


@METHODS.register("het-tau")
def het_tau(setting: Setting, /, tau: float = 10.0, samples: int = 100) -> Method:
    """Het at temperature τ: 10 or 20 in most of 000's rows."""
    return Method(get_loss("het", tau=tau, samples=samples), "gaussian-scale")


@METHODS.register("het-tau-full")
def het_tau_full(setting: Setting, /, tau: float = 10.0, rank: int = 4, samples: int = 100) -> Method:
    """Het-τ with ``rank`` factors of the covariance beside its diagonal."""
    return Method(get_loss("het", tau=tau, samples=samples, covariance="full"), f"gaussian-factors:rank={rank}")


# Memories of what models said (paper 003)


@METHODS.register("nal")
def nal(
    setting: Setting,
    /,
    lam: float | None = None,
    alpha: float = 0.9,
    start: int | None = None,
    every: int | None = None,
    delta: float = 0.0,
    beta: float = 0.0,
    floor: float = 0.0,
) -> Method:
    """Noise attention learning; λ is 003's 0.5, or 10 for many classes, and targets follow from 12 % of the training.

    ``floor=1e-4`` and ``beta`` are the released code's.
    """
    lam = (10.0 if setting.many else 0.5) if lam is None else lam
    start = setting.epoch(0.12) if start is None else start  # 60 of 500, and then every 10
    every = setting.every(0.02) if every is None else every
    follow = get_strategy("estimated-targets", start=start, every=every, alpha=alpha, delta=delta, floor=floor)
    return Method(get_loss("nal", lam=lam, beta=beta, floor=floor), "attention", (follow,))


@METHODS.register("selc")
def selc(setting: Setting, /, start: int | None = None, alpha: float = 0.9) -> Method:
    """Cross entropy against targets that follow the model from a quarter of the training on (SELC: 20 to 40 of 120)."""
    start = setting.epoch(0.25) if start is None else start
    return Method(get_loss("ce"), strategies=(get_strategy("estimated-targets", start=start, alpha=alpha),))


def _held(setting: Setting, lam: float | None, beta: float | None) -> tuple[float, float]:
    """Liu et al. (2020): λ = 3 and β = 0.7 on CIFAR-10, 7 and 0.9 on CIFAR-100."""
    own = (7.0, 0.9) if setting.many else (3.0, 0.7)
    return own[0] if lam is None else lam, own[1] if beta is None else beta


@METHODS.register("elr")
def elr(setting: Setting, /, lam: float | None = None, beta: float | None = None) -> Method:
    """Early-learning regularisation."""
    lam, beta = _held(setting, lam, beta)
    return Method(get_loss("elr", lam=lam), strategies=(get_strategy("target-memory", beta=beta),))


@METHODS.register("elr+")
def elr_plus(
    setting: Setting,
    /,
    lam: float | None = None,
    beta: float | None = None,
    mixup: float = 1.0,
    alpha: float | None = None,
    reweigh: bool | None = None,
) -> Method:
    """ELR with two models, each held to what the other's momentum model (α = 0.997) said, and mixup."""
    lam, beta = _held(setting, lam, beta)
    memory = get_strategy("exchanged-memory", beta=beta, reweigh=setting.many if reweigh is None else reweigh)
    parts = memory, get_strategy("mixup", alpha=mixup), _averaging(setting, alpha, most=0.997)
    return Method(get_loss("elr", lam=lam, clip=1e-4), strategies=parts)


# Two models, and models that forget


def _first_sln(setting: Setting, sigma: float | None, start: int) -> tuple[Strategy, ...]:
    """SLN up to the epoch ``start``, as the initialisation of something else (001 Table 4)."""
    return (get_strategy("sln", sigma=_sigma(setting, sigma), until=start),) if start else ()


def _forgetting(setting: Setting, name: str, forget: float | None, ramp: int | None, **params: Any) -> Strategy:
    """Co-teaching or SIGUA: 001's ramp of 10 epochs, but no more than a tenth of the training."""
    forget = setting.forget if forget is None else forget
    return get_strategy(name, forget=forget, ramp=min(10, setting.every(0.1)) if ramp is None else ramp, **params)


@METHODS.register("co-teaching")
def co_teaching(setting: Setting, /, forget: float | None = None, ramp: int | None = None) -> Method:
    """Two models, each trained on what the other finds easy; ``forget`` is the rate of the noise, else 0.2."""
    return Method(get_loss("ce"), strategies=(_forgetting(setting, "co-teaching", forget, ramp),))


@METHODS.register("sln-co-teaching")
def sln_co_teaching(
    setting: Setting,
    /,
    forget: float | None = None,
    ramp: int | None = None,
    sigma: float | None = None,
    start: int | None = None,
) -> Method:
    """SLN for the first half of the training, then Co-teaching."""
    start = setting.epoch(0.5) if start is None else start
    teach = _forgetting(setting, "co-teaching", forget, ramp, start=start)
    return Method(get_loss("ce"), strategies=(*_first_sln(setting, sigma, start), teach))


@METHODS.register("sigua")
def sigua(
    setting: Setting,
    /,
    forget: float | None = None,
    ramp: int | None = None,
    rate: float = 0.3,
    scale: float = 0.001,
) -> Method:
    """Training on what is easy and a little away from the next; ``forget`` as for co-teaching, ``scale`` is 001's γ."""
    away = _forgetting(setting, "sigua", forget, ramp, rate=rate, scale=scale)
    return Method(get_loss("ce"), strategies=(away,))


@METHODS.register("sln-sigua")
def sln_sigua(
    setting: Setting,
    /,
    forget: float | None = None,
    ramp: int | None = None,
    rate: float = 0.3,
    scale: float = 0.001,
    sigma: float | None = None,
    start: int | None = None,
) -> Method:
    """SLN for the first half of the training, then SIGUA."""
    start = setting.epoch(0.5) if start is None else start
    away = _forgetting(setting, "sigua", forget, ramp, rate=rate, scale=scale, start=start)
    return Method(get_loss("ce"), strategies=(*_first_sln(setting, sigma, start), away))


@METHODS.register("dividemix")
def dividemix(
    setting: Setting, /, warmup: int | None = None, lambda_u: float = 0.0, penalty: bool = False, ramp: float = 16.0
) -> Method:
    """DivideMix: warm-up of 10 or 30 epochs, but no more than 30 % of the training.

    λ_u = 0 is what 001 takes throughout, and its authors for the noise of real labels.
    """
    warmup = min(30 if setting.many else 10, setting.epoch(0.3)) if warmup is None else warmup
    mix = get_strategy("dividemix", warmup=warmup, lambda_u=lambda_u, penalty=penalty, ramp=ramp)
    return Method(get_loss("ce"), strategies=(mix,))


@METHODS.register("sln-dividemix")
def sln_dividemix(
    setting: Setting, /, start: int | None = None, lambda_u: float = 0.0, ramp: float = 16.0, sigma: float | None = None
) -> Method:
    """SLN for the first half of the training in place of the warm-up, then DivideMix."""
    start = setting.epoch(0.5) if start is None else start
    mix = get_strategy("dividemix", warmup=start, lambda_u=lambda_u, ramp=ramp)
    return Method(get_loss("ce"), strategies=(*_first_sln(setting, sigma, start), mix))
