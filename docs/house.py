"""Lines and complexity of functions, for tests/house/test_functions.py."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.comprehension,
    ast.Assert,
    ast.match_case,
)


class Function(NamedTuple):
    """A function, with the lines of its body (docstring left out) and its cyclomatic complexity."""

    place: str  # package/module.py: name
    lines: int
    complexity: int


def modules(src: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Every module with its parsed source."""
    for path in sorted((src / "noiseproof").rglob("*.py")):
        yield path, ast.parse(path.read_text("utf-8"))


def functions(src: Path) -> list[Function]:
    """All functions and methods; nested ones count on their own and in the one around them."""
    return [
        Function(
            f"{path.relative_to(src / 'noiseproof').as_posix()}: {node.name}",
            _lines(node),
            _complexity(node),
        )
        for path, tree in modules(src)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body: a signature of one parameter per line is read at a glance."""
    first = node.body[0]
    if ast.get_docstring(node) is not None and len(node.body) > 1:
        first = node.body[1]
    return (node.end_lineno or first.lineno) - first.lineno + 1


def _complexity(node: ast.AST) -> int:
    """One more than the number of decisions: branches, loops, handlers, conditions and operands of
    and/or.
    """
    total = 1
    for part in ast.walk(node):
        total += isinstance(part, BRANCHES)
        total += len(part.ifs) if isinstance(part, ast.comprehension) else 0
        total += len(part.values) - 1 if isinstance(part, ast.BoolOp) else 0
    return total
