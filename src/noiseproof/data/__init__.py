"""Datasets by name and a user's own data, all as the same small object: ``Dataset``; with noise:
``NoisyData``.
"""

from noiseproof.core.lazy import import_modules
from noiseproof.data.arrays import from_arrays, from_hf, from_torch
from noiseproof.data.base import (
    ClassBalanced,
    Dataset,
    Encoder,
    Inputs,
    LazyInputs,
    NoisyData,
    Split,
    corrupt,
)
from noiseproof.data.images import ImageFiles, from_image_folder, stream
from noiseproof.data.sources import DATASETS, get_dataset
from noiseproof.data.tables import from_table
from noiseproof.data.text import from_text

__all__ = [
    "DATASETS",
    "ClassBalanced",
    "Dataset",
    "Encoder",
    "ImageFiles",
    "Inputs",
    "LazyInputs",
    "NoisyData",
    "Split",
    "corrupt",
    "from_arrays",
    "from_hf",
    "from_image_folder",
    "from_table",
    "from_text",
    "from_torch",
    "get_dataset",
    "stream",
]

import_modules(__name__, __path__)
