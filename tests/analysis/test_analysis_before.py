"""Before training: weights, average errors, the logit bias, attenuation, the simplex and the
robustness conditions.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from noiseproof.analysis import to_matplotlib
from noiseproof.analysis.before.logistic_normal import (
    LAM,
    MEAN,
    ROOT,
    attenuation,
    simplex_density,
)
from noiseproof.analysis.before.losses import (
    Start,
    average_errors,
    error_map,
    error_map_figure,
    logit_biases,
    margin_density,
    mean_weight,
    weights,
    weights_figure,
)
from noiseproof.analysis.before.robustness import robustness
from noiseproof.analysis.before.untrained import initial_logits
from noiseproof.cli import app
from noiseproof.core.margin import margin
from noiseproof.data import get_dataset
from noiseproof.losses.initial import average_error, logit_bias
from noiseproof.losses.logistic_normal import negative_log_normal
from noiseproof.noise import get_noise
from noiseproof.train import Settings, Task, prepare, train

runner = CliRunner()


@pytest.fixture(scope="module")
def digits() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.2")


# --- Weights over margins -------------------------------------------------------------------------


def test_weights_are_the_papers_over_their_maximum() -> None:
    table = weights(["ce", "mae", "gce:q=0.7"], 100)
    p = 1 / (1 + np.exp(-table["margin"].to_numpy()))
    # of Table 1
    expected = {"ce": 1 - p, "mae": 4 * p * (1 - p), "gce:q=0.7": p**0.7 * (1 - p) / 0.3160863}
    for name, values in expected.items():
        of_loss = (table["loss"] == name).to_numpy()
        assert np.allclose(table["weight"][of_loss], values[of_loss], rtol=1e-6)


@pytest.mark.parametrize("num_classes", [2, 100])
def test_margin_density_is_that_of_drawn_margins(num_classes: int) -> None:
    drawn = torch.randn(
        40_000, num_classes, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    margins = margin(drawn, torch.zeros(len(drawn), dtype=torch.int64))
    table = margin_density(num_classes)
    at, density = table["margin"].to_numpy(), table["density"].to_numpy()
    assert np.trapezoid(density, at) == pytest.approx(1, abs=1e-5)
    for moment in (1, 2):
        spread = float((margins**moment).std()) / math.sqrt(len(margins))
        assert (
            abs(np.trapezoid(density * at**moment, at) - float((margins**moment).mean()))
            < 4 * spread
        )


def test_the_mean_weight_of_a_coupled_loss_is_minus_its_gradient() -> None:
    """Label smoothing's −∂L/∂z_y = 1 − α + α/K − p_y: only p is to be averaged."""
    K, at = 50, torch.tensor([-4.0, -1.0, 2.0], dtype=torch.float64)
    others = torch.randn(
        200_000, K - 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).logsumexp(1)
    p = torch.sigmoid(at[:, None] + others.mean() - others)  # (3, draws)
    assert torch.allclose(
        mean_weight("ls:alpha=0.1", at, K), 1 - 0.1 + 0.1 / K - p.mean(1), atol=2e-3
    )


def test_the_weight_of_a_sum_is_the_sum_of_weights() -> None:
    at = torch.tensor([-6.0, 0.0], dtype=torch.float64)
    parts = 0.7 * mean_weight("nce", at, 100) + 0.3 * mean_weight("mae", at, 100)
    assert torch.allclose(mean_weight("0.7*nce + 0.3*mae", at, 100), parts, rtol=1e-12)


def test_initial_logits_are_those_that_training_begins_with(digits: Task) -> None:
    settings = Settings(model="mlp:hidden=[64]", batch_size=32, epochs=1, optimizer="sgd:lr=1e-30")
    logits, labels = initial_logits(digits, "ce", settings, seed=3, rows=64)
    assert logits.shape == (64, 10) and labels.shape == (64,)
    result = train(digits, "ce", settings, seed=3)  # with a rate of zero the weights stay
    x = digits.train.x
    assert isinstance(x, Tensor) and digits.normalise is not None
    ready = digits.normalise.apply(x, torch.empty(len(x), 0)).float()
    with torch.no_grad():
        everything = result.models[0].eval()(ready).logits
    nearest = torch.cdist(logits, everything, compute_mode="donot_use_mm_for_euclid_dist").min(1)
    assert float(nearest.values.max()) < 1e-5
    assert torch.equal(digits.train.given[nearest.indices], labels)


def test_a_models_own_margins_are_drawn_beside_the_simulated(digits: Task) -> None:
    logits, labels = initial_logits(digits, settings=Settings(model="mlp:hidden=[8]"), rows=300)
    data = weights_figure(Start(["mae"], 10, logits, labels)).data
    own = data[data["margins"] == "Δ of your model"]
    assert np.trapezoid(own["density"], own["margin"]) == pytest.approx(1)
    middle = np.trapezoid(own["density"] * own["margin"], own["margin"])
    assert middle == pytest.approx(float(margin(logits, labels).mean()), abs=0.1)


# --- Average error and logit bias -----------------------------------------------------------------


def test_average_errors_have_the_papers_values() -> None:
    table = average_errors(["gce:q=0.7"], [100]).set_index("logit")["error"]
    # The bias paper's −0.279 is misprinted
    assert table.loc[0.0] == pytest.approx(-0.028234, abs=1e-6)


def test_logit_biases_have_the_known_values() -> None:
    table = logit_biases()
    bias = table[table["probability"] == "C = 0.15"].set_index("classes")["bias"]
    expected = [0.52464, 2.31793, 3.03409, 3.73882, 5.35759]
    assert np.allclose(bias[[10, 50, 100, 200, 1000]], expected, atol=1e-5)
    assert logit_bias(400) == pytest.approx(4.43779, abs=1e-5)


def test_the_map_has_the_papers_solution_on_its_line() -> None:
    """The bias paper goes from 100 to 1000 classes along a line of constant error, here of AGCE."""
    table = error_map("agce:a=0.6,q=0.6", 1000, ("a", "q"))
    target = -average_error("agce:a=0.6,q=0.6", 0.0, 100)
    line = table.dropna(subset="solution")
    assert len(line) >= 2
    for a, q in zip(line["x"], line["solution"], strict=True):
        assert -average_error(f"agce:a={a},q={q}", 0.0, 1000) == pytest.approx(target, rel=1e-6)
    middle = table[np.isclose(table["x"], 0.6) & np.isclose(table["y"], 0.6)]
    assert middle["pull"].iloc[0] == pytest.approx(-average_error("agce:a=0.6,q=0.6", 0.0, 1000))


# --- Logistic-Normal ------------------------------------------------------------------------------


def test_points_on_a_grid_of_colours_are_named() -> None:
    figure = error_map_figure("agce:a=0.6,q=0.6", 1000, ("a", "q"))
    assert [text.get_text() for text in to_matplotlib(figure).legends[0].get_texts()] == [
        "as with 100 classes"
    ]


@pytest.mark.parametrize("lam", [0.1, 0.5, 1.0])
def test_attenuation_is_the_likelihood_at_its_best_root(lam: float) -> None:
    """LN paper, Eq. 5 in one dimension, minimised over c on a grid: its label-dependent term and
    its gradient by μ.
    """
    c = torch.linspace(0, 3, 30_001, dtype=torch.float64)[:, None]  # (n, 1)
    for row in attenuation([lam])[::20].itertuples():
        error = torch.full_like(c, row.residual, requires_grad=True)
        value = negative_log_normal(error, lam, root=c)
        (slope,) = torch.autograd.grad(value.sum(), error)
        best = int(value.argmin())
        assert row.gradient == pytest.approx(float(slope[best]), rel=1e-3, abs=1e-12)
        assert row.loss == pytest.approx(
            2 * float(value[best].detach() - (c[best] ** 2 + lam).log()), rel=1e-3, abs=1e-12
        )


def test_both_densities_integrate_to_one() -> None:
    table = simplex_density()
    # area of (p_1, p_2) over that of (x, y)
    for space, jacobian in (("logits", 1.0), ("simplex", 2 / math.sqrt(3))):
        part = table[table["space"] == space]
        x, y = np.unique(part["x"]), np.unique(part["y"])
        mass = np.nansum(part["density"]) * (x[1] - x[0]) * (y[1] - y[0]) * jacobian
        assert mass == pytest.approx(1, abs=5e-3)


def test_the_simplex_has_the_density_of_the_logits_over_the_product_of_probabilities() -> None:
    """LN paper, Eq. 4 with 30 digits at one point, typed out."""
    loc, root, lam = MEAN, ROOT, LAM
    table = simplex_density()
    inside = table[(table["space"] == "simplex") & table["density"].notna()]
    row = inside.iloc[len(inside) // 2]
    with mpmath.workdps(30):
        p3 = mpmath.mpf(row["y"]) / mpmath.sqrt(mpmath.mpf(3) / 4)
        p2 = mpmath.mpf(row["x"]) - p3 / 2
        p1 = 1 - p2 - p3
        e = mpmath.matrix([mpmath.log(p1 / p3) - loc[0], mpmath.log(p2 / p3) - loc[1]])
        half = mpmath.matrix(
            [[root[i] * root[j] + (lam if i == j else 0) for j in range(2)] for i in range(2)]
        )
        covariance = half * half.T
        square = (e.T * covariance**-1 * e)[0]
        density = mpmath.exp(-square / 2) / (
            2 * mpmath.pi * mpmath.sqrt(mpmath.det(covariance)) * p1 * p2 * p3
        )
    assert row["density"] == pytest.approx(float(density), rel=1e-9)


# --- Robustness conditions ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "total"),
    [("mae", 9.0), ("rce", -9 * math.log(1e-4)), ("nce", 1.0), ("nfl", 1.0), ("nce + 2*mae", 19.0)],
)
def test_symmetric_losses_are_found_with_their_constant(spec: str, total: float) -> None:
    result = robustness(spec, 10)
    assert result.symmetric and result.total == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize(
    "spec",
    ["ce", "gce:q=0.7", "focal", "aul:a=3,q=0.7", "agce", "ael", "remargin:loss=mae,shift=3"],
)
def test_others_are_not_symmetric(spec: str) -> None:
    assert not robustness(spec, 10).symmetric


@pytest.mark.parametrize(
    ("spec", "largest"),
    [
        ("mae", 1.0),
        ("ce", 0.0),
        ("gce:q=0.7", 0.0),
        ("sce", 0.0),
        ("agce:a=0.6,q=0.6", (0.6 / 1.6) ** 0.4),  # curriculum paper, A.3
        ("agce:a=2,q=3", 1.0),
        ("ael:a=2.5", math.exp(-1 / 2.5)),
        ("aul:a=3,q=0.7", 1.0),  # A.3 swaps these two cases
        ("aul:a=2,q=3", (1 / 2) ** 2),
        ("aul:a=1.1,q=5", (0.1 / 1.1) ** 4),
        ("tce:t=3", 1 / 3),  # l' = Σ (1 − p)^(i−1): 1 at p = 1, t at p = 0
        ("phuber:tau=10", 1 / 10),
        ("unit:loss=(ael:a=2.5)", math.exp(-1 / 2.5)),
    ],
)
def test_the_largest_ratio_of_asymmetric_losses(spec: str, largest: float) -> None:
    assert robustness(spec, 10).largest_ratio == pytest.approx(largest, rel=1e-6)


def test_the_condition_is_tested_for_a_transition_matrix() -> None:
    pair = get_noise("pairflip:rate=0.3").transition(10)  # r̃ = 3/7
    result = robustness("agce:a=0.6,q=0.6", 10, pair)
    assert result.noise_ratio == pytest.approx(3 / 7) and result.asymmetric is True  # 0.675 ≥ 0.43
    assert robustness("aul:a=2,q=3", 10, pair).asymmetric is False  # 0.25 < 0.43
    assert (
        robustness("mae", 10, get_noise("pairflip:rate=0.6").transition(10)).asymmetric is False
    )  # more wrong than right
    symmetric = get_noise("symmetric:rate=0.4").transition(10)
    assert robustness("aul:a=2,q=3", 10, symmetric).noise_ratio == pytest.approx(0.4 / 9 / 0.6)
    assert robustness("nce", 10, pair).asymmetric is None  # not a function of p_y alone


def test_other_matrices_and_losses_of_more_than_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="rows that sum to one"):
        robustness("mae", 3, torch.ones(3, 3))
    with pytest.raises(ValueError, match="one row's 10 logits"):
        robustness("peer", 10)


# --- Figures and the command ----------------------------------------------------------------------


def test_the_command_draws_and_says_which_condition_holds(tmp_path: Path) -> None:
    path = tmp_path / "losses.csv"
    result = runner.invoke(
        app,
        [
            "analyze",
            "loss",
            "--losses",
            "mae,ce",
            "--classes",
            "10",
            "--noise",
            "pairflip:rate=0.4",
            "--out",
            str(path),
        ],
    )
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[1][:2] == ["mae", "yes"] and lines[1][-1] == "yes"
    assert lines[2][:2] == ["ce", "no"] and lines[2][-1] == "no"
    assert {p.name for p in tmp_path.iterdir()} == {
        f"losses-{name}.csv" for name in ("loss-weights", "average-error", "logit-bias")
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--classes or --data"),
        (["--classes", "10", "--model", "lenet5"], "--data for --model"),
        (["--data", "digits", "--classes", "11"], "Expected --classes 10"),
    ],
)
def test_the_command_refuses(options: list[str], message: str) -> None:
    result = runner.invoke(app, ["analyze", "loss", "--losses", "mae", *options])
    assert result.exit_code == 2 and message in result.stderr


def test_losses_that_have_no_conditions_are_named() -> None:
    command = ["analyze", "loss", "--classes", "10", "--losses"]
    result = runner.invoke(app, [*command, "mae,ln,peer", "--json"])
    assert result.exit_code == 0 and list(json.loads(result.stdout)) == ["mae"]
    ln, peer = result.stderr.splitlines()
    assert ln.endswith("ln, which needs logits, root") and peer.endswith(
        "peer, which depends on the other rows of a batch"
    )
    for options in (["ln"], ["peer,ln", "--json"]):
        nothing = runner.invoke(app, [*command, *options])
        assert nothing.exit_code == 2 and nothing.stdout == ""
        assert "Expected a loss of one row's 10 logits alone" in nothing.stderr
