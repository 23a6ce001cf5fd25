"""benchmarks/audit.py: which rows are made, what mistakes are planted, and who is counted as
ahead.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    sys.path.append(str(BENCHMARKS))  # the script imports its neighbours
    spec = importlib.util.spec_from_file_location("audit_benchmark", BENCHMARKS / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(
    who: str, ap: float, f1: float, *, seed: int = 1, data: str = "wine", **more: Any
) -> dict[str, Any]:
    key = {"data": data, "noise": "symmetric:rate=0.08", "seed": seed, "who": who}
    return key | {"rows": 100, "wrong": 0.08, "flags": 9, "cpu": 1.0, "ap": ap, "f1": f1} | more


def test_the_lead_is_over_the_better_of_cleanlabs_models_on_average_over_seeds(
    benchmark: ModuleType,
) -> None:
    rows = [
        row("cleanlab-lr", 0.50, 0.40, ap_margin=0.75),
        row("cleanlab-lr", 0.70, 0.60, seed=2, ap_margin=0.85),
        row("cleanlab-hgb", 0.65, 0.30),
        row("cleanlab-hgb", 0.65, 0.30, seed=2),
        row("thorough", 0.60, 0.60),
        row("thorough", 0.64, 0.62, seed=2),
        row("cleanlab-lr", 0.90, 0.90, data="digits"),
        row("thorough", 0.88, 0.95, data="digits"),
    ]
    lines = benchmark.summary(benchmark.cells_of(rows)).splitlines()
    # wine: AP 0.62 against 0.65 (boosting), best scorer 0.80; F1 0.61 against 0.50. digits: 0.88
    # against 0.90, 0.95.
    assert lines == [
        (
            "* thorough, AP: mean lead -0.025 over 2 rows; behind in 2, by more than 0.02 in 1: "
            "wine symmetric:rate=0.08 -0.030"
        ),
        (
            "* thorough, AP, best scorer of three: mean lead -0.100 over 2 rows; behind in 2, by"
            " more than 0.02 in 1: wine symmetric:rate=0.08 -0.180"
        ),
        "* thorough, F1: mean lead +0.080 over 2 rows; behind in 0, by more than 0.02 in 0: none",
    ]
    assert (
        "| wine symmetric 0.08 | 0.080 | 0.600 | 0.650 | - | - | - | 0.620 | -0.030 |"
        in benchmark.table(benchmark.cells_of(rows))
    )


def test_only_rows_that_are_not_there_are_made(benchmark: ModuleType) -> None:
    options = argparse.Namespace(
        dev=False,
        sets=["wine"],
        seeds=(1, 2),
        noises=["symmetric"],
        only=["lr", "hgb", "fast", "thorough"],
    )
    noise = "symmetric:rate=0.08"
    made = {
        ("wine", noise, 1, who)
        for who in ("cleanlab-lr", "judge-lr", "cleanlab-hgb", "judge-hgb", "fast")
    }
    made |= {("wine", noise, 2, who) for who in ("cleanlab-lr", "cleanlab-hgb", "fast", "thorough")}
    assert [*benchmark.plan(options, made)] == [("wine", noise, 1, "thorough")]


def test_mistakes_are_planted_at_their_rates_and_ours_finds_them(benchmark: ModuleType) -> None:
    data = benchmark.load("wine")
    true = data.frame[data.label].to_numpy(str)
    shares = {
        noise: (benchmark.given_labels(data, noise, 1) != true).mean() for noise in benchmark.NOISES
    }
    assert shares["none"] == 0
    assert shares["chen:rate=0.1"] == 17 / 178  # ⌊rN⌋ rows
    for noise, rate in {
        "symmetric:rate=0.08": 0.08,
        "asymmetric-next:rate=0.15": 0.15,
        "xia:rate=0.15": 0.16,
    }.items():
        assert abs(shares[noise] - rate) < 3 * np.sqrt(rate * (1 - rate) / len(true))
    names = benchmark.given_labels(data, "symmetric:rate=0.08", 1)
    figures = benchmark.by_us("fast", data, names, 1)["fast"]
    assert figures["ap"] > 0.9  # wine's classes hardly overlap
    assert figures["f1"] > 0.8
    assert figures["flags"] > 0


def test_boosting_sees_categories_and_gaps(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tablesets = benchmark.tablesets
    frame = tablesets.pd.DataFrame(
        {
            "word": ["a", None, "b"] * 20,
            "number": [1.0, np.nan, 3.0] * 20,
            "y": ["0", "1", "1"] * 20,
        }
    )
    data = tablesets.LabelledSet("toy", "y", None, (), frame)
    model, x = benchmark.model_of("hgb", data)
    assert x.word.dtype == "category"
    assert x.isna().sum().tolist() == [20, 20]
    assert (model.fit(x, frame.y).predict(x) == frame.y).all()
    linear, x = benchmark.model_of("lr", data)
    assert (linear.fit(x, frame.y).predict(x) == frame.y).all()
    monkeypatch.setattr(benchmark, "MAX_HGB_CATEGORIES", 1)
    # as numbers, where there are too many to split on
    assert benchmark.model_of("hgb", data)[1].word.tolist()[0] == 0
