"""Weighted sums of losses, and losses from text: ``gce:q=0.7``, ``10*nce + 0.1*agce:a=1.8,q=3``, ``nce+agce@bias``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from noiseproof.core.checks import check_number
from noiseproof.core.grammar import parse_call, parse_sum
from noiseproof.core.margin import LabelProb
from noiseproof.core.output import Output
from noiseproof.losses.base import LOSSES, OPTIONS, Loss, adopt, countable, is_same
from noiseproof.papers import loss_preset, loss_presets, pop_qualifiers


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
        self._inherit_from(*(loss for _, loss in flat))
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
        if weight is not None and target.dim() == 1:  # for the terms that leave it to ``_reduce``
            factor = weight[countable(target, self.ignore_index)]
            values = [v if loss.weighs_classes else v * factor for v, (_, loss) in zip(values, self.terms, strict=True)]
        return _weighted(self.scales, values)

    def expected(self, out: Output, shares: Tensor) -> Tensor:
        if self.linear and self.takes != "classes":
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
        parameters: dict[str, Any] = {}
        for prefix, (scale, loss) in zip(self._prefixes(), self.terms, strict=True):
            parameters[f"{prefix}.factor"] = scale
            parameters |= {f"{prefix}.{key}": value for key, value in loss.hyperparameters.items()}
        return parameters

    def with_hyperparameters(self, **changes: Any) -> WeightedSum:
        if unknown := set(changes) - set(self.hyperparameters):
            raise TypeError(f"`{self}` has the parameters {', '.join(self.hyperparameters)}, not {sorted(unknown)}.")
        terms = []
        for prefix, (scale, loss) in zip(self._prefixes(), self.terms, strict=True):
            changed = {k.removeprefix(f"{prefix}."): v for k, v in changes.items() if k.startswith(f"{prefix}.")}
            scale = changed.pop("factor", scale)
            terms.append((scale, loss.with_hyperparameters(**changed) if changed else loss))
        return WeightedSum(terms, **{name: getattr(self, name) for name in OPTIONS})

    def __str__(self) -> str:
        factors = [repr(scale).removesuffix(".0") for scale in self.scales]
        return " + ".join(
            f"{c}*{loss}" if c != "1" else str(loss) for c, (_, loss) in zip(factors, self.terms, strict=True)
        )


def terms_of(loss: Loss) -> list[tuple[float, Loss]]:
    """The weighted terms of a sum, or the loss itself."""
    return loss.terms if isinstance(loss, WeightedSum) else [(1.0, loss)]


def check_factors(loss: Loss) -> None:
    """Refuse a sum that subtracts a term without a bound: training would go after that one alone, without end."""
    for scale, term in terms_of(loss):
        missed = Output(torch.tensor([[-1e3, 0.0]], dtype=torch.float64))
        if scale < 0 and (term.kind == "other" or float(term.per_sample(missed, torch.tensor([0]))) > 100):
            raise ValueError(
                f"Expected a positive factor of `{term}`, which has no upper bound, got {scale:g}: training would "
                "raise it without end. Subtract only bounded losses, such as mae, gce or nce."
            )


def shared_options(losses: Sequence[Loss]) -> dict[str, Any]:
    """The options of a sum, on which its terms have to agree."""
    first = {name: getattr(losses[0], name) for name in OPTIONS if name != "exact"}
    for other in losses[1:]:
        for name, value in first.items():
            if not is_same(value, getattr(other, name)):
                raise ValueError(
                    f"Cannot add losses whose `{name}` differ: {value!r} and {getattr(other, name)!r}. "
                    'Give it to get_loss("a + b", …) once instead.'
                )
    return first


def _weighted(scales: Sequence[float], values: Sequence[Tensor]) -> Tensor:
    total = values[0] * scales[0] if scales[0] != 1 else values[0]
    for scale, value in zip(scales[1:], values[1:], strict=True):
        total = torch.add(total, value, alpha=scale)
    return total


def get_loss(spec: str, **params: Any) -> Loss:
    """Build a loss from its spec; keyword arguments are the same parameters, or the options of every loss.

    ``NAME@PAPER`` is a paper's setting. If it depends on the data, pass ``num_classes``,
    ``dataset``, ``noise``, ``rate``. Nothing is chosen silently.

    >>> str(get_loss("gce", q=0.7)) == str(get_loss("gce:q=0.7"))
    True
    >>> print(get_loss("10*nce + 0.1*agce:a=1.8,q=3"))
    10*nce + 0.1*agce:a=1.8,q=3.0
    >>> print(get_loss("nce+agce@bias", num_classes=10))
    nce + 4*agce:a=6.0,q=1.5
    """
    if not isinstance(spec, str):
        raise TypeError(f"Expected the name or spec of a loss, got {type(spec).__name__}.")
    if "@" in spec and (preset := _preset(spec, params)) is not None:
        return preset
    terms = parse_sum(spec)
    if len(terms) == 1 and terms[0][0] == 1:
        inner = terms[0][1]
        if inner.startswith("(") and inner.endswith(")"):
            return get_loss(inner[1:-1], **params)
        name, values = LOSSES.parse(inner, params)
        if "reduction" not in params and values.get("reduction", "") is None:
            values["reduction"] = "none"  # the reduction, which the grammar reads as no value
        return LOSSES.create(name, **values)
    qualifiers = pop_qualifiers(params)
    if qualifiers and "@" not in spec:
        raise TypeError(f"Expected a preset (NAME@PAPER) beside {', '.join(qualifiers)}, got {spec!r}.")
    losses = [(scale, get_loss(term, **(qualifiers if "@" in term else {}))) for scale, term in terms]
    return WeightedSum(losses, **shared_options([loss for _, loss in losses]) | params)


def as_loss(loss: Loss | str) -> Loss:
    """``loss`` itself, or the loss that its spec names."""
    return loss if isinstance(loss, Loss) else get_loss(loss)


def inner_loss(loss: Loss | str, ignore_index: int) -> Loss:
    """``loss`` as a part of another one."""
    inner = as_loss(loss)
    if isinstance(loss, str) and inner.reduction != "mean":
        raise ValueError(f"Expected `reduction` on the outermost loss only, got it on the inner `{loss}` too.")
    return adopt(inner, ignore_index)


def _preset(spec: str, params: dict[str, Any]) -> Loss | None:
    """The preset that the whole of ``spec`` names, ``a+b@bias:num_classes=10``; None where it is a sum of terms."""
    name, at, rest = spec.strip().rpartition("@")
    if any(mark in name for mark in "@:*()"):
        return None
    paper, values = parse_call(rest) if "+" not in rest else ("", {})
    name = name.replace(" ", "")
    if not at or not paper or ("+" in name and not any(preset.name == name for preset in loss_presets(paper))):
        return None
    merged = {**values, **params}
    return get_loss(loss_preset(name, paper, pop_qualifiers(merged)), **merged)


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
