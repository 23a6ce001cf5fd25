"""Trains methods in processes of their own that kill themselves, for real; test_resume.py runs it.

    python tests/helpers/killed_run.py OUT WHEN METHOD…

WHEN is ``after-7`` (the seventh step) or ``saving-10`` (while the tenth step's checkpoint is being
written). Every method goes on from its last checkpoint in OUT, or begins. Exits with 0 if all of
them were killed by signal 9.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from noiseproof.data import Split, get_dataset
from noiseproof.data.augment import Compose, PadCrop
from noiseproof.train import Settings, Task, prepare, train

SETTINGS = Settings(
    model="mlp:hidden=[12]",
    epochs=3,
    batch_size=24,
    optimizer="adam:lr=0.01",
    schedule="cosine",
    checkpoint_steps=5,
)
STEPS = 5  # of an epoch, the last one of 4 rows


def make_task() -> Task:
    """100 digits with 40 % wrong labels, shifted by up to a pixel in every step."""
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.02)
    test = task.test
    assert test is not None and task.normalise is not None and isinstance(test.x, torch.Tensor)
    return replace(
        task,
        train=task.train.subset(torch.arange(100)),
        test=Split(test.x[:60], test.y[:60]),
        augment=Compose([PadCrop(1), task.normalise]),
    )


def cpu() -> Fabric:
    return Fabric(accelerator="cpu", devices=1)


def folder(out: Path, method: str) -> Path:
    return out / "".join(c if c.isalnum() else "_" for c in method)


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_until_killed(task: Task, method: str, out: Path, when: str) -> None:
    moment, _, number = when.partition("-")
    if moment == "saving":
        rename = os.replace

        def interrupted(source: Any, target: Any) -> None:
            if f"step-{int(number):09d}" in str(target):
                kill_myself()
            rename(source, target)

        os.replace = interrupted

    def watch(epoch: int, position: int, steps: int, row: object) -> None:
        if moment == "after" and epoch * STEPS + position == int(number):
            kill_myself()

    train(
        task,
        method,
        SETTINGS,
        fabric=cpu(),
        out=folder(out, method),
        resume=True,
        samples=True,
        progress=watch,
    )


def main(out: Path, when: str, methods: list[str]) -> None:
    torch.set_num_threads(1)
    task = make_task()
    for method in methods:
        child = os.fork()  # importing torch once for all; this process itself trains nothing
        if child == 0:
            try:
                run_until_killed(task, method, out, when)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            sys.exit(f"Expected `{method}` to be killed {when}, got status {status}.")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
