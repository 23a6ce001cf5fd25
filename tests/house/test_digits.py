"""Expected output has at most six digits of a float: the others depend on the processor and on its
libraries.
"""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FLOAT = re.compile(r"(?<![\w.])(\d*\.\d+)(?:e[+-]?\d+)?(?![\w.]*\d)", re.IGNORECASE)
DIGITS = 6
EXACT = {"equal", "array_equal", "assert_array_equal", "assert_equal"}


def long_floats(text: str) -> list[str]:
    """The floats of a text that have more than six digits, without zeros at either end."""
    return [
        found[0]
        for found in FLOAT.finditer(text)
        if len(found[1].replace(".", "").strip("0")) > DIGITS
    ]


def is_written(page: Path) -> bool:
    """False for what `make docs` makes."""
    return not any(part.startswith("_") for part in page.relative_to(ROOT).parts)


def expected_by_examples(source: str) -> Iterator[str]:
    """The expected output of all docstrings' examples."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            docstring = ast.get_docstring(node) or ""
            yield from (example.want for example in doctest.DocTestParser().get_examples(docstring))


def exact_comparisons(source: str) -> Iterator[str]:
    """What tests compare without a tolerance: numbers and texts beside ==, != and in, in `match`
    and in `equal`.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            yield from constants(node)
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield from constants(node.value)
        elif isinstance(node, ast.Call) and name_of(node) in EXACT:
            yield from constants(node)


def constants(node: ast.AST) -> Iterator[str]:
    """The numbers and texts below a node, without those that have a tolerance."""
    if isinstance(node, ast.Call) and name_of(node) == "approx":
        return
    if isinstance(node, ast.Constant):
        yield str(node.value)
    for child in ast.iter_child_nodes(node):
        yield from constants(child)


def name_of(call: ast.Call) -> str:
    """``equal`` of ``torch.equal(…)``."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


@pytest.mark.parametrize("page", list(filter(is_written, PAGES)), ids=lambda page: page.name)
def test_pages_show_at_most_six_digits(page: Path) -> None:
    assert long_floats(page.read_text("utf-8")) == []


def test_examples_of_docstrings_show_at_most_six_digits() -> None:
    shown = {}
    for path in SOURCES:
        digits = [
            found
            for want in expected_by_examples(path.read_text("utf-8"))
            for found in long_floats(want)
        ]
        if digits:
            shown[str(path.relative_to(ROOT))] = digits
    assert shown == {}


def test_tests_compare_at_most_six_digits_without_a_tolerance() -> None:
    compared = {}
    for path in TESTS:
        digits = [
            found
            for text in exact_comparisons(path.read_text("utf-8"))
            for found in long_floats(text)
        ]
        if digits and path != Path(__file__):
            compared[str(path.relative_to(ROOT))] = digits
    assert compared == {}


@pytest.mark.parametrize(
    "text", ["10.12814798297345", "-0.1234567", ".1234567", "1.234567e-5", "1000.001"]
)
def test_long_floats_are_found(text: str) -> None:
    assert long_floats(f"`mae:scale={text}`, 2") == [text.removeprefix("-")]


@pytest.mark.parametrize(
    "text", ["10.128...", "0.00123456", "100000.0", "1234567", "2.13.0", "torch==2.1234567.0"]
)
def test_others_are_not(text: str) -> None:
    assert long_floats(text) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("assert f() == 0.1234567", ["0.1234567"]),
        ("assert f() == [1, -0.1234567]", ["0.1234567"]),
        ("assert '0.1234567 of' in text", ["0.1234567"]),
        ("torch.equal(x, torch.tensor([0.1234567]))", ["0.1234567"]),
        ("with raises(ValueError, match='got 0.1234567'): pass", ["0.1234567"]),
        ("assert f() == pytest.approx(0.1234567, abs=1e-6)", []),
        ("x = 0.1234567", []),
    ],
)
def test_exact_comparisons_are_found(line: str, found: list[str]) -> None:
    assert [number for text in exact_comparisons(line) for number in long_floats(text)] == found
