"""What checksums cost: checkpoints of 10 million weights with and without, and the digest of 50 000
CIFAR images.

    python benchmarks/checkpoints.py [--quick] [--threads 1]

A checkpoint holds the weights of an MLP and both moments of Adam, 120 MB. The baseline writes and
reads the same tensors by safetensors, with the same copies, sync and rename, as versions without
checksums did. All by turns in random order; a row is the median in ms with its p20 and p80, and the
median ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from timing import against, interleave, quantiles, write_rows
from torch import Tensor, nn

from noiseproof.train.checkpoint import _put_tensors, _take_tensors, load, save
from noiseproof.train.job import digest

HIDDEN, BAR, DIGEST_BAR = 2200, 1.5, 100.0


def make_state() -> dict[str, Any]:
    """The state of a run after a step."""
    model = nn.Sequential(nn.Linear(2200, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 10))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 2200)).sum().backward()
    optimizer.step()
    return {
        "models": [model.state_dict()],
        "optimizers": [optimizer.state_dict()["state"]],
        "step": 1,
    }


def save_before(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint without a checksum."""
    tensors: dict[str, Tensor] = {}
    tree = _take_tensors(state, tensors)
    part = path.with_suffix(".part")
    save_file(tensors, part, {"tree": json.dumps(tree)})
    with open(part, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(part, path)


def load_before(path: Path) -> object:
    """Read it."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _put_tensors(json.loads(file.metadata()["tree"]), tensors)


def copied(state: Any) -> object:
    """Copy what was read, as models and optimisers do: safetensors reads a file only where it is
    used.
    """
    tensors: dict[str, Tensor] = {}
    return _take_tensors(state, tensors)


def row(task: str, seconds: dict[str, list[float]], bar: float | None = None) -> dict[str, object]:
    times = {
        name: [round(1e3 * value, 2) for value in quantiles(values)]
        for name, values in seconds.items()
    }
    ratio = [round(value, 3) for value in against(seconds, "before")["now"]]
    return {
        "task": task,
        **{f"{name}_ms": value for name, value in times.items()},
        "ratio": ratio,
        "bar": bar,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    state, rounds = make_state(), 5 if options.quick else 21
    weights = sum(value.numel() for value in state["models"][0].values())
    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8)
    with tempfile.TemporaryDirectory() as name:
        old, new = Path(name, "before.safetensors"), Path(name, "now")
        now = new / "step-000000001.safetensors"
        writing = {"before": lambda: save_before(old, state), "now": lambda: save(new, 1, state)}
        reading = {"before": lambda: copied(load_before(old)), "now": lambda: copied(load(now))}
        size = f"checkpoint of {weights:,} weights and Adam"
        rows = [
            row(f"write a {size}", interleave(writing, rounds=rounds, calls=1), BAR),
            row(f"read a {size}", interleave(reading, rounds=rounds, calls=1)),
        ]
    hashing = {
        "before": lambda: zlib.crc32(images[::50].numpy().tobytes()),
        "now": lambda: digest(images),
    }
    rows.append(
        row(
            "digest of 50 000 images of CIFAR; before: of 1 000 of them",
            interleave(hashing, rounds=rounds, calls=3),
        )
    )
    rows[-1]["bar_ms"] = DIGEST_BAR
    print(*rows, sep="\n")
    if not options.quick:
        write_rows(Path(__file__).parent / "results" / "checkpoints.json", rows)


if __name__ == "__main__":
    main()
