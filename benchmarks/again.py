"""Whether an audit again, with decisions that the default mixture proposes, ranks the other labels
better.

    NOISEPROOF_TABLES=… python benchmarks/again.py [--dev] [--sets a,b] [--mixture
    find=0.5,learn=0.3,measure=0.2]

The sets are small ones of ``tablesets.py`` (at most 2 000 rows): with ``--dev`` those that
constants are chosen on (seed 0), otherwise those reported (seed 1). Their labels are taken as
right, and mistakes are planted as in ``audit.py``. A simulated reviewer, who is always right,
answers 100 questions, and then another 100 that are proposed from the new ranking (``again``), or
from the first one (``once``). A row has, after 0, 100 and 200 decisions,

* ``ap``: average precision of the new ranking among the undecided rows;
* ``ap_first``: that of the first audit's ranking among the same rows;
* ``found``: wrong labels among the decided ones, with and without the audits between
  (``found_once``);
* ``wrong``: all wrong labels, and ``cpu_seconds`` of the audit.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from audit import columns_of, given_labels, load
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from threadpoolctl import threadpool_limits
from timing import write_rows

from noiseproof.audit import AuditData, audit, audit_again, read_audit, read_rows
from noiseproof.audit.decisions import FILE, Decision, DecisionLog, read_answers
from noiseproof.audit.sample import open_design
from noiseproof.judge.measure.design import MIXTURE, parse_mixture, propose

OUT = Path(__file__).parent / "results" / "again.json"
DEV, REPORT = ("vehicle", "ionosphere", "pima"), ("digits", "phoneme")
NOISES = ("chen:rate=0.1", "xia:rate=0.15", "asymmetric-next:rate=0.15")
STEPS, DECISIONS = 2, 100
MAX_ROWS = 2000


def planted(name: str, noise: str, seed: int) -> tuple[AuditData, NDArray[Any]]:
    """The rows of a set with planted mistakes, and their true labels as words."""
    data = load(name)
    names, true = given_labels(data, noise, seed), data.frame[data.label].to_numpy(str)
    rows = np.sort(np.random.default_rng(seed).permutation(len(true))[:MAX_ROWS])
    frame = columns_of(data).assign(**{data.label: names}).iloc[rows].reset_index(drop=True)
    return read_rows(frame, label=data.label, text=data.text), true[rows]


def decide(folder: Path, true: NDArray[Any], mixture: str, count: int) -> None:
    """Answer what is proposed, as somebody does who knows the truth."""
    saved, path = read_audit(folder), folder / FILE
    answers = read_answers(path) if path.exists() else []
    issues = saved.issues.set_index("row")
    log = DecisionLog(path)
    for proposal in propose(saved, open_design(saved), answers, parse_mixture(mixture), count):
        row, issue = proposal.row, issues.loc[proposal.row]
        label = str(true[row])
        choice = {issue["given_label"]: "keep", issue["suggested_label"]: "accept"}.get(
            label, "other"
        )
        asked = "measure" if proposal.purpose == "measure" else ""
        if label not in saved.classes:
            choice, label = "skip", ""
        log.add(
            Decision(
                row,
                issue["id"],
                issue["given_label"],
                choice,
                label,
                "",
                asked,
                proposal.probability,
            )
        )
    log.close()


def judged(folder: Path, true: NDArray[Any]) -> tuple[Any, set[int]]:
    """The qualities by row, and the decided rows."""
    path = folder / FILE
    decided = {answer.row for answer in read_answers(path)} if path.exists() else set()
    return read_audit(folder).issues.set_index("row")["model_quality"], decided


def average_precision(is_wrong: NDArray[np.bool_], quality: Any) -> float | None:
    """None where no wrong label is left."""
    return round(float(average_precision_score(is_wrong, -quality)), 4) if is_wrong.any() else None


def run(name: str, noise: str, seed: int, mixture: str) -> list[dict[str, Any]]:
    data, true = planted(name, noise, seed)
    wrong = {
        row: true[row] != data.classes[k]
        for row, k in zip(data.row.tolist(), data.given.tolist(), strict=True)
    }
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        once, again = Path(temporary, "once"), Path(temporary, "again")
        began = time.process_time()
        report = audit(data, seed=seed, device="cpu")
        for folder in (once, again):
            report.save(folder)
        seconds = time.process_time() - began
        first, _ = judged(once, true)
        for step in range(STEPS + 1):
            if step:
                for folder in (once, again):
                    decide(folder, true, mixture, DECISIONS)
                began = time.process_time()
                audit_again(again, data, device="cpu")
                seconds = time.process_time() - began
            now, decided = judged(again, true)
            left = [row for row in now.index if row not in decided]
            is_wrong = np.array([wrong[row] for row in left])
            rows.append(
                {
                    "set": name,
                    "noise": noise,
                    "seed": seed,
                    "mixture": mixture,
                    "rows": len(now),
                    "wrong": sum(wrong[row] for row in now.index),
                    "decisions": len(decided),
                    "ap": average_precision(is_wrong, now[left]),
                    "ap_first": average_precision(is_wrong, first[left]),
                    "found": sum(wrong[row] for row in decided),
                    "found_once": sum(wrong[row] for row in judged(once, true)[1]),
                    "cpu_seconds": round(seconds, 1),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dev", action="store_true", help="the sets that constants are chosen on")
    parser.add_argument("--sets", type=lambda words: words.split(","))
    parser.add_argument("--mixture", default=MIXTURE)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    for name in options.sets or (DEV if options.dev else REPORT):
        for noise in NOISES:
            key = {
                "set": name,
                "noise": noise,
                "seed": 0 if options.dev else 1,
                "mixture": options.mixture,
            }
            with threadpool_limits(1):
                made = run(*key.values())
            command = " ".join(["python", "benchmarks/again.py", *sys.argv[1:]])
            rows = [row for row in rows if any(row[part] != value for part, value in key.items())]
            rows += [row | {"command": command} for row in made]
            write_rows(options.out, rows)


if __name__ == "__main__":
    main()
