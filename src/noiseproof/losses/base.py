"""What every loss shares: targets, weights, reduction, sums, and the margin engine."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noiseproof.core.checks import (
    check_count,
    check_flag,
    check_labels,
    check_logits_and_target,
    check_number,
    check_tensor,
)
from noiseproof.core.grammar import format_call
from noiseproof.core.margin import LabelProb, margin, margins
from noiseproof.core.output import Output
from noiseproof.core.registry import Registry, stored_parameters
from noiseproof.losses.engine import by_blocks, label_nll, mean, pays_in_blocks, pointwise, readable, wide

Reduction = Literal["mean", "sum", "none"]
Kind = Literal["margin", "coupled", "other"]

IGNORED = -100  # as in torch.nn.CrossEntropyLoss
OPTIONS = ("weight", "ignore_index", "reduction", "exact")  # of every loss; the rest are its hyperparameters
LOSSES: Registry[Loss] = Registry("loss", shared=OPTIONS)
register = LOSSES.register_class


class NotFinite(ValueError):
    """The loss of a row is not finite although its logits are; a training loop reports it as divergence."""


class Loss(nn.Module):
    """A loss of logits and labels, called like ``torch.nn.CrossEntropyLoss``.

    The target is class indices (B,) or real numbers (B, K) with L(z, t) = Σ_k t_k·L(z, k): entries may be negative
    and need not sum to one, because stochastic label noise (SLN paper, Eq. 3) makes such targets.

    Args:
        weight: weight of each class, (K,).
        ignore_index: rows with this class index count for nothing.
        reduction: ``"mean"`` (over the rows that count, weighted by ``weight``), ``"sum"`` or ``"none"``.
        exact: take the label's nll from the other classes' logsumexp. ``F.cross_entropy`` keeps only its absolute
            accuracy where p_y → 1, which training never notices.
    """

    needs: frozenset[str] = frozenset({"logits"})  # fields of Output
    kind: Kind = "margin"  # a function of the label's nll; "coupled": of all log-probabilities; "other": of more
    formula: ClassVar[str] = ""
    source: ClassVar[str] = ""
    name: ClassVar[str] = ""
    class_indices_only: bool = False
    linear: bool = True  # in a real-valued target: L(z, t) = Σ_k t_k·L(z, k)
    weighs_classes: bool = False  # ``per_sample`` knows what class weights mean, of class indices too
    implied: int = 0  # classes whose logit is zero by definition, so that a head gives no column for them
    independent_rows: bool = True  # a row's loss does not depend on the other rows
    relative: bool = True  # a number that is added to all logits of a row changes nothing
    vanishes: bool = False  # whether nll = 0, which is what ignored rows get, costs nothing
    extra_scores: int = 0  # columns of ``scores`` that belong to no class
    samples: int | None = None  # random draws that a prediction averages over; None: predictions draw nothing
    weight: Tensor | None
    _closed: ClassVar[bool] = False  # whether ``slope`` gives the gradient

    def __init__(
        self,
        *,
        weight: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
        exact: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in get_args(Reduction):
            raise ValueError(f"Expected `reduction` to be 'mean', 'sum' or 'none', got {reduction!r}.")
        if weight is not None:
            weight = check_tensor("weight", weight)
            if weight.dim() != 1 or not weight.is_floating_point():
                raise ValueError(
                    f"Expected `weight` to hold one float for each class, got {weight.dtype} {tuple(weight.shape)}."
                )
        set_weight(self, weight)
        self.ignore_index = check_count("ignore_index", ignore_index)
        self.reduction: Reduction = reduction
        self.exact = check_flag("exact", exact)

    def value(self, y: LabelProb) -> Tensor:
        """The loss of a label as a function of its probability: all that a new loss writes."""
        raise NotImplementedError

    def evaluate(self, y: LabelProb) -> Tensor:
        """``value`` with its gradient."""
        return _of_each_row(self, self.value(y), y)

    def scores(self, out: Output) -> Tensor:
        """Class scores (B, K) whose softmax is the predicted distribution: what accuracy and margins are taken of."""
        own = self.predictors()
        return own[0].scores(out) if own else out.logits

    def predictors(self) -> list[Loss]:
        """This loss and those inside it, if their scores are not the logits."""
        return [part for part in (self, *self._parts()) if type(part).scores is not Loss.scores]

    def _take_after(self, *losses: Loss) -> None:
        """Be as the ``losses`` inside this one are: what they need, predict and can do."""
        self.needs = frozenset().union(*(loss.needs for loss in losses))
        self.independent_rows = all(loss.independent_rows for loss in losses)
        self.class_indices_only = any(loss.class_indices_only for loss in losses)
        self.linear = all(loss.linear for loss in losses)
        self.relative = all(loss.relative for loss in losses)
        self.implied = losses[0].implied
        self.extra_scores = max(loss.extra_scores for loss in losses)
        self.samples = next((loss.samples for loss in losses if loss.samples is not None), None)
        own = {str(part) for loss in losses for part in loss.predictors()}
        if len(own) > 1 or len({loss.implied for loss in losses}) > 1:
            named = sorted(own if len(own) > 1 else map(str, losses))
            raise ValueError(f"Expected losses that predict alike, got {' and '.join(named)}.")

    def num_outputs(self, num_classes: int) -> int:
        """How many columns of logits a head must give."""
        return num_classes - self.implied

    def sample_weight(self, margin: Tensor, *, unit: bool = False) -> Tensor:
        """Implicit curriculum w(Δ) = −dl/dΔ (curriculum paper, Eq. 1); ``unit`` scales its maximum to one."""
        raise TypeError(
            f"`{self}` looks at the other classes too, so it has no weight as a function of the margin alone. "
            "Use average_error(loss, z, num_classes) for its gradient at initialisation."
        )

    @property
    def max_weight(self) -> float:
        """Largest sample weight over all margins, which the curriculum paper divides every loss by."""
        low, high = -60.0, 60.0
        for _ in range(5):  # on a grid, and then between the neighbours of its best point
            grid = torch.linspace(low, high, 2001, dtype=torch.float64)
            weight = self.sample_weight(grid)
            best, step = int(weight.argmax()), float(grid[1] - grid[0])
            low, high = float(grid[best]) - step, float(grid[best]) + step
        return float(weight[best])

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        """The loss of each row, (B,), before class weights, sample weights and reduction."""
        logits = out.logits
        hard = target.dim() == 1
        summed = self.kind == "coupled"  # over thousands of classes, which exceeds what float16 can hold
        log_p = F.log_softmax(logits, 1, dtype=wide(logits.dtype) if summed else None) if summed or not hard else None
        if self.exact:
            y = LabelProb.from_margin(
                margin(logits, countable(target, self.ignore_index)) if hard else margins(logits), log_p
            )
        elif not hard:
            assert log_p is not None
            y = LabelProb(-log_p, log_p)
        elif log_p is None:
            y = LabelProb(label_nll(logits, target, self.ignore_index, self._closed))
        else:
            y = LabelProb(F.nll_loss(log_p, target, reduction="none", ignore_index=self.ignore_index), log_p)
        value = self.evaluate(y)
        if value.dtype != logits.dtype:
            value = value.to(value_dtype(logits))
        return value if hard else self._over_classes(value, target)

    def expected(self, out: Output, shares: Tensor) -> Tensor:
        """Σ_k s_k·L(z, k) of each row, (B,): the mean over labels that have the ``shares`` s (K,)."""
        if self.linear and not self.class_indices_only:
            soft = shares.expand(len(out.logits), -1)
            if readable(out.logits) and not bool((found := self.per_sample(out, soft)).isnan().any()):
                return found
            lowest = torch.finfo(out.logits.dtype).min / 4  # a class that nobody bears may be masked
            return self.per_sample(out._replace(logits=out.logits.clamp_min(lowest)), soft)
        label = torch.zeros(len(out.logits), dtype=torch.int64, device=shares.device)
        each = [self.per_sample(out, label + k) for k in range(len(shares))]
        return (torch.stack(each, 1) * shares).sum(1)

    def forward(self, out: Output | Tensor, target: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Loss of ``out`` (logits (B, K), or a head's output) against ``target``.

        ``sample_weight`` (B,) multiplies each row's loss; it does not enter the mean's denominator, so a weight of
        zero takes a row's gradient away without enlarging the others'.
        """
        if isinstance(out, Tensor):
            out = Output(out)
        if out.logits.dim() == 1 and target.dim() == (0 if target.dtype is torch.int64 else 1):
            one = Output._make(field if field is None else field[None] for field in out)
            loss: Tensor = self(one, target[None], sample_weight)
            return loss[0] if self.reduction == "none" else loss
        check_logits_and_target(out.logits, target, self.implied)
        num_classes = out.logits.shape[1] + self.implied
        if self.weight is not None and self.weight.shape[0] != num_classes:
            raise ValueError(f"Expected `weight` of {num_classes} classes, got {self.weight.shape[0]}.")
        if self.class_indices_only and target.dim() == 2:
            raise ValueError(
                f"Expected class indices (B,) as the target of `{self}`, got shape {tuple(target.shape)}: a shift "
                "needs one labelled logit. Use the loss without remargin for real-valued targets."
            )
        # Reading the labels is free on a CPU, elsewhere it would wait for the device.
        lowest = int(target.min()) if target.dim() == 1 and target.numel() and readable(target) else None
        if lowest is not None and lowest < 0:
            check_labels(target, num_classes, self.ignore_index)
        all_count = target.dim() == 2 or (self.ignore_index < 0 and lowest is not None and lowest >= 0)
        try:
            if all_count and sample_weight is None and self._is_plain_mean and target.dim() == 1:
                return self._mean(out.logits, target)
            losses = self._in_blocks(out, target) if self._wants_blocks(out, target) else self.per_sample(out, target)
        except (IndexError, RuntimeError):
            if lowest is not None:
                check_labels(target, num_classes, self.ignore_index)
            raise
        return self._reduce(losses, target, sample_weight, all_count)

    @property
    def _is_plain_mean(self) -> bool:
        """Whether ``_mean`` computes value, slope and mean as one node of the graph, which matters at (128, 10)."""
        return False

    def _mean(self, logits: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def _wants_blocks(self, out: Output, target: Tensor) -> bool:
        beyond_cross_entropy = self.exact or self.kind != "margin"
        of_rows = self.independent_rows and self.needs == {"logits"}
        return beyond_cross_entropy and of_rows and pays_in_blocks(out.logits, target)

    def _in_blocks(self, out: Output, target: Tensor) -> Tensor:
        return by_blocks(out.logits, lambda z, start: self.per_sample(Output(z), target[start : start + len(z)]))

    def _over_classes(self, value: Tensor, target: Tensor) -> Tensor:
        """Σ_k t_k·L(z, k) over (B, K), each class times its weight as in ``torch.nn.CrossEntropyLoss``."""
        return (self._weighed(target) * value).sum(1)

    def _weighed(self, target: Tensor) -> Tensor:
        """A real-valued target times the class weights."""
        return target if self.weight is None else target * self.weight

    def _reduce(self, losses: Tensor, target: Tensor, sample_weight: Tensor | None, all_count: bool) -> Tensor:
        hides = self.exact or not self.vanishes  # an ignored row costs something until it is taken out
        matters = hides or self.weight is not None or self.reduction == "mean"
        counted = None if all_count or not matters else target != self.ignore_index
        if counted is not None and hides:
            losses = torch.where(counted, losses, 0)
        class_weight = None
        if target.dim() == 1 and self.weight is not None:
            class_weight = self.weight[countable(target, self.ignore_index)]
            if counted is not None:
                class_weight = class_weight * counted
            losses = losses if self.weighs_classes else losses * class_weight
        if sample_weight is not None:
            if sample_weight.shape != losses.shape:
                raise ValueError(
                    f"Expected `sample_weight` of shape {tuple(losses.shape)}, got {tuple(sample_weight.shape)}."
                )
            losses = losses * sample_weight
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        if class_weight is not None:
            return losses.sum() / class_weight.sum()
        return mean(losses) if counted is None else losses.sum() / counted.sum()

    def set_epoch(self, epoch: int) -> None:
        """Move every schedule inside this loss to ``epoch`` (counted from 0)."""
        for part in self._parts():
            part.set_epoch(epoch)

    def set_step(self, seed: int, generator: torch.Generator | None = None) -> None:
        """Draw what this loss draws in the next step from ``seed``, or from a generator; most draw nothing."""
        for part in self._parts():
            part.set_step(seed, generator)

    def _parts(self) -> list[Loss]:
        """The losses inside this one, at any depth."""
        return [part for part in self.modules() if isinstance(part, Loss) and part is not self]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The parameters that make this loss, by name."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD and p.name not in ("self", *OPTIONS)]
        return stored_parameters(self, names)

    def with_hyperparameters(self, **changes: Any) -> Loss:
        """The same loss with some hyperparameters replaced."""
        options = {name: getattr(self, name) for name in OPTIONS}
        return type(self)(**{**self.hyperparameters, **changes}, **options)

    def __str__(self) -> str:
        """The spec of this loss: ``get_loss(str(loss))`` builds it again, up to weight, reduction and the like."""
        given = {name: value for name, value in self.hyperparameters.items() if value is not None}
        return format_call(self.name or type(self).__name__, given)

    def extra_repr(self) -> str:
        return str(self)

    def __add__(self, other: Loss) -> WeightedSum:
        if not isinstance(other, Loss):
            return NotImplemented
        return WeightedSum([(1.0, self), (1.0, other)], **shared_options([self, other]))

    def __mul__(self, scale: float) -> WeightedSum:
        return WeightedSum([(scale, self)], **shared_options([self]))

    __rmul__ = __mul__


class MarginLoss(Loss):
    """A loss l(p_y) of the label's probability alone; its gradient is one scalar a row times (softmax − onehot).

    A subclass writes ``value``. It adds ``slope`` = dl/dnll in closed form where autograd would cancel or underflow.
    """

    vanishes = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._closed = cls.slope is not MarginLoss.slope

    def slope(self, y: LabelProb) -> Tensor:
        """dl/dnll = −p·dl/dp."""
        raise NotImplementedError

    def evaluate(self, y: LabelProb) -> Tensor:
        return _of_each_row(self, pointwise(y.nll, self) if self._closed else self.value(y), y)

    @property
    def _is_plain_mean(self) -> bool:
        return self._closed and self.reduction == "mean" and self.weight is None and not self.exact

    def _mean(self, logits: Tensor, target: Tensor) -> Tensor:
        return pointwise(F.cross_entropy(logits, target, reduction="none"), self, mean=True)

    def sample_weight(self, margin: Tensor, *, unit: bool = False) -> Tensor:
        y = LabelProb.from_margin(margin)
        weight = self.slope(y) * y.miss if self._closed else _weight_by_autograd(self, margin)
        return weight / self.max_weight if unit else weight


class WeightedSum(Loss):
    """Σ c_i·L_i: what ``10 * nce + 0.1 * agce`` builds; terms that need log-probabilities share them."""

    formula: ClassVar[str] = "Σ_i c_i·L_i"

    def __init__(self, terms: Sequence[tuple[float, Loss]], **options: Any) -> None:
        flat: list[tuple[float, Loss]] = []
        for scale, loss in terms:
            if not isinstance(loss, Loss):
                raise TypeError(f"Expected a loss to add, got {type(loss).__name__}.")
            scale = check_number("scale", scale, "(-inf, inf)")
            flat += [(scale * inner_scale, inner_loss) for inner_scale, inner_loss in terms_of(loss)]
        super().__init__(**options)
        self.exact = self.exact or any(loss.exact for _, loss in flat)
        self.scales = [scale for scale, _ in flat]
        self.losses = nn.ModuleList(adopt(loss, self.ignore_index, self.weight) for _, loss in flat)
        kinds = {loss.kind for loss in self.losses}
        self.vanishes = all(loss.vanishes for _, loss in flat)
        self._take_after(*(loss for _, loss in flat))
        self.weighs_classes = any(loss.weighs_classes for _, loss in flat)
        self.kind = "other" if "other" in kinds else "coupled" if "coupled" in kinds else "margin"

    @property
    def terms(self) -> list[tuple[float, Loss]]:
        """The weighted losses."""
        return list(zip(self.scales, self.losses, strict=True))  # type: ignore[arg-type]

    def evaluate(self, y: LabelProb) -> Tensor:
        return _weighted(self.scales, [loss.evaluate(y) for loss in self.losses])  # type: ignore[operator]

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        weight = self.weight if self.weighs_classes else None
        if self.kind != "other" and weight is None:
            return super().per_sample(out, target)
        values = [loss.per_sample(out, target) for _, loss in self.terms]
        if weight is not None and target.dim() == 1:  # of the terms that leave it to ``_reduce``
            own = weight[countable(target, self.ignore_index)]
            values = [v if loss.weighs_classes else v * own for v, (_, loss) in zip(values, self.terms, strict=True)]
        return _weighted(self.scales, values)

    def expected(self, out: Output, shares: Tensor) -> Tensor:
        if self.linear and not self.class_indices_only:
            return super().expected(out, shares)
        return _weighted(self.scales, [loss.expected(out, shares) for _, loss in self.terms])

    def sample_weight(self, margin: Tensor, *, unit: bool = False) -> Tensor:
        weight = _weighted(self.scales, [loss.sample_weight(margin) for _, loss in self.terms])
        return weight / self.max_weight if unit else weight

    def _prefixes(self) -> list[str]:
        """A name for each term: that of its loss, ``agce#2`` for the second of the same."""
        names = [loss.name or type(loss).__name__ for _, loss in self.terms]
        nth = [names[: i + 1].count(name) for i, name in enumerate(names)]
        return [name if n == 1 else f"{name}#{n}" for name, n in zip(names, nth, strict=True)]

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """``agce.q`` for a term's parameter, ``agce.factor`` for what it is multiplied by."""
        found: dict[str, Any] = {}
        for prefix, (scale, loss) in zip(self._prefixes(), self.terms, strict=True):
            found[f"{prefix}.factor"] = scale
            found |= {f"{prefix}.{key}": value for key, value in loss.hyperparameters.items()}
        return found

    def with_hyperparameters(self, **changes: Any) -> WeightedSum:
        if unknown := set(changes) - set(self.hyperparameters):
            raise TypeError(f"`{self}` has the parameters {', '.join(self.hyperparameters)}, not {sorted(unknown)}.")
        terms = []
        for prefix, (scale, loss) in zip(self._prefixes(), self.terms, strict=True):
            own = {k.removeprefix(f"{prefix}."): v for k, v in changes.items() if k.startswith(f"{prefix}.")}
            scale = own.pop("factor", scale)
            terms.append((scale, loss.with_hyperparameters(**own) if own else loss))
        return WeightedSum(terms, **{name: getattr(self, name) for name in OPTIONS})

    def __str__(self) -> str:
        factors = [repr(scale).removesuffix(".0") for scale in self.scales]
        return " + ".join(
            f"{c}*{loss}" if c != "1" else str(loss) for c, (_, loss) in zip(factors, self.terms, strict=True)
        )


def terms_of(loss: Loss) -> list[tuple[float, Loss]]:
    """The weighted terms of a sum, or the loss itself."""
    return loss.terms if isinstance(loss, WeightedSum) else [(1.0, loss)]


def adopt(loss: Loss, ignore_index: int, weight: Tensor | None = None) -> Loss:
    """``loss`` as a part of another, which decides what is ignored and how classes weigh; a copy where they differ."""
    if loss.ignore_index == ignore_index and _same(loss.weight, weight):
        return loss
    for name, plain in (
        ("weight", loss.weight is None or _same(loss.weight, weight)),
        ("ignore_index", loss.ignore_index in (IGNORED, ignore_index)),
    ):
        if not plain:
            raise ValueError(f"Expected `{name}` on the outermost loss only, got it on the inner `{loss}` too.")
    inner = copy.deepcopy(loss)
    set_weight(inner, weight)
    for part in inner.modules():
        if isinstance(part, Loss):
            part.ignore_index = ignore_index
    return inner


def field_of(out: Output, name: str, *shapes: tuple[int, ...], remedy: str) -> Tensor:
    """A field of ``out`` beside its logits, refused where it is missing or would broadcast."""
    field: Tensor | None = getattr(out, name)
    if field is None or field.shape not in shapes:
        expected = " or ".join(str(tuple(shape)) for shape in shapes)
        got = "none" if field is None else f"shape {tuple(field.shape)}"
        raise ValueError(f"Expected an output with `{name}` of shape {expected}, got {got}. {remedy}")
    return field


def set_weight(loss: Loss, weight: Tensor | None) -> None:
    """A buffer where there is a weight; else a plain None, since a module finds its buffers slowly."""
    loss.__dict__.pop("weight", None)
    if weight is None:
        loss._buffers.pop("weight", None)
        loss.weight = None
    else:
        loss.register_buffer("weight", weight)


def value_dtype(logits: Tensor) -> torch.dtype:
    """That of a loss of ``logits``: cross entropy's, which under autocast is float32."""
    none = torch.empty(0, dtype=torch.int64, device=logits.device)
    return F.cross_entropy(logits[:0], none, reduction="none").dtype


def countable(target: Tensor, ignore_index: int) -> Tensor:
    """Class indices with ignored rows pointed at class 0, so that they can index."""
    return torch.where(target == ignore_index, 0, target)


def _of_each_row(loss: Loss, value: Tensor, y: LabelProb) -> Tensor:
    """``value``, refused where it is not one of each label: a mean would train, at the wrong rate, without a word."""
    if value.shape != y.nll.shape:
        raise ValueError(
            f"Expected `value` of `{loss}` to return the loss of each label, shape {tuple(y.nll.shape)} as `y.nll`, "
            f"got {tuple(value.shape)}. Leave the mean or sum to `reduction`."
        )
    return value


def _weighted(scales: Sequence[float], values: Sequence[Tensor]) -> Tensor:
    total = values[0] * scales[0] if scales[0] != 1 else values[0]
    for scale, value in zip(scales[1:], values[1:], strict=True):
        total = torch.add(total, value, alpha=scale)
    return total


def _weight_by_autograd(loss: Loss, margin: Tensor) -> Tensor:
    with torch.enable_grad():
        at = margin.detach().requires_grad_()
        (slope,) = torch.autograd.grad(loss.evaluate(LabelProb.from_margin(at)).sum(), at)
    return -slope


def shared_options(losses: Sequence[Loss]) -> dict[str, Any]:
    """The options of a sum, on which its terms have to agree."""
    first = {name: getattr(losses[0], name) for name in OPTIONS if name != "exact"}
    for other in losses[1:]:
        for name, value in first.items():
            if not _same(value, getattr(other, name)):
                raise ValueError(
                    f"Cannot add losses whose `{name}` differ: {value!r} and {getattr(other, name)!r}. "
                    'Give it to get_loss("a + b", …) once instead.'
                )
    return first


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    return bool(a == b)


def describe(name: str) -> Mapping[str, Any]:
    """Formula, parameters and source of a registered loss, for listings."""
    factory = LOSSES[name]
    parameters = {k: v for k, v in LOSSES.parameters(name).items() if k not in OPTIONS}
    return {
        "name": name,
        "formula": getattr(factory, "formula", ""),
        "parameters": {k: None if v is inspect.Parameter.empty else v for k, v in parameters.items()},
        "source": getattr(factory, "source", ""),
        "summary": (inspect.getdoc(factory) or "").split("\n")[0],
    }
