"""Sparse matrices, such as counts of words, as a few dense columns for networks and neighbours."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.core.checks import check_count

FIT_ROWS, BLOCK = 50_000, 10_000


def is_sparse(value: Any) -> bool:
    """Whether a value is a sparse matrix or array of SciPy, which is not imported to see that."""
    scipy = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(value))


class SparseAxes:
    """Projects a sparse matrix (N, F) onto its ``dim`` main axes, by truncated SVD; one of few columns stays itself."""

    def __init__(self, x: Any, dim: int = 256, seed: int = 0) -> None:
        self.project = None
        if x.shape[1] <= check_count("dim", dim, 1):
            return
        from sklearn.decomposition import TruncatedSVD

        sample = np.sort(np.random.default_rng(seed).permutation(x.shape[0])[:FIT_ROWS])
        axes = min(dim, len(sample))
        self.project = TruncatedSVD(axes, random_state=seed % 2**31).fit(_finite(x.tocsr()[sample])[0])

    def encode(self, x: Any) -> NDArray[np.float32]:
        """(N, dim) float32, computed in blocks to save memory; NaN in rows that hold NaN or infinite numbers."""
        x, is_finite = _finite(x.tocsr())
        blocks = [x[i : i + BLOCK] for i in range(0, x.shape[0], BLOCK)]
        if self.project is None:
            dense = np.concatenate([block.toarray() for block in blocks])
        else:
            dense = np.concatenate([self.project.transform(block) for block in blocks]).astype(np.float32)
        dense[~is_finite] = np.nan
        return np.asarray(dense)


def _finite(x: Any) -> tuple[Any, NDArray[np.bool_]]:
    """Return the matrix as float32, 0 in place of NaN and infinite numbers, and the rows without any of these, (N,)."""
    with np.errstate(over="ignore"):  # too large for float32 counts as infinite
        x = x.astype(np.float32)
    is_odd = ~np.isfinite(x.data)
    rows = np.repeat(np.arange(x.shape[0]), np.diff(x.indptr))
    x.data[is_odd] = 0
    return x, np.bincount(rows[is_odd], minlength=x.shape[0]) == 0
