"""Columns whose cells are mixed: several notations or units, words, codes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.core.messages import counted
from noiseproof.judge.issues.base import (
    Bars,
    Finding,
    Fix,
    FoundIssue,
    found_columns,
    register_issue,
)

if TYPE_CHECKING:
    from noiseproof.data.rows import Rows
    from noiseproof.judge.evidence.gather import AuditEvidence
    from noiseproof.judge.issues.base import SavedAudit
    from noiseproof.judge.labelissues import LabelIssues

NUMBER = re.compile(r"\s*[-+−]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
COMMA = re.compile(r"\s*[-+−]?\d+,\d+\s*")  # 1,5
# 1,500, which may be one and a half, too
THOUSANDS = re.compile(r"\s*[-+−]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*")
BOTH = re.compile(r"\s*[-+−]?[1-9]\d{0,2}(\.\d{3})+,\d+\s*")  # 1.234,56
# 1.234, a thousand and more where others are 1.234,56
POINTS = re.compile(r"\s*[-+−]?[1-9]\d{0,2}(\.\d{3})+\s*")
WITH_UNIT = re.compile(r"\s*([-+−]?\d[\d.,]*)\s*([^\W\d]{1,6}|%|°[CF]|[$€£])\s*")
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

    remedy = (
        "Write all numbers of a column in one notation and one unit, and leave missing ones empty."
    )
    fixes = (
        "Writes decimal commas as points, removes those of thousands, divides numbers in the larger"
        " unit, empties words and codes for missing."
    )

    @classmethod
    def applies(cls, data: Rows) -> bool:
        return data.table is not None

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> MixedCells:
        findings = []
        for name in evidence.cells.columns:
            column = evidence.cells[name].dropna()
            if column.dtype.kind in "iuf":
                values = column.to_numpy(np.float64)
                may_be_code = np.isin(values, [*CODES])
                units = _units(str(name), values[~may_be_code])
                if units is not None:  # a code is looked for among numbers in one unit
                    factor = np.where(values > units.details["above"], units.details["factor"], 1)
                    values = np.where(may_be_code, values, values / factor)
                findings += [units, _code(str(name), values)]
            elif column.dtype.kind in "OT" or str(column.dtype) in ("str", "string"):
                findings += _notations(
                    str(name), [word for word in column if isinstance(word, str)]
                )
        return cls.of(evidence.data, filter(None, findings))

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


def _notations(name: str, words: list[str]) -> list[Finding]:
    """Numbers with decimal commas beside points, with several units, or with other words among
    them.
    """
    kinds: dict[str, list[str]] = {
        kind: [] for kind in ("number", "comma", "both", "thousands", "unit", "word")
    }
    for word in filter(str.strip, words):
        kinds[_kind(word)].append(word)
    plain, commas, both, thousands, with_unit, others = kinds.values()
    filled = sum(map(len, kinds.values()))
    if filled < 2 * FEW or len(others) > MOST_WORDS * filled:
        return []
    findings, reading = [], _reading(plain, thousands)
    decimal = commas + both + (thousands if reading == "decimals" else [])
    if decimal and plain:
        details = {
            "decimal_comma": len(decimal),
            "three_decimals": reading == "decimals",
            "points": bool(both),
        }
        findings.append(_decimal_commas(name, plain, decimal, details))
    if thousands and plain and reading != "decimals" and not decimal:
        findings.append(_thousands(name, plain, thousands, reading == "thousands"))
    findings += _several_units(name, plain, with_unit)
    if others and plain:
        findings.append(
            _words_among_numbers(
                name, plain + decimal + thousands * (reading != "decimals"), others
            )
        )
    return findings


def _several_units(name: str, plain: list[str], with_unit: list[str]) -> list[Finding]:
    units = Counter(match[2] for word in with_unit if (match := WITH_UNIT.fullmatch(word)))
    if len(units) < 2 and not (units and plain):
        return []
    counts = [*units.most_common(8), *([("no unit", len(plain))] if plain else [])]
    listed = ", ".join(f"{unit} ({count})" for unit, count in counts)
    return [
        Finding(
            f"column {name!r}",
            0.9,
            f"Column {name!r} has numbers in several units: {listed}.",
            Bars("units", counts, "cells"),
            (name,),
        )
    ]


def _kind(word: str) -> str:
    for kind, pattern in (
        ("number", NUMBER),
        ("thousands", THOUSANDS),
        ("comma", COMMA),
        ("both", BOTH),
    ):
        if pattern.fullmatch(word):
            return kind
    return "unit" if WITH_UNIT.fullmatch(word) else "word"


def _reading(plain: list[str], thousands: list[str]) -> str:
    """What cells like 1,500 are, thousands or decimals: certain in 1,500.5, else by the median of
    ``plain`` numbers.
    """
    if any("." in word or word.count(",") > 1 for word in thousands):
        return "thousands"
    sizes = [
        np.median(np.abs([float(word.replace("−", "-").replace(",", "")) for word in part]))
        for part in (plain, thousands)
        if part
    ]
    if len(sizes) < 2 or min(sizes) == 0:
        return ""
    usual, large = np.log10(sizes)
    # how much nearer thousands are than decimals
    nearer = abs(large - 3 - usual) - abs(large - usual)
    return "" if abs(nearer) < np.log10(CLEAR) else "thousands" if nearer > 0 else "decimals"


def _decimal_commas(
    name: str, plain: list[str], commas: list[str], details: dict[str, Any]
) -> Finding:
    return Finding(
        f"column {name!r}",
        0.9,
        f"Column {name!r} has {len(commas)} numbers with a decimal comma, such as {commas[0]!r},"
        f" beside {len(plain)} with a point or without, such as {plain[0]!r}.",
        Bars("notations", [("point or none", len(plain)), ("comma", len(commas))], "cells", (1,)),
        (name,),
        details=details,
    )


def _thousands(name: str, plain: list[str], thousands: list[str], is_clear: bool) -> Finding:
    what = (
        "commas between thousands" if is_clear else "a comma, between thousands or before decimals"
    )
    return Finding(
        f"column {name!r}",
        0.9,
        f"Column {name!r} has {len(thousands)} numbers with {what}, such as {thousands[0]!r},"
        f" beside {len(plain)} without, such as {plain[0]!r}.",
        Bars(
            "notations", [("without", len(plain)), ("with commas", len(thousands))], "cells", (1,)
        ),
        (name,),
        details={"thousands": len(thousands)} if is_clear else {},
    )


def _words_among_numbers(name: str, plain: list[str], others: list[str]) -> Finding:
    odd = Counter(word.strip()[:30] for word in others).most_common(5)
    listed = ", ".join(f"{word!r} ({count})" for word, count in odd)
    return Finding(
        f"column {name!r}",
        0.6,
        f"Column {name!r} has {counted(len(others), 'word')} among {counted(len(plain), 'number')}:"
        f" {listed}.",
        Bars("cells", [("numbers", len(plain)), *odd], "cells", range(1, 1 + len(odd))),
        (name,),
        details={"words": len(others)},
    )


def _units(name: str, values: NDArray[np.float64]) -> Finding | None:
    """Positive numbers in two parts that are the same but for a factor."""
    from scipy.stats import ks_2samp

    values = values[np.isfinite(values)]
    if len(values) < 4 * FEW or (values < 0).any() or len(np.unique(values)) < 4 * FEW:
        return None
    ordered = np.sort(np.log10(values[values > 0]))
    few = max(FEW_OF_UNIT, len(ordered) // 500)
    gaps = np.diff(ordered)[few - 1 : len(ordered) - few]
    if not len(gaps) or gaps.max() < np.log10(GAP):
        return None
    at = few + int(gaps.argmax())
    small, large = ordered[:at], ordered[at:]
    for factor in FACTORS:
        shift = np.log10(factor)
        is_near = abs(np.median(large) - np.median(small) - shift) < 0.15
        if is_near and len(np.unique(small)) > FEW and ks_2samp(small, large - shift).pvalue > 0.01:
            cut = float(10 ** ((small[-1] + large[0]) / 2))
            return Finding(
                f"column {name!r}",
                0.9,
                f"Column {name!r} seems to have two units: {len(large)} of {len(values)} numbers"
                f" are {factor:g} times the others, all of them above {cut:.6g}.",
                _histogram(ordered),
                (name,),
                details={"factor": factor, "above": cut},
            )
    return None


def _code(name: str, values: NDArray[np.float64]) -> Finding | None:
    """A number such as −999 that stands for missing ones."""
    values = values[np.isfinite(values)]
    if len(values) < 4 * FEW:
        return None
    for code in (values.min(), values.max()):
        count, others = int((values == code).sum()), values[values != code]
        if (
            code not in CODES
            or count < 3
            or len(others) < 2 * FEW
            or len(np.unique(others)) < 2 * FEW
        ):
            continue
        if np.abs(others - code).min() > np.ptp(others):
            return Finding(
                f"column {name!r}",
                0.6,
                f"Column {name!r} is {code:g} in {count} of {len(values)} rows, which seems to"
                f" stand for missing: all others lie between {others.min():.6g} and"
                f" {others.max():.6g}.",
                Bars("cells", [(f"{code:g}", count), ("others", len(others))], "cells", (0,)),
                (name,),
                details={"code": float(code)},
            )
    return None


def _histogram(logs: NDArray[np.float64]) -> Bars:
    counts, edges = np.histogram(logs, 12)
    names = [f"{10**low:.3g} to {10**high:.3g}" for low, high in pairwise(edges.tolist())]
    return Bars(
        "how many numbers are how large", [*zip(names, counts.tolist(), strict=True)], "cells"
    )


def _rewritten(cell: Any, found: Mapping[str, Any]) -> Any:
    """How `fix` rewrites a cell of a column, by all that was found there; codes are no numbers to
    divide.
    """
    if "code" in found:
        cell = _without_code(cell, found["code"])
    if "factor" in found:
        cell = _divided(cell, found["factor"], found["above"])
    return _plain_number(cell, found) if isinstance(cell, str) else cell


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


def _divided(cell: Any, factor: float, cut: float) -> Any:
    number = _number(cell)
    if number is None or number <= cut:
        return cell
    divided = float(f"{number / factor:.15g}")
    return f"{divided:.15g}" if isinstance(cell, str) else divided


def _without_code(cell: Any, code: float) -> Any:
    return cell if _number(cell) != code else "" if isinstance(cell, str) else None
