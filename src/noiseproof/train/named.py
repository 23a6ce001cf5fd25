"""The named methods: a table of their losses, heads, strategies and default parameters.

Defaults work for any data: where the papers' choices differ, they depend on the number of classes,
the length of the training and the given labels. The papers tuned on 10 and on 100 classes; a
dataset takes the choice of the nearer one, in ratio.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from noiseproof.core.registry import Registry
from noiseproof.losses import (
    LOSSES,
    Loss,
    NoSolution,
    Remargin,
    WeightedSum,
    calibrate,
    expected_margin,
    logit_bias,
    remargin_for,
)
from noiseproof.losses.base import OPTIONS
from noiseproof.losses.remargin import BIAS_CYCLE, Unit
from noiseproof.strategies import STRATEGIES
from noiseproof.strategies.momentum import default_alpha
from noiseproof.train.method import Method, MethodContext

T = TypeVar("T")
Values = Mapping[str, Any]  # the parameters of a method, and its ``context``


Part = str | Callable[[Values], Any]  # a spec, or a function of the method's parameters


def build(registry: Registry[T], part: Part, values: Values) -> T:
    """Return the loss or strategy ``part``.

    A spec gets the values of the method for all parameters that it has.
    """
    if not isinstance(part, str):
        made: T = part(values)
        return made
    name, own = registry.parse(part, {})
    shared = {key: values[key] for key in registry.parameters(name) if key in values}
    return registry.create(name, **{**shared, **own})


def weighted(**terms: str) -> Part:
    """Return a part that builds a sum of losses, named with the parameter that is their factor."""
    return lambda values: WeightedSum(
        [(values[factor], build(LOSSES, name, values)) for factor, name in terms.items()]
    )


def renamed(name: str, **sources: str) -> Part:
    """Return a part that builds the strategy ``name`` with parameters of other names.

    With ``until="start"``, its parameter ``until`` is the method's ``start``.
    """
    return lambda values: build(
        STRATEGIES, name, {**values, **{key: values[source] for key, source in sources.items()}}
    )


@dataclass(frozen=True, eq=False)
class NamedMethod:
    """A method by name, called with a context and the parameters that a user gives.

    ``defaults`` are values, or functions of the context, which users see as ``auto``.
    """

    loss: Part
    strategies: tuple[Part, ...]
    head: str
    defaults: Mapping[str, Any]

    def __call__(self, context: MethodContext, /, **given: Any) -> Method:
        automatic = {key for key, default in self.defaults.items() if callable(default)}
        for key in automatic & given.keys():
            if isinstance(given[key], str) and given[key] == "auto":
                del given[key]
        context = replace(context, given=given)
        values = {"context": context, **self.defaults, **given}
        for key, value in values.items():
            if callable(value):
                values[key] = value(context)
        strategies = tuple(build(STRATEGIES, part, values) for part in self.strategies)
        return Method(build(LOSSES, self.loss, values), self.head.format_map(values), strategies)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters and their defaults, as users see them."""
        return {
            key: "auto" if callable(default) else default for key, default in self.defaults.items()
        }


class MethodRegistry(Registry[Method]):
    """Methods by name: the table, and functions of a context that plug-ins register."""

    def parameters(self, name: str) -> dict[str, Any]:
        method = self[name]
        return method.parameters if isinstance(method, NamedMethod) else super().parameters(name)


METHODS = MethodRegistry("method", returns=Method)


def define(
    name: str,
    summary: str,
    loss: Part,
    /,
    *strategies: Part,
    head: str = "auto",
    **defaults: Any,
) -> None:
    """Add a method to the table."""
    method = NamedMethod(loss, strategies, head, defaults)
    object.__setattr__(method, "__doc__", summary)
    METHODS.register(name, module=__name__)(method)


# Defaults that depend on the context


Default = Callable[[MethodContext], Any]


def by_classes(few: Any, many: Any) -> Default:
    """Return one default for about 10 classes, another for about 100."""
    return lambda context: many if context.many else few


def epoch(share: float) -> Default:
    """Return the epoch after that share of the training."""
    return lambda context: context.epoch(share)


def every(share: float) -> Default:
    """Return that share of the training in epochs."""
    return lambda context: context.every(share)


def momentum(most: float) -> Default:
    """Return the papers' α, or one that averages over a twentieth of the steps at most."""
    return lambda context: default_alpha(context.steps, most)


def tenth_of_classes(context: MethodContext) -> float:
    return context.num_classes / 10


def _sigma(context: MethodContext) -> float:
    """Return the SLN paper's σ, or less in short trainings.

    It is 0.5 on CIFAR-10 (1 for symmetric noise) and 0.1 or 0.2 on CIFAR-100. Over n rows the
    gradients of a class's weights add up to about n/K, and the noise on them to σ√n: the ratio of
    the two, √n/(Kσ), is at least 40.
    """
    enough = math.sqrt(context.seen) / (40 * context.num_classes)
    most = by_classes(0.5, 0.1)(context)
    return float(f"{min(most, enough):.2g}")


def _noise_norm(context: MethodContext) -> float:
    """Return the largest norm of SLN's gradient: 1, or more for fewer than 300 rows of a class in
    all.

    Shorter steps memorise less, but learn less, too.
    """
    return max(1.0, round(300 * context.num_classes / context.seen, 2))


def _noise_end(context: MethodContext) -> int:
    """Return the epoch at which SLN's noise ends, after two thirds of the training.

    The rest fits clean rows that the noise kept from being fitted. In half of a long training,
    wrong labels are fitted as well. Where the start of a correction is given, it ends there.
    """
    end: int = context.given.get("start", max(1, context.epoch(2 / 3)))
    return end


def _until_learned(context: MethodContext) -> int:
    """Return the epochs in which 100 rows of each class are seen, at most half of the training.

    Before that, small losses show which classes are learned, not which labels are right. On 50 000
    images it is 0, as in the papers.
    """
    return min(context.epoch(0.5), round(100 * context.num_classes * context.epochs / context.seen))


def _selection_start(context: MethodContext) -> int:
    """Return the first epoch that leaves rows out: half of the training if the share is guessed.

    Right labels are learned first. A fifth with the largest losses among right labels is mostly of
    a few hard classes, which would then never be learned.
    """
    return context.epoch(0.5) if context.known_rate is None else _until_learned(context)


def _selection_ramp(context: MethodContext) -> int:
    """Return the epochs until all of the share is left out: 10 as in the papers, at most a tenth of
    all.

    A guessed share is reached over a quarter: where labels are clean, it takes hard rows away from
    what still learns.
    """
    return min(10, context.every(0.25 if context.known_rate is None else 0.1))


def _backward_start(context: MethodContext) -> int:
    """Return the epochs before T is estimated: a fifth.

    In fewer than ten epochs, training is not restarted with T, and waits for ``_until_learned``.
    """
    start = context.epoch(0.2)
    return start if context.epochs >= 10 else max(start, _until_learned(context))


def _right_rows(context: MethodContext) -> float:
    """Return ``estimate-transition:right`` for ``backward``: 100 as for ``forward``, plus a class's
    size.

    T⁻¹ makes errors of T larger, and wrong labels that are fitted as well: with classes of equal
    size, T is halfway to the identity at least.
    """
    return 100.0 + round(context.seen / context.epochs / context.num_classes)


def _is_short(context: MethodContext) -> bool:
    """Return whether a second start would leave too little of the training, or have too little
    behind it.

    Layers that are kept have seen an eighth of the training: 100 rows of a class at least.
    """
    return context.epochs < 10 or context.steps < 200 or context.seen < 800 * context.num_classes


def _pes_start(context: MethodContext) -> int | None:
    """Return PES's epochs of all layers: 25 of 200, or half if no layers are renewed.

    In fewer than ten epochs it is all of them: no label is memorised yet, so that there is nothing
    to stop early.
    """
    if context.epochs < 10:
        return None
    return context.epoch(0.5 if _is_short(context) else 0.125)


def _head_epochs(context: MethodContext) -> int:
    """Return PES's epochs of the head, 5 of 200, but 50 steps if possible, with some epochs left
    over.

    With ten steps on 1200 rows, the layers predicted too few labels to continue from. In fewer than
    ten epochs or 200 steps there is no time for it: nothing is renewed.
    """
    if _is_short(context):
        return 0
    return min(max(context.every(0.025), _enough_epochs(context)), (_epochs_left(context) + 1) // 2)


def _block_epochs(context: MethodContext) -> int:
    """Return PES's epochs of the block, 7 of 200, with the rules of ``_head_epochs``."""
    if _is_short(context):
        return 0
    left = _epochs_left(context) - _head_epochs(context)
    return min(max(context.every(0.035), _enough_epochs(context)), left // 2)


def _enough_epochs(context: MethodContext) -> int:
    return math.ceil(50 * context.epochs / context.steps)


def _epochs_left(context: MethodContext) -> int:
    return context.epochs - context.epoch(0.125) - 1


def _renewed_rate(context: MethodContext) -> float:
    """Return PES's rate of Adam: 1e-4 for 1755 steps of the head, and more for fewer steps."""
    steps = context.steps / context.epochs * max(1, _head_epochs(context))
    return round(min(0.01, max(1e-4, 0.1755 / steps)), 6)


def root_start(context: MethodContext) -> float:
    """Return the start of LN's heads with which the squares of the other logits sum to about 1."""
    return round(1 / math.sqrt(context.num_classes), 3)  # (K − 1)·start² ≈ 1


def _half_balanced(context: MethodContext) -> list[float]:
    """Return the mean of the shares of the given labels and of equal shares.

    L = nll_y − Σ_k π_k nll_k prefers the class of the largest P(y = k | x) − π_k, which is right if
    all π_k are equal (Liu & Guo 2020 have another factor elsewhere, which depends on the noise).
    With the shares of the labels, uninformative features leave it to chance; with equal shares,
    nothing keeps it from the largest class.
    """
    total = sum(context.shares)  # more than 1 with several labels a row, which the task refuses
    return [(share / total + 1 / context.num_classes) / 2 for share in context.shares]


# Losses fitted to the number of classes (bias and curriculum papers)


def _bias(context: MethodContext, C: float) -> float:
    """Return ε of the bias paper's Eq. 4, or 0 where few classes make it negative."""
    return max(0.0, logit_bias(context.num_classes, C))


def _biased(values: Values) -> Loss:
    shift = values["shift"]
    if shift is None:
        shift = _bias(values["context"], values["C"])
    return Remargin(build(LOSSES, "mae", values), shift=shift)


def _cycled(inner: Part) -> Part:
    """Return the bias paper's cycle in the proportion of ε(K) to ε(1000)."""

    def cycle(values: Values) -> Loss:
        ratio = _bias(values["context"], values["C"]) / logit_bias(1000, values["C"])
        shifts = [round(epsilon * ratio, 4) for epsilon in BIAS_CYCLE]
        return Remargin(build(LOSSES, inner, values), shift=shifts, every=values["every"])

    return cycle


def _calibrated(values: Values) -> Loss:
    plain = build(LOSSES, "gce", values)
    num_classes = values["context"].num_classes
    if num_classes <= values["like"]:
        return plain  # a larger q would be nearer to MAE, and learn more slowly
    return calibrate(plain, num_classes, values["like"], check=False).loss or plain


def _calibrated_sum(values: Values) -> Loss:
    total = build(LOSSES, _NCE_AGCE_SUM, values)
    context = values["context"]
    like = by_classes(10, 100)(context)
    with suppress(NoSolution):
        found = calibrate(total, context.num_classes, like, free=values["free"], check=False)
        return found.loss or total
    return total


def _moved(name: str, by: Literal["shift", "scale"]) -> Part:
    """Return the curriculum paper's w⁺ or w*, of unit maximum.

    Up to ten classes there is nothing to cancel, unless a τ is given.
    """

    def move(values: Values) -> Loss:
        unit = Unit(build(LOSSES, name, values))
        num_classes = values["context"].num_classes
        if values["tau"] is None and expected_margin(num_classes) >= expected_margin(10):
            return unit
        return remargin_for(unit, num_classes, by=by, tau=values["tau"])

    return move


def _without_prior(context: MethodContext) -> int | None:
    """Return a tenth of the training; without a prior there is nothing to wait for."""
    return context.epoch(0.1) if context.given.get("prior", 0) is not None else None


def _of_classes(name: str) -> Part:
    """Return a loss whose T is of the number of classes."""
    return lambda values: build(LOSSES, name, {**values, "T": values["context"].num_classes})


# The methods. ELR has λ = 3 and β = 0.7, or 7 and 0.9 (Liu et al. 2020).

PLAIN = (
    "ce",
    "ls",
    "gls",
    "gce",
    "mae",
    "sce",
    "nce",
    "agce",
    "aul",
    "ael",
    "tce",
    "focal",
    "mse",
    "phuber",
    "bitemp",
)
for _name in PLAIN:
    _loss = "bitempered" if _name == "bitemp" else _name
    _summary = (inspect.getdoc(LOSSES[_loss]) or "").partition("\n\n")[0]
    _own = {key: value for key, value in LOSSES.parameters(_loss).items() if key not in OPTIONS}
    define(_name, _summary, _loss, **_own)

# Cross entropy up to 6.9, then bounded by 7.9. The released code of peer loss bounds it at 11.5,
# with which 50 and 150 classes learned less.
BOUNDED = "phuber:tau=1e3"
define(
    "peer",
    "Peer loss of a bounded cross entropy; random labels are drawn half by their shares, half"
    " equally.",
    "peer",
    loss=BOUNDED,
    prior=_half_balanced,
    warmup=_without_prior,
)
define(
    "cr",
    "Confidence regulariser, with the bounded cross entropy and the prior of peer.",
    "cr",
    beta=1.0,
    prior=_half_balanced,
    loss=BOUNDED,
    warmup=_without_prior,
)

define(
    "nce+mae",
    "α·NCE + β·MAE; α is K/10, which is 1 and 10 where Ma et al. (2020) have it so.",
    weighted(alpha="nce", beta="mae"),
    alpha=tenth_of_classes,
    beta=1.0,
)
_NFL_MAE: dict[str, Any] = {"alpha": tenth_of_classes, "beta": 1.0, "gamma": 0.5}
_NFL_MAE_SUM = weighted(alpha="nfl", beta="mae")
define("nfl+mae", "α·NFL + β·MAE, with the α of nce+mae.", _NFL_MAE_SUM, **_NFL_MAE)
_NCE_AGCE: dict[str, Any] = {
    "alpha": by_classes(1, 10),
    "beta": by_classes(4, 0.1),
    "a": by_classes(6, 1.8),
    "q": by_classes(1.5, 3),
}
_NCE_AGCE_SUM = weighted(alpha="nce", beta="agce")
define(
    "nce+agce",
    "α·NCE + β·AGCE(a, q) as in Zhou et al. (2021), the bias paper: 1, 4, 6, 1.5, or 10, 0.1,"
    " 1.8, 3.",
    _NCE_AGCE_SUM,
    **_NCE_AGCE,
)
define(
    "nce+aul",
    "α·NCE + β·AUL(a, q) as Zhou et al. (2021) have it: 1, 4, 6.3, 1.5, or 10, 0.015, 6, 3.",
    weighted(alpha="nce", beta="aul"),
    alpha=by_classes(1, 10),
    beta=by_classes(4, 0.015),
    a=by_classes(6.3, 6),
    q=by_classes(1.5, 3),
)

define(
    "mae*",
    "MAE with the logit bias ε(K) that makes the label's first mean probability C (bias paper,"
    " Eq. 4).",
    _biased,
    shift=lambda context: None,
    C=0.15,
    scale=2.0,
)
define(
    "mae**",
    "MAE with a logit bias that falls from ε(K) in three cycles of six steps (bias paper,"
    " appendix 2).",
    _cycled("mae"),
    every=every(1 / 18),
    C=0.15,
    scale=2.0,
)
define(
    "gce**",
    "GCE with the logit bias of mae**.",
    _cycled("gce"),
    q=0.7,
    every=every(1 / 18),
    C=0.15,
)
define(
    "nfl+mae**",
    "nfl+mae with the logit bias of mae**.",
    _cycled(_NFL_MAE_SUM),
    **_NFL_MAE,
    every=every(1 / 18),
    C=0.15,
)
define(
    "gce+",
    "GCE whose q gives more than ``like`` classes the first error that ``q`` gives these.",
    _calibrated,
    q=0.7,
    like=100,
)
define(
    "nce+agce+",
    "nce+agce, by ``free`` with the first error that it has of 10 or 100 classes (bias paper,"
    " §3.3).",
    _calibrated_sum,
    **_NCE_AGCE,
    free="nce.factor",
)
for _by in ("shift", "scale"):
    define(
        f"mae-{_by}",
        f"MAE whose mean margin starts at −τ by {_by} (curriculum paper); τ is that of 10 classes.",
        _moved("mae", _by),
        tau=lambda context: None,
    )
    define(
        f"agce-{_by}",
        f"AGCE as the curriculum paper tuned it, moved as by mae-{_by}.",
        _moved("agce", _by),
        tau=lambda context: None,
        a=0.1,
        q=0.1,
    )

_SLN: dict[str, Any] = {"sigma": _sigma, "until": _noise_end}
define(
    "sln",
    "Cross entropy with stochastic label noise.",
    "ce",
    "sln",
    **_SLN,
    max_norm=_noise_norm,
)
define(
    "sln-mo",
    "SLN, and the momentum model predicts.",
    "ce",
    "sln",
    "momentum",
    **_SLN,
    alpha=momentum(0.999),
    max_norm=_noise_norm,
)
define(
    "sln-mo-lc",
    "SLN-MO, with label correction in the last sixth of the training, after the noise.",
    "ce",
    "sln",
    "momentum",
    "label-correction",
    **_SLN,
    alpha=momentum(0.999),
    start=epoch(5 / 6),
    soft=False,
    invert=False,
    against="current",
    max_norm=_noise_norm,
)
define(
    "noise-f",
    "Cross entropy with noise on the gradient in the logits.",
    "ce",
    "noise-f",
    sigma=0.1,
)
define(
    "noise-theta",
    "Cross entropy with noise on the gradient in the weights.",
    "ce",
    "noise-theta",
    sigma=0.1,
)

define(
    "tgce",
    "GCE that prunes samples of p ≤ k from a third of the training on (Zhang & Sabuncu: 40 of 120"
    " epochs).",
    "gce",
    "prune",
    q=0.7,
    k=0.5,
    start=epoch(1 / 3),
    every=lambda s: min(10, s.every(1 / 12)),
    lasts=None,
    spare=True,
)
_ESTIMATE: dict[str, Any] = {
    "percentile": by_classes(97.0, None),
    "restart": lambda s: s.epochs >= 10,
}
define(
    "forward",
    "Forward correction, its T estimated after a fifth of the training, which then starts again.",
    _of_classes("forward"),
    "estimate-transition",
    warmup=epoch(0.2),
    **_ESTIMATE,
    right=100.0,
)
define(
    "backward",
    "Backward correction, T as of forward but closer to the identity, bounded as in the released"
    " code.",
    _of_classes("backward"),
    "estimate-transition",
    warmup=_backward_start,
    **_ESTIMATE,
    right=_right_rows,
    clip=1e-7,
)

_LN: dict[str, Any] = {"tau": 0.5, "lam": 1.0, "t": 0.01}
define(
    "ln",
    "Logistic-Normal likelihood with Σ^½ = ccᵀ + λI; λ is the largest that the LN paper tries.",
    "ln",
    head="gaussian-root",
    **_LN,
    dummy=True,
    start=root_start,
)
define(
    "ln-nodummy",
    "LN without the dummy class (LN paper, Table 3).",
    "ln:dummy=false",
    head="gaussian-root",
    **_LN,
    start=root_start,
)
define(
    "ln-identity",
    "LN with Σ = I (LN paper, Table 3).",
    "ln:covariance=identity",
    tau=0.5,
    t=0.01,
    start=0.1,
)
define(
    "ln-isotropic",
    "LN with one standard deviation a sample (LN paper, Table 3).",
    "ln:covariance=isotropic",
    head="gaussian-scale:isotropic=true",
    **_LN,
    start=0.1,
)
define(
    "ln-diagonal",
    "LN with a standard deviation for each logit (LN paper, Table 3).",
    "ln:covariance=diagonal",
    head="gaussian-scale",
    **_LN,
    start=0.1,
)
define(
    "het",
    "Heteroscedastic classifier with diagonal noise on the logits, at temperature 1.",
    "het",
    head="gaussian-scale",
    samples=100,
)
define(
    "het-tau",
    "Het at temperature τ: 10 or 20 in most of the LN paper's rows.",
    "het",
    head="gaussian-scale",
    tau=10.0,
    samples=100,
)
define(
    "het-tau-full",
    "Het-τ with ``rank`` factors of the covariance in addition to its diagonal.",
    "het:covariance=full",
    head="gaussian-factors:rank={rank}",
    tau=10.0,
    rank=4,
    samples=100,
)
define(
    "gp",
    "A Gaussian process, solved at once from up to 5000 samples, in place of a model (LN paper,"
    " section 6).",
    "ce",
    "gp",
    length_scale=None,
    signal=None,
    noise=None,
    t=0.01,
    dummy=True,
)

# In the NAL paper, targets follow the model from epoch 60 of 500, in every 10th, which ends a cycle
# of its learning rate. Where the rate falls only once, as by default here, they follow from 40 of
# 100 on, in every one (ANIMAL-10N); SELC: from 20 to 40 of 120.
define(
    "nal",
    "Noise attention learning; λ is K/10, from 0.5 to 10, and targets follow from 40 % of the"
    " training.",
    "nal",
    "estimated-targets",
    head="attention",
    lam=lambda s: min(10, max(0.5, s.num_classes / 10)),
    alpha=0.9,
    start=epoch(0.4),
    every=every(0.01),
    beta=0.0,
    floor=0.0,
    warmup=epoch(0.05),
    spare=True,
)
define(
    "selc",
    "Cross entropy against targets that follow the model from a quarter of the training on.",
    "ce",
    "estimated-targets",
    start=epoch(0.25),
    alpha=0.9,
    spare=True,
)
_ELR: dict[str, Any] = {"lam": by_classes(3.0, 7.0), "beta": by_classes(0.7, 0.9)}
define("elr", "Early-learning regularisation.", "elr", "target-memory", **_ELR)
define(
    "elr+",
    "ELR with two models, each held to what the other's momentum model (α = 0.997) said, and"
    " mixup.",
    "elr:clip=1e-4",
    "exchanged-memory",
    renamed("mixup", alpha="mixup"),
    "momentum",
    **_ELR,
    mixup=1.0,
    alpha=momentum(0.997),
    reweigh=by_classes(False, True),
)
# Ten times the SOP paper's rates of u and v for 50 000 images: networks memorise few rows sooner.
_RATES: dict[str, Any] = {"lr_u": by_classes(100.0, 10.0), "lr_v": 100.0}
define(
    "sop",
    "Sparse over-parameterisation: what is wrong with a label is learned as its noise, apart from"
    " the model.",
    "sop",
    "sparse-noise",
    **_RATES,
)
define(
    "sop+",
    "SOP, with predictions that agree for two augmentations of a row, and have every class as"
    " often.",
    "sop",
    "sparse-noise",
    "consistency",
    **_RATES,
    lambda_c=0.9,
    lambda_b=0.1,
)
_PES: dict[str, Any] = {
    "start": _pes_start,
    "block_epochs": _block_epochs,
    "head_epochs": _head_epochs,
    "lr": _renewed_rate,
    "released": False,
    "balance": False,
}
define(
    "pes",
    "Progressive early stopping: later layers train again, for few epochs, then on the labels they"
    " predict.",
    "ce",
    "progressive-stopping",
    **_PES,
)
define(
    "pes-semi",
    "PES, whose rows with labels that it does not predict train without them, by MixMatch.",
    "ce",
    "progressive-mixmatch",
    **_PES,
    lambda_u=0.0,
    ramp=16.0,
    alpha=4.0,
    late_alpha=0.75,
)

# The SLN paper's ramp of 10 epochs, but no more than a tenth of the training, and its γ of 0.001;
# Table 4 puts SLN before each.
_FORGET: dict[str, Any] = {"forget": lambda s: s.forget, "ramp": _selection_ramp}
_FIRST: dict[str, Any] = {"sigma": _sigma, "start": epoch(0.5), "max_norm": _noise_norm}
_FIRST_SLN = renamed("sln", until="start")
define(
    "co-teaching",
    "Two models, each trained on what the other finds easy; ``forget`` is the noise's rate, or"
    " 0.2.",
    "ce",
    "co-teaching",
    **_FORGET,
    start=_selection_start,
)
define(
    "sln-co-teaching",
    "SLN for the first half of the training, then Co-teaching.",
    "ce",
    _FIRST_SLN,
    "co-teaching",
    **_FORGET,
    **_FIRST,
)
define(
    "sigua",
    "Training on what is easy, and a little away from the next; ``forget`` as for co-teaching.",
    "ce",
    "sigua",
    **_FORGET,
    rate=0.3,
    scale=0.001,
    start=_selection_start,
)
define(
    "sln-sigua",
    "SLN for the first half of the training, then SIGUA.",
    "ce",
    _FIRST_SLN,
    "sigua",
    **_FORGET,
    rate=0.3,
    scale=0.001,
    **_FIRST,
)
# Without the term for equal classes, and with MixMatch's α of 0.75: mixtures halfway between rows
# (α = 4) blur what classes that curve around each other have learned.
_DIVIDEMIX: dict[str, Any] = {
    "lambda_u": 0.0,
    "ramp": 16.0,
    "balance": False,
    "agreed": True,
    "alpha": 0.75,
}


def _warmup(context: MethodContext) -> int:
    """Return DivideMix's warm-up: 10 or 30 epochs, 30 % of the training at most, but until labels
    are learned.
    """
    usual: int = by_classes(10, 30)(context)
    return max(_until_learned(context), min(usual, context.epoch(0.3)))


define(
    "dividemix",
    "DivideMix: warm-up of 10 or 30 epochs, 30 % of the training at most; λ_u = 0 as in the SLN"
    " paper.",
    "ce",
    "dividemix",
    warmup=_warmup,
    penalty=False,
    **_DIVIDEMIX,
)
define(
    "promix",
    "ProMix: two models trained on labels of small loss or high confidence, and late on those both"
    " guess.",
    "ce",
    "promix",
    warmup=lambda s: min(by_classes(10, 30)(s), s.epoch(0.1)),
    rho=lambda s: round(max(0.5, 0.9 - s.forget), 2),
    tau=by_classes(0.99, 0.95),
    ramp=lambda s: min(50, s.every(1 / 12)),
    guess_from=epoch(7 / 12),
    equal=False,
    agreed=True,
)
define(
    "sln-dividemix",
    "SLN for the first half of the training in place of the warm-up, then DivideMix.",
    "ce",
    _FIRST_SLN,
    renamed("dividemix", warmup="start"),
    **_FIRST,
    **_DIVIDEMIX,
)
