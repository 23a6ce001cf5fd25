"""Confusions of each annotator as parameters, through which the model learns from their labels."""

from typing import Literal, get_args

import torch
from torch import Tensor

from noiseproof.core.checks import check_number, check_word
from noiseproof.core.output import Output
from noiseproof.strategies.base import Batch, Plan, Run, Strategy, check_unmixed, register

Kind = Literal["matrix", "transition"]
BETAS = (0.9, 0.999)
EPSILON = 1e-8  # of Adam (Kingma and Ba 2015)


@register("crowd-layer")
class CrowdLayer(Strategy):
    """The loss sees what the annotator a of a label would say of z; the model learns what lies
    behind all of them.

    ``kind=transition``: z' = log(T_aᵀ·softmax(z)) with the rows T_a[k] = softmax(W_a[k]) and W =
    3·I at first, so that T is P(label | true), as forward correction has it for all labels (Patrini
    et al. 2017; Tanno et al. 2019, without the trace). ``kind=matrix``: z' = W_a·softmax(z) with W
    = I at first (Rodrigues and Pereira 2018), which is free to rename classes. W learns by Adam
    with the rate ``lr``, which no schedule lowers; each model has its own. Predictions are those of
    z. Annotators are in ``NoisyData.annotator`` (noise ``file`` with ``annotators=all``);
    without any, all labels have one matrix.
    """

    remembers = ("layers", "mean", "square")
    layers: Tensor  # (A, M, K, K): W
    mean: Tensor  # of the gradient
    square: Tensor  # of its square

    def __init__(self, kind: Kind = "transition", lr: float = 0.03) -> None:
        self.kind = check_word("kind", kind, get_args(Kind))
        self.lr = check_number("lr", lr, "[0, inf)")

    def check(self, plan: Plan) -> None:
        if plan.loss.needs != {"logits"}:
            raise ValueError(f"Expected a loss of logits alone for {self.name}, got `{plan.loss}`.")
        check_unmixed(self, "whose labels have one annotator each", plan)

    def setup(self, run: Run) -> None:
        annotator = run.data.annotator
        self._annotator = (
            torch.zeros(run.num_rows, dtype=torch.int64) if annotator is None else annotator
        )
        self._annotator = self._annotator.to(run.device)
        shape = int(self._annotator.max()) + 1, len(run.models), run.num_classes, run.num_classes
        start = torch.eye(run.num_classes, device=run.device, dtype=run.dtype)
        self.layers = (start if self.kind == "matrix" else 3 * start).expand(shape).clone()
        self.mean = torch.zeros_like(self.layers)
        self.square = torch.zeros_like(self.layers)

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        own = self.layers[self._annotator[batch.rows]].requires_grad_()  # (b, M, K, K)
        self._step = batch, own
        return [
            out._replace(logits=self._seen(out.logits, own[:, m])) for m, out in enumerate(outs)
        ]

    def _seen(self, logits: Tensor, weights: Tensor) -> Tensor:
        """What the annotators of the rows say, as logits (b, K)."""
        if self.kind == "matrix":
            return torch.einsum("blk,bk->bl", weights, logits.softmax(1))
        return (logits.log_softmax(1)[:, :, None] + weights.log_softmax(2)).logsumexp(1)

    @torch.no_grad()
    def gradients(self, run: Run) -> None:
        batch, own = self._step
        del self._step
        assert own.grad is not None
        # Of the loss that each process multiplies by their number, since DDP averages.
        each = run.processes.gather(own.grad, batch) / run.processes.world_size
        gradient = torch.zeros_like(self.layers).index_add_(
            0, self._annotator[batch.all_rows], each
        )
        self.mean.lerp_(gradient, 1 - BETAS[0])
        self.square.lerp_(gradient.square(), 1 - BETAS[1])
        mean, square = (
            part / (1 - beta ** (run.step + 1))
            for part, beta in zip((self.mean, self.square), BETAS, strict=True)
        )
        self.layers -= self.lr * mean / (square.sqrt() + EPSILON)

    def confusion(self, model: int = 0) -> Tensor:
        """P(label l | true k) of each annotator as it is learned, (A, K, K), rows sum to one."""
        weights = self.layers[:, model]
        return (weights.transpose(1, 2) if self.kind == "matrix" else weights).softmax(2)
