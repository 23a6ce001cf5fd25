"""Registries: names to factories, for everything that has a name."""

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from noiseproof.core.grammar import canonical_number, format_call, parse_call
from noiseproof.core.plugins import PLUGINS, load_plugins, note_module, plugin_being_imported

T = TypeVar("T")
C = TypeVar("C")
# parameters that are a share of wrong labels, with an example of 20 % for messages
WRONG_SHARES = {"forget": 0.2, "rate": 0.2}


def stored_parameters(thing: object, names: Iterable[str]) -> dict[str, Any]:
    """Parameters that ``thing`` was built from, which it stores as attributes of the same
    ``names``.
    """
    names = list(names)
    for name in names:
        if not hasattr(thing, name):
            raise TypeError(
                f"Expected {type(thing).__name__} to keep each of its parameters"
                f" ({', '.join(names)}) under its own name, got none of `{name}`. Write"
                f" `self.{name} = …` in its __init__."
            )
    return {name: getattr(thing, name) for name in names}


def near_names(name: str, known: Collection[str]) -> str:
    """Suggest the ``known`` names nearest to an unknown ``name``, or list them all."""
    near = difflib.get_close_matches(name, known, n=3)
    if near:
        return f"Did you mean {', '.join(map(repr, near))}?"
    return f"There are: {', '.join(known)}."


def unknown_name(kind: str, name: str, known: Collection[str]) -> str:
    """Say that ``name`` is not registered, which names are near, and where names of one's own come
    from.
    """
    own = f"A name of your own: import its module, or list it in {PLUGINS}."
    return f"Unknown {kind} {name!r}. {near_names(name, known)} {own}"


class Registry(Generic[T]):
    """Names to factories, with errors that list what exists.

    Args:
        kind: what is registered, as messages call it.
        shared: parameters that a factory accepts through ``**kwargs``.
        returns: type of what a factory returns.
    """

    def __init__(self, kind: str, shared: tuple[str, ...] = (), returns: type = object) -> None:
        self.kind = kind
        self.shared = shared
        self.returns = returns
        self._factories: dict[str, Callable[..., T]] = {}

    def register(
        self, name: str, *, module: str = ""
    ) -> Callable[[Callable[..., T]], Callable[..., T]]:
        """Add a class or function under ``name``, as a decorator.

        Args:
            name: what specs call it.
            module: the registering module, ``__name__``, for a factory that does not know its own,
                as a ``partial``.
        """

        def add(factory: Callable[..., T]) -> Callable[..., T]:
            if name in self._factories:
                raise ValueError(f"The {self.kind} {name!r} is already registered.")
            # A second name of one factory, a partial and the like do not know the module that
            # registers them.
            is_new = all(factory is not known for known in self._factories.values())
            knows_home = is_new and (inspect.isclass(factory) or inspect.isfunction(factory))
            home = module or (factory.__module__ if knows_home else plugin_being_imported())
            if not home:
                got = type(factory).__name__ if is_new else "one that has a name already"
                raise TypeError(
                    f"Expected a new class or function as the {self.kind} {name!r}, got {got}."
                    f" Write a function, or use register({name!r}, module=__name__)."
                )
            self._factories[name] = factory
            note_module(self.kind, name, home)
            return factory

        return add

    def register_class(self, name: str) -> Callable[[type[C]], type[C]]:
        """Add a class under ``name``, which becomes its attribute ``name``, as a decorator."""

        def add(cls: type[C]) -> type[C]:
            cls.name = name  # type: ignore[attr-defined]
            self.register(name)(cls)  # type: ignore[arg-type]
            return cls

        return add

    def register_variant(self, name: str, factory: Callable[..., T], **defaults: Any) -> None:
        """Add ``factory`` with other ``defaults`` under ``name``."""
        self.register(name, module=factory.__module__)(partial(factory, **defaults))

    def __getitem__(self, name: str) -> Callable[..., T]:
        if name not in self._factories:
            load_plugins()
        if name in self._factories:
            return self._factories[name]
        raise ValueError(unknown_name(self.kind, name, sorted(self)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._factories)

    def __contains__(self, name: object) -> bool:
        return name in self._factories

    def __len__(self) -> int:
        return len(self._factories)

    def parameters(self, name: str) -> dict[str, Any]:
        """Parameters of ``name`` with their defaults (``inspect.Parameter.empty`` if required).

        Positional-only ones are left out: ``create`` passes them, not the spec.
        """
        parameters = inspect.signature(self[name]).parameters.values()
        return {
            p.name: p.default
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        }

    def parse(self, spec: str, params: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Name and parameters of ``spec``, together with ``params``."""
        if not isinstance(spec, str):
            raise TypeError(
                f"Expected the name or spec of a {self.kind}, got {type(spec).__name__}."
            )
        name, values = parse_call(spec)
        if twice := set(values) & set(params):
            raise ValueError(
                f"Parameters {sorted(twice)} are given both in {spec!r} and as keywords."
            )
        return name, {**values, **params}

    def canonical(self, spec: str) -> str:
        """The one spelling of ``spec``: without default values, parameters in the order of the
        signature.

        An unregistered name keeps all its parameters.
        """
        name, params = parse_call(spec)
        defaults = self.parameters(name) if name in self else {}
        changed = {
            k: v
            for k, v in params.items()
            if not _is_default(v, defaults.get(k, inspect.Parameter.empty))
        }
        ordered = [
            *(key for key in defaults if key in changed),
            *sorted(changed.keys() - defaults.keys()),
        ]
        return format_call(name, {key: canonical_number(changed[key]) for key in ordered})

    def create(self, name: str, /, *context: Any, **params: Any) -> T:
        """Build ``name`` from ``params``, with an error for parameters that it does not take."""
        factory = self[name]
        known = self._known_parameters(name)
        if fault := self._find_fault(name, known, params):
            raise TypeError(
                f"Expected the parameters of the {self.kind} {name!r}: {', '.join(known)}; {fault}."
            )
        try:
            made = factory(*context, **params)
        except (TypeError, ValueError) as error:
            # The command line spells names in messages as its options; these are parameters of a
            # spec, which it leaves as they are (cli/show.py). Specs may be nested: names add up.
            names_of_parameters = error.__dict__.setdefault("parameters", set())
            names_of_parameters.update(known)
            raise
        if not isinstance(made, self.returns):
            raise TypeError(
                f"Expected the {self.kind} {name!r} to give a {self.returns.__name__}, got"
                f" {type(made).__name__}. Return one."
            )
        return made

    def _known_parameters(self, name: str) -> list[str]:
        """Return the parameters that ``name`` takes, and the shared ones if it has ``**kwargs``."""
        parameters = inspect.signature(self[name]).parameters.values()
        takes_shared = any(p.kind is p.VAR_KEYWORD for p in parameters)
        return [*self.parameters(name), *(self.shared if takes_shared else ())]

    def _find_fault(self, name: str, known: list[str], params: Mapping[str, Any]) -> str:
        """Return the end of a message about unknown or missing parameters, "" if there are none."""
        unknown = [key for key in params if key not in known]
        if unknown:
            return f"got {', '.join(map(repr, unknown))}"
        required = [
            key
            for key, default in self.parameters(name).items()
            if default is inspect.Parameter.empty
        ]
        missing = [key for key in required if key not in params]
        if not missing:
            return ""
        example = ",".join(f"{key}={WRONG_SHARES.get(key, '…')}" for key in missing)
        fault = f"{', '.join(map(repr, missing))} is missing. Write {name}:{example}"
        if any(key in WRONG_SHARES for key in missing):
            fault += " for 20 % wrong labels"
        return fault


def _is_default(value: Any, default: Any) -> bool:
    default = list(default) if isinstance(default, tuple) else default
    return isinstance(value, bool) == isinstance(default, bool) and bool(value == default)
