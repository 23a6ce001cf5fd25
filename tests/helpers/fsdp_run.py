"""Trains with weights that two processes share (FSDP) on a CPU; test_distributed.py runs it.

    python tests/helpers/fsdp_run.py OUT

Prints metrics of a run, of one that was stopped and resumed, and of one with a damaged share in its
last checkpoint. Lightning and PyTorch offer FSDP on GPUs only: the first is told by a class of
another name, the second by the device.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import FSDPStrategy
from torch.distributed.fsdp import FullyShardedDataParallel

from noiseproof.data import get_dataset
from noiseproof.train import Interrupted, Result, Settings, prepare, train

SETTINGS = Settings(
    model="mlp:hidden=[8]", epochs=2, batch_size=32, optimizer="adam:lr=0.01", checkpoint_steps=1
)


class SharedFSDP(FSDPStrategy):
    """FSDP on a CPU."""


def run(fabric: Fabric, **options: Any) -> Result:
    task = prepare(get_dataset("two-moons:n=101,n_test=20"), "symmetric:rate=0.4", validation=0.2)
    return train(task, "gce", SETTINGS, fabric=fabric, **options)


def main(out: str) -> None:
    torch.set_num_threads(1)
    start = FullyShardedDataParallel.__init__

    def on_cpu(self: Any, *args: Any, **options: Any) -> None:
        start(self, *args, **{**options, "device_id": torch.device("cpu")})

    FullyShardedDataParallel.__init__ = on_cpu  # type: ignore[method-assign]
    fabric = Fabric(accelerator="cpu", devices=2, strategy=SharedFSDP(process_group_backend="gloo"))
    fabric.launch()
    said = {"whole": run(fabric, out=Path(out, "whole")).metrics}
    for name in ("stopped", "damaged"):
        folder = Path(out, name)
        try:
            run(fabric, out=folder, max_steps=4)
        except Interrupted:
            newest = sorted((folder / "checkpoints").glob("*share-1*"))[-1]
        if name == "damaged" and fabric.is_global_zero:
            content = newest.read_bytes()
            newest.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        fabric.barrier()
        said[name] = run(fabric, out=folder, resume=True).metrics
    if fabric.is_global_zero:
        print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
