"""Progressive early stopping: later layers, which labels harm most, are trained again and for less
time (PES).

Then the labels that the model agrees with are trusted; the other rows are left out, or go without
their labels.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from noiseproof.core.checks import count, flag, number
from noiseproof.core.output import Output
from noiseproof.models.base import INITS, reset_layers
from noiseproof.models.classifier import Classifier
from noiseproof.strategies.batch import Batch, Step
from noiseproof.strategies.mixing import (
    interleaved,
    mean_prediction,
    mixmatch,
    ramped,
    sharpen,
    two_views,
)
from noiseproof.strategies.run import Run, Strategy, register
from noiseproof.strategies.sweeps import log_probs, per_row

ALL, BLOCK, HEAD, CONFIDENT = range(4)  # stages: what is trained, and in the last one on which rows


@register("progressive-stopping")
@dataclass(eq=False)
class ProgressiveStopping(Strategy):
    """Progressive early stopping, then training on the labels that the model agrees with (Bai et
    al. 2021, PES).

    All layers train for T₁ = ``start`` epochs. Then the last block and the head are drawn again and
    trained alone for T₂ = ``block_epochs``, then the head once more for T₃ = ``head_epochs``, by
    Adam at the constant rate ``lr``. From then on, each epoch trains the whole network on the rows
    whose given label has the largest mean probability over two augmentations. A row of class k has
    the weight n̄/n_k, where n_k rows of it were chosen, and n̄ is their mean over the classes.
    Where no row of a class is, all of them are chosen, since the class could not come back.

    The block is the last part of the backbone that has weights, where there are others before it.
    Batch statistics of the layers below follow, as in the released code. CIFAR-10: 25, 7 and 5 of
    200 epochs; CIFAR-100: 30, 7 and 5. There the epochs of the block and the head do not count;
    here they do.

    Args:
        start: T₁; none: all layers train on all rows throughout.
        released: leave the renewed layers as T₂ and T₃ made them, as the released code does: its
            optimiser holds the layers from before.
        balance: whether rows have the weights n̄/n_k, which is for classes of equal size: a rare
            one would weigh as much as the largest.
    """

    capturable = True
    remembers: ClassVar[tuple[str, ...]] = ("chosen", "class_weights")
    heaviest = math.inf  # of the weights of classes

    start: int | None = count(1, 25, optional=True)
    block_epochs: int = count(0, 7)
    head_epochs: int = count(0, 5)
    lr: float = number("(0, inf)", 1e-4)
    released: bool = flag(False)
    balance: bool = flag(True)
    _renewing = ALL  # the stage of the weights that Adam trains alone

    def setup(self, run: Run) -> None:
        run.check_whole("draw again")
        self._classifiers = [
            model.plain for model in run.models if isinstance(model.plain, Classifier)
        ]
        assert len(self._classifiers) == len(run.models)
        self.chosen = torch.ones(run.num_rows, dtype=torch.bool, device=run.device)
        self.class_weights = torch.ones(run.num_classes, dtype=run.dtype, device=run.device)

    @property
    def ends_of_stages(self) -> tuple[float, float, float]:
        """The first epoch after each stage but the last."""
        start = math.inf if self.start is None else self.start
        return start, start + self.block_epochs, start + self.block_epochs + self.head_epochs

    def phase(self, run: Run) -> int:
        """Return the stage of the epoch."""
        return sum(run.epoch >= end for end in self.ends_of_stages)

    def restarts(self, epoch: int) -> bool:
        block, head, _ = self.ends_of_stages
        renewed = (block, self.block_epochs), (head, self.head_epochs)
        return any(epoch == first and epochs for first, epochs in renewed)

    def start_epoch(self, run: Run) -> None:
        stage = self.phase(run)
        if stage == CONFIDENT:
            self._choose(run)
        elif self.restarts(run.epoch):
            for m, model in enumerate(self._classifiers):
                fill = INITS[model.backbone.init]
                generator = run.random.generator(self.name, m, stage, device="cpu")
                for part in self._blocks(model, stage):
                    reset_layers(part, fill, generator)
                model.head.reset_parameters(fill, generator, run.loss.starts)
            for trained in run.models:
                # another one where weights are averaged
                trained.evaluated.load_state_dict(trained.plain.state_dict())
                for weight in self._renewed(stage):
                    trained.optimizer.state.pop(weight, None)
            self._start_adam(stage)

    def _start_adam(self, stage: int) -> None:
        self._renewing = stage
        weights = self._renewed(stage)
        # as a CUDA graph can hold its steps
        on_gpu = weights[0].is_cuda
        self._adam = torch.optim.Adam(weights, self.lr, fused=True, capturable=on_gpu)

    def _blocks(self, model: Classifier, stage: int) -> list[nn.Module]:
        """Return the parts of the backbone that the ``stage`` draws again."""
        return last_block(model.backbone) if stage == BLOCK else []

    def _renewed(self, stage: int) -> list[nn.Parameter]:
        """Return the weights that the ``stage`` draws again."""
        parts: list[nn.Module] = []
        for model in self._classifiers:
            parts += [*self._blocks(model, stage), model.head]
        return [weight for part in parts for weight in part.parameters()]

    def _choose(self, run: Run) -> None:
        """Choose the rows whose given label is predicted, and weigh classes by their number.

        A class of which no label is predicted keeps all its rows: it could not come back otherwise.
        """

        def probs(rows: Tensor, outs: list[Output]) -> Tensor:
            return log_probs(run.loss, outs).exp()

        first, second = (per_row(run, probs, augment=f"{self.name} {view}") for view in (1, 2))
        given = run.data.given
        chosen = (first + second).argmax(1) == given
        is_lost = torch.bincount(given[chosen], minlength=run.num_classes) == 0  # (K,)
        chosen |= is_lost[given]
        counts = torch.bincount(given[chosen], minlength=run.num_classes).to(run.dtype)
        self.chosen.copy_(chosen)  # in place: a CUDA graph holds the addresses
        if self.balance:
            weights = torch.where(counts > 0, counts[counts > 0].mean() / counts, 0)
            self.class_weights.copy_(weights.clamp(max=self.heaviest))

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        return rows[self.chosen.to(rows.device)[rows]]

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor | None:
        if self.phase(run) != CONFIDENT:
            return None
        total = self.class_weights[run.data.given[batch.all_rows]].sum()
        return (self.class_weights[batch.given] * (batch.count / total)).expand_as(losses)

    def gradients(self, run: Run) -> None:
        stage = self.phase(run)
        frozen = list[nn.Parameter]()
        if stage in (BLOCK, HEAD):
            self._adam.step()
            frozen = [weight for model in self._classifiers for weight in model.parameters()]
        elif stage == CONFIDENT and self.released:
            frozen = self._renewed(BLOCK if self.block_epochs else HEAD)
        for weight in frozen:  # without a gradient it does not move, nor decay
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        adam = self._adam.state_dict()["state"] if self._renewing else {}
        return {**super().state_dict(), "renewing": self._renewing, "adam": adam}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({name: state[name] for name in self.remembers})
        if state["renewing"]:
            self._start_adam(state["renewing"])
            self._adam.load_state_dict({**self._adam.state_dict(), "state": state["adam"]})


@register("progressive-mixmatch")
@dataclass(eq=False)
class ProgressiveMixMatch(ProgressiveStopping):
    """Progressive early stopping, then MixMatch: rows it would leave out go without labels (Bai et
    al. 2021, PES semi).

    Rows without labels have the same share of a step as of the set, half at most, in two
    augmentations each; p is the mean prediction for both:

        labelled:    t = onehot(given)
        unlabelled:  t = sharpen(p)
        loss = Σ_k w_k·CE_k(labelled) + λ_u·r·‖p − t‖²/K (unlabelled)

    on inputs and targets mixed with λ ~ Beta(α, α), λ ≥ ½, among all views of the step, where
    w_k = min(3, n̄/n_k), and r rises linearly from 0 to 1 over ``ramp`` epochs. α is ``alpha`` in
    the first half of the run, then ``late_alpha``.

    CIFAR-N: T₁ = 20 of 300 epochs, λ_u = 5 on CIFAR-10, 35 and 75 on CIFAR-100; the head is renewed
    for 5, no block. Other losses than ``ce``, and strategies that change targets, outputs or
    weights from then on, are refused.

    Args:
        lambda_u: λ_u, the weight of rows without labels.
    """

    capturable = False
    remembers = (*ProgressiveStopping.remembers, "first_step")
    heaviest = 3.0

    start: int | None = count(1, 20, optional=True)
    block_epochs: int = count(0, 0)
    lambda_u: float = number("[0, inf)", 5.0)
    ramp: float = number("[0, inf)", 16.0)
    alpha: float = number("(0, inf)", 4.0)
    late_alpha: float = number("(0, inf)", 0.75)
    first_step = 0  # of this epoch
    _num_steps = 1  # of this epoch; set by ``rows``

    @property
    def warmup(self) -> float:
        """The epochs before its own steps."""
        return self.ends_of_stages[-1]

    def start_epoch(self, run: Run) -> None:
        super().start_epoch(run)
        self.first_step = run.step

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        if self.phase(run) != CONFIDENT:
            return rows
        is_labelled = self.chosen.to(rows.device)[rows]
        labelled = rows[is_labelled]
        rest = rows[~is_labelled]
        self._num_steps = max(1, len(rows) // run.batch_size)
        return interleaved(labelled, rest, len(rows), min(len(rest), len(rows) // 2))

    def step(self, batch: Batch, run: Run) -> Step | None:
        if self.phase(run) != CONFIDENT:
            return None
        done = run.epoch - self.ends_of_stages[-1] + (run.step - self.first_step) / self._num_steps
        weight = self.lambda_u * ramped(done, self.ramp)
        alpha = self.alpha
        if 2 * run.epoch >= run.epochs:
            alpha = self.late_alpha
        x = two_views(f"{self.name} view", batch, run)
        targets = [self._guess(m, x, batch, run) for m in range(len(run.models))]
        losses = torch.stack(
            [
                mixmatch(
                    m,
                    x,
                    target,
                    batch,
                    run,
                    is_labelled=self.chosen,
                    alpha=alpha,
                    weight=weight,
                    purpose=self.name,
                    class_weights=self.class_weights,
                )[0]
                for m, target in enumerate(targets)
            ]
        )
        run.backward(losses, batch)
        return Step([], losses.detach(), None)

    @torch.no_grad()
    def _guess(self, m: int, x: Tensor, batch: Batch, run: Run) -> Tensor:
        """Return the target of each row (b, K): its label, or what network ``m`` predicts."""
        target = batch.soft_target(run.num_classes, self.class_weights).clone()
        rest = ~self.chosen[batch.rows]
        # not through the wrapper for several processes: others may have no such row
        if bool(rest.any()):
            target[rest] = sharpen(mean_prediction(run.models[m].trained, x[rest], run))
        return target


def last_block(backbone: nn.Module) -> list[nn.Module]:
    """Return the last part of a network that has layers, and all that follows it.

    Empty where no layer comes before.

    >>> network = nn.Sequential(
    ...     nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.BatchNorm1d(4)
    ... )
    >>> [type(part).__name__ for part in last_block(nn.Sequential(network))]
    ['Sequential', 'BatchNorm1d']
    """
    children = list(backbone.children())
    layered = [
        i
        for i, child in enumerate(children)
        if any(weight.dim() > 1 for weight in child.parameters())
    ]
    if len(layered) > 1:
        return children[layered[-1] :]
    return last_block(children[layered[0]]) if layered else []
