"""Columns of numbers in several notations or units, or with words and codes for missing ones among them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.issues.base import Bars, Finding, Fix, FoundIssue, found_columns, register_issue

if TYPE_CHECKING:
    from noiseproof.audit.evidence.gather import AuditEvidence
    from noiseproof.audit.files import Audit
    from noiseproof.audit.labels import LabelIssues
    from noiseproof.audit.sources.base import AuditData

NUMBER = re.compile(r"\s*[-+−]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
COMMA = re.compile(r"\s*[-+−]?\d+,\d+\s*")  # 1,5
THOUSANDS = re.compile(r"\s*[-+−]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*")  # 1,500
WITH_UNIT = re.compile(r"\s*([-+−]?\d[\d.,]*)\s*([^\W\d]{1,6}|%|°[CF]|[$€£])\s*")
MOST_WORDS = 0.2  # share of other words that a column of numbers may have
FACTORS = (100.0, 1000.0, 1e6)  # between two units of one quantity: cm and m, g and kg, 1 and a million
FEW = 5  # cells of a column, times a few, below which nothing is concluded
FEW_OF_UNIT = 20  # numbers in the rarer unit: fewer are like too many distributions
GAP = 3.0  # between the parts, at least this factor
CODES = {sign * int(digit * n) for digit in "9" for n in (2, 3, 4, 5, 6) for sign in (1, -1)} | {-1, -9}


@register_issue("mixed")
class MixedCells(FoundIssue):
    """Columns of numbers of which some are written in another notation or unit, or are words or codes for missing ones.

    Two units: the numbers fall into two parts with a gap of a factor of three or more between them, and the larger
    divided by 100, 1 000 or a million are distributed as the smaller ones (two-sample Kolmogorov-Smirnov, p > 0.01).
    A code for missing numbers: −1, −9, 99, −999 and the like, in three rows or more, farther from all others than these
    are spread. The score is 0.9 for units and notations, 0.6 for words and codes.
    """

    remedy = "Write all numbers of a column in one notation and one unit, and leave missing ones empty."
    fixes = (
        "Writes decimal commas as points, removes those of thousands, divides numbers in the larger unit, empties "
        "words and codes for missing."
    )

    @classmethod
    def applies(cls, data: AuditData) -> bool:
        return data.table is not None

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> MixedCells:
        findings = []
        for name in evidence.cells.columns:
            column = evidence.cells[name].dropna()
            if column.dtype.kind in "iuf":
                findings += [
                    _units(str(name), column.to_numpy(np.float64)),
                    _code(str(name), column.to_numpy(np.float64)),
                ]
            elif column.dtype.kind in "OT" or str(column.dtype) in ("str", "string"):
                findings.append(_notations(str(name), [word for word in column if isinstance(word, str)]))
        return cls.of(evidence.data, filter(None, findings))

    @classmethod
    def fix(cls, audit: Audit) -> Fix:
        cells: dict[str, Callable[[Any], Any]] = {}
        for one in found_columns(cls, audit):
            if rewrite := _rewriting(one["details"]):
                cells[one["columns"][0]] = rewrite
        return Fix(cells=cells)


def _notations(name: str, words: list[str]) -> Finding | None:
    """Numbers with decimal commas beside points, with several units, or with other words among them."""
    kinds: dict[str, list[str]] = {"number": [], "comma": [], "thousands": [], "unit": [], "word": []}
    for word in filter(str.strip, words):
        kinds[_kind(word)].append(word)
    plain, commas, thousands, with_unit, others = kinds.values()
    filled = sum(map(len, kinds.values()))
    if filled < 2 * FEW or len(others) > MOST_WORDS * filled:
        return None
    if commas and plain:
        return _decimal_commas(name, plain, commas)
    units = Counter(match[2] for word in with_unit if (match := WITH_UNIT.fullmatch(word)))
    if len(units) > 1 or (units and plain):
        counts = [*units.most_common(8), *([("no unit", len(plain))] if plain else [])]
        listed = ", ".join(f"{unit} ({count})" for unit, count in counts)
        return Finding(f"column {name!r}", 0.9, f"Column {name!r} has numbers in several units: {listed}.",
                       Bars("units", counts, "cells"), (name,))  # fmt: skip
    if others and plain:
        return _words_among_numbers(name, plain + thousands, others)
    return _thousands(name, plain, thousands) if thousands and plain else None


def _kind(word: str) -> str:
    """What a cell of a column of words is."""
    if NUMBER.fullmatch(word):
        return "number"
    if THOUSANDS.fullmatch(word):
        return "thousands"
    if COMMA.fullmatch(word):
        return "comma"
    return "unit" if WITH_UNIT.fullmatch(word) else "word"


def _decimal_commas(name: str, plain: list[str], commas: list[str]) -> Finding:
    return Finding(
        f"column {name!r}", 0.9,
        f"Column {name!r} has {len(commas)} numbers with a decimal comma, such as {commas[0]!r}, beside {len(plain)} "
        f"with a point or without, such as {plain[0]!r}.",
        Bars("notations", [("point or none", len(plain)), ("comma", len(commas))], "cells", (1,)), (name,),
        details={"decimal_comma": len(commas)},
    )  # fmt: skip


def _thousands(name: str, plain: list[str], thousands: list[str]) -> Finding:
    return Finding(
        f"column {name!r}", 0.9,
        f"Column {name!r} has {len(thousands)} numbers with commas between thousands, such as {thousands[0]!r}, beside "
        f"{len(plain)} without, such as {plain[0]!r}.",
        Bars("notations", [("without", len(plain)), ("with commas", len(thousands))], "cells", (1,)), (name,),
        details={"thousands": len(thousands)},
    )  # fmt: skip


def _words_among_numbers(name: str, plain: list[str], others: list[str]) -> Finding:
    odd = Counter(word.strip()[:30] for word in others).most_common(5)
    listed = ", ".join(f"{word!r} ({count})" for word, count in odd)
    return Finding(
        f"column {name!r}", 0.6, f"Column {name!r} has {len(others)} words among {len(plain)} numbers: {listed}.",
        Bars("cells", [("numbers", len(plain)), *odd], "cells", range(1, 1 + len(odd))), (name,),
        details={"words": len(others)},
    )  # fmt: skip


def _units(name: str, values: NDArray[np.float64]) -> Finding | None:
    """Positive numbers in two parts that are the same but for a factor."""
    from scipy.stats import ks_2samp  # type: ignore[import-untyped]

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
                f"column {name!r}", 0.9,
                f"Column {name!r} seems to have two units: {len(large)} of {len(values)} numbers are {factor:g} times "
                f"the others, all of them above {cut:.6g}.",
                _histogram(ordered), (name,), details={"factor": factor, "above": cut},
            )  # fmt: skip
    return None


def _code(name: str, values: NDArray[np.float64]) -> Finding | None:
    """A number such as −999 that stands for missing ones."""
    values = values[np.isfinite(values)]
    if len(values) < 4 * FEW:
        return None
    for code in (values.min(), values.max()):
        count, others = int((values == code).sum()), values[values != code]
        if code not in CODES or count < 3 or len(others) < 2 * FEW or len(np.unique(others)) < 2 * FEW:
            continue
        if np.abs(others - code).min() > np.ptp(others):
            return Finding(
                f"column {name!r}", 0.6,
                f"Column {name!r} is {code:g} in {count} of {len(values)} rows, which seems to stand for missing: all "
                f"others lie between {others.min():.6g} and {others.max():.6g}.",
                Bars("cells", [(f"{code:g}", count), ("others", len(others))], "cells", (0,)), (name,),
                details={"code": float(code)},
            )  # fmt: skip
    return None


def _histogram(logs: NDArray[np.float64]) -> Bars:
    counts, edges = np.histogram(logs, 12)
    names = [f"{10**low:.3g} to {10**high:.3g}" for low, high in pairwise(edges.tolist())]
    return Bars("how many numbers are how large", [*zip(names, counts.tolist(), strict=True)], "cells")


def _rewriting(found: Mapping[str, Any]) -> Callable[[Any], Any] | None:
    """How `fix` rewrites the cells of a column, by what was found there."""
    if "decimal_comma" in found:
        return lambda cell: cell.replace(",", ".") if isinstance(cell, str) and _kind(cell) == "comma" else cell
    if "factor" in found:
        return lambda cell: _divided(cell, found["factor"], found["above"])
    if "words" in found or "thousands" in found:
        return lambda cell: _plain_number(cell, "words" in found) if isinstance(cell, str) else cell
    return (lambda cell: _without_code(cell, found["code"])) if "code" in found else None


def _plain_number(cell: str, empties_words: bool) -> str:
    kind = _kind(cell)
    if kind == "thousands":
        return cell.replace(",", "")
    return "" if kind == "word" and empties_words else cell


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
