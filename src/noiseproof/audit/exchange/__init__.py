"""Other tools for labels: what they import is written from an audit, what they export is read as
decisions or data.
"""

from noiseproof.audit.exchange.base import TOOLS, find_tool, read_decided_in
from noiseproof.core.lazy import import_modules

import_modules(__name__, __path__)

__all__ = ["TOOLS", "find_tool", "read_decided_in"]
