"""One update for all networks of a stack, which by themselves would start a kernel for each network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from noiseproof.accelerate.networks import Stack
from noiseproof.core.tensors import has_kernels
from noiseproof.train.step import Stepper


class JointSGD:
    """SGD with momentum of all members: m ← μm + g + λw, w ← w − ηm, with the learning rate η of each member."""

    def __init__(self, steppers: Sequence[Stepper], network: Stack) -> None:
        self.groups = [_optimizer(stepper).param_groups[0] for stepper in steppers]
        self.weights: list[Tensor] = []  # (S, …), like the next
        self.momenta: list[Tensor] = []
        self.members: list[Tensor] = []  # momenta of the members: views into those of the stack
        for stacked, layers in network.layers:
            for name, weight in stacked.named_parameters(recurse=False):
                parameters = [layer.get_parameter(name) for layer in layers]
                momenta = [_momentum(stepper, part) for stepper, part in zip(steppers, parameters, strict=True)]
                joined = torch.stack([stacked.inner(each) for each in momenta])
                for seat, each in enumerate(momenta):
                    each.data = stacked.outer(joined[seat])
                self.weights.append(weight)
                self.momenta.append(joined)
                self.members += momenta

    @torch.no_grad()
    def __call__(self) -> None:
        """Update the weights from the gradients of the stack."""
        first = self.groups[0]
        device, dtype = self.weights[0].device, self.weights[0].dtype
        rates = torch.stack([torch.as_tensor(group["lr"], device=device, dtype=dtype) for group in self.groups])
        for weight, momentum in zip(self.weights, self.momenta, strict=True):
            if weight.grad is not None:
                options = first["momentum"], first["weight_decay"], first["nesterov"]
                update(weight, weight.grad, momentum, rates, *options)

    def release(self) -> None:
        """Give each member a momentum of its own again."""
        for each in self.members:
            each.data = each.data.clone()


def can_update(steppers: Sequence[Stepper]) -> bool:
    """Whether all members take a step of SGD with the same options, the learning rate apart, and have a momentum."""
    options = set()
    for stepper in steppers:
        optimizer = _optimizer(stepper)
        groups, state = optimizer.param_groups, optimizer.state
        if stepper.clip is not None or not isinstance(optimizer, torch.optim.SGD) or len(groups) > 1:
            return False
        if not all(state[part].get("momentum_buffer") is not None for part in groups[0]["params"]):
            return False  # without momentum, or before the first step
        options.add(tuple(groups[0][name] for name in ("momentum", "weight_decay", "nesterov")))
    return len(options) == 1


def update(
    weight: Tensor, grad: Tensor, momentum: Tensor, rates: Tensor, factor: float, decay: float, nesterov: bool
) -> None:
    """A step of SGD of S tensors (S, …) in place, with a learning rate each, (S,)."""
    if has_kernels(weight) and weight.dtype == torch.float32:
        from noiseproof.accelerate.layer_kernels import sgd  # needs Triton

        sgd(weight, grad.contiguous(), momentum, rates, factor, decay, nesterov)
        return
    grad = grad.add(weight, alpha=decay) if decay else grad
    momentum.mul_(factor).add_(grad)
    step = grad.add(momentum, alpha=factor) if nesterov else momentum
    weight.addcmul_(step, rates.view(-1, *[1] * (weight.dim() - 1)), value=-1)


def _optimizer(stepper: Stepper) -> torch.optim.Optimizer:
    optimizer = stepper.run.models[0].optimizer
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)  # Fabric wraps it
    return inner


def _momentum(stepper: Stepper, parameter: Tensor) -> Tensor:
    momentum: Tensor = _optimizer(stepper).state[parameter]["momentum_buffer"]
    return momentum
