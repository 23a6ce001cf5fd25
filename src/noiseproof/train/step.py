"""One training step, in parts: between them the models speak, alone or as a stack of several runs' models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.strategies import Batch, Run, Step, Strategy
from noiseproof.strategies.base import call_hook


@dataclass(frozen=True, eq=False)
class Stepper:
    """Takes a run one step further."""

    run: Run
    strategies: Sequence[Strategy]
    clip: float | None  # the largest norm of a gradient
    watch: Callable[[Batch, Step], None]  # told of every step

    @property
    def is_plain(self) -> bool:
        """Whether every step asks one model once, of as many rows as all other steps do."""
        return len(self.run.models) == 1 and not any(s.overrides("step", "rows") for s in self.strategies)

    def __call__(self, batch: Batch) -> None:
        """The whole step."""
        self.begin(batch)
        step = next(
            (done for s in self.strategies if (done := call_hook(s, "step", batch, self.run)) is not None), None
        )
        self.finish(batch, forward_backward(batch, self.run, self.strategies) if step is None else step)

    def begin(self, batch: Batch) -> None:
        """Forget the last step's gradients."""
        run = self.run
        for model in run.models:
            model.optimizer.zero_grad()
        run.count = batch.count
        if run.loss_draws:
            run.loss.set_step(run.random.seed_for("loss", run.step, run.processes.rank), run.random.step_generator)

    def finish(self, batch: Batch, step: Step) -> None:
        """What follows when the gradients are there."""
        run = self.run
        for strategy in self.strategies:
            strategy.gradients(run)
        for model in run.models:
            if self.clip is not None:
                run.fabric.clip_gradients(model.wrapped, model.optimizer, max_norm=self.clip, error_if_nonfinite=False)
            model.optimizer.step()
        for strategy in self.strategies:
            strategy.after_step(run)
        self.watch(batch, step)
        if run.loss_draws and run.random.step_generator is not None:
            run.loss.set_step(0)  # which lets go of what it has drawn


def forward_backward(batch: Batch, run: Run, strategies: Sequence[Strategy]) -> Step:
    """Targets, outputs, losses, weights, and the gradient of their mean over the rows of all processes."""
    batch = aim(batch, run, strategies)
    step, loss = judge([run.forward(model.wrapped, batch.x) for model in run.models], batch, run, strategies)
    run.fabric.backward(loss)
    return step


def aim(batch: Batch, run: Run, strategies: Sequence[Strategy]) -> Batch:
    """What the batch is trained towards."""
    for strategy in strategies:
        batch = call_hook(strategy, "targets", batch, run)
    return batch


def judge(outs: list[Output], batch: Batch, run: Run, strategies: Sequence[Strategy]) -> tuple[Step, Tensor]:
    """What the models' outputs are worth, and the scalar whose gradient the step follows."""
    for strategy in strategies:
        outs = call_hook(strategy, "outputs", outs, batch, run)
    for strategy in strategies:
        batch = call_hook(strategy, "revise", batch, outs, run)
    own = [batch.target[m] if batch.target.dim() == 3 else batch.target for m in range(len(outs))]
    each = [run.loss(out, target) for out, target in zip(outs, own, strict=True)]
    losses = torch.stack(each) if len(each) > 1 else each[0][None]  # (M, b)
    weights: Tensor | None = None
    for strategy in strategies:
        factor = call_hook(strategy, "weights", losses.detach(), outs, batch, run)
        if factor is not None:
            weights = factor if weights is None else weights * factor
    loss = run.mean(losses if weights is None else losses * weights, batch)
    return Step(outs, losses.detach(), weights), loss
