"""How long runs will take that have not begun."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import fmean

from noiseproof.bench.engines import torch_threads
from noiseproof.bench.experiment import Experiment
from noiseproof.bench.results import Json, gpu, once
from noiseproof.data import Dataset, get_dataset
from noiseproof.data.sources import PathLike
from noiseproof.train import Diverged
from noiseproof.train.estimate import estimate
from noiseproof.train.settings import make_fabric


def forecast(
    experiments: Iterable[Experiment],
    results: Mapping[str, Json],
    *,
    data_dir: PathLike | None = None,
    accelerator: str = "auto",
    threads: int = 1,
) -> dict[Experiment, float | None]:
    """Seconds that each run, as it was first written, will take by itself on this machine.

    Runs that differ in seeds and noise alone are taken to last alike: as long as those of ``results`` that this machine
    has made with as many threads, else by the measure of a few real steps. None where these steps diverge.

    >>> from noiseproof.train import Settings
    >>> runs = [Experiment("digits", seed=seed, settings=Settings(epochs=2, model="mlp:hidden=[8]")) for seed in (0, 1)]
    >>> first, second = forecast(runs, {}).values()
    >>> 0 < first == second
    True
    """
    measured: dict[Experiment, list[float]] = {}
    here = {"host": socket.gethostname(), "threads": threads, "gpu": gpu(accelerator)}
    for key, result in results.items():
        run = Experiment.from_dict(result["experiment"])
        if result["status"] == "done" and here.items() <= result["provenance"].items() and run.key == key:
            measured.setdefault(_alike(run), []).append(result["seconds"])  # of files as they are now
    found: dict[Experiment, float | None] = {alike: fmean(seconds) for alike, seconds in measured.items()}
    expected: dict[Experiment, float | None] = {}
    data: tuple[str, Dataset] | None = None
    for experiment in sorted(once(experiments), key=lambda experiment: experiment.dataset):  # each loaded once
        alike = _alike(experiment)
        if alike not in found:
            if data is None or data[0] != experiment.dataset:
                data = experiment.dataset, get_dataset(experiment.dataset, data_dir)
            with torch_threads(threads):
                found[alike] = _estimated(experiment, data[1], data_dir, accelerator)
        expected[experiment] = found[alike]
    return expected


def _alike(experiment: Experiment) -> Experiment:
    return replace(experiment.plain, seed=0, noise_seed=0, noise="none", foreign=None)


def _estimated(experiment: Experiment, data: Dataset, data_dir: PathLike | None, accelerator: str) -> float | None:
    task = experiment.make_task(data_dir, data=data)
    try:
        fabric = make_fabric(experiment.precision, accelerator=accelerator, devices=1)
        return estimate(task, experiment.method, experiment.settings, fabric=fabric).seconds
    except Diverged:
        return None
