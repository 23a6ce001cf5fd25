"""Estimates of how long runs will take."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache, partial

from noiseproof.bench.experiment import Experiment
from noiseproof.bench.results import THREADS, once
from noiseproof.core.cluster import fixed_threads
from noiseproof.data import get_dataset
from noiseproof.data.sources import PathLike
from noiseproof.train import Diverged
from noiseproof.train.estimate import estimate
from noiseproof.train.settings import make_fabric


def expected_seconds(
    experiments: Iterable[Experiment],
    *,
    data_dir: PathLike | None = None,
    accelerator: str = "auto",
    progress: Callable[[Experiment, int, int], None] = lambda experiment, number, total: None,
) -> dict[Experiment, float | None]:
    """Estimate from a few real steps the seconds that each run will take by itself on this machine.

    Runs that differ only in seeds and noise are estimated once, which is announced to ``progress``
    with the number of the kind and of all kinds. None is for a run whose first steps diverge.

    >>> from noiseproof.train import Settings
    >>> runs = [
    ...     Experiment("digits", seed=seed, settings=Settings(epochs=2, model="mlp:hidden=[8]"))
    ...     for seed in (0, 1)
    ... ]
    >>> first, second = expected_seconds(runs).values()
    >>> 0 < first == second
    True
    """
    load = lru_cache(maxsize=1)(partial(get_dataset, data_dir=data_dir))
    kinds: dict[Experiment, list[Experiment]] = {}
    for run in sorted(once(experiments), key=lambda run: run.dataset):  # each is loaded once
        kind = replace(run.plain.bare, seed=0, noise_seed=0, noise="none", foreign=None)
        kinds.setdefault(kind, []).append(run)
    expected: dict[Experiment, float | None] = {}
    for number, (first, *others) in enumerate(kinds.values(), 1):
        progress(first, number, len(kinds))
        task = first.make_task(data_dir, data=load(first.dataset))
        seconds = None
        with fixed_threads(THREADS):
            try:
                fabric = make_fabric(first.precision, accelerator=accelerator, devices=1)
                seconds = estimate(task, first.method, first.settings, fabric=fabric).seconds
            except Diverged:
                pass
        expected |= dict.fromkeys([first, *others], seconds)
    return expected
