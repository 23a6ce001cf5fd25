"""Plug-ins: modules outside noiseproof that register names of losses, datasets, methods and the
like; named objects.
"""

import importlib
import importlib.util
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from noiseproof.core.files import file_digest

log = logging.getLogger("noiseproof")

PLUGINS = "NOISEPROOF_PLUGINS"  # an environment variable: modules or .py files, separated by commas
MODULES: dict[str, dict[str, str]] = {}  # names registered by plug-ins: the module of each, by kind
_IMPORTING: list[str] = []  # plug-ins whose import is under way, the innermost last
# of the files of these modules at import, by module: a later edit does not run
DIGESTS: dict[str, str] = {}


@cache
def load_plugins() -> None:
    """Import the entry points ``noiseproof`` of installed packages, and what $NOISEPROOF_PLUGINS
    lists.
    """
    from importlib.metadata import entry_points  # slow to import, and ``--help`` should be quick

    for entry in entry_points(group="noiseproof"):
        try:
            with _importing(entry.module):
                entry.load()
        except Exception as error:  # a broken package of someone else must not stop everything
            log.warning(
                "the plugin %s (%s) could not be loaded: %s", entry.name, entry.value, error
            )
    for module, name in _listed_plugins():
        try:
            import_module(module, name)
        except Exception as error:
            why = str(error).rstrip(".")
            raise ValueError(
                f"Expected modules or .py files in {PLUGINS}, got {name!r}: {why}."
            ) from error


def _listed_plugins() -> list[tuple[str, str]]:
    """Modules that $NOISEPROOF_PLUGINS names, each with its entry there."""
    entries = filter(None, map(str.strip, os.environ.get(PLUGINS, "").split(",")))
    return [(Path(entry).stem if entry.endswith(".py") else entry, entry) for entry in entries]


def import_module(name: str, file: str = "") -> None:
    """Import the module ``name`` once, from ``file`` if that ends with .py."""
    if (imported := sys.modules.get(name)) is not None:
        if (
            file.endswith(".py")
            and Path(getattr(imported, "__file__", None) or "").resolve() != Path(file).resolve()
        ):
            raise ImportError(f"the name {name} is taken by {imported}. Rename the file")
        return
    spec = importlib.util.spec_from_file_location(name, file) if file.endswith(".py") else None
    with _importing(name):
        if spec is None or spec.loader is None:
            importlib.import_module(name)
            return
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise


@contextmanager
def _importing(module: str) -> Iterator[None]:
    _IMPORTING.append(module)
    try:
        yield
    finally:
        _IMPORTING.pop()


def plugin_being_imported() -> str:
    """The plug-in that is being imported, "" if none is."""
    return _IMPORTING[-1] if _IMPORTING else ""


def module_file(module: str) -> str:
    """File of an imported module, or "" if it has none, as in a notebook."""
    return getattr(sys.modules.get(module), "__file__", None) or ""


def note_module(kind: str, name: str, module: str) -> None:
    """Remember which module registered ``name``, unless it is one of noiseproof's."""
    if module.partition(".")[0] == "noiseproof":
        return
    MODULES.setdefault(name, {})[kind] = module
    with suppress(OSError):  # a notebook has no file
        DIGESTS[module] = file_digest(Path(module_file(module)))[:16]


def plugin_modules() -> set[str]:
    """All modules that registered names."""
    return {module for by_kind in MODULES.values() for module in by_kind.values()}


def plugin_names(text: str) -> set[str]:
    """Names in ``text`` that plug-ins registered, of whatever kind; a word before ``=`` is a
    parameter.
    """
    return {
        name for name in MODULES if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.*=-])", text)
    }


def plugin_digests(text: str) -> dict[str, str]:
    """Digests of all plug-ins, by module, if ``text`` has a name of any: a method of one may use a
    loss of another.
    """
    return dict(sorted(DIGESTS.items())) if plugin_names(text) else {}


def plugin_line(error: BaseException) -> str:
    """Last line of a plug-in in the traceback of ``error``, as " (in FILE, line N)", or ""."""
    # a failed import has registered nothing
    modules = plugin_modules() | {module for module, _ in _listed_plugins()}
    steps = traceback.walk_tb(error.__traceback__)
    lines = [
        (frame.f_code.co_filename, line)
        for frame, line in steps
        if frame.f_globals.get("__name__") in modules
    ]
    # where it began, before where it was raised again
    if error.__cause__ and (place := plugin_line(error.__cause__)):
        return place
    return f" (in {lines[-1][0]}, line {lines[-1][1]})" if lines else ""


def load_object(name: str) -> Any:
    """The object ``module:name``; a class is called without arguments.

    Modules in the current folder are found, too, as by ``python -m``.

    >>> load_object("sklearn.ensemble:RandomForestClassifier")
    RandomForestClassifier()
    """
    module, _, path = name.partition(":")
    expected = (
        "Expected `estimator` as module:name, such as sklearn.ensemble:RandomForestClassifier,"
    )
    if not module or not path:
        raise ValueError(f"{expected} got {name!r}.")
    # a console script has the folder of the script instead
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        value = attrgetter(path)(importlib.import_module(module))
    except ImportError as error:
        raise ValueError(f"{expected} got {name!r}: {error}.") from error
    except AttributeError as error:
        raise ValueError(f"{expected} got {name!r}: {module} has no {path}.") from error
    try:
        return value() if isinstance(value, type) else value
    except TypeError as error:
        raise ValueError(
            f"{expected} got {name!r}, which needs arguments: {error}. Make an instance in a"
            " module, and name that."
        ) from error
