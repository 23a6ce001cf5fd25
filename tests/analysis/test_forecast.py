"""The forecast before training: its numbers against the theory, its thresholds and its agreement
with the papers.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from noiseproof.analysis.before.forecast import Forecast
from noiseproof.analysis.before.forecast import forecast as make_forecast
from noiseproof.analysis.before.untrained import probe
from noiseproof.cli import app
from noiseproof.core.margin import LabelProb
from noiseproof.data import get_dataset
from noiseproof.losses import get_loss
from noiseproof.losses.calibrate import calibrate, expected_margin
from noiseproof.losses.initial import average_error
from noiseproof.losses.verdict import FALL, LEARNS, PARTLY, SLOW, SettledAttention, settled
from noiseproof.strategies import Run, Strategy
from noiseproof.train import METHODS, Method, Settings, Task, get_method, prepare, train
from noiseproof.train.methods import MethodContext, method_loss

runner = CliRunner()
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))  # it imports its neighbour
    try:
        spec = importlib.util.spec_from_file_location(
            "forecast_benchmark", BENCHMARKS / "forecast.py"
        )
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(BENCHMARKS))


@functools.cache
def forecast_once(spec: str, num_classes: int, alternatives: bool) -> Forecast:
    return make_forecast(spec, num_classes, alternatives=alternatives)


def forecast(loss: Any, num_classes: int, *, alternatives: bool = True, **options: Any) -> Forecast:
    """The forecast; one of a spec, which several tests look at, is made once."""
    if isinstance(loss, str) and not options:
        return forecast_once(loss, num_classes, alternatives)
    return make_forecast(loss, num_classes, alternatives=alternatives, **options)


# --- Its numbers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "num_classes"),
    [("ce", 100), ("mae", 1000), ("gce:q=0.7", 10)],
)
def test_the_weight_is_the_average_error_and_the_margin_its_expectation(
    spec: str, num_classes: int
) -> None:
    result = forecast(spec, num_classes, alternatives=False)
    assert result.weight == pytest.approx(-average_error(spec, 0.0, num_classes), rel=1e-9)
    assert result.margin == pytest.approx(expected_margin(num_classes), rel=1e-9)
    assert result.start == pytest.approx(result.weight / result.maximum)


def test_the_weight_is_what_calibrate_keeps() -> None:
    calibrated = calibrate("gce:q=0.7", 1000)
    assert calibrated.loss is not None
    known, kept = (
        forecast("gce:q=0.7", 100, alternatives=False),
        forecast(calibrated.loss, 1000, alternatives=False),
    )
    assert known.weight == pytest.approx(0.028234, abs=1e-6)  # papers/README, section 5
    assert kept.weight == pytest.approx(known.weight, rel=1e-3) and kept.weight == pytest.approx(
        -calibrated.error
    )


def test_the_numbers_of_mae_against_drawn_logits() -> None:
    """Everything again from 200 000 drawn rows: p(1 − p) at three places and its integral."""
    K, draws = 100, torch.Generator().manual_seed(0)
    rest = torch.randn(200_000, K - 1, generator=draws, dtype=torch.float64).logsumexp(1)

    def weight(z: float, cross_entropy: bool = False) -> float:
        p = torch.sigmoid(z - rest)
        return float(((1 - p) if cross_entropy else p * (1 - p)).mean())

    result = forecast("mae", K, alternatives=False)
    way = -expected_margin(K)
    assert result.weight == pytest.approx(weight(0.0), rel=5e-3)
    assert result.maximum == pytest.approx(0.25)
    assert result.left_behind == pytest.approx(weight(-FALL) / 0.25, rel=5e-3)
    assert result.learnt == pytest.approx(weight(way) / 0.25, rel=5e-3)
    z = np.linspace(0, way, 401)
    ours, theirs = (
        np.trapezoid([1 / weight(float(at), ce) for at in z[::8]], z[::8]) for ce in (False, True)
    )
    assert result.slowness == pytest.approx(ours / theirs, rel=1e-2)


def test_shares_of_terms_add_up_and_each_is_over_its_own_maximum() -> None:
    result = forecast("0.7*nce + 0.3*mae", 100, alternatives=False)
    nce, mae = result.terms
    assert nce.share + mae.share == pytest.approx(
        1
    ) and nce.share_learnt + mae.share_learnt == pytest.approx(1)
    alone = forecast("mae", 100, alternatives=False)
    assert mae.start == pytest.approx(alone.start) and mae.left_behind == pytest.approx(
        alone.left_behind
    )
    assert nce.start > 0.99 and nce.share_left_behind > 0.9  # NCE keeps those that fall behind,
    assert mae.share_learnt > 0.9  # MAE finishes


def test_own_margins_take_the_place_of_simulated_ones() -> None:
    margins = torch.randn(5000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 2
    result = forecast("mae", 100, margins=margins, alternatives=False)
    p = torch.sigmoid(margins)
    assert result.margin == pytest.approx(float(margins.mean()))
    assert result.weight == pytest.approx(float((p * (1 - p)).mean()))
    # whatever the number of classes, these margins start where MAE pulls
    assert result.answer == "learns"


def test_margins_of_simulated_logits_give_the_forecast_without_margins() -> None:
    spec = "gce:q=0.7"
    logits = torch.randn(
        20_000, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    margins = logits[:, 0] - logits[:, 1:].logsumexp(1)
    own, simulated = (forecast(spec, 50, margins=m, alternatives=False) for m in (margins, None))
    assert own.answer == simulated.answer
    # z_k is drawn here and zero there: a wider spread, hence larger tails of a convex weight.
    assert own.weight == pytest.approx(simulated.weight, rel=0.35)


def test_what_cannot_be_forecast_is_refused() -> None:
    with pytest.raises(ValueError, match="needs attention, logits"):
        forecast("nal:beta=1", 10)
    with pytest.raises(ValueError, match="one row's 10 logits alone"):
        forecast("peer", 10)  # of other rows too
    with pytest.raises(ValueError, match=r"`margins` \(N,\)"):
        forecast("mae", 10, margins=torch.zeros(2, 3))


# --- Its answers ----------------------------------------------------------------------------------


def test_the_contradictions_that_the_raw_weight_runs_into() -> None:
    """A sum that starts lower than MAE learns, MAE does not; NCE starts at its maximum and does
    not.
    """
    both = forecast("0.7*nce + 0.3*mae", 100, alternatives=False)  # made once for two tests
    mae, nce = (
        forecast("unit:loss=mae", 100, alternatives=False),
        forecast("nce", 100, alternatives=False),
    )
    assert both.weight < mae.weight and nce.start > 0.99
    assert (both.answer, mae.answer, nce.answer) == ("learns", "underfits", "underfits")


def test_thresholds_are_what_the_two_tables_give(benchmark: ModuleType) -> None:
    rows = json.loads((BENCHMARKS / "results" / "forecast.json").read_text())["rows"]
    fast = [row for row in rows if row["set_on"] and row["slowness"] <= SLOW]
    slow = [row["slowness"] for row in rows if row["set_on"] and row["slowness"] > SLOW]
    behind = {
        name: [row["left_behind"] for row in fast if row["outcome"] == name]
        for name in ("learns", "partly", "underfits")
    }
    assert (
        pytest.approx(math.sqrt(min(behind["learns"]) * max(behind["partly"])), rel=0.02) == LEARNS
    )
    assert (
        pytest.approx(math.sqrt(min(behind["partly"]) * max(behind["underfits"])), rel=0.02)
        == PARTLY
    )
    assert (
        pytest.approx(math.sqrt(max(row["slowness"] for row in fast) * min(slow)), rel=0.02) == SLOW
    )


def test_the_committed_rows_are_those_of_the_code(benchmark: ModuleType) -> None:
    """The cells of margin losses again, which need no sample, against the file that the
    documentation quotes.
    """
    rows = json.loads((BENCHMARKS / "results" / "forecast.json").read_text())["rows"]
    for row in rows:
        if get_loss(row["loss"]).kind == "margin":
            result = forecast(row["loss"], row["classes"], alternatives=False)
            assert result.answer == row["forecast"]
            assert result.left_behind == pytest.approx(row["left_behind"], rel=1e-3)
    for table, column in (benchmark.SET_ON | benchmark.HELD_OUT).items():
        cells = [
            cell
            for cell in benchmark.load_table(table).cells
            if not column or cell.column == column
        ]
        of_table = [row for row in rows if row["table"] == table]
        assert [cell.published.mean for cell in cells] == [row["accuracy"] for row in of_table]
        for cell, row in zip(cells, of_table, strict=True):
            loss = benchmark.loss_of(cell.fields["method"], cell.fields["dataset"], row["classes"])
            assert str(loss) == row["loss"], cell
    agree = {
        table: sum(row["forecast"] == row["outcome"] for row in rows if row["table"] == table)
        for table in dict.fromkeys(row["table"] for row in rows)
    }
    assert agree == {
        "curriculum-table2": 20,
        "bias-table3": 11,
        "bias-table2": 26,
        "curriculum-table3": 9,
        "curriculum-table4": 10,
    }
    held_out = {"weight": [24, 7, 9], "start": [27, 7, 9]}  # what docs/analysis.md sets beside it
    for number, right in (("weight", 27), ("start", 28)):
        result = benchmark.by_one_number(rows, number)
        assert sum(result[table] for table in benchmark.SET_ON) == right
        assert [result[table] for table in benchmark.HELD_OUT] == held_out[number]


@pytest.mark.parametrize(
    ("spec", "num_classes", "instead"),
    [
        ("mae", 400, "tau-scale:loss=(mae:scale=1.0),num_classes=400,tau=2.62,sigma=1.0"),
        ("gce:q=0.7", 1000, "gce:q=0.482"),  # The bias paper: 0.48
    ],
)
def test_the_loss_to_use_instead_is_calibrated_and_learns(
    spec: str, num_classes: int, instead: str
) -> None:
    result = forecast(spec, num_classes)
    assert result.answer == "underfits" and result.instead[0].loss == instead
    again = forecast(result.instead[0].loss, num_classes)
    assert again.answer == "learns" == result.instead[0].answer and again.instead == ()


# --- Real steps -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.2")


def test_a_probe_sees_what_a_run_does(digits: Task) -> None:
    settings = Settings(model="mlp:hidden=[16]", batch_size=64)
    result = probe(digits, "mae", settings, steps=46)  # two epochs
    assert result.steps == 46 and result.margin[1] - result.margin[0] == pytest.approx(result.gain)
    run = train(
        digits,
        "mae",
        Settings(model="mlp:hidden=[16]", batch_size=64, epochs=2, schedule="constant"),
    )
    assert result.accuracy[1] == pytest.approx(run.last["train_accuracy"], abs=0.1)
    assert 0 < result.pace < 1


@pytest.mark.parametrize("line", ["peer:warmup=5", "cr:warmup=5", "ce & label-correction:start=9"])
def test_a_probe_refuses_what_the_run_refuses_and_nothing_else(digits: Task, line: str) -> None:
    """An epoch of 23 steps of ten epochs."""
    settings = Settings(model="mlp:hidden=[16]", batch_size=64, epochs=10)
    found = probe(digits, line, settings, steps=23)
    assert found.steps == 23 and found.method == str(get_method(line, digits, settings))
    with pytest.raises(ValueError, match="below the 5 epochs of the run"):
        probe(digits, line, replace(settings, epochs=5), steps=23)


def test_a_probe_of_a_method_that_leaves_rows_out_says_how_many_steps_it_took(digits: Task) -> None:
    class Half(Strategy):
        def rows(self, rows: torch.Tensor, run: Run) -> torch.Tensor:
            return rows[:640]

    # 23 steps an epoch, 10 of these rows
    settings = Settings(model="mlp:hidden=[16]", batch_size=64)
    result = probe(digits, Method(get_loss("ce"), strategies=(Half(),)), settings, steps=23)
    assert result.steps == 10 and result.pace == pytest.approx(1)  # the first of the same steps


def test_the_command_answers_and_probes() -> None:
    result = runner.invoke(app, ["analyze", "fit", "--loss", "mae", "--classes", "400"])
    assert result.exit_code == 0, result.output
    assert "underfits" in result.stdout.splitlines()[0] and "tau-scale" in result.stdout
    options = ["--data", "digits", "--model", "mlp:hidden=[8]", "--probe", "--json"]
    result = runner.invoke(app, ["analyze", "fit", "--loss", "0.5*mae + ce", *options])
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert (
        answer["answer"] == "learns"
        and answer["probe"]["steps"] == 200
        and len(answer["terms"]) == 2
    )


# --- Losses with a head --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("lam", "tau", "start"), [(1.0, 0.5, 0.1), (0.5, 1.0, 0.5), (0.1, 0.1, 1.0)]
)
def test_ln_is_judged_at_its_best_covariance(lam: float, tau: float, start: float) -> None:
    """The weight is that of the likelihood minimised over Σ^½ = ccᵀ + λI numerically, by the score
    of the label.
    """
    K, loss = 10, get_loss(f"ln:lam={lam},tau={tau},start={start}")
    settled_loss = settled(loss, K)
    C = math.log(1 + 0.99 * (K + 1) / 0.01)
    for margin in (-4.0, 0.0, 2.0):
        z = margin + math.log(K - 1)
        residual = np.append(tau * (C - z), np.full(K - 1, start))
        sizes = np.linspace(lam, 60, 200_001)  # of the eigenvalue of Σ^½ along the residual
        best = sizes[np.argmin((residual @ residual) / sizes**2 / 2 + np.log(sizes))]
        weight = tau * residual[0] / best**2 / tau**2
        found = float(settled_loss.sample_weight(torch.tensor([margin], dtype=torch.float64)))
        assert found == pytest.approx(weight, rel=2e-3)


@pytest.mark.parametrize("lam", [0.1, 0.5, 10.0])
def test_nal_is_judged_at_its_best_attention(lam: float) -> None:
    """The weight is that of the loss minimised over τ numerically, and the whole loss its
    minimum.
    """
    loss = settled(get_loss(f"nal:lam={lam}"), 10)
    for margin in (-6.0, -1.0, 0.5, 3.0):
        p = 1 / (1 + math.exp(-margin))
        tau = np.linspace(1e-4, 1, 400_001)
        values = -np.log1p(-tau * (1 - p)) - lam * np.log(tau)
        best = tau[np.argmin(values)]
        weight = best * p * (1 - p) / (1 - best * (1 - p))
        at = torch.tensor([margin], dtype=torch.float64)
        assert float(loss.sample_weight(at)) == pytest.approx(weight, rel=2e-3)
        assert float(SettledAttention(lam).value(LabelProb.from_margin(at))) == pytest.approx(
            values.min(), rel=1e-6
        )


def test_nal_learns_many_classes_only_with_a_large_lambda() -> None:
    """The NAL paper has λ = 0.5 for 10 classes and 10 for 100."""
    assert (
        make_forecast("nal:lam=0.5", 10).answer
        == make_forecast("nal:lam=10", 100).answer
        == "learns"
    )
    result = make_forecast("nal:lam=0.5", 100)
    assert result.answer == "underfits" and result.instead[0].loss.startswith("nal:lam=10")


def test_the_answer_says_that_it_is_not_about_the_warm_up() -> None:
    """In it nal is cross entropy, whose weights are others: the numbers are those of the loss
    without one.
    """
    waits, plain = (
        make_forecast(get_loss(f"nal:lam=2{warmup}"), 30) for warmup in (",warmup=5", "")
    )
    assert waits.reason == f"{plain.reason}; judged as it is after its warm-up of 5 epochs"
    assert replace(waits, loss=plain.loss, reason=plain.reason, instead=()) == replace(
        plain, instead=()
    )
    assert "after its warm-up of 5 epochs" in make_forecast("nal", 10).reason  # 5 % of 100 epochs
    shown = runner.invoke(
        app, ["analyze", "fit", "--loss", "nal:warmup=1", "--classes", "10"]
    ).stdout.splitlines()[0]
    assert shown.endswith("; judged as it is after its warm-up of 1 epoch.")


@pytest.mark.parametrize(
    ("line", "loss", "answer"),
    [
        ("het-tau:tau=50", "het:tau=50", "underfits"),
        ("ln", "ln:lam=1", "learns"),
    ],
)
def test_short_trainings_agree_with_the_forecast_of_losses_with_a_head(
    line: str, loss: str, answer: str
) -> None:
    """From 0.9 of cross entropy's accuracy a loss learns, below half of it, it underfits
    (benchmarks/forecast.py).
    """
    task, settings = (
        prepare(get_dataset("digits"), seed=1),
        Settings(epochs=6, model="mlp:hidden=[64]"),
    )
    of_ce, found = (
        train(task, one, settings, seed=1).last["test_accuracy"] for one in ("ce", line)
    )
    assert make_forecast(loss, 10).answer == answer
    assert (
        "learns" if found >= 0.9 * of_ce else "partly" if found >= 0.5 * of_ce else "underfits"
    ) == answer


def test_the_loss_that_is_judged_is_the_one_that_the_method_trains_with(digits: Task) -> None:
    """With the method's defaults for that number of classes, not those of the loss (issue 27)."""
    for line in METHODS:
        assert str(method_loss(line, MethodContext.of(digits, Settings()))) == str(
            get_method(line, digits, Settings()).loss
        )
    nal, ln, het = (make_forecast(line, 100) for line in ("nal", "ln & momentum", "het-tau"))
    assert nal.loss.startswith("nal:lam=10.0") and nal.answer == "learns"
    assert "lam=1.0" in ln.loss and "start=0.1," in ln.loss + ","
    assert (
        "start=0.316" in make_forecast("ln", 10).loss
        and "lam=0.5" in make_forecast(get_loss("ln"), 10).loss
    )
    assert het.loss.startswith("het:tau=10.0") and "100 times the steps" in het.reason
    assert "short trainings" in het.reason and "short" not in nal.reason
    # a parameter that the method has not
    assert make_forecast("het:tau=50", 10).loss.startswith("het:tau=50.0")
    command = ["analyze", "fit", "--classes", "100", "--loss"]
    first = runner.invoke(app, [*command, "het-tau"]).stdout.splitlines()[0]
    assert first.startswith("het-tau: het:tau=10.0,samples=100,") and "100 times the steps" in first
    assert "Unknown method" in runner.invoke(app, [*command, "het-tauu"]).stderr
    several = runner.invoke(app, ["analyze", "fit", "--classes", "100", "--loss", "gce,ce"]).stderr
    assert "Expected one method, got 2: gce and ce." in several


def test_a_root_that_starts_too_long_is_forecast() -> None:
    result = make_forecast("ln:lam=1,start=1", 150)
    assert result.answer == "partly" and "1.9 times too long" in result.reason
    assert result.instead[0].answer == "learns" and "start=0.1" in result.instead[0].loss
    assert (
        make_forecast("ln:lam=1,start=1", 60).answer
        == make_forecast("ln:lam=1", 150).answer
        == "learns"
    )
    assert make_forecast("2*ln:lam=1,start=1 + ce", 150).instead[0].loss.startswith("2*ln:")
