"""Columns whose cells are mixed: several notations or units, words, codes."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from noiseproof.core.arrays import Floats
from noiseproof.core.messages import counted
from noiseproof.judge.issues.base import (
    AuditEvidence,
    Bars,
    Finding,
    Findings,
    Fix,
    FoundIssue,
    LabelIssues,
    found_columns,
    of_column,
    register_issue,
)
from noiseproof.judge.saved import SavedAudit

NUMBER = re.compile(r"\s*[-+−]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
COMMA = re.compile(r"\s*[-+−]?\d+,\d+\s*")  # 1,5
# 1,500, which may be one and a half, too
THOUSANDS = re.compile(r"\s*[-+−]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*")
BOTH = re.compile(r"\s*[-+−]?[1-9]\d{0,2}(\.\d{3})+,\d+\s*")  # 1.234,56
# 1.234, a thousand and more where others are 1.234,56
POINTS = re.compile(r"\s*[-+−]?[1-9]\d{0,2}(\.\d{3})+\s*")
WITH_UNIT = re.compile(r"\s*([-+−]?\d[\d.,]*)\s*([^\W\d]{1,6}|%|°[CF]|[$€£])\s*")
KINDS = {  # of cells, the first that matches; others are words
    "number": NUMBER,
    "thousands": THOUSANDS,
    "comma": COMMA,
    "both": BOTH,
    "unit": WITH_UNIT,
}
MOST_WORDS = 0.2  # share of other words that a column of numbers may have
# between two units of one quantity: cm and m, g and kg, 1 and a million
FACTORS = (100.0, 1000.0, 1e6)
FEW = 5  # cells of a column, times a few, below which nothing is concluded
FEW_OF_UNIT = 20  # numbers in the rarer unit: fewer are like too many distributions
GAP = 3.0  # between the parts, at least this factor
# 99, −999, …
CODES = {-1, -9} | {sign * (10**digits - 1) for digits in range(2, 7) for sign in (1, -1)}
# how many times nearer to the other numbers one reading of 1,500 must be than the other
CLEAR = 10.0


@register_issue("mixed")
class MixedCells(FoundIssue):
    """Columns of numbers of which some are written in another notation or unit, or are words or
    codes for missing ones.

    Two units: two parts, the larger divided by 100, 1 000 or a million distributed as the smaller
    (two-sample Kolmogorov-Smirnov, p > 0.01). The score is 0.9 for units and notations, 0.6 for
    words and codes.
    """

    needs = ("table",)
    remedy = (
        "Write all numbers of a column in one notation and one unit, and leave missing ones empty."
    )
    fixes = (
        "Writes decimal commas as points, removes commas of thousands, divides numbers in the"
        " larger unit, empties words and codes for missing."
    )

    @staticmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        for name in evidence.cells.columns:
            column = evidence.cells[name].dropna()
            if column.dtype.kind in "iuf":
                values = column.to_numpy(np.float64)
                values = values[np.isfinite(values)]
                may_be_code = np.isin(values, [*CODES])
                units = _units(str(name), values[~may_be_code])
                if units is not None:  # a code is looked for among numbers in one unit
                    factor = np.where(values > units.details["above"], units.details["factor"], 1)
                    values = np.where(may_be_code, values, values / factor)
                yield from filter(None, (units, _code(str(name), values)))
            elif column.dtype.kind in "OT" or str(column.dtype) in ("str", "string"):
                words = [word for word in column if isinstance(word, str)]
                yield from _notations(str(name), words)

    @classmethod
    def fix(cls, audit: SavedAudit) -> Fix:
        found: dict[str, dict[str, Any]] = {}  # all that is known of a column
        for one in found_columns(cls, audit):
            found.setdefault(one["columns"][0], {}).update(one["details"])
        return Fix(
            cells={
                name: partial(_rewritten, found=details)
                for name, details in found.items()
                if details
            }
        )


def _notations(name: str, words: list[str]) -> Findings:
    """Find numbers with decimal commas next to points, with several units, or with other words
    among them.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    for word in filter(str.strip, words):
        kinds[_kind(word)].append(word)
    plain = kinds["number"]
    thousands = kinds["thousands"]
    others = kinds["word"]
    filled = sum(map(len, kinds.values()))
    if filled < 2 * FEW or len(others) > MOST_WORDS * filled:
        return
    reading = _reading(plain, thousands)
    decimal = kinds["comma"] + kinds["both"]
    numbers = plain + decimal + thousands
    if reading == "decimals":
        decimal += thousands
        thousands = []
    yield from _several_units(name, plain, kinds["unit"])
    if not plain:
        return
    if decimal:
        yield of_column(
            name,
            0.9,
            f"Column {name!r} has {len(decimal)} numbers with a decimal comma, such as"
            f" {decimal[0]!r}, and {len(plain)} with a point or without, such as {plain[0]!r}.",
            _counts("notations", {"point or none": len(plain), "comma": len(decimal)}, 1),
            decimal_comma=len(decimal),
            three_decimals=reading == "decimals",
            points=bool(kinds["both"]),
        )
    elif thousands:
        yield _thousands(name, plain, thousands, reading == "thousands")
    if others:
        odd = dict(Counter(word.strip()[:30] for word in others).most_common(5))
        listed = ", ".join(f"{word!r} ({count})" for word, count in odd.items())
        yield of_column(
            name,
            0.6,
            f"Column {name!r} has {counted(len(others), 'word')} among"
            f" {counted(len(numbers), 'number')}: {listed}.",
            _counts("cells", {"numbers": len(numbers)} | odd, *range(1, 1 + len(odd))),
            words=len(others),
        )


def _counts(title: str, counts: Mapping[str, int], *marked: int) -> Bars:
    return Bars(title, [*counts.items()], "cells", marked)


def _several_units(name: str, plain: list[str], with_unit: list[str]) -> Findings:
    units = Counter(match[2] for word in with_unit if (match := WITH_UNIT.fullmatch(word)))
    counts = dict(units.most_common(8))
    if plain and units:
        counts["no unit"] = len(plain)
    if len(counts) > 1:
        listed = ", ".join(f"{unit} ({count})" for unit, count in counts.items())
        sentence = f"Column {name!r} has numbers in several units: {listed}."
        yield of_column(name, 0.9, sentence, _counts("units", counts))


def _kind(word: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if pattern.fullmatch(word)), "word")


def _reading(plain: list[str], thousands: list[str]) -> str:
    """Return what cells like 1,500 are, thousands or decimals: certain in 1,500.5, else by the
    median of ``plain`` numbers.
    """
    if any("." in word or word.count(",") > 1 for word in thousands):
        return "thousands"
    if not plain or not thousands:
        return ""
    usual, large = (
        float(np.median([abs(float(word.replace("−", "-").replace(",", ""))) for word in part]))
        for part in (plain, thousands)
    )
    if usual == 0 or large == 0:
        return ""
    # how much nearer thousands are than decimals
    nearer = abs(np.log10(large / 1000 / usual)) - abs(np.log10(large / usual))
    if abs(nearer) < np.log10(CLEAR):
        return ""
    return "thousands" if nearer > 0 else "decimals"


def _thousands(name: str, plain: list[str], thousands: list[str], is_clear: bool) -> Finding:
    what = "a comma, between thousands or before decimals"
    details = {}
    if is_clear:
        what = "commas between thousands"
        details = {"thousands": len(thousands)}
    return of_column(
        name,
        0.9,
        f"Column {name!r} has {len(thousands)} numbers with {what}, such as {thousands[0]!r},"
        f" beside {len(plain)} without, such as {plain[0]!r}.",
        _counts("notations", {"without": len(plain), "with commas": len(thousands)}, 1),
        **details,
    )


def _units(name: str, values: Floats) -> Finding | None:
    """Positive numbers in two parts that are the same but for a factor."""
    from scipy.stats import ks_2samp

    if (values < 0).any() or len(np.unique(values)) < 4 * FEW:
        return None
    ordered = np.sort(np.log10(values[values > 0]))
    few = max(FEW_OF_UNIT, len(ordered) // 500)
    gaps = np.diff(ordered)[few - 1 : len(ordered) - few]
    if not len(gaps) or gaps.max() < np.log10(GAP):
        return None
    at = few + int(gaps.argmax())
    small, large = np.split(ordered, [at])
    for factor in FACTORS:
        shift = np.log10(factor)
        is_near = abs(np.median(large) - np.median(small) - shift) < 0.15
        if is_near and len(np.unique(small)) > FEW and ks_2samp(small, large - shift).pvalue > 0.01:
            cut = float(10 ** ((small[-1] + large[0]) / 2))
            return of_column(
                name,
                0.9,
                f"Column {name!r} seems to have two units: {len(large)} of {len(values)} numbers"
                f" are {factor:g} times the others, all of them above {cut:.6g}.",
                _histogram(ordered),
                factor=factor,
                above=cut,
            )
    return None


def _code(name: str, values: Floats) -> Finding | None:
    """Return a number such as −999 that stands for missing ones."""
    if len(values) < 4 * FEW:
        return None
    for code in (values.min(), values.max()):
        others = values[values != code]
        count = len(values) - len(others)
        if code not in CODES or count < 3 or len(np.unique(others)) < 2 * FEW:
            continue
        if np.abs(others - code).min() > np.ptp(others):
            return of_column(
                name,
                0.6,
                f"Column {name!r} is {code:g} in {count} of {len(values)} rows, which seems to"
                f" stand for missing: all others lie between {others.min():.6g} and"
                f" {others.max():.6g}.",
                _counts("cells", {f"{code:g}": count, "others": len(others)}, 0),
                code=float(code),
            )
    return None


def _histogram(logs: Floats) -> Bars:
    counts, edges = np.histogram(logs, 12)
    names = [f"{10**low:.3g} to {10**high:.3g}" for low, high in pairwise(edges.tolist())]
    return Bars(
        "how many numbers are how large", [*zip(names, counts.tolist(), strict=True)], "cells"
    )


def _rewritten(cell: Any, found: Mapping[str, Any]) -> Any:
    """Return how `fix` rewrites a cell of a column, by all that was found there."""
    number = _number(cell)
    is_word = isinstance(cell, str)
    if number is not None and number == found.get("code"):  # a code is not divided
        return "" if is_word else None
    if number is not None and number > found.get("above", math.inf):
        divided = f"{number / found['factor']:.15g}"
        return divided if is_word else float(divided)
    return _plain_number(cell, found) if is_word else cell


def _plain_number(cell: str, found: Mapping[str, Any]) -> str:
    kind = _kind(cell)
    if found.get("points") and POINTS.fullmatch(cell):
        return cell.replace(".", "")
    if "decimal_comma" in found and (
        kind in ("comma", "both") or (kind == "thousands" and found["three_decimals"])
    ):
        return cell.replace(".", "").replace(",", ".")
    if kind == "thousands" and "thousands" in found:
        return cell.replace(",", "")
    # in a notation that is not known here, such as 1 234,56
    is_number = any(sign.isdigit() for sign in cell)
    return "" if kind == "word" and "words" in found and not is_number else cell


def _number(cell: Any) -> float | None:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None
