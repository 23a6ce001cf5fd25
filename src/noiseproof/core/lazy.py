"""What is imported when it is used, not before: public names of packages, and modules of higher
layers.
"""

import pkgutil
import sys
from collections.abc import Callable, Container, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

_PROVIDERS: dict[str, str] = {}  # by role: the dotted name of a module
_LOADED: dict[str, ModuleType] = {}


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of ``package``, whose names are defined in the modules of
    ``homes``.
    """

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)  # so that the next access is direct
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names


def provide(**modules: str) -> None:
    """Name the modules that fill roles of lower layers, which may not import them."""
    _PROVIDERS.update(modules)


def provided(role: str) -> Any:
    """The module that fills ``role``, imported on first use; None where none does."""
    if role not in _LOADED and role in _PROVIDERS:
        _LOADED[role] = import_module(_PROVIDERS[role])
    return _LOADED.get(role)


def import_modules(package: str, path: Iterable[str], *, but: Container[str] = ()) -> None:
    """Import every module of ``package`` ``but`` some, so that a new file registers what it
    defines.
    """
    for module in pkgutil.iter_modules(path):
        if module.name not in but:
            import_module(f"{package}.{module.name}")
