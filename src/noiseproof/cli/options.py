"""Options that several commands share, as annotated types, and values that the shell completes."""

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import noiseproof
from noiseproof.core.files import replacing
from noiseproof.core.plugins import PLUGINS

CACHE = "~/.cache/noiseproof/names.json"
Complete = Callable[[typer.Context, str], list[str]]


def names(*kinds: str, more: Iterable[str] = (), several: bool = False) -> Complete:
    """Complete the registered names of ``kinds``, and ``more``; of ``several`` the last, after a
    comma.
    """

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        known = list(more)
        if kinds:
            registered = _known_names()
            known += [name for kind in kinds for name in registered.get(kind, ())]
        return _matching(known, incomplete, several)

    return complete


def columns(several: bool = False) -> Complete:
    """Complete the columns of the table that the argument or option ``data`` names."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from noiseproof.core.tablefiles import read_header

        # no table, or none that can be read: the command says why, not the shell
        with suppress(Exception):
            # Before an option without its value, arguments are left where they were.
            table = next(filter(None, [context.params.get("data"), *context.args]))
            return _matching(map(str, read_header(Path(table)) or ()), incomplete, several)
        return []

    return complete


def _matching(values: Iterable[str], incomplete: str, several: bool) -> list[str]:
    before = ""
    last = incomplete
    if several:
        before, comma, last = incomplete.rpartition(",")
        before += comma
    return sorted({before + value for value in values if value.startswith(last)})


def _known_names() -> dict[str, list[str]]:
    """Return the registered names by kind, from a file unless the package or a plug-in changed:
    torch takes seconds.
    """
    state = _state()
    with suppress(Exception):  # no home, no file, or one that something else wrote
        stored = json.loads(Path(CACHE).expanduser().read_text("utf-8"))
        if stored["state"] == state:
            return dict(stored["names"])
    known: dict[str, list[str]] = {}
    # a plug-in that cannot be loaded, or no home: the command says why, not the shell
    with suppress(Exception):
        known = _registered_names()
        path = Path(CACHE).expanduser()
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, sync=False) as part:
            part.write_text(json.dumps({"state": state, "names": known}), "utf-8")
    return known


def _state() -> list[str]:
    """Return what the names depend on and is quick to read: version, installed packages, plug-ins.

    The folder of installed packages changes with every installation. A file of the package that is
    edited in place is not noticed.
    """
    # where entry points of plug-ins would be
    installed = [path for path in sys.path if path.endswith("-packages")]
    plugins = os.environ.get(PLUGINS, "")
    package = str(Path(noiseproof.__file__).parent)
    changed = [
        f"{path} {os.stat(path).st_mtime_ns}"
        for path in [package, *installed, *plugins.split(",")]
        if os.path.exists(path)
    ]
    return [noiseproof.__version__, plugins, *changed]


def _registered_names() -> dict[str, list[str]]:
    from noiseproof.analysis.figures import figure_makers
    from noiseproof.bench.tables import list_tables
    from noiseproof.core.plugins import load_plugins
    from noiseproof.data import DATASETS
    from noiseproof.data.features import FEATURES
    from noiseproof.judge.evidence.gather import CHOICES
    from noiseproof.judge.issues import ISSUES
    from noiseproof.losses import LOSSES
    from noiseproof.models import MODELS
    from noiseproof.noise import NOISES
    from noiseproof.train import METHODS
    from noiseproof.train.protocols import protocols

    load_plugins()
    return {
        "methods": [*METHODS, *LOSSES],
        "losses": list(LOSSES),
        "datasets": list(DATASETS),
        "noises": list(NOISES),
        "models": list(MODELS),
        "judges": [*CHOICES, *MODELS],
        "features": list(FEATURES),
        "issues": list(ISSUES),
        "figures": [maker.name for maker in figure_makers()],
        "tables": list_tables(),
        "protocols": sorted({paper for paper, *_ in protocols()}),
    }


def option(
    text: str, *spellings: str, panel: str | None = None, complete: Any = None, **more: Any
) -> Any:
    """Return an option of typer; ``complete`` are words, or a function that completes them."""
    if isinstance(complete, str):
        complete = names(more=complete.split())
    return typer.Option(
        *spellings, help=text, rich_help_panel=panel, autocompletion=complete, **more
    )


on_training = partial(option, panel="Training")
on_machine = partial(option, panel="Machine")


# The run

Dataset = Annotated[
    str,
    option("A dataset of `noiseproof data list`, or your own.", complete=names("datasets")),
]
Noise = Annotated[
    str,
    option("Noise to add to the training labels: symmetric:rate=0.4, …", complete=names("noises")),
]
Method = Annotated[
    str, option("A method of `noiseproof methods`, or any loss.", complete=names("methods"))
]
Seed = Annotated[int, option("Seed of noise, held-out rows, weights, batches and method.", min=0)]
Foreign = Annotated[
    str | None,
    option("The dataset from which open-set noise takes images.", complete=names("datasets")),
]

# Training

Protocol = Annotated[
    str | None,
    on_training(
        "Train as this paper does on this dataset: ln, sln, bias, bias-mlp1024, nal, curriculum,"
        " zhou2021, sop, sop+, pes, pes-semi, promix.",
        complete=names("protocols"),
    ),
]
Model = Annotated[
    str | None, on_training("A backbone of `noiseproof models`.", complete=names("models"))
]
Epochs = Annotated[int | None, on_training("Passes over the data.", min=1)]

# Sweeps

Engine = Annotated[str, option("local, processes or ray.")]
Workers = Annotated[
    int | None, on_machine("Number of processes, by default as many as fit.", min=1)
]
Accelerator = Annotated[str, on_machine("auto, cpu or cuda.", complete="auto cpu cuda")]
ResultsDir = Annotated[str, option("Folder of the results, one file per run.", "--results")]
Only = Annotated[
    list[str] | None,
    option("Cells of a table with this name (dataset, method, …); repeated: and; a comma: or."),
]
TableSeeds = Annotated[
    int | None, option("Seeds of a table's cells, by default the paper's number.", min=1)
]
AllPrecision = Annotated[
    str | None, option("32, bf16 or 64, for all runs, whatever the file gives.")
]
AllEpochs = Annotated[
    int | None, option("Epochs of a table's cells in place of the protocol's.", min=1)
]
RetryFailed = Annotated[bool, option("Start failed runs again.", "--retry-failed")]
