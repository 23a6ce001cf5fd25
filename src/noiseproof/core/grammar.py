"""The grammar of specs, one for everything that has a name: losses, noise models, backbones,
datasets, methods.

A *call* is ``name:key=value,key=value``; values are numbers, ``true``/``false``/``none``, JSON
lists or maps, plain words, or another call in parentheses. A *sum* is calls joined by ``+``, each
optionally ``number*call``. A *line* is a sum, and calls joined to it by ``&``.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_SCALED = re.compile(rf"\s*({NUMBER})\s*\*\s*(.+)", re.DOTALL)
_IS_SIGN = re.compile(r"(?:^|[^\w.])[\d.]+[eE]$|=\s*$")  # a plus that follows
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None}


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """Split at each ``separator`` outside brackets; a plus may also be the sign of a value or an
    exponent.
    """
    parts: list[str] = []
    closing: list[str] = []
    start = 0
    for i, char in enumerate(text):
        if char in _PAIRS:
            closing.append(_PAIRS[char])
            if len(closing) > 20:
                raise ValueError(f"Expected brackets nested at most 20 deep, got {text[:60]!r}….")
        elif char in _PAIRS.values():
            if not closing or closing.pop() != char:
                raise ValueError(f"Unbalanced {char!r} in {text!r}.")
        elif char == separator and not closing and not (char == "+" and _IS_SIGN.search(text[:i])):
            parts.append(text[start:i])
            start = i + 1
    if closing:
        raise ValueError(f"Missing {closing[-1]!r} in {text!r}.")
    return [*parts, text[start:]]


def split_specs(text: str) -> list[str]:
    """Specs with commas between them; ``key=value`` after a comma belongs to the spec before it."""
    specs: list[str] = []
    for part in split_outside_brackets(text, ","):
        if specs and re.match(r"\s*\w+\s*=", part):
            specs[-1] += f",{part}"
        else:
            specs.append(part.strip())
    return specs


def parse_value(text: str) -> Any:
    """Read one value of the grammar.

    >>> [parse_value(v) for v in ("3", "0.7", "true", "[1, 2]", "(gce:q=0.7)", "cifar10")]
    [3, 0.7, True, [1, 2], 'gce:q=0.7', 'cifar10']
    """
    text = text.strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"Expected a JSON list or map, got {text!r}: {error}.") from None
    if text.startswith("(") and text.endswith(")"):
        return text[1:-1].strip()
    if re.fullmatch(NUMBER, text):
        return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)
    return text


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Read ``name:key=value,…``."""
    name, *rest = split_outside_brackets(text.strip(), ":")
    name = name.strip()
    params = ":".join(rest)
    if not name or any(bracket in name for bracket in "()[]{}="):
        raise ValueError(f"Expected NAME or NAME:key=value,…, got {text!r}.")
    values: dict[str, Any] = {}
    for item in split_outside_brackets(params, ",") if rest else []:
        key, equals, value = item.partition("=")
        if not equals or not key.strip().isidentifier() or not value.strip():
            raise ValueError(
                f"Expected key=value after {name!r}, got {item.strip()!r} in {text!r}."
            )
        if key.strip() in values:
            raise ValueError(f"Parameter {key.strip()!r} is given twice in {text!r}.")
        values[key.strip()] = parse_value(value)
    return name, values


def parse_sum(text: str) -> list[tuple[float, str]]:
    """Read ``2*a:x=1 + b`` into weighted terms.

    >>> parse_sum("10*nce + 0.1*agce:a=1.8,q=3")
    [(10.0, 'nce'), (0.1, 'agce:a=1.8,q=3')]
    """
    terms = []
    for part in split_outside_brackets(text, "+"):
        if not part.strip():
            raise ValueError(f"Expected a name next to each '+', got {text!r}.")
        scaled = _SCALED.fullmatch(part)
        terms.append((float(scaled[1]), scaled[2].strip()) if scaled else (1.0, part.strip()))
    return terms


def parse_line(text: str) -> list[list[tuple[str, dict[str, Any]]]]:
    """Read ``2*a:x=1 + b & c`` into the calls of each part; a plus may also end a name.

    >>> parse_line("(nce) + 10*mae & momentum:alpha=0.9"), parse_line("gce+@bias")
    ([[('nce', {}), ('mae', {})], [('momentum', {'alpha': 0.9})]], [[('gce+@bias', {})]])
    """
    parts = []
    for part in split_outside_brackets(text, "&"):
        ends_a_name = any(
            term.strip()[:1] in ("", ":", "@") for term in split_outside_brackets(part, "+")
        )
        terms = [part.strip()] if ends_a_name else [term for _, term in parse_sum(part)]
        parts.append([call for term in terms for call in _calls(term)])
    return parts


def _calls(term: str) -> list[tuple[str, dict[str, Any]]]:
    if term.startswith("(") and term.endswith(")"):
        return [call for part in parse_line(term[1:-1]) for call in part]
    return [parse_call(term)]


def calls_in(text: str) -> list[tuple[str, dict[str, Any]]]:
    """All calls in a line, also those inside others.

    >>> [name for name, _ in calls_in("remargin:loss=(nce + 2*mae),shift=1 & momentum")]
    ['remargin', 'momentum', 'nce', 'mae']
    """
    calls = [call for part in parse_line(text) for call in part]
    for inner in [
        value for _, params in calls for value in params.values() if isinstance(value, str)
    ]:
        with suppress(ValueError):  # a word of another kind
            calls += calls_in(inner)
    return calls


def format_value(value: Any) -> str:
    """Write a value so that :func:`parse_value` reads it back."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if hasattr(value, "initial_seed"):  # a torch.Generator
        value = value.initial_seed()
    if isinstance(value, (list, tuple, dict)):
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return repr(value)
    text = str(value)
    if re.search(r"[:,+*@= ]", text) or not _is_plain_word(text):
        return f"({text})"
    return text


def _is_plain_word(text: str) -> bool:
    """Whether :func:`parse_value` returns ``text`` unchanged, not a number, none or a list."""
    try:
        return bool(parse_value(text) == text)
    except ValueError:
        return False


def format_call(name: str, params: Mapping[str, Any]) -> str:
    """Write ``name:key=value,…``, the inverse of :func:`parse_call`."""
    if not params:
        return name
    return f"{name}:" + ",".join(f"{key}={format_value(value)}" for key, value in params.items())


def canonical_number(value: Any) -> Any:
    """Return ``2.0`` as ``2`` and everything else unchanged, so that equal numbers are spelled
    alike.

    >>> [canonical_number(v) for v in (2.0, 0.5, "word")]
    [2, 0.5, 'word']
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value
