"""Trains every method of RUNS on 101 rows, and writes weights and records of all into one folder.

    python tests/helpers/ddp_runs.py OUT

does so with two processes; test_distributed.py runs it, and trains the same by itself, with one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
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
from noiseproof.train import METHODS, Method, Result, Settings, get_method, prepare, train
from noiseproof.train.step import forward_backward

PLAIN, NORMALISED = "mlp:hidden=[16]", "bn-mlp"
# losses that each process draws its own numbers for
DRAW_FOR_THEMSELVES = {"het", "het-tau", "het-tau-full"}
# Parameters with which the second of two epochs has something to do.
BUSY = {
    "sln-mo": "sln-mo:alpha=0.9",
    "sln-mo-lc": "sln-mo-lc:alpha=0.9,start=1",
    "elr+": "elr+:alpha=0.9,reweigh=true",
    "tgce": "tgce:start=1,k=0.1",
    "co-teaching": "co-teaching:ramp=1",
    "sigua": "sigua:ramp=1",
    "dividemix": "dividemix:warmup=1,lambda_u=5,penalty=true",
    "pes-semi": "pes-semi:start=1,lambda_u=5,ramp=0",
    "promix": "promix:warmup=1,tau=0.2,guess_from=1",
}
# Each process draws among its own rows. With 20 rows a step, the last of 101 leaves one process
# only fillers.
PEERS = "(peer:loss=ce)"
MORE = [
    PEERS,
    "ce & small-loss:forget=0.4,ramp=1 & momentum:alpha=0.5",
    "ce & mixup",
    "(peer:loss=gce) & sln:sigma=0.2 & small-loss:forget=0.4,ramp=1",
    "backward & sigua-bc",
    "gce & class-balanced:per_class=9",
    "ce & crowd-layer",
    "ce & progressive-stopping:start=1,block_epochs=1,head_epochs=0",
]
RUNS = [
    *((PLAIN, BUSY.get(name, name)) for name in METHODS if name not in DRAW_FOR_THEMSELVES),
    *((PLAIN, spec) for spec in MORE),
    *((NORMALISED, spec) for spec in ("ce", BUSY["sln-mo-lc"], BUSY["elr+"], "sop+")),
]


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
    """A model that sees a batch as two processes would: in halves, the statistics of the first are
    kept.
    """

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
    """Trains through ``Halves``, so that one process computes what two do."""

    def __init__(self, others: tuple[Strategy, ...]) -> None:
        self.others = others

    def step(self, batch: Batch, run: Run) -> Step:
        for model in run.models:
            model.wrapped = model.trained = Halves(model.plain)
        step = forward_backward(batch, run, self.others)
        for model in run.models:
            model.wrapped = model.trained = model.plain
        return step


def results(processes: int) -> Iterator[Result]:
    """Each of RUNS, trained for two epochs in float64."""
    fabric = Fabric(
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        precision="64-true",
    )
    fabric.launch()
    digits = get_dataset("digits")
    few = replace(digits, train=Split(digits.train.x[:101], digits.train.y[:101]))
    task = prepare(few, "symmetric:rate=0.4", seed=3)
    assert task.normalise is not None
    task = replace(task, augment=Compose([PadCrop(1), task.normalise]))
    for model, spec in RUNS:
        rows = 20 if spec == PEERS else 16
        settings = Settings(
            model=model, epochs=2, batch_size=rows, optimizer="sgd:lr=0.1,momentum=0.9"
        )
        method = get_method(spec, task, settings)
        if model == NORMALISED and processes == 1:
            method = Method(
                method.loss, method.head, (InHalves(method.strategies), *method.strategies)
            )
        yield train(task, method, settings, seed=7, fabric=fabric)


def weights(result: Result) -> dict[str, Tensor]:
    """Of all models that predict."""
    return {
        f"{m}.{name}": value
        for m, model in enumerate(result.models)
        for name, value in model.state_dict().items()
    }


def main(out: Path) -> None:
    torch.set_num_threads(1)
    MODELS.register(NORMALISED)(Normalised)
    found = list(results(2))
    if found[0].run.processes.rank == 0:
        tensors = {
            f"{i}/{name}": v.contiguous()
            for i, result in enumerate(found)
            for name, v in weights(result).items()
        }
        save_file(tensors, out / "weights.safetensors")
        (out / "rows.json").write_text(json.dumps([result.metrics for result in found]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
