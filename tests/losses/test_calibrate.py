"""Calibration against the papers' numbers and against integrals that share nothing with the code.

For z_i ~ N(0, σ²) and S = Σ_{i≠k} exp z_i over n = K − 1 logits, with φ(s) = E exp(−s e^z) the
Laplace transform:

    E[p^q] = E[(1 + e^{−z} S)^{−q}] = ∫ t^{q−1} e^{−t} φ(t e^{−z})^n dt / Γ(q)
    E[log S] = ∫ (e^{−t} − φ(t)^n)/t dt
"""

from __future__ import annotations

import functools
import math
import re

import numpy as np
import pytest
import torch
from scipy import integrate, special

from noiseproof.losses import LOSSES, Loss, describe, get_loss
from noiseproof.losses.calibrate import (
    NoSolution,
    TauScale,
    TauShift,
    calibrate,
    expected_margin,
    logit_bias,
    remargin_for,
)
from noiseproof.losses.initial import average_error
from noiseproof.losses.remargin import Remargin
from noiseproof.losses.verdict import MeanWeights, verdict

STEP = 0.02


class Laplace:
    """Averages over n = K − 1 logits through φ(e^u)^n on a grid of u."""

    def __init__(self, num_classes: int, sigma: float) -> None:
        self.sigma = sigma
        self.u = np.arange(-150.0, 12 + 9 * sigma, STEP)
        x = np.arange(-12, 12, 0.01)
        density = np.exp(-x * x / 2) * 0.01 / math.sqrt(2 * math.pi)
        missing = np.array([density @ -np.expm1(-np.exp(u + sigma * x)) for u in self.u])  # 1 − φ
        self.phi_n = np.exp((num_classes - 1) * np.log1p(-missing.clip(max=1 - 1e-16)))

    def mean_power(self, q: float, z: float) -> float:
        v = self.u + z  # log t
        return float(np.sum(np.exp(q * v - np.exp(v)) * self.phi_n) * STEP / special.gamma(q))

    def mean_log(self) -> float:
        return float(np.sum(np.exp(-np.exp(self.u)) - self.phi_n) * STEP)

    def mean_biased_p(self, epsilon: float) -> float:
        x = np.arange(-9, 9, 0.05)
        density = np.exp(-x * x / 2) * 0.05 / math.sqrt(2 * math.pi)
        return float(
            sum(
                w * self.mean_power(1.0, self.sigma * at + epsilon)
                for w, at in zip(density, x, strict=True)
            )
        )


laplace = functools.cache(Laplace)
SETTINGS = [(K, sigma) for K in (2, 3, 10, 100, 1000, 10000) for sigma in (0.1, 1.0, 2.0, 3.0)]


@pytest.mark.parametrize(
    ("num_classes", "expected"),
    [
        (2, -2.310434),
        (5, -0.412649),
        (10, 0.524640),
        (14, 0.927325),
        (20, 1.333098),
        (50, 2.317932),
        (100, 3.034087),
        (200, 3.738821),
        (400, 4.437792),
        (1000, 5.357589),
        (10000, 7.662283),
    ],
)
def test_logit_bias_has_the_known_values(num_classes: int, expected: float) -> None:
    assert logit_bias(num_classes) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("num_classes", "sigma"), SETTINGS)
def test_averages_equal_their_laplace_integrals(num_classes: int, sigma: float) -> None:
    reference = laplace(num_classes, sigma)
    assert expected_margin(num_classes, sigma=sigma) == pytest.approx(
        -reference.mean_log(), abs=1e-7
    )
    assert reference.mean_biased_p(logit_bias(num_classes, sigma=sigma)) == pytest.approx(
        0.15, abs=1e-7
    )
    for q in (0.3, 0.7, 1.0):
        for z in (-3.0, 0.0, 4.0):
            # −E[p^q (1 − p)]
            expected = reference.mean_power(q + 1, z) - reference.mean_power(q, z)
            found = average_error(f"gce:q={q}", z, num_classes, sigma=sigma)
            assert found == pytest.approx(expected, rel=1e-7), (q, z)


@pytest.mark.parametrize("C", [1e-12, 1e-6, 0.5, 0.999])
def test_logit_bias_reaches_any_probability(C: float) -> None:
    assert laplace(10, 1.0).mean_biased_p(logit_bias(10, C)) == pytest.approx(C, rel=1e-7)


@pytest.mark.parametrize(
    ("num_classes", "sigma", "expected"),
    [
        (10, 1, -2.61622),
        (50, 1, -4.37507),
        (100, 1, -5.08666),
        (200, 1, -5.78904),
        (400, 1, -6.48682),
        (1000, 1, -7.40590),
        (2, 1, 0.0),
        (10, 2, -3.6327),
    ],
)
def test_expected_margin_has_the_known_values(
    num_classes: int, sigma: float, expected: float
) -> None:
    assert expected_margin(num_classes, sigma=sigma) == pytest.approx(
        expected, abs=6e-6 if sigma == 1 else 6e-5
    )


@pytest.mark.parametrize("sigma", [1e-300, 1e-18, 1e-6, 1e-3])
def test_equal_logits_are_the_limit_of_small_sigma(sigma: float) -> None:
    assert expected_margin(100, sigma=sigma) == pytest.approx(
        -math.log(99) - sigma**2 / 2 * 98 / 99, abs=1e-9
    )
    assert average_error("ce", 0.0, 100, sigma=sigma) == pytest.approx(-0.99, abs=1e-6)


@pytest.mark.parametrize(
    ("spec", "num_classes", "expected", "tolerance"),
    [
        ("gce:q=0.7", 100, -0.028234, 5e-7),  # The bias paper prints −0.279
        ("nce+agce@bias:num_classes=100", 100, -0.02145, 5e-6),
        ("100*nce + 0.7*agce:a=0.05,q=0.05", 1000, -0.02073, 5e-6),
    ],
)
def test_average_error_has_the_known_values(
    spec: str, num_classes: int, expected: float, tolerance: float
) -> None:
    assert average_error(spec, 0.0, num_classes) == pytest.approx(expected, abs=tolerance)


def test_average_error_of_two_classes_is_one_integral() -> None:
    def mean(weight) -> float:  # over the other logit
        points = [math.log(0.3 / 0.7)]
        return integrate.quad(
            lambda x: weight(special.expit(-x)) * math.exp(-x * x / 2), -12, 12, points=points
        )[0]

    scale = math.sqrt(2 * math.pi)
    cases = {
        "focal:gamma=2": lambda p: (1 - p) ** 2 * (1 - p - 2 * p * math.log(p)),
        "aul:a=1.1,q=5": lambda p: p * (1 - p) * (1.1 - p) ** 4,
        "ael:a=2.5": lambda p: p * (1 - p) * math.exp(-p / 2.5) / 2.5,
        "phuber:tau=2": lambda p: min(1, 2 * p) * (1 - p),
        "remargin:loss=mae,shift=1.5,scale=0.5": lambda p: (
            (s := special.expit(0.5 * special.logit(p) + 1.5)) * (1 - s)
        ),
    }
    for spec, weight in cases.items():
        assert average_error(spec, 0.0, 2) == pytest.approx(-mean(weight) / scale, rel=1e-6), spec
    jump = mean(lambda p: p**0.7 * (1 - p) * (p > 0.7)) / scale  # p = 0.7 ⇔ x = log(0.3/0.7)
    assert average_error("tgce:q=0.7,k=0.7", 0.0, 2) == pytest.approx(-jump, rel=1e-3)


@pytest.mark.parametrize(
    ("num_classes", "k"), [(2, 0.7), (3, 0.7), (3, 0.5), (10, 0.2), (10, 0.1), (30, 0.02)]
)
def test_average_error_of_a_weight_with_a_jump(num_classes: int, k: float) -> None:
    # S = Σ exp z_i itself up to (1 − k)/k, where p = k: its density is a repeated convolution.
    end, n = (1 - k) / k, 2**13
    s = np.arange(1, n + 1) * end / n
    density = np.exp(-(np.log(s) ** 2) / 2) / s / math.sqrt(2 * math.pi)
    total = density
    for _ in range(num_classes - 2):
        total = np.append(0.0, np.convolve(total, density)[: n - 1]) * end / n
    p = 1 / (1 + s)
    expected = -integrate.trapezoid(np.append(0.0, p**0.7 * (1 - p) * total), dx=end / n)
    assert average_error(f"tgce:q=0.7,k={k}", 0.0, num_classes) == pytest.approx(expected, rel=5e-4)


def nce_error(p: np.ndarray) -> np.ndarray:
    """∂/∂z_0 of log p_0/Σ_k log p_k, (B, K) → (B,)."""
    total, K = np.log(p).sum(1), p.shape[1]
    return (1 - p[:, 0]) / total - np.log(p[:, 0]) * (1 - K * p[:, 0]) / total**2


def test_sampled_error_of_two_classes_is_one_integral() -> None:
    def integrand(x: float) -> float:
        p = special.softmax(np.array([[0.5, x]]), axis=1)
        return float(nce_error(p)[0]) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    expected = integrate.quad(integrand, -12, 12)[0]
    assert average_error("nce", 0.5, 2) == pytest.approx(expected, rel=5e-4)


@pytest.mark.parametrize(("num_classes", "sigma"), [(10, 1.0), (100, 2.0)])
def test_sampled_error_equals_an_independent_sample(num_classes: int, sigma: float) -> None:
    logits = np.random.default_rng(7).normal(size=(4_000_000 // num_classes, num_classes)) * sigma
    logits[:, 0] = 1.0
    errors = nce_error(special.softmax(logits, axis=1))
    spread = errors.std() / math.sqrt(len(errors))
    assert average_error("nce", 1.0, num_classes, sigma=sigma) == pytest.approx(
        errors.mean(), abs=4 * spread
    )


@pytest.mark.parametrize("num_classes", [2, 50, 1000, 10000])
@pytest.mark.parametrize(("z", "sigma"), [(0.0, 1.0), (3.0, 2.0), (-3.0, 0.1)])
def test_label_smoothing_is_exact_by_its_control(num_classes: int, z: float, sigma: float) -> None:
    ce = average_error("ce", z, num_classes, sigma=sigma)  # p − 1; smoothing takes α(1/K − 1) of −1
    smoothed = average_error("ls:alpha=0.3", z, num_classes, sigma=sigma)
    assert smoothed == pytest.approx(ce + 0.3 * (1 - 1 / num_classes), rel=1e-12)


@pytest.mark.parametrize("num_classes", [2, 30, 5000])
def test_losses_of_a_batch_see_every_class_equally_often(num_classes: int) -> None:
    # CR without a prior: δ = p − 1 + β(1/K − p) is constant at β = 1; peer of cross entropy is the
    # same.
    # its random draws are averaged over
    for spec in ("cr:beta=1", "peer:loss=ce"):
        assert average_error(spec, 0.0, num_classes) == pytest.approx(
            -1 + 1 / num_classes, rel=1e-9
        )
    # The sum of MAE over all labels is constant, so that peer takes nothing of its gradient away.
    mae = average_error("mae", 0.0, num_classes)
    assert average_error("peer:loss=mae", 0.0, num_classes) == pytest.approx(mae, rel=1e-6)


def test_a_loss_that_depends_on_the_batch_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"doesn't depend on the batch, got `remargin:loss=\(cr.*`prior`"
    ):
        average_error("remargin:loss=(cr:beta=1)", 0.0, 10)


def test_average_error_takes_tensors_losses_and_sums() -> None:
    z = torch.tensor([[0.0, 3.0], [6.0, -2.0]])
    errors = average_error(get_loss("mae:scale=2"), z, 100)
    assert errors.shape == z.shape and errors.dtype is torch.float64
    assert errors[1, 0] == average_error("mae:scale=2", 6.0, 100)
    total = average_error("2*ce + 0.5*mae:scale=2", 3.0, 100)
    assert total == pytest.approx(2 * average_error("ce", 3.0, 100) + 0.5 * float(errors[0, 1]))


def test_a_logit_bias_moves_the_error_along_z() -> None:
    biased = get_loss("remargin:loss=mae,shift=3.0")
    assert average_error(biased, 0.0, 100) == pytest.approx(average_error("mae", 3.0, 100))
    assert average_error(biased.eval(), 0.0, 100) == pytest.approx(average_error("mae", 0.0, 100))


@pytest.mark.parametrize(
    ("num_classes", "q"), [(50, 0.812425), (200, 0.615622), (400, 0.549655), (1000, 0.481581)]
)
def test_calibrate_gce_has_the_known_values(num_classes: int, q: float) -> None:
    found = calibrate("gce:q=0.7", num_classes)
    assert found.params["q"] == pytest.approx(q, abs=1e-6)
    assert isinstance(found.loss, Loss) and found.loss.hyperparameters == found.params
    assert (found.num_classes, found.like, found.curve) == (num_classes, 100, ())
    assert found.error == pytest.approx(-0.028234, abs=5e-7)


@pytest.mark.parametrize(
    ("spec", "free"),
    [
        ("mae", None),
        ("rce", None),
        ("focal", None),
        ("ael:a=2.5", None),
        ("phuber", None),
        ("aul", "q"),
        ("aul", "a"),
        ("agce:a=1e-5,q=0.5", "q"),
        ("agce", "a"),
        ("sce", "alpha"),
        ("sce", "beta"),
        ("remargin:loss=mae", "shift"),
        ("remargin:loss=mae,shift=1.0", "scale"),
        ("gls:r=-0.4", None),
        ("mse:alpha=2000", None),
        ("10*nce + 0.1*agce:a=1.8,q=3", "agce.q"),
        ("10*nce + 0.1*agce:a=1.8,q=3", "nce.factor"),
    ],
)
def test_calibrate_keeps_the_error(spec: str, free: str | None) -> None:
    loss = get_loss(spec)
    found = calibrate(loss, 300, like=100, free=free, check=False)
    assert found.loss is not None
    assert found.error == pytest.approx(average_error(loss, 0.0, 100), rel=1e-12)
    assert average_error(found.loss, 0.0, 300) == pytest.approx(found.error, rel=1e-9)
    changed = {
        name
        for name, value in loss.hyperparameters.items()
        if found.loss.hyperparameters[name] is not value
    }
    assert set(found.params) <= changed


@pytest.mark.parametrize("num_classes", [10, 20, 22])
def test_calibrate_says_where_there_is_no_solution(num_classes: int) -> None:
    with pytest.raises(NoSolution, match=r"No `q` of `gce:q=0.7`.*to q = 1, the ends") as error:
        calibrate("gce:q=0.7", num_classes, check=False)  # q(20) would be 1.0387
    assert f"{average_error('gce:q=1', 0.0, num_classes):.6g}" in str(error.value)


def test_calibrate_has_nothing_to_change_or_to_match() -> None:
    for spec in ("ce", "tce:t=2"):  # a whole number can't be solved for
        with pytest.raises(NoSolution, match="no real-valued hyperparameter"):
            calibrate(spec, 1000, check=False)
    with pytest.raises(NoSolution, match="no error at 10000 classes"):
        calibrate("tgce:q=0.7,k=0.5", 100, like=10000, free="q", check=False)


def test_calibrate_a_pair_returns_the_curve() -> None:
    loss = get_loss("nce+agce@bias", num_classes=100)
    found = calibrate(loss, 1000, free=("agce.q", "agce.a"), check=False)
    assert (found.loss, found.params) == (None, {})
    assert found.error == pytest.approx(-0.02145, abs=5e-6)
    assert len(found.curve) > 10
    for point in found.curve[::4]:
        assert set(point) == {"agce.q", "agce.a"}
        assert average_error(loss.with_hyperparameters(**point), 0.0, 1000) == pytest.approx(
            found.error, rel=1e-8
        )


def test_calibrate_finds_the_papers_choice_on_the_curve() -> None:
    # bias paper, appendix 4: α = 100, β = 0.7, b = q = 0.05 at 1000 classes, from the error −0.021
    # at 100.
    start = get_loss("100*nce + 0.7*agce:a=0.05,q=0.05")
    found = calibrate(
        start, 1000, like=1000, free=("agce.a", "agce.q"), grid=[0.05, 0.04], check=False
    )
    assert found.curve[0] == pytest.approx({"agce.a": 0.05, "agce.q": 0.05}, rel=1e-6)
    assert found.error == pytest.approx(-0.021, abs=5e-4)


def test_calibrate_never_makes_a_factor_negative() -> None:
    found = calibrate(
        "10*nce + 0.1*agce:a=1.8,q=3",
        1000,
        free=("nce.factor", "agce.factor"),
        grid=[100, 1000],
        check=False,
    )
    # 1000·NCE alone is already too much
    assert [point["nce.factor"] for point in found.curve] == [100]
    with pytest.raises(NoSolution, match="No pair of `nce.factor` and `agce.factor`"):
        calibrate(
            "10*nce + 0.1*agce:a=1.8,q=3",
            1000,
            free=("nce.factor", "agce.factor"),
            grid=[1000, 2000],
            check=False,
        )


@pytest.mark.parametrize("num_classes", [3, 100, 1000])
def test_tau_moves_the_mean_margin(num_classes: int) -> None:
    mean = expected_margin(num_classes)
    shifted, scaled = (
        remargin_for("mae", num_classes, by=by, tau=2.0) for by in ("shift", "scale")
    )
    assert mean + shifted.shift == pytest.approx(-2.0)
    assert mean * scaled.scale == pytest.approx(-2.0)
    at_tau = get_loss("mae").sample_weight(torch.tensor([-2.0], dtype=torch.float64))
    for loss in (shifted, scaled):
        assert isinstance(loss, Remargin)
        assert torch.allclose(loss.sample_weight(torch.tensor([mean], dtype=torch.float64)), at_tau)


@pytest.mark.parametrize("name", ["tau-shift", "tau-scale"])
def test_tau_losses_speak_the_grammar(name: str) -> None:
    loss = get_loss(f"{name}:loss=mae,num_classes=100,tau=2.6", reduction="none")
    logits, target = (
        torch.randn(5, 100, generator=torch.Generator().manual_seed(0)),
        torch.arange(5),
    )
    plain = Remargin("mae", shift=loss.shift, scale=loss.scale, reduction="none")
    assert torch.equal(loss(logits, target), plain(logits, target))
    assert str(get_loss(str(loss))) == str(loss)
    assert loss.with_hyperparameters(tau=2.0).tau == 2.0
    assert name in LOSSES and describe(name)["formula"] and describe(name)["source"]


def test_a_coupled_loss_can_be_shifted_but_not_scaled() -> None:
    assert remargin_for("nce", 100).kind == "other"
    with pytest.raises(ValueError, match="Expected a margin loss to scale"):
        remargin_for("nce", 100, by="scale")
    with pytest.raises(ValueError, match="at least 3"):
        TauScale("mae", 2)
    with pytest.raises(TypeError, match="shift"):
        TauShift("mae", 100, shift=1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: logit_bias(1), "`num_classes` to be an integer of at least 2, got 1"),
        (lambda: logit_bias(10.5), "`num_classes`"),  # type: ignore[arg-type]
        (lambda: logit_bias(10, 0.0), "`C` in (0, 1), got 0.0"),
        (lambda: logit_bias(10, 1.0), "`C` in (0, 1), got 1.0"),
        (lambda: logit_bias(10, sigma=0), "`sigma` in (0, 1e6], got 0"),
        (lambda: expected_margin(10, sigma=1e300), "`sigma` in (0, 1e6], got 1e+300"),
        (lambda: expected_margin(10, sigma=-1), "`sigma`"),
        (lambda: expected_margin(10, sigma=math.nan), "`sigma`"),
        (lambda: average_error("ce", math.inf, 10), "`z` in (-inf, inf), got inf"),
        (lambda: average_error("ce", 0.0, 1), "`num_classes`"),
        (lambda: average_error("cee", 0.0, 10), "Unknown loss 'cee'"),
        (lambda: calibrate("gce", 1), "`num_classes`"),
        (lambda: calibrate("gce", 10, like=1), "`like` to be an integer of at least 2, got 1"),
        (lambda: calibrate("gce", 10, sigma=0), "`sigma`"),
        (
            lambda: calibrate("gce", 10, free="p"),
            "`free` among the real hyperparameters of `gce:q=0.7` (q), got 'p'",
        ),
        (lambda: calibrate("tce", 10, free="t"), "(none), got 't'"),
        (lambda: calibrate("aul", 10), "Choose which one, or which pair, is free: a, q"),
        (lambda: calibrate("aul", 10, free=("a", "a")), "pair of different names"),
        (lambda: calibrate("gce", 1000, grid=[1.0]), "`grid` with a pair"),
        (lambda: remargin_for("mae", 100, by="turn"), "`by` to be one of shift, scale, got 'turn'"),  # type: ignore[arg-type]
        (lambda: remargin_for("mae", 100, tau=-1.0), "`tau` in (0, inf), got -1.0"),
        (lambda: remargin_for("mae", 1), "`num_classes`"),
    ],
)
def test_bad_input_is_refused_by_name(call, message: str) -> None:
    with pytest.raises(ValueError) as error:
        call()
    assert message in str(error.value)


def test_a_loss_that_needs_a_head_is_refused() -> None:
    class NeedsRoot(Loss):
        needs = frozenset({"logits", "root"})

    with pytest.raises(ValueError, match="needs logits, root"):
        average_error(NeedsRoot(), 0.0, 10)


# --- Only what learns is given -------------------------------------------------------------------
def answer(loss: Loss | None, num_classes: int) -> str:
    assert loss is not None
    return verdict(loss, MeanWeights(num_classes, None, 1.0)).answer


@pytest.mark.parametrize(
    ("spec", "num_classes", "free"),
    [
        ("gce:q=0.7", 1000, None),
        ("sce", 1000, "alpha"),
        ("10*nce + 0.1*agce:a=1.8,q=3", 200, "nce.factor"),
    ],
)
def test_a_solution_that_learns_is_given_as_it_is(
    spec: str, num_classes: int, free: str | None
) -> None:
    found = calibrate(spec, num_classes, free=free)
    assert found.note == ""
    assert found.params == calibrate(spec, num_classes, free=free, check=False).params
    assert answer(found.loss, num_classes) == "learns"


@pytest.mark.parametrize(
    ("spec", "num_classes", "reason"),
    [
        ("gce:q=0.95", 1000, "does not learn 1000 classes: a label that falls 3 behind"),
        ("gce:q=0.95", 200, "does not learn 200 classes"),
        ("aul:a=1.1,q=5", 70, "does not learn 70 classes"),
    ],
)
def test_the_nearest_that_learns_takes_the_place_of_what_does_not(
    spec: str, num_classes: int, reason: str
) -> None:
    """No value of a grid of its own is nearer to the error to be matched and learns."""
    loss = get_loss(spec)
    found = calibrate(loss, num_classes, free="q")
    assert reason in found.note and answer(found.loss, num_classes) == "learns"
    target = average_error(loss, 0.0, 100)
    distance = abs(average_error(found.loss or loss, 0.0, num_classes) - target)
    assert (
        found.error == pytest.approx(average_error(found.loss or loss, 0.0, num_classes))
        and distance > 1e-4
    )
    for q in [0.01 * 1.08**step for step in range(90)]:
        try:
            other = loss.with_hyperparameters(q=q)
        except ValueError:  # out of its range
            continue
        if abs(average_error(other, 0.0, num_classes) - target) < 0.999 * distance - 1e-4:
            assert answer(other, num_classes) != "learns", q


@pytest.mark.parametrize(
    ("spec", "free"), [("aul", "q"), ("gce", None), ("mae", None), ("aul", ("a", "q"))]
)
def test_what_learns_as_it_is_stays_where_no_solution_does(
    spec: str, free: str | tuple[str, str] | None
) -> None:
    """The nearest that learned was on the threshold itself, and slower than what was given (issue
    27).
    """
    given = get_loss(spec)
    found = calibrate(given, 10, free=free, grid=[1.1] if isinstance(free, tuple) else None)
    assert found.loss == given and found.note.endswith(f"`{given}` learns 10 classes as it is.")
    assert found.params == {name: given.hyperparameters[name] for name in found.params} != {}
    assert found.error == pytest.approx(average_error(given, 0.0, 10))


def test_what_no_value_makes_learn_is_refused_with_what_does() -> None:
    """MAE's scale changes nothing about which labels are left behind, and AUL's weight is small at
    1000 classes.
    """
    for spec, free in (("mae", None), ("aul", "q")):
        with pytest.raises(
            NoSolution, match=r"does not learn 1000 classes.*No other `\w+` learns 1000 classes"
        ) as refused:
            calibrate(spec, 1000, free=free)
        instead = str(refused.value).rpartition("` learns 1000 classes")[0].rpartition("`")[2]
        assert answer(get_loss(instead), 1000) == "learns"
    with pytest.raises(
        NoSolution,
        match="no real-valued hyperparameter to change. `ce` learns 100 classes as it is.",
    ):
        calibrate("ce", 100)


def test_a_slower_solution_is_given_where_the_loss_does_not_learn_faster() -> None:
    """A tenth of CE needs ten times the steps at any number of classes; 0.09·MAE is slow where MAE
    is not.
    """
    assert calibrate("0.1*ce", 100, like=100, free="ce.factor").note == ""
    slow = (
        "`mae:scale=0.0925926.*` has that average error and learns 10 classes more slowly: .* 56.4"
        " times the steps"
    )
    assert re.match(slow, calibrate("mae", 10).note)


def test_only_the_points_of_a_curve_that_learn_are_given() -> None:
    every = calibrate("agce:a=0.1,q=0.1", 200, like=10, free=("a", "q"), check=False).curve
    found = calibrate("agce:a=0.1,q=0.1", 200, like=10, free=("a", "q")).curve
    learning = [point for point in every if answer(get_loss("agce", **point), 200) == "learns"]
    assert list(found) == learning and 0 < len(found) < len(every)
    with pytest.raises(
        NoSolution,
        match="Each of the 15 pairs has that average error and does not learn 1000 classes",
    ):
        calibrate("agce:a=0.6,q=0.6", 1000, free=("a", "q"))
