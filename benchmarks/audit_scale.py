"""What an audit of many rows costs: the command line from a CSV file to the list, its time and its peak memory.

    python benchmarks/audit_scale.py [--rows 10000 100000 1000000] [--threads 2] [--thorough]

Each size is one process, `noiseproof audit data.csv --label y --fast`, on 50 features of 10 classes of which 10 % of
the labels are wrong at random; a class is three bells in 20 dimensions, turned into 50. Time is wall-clock from start
to end, memory the largest resident set of the process. ``growth`` is the time over that of a tenth of the rows.
The bars are those of a million rows on two cores: 20 minutes, 8 GiB, growth 12. Rows of other sizes in the results file
stay, so that the sizes can be run one at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
from sklearn.metrics import average_precision_score, roc_auc_score
from timing import provenance, write_rows

FEATURES, CLASSES, RATE = 50, 10, 0.1
RESULTS = Path(__file__).parent / "results" / "audit_scale.json"
BARS = {"seconds": 1200, "gib": 8, "growth": 12}


def write_data(path: Path, rows: int) -> np.ndarray:
    """Write the CSV file and return which labels are wrong."""
    random = np.random.default_rng(0)
    centres = random.normal(0, 1.2, (CLASSES, 3, 20))
    turn = np.linalg.qr(random.normal(size=(FEATURES, 20)))[0].T
    y = random.integers(0, CLASSES, rows)
    hidden = centres[y, random.integers(0, 3, rows)] + random.normal(size=(rows, 20))
    x = np.round(hidden @ turn + 0.3 * random.normal(size=(rows, FEATURES)), 4).astype(np.float32)
    wrong = random.random(rows) < RATE
    given = np.where(wrong, (y + random.integers(1, CLASSES, rows)) % CLASSES, y)
    names = np.array([f"class {k}" for k in range(CLASSES)])
    columns = {f"x{i}": x[:, i] for i in range(FEATURES)} | {"y": pyarrow.array(names[given])}
    pyarrow.csv.write_csv(pyarrow.table(columns), path)
    return wrong


def measure(rows: int, threads: int, mode: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        wrong = write_data(Path(folder, "data.csv"), rows)
        size = Path(folder, "data.csv").stat().st_size
        command = ["-m", "noiseproof", "audit", "data.csv", "--label", "y", f"--{mode}", "--json", "--threads"]
        began = time.perf_counter()
        source = str(Path(__file__).parents[1] / "src")
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": source}
        child = subprocess.Popen(
            [sys.executable, *command, str(threads)], cwd=folder, stdout=subprocess.PIPE, env=environment
        )
        assert child.stdout is not None
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - began
        if status:
            raise SystemExit(f"the audit of {rows} rows ended with status {status}")
        summary = json.loads(output)
        table = pyarrow.csv.read_csv(
            Path(folder, "audit", "issues.csv"),
            convert_options=pyarrow.csv.ConvertOptions(include_columns=["row", "label_quality", "is_label_issue"]),
        )
    wrong = wrong[table["row"].to_numpy()]
    called = np.asarray(table["is_label_issue"].to_pylist())
    quality = table["label_quality"].to_numpy()
    return {
        "rows": rows, "features": FEATURES, "mode": mode, "threads": threads, "csv_mb": round(size / 1e6),
        "seconds": round(seconds, 1), "gib": round(usage.ru_maxrss / 2**20, 2), "cpu_s": round(usage.ru_utime, 1),
        **{f"{name}_s": round(taken, 1) for name, taken in summary["seconds"].items()},
        "neighbour_recall": summary["neighbour_recall"],
        "average_precision": round(float(average_precision_score(wrong, -quality)), 4),
        "auroc": round(float(roc_auc_score(wrong, -quality)), 4),
        "f1": round(float(2 * (called & wrong).sum() / (called.sum() + wrong.sum())), 4),
        "noise_rate": round(summary["noise_rate"]["estimate"], 4), "true_rate": round(float(wrong.mean()), 4),
        "load_after": round(float(str(provenance()["load"])), 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--thorough", action="store_true")
    options = parser.parse_args()
    mode = "thorough" if options.thorough else "fast"
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for rows in sorted(options.rows):
        row = measure(rows, options.threads, mode)
        known = [old for old in known if (old["rows"], old["mode"]) != (rows, mode)] + [row]
        known.sort(key=lambda old: (old["mode"], old["rows"]))
        tenth = [old for old in known if (old["rows"], old["mode"]) == (rows // 10, mode)]
        if tenth:
            row["growth"] = round(float(str(row["seconds"])) / float(str(tenth[0]["seconds"])), 2)
        if rows >= 1_000_000:
            over = [name for name, bar in BARS.items() if float(str(row.get(name, 0))) > bar]
            row["verdict"] = f"over: {', '.join(over)}" if over else "ok"
        print(row, flush=True)
        write_rows(RESULTS, known)


if __name__ == "__main__":
    main()
