"""Methods from text: ``gce:q=0.7 & momentum``; ``METHOD@PAPER`` has a paper's hyperparameters."""

from dataclasses import replace

from noiseproof.core.grammar import (
    calls_in,
    format_call,
    parse_call,
    parse_line,
    parse_sum,
    split_outside_brackets,
    split_specs,
)
from noiseproof.core.plugins import load_plugins
from noiseproof.core.registry import unknown_name
from noiseproof.heads import HEADS
from noiseproof.losses import LOSSES, Loss, MultiLabel, get_loss
from noiseproof.papers import QUALIFIERS, method_preset, pop_qualifiers, presets_of
from noiseproof.strategies import STRATEGIES, get_strategy
from noiseproof.train.method import Method, MethodContext
from noiseproof.train.named import METHODS
from noiseproof.train.settings import Settings
from noiseproof.train.task import Task

__all__ = [
    "METHODS",
    "Method",
    "MethodContext",
    "check_method",
    "get_method",
    "method_loss",
    "plain_method",
]


def get_method(spec: str, task: Task, settings: Settings) -> Method:
    """Build the method that ``spec`` names for this task.

    ``NAME:key=value,…`` is a named method or any loss; sums of losses are methods too.
    ``NAME@PAPER`` has the paper's hyperparameters for this dataset and noise, or for those given
    after it (``ln@ln:dataset=mnist``). ``& STRATEGY`` adds a strategy, and may be repeated; ``&
    HEAD`` chooses a head, by default the one that gives what the loss needs. Parts that cannot be
    trained together are refused. Where rows have several labels, the loss is of each label.

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
    """Return the loss of a method, or the loss, that ``spec`` names.

    If a loss has the name of a method and ``spec`` sets a parameter that only the loss has, it is
    that loss.

    >>> hundred = MethodContext.of_classes(100)
    >>> print(method_loss("nal", hundred), method_loss("het:tau=5", hundred).tau)
    nal:lam=10.0,beta=0.0,floor=0.0,warmup=5 5.0
    """
    first = split_outside_brackets(spec, "&")[0].strip()
    name = _first_word(first)
    if (
        _is_named(first)
        and name in LOSSES
        and not parse_call(first)[1].keys() <= METHODS.parameters(name).keys()
    ):
        return get_loss(first)
    method = _assembled(spec, context)
    method.check(context.num_classes)
    return method.loss


def _assembled(spec: str, context: MethodContext) -> Method:
    _check_single(spec)
    first, *more = split_outside_brackets(spec, "&")
    method = _build(first.strip(), context)
    heads: list[str] = []
    strategies = list(method.strategies)
    for part in more:
        word = _first_word(part)
        if word in HEADS:
            heads.append(part.strip())
        elif word in METHODS and word not in STRATEGIES:
            raise ValueError(
                f"Expected one method, before the first &, got {word!r} behind it. What follows are"
                " strategies: `noiseproof methods` shows those that a method is made of."
            )
        else:
            strategies.append(get_strategy(part))
    if len(heads) > 1:
        raise ValueError(f"Expected one head, got {' and '.join(heads)}. Leave one out.")
    (head,) = heads or [method.head]
    return Method(method.loss, head, tuple(strategies))


def plain_method(spec: str) -> str:
    """Return the canonical spelling of ``spec``.

    >>> plain_method("gce:q=0.70 & momentum:alpha=.9"), plain_method("mae + 1.0*gce:q=0.7")
    ('gce & momentum:alpha=0.9', 'mae + gce')
    """
    first, *more = split_outside_brackets(spec, "&")
    if "@" in _first_word(first) or _is_named(first):
        first = METHODS.canonical(first)
    else:
        terms = [(weight, LOSSES.canonical(term)) for weight, term in parse_sum(first)]
        first = " + ".join(term if weight == 1 else f"{weight!r}*{term}" for weight, term in terms)
    parts = [first]
    for part in more:
        registry = HEADS if _first_word(part) in HEADS else STRATEGIES
        parts.append(registry.canonical(part))
    return " & ".join(parts)


def _first_word(spec: str) -> str:
    return spec.partition(":")[0].strip()


def _is_named(spec: str) -> bool:
    """Return whether it is one of METHODS, and not a sum that begins like one."""
    name = _first_word(spec)
    return name in METHODS and len(split_outside_brackets(spec.strip()[len(name) :], "+")) == 1


def _check_single(spec: str) -> None:
    several = split_specs(spec)
    if len(several) > 1:
        raise ValueError(
            f"Expected one method, got {len(several)}: {' and '.join(several)}. Take one at a time."
        )


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
            LOSSES[term.partition("@")[0]]  # raises for unknown names
    for word in map(_first_word, more):
        if word not in HEADS:
            STRATEGIES[word]


def _build(spec: str, context: MethodContext) -> Method:
    if "@" in _first_word(spec):
        return _build(_from_paper(spec, context), context)
    try:
        check_method(spec)
        if _is_named(spec):
            name, params = parse_call(spec)
            return METHODS.create(name, context, **params)
        return Method(get_loss(spec))
    except ValueError as error:
        raise _misplaced(spec, context) or error from None


def _misplaced(spec: str, context: MethodContext) -> ValueError | None:
    """Return the error of a spec with a method or a strategy in the place of a loss; None if it has
    none.
    """
    names = [name for name, _ in calls_in(spec)]
    if _is_named(spec):
        del names[0]  # a method in its place
    for name in names:
        if name in LOSSES:
            continue
        if name in METHODS:
            own = METHODS.create(name, context).loss
            return ValueError(f"Expected a loss, got the method {name!r}. Write its loss, `{own}`.")
        if name in STRATEGIES:
            return ValueError(
                f"Expected a loss, got the strategy {name!r}. Add it to one with &: `ce & {name}`."
            )
    return None


def _from_paper(spec: str, context: MethodContext) -> str:
    """Return the spec that ``NAME@PAPER:…`` stands for in this context."""
    name, _, rest = spec.partition("@")
    paper, params = parse_call(rest)
    data = {key: getattr(context, key) for key in QUALIFIERS if getattr(context, key) is not None}
    given = pop_qualifiers(params)
    if "dataset" in given or "num_classes" in given:  # other data than the run has
        data = {key: value for key, value in data.items() if key not in ("dataset", "num_classes")}
    # other noise, whose rate may differ
    if given.get("noise", data.get("noise")) != data.get("noise"):
        data.pop("rate", None)
    preset = method_preset(name.strip(), paper, {**data, **given})
    if not params:
        return preset
    if len(parse_sum(preset)) > 1:
        raise ValueError(
            f"Expected no parameters beside {', '.join(QUALIFIERS)} for the sum {preset!r}, got"
            f" {spec!r}."
        )
    inner, values = parse_call(preset)
    return format_call(inner, {**values, **params})
