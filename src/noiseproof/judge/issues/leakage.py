"""Columns that give the label away, or name the rows."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from noiseproof.core.arrays import Ints
from noiseproof.judge.issues.base import (
    AuditEvidence,
    Bars,
    Finding,
    Findings,
    FoundIssue,
    LabelIssues,
    Rows,
    of_column,
    register_issue,
    words_of,
)

# of the labels beyond the most frequent class; honest columns of real tables: 0.89 at most
LEAKING = 0.95
BINS = 32  # of a column of numbers
FEW = 50  # rows below which nothing is concluded
PICTURE = "labels that each column predicts alone, of those that are not of the most frequent class"
ID = re.compile(
    r"(?i)(^|[^a-z])(id|uuid|guid|index|idx|key|row|nr|no|number)([^a-z]|$)|(?-i:[a-z]I[dD]$)"
)
CODE = re.compile(r"(?=\S*\d)\S{4,}")  # a word such as A-1093


@register_issue("leakage")
class Leakage(FoundIssue):
    """Columns that predict the label alone, as no feature usually does, and identifiers of rows.

    Each half of the rows is predicted by the other half: the most frequent class among equal
    values, or in the same of 32 parts of numbers. The score is (hits − frequent) / (1 − frequent)
    with the share of the most frequent class, from 0.95 on; an identifier has 0.6. Columns
    that models see come first.
    """

    needs = ("table",)
    remedy = "Leave a column out that was made from the label or after it, or that names the rows."
    fixes = (
        "Leaves out columns that predict the label almost perfectly alone, or name or number the"
        " rows."
    )

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        cells = evidence.cells
        data = evidence.data
        if len(cells) < FEW:
            return
        given = data.given[cells.index]
        used = used_columns(data)
        frequent = np.bincount(given).max() / len(given)
        shares = {str(name): share_predicted(encode(cells[name]), given) for name in cells.columns}
        ordered = sorted(shares, key=lambda name: -shares[name])[:10]
        bars = [(name, round(100 * max(shares[name], 0), 1)) for name in ordered]
        for position, (name, share) in enumerate(shares.items()):
            what_it_does = identify(name, cells.iloc[:, position], data.row[cells.index])
            if share >= LEAKING:
                hits = frequent + share * (1 - frequent)
                picture = None
                if name in ordered:
                    picture = Bars(PICTURE, bars, "%", (ordered.index(name),))
                sentence = (
                    f"Column {name!r} alone predicts {hits:.1%} of the labels of other rows right,"
                    f" the most frequent class {frequent:.1%} ({len(cells)} rows)."
                )
                yield of_column(name, share, sentence, picture, is_used=name in used)
            elif what_it_does:
                sentence = f"Column {name!r} {what_it_does}: a model can only memorise it."
                yield of_column(name, 0.6, sentence)

    @property
    def findings(self) -> Sequence[Finding]:
        """What was found, columns that models see first."""
        return sorted(self.found, key=lambda one: not one.details.get("is_used"))

    def headline(self, summary: Mapping[str, Any]) -> str:
        found = summary.get(self.name, {}).get("findings", [])
        others = f" Also {', '.join(one['about'] for one in found[1:])}." if len(found) > 1 else ""
        return f"{self.name}: {found[0]['sentence']}{others}" if found else ""


def used_columns(data: Rows) -> set[str]:
    """Return the columns of a table that models see; of an array all."""
    table = data.table
    if table is None:
        return set()
    if table.fitted is None:
        return {*map(str, range(table.values.shape[1]))}
    return {*map(str, (*table.fitted.numeric, *table.fitted.categories, *table.fitted.wide))}


def leaking_columns(summary: Mapping[str, Any]) -> list[str]:
    """Return the columns that models saw and that predict the label almost perfectly, by the
    summary of an audit.
    """
    found = summary.get(Leakage.name, {}).get("findings", [])
    return [name for one in found if one["details"].get("is_used") for name in one["columns"]]


def distrust(verdict: str, names: Sequence[str], data: Rows, ignored: Sequence[str]) -> str:
    """Return why the ``verdict`` of models that saw the columns ``names`` is not to be trusted,
    what to do, and the verdict.
    """
    which = ", ".join(f"`{name}`" for name in names)
    it = "it" if len(names) == 1 else "them"
    predicts = "alone predicts" if len(names) == 1 else "each predict"
    how = f"leave {it} out of the array"
    if can_ignore(data):
        how = f"--ignore {shlex.quote(','.join((*ignored, *names)))}"
    return (
        f"Not to be trusted: {which} {predicts} the label almost perfectly. Audit again without"
        f" {it}: {how}. With {it}, {verdict[0].lower()}{verdict[1:]}"
    )


def can_ignore(data: Rows) -> bool:
    """Return whether the option `ignore` hides columns from the models of an audit."""
    return data.table is not None and data.table.frame is not None


def encode(column: Any) -> Ints:
    """Return a number for each value, or for each of 32 equal parts of numbers, (n,); gaps are a
    value, too.
    """
    import pandas as pd

    is_number = column.dtype.kind in "iufb"
    codes, words = pd.factorize(column if is_number else words_of(column), use_na_sentinel=False)
    if is_number and len(words) > BINS:
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
        edges = np.unique(np.nanquantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
        return np.where(np.isnan(values), BINS, np.searchsorted(edges, values, side="right"))
    return codes.astype(np.int64)


def share_predicted(code: Ints, given: Ints) -> float:
    """Return the share of the labels beyond the most frequent class that ``code`` (n,) predicts in
    the other half of rows.
    """
    K = int(given.max()) + 1
    C = int(code.max()) + 1
    if C * K > 50 * len(code):
        return 0.0  # nearly every value occurs once
    half = np.random.default_rng(0).random(len(code)) < 0.5
    hits = 0
    for learned in (half, ~half):
        counts = np.bincount(code[learned] * K + given[learned], minlength=C * K).reshape(C, K)
        # unknown values: the most frequent class
        counts = counts + 1e-9 * np.bincount(given[learned], minlength=K)
        hits += int((counts.argmax(1)[code[~learned]] == given[~learned]).sum())
    frequent = np.bincount(given).max() / len(given)
    return float((hits / len(given) - frequent) / max(1 - frequent, 1 / len(given)))


def identify(name: str, column: Any, row: Ints) -> str:
    """Return what a column does if it identifies the rows, such as "numbers the rows", else ""."""
    if column.isna().any() or not column.is_unique:
        return ""
    if column.dtype.kind in "iuf":
        values = column.to_numpy(np.float64)
        if np.ptp(values - row) == 0 or np.ptp(values + row) == 0:
            return "numbers the rows"
        is_whole = not (values % 1).any()
        return (
            "names the rows, with another number for each" if is_whole and ID.search(name) else ""
        )
    is_code = all(CODE.fullmatch(word) for word in words_of(column))
    return "names the rows, with another word for each" if is_code else ""
