"""Which wrong labels are found, against cleanlab's scorers on the same rows, features and folds.

    NOISEPROOF_DATA=… python benchmarks/audit.py [--quick] [--table]

Rows of each seed are drawn anew (digits has but 1797: there only folds and noise are). MNIST and CIFAR-10 rows are not
among the 5 000 and 10 000 that the audit's constants were settled on; digits and the kinds of noise are the same. The
features: digits 8 × 8 pixels; MNIST (3 000 rows) 64 principal components of the pixels; CIFAR-10 (5 000 rows) 200
principal components of 400 rectified responses to whitened random 6 × 6 patches, pooled over quadrants: nothing is
pretrained. The noise: ``symmetric``, ``asymmetric-next`` (each class to the next), ``xia`` (by the features), ``chen``
(what a model trained on clean labels doubts), and CIFAR-10N's three human labellings.

A row has the scores of: cleanlab's self-confidence, adjusted self-confidence and normalized margin on five folds of
scikit-learn's logistic regression (``lr``) and on the same out-of-sample predictions as ours (``same``); our
``posterior`` of these predictions and nothing else; ours with all of ``thorough`` and ``fast`` evidence. AUROC and
average precision (ap) of the ranking, F1 at the cut (cleanlab: ``find_label_issues``), the noise rate, the seconds
with the training. The file is written after each row, and rows in it are not made again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits
from timing import write_rows
from torch.nn import functional as F

from noiseproof.audit.evidence import cross_validate, watch_training
from noiseproof.audit.labels import LabelIssues, find_label_issues
from noiseproof.data import NoisyData, get_dataset
from noiseproof.data.sources import data_root
from noiseproof.noise import get_noise
from noiseproof.strategies.averages import TrainingAverages
from noiseproof.train import Settings, train
from noiseproof.train.methods import Method, get_method
from noiseproof.train.task import Task

try:
    import cleanlab
    from cleanlab.count import estimate_joint
    from cleanlab.filter import find_label_issues as cleanlab_issues
    from cleanlab.rank import get_label_quality_scores
except ModuleNotFoundError:  # no other script needs it
    cleanlab = None

Array = NDArray[Any]
OUT = Path(__file__).parent / "results" / "audit.json"
SEEDS = (1, 2, 3)  # 0 is what the constants were settled on
SCORERS = {
    "self-confidence": {"method": "self_confidence"},
    "adjusted": {"method": "self_confidence", "adjust_pred_probs": True},
    "margin": {"method": "normalized_margin"},
}
NOISES = (
    "symmetric:rate=0.1", "symmetric:rate=0.4", "asymmetric-next:rate=0.2", "asymmetric-next:rate=0.4",
    "xia:rate=0.2", "xia:rate=0.4", "chen:rate=0.2",
)  # fmt: skip
HUMAN = ("aggregate", "random1", "worst")


def rows_of(seed: int, total: int, settled_on: int, wanted: int) -> Array:
    """Rows that nobody has looked at while the audit was made."""
    unseen = np.random.default_rng(0).permutation(total)[settled_on:]
    return np.sort(np.random.default_rng(seed).permutation(unseen)[:wanted])


def components(x: Array, k: int, seed: int) -> Array:
    centred = torch.from_numpy(x - x.mean(0))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        v = torch.pca_lowrank(centred, q=k, center=False, niter=4)[2]
    return (centred @ v).numpy()


@cache
def digits(seed: int) -> tuple[Array, Array]:
    x, y = sklearn.datasets.load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y


@cache
def mnist(seed: int) -> tuple[Array, Array]:
    data = get_dataset("mnist").train
    rows = rows_of(seed, len(data), 5000, 3000)
    return components(data.x[rows].flatten(1).float().numpy() / 255, 64, seed), data.y[rows].numpy()


@cache
def cifar(seed: int) -> tuple[Array, Array, Array]:
    data = get_dataset("cifar10").train
    rows = rows_of(seed, len(data), 10_000, 5000)
    x, generator = data.x[rows].float() / 255, torch.Generator().manual_seed(seed)

    def patches(images: torch.Tensor) -> torch.Tensor:
        each = F.unfold(images, 6).transpose(1, 2)  # (b, 27², 108)
        return (each - each.mean(2, keepdim=True)) / (each.var(2, keepdim=True) + 0.01).sqrt()

    sample = patches(x[:500]).flatten(0, 1)
    sample = sample[torch.randperm(len(sample), generator=generator)[:50_000]]
    mean = sample.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((sample - mean).T))
    whiten = vectors @ torch.diag((values + 0.1).rsqrt()) @ vectors.T
    filters = F.normalize((sample[:200] - mean) @ whiten, dim=1).T
    pooled = []
    for images in x.split(100):
        answer = ((patches(images) - mean) @ whiten @ filters).transpose(1, 2).unflatten(2, (27, 27))
        both = torch.cat([(answer - 0.25).clamp(min=0), (-answer - 0.25).clamp(min=0)], 1)
        pooled.append(F.adaptive_avg_pool2d(both, 2).flatten(1))
    features = torch.cat(pooled)
    features = (features - features.mean(0)) / (features.std(0) + 1e-4)
    return components(features.numpy(), 200, seed), data.y[rows].numpy(), rows


def doubted(x: Array, y: Array, seed: int) -> torch.Tensor:
    """Predictions of a model trained on clean labels, averaged over its epochs, which ``chen`` flips by."""
    K = int(y.max()) + 1
    task = Task(
        NoisyData(torch.from_numpy(x / x.std()), torch.from_numpy(y), tuple(map(str, range(K))), torch.arange(len(y)))
    )
    settings = Settings(model="mlp:hidden=[64]", epochs=10, optimizer="adam:lr=1e-3")
    plain = get_method("ce", task, settings)
    averages = train(task, Method(plain.loss, plain.head, (TrainingAverages(),)), settings, seed=seed).strategies[0]
    assert isinstance(averages, TrainingAverages)
    return averages.mean("probs")


def given_labels(name: str, noise: str, seed: int) -> tuple[Array, Array, Array]:
    """Features, true labels, given labels."""
    if name == "cifar10n":
        x, y, rows = cifar(seed)
        column = get_noise("cifar10n", data_root(), which=noise).corrupt(get_dataset("cifar10").train.y).given.numpy()
        return x, y, column[rows]
    x, y = digits(seed) if name == "digits" else mnist(seed)
    features = doubted(x, y, seed) if noise.startswith("chen") else torch.from_numpy((x - x.mean(0)) / x.std())
    return x, y, get_noise(noise).corrupt(y, generator=seed, features=features, num_classes=10).given.numpy()


def judged(quality: Array, wrong: Array) -> dict[str, float]:
    return {
        "auroc": round(float(roc_auc_score(wrong, -quality)), 4),
        "ap": round(float(average_precision_score(wrong, -quality)), 4),
    }


def by_cleanlab(given: Array, probs: Array, wrong: Array, seconds: float) -> dict[str, Any]:
    start = time.perf_counter()
    flagged = cleanlab_issues(given, probs)
    joint = estimate_joint(given, probs)
    about = {"f1": round(float(f1_score(wrong, flagged)), 4), "rate": round(float(1 - np.trace(joint)), 4)}
    seconds += time.perf_counter() - start
    scores = {name: judged(get_label_quality_scores(given, probs, **how), wrong) for name, how in SCORERS.items()}
    return {"scores": scores, **about, "seconds": round(seconds, 2)}


def by_us(issues: LabelIssues, wrong: Array, seconds: float) -> dict[str, Any]:
    return {
        **judged(issues.quality, wrong),
        "f1": round(float(f1_score(wrong, issues.is_issue)), 4),
        "rate": round(issues.noise_rate, 4),
        "interval": [round(end, 4) for end in issues.noise_interval],
        "seconds": round(seconds, 2),
    }


def compare(name: str, noise: str, seed: int) -> dict[str, Any]:
    x, y, given = given_labels(name, noise, seed)
    wrong = given != y
    fold = np.empty(len(y), dtype=np.int64)
    for f, (_, held) in enumerate(StratifiedKFold(5, shuffle=True, random_state=seed).split(x, given)):
        fold[held] = f
    clock = [time.perf_counter()]
    thorough = cross_validate(x, given, 10, fold, seed=seed)
    thorough_issues = find_label_issues(given, evidence=thorough)
    clock.append(time.perf_counter())
    fast = watch_training(x, given, 10, seed=seed)
    fast_issues = find_label_issues(given, evidence=fast)
    clock.append(time.perf_counter())
    linear = np.empty((len(y), 10))
    assert thorough.features is not None
    for f in range(5):
        train_on = fold != f
        model = LogisticRegression(max_iter=1000).fit(thorough.features[train_on], given[train_on])
        linear[~train_on] = model.predict_proba(thorough.features[~train_on])
    clock.append(time.perf_counter())
    took = np.diff(clock)
    same = thorough.pred_probs / thorough.pred_probs.sum(1, keepdims=True)
    return {
        "data": name, "noise": noise, "seed": seed, "rows": len(y), "wrong": round(float(wrong.mean()), 4),
        "thorough": by_us(thorough_issues, wrong, took[0]), "fast": by_us(fast_issues, wrong, took[1]),
        "posterior": by_us(find_label_issues(given, same), wrong, took[0]),
        "cleanlab_lr": by_cleanlab(given, linear, wrong, took[2]),
        "cleanlab_same": by_cleanlab(given, same, wrong, took[0]),
        "cleanlab": cleanlab.__version__, "sklearn": sklearn.__version__,
    }  # fmt: skip


def plan(quick: bool) -> Iterator[tuple[str, str, int]]:
    for seed in SEEDS[:1] if quick else SEEDS:
        yield from (("digits", noise, seed) for noise in NOISES)
        if not quick:
            yield from (("cifar10n", noise, seed) for noise in HUMAN)
            yield from (("mnist", noise, seed) for noise in NOISES)


def mean(rows: list[dict[str, Any]], *path: str) -> float:
    """Of what lies at ``path`` in each row."""
    values = []
    for row in rows:
        value: Any = row
        for step in path:
            value = value[step]
        values.append(float(value))
    return statistics.mean(values)


def contenders(rows: list[dict[str, Any]], metric: str) -> list[float]:
    """Cleanlab on logistic regression and on our predictions (its best scorer in these rows), and our three."""
    best = []
    for who in ("cleanlab_lr", "cleanlab_same"):
        ranks = metric in ("ap", "auroc")
        each = [mean(rows, who, "scores", name, metric) for name in SCORERS] if ranks else [mean(rows, who, metric)]
        best.append(max(each))
    return [*best, *(mean(rows, who, metric) for who in ("posterior", "fast", "thorough"))]


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds as a table in Markdown."""
    lines = [
        "| data, noise | wrong | AP: cleanlab, LR | cleanlab, same | posterior, same | fast | thorough "
        "| AUROC | F1 | rate | seconds |",
        "| --- " * 11 + "|",
    ]
    for data, noise in dict.fromkeys((row["data"], row["noise"]) for row in rows):
        cell_rows = [row for row in rows if (row["data"], row["noise"]) == (data, noise)]
        ap = " | ".join(f"{value:.4f}" for value in contenders(cell_rows, "ap"))
        rest = [", ".join(f"{v:.3f}" for v in contenders(cell_rows, metric)) for metric in ("auroc", "f1", "rate")]
        times = ", ".join(f"{mean(cell_rows, who, 'seconds'):.0f}" for who in ("cleanlab_lr", "fast", "thorough"))
        lines.append(f"| {data} {noise} | {mean(cell_rows, 'wrong'):.3f} | {ap} | {' | '.join(rest)} | {times} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="digits, one seed")
    parser.add_argument("--table", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(OUT.read_text())["rows"] if OUT.exists() else []
    if not options.table:
        if cleanlab is None:
            parser.exit(0, "cleanlab is not here: nothing was measured. `pip install cleanlab==2.9.0` brings it.\n")
        torch.set_num_threads(1)
        with threadpool_limits(1):
            for name, noise, seed in plan(options.quick):
                if not any((row["data"], row["noise"], row["seed"]) == (name, noise, seed) for row in rows):
                    rows.append(compare(name, noise, seed))
                    write_rows(OUT, rows)
    print(table(rows))


if __name__ == "__main__":
    main()
