"""What a stranger relies on: the examples in the pages run, and the set-up installs what was
tested.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from test_models import INPUTS, MLP, RUN, SPREAD, count, on_meta

from noiseproof.audit.issues import ISSUES
from noiseproof.audit.sources import SOURCES
from noiseproof.data import DATASETS
from noiseproof.heads import HEADS
from noiseproof.losses import LOSSES
from noiseproof.models import MODELS
from noiseproof.noise import NOISES
from noiseproof.strategies import STRATEGIES
from noiseproof.train import METHODS

ROOT = Path(__file__).parents[2]
EXTENDING = ROOT / "docs" / "extending"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted(EXTENDING.glob("*.md")),
]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.usefixtures("forget_plugins")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run_from_top_to_bottom(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry in (LOSSES, HEADS, STRATEGIES, METHODS, NOISES, DATASETS, MODELS, SOURCES, ISSUES):
        # what a page registers does not stay
        monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    names: dict[str, Any] = {"__name__": page.stem}
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for block in python_blocks(page):
        if page.parent == EXTENDING:  # each of its blocks is a module: only registered names stay
            names = {"__name__": page.stem}
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), 0)
            runner.run(test, clear_globs=False)
            names |= test.globs
        else:
            exec(compile(block, page.name, "exec", dont_inherit=True), names)
            for made in [
                value for value in names.values() if getattr(value, "__module__", "") == page.stem
            ]:
                for test in doctest.DocTestFinder().find(made, globs=names):
                    runner.run(test, clear_globs=False)
    assert runner.summarize(verbose=False).failed == 0


CONTRIBUTED = {  # page: the package that its example belongs to, and where it is found
    "loss": ("losses", "LOSSES['poly1']"),
    "strategy": ("strategies", "STRATEGIES['bootstrap']"),
    "head": ("heads", "HEADS['cosine']"),
    "method": ("train", "METHODS['averaged']"),
    "noise_model": ("noise", "NOISES['mirror']"),
    "dataset": ("data", "DATASETS['blobs']"),
    "backbone": ("models", "MODELS['tiny']"),
    "source": ("audit.sources", "SOURCES['stata']"),
    "issue": ("audit.issues", "ISSUES['extreme']"),
}


def example(page: str) -> str:
    """The module that a page of docs/extending shows."""
    (module,) = (
        block for block in python_blocks(EXTENDING / f"{page}.md") if not block.startswith(">>>")
    )
    return module


def test_every_page_on_extending_is_tried_as_a_file_and_listed() -> None:
    pages = {page.stem for page in EXTENDING.glob("*.md")} - {"index"}
    assert pages == {*CONTRIBUTED, "figure", "paper"}
    for listing in (ROOT / "CONTRIBUTING.md", EXTENDING / "index.md"):
        text = listing.read_text("utf-8")
        assert [page for page in sorted(pages) if f"{page}.md)" not in text] == []


def test_the_examples_of_extending_are_files_of_their_packages(tmp_path: Path) -> None:
    copy = shutil.copytree(
        ROOT / "src/noiseproof", tmp_path / "noiseproof", ignore=lambda *_: ["__pycache__"]
    )
    # a figure joins a module
    with (copy / "analysis/during/curves.py").open("a", encoding="utf-8") as curves:
        curves.write(example("figure"))
    asked = ""
    for page, (package, found) in CONTRIBUTED.items():
        folder = copy.joinpath(*package.split("."))
        (folder / "contributed.py").write_text(example(page), "utf-8")
        init = folder / "__init__.py"
        with init.open("a", encoding="utf-8") as lines:
            lines.write(f"\nfrom noiseproof.{package} import contributed\n")
        asked += (
            f"from noiseproof.{package} import {found.split('[')[0]}; print({found}.__module__)\n"
        )
    asked += "from noiseproof.analysis.figures import figure_makers\n"
    asked += (
        "print(next(maker.make.__module__ for maker in figure_makers() if maker.name =="
        " 'epoch-time'))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    modules = [f"noiseproof.{package}.contributed" for package, _ in CONTRIBUTED.values()]
    assert answer.stdout.split() == [*modules, "noiseproof.analysis.during.curves"], answer.stderr


def test_the_table_of_backbones_is_the_tested_one() -> None:
    rows = []
    for model in sorted(MODELS):
        spec = MLP if model == "mlp" else model
        backbone, (num_classes, size, sigma) = on_meta(spec), SPREAD[spec]
        weights = f"{count(backbone) + (backbone.num_features + 1) * 10:,}"
        sizes = (weights, str(backbone.num_features)) if model != "mlp" else ("", "")
        shape = " × ".join(map(str, (size, *(RUN.get(model) or INPUTS[model][0]))))
        rows.append(
            f"| `{model}` | {' | '.join(sizes)} | {backbone.init} | {num_classes} | {shape} |"
            f" {sigma:.4f} |"
        )
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    assert "\n".join(rows) in page


def name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower().replace("_", "-")


def test_everything_that_make_installs_is_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = {name(r) for r in (*project["dependencies"], *extras["dev"], *extras["docs"])}
    assert asked <= {name(pin) for pin in pins}
    assert f"pip install --quiet torch=={pins['torch']}\n" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    "target", re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
)
def test_make_can_read_its_file(target: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_required_packages_are_the_chosen_few() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {name(r) for r in project["dependencies"]} == {
        "torch",
        "numpy",
        "scikit-learn",
        "lightning-fabric",
        "safetensors",
        "filelock",
        "xxhash",
        "pandas",
        "typer",
        "rich",
        "jinja2",
        "matplotlib",
        "packaging",
    }
    extras = project["optional-dependencies"].values()
    assert "torchvision" not in {name(requirement) for extra in extras for requirement in extra}


def documented() -> tuple[set[tuple[str, str]], set[str]]:
    """Names that the pages of docs/api list, with their modules; modules of which they have all."""
    names, whole = set(), set()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        text = page.read_text("utf-8")
        for module, members in re.findall(r"automodule:: (\S+)\n   :members:(.*)", text):
            names |= {(module, name) for name in members.replace(" ", "").split(",")}
            whole |= {module} if not members.strip() else set()
        for path in re.findall(r"auto(?:class|function|exception):: (\S+)", text):
            made = getattr(import_module(path.rpartition(".")[0]), path.rpartition(".")[2])
            names.add((made.__module__, made.__name__))
    return names, whole


def test_the_api_pages_have_everything_public() -> None:
    names, whole = documented()
    packages = [
        path.parent.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("__init__.py")
    ]
    modules = [
        import_module(".".join(package.parts)) for package in packages if "cli" not in package.parts
    ]
    public = [
        getattr(module, name) for module in modules for name in getattr(module, "__all__", ())
    ]
    public += [
        registry[name] for registry in (LOSSES, HEADS, STRATEGIES, NOISES) for name in registry
    ]
    things = {one for one in public if isinstance(one, type | FunctionType)}
    absent = {
        (one.__module__, one.__name__) for one in things if one.__module__ not in whole
    } - names
    assert len(things) > 150 and sorted(absent) == []
