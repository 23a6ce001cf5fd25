"""Estimates of how long runs will take."""

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from statistics import fmean

from noiseproof.bench.experiment import Experiment
from noiseproof.bench.results import Json, gpu, once
from noiseproof.core.cluster import fixed_threads
from noiseproof.data import Dataset, get_dataset
from noiseproof.data.sources import PathLike
from noiseproof.train import Diverged
from noiseproof.train.estimate import estimate
from noiseproof.train.settings import make_fabric


def expected_seconds(
    experiments: Iterable[Experiment],
    results: Mapping[str, Json],
    *,
    data_dir: PathLike | None = None,
    accelerator: str = "auto",
    threads: int = 1,
    progress: Callable[[Experiment, int, int], None] = lambda experiment, number, total: None,
) -> dict[Experiment, float | None]:
    """Seconds that each run will take by itself on this machine; None if its first steps diverge.

    Runs that differ only in seeds and noise take the same time: the mean of those in ``results``
    that were made on this machine with as many threads, otherwise an estimate from a few real
    steps, announced to ``progress`` with the number of its kind and of all kinds.

    >>> from noiseproof.train import Settings
    >>> runs = [
    ...     Experiment("digits", seed=seed, settings=Settings(epochs=2, model="mlp:hidden=[8]"))
    ...     for seed in (0, 1)
    ... ]
    >>> first, second = expected_seconds(runs, {}).values()
    >>> 0 < first == second
    True
    """
    measured: dict[Experiment, list[float]] = {}
    machine = {"host": socket.gethostname(), "threads": threads, "gpu": gpu(accelerator)}
    for key, result in results.items():
        run = Experiment.from_dict(result["experiment"])
        if (
            result["status"] == "done"
            and machine.items() <= result["provenance"].items()
            and run.key == key
        ):
            measured.setdefault(_kind(run), []).append(result["seconds"])  # with the files of now
    by_kind: dict[Experiment, float | None] = {
        kind: fmean(seconds) for kind, seconds in measured.items()
    }
    expected: dict[Experiment, float | None] = {}
    data: tuple[str, Dataset] | None = None
    runs = sorted(once(experiments), key=lambda experiment: experiment.dataset)  # each loaded once
    kinds = [kind for kind in dict.fromkeys(map(_kind, runs)) if kind not in by_kind]
    for experiment in runs:
        kind = _kind(experiment)
        if kind not in by_kind:
            progress(experiment, kinds.index(kind) + 1, len(kinds))
            if data is None or data[0] != experiment.dataset:
                data = experiment.dataset, get_dataset(experiment.dataset, data_dir)
            with fixed_threads(threads):
                by_kind[kind] = _estimated(experiment, data[1], data_dir, accelerator)
        expected[experiment] = by_kind[kind]
    return expected


def _kind(experiment: Experiment) -> Experiment:
    return replace(experiment.plain.bare, seed=0, noise_seed=0, noise="none", foreign=None)


def _estimated(
    experiment: Experiment, data: Dataset, data_dir: PathLike | None, accelerator: str
) -> float | None:
    task = experiment.make_task(data_dir, data=data)
    try:
        fabric = make_fabric(experiment.precision, accelerator=accelerator, devices=1)
        return estimate(task, experiment.method, experiment.settings, fabric=fabric).seconds
    except Diverged:
        return None
