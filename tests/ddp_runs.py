"""Trains some methods on 101 rows with as many processes as asked for, and writes weights and records.

    python tests/ddp_runs.py OUT PROCESSES MODEL METHOD…

Run by test_distributed.py. With the model ``halves``, one process computes what two do: batch statistics of each half.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from safetensors.torch import save_file
from torch import Tensor, nn

from noiseproof.data import Split, get_dataset
from noiseproof.data.augment import Compose, PadCrop
from noiseproof.models import MODELS, Backbone
from noiseproof.strategies import Batch, Run, Step, Strategy
from noiseproof.train import Method, Settings, get_method, prepare, train
from noiseproof.train.loop import forward_backward


@MODELS.register("bn-mlp")
class Normalised(Backbone):
    """One hidden layer with batch statistics."""

    num_features = 16

    def __init__(self, *, in_features: int = 2, init: str = "pytorch") -> None:
        super().__init__(init)
        self.linear = nn.Linear(in_features, self.num_features)
        self.norm = nn.BatchNorm1d(self.num_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x.flatten(1))).relu()


class Halves(nn.Module):
    """A model that sees a batch as two processes would: in halves, the statistics of the first are kept."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        share = -(-len(x) // 2)
        places = torch.arange(2 * share) % len(x)
        first = self.model(x[places[:share]])
        kept = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        second = self.model(x[places[share:]])
        for name, buffer in self.model.named_buffers():
            buffer.data.copy_(kept[name])  # not seen by autograd, which needs neither
        return type(first)(torch.cat([first.logits, second.logits])[: len(x)])


class InHalves(Strategy):
    """Trains through ``Halves``."""

    def __init__(self, others: tuple[Strategy, ...]) -> None:
        self.others = others

    def step(self, batch: Batch, run: Run) -> Step:
        run.models = [Halves(model) for model in run.plain_models]
        step = forward_backward(batch, run, self.others)
        run.models = list(run.plain_models)
        return step


def main(out: Path, processes: int, model: str, methods: list[str]) -> None:
    torch.set_num_threads(1)
    halves, model = model == "halves", "bn-mlp" if model == "halves" else model
    fabric = Fabric(
        accelerator="cpu", devices=processes, strategy="ddp" if processes > 1 else "auto", precision="64-true"
    )
    fabric.launch()
    digits = get_dataset("digits")
    few = replace(digits, train=Split(digits.train.x[:101], digits.train.y[:101]))
    task = prepare(few, "symmetric:rate=0.4", seed=3)
    task = replace(task, augment=Compose([PadCrop(1), task.normalise]))
    settings = Settings(model=model, epochs=2, batch_size=16, optimizer="sgd:lr=0.1,momentum=0.9")
    for spec in methods:
        method = get_method(spec, task, settings)
        if halves:
            method = Method(method.loss, method.head, (InHalves(method.strategies), *method.strategies))
        result = train(task, method, settings, seed=7, fabric=fabric)
        if fabric.global_rank == 0:
            weights = {name: value.contiguous() for name, value in result.models[0].state_dict().items()}
            save_file(weights, out / f"{spec}.safetensors")
            (out / f"{spec}.json").write_text(json.dumps(result.rows))
        fabric.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
