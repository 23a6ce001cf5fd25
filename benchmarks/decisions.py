"""What decisions of a person add to an audit: evidence of real audits, on which reviewers are simulated.

NOISEPROOF_DATA=… python benchmarks/decisions.py --evidence FOLDER [--dev] [--jobs 16]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import tablesets
from audit import columns_of, given_labels, load, model_of, one_thread
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from threadpoolctl import threadpool_limits

from noiseproof.audit import audit, read_rows

PLANTED = ("symmetric:rate=0.2", "asymmetric-next:rate=0.2", "xia:rate=0.2", "chen:rate=0.1")
DEV = ("cifar10n_dev", "letter", "vehicle", "dna", "spam", "weather", "diamonds", "fortunes", "verbs")
REPORT = ("cifar10n", "cifar100n", "mnist", "digits", "phoneme", "packages", "rte")
DEV_SEED, SEED = 0, 1


def make_evidence(name: str, noise: str, seed: int, folder: Path) -> Path:
    """Audit one set, and keep what a simulated reviewer needs."""
    from cleanlab.filter import find_label_issues as cleanlab_issues
    from cleanlab.rank import get_label_quality_scores

    path = folder / f"{name}-{noise.replace(':', '-')}-{seed}.npz"
    if path.exists():
        return path
    data = load(name)
    with threadpool_limits(1):
        names = given_labels(data, noise, seed)
        if data.images is not None:
            rows = read_rows(data.images, labels=names)
        else:
            rows = read_rows(columns_of(data).assign(**{data.label: names}), label=data.label, text=data.text)
        report = audit(rows, seed=seed, device="cpu")
        audited = np.flatnonzero(report.data.row >= 0)
        at, issues = report.data.row[audited], report.label_issues
        number = {word: k for k, word in enumerate(report.data.classes)}
        truth = np.array([number.get(word, -1) for word in data.frame[data.label].to_numpy(str)[at]])
        given = report.data.given[audited]
        folds = StratifiedKFold(5, shuffle=True, random_state=seed)
        model, x = model_of("lr", data)
        codes = np.unique(names, return_inverse=True)[1]
        probs = cross_val_predict(model, x, codes, cv=folds, method="predict_proba")
        flagged = cleanlab_issues(codes[at], probs[at], n_jobs=1)
        score = get_label_quality_scores(codes[at], probs[at])
    arrays: dict[str, Any] = {
        "given": given, "truth": truth, "quality": issues.quality[audited], "suggested": issues.suggested[audited],
        "is_issue": issues.is_issue[audited], "rate": issues.noise_rate, "interval": issues.noise_interval,
        "cleanlab_score": score, "cleanlab_flagged": flagged, "probs": report.out_of_sample[audited].astype(np.float16),
    }  # fmt: skip
    with open(part := path.with_suffix(".part"), "wb") as file:
        np.savez_compressed(file, **arrays)
    part.replace(path)
    return path


def evidence(options: argparse.Namespace) -> None:
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    options.evidence.mkdir(parents=True, exist_ok=True)
    seed = DEV_SEED if options.dev else SEED
    work = [
        (name, noise, seed, options.evidence)
        for name in options.sets or (DEV if options.dev else REPORT)
        for noise in load(name).human or PLANTED
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, initializer=one_thread) as pool:
        waiting = {pool.submit(make_evidence, *item): item for item in work}
        for number, done in enumerate(as_completed(waiting), 1):
            error = done.exception()
            print(f"[{number}/{len(work)}] {waiting[done][:3]} {'' if error is None else repr(error)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true", help="the sets that constants are chosen on")
    parser.add_argument("--sets", type=lambda words: words.split(","))
    parser.add_argument("--evidence", type=Path, help="folder of the audits")
    parser.add_argument("--jobs", type=int, default=1)
    evidence(parser.parse_args())


if __name__ == "__main__":
    assert tablesets
    main()
