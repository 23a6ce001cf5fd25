"""What an audit of many rows costs: the command line from a CSV file to the list, its time and its
peak memory.

    python benchmarks/audit_scale.py [--rows 10000 100000 1000000] [--features 50] [--threads 2]
        [--thorough] [--parquet] [--engine ray]

Each size is one process, `noiseproof audit data.csv --label y --fast`, on features of 10 classes of
which 10 % of the labels are wrong at random; a class is three bells in 20 dimensions, turned into
50. Time is wall-clock from start to end, CPU seconds are of all its threads, memory is the largest
resident set of the process, without those of Ray's workers. ``growth`` is the time over that of a
tenth of the rows. The bars are those of a million rows on two idle cores: 120 seconds, 8 GiB,
growth 12, 90 % of the neighbours found. Rows of other sizes in the results file stay, so that the
sizes can be run one at a time.
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
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
from sklearn.metrics import average_precision_score, roc_auc_score
from timing import provenance, write_rows

CLASSES, RATE = 10, 0.1
RESULTS = Path(__file__).parent / "results" / "audit_scale.json"
BARS = {"seconds": 120, "gib": 8, "growth": 12, "missed_neighbours": 0.1}
BLOCK = 1_000_000  # rows that are made at once
# of rows that replace each other in the results
SAME = ("rows", "features", "mode", "file", "engine")


def write_data(path: Path, rows: int, features: int) -> np.ndarray:
    """Write the CSV or Parquet file and return which labels are wrong."""
    random = np.random.default_rng(0)
    centres = random.normal(0, 1.2, (CLASSES, 3, 20))
    turn = np.linalg.qr(random.normal(size=(features, 20)))[0].T
    names = np.array([f"class {k}" for k in range(CLASSES)])
    schema = pyarrow.schema(
        [(f"x{i}", pyarrow.float32()) for i in range(features)] + [("y", pyarrow.string())]
    )
    make_writer = pyarrow.csv.CSVWriter if path.suffix == ".csv" else pyarrow.parquet.ParquetWriter
    parts = []
    with make_writer(str(path), schema) as writer:
        for size in [BLOCK] * (rows // BLOCK) + [rows % BLOCK] * (rows % BLOCK > 0):
            y = random.integers(0, CLASSES, size)
            hidden = centres[y, random.integers(0, 3, size)] + random.normal(size=(size, 20))
            x = np.round(hidden @ turn + 0.3 * random.normal(size=(size, features)), 4).astype(
                np.float32
            )
            parts.append(random.random(size) < RATE)
            given = np.where(parts[-1], (y + random.integers(1, CLASSES, size)) % CLASSES, y)
            writer.write_table(pyarrow.table([*x.T, names[given]], schema=schema))
    return np.concatenate(parts)


def measure(
    rows: int, features: int, threads: int, mode: str, file: str, engine: str
) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        wrong = write_data(Path(folder, f"data.{file}"), rows, features)
        size = Path(folder, f"data.{file}").stat().st_size
        command = [
            "-m",
            "noiseproof",
            "audit",
            f"data.{file}",
            "--label",
            "y",
            f"--{mode}",
            "--json",
        ]
        command += ["--engine", engine, "--threads"]
        began = time.perf_counter()
        source = str(Path(__file__).parents[1] / "src")
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": source}
        child = subprocess.Popen(
            [sys.executable, *command, str(threads)],
            cwd=folder,
            stdout=subprocess.PIPE,
            env=environment,
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
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=["row", "label_quality", "is_label_issue"]
            ),
        )
    wrong = wrong[table["row"].to_numpy()]
    called = np.asarray(table["is_label_issue"].to_pylist())
    quality = table["label_quality"].to_numpy()
    return {
        "rows": rows,
        "features": features,
        "mode": mode,
        "file": file,
        "engine": engine,
        "threads": threads,
        "file_mb": round(size / 1e6),
        "seconds": round(seconds, 1),
        "gib": round(usage.ru_maxrss / 2**20, 2),
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
        **{f"{name}_s": round(taken, 1) for name, taken in summary["seconds"].items()},
        "neighbour_recall": summary["neighbour_recall"],
        "average_precision": round(float(average_precision_score(wrong, -quality)), 4),
        "auroc": round(float(roc_auc_score(wrong, -quality)), 4),
        "f1": round(float(2 * (called & wrong).sum() / (called.sum() + wrong.sum())), 4),
        "noise_rate": round(summary["noise_rate"]["estimate"], 4),
        "true_rate": round(float(wrong.mean()), 4),
        "load_after": round(float(str(provenance()["load"])), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--thorough", action="store_true")
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--engine", default="local", choices=["local", "ray"])
    options = parser.parse_args()
    mode, file = "thorough" if options.thorough else "fast", "parquet" if options.parquet else "csv"
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for rows in sorted(options.rows):
        row: dict[str, Any] = measure(
            rows, options.features, options.threads, mode, file, options.engine
        )
        known = [old for old in known if any(old[key] != row[key] for key in SAME)] + [row]
        known.sort(key=lambda old: [old[key] for key in reversed(SAME)])
        tenth = [
            old
            for old in known
            if all(old[key] == {**row, "rows": rows // 10}[key] for key in SAME)
        ]
        if tenth:
            row["growth"] = round(row["seconds"] / tenth[0]["seconds"], 2)
        if rows == 1_000_000:
            reached = row | {"missed_neighbours": 1 - row["neighbour_recall"]}
            over = [name for name, bar in BARS.items() if reached.get(name, 0) > bar]
            row["verdict"] = f"over: {', '.join(over)}" if over else "ok"
        print(row, flush=True)
        write_rows(RESULTS, known)


if __name__ == "__main__":
    main()
