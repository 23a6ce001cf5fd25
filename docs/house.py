"""Measures of the source for docs/architecture.md and tests/house/test_functions.py: lines, imports, functions."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BRANCHES = (ast.If, ast.For, ast.While, ast.ExceptHandler, ast.IfExp, ast.comprehension, ast.Assert, ast.match_case)


class Function(NamedTuple):
    """A function, with its lines (docstring left out) and its cyclomatic complexity."""

    place: str  # package/module.py: name
    lines: int
    complexity: int


def modules(src: Path) -> Iterator[tuple[str, Path, ast.Module]]:
    """Every module with the package that it belongs to; modules of the root are their own."""
    for path in sorted((src / "noiseproof").rglob("*.py")):
        parts = path.relative_to(src / "noiseproof").with_suffix("").parts
        yield parts[0], path, ast.parse(path.read_text("utf-8"))


def functions(src: Path) -> list[Function]:
    """All functions and methods; nested ones count on their own and in the one around them."""
    return [
        Function(f"{path.relative_to(src / 'noiseproof').as_posix()}: {node.name}", _lines(node), _complexity(node))
        for _, path, tree in modules(src)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    docstring = ast.get_docstring(node)
    return (node.end_lineno or node.lineno) - node.lineno + 1 - (docstring.count("\n") + 1 if docstring else 0)


def _complexity(node: ast.AST) -> int:
    """One more than the number of decisions: branches, loops, handlers, conditions and operands of and/or."""
    total = 1
    for part in ast.walk(node):
        total += isinstance(part, BRANCHES)
        total += len(part.ifs) if isinstance(part, ast.comprehension) else 0
        total += len(part.values) - 1 if isinstance(part, ast.BoolOp) else 0
    return total


def lines(src: Path) -> Counter[str]:
    """Lines of each package."""
    counts: Counter[str] = Counter()
    for package, path, _ in modules(src):
        counts[package] += len(path.read_text("utf-8").splitlines())
    return counts


def imports(src: Path) -> dict[str, list[str]]:
    """The packages that each package imports, lazily or not."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for package, _, tree in modules(src):
        for node in ast.walk(tree):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            graph[package] |= {name.split(".")[1] for name in names if name.startswith("noiseproof.")} - {package}
    return {package: sorted(targets) for package, targets in graph.items()}
