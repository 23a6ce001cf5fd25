"""Methods compared on any dataset: the same rows and seeds for all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noiseproof.bench.engines import run_all
from noiseproof.bench.experiment import Experiment
from noiseproof.bench.ranking import Group, summarise_sweep
from noiseproof.core.checks import check_count
from noiseproof.core.grammar import format_call
from noiseproof.data import Dataset, get_dataset
from noiseproof.data.base import derive_generator, find_copies, shuffled
from noiseproof.data.frames import Table, read_table
from noiseproof.data.sources import PathLike
from noiseproof.data.tables import Columns
from noiseproof.train import Interrupted, Settings
from noiseproof.train.estimate import estimate
from noiseproof.train.settings import make_fabric

if TYPE_CHECKING:
    import pandas as pd

# One of each kind, none of which needs to know the noise: plain, smoothed labels, a bounded loss, a
# sum of two, noise on labels with averaged weights, a memory of early predictions, a likelihood
# with its own head.
DEFAULT_METHODS = ("ce", "ls", "gce", "nce+agce", "sln-mo", "elr", "ln")


def compare_methods(
    dataset: str,
    methods: Sequence[str] = DEFAULT_METHODS,
    *,
    results_dir: PathLike,
    noise: str = "none",
    seeds: int = 5,
    settings: Settings | None = None,
    data_dir: str | Path | None = None,
    **engine: Any,
) -> Group:
    """Train every method with every seed, and rank them by the accuracy on the test rows after the
    last epoch.

    A seed draws weights, batches, noise and the tenth of the rows that is held out alike for all
    methods, so that differences are paired. Runs with a result in ``results_dir`` are not repeated;
    ``engine`` are further options of ``run_all``.

    Raises:
        BadExperiment: before anything trains, if a method or the noise is unknown.
        ValueError: also before, if the test part has training rows (``find_copies``).
    """
    check_count("seeds", seeds, 1)
    if not methods:
        raise ValueError("Expected methods to compare, got none.")
    data = get_dataset(dataset, data_dir)
    copies = _check_test(data, dataset)
    assert data.test is not None
    first = Experiment(dataset, noise, settings=settings or Settings(), validation=0.1)
    runs = [
        replace(first, method=method, seed=seed).pinned()
        for seed in range(seeds)
        for method in methods
    ]
    results = run_all(runs, Path(results_dir), data_dir=data_dir, **engine)
    (group,) = summarise_sweep(runs, results, len(data.test))
    entries = []
    for entry in group.entries:
        memory = _memory(entry.run, data, data_dir)
        entries.append(replace(entry, place=replace(entry.place, memory=memory)))
    notes = [f"{copies}."] if copies else []
    return replace(group, entries=entries, notes=notes + group.notes)


def _check_test(data: Dataset, name: str) -> str:
    """Return a sentence about the few copies of test rows in the training part; refuse many."""
    if data.test is None:
        raise ValueError(
            f"Expected a dataset with a test part, got {name!r}. Add one, or split a table with"
            " `split_table`."
        )
    copies, beyond_chance = find_copies(data)
    if beyond_chance:
        raise ValueError(
            f"Expected `test` rows that no method is trained on: {copies}. Remove them from one of"
            " the two, or leave `test` out, and a fifth of the rows is held out."
        )
    return copies


def _memory(run: Experiment, data: Dataset, data_dir: PathLike | None) -> int | None:
    """Return the bytes of a run's tensors from a few steps: the peak of a process is of all its
    runs.
    """
    try:
        fabric = make_fabric(run.precision, accelerator="auto", devices=1)
        task = run.make_task(data_dir, data=data)
        return estimate(task, run.method, run.settings, fabric=fabric).total_memory
    except Interrupted:
        raise
    except Exception:  # the runs took hours: a failed estimate must not cost their ranking
        return None


def split_table(
    table: Table,
    label: str,
    folder: PathLike,
    *,
    test: Table | None = None,
    **options: Any,
) -> tuple[str, list[str]]:
    """Make a dataset with a test part from a table; return its spec and notes.

    Without ``test``, a fifth of the rows of each class is held out. Both parts are written to
    ``folder``, named by their content: experiments on other rows are other experiments. A column
    that is left out of the whole table is in neither. ``options`` belong to the dataset
    ``table``, or with ``text`` of the dataset ``text``.
    """
    kind = "text" if "text" in options else "table"
    text = options.get("text")
    # errors name rows of the original table
    whole = get_dataset(kind, table=table, label=label, **options)
    train = read_table(table, label, text).reset_index(drop=True)
    notes: list[str] = []
    if test is None:
        count = len(train)
        train, held = _hold_out(train, label)
        if isinstance(whole.encoder, Columns):  # fewer rows may make a left-out column look useful
            used = [label, *whole.encoder.numeric, *whole.encoder.categories]
            left_out = tuple(f"Column {name!r} " for name in train if name not in used)
            notes += [note for note in whole.notes if note.startswith(left_out)]
            train = train[[name for name in train if name in used]]
            held = held[train.columns]
        held_out = [
            f"{len(held)} of {count} rows were held out to test on. Their labels may be wrong, too:"
            " accuracy is the share of given labels that are predicted. A test table with checked"
            " labels shows more."
        ]
    else:
        held = read_table(test, label, text)
        held_out = []
    ending = "parquet" if str(table).endswith((".parquet", ".pq")) else "csv"
    parts = {"table": _bytes(train, ending), "test": _bytes(held, ending)}
    digest = hashlib.sha256(b"\0".join(parts.values())).hexdigest()[:16]
    place = Path(folder).resolve() / "data" / digest
    paths = {name: place / f"{name}.{ending}" for name in parts}
    place.mkdir(parents=True, exist_ok=True)
    for name, path in paths.items():  # which another process may be writing too
        own = path.with_name(f"{path.name}.{os.getpid()}.part")
        own.write_bytes(parts[name])
        own.replace(path)
    files = {name: str(path) for name, path in paths.items()}
    spec = format_call(kind, {**files, "label": label, **options})
    if isinstance(whole.encoder, Columns):
        whole = get_dataset(spec)  # with the medians of the training part
    return spec, [*notes, *whole.notes, *held_out]


def _hold_out(table: pd.DataFrame, label: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the other rows, and a fifth of the rows of each class, of which some stay."""
    mixed = table.iloc[shuffled(len(table), derive_generator(0)).numpy()]
    classes = mixed.groupby(mixed[label].astype(str))[label]
    size = classes.transform("size")
    chosen = classes.cumcount() < (size * 0.2).round().clip(upper=size - 1)
    if not chosen.any():
        raise ValueError(f"Expected enough rows to hold out 20% of each class, got {len(mixed)}.")
    return mixed[~chosen].sort_index(), mixed[chosen].sort_index()


def _bytes(frame: pd.DataFrame, ending: str) -> bytes:
    return (
        frame.to_parquet(index=False) if ending == "parquet" else frame.to_csv(index=False).encode()
    )
