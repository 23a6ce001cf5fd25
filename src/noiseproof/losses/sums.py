"""Losses from text: ``gce:q=0.7``, ``10*nce + 0.1*agce:a=1.8,q=3``, ``nce+agce@bias``."""

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from noiseproof.core.grammar import parse_call, parse_sum
from noiseproof.core.output import Output
from noiseproof.losses.base import (
    LOSSES,
    OPTIONS,
    Loss,
    WeightedSum,
    adopt,
    terms_of,
)
from noiseproof.papers import loss_preset, loss_presets, pop_qualifiers


def check_factors(loss: Loss) -> None:
    """Refuse a sum that subtracts a term without a bound: training would go after that one alone,
    without end.
    """
    for scale, term in terms_of(loss):
        missed = Output(torch.tensor([[-1e3, 0.0]], dtype=torch.float64))
        if scale < 0 and (
            term.kind == "other" or float(term.per_sample(missed, torch.tensor([0]))) > 100
        ):
            raise ValueError(
                f"Expected a positive factor of `{term}`, which has no upper bound, got {scale:g}:"
                " training would raise it without end. Subtract only bounded losses, such as mae,"
                " gce or nce."
            )


def get_loss(spec: str, **params: Any) -> Loss:
    """Build a loss from its spec.

    Keyword arguments are the same parameters, or the options of every loss.

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
        raise TypeError(
            f"Expected a preset (NAME@PAPER) with {', '.join(qualifiers)}, got {spec!r}."
        )
    losses = [
        (scale, get_loss(term, **(qualifiers if "@" in term else {}))) for scale, term in terms
    ]
    return WeightedSum(losses, **params)


def as_loss(loss: Loss | str) -> Loss:
    """Return ``loss`` itself, or the loss that its spec names."""
    return loss if isinstance(loss, Loss) else get_loss(loss)


def inner_loss(loss: Loss | str, ignore_index: int) -> Loss:
    """Return ``loss`` as a part of another one."""
    inner = as_loss(loss)
    if isinstance(loss, str) and inner.reduction != "mean":
        raise ValueError(
            f"Expected `reduction` on the outermost loss only, got it on the inner `{loss}` too."
        )
    return adopt(inner, ignore_index)


def _preset(spec: str, params: dict[str, Any]) -> Loss | None:
    """Return the preset that the whole of ``spec`` names, ``a+b@bias:num_classes=10``.

    It is None where it is a sum of terms.
    """
    name, at, rest = spec.strip().rpartition("@")
    if any(mark in name for mark in "@:*()"):
        return None
    paper, values = parse_call(rest) if "+" not in rest else ("", {})
    name = name.replace(" ", "")
    if (
        not at
        or not paper
        or ("+" in name and not any(preset.name == name for preset in loss_presets(paper)))
    ):
        return None
    merged = {**values, **params}
    return get_loss(loss_preset(name, paper, pop_qualifiers(merged)), **merged)


def describe(name: str) -> Mapping[str, Any]:
    """Return the formula, parameters and source of a registered loss, for listings."""
    factory = LOSSES[name]
    parameters = {k: v for k, v in LOSSES.parameters(name).items() if k not in OPTIONS}
    return {
        "name": name,
        "formula": getattr(factory, "formula", ""),
        "parameters": {
            k: None if v is inspect.Parameter.empty else v for k, v in parameters.items()
        },
        "source": getattr(factory, "source", ""),
        "summary": (inspect.getdoc(factory) or "").partition("\n\n")[0].replace("\n", " "),
    }
