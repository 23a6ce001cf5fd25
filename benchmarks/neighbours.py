"""Searches for the 25 nearest neighbours of all rows: FAISS, usearch and pynndescent, and what the
audit uses.

    python benchmarks/neighbours.py [--rows 100000] [--data clusters gaussian] [--searches ivf hnsw
    ...] [--threads 1]

Each search is one process on N × 50 numbers: ``clusters`` are those of benchmarks/audit_scale.py
(30 bells in 20 dimensions, turned into 50, with a little noise), ``gaussian`` is noise without any
structure, the worst case of every index. An index is built on all rows. Its effort (lists, or
candidates) is raised until 95 % of the true neighbours of 512 rows are found; its time for all rows
is estimated from 5 000 of them, unless it finds those of all rows while it is built (pynndescent),
or is the search of the audit itself (``ours``: FAISS's IVF with rows in the order of their lists).
CPU seconds, since other processes may share the machine, and the memory of index and results at the
end. Rows of the results file that are not measured again stay.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from timing import write_rows

K, FEATURES, TARGET = 25, 50, 0.95
RESULTS = Path(__file__).parent / "results" / "neighbours.json"
PACKAGES = {"usearch": "usearch", "pynndescent": "pynndescent"}  # of all others: faiss-cpu
Search = Callable[[np.ndarray], np.ndarray]  # (n, F) → row numbers (n, K + 1), with the row itself


def make_data(kind: str, rows: int) -> np.ndarray:
    random = np.random.default_rng(0)
    if kind == "gaussian":
        return random.standard_normal((rows, FEATURES), dtype=np.float32)
    centres = random.normal(0, 1.2, (30, 20))
    turn = np.linalg.qr(random.normal(size=(FEATURES, 20)))[0].T
    hidden = centres[random.integers(0, 30, rows)] + random.normal(size=(rows, 20))
    x = (hidden @ turn + 0.3 * random.normal(size=(rows, FEATURES))).astype(np.float32)
    return (x - x.mean(0)) / x.std(0)


def faiss_index(
    x: np.ndarray, factory: str, efforts: list[int], threads: int
) -> Iterator[tuple[int, Search]]:
    """Searches of an index by its factory name, with rising effort."""
    import faiss

    faiss.omp_set_num_threads(threads)
    index = faiss.index_factory(FEATURES, factory)
    index.train(x)
    index.add(x)
    for effort in efforts:
        if "IVF" in factory:
            faiss.extract_index_ivf(index).nprobe = effort
        else:
            index.hnsw.efSearch = effort
        if "RFlat" in factory:
            index.k_factor = 8
        yield effort, lambda rows: index.search(rows, K + 1)[1]


def usearch_index(x: np.ndarray, dtype: str, threads: int) -> Iterator[tuple[int, Search]]:
    from usearch.index import Index

    index = Index(ndim=FEATURES, metric="l2sq", dtype=dtype)
    index.add(np.arange(len(x)), x, threads=threads)
    for effort in (32, 64, 128, 256, 512):
        index.expansion_search = effort
        yield (
            effort,
            lambda rows: np.asarray(index.search(rows, K + 1, threads=threads).keys).astype(
                np.int64
            ),
        )


def searches(name: str, x: np.ndarray, threads: int) -> Iterator[tuple[int, Search]]:
    lists = round(len(x) ** 0.7 / 8)
    probes = [4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    factories = {
        "ivf": f"IVF{lists},Flat",
        "ivf-fp16": f"IVF{lists},SQfp16",
        "ivf-sq8": f"IVF{lists},SQ8",
        "ivf-pq-refined": f"IVF{lists},PQ{FEATURES}x4fs,RFlat",
    }
    if name in factories:
        return faiss_index(x, factories[name], [n for n in probes if n <= lists], threads)
    if name == "hnsw":
        return faiss_index(x, "HNSW16", [16, 32, 64, 128, 256, 512], threads)
    return usearch_index(x, "f16" if name == "usearch-f16" else "f32", threads)


def found(sample: np.ndarray, true: np.ndarray, index: np.ndarray) -> float:
    """The share of the true neighbours, without the row itself."""
    shares = [
        len(np.intersect1d(a[a != row][:K], b[b != row][:K])) / K
        for row, a, b in zip(sample, true, index, strict=True)
    ]
    return float(np.mean(shares))


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def measure(name: str, kind: str, rows: int, threads: int) -> dict[str, object]:
    import faiss
    import torch

    torch.set_num_threads(threads)
    x = make_data(kind, rows)
    sample = np.random.default_rng(1).choice(rows, 512, replace=False)
    true = faiss.knn(x[sample], x, K + 1)[1]
    row: dict[str, Any] = {"search": name, "data": kind, "rows": rows, "features": FEATURES, "k": K}
    before = resident_mb()
    began, wall = time.process_time(), time.perf_counter()
    if name in ("ours", "exact", "pynndescent"):
        if name == "pynndescent":
            import pynndescent

            graph = pynndescent.NNDescent(
                x, n_neighbors=K + 1, random_state=0, n_jobs=threads
            ).neighbor_graph
            index = graph[0]
        else:
            from noiseproof.judge.evidence.neighbours import nearest

            index = nearest(x, K, exact=name == "exact").index
        row |= {
            "cpu_s": round(time.process_time() - began, 1),
            "wall_s": round(time.perf_counter() - wall, 1),
        }
        row["recall"] = round(found(sample, true, index[sample]), 3)
    else:
        for effort, search in searches(name, x, threads):
            row["effort"] = effort
            row.setdefault("build_cpu_s", round(time.process_time() - began, 1))
            if (recall := found(sample, true, search(x[sample]))) >= TARGET:
                break
        start = time.process_time()
        search(x[:5000])
        queries = (time.process_time() - start) * rows / 5000
        row |= {"cpu_s": round(row["build_cpu_s"] + queries, 1), "recall": round(recall, 3)}
    row["memory_mb"] = round(resident_mb() - before)
    row["version"] = importlib.metadata.version(PACKAGES.get(name.split("-")[0], "faiss-cpu"))
    return row | {"threads": threads}


SEARCHES = [
    "ours",
    "ivf",
    "ivf-fp16",
    "ivf-sq8",
    "ivf-pq-refined",
    "hnsw",
    "usearch",
    "usearch-f16",
    "pynndescent",
]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000])
    parser.add_argument(
        "--data", nargs="+", default=["clusters", "gaussian"], choices=["clusters", "gaussian"]
    )
    parser.add_argument("--searches", nargs="+", default=SEARCHES, choices=[*SEARCHES, "exact"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--one",
        action="store_true",
        help="measure here, and print the row (one process per search)",
    )
    options = parser.parse_args()
    if options.one:
        print(
            json.dumps(
                measure(options.searches[0], options.data[0], options.rows[0], options.threads)
            )
        )
        return
    for rows in options.rows:
        for kind in options.data:
            for name in options.searches:
                command = [
                    sys.executable,
                    __file__,
                    "--one",
                    "--rows",
                    str(rows),
                    "--data",
                    kind,
                    "--searches",
                    name,
                ]
                output = subprocess.run(
                    [*command, "--threads", str(options.threads)], stdout=subprocess.PIPE
                )
                if output.returncode:
                    print(
                        f"{name} on {rows} {kind} rows ended with status {output.returncode}",
                        flush=True,
                    )
                    continue
                row = json.loads(output.stdout.splitlines()[-1])
                print(row, flush=True)
                known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
                same = ("search", "data", "rows")
                known = [old for old in known if any(old[key] != row[key] for key in same)] + [row]
                write_rows(
                    RESULTS, sorted(known, key=lambda old: (old["rows"], old["data"], old["cpu_s"]))
                )


if __name__ == "__main__":
    main()
