"""Which rows to label again, and by whom: ours beside cleanlab's ActiveLab, on the same votes and
predictions.

    python benchmarks/label_again.py [--data DIR] [--out FILE]    # RTE, CIFAR-10N, CIFAR-10H, seeds
    0 to 4 python benchmarks/label_again.py --dev                        # simulated crowds, on
    which ours was chosen

A seed draws the votes that each row starts with; all others are for sale. In every round each
ranking buys one vote on each of its first rows, and the consensus of all votes is compared with the
truth: by `pooled` with the predictions, which stay those of a model that learned from the votes at
the start, and by the majority. ``next`` buys the next vote in an order that is the same for all
rankings, ``who`` the one that it is worth most to have, of the annotators who have one to sell.
Annotators of CIFAR-10H are not known, those of CIFAR-10N are three columns: there is nobody to
choose. Features of the photos are EfficientNet-Lite0's, of the first 1 500 of the test (CIFAR-10H)
and of the training photos (CIFAR-10N); ``DIR`` as in crowd.py.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from crowd import SIMULATED, photo_features, read_options, words
from numpy.typing import NDArray
from tablesets import ROOT, shared
from timing import write_rows

from noiseproof.audit import consensus
from noiseproof.data.votes import Votes
from noiseproof.judge.crowd.confusion import VotedRows, fit_annotators
from noiseproof.judge.crowd.quality import information

sys.path.append(str(ROOT / "tests" / "helpers"))
from crowds import simulate

RESULTS = Path(__file__).parent / "results" / "label_again.json"
SEEDS, PHOTOS = range(5), 1500
BATCHES: list[dict[str, Any]] = [
    {"mean": 0.8, "difficulty": 1.0},
    {"mean": 0.85, "difficulty": 0.5, "classwise": 1.0},
]


@dataclass
class Pool:
    """All votes that exist, (N, A), −1 for none, and those bought so far."""

    table: NDArray[np.int64]
    truth: NDArray[np.int64]
    num_classes: int
    order: NDArray[np.int64]  # (N, A): the annotators in the order in which votes on a row are sold
    bought: NDArray[np.bool_]  # (N, A)
    probs: NDArray[np.float64]  # (N, K) of a model that saw the votes at the start

    @property
    def for_sale(self) -> NDArray[np.bool_]:
        return (self.table >= 0) & ~self.bought

    @property
    def seen(self) -> NDArray[np.int64]:
        return np.where(self.bought, self.table, -1)

    def next_seller(self) -> NDArray[np.int64]:
        """Who sells the next vote on each row, (N,)."""
        available = np.take_along_axis(self.for_sale, self.order, 1)
        return self.order[np.arange(len(self.order)), available.argmax(1)]

    def accuracies(self) -> dict[str, float]:
        votes = Votes.of_table(self.seen)
        found = {
            method: consensus(votes, self.num_classes, method=method, pred_probs=self.probs)
            for method in ("pooled", "majority")
        }
        return {
            name: round(float((one.label == self.truth).mean()), 5) for name, one in found.items()
        }


def start(
    table: NDArray[np.int64], truth: NDArray[Any], K: int, votes: int, seed: int, predict: Any
) -> Pool:
    random = np.random.default_rng(seed)
    order = np.argsort(np.where(table >= 0, random.random(table.shape), 2.0), 1)
    bought = np.zeros(table.shape, bool)
    np.put_along_axis(bought, order[:, :votes], True, 1)
    bought &= table >= 0
    first = consensus(np.where(bought, table, -1), K, method="majority", seed=seed).label
    return Pool(table, truth, K, order, bought, predict(first, seed))


def at_random(pool: Pool, random: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.int64]]:
    return random.random(len(pool.table)), pool.next_seller()


def by_activelab(pool: Pool, random: np.random.Generator) -> tuple[NDArray[Any], NDArray[np.int64]]:
    from cleanlab.multiannotator import get_active_learning_scores

    seen = pool.seen
    seen = seen[:, (seen >= 0).any(0)]  # it refuses annotators without labels
    table = pd.DataFrame(seen).replace(-1, np.nan)
    return -get_active_learning_scores(table, pool.probs)[0], pool.next_seller()


def by_us(
    pool: Pool, random: np.random.Generator, who: bool = False
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    rows = VotedRows(Votes.of_table(pool.seen), pool.num_classes, torch.from_numpy(pool.probs))
    fitted = fit_annotators(rows)
    truth = torch.cat([truth for _, truth in rows.posterior(fitted)])
    # (N, A)
    gain = torch.stack([information(truth, confusion) for confusion in fitted.confusion], 1).numpy()
    gain /= np.maximum(pool.bought.sum(1, keepdims=True), 1)
    seller = np.where(pool.for_sale, gain, -1.0).argmax(1) if who else pool.next_seller()
    return gain[np.arange(len(gain)), seller], seller


RANKINGS: dict[str, Callable[..., tuple[NDArray[Any], NDArray[np.int64]]]] = {
    "random": at_random,
    "ActiveLab": by_activelab,
    "ours": by_us,
    "ours, who": lambda pool, random: by_us(pool, random, who=True),
}


def rounds(
    about: dict[str, Any], pool: Pool, count: int, share: float, seed: int, names: Any = RANKINGS
) -> list[dict[str, Any]]:
    """Buy votes on a ``share`` of the rows in each of ``count`` rounds, by every ranking."""
    results, first = [], pool.bought.copy()
    for name in names:
        random, pool.bought = np.random.default_rng(seed), first.copy()
        for k in range(count + 1):
            results.append(
                about
                | {"seed": seed, "ranking": name, "round": k, "votes": int(pool.bought.sum())}
                | pool.accuracies()
            )
            score, seller = RANKINGS[name](pool, random)
            score = np.where(pool.for_sale.any(1), score, -np.inf)
            chosen = np.argsort(-score, kind="stable")[: int(share * len(score))]
            chosen = chosen[np.isfinite(score[chosen])]
            pool.bought[chosen, seller[chosen]] = True
        print(*results[-1].values(), sep="\t", flush=True)
    return results


def rte() -> list[dict[str, Any]]:
    items, lines = shared("rte_items"), shared("rte_votes")
    table = lines.assign(label=lines["response"] == "yes").pivot(
        index="item", columns="worker", values="label"
    )
    table = table.reindex(items["orig_id"]).astype(float).fillna(-1).to_numpy(np.int64)
    truth, pairs = (
        (items["gold"] == "yes").to_numpy(np.int64),
        items["text"] + " => " + items["hypothesis"],
    )
    results = []
    for seed in SEEDS:
        pool = start(table, truth, 2, 2, seed, lambda given, seed: words(pairs, given, seed))
        results += rounds({"data": "RTE, 2 votes at first"}, pool, 10, 0.1, seed)
    return results


def photos(folder: Path) -> list[dict[str, Any]]:
    from noiseproof.data import get_dataset

    human = torch.load(folder / "cifar-n" / "CIFAR-10_human.pt", weights_only=False)
    counts = np.load(folder / "cifar10h.npz")["counts"].astype(np.int64)
    data = get_dataset("cifar10", data_dir=str(folder))
    results = []
    for name, split, votes, count in (
        ("CIFAR-10N", data.train, 1, 8),
        ("CIFAR-10H", data.test, 2, 8),
    ):
        assert split is not None
        truth, x = np.asarray(split.y)[:PHOTOS], photo_features(folder, split)[:PHOTOS]
        for seed in SEEDS:
            if name == "CIFAR-10N":
                table = np.stack([human[f"random_label{k}"] for k in (1, 2, 3)], 1)[:PHOTOS].astype(
                    np.int64
                )
            else:
                random = np.random.default_rng(seed)
                sold = [
                    random.permutation(np.repeat(np.arange(10), row))[:20]
                    for row in counts[:PHOTOS]
                ]
                table = np.stack(sold)
            pool = start(
                table, truth, 10, votes, seed, lambda given, seed, x=x: linear(x, given, seed)
            )
            about = {"data": f"{name}, {votes} vote{'s' * (votes > 1)} at first"}
            results += rounds(about, pool, count, 0.1, seed, ("random", "ActiveLab", "ours"))
    return results


def linear(x: NDArray[Any], given: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Out-of-sample probabilities of a logistic regression on the features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.003, max_iter=200))
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    return np.asarray(cross_val_predict(model, x, given, cv=folds, method="predict_proba"))


def batches(seeds: int = 3) -> None:
    """Simulated crowds like that of RTE: batches of twenty rows with the same ten of 164
    annotators, two at first.
    """
    results = []
    for k, one in enumerate(BATCHES):
        for seed in range(seeds):
            crowd = simulate(
                5000 + seed,
                rows=800,
                annotators=164,
                classes=2,
                per_row=10,
                skew=0.7,
                batch=20,
                **one,
            )
            random = np.random.default_rng(seed)

            def predict(given: Any, seed: int, crowd: Any = crowd, random: Any = random) -> Any:
                z = 0.6 * random.standard_normal((len(given), 2)) + 0.25 * (
                    crowd.truth[:, None] == np.arange(2)
                )
                return np.exp(z) / np.exp(z).sum(1, keepdims=True)

            pool = start(crowd.votes.table(), crowd.truth, 2, 2, seed, predict)
            results += rounds({"data": k}, pool, 10, 0.1, seed, ("ActiveLab", "ours"))
    print(
        pd.DataFrame(results)
        .groupby(["ranking", "round"])["pooled"]
        .mean()
        .unstack(0)
        .round(4)
        .to_string()
    )


def development(seeds: int = 3) -> None:
    """Simulated crowds with all votes of forty annotators for sale, three at first; predictions
    that know a little.
    """
    results = []
    for k, one in enumerate(SIMULATED):
        for seed in range(seeds):
            everyone = one | {"annotators": 40, "per_row": 30, "rows": 400, "skew": 0.0}
            crowd, K = simulate(1000 + 100 * seed + k, **everyone), one["classes"]
            random = np.random.default_rng(seed)

            def predict(
                given: Any, seed: int, K: int = K, crowd: Any = crowd, random: Any = random
            ) -> Any:
                z = random.standard_normal((len(given), K)) + 1.0 * (
                    crowd.truth[:, None] == np.arange(K)
                )
                return np.exp(z) / np.exp(z).sum(1, keepdims=True)

            pool = start(crowd.votes.table(), crowd.truth, K, 2, seed, predict)
            results += rounds({"data": k}, pool, 8, 0.1, seed)
    frame = pd.DataFrame(results)
    print(
        frame.groupby(["ranking", "round"])[["pooled", "majority"]]
        .mean()
        .unstack(0)
        .round(4)
        .to_string()
    )


if __name__ == "__main__":
    options = read_options(__doc__, RESULTS)
    warnings.simplefilter("ignore")
    if options.dev:
        development()
        batches()
    else:
        versions = {"cleanlab": version("cleanlab")}
        write_rows(options.out, [row | versions for row in rte() + photos(options.data)])
