"""Every loss typed from the papers, independent of ``src``: what the tests hold noiseproof against.

Three things, in this order:

* ``reference(name, logits, target, **hp)``: plain float64, as naive and as readable as the formula;
* ``truth(name, hp, z, y)``: value and gradient of one row in 60-digit arithmetic;
* ``released_*``: the losses as research code writes them (softmax, clamp, one-hot), the benchmarks'
  baselines.

The papers are those of ``shared/papers``, with the misprints that its README lists corrected. A
setting is ``(name, hp)``; ``("sum", {"terms": [(c, name, hp), …]})`` and ``("remargin", {"loss":
(name, hp), "shift": β, "scale": α})`` nest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mpmath import mp, mpf
from torch import Tensor

mp.dps = 60
LOG_1E4 = math.log(1e-4)  # what the released SCE code puts for log 0
Setting = tuple[str, dict[str, Any]]


class Digits:
    """The functions of ``torch`` that the formulas below use, in 60 digits."""

    exp, log = staticmethod(mp.exp), staticmethod(mp.log)
    where = staticmethod(lambda condition, yes, no: yes if condition else no)


# --- Losses of the label's probability alone -----------------------------------------------------
# Each as (loss, weight w = −dl/dΔ) of p, u = 1 − p and n = −log p, with m = torch or Digits.
# Losses: curriculum paper, Table 1, Table 6 and A.1-A.4; bias paper, Table 1. Weights: curriculum
# paper, Tables 1 and 6; tgce, phuber by hand.
Curve = tuple[Callable[..., Any], Callable[..., Any]]
MARGIN: dict[str, Curve] = {
    "ce": (lambda m, p, u, n: n, lambda m, p, u, n: u),
    "focal": (
        lambda m, p, u, n, gamma=2.0: u**gamma * n,
        lambda m, p, u, n, gamma=2.0: u**gamma * (u + gamma * p * n),
    ),
    "mae": (lambda m, p, u, n, scale=1: scale * u, lambda m, p, u, n, scale=1: scale * p * u),
    "rce": (  # with the minus that curriculum paper, A.2 lost
        lambda m, p, u, n, A=LOG_1E4: -A * u,
        lambda m, p, u, n, A=LOG_1E4: -A * p * u,
    ),
    "gce": (lambda m, p, u, n, q=0.7: (1 - p**q) / q, lambda m, p, u, n, q=0.7: p**q * u),
    "tgce": (  # Zhang & Sabuncu 2018, Eq. 8
        lambda m, p, u, n, q=0.7, k=0.5: m.where(p > k, (1 - p**q) / q, (1 - k ** (q + 0 * p)) / q),
        lambda m, p, u, n, q=0.7, k=0.5: m.where(p > k, p**q * u, 0 * p),
    ),
    "sce": (
        lambda m, p, u, n, alpha=0.1, beta=1.0, A=LOG_1E4: alpha * n - beta * A * u,
        lambda m, p, u, n, alpha=0.1, beta=1.0, A=LOG_1E4: alpha * u - beta * A * p * u,
    ),
    "aul": (  # a − p as (a − 1) + u
        lambda m, p, u, n, a=1.1, q=5.0: ((a - 1 + u) ** q - (a - 1 + 0 * p) ** q) / q,
        lambda m, p, u, n, a=1.1, q=5.0: p * u * (a - 1 + u) ** (q - 1),
    ),
    "agce": (  # with the ^q that the curriculum paper dropped on (a + 1)
        lambda m, p, u, n, a=0.6, q=0.6: ((a + 1 + 0 * p) ** q - (a + p) ** q) / q,
        lambda m, p, u, n, a=0.6, q=0.6: p * (a + p) ** (q - 1) * u,
    ),
    "ael": (
        lambda m, p, u, n, a=2.5: m.exp(-p / a),
        lambda m, p, u, n, a=2.5: p * u * m.exp(-p / a) / a,
    ),
    "tce": (
        lambda m, p, u, n, t=2: sum(u**i / i for i in range(1, t + 1)),
        lambda m, p, u, n, t=2: p * sum(u**i for i in range(1, t + 1)),
    ),
    "phuber": (  # Menon et al. 2020
        lambda m, p, u, n, tau=10.0: m.where(tau * p > 1, n, -tau * p + m.log(tau + 0 * p) + 1),
        lambda m, p, u, n, tau=10.0: m.where(tau * p > 1, u, tau * p * u),
    ),
}


# --- float64 references --------------------------------------------------------------------------
def per_class(name: str, logits: Tensor, **hp: Any) -> Tensor:
    """L(z, k) for every class k in the role of the label, (B, K)."""
    log_p = torch.log_softmax(logits, 1)
    p, n = log_p.exp(), -log_p
    K = logits.shape[1]
    if name in MARGIN:
        return MARGIN[name][0](torch, p, 1 - p, n, **hp)
    if name == "nce":  # curriculum paper, Table 1
        return n / n.sum(1, keepdim=True)
    if name == "nfl":  # Ma et al. 2020 (bias paper, Table 1 misprints it)
        weight = (1 - p) ** hp.get("gamma", 0.5)
        focal = (weight.detach() if hp.get("detach") else weight) * n
        return focal / focal.sum(1, keepdim=True)
    if name == "mse":  # curriculum paper, A.5
        return 1 - p + hp.get("alpha", 0.5) * (p**2).sum(1, keepdim=True)
    if name == "brier":  # curriculum paper, A.5: Σ_i (1(i = k) − p_i)²
        return ((torch.eye(K, dtype=p.dtype) - p[:, None, :]) ** 2).sum(2)
    if name in ("gls", "ls"):  # curriculum paper, A.5, Eq. 7
        r = hp.get("r", hp.get("alpha", 0.1))
        return (1 - r) * n + r / K * n.sum(1, keepdim=True)
    if name == "cr":  # curriculum paper, A.5, Eq. 6
        return n - hp.get("beta", 1.0) * (n * torch.as_tensor(hp["prior"], dtype=p.dtype)).sum(
            1, keepdim=True
        )
    if name == "forward":  # Patrini et al. 2017; T[i, j] = P(given j | true i)
        return -torch.log(p @ torch.as_tensor(hp["T"], dtype=p.dtype))
    if name == "backward":
        return n @ torch.linalg.inv(torch.as_tensor(hp["T"], dtype=p.dtype)).T
    if name == "remargin":  # bias paper, Eq. 4, curriculum paper, §5.1.1
        inner, shift, scale = hp["loss"], hp.get("shift", 0.0), hp.get("scale", 1.0)
        if scale == 1:
            # row k has its own shifted logit
            moved = logits[:, None, :] + shift * torch.eye(K, dtype=p.dtype)
            losses = torch.stack(
                [per_class(inner[0], moved[:, k], **inner[1])[:, k] for k in range(K)], 1
            )
            return losses
        others = (
            logits[:, None, :].masked_fill(torch.eye(K, dtype=torch.bool), -torch.inf).logsumexp(2)
        )
        p = torch.sigmoid(scale * (logits - others) + shift)
        return MARGIN[inner[0]][0](torch, p, 1 - p, -torch.log(p), **inner[1]) / scale
    if name == "unit":  # curriculum paper, §5
        inner = hp["loss"]
        return per_class(inner[0], logits, **inner[1]) / float(largest_weight(*inner))
    if name == "sum":
        return sum(c * per_class(term, logits, **term_hp) for c, term, term_hp in hp["terms"])
    raise KeyError(name)


def expected_margin(num_classes: int, sigma: float = 1.0) -> float:
    """E[Δ_y] of N(0, σ²) logits: −E[log S] of S = Σ_{i≠y} exp z_i, with E[log S] = ∫ (e^(−s) −
    E[e^(−sS)]) ds/s.
    """
    x, z = np.arange(-60, 12, 0.02), np.arange(-9, 9, 0.02)  # s = e^x
    one = (
        np.exp(-np.exp(x[:, None] + sigma * z))
        @ np.exp(-(z**2) / 2)
        * 0.02
        / math.sqrt(2 * math.pi)
    )
    return -float((np.exp(-np.exp(x)) - one ** (num_classes - 1)).sum() * 0.02)


def retau(name: str, hp: dict[str, Any]) -> Setting:
    """curriculum paper, §5.1.1: shift by |E[Δ]| − τ or scale by τ/|E[Δ]|; τ is |E[Δ]| of 10 classes
    where not given.
    """
    size, tau = -expected_margin(hp["num_classes"]), hp.get("tau", -expected_margin(10))
    moved = {"shift": size - tau} if name == "tau-shift" else {"scale": tau / size}
    return "remargin", {"loss": hp["loss"], **moved}


def reference(name: str, logits: Tensor, target: Tensor, **hp: Any) -> Tensor:
    """The loss of each row, (B,), for class labels (B,) or real-valued targets (B, K)."""
    K = logits.shape[1]
    if name in ("tau-shift", "tau-scale"):
        name, hp = retau(name, hp)
    if name == "bitempered":
        return bitempered(logits, target, **hp)
    if name == "remargin" and hp["loss"][0] == "peer":
        return reference(
            *hp["loss"][:1], logits + hp["shift"] * F.one_hot(target, K), target, **hp["loss"][1]
        )
    if name == "peer" or (name == "cr" and "prior" not in hp):
        t = target if target.dim() == 2 else F.one_hot(target, K).to(logits.dtype)
        if name == "cr":
            return reference("cr", logits, target, prior=t.mean(0), **hp)
        inner, inner_hp = hp.get("loss", ("ce", {}))
        # L(z_n, k); row m's label is k for a share of the rows
        every = per_class(inner, logits, **inner_hp)
        drawn = t.T if "prior" not in hp else torch.as_tensor(hp["prior"], dtype=every.dtype)
        return (t * (every - (every @ drawn).mean())).sum(1)
    losses = per_class(name, logits, **hp)
    return (
        losses.gather(1, target[:, None]).squeeze(1)
        if target.dim() == 1
        else (target * losses).sum(1)
    )


def log_t(x: Tensor, t: float) -> Tensor:
    """Tempered logarithm (Amid et al. 2019, Eq. 4)."""
    return x.log() if t == 1 else (x ** (1 - t) - 1) / (1 - t)


def exp_t(x: Tensor, t: float) -> Tensor:
    """Tempered exponential (Amid et al. 2019, Eq. 5)."""
    return x.exp() if t == 1 else (1 + (1 - t) * x).clamp_min(0) ** (1 / (1 - t))


def smoothed(target: Tensor, num_classes: int, smoothing: float) -> Tensor:
    """Labels with 1 − s on the true class and s/(K − 1) on each other class."""
    t = target if target.dim() == 2 else F.one_hot(target, num_classes).double()
    return t * (1 - smoothing * num_classes / (num_classes - 1)) + smoothing / (num_classes - 1)


def bregman(p: Tensor, t: Tensor, t1: float) -> Tensor:
    """Σ t (log_t1 t − log_t1 p) − (t^(2−t1) − p^(2−t1))/(2 − t1), with 0·log 0 = 0."""
    cross = torch.where(t > 0, t * (log_t(t.clamp_min(1e-300), t1) - log_t(p, t1)), 0)
    return (cross - (t ** (2 - t1) - p ** (2 - t1)) / (2 - t1)).sum(1)


def tempered_softmax(logits: Tensor, t2: float) -> Tensor:
    """exp_t2(z − λ) with λ such that it sums to one: λ between max z and the value for K equal
    logits, bisected.
    """
    z = logits.detach()
    low = z.amax(1, keepdim=True)
    high = low - log_t(torch.tensor(1 / z.shape[1], dtype=z.dtype), t2)
    for _ in range(200):
        middle = (low + high) / 2
        above = exp_t(z - middle, t2).sum(1, keepdim=True) > 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    # One Newton step whose derivative is that of λ by the implicit function theorem.
    escort = exp_t(z - middle, t2) ** t2
    centre = middle + (exp_t(logits - middle, t2).sum(1, keepdim=True) - 1) / escort.sum(
        1, keepdim=True
    )
    return exp_t(logits - centre, t2)


def bitempered(
    logits: Tensor, target: Tensor, t1: float = 0.8, t2: float = 1.2, smoothing: float = 0.0
) -> Tensor:
    """Bi-tempered logistic loss (Amid et al. 2019, Eq. 9), converged."""
    return bregman(tempered_softmax(logits, t2), smoothed(target, logits.shape[1], smoothing), t1)


# --- 60-digit truths -----------------------------------------------------------------------------
class Row:
    """One row of logits in 60 digits; e_k = exp(z_k − max z)."""

    def __init__(self, z: Sequence[mpf]) -> None:
        self.z = z
        top = max(range(len(z)), key=z.__getitem__)
        self.e = [mp.exp(x - z[top]) for x in z]
        self.total = mp.fsum(self.e)
        # Taking one class out of the sum cancels only for the largest.
        self.rest = [self.total - e for e in self.e]
        self.rest[top] = mp.fsum(e for k, e in enumerate(self.e) if k != top)
        self.p = [e / self.total for e in self.e]
        self.u = [r / self.total for r in self.rest]

    def margin(self, y: int) -> mpf:
        return mp.log(self.e[y]) - mp.log(self.rest[y])

    def n(self, k: int) -> mpf:
        """−log p_k."""
        return mp.log1p(self.rest[k] / self.e[k])


@cache
def row(z: tuple[float, ...]) -> Row:
    return Row([mpf(x) for x in z])


@cache
def all_n(z: tuple[float, ...]) -> list[mpf]:
    r = row(z)
    return [r.n(k) for k in range(len(z))]


def sigmoid(margin: mpf) -> tuple[mpf, mpf, mpf]:
    """p, 1 − p and −log p at a margin."""
    e = mp.exp(-abs(margin))
    near, far = 1 / (1 + e), e / (1 + e)
    p, u = (near, far) if margin > 0 else (far, near)
    return p, u, mp.log1p(mp.exp(-margin))


def curve(name: str, hp: dict[str, Any], margin: mpf) -> tuple[mpf, mpf]:
    """l and w = −dl/dΔ of a margin loss (``remargin``, ``unit`` and sums of them too)."""
    if name == "sum":
        parts = [(c, *curve(term, term_hp, margin)) for c, term, term_hp in hp["terms"]]
        return mp.fsum(c * l for c, l, _ in parts), mp.fsum(c * w for c, _, w in parts)
    if name == "remargin":
        scale = mpf(hp.get("scale", 1))
        value, weight = curve(*hp["loss"], scale * margin + mpf(hp.get("shift", 0)))
        return value / scale, weight
    if name == "unit":
        value, weight = curve(*hp["loss"], margin)
        factor = largest_weight(*hp["loss"])
        return value / factor, weight / factor
    exact = {key: mpf(value) if isinstance(value, float) else value for key, value in hp.items()}
    if "A" in MARGIN[name][0].__code__.co_varnames:
        exact.setdefault("A", mpf(LOG_1E4))
    value, weight = MARGIN[name]
    point = sigmoid(margin)
    return value(Digits, *point, **exact), weight(Digits, *point, **exact)


def coupled(name: str, hp: dict[str, Any], z: tuple[float, ...], y: int) -> tuple[mpf, list[mpf]]:
    """L(z, y) and its derivatives with respect to every −log p_k, of losses that look at all
    classes.
    """
    r, K = row(z), len(z)
    if name in ("nce", "nfl"):
        n = all_n(z)
        f, slope = list(n), [mpf(1)] * K
        if name == "nfl" and (gamma := mpf(hp.get("gamma", 0.5))) != 0:
            f = [u**gamma * nk for u, nk in zip(r.u, n, strict=True)]
            slope = [u**gamma for u in r.u]
            if not hp.get("detach"):
                slope = [
                    s + gamma * s / u * p * nk
                    for s, u, p, nk in zip(slope, r.u, r.p, n, strict=True)
                ]
        total = mp.fsum(f)
        own = [-f[y] / total**2 * s for s in slope]
        own[y] += slope[y] / total
        return f[y] / total, own
    if name == "mse":
        alpha = mpf(hp.get("alpha", 0.5))
        own = [-2 * alpha * p**2 for p in r.p]
        own[y] += r.p[y]
        return r.u[y] + alpha * mp.fsum(p**2 for p in r.p), own
    if name == "brier":
        own = [-2 * p**2 for p in r.p]
        own[y] = 2 * r.u[y] * r.p[y]
        return r.u[y] ** 2 + mp.fsum(p**2 for k, p in enumerate(r.p) if k != y), own
    if name in ("gls", "ls", "cr", "backward"):  # linear in −log p
        if name == "cr":
            own = [-mpf(hp.get("beta", 1.0)) * mpf(float(share)) for share in hp["prior"]]
            own[y] += 1
        elif name == "backward":
            own = inverse_row(hp["T"], y)
        else:
            smoothing = mpf(hp.get("r", hp.get("alpha", 0.1)))
            own = [smoothing / K] * K
            own[y] += 1 - smoothing
        return mp.fsum(o * n for o, n in zip(own, all_n(z), strict=True)), own
    if name == "forward":
        joint = [p * mpf(float(t)) for p, t in zip(r.p, hp["T"][:, y], strict=True)]
        total = mp.fsum(joint)
        return -mp.log(total), [j / total for j in joint]
    raise KeyError(name)


def inverse_row(T: Tensor, y: int) -> list[mpf]:
    """Row y of T⁻¹; beyond 20 classes T must be a·I + b·(J − I), whose inverse is known."""
    K = len(T)
    if K <= 20:
        solved = mp.lu_solve(mp.matrix(T.T.tolist()), mp.matrix([float(k == y) for k in range(K)]))
        return list(solved)
    a, b = mpf(float(T[0, 0])), mpf(float(T[0, 1]))
    common = -b / ((a - b) * (a + (K - 1) * b))
    return [common + (1 / (a - b) if k == y else 0) for k in range(K)]


def truth(name: str, hp: dict[str, Any], z: tuple[float, ...], y: int) -> tuple[mpf, list[mpf]]:
    """L(z, y) and its gradient with respect to z."""
    if name == "sum":
        parts = [(c, *truth(term, term_hp, z, y)) for c, term, term_hp in hp["terms"]]
        gradient = [mp.fsum(c * g[j] for c, _, g in parts) for j in range(len(z))]
        return mp.fsum(c * value for c, value, _ in parts), gradient
    if name == "bitempered":
        return bitempered_truth(hp, z, tuple(float(k == y) for k in range(len(z))))
    if name == "remargin" and not is_margin(*hp["loss"]):
        # A shifted logit is no float64 any more: a fresh row, and its own −log p.
        shifted = tuple(mpf(x) + (mpf(hp["shift"]) if k == y else 0) for k, x in enumerate(z))
        return truth(*hp["loss"], shifted, y)
    r = row(z)
    if is_margin(name, hp):
        value, weight = curve(name, hp, r.margin(y))
        # ∇Δ_y is 1 at the label and −e_j/Σ_{i≠y} e_i elsewhere (curriculum paper, A.5.1).
        return value, [-weight if j == y else weight * r.e[j] / r.rest[y] for j in range(len(z))]
    value, own = coupled(name, hp, z, y)
    total = mp.fsum(own)
    return value, [p * total - o for p, o in zip(r.p, own, strict=True)]


def is_margin(name: str, hp: dict[str, Any]) -> bool:
    if name == "sum":
        return all(is_margin(term, term_hp) for _, term, term_hp in hp["terms"])
    return is_margin(*hp["loss"]) if name in ("remargin", "unit") else name in MARGIN


def bitempered_truth(
    hp: dict[str, Any], z: tuple[float, ...], target: Sequence[float]
) -> tuple[mpf, list[mpf]]:
    """Bi-tempered loss and its gradient; a class outside the support is locally constant, so it has
    no gradient.
    """
    t1, t2, s = mpf(hp.get("t1", 0.8)), mpf(hp.get("t2", 1.2)), mpf(hp.get("smoothing", 0.0))
    K = len(z)
    t = [mpf(x) * (1 - s * K / (K - 1)) + s / (K - 1) for x in target]
    p = tempered_probabilities(z, t2)

    def log1(x: mpf) -> mpf:
        return mp.log(x) if t1 == 1 else (x ** (1 - t1) - 1) / (1 - t1) if x or t1 < 1 else -mp.inf

    terms = [
        (tk * (log1(tk) - log1(pk)) if tk else 0) - (tk ** (2 - t1) - pk ** (2 - t1)) / (2 - t1)
        for tk, pk in zip(t, p, strict=True)
    ]
    pulls = [pk ** (t2 - t1) * (pk - tk) if pk else mpf(0) for tk, pk in zip(t, p, strict=True)]
    escort = [pk**t2 for pk in p]
    share = mp.fsum(pulls) / mp.fsum(escort)
    return mp.fsum(terms), [g - e * share for g, e in zip(pulls, escort, strict=True)]


@cache
def tempered_probabilities(z: tuple[float, ...], t: mpf) -> list[mpf]:
    """exp_t(z − λ): Newton from max z, whence it climbs monotonically because Σ exp_t(z − λ) is
    convex in λ.
    """
    if t == 1:
        return row(z).p
    numbers, ft = np.array([float(x) for x in z]), float(t)
    drop = 0.0  # λ − max z
    for _ in range(200):
        base = np.maximum(1 + (1 - ft) * (numbers - numbers.max() - drop), 0)
        p = base ** (1 / (1 - ft))
        drop += (p.sum() - 1) / (p**ft).sum()
    exact, top, centre = [mpf(x) for x in z], mpf(numbers.max()), mpf(drop)
    for _ in range(4):
        base = [max(1 + (1 - t) * (x - top - centre), 0) for x in exact]
        p = [b ** (1 / (1 - t)) if b else mpf(0) for b in base]
        excess = mp.fsum(p) - 1
        if abs(excess) < mpf(10) ** -50:
            return p
        # exp_t(x)^t = p/base
        centre += excess / mp.fsum(pk / b for pk, b in zip(p, base, strict=True) if b)
    raise ArithmeticError(f"tempered softmax of {z} at t={t} did not converge")


GRID = [mpf(d) / 4 for d in range(-4 * 40, 4 * 40 + 1)]  # margins
_largest: dict[str, Any] = {}


def largest_weight(name: str, hp: dict[str, Any]) -> mpf:
    """max_Δ w(Δ) by golden section around the best point of a grid; the limit at ±40 where there is
    no peak.
    """
    key = f"weight {name} {hp}"
    if key not in _largest:
        _largest[key] = _largest_weight(name, hp)
    return _largest[key]


def _largest_weight(name: str, hp: dict[str, Any]) -> mpf:
    weights = [curve(name, hp, d)[1] for d in GRID]
    best = max(range(len(weights)), key=weights.__getitem__)
    low, high = GRID[max(best - 1, 0)], GRID[min(best + 1, len(weights) - 1)]
    golden = (mp.sqrt(5) - 1) / 2
    for _ in range(80):
        a, b = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, b) if curve(name, hp, a)[1] > curve(name, hp, b)[1] else (a, high)
    return curve(name, hp, (low + high) / 2)[1]


def largest_slope(name: str, hp: dict[str, Any]) -> float:
    """sup |dl/dnll| over all predictions: what an error of the nll is multiplied by."""
    if name == "sum":
        return sum(abs(c) * largest_slope(term, term_hp) for c, term, term_hp in hp["terms"])
    if name == "remargin" and hp.get("scale", 1) != 1:
        return 1.0  # unbounded for α < 1, where it must be computed from the margin itself
    if name == "remargin" and not is_margin(*hp["loss"]):
        return largest_slope(*hp["loss"])
    if is_margin(name, hp):
        key = f"slope {name} {hp}"
        if key not in _largest:
            _largest[key] = float(max(curve(name, hp, d)[1] / sigmoid(d)[1] for d in GRID))
        return _largest[key]
    if name == "mse":
        return 1 + 2 * hp.get("alpha", 0.5)
    if name == "gls":
        return 1 - hp["r"] + abs(hp["r"]) if hp["r"] < 0 else 1.0
    if name == "cr":
        return 1 + hp.get("beta", 1.0)
    if name == "backward":
        return float(torch.linalg.inv(hp["T"]).abs().sum(1).max())
    return {"brier": 2.0}.get(name, 1.0)


# --- The losses as research code writes them -----------------------------------------------------
# Shape (B,), not reduced. softmax → clamp(1e-7) → one-hot → log, with the defects that this brings.
def _clamped(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    pred = F.softmax(logits, dim=1).clamp(min=1e-7, max=1.0)
    return pred, F.one_hot(target, logits.shape[1]).to(logits.dtype)


def released_ce(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target, reduction="none")


def released_gce(logits: Tensor, target: Tensor, q: float = 0.7) -> Tensor:
    pred, label = _clamped(logits, target)
    return (1.0 - torch.pow((label * pred).sum(dim=1), q)) / q


def released_mae(logits: Tensor, target: Tensor) -> Tensor:
    pred = F.softmax(logits, dim=1)
    label = F.one_hot(target, logits.shape[1]).to(logits.dtype)
    return 1.0 - (label * pred).sum(dim=1)


def released_sce(logits: Tensor, target: Tensor, alpha: float = 0.1, beta: float = 1.0) -> Tensor:
    pred, label = _clamped(logits, target)
    log_label = torch.log(label.clamp(min=1e-4, max=1.0))
    reverse = -(pred * log_label).sum(dim=1)
    return alpha * F.cross_entropy(logits, target, reduction="none") + beta * reverse


def released_nce(logits: Tensor, target: Tensor) -> Tensor:
    log_pred = F.log_softmax(logits, dim=1)
    label = F.one_hot(target, logits.shape[1]).to(logits.dtype)
    return -(label * log_pred).sum(dim=1) / (-log_pred.sum(dim=1))


def released_nfl(logits: Tensor, target: Tensor, gamma: float = 0.5) -> Tensor:
    """With the normaliser's and the numerator's (1 − p)^γ detached."""
    log_pred = F.log_softmax(logits, dim=1)
    pred = log_pred.exp().detach()
    normaliser = (-((1 - pred) ** gamma) * log_pred).sum(dim=1)
    column = target.view(-1, 1)
    own_log = log_pred.gather(1, column).view(-1)
    own = pred.gather(1, column).view(-1)
    return -((1 - own) ** gamma) * own_log / normaliser


def released_agce(logits: Tensor, target: Tensor, a: float = 0.6, q: float = 0.6) -> Tensor:
    pred, label = _clamped(logits, target)
    return ((a + 1) ** q - torch.pow(a + (label * pred).sum(dim=1), q)) / q


def released_aul(logits: Tensor, target: Tensor, a: float = 1.1, q: float = 5.0) -> Tensor:
    pred, label = _clamped(logits, target)
    return (torch.pow(a - (label * pred).sum(dim=1), q) - (a - 1) ** q) / q


def released_ael(logits: Tensor, target: Tensor, a: float = 2.5) -> Tensor:
    pred, label = _clamped(logits, target)
    return torch.exp(-(label * pred).sum(dim=1) / a)


def normaliser_after(logits: Tensor, t: float, iterations: int = 5) -> Tensor:
    """λ of the tempered softmax after a fixed number of steps: fixed point for t > 1, bisection for
    t < 1.
    """
    top = logits.max(dim=1, keepdim=True).values
    centred = logits - top
    if t > 1:
        scaled = centred
        for _ in range(iterations):
            scaled = centred * exp_t(scaled, t).sum(dim=1, keepdim=True) ** (1 - t)
        return top - log_t(1 / exp_t(scaled, t).sum(dim=1, keepdim=True), t)
    inside = (centred > -1 / (1 - t)).sum(dim=1, keepdim=True).to(logits.dtype)
    low, high = torch.zeros_like(inside), -log_t(1 / inside, t)
    for _ in range(iterations):
        middle = (low + high) / 2
        below = exp_t(centred - middle, t).sum(dim=1, keepdim=True) < 1
        low, high = torch.where(below, low, middle), torch.where(below, middle, high)
    return top + (low + high) / 2


def released_bitempered(
    logits: Tensor,
    target: Tensor,
    t1: float = 0.8,
    t2: float = 1.2,
    smoothing: float = 0.0,
    iterations: int = 5,
) -> Tensor:
    """Bi-tempered loss with λ from a few iterations and autograd through the rest, λ's derivative
    in closed form.
    """
    label = F.one_hot(target, logits.shape[1]).to(logits.dtype)
    if smoothing > 0:
        K = logits.shape[1]
        label = (1 - K / (K - 1) * smoothing) * label + smoothing / (K - 1)
    with torch.no_grad():
        if t2 == 1:
            centre = logits.logsumexp(dim=1, keepdim=True)
        else:
            centre = normaliser_after(logits, t2, iterations)
        escort = exp_t(logits - centre, t2) ** t2
        escort = escort / escort.sum(dim=1, keepdim=True)
    moving = centre + (escort * (logits - logits.detach())).sum(dim=1, keepdim=True)
    pred = exp_t(logits - moving, t2)
    cross = label * (log_t(label + 1e-10, t1) - log_t(pred, t1))
    return (cross - label ** (2 - t1) / (2 - t1) + pred ** (2 - t1) / (2 - t1)).sum(dim=1)


RELEASED: dict[str, Callable[..., Tensor]] = {
    name.removeprefix("released_"): function
    for name, function in list(globals().items())
    if name.startswith("released_")
}
