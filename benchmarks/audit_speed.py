"""CPU time of `noiseproof audit` on tables of two sizes, beside that of an earlier commit.

    python benchmarks/audit_speed.py [--sizes 344x8 1000x30 200000x20] [--threads 1] [--source
    before/src]

Every row is one run of the whole command in a process of its own: user and system seconds of it
all, and of the imports and the reading alone (the rest is the audit). The tables are scikit-learn's
``make_classification`` with three classes and 8 % of the labels changed, seed 0. ``--source`` runs
another checkout's ``src`` (`git archive 8d04c94 src`). Seconds on the wall depend on what else the
machine does: its load is in the row.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification
from timing import provenance, write_rows

OUT = Path(__file__).parent / "results" / "audit_speed.json"
READ = (
    "import sys; from noiseproof.audit import audit, read_rows; read_rows(sys.argv[1], label='y')"
)


def write_table(rows: int, columns: int, path: Path) -> None:
    informative = min(10, columns // 2)
    x, y = make_classification(
        rows,
        columns,
        n_informative=informative,
        n_redundant=columns // 5,
        n_classes=3,
        class_sep=1.5,
        random_state=0,
    )
    random = np.random.default_rng(0)
    y = np.where(random.random(rows) < 0.08, (y + random.integers(1, 3, rows)) % 3, y)
    frame = pd.DataFrame(x.astype(np.float32), columns=[f"c{i}" for i in range(columns)])
    frame.assign(y=y).to_csv(path, index=False)


def cpu_seconds(command: list[str], source: str) -> float:
    """User and system seconds of a command and its threads."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(Path(source).resolve())}
    subprocess.run([sys.executable, *command], check=True, env=environment, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=["344x8", "1000x30", "200000x20"])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--source", default=str(Path(__file__).parents[1] / "src"))
    args = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(OUT.read_text("utf-8"))["rows"] if OUT.exists() else []
    for size in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder, "table.csv")
            write_table(*map(int, size.split("x")), table)
            options = [] if args.threads is None else ["--threads", str(args.threads)]
            command = [
                "-m",
                "noiseproof",
                "audit",
                str(table),
                "--label",
                "y",
                "--out",
                str(Path(folder, "audit")),
            ]
            total = cpu_seconds([*command, *options], args.source)
            reading = cpu_seconds(["-c", READ, str(table)], args.source)
        row = {
            **provenance(),
            "size": size,
            "source": args.source,
            "threads": args.threads,
            "cpu_seconds": round(total, 2),
            "imports_and_reading": round(reading, 2),
        }
        rows.append(row)
        print(json.dumps(row))
        write_rows(OUT, rows)


if __name__ == "__main__":
    main()
