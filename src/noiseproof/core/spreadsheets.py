"""Cells of CSV files that a spreadsheet would run as formulas: with an apostrophe before them, and without it again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

_FORMULA, _ESCAPED = re.compile(r"'*[=+\-@\t\r]"), re.compile(r"'+[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def safe_cell(cell: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: an apostrophe comes before = + - @, a tab or a carriage return.

    Numbers stay as they are. ``plain_cell`` takes the apostrophe off again.

    >>> safe_cell("=1+1"), safe_cell("-1.5"), safe_cell("cat"), safe_cell("'-x")
    ("'=1+1", '-1.5', 'cat', "''-x")
    """
    is_formula = isinstance(cell, str) and _FORMULA.match(cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def plain_cell(cell: Any) -> Any:
    """A cell as it was before ``safe_cell``.

    >>> plain_cell("'=1+1"), plain_cell("'cat'")
    ('=1+1', "'cat'")
    """
    return cell[1:] if isinstance(cell, str) and _ESCAPED.match(cell) else cell


def safe_table(table: pd.DataFrame) -> pd.DataFrame:
    """A copy of a table for spreadsheets, whose words and names of columns are no formulas."""
    words = [name for name in table.columns if table[name].dtype.kind not in "biufMm"]
    unsafe = [name for name in words if any(safe_cell(cell) is not cell for cell in table[name].unique())]
    safe = table.assign(**{name: [safe_cell(cell) for cell in table[name]] for name in unsafe})
    return safe.rename(columns=safe_cell)
