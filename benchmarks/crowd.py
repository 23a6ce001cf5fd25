"""The consensus of several annotators beside cleanlab's (CROWDLAB) and crowd-kit's, on the same
votes and predictions.

    python benchmarks/crowd.py [--data DIR] [--out FILE]      # RTE, CIFAR-10N, CIFAR-10H
    python benchmarks/crowd.py --dev                          # simulated crowds, on which settings
    were chosen

RTE (Snow et al. 2008) has 164 workers and 8 000 votes on 800 pairs of sentences; predictions are
out of sample, trained on the majority: those of `noiseproof audit` on the texts, of a logistic
regression on their words, and even ones. CIFAR-10N (Wei et al. 2022) has three labels of 50 000
photos; CIFAR-10H (Peterson et al. 2019) about 51 of 10 000, of which three are drawn with a seed:
who gave them is not known, so that all annotators are alike. Fortunes and verbs are 800 texts of
tablesets.py each with three simulated votes, of eighty annotators who know 0.62 ± 0.2 of the
labels. ``DIR`` has cifar-n/, cifar10h.npz and cifar-10-batches-py/. cleanlab and crowd-kit are
measured where they are installed (``pip install --no-deps crowd-kit nltk regex``: it asks for
transformers, which its consensus does not use).
"""

from __future__ import annotations

import argparse
import sys
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from tablesets import ROOT, load, shared
from timing import write_rows

from noiseproof.audit import audit, consensus
from noiseproof.data.votes import Votes
from noiseproof.judge.crowd import confusion
from noiseproof.judge.crowd.consensus import METHODS

sys.path.append(str(ROOT / "tests" / "helpers"))
from crowds import simulate

RESULTS = Path(__file__).parent / "results" / "crowd.json"
SEEDS = (0, 1, 2)
TEXT_SEEDS = (30, 31, 32)
PHOTOS = 3000  # of which features are computed, where they are
SIMULATED: list[dict[str, Any]] = [
    {"rows": 800, "annotators": 160, "classes": 2, "per_row": 10, "mean": 0.8},
    {"rows": 400, "annotators": 40, "classes": 2, "per_row": 5},
    {"rows": 500, "annotators": 60, "classes": 3, "per_row": 5},
    {"rows": 1000, "annotators": 100, "classes": 5, "per_row": 3},
    {"rows": 1000, "annotators": 30, "classes": 10, "per_row": 3, "mean": 0.7},
    {"rows": 500, "annotators": 5, "classes": 4, "per_row": 3, "mean": 0.8},
    {"rows": 600, "annotators": 200, "classes": 4, "per_row": 4, "skew": 0.3},
    {"rows": 800, "annotators": 80, "classes": 3, "per_row": 6, "difficulty": 1.0},
    {"rows": 800, "annotators": 80, "classes": 2, "per_row": 8, "difficulty": 1.5},
    {"rows": 600, "annotators": 100, "classes": 3, "per_row": 5, "classwise": 1.5, "spread": 0.5},
]


def choose(seeds: int = 10) -> None:
    """Accuracy and NLL of the simulated crowds, by the votes that each annotator's confusions start
    with.
    """
    crowds = [
        (simulate(100 * seed + k, **one), one["classes"])
        for k, one in enumerate(SIMULATED)
        for seed in range(seeds)
    ]
    for method in METHODS:
        right = [
            (consensus(crowd.votes, K, method=method).label == crowd.truth).mean()
            for crowd, K in crowds
        ]
        print(f"{method}: accuracy {np.mean(right):.4f}", flush=True)
    for overall in (2.0, 4.0, 8.0):
        for per_class in (1.0, 2.0, 3.0, 5.0):
            confusion.OVERALL, confusion.PER_CLASS = overall, per_class
            scores = []
            for crowd, K in crowds:
                found = consensus(crowd.votes, K)
                p = found.probs[np.arange(len(crowd.truth)), crowd.truth]
                scores.append(((found.label == crowd.truth).mean(), -np.log(p.clip(1e-4)).mean()))
            accuracy, nll = np.mean(scores, 0)
            print(
                f"overall {overall:g}, per class {per_class:g}: accuracy {accuracy:.4f}, NLL"
                f" {nll:.4f}",
                flush=True,
            )


def by_us(
    votes: Votes, truth: NDArray[Any], num_classes: int, seed: int, probs: Any = None
) -> list[dict[str, Any]]:
    rows = []
    for method in METHODS:
        label = consensus(votes, num_classes, method=method, pred_probs=probs, seed=seed).label
        rows.append({"who": method, "accuracy": round(float((label == truth).mean()), 5)})
    return rows


def by_cleanlab(votes: Votes, truth: NDArray[Any], probs: Any) -> list[dict[str, Any]]:
    """The majority with ties by the predictions, where it starts, and CROWDLAB."""
    if find_spec("cleanlab") is None:
        return []
    from cleanlab.multiannotator import get_label_quality_multiannotator, get_majority_vote_label

    table = pd.DataFrame(votes.table()).replace(-1, np.nan)
    name = f"cleanlab {version('cleanlab')}"
    majority = get_majority_vote_label(table, probs, verbose=False)
    rows = [{"who": f"{name}, majority", "accuracy": round(float((majority == truth).mean()), 5)}]
    if probs is not None:
        quality = get_label_quality_multiannotator(table, probs, verbose=False)["label_quality"]
        accuracy = float((quality["consensus_label"].to_numpy() == truth).mean())
        rows.append({"who": f"{name}, CROWDLAB", "accuracy": round(accuracy, 5)})
    return rows


def by_crowd_kit(votes: Votes, truth: NDArray[Any]) -> list[dict[str, Any]]:
    if find_spec("crowdkit") is None:
        return []
    from crowdkit import aggregation

    frame = pd.DataFrame({"task": votes.row, "worker": votes.annotator, "label": votes.label})
    rows = []
    for name in ("MajorityVote", "DawidSkene", "GLAD", "MACE"):
        if name in ("GLAD", "MACE") and len(votes) > 20_000:
            continue  # a parameter for each row: minutes
        label = getattr(aggregation, name)().fit_predict(frame).sort_index().to_numpy()
        rows.append(
            {
                "who": f"crowd-kit {version('crowd-kit')}, {name}",
                "accuracy": round(float((label == truth).mean()), 5),
            }
        )
    return rows


def words(texts: Any, given: NDArray[np.int64], seed: int) -> NDArray[np.float64]:
    """Out-of-sample probabilities of a logistic regression on word counts, as cleanlab's tutorials
    have them.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline

    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    return np.asarray(cross_val_predict(model, texts, given, cv=folds, method="predict_proba"))


def photo_features(folder: Path, split: Any) -> NDArray[np.float32]:
    """Features of the first photos by EfficientNet-Lite0, which ImageNet taught, computed once."""
    from noiseproof.data.pictures import encode_pictures

    return np.asarray(
        encode_pictures(split.x[:PHOTOS], "efficientnet-lite0", cache=folder / "features")[0],
        np.float32,
    )


def rte() -> list[dict[str, Any]]:
    items, lines = shared("rte_items"), shared("rte_votes")
    lines = lines.rename(columns={"item": "orig_id"})
    frame = pd.DataFrame(
        {"orig_id": items["orig_id"], "pair": items["text"] + " => " + items["hypothesis"]}
    )
    truth, rows = (items["gold"] == "yes").to_numpy(np.int64), []
    for seed in SEEDS:
        report = audit(frame, text="pair", id="orig_id", annotations=lines, seed=seed)
        votes, probs = report.data.labels.votes, report.out_of_sample
        assert votes is not None and probs is not None and len(report.data) == len(items)
        labels = report.label_issues
        joined = np.where(
            labels.suggestion_quality > labels.quality, labels.suggested, report.data.given
        )
        given = report.data.given
        about = {"data": "RTE", "seed": seed, "predictions": "none"}
        if seed == SEEDS[0]:
            rows += [about | row for row in by_us(votes, truth, 2, seed)]
            rows += [about | row for row in by_crowd_kit(votes, truth)]
            rows += [about | row for row in by_cleanlab(votes, truth, None)]
        for name, p in (
            ("even", np.full((len(items), 2), 0.5)),
            ("tf-idf", words(frame["pair"], given, seed)),
        ):
            about["predictions"] = f"{name}, {(p.argmax(1) == truth).mean():.3f} right"
            rows += [
                about | row
                for row in by_us(votes, truth, 2, seed, p) + by_cleanlab(votes, truth, p)
            ]
        about["predictions"] = f"audit, {(probs.argmax(1) == truth).mean():.3f} right"
        rows += [
            about | row
            for row in by_us(votes, truth, 2, seed, probs) + by_cleanlab(votes, truth, probs)
        ]
        for who, label in (("audit, given", given), ("audit, consensus", joined)):
            rows.append(about | {"who": who, "accuracy": round(float((label == truth).mean()), 5)})
    return rows


def voted_texts(name: str) -> list[dict[str, Any]]:
    """Texts with simulated votes: the consensus of the audit beside those of the votes and its
    predictions.
    """
    rows, one = [], load(name)
    for seed in TEXT_SEEDS:
        random, frame = (
            np.random.default_rng(seed),
            one.frame.sample(800, random_state=seed).reset_index(drop=True),
        )
        truth, classes = pd.factorize(frame[one.label], sort=True)
        knows = np.clip(random.normal(0.62, 0.2, 80), 0.2, 0.98)
        people = np.concatenate([random.choice(80, 3, replace=False) for _ in truth])
        true, guess = np.repeat(truth, 3), random.integers(len(classes), size=3 * len(truth))
        label = classes[np.where(random.random(len(true)) < knows[people], true, guess)]
        lines = pd.DataFrame(
            {"row": np.repeat(np.arange(len(truth)), 3), "annotator": people, "label": label}
        )
        report = audit(frame[[one.text]], text=one.text, annotations=lines, seed=seed)
        votes, probs = report.data.labels.votes, report.out_of_sample
        assert votes is not None and probs is not None and report.data.classes == tuple(classes)
        about = {"data": f"{name}, 3 simulated votes", "seed": seed}
        alone = by_us(votes, truth, len(classes), seed)
        rows += [about | {"predictions": "none"} | row for row in alone]
        label, about["predictions"] = report.label_issues.consensus(report.data.given), "audit"
        joined = {"who": "audit, consensus", "accuracy": round(float((label == truth).mean()), 5)}
        rows += [about | row for row in [*by_us(votes, truth, len(classes), seed, probs), joined]]
    return rows


def cifar10n(folder: Path) -> list[dict[str, Any]]:
    labels = torch.load(folder / "cifar-n" / "CIFAR-10_human.pt", weights_only=False)
    votes = Votes.of_table(np.stack([labels[f"random_label{k}"] for k in (1, 2, 3)], 1))
    truth, about = (
        np.asarray(labels["clean_label"]),
        {"data": "CIFAR-10N", "seed": 0, "predictions": "none"},
    )
    rows = by_us(votes, truth, 10, 0) + by_cleanlab(votes, truth, None) + by_crowd_kit(votes, truth)
    published = {
        "who": "aggregate, as published",
        "accuracy": float((labels["aggre_label"] == truth).mean()),
    }
    return [about | row for row in [*rows, published]]


def cifar10h(folder: Path) -> list[dict[str, Any]]:
    from noiseproof.data import get_dataset

    counts = np.load(folder / "cifar10h.npz")["counts"].astype(np.int64)
    test = get_dataset("cifar10", data_dir=str(folder)).test
    assert test is not None
    truth, rows = np.asarray(test.y), []
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        drawn = np.stack([random.permutation(np.repeat(np.arange(10), row))[:3] for row in counts])
        votes, about = (
            Votes.of_table(drawn),
            {"data": "CIFAR-10H, 3 votes", "seed": seed, "predictions": "none"},
        )
        rows += [
            about | row for row in by_us(votes, truth, 10, seed) + by_cleanlab(votes, truth, None)
        ]
    everyone = {
        "data": "CIFAR-10H",
        "seed": 0,
        "predictions": "none",
        "who": "majority of all votes",
    }
    return [*rows, everyone | {"accuracy": float((counts.argmax(1) == truth).mean())}]


def read_options(description: str | None, out: Path) -> argparse.Namespace:
    """The options of a benchmark of annotators."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path("/tmp/noiseproof-data"))
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--dev", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    options = read_options(__doc__, RESULTS)
    warnings.simplefilter("ignore")
    if options.dev:
        choose()
    else:
        results = (
            rte()
            + voted_texts("fortunes")
            + voted_texts("verbs")
            + cifar10n(options.data)
            + cifar10h(options.data)
        )
        for result in results:
            print(*result.values(), sep="\t")
        write_rows(options.out, results)
