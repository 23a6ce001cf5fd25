"""A Gaussian-process classifier in closed form, by regression of log-odds (LN paper, section 6)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import check_count, check_flag, check_labels, check_number, check_tensor
from noiseproof.core.probs import check_probabilities
from noiseproof.losses.logistic_normal import inverse_softmax_centred

# added to the kernel's diagonal, times the signal: its factor exists even without noise
JITTER = 1e-8
MATRICES = 6  # of the size of the kernel that a fit holds at once
STEP = 0.5  # between the points of the quadrature
BLOCK = 2**21  # numbers of the quadrature in memory at once


class GaussianProcessClassifier:
    """Regression of the labels' log-odds by a Gaussian process, whose posterior over logits is
    exact.

    Labels become real numbers Y = S_C⁻¹((1 − t)·δ_y + t·u) ∈ ℝ^D (LN paper, section 2.2; with the
    dummy class of section 3.2 D = K, and Y is one constant at the label and zero elsewhere). Then
    Y_d = f_d + ε with f_d ~ GP(0, k), ε ~ N(0, σ²) and the same k(x, x′) = s²·exp(−‖x − x′‖²/2ℓ²)
    for all d, so that one Cholesky factor gives the marginal likelihood, which selects ℓ, s² and
    σ², and the posterior f(x) ~ N(m(x), v(x)·I). Class probabilities are E softmax(f(x)), without
    ε, which is the noise of the labels (section 3.3).

    The kernel is isotropic: scale features to a common range. Computed in float64, on the device of
    the inputs.

    Args:
        length_scale: ℓ; selected by the marginal likelihood if None, as are the next two.
        signal: s².
        noise: σ².
        t: smoothing of the labels, without which their log-odds would be infinite.
        dummy: add a class without samples, so that the last class is treated like the others.
        steps: maximum number of L-BFGS steps.
        max_samples: maximum number of samples; memory grows with their square, time with their
            cube.

    >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
    >>> process = GaussianProcessClassifier().fit(x, torch.tensor([0, 0, 1, 1]))
    >>> # far away: no information
    >>> process.predict_proba(torch.tensor([[-1.5], [100.0]])).round(decimals=2)
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """

    def __init__(
        self,
        *,
        length_scale: float | None = None,
        signal: float | None = None,
        noise: float | None = None,
        t: float = 0.01,
        dummy: bool = True,
        steps: int = 50,
        max_samples: int = 5000,
    ) -> None:
        given = {"length_scale": length_scale, "signal": signal, "noise": noise}
        self.given = {k: check_number(k, v, "(0, inf)") for k, v in given.items() if v is not None}
        self.t = check_number("t", t, "(0, 1)", "A label without smoothing has infinite log-odds.")
        self.dummy = check_flag("dummy", dummy)
        self.steps = check_count("steps", steps, 1)
        self.max_samples = check_count("max_samples", max_samples, 1)

    def fit(
        self, x: Tensor, y: Tensor, num_classes: int | None = None
    ) -> GaussianProcessClassifier:
        """Condition on inputs (N, …) and labels: classes (N,), or distributions (N, K) from another
        model.
        """
        x = check_tensor("x", x)
        y = check_tensor("y", y)
        self._check(x, y)
        self.x = x.flatten(1).double()  # (N, F)
        targets = log_odds(y, num_classes, self.t, self.dummy)  # (N, D)
        squared = _squared_distance(self.x, self.x)
        self.length_scale, self.signal, self.noise = self._maximise(squared, targets)
        kernel = _kernel(squared, self.length_scale, self.signal)
        self.factor, self.white = _whiten(kernel, targets, self.noise + JITTER * self.signal)
        # (k + σ²I)⁻¹ Y
        self.solved = torch.linalg.solve_triangular(self.factor.T, self.white, upper=True)
        return self

    def log_marginal_likelihood(self) -> float:
        """Return log p(Y | X): the log density of the log-odds of the labels."""
        return _log_density(self.factor, self.white)

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean (M, D) of the logits, and their variance (M,), which is the same for all
        logits of a row.
        """
        x = check_tensor("x", x).flatten(1).double()
        across = _kernel(_squared_distance(self.x, x), self.length_scale, self.signal)  # (N, M)
        explained = torch.linalg.solve_triangular(self.factor, across, upper=False).square().sum(0)
        return across.T @ self.solved, (self.signal - explained).clamp_min(0)

    def predict_proba(self, x: Tensor) -> Tensor:
        """Return E softmax(f(x)) over the posterior, (M, K), without the dummy class."""
        mean, variance = self.posterior(x)
        std = variance.sqrt()[:, None].expand_as(mean)
        if not self.dummy:  # the log-odds are relative to the last class
            mean = F.pad(mean, (0, 1))
            std = F.pad(std, (0, 1))
        return mean_softmax(mean, std)

    def check_size(self, num_samples: int) -> None:
        """Refuse more than ``max_samples``."""
        if num_samples > self.max_samples:
            size = 8 * num_samples**2 / 2**30
            raise ValueError(
                f"Expected at most {self.max_samples} samples, got {num_samples}: the kernel"
                f" between them takes {size:.1f} GiB, and a fit needs {MATRICES} times as much. Fit"
                f" fewer samples, or raise max_samples if {MATRICES * size:.0f} GiB are available."
            )

    def _check(self, x: Tensor, y: Tensor) -> None:
        if x.dim() < 2 or len(x) != len(y) or not len(x):
            raise ValueError(
                f"Expected inputs (N, …) and N labels, got shapes {tuple(x.shape)} and"
                f" {tuple(y.shape)}."
            )
        self.check_size(len(x))
        if not bool(torch.isfinite(x).all()):
            raise ValueError("Expected finite inputs, got NaN or infinity. Impute missing values.")

    def _maximise(self, squared: Tensor, targets: Tensor) -> tuple[float, float, float]:
        """Return ℓ, s² and σ².

        Those that are not given maximise the marginal likelihood, by L-BFGS in their logarithms.
        """
        typical = float(squared.median()) or float(squared.mean())
        if typical == 0 and "length_scale" not in self.given:
            raise ValueError(
                f"Expected inputs that differ, got {len(squared)} equal ones. Or set length_scale."
            )
        size = float(targets.square().mean())
        start = {
            "length_scale": math.sqrt(typical),
            "signal": size / 2,
            "noise": size / 2,
        } | self.given
        free = torch.tensor([name not in self.given for name in start], dtype=torch.float64)
        logs = torch.tensor(list(start.values()), dtype=torch.float64).log()
        if bool(free.any()):
            optimizer = torch.optim.LBFGS(
                [logs],
                max_iter=self.steps,
                tolerance_grad=1e-5,
                tolerance_change=1e-7,
                line_search_fn="strong_wolfe",
            )

            def cost() -> float:
                value, gradient = log_marginal_likelihood(squared, targets, *logs.exp().tolist())
                logs.grad = -gradient * free / targets.numel()
                return -value / targets.numel()

            optimizer.step(cost)  # type: ignore[no-untyped-call]
        best = dict(zip(start, logs.exp().tolist(), strict=True)) | self.given
        return best["length_scale"], best["signal"], best["noise"]


def log_odds(y: Tensor, num_classes: int | None, t: float, dummy: bool) -> Tensor:
    """Return S_C⁻¹((1 − t)·q + t·u) of classes (N,) or distributions (N, K): log-odds relative to
    the last one.
    """
    if y.dim() == 1:
        if y.is_floating_point() or y.is_complex():
            raise TypeError(
                f"Expected class indices in labels of shape (N,), got {y.dtype}. Use y.long()."
            )
        num_classes = (
            max(2, int(y.max()) + 1)
            if num_classes is None
            else check_count("num_classes", num_classes, 2)
        )
        check_labels(y, num_classes)
        q = F.one_hot(y.long(), num_classes).double()
    else:
        q = check_probabilities("y", y, num_classes, tolerance=1e-4).to(y.device)
    return inverse_softmax_centred((1 - t) * F.pad(q, (0, int(dummy))) + t / (q.shape[1] + dummy))


def log_marginal_likelihood(
    squared: Tensor, targets: Tensor, length_scale: float, signal: float, noise: float
) -> tuple[float, Tensor]:
    """Return log N(Y; 0, k + σ²I) summed over the columns of Y, (N, D), and its gradient in log ℓ,
    log s² and log σ².

    With A = k + σ²I and α = A⁻¹Y the derivative is ½·tr((ααᵀ − D·A⁻¹)·∂A) (Rasmussen & Williams
    2006, Eq. 5.9).
    """
    kernel = _kernel(squared, length_scale, signal)
    factor, white = _whiten(kernel, targets, noise + JITTER * signal)
    solved = torch.linalg.solve_triangular(factor.T, white, upper=True)
    pull = torch.cholesky_inverse(factor).mul_(-targets.shape[1]).addmm_(solved, solved.T)
    trace = pull.trace()
    pull *= kernel
    longer = torch.dot(pull.flatten(), squared.flatten()) / length_scale**2
    stronger = pull.sum()
    gradient = torch.stack([longer, stronger + JITTER * signal * trace, noise * trace]) / 2
    return _log_density(factor, white), gradient.cpu()


def mean_softmax(mean: Tensor, std: Tensor) -> Tensor:
    """Return E softmax(u) of independent u_k ~ N(mean_k, std_k²), all (M, K), by quadrature to
    about 1e-8.

    softmax_k(u) is the chance that u_k + G_k is the largest, with G_k independent standard Gumbel.
    So its mean is ∫ F_k′(x)·Π_{j≠k} F_j(x) dx with F_k(x) = E exp(−e^(u_k − x)): two nested sums
    over evenly spaced points, which converge exponentially as the spacing shrinks, at a cost linear
    in K.
    """
    K = mean.shape[1]
    widest = float(std.max()) if len(std) else 0.0
    # Both sums err by about exp(−π²/STEP), because F is analytic in a strip of width π; the
    # normal's tails end at ±7.
    z = torch.linspace(
        -7, 7, 2 * math.ceil(7 * max(widest, 1) / STEP) + 1, dtype=torch.float64, device=mean.device
    )
    weight = torch.softmax(-z.square() / 2, 0)
    # Covers the maximum of all classes: a Gumbel's lower tail is doubly exponential, its upper tail
    # exponential.
    low = -7 * widest - 4
    high = 7 * widest + 20 + math.log(K)
    x = torch.arange(low, high, STEP, dtype=torch.float64, device=mean.device)[:, None]
    rows = max(1, BLOCK // (K * len(x) * len(z)))
    means = []
    for m, s in zip(torch.split(mean.double(), rows), torch.split(std.double(), rows), strict=True):
        u = (m - m.amax(1, keepdim=True))[..., None, None] + s[..., None, None] * z  # (m, K, 1, Z)
        rate = torch.exp(u - x).clamp_max_(1e300)  # (m, K, X, Z)
        below = torch.exp(-rate)
        cdf = (below @ weight).clamp_min(1e-300)
        density = (rate * below) @ weight  # (m, K, X)
        p = (density / cdf * cdf.log().sum(1, keepdim=True).exp()).sum(2)
        means.append(p / p.sum(1, keepdim=True))
    return torch.cat(means).to(mean.dtype)


def _squared_distance(x: Tensor, other: Tensor) -> Tensor:
    """Return ‖x_i − x′_j‖² from differences: a form by products cancels for close inputs far from
    zero.
    """
    return torch.cdist(x, other, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _kernel(squared: Tensor, length_scale: float, signal: float) -> Tensor:
    return squared.mul(-0.5 / length_scale**2).exp_().mul_(signal)


def _whiten(kernel: Tensor, targets: Tensor, diagonal: float) -> tuple[Tensor, Tensor]:
    """Return the Cholesky factor L of k + diagonal·I, (N, N), and L⁻¹Y, (N, D)."""
    noisy = kernel.clone()
    noisy.diagonal().add_(diagonal)
    factor = torch.linalg.cholesky(noisy)
    return factor, torch.linalg.solve_triangular(factor, targets, upper=False)


def _log_density(factor: Tensor, white: Tensor) -> float:
    N, D = white.shape
    return (
        float(-white.square().sum() / 2 - D * factor.diagonal().log().sum())
        - N * D * math.log(2 * math.pi) / 2
    )
