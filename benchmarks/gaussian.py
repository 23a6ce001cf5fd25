"""What the Gaussian likelihoods cost against what one would write with ``torch.distributions``,
forward and backward.

    python benchmarks/gaussian.py [--quick] [--threads 1]

``ln`` against ``torch.distributions.LowRankMultivariateNormal`` with the same covariance, both from
labels to the gradients of the mean and the root, the baseline with its default checks
(``torch.compile`` turns them off for the whole process, hence the row without); ``het`` against all
noise at once through autograd. A row is the median time in microseconds with p20 and p80 over
rounds; ``speedup`` is the median, with p20 and p80, of the ratio within a round.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from timing import interleave, quantiles, write_rows
from torch import Tensor

from noiseproof import get_loss
from noiseproof.core.output import Output

LAM, TAU, T = 0.5, 0.5, 0.01
BASELINE = "LowRankMultivariateNormal"


def low_rank(mean: Tensor, root: Tensor, y: Tensor, validate: bool = True) -> Tensor:
    """Σ = (ccᵀ + λI)² = (cᵀc + 2λ)ccᵀ + λ²I has one factor and a diagonal."""
    K = mean.shape[1]
    aim = F.one_hot(y, K).to(mean.dtype) * (TAU * math.log(((1 - T) * (K + 1) + T) / T))
    size = root.square().sum(1, keepdim=True)
    factor, diagonal = (root * (size + 2 * LAM).sqrt())[..., None], torch.full_like(mean, LAM**2)
    make = torch.distributions.LowRankMultivariateNormal
    return -make(mean, factor, diagonal, validate_args=validate).log_prob(aim).mean()


def all_at_once(mean: Tensor, scale: Tensor, y: Tensor, samples: int) -> Tensor:
    noise = torch.randn((samples, *mean.shape), generator=torch.Generator().manual_seed(0))
    log_p = F.log_softmax(mean + scale * noise, -1).logsumexp(0) - math.log(samples)
    return F.nll_loss(log_p, y)


def step(
    loss: Callable[..., Tensor], mean: Tensor, spread: Tensor, y: Tensor
) -> Callable[[], None]:
    def run() -> None:
        mean.grad = spread.grad = None
        loss(mean, spread, y).backward()

    return run


def inputs(B: int, K: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    mean, spread = (torch.randn(B, K, generator=generator, requires_grad=True) for _ in range(2))
    return mean, spread, torch.randint(K, (B,), generator=generator)


def rows(
    contenders: dict[str, Callable[[], None]],
    baseline: str,
    size: list[int],
    rounds: int,
    calls: int,
    bar: float | None = None,
) -> list[dict[str, object]]:
    found, seconds = [], interleave(contenders, rounds=rounds, calls=calls)
    for name, times in seconds.items():
        low, median, high = (round(1e6 * t) for t in quantiles(times))
        row: dict[str, object] = {"loss": name, "size": size, "us": median, "p20": low, "p80": high}
        if name != baseline:
            slow, ratio, fast = quantiles(
                [b / t for b, t in zip(seconds[baseline], times, strict=True)]
            )
            row |= {
                "speedup": round(ratio, 1),
                "speedup_p20": round(slow, 1),
                "speedup_p80": round(fast, 1),
            }
            if bar is not None and name.startswith("ln"):
                row |= {"bar": bar, "verdict": "ok" if ratio >= bar else "under"}
        found.append(row)
    return found


def measure_ln(
    B: int, K: int, rounds: int, calls: int, bar: float | None = None
) -> list[dict[str, object]]:
    parts = inputs(B, K)
    loss = get_loss("ln", lam=LAM, tau=TAU, t=T)
    compiled = torch.compile(loss, fullgraph=True)
    contenders = {
        BASELINE: step(low_rank, *parts),
        f"{BASELINE}, validate_args=False": step(partial(low_rank, validate=False), *parts),
        "ln": step(lambda mean, root, y: loss(Output(mean, root=root), y), *parts),
        "ln compiled": step(lambda mean, root, y: compiled(Output(mean, root=root), y), *parts),
    }
    return rows(contenders, BASELINE, [B, K], rounds, calls, bar=bar)


def measure_het(B: int, K: int, samples: int, rounds: int) -> list[dict[str, object]]:
    mean, spread, y = inputs(B, K)
    spread = spread.detach().abs().requires_grad_()
    loss = get_loss("het", samples=samples)
    baseline = f"all {samples} samples at once"
    contenders = {
        baseline: step(
            lambda mean, scale, y: all_at_once(mean, scale, y, samples), mean, spread, y
        ),
        f"het:samples={samples}": step(
            lambda mean, scale, y: loss(Output(mean, scale=scale), y), mean, spread, y
        ),
    }
    return rows(contenders, baseline, [B, K], rounds, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a third of the rounds, nothing written"
    )
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    # freed at once, as in any training step: glibc keeps freed memory from then on
    torch.empty(2**22).fill_(0)
    share, found = 3 if args.quick else 1, []
    for part in (
        lambda: measure_ln(1024, 100, 60 // share, 5, 5.0),
        lambda: measure_ln(1024, 1000, 12 // share, 2),
        lambda: measure_het(128, 10, 1000, 15 // share),
    ):
        for row in part():
            found.append(row)
            speedup = (
                f"{row['speedup']}x [{row['speedup_p20']}, {row['speedup_p80']}]"
                if "speedup" in row
                else ""
            )
            print(
                f"{row['loss']:48}{row['size']!s:14}{row['us']:>9} µs [{row['p20']}, {row['p80']}] "
                f" {speedup}"
            )
    if not args.quick:
        write_rows(Path(__file__).parent / "results" / "gaussian.json", found)


if __name__ == "__main__":
    main()
