"""Confusions of each annotator as parameters, through which the model learns from their labels."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from noiseproof.core.checks import number, word
from noiseproof.core.output import Output
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.run import Run, Strategy, register


@register("crowd-layer")
@dataclass(eq=False)
class CrowdLayer(Strategy):
    """The loss sees what the annotator a of a label would say of z; the model learns what lies
    behind all of them.

    ``kind=transition``: z' = log(T_aᵀ·softmax(z)) with the rows T_a[k] = softmax(W_a[k]) and
    W = 3·I at first, so that T is P(label | true), as forward correction has it for all labels
    (Patrini et al. 2017; Tanno et al. 2019, without the trace). ``kind=matrix``:
    z' = W_a·softmax(z) with W = I at first (Rodrigues and Pereira 2018), which is free to rename
    classes. W learns by Adam with the rate ``lr``, which no schedule lowers; each model has its
    own. The prediction is softmax(z). Annotators are in ``NoisyData.annotator`` (noise ``file``
    with ``annotators=all``); without any, all labels have one matrix.
    """

    kind: Literal["matrix", "transition"] = word(("matrix", "transition"), "transition")
    lr: float = number("[0, inf)", 0.03)

    def setup(self, run: Run) -> None:
        annotator = run.data.annotator
        if annotator is None:
            annotator = torch.zeros(run.num_rows, dtype=torch.int64)
        self._annotator = annotator.to(run.device)
        K = run.num_classes
        start = torch.eye(K, device=run.device, dtype=run.dtype)
        if self.kind == "transition":
            start *= 3
        # W, (A, M, K, K)
        self.layers = start.repeat(int(annotator.max()) + 1, len(run.models), 1, 1)
        self._adam = torch.optim.Adam([self.layers.requires_grad_()], self.lr)

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        weights = self.layers[self._annotator[batch.rows]]  # (b, M, K, K)
        return [
            out._replace(logits=self._seen(out.logits, weights[:, m])) for m, out in enumerate(outs)
        ]

    def _seen(self, logits: Tensor, weights: Tensor) -> Tensor:
        """Return what the annotators of the rows say, as logits (b, K)."""
        if self.kind == "matrix":
            return torch.einsum("blk,bk->bl", weights, logits.softmax(1))
        return (logits.log_softmax(1)[:, :, None] + weights.log_softmax(2)).logsumexp(1)

    def gradients(self, run: Run) -> None:
        assert self.layers.grad is not None
        # Each process multiplies its loss by their number, since DDP averages.
        self.layers.grad = run.processes.sum(self.layers.grad) / run.processes.world_size
        self._adam.step()
        self._adam.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {"layers": self.layers.detach(), "adam": self._adam.state_dict()["state"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.layers.data.copy_(state["layers"])
        self._adam.load_state_dict({**self._adam.state_dict(), "state": state["adam"]})

    def confusion(self, model: int = 0) -> Tensor:
        """Return P(label l | true k) of each annotator as it is learned, (A, K, K), rows sum to
        one.
        """
        weights = self.layers[:, model].detach()
        return (weights.transpose(1, 2) if self.kind == "matrix" else weights).softmax(2)
