"""Python objects by their names: ``module:name``."""

from __future__ import annotations

import importlib
import os
import sys
from operator import attrgetter
from typing import Any


def load_object(name: str) -> Any:
    """The object ``module:name``; a class is called without arguments.

    Modules in the current folder are found, too, as by ``python -m``.

    >>> load_object("sklearn.ensemble:RandomForestClassifier")
    RandomForestClassifier()
    """
    module, _, path = name.partition(":")
    expected = "Expected `estimator` as module:name, such as sklearn.ensemble:RandomForestClassifier,"
    if not module or not path:
        raise ValueError(f"{expected} got {name!r}.")
    if os.getcwd() not in sys.path and "" not in sys.path:  # a console script has the folder of the script instead
        sys.path.append(os.getcwd())
    try:
        value = attrgetter(path)(importlib.import_module(module))
    except ImportError as error:
        raise ValueError(f"{expected} got {name!r}: {error}.") from error
    except AttributeError as error:
        raise ValueError(f"{expected} got {name!r}: {module} has no {path}.") from error
    try:
        return value() if isinstance(value, type) else value
    except TypeError as error:
        raise ValueError(
            f"{expected} got {name!r}, which needs arguments: {error}. Make an instance in a module, and name that."
        ) from error
