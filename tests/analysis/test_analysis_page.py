"""Figures as a reader meets them: in a real browser without a network, on paper, as CSV."""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from test_analysis_plots import drawn, every_kind, figure
from typer.testing import CliRunner

from noiseproof.analysis import Figure, Layer, MissingFigure, collect, make_page, open_runs
from noiseproof.analysis.after.landscape import kept_landscape
from noiseproof.analysis.during.samples import RECORDED
from noiseproof.analysis.figures import figure_makers
from noiseproof.analysis.page.html import to_csv
from noiseproof.analysis.page.marks import COLORS, GREY
from noiseproof.analysis.page.shell import environment
from noiseproof.cli import app
from noiseproof.data import get_dataset
from noiseproof.train import Settings, prepare, train

CHROMIUM = shutil.which("chromium")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
EVIL = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'&amp;{{ 7"
    " * 7 }}"
)


def pictures(page: str) -> list[ElementTree.Element]:
    """The pictures of a page."""
    sources = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', page)
    return [ElementTree.fromstring(base64.b64decode(source)) for source in sources]


# In a browser


class Reader:
    """A page open in Chromium; everything that it complains of or asks the world for is noted."""

    def __init__(self, tab: Any, path: Path) -> None:
        self.tab, self.errors, self.requests = tab, [], []  # type: ignore[var-annotated]
        tab.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
        tab.goto(path.as_uri())
        self.path = path

    def see(self) -> None:
        """Wait for all pictures, which are part of the page."""
        self.tab.wait_for_function(
            "[...document.images].every((one) => one.complete && one.naturalWidth > 0)"
        )

    def check(self) -> None:
        assert self.errors == []
        assert [url for url in self.requests if not url.startswith(("data:", "blob:"))] == [
            self.path.as_uri()
        ]

    def color(self, selector: str, what: str = "backgroundColor") -> str:
        return str(
            self.tab.evaluate(f"getComputedStyle(document.querySelector({selector!r})).{what}")
        )


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        yield started.chromium


@pytest.fixture(scope="module")
def browser(driver: Any) -> Iterator[Any]:
    started = driver.launch(executable_path=CHROMIUM, args=ARGUMENTS)
    yield started
    started.close()


Read = Callable[..., Reader]


@pytest.fixture
def read(browser: Any, tmp_path: Path) -> Iterator[Read]:
    opened = []

    def open_page(
        figures: list[Figure | MissingFigure],
        width: int = 1280,
        page: dict[str, Any] | None = None,
        **context: Any,
    ) -> Reader:
        path = tmp_path / "page.html"
        path.write_text(make_page(figures, **(page or {})), "utf-8")
        opened.append(browser.new_context(viewport={"width": width, "height": 900}, **context))
        return Reader(opened[-1].new_page(), path)

    yield open_page
    for context in opened:
        context.close()


@needs_browser
def test_a_page_shows_every_figure(read: Read) -> None:
    figures = every_kind()
    page = read(figures)
    page.see()
    page.check()
    assert page.tab.locator("img.plot").count() == len(drawn(figures))
    with page.tab.expect_download() as caught:
        page.tab.locator("#curves [download]").click()
    assert caught.value.suggested_filename == "curves.csv"
    assert Path(caught.value.path()).read_text("utf-8") == to_csv(drawn(figures)[0].data)


def test_the_csv_of_a_figure_is_its_data() -> None:
    figures = drawn(every_kind())[:6]
    links = re.findall(
        r'href="data:text/csv;base64,([^"]*)" download="([^"]*)"', make_page(figures)
    )
    contents = {name: content for content, name in links}
    assert len(contents) == len(figures)
    for one in figures:
        content = contents[f"{one.name}.csv"]
        back = pd.read_csv(io.BytesIO(base64.b64decode(content)))
        expected = one.data.reset_index(drop=True)
        pd.testing.assert_frame_equal(back, expected, check_dtype=False, check_exact=True)


def test_a_figure_without_rows_is_empty_axes() -> None:
    nothing = every_kind()[1]
    assert isinstance(nothing, Figure)
    (picture,) = pictures(make_page([replace(nothing, data=nothing.data[:0])]))
    assert [*picture.itertext()].count("x") == 1  # the label of the axis


@needs_browser
def test_on_a_narrow_screen_only_pictures_and_tables_scroll_sideways(read: Read) -> None:
    runs = [
        {
            "run": "a-name-that-is-rather-long" * 3,
            "noise": "symmetric:rate=0.4",
            "test accuracy": 0.9,
        }
    ] * 2
    page = read(every_kind()[:2], width=360, page={"title": "t" * 60, "runs": runs})
    page.see()
    page.check()
    assert page.tab.evaluate("document.documentElement.scrollWidth") == 360
    region = "document.querySelector('#weights .wide')"
    assert page.tab.evaluate(f"{region}.scrollWidth > {region}.clientWidth")
    page.tab.set_viewport_size({"width": 1280, "height": 900})
    assert page.tab.evaluate(f"{region}.scrollWidth === {region}.clientWidth")


@needs_browser
def test_words_of_the_user_are_words(read: Read) -> None:
    data = pd.DataFrame(
        {
            EVIL: [EVIL, EVIL, "b"],
            "x": [EVIL, "z", EVIL],
            "y": [1.0, 2.0, 3.0],
            "dash": [EVIL, "<b>", "c"],
        }
    )
    one = figure(
        "evil",
        data,
        Layer("line", "x", "y", EVIL, dash="dash"),
        title=EVIL,
        reading=EVIL,
        paper=EVIL,
        x_label=EVIL,
        y_label=EVIL,
        stage=EVIL,
        panel="x",
    )
    grid = figure("grid", data, Layer("heat", "x", "dash", z="y"))
    page = read(
        [one, grid, replace(one, name=f"again {EVIL}"), MissingFigure("none", EVIL, EVIL, EVIL)],
        page={"title": EVIL, "runs": [{EVIL: EVIL}]},
    )
    page.see()
    page.check()
    assert page.tab.evaluate("window.hacked") is None
    assert page.tab.locator("img").count() == page.tab.locator("img.plot").count() == 3
    assert page.tab.title() == EVIL == page.tab.locator("h1").inner_text()
    assert page.tab.locator("#evil img").get_attribute("alt") == EVIL
    for picture in pictures(page.path.read_text("utf-8")):
        assert EVIL in [*picture.itertext()]


@needs_browser
def test_a_page_can_be_read_without_eyes(read: Read) -> None:
    figures = [*every_kind()[:3], *every_kind()[-2:]]
    page = read(figures)
    levels = page.tab.eval_on_selector_all(
        "h1, h2, h3", "all => all.map((e) => Number(e.tagName[1]))"
    )
    assert levels[0] == 1 and levels.count(1) == 1
    plots = page.tab.locator(".plot")
    for n, one in enumerate(
        sorted(drawn(figures), key=lambda f: [g.stage for g in figures].index(f.stage))
    ):
        plot = plots.nth(n)
        assert plot.get_attribute("alt") == one.title
        assert (
            page.tab.locator(f"#{plot.get_attribute('aria-describedby')}").inner_text()
            == one.reading
        )
    names = page.tab.eval_on_selector_all(
        "button", "all => all.map((e) => e.getAttribute('aria-label') ?? e.innerText)"
    )
    assert all(name.strip() for name in names)
    links = page.tab.eval_on_selector_all("nav a", "all => all.map((e) => e.getAttribute('href'))")
    assert sorted(links) == sorted(f"#{one.name}" for one in figures)
    assert all(page.tab.locator(f"article{link}").count() == 1 for link in links)
    page.tab.keyboard.press("Tab")
    assert page.tab.evaluate("document.activeElement.textContent") == "Skip to the content"


# The file


def luminance(color: str) -> float:
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_and_lines_stand_out_from_their_ground() -> None:
    css = environment().get_template("shell.css").render()
    variables = dict(re.findall(r"--(\w+): light-dark\((#\w+, #\w+)\)", css))
    grounds, raised = (variables[name].split(", ") for name in ("ground", "raised"))
    for name in ("ink", "faint", "accent", "warn", "bad", "good"):
        for color, *behind in zip(variables[name].split(", "), grounds, raised, strict=True):
            assert min(contrast(color, ground) for ground in behind) >= 4.5, name
    for color in (*COLORS, GREY):
        assert contrast(color, "#ffffff") >= 3, color


def test_the_same_figures_make_the_same_page_byte_for_byte() -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    code += (
        "from test_analysis_plots import every_kind\nfrom noiseproof.analysis import make_page\n"
    )
    code += "sys.stdout.buffer.write(make_page(every_kind()[:2]).encode())"
    environ = {
        **os.environ,
        "PYTHONHASHSEED": "1",
        "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
    }
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, check=True
    ).stdout
    assert make_page(every_kind()[:2]).encode() == elsewhere


def test_missing_figures_say_what_records_them() -> None:
    text = make_page(every_kind()[-2:])
    assert "<code>noiseproof train --samples</code>" in text
    assert "runs of <code>sln</code> and <code>noise-f</code> beside <code>ce</code>" in text


def test_a_page_holds_nothing_that_could_be_fetched() -> None:
    text = make_page(every_kind()[:4])
    assert re.findall(r"https?://", text) == []
    assert re.findall(r"""(?:src|href)=["'](?!#|data:)""", text) == []
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and policy[1].startswith(
        "default-src &#39;none&#39;; script-src &#39;sha256-"
    )
    assert "unsafe-eval" not in policy[1] and "connect-src" not in policy[1]


# Of runs


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    for method in ("ce", "gce"):
        train(
            task,
            method,
            Settings(epochs=3, model="mlp:hidden=[8]"),
            out=root / method,
            samples=method == "ce",
        )
    return [root / "ce", root / "gce"]


CHEAP = [maker.name for maker in figure_makers() if maker.name != "features"]


def test_a_gaussian_process_has_no_features_and_keeps_those_of_others(
    folders: list[Path], tmp_path: Path
) -> None:
    train(prepare(get_dataset("two-moons:n=60")), "gp", Settings(epochs=1), out=tmp_path / "gp")
    (alone,) = collect([tmp_path / "gp"], only=["features"])
    assert isinstance(alone, MissingFigure) and "A Gaussian process has no features" in alone.needs
    (beside,) = collect([tmp_path / "gp", folders[0]], only=["features"])
    assert isinstance(beside, Figure) and set(beside.data["method"]) == {"ce"}


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["analyze", *map(str, arguments)])


def test_the_command_writes_the_files_that_it_names(folders: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    answer = run("page", *folders, "--out", out, "--only", "accuracy-curves,margins,attention")
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout == f"{out}\n"
    assert answer.stderr.endswith(
        f"noiseproof: not drawn: attention, needs a run of `nal` with {RECORDED}\n"
    )
    text = out.read_text("utf-8")
    assert text.count("<article") == 3 and "2 runs on digits" in text and 'class="missing"' in text
    assert str(tmp_path) not in text  # the same runs, elsewhere, make the same page
    answer = run(
        "page",
        folders[0],
        "--format",
        "csv",
        "--out",
        tmp_path / "a.csv",
        "--only",
        "cost",
    )
    assert answer.stdout == f"{tmp_path / 'a.csv'}\n"
    assert pd.read_csv(tmp_path / "a.csv")["method"].tolist() == ["ce"]
    for wrong, words in (
        (
            ("page", folders[0], "--format", "gif"),
            "Expected html, pdf, png or csv as format, got 'gif'.",
        ),
        (
            ("page", folders[0], "--format", "pdf", "--out", "a.png"),
            "Expected a file that ends in .pdf",
        ),
        (("page", tmp_path / "nowhere"), "no such folder"),
        (("page", folders[0], "--only", "nonsense"), "cost, sensitivity, features, "),
        (("page", folders[0], "--only", "accuracy-curve"), "Did you mean 'accuracy-curves'"),
        (("page", folders[0], "--out", folders[0]), "Expected a file to write to, got the folder"),
        (("rows", folders[0], "--out", folders[0]), "Expected a file to write to, got the folder"),
        (
            ("landscape", folders[0], "--out", folders[0]),
            "Expected a file to write to, got the folder",
        ),
        (
            ("loss", "--losses", "ce", "--classes", 3, "--out", folders[0]),
            "Expected a file to write to, got the folder",
        ),
        (
            ("rows", folders[0], "--part", "foo"),
            "Expected --part to be one of train, validation, test, got 'foo'.",
        ),
        (("loss", "--losses", "gce:q=0.7", "--classes", "10", "--over", "a,q"), "Expected --out"),
    ):
        answer = run(*wrong)
        assert answer.exit_code == 2 and words in answer.stderr and answer.stdout == ""


def test_runs_that_cannot_be_read_are_named_once(folders: list[Path], tmp_path: Path) -> None:
    for folder in folders:
        shutil.copytree(
            folder, tmp_path / "runs" / folder.name, ignore=shutil.ignore_patterns("*checkpoint*")
        )
    own = sorted((tmp_path / "runs").iterdir())
    answer = run(
        "page",
        *own,
        "--only",
        "dissection,confusion",
        "--out",
        tmp_path / "page.html",
    )
    assert (
        answer.stderr.count("not drawn: ")
        == answer.stderr.count("Expected a checkpoint in its folder, got")
        == 1
    )
    assert "not drawn: dissection, confusion, need a run whose" in answer.stderr
    assert "Without ce and gce: Expected" in answer.stderr
    assert f"no run.json in it. Its runs are {tmp_path / 'runs'}/*." in run("page", tmp_path).stderr


def test_a_landscape_is_kept_for_the_page(folders: list[Path], tmp_path: Path) -> None:
    own = [shutil.copytree(folder, tmp_path / folder.name) for folder in folders]
    answer = run(
        "landscape",
        own[0],
        "--points",
        "9",
        "--rows",
        "50",
        "--accelerator",
        "cpu",
        "--out",
        tmp_path / "l.png",
    )
    assert answer.exit_code == 0, answer.stderr
    runs = open_runs(own)
    kept = kept_landscape(runs["ce"])
    assert kept is not None and kept_landscape(runs["gce"]) is None
    assert kept.losses.shape == (9, 9) and kept.points.tolist()[::4] == [-1, 0, 1]
    numbers = (kept.centre, kept.sharpness(), kept.curvature)
    assert answer.stdout.split()[-3:] == [f"{number:.4g}" for number in numbers]
    assert sorted(path.name for path in tmp_path.glob("l-*.png")) == [
        "l-landscape-contour.png",
        "l-landscape-surface.png",
    ]
    drawn = collect(runs, only=["landscape-contour"])
    assert isinstance(drawn[0], Figure) and set(drawn[0].data["method"]) == {"ce"}
    table = pd.read_csv(own[0] / "landscape.csv")
    assert list(table) == ["alpha", "beta", "loss", "seed", "rows"]
    assert (kept.seed, kept.rows) == (0, 50) and set(table["seed"]) == {0}
    # too far apart for a radius of 0.25
    answer = run("landscape", own[1], "--points", "5")
    assert answer.exit_code == 2 and "--points 9" in answer.stderr
    assert kept_landscape(runs["gce"]) is None
    table.assign(seed=1).to_csv(own[1] / "landscape.csv", index=False)
    (drawn,) = collect(runs, only=["landscape-contour"])
    assert isinstance(drawn, MissingFigure) and "got ce of seed 0; gce of seed 1" in drawn.needs
    answer = run("page", *own, "--only", "landscape-contour,cost", "--out", tmp_path / "p.html")
    assert (
        answer.exit_code == 0
        and "not drawn: landscape-contour, needs landscapes of one" in answer.stderr
    )
    half = pd.concat([table[:12].assign(seed=1), table[12:]])
    for wrong in (table[["alpha", "beta"]], table[["alpha", "beta", "loss"]], half, table[:-1]):
        wrong.to_csv(own[0] / "landscape.csv", index=False)
        answer = run("page", *own, "--only", "landscape-contour", "--out", tmp_path / "p.html")
        assert (
            answer.exit_code == 2
            and "Expected a landscape with its seed and rows in" in answer.stderr
        )
        assert "Make it again: `noiseproof analyze landscape" in answer.stderr
