"""One training step, in parts that an executor can run for one model or for a stack of models of
several runs.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.strategies import Batch, Run, Step, Strategy

# steps at most between two looks at the run: few enough that a request to stop is soon heeded
AT_ONCE = 64


@dataclass(frozen=True, eq=False)
class Stepper:
    """Makes the steps of a run."""

    run: Run
    clip: float | None  # the largest norm of a gradient
    observers: Sequence[Callable[[Batch, Step], None]]  # called after every step
    architecture: Hashable = None  # what the models were built from: equal for models of one shape
    pause_every: int = 1  # steps: the loop looks at the run after each multiple of it

    @property
    def strategies(self) -> Sequence[Strategy]:
        return self.run.strategies

    @property
    def is_plain(self) -> bool:
        """Whether a step is one pass of one model, over as many rows as in every other epoch."""
        return len(self.run.models) == 1 and not any(
            s.overrides("step", "rows") for s in self.strategies
        )

    def steps_at_once(self) -> int:
        """Return the largest number of steps that an executor may make before the loop looks at the
        run.
        """
        return min(AT_ONCE, self.pause_every - self.run.step % self.pause_every)

    def __call__(self, batch: Batch) -> None:
        self.begin(batch.count)
        steps = (call_hook(strategy, "step", batch, self.run) for strategy in self.strategies)
        step = next((step for step in steps if step is not None), None)
        if step is None:
            step = forward_backward(batch, self.run, self.strategies)
        self.finish(batch, step)

    def begin(self, count: int) -> None:
        """Clear the gradients of the last step.

        ``count`` rows are in the next, over all processes.
        """
        run = self.run
        for model in run.models:
            model.optimizer.zero_grad()
        run.count = count
        if run.loss_draws:
            run.loss.set_step(
                run.random.seed_for("loss", run.step, run.processes.rank), run.random.step_generator
            )

    def update(self) -> None:
        """Update the weights from the gradients."""
        run = self.run
        for strategy in self.strategies:
            strategy.gradients(run)
        for model in run.models:
            if self.clip is not None:
                run.fabric.clip_gradients(
                    model.wrapped, model.optimizer, max_norm=self.clip, error_if_nonfinite=False
                )
            model.optimizer.step()
        for strategy in self.strategies:
            strategy.after_step(run)

    def finish(self, batch: Batch, step: Step) -> None:
        """Update the weights, and let observers see the step."""
        run = self.run
        self.update()
        for observe in self.observers:
            observe(batch, step)
        if run.loss_draws and run.random.step_generator is not None:
            run.loss.set_step(0)  # frees what the loss has drawn


# what each hook may return, and its description
_RETURNS: dict[str, tuple[Any, str]] = {
    "rows": (Tensor, "the numbers of the rows to train on, one at least"),
    "targets": (Batch, "a Batch, the given one where it changes nothing"),
    "outputs": (list, "a list of Output, the given one where it changes nothing"),
    "revise": (Batch, "a Batch, the given one where it changes nothing"),
    "weights": (
        Tensor | None,
        "a factor for each of the `losses` in their shape {shape}, or None",
    ),
    "penalties": (
        Tensor | None,
        "a term for each of the `losses` in their shape {shape}, or None",
    ),
    "step": (Step | None, "a Step or None"),
}


def call_hook(strategy: Strategy, hook: str, value: Any, *context: Any) -> Any:
    """Return the result of a strategy's ``hook``, refused where the loop cannot use it, without
    reading values of tensors.
    """
    result = getattr(strategy, hook)(value, *context)
    types, expected = _RETURNS[hook]
    fits = isinstance(result, types)
    if fits and hook == "rows":
        fits = result.dim() == 1 and len(result) > 0 and result.dtype is not torch.bool
    elif hook in ("weights", "penalties"):
        expected = expected.format(shape=tuple(value.shape))
        fits = result is None or (fits and result.shape == value.shape)
    if not fits:
        actual = type(result).__name__
        if isinstance(result, Tensor):
            actual = f"{result.dtype} of shape {tuple(result.shape)}"
        raise TypeError(
            f"Expected `{hook}` of the strategy {strategy.name or type(strategy).__name__!r} to"
            f" return {expected}, got {actual}."
        )
    return result


def forward_backward(batch: Batch, run: Run, strategies: Sequence[Strategy]) -> Step:
    """Compute targets, outputs, losses, weights, and the gradient of their mean over the rows of
    all processes.
    """
    batch = make_targets(batch, run, strategies)
    step, loss = compute_loss(
        [run.forward(model.wrapped, batch.x) for model in run.models], batch, run, strategies
    )
    run.fabric.backward(loss)
    return step


def make_targets(batch: Batch, run: Run, strategies: Sequence[Strategy]) -> Batch:
    """Return the batch with the targets that the strategies make."""
    for strategy in strategies:
        batch = call_hook(strategy, "targets", batch, run)
    return batch


def compute_loss(
    outs: list[Output], batch: Batch, run: Run, strategies: Sequence[Strategy]
) -> tuple[Step, Tensor]:
    """Return losses and weights of the rows, and the scalar to differentiate."""
    for strategy in strategies:
        outs = call_hook(strategy, "outputs", outs, batch, run)
    for strategy in strategies:
        batch = call_hook(strategy, "revise", batch, outs, run)
    targets = [
        batch.target[m] if batch.target.dim() == 3 else batch.target for m in range(len(outs))
    ]
    each = [run.losses(out, target, batch) for out, target in zip(outs, targets, strict=True)]
    losses = torch.stack(each) if len(each) > 1 else each[0][None]  # (M, b)
    weights: Tensor | None = None
    for strategy in strategies:
        factor = call_hook(strategy, "weights", losses.detach(), outs, batch, run)
        if factor is not None:
            weights = factor if weights is None else weights * factor
    descended = losses
    if weights is not None:
        descended = losses * weights
        batch = replace(batch, weights=weights)
    for strategy in strategies:
        penalty = call_hook(strategy, "penalties", losses.detach(), outs, batch, run)
        if penalty is not None:
            descended = descended + penalty
    return Step(outs, losses.detach(), weights), run.mean(descended, batch)
