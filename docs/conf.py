"""Sphinx settings, the table of losses made from the registry, and docstrings made safe for reStructuredText."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import noiseproof
from noiseproof.losses import LOSSES, describe

project = "noiseproof"
author = "The noiseproof authors"
copyright = author
release = version = noiseproof.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_generated"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"noiseproof {version}"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_inherit_docstrings = False

GENERATED = Path(__file__).parent / "_generated"


def write_table_of_losses(app: Sphinx) -> None:
    """``_generated/losses.md``, which losses.md includes."""
    rows = ["| name | parameters | formula | source |", "| --- | --- | --- | --- |"]
    for name in sorted(LOSSES):
        loss = describe(name)
        defaults = ((k, f"{v:g}" if isinstance(v, float) else v) for k, v in loss["parameters"].items())
        parameters = ", ".join(key if value is None else f"{key}={value}" for key, value in defaults)
        cells = (f"`{name}`", f"`{parameters}`" if parameters else "", f"`{loss['formula']}`", loss["source"])
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    GENERATED.mkdir(exist_ok=True)
    (GENERATED / "losses.md").write_text("\n".join(rows) + "\n", encoding="utf-8")


def keep_mathematics(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    """Escape the |, * and _ of formulas in running text, which reStructuredText would read as markup."""
    code = False
    for i, line in enumerate(lines):
        code = line.lstrip().startswith(">>>") or (code and line.strip() != "")
        if not code:
            parts = re.split(r"(``.*?``|:\w+:`.*?`)", line)
            lines[i] = "".join(p if p.startswith(("``", ":")) else re.sub(r"([|*_])", r"\\\1", p) for p in parts)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_table_of_losses)
    app.connect("autodoc-process-docstring", keep_mathematics, priority=400)  # before napoleon, at 500
