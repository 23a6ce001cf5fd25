"""One registry and one grammar for everything that has a name: losses, noise models, backbones, datasets, methods.

A *call* is ``name:key=value,key=value``; values are numbers, ``true``/``false``/``none``, JSON lists or maps,
plain words, or another call in parentheses. A *sum* is calls joined by ``+``, each optionally ``number*call``.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

T = TypeVar("T")
C = TypeVar("C")
log = logging.getLogger("noiseproof")

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_SCALED = re.compile(rf"\s*({NUMBER})\s*\*\s*(.+)", re.DOTALL)
_IS_SIGN = re.compile(r"(?:^|[^\w.])[\d.]+[eE]$|=\s*$")  # a plus that follows
_PAIRS = {"(": ")", "[": "]", "{": "}"}
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "none": None}


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """Split at each ``separator`` outside brackets; a plus may also be the sign of a value or an exponent."""
    parts, start, closing = [], 0, []
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
    """Specs with commas between them; ``key=value`` after a comma belongs to the spec before it.

    >>> split_specs("ce,agce:a=0.6,q=0.6")
    ['ce', 'agce:a=0.6,q=0.6']
    """
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
    """Read ``name:key=value,…``.

    >>> parse_call("agce:a=0.6,q=0.6")
    ('agce', {'a': 0.6, 'q': 0.6})
    """
    name, *rest = split_outside_brackets(text.strip(), ":")
    name, params = name.strip(), ":".join(rest)
    if not name or any(bracket in name for bracket in "()[]{}="):
        raise ValueError(f"Expected NAME or NAME:key=value,…, got {text!r}.")
    values: dict[str, Any] = {}
    for item in split_outside_brackets(params, ",") if rest else []:
        key, equals, value = item.partition("=")
        if not equals or not key.strip().isidentifier() or not value.strip():
            raise ValueError(f"Expected key=value after {name!r}, got {item.strip()!r} in {text!r}.")
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
            raise ValueError(f"Expected a name beside each '+', got {text!r}.")
        scaled = _SCALED.fullmatch(part)
        terms.append((float(scaled[1]), scaled[2].strip()) if scaled else (1.0, part.strip()))
    return terms


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
    return f"({text})" if re.search(r"[:,+*@= ]", text) or not _is_read_as(text) else text


def _is_read_as(text: str) -> bool:
    """Whether a word is read as it stands, and not as a number, none, a list."""
    try:
        return bool(parse_value(text) == text)
    except ValueError:
        return False


def format_call(name: str, params: Mapping[str, Any]) -> str:
    """Write ``name:key=value,…``, the inverse of :func:`parse_call`."""
    return ":".join([name, ",".join(f"{k}={format_value(v)}" for k, v in params.items())] if params else [name])


PLUGINS = "NOISEPROOF_PLUGINS"  # modules or .py files, with commas between them, that register names of their own


@cache
def load_plugins() -> None:
    """Import what adds names: the entry points ``noiseproof`` of installed packages, and $NOISEPROOF_PLUGINS."""
    from importlib.metadata import entry_points  # slow, and help must be quick

    for entry in entry_points(group="noiseproof"):
        try:
            entry.load()
        except Exception as error:  # somebody else's package must not stop everything
            log.warning("the plugin %s (%s) could not be loaded: %s", entry.name, entry.value, error)
    for module, name in _listed_plugins():
        try:
            import_module(module, name)
        except Exception as error:
            why = str(error).rstrip(".")
            raise ValueError(f"Expected modules or .py files in {PLUGINS}, got {name!r}: {why}.") from error


def _listed_plugins() -> list[tuple[str, str]]:
    """Modules that $NOISEPROOF_PLUGINS names, each with what it says."""
    listed = filter(None, map(str.strip, os.environ.get(PLUGINS, "").split(",")))
    return [(Path(name).stem if name.endswith(".py") else name, name) for name in listed]


def import_module(name: str, file: str = "") -> None:
    """Import a module by its ``name``, unless that is done, from its ``file`` where that ends with .py."""
    if (known := sys.modules.get(name)) is not None:
        if file.endswith(".py") and Path(getattr(known, "__file__", None) or "").resolve() != Path(file).resolve():
            raise ImportError(f"the name {name} is taken by {known}. Rename the file")
        return
    spec = importlib.util.spec_from_file_location(name, file) if file.endswith(".py") else None
    if spec is None or spec.loader is None:
        importlib.import_module(name)
        return
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


def _is_own(module: str) -> bool:
    return module.partition(".")[0] == "noiseproof"


def module_file(module: str) -> str:
    """The file of an imported module, "" where it has none, as in a notebook."""
    return getattr(sys.modules.get(module), "__file__", None) or ""


def file_digest(path: Path) -> str:
    """Of what the file holds, which is read again where its time or size has changed."""
    now = path.stat()
    return _read_digest(path.absolute(), now.st_mtime_ns, now.st_size)


@lru_cache(maxsize=1024)
def _read_digest(path: Path, time: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def foreign_names(text: str) -> set[str]:
    """The names in ``text`` that are not noiseproof's, rather one too many: what they are names of is not asked.

    What stands before ``=`` is a parameter.
    """
    return {name for name in Registry.foreign if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.*=-])", text)}


def foreign_code(text: str) -> dict[str, str]:
    """Digests of all modules with names of their own, by module, where ``text`` has any such name.

    Of all, since a method of one may take a loss of another: what is redone in vain does no harm.
    """
    return dict(sorted(Registry.code.items())) if foreign_names(text) else {}


def foreign_place(error: BaseException) -> str:
    """Where modules with names of their own last had a part in ``error``: " (in FILE, line N)", or ""."""
    modules = {module for kinds in Registry.foreign.values() for module in kinds.values()}
    modules |= {module for module, _ in _listed_plugins()}  # one that cannot be imported has registered nothing
    place, cause = "", error.__cause__
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") in modules:
            place = f" (in {frame.f_code.co_filename}, line {line})"
    return (foreign_place(cause) if cause else "") or place


def kept_parameters(thing: object, names: Iterable[str]) -> dict[str, Any]:
    """The parameters that ``thing`` was made of, which it keeps under their own names."""
    names = list(names)
    for name in names:
        if not hasattr(thing, name):
            raise TypeError(
                f"Expected {type(thing).__name__} to keep each of its parameters ({', '.join(names)}) under its own "
                f"name, got none of `{name}`. Write `self.{name} = …` in its __init__."
            )
    return {name: getattr(thing, name) for name in names}


def _is(said: Any, default: Any) -> bool:
    default = list(default) if isinstance(default, tuple) else default
    return isinstance(said, bool) == isinstance(default, bool) and bool(said == default)


def whole(value: Any) -> Any:
    """The integer that a float is, where it is one: equal numbers are written alike."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def near_names(name: str, known: Collection[str]) -> str:
    """What to say to whoever asked for a ``name`` that is none of the ``known``."""
    near = difflib.get_close_matches(name, known, n=3)
    return f"Did you mean {', '.join(map(repr, near))}?" if near else f"There are: {', '.join(known)}."


class Registry(Generic[T]):
    """Names to factories, with errors that say what exists."""

    foreign: ClassVar[dict[str, dict[str, str]]] = {}  # names that are not noiseproof's own: their modules by kind
    code: ClassVar[dict[str, str]] = {}  # digests of these modules' files as they were imported: it is that which runs

    def __init__(self, kind: str, shared: tuple[str, ...] = (), gives: type = object) -> None:
        self.kind = kind
        self.shared = shared  # what a factory's **kwargs may hold
        self.gives = gives  # what a factory has to return
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Class or function decorator that adds a factory under ``name``."""

        def add(factory: Callable[..., T]) -> Callable[..., T]:
            if name in self._factories:
                raise ValueError(f"The {self.kind} {name!r} is already registered.")
            self._factories[name] = factory
            module = factory.__module__ if _is_own(caller) and isinstance(factory, type) else caller
            if not _is_own(module):
                Registry.foreign.setdefault(name, {})[self.kind] = module
                with suppress(OSError):  # a notebook's
                    Registry.code[module] = file_digest(Path(module_file(module)))[:16]
            return factory

        caller = sys._getframe(1).f_globals.get("__name__", "")
        return add

    def named(self, name: str) -> Callable[[type[C]], type[C]]:
        """Class decorator: add a class under ``name``, which it bears as its ``name``; contract tests find it there."""

        def add(cls: type[C]) -> type[C]:
            cls.name = name  # type: ignore[attr-defined]
            self.register(name)(cls)  # type: ignore[arg-type]  # of what the registry is for
            return cls

        return add

    def __getitem__(self, name: str) -> Callable[..., T]:
        if name not in self._factories:
            load_plugins()
        if name in self._factories:
            return self._factories[name]
        raise ValueError(f"Unknown {self.kind} {name!r}. {near_names(name, sorted(self))}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def __contains__(self, name: object) -> bool:
        return name in self._factories

    def __len__(self) -> int:
        return len(self._factories)

    def parameters(self, name: str) -> dict[str, Any]:
        """The parameters of ``name`` with their defaults (``inspect.Parameter.empty`` where required).

        Positional-only ones are not among them: they are for whoever calls ``create``.
        """
        named = inspect.signature(self[name]).parameters.values()
        return {p.name: p.default for p in named if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}

    def parse(self, spec: str, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Name and parameters of ``spec``, with ``params`` as more of the same."""
        if not isinstance(spec, str):
            raise TypeError(f"Expected the name or spec of a {self.kind}, got {type(spec).__name__}.")
        name, values = parse_call(spec)
        if twice := set(values) & set(params):
            raise ValueError(f"Parameters {sorted(twice)} are given both in {spec!r} and as keywords.")
        return name, {**values, **params}

    def plain(self, spec: str) -> str:
        """``spec`` as all spellings of it are: without what is so by default, in the parameters' order.

        Names that are not registered keep all that is said.
        """
        name, said = parse_call(spec)
        own = self.parameters(name) if name in self else {}
        unlike = {key: value for key, value in said.items() if not _is(value, own.get(key, inspect.Parameter.empty))}
        known = {key: unlike.pop(key) for key in own if key in unlike}
        return format_call(name, {key: whole(value) for key, value in (*known.items(), *sorted(unlike.items()))})

    def create(self, name: str, /, *context: Any, **params: Any) -> T:
        """Build ``name`` with ``params``, refusing parameters it does not take."""
        factory = self[name]
        signature = inspect.signature(factory)
        own = self.parameters(name)
        open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        known = [*own, *(self.shared if open_ended else ())]
        unknown = [key for key in params if key not in known]
        missing = [key for key, default in own.items() if default is inspect.Parameter.empty and key not in params]
        if unknown or missing:
            fault = f"got {', '.join(map(repr, unknown))}" if unknown else f"{', '.join(map(repr, missing))} is missing"
            raise TypeError(f"Expected the parameters of the {self.kind} {name!r}: {', '.join(known)}; {fault}.")
        made = factory(*context, **params)
        if not isinstance(made, self.gives):
            raise TypeError(
                f"Expected the {self.kind} {name!r} to give a {self.gives.__name__}, got {type(made).__name__}. "
                "Return one."
            )
        return made
