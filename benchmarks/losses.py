"""What every loss costs, as a multiple of ``F.cross_entropy`` forward and backward in the same run.

    python benchmarks/losses.py [--quick] [--only gce,nce] [--part large|small|compiled|released]

A row is the median ratio with its p20 and p80 over rounds; ``control`` is cross entropy against
itself, and a row whose median lies within the control's spread is a tie.
"""

from __future__ import annotations

import argparse
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import against, interleave, write_rows
from torch import Tensor

from noiseproof import get_loss
from noiseproof.losses import LOSSES

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

SMALL, LARGE = (128, 10), (4096, 1000)
EXTRA = (
    "remargin:loss=mae,shift=3",
    "remargin:loss=mae,scale=0.5",
    "10*nce + 0.1*agce:a=1.8,q=3",
    "gce:exact=true",
)


def specs(num_classes: int) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Every registered loss at its defaults, and a few combinations."""
    T = 0.6 * torch.eye(num_classes) + 0.4 / num_classes
    needed = {"T": T, "loss": "mae", "num_classes": num_classes}
    losses = {}
    for name in LOSSES:
        required = {
            k: needed[k] for k in LOSSES.parameters(name) if k in needed and name not in ("peer",)
        }
        losses[name] = get_loss(name, **required)
    of_logits = {name: loss for name, loss in losses.items() if loss.needs == {"logits"}}
    return of_logits | {spec: get_loss(spec) for spec in EXTRA}


def step(
    loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor
) -> Callable[[], None]:
    def run() -> None:
        logits.grad = None
        loss(logits, target).backward()

    return run


def compile_alone(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """``torch.compile`` with a code object of its own: functions that share one also share a cache
    that it searches.
    """

    def call(logits: Tensor, target: Tensor) -> Tensor:
        return loss(logits, target)

    alone = types.FunctionType(
        call.__code__.replace(co_name=f"call_{id(loss)}"),
        call.__globals__,
        closure=call.__closure__,
    )
    return torch.compile(alone, fullgraph=True)


def bar(name: str, kind: str, size: tuple[int, int], compiled: bool) -> float | None:
    """The bar that the issue sets for a row, if any."""
    if compiled:
        return 1.25 if kind == "margin" else None
    if size == LARGE:
        return {"margin": 1.05, "coupled": 2.0}.get(kind, 12.0 if name == "bitempered" else None)
    return {"ce": 2.5, "gce": 2.5, "mae": 2.5}.get(name, 3.0 if kind == "margin" else None)


def measure(
    size: tuple[int, int], only: set[str], rounds: int, calls: int, compiled: bool
) -> list[dict[str, object]]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(size, generator=generator, requires_grad=True)
    target = torch.randint(size[1], (size[0],), generator=generator)
    wrap = compile_alone if compiled else (lambda f: f)
    losses = {name: loss for name, loss in specs(size[1]).items() if not only or name in only}
    if compiled:
        losses = {
            name: loss for name, loss in losses.items() if loss.kind == "margin" and not loss.exact
        }
    contenders = {name: step(wrap(loss), logits, target) for name, loss in losses.items()}
    reference = torch.nn.CrossEntropyLoss() if compiled else F.cross_entropy
    contenders["cross_entropy"] = step(wrap(reference), logits, target)
    contenders["control"] = step(
        wrap(torch.nn.CrossEntropyLoss() if compiled else F.cross_entropy), logits, target
    )
    ratios = against(interleave(contenders, rounds=rounds, calls=calls), "cross_entropy")
    low, _, high = ratios["control"]
    rows = []
    for name, (p20, median, p80) in ratios.items():
        if name == "cross_entropy":
            continue
        kind = losses[name].kind if name in losses else "control"
        exact = name in losses and losses[name].exact
        limit = (
            None
            if exact or name.startswith(("remargin", "tau-"))
            else bar(name, kind, size, compiled)
        )
        verdict = (
            ""
            if limit is None
            else "ok"
            if median <= limit
            else "tie"
            if low <= median <= high
            else "over"
        )
        rows.append(
            {
                "loss": name,
                "kind": kind,
                "size": list(size),
                "mode": "compiled" if compiled else "eager",
                "ratio": round(median, 3),
                "p20": round(p20, 3),
                "p80": round(p80, 3),
                "bar": limit,
                "verdict": verdict,
            }
        )
    return rows


def measure_released(size: tuple[int, int], rounds: int, calls: int) -> list[dict[str, object]]:
    """The same losses as research code writes them (softmax, clamp, one-hot), typed in the tests as
    baselines.
    """
    import reference

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(size, generator=generator, requires_grad=True)
    target = torch.randint(size[1], (size[0],), generator=generator)
    naive = {
        name: getattr(reference, name) for name in dir(reference) if name.startswith("released_")
    }
    contenders = {
        name: step(lambda z, t, f=f: f(z, t).mean(), logits, target)
        for name, f in naive.items()
        if callable(f)
    }
    contenders["cross_entropy"] = step(F.cross_entropy, logits, target)
    ratios = against(interleave(contenders, rounds=rounds, calls=calls), "cross_entropy")
    return [
        {
            "loss": name,
            "kind": "released",
            "size": list(size),
            "mode": "eager",
            "ratio": round(median, 3),
            "p20": round(p20, 3),
            "p80": round(p80, 3),
            "bar": None,
            "verdict": "",
        }
        for name, (p20, median, p80) in ratios.items()
        if name != "cross_entropy"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a third of the rounds, nothing written"
    )
    parser.add_argument("--only", default="", help="comma-separated losses")
    parser.add_argument(
        "--part",
        choices=("large", "small", "compiled", "released"),
        help="one part, nothing written",
    )
    args = parser.parse_args()
    only = {name.strip() for name in args.only.split(",") if name.strip()}
    share = 3 if args.quick else 1
    torch.set_num_threads(int(os.environ.get("THREADS", "2")))
    parts = {
        "large": lambda: measure(LARGE, only, 15 // share, 5, False),
        "small": lambda: measure(SMALL, only, 60 // share, 60, False),
        "compiled": lambda: (
            measure(SMALL, only, 60 // share, 60, True) + measure(LARGE, only, 15 // share, 5, True)
        ),
        "released": lambda: (
            measure_released(LARGE, 9 // share, 3) + measure_released(SMALL, 30 // share, 60)
        ),
    }
    rows = []
    for name, part in parts.items():
        if args.part in (None, name):
            for row in part():
                rows.append(row)
                print(
                    f"{row['size']!s:14}{row['mode']:10}{row['loss']:32}{row['ratio']:7.2f}x "
                    f" [{row['p20']:.2f}, {row['p80']:.2f}]  {row['bar'] or '':>5}"
                    f" {row['verdict']}",
                    flush=True,
                )
    if not (args.quick or args.only or args.part):
        write_rows(Path(__file__).parent / "results" / "losses.json", rows)


if __name__ == "__main__":
    main()
