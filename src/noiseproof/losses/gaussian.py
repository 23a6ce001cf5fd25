"""Likelihoods over logits, whose spread a head predicts too: Logistic-Normal (LN paper) and Het (its section 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ClassVar, Literal, get_args
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from noiseproof.core.checks import check_count, check_flag, check_number, check_word
from noiseproof.core.gpu import has_kernels
from noiseproof.core.lazy import provided
from noiseproof.core.output import Output
from noiseproof.losses.base import Kind, Loss, NotFinite, countable, field_of, register
from noiseproof.losses.engine import eager, readable, seed_of, wide
from noiseproof.losses.logistic_normal import LogisticNormal, negative_log_normal

Covariance = Literal["full", "diagonal", "isotropic", "identity"]
Predict = Literal["classes", "released"]
NEEDS = {"full": {"root"}, "diagonal": {"scale"}, "isotropic": {"scale"}, "identity": set()}
CHUNK = 2**21  # noisy logits of Het in memory at once
MOST_CLASSES, MOST_FACTORS = 2048, 8  # of a kernel, which holds a row, and its gradient by each factor


_field = partial(field_of, remedy="Use a head that gives it, or a loss with another `covariance`.")


class _RankOne(torch.autograd.Function):
    """Eq. 5 with Σ^½ = ccᵀ + λI, and its gradients in closed form, from the scalars cᵀc and cᵀe.

    With u = 1/(λ + cᵀc) and e = αc + p, p ⊥ c, Σ^-½e = p/λ + αu·c: nothing cancels where e is parallel to c, which is
    what training drives c to (Eq. 7). α and p are taken in float64, since in float32 the gradients would miss digits
    that the inputs have; what is left to do with them is not as delicate.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, root: Tensor, target: Tensor, loss: LN) -> Tensor:
        e, c, lam = loss.error(mean, target), root.double(), loss.lam
        size = torch.linalg.vector_norm(c, dim=1).square_()  # cᵀc
        inner = (c * e).sum(1)
        u = (size + lam).reciprocal_()
        alpha = torch.where(size > 1e-60, inner / size, 0)  # a root so small does nothing, but its α would overflow
        p = e.addcmul_(c, alpha[:, None], value=-1).to(wide(root.dtype))
        alpha, inner = alpha * u, inner * u
        share = alpha * inner  # of ‖Σ^-½e‖², along c
        # The gradients are combinations of p and c: p/λ² + αu²·c (Eq. 6), and −αu·cᵀc·(1 + λu)/λ²·p + 2u(1 − share)·c.
        factors = torch.stack(
            (alpha * u, torch.addcmul(inner, inner, u, value=lam), torch.addcmul(u, u, share, value=-1))
        )
        ctx.save_for_backward(mean, root, target, p, factors.to(p.dtype))
        ctx.loss = loss
        length = torch.linalg.vector_norm(p, dim=1).double()
        value = share.addcmul_(length, length, value=lam**-2).mul_(0.5).sub_(u.log())
        return loss.finished(value.add_((c.shape[1] - 1) * math.log(lam)), Output(mean, root=root))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        mean, root, target, p, factors = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph: what was saved is a constant, so derive it again
            value = negative_log_normal(ctx.loss.error(mean, target), ctx.loss.lam, root).to(grad.dtype)
            asked = [x for x in (mean, root) if x.requires_grad]
            found = dict(zip(map(id, asked), torch.autograd.grad(value, asked, grad, create_graph=True), strict=True))
            return found.get(id(mean)), found.get(id(root)), None, None
        grad, c = grad[:, None].to(p.dtype), root.to(p.dtype)
        along, across_root, along_root = (factors[..., None] * grad).unbind()  # (B, 1) each
        grad = grad * ctx.loss.lam**-2
        of_mean = (p * grad).addcmul_(c, along)
        of_root = (p * (across_root * -(ctx.loss.lam**-2))).addcmul_(c, along_root, value=2)
        return of_mean.to(mean.dtype), of_root.to(root.dtype), None, None


@register("ln")
class LN(Loss):
    """Logistic-Normal likelihood: a label is a point of logit space, seen through noise whose spread the head predicts.

    L = ½ (τy − μ)ᵀΣ⁻¹(τy − μ) + ½ log|Σ| with Σ^½ = ccᵀ + λI (LN paper, Eqs. 5, 9 and 11), μ the logits and c
    ``Output.root``. The label is smoothed over K′ classes by t, which makes y_k = log(((1 − t)K′ + t)/t) at the label
    and 0 elsewhere. A target (B, K) is a probability vector, another model's prediction say (LN paper, section 6): it
    is smoothed and mapped the same way, so the loss is not linear in it. Negative entries are refused where they can be
    read without waiting for a device, and give NaN elsewhere.

    Args:
        lam: λ, the smallest standard deviation: smaller residuals are not attenuated (LN paper, section 3.1).
        tau: the temperature τ of the targets and of the prediction.
        t: how much of the label is spread over all classes.
        dummy: count one class more than there are (K′ = K + 1), whose logit is 0, so that all K are treated alike.
            Without it the last class has no logit, and the head gives K − 1.
        covariance: ``full`` as above; ``diagonal`` and ``isotropic`` Σ^½ = diag(σ) + λI with ``Output.scale`` σ,
            (B, D) or (B, 1), where λ keeps its meaning (the LN paper does not say how it makes these); ``identity`` is
            Σ = I.
        predict: ``classes`` predicts softmax(μ/τ) over the K classes; ``released`` as the released code, over K + 1
            with the dummy class.
        nll: add the constants of Eq. 4, so that the value is −log of the density (``LogisticNormal.log_prob``).

    The defaults are the LN paper's most frequent choice (Tables 5 and 6).

    >>> loss, mean = LN(lam=0.5, tau=1.0, reduction="none"), torch.tensor([[4.0, 0.0], [4.0, 0.0]])
    >>> loss(Output(mean, root=torch.zeros(2, 2)), torch.tensor([0, 1]))  # the second label is wrong
    tensor([ 4.3740, 95.5275])
    >>> loss(Output(mean, root=torch.tensor([[1.5, -2.0]] * 2)), torch.tensor([0, 1]))  # ... and forgiven
    tensor([4.9143, 1.8429])
    """

    needs = frozenset({"logits", "root"})
    formula: ClassVar[str] = "½ (τy − μ)ᵀΣ⁻¹(τy − μ) + ½ log|Σ|, Σ^½ = ccᵀ + λI"
    source: ClassVar[str] = "LN paper, Eqs. 4-11"
    kind: Kind = "other"
    linear = False

    def __init__(
        self,
        lam: float = 0.5,
        tau: float = 0.5,
        t: float = 0.01,
        dummy: bool = True,
        covariance: Covariance = "full",
        predict: Predict = "classes",
        nll: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.lam = check_number(
            "lam", lam, "[0.0001, inf)", 1e-4, remedy="Σ⁻¹ grows as 1/λ²; the LN paper takes 0.1 to 1."
        )
        self.tau = check_number("tau", tau, "(0, inf)", 0)
        self.t = check_number("t", t, "(0, 1)", 0, 1, "A label without smoothing has infinite logits.")
        self.dummy = check_flag("dummy", dummy)
        self.covariance: Covariance = check_word("covariance", covariance, get_args(Covariance))
        self.predict: Predict = check_word("predict", predict, get_args(Predict))
        self.nll = check_flag("nll", nll)
        self.needs = frozenset({"logits"} | NEEDS[covariance])
        self.implied, self.relative = 0 if self.dummy else 1, False
        self.extra_scores = int(self.dummy and self.predict == "released")

    def _aim(self, num_classes: int) -> float:
        """τ·C, the logit that a label aims at: C = log(((1 − t)K′ + t)/t) (LN paper, B.5)."""
        return self.tau * math.log1p((1 - self.t) * (num_classes + self.dummy) / self.t)

    def error(self, mean: Tensor, target: Tensor) -> Tensor:
        """μ − τy (B, D) in float64, for class indices (no −1 for ignored rows) or probabilities (B, K)."""
        num_classes, error = mean.shape[1] + self.implied, mean.to(torch.float64, copy=True)
        if target.dim() == 2:
            y = torch.log1p(target.double() * ((1 - self.t) * (num_classes + self.dummy) / self.t))
            return error - self.tau * (y if self.dummy else y[:, :-1] - y[:, -1:])
        aim = torch.full_like(error[:, :1], -self._aim(num_classes))
        column = target[:, None]
        if not self.dummy:  # the last class aims at −τC everywhere
            last = column == num_classes - 1
            error = error - aim * last
            column, aim = torch.where(last, 0, column), torch.where(last, 0, aim)
        return error.scatter_add_(1, column, aim)

    def smoothed(self, target: Tensor, num_classes: int) -> Tensor:
        """Probabilities (B, K′) of a label, spread over all classes by t (LN paper, footnote 2), in float64."""
        if target.dim() == 1:
            target = target.new_zeros((len(target), num_classes), dtype=torch.float64).scatter(1, target[:, None], 1)
        sure = F.pad(target.double(), (0, int(self.dummy)))
        return sure * (1 - self.t) + self.t / sure.shape[1]

    def _spread(self, out: Output) -> dict[str, Any]:
        """What makes Σ^½, under the names that ``LogisticNormal`` gives it."""
        rows, D = out.logits.shape
        if self.covariance == "identity":
            return {"lam": 1.0}
        if self.covariance == "full":
            return {"lam": self.lam, "root": _field(out, "root", (rows, D))}
        shape = (rows, D if self.covariance == "diagonal" else 1)
        return {"lam": self.lam, "scale": _field(out, "scale", shape)}

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        mean, spread, hard = out.logits, self._spread(out), target.dim() == 1
        if not hard and readable(target) and bool((target < 0).any()):
            raise ValueError(
                f"Expected probabilities in the target of ln, got {float(target.min()):.4g}. "
                "Use ce for targets with label noise added."
            )
        label = countable(target, self.ignore_index) if hard else target
        value: Tensor
        if self.covariance == "full" and mean.shape[1] > 1 and eager() and not (self.nll or target.requires_grad):
            value = _RankOne.apply(mean, spread["root"], label, self)  # type: ignore[no-untyped-call]
        elif self.nll:
            distribution = LogisticNormal(mean.double(), **spread, tau=self.tau, validate_args=False)
            value = self.finished(-distribution.log_prob(self.smoothed(label, mean.shape[1] + self.implied)), out)
        else:
            value = self.finished(negative_log_normal(self.error(mean, label), **spread), out)
        return value if hard or self.weight is None else value * self._weighed(target).sum(1)

    def finished(self, value: Tensor, out: Output) -> Tensor:
        """``value`` in the precision of the logits; an exploded covariance is refused, NaN logits give NaN."""
        if readable(value) and not math.isfinite(float(value.detach().sum())):
            rows = (~value.isfinite() & out.logits.isfinite().all(1)).nonzero()
            for name in self.needs - {"logits"} if len(rows) else ():
                row = int(rows[0])
                largest = float(getattr(out, name)[row].abs().max())
                raise NotFinite(
                    f"Expected a finite covariance, got `{name}` up to {largest:.3g} in row {row}. "
                    "Lower the learning rate, clip the norm of the gradient, or raise `lam`."
                )
        return value.to(out.logits.dtype)

    def scores(self, out: Output) -> Tensor:
        every = self.predict == "released" or not self.dummy  # a class beyond the logits has logit 0
        return (F.pad(out.logits, (0, 1)) if every else out.logits) / self.tau

    def distribution(self, out: Output) -> LogisticNormal:
        """The distribution over labels that ``out`` predicts, with each sample's Σ."""
        return LogisticNormal(out.logits, **self._spread(out), tau=self.tau)


Chunk = tuple[Tensor, Tensor | None]  # noise of each logit (s, B, K) and of each factor (s, B, R); B = 1 where shared


def draw_noise(
    like: Tensor,
    rank: int,
    *,
    samples: int,
    shared: bool,
    source: int | torch.Generator,
    classes_first: bool = False,
) -> Iterator[Chunk]:
    """Standard normal noise for logits ``like`` (B, K), in chunks whose size does not grow with ``samples``.

    From a seed as ``source`` it is the same every time. ``classes_first`` is how it lies in memory: as kernels read it.
    """
    generator = torch.Generator(like.device).manual_seed(source) if isinstance(source, int) else source
    rows, at_once = 1 if shared else len(like), _at_once(like)
    for start in range(0, samples, at_once):
        s = min(at_once, samples - start)
        shapes = [(width, s, rows) if classes_first else (s, rows, width) for width in (like.shape[1], rank)]
        each, across = (
            torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device) for shape in shapes
        )
        if classes_first:
            each, across = each.permute(1, 2, 0), across.permute(1, 2, 0)
        yield each, across if rank else None


def _at_once(like: Tensor) -> int:
    """How many samples of noisy logits (B, K) are in memory together."""
    # Eight times as many on a GPU, which would wait for the host between smaller ones.
    return max(1, min(CHUNK, CHUNK * (8 if like.is_cuda else 1) // max(1, like.numel())))


def _noise_of_any_row(like: Tensor, rank: int, **how: Any) -> Iterator[Chunk]:
    """The noise of a single row for all rows of ``like`` (B, K), however many there are."""
    for each, across in draw_noise(like[:1], rank, shared=True, **how):  # what is drawn must not depend on B
        for start in range(0, len(each), _at_once(like)):
            part = slice(start, start + _at_once(like))
            yield each[part], None if across is None else across[part]


def _noisy_log_softmax(mean: Tensor, scale: Tensor, factors: Tensor | None, tau: float, chunk: Chunk) -> Tensor:
    """log softmax(u/τ) with u = μ + Vε_R + d·ε_K, (s, B, K)."""
    each, across = chunk
    logits = torch.addcmul(mean, each, scale)
    if factors is not None and across is not None:
        logits += torch.einsum("sbr,bkr->sbk", across, factors)
    return F.log_softmax(logits.div_(tau), -1)


def _kernels_for(mean: Tensor, factors: Tensor | None) -> Any:
    """The kernels that average faster, or None where there are none for such logits."""
    small = mean.shape[1] <= MOST_CLASSES and (factors is None or factors.shape[2] <= MOST_FACTORS)
    if not (small and mean.dtype is torch.float32 and has_kernels(mean)):
        return None
    return provided("loss_kernels")


class _MeanSoftmax(torch.autograd.Function):
    """log of the mean softmax over all noise, (B, K); what is more than one chunk is drawn again on the way back."""

    @staticmethod
    def forward(
        ctx: Any,
        mean: Tensor,
        scale: Tensor,
        factors: Tensor | None,
        tau: float,
        noise: Callable[[], Iterable[Chunk]],
    ) -> Tensor:
        # In float64: what the samples weigh on the way back, p_k/p̄_k, then sums to one where log p is −500 too.
        total: Tensor | None = None
        samples, ctx.kept = 0, []
        kernels = _kernels_for(mean, factors)
        for chunk in noise():
            if kernels is not None:
                part = kernels.log_sum_softmax(mean, scale, factors, tau, *chunk)
            else:
                log_p = _noisy_log_softmax(mean, scale, factors, tau, chunk)
                ctx.kept = [(chunk, log_p)] if samples == 0 and any(ctx.needs_input_grad) else []
                top = log_p.amax(0)
                away = top.clamp(min=torch.finfo(top.dtype).min)  # of a class whose logit is −∞
                part = top + (log_p - away).exp_().sum(0).double().log_()
            total = part if total is None else torch.logaddexp(total, part)
            samples += len(chunk[0])
        assert total is not None
        total -= math.log(samples)
        ctx.save_for_backward(mean, scale, factors, total)
        ctx.tau, ctx.noise, ctx.samples, ctx.kernels = tau, noise, samples, kernels
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
            of_all = sum(ctx.kernels.mean_softmax_gradients(*weights, *chunk, rounded, grad) for chunk in ctx.noise())
            of_mean, of_scale, *columns = of_all
            of_factors = torch.stack(columns, 2) if columns else None
            return of_mean, of_scale.sum_to_size(scale.shape), of_factors, None, None
        of_mean, of_scale = torch.zeros_like(mean), torch.zeros_like(scale)
        of_factors = None if factors is None else torch.zeros_like(factors)
        again = ((chunk, _noisy_log_softmax(mean, scale, factors, ctx.tau, chunk)) for chunk in ctx.noise())
        for (each, across), log_p in ctx.kept or again:
            # d log p̄_k/du_j is a mean over samples of p_k/p̄_k·(1(j = k) − p_j): LN paper, Eq. 14, for the label.
            pull = (log_p - rounded).exp_().mul_(grad)
            slope = pull.sub_(log_p.exp().mul_(pull.sum(-1, keepdim=True)))
            of_mean += slope.sum(0)
            if of_factors is not None:
                of_factors += torch.einsum("sbk,sbr->bkr", slope, across)
            of_scale += slope.mul_(each).sum(0).sum_to_size(scale.shape)
        return of_mean, of_scale, of_factors, None, None


@register("het")
class Het(Loss):
    """Heteroscedastic classifier: cross entropy of a softmax averaged over Gaussian noise on the logits.

    L = −log mean_s softmax(u_s/τ)_y with u_s = μ + d·ε_s (LN paper, Eq. 13: Het, and Het-τ where τ ≠ 1), or
    u_s = μ + Vε_s + d·ε′_s with R factors V (Het-τ-Σ_full). μ are the logits, d is ``Output.scale`` and V
    ``Output.factors``. Only some millions of noisy logits are in memory at once, however many ``samples``. Once
    differentiable; ``torch.compile`` breaks its graph here, and ``torch.func`` cannot derive it.

    The noise depends on ``seed`` and on what ``set_step`` was last given, and is the same at every call until
    ``set_step`` is called again: the training loop does so before every step, your own loop has to. In evaluation mode
    it depends on ``seed`` alone and is the same for all rows, so that a row's prediction depends on nothing but the
    row. With a generator, as the loop gives on one GPU, a CUDA graph can hold the step: then all of a step's noise is
    drawn from it at once, and stays in memory until the next.

    Args:
        tau: the temperature τ.
        samples: how many samples to average, in training and in prediction.
        covariance: ``diagonal``, or ``full`` for factors too.
        shared: give all rows of a batch the same noise in training, too, as the WRN of uncertainty-baselines does.
        seed: of the noise.

    >>> out = Output(torch.tensor([[2.0, 0.0]]), scale=torch.tensor([[1.0, 1.0]]))
    >>> Het(samples=10000)(out, torch.tensor([0]))  # 0.1269 without noise
    tensor(0.2026)
    """

    needs = frozenset({"logits", "scale"})
    formula: ClassVar[str] = "−log mean_s softmax((μ + d·ε_s)/τ)_y"
    source: ClassVar[str] = "LN paper, Eqs. 13-14; Kendall & Gal 2017; Collier et al. 2020, 2021"
    kind: Kind = "other"
    independent_rows = False  # in training a row's noise depends on its place in the batch

    def __init__(
        self,
        tau: float = 1.0,
        samples: int = 1000,
        covariance: Literal["diagonal", "full"] = "diagonal",
        shared: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.tau = check_number("tau", tau, "(0, inf)", 0)
        self.samples = check_count("samples", samples, 1, "The softmax is averaged over them.")
        self.covariance = check_word("covariance", covariance, ("diagonal", "full"))
        self.shared = check_flag("shared", shared)
        self.seed = check_count("seed", seed, 0)
        self.needs = frozenset({"logits", "scale"} | ({"factors"} if covariance == "full" else set()))
        self.step = 0
        self._generator: torch.Generator | None = None
        self._drawn: list[Chunk] = []  # from that
        self._last: tuple[list[tuple[ref[Tensor], int]], Tensor] | None = None  # of what that averaged, and to what

    def set_step(self, seed: int, generator: torch.Generator | None = None) -> None:
        self.step, self._generator, self._drawn, self._last = seed, generator, [], None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_generator": None, "_drawn": [], "_last": None}  # these are of one step

    def scores(self, out: Output) -> Tensor:
        """log of the averaged softmax, (B, K)."""
        # Not as a decorator, which would load the compiler with this module.
        average = torch.compiler.disable(self._average) if torch.compiler.is_compiling() else self._average  # type: ignore[no-untyped-call]
        log_p: Tensor = average(out)
        return log_p

    def _average(self, out: Output) -> Tensor:
        given = [part for part in out if part is not None]
        if self._last is not None and self.training and not torch.is_grad_enabled():
            parts, log_p = self._last
            pairs = zip(parts, given, strict=False)
            if len(parts) == len(given) and all(known() is part and at == part._version for (known, at), part in pairs):
                return log_p  # of the step's loss, which whoever watches the step asks for again
        rows, K = out.logits.shape
        scale = _field(out, "scale", (rows, K), (rows, 1))
        factors = None
        if self.covariance == "full":
            rank = out.factors.shape[2] if out.factors is not None and out.factors.dim() == 3 else 1
            factors = _field(out, "factors", (rows, K, rank))
        dtype = wide(out.logits.dtype)
        mean = (out.logits - out.logits.detach().amax(1, keepdim=True)).to(dtype)  # else large logits swallow noise
        rank = 0 if factors is None else factors.shape[2]
        first = _kernels_for(mean, factors) is not None
        draw = partial(draw_noise, shared=self.shared) if self.training else _noise_of_any_row
        draw = partial(draw, mean.detach(), rank, samples=self.samples, classes_first=first)
        noise: Callable[[], Iterable[Chunk]]
        if self.training and self._generator is not None:
            each, across = self._drawn[0] if self._drawn else (None, None)
            width = 0 if across is None else across.shape[2]
            if each is None or (*each.shape[1:], width) != (1 if self.shared else rows, K, rank):
                self._drawn = list(draw(source=self._generator))
            noise = partial(iter, self._drawn)
        else:
            noise = partial(draw, source=seed_of(self.seed, self.step if self.training else None))
        factors = None if factors is None else factors.to(dtype)
        average: Tensor = _MeanSoftmax.apply(mean, scale.to(dtype), factors, self.tau, noise)  # type: ignore[no-untyped-call]
        average = average.to(out.logits.dtype)
        if self.training and self._generator is not None and average.requires_grad:
            self._last = [(ref(part), part._version) for part in given], average.detach()
        return average

    def per_sample(self, out: Output, target: Tensor) -> Tensor:
        log_p = self.scores(out)
        if target.dim() == 1:
            return F.nll_loss(log_p, target, reduction="none", ignore_index=self.ignore_index)
        return self._over_classes(-log_p, target)
