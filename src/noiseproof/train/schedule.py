"""Optimisers and learning rate schedules of the papers.

A schedule is a pure function of the epoch.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from noiseproof.core.checks import check_count, check_number
from noiseproof.core.registry import Registry

Factor = Callable[[int, int], float]  # epoch, epochs → factor of the learning rate
OPTIMIZERS: Registry[Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = Registry(
    "optimizer"
)
SCHEDULES: Registry[Factor] = Registry("schedule")


@OPTIMIZERS.register("sgd")
def sgd(
    lr: float = 0.05, momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0
) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Stochastic gradient descent; with ``momentum=0`` and the full batch, gradient descent."""
    check_number("lr", lr, "(0, inf)")
    check_number("momentum", momentum, "[0, 1)")
    check_number("weight_decay", weight_decay, "[0, inf)")
    options: dict[str, Any] = {
        "lr": lr,
        "momentum": momentum,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
    }
    return lambda parameters: _fused(torch.optim.SGD, parameters, **options)


@OPTIMIZERS.register("adam")
def adam(
    lr: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float = 0.0,
    eps: float = 1e-8,
) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    """Adam (Kingma and Ba 2015), with weight decay in the gradient."""
    check_number("lr", lr, "(0, inf)")
    betas = check_number("beta1", beta1, "[0, 1)"), check_number("beta2", beta2, "[0, 1)")
    check_number("weight_decay", weight_decay, "[0, inf)")
    check_number("eps", eps, "(0, inf)")
    options: dict[str, Any] = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "eps": eps}
    return lambda parameters: _fused(torch.optim.Adam, parameters, capturable=True, **options)


def _fused(
    cls: type[torch.optim.Optimizer],
    parameters: Iterable[nn.Parameter],
    capturable: bool = False,
    **options: Any,
) -> torch.optim.Optimizer:
    """An optimiser that is a single kernel on a GPU and can be captured in a CUDA graph."""
    params = list(parameters)
    if all(parameter.is_cuda for parameter in params):
        options["fused"] = True
        if capturable:
            options["capturable"] = True
    return cls(params, **options)


def _epoch(mark: float, epochs: int) -> float:
    """``mark`` as an epoch; below 1 it is a share of ``epochs``."""
    return round(mark * epochs, 6) if mark < 1 else mark  # in float64, 0.55 · 100 > 55


@SCHEDULES.register("constant")
def constant() -> Factor:
    """A constant learning rate."""
    return lambda epoch, epochs: 1.0


@SCHEDULES.register("step")
def step(at: Sequence[float] | float = (0.5, 0.75), factor: float = 0.1) -> Factor:
    """Multiplies by ``factor`` at each epoch of ``at`` (counted from 0); numbers below 1 are shares
    of the training.

    >>> [step(at=[66, 132])(epoch, 198) for epoch in (65, 66, 132)] == [1.0, 0.1, 0.1**2]
    True
    """
    marks = [
        check_number("at", mark, "[0, inf)") for mark in (at if isinstance(at, Sequence) else [at])
    ]
    check_number("factor", factor, "(0, inf)")

    def rate(epoch: int, epochs: int) -> float:
        return factor ** sum(epoch >= _epoch(mark, epochs) for mark in marks)

    return rate


@SCHEDULES.register("exponential")
def exponential(gamma: float = 0.95) -> Factor:
    """Multiplies by ``gamma`` after every epoch."""
    check_number("gamma", gamma, "(0, 1]")
    return lambda epoch, epochs: gamma**epoch


@SCHEDULES.register("cosine")
def cosine(low: float = 0.0, every: int | None = None) -> Factor:
    """Half a cosine from 1 to ``low``; with ``every``, restarted every ``every`` epochs (warm
    restarts).

    The NAL paper decays from 0.02 to 0.001 every 10 epochs: ``cosine:low=0.05,every=10``.
    """
    check_number("low", low, "[0, 1]")
    if every is not None:
        check_count("every", every, 1)

    def rate(epoch: int, epochs: int) -> float:
        length = every or epochs
        return low + (1 - low) * (1 + math.cos(math.pi * (epoch % length) / length)) / 2

    return rate


@SCHEDULES.register("linear")
def linear(start: float = 0.4, low: float = 0.0) -> Factor:
    """Constant up to the epoch ``start``, then linear to ``low`` at the end (Co-teaching: 80 of 200
    epochs).
    """
    check_number("start", start, "[0, inf)")
    check_number("low", low, "[0, 1]")

    def rate(epoch: int, epochs: int) -> float:
        first = _epoch(start, epochs)
        if epoch <= first:
            return 1.0
        return low + (1 - low) * max(epochs - epoch, 0) / max(epochs - first, 1)

    return rate
