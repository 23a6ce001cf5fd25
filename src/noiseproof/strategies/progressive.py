"""Progressive early stopping: later layers, which labels harm most, are trained anew and for less time (PES)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noiseproof.core.checks import check_count, check_flag, check_number
from noiseproof.core.output import Output
from noiseproof.models.base import INITS, reset_layers
from noiseproof.models.classifier import Classifier
from noiseproof.strategies.base import Batch, Strategy, check_scores, register
from noiseproof.strategies.run import Run
from noiseproof.strategies.sweeps import log_probs, per_row

ALL, BLOCK, HEAD, CONFIDENT = range(4)  # stages: what is trained, and in the last one on which rows


@register("progressive-stopping")
class ProgressiveStopping(Strategy):
    """Progressive early stopping, then training on the labels that the model agrees with (Bai et al. 2021, PES).

    All layers train for T₁ = ``start`` epochs. Then the last block and the head are drawn anew and trained alone for
    T₂ = ``block_epochs``, then the head once more for T₃ = ``head_epochs``, by Adam at the constant rate ``lr``. From
    then on, each epoch trains the whole network on the rows whose given label has the largest mean probability over two
    augmentations. A row of class k has the weight n̄/n_k, where n_k rows of it were chosen, and n̄ is their mean over
    the classes. Where no row of a class is, all of them are chosen, since the class could not come back.

    The block is the last part of the backbone that has weights, where there are others before it. Batch statistics of
    the layers below follow, as in the released code. CIFAR-10: 25, 7 and 5 of 200 epochs; CIFAR-100: 30, 7 and 5. There
    the epochs of the block and the head do not count; here they do.

    Args:
        released: leave the renewed layers as T₂ and T₃ made them, as the released code does: its optimiser holds the
            layers from before.
        balance: whether rows have the weights n̄/n_k, which is for classes of equal size: a rare one would weigh as
            much as the largest.
    """

    capturable = True
    remembers = ("chosen", "class_weights", "adam", "steps")

    def __init__(
        self,
        start: int = 25,
        block_epochs: int = 7,
        head_epochs: int = 5,
        lr: float = 1e-4,
        released: bool = False,
        balance: bool = True,
    ) -> None:
        self.start = check_count("start", start, 1)
        self.block_epochs = check_count("block_epochs", block_epochs, 0)
        self.head_epochs = check_count("head_epochs", head_epochs, 0)
        self.lr = check_number("lr", lr, "(0, inf)", 0)
        self.released = check_flag("released", released)
        self.balance = check_flag("balance", balance)
        self.adam: list[tuple[Tensor, Tensor]] = []  # the moments of each weight that is trained alone

    def setup(self, run: Run) -> None:
        self.check_reached("start", run)
        total = self.start + self.block_epochs + self.head_epochs
        if total > run.epochs:
            raise ValueError(
                f"Expected at most {run.epochs} epochs for `start`, `block_epochs` and `head_epochs`, got {total}. "
                "Lower them, or train longer."
            )
        if run.is_sharded:
            raise ValueError("Expected whole weights to draw anew, got sharded ones. Train with DDP, not FSDP.")
        if any(other.name == "freeze" for other in run.strategies):
            raise ValueError(f"Expected weights of its own to draw anew for {self.name}, got `freeze`. Leave one out.")
        check_scores(run.loss, self.name)
        self._classifiers = [model.plain for model in run.models if isinstance(model.plain, Classifier)]
        assert len(self._classifiers) == len(run.models)
        self.chosen = torch.ones(run.num_rows, dtype=torch.bool, device=run.device)
        self.class_weights = torch.ones(run.num_classes, dtype=run.dtype, device=run.device)
        self.steps = torch.zeros((), dtype=run.dtype, device=run.device)  # of Adam

    def phase(self, run: Run) -> int:
        """The stage of the epoch."""
        ends = self.start, self.start + self.block_epochs, self.start + self.block_epochs + self.head_epochs
        return sum(run.epoch >= end for end in ends)

    def restarts(self, epoch: int) -> bool:
        renewed = (self.start, self.block_epochs), (self.start + self.block_epochs, self.head_epochs)
        return any(epoch == first and epochs for first, epochs in renewed)

    def start_epoch(self, run: Run) -> None:
        stage = self.phase(run)
        if stage == CONFIDENT:
            self.adam = []
            self._choose(run)
        elif self.restarts(run.epoch):
            for m, model in enumerate(self._classifiers):
                fill, generator = INITS[model.backbone.init], run.random.generator(self.name, m, stage, device="cpu")
                for part in last_block(model.backbone) if stage == BLOCK else ():
                    reset_layers(part, fill, generator)
                model.head.reset_parameters(fill, generator, run.loss.starts)
            for trained in run.models:
                trained.evaluated.load_state_dict(trained.plain.state_dict())  # another one where weights are averaged
                for weight in self._renewed(stage):
                    trained.optimizer.state.pop(weight, None)
            self.adam = [(torch.zeros_like(w), torch.zeros_like(w)) for w in self._renewed(stage)]
            self.steps.zero_()

    def _renewed(self, stage: int) -> list[nn.Parameter]:
        """The weights that the ``stage`` draws anew."""
        parts: list[nn.Module] = []
        for model in self._classifiers:
            parts += [*(last_block(model.backbone) if stage == BLOCK else ()), model.head]
        return [weight for part in parts for weight in part.parameters()]

    def _choose(self, run: Run) -> None:
        """Choose the rows whose given label is predicted."""

        def probs(rows: Tensor, outs: list[Output]) -> Tensor:
            return log_probs(run.loss, outs).exp()

        first, second = (per_row(run, probs, augment=f"{self.name} {view}") for view in (1, 2))
        given = run.data.given
        agrees = (first + second).argmax(1) == given
        agrees |= (torch.bincount(given[agrees], minlength=run.num_classes) == 0)[given]
        counts = torch.bincount(given[agrees], minlength=run.num_classes).to(run.dtype)
        self.chosen.copy_(agrees)  # in place: a CUDA graph holds the addresses
        if self.balance:
            self.class_weights.copy_(torch.where(counts > 0, counts[counts > 0].mean() / counts, 0))

    def rows(self, rows: Tensor, run: Run) -> Tensor:
        return rows[self.chosen.to(rows.device)[rows]]

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor | None:
        if self.phase(run) != CONFIDENT:
            return None
        total = self.class_weights[run.data.given[batch.all_rows]].sum()
        return (self.class_weights[batch.given] * (batch.count / total)).expand_as(losses)

    def gradients(self, run: Run) -> None:
        stage, frozen = self.phase(run), list[nn.Parameter]()
        if stage in (BLOCK, HEAD):
            self._step_of_adam(self._renewed(stage))
            frozen = [weight for model in self._classifiers for weight in model.parameters()]
        elif stage == CONFIDENT and self.released:
            frozen = self._renewed(BLOCK if self.block_epochs else HEAD)
        for weight in frozen:  # without a gradient it does not move, nor decay
            weight.grad = None

    @torch.no_grad()
    def _step_of_adam(self, weights: list[nn.Parameter]) -> None:
        """A step of Adam (Kingma & Ba 2015) with its usual β, which does not look at a number, as PyTorch's does."""
        self.steps += 1
        rate, scale = self.lr / (1 - 0.9**self.steps), (1 - 0.999**self.steps).sqrt()
        for weight, (first, second) in zip(weights, self.adam, strict=True):
            assert weight.grad is not None
            first.lerp_(weight.grad, 1 - 0.9)
            second.lerp_(weight.grad.square(), 1 - 0.999)
            weight.sub_(rate * first / (second.sqrt() / scale + 1e-8))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "adam": [(first, second) for first, second in state["adam"]]})


def last_block(backbone: nn.Module) -> list[nn.Module]:
    """The last part of a network that has layers, and all that follows it; empty where no layer comes before.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.BatchNorm1d(4))
    >>> [type(part).__name__ for part in last_block(nn.Sequential(network))]
    ['Sequential', 'BatchNorm1d']
    """
    children = list(backbone.children())
    layered = [i for i, child in enumerate(children) if any(weight.dim() > 1 for weight in child.parameters())]
    if len(layered) > 1:
        return children[layered[-1] :]
    return last_block(children[layered[0]]) if layered else []
