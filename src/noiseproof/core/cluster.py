"""A connection to Ray, for every engine that hands it tasks."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def ray_session(address: str | None, **local: Any) -> Iterator[Any]:
    """The module ``ray``, connected to the cluster at ``address``, or to a Ray of this machine with options ``local``.

    A Ray that runs already is used as it is, and stays.
    """
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("Expected ray for this engine. Run `pip install 'noiseproof[ray]'`.") from error
    started_here = not ray.is_initialized()
    if started_here:
        options = {"include_dashboard": False, **local} if address is None else {}
        ray.init(address=address or "local", log_to_driver=False, **options)
    try:
        yield ray
    finally:
        if started_here:
            ray.shutdown()
