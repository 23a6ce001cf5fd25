"""Independent pieces of work, here or as tasks of Ray on several machines, and how many threads
they have.

Threads are chosen by the size of a computation: where operations take microseconds, they only wait
for each other.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, get_args

from noiseproof.core.messages import install_command

WORK = 30_000_000  # multiplications of a step that occupy one thread, about a millisecond
NUMBER_WORK = 30  # of neighbours and trees in a step, about, for each number of a table

_fixed: ContextVar[int | None] = ContextVar("threads", default=None)


def choose_threads(work: float, limit: int) -> int:
    """One thread for each ``WORK`` multiplications of a step, at least one and at most ``limit``.

    >>> choose_threads(1e6, limit=8), choose_threads(1e8, limit=8), choose_threads(1e12, limit=8)
    (1, 3, 8)
    """
    return int(max(1, min(limit, work // WORK)))


@contextmanager
def threads_for(work: float) -> Iterator[int]:
    """Run the block with as many threads as steps of ``work`` multiplications occupy, at most those
    of torch now.

    Also limits the OpenMP and BLAS threads of the libraries that are loaded, such as scikit-learn.
    """
    import torch

    fixed = _fixed.get()
    number = choose_threads(work, torch.get_num_threads()) if fixed is None else fixed
    with _exactly(number):
        yield number


@contextmanager
def fixed_threads(number: int | None) -> Iterator[None]:
    """Run the block with ``number`` threads, whatever the size of the work; None changes
    nothing.
    """
    if number is None:
        yield
        return
    from noiseproof.core.checks import check_count  # imports torch

    check_count("threads", number, 1)
    token = _fixed.set(number)
    try:
        with _exactly(number):
            yield
    finally:
        _fixed.reset(token)


@contextmanager
def _exactly(number: int) -> Iterator[None]:
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    with threadpool_limits(number):
        torch.set_num_threads(number)
        try:
            yield
        finally:
            torch.set_num_threads(before)


Engine = Literal["local", "ray"]
Outcome = TypeVar("Outcome")
_RAY: ContextVar[Any] = ContextVar("ray", default=None)  # the module, inside a block of work on Ray


@contextmanager
def ray_session(address: str | None, **local: Any) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster at ``address``, or to a Ray of this machine with
    options ``local``.

    A Ray that runs already is used as it is, and stays.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(
            f"Expected ray for this engine. Run `{install_command('ray')}`."
        ) from error
    started_here = not ray.is_initialized()
    if started_here:
        options = {"include_dashboard": False, **local} if address is None else {}
        ray.init(address=address or "local", log_to_driver=False, **options)
    try:
        yield ray
    finally:
        if started_here:
            ray.shutdown()


def check_engine(engine: str, address: str | None) -> None:
    """Refuse an unknown engine, or an address for one that has none."""
    if engine not in get_args(Engine):
        raise ValueError(f"Expected an engine of {', '.join(get_args(Engine))}, got {engine!r}.")
    if engine == "local" and address is not None:
        raise ValueError("Expected the engine ray with `address`, got local, which ignores it.")


@contextmanager
def work_on(engine: Engine = "local", address: str | None = None) -> Iterator[None]:
    """A block in which ``map_jobs`` works on ``engine``: on the cluster at ``address``, or all of
    this machine.
    """
    check_engine(engine, address)
    if engine == "local":
        yield
        return
    with ray_session(address) as ray:
        token = _RAY.set(ray)
        try:
            yield
        finally:
            _RAY.reset(token)


def is_distributed() -> bool:
    """Whether ``map_jobs`` hands its work to other processes here."""
    return _RAY.get() is not None


def map_jobs(
    function: Callable[..., Outcome], jobs: Iterable[Any], *shared: Any, per_task: int = 1
) -> Iterator[Outcome]:
    """``function(job, *shared)`` for each of ``jobs``, in their order; ``function`` belongs to a
    module.

    On Ray, tasks do ``per_task`` jobs each, with as many threads as this process has, so that the
    results are the same, and are repeated up to three times if their worker dies. Arrays in
    ``shared`` can't be written to there.

    >>> list(map_jobs(pow, [2, 3], 2))
    [4, 9]
    """
    ray = _RAY.get()
    if ray is None:
        for job in jobs:
            yield function(job, *shared)
        return
    import torch

    threads = min(torch.get_num_threads(), int(ray.cluster_resources().get("CPU", 1)) or 1)
    fixed = None if _fixed.get() is None else threads
    references = [ray.put(each) for each in shared]
    task = ray.remote(num_cpus=threads, max_retries=3)(_work)
    waiting = list(jobs)
    parts = [waiting[i : i + per_task] for i in range(0, len(waiting), per_task)]
    tasks = [task.remote(function, threads, fixed, part, *references) for part in parts]
    while tasks:
        yield from ray.get(tasks.pop(0))  # popped, so that Ray forgets a result that was fetched


def _work(
    function: Callable[..., Outcome],
    threads: int,
    fixed: int | None,
    jobs: Sequence[Any],
    *shared: Any,
) -> list[Outcome]:
    """Do ``jobs`` in a task that has ``threads``; ``fixed`` is their number where the caller's is
    fixed, whatever the size of the work.
    """
    import torch

    torch.set_num_threads(threads)
    with fixed_threads(fixed):
        return [function(job, *shared) for job in jobs]
