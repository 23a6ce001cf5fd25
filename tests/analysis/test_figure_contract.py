"""Every registered figure, found by itself: its declaration, its table, its drawing, and what it
says without data.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from noiseproof import analysis
from noiseproof.analysis import (
    Figure,
    Layer,
    MissingFigure,
    collect,
    open_runs,
    to_matplotlib,
)
from noiseproof.analysis.figures import (
    STAGES,
    FigureMaker,
    Needs,
    Subjects,
    all_runs,
    each,
    figure,
    figure_makers,
)
from noiseproof.analysis.runs import RunFolder
from noiseproof.data import get_dataset
from noiseproof.train import Settings, prepare, train

SHORT = Settings(epochs=3, model="mlp:hidden=[8]")
MAKERS = figure_makers()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """Runs that together have the data of all figures but those that need CIFAR-10 or a
    landscape.
    """
    root = tmp_path_factory.mktemp("runs")
    task = prepare(get_dataset("two-moons:n=120"), "symmetric:rate=0.3", validation=0.1)
    for n, method in enumerate(
        ("ce", "gce:q=0.5", "sln:sigma=0.3", "sln-mo-lc:start=1", "nal", "ln", "nce")
    ):
        train(task, method, SHORT, out=root / str(n), samples=True)
    train(task, "ce", Settings(epochs=2, model="mlp:hidden=[8]"), out=root / "short", samples=True)
    return open_runs(sorted(root.iterdir()))


@pytest.fixture(scope="module")
def figures(runs: dict[str, RunFolder]) -> dict[str, Figure | MissingFigure]:
    return {one.name: one for one in collect(runs)}


def test_figures_of_every_module_are_found() -> None:
    packages = [import_module(f"noiseproof.analysis.{stage}") for stage in STAGES]
    modules = [
        import_module(f"{package.__name__}.{module.name}")
        for package in packages
        for module in pkgutil.iter_modules(package.__path__)
    ]
    declared = {
        value.name
        for module in modules
        for value in vars(module).values()
        if isinstance(value, FigureMaker)
    }
    assert declared == {maker.name for maker in MAKERS} and len(declared) == len(MAKERS)


def test_the_documentation_names_every_figure() -> None:
    """In tables that docs/conf.py makes, one for each stage."""
    text = (Path(analysis.__file__).parents[3] / "docs" / "analysis.md").read_text("utf-8")
    assert all(f"{{include}} _generated/figures-{stage}.md" in text for stage in STAGES)
    assert {maker.fields["stage"] for maker in MAKERS} == {*STAGES.values()}


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.name)
def test_a_figure_has_its_data_or_says_what_records_it(
    maker: FigureMaker[Any], figures: dict[str, Figure | MissingFigure]
) -> None:
    one = figures.get(maker.name)
    assert one is not None and one.title and one.paper and one.stage in STAGES.values()
    if isinstance(one, MissingFigure):
        assert maker.name in ("landscape-contour", "landscape-surface", "sensitivity") and one.needs
        return
    assert one.reading.endswith(".") and one.layers and len(one.data)
    for layer in one.layers:
        used = (
            layer.x,
            layer.y,
            layer.z,
            layer.color,
            layer.low,
            layer.high,
            layer.dash,
            one.panel,
        )
        assert {name for name in used if name} <= set(one.data.columns)
        shown = one.data[layer.z or layer.y]
        assert shown.notna().any() and not np.isinf(shown.dropna().to_numpy(float)).any()
    to_matplotlib(one).canvas.draw()


def test_figures_come_in_the_order_of_a_page(figures: dict[str, Figure | MissingFigure]) -> None:
    stages = [list(STAGES.values()).index(one.stage) for one in figures.values()]
    assert stages == sorted(stages)
    attention = figures["landscape-contour"]
    assert isinstance(attention, MissingFigure)
    assert attention.needs == "noiseproof analyze landscape RUN"


def test_figures_are_chosen_by_name(runs: dict[str, RunFolder]) -> None:
    calls: list[Any] = []
    only = collect(
        runs, only=["cost", "accuracy-curves"], progress=lambda *what: calls.append(what)
    )
    assert [one.name for one in only] == ["accuracy-curves", "cost"]
    assert calls == [("accuracy-curves", 0, 2), ("cost", 1, 2), ("", 2, 2)]
    (none,) = collect(runs, only=["sensitivity"])
    assert isinstance(none, MissingFigure) and none.name == "sensitivity"
    with pytest.raises(ValueError, match="Unknown figure 'nonsense'. There are: loss-weights, "):
        collect(runs, only=["nonsense"])


# The decorator


def made(table: Any, **fields: Any) -> FigureMaker[Any]:
    about = {"reading": "Look.", "paper": "", "x_label": "", "y_label": "", **fields}
    return figure("mine", "Mine", Layer("line", "x", "y"), subject=all_runs, **about)(table)


def test_a_function_returns_its_table() -> None:
    table = pd.DataFrame({"x": [1], "y": [2]})
    plain = made(lambda subject: table)({})
    assert (
        isinstance(plain, Figure)
        and plain.data is table
        and plain.title == "Mine"
        and plain.reading == "Look."
    )
    noted = made(lambda subject: table)(Subjects({}, " Without a."))
    assert isinstance(noted, Figure) and noted.reading == "Look. Without a."
    assert made(lambda subject: None)({}) is None
    with pytest.raises(TypeError, match="colour"):
        made(lambda subject: table, colour="red")


def test_a_function_without_data_says_what_it_needs() -> None:
    def table(subject: Any) -> pd.DataFrame:
        raise Needs("a run")

    assert made(table)({}) == MissingFigure("mine", "Mine", "", "a run")


def test_runs_are_named_with_what_they_lack_each_cause_once(runs: dict[str, RunFolder]) -> None:
    first, second = list(runs)[:2]

    def fail(run: RunFolder) -> str:
        raise ValueError(
            f"Expected more in {run.folder}." if run.name != runs[second].name else "Expected less."
        )

    def lacking(names: list[str]) -> str:
        with pytest.raises(Needs) as raised:
            each({name: runs[name.rstrip("'")] for name in names}, fail, needs="a run")
        return made(lambda subject: None).missing(raised.value).needs

    more = "Expected more in its folder."
    both = f"a run. Without {first}: {more} Without {second}: Expected less."
    assert lacking([first, second]) == both
    assert lacking([first, f"{first}'"]) == f"a run. Without {first} and {first}': {more}"
    many = lacking([second, *(first + "'" * n for n in range(4))])
    assert many.endswith(f"Expected less. Without 4 of 5 runs: {more}")


def test_runs_without_the_data_are_noted(runs: dict[str, RunFolder]) -> None:
    def name(run: RunFolder) -> str:
        if run.name == "ce":
            raise ValueError("Expected more.")
        return run.name

    subjects = each(dict(list(runs.items())[:2]), name)
    assert (
        dict(subjects) == {list(runs)[1]: "gce:q=0.5"}
        and subjects.note == f" Without {next(iter(runs))}: Expected more."
    )
