"""Datasets of research by name: each module registers its own, and where their files are."""

from noiseproof.core.lazy import import_modules

import_modules(__name__, __path__)
