"""Options that several commands share, as annotated types, and values that the shell completes."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
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
        known = _known_names() if kinds else {}
        return _matching(
            [*more, *(name for kind in kinds for name in known.get(kind, ()))], incomplete, several
        )

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


def _join_broken_words(environ: MutableMapping[str, str]) -> str:
    """Undo that bash breaks words at @, = and :, and return the part of the last word that it
    leaves as it is.

    ``a:b`` comes as the words ``a``, ``:`` and ``b``, of which ``b`` is replaced; of ``a@b`` it is
    ``@b``.
    """
    if not environ.get("_NOISEPROOF_COMPLETE", "").endswith("_bash") or "COMP_WORDS" not in environ:
        return ""
    words: list[list[str]] = []
    is_break = False
    for piece in environ["COMP_WORDS"].split("\n")[: int(environ["COMP_CWORD"]) + 1]:
        was_break, is_break = is_break, re.fullmatch("[@=:]+", piece) is not None
        if words and piece and (is_break or was_break):
            words[-1].append(piece)
        else:
            words.append([piece])
    *before, last = words
    if last[0].startswith("--") and last[1:2] == ["="]:
        before, last = [*before, last[:1]], last[2:]
    kept, incomplete = "".join(last), "" if is_break else last[-1]
    kept = kept.removesuffix(incomplete)
    if kept.endswith("@"):
        kept, incomplete = kept[:-1], f"@{incomplete}"
    environ["COMP_WORDS"] = "\n".join([*map("".join, before), incomplete])
    environ["COMP_CWORD"] = str(len(before))
    return kept


_KEPT = _join_broken_words(os.environ)  # before typer reads them


def _matching(values: Iterable[str], incomplete: str, several: bool) -> list[str]:
    incomplete = _KEPT + incomplete
    before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
    found = sorted({value for value in values if value.startswith(last)})
    if "@" not in last:  # a paper's settings, of which there are many, from NAME@ on
        found = [value for value in found if "@" not in value]
    return [(before + comma + value).removeprefix(_KEPT) for value in found]


def _known_names() -> dict[str, list[str]]:
    """The registered names by kind, from a file unless the package or a plug-in changed: torch
    takes seconds.
    """
    state = _state()
    with suppress(Exception):  # no home, no file, or one that something else wrote
        stored = json.loads(Path(CACHE).expanduser().read_text("utf-8"))
        if stored["state"] == state:
            return {kind: [*map(str, known)] for kind, known in stored["names"].items()}
    # a plug-in that cannot be loaded: the command says why, not the shell
    with suppress(Exception):
        known = _registered_names()
        with suppress(OSError, RuntimeError):
            path = Path(CACHE).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, sync=False) as part:
                part.write_text(json.dumps({"state": state, "names": known}), "utf-8")
        return known
    return {}


def _state() -> list[str]:
    """What the names depend on and is quick to read: names of the package's files, installed
    packages, plug-ins.

    The folder of installed packages changes with every installation. A file that is edited in place
    is not noticed.
    """
    package = Path(noiseproof.__file__).parent
    modules = sorted(
        path
        for _, _, files in os.walk(package)
        for path in files
        if path.endswith((".py", ".toml"))
    )
    # where entry points of plug-ins would be
    installed = [path for path in sys.path if path.endswith("-packages")]
    plugins = os.environ.get(PLUGINS, "")
    files = [name for name in plugins.split(",") if name.endswith(".py")]
    changed = [
        str(os.stat(path).st_mtime_ns) for path in [*installed, *files] if os.path.exists(path)
    ]
    return [str(package), noiseproof.__version__, plugins, *modules, *installed, *changed]


def _registered_names() -> dict[str, list[str]]:
    from noiseproof.analysis.figures import figure_makers
    from noiseproof.audit.issues import ISSUES
    from noiseproof.bench.tables import list_tables
    from noiseproof.core.plugins import load_plugins
    from noiseproof.data import DATASETS
    from noiseproof.data.features import FEATURES
    from noiseproof.judge.evidence.gather import CHOICES
    from noiseproof.losses import LOSSES
    from noiseproof.models import MODELS
    from noiseproof.noise import NOISES
    from noiseproof.papers import loss_presets, method_presets
    from noiseproof.train import METHODS
    from noiseproof.train.protocols import protocols

    load_plugins()
    losses = [*LOSSES, *(f"{name}@{paper}" for name, paper, *_ in loss_presets())]
    return {
        "methods": [
            *METHODS,
            *(f"{name}@{paper}" for name, paper, *_ in method_presets()),
            *losses,
        ],
        "losses": losses,
        "datasets": list(DATASETS),
        "noises": list(NOISES),
        "models": list(MODELS),
        "judges": [*CHOICES, *MODELS],
        "features": list(FEATURES),
        "issues": list(ISSUES),
        "figures": [maker.stem for maker in figure_makers()],
        "tables": list_tables(),
        "protocols": sorted({paper for paper, *_ in protocols()}),
    }


def on_training(text: str, **options: Any) -> Any:
    return typer.Option(help=text, rich_help_panel="Training", **options)


def on_machine(text: str, flag: str | None = None, **options: Any) -> Any:
    return typer.Option(*([flag] if flag else []), help=text, rich_help_panel="Machine", **options)


# The run

Dataset = Annotated[
    str,
    typer.Option(
        help="A dataset of `noiseproof data list`, or your own.", autocompletion=names("datasets")
    ),
]
Noise = Annotated[
    str,
    typer.Option(
        help="Noise to add to the training labels: symmetric:rate=0.4, …",
        autocompletion=names("noises"),
    ),
]
Method = Annotated[
    str,
    typer.Option(
        help="A method of `noiseproof methods`, or any loss.", autocompletion=names("methods")
    ),
]
Seed = Annotated[
    int, typer.Option(min=0, help="Seed of noise, held-out rows, weights, batches and method.")
]
Out = Annotated[
    str | None,
    typer.Option(help="Folder of record and checkpoints, by default one in runs/; none: no files."),
]
Resume = Annotated[bool, typer.Option(help="Continue an earlier run in that folder.")]
Samples = Annotated[
    bool, typer.Option("--samples", help="Record margin, weights and prediction of every sample.")
]
Log = Annotated[
    list[str] | None,
    typer.Option(
        help="Also log to csv, tensorboard, mlflow or wandb; repeatable.",
        autocompletion=names(more=("csv", "tensorboard", "mlflow", "wandb")),
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only estimate time and memory.")]
Foreign = Annotated[
    str | None,
    typer.Option(
        help="The dataset from which open-set noise takes images.", autocompletion=names("datasets")
    ),
]

# Training

Protocol = Annotated[
    str | None,
    on_training(
        "Train as this paper does on this dataset: ln, sln, bias, bias-mlp1024, nal, curriculum,"
        " zhou2021, sop, sop+, pes, pes-semi, promix.",
        autocompletion=names("protocols"),
    ),
]
Model = Annotated[
    str | None, on_training("A backbone of `noiseproof models`.", autocompletion=names("models"))
]
Epochs = Annotated[int | None, on_training("Passes over the data.", min=1)]
BatchSize = Annotated[str | None, on_training("Rows of a step, or full.")]
Optimizer = Annotated[str | None, on_training("sgd:lr=0.05,momentum=0.9, adam:lr=1e-3, …")]
Schedule = Annotated[
    str | None, on_training("constant, step:at=[0.5,0.75], exponential, cosine, linear.")
]
Clip = Annotated[
    float | None,
    on_training("Largest gradient norm; 0 for any. By default 5 for ln, any for others."),
]
Finetune = Annotated[
    str | None,
    on_training(
        "Of a pretrained --model: frozen trains its head alone, probe the head and then all, whole"
        " all."
    ),
]
Validation = Annotated[float, on_training("Share of the noisy rows to hold out.", min=0)]

# Machine

Accelerator = Annotated[
    str, on_machine("auto, cpu or cuda.", autocompletion=names(more=("auto", "cpu", "cuda")))
]
AnyAccelerator = Annotated[
    str,
    on_machine(
        "auto, cpu, cuda or mps.", autocompletion=names(more=("auto", "cpu", "cuda", "mps"))
    ),
]
Devices = Annotated[int, on_machine("Processes on each machine.", min=1)]
Nodes = Annotated[int, on_machine("Number of machines.", min=1)]
Strategy = Annotated[str, on_machine("auto, ddp or fsdp (experimental).")]
Precision = Annotated[
    str, on_machine("32, bf16 or 64.", autocompletion=names(more=("32", "bf16", "64")))
]
Threads = Annotated[
    int | None, on_machine("Threads of each process, by default as many as a step occupies.", min=1)
]
Compile = Annotated[
    bool, on_machine("Train through torch.compile: a slow start, faster steps.", flag="--compile")
]
Readers = Annotated[int, on_machine("Processes that read files.", flag="--workers", min=0)]
CheckpointSteps = Annotated[int | None, on_machine("Also save after this number of steps.", min=1)]
Workers = Annotated[
    int | None, on_machine("Number of processes, by default as many as fit.", min=1)
]

# Sweeps

Engine = Annotated[str, typer.Option(help="local, processes or ray.")]
ResultsDir = Annotated[
    str, typer.Option("--results", help="Folder of the results, one file per run.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        help="Cells of a table with this name (dataset, method, …); repeated: and; a comma: or."
    ),
]
TableSeeds = Annotated[
    int | None, typer.Option(min=1, help="Seeds of a table's cells, by default the paper's number.")
]
AllPrecision = Annotated[
    str | None, typer.Option(help="32, bf16 or 64, for all runs, whatever the file gives.")
]
AllEpochs = Annotated[
    int | None,
    typer.Option(
        min=1, help="Epochs of a table's cells, where those of the protocol are not wanted."
    ),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Start failed runs again.")]
