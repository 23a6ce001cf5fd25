"""The choice of ``auto`` among methods, by their accuracy on held-out rows with the given
labels.
"""

from collections.abc import Mapping

import numpy as np

from noiseproof.core.arrays import Bools, Floats, Ints
from noiseproof.judge.evidence.folds import make_folds

FOLDS = 5  # one of them is held out
MAX_HELD = 5000  # rows, which distinguish methods by a percent
MIN_ROWS = 100  # below, a fifth of the rows says nothing
# standard errors of a difference in accuracy; with 2, few tables are large enough to change the
# choice
CHANCE = 1.0


def held_out(labels: Ints, seed: int) -> Bools:
    """A fifth of the rows, (N,), 5000 at most, with each class in proportion.

    Of fewer than 100 rows, none is held out.
    """
    if len(labels) < MIN_ROWS:
        return np.zeros(len(labels), dtype=bool)
    rows = np.flatnonzero(make_folds(labels, folds=FOLDS, seed=seed) == 0)
    held = np.zeros(len(labels), dtype=bool)
    held[np.random.default_rng(seed).permutation(rows)[:MAX_HELD]] = True
    return held


def best_method(
    preferred: str, is_right: Mapping[str, Bools], weights: Floats | None = None
) -> str:
    """The most accurate method of those ahead of ``preferred`` by more than chance.

    It is ``preferred`` if none is.

    ``is_right`` says of each method which held-out rows it predicts as given, (H,). A difference is
    chance up to one standard error of the mean difference of the paired rows. Labels that are wrong
    independently of the class shrink all differences by the same factor, so that the order of the
    methods stays.
    """
    share = np.full(len(is_right[preferred]), 1.0) if weights is None else weights
    share = share / share.sum()
    ahead = {preferred: 0.0}
    for name, right in is_right.items():
        gain = right.astype(float) - is_right[preferred]
        mean = float(share @ gain)
        error = float(np.sqrt(share**2 @ (gain - mean) ** 2))
        if name != preferred and mean > CHANCE * error:
            ahead[name] = mean
    return max(ahead, key=lambda name: ahead[name])
