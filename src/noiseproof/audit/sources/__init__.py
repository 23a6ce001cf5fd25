"""Kinds of data that can be audited, one class each; every module here is imported, so a new kind is one file."""

from importlib import import_module
from pkgutil import iter_modules

from noiseproof.audit.sources.base import SOURCES, Request, Source, open_rows

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")

__all__ = ["SOURCES", "Request", "Source", "open_rows"]
