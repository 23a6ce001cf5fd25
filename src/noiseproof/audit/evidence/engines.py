"""Independent pieces of work, one after the other in this process or as tasks of Ray on several machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, get_args

import torch

from noiseproof.core.cluster import ray_session

Engine = Literal["local", "ray"]
Outcome = TypeVar("Outcome")
_RAY: ContextVar[Any] = ContextVar("ray", default=None)  # the module, inside a block of work on Ray


@contextmanager
def work_on(engine: Engine = "local", address: str | None = None) -> Iterator[None]:
    """A block in which ``map_jobs`` works on ``engine``: on the cluster at ``address``, or all of this machine."""
    if engine not in get_args(Engine):
        raise ValueError(f"Expected an engine of {', '.join(get_args(Engine))}, got {engine!r}.")
    if engine == "local":
        if address is not None:
            raise ValueError("Expected the engine ray beside `address`, got local, which ignores it.")
        yield
        return
    with ray_session(address) as ray:
        token = _RAY.set(ray)
        try:
            yield
        finally:
            _RAY.reset(token)


def map_jobs(function: Callable[..., Outcome], jobs: Iterable[Any], *shared: Any) -> Iterator[Outcome]:
    """``function(job, *shared)`` for each of ``jobs``, in their order.

    On Ray, jobs are tasks with as many threads as this process has, so that the results are the same. ``shared`` is
    sent to each machine once; arrays in it are not copied by the tasks, and can't be written to. ``function`` belongs
    to a module. A task is repeated up to three times if its worker dies.

    >>> list(map_jobs(pow, [2, 3], 2))
    [4, 9]
    """
    ray, threads = _RAY.get(), torch.get_num_threads()
    if ray is None:
        for job in jobs:
            yield function(job, *shared)
        return
    threads = min(threads, int(ray.cluster_resources().get("CPU", 1)) or 1)
    references = [ray.put(each) for each in shared]
    task = ray.remote(num_cpus=threads, max_retries=3)(_work)
    tasks = [task.remote(function, threads, job, *references) for job in jobs]
    while tasks:
        yield ray.get(tasks.pop(0))  # popped, so that Ray forgets a result that was fetched


def _work(function: Callable[..., Outcome], threads: int, job: Any, *shared: Any) -> Outcome:
    """A task of Ray."""
    torch.set_num_threads(threads)
    return function(job, *shared)
