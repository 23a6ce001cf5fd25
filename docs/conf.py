"""Sphinx settings, tables made from the registries and the benchmarks, docstrings made safe for
reStructuredText.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import noiseproof
from noiseproof.accelerate.graphs import IN_STEP
from noiseproof.analysis.figures import STAGES, figure_makers
from noiseproof.audit.issues import ISSUES
from noiseproof.core.grammar import format_value
from noiseproof.losses import LOSSES, describe
from noiseproof.noise import NOISES
from noiseproof.papers import PAPERS, get_paper
from noiseproof.strategies import STRATEGIES
from noiseproof.train import Settings
from noiseproof.train.protocols import protocols

sys.path.insert(0, str(Path(__file__).parent))
import method_pages

project = "noiseproof"
author = "The noiseproof authors"
copyright = author
release = version = noiseproof.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "_generated"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
nb_execution_mode = "cache"  # a page runs again when its code has changed
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600
copybutton_prompt_text = "$ "
html_theme = "furo"
html_title = f"noiseproof {version}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_inherit_docstrings = False

GENERATED = Path(__file__).parent / "_generated"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; bars inside a cell are escaped."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(
        "| " + " | ".join(str(cell).replace("|", r"\|") for cell in line) + " |\n" for line in lines
    )


def table_of_losses() -> str:
    rows = []
    for name in sorted(LOSSES):
        loss = describe(name)
        defaults = (
            (k, f"{v:g}" if isinstance(v, float) else v) for k, v in loss["parameters"].items()
        )
        parameters = ", ".join(
            key if value is None else f"{key}={value}" for key, value in defaults
        )
        rows.append(
            (
                f"`{name}`",
                f"`{parameters}`" if parameters else "",
                f"`{loss['formula']}`",
                loss["source"],
            )
        )
    return markdown(("name", "parameters", "formula", "source"), rows)


def table_of_noises() -> str:
    rows = []
    for name in sorted(NOISES):
        given = NOISES.parameters(name).items()
        parameters = ", ".join(
            k if v is inspect.Parameter.empty else f"{k}={format_value(v)}" for k, v in given
        )
        summary = (inspect.getdoc(NOISES[name]) or "").partition("\n\n")[0]
        rows.append(
            (f"`{name}`", f"`{parameters}`" if parameters else "", " ".join(summary.split()))
        )
    return markdown(("name", "parameters", "what it does"), rows)


def table_of_strategies() -> str:
    rows = []
    for name in sorted(STRATEGIES):
        strategy: Any = STRATEGIES[name]
        given = STRATEGIES.parameters(name).items()
        parameters = ", ".join(
            k if v is inspect.Parameter.empty else f"{k}={format_value(v)}" for k, v in given
        )
        summary = (inspect.getdoc(strategy) or "").partition("\n\n")[0].replace("``", "`")
        captured = "yes" if strategy.capturable or not strategy.overrides(*IN_STEP) else "no"
        rows.append(
            (f"`{name}`", f"`{parameters}`", " ".join(summary.split()), strategy.models, captured)
        )
    return markdown(("name", "parameters", "what it does", "models", "captured"), rows)


def table_of_presets() -> str:
    """The methods for which each paper has settings."""
    rows = []
    for paper in PAPERS:
        names = sorted({preset.name for preset in get_paper(paper).method_presets})
        rows.append((f"`@{paper}`", ", ".join(f"`{name}`" for name in names)))
    return markdown(("paper", "methods"), rows)


def table_of_protocols() -> str:
    """How each paper trains; datasets with the same settings in one line."""
    datasets: dict[tuple[str, Settings], list[str]] = {}
    for (paper, dataset), settings in protocols().items():
        datasets.setdefault((paper, settings), []).append(dataset)
    rows = []
    for (paper, settings), names in datasets.items():
        clip = "" if settings.clip is None else f", `clip` {settings.clip:g}"
        rows.append(
            (
                f"`{paper}`",
                ", ".join(names),
                f"`{settings.model}`",
                settings.epochs,
                settings.batch_size,
                f"`{settings.optimizer}`, `{settings.schedule}`{clip}",
            )
        )
    columns = ("paper", "datasets", "model", "epochs", "batch", "optimiser and learning rate")
    return markdown(columns, rows)


def table_of_issues() -> str:
    kinds: list[Any] = [ISSUES[name] for name in ISSUES]
    rows = [(f"`{kind.name}`", kind.remedy, kind.fixes or "—") for kind in kinds]
    return markdown(("type", "what to do", "`apply --fix`"), rows)


def table_of_figures(stage: str) -> str:
    """The figures before, during or after training."""
    fields = [maker.fields for maker in figure_makers()]
    shown = [one for one in fields if one["stage"] == STAGES[stage]]
    rows = [(f"`{one['name']}`", one["title"], one["reading"], one["paper"]) for one in shown]
    return markdown(("name", "figure", "how to read it", "reproduces"), rows)


def tables_of_benchmarks() -> str:
    """One table for each file of results, whatever its columns are."""
    parts = []
    for path in sorted((Path(__file__).parents[1] / "benchmarks" / "results").glob("*.json")):
        results = json.loads(path.read_text("utf-8"))
        made_by = ", ".join(
            f"{key} {value}" for key, value in results["made_by"].items() if value is not None
        )
        columns = list(dict.fromkeys(key for row in results["rows"] for key in row))
        cells = [
            ["" if row.get(column) is None else row[column] for column in columns]
            for row in results["rows"]
        ]
        parts.append(f"### {path.name}\n\n`{made_by}`\n\n{markdown(columns, cells)}")
    return "\n".join(parts) or "There are no results here: run the scripts.\n"


def write_tables(app: Sphinx) -> None:
    """What the pages include from ``_generated``."""
    GENERATED.mkdir(exist_ok=True)
    tables = {
        "losses": table_of_losses(),
        "noises": table_of_noises(),
        "strategies": table_of_strategies(),
        "presets": table_of_presets(),
        "protocols": table_of_protocols(),
        "issues": table_of_issues(),
        **{f"figures-{stage}": table_of_figures(stage) for stage in STAGES},
        "benchmarks": tables_of_benchmarks(),
    }
    for name, text in tables.items():
        (GENERATED / f"{name}.md").write_text(text, encoding="utf-8")
    method_pages.write_pages(Path(__file__).parent / "_methods")


def keep_mathematics(
    app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]
) -> None:
    """Escape the |, * and final _ of formulas in running text, which reStructuredText would read as
    markup.

    Names that a docstring describes, as ``classes_:``, are escaped by napoleon.
    """
    code = False
    for i, line in enumerate(lines):
        code = line.lstrip().startswith(">>>") or (code and line.strip() != "")
        if not code:
            parts = re.split(r"(``.*?``|:\w+:`.*?`)", line)
            texts = (
                p if p.startswith(("``", ":")) else re.sub(r"([|*]|_(?![\w:]))", r"\\\1", p)
                for p in parts
            )
            lines[i] = "".join(texts)


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", write_tables)
    # before napoleon, at 500
    app.connect("autodoc-process-docstring", keep_mathematics, priority=400)
