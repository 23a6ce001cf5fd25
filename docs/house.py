"""Size of functions, classes and rooms, for tests/house."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
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
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


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


def classes(src: Path) -> list[tuple[str, str, int]]:
    """Every class: package/module.py, name, number of methods."""
    return [
        (
            path.relative_to(src / "noiseproof").as_posix(),
            node.name,
            sum(isinstance(part, ast.FunctionDef) for part in node.body),
        )
        for path, tree in modules(src)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]


def sizes(src: Path) -> dict[str, Counter[str]]:
    """Tokens, lines of code, conditional expressions and tuple assignments of each package.

    Comments, docstrings and white space are no tokens: they are free.
    """
    counts: dict[str, Counter[str]] = {}
    for path, tree in modules(src):
        package = path.relative_to(src / "noiseproof").parts[0].removesuffix(".py")
        here = counts.setdefault(package, Counter())
        documented = _docstring_lines(tree)
        lines = set()
        for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
            if token.type not in NOT_CODE and token.start[0] not in documented:
                here["tokens"] += 1
                lines.update(range(token.start[0], token.end[0] + 1))
        here["lines"] += len(lines)
        for node in ast.walk(tree):
            here["conditionals"] += isinstance(node, ast.IfExp)
            here["tuples"] += _is_tuple_assignment(node)
    return counts


def nested_conditionals(src: Path) -> set[str]:
    """The modules that have a conditional expression inside another."""
    return {
        path.relative_to(src / "noiseproof").as_posix()
        for path, tree in modules(src)
        for node in ast.walk(tree)
        if isinstance(node, ast.IfExp)
        and sum(isinstance(part, ast.IfExp) for part in ast.walk(node)) > 1
    }


def _is_tuple_assignment(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and isinstance(node.value, ast.Tuple)
    )


def _docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or 0) + 1))
    return lines


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
