"""Which method is best on data of one's own: every method, the same rows and seeds, the last epoch, ranked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from noiseproof.bench.engines import run_all
from noiseproof.bench.experiment import Experiment
from noiseproof.bench.ranking import Place, Ranking, rank, recommend, wilson
from noiseproof.core.checks import check_count, check_number
from noiseproof.core.files import replacing
from noiseproof.core.grammar import format_call
from noiseproof.data import Dataset, get_dataset
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.data.sources import PathLike
from noiseproof.data.tables import Columns, Table, read_table
from noiseproof.train import Interrupted, Settings
from noiseproof.train.estimate import estimate
from noiseproof.train.settings import make_fabric

if TYPE_CHECKING:
    import pandas as pd

# One of each idea, none of which has to know the noise: plain, smoothed labels, a bounded loss, a sum of two, noise on
# labels with averaged weights, a memory of early predictions, a likelihood with a head of its own.
METHODS = ("ce", "ls", "gce", "nce+agce", "sln-mo", "elr", "ln")


def compare(
    dataset: str,
    methods: Sequence[str] = METHODS,
    *,
    results_dir: PathLike,
    noise: str = "none",
    seeds: int = 5,
    settings: Settings | None = None,
    validation: float = 0.1,
    data_dir: str | Path | None = None,
    accelerator: str = "auto",
    **engine: Any,
) -> Ranking:
    """Train every method with every seed, and rank their accuracies on the test rows after the last epoch.

    A seed draws weights, batches, noise and the ``validation`` rows alike for all methods, so that they can be compared
    in pairs. What has a result in ``results_dir`` is not run again; ``engine`` are more options of ``run_all``.

    Raises:
        BadExperiment: before anything trains, of a method or noise that is none.
    """
    settings = settings or Settings()
    check_count("seeds", seeds, 1)
    if not methods:
        raise ValueError("Expected methods to compare, got none.")
    data = get_dataset(dataset, data_dir)
    if data.test is None:
        raise ValueError(
            f"Expected a dataset with a test part, got {dataset!r}. Give it one, "
            "or of a table hold rows out with own_table."
        )
    every: dict[str, list[Experiment]] = {}
    for method in methods:  # each once, however it is written
        runs = [Experiment(dataset, noise, method, seed, settings, validation).pinned() for seed in range(seeds)]
        if runs[0].key not in {others[0].key for others in every.values()}:
            every[method] = runs
    results = run_all(
        [runs[seed] for seed in range(seeds) for runs in every.values()],  # all methods of one seed: one task
        Path(results_dir), data_dir=data_dir, accelerator=accelerator, **engine,
    )  # fmt: skip
    found = {method: [results[run.key] for run in runs] for method, runs in every.items()}
    accuracies = {
        method: [math.nan if one["last"] is None else one["last"]["test_accuracy"] for one in ones]
        for method, ones in found.items()
    }
    places = []
    for place in rank(accuracies, len(data.test)):
        seconds = [one["seconds"] for one in found[place.method] if one["seconds"] is not None]
        memory = _memory(every[place.method][0], data, data_dir, accelerator)
        places.append(replace(place, seconds=fmean(seconds) if seconds else None, memory=memory))
    errors = {method: next((one["error"] for one in ones if one["error"]), "") for method, ones in found.items()}
    return Ranking(places, _notes(places, len(data.test), errors), recommend(places))


def _memory(run: Experiment, data: Dataset, data_dir: PathLike | None, accelerator: str) -> int | None:
    """Bytes of a run's tensors, by a few steps: what a process had at its peak is that of all the runs it made."""
    try:
        fabric = make_fabric(run.precision, accelerator=accelerator, devices=1)
        return estimate(run.make_task(data_dir, data=data), run.method, run.settings, fabric=fabric).total_memory
    except Interrupted:
        raise
    except Exception:  # the runs took hours: no trouble of a method or of this machine may cost their ranking
        return None


def _notes(places: Sequence[Place], rows: int, errors: Mapping[str, str]) -> list[str]:
    """What the interval leaves out: that other test rows would have given other accuracies; and why runs failed."""
    said = []
    if (best := places[0].mean) is not None:
        low, high = wilson(best, rows)
        said.append(
            f"± and p are of chance in training: {places[0].seeds} seeds, the same {rows} test rows. Over all rows of "
            f"their kind the {best:.3f} of {places[0].method} may be {low:.3f} to {high:.3f} (Wilson's 95 % interval)."
        )
    return said + [
        f"{place.failed} runs of {place.method} failed: {errors[place.method]}" for place in places if place.failed
    ]


def own_table(
    table: Table, label: str, folder: PathLike, *, test: Table | None = None, share: float = 0.2, seed: int = 0,
    **options: Any,
) -> tuple[str, list[str]]:  # fmt: skip
    """The spec of a dataset with a test part made of a table, and what there is to know about it.

    Without ``test`` a ``share`` of each class's rows is held out. Both parts are written to ``folder``, under a name
    that follows from what they hold: experiments on other rows are other experiments. A column that is left out of the
    whole table is in neither. ``options`` are those of the dataset ``table``, or with ``text`` of that.
    """
    import pandas as pd

    kind, text = ("text" if "text" in options else "table"), options.get("text")
    whole = get_dataset(kind, table=table, label=label, **options)  # refuses by its owner's row numbers
    columns = whole.encoder if isinstance(whole.encoder, Columns) else None
    left_out: list[str] = []
    held_out: list[str] = []
    train = read_table(table, label, text).reset_index(drop=True)
    if test is None:
        check_number("share", share, "(0, 1)", 0, 1)
        mixed = train.iloc[shuffled(len(train), derive_generator(seed)).numpy()]
        classes = mixed.groupby(mixed[label].astype(str))[label]
        size = classes.transform("size")
        chosen = classes.cumcount() < (size * share).round().clip(upper=size - 1)  # no class is left without a row
        for name in columns.categories if columns else ():  # numerals alone would be read as numbers
            words = pd.to_numeric(mixed[name].astype(str), errors="coerce").isna() & mixed[name].notna()
            if words.any() and not words[~chosen].any():
                chosen &= mixed.index != words.idxmax()
        train, held = mixed[~chosen].sort_index(), mixed[chosen].sort_index()
        if held.empty:
            raise ValueError(f"Expected rows enough to hold {share:.0%} of each class out, got {len(mixed)}.")
        if columns is not None:  # in a part the row numbers have gaps, and the words may be few enough
            kept = {label, *columns.numeric, *columns.categories}
            out = [c for c in mixed if c not in kept]
            train, held = train.drop(columns=out), held.drop(columns=out)
            left_out = [note for note in whole.notes if note.startswith(tuple(f"Column {c!r} " for c in out))]
        held_out.append(
            f"{len(held)} of {len(mixed)} rows were held out to test on. Their labels may be wrong, too: accuracy is "
            "how often labels as given are met. Rows whose labels were checked, as a test table, would say more."
        )
    else:
        held = read_table(test, label, text)
    ending = "parquet" if str(table).endswith((".parquet", ".pq")) else "csv"
    parts = {"table": _bytes(train, ending), "test": _bytes(held, ending)}
    place = Path(folder).resolve() / "data" / hashlib.sha256(b"\0".join(parts.values())).hexdigest()[:16]
    paths = {name: str(_write(place / f"{name}.{ending}", content)) for name, content in parts.items()}
    spec = format_call(kind, {**paths, "label": label, **options})
    read = whole if columns is None else get_dataset(spec)  # with the medians that the runs have
    return spec, [*left_out, *read.notes, *held_out]


def _bytes(frame: pd.DataFrame, ending: str) -> bytes:
    return frame.to_parquet(index=False) if ending == "parquet" else frame.to_csv(index=False).encode()


def _write(path: Path, content: bytes) -> Path:
    """Write a file named by its content, which another process may be writing too."""
    with suppress(FileExistsError), replacing(path, overwrite=False) as part:
        part.write_bytes(content)
    return path
