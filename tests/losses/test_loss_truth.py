"""Values, gradients and sample weights against 60-digit arithmetic, and identities that the papers
state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mpmath import mp, mpf
from reference import (
    LOG_1E4,
    MARGIN,
    RELEASED,
    Setting,
    bitempered_truth,
    curve,
    largest_slope,
    largest_weight,
    reference,
    sigmoid,
    truth,
)
from torch import Tensor

from noiseproof.losses import LOSSES, Loss, get_loss

TOLERANCE = {torch.float64: (1e-9, 1e-12), torch.float32: (2e-5, 1e-6)}  # rtol, atol
# Number of classes, scale and centre of the logits.
CASES = [(K, scale, 0) for K in (2, 10) for scale in (1, 5, 50, 500)] + [
    (100, 1, 0),
    (100, 50, 0),
    (1000, 5, 0),
    (10, 3, 480),
    (10, 3, -480),
]
ROWS = {2: 6, 10: 6, 100: 2, 1000: 1}


def uniform_T(K: int, keep: float) -> Tensor:
    """Symmetric noise: a·I + b·(J − I)."""
    T = torch.full((K, K), (1 - keep) / (K - 1), dtype=torch.float64)
    return T.fill_diagonal_(keep)


def pair_T(K: int, keep: float) -> Tensor:
    """Each class flips to the next only: a sparse T."""
    return keep * torch.eye(K, dtype=torch.float64) + (1 - keep) * torch.eye(
        K, dtype=torch.float64
    ).roll(1, 1)


class PerK:
    """A hyperparameter that depends on the number of classes."""

    def __init__(self, name: str, make: Callable[[int], Tensor]) -> None:
        self.name, self.make = name, make

    def __repr__(self) -> str:
        return self.name


def for_classes(setting: Setting, K: int) -> Setting:
    """The setting with what depends on the number of classes filled in."""
    name, hp = setting
    return name, {
        key: value.make(K) if isinstance(value, PerK) else value for key, value in hp.items()
    }


def build(setting: Setting, **options: Any) -> Loss:
    name, hp = setting
    if name == "sum":
        terms = [c * build((term, term_hp), **options) for c, term, term_hp in hp["terms"]]
        return sum(terms[1:], terms[0])
    if name in ("remargin", "unit"):
        hp = {**hp, "loss": build(hp["loss"])}
    return get_loss(name, **hp, **options)


def label(setting: Setting) -> str:
    return f"{setting[0]}({','.join(f'{key}={value}' for key, value in setting[1].items())})"


SETTINGS: list[Setting] = [
    ("ce", {}),
    *[("focal", {"gamma": gamma}) for gamma in (0.0, 0.5, 1.0, 2.0, 5.0)],
    ("mae", {}),
    ("mae", {"scale": 2.0}),
    ("rce", {}),
    ("rce", {"A": -4.0}),
    *[("gce", {"q": q}) for q in (0.01, 0.4816, 0.7, 1.0)],
    ("tgce", {"q": 0.7, "k": 0.5}),
    ("tgce", {"q": 0.05, "k": 1e-3}),
    ("sce", {}),
    ("sce", {"alpha": 6.0, "beta": 0.1, "A": LOG_1E4}),
    ("sce", {"alpha": 0.05, "beta": 0.95, "A": -1.0}),
    *[
        ("aul", {"a": a, "q": q})
        for a, q in ((1.1, 5.0), (3.0, 0.7), (2.0, 2.0), (1.0001, 0.7), (1.0001, 3.0))
    ],
    *[
        ("agce", {"a": a, "q": q})
        for a, q in (
            (1e-5, 0.5),
            (1e-5, 0.05),
            (0.05, 0.05),
            (0.1, 0.1),
            (0.6, 0.6),
            (1.8, 3.0),
            (6.0, 1.5),
            (3.0, 4.0),
        )
    ],
    *[("ael", {"a": a}) for a in (0.1, 2.5, 10.0)],
    *[("tce", {"t": t}) for t in (1, 2, 6, 20)],
    *[("phuber", {"tau": tau}) for tau in (1.0, 2.0, 10.0, 30.0, 1e5)],
    ("nce", {}),
    *[("nfl", {"gamma": gamma}) for gamma in (0.0, 0.5, 2.0)],
    ("mse", {}),
    ("mse", {"alpha": 2.0}),
    ("brier", {}),
    *[("gls", {"r": r}) for r in (-0.4, -3.0, 0.8)],
    ("ls", {"alpha": 0.1}),
    (
        "cr",
        {
            "beta": 0.5,
            "prior": PerK(
                "ramp", lambda K: F.normalize(torch.arange(1.0, K + 1).double(), p=1, dim=0)
            ),
        },
    ),
    ("forward", {"T": PerK("uniform", lambda K: uniform_T(K, 0.6))}),
    ("forward", {"T": PerK("pair", lambda K: pair_T(K, 0.7))}),
    ("forward", {"T": PerK("eye", lambda K: torch.eye(K, dtype=torch.float64))}),
    ("backward", {"T": PerK("uniform", lambda K: uniform_T(K, 0.6))}),
    *[
        ("bitempered", {"t1": t1, "t2": t2})
        for t1, t2 in (
            (0.8, 1.2),
            (0.8, 0.8),
            (0.9, 0.8),
            (1.0, 1.4),
            (0.5, 1.0),
            (1.0, 1.0),
            (0.2, 4.0),
            (0.99, 1.01),
        )
    ],
    ("remargin", {"loss": ("mae", {}), "shift": 5.36}),
    ("remargin", {"loss": ("mae", {"scale": 2.0}), "shift": -2.3}),
    ("remargin", {"loss": ("gce", {"q": 0.7}), "shift": 3.0}),
    ("remargin", {"loss": ("ce", {}), "shift": -20.0}),
    ("remargin", {"loss": ("ce", {}), "shift": 5.36}),
    ("remargin", {"loss": ("mae", {}), "scale": 0.4}),
    ("remargin", {"loss": ("agce", {"a": 0.6, "q": 0.6}), "shift": -0.5, "scale": 0.4}),
    ("remargin", {"loss": ("ce", {}), "scale": 3.0}),
    ("remargin", {"loss": ("nce", {}), "shift": 5.36}),
    ("remargin", {"loss": ("brier", {}), "shift": -2.3}),
    ("unit", {"loss": ("gce", {"q": 0.7})}),
    ("sum", {"terms": [(10.0, "nce", {}), (0.1, "agce", {"a": 1.8, "q": 3.0})]}),
    ("sum", {"terms": [(1.0, "nfl", {"gamma": 0.5}), (20.0, "mae", {"scale": 2.0})]}),
    ("sum", {"terms": [(0.3, "ce", {}), (0.7, "mae", {})]}),
    ("sum", {"terms": [(1.0, "remargin", {"loss": ("mae", {}), "shift": 3.0}), (0.5, "ce", {})]}),
]


def test_every_loss_is_held_against_60_digits() -> None:
    """Losses of heads, batches and calibrated margins have tests of their own, in the other files
    here.
    """
    elsewhere = {
        "ln",
        "het",
        "nal",
        "elr",
        "sop",
        "peer",
        "tau-scale",
        "tau-shift",
        "multilabel",
        "asl",
    }
    assert set(LOSSES) - elsewhere <= {name for name, _ in SETTINGS}


def named(settings: list[Setting]) -> list[Any]:
    """Settings under names that can be read."""
    return [pytest.param(s, id=label(s)) for s in settings]


@cache
def batch(K: int, scale: float, centre: float) -> tuple[np.ndarray, np.ndarray]:
    """Logits exactly representable in float32, so that one truth serves both precisions, and
    labels.
    """
    rng = np.random.default_rng([K, scale, abs(centre)])
    draw = rng.normal(size=(ROWS[K], K)) if scale <= 5 else rng.uniform(-1, 1, size=(ROWS[K], K))
    z = (centre + scale * draw).astype(np.float32).astype(np.float64)
    y = rng.integers(K, size=len(z))
    if len(z) > 1 or scale in (5, 500):
        y[0] = z[0].argmax()
    if len(z) > 2:
        y[1], z[2] = z[1].argmin(), np.roll(z[2], 1)
        z[2, :2] = z[2].max()  # a tie at the top
        y[2] = 0
    return z, y


_truths: dict[tuple[str, int, float, float], tuple[np.ndarray, ...]] = {}


def truths(setting: Setting, K: int, scale: float, centre: float = 0) -> tuple[np.ndarray, ...]:
    """Logits, labels, losses (B,) and gradients (B, K) of one batch."""
    key = (label(setting), K, scale, centre)
    if key not in _truths:
        z, y = batch(K, scale, centre)
        name, hp = for_classes(setting, K)
        if name == "bitempered" and hp["t2"] < hp["t1"]:
            # The gradient is unbounded as the label leaves the support, so the label is kept
            # inside.
            y = z.argmax(1)
        rows = [truth(name, hp, tuple(row), int(k)) for row, k in zip(z, y, strict=True)]
        gradients = np.array([[float(g) for g in gradient] for _, gradient in rows])
        _truths[key] = z, y, np.array([float(value) for value, _ in rows]), gradients
    return _truths[key]


def evaluate(
    loss: Loss, z: np.ndarray, target: Tensor, dtype: torch.dtype
) -> tuple[np.ndarray, np.ndarray]:
    logits = torch.tensor(z, dtype=dtype, requires_grad=True)
    losses = loss(logits, target)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert losses.dtype == gradient.dtype == dtype
    return losses.detach().double().numpy(), gradient.double().numpy()


def excess(got: np.ndarray, want: np.ndarray, dtype: torch.dtype, slope: float) -> float:
    """Largest error in units of what is allowed; infinite where ``got`` is not finite."""
    rtol, atol = TOLERANCE[dtype]
    ratio = np.abs(got - want) / (rtol * np.abs(want) + atol * max(1.0, slope))
    return float(np.where(np.isfinite(got), ratio, np.inf).max())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("setting", named(SETTINGS))
def test_value_and_gradient(setting: Setting, dtype: torch.dtype) -> None:
    wrong = []
    for K, scale, centre in CASES:
        name, hp = for_classes(setting, K)
        loss = build((name, hp), reduction="none")
        z, y, values, gradients = truths(setting, K, scale, centre)
        got = evaluate(loss, z, torch.from_numpy(y), dtype)
        for what, have, want in zip(("value", "gradient"), got, (values, gradients), strict=True):
            if not (ratio := excess(have, want, dtype, largest_slope(name, hp))) <= 1:
                wrong.append(
                    f"{what} at K={K}, logits {centre}±{scale}: {ratio:.3g} times the allowed error"
                )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "inner", [("gls", {"r": -0.4}), ("ls", {"alpha": 0.1}), ("brier", {})], ids=label
)
def test_shift_of_a_coupled_loss_at_large_logits(inner: Setting) -> None:
    """z_y + β must not round at the size of z_y: only differences of logits matter."""
    setting = ("remargin", {"loss": inner, "shift": 5.36})
    rng = np.random.default_rng(0)
    z = (480 + 3 * rng.normal(size=(120, 4))).astype(np.float32).astype(np.float64)
    y = rng.integers(4, size=len(z))
    rows = [truth(*setting, tuple(row), int(k)) for row, k in zip(z, y, strict=True)]
    values, gradients = evaluate(
        build(setting, reduction="none"), z, torch.from_numpy(y), torch.float32
    )
    slope = largest_slope(*inner)
    assert excess(values, np.array([float(v) for v, _ in rows]), torch.float32, slope) <= 1
    assert (
        excess(
            gradients,
            np.array([[float(g) for g in grad] for _, grad in rows]),
            torch.float32,
            slope,
        )
        <= 1
    )


@pytest.mark.parametrize("setting", named([s for s in SETTINGS if s[0] != "bitempered"]))
def test_reference_equals_truth(setting: Setting) -> None:
    """The plain float64 references say the same, to their accuracy."""
    for K, scale in ((2, 1), (10, 1), (10, 5)):
        z, y, values, gradients = truths(setting, K, scale)
        name, hp = for_classes(setting, K)
        logits = torch.tensor(z, requires_grad=True)
        losses = reference(name, logits, torch.from_numpy(y), **hp)
        (gradient,) = torch.autograd.grad(losses.sum(), logits)
        np.testing.assert_allclose(losses.detach().numpy(), values, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(gradient.numpy(), gradients, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", MARGIN)
def test_paper_weight_is_the_derivative_of_its_loss(name: str) -> None:
    """The curriculum paper's printed w(p) equals −dl/dΔ of the loss as mended: the table that
    everything else rests on.
    """
    for margin in (-7, -2.5, -0.3, 0.2, 1.7, 9):
        _, weight = curve(name, {}, mpf(margin))
        slope = mp.diff(lambda d: curve(name, {}, d)[0], mpf(margin))
        assert abs(weight + slope) < mpf(10) ** -20


# --- Real-valued targets -------------------------------------------------------------------------
SOFT = [s for s in SETTINGS if s[0] not in ("bitempered", "remargin", "unit")]
SOFT = [s for s in SOFT if s[0] != "sum" or all(term != "remargin" for _, term, _ in s[1]["terms"])]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("setting", named(SOFT))
def test_noisy_real_valued_targets(setting: Setting, dtype: torch.dtype) -> None:
    """Σ_k t_k L(z, k) with Gaussian noise on the one-hot target (SLN paper, Eq. 3): entries of any
    sign and sum.
    """
    for K, scale in ((2, 5), (6, 1), (6, 50), (6, 500)):
        name, hp = for_classes(setting, K)
        rng = np.random.default_rng(K + scale)
        z = rng.uniform(-scale, scale, size=(2, K)).astype(np.float32).astype(np.float64)
        t = (np.eye(K)[[0, K - 1]] + rng.normal(size=(2, K))).astype(np.float32).astype(np.float64)
        rows = [[truth(name, hp, tuple(row), k) for k in range(K)] for row in z]
        each = np.array([[float(value) for value, _ in row] for row in rows])
        # (B, K, K)
        slopes = np.array([[[float(g) for g in gradient] for _, gradient in row] for row in rows])
        values, gradients = (t * each).sum(1), np.einsum("bk,bkj->bj", t, slopes)
        got = evaluate(build((name, hp), reduction="none"), z, torch.tensor(t, dtype=dtype), dtype)
        rtol, atol = TOLERANCE[dtype]
        slope = max(1.0, largest_slope(name, hp))
        allowed = rtol * np.abs(t * each).sum(1) + atol * slope * np.abs(t).sum(1)
        assert (np.abs(got[0] - values) <= allowed).all(), (K, scale, got[0], values)
        allowed = (
            rtol * np.einsum("bk,bkj->bj", np.abs(t), np.abs(slopes))
            + atol * slope * np.abs(t).sum(1)[:, None]
        )
        assert (np.abs(got[1] - gradients) <= allowed).all(), (K, scale, got[1], gradients)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("t1", "t2"), [(0.8, 1.2), (0.8, 0.8), (1.0, 1.0)])
def test_bitempered_soft_targets(t1: float, t2: float, dtype: torch.dtype) -> None:
    hp = {"t1": t1, "t2": t2}
    z = np.array([[0.5, -1.25, 2.0, 0.0], [3.0, 1.0, -0.5, 2.5]])
    t = np.array([[0.25, 0.25, 0.5, 0.0], [0.125, 0.625, 0.125, 0.125]])
    rows = [bitempered_truth(hp, tuple(row), target) for row, target in zip(z, t, strict=True)]
    got = evaluate(
        get_loss("bitempered", **hp, reduction="none"), z, torch.tensor(t, dtype=dtype), dtype
    )
    assert excess(got[0], np.array([float(v) for v, _ in rows]), dtype, 1) <= 1
    assert (
        excess(got[1], np.array([[float(g) for g in gradient] for _, gradient in rows]), dtype, 1)
        <= 1
    )


# --- Where the label is nearly certain -----------------------------------------------------------
VANISHING = [s for s in SETTINGS if s[0] in MARGIN and s[0] not in ("ael",)]
SURE = (10.0, 20.0, 50.0, 80.0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("setting", named([*VANISHING, ("nce", {}), ("nfl", {"gamma": 0.5})]))
def test_exact_keeps_relative_accuracy(setting: Setting, dtype: torch.dtype) -> None:
    """``exact=True``: value and gradient with relative accuracy as p_y → 1, where cross entropy has
    none left.
    """
    name, hp = setting
    z = np.array([[sure, 0.0, 0.25, -1.0] for sure in SURE])
    rows = [truth(name, hp, tuple(row), 0) for row in z]
    got = evaluate(
        build(setting, reduction="none", exact=True),
        z,
        torch.zeros(len(z), dtype=torch.long),
        dtype,
    )
    tiny = 1e-37 if dtype is torch.float32 else 1e-300
    rtol = 2e-5 if dtype is torch.float32 else 1e-9
    for have, want in ((got[0], [r[0] for r in rows]), (got[1][:, 0], [r[1][0] for r in rows])):
        for sure, h, w in zip(SURE, have, want, strict=True):
            assert abs(float(w)) < tiny or abs(h / float(w) - 1) < rtol, (sure, h, float(w))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    "setting", named([s for s in SETTINGS if s[0] in MARGIN or s[0] in ("remargin", "unit")])
)
def test_sample_weight_has_relative_accuracy(setting: Setting, dtype: torch.dtype) -> None:
    name, hp = setting
    if name == "remargin" and hp["loss"][0] not in MARGIN:
        pytest.skip("a coupled loss has no weight of the margin alone")
    margins = [float(d) for d in range(-80, 81, 4)] + [-0.5, 0.0, 0.5]
    if name in ("tgce", "phuber"):  # not where they bend: w jumps or kinks there
        margins = [d for d in margins if abs(sigmoid(mpf(d))[0] - 1 / mpf(hp.get("tau", 2))) > 1e-9]
    got = build(setting).sample_weight(torch.tensor(margins, dtype=dtype))
    assert got.dtype == dtype
    rtol = 2e-5 if dtype is torch.float32 else 1e-9
    for d, have in zip(margins, got.tolist(), strict=True):
        want = float(curve(name, hp, mpf(d))[1])
        if abs(want) > 1e-37:
            assert abs(have / want - 1) < rtol, (d, have, want)
        else:
            assert abs(have) < 1e-36


def test_sum_of_margin_losses_has_a_weight() -> None:
    weight = get_loss("0.3*ce + 0.7*mae").sample_weight(torch.tensor([1.5], dtype=torch.float64))
    want = curve("sum", {"terms": [(0.3, "ce", {}), (0.7, "mae", {})]}, mpf(1.5))[1]
    assert abs(float(weight) - float(want)) < 1e-15


@pytest.mark.parametrize("spec", ["nce", "brier", "nce + mae", "remargin:loss=nce,shift=1"])
def test_coupled_losses_have_no_sample_weight(spec: str) -> None:
    with pytest.raises(TypeError, match="other classes"):
        get_loss(spec).sample_weight(torch.zeros(1))


# --- Numbers and identities that the papers state ------------------------------------------------
@pytest.mark.parametrize(
    ("spec", "largest"),
    [
        ("ce", 1.0),
        ("mae", 0.25),
        ("gce:q=0.7", 0.316086),
        ("agce:a=0.1,q=0.1", 0.482540),
        ("focal:gamma=0.5", 1.00895),
        ("mae:scale=2", 0.5),
    ],
)
def test_largest_weight(spec: str, largest: float) -> None:
    loss = get_loss(spec)
    assert loss.max_weight == pytest.approx(largest, abs=5e-6)
    at = torch.linspace(-40, 40, 4001, dtype=torch.float64)
    assert float((loss.sample_weight(at) / loss.max_weight).max()) == pytest.approx(1, rel=1e-3)
    assert get_loss("unit", loss=spec).sample_weight(at).max() == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize(
    "setting", named([s for s in SETTINGS if s[0] in MARGIN and s[0] not in ("ce", "focal")])
)
def test_largest_weight_against_golden_section(setting: Setting) -> None:
    if setting[0] == "tgce":
        pytest.skip("w jumps where p = k, so a supremum is not attained")
    assert build(setting).max_weight == pytest.approx(float(largest_weight(*setting)), rel=1e-6)


def random_batch(B: int = 32, K: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(B, K, generator=g, dtype=torch.float64), torch.randint(
        K, (B,), generator=g
    )


@pytest.mark.parametrize(
    ("spec", "total"),
    [
        ("mae", 6.0),
        ("rce", -6 * LOG_1E4),
        ("nce", 1.0),
        ("nfl:gamma=0.5", 1.0),
        ("nfl:gamma=2", 1.0),
    ],
)
def test_symmetric_losses_sum_to_a_constant(spec: str, total: float) -> None:
    """Σ_k L(z, k) = C for every z (curriculum paper, §3.1): what makes them robust against
    symmetric noise.
    """
    logits, _ = random_batch()
    losses = get_loss(spec, reduction="none")(logits, torch.ones_like(logits))
    torch.testing.assert_close(losses, torch.full_like(losses, total))


EQUAL = [
    ("nfl:gamma=0", "nce"),
    ("gce:q=1", "mae"),
    ("tce:t=1", "mae"),
    ("focal:gamma=0", "ce"),
    ("phuber:tau=1", "mae"),
    ("sce:alpha=0.1,beta=1", "0.1*ce + rce"),
    ("sce:alpha=0.3,beta=0.7,A=-1", "0.3*ce + 0.7*mae"),
    ("rce:A=-2", "mae:scale=2"),
    ("gls:r=0.3", "ls:alpha=0.3"),
    ("gls:r=0", "ce"),
    ("mse:alpha=0", "mae"),
    ("remargin:loss=nce", "nce"),
    ("cr:beta=0", "ce"),
    ("2*(nce + mae)", "2*nce + 2*mae"),
]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_identity(left: str, right: str) -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 3e-6)):
        logits, y = random_batch()
        results = []
        for spec in (left, right):
            z = logits.to(dtype).requires_grad_()
            losses = get_loss(spec, reduction="none")(z, y)
            results.append((losses, *torch.autograd.grad(losses.sum(), z)))
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def test_mse_is_half_the_brier_score() -> None:
    """1 − p + ½ Σp² = ½ Brier + ½ (curriculum paper, A.5)."""
    logits, y = random_batch()
    mse, brier = (
        get_loss("mse", reduction="none")(logits, y),
        get_loss("brier", reduction="none")(logits, y),
    )
    torch.testing.assert_close(mse, brier / 2 + 0.5)


def test_label_smoothing_is_torchs() -> None:
    logits, y = random_batch()
    torch.testing.assert_close(
        get_loss("ls:alpha=0.2")(logits, y), F.cross_entropy(logits, y, label_smoothing=0.2)
    )


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_correction_without_noise_is_cross_entropy(name: str) -> None:
    logits, y = random_batch()
    torch.testing.assert_close(
        get_loss(name, T=torch.eye(7))(logits, y), F.cross_entropy(logits, y)
    )


def test_backward_is_unbiased() -> None:
    """E over the noisy label of the backward loss is the clean cross entropy (Patrini et al. 2017,
    Theorem 1).
    """
    logits, y = random_batch()
    T = uniform_T(7, 0.6)
    losses = get_loss("backward", T=T, reduction="none")(logits, T[y])
    torch.testing.assert_close(losses, F.cross_entropy(logits, y, reduction="none"))


def test_shift_is_cross_entropy_of_shifted_logits_in_training_only() -> None:
    logits, y = random_batch()
    shifted = logits + 3.03 * F.one_hot(y, 7)
    loss = get_loss("remargin:loss=ce,shift=3.03")
    torch.testing.assert_close(loss(logits, y), F.cross_entropy(shifted, y))
    torch.testing.assert_close(loss.eval()(logits, y), F.cross_entropy(logits, y))


def test_scale_multiplies_nothing_but_the_margin() -> None:
    """Its weight is exactly w(αΔ + β) (papers README, curriculum paper, 9)."""
    at = torch.linspace(-10, 10, 41, dtype=torch.float64)
    loss, inner = get_loss("remargin:loss=mae,shift=-0.5,scale=0.4"), get_loss("mae")
    torch.testing.assert_close(loss.sample_weight(at), inner.sample_weight(0.4 * at - 0.5))


def test_bitempered_limits() -> None:
    logits, y = random_batch()
    plain = get_loss("bitempered:t1=1,t2=1", reduction="none")(logits, y)
    torch.testing.assert_close(plain, F.cross_entropy(logits, y, reduction="none"))


@pytest.mark.parametrize("spec", ["peer:loss=mae", "cr:beta=0.5", "cr:loss=mae", "ce + peer"])
def test_the_prior_of_random_labels_waits(spec: str) -> None:
    """Before its epoch, training has the shares of all labels in its place, or of the batch where
    these are unknown.
    """
    logits, y = (
        torch.randn(8, 3, generator=torch.Generator().manual_seed(0)),
        torch.arange(8) % 3 // 2,
    )

    def with_prior(shares: Tensor, more: str = "") -> Loss:
        return get_loss(f"{spec}{',' if ':' in spec else ':'}prior={shares.tolist()}{more}")

    by_prior, waits = (
        with_prior(torch.tensor([0.25, 0.25, 0.5]), more) for more in ("", ",warmup=2")
    )
    soft = torch.eye(3)[y] * 0.5 + torch.tensor([0.125, 0.125, 0.25])
    for target, by_batch in (
        (y, with_prior(torch.eye(3)[y].mean(0))),
        (soft, with_prior(soft.mean(0))),
    ):
        for epoch, before in ((0, True), (1, True), (2, False), (9, False), (1, True)):
            waits.set_epoch(epoch)
            want = by_batch if before else by_prior
            torch.testing.assert_close(waits.train()(logits, target), want.train()(logits, target))
            torch.testing.assert_close(
                waits.eval()(logits, target), by_prior.eval()(logits, target)
            )
    # as a run does, for every batch
    waits.train().set_shares(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))
    by_all = with_prior(torch.tensor([0.5, 0.3, 0.2]))
    torch.testing.assert_close(waits(logits, y), by_all(logits, y))
    assert waits.state_dict().keys() == by_prior.state_dict().keys()


@pytest.mark.parametrize(
    "spec",
    [
        "bitempered",
        "remargin:loss=nce,shift=3",
        "tau-shift:loss=nce,num_classes=7",
        "ce + 2*bitempered",
    ],
)
def test_peer_and_cr_average_over_labels(spec: str) -> None:
    """Also where a loss has another meaning, or none, for real-valued targets: as over labels one
    by one.
    """
    logits, y = random_batch(B=8)
    inner = get_loss(spec, reduction="none")
    z = logits.clone().requires_grad_()
    every = torch.stack([inner(z, torch.full_like(y, k)) for k in range(7)], 1)  # L(z_n, k)
    taken = every @ F.one_hot(y, 7).double().mean(0)
    own = every.gather(1, y[:, None]).squeeze(1)
    prior = torch.arange(1.0, 8).double() / 28
    for loss, want in (
        (get_loss("peer", loss=spec, reduction="none"), own - taken.mean()),
        (get_loss("peer", loss=spec, prior=prior, reduction="none"), own - (every @ prior).mean()),
        (get_loss("cr", beta=0.5, loss=spec, reduction="none"), own - 0.5 * taken),
        (
            get_loss("cr", beta=0.5, prior=prior, loss=spec, reduction="none"),
            own - 0.5 * (every @ prior),
        ),
    ):
        found = loss(z, y)
        torch.testing.assert_close(found, want)
        toll = torch.linspace(1, 2, 8).double()
        slopes = [
            torch.autograd.grad(value, z, toll, retain_graph=True)[0] for value in (found, want)
        ]
        torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", ["nce", "nfl", "nfl:gamma=0", "ls"])
@pytest.mark.parametrize(("K", "scale"), [(10_000, 1), (1000, 20)])
def test_sums_over_many_classes_in_16_bits(
    spec: str, dtype: torch.dtype, K: int, scale: float
) -> None:
    """Σ_k −log p_k is 10⁵ here, more than float16 can hold; the loss and its gradient are not."""
    logits = scale * torch.randn(4, K, generator=torch.Generator().manual_seed(0))
    y, found = torch.tensor([0, 1, 2, 3]), []
    for z in (logits.to(dtype), logits.to(dtype).double()):
        z.requires_grad_()
        value = get_loss(spec, reduction="none")(z, y)
        found.append(
            [value.double(), torch.autograd.grad(value, z, torch.full_like(value, K))[0].double()]
        )
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=2 * torch.finfo(dtype).eps, atol=1e-4)
    assert (found[1][0] > 1e-5).all() and (found[1][1].abs().amax(1) > 1e-3).all()


# the second takes the way of compiled code and of GPUs
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("spec", ["nce", "nfl:gamma=0", "nfl", "nfl:gamma=2"])
def test_normalised_losses_of_a_class_that_cannot_be(spec: str, mapped: bool) -> None:
    """Σ_k −log p_k is infinite: the label's share of it is zero."""
    loss = get_loss(spec, reduction="none")
    rows = torch.func.vmap(lambda z, y: loss(z[None], y[None])[0]) if mapped else loss
    masked = torch.tensor([[1.0, -math.inf, 0.0, 2.0], [1.0, 3.0, 0.0, 2.0]])
    plain = float(loss(masked[1:], torch.tensor([0])))
    z = masked.clone().requires_grad_()
    value = rows(z, torch.tensor([0, 0]))
    torch.testing.assert_close(value, torch.tensor([0.0, plain]))
    (slope,) = torch.autograd.grad(value.sum(), z)
    assert slope.isfinite().all() and slope[0].abs().max() < 1e-30 and slope[1].abs().min() > 0.001
    # of a label that cannot be, as cross entropy is infinite
    assert not rows(z, torch.tensor([1, 0]))[0].isfinite()


def test_focal_of_a_label_that_cannot_be() -> None:
    z = torch.tensor([[1.0, -math.inf, 0.0]], requires_grad=True)
    slopes = [
        torch.autograd.grad(get_loss(spec)(z, torch.tensor([1])), z)[0] for spec in ("focal", "ce")
    ]
    torch.testing.assert_close(*slopes)  # (1 − p)^γ is one there


RELEASED_SPECS = {
    "ce": "ce",
    "gce": "gce:q=0.7",
    "mae": "mae",
    "sce": "sce:alpha=0.1,beta=1",
    "nce": "nce",
    "agce": "agce:a=0.6,q=0.6",
    "aul": "aul:a=1.1,q=5",
    "ael": "ael:a=2.5",
}


@pytest.mark.parametrize("name", RELEASED_SPECS)
def test_research_code_agrees_where_it_does_not_clamp(name: str) -> None:
    logits, y = random_batch()
    logits = logits / 4
    results = []
    for function in (RELEASED[name], get_loss(RELEASED_SPECS[name], reduction="none")):
        z = logits.clone().requires_grad_()
        losses = function(z, y)
        results.append((losses, *torch.autograd.grad(losses.sum(), z)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["peer", "cr"])
def test_a_warmup_without_a_prior_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a `prior` to wait for with `warmup`"):
        get_loss(f"{name}:warmup=2")
