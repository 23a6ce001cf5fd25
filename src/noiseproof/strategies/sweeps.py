"""Passes over a whole data set without gradients: outputs, values of each row, predictions."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noiseproof.core.output import Output
from noiseproof.core.tensors import moved
from noiseproof.data import Inputs
from noiseproof.data.images import read_batches
from noiseproof.losses import Loss
from noiseproof.strategies.run import Run

ROWS = 1024  # of a forward pass without gradients; more on a GPU, see ``sweep_rows``


def sweep_rows(rows: int, numbers: int, memory: int) -> int:
    """Return the number of rows of each forward pass over ``rows`` inputs of ``numbers`` numbers
    each, on a GPU with ``memory`` bytes.

    The passes are equal and few: a small network waits for the host, which starts every kernel of
    every pass.

    >>> [
    ...     sweep_rows(n, 3 * 32 * 32, gigabytes * 10**9)
    ...     for n, gigabytes in [(10_000, 24), (10_000, 140), (50_000, 140)]
    ... ]
    [2500, 5000, 5556]
    """
    # By memory, so that a wide network's activations fit next to a fleet that fills its share
    # (`fleet.MEMORY_SHARE`).
    limit = max(ROWS, min(16 * ROWS, max(2**23, memory // 8192) // numbers))
    return math.ceil(rows / math.ceil(rows / limit))


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Put models into evaluation mode, and back afterwards."""
    was_training = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, training in zip(models, was_training, strict=True):
            model.train(training)


@torch.no_grad()
def sweep(
    run: Run,
    x: Inputs | None = None,
    models: Sequence[nn.Module] | None = None,
    *,
    augment: str | None = None,
) -> Iterator[tuple[Tensor, Tensor, list[Output]]]:
    """Yield (rows, counts, outputs) of every row, without gradients and in evaluation mode.

    Each process sees its share of the rows; ``counts`` is False for those that only fill it up.
    ``per_row`` joins the values of all processes.

    Args:
        x: inputs, by default the training set.
        models: by default those that predict.
        augment: use the training augmentation, with random numbers of this purpose that are drawn
            for all rows at once.
    """
    if x is None:
        x = run.data.x
    if models is None:
        models = run.evaluated
    run.processes.broadcast_buffers(models)
    transform = run.normalise
    params = None
    if augment is not None and run.augment is not None:
        transform = run.augment
        params = moved(transform.draw(len(x), run.random.generator(augment, run.epoch)), run.device)
    places = run.processes.places(len(x))
    order = places % len(x)
    size = ROWS
    if run.device.type == "cuda" and isinstance(x, Tensor) and len(x):
        memory = torch.cuda.get_device_properties(run.device).total_memory
        size = sweep_rows(len(places), x[0].numel(), memory)
    if isinstance(x, Tensor):
        order = moved(order, x.device)
    parts = torch.split(order, size)
    counted = torch.split(moved(places < len(x), run.device), size)
    # a loss that draws its scores draws the same ones for every such pass
    with evaluating([*models, run.loss]):
        for rows, counts, raw in zip(
            parts, counted, read_batches(x, parts, run.workers), strict=True
        ):
            rows = moved(rows, run.device)
            drawn = None if params is None else params[rows]
            ready = run.prepare(raw, transform, drawn)
            yield rows, counts, [run.forward(model, ready) for model in models]


def per_row(
    run: Run,
    compute: Callable[[Tensor, list[Output]], Tensor],
    x: Inputs | None = None,
    **options: Any,
) -> Tensor:
    """Return ``compute(rows, outputs)`` (b, …) of every row of a ``sweep``, by row number: (N, …),
    equal in all processes.
    """
    parts = [(rows, counts, compute(rows, outs)) for rows, counts, outs in sweep(run, x, **options)]
    return run.processes.merge(parts, run.num_rows if x is None else len(x))


def predict_log_probs(run: Run, x: Inputs | None = None) -> Tensor:
    """Return predicted log-probabilities (N, K) of ``x``, by default of the training set."""
    return per_row(run, lambda _, outs: log_probs(run.loss, outs), x)


def log_probs(loss: Loss, outs: Sequence[Output]) -> Tensor:
    """Return predicted log-probabilities (b, K), with several labels per row of each label.

    Those of several models averaged.
    """
    scores = torch.stack([loss.scores(out) for out in outs])
    each = F.logsigmoid(scores) if loss.multilabel else scores.log_softmax(2)
    if len(outs) == 1:
        return each[0]
    return each.logsumexp(0) - math.log(len(outs))
