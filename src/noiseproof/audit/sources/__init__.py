"""Kinds of data that can be audited, one class each; every module here is imported, so a new kind
is one file.
"""

from noiseproof.audit.sources.base import SOURCES, Request, Source, open_rows
from noiseproof.core.lazy import import_modules

import_modules(__name__, __path__)

__all__ = ["SOURCES", "Request", "Source", "open_rows"]
