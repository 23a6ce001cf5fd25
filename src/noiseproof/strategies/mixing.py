"""Strategies that train on mixtures of samples: mixup, and DivideMix, which drops labels it does
not trust.
"""

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noiseproof.core.checks import count, flag, number
from noiseproof.core.output import Output
from noiseproof.data.augment import Transform
from noiseproof.data.base import shuffled
from noiseproof.strategies.batch import Batch, Step
from noiseproof.strategies.run import Run, Strategy, register
from noiseproof.strategies.sweeps import evaluating, per_row


def draw_mix(purpose: str, alpha: float, n: int, run: Run) -> tuple[float, Tensor]:
    """Return λ = max(λ′, 1 − λ′) for λ′ ~ Beta(α, α), and a partner for each of ``n`` samples, of
    this step.
    """
    drawn = float(np.random.default_rng(run.random.seed_for(purpose, run.step)).beta(alpha, alpha))
    partner = shuffled(n, run.random.generator(purpose, run.step, device="cpu"))
    return max(drawn, 1 - drawn), partner.to(run.device)


def mix(values: Tensor, lam: float, partner: Tensor, batch: Batch, run: Run) -> Tensor:
    """Return λ·v + (1 − λ)·v′ for the V views of each row, ``values`` (b, V, …).

    V′ may belong to another process.

    Partners are drawn among the views of all processes (count·V,) and their values gathered, so
    that the number of processes changes nothing; reading and augmenting partners again would cost
    more than sending them.
    """
    gathered = run.processes.gather(values, batch)
    others = run.processes.share(gathered.flatten(0, 1)[partner].view_as(gathered))
    return torch.lerp(others, values, lam)


def second_view(purpose: str, batch: Batch, run: Run, transform: Transform | None = None) -> Tensor:
    """Return the rows of the batch in a second augmentation, by default as the first, (b, …)."""
    transform = transform or run.augment
    if transform is None or not transform.columns:
        return batch.x
    drawn = transform.draw(batch.count, run.random.generator(purpose, run.step))
    return run.fetch(run.data.x, batch.rows, transform, run.processes.share(drawn))


def two_views(purpose: str, batch: Batch, run: Run) -> Tensor:
    """Return the rows of the batch in both augmentations, (b, 2, …)."""
    return torch.stack([batch.x, second_view(purpose, batch, run)], 1)


def mean_prediction(model: nn.Module, x: Tensor, run: Run) -> Tensor:
    """Return the predicted distribution (b, K), averaged over the two views of ``x`` (b, 2, …)."""
    p = run.loss.scores(run.forward(model, x.flatten(0, 1))).softmax(1)
    return p.view(len(x), 2, -1).mean(1)


def interleaved(labelled: Tensor, rest: Tensor, n: int, among: int) -> Tensor:
    """Return ``n`` rows, ``among`` of them from the rest: at equal distances, so that every step
    and process gets both.

    >>> interleaved(torch.tensor([0, 1, 2]), torch.tensor([8, 9]), 8, 4)
    tensor([0, 8, 1, 9, 2, 8, 0, 9])
    """
    place = torch.arange(n + 1, device=labelled.device) * among // n
    from_rest = place[1:] > place[:-1]
    order = labelled.new_empty(n)
    for rows, chosen in ((labelled, ~from_rest), (rest, from_rest)):
        order[chosen] = rows[
            torch.arange(int(chosen.sum()), device=rows.device) % max(1, len(rows))
        ]
    return order


def ramped(epochs: float, ramp: float) -> float:
    """Return what rises from 0 to 1 over ``ramp`` epochs."""
    if not ramp:
        return 1.0
    return min(1.0, epochs / ramp)


def mixmatch(
    m: int,
    x: Tensor,
    target: Tensor,
    batch: Batch,
    run: Run,
    *,
    is_labelled: Tensor,
    alpha: float,
    weight: float,
    purpose: str,
    class_weights: float | Tensor = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the loss (b,) and mean prediction (b, K) of network ``m`` for the mixed views of rows
    (Berthelot et al. 2019).

    CE of the labelled rows, each class with its weight, plus ``weight``·‖p − t‖²/K of the others:
    the mean of the losses over the rows of all processes is the sum of the mean of either.

    Args:
        x: two views of each row, (b, 2, …).
        target: of each row, (b, K).
        is_labelled: (N,), by row number.
        alpha: of λ ~ Beta(α, α).
        purpose: names the random numbers.
    """
    lam, partner = draw_mix(purpose, alpha, 2 * batch.count, run)
    x, target = (mix(v, lam, partner, batch, run) for v in (x, target[:, None].expand(-1, 2, -1)))
    out = run.forward(run.models[m].wrapped, x.flatten(0, 1))
    log_p = run.loss.scores(out).log_softmax(1).view_as(target)  # (b, 2, K)
    p = log_p.exp()
    size = is_labelled[batch.all_rows].sum().to(p.dtype)
    entropy = -(class_weights * target * log_p).sum(2).mean(1) * (batch.count / size.clamp(min=1))
    square = ((p - target) ** 2).mean((1, 2)) * (
        weight * batch.count / (batch.count - size).clamp(min=1)
    )
    return torch.where(is_labelled[batch.rows], entropy, square), p.mean(1)


def imbalance(p: Tensor, batch: Batch, run: Run) -> Tensor:
    """Return what each row contributes, (b,), to KL(uniform ‖ mean prediction), which is the mean
    of it.
    """
    counted = p.detach()
    if batch.counts is not None:
        counted = counted * batch.counts[:, None]
    mean = (run.processes.sum(counted.sum(0)) / batch.count).clamp(min=torch.finfo(p.dtype).tiny)
    uneven = -mean.log().mean() - math.log(len(mean))  # Σ_k 1/K log(1/K / mean_k)
    # The gradient of the divergence in p is −1/(K·mean), which this sum has; its mean over rows is
    # the divergence.
    return uneven + 1 - (p / mean).mean(1)


def row_losses(run: Run) -> Tensor:
    """Return the cross entropy of every given label, by model: (N, M)."""

    def losses_of(rows: Tensor, outs: list[Output]) -> Tensor:
        label = run.labels(rows)
        return torch.stack(
            [F.cross_entropy(run.loss.scores(out), label, reduction="none") for out in outs], 1
        )

    return per_row(run, losses_of)


def predicted_by_all(run: Run) -> Tensor:
    """Return whether each given label is what every model predicts, (N,)."""

    def agreement(rows: Tensor, outs: list[Output]) -> Tensor:
        return (
            torch.stack([run.loss.scores(out).argmax(1) == run.data.given[rows] for out in outs])
            .all(0)
            .long()
        )

    return per_row(run, agreement).bool()  # numbers up to here, which processes can add


def sharpen(p: Tensor) -> Tensor:
    """Return p_k² / Σ_i p_i² of distributions (b, K), which is more confident (temperature ½)."""
    return (2 * p.log()).softmax(1)


def clean_posterior(losses: Tensor) -> Tensor:
    """Return the probability that each loss (N,) comes from the lower of two Gaussians, (N,)
    float64.

    They are fitted by EM from the clusters of k-means, with DivideMix's settings. Computed on the
    CPU, where sums are reproducible.

    >>> clean_posterior(torch.tensor([0.0, 0.1, 0.2, 0.8, 0.9, 1.0])).round()
    tensor([1., 1., 1., 0., 0., 0.], dtype=torch.float64)
    """
    from sklearn.mixture import GaussianMixture

    x = losses.detach().cpu().double().numpy()[:, None]
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it need not converge
        mixture.fit(x)
    return torch.from_numpy(mixture.predict_proba(x)[:, mixture.means_.argmin()])


@register("mixup")
@dataclass(eq=False)
class Mixup(Strategy):
    """x̃ = λ·x + (1 − λ)·x′ and the same of targets, λ ~ Beta(α, α), one λ a step (Zhang et al.
    2018; ELR+: α = 1).

    λ is replaced by max(λ, 1 − λ), so that a mixture is mostly its own row. The partner x′ is any
    row of the step, of any process. Memories that an earlier strategy adds to outputs are mixed in
    the same way. The record shows the outputs of mixtures, and strategies that revise targets by
    outputs do not account for mixing.
    """

    mixes = True
    multilabel = True
    makes = "probabilities"

    alpha: float = number("(0, inf)", 1.0)

    def targets(self, batch: Batch, run: Run) -> Batch:
        target = batch.soft_target(run.num_classes, batch.x)
        rows = target.dim() - 2  # the dimension of rows: targets may be each model's own
        mixed = self._mixed(target.movedim(rows, 0), batch, run).movedim(0, rows)
        return replace(batch, x=self._mixed(batch.x, batch, run), target=mixed)

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        return [
            out if out.memory is None else out._replace(memory=self._mixed(out.memory, batch, run))
            for out in outs
        ]

    def _mixed(self, values: Tensor, batch: Batch, run: Run) -> Tensor:
        lam, partner = draw_mix("mixup", self.alpha, batch.count, run)
        return mix(values[:, None], lam, partner, batch, run)[:, 0]


class Undivided(RuntimeError):
    """The losses of a network do not separate two kinds of labels."""


@register("dividemix")
@dataclass(eq=False)
class DivideMix(Strategy):
    """Two networks divide the samples for each other; labels that are not trusted are dropped (Li
    et al. 2020).

    For ``warmup`` epochs both train as usual. Before each later epoch a two-component Gaussian
    mixture is fitted to each network's losses, scaled to [0, 1]; w, the posterior of the lower
    component, is the trust of the *other* network in each label, and rows with w > ½ are its
    labelled set. Half the rows of a step come from either set, in two augmentations each; p
    is the mean prediction for both:

        labelled:    t = sharpen(w·onehot(given) + (1 − w)·p_own)
        unlabelled:  t = sharpen((p_own + p_other) / 2)
        loss = CE(labelled) + λ_u·r·‖p − t‖²/K (unlabelled) + KL(uniform ‖ mean prediction)

    on inputs and targets mixed with λ ~ Beta(α, α), λ ≥ ½, among all views of the step; r rises
    linearly from 0 to 1 over ``ramp`` epochs. As in the released code, an epoch trains the first
    network on all its labelled rows, then the second, and the other network predicts in evaluation
    mode. Unlike there, both warm up on the same batches, the last batch is filled up with the first
    labelled rows, and all views are predicted in one pass, which shares batch statistics.

    The batch size counts labelled and unlabelled rows. docs/strategies.md has published settings,
    and what is refused.

    If a mixture leaves no labelled row, or all losses are equal, the network keeps its last
    division, with a warning; right after the warm-up, when there is none yet, it raises
    ``Undivided``. If there is no unlabelled row, steps have labelled rows only.

    Args:
        penalty: add −entropy of each prediction to the loss of the warm-up (against overconfidence
            under asymmetric noise).
        balance: whether the loss has its last term, which is for classes of equal size: a rare one
            would be predicted as often as the largest.
        agreed: whether w = 1 for labels that both networks predict: the losses of a rare or hard
            class fall under the upper component, even if all its labels are right.
    """

    models = 2
    remembers = ("trust", "first_step")

    warmup: int = count(0, 10)
    lambda_u: float = number("[0, inf)", 25.0)
    ramp: float = number("[0, inf)", 16.0)
    alpha: float = number("(0, inf)", 4.0)
    penalty: bool = flag(False)
    balance: bool = flag(True)
    agreed: bool = flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        # (N,) for each network: the posterior from the losses of the other
        self.trust: list[Tensor | None] = [None, None]
        self.first_step = 0  # of this epoch
        self._num_steps = [0, 0]  # of each network in this epoch; set by ``rows``

    def start_epoch(self, run: Run) -> None:
        self.first_step = run.step
        if run.epoch >= self.warmup:
            trusted = predicted_by_all(run) if self.agreed else None
            for m, losses in enumerate(row_losses(run).unbind(1)):
                self._divide(m, losses, run, trusted)

    def _divide(self, m: int, losses: Tensor, run: Run, trusted: Tensor | None = None) -> None:
        """Divide the samples for the other network by the ``losses`` (N,) of network ``m``,
        whatever is ``trusted``.
        """
        low, high = (float(end) for end in losses.aminmax())
        reason = "all the same or not finite"
        if math.isfinite(high - low) and low < high:
            posterior = clean_posterior((losses - low) / (high - low))
            posterior = posterior.to(run.device, run.dtype)
            if bool((posterior > 0.5).any()):
                if trusted is not None:
                    posterior = posterior.masked_fill(trusted, 1.0)
                self.trust[1 - m] = posterior
                return
            reason = "none of which the mixture trusts"
        message = (
            f"Expected losses of network {m + 1} that divide the samples, got {low:.6g} to"
            f" {high:.6g}, {reason}"
        )
        if self.trust[1 - m] is None:
            raise Undivided(
                f"{message}. Warm up longer (now warmup={self.warmup}), or lower the learning rate."
            )
        warnings.warn(
            f"{message} in epoch {run.epoch + 1}: its last division stands.", stacklevel=2
        )

    def _trust(self, m: int) -> Tensor:
        """Return the trust of network ``m`` in each label, (N,)."""
        trust = self.trust[m]
        assert trust is not None
        return trust

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        if run.epoch < self.warmup:
            return rows
        parts = []
        for m in range(2):
            is_labelled = (self._trust(m) > 0.5).to(rows.device)[rows]
            labelled = rows[is_labelled]
            rest = rows[~is_labelled]
            sets = 1 + bool(len(rest))
            self._num_steps[m] = math.ceil(sets * len(labelled) / run.batch_size)
            n = self._num_steps[m] * run.batch_size
            parts.append(interleaved(labelled, rest, n, n // 2 * (sets - 1)))
        return torch.cat(parts)

    def step(self, batch: Batch, run: Run) -> Step | None:
        if run.epoch < self.warmup:
            return None
        done = run.step - self.first_step
        m = int(done >= self._num_steps[0])  # the first network's steps, then the second's
        done -= m * self._num_steps[0]
        progress = run.epoch + done / self._num_steps[m]
        x = two_views("dividemix view", batch, run)
        target = self._guess(m, x, batch, run)
        weight = self.lambda_u * ramped(progress - self.warmup, self.ramp)
        losses, p = mixmatch(
            m,
            x,
            target,
            batch,
            run,
            is_labelled=self._trust(m) > 0.5,
            alpha=self.alpha,
            weight=weight,
            purpose="dividemix",
        )
        if self.balance:
            losses = losses + imbalance(p, batch, run)
        run.backward(losses[None], batch)
        return Step([], losses.detach()[None], None)

    def penalties(
        self, losses: Tensor, outs: list[Output], batch: Batch, run: Run
    ) -> Tensor | None:
        if not self.penalty:
            return None
        log_p = torch.stack([run.loss.scores(out).log_softmax(1) for out in outs])
        return (log_p.exp() * log_p).sum(2)

    @torch.no_grad()
    def _guess(self, m: int, x: Tensor, batch: Batch, run: Run) -> Tensor:
        """Return the target of network ``m`` for each row (b, K): from its label, or from the
        predictions of both networks.
        """
        trust = self._trust(m)[batch.rows, None]
        rest = (trust <= 0.5)[:, 0]
        p = mean_prediction(run.models[m].wrapped, x, run)
        target = trust * batch.soft_target(run.num_classes, p) + (1 - trust) * p
        other = run.models[1 - m].evaluated
        run.processes.broadcast_buffers([other])
        if bool(rest.any()):
            with evaluating([other]):
                target[rest] = (p[rest] + mean_prediction(other, x[rest], run)) / 2
        return sharpen(target)
