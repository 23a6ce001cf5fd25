"""Rows by their content: a digest of 16 bytes for each, and where the rows of an audit are in the
data now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import xxhash
from numpy.typing import NDArray

from noiseproof.audit.files import ROWS, Audit, renewing_command
from noiseproof.core.arrays import Bools, Ints
from noiseproof.data.arrays import is_sparse

Digests = NDArray[np.uint64]  # (N, 2): 16 bytes per row


def digest_rows(rows: Iterable[bytes], names: str = "") -> Digests:
    """Return the digest of each row by XXH3, different ones for different ``names`` of columns."""
    seed = xxhash.xxh3_64_intdigest(names.encode("utf-8", "surrogatepass"))
    digests = b"".join(xxhash.xxh3_128_digest(row, seed) for row in rows)
    return np.frombuffer(digests, "<u8").reshape(-1, 2).astype(np.uint64)


def digest_words(words: Sequence[str]) -> Digests:
    """Return the digest of one word for each row; equal words are hashed once."""
    different = {word: i for i, word in enumerate(dict.fromkeys(words))}
    digests = digest_rows(word.encode("utf-8", "surrogatepass") for word in different)
    return digests[[different[word] for word in words]] if len(words) else digests


def digest_frame(frame: pd.DataFrame) -> Digests:
    """Return the digests of the rows of a table: sums over its columns, so that their order does
    not matter.
    """
    total = np.zeros((len(frame), 2), np.uint64)
    for name in frame.columns:
        total += _digest_column(frame[name], str(name))
    return total


def _digest_column(column: pd.Series[Any], name: str) -> Digests:
    if not isinstance(column.dtype, np.dtype) or column.dtype.kind not in "biuf":
        words = []
        for cell, is_gap in zip(column, column.isna(), strict=True):
            word = sorted(map(str, cell)) if isinstance(cell, (set, frozenset)) else cell
            words.append(f"{name}\0" if is_gap else f"{name}\0={word}")
        return digest_words(words)
    if column.dtype.kind == "f":
        numbers = column.to_numpy(dtype=np.float64, copy=True)
        numbers[np.isnan(numbers)] = np.nan  # in one of its many bit patterns
    else:
        numbers = column.to_numpy(dtype=np.int64)
    return mixed(
        numbers.view(np.uint64)[:, None] ^ digest_rows([name.encode("utf-8", "surrogatepass")])
    )


def mixed(bits: Digests) -> Digests:
    """Return numbers of which every bit depends on all 64 of the given ones (splitmix64, Steele et
    al. 2014).
    """
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def digest_array(array: Any) -> Digests:
    if is_sparse(array):
        rows = array.tocsr()
        rows.sort_indices()
        parts = pairwise(rows.indptr.tolist())
        return digest_rows(
            rows.indices[a:b].astype("<i8").tobytes() + rows.data[a:b].tobytes() for a, b in parts
        )
    values = np.asarray(array)
    if values.dtype.kind == "O":
        return digest_words([repr(row) for row in values])
    return digest_rows(np.ascontiguousarray(row).tobytes() for row in values)


def digest_all(digests: Digests) -> str:
    return hashlib.sha256(np.ascontiguousarray(digests, "<u8").tobytes()).hexdigest()


def follow_rows(before: Digests, now: Digests) -> tuple[Ints, Bools]:
    """Return where each row ``before`` is ``now``, (N,), −1 where it is not; and which rows have
    moving copies, (N,).

    Copies of a row keep their order. Rows with another number of copies than before are not found.
    """
    both = np.ascontiguousarray(np.concatenate([before, now]))
    content = np.unique(both.view("V16").ravel(), return_inverse=True)[1].ravel()
    old, new = np.split(content, [len(before)])
    size = int(content.max(initial=-1)) + 1
    copies = np.bincount(old, minlength=size)
    is_found = copies == np.bincount(new, minlength=size)
    place = np.full(len(old), -1, np.int64)
    kept_old, kept_new = (np.flatnonzero(is_found[part]) for part in (old, new))
    # Sorted by content and then by number, the rows of both are in the same order.
    place[kept_old[np.argsort(old[kept_old], kind="stable")]] = kept_new[
        np.argsort(new[kept_new], kind="stable")
    ]
    has_moved = np.zeros(size, bool)
    has_moved[old[place != np.arange(len(old))]] = True
    return place, (has_moved & (copies > 1))[old]


def read_row_digests(audit: Audit) -> Digests:
    """Return the digests of the rows as they were audited; refuse damaged ones."""
    path = audit.folder / ROWS
    again = f"Audit the data again: {renewing_command(audit.config)}"
    try:
        digests: Digests = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(
            f"Expected the digests of the audited rows in {path}, got {error}. {again}"
        ) from error
    if (
        digests.dtype != np.uint64
        or digests.ndim != 2
        or digest_all(digests) != audit.config.get("rows_sha256")
    ):
        raise ValueError(
            f"Expected the digests of the audited rows in {path}, got other or damaged ones."
            f" {again}"
        )
    return digests


def find_rows(audit: Audit, now: Digests, outcomes: Mapping[int, object]) -> Ints:
    """Return where the audited rows are in data whose rows have the digests ``now``,
    (source_rows,).

    Rows that changed, came or went are refused, and so are copies of a row that moved and have
    different ``outcomes``.
    """
    before = read_row_digests(audit)
    place, has_copies = follow_rows(before, now)
    lost = np.flatnonzero(place < 0)
    where = audit.config["data"] or audit.config["labels"] or "memory"
    again = f"Audit the data again, which keeps decisions: {renewing_command(audit.config)}"
    if len(lost) or len(now) != len(before):
        such = f", such as row {lost[0]}" if len(lost) else ""
        raise ValueError(
            f"Expected the {len(before)} rows that were audited in {where}, they or their order"
            f" have changed since: {len(lost)} are gone or have other cells{such}, and there are"
            f" {len(now)}. {again}"
        )
    first_copies: dict[bytes, tuple[int, object]] = {}  # by content
    for row in np.flatnonzero(has_copies).tolist():
        outcome = outcomes.get(row)
        first, of_first = first_copies.setdefault(before[row].tobytes(), (row, outcome))
        if outcome != of_first:
            raise ValueError(
                f"Expected the rows of {where} in their order, or one decision for rows {first} and"
                f" {row}: they are copies that have moved, and which is which cannot be told."
                f" Decide on both alike. {again}"
            )
    return place
