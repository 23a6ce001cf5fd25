"""Datasets without files: the two synthetic ones of the LN paper, and the digits of
scikit-learn.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from noiseproof.core.arrays import Array
from noiseproof.core.checks import check_count, check_number
from noiseproof.data.base import Dataset, Split
from noiseproof.data.sources import DATASETS

# added to the seed for the test points, so that they repeat no training set
TEST_SEED_OFFSET = 2**31


def _split(x: Array, y: Array, dtype: torch.dtype = torch.float32) -> Split:
    labels = torch.from_numpy(y.astype(np.int64))
    return Split(torch.from_numpy(x).to(dtype), labels, clean=labels)


def _points(
    make: Callable[..., Any], n: int, n_test: int, spread: float, seed: int, **options: Any
) -> tuple[Split, Split]:
    """Draw training and test points in the plane with ``make``, a function of sklearn.datasets."""
    check_number("seed", seed, f"[0, {TEST_SEED_OFFSET})")
    options["noise"] = check_number("spread", spread, "[0, inf)")
    train = make(check_count("n", n, 2), random_state=seed, **options)
    test = make(check_count("n_test", n_test, 2), random_state=seed + TEST_SEED_OFFSET, **options)
    return _split(*train), _split(*test)


@DATASETS.register("two-moons")
def two_moons(n: int = 1000, n_test: int = 1000, spread: float = 0.1, seed: int = 0) -> Dataset:
    """Two interleaved half circles in the plane (LN paper, section 5.3).

    ``spread`` is the noise on the points.
    """
    from sklearn.datasets import make_moons

    train, test = _points(make_moons, n, n_test, spread, seed)
    return Dataset("two-moons", ("upper", "lower"), train, test)


@DATASETS.register("circles")
def circles(
    n: int = 1000, n_test: int = 1000, spread: float = 0.1, factor: float = 0.5, seed: int = 0
) -> Dataset:
    """Two circles of different radii (LN paper, section 5.3); ``factor`` is the inner radius."""
    from sklearn.datasets import make_circles

    check_number("factor", factor, "[0, 1)")
    train, test = _points(make_circles, n, n_test, spread, seed, factor=factor)
    return Dataset("circles", ("outer", "inner"), train, test)


@DATASETS.register("digits")
def digits(test: float = 0.2, seed: int = 0) -> Dataset:
    """1797 handwritten digits of 8 × 8 pixels, bundled with scikit-learn.

    ``test`` is the share of the test set, with each class in proportion.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    check_number("test", test, "(0, 1)")
    check_number("seed", seed, f"[0, {2**32})")
    x, y = load_digits(return_X_y=True)
    num_test = math.ceil(test * len(y))
    if not 10 <= num_test <= len(y) - 10:
        raise ValueError(
            f"Expected `test` to leave 10 digits or more in both parts, got {test!r}: {num_test} of"
            f" {len(y)}."
        )
    images = np.rint(x * (255 / 16)).reshape(-1, 1, 8, 8)  # 17 grey levels onto 0 … 255
    x, x_test, y, y_test = train_test_split(
        images, y, test_size=test, random_state=seed, stratify=y
    )
    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", names, _split(x, y, torch.uint8), _split(x_test, y_test, torch.uint8))
