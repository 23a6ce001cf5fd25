"""ProMix: two networks that train on as many labels as they can trust, and on labels that both of
them guess.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.checks import count, flag, number
from noiseproof.strategies.batch import Batch, Step
from noiseproof.strategies.mixing import draw_mix, mix, row_losses, second_view
from noiseproof.strategies.run import Run, Strategy, register
from noiseproof.strategies.selection import quantiles
from noiseproof.strategies.sweeps import predict_log_probs


def agreed_counts(p: Tensor, given: Tensor, wanted: Tensor) -> Tensor:
    """Return how many rows of each class (K,) predictions ``p`` (N, K) leave to trust, where
    ``wanted`` (K,) are its share.

    They are the rows whose label is predicted or, up to ``wanted``, has twice the odds of its share
    of all labels. Noise that is the same for all classes brings their sizes closer to N/K, never
    past it: of a class with fewer labels than that, no greater part is trusted than of the larger
    ones together, as predictions that mistake it for the largest would confirm themselves. Only
    where all these are fewer than all ``wanted``, as early in a training, classes are filled up,
    all by the same part of what they lack.

    >>> given, wanted = torch.tensor([0] * 6 + [1] * 4), torch.tensor([3, 2])
    >>> # all are predicted as 0
    >>> agreed_counts(torch.tensor([[0.7, 0.3]]).expand(10, 2), given, wanted)
    tensor([6, 0])
    >>> # all are predicted as 1
    >>> agreed_counts(torch.tensor([[0.3, 0.7]]).expand(10, 2), given, wanted)
    tensor([3, 2])
    """
    sizes = torch.bincount(given, minlength=len(wanted))
    is_likely = (
        p.gather(1, given[:, None])[:, 0].logit()
        > math.log(2) + (sizes / len(given))[given].logit()
    )
    likely = torch.bincount(given[is_likely], minlength=len(wanted))
    least = wanted.minimum(likely).maximum(
        torch.bincount(given[p.argmax(1) == given], minlength=len(wanted))
    )
    is_large = sizes * len(wanted) >= len(given)
    least = least.where(
        is_large, least.minimum(least[is_large].sum() * sizes // sizes[is_large].sum())
    )
    lacking = (wanted - least).clamp(min=0)
    part = (wanted.sum() - least.sum()).clamp(min=0) / lacking.sum().clamp(min=1)
    return least + (part * lacking).ceil().long()


@register("promix")
@dataclass(eq=False)
class ProMix(Strategy):
    """Two networks, each trained on labels of small loss or high confidence, in three views (Xiao
    et al. 2023).

    For ``warmup`` epochs both train as usual. Before each later epoch each network chooses the rows
    of smallest loss of every given class (class-wise small-loss selection): the share rho of its
    N_k rows or, with ``equal``, the paper's ⌈rho·N/K⌉, which is the same where classes are equally
    large, and all of a rare class elsewhere. With ``agreed`` the predictions of both networks
    together say how many (``agreed_counts``): the share leaves out rows of clean labels that are
    hard but learned, and trusts the wrong labels of a rare class, which may be most of its N_k. In
    a step it adds the rows with p_y > ``tau`` (matched high confidence), and from the epoch
    ``guess_from`` on rows that have a class of p > ``tau`` in both networks, the same one, which
    then is their label (label guessing by agreement): the most confident of them, until ``share``
    of the step is chosen. Its loss is the mean over the chosen rows of

        CE(x, t) + w·(CE(x′, t) + CE(x̃, t̃))        w = min(1, epoch/ramp)

    x′ is a second augmentation, x̃ a mixture of x with another chosen row, λ ~ Beta(α, α), λ ≥ ½.
    This is the method of the CIFAR-N challenge (2022) without FMix, a fourth view; x′ has
    AutoAugment where inputs are prepared as in the paper (``paper="promix"``), else it is drawn as
    x is; and the views are predicted in one pass, which shares batch statistics. The conference
    paper adds a second head for the rows that are not chosen, and corrects logits by running means
    of the predictions.
    """

    models = 2
    remembers = ("small",)

    warmup: int = count(0, 10)
    rho: float = number("(0, 1]", 0.5)
    tau: float = number("[0, 1]", 0.99)
    ramp: int = count(1, 50)
    guess_from: int | None = count(0, None)
    share: float = number("[0, 1]", 0.9)
    alpha: float = number("(0, inf)", 4.0)
    equal: bool = flag(False)
    agreed: bool = flag(False)
    # (N, 2): whether the loss of a row is among the smallest of its class, by network
    small: Tensor | None = field(default=None, init=False)

    def start_epoch(self, run: Run) -> None:
        if run.epoch >= self.warmup:
            given = run.data.given
            sizes = torch.bincount(given, minlength=run.num_classes)
            # ½, 1½, … in each class
            ranks = quantiles(row_losses(run), given, run.num_classes) * sizes[given, None]
            counts = sizes.tolist()
            if self.equal:
                counts = [run.num_rows / run.num_classes] * run.num_classes
            wanted = sizes.new_tensor([math.ceil(self.rho * count) for count in counts])
            if self.agreed:
                wanted = agreed_counts(predict_log_probs(run).exp(), given, wanted)
            self.small = ranks < wanted[given, None]

    def step(self, batch: Batch, run: Run) -> Step | None:
        if run.epoch < self.warmup:
            return None
        with torch.no_grad():
            outs = [run.forward(model.wrapped, batch.x) for model in run.models]
            p = torch.stack([run.loss.scores(out).softmax(1) for out in outs], 1)
            # of the rows of all processes
            chosen, labels = self._choose(run.processes.gather(p, batch), batch, run)
        view = second_view("promix view", batch, run, run.strong)
        losses = torch.stack(
            [self._losses(m, view, chosen[:, m], labels[:, m], batch, run) for m in range(2)]
        )
        mask = chosen.to(losses.dtype)
        weights = run.processes.share(mask * (batch.count / mask.sum(0).clamp(min=1))).T
        run.backward(losses * weights, batch)
        return Step(outs, losses.detach(), weights)

    def _choose(self, p: Tensor, batch: Batch, run: Run) -> tuple[Tensor, Tensor]:
        """Return the rows of a step that each network trains on (count, 2), and their labels, from
        ``p`` (count, 2, K).
        """
        assert self.small is not None
        given = run.data.given[batch.all_rows, None].expand(-1, 2)  # (count, 2)
        trusted = self.small[batch.all_rows] | (p.gather(2, given[..., None])[..., 0] > self.tau)
        confidence, predicted = p.max(2)
        labels = torch.where(trusted, given, predicted)
        if self.guess_from is None or run.epoch < self.guess_from:
            return trusted, labels
        agreed = (confidence > self.tau).all(1) & (predicted[:, 0] == predicted[:, 1])
        guessed = agreed[:, None] & ~trusted
        # (count, 2): those to choose from first
        mean = confidence.mean(1, keepdim=True).where(guessed, -1.0)
        rank = mean.argsort(dim=0, descending=True, stable=True).argsort(dim=0)
        room = (int(self.share * batch.count) - trusted.sum(0)).clamp(min=0)
        return trusted | (guessed & (rank < room)), labels

    def _losses(
        self, m: int, view: Tensor, chosen: Tensor, labels: Tensor, batch: Batch, run: Run
    ) -> Tensor:
        """Return the loss of each row (b,) for network ``m``, from what is chosen of the rows of
        all processes (count,).
        """
        places = chosen.nonzero()[:, 0]
        lam, order = draw_mix(f"promix {m}", self.alpha, len(places), run)
        partner = torch.arange(batch.count, device=run.device)
        partner[places] = places[order]
        target = F.one_hot(run.processes.share(labels), run.num_classes).to(run.dtype)
        mixed, mixed_target = (
            mix(values[:, None], lam, partner, batch, run)[:, 0] for values in (batch.x, target)
        )
        out = run.forward(
            run.models[m].wrapped, torch.stack([batch.x, view, mixed], 1).flatten(0, 1)
        )
        log_p = run.loss.scores(out).log_softmax(1).view(len(target), 3, -1)
        plain, other, mixture = (
            torch.stack([target, target, mixed_target], 1).mul(-log_p).sum(2).unbind(1)
        )
        return plain + min(1.0, run.epoch / self.ramp) * (other + mixture)
