"""The number of threads of a computation, chosen by its size: where operations take microseconds, threads only wait for
each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

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
    """Run the block with as many threads as steps of ``work`` multiplications occupy, at most those of torch now.

    Also limits the OpenMP and BLAS threads of the libraries that are loaded, such as scikit-learn.
    """
    import torch

    fixed = _fixed.get()
    number = choose_threads(work, torch.get_num_threads()) if fixed is None else fixed
    with _exactly(number):
        yield number


def fixed_number() -> int | None:
    """The number of threads that ``fixed_threads`` has set here."""
    return _fixed.get()


@contextmanager
def fixed_threads(number: int | None) -> Iterator[None]:
    """Run the block with ``number`` threads, whatever the size of the work; None changes nothing."""
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
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    before = torch.get_num_threads()
    with threadpool_limits(number):
        torch.set_num_threads(number)
        try:
            yield
        finally:
            torch.set_num_threads(before)
