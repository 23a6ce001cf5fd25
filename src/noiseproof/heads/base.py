"""The base class of heads: features in, ``Output`` out, and the initialisation of layers."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn

from noiseproof.core.output import Output
from noiseproof.core.registry import Registry


class Head(nn.Module):
    """Features (B, num_features) to an ``Output`` whose ``logits`` have ``num_outputs`` columns.

    ``gives`` names the fields of ``Output`` that it fills, so that a loss that ``needs`` another is
    refused at once.
    """

    gives = frozenset({"logits"})

    def forward(self, features: Tensor) -> Output:
        raise NotImplementedError

    def reset_parameters(
        self,
        fill: Callable[[nn.Linear, Generator | None], None],
        generator: Generator | None,
        starts: Mapping[str, float] | None = None,
    ) -> None:
        """Initialise all layers with ``fill``, the backbone's initialisation of a last layer.

        ``starts`` are factors for the layers of the name of a field, from the loss
        (``Loss.starts``).
        """
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                fill(module, generator)
                for parameter in module.parameters():
                    parameter.data *= (starts or {}).get(name, 1.0)


HEADS: Registry[Head] = Registry("head", returns=Head)


def head_for(fields: frozenset[str]) -> str:
    """Return the head that gives ``fields``, and the fewest others.

    Among several, it is the one registered first, so not a plug-in's.

    >>> head_for(frozenset({"logits"})), head_for(frozenset({"logits", "root"}))
    ('linear', 'gaussian-root')
    """
    # what the head of a function gives is not known before it is built
    factories: dict[str, Any] = {name: HEADS[name] for name in HEADS}
    known = {name: head.gives for name, head in factories.items() if hasattr(head, "gives")}
    fitting = [name for name, given in known.items() if fields <= given]
    if not fitting:
        listing = "; ".join(f"{name}: {', '.join(sorted(known[name]))}" for name in sorted(known))
        raise ValueError(
            "Expected a loss for which a head gives all it needs, got one that needs"
            f" {', '.join(sorted(fields))}. Leave out a term, or train each by itself. There are"
            f" {listing}."
        )
    return min(fitting, key=lambda name: len(known[name]))


def get_head(spec: str, num_features: int, num_outputs: int, **params: Any) -> Head:
    """Build the head that ``spec`` names; ``reset_parameters`` initialises its layers.

    >>> get_head("linear", 8, 3)(torch.zeros(2, 8)).logits.shape
    torch.Size([2, 3])
    """
    name, values = HEADS.parse(spec, params)
    # New layers draw from the global generator, which must stay as it was.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        head = HEADS.create(name, num_features=num_features, num_outputs=num_outputs, **values)
        with torch.no_grad():
            out = head.eval()(torch.zeros(1, num_features))
    is_output = isinstance(out, Output)
    if not is_output or out.logits.shape != (1, num_outputs):
        actual = f"logits of shape {tuple(out.logits.shape)}" if is_output else type(out).__name__
        raise TypeError(
            f"Expected the head {name!r} to return Output(logits) of a row with logits of shape (1,"
            f" {num_outputs}), since its `num_outputs` are {num_outputs}, got {actual}."
        )
    return head.train()
