"""What every loss shares: targets, weights, reduction, functions of the label's nll with a
closed-form derivative.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noiseproof.core.checks import (
    check_count,
    check_flag,
    check_logits_and_target,
    check_number,
    check_tensor,
    check_word,
)
from noiseproof.core.grammar import format_call
from noiseproof.core.margin import LabelProb, margin, margins
from noiseproof.core.output import Output
from noiseproof.core.registry import Registry, stored_parameters
from noiseproof.core.tensors import wide
from noiseproof.losses.fast import by_blocks, label_nll, pays_in_blocks
from noiseproof.losses.pointwise import pointwise
from noiseproof.losses.rows import all_count, countable, over_classes, places_as_rows, value_dtype

Reduction = Literal["mean", "sum", "none"]
Kind = Literal["margin", "coupled", "other"]
# of rows: (B,) indices, (B, K) without negative entries, (B, K)
Targets = Literal["classes", "probabilities", "real"]

INTEGERS = (torch.int32, torch.int16, torch.int8, torch.uint8)  # of labels, as well as int64
IGNORED = -100  # as in torch.nn.CrossEntropyLoss
# of every loss; the rest are its hyperparameters
OPTIONS = ("weight", "ignore_index", "reduction", "exact")


LOSSES: Registry[Loss] = Registry("loss", shared=OPTIONS)
register = LOSSES.register_class


class Loss(nn.Module):
    """A loss of logits and labels, called like ``torch.nn.CrossEntropyLoss``.

    The target is class indices (B,) or real numbers (B, K) with L(z, t) = Σ_k t_k·L(z, k): entries
    may be negative and need not sum to one, because stochastic label noise (SLN paper, Eq. 3) makes
    such targets.

    Args:
        weight: weight of each class, (K,).
        ignore_index: rows with this class index count for nothing.
        reduction: ``"mean"`` (over the rows that count, weighted by ``weight``), ``"sum"`` or
            ``"none"``.
        exact: take the label's nll from the other classes' logsumexp. ``F.cross_entropy`` keeps
            only its absolute accuracy where p_y → 1, which training never notices.
    """

    name = ""
    formula = ""
    source = ""
    needs: frozenset[str] = frozenset({"logits"})  # fields of Output
    # a function of the label's nll; "coupled": of all log-probabilities; "other": of more
    kind: Kind = "margin"
    # the most general targets; only with "real" is L(z, t) = Σ_k t_k·L(z, k)
    takes: Targets = "real"
    weighs_classes = False  # ``per_sample`` multiplies class weights itself, of class indices too
    # classes whose logit is zero by definition, so that a head gives no column for them
    implied = 0
    independent_rows = True  # a row's loss does not depend on the other rows
    multilabel = False  # rows have several labels: targets (B, K) are 0 or 1 for each class
    starts: Mapping[str, float] = {}  # by field of Output: factors of the head's first weights
    # largest norm of a step's gradient, unless the settings have one
    max_norm: float | None = None
    # random draws that a prediction averages over; None: predictions draw nothing
    samples: int | None = None
    weight: Tensor | None
    _closed = False  # whether ``slope`` gives the gradient

    def __init__(
        self,
        *,
        weight: Tensor | None = None,
        ignore_index: int = IGNORED,
        reduction: Reduction = "mean",
        exact: bool = False,
    ) -> None:
        super().__init__()
        if weight is not None:
            weight = check_tensor("weight", weight)
            if weight.dim() != 1 or not weight.is_floating_point():
                raise ValueError(
                    f"Expected `weight` to hold one float for each class, got {weight.dtype}"
                    f" {tuple(weight.shape)}."
                )
        self.register_buffer("weight", weight)
        self.ignore_index = check_count("ignore_index", ignore_index)
        self.reduction: Reduction = check_word("reduction", reduction, get_args(Reduction))
        self.exact = check_flag("exact", exact)

    def value(self, y: LabelProb) -> Tensor:
        """Return the loss of a label from its probability: all that a new loss writes."""
        raise NotImplementedError

    def evaluate(self, y: LabelProb) -> Tensor:
        """Return ``value`` with its gradient."""
        return _of_each_row(self, self.value(y), y)

    def scores(self, out: Output) -> Tensor:
        """Return class scores (B, K) whose softmax is the predicted distribution.

        Accuracy and margins use them.
        """
        inner = predictors(self)
        return inner[0].scores(out) if inner else out.logits

    def probabilities(self, out: Output) -> Tensor:
        """Return the predicted probability of each class, (B, K)."""
        return self.scores(out).softmax(1)

    def variance(self, out: Output) -> Tensor | None:
        """Return the variances (B, D) of the logits that the head predicts.

        It is None where it predicts none.
        """
        return next((part.variance(out) for part in predictors(self) if part is not self), None)

    def num_outputs(self, num_classes: int) -> int:
        """Return the number of columns of logits that a head must return."""
        return num_classes - self.implied

    def sample_weight(self, margin: Tensor) -> Tensor:
        """Return the implicit curriculum w(Δ) = −dl/dΔ (curriculum paper, Eq. 1)."""
        raise TypeError(
            f"`{self}` depends on the other classes too, so it has no weight as a function of the"
            " margin alone. Use average_error(loss, z, num_classes) for its gradient at"
            " initialisation."
        )

    @property
    def max_weight(self) -> float:
        """Largest sample weight over all margins, which the curriculum paper divides every loss
        by.
        """
        low = -60.0
        high = 60.0
        for _ in range(5):  # on a grid, and then between the neighbours of its best point
            grid = torch.linspace(low, high, 2001, dtype=torch.float64)
            weight = self.sample_weight(grid)
            best = int(weight.argmax())
            step = float(grid[1] - grid[0])
            low = float(grid[best]) - step
            high = float(grid[best]) + step
        return float(weight[best])

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        """Return the loss of each row, (B,), before class weights, sample weights and reduction."""
        logits = out.logits
        hard = target.dim() == 1
        log_p: Tensor | None = None
        if self.kind == "coupled":  # sums over thousands of classes exceed what float16 can hold
            log_p = F.log_softmax(logits, 1, dtype=wide(logits.dtype))
        elif not hard:
            log_p = F.log_softmax(logits, 1)
        if self.exact:
            at = margin(logits, countable(target, self.ignore_index)) if hard else margins(logits)
            y = LabelProb.from_margin(at, log_p)
        elif log_p is None:
            y = LabelProb(label_nll(logits, target, self.ignore_index, self._closed))
        elif hard:
            nll = F.nll_loss(log_p, target, reduction="none", ignore_index=self.ignore_index)
            y = LabelProb(nll, log_p)
        else:
            y = LabelProb(-log_p, log_p)
        value = self.evaluate(y)
        if value.dtype != logits.dtype:
            value = value.to(value_dtype(logits))
        return value if hard else over_classes(value, target, self.weight)

    def expected(self, out: Output, shares: Tensor) -> Tensor:
        """Return Σ_k s_k·L(z, k) of each row, (B,): the mean over labels that have the ``shares`` s
        (K,).
        """
        rows = len(out.logits)
        if self.takes == "real":
            lowest = torch.finfo(out.logits.dtype).min / 4  # a class without labels may be masked
            finite = out._replace(logits=out.logits.clamp_min(lowest))
            return self.per_sample(finite, shares.expand(rows, -1))
        label = torch.zeros(rows, dtype=torch.int64, device=shares.device)
        each = [self.per_sample(out, label + k) for k in range(len(shares))]
        return (torch.stack(each, 1) * shares).sum(1)

    def forward(
        self, out: Output | Tensor, target: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        """Return the loss of ``out`` (logits (B, K), or a head's output) against ``target``.

        As in ``torch.nn.CrossEntropyLoss``, logits may be (B, K, …) with targets (B, …) or (B, K,
        …): each place is a row. Labels of other integer types are taken as int64. ``sample_weight``
        (B,) multiplies each row's loss and does not enter the mean's denominator, so a weight of
        zero does not enlarge the gradients of other rows.
        """
        if isinstance(out, Tensor):
            out = Output(out)
        shape = out.logits.shape
        if target.dtype in INTEGERS and target.dim() == len(shape) - 1:
            target = target.long()
        if len(shape) > 2:
            _check_places(self, out.logits)
            loss = self.forward(*places_as_rows(out.logits, target, sample_weight))
            return loss.view(shape[0], *shape[2:]) if self.reduction == "none" else loss
        if len(shape) == 1 and target.dim() == (0 if target.dtype is torch.int64 else 1):
            row = Output._make(field if field is None else field[None] for field in out)
            return self.forward(row, target[None], sample_weight).squeeze()
        self._check(out.logits, target)
        num_classes = out.logits.shape[1] + self.implied
        is_whole = target.dim() == 2 or all_count(target, num_classes, self.ignore_index)
        if (
            (self.exact or self.kind != "margin")  # else it costs what cross entropy costs
            and self.independent_rows
            and self.needs == {"logits"}
            and pays_in_blocks(out.logits, target)
        ):
            losses = by_blocks(
                out.logits,
                lambda z, start: self.per_sample(Output(z), target[start : start + len(z)]),
            )
        else:
            losses = self.per_sample(out, target)
        return self._reduce(losses, target, sample_weight, is_whole)

    def _check(self, logits: Tensor, target: Tensor) -> None:
        check_logits_and_target(logits, target, self.implied)
        num_classes = logits.shape[1] + self.implied
        if self.weight is not None and self.weight.shape[0] != num_classes:
            raise ValueError(
                f"Expected `weight` of {num_classes} classes, got {self.weight.shape[0]}."
            )
        if self.takes == "classes" and target.dim() == 2:
            raise ValueError(
                f"Expected class indices (B,) as the target of `{self}`, got shape"
                f" {tuple(target.shape)}: a shift needs one labelled logit. Use the loss without"
                " remargin for real-valued targets."
            )

    def _reduce(
        self, losses: Tensor, target: Tensor, sample_weight: Tensor | None, all_count: bool
    ) -> Tensor:
        counted = None if all_count else target != self.ignore_index
        if counted is not None:
            losses = torch.where(counted, losses, 0)
        class_weight = None
        if target.dim() == 1 and self.weight is not None:
            class_weight = self.weight[countable(target, self.ignore_index)]
            if counted is not None:
                class_weight = class_weight * counted
            if not self.weighs_classes:
                losses = losses * class_weight
        if sample_weight is not None:
            if sample_weight.shape != losses.shape:
                raise ValueError(
                    f"Expected `sample_weight` of shape {tuple(losses.shape)}, got"
                    f" {tuple(sample_weight.shape)}."
                )
            losses = losses * sample_weight
        if self.reduction == "none":
            return losses
        if self.reduction == "sum":
            return losses.sum()
        if class_weight is not None:
            return losses.sum() / class_weight.sum()
        return losses.mean() if counted is None else losses.sum() / counted.sum()

    def set_epoch(self, epoch: int) -> None:
        """Move every schedule inside this loss to ``epoch`` (counted from 0)."""
        for part in parts_of(self):
            part.set_epoch(epoch)

    def set_shares(self, shares: Tensor, total: Callable[[Tensor], Tensor] | None = None) -> None:
        """Take ``shares`` (K,) as the shares of the classes among all labels to train on.

        The training loop calls it once, before all steps.

        ``total`` is the sum over the processes that share the rows of a step, where there are
        several.
        """
        for part in parts_of(self):
            part.set_shares(shares, total)

    def set_step(self, seed: int, generator: torch.Generator | None = None) -> None:
        """Draw what this loss draws in the next step from ``seed``, or from a generator.

        Most draw nothing.
        """
        for part in parts_of(self):
            part.set_step(seed, generator)

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """The parameters that make this loss, by name."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        names = [
            p.name
            for p in parameters
            if p.kind is not p.VAR_KEYWORD and p.name not in ("self", *OPTIONS)
        ]
        return stored_parameters(self, names)

    def with_hyperparameters(self, **changes: Any) -> Loss:
        """Return the same loss with some hyperparameters replaced."""
        options = {name: getattr(self, name) for name in OPTIONS}
        return type(self)(**{**self.hyperparameters, **changes}, **options)

    def __str__(self) -> str:
        """Return the spec of this loss: ``get_loss(str(loss))`` builds it again, up to weight,
        reduction and the like.
        """
        given = {name: value for name, value in self.hyperparameters.items() if value is not None}
        return format_call(self.name or type(self).__name__, given)

    def extra_repr(self) -> str:
        return str(self)

    def __add__(self, other: Loss) -> Loss:
        if not isinstance(other, Loss):
            return NotImplemented
        return WeightedSum([(1.0, self), (1.0, other)])

    def __mul__(self, scale: float) -> Loss:
        return WeightedSum([(scale, self)])

    __rmul__ = __mul__


class MarginLoss(Loss):
    """A loss l(p_y) of the label's probability alone; its gradient is one scalar per row times
    (softmax − onehot).

    A subclass writes ``value``. It adds ``slope`` = dl/dnll in closed form where autograd would
    cancel or underflow.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._closed = cls.slope is not MarginLoss.slope

    def slope(self, y: LabelProb) -> Tensor:
        """Return dl/dnll = −p·dl/dp."""
        raise NotImplementedError

    def evaluate(self, y: LabelProb) -> Tensor:
        return _of_each_row(self, pointwise(y.nll, self) if self._closed else self.value(y), y)

    def sample_weight(self, margin: Tensor) -> Tensor:
        if self._closed:
            y = LabelProb.from_margin(margin)
            return self.slope(y) * y.miss
        with torch.enable_grad():
            at = margin.detach().requires_grad_()
            losses = self.evaluate(LabelProb.from_margin(at))
            (slope,) = torch.autograd.grad(losses.sum(), at)
        return -slope


class WeightedSum(Loss):
    """Σ c_i·L_i: what ``10 * nce + 0.1 * agce`` builds; terms that need log-probabilities share
    them.

    Options that are not given are taken from the terms.
    """

    formula = "Σ_i c_i·L_i"

    def __init__(self, terms: Sequence[tuple[float, Loss]], **options: Any) -> None:
        flat: list[tuple[float, Loss]] = []
        for scale, loss in terms:
            if not isinstance(loss, Loss):
                raise TypeError(f"Expected a loss to add, got {type(loss).__name__}.")
            scale = check_number("scale", scale, "(-inf, inf)")
            flat += [
                (scale * inner_scale, inner_loss) for inner_scale, inner_loss in terms_of(loss)
            ]
        super().__init__(**{**_shared_options([loss for _, loss in flat]), **options})
        self.exact = self.exact or any(loss.exact for _, loss in flat)
        self.scales = [scale for scale, _ in flat]
        self.losses = nn.ModuleList(adopt(loss, self.ignore_index, self.weight) for _, loss in flat)
        kinds = {loss.kind for loss in self.losses}
        inherit_from(self, *(loss for _, loss in flat))
        self.weighs_classes = any(loss.weighs_classes for _, loss in flat)
        self.kind = next(kind for kind in ("other", "coupled", "margin") if kind in kinds)

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
        if weight is not None and target.dim() == 1:  # for the terms that leave it to ``_reduce``
            factor = weight[countable(target, self.ignore_index)]
            values = [
                v if loss.weighs_classes else v * factor
                for v, (_, loss) in zip(values, self.terms, strict=True)
            ]
        return _weighted(self.scales, values)

    def sample_weight(self, margin: Tensor) -> Tensor:
        return _weighted(self.scales, [loss.sample_weight(margin) for _, loss in self.terms])

    def _named_terms(self) -> list[tuple[str, float, Loss]]:
        """Return the terms with the names of their losses, ``agce#2`` for a second ``agce``."""
        named: list[tuple[str, float, Loss]] = []
        seen: Counter[str] = Counter()
        for scale, loss in self.terms:
            name = loss.name or type(loss).__name__
            seen[name] += 1
            named.append((name if seen[name] == 1 else f"{name}#{seen[name]}", scale, loss))
        return named

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """``agce.q`` for a term's parameter, ``agce.factor`` for what it is multiplied by."""
        parameters: dict[str, Any] = {}
        for name, scale, loss in self._named_terms():
            parameters[f"{name}.factor"] = scale
            parameters |= {f"{name}.{key}": value for key, value in loss.hyperparameters.items()}
        return parameters

    def with_hyperparameters(self, **changes: Any) -> WeightedSum:
        if unknown := set(changes) - set(self.hyperparameters):
            raise TypeError(
                f"`{self}` has the parameters {', '.join(self.hyperparameters)}, not"
                f" {sorted(unknown)}."
            )
        terms = []
        for name, scale, loss in self._named_terms():
            dot = f"{name}."
            own = {k.removeprefix(dot): v for k, v in changes.items() if k.startswith(dot)}
            scale = own.pop("factor", scale)
            terms.append((scale, loss.with_hyperparameters(**own) if own else loss))
        return WeightedSum(terms, **{name: getattr(self, name) for name in OPTIONS})

    def __str__(self) -> str:
        factors = [repr(scale).removesuffix(".0") for scale in self.scales]
        return " + ".join(
            f"{c}*{loss}" if c != "1" else str(loss)
            for c, (_, loss) in zip(factors, self.terms, strict=True)
        )


def terms_of(loss: Loss) -> list[tuple[float, Loss]]:
    """Return the weighted terms of a sum, or the loss itself."""
    return loss.terms if isinstance(loss, WeightedSum) else [(1.0, loss)]


def _shared_options(losses: Sequence[Loss]) -> dict[str, Any]:
    """Return the options of a sum, on which its terms have to agree."""
    first = {name: getattr(losses[0], name) for name in OPTIONS if name != "exact"}
    for other in losses[1:]:
        for name, value in first.items():
            if not is_same(value, getattr(other, name)):
                raise ValueError(
                    f"Cannot add losses whose `{name}` differ: {value!r} and"
                    f' {getattr(other, name)!r}. Give it to get_loss("a + b", …) once instead.'
                )
    return first


def _weighted(scales: Sequence[float], values: Sequence[Tensor]) -> Tensor:
    total = values[0] * scales[0] if scales[0] != 1 else values[0]
    for scale, value in zip(scales[1:], values[1:], strict=True):
        total = torch.add(total, value, alpha=scale)
    return total


def _check_places(loss: Loss, logits: Tensor) -> None:
    """Refuse logits (B, K, …), of which each place is a row, where rows have more than logits."""
    if loss.needs != {"logits"} or loss.multilabel:
        why = "has several labels per row" if loss.multilabel else "needs the output of a head"
        raise ValueError(
            f"Expected logits of shape (B, K) for `{loss}`, which {why}, got {tuple(logits.shape)}."
        )


def parts_of(loss: Loss) -> list[Loss]:
    """Return the losses inside ``loss``."""
    return [part for part in loss.modules() if isinstance(part, Loss) and part is not loss]


def predictors(loss: Loss) -> list[Loss]:
    """Return ``loss`` and the losses inside it whose scores are not the logits."""
    return [part for part in (loss, *parts_of(loss)) if type(part).scores is not Loss.scores]


def inherit_from(loss: Loss, *inner: Loss) -> None:
    """Set what ``loss`` needs, predicts and supports from the losses inside it."""
    _check_together(inner)
    loss.needs = frozenset().union(*(part.needs for part in inner))
    loss.independent_rows = all(part.independent_rows for part in inner)
    loss.takes = min((part.takes for part in inner), key=get_args(Targets).index)
    loss.starts = {field: start for part in inner for field, start in part.starts.items()}
    loss.max_norm = min((part.max_norm for part in inner if part.max_norm), default=None)
    loss.implied = inner[0].implied
    loss.samples = next((part.samples for part in inner if part.samples), None)


def _check_together(losses: Sequence[Loss]) -> None:
    """Refuse losses of several labels, and losses that predict in different ways."""
    if several := [part for part in losses if part.multilabel]:
        raise ValueError(
            f"Expected losses of one label per row inside another, got `{several[0]}`. Put the sum"
            " or wrapper inside it instead: multilabel:loss=(ce + mae)."
        )
    predicting = {str(part) for loss in losses for part in predictors(loss)}
    implied = {part.implied for part in losses}
    if len(predicting) > 1 or len(implied) > 1:
        named = sorted(predicting) if len(predicting) > 1 else sorted(map(str, losses))
        raise ValueError(
            f"Expected losses that predict alike, got {' and '.join(named)}: their sum would"
            " train logits that it does not predict from. Add losses of one such kind."
        )


def adopt(loss: Loss, ignore_index: int, weight: Tensor | None = None) -> Loss:
    """Return ``loss`` as a part of another, which decides what is ignored and how classes weigh.

    A copy where they differ.
    """
    if loss.ignore_index == ignore_index and is_same(loss.weight, weight):
        return loss
    misplaced = "" if loss.ignore_index in (IGNORED, ignore_index) else "ignore_index"
    if loss.weight is not None and not is_same(loss.weight, weight):
        misplaced = "weight"
    if misplaced:
        raise ValueError(
            f"Expected `{misplaced}` on the outermost loss only, got it on the inner `{loss}` too."
        )
    inner = copy.deepcopy(loss)
    inner.weight = weight
    for part in inner.modules():
        if isinstance(part, Loss):
            part.ignore_index = ignore_index
    return inner


def _of_each_row(loss: Loss, value: Tensor, y: LabelProb) -> Tensor:
    """Check that ``value`` has one number per label: a mean would train silently, at the wrong
    rate.
    """
    if value.shape != y.nll.shape:
        raise ValueError(
            f"Expected `value` of `{loss}` to return the loss of each label, shape"
            f" {tuple(y.nll.shape)} as `y.nll`, got {tuple(value.shape)}. Leave the mean or sum to"
            " `reduction`."
        )
    return value


def is_same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    return bool(a == b)
