"""The loss Het (LN paper, section 4)."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from noiseproof.core.checks import check_count, check_number, check_word
from noiseproof.core.lazy import provided
from noiseproof.core.output import Output
from noiseproof.core.random import derive_seed
from noiseproof.core.tensors import has_kernels, wide
from noiseproof.losses.base import Loss, register
from noiseproof.losses.gaussian import field
from noiseproof.losses.rows import over_classes

CHUNK = 2**21  # noisy logits in memory at once
MOST_CLASSES = 2048
MOST_FACTORS = 8  # of a kernel, which holds a row, and its gradient by each factor

# noise of each logit (s, B, K) and of each factor (s, B, R); B = 1 where shared
Chunk = tuple[Tensor, Tensor | None]


def draw_noise(
    like: Tensor,
    rank: int,
    *,
    rows: int,
    samples: int,
    source: int | torch.Generator,
    classes_first: bool = False,
) -> Iterator[Chunk]:
    """Draw standard normal noise for logits ``like`` (B, K), in chunks whose size does not grow
    with ``samples``.

    Args:
        like: the logits.
        rank: the number of factors.
        rows: B, or 1 for the same noise in all rows, however many there are.
        samples: how many there are over all chunks.
        source: a generator, or a seed, from which the noise is the same every time.
        classes_first: how it lies in memory, as kernels read it.
    """
    if isinstance(source, int):
        source = torch.Generator(like.device).manual_seed(source)
    K = like.shape[1]
    drawn_at_once = _at_once(rows * K, like)
    used_at_once = _at_once(like.numel(), like)
    for start in range(0, samples, drawn_at_once):
        s = min(drawn_at_once, samples - start)
        noise = []
        for width in (K, rank):
            shape = (width, s, rows) if classes_first else (s, rows, width)
            part = torch.randn(shape, generator=source, dtype=like.dtype, device=like.device)
            noise.append(part.permute(1, 2, 0) if classes_first else part)
        for each, across in zip(*(torch.split(part, used_at_once) for part in noise), strict=True):
            yield each, across if rank else None


def _at_once(numbers: int, like: Tensor) -> int:
    """Return how many samples of ``numbers`` values each are in memory together."""
    room = CHUNK
    if like.is_cuda:  # which would wait for the host between smaller ones
        room *= 8
    return max(1, min(CHUNK, room // max(1, numbers)))


def _noisy_log_softmax(
    mean: Tensor, scale: Tensor, factors: Tensor | None, tau: float, chunk: Chunk
) -> Tensor:
    """Return log softmax(u/τ) with u = μ + Vε_R + d·ε_K, (s, B, K)."""
    each, across = chunk
    logits = torch.addcmul(mean, each, scale)
    if factors is not None and across is not None:
        logits += torch.einsum("sbr,bkr->sbk", across, factors)
    return F.log_softmax(logits.div_(tau), -1)


def _kernels_for(mean: Tensor, factors: Tensor | None) -> Any:
    """Return the kernels that average faster, or None where there are none for such logits."""
    small = mean.shape[1] <= MOST_CLASSES and (factors is None or factors.shape[2] <= MOST_FACTORS)
    if not (small and mean.dtype is torch.float32 and has_kernels(mean)):
        return None
    return provided("loss_kernels")


class _MeanSoftmax(torch.autograd.Function):
    """log of the mean softmax over all noise, (B, K); what is more than one chunk is drawn again on
    the way back.
    """

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        scale: Tensor,
        factors: Tensor | None,
        tau: float,
        noise: Callable[[], Iterable[Chunk]],
    ) -> Tensor:
        # In float64: what the samples weigh on the way back, p_k/p̄_k, then sums to one where log p
        # is −500 too.
        total: Tensor | None = None
        samples = 0
        ctx.first = []
        kernels = _kernels_for(mean, factors)
        for chunk in noise():
            if kernels is not None:
                part = kernels.log_sum_softmax(mean, scale, factors, tau, *chunk)
            else:
                log_p = _noisy_log_softmax(mean, scale, factors, tau, chunk)
                ctx.first = [(chunk, log_p)] if samples == 0 and any(ctx.needs_input_grad) else []
                top = log_p.amax(0)
                away = top.clamp(min=torch.finfo(top.dtype).min)  # of a class whose logit is −∞
                part = top + (log_p - away).exp_().sum(0).double().log_()
            total = part if total is None else torch.logaddexp(total, part)
            samples += len(chunk[0])
        assert total is not None
        total -= math.log(samples)
        ctx.save_for_backward(mean, scale, factors, total)
        ctx.tau = tau
        ctx.noise = noise
        ctx.samples = samples
        ctx.kernels = kernels
        return total.to(mean.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        mean, scale, factors, total = ctx.saved_tensors
        total = total.clamp(min=torch.finfo(grad.dtype).min)  # of a class whose logit is −∞
        rounded = total.to(grad.dtype)
        grad = grad * (rounded - total).exp_().to(grad.dtype) / (ctx.tau * ctx.samples)
        if ctx.kernels is not None:
            weights = (mean, scale, factors, ctx.tau)
            of_all = sum(
                ctx.kernels.mean_softmax_gradients(*weights, *chunk, rounded, grad)
                for chunk in ctx.noise()
            )
            of_mean, of_scale, *columns = of_all
            of_factors = torch.stack(columns, 2) if columns else None
            return of_mean, of_scale.sum_to_size(scale.shape), of_factors, None, None
        of_mean = torch.zeros_like(mean)
        of_scale = torch.zeros_like(scale)
        of_factors = None if factors is None else torch.zeros_like(factors)
        again = (
            (chunk, _noisy_log_softmax(mean, scale, factors, ctx.tau, chunk))
            for chunk in ctx.noise()
        )
        for (each, across), log_p in ctx.first or again:
            # d log p̄_k/du_j is a mean over samples of p_k/p̄_k·(1(j = k) − p_j): LN paper, Eq. 14,
            # for the label.
            pull = (log_p - rounded).exp_().mul_(grad)
            slope = pull.sub_(log_p.exp().mul_(pull.sum(-1, keepdim=True)))
            of_mean += slope.sum(0)
            if of_factors is not None:
                of_factors += torch.einsum("sbk,sbr->bkr", slope, across)
            of_scale += slope.mul_(each).sum(0).sum_to_size(scale.shape)
        return of_mean, of_scale, of_factors, None, None


@register("het")
class Het(Loss):
    """Heteroscedastic classifier: cross entropy of a softmax averaged over Gaussian noise on the
    logits.

    L = −log mean_s softmax(u_s/τ)_y with u_s = μ + d·ε_s (LN paper, Eq. 13: Het, and Het-τ where τ
    ≠ 1), or u_s = μ + Vε_s + d·ε′_s with R factors V (Het-τ-Σ_full). μ are the logits, d is
    ``Output.scale`` and V ``Output.factors``. Memory does not grow with ``samples``. Once
    differentiable; ``torch.compile`` breaks its graph here, and ``torch.func`` cannot derive it.

    The noise depends on ``seed`` and on what ``set_step`` was last given: the training loop calls
    it before every step, your own loop has to. In evaluation mode it depends on ``seed`` alone and
    is the same for all rows. With a generator, as the loop gives on one GPU, a CUDA graph can hold
    the step: all of a step's noise then stays in memory.

    Args:
        tau: the temperature τ.
        samples: how many samples to average, in training and in prediction.
        covariance: ``diagonal``, or ``full`` for factors too.
        seed: of the noise.

    >>> out = Output(torch.tensor([[2.0, 0.0]]), scale=torch.tensor([[1.0, 1.0]]))
    >>> Het(samples=10000)(out, torch.tensor([0]))  # 0.1269 without noise
    tensor(0.2026)
    """

    needs = frozenset({"logits", "scale"})
    formula = "−log mean_s softmax((μ + d·ε_s)/τ)_y"
    source = "LN paper, Eqs. 13-14; Kendall & Gal 2017; Collier et al. 2020, 2021"
    kind = "other"
    independent_rows = False  # in training a row's noise depends on its place in the batch

    def __init__(
        self,
        tau: float = 1.0,
        samples: int = 100,
        covariance: Literal["diagonal", "full"] = "diagonal",
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.tau = check_number("tau", tau, "(0, inf)")
        self.samples: int = check_count("samples", samples, 1, "The softmax is averaged over them.")
        self.covariance = check_word("covariance", covariance, ("diagonal", "full"))
        self.seed = check_count("seed", seed, 0)
        if covariance == "full":
            self.needs = frozenset({"logits", "scale", "factors"})
        self.step = 0
        self._generator: torch.Generator | None = None
        self._forget()

    def _forget(self) -> None:
        """Drop what belongs to a step."""
        self._drawn: list[Chunk] = []  # from the generator
        self._last: tuple[list[ref[Tensor] | None], Tensor] | None = None  # an output, its scores

    def set_step(self, seed: int, generator: torch.Generator | None = None) -> None:
        self.step = seed
        self._generator = generator
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_generator": None, "_drawn": [], "_last": None}

    def scores(self, out: Output) -> Tensor:
        """Return the log of the averaged softmax, (B, K)."""
        # Not as a decorator, which would load the compiler with this module.
        average = self._average
        if torch.compiler.is_compiling():
            average = torch.compiler.disable(average)  # type: ignore[no-untyped-call]
        log_p: Tensor = average(out)
        return log_p

    def _average(self, out: Output) -> Tensor:
        if self._last is not None and self.training and not torch.is_grad_enabled():
            # The record of a step needs the scores of its loss again.
            known, scores = self._last
            if all(part is (other and other()) for part, other in zip(out, known, strict=True)):
                return scores
        dtype = wide(out.logits.dtype)
        # else large logits swallow noise
        mean = (out.logits - out.logits.detach().amax(1, keepdim=True)).to(dtype)
        scale, factors = self._spread(out)
        factors = None if factors is None else factors.to(dtype)
        noise = self._noise(mean.detach(), factors)
        average: Tensor = _MeanSoftmax.apply(mean, scale.to(dtype), factors, self.tau, noise)  # type: ignore[no-untyped-call]
        average = average.to(out.logits.dtype)
        if self.training and self._generator is not None and average.requires_grad:
            known = [None if part is None else ref(part) for part in out]
            self._last = known, average.detach()
        return average

    def variance(self, out: Output) -> Tensor | None:
        """Return d_k² (B, K), and Σ_r V_kr² of a full covariance."""
        scale, factors = self._spread(out)
        variance = scale.square().expand_as(out.logits)
        return variance if factors is None else variance + factors.square().sum(2)

    def _spread(self, out: Output) -> tuple[Tensor, Tensor | None]:
        """Return the scale (B, K) or (B, 1), and the factors (B, K, R) of a full covariance."""
        rows, K = out.logits.shape
        scale = field(out, "scale", (rows, K), (rows, 1))
        if self.covariance != "full":
            return scale, None
        rank = 1
        if out.factors is not None and out.factors.dim() == 3:
            rank = out.factors.shape[2]
        return scale, field(out, "factors", (rows, K, rank))

    def _noise(self, mean: Tensor, factors: Tensor | None) -> Callable[[], Iterable[Chunk]]:
        """Return a function that gives the noise of this call, the same each time it is called.

        The noise comes from ``seed`` in evaluation, from ``seed`` and the step in training, and is
        then drawn again by each call. A step's generator would give other numbers the second time:
        its noise is drawn once and kept, until ``set_step`` drops it.
        """
        rank = 0 if factors is None else factors.shape[2]
        draw = partial(
            draw_noise,
            mean,
            rank,
            rows=len(mean) if self.training else 1,
            samples=self.samples,
            classes_first=_kernels_for(mean, factors) is not None,
        )
        if not self.training:
            return partial(draw, source=derive_seed(self.seed, 0))
        if self._generator is None:
            return partial(draw, source=derive_seed(self.seed, self.step + 1))
        # What is kept serves only logits of the same shape.
        shapes = [(*mean.shape,), (len(mean), rank)] if rank else [(*mean.shape,)]
        first_chunk = self._drawn[0] if self._drawn else ()
        kept_shapes = [tuple(part.shape[1:]) for part in first_chunk if part is not None]
        if kept_shapes != shapes:
            self._drawn = list(draw(source=self._generator))
        return partial(iter, self._drawn)

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        log_p = self.scores(out)
        if target.dim() == 1:
            return F.nll_loss(log_p, target, reduction="none", ignore_index=self.ignore_index)
        return over_classes(-log_p, target, self.weight)
