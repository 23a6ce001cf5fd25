"""Figures taken apart and drawn: by matplotlib, as CSV."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from noiseproof.analysis import Figure, Layer, MissingFigure, save, to_matplotlib
from noiseproof.analysis.page.marks import COLORS, GREY, palette


def figure(name: str, data: pd.DataFrame, *layers: Layer, **options: Any) -> Figure:
    about = {
        "title": f"The {name}",
        "reading": f"How to read the {name}.",
        "paper": "curriculum paper, Figs. 2, 5-8",
    }
    return Figure(
        name=name, data=data, layers=layers, **{"x_label": "x", "y_label": "y", **about, **options}
    )


def every_kind() -> list[Figure | MissingFigure]:
    """A figure of each kind of mark; together they have everything that a figure can ask for."""
    epochs = np.arange(1, 21)
    curves = pd.DataFrame(
        {
            "method": m,
            "labels": l,
            "epoch": epochs,
            "accuracy": 1 - np.exp(-epochs / s) - (l == "wrong") / 3,
        }
        for m, s in (("ce", 3), ("mae", 9), ("sln", 5))
        for l in ("right", "wrong")
    ).explode(["epoch", "accuracy"], ignore_index=True)
    curves = curves.astype({"epoch": int, "accuracy": float})
    curves["low"], curves["high"] = curves["accuracy"] - 0.1, curves["accuracy"] + 0.1
    curves.loc[3, "accuracy"] = np.nan  # an epoch that was not measured
    curves.loc[4, "high"] = np.inf
    x = np.linspace(-4, 4, 41)
    weights = pd.concat(
        [
            pd.DataFrame({"classes": K, "loss": m, "Δ": x, "weight": 1 / (1 + K * np.exp(x))})
            for K in (10, 100)
            for m in ("ce", "mae")
        ]
        + [
            pd.DataFrame({"classes": K, "Δ": x, "density": np.exp(-(x**2)), "margins": "simulated"})
            for K in (10, 100)
        ]
    )
    bins = np.arange(-3, 3, 0.5)
    margins = pd.DataFrame(
        [
            (e, l, b, np.exp(-((b - s * e) ** 2)))
            for e in (1, 2)
            for l, s in (("right", 1), ("wrong", -1))
            for b in bins
        ],
        columns=["epoch", "labels", "margin", "density"],
    )
    shares = pd.DataFrame(
        [
            (m, r, c, (r + 1) / 10 if c == "lost" else 1 - (r + 1) / 10)
            for m in ("ce", "mae")
            for r in range(8)
            for c in ("kept", "lost")
        ],
        columns=["method", "rank", "case", "share"],
    )
    classes = ["cat", "dog", "a<b & 'c', \"d\""]
    confusion = pd.DataFrame(
        [(a, b, (i + 2 * j) / 6) for i, a in enumerate(classes) for j, b in enumerate(classes)],
        columns=["clean", "given", "share"],
    )
    at = np.linspace(-1, 1, 9)
    bowl = pd.DataFrame(
        [
            (m, a, b, 0.1 + k * a * a + b * b)
            for k, m in enumerate(("ce", "mae"), 1)
            for a in at
            for b in at
        ],
        columns=["method", "α", "β", "loss"],
    )
    generator = np.random.default_rng(0)
    dots = pd.DataFrame(
        {
            "u": generator.normal(size=60),
            "v": generator.normal(size=60),
            "class": [f"class {i % 9}" for i in range(60)],
        }
    )
    bars = pd.DataFrame(
        [
            (n, m, 0.5 + i / 10, 0.45 + i / 10, 0.57 + i / 10)
            for n in ("symmetric", "asymmetric")
            for i, m in enumerate(("ce", "mae"))
        ],
        columns=["noise", "method", "accuracy", "low", "high"],
    )
    plane = pd.concat(
        [
            bowl[bowl["method"] == "ce"].assign(loss=lambda t: t["α"]),
            dots.assign(α=dots["u"] / 3, β=dots["v"] / 3),
        ]
    )
    return [
        figure(
            "curves",
            curves,
            Layer("line", "epoch", "accuracy", "method", dash="labels", low="low", high="high"),
            stage="During training",
        ),
        figure(
            "weights",
            weights,
            Layer("area", "Δ", "density", "margins"),
            Layer("line", "Δ", "weight", "loss"),
            panel="classes",
            stage="Before training",
        ),
        figure(
            "margins",
            margins,
            Layer("area", "margin", "density", "labels"),
            panel="epoch",
            stage="During training",
        ),
        figure(
            "shares", shares, Layer("area", "rank", "share", "case"), panel="method", stack=True
        ),
        figure("confusion", confusion, Layer("heat", "given", "clean", z="share")),
        figure("contour", bowl, Layer("contour", "α", "β", z="loss"), panel="method", equal=True),
        figure("surface", bowl, Layer("surface", "α", "β", z="loss"), panel="method"),
        figure("dots", dots, Layer("points", "u", "v", "class"), equal=True),
        figure("bars", bars, Layer("bars", "noise", "accuracy", "method", low="low", high="high")),
        figure(
            "spread", bars, Layer("points", "noise", "accuracy", "method", low="low", high="high")
        ),
        figure(
            "plane", plane, Layer("heat", "α", "β", z="loss"), Layer("points", "α", "β", "class")
        ),
        figure(
            "decay",
            curves[curves["accuracy"] > 0],
            Layer("line", "epoch", "accuracy", "epoch"),
            Layer("line", "epoch", "low", label="a floor"),
            log_x=True,
            log_y=True,
        ),
        MissingFigure(
            "attention", "Attention", "NAL paper, Figs. 11-13", "noiseproof train --samples"
        ),
        MissingFigure(
            "variants",
            "Noise in SGD",
            "SLN paper, Fig. 5",
            "runs of `sln` and `noise-f` beside `ce`",
        ),
    ]


def drawn(figures: list[Figure | MissingFigure]) -> list[Figure]:
    return [one for one in figures if isinstance(one, Figure)]


def test_a_value_has_one_colour_on_a_page_and_a_legend_has_each_once() -> None:
    figures = {one.name: one for one in drawn(every_kind())}
    styles = palette(list(figures.values()))
    assert [styles["method", m].color for m in ("ce", "mae", "sln")] == list(COLORS[:3])
    assert styles["margins", "simulated"].color == GREY  # what lies behind the losses

    def legend(name: str) -> list[str]:
        return [
            text.get_text()
            for legend in to_matplotlib(figures[name], styles).legends
            for text in legend.get_texts()
        ]

    assert legend("curves") == ["ce", "mae", "sln", "right", "wrong"]
    assert legend("confusion") == []


@pytest.mark.parametrize("ending", ["png", "pdf"])
def test_figures_for_paper_are_such_files_and_the_same_every_time(
    ending: str, tmp_path: Path
) -> None:
    figures = every_kind()[:3] if ending == "png" else every_kind()[8:11]
    written = save(figures, tmp_path / f"a.{ending}")
    again = save(figures, tmp_path / "b" / f"a.{ending}")
    assert [path.read_bytes() for path in written] == [path.read_bytes() for path in again]
    if ending == "pdf":
        content = written[0].read_bytes()
        assert content.startswith(b"%PDF-") and content.rstrip().endswith(b"%%EOF")
        assert len(re.findall(rb"/Type /Page\b", content)) == len(drawn(figures))
        return
    assert [path.name for path in written] == [f"a-{one.name}.png" for one in drawn(figures)]
    for path in written:
        with Image.open(path) as image:
            image.verify()
            assert image.format == "PNG" and min(image.size) > 500


def test_matplotlib_draws_the_same_numbers() -> None:
    figures = {one.name: one for one in drawn(every_kind())}
    curves = figures["curves"]
    lines = to_matplotlib(curves).axes[0].lines
    expected = [
        rows["accuracy"].to_numpy()
        for _, rows in curves.data.groupby(["method", "labels"], sort=False)
    ]
    assert len(lines) == 6
    for line, y in zip(lines, expected, strict=True):
        assert np.array_equal(np.asarray(line.get_ydata(), float), y, equal_nan=True)
    _, top = to_matplotlib(figures["shares"]).axes[0].lines
    assert top.get_ydata() == pytest.approx([1.0] * 8)  # shares that fill each column
    mesh = to_matplotlib(figures["confusion"]).axes[0].collections[0]
    assert np.asarray(mesh.get_array()).ravel() == pytest.approx(figures["confusion"].data["share"])
    clouds = to_matplotlib(figures["dots"]).axes[0].collections
    of_classes = [
        rows[["u", "v"]].to_numpy() for _, rows in figures["dots"].data.groupby("class", sort=False)
    ]
    for cloud, rows in zip(clouds, of_classes, strict=True):
        np.testing.assert_array_equal(cloud.get_offsets(), rows)
    bars = to_matplotlib(figures["bars"]).axes[0]
    assert sorted(bar.get_height() for bar in bars.patches) == sorted(
        figures["bars"].data["accuracy"]
    )
    ends = np.concatenate([spread.get_segments() for spread in bars.collections])[:, :, 1]
    np.testing.assert_allclose(
        sorted(ends.tolist()), sorted(figures["bars"].data[["low", "high"]].values.tolist())
    )
    weights = to_matplotlib(figures["weights"])
    assert [ax.get_title() for ax in weights.axes] == ["classes = 10", "classes = 100"]
    surfaces = to_matplotlib(figures["surface"]).axes[:2]
    # one scale for all panels
    assert all(ax.get_zlim() == surfaces[0].get_zlim() for ax in surfaces)
    dollars = figure(
        "dollars",
        pd.DataFrame({"x": ["$", "$$"], "y": [1.0, 2.0], "m": ["$a_", "b$"]}),
        Layer("bars", "x", "y", "m"),
    )
    # no mathematics, and no complaint about it
    to_matplotlib(dollars).savefig(io.BytesIO(), format="png")


@pytest.mark.parametrize("kind", ["line", "points", "area"])
def test_many_methods_share_colours_and_styles(kind: Any) -> None:
    names = [f"method {n}" for n in range(40)]
    table = pd.DataFrame({"method": np.repeat(names, 2), "x": [0, 1] * 40, "y": [0.5, 1.0] * 40})
    canvas = to_matplotlib(figure("many", table, Layer(kind, "x", "y", color="method")))
    assert [text.get_text() for text in canvas.legends[0].get_texts()] == names


def test_several_figures_as_csv_are_several_files(tmp_path: Path) -> None:
    figures = every_kind()
    written = save(figures, tmp_path / "new" / "out.csv")
    assert [path.name for path in written] == [f"out-{one.name}.csv" for one in drawn(figures)]
    alone = save([figures[0], figures[-1]], tmp_path / "one.csv")
    assert alone == [tmp_path / "one.csv"] and alone[0].read_bytes() == written[0].read_bytes()
    with pytest.raises(ValueError, match="attention needs noiseproof train --samples"):
        save(figures[-2:], tmp_path / "none.png")
    with pytest.raises(ValueError, match=r"ends in \.html, \.png, \.pdf, \.csv, got .*a\.svg"):
        save(figures, tmp_path / "a.svg")
