"""The closed-form Gaussian-process classifier against scikit-learn's (Laplace, one against the
rest), on noisy digits.

    python benchmarks/gp.py [--quick]

Both have one RBF kernel with a signal variance, chosen by marginal likelihood from the same start
(the median distance; from its default start scikit-learn's optimiser ended in a constant at 40 %
noise), and one thread. A seed is a split with its own wrong labels, and both are fitted to its
first samples in alternating order. A row has, over seeds, the mean and standard deviation of the
accuracy on clean test labels; the mean negative log-likelihood of those labels, ``nll``, and that
of the softmax of the posterior mean, ``nll_at_mean``; the median, p20 and p80 of the seconds of a
fit. ``speedup`` is the median of scikit-learn's time over ours with the same seed. The last rows
leave scikit-learn out for its time.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import sklearn
import torch
from sklearn.gaussian_process import GaussianProcessClassifier as Laplace
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from threadpoolctl import threadpool_limits
from timing import quantiles, write_rows
from torch import Tensor

from noiseproof.data import corrupt, get_dataset
from noiseproof.heads.gaussian_process import GaussianProcessClassifier

Result = dict[str, float]
OURS, THEIRS = "noiseproof, closed form", "scikit-learn, Laplace"


def closed_form(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> Result:
    start = time.perf_counter()
    fitted = GaussianProcessClassifier().fit(x, y, 10)
    seconds = time.perf_counter() - start
    at_mean = torch.softmax(fitted.posterior(x_test)[0], 1)
    return judge(fitted.predict_proba(x_test), y_test) | {
        "nll_at_mean": nll(at_mean, y_test),
        "seconds": seconds,
    }


def laplace(x: Tensor, y: Tensor, x_test: Tensor, y_test: Tensor) -> Result:
    kernel = ConstantKernel(10.0) * RBF(float(torch.cdist(x, x).median()))
    start = time.perf_counter()
    fitted = Laplace(kernel).fit(x.numpy(), y.numpy())
    seconds = time.perf_counter() - start
    p = torch.from_numpy(fitted.predict_proba(x_test.numpy()))
    return judge(p, y_test) | {"seconds": seconds}


def nll(p: Tensor, y: Tensor) -> float:
    return float(-p.gather(1, y[:, None]).log().mean())


def judge(p: Tensor, y: Tensor) -> Result:
    return {"accuracy": float((p.argmax(1) == y).double().mean()), "nll": nll(p, y)}


def measure(
    rate: float, samples: int, contenders: dict[str, Callable[..., Result]], seeds: int
) -> list[dict[str, object]]:
    results: dict[str, list[Result]] = {name: [] for name in contenders}
    for seed in range(seeds):
        digits = get_dataset("digits", test=0.25, seed=seed)
        data, test = corrupt(digits, f"symmetric:rate={rate}", generator=seed), digits.test
        x, x_test = ((part.x / 255).flatten(1).double() for part in (data, test))
        order = list(contenders)[:: 1 if seed % 2 else -1]
        for name in order:
            results[name].append(
                contenders[name](x[:samples], data.given[:samples], x_test, test.y)
            )
    rows = []
    for name, runs in results.items():
        accuracy, seconds = [run["accuracy"] for run in runs], [run["seconds"] for run in runs]
        p20, median, p80 = quantiles(seconds)
        row: dict[str, object] = {
            "data": "digits",
            "noise": f"symmetric:rate={rate}",
            "samples": samples,
            "classifier": name,
        }
        row |= {
            "seeds": seeds,
            "accuracy": round(statistics.mean(accuracy), 4),
            "sd": round(statistics.stdev(accuracy), 4),
        }
        for key in ("nll", "nll_at_mean"):
            row[key] = (
                round(statistics.mean(run[key] for run in runs), 3) if key in runs[0] else None
            )
        row |= {
            "fit_s": round(median, 3),
            "p20": round(p20, 3),
            "p80": round(p80, 3),
            "speedup": None,
        }
        if name == OURS and THEIRS in results:
            ratios = [
                b["seconds"] / a["seconds"] for a, b in zip(runs, results[THEIRS], strict=True)
            ]
            row["speedup"] = round(statistics.median(ratios), 1)
        rows.append(row | {"sklearn": sklearn.__version__})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one noise rate, 150 samples, two seeds, nothing written",
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    both: dict[str, Callable[..., Result]] = {OURS: closed_form, THEIRS: laplace}
    rates, samples, seeds = ((0.4,), 150, 2) if args.quick else ((0.0, 0.2, 0.4, 0.6), 300, 5)
    tasks = [(rate, samples, both) for rate in rates]
    tasks += [] if args.quick else [(rate, 1347, {OURS: closed_form}) for rate in rates]
    rows = []
    with threadpool_limits(1):
        for rate, size, contenders in tasks:
            for row in measure(rate, size, contenders, seeds):
                rows.append(row)
                print(
                    f"{row['noise']:20}{row['samples']:>6} {row['classifier']:26}"
                    f"{row['accuracy']:.4f} ± {row['sd']:.4f}  nll {row['nll']}  "
                    f"{row['fit_s']} s [{row['p20']}, {row['p80']}]  {row['speedup'] or ''}",
                    flush=True,
                )
    if not args.quick:
        write_rows(Path(__file__).parent / "results" / "gp.json", rows)


if __name__ == "__main__":
    main()
