"""Folders of runs: their records, samples and labels, and, rebuilt from them, their tasks and
models.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor, nn

from noiseproof.core.checks import check_word
from noiseproof.core.files import Damaged, check_files, read_tensors
from noiseproof.core.messages import preview
from noiseproof.data import Dataset, Inputs, NoisyData, get_dataset
from noiseproof.data.base import take
from noiseproof.heads import HEADS
from noiseproof.losses import get_loss
from noiseproof.models.pretrained import without_weights
from noiseproof.strategies import get_strategy, predict_log_probs
from noiseproof.train import Method, Result, Settings, Task
from noiseproof.train.job import DATA, digest
from noiseproof.train.loop import reopen
from noiseproof.train.settings import PRECISIONS, make_fabric
from noiseproof.train.task import make_task

Part = Literal["train", "validation", "test"]
Which = Literal["last", "best", "best_clean"]  # by noisy validation, by clean validation
Array = NDArray[Any]

# Keys of run.json that may differ between seeds: inputs are normalised by the rows that are not
# held out. How else they were prepared is in the source.
OF_A_SEED = ("seed", *DATA, "input_shape", "augment", "normalise", "source")
# keys of run.json
NEEDED = ("classes", "dataset", "inputs", "method", "name", "noise", "precision", "seed", "source")
# Names of groups of labels.
RIGHT = "right"
WRONG = "wrong"
ALL = "all"


class NotARun(ValueError):
    """A folder that is not of a run, or lacks a part of it."""


@dataclass(frozen=True, eq=False)
class RunFolder:
    """The folder of a run; everything in it is read, or rebuilt, on first access.

    Nothing in a folder is executed: it holds JSON, CSV and safetensors, and names that are looked
    up in registries.
    """

    folder: Path
    config: dict[str, Any]  # run.json: name, method, dataset, noise, seed, classes and all settings
    data_dir: str | Path | None = None
    # a task and a method that the folder cannot describe
    given_parts: dict[str, Any] = field(default_factory=dict)

    # What was recorded

    @property
    def name(self) -> str:
        """The method as it was specified."""
        return str(self.config["name"])

    @property
    def noise(self) -> str:
        return str(self.config["noise"])

    @property
    def dataset(self) -> str:
        return str(self.config["dataset"])

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(map(str, self.config["classes"]))

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def alike(self, *but: str) -> str:
        """Return a key that is the same for runs that differ only in their seed and in the keys
        ``but`` of run.json.
        """
        same = {key: value for key, value in self.config.items() if key not in (*OF_A_SEED, *but)}
        source = self.config["source"]
        return repr(
            (sorted(same.items()), [source.get(key) for key in ("spec", "paper", "augment")])
        )

    @cached_property
    def rows(self) -> pd.DataFrame:
        """record.csv: one row per epoch (docs/training.md lists the columns)."""
        path = self.folder / "record.csv"
        if not path.is_file():
            raise NotARun(
                f"Expected record.csv in {self.folder}, got none: no epoch was finished. Resume it."
            )
        _check(self.folder, path.name)
        try:
            rows = pd.read_csv(path, dtype=str).astype(float)  # str: numbers are read exactly
            rows["epoch"] = rows["epoch"].astype(int)
        except (ValueError, TypeError, KeyError) as error:
            raise NotARun(f"Expected the record of a run in {path}, got: {error!r}.") from error
        return rows

    @cached_property
    def sample_epochs(self) -> tuple[int, ...]:
        """The epochs, counted from 1, whose samples were recorded; none without ``--samples``."""
        names = [
            path.stem.removeprefix("epoch-")
            for path in (self.folder / "samples").glob("epoch-*.safetensors")
        ]
        recorded = {int(name) for name in names if name.isdecimal()}
        if not recorded:
            return ()
        # A run that resumed from an earlier checkpoint has files of epochs that it has yet to train
        # again.
        return tuple(sorted(recorded & set(self.rows["epoch"].tolist())))

    def samples(self, epoch: int) -> dict[str, Array]:
        """Return ``margin``, ``prediction``, ``weight``, ``pull`` of all training rows in an epoch.

        With NAL also ``trust``, with LN and Het ``variance``.

        Rows that the epoch left out have NaN, and −1 as their prediction.
        """
        if epoch not in self.sample_epochs:
            known = "was trained without --samples"
            if self.sample_epochs:
                known = f"has samples of {preview(self.sample_epochs)}"
            raise NotARun(f"Expected samples of epoch {epoch} in {self.folder}, but it {known}.")
        tensors = _read(self.folder / "samples" / f"epoch-{epoch:04d}.safetensors")
        return {
            name: (v.float() if v.is_floating_point() else v.long()).numpy()
            for name, v in tensors.items()
        }

    @cached_property
    def labels(self) -> dict[str, Tensor]:
        """``given``, ``clean`` and ``soft`` (if known) and ``index`` of training rows;
        ``validation.given``, …
        """
        path = self.folder / "labels.safetensors"
        labels = {name: v if v.is_floating_point() else v.long() for name, v in _read(path).items()}
        if not {"given", "index"} <= labels.keys():
            raise NotARun(f"Expected labels in {path}, got {', '.join(labels) or 'nothing'}.")
        return labels

    @property
    def given(self) -> Array:
        """The labels of the training rows, (N,)."""
        return self.labels["given"].numpy()

    @property
    def clean(self) -> Array | None:
        """The true classes (N,), −1 for none of them; None if they are not known."""
        return self.labels["clean"].numpy() if "clean" in self.labels else None

    @property
    def is_flipped(self) -> NDArray[np.bool_] | None:
        """Which given labels are wrong, (N,); None if the true classes are not known."""
        return None if self.clean is None else self.given != self.clean

    @property
    def rate(self) -> float | None:
        """The realised share of wrong labels."""
        return None if self.is_flipped is None else float(self.is_flipped.mean())

    @property
    def label_groups(self) -> dict[str, Array]:
        """The training rows (N,) with wrong and with right labels; all of them if the true classes
        are not known.
        """
        flipped = self.is_flipped
        if flipped is None:
            return {ALL: np.full(len(self.given), True)}
        return {
            name: member for name, member in ((WRONG, flipped), (RIGHT, ~flipped)) if member.any()
        }

    # What is rebuilt

    @cached_property
    def settings(self) -> Settings:
        """How the run was trained."""
        known = {f.name for f in fields(Settings)}
        settings = Settings(**{key: value for key, value in self.config.items() if key in known})
        try:
            model = without_weights(settings.model)
        except ValueError as error:
            raise NotARun(str(error)) from error
        return replace(settings, model=model, compile=False)  # not worth it for a single pass

    @cached_property
    def method(self) -> Method:
        """The method with all its parameters."""
        if "method" in self.given_parts:
            return self.given_parts["method"]  # type: ignore[no-any-return]
        try:
            return _method(str(self.config["method"]))
        except (ValueError, TypeError) as error:
            raise NotARun(
                f"Expected a method of registered parts in {self.folder}, got"
                f" {self.config['method']!r}: {error} Pass it: open_run(folder, method=…)."
            ) from error

    @cached_property
    def task(self) -> Task:
        """The data, with the labels of the folder."""
        if "task" in self.given_parts:
            return _same_data(self, self.given_parts["task"])
        source = self.config["source"]
        remedy = "Pass it: open_run(folder, task=…)."
        if not source.get("spec"):
            raise NotARun(
                f"Expected the name of the data of {self.folder}, got data without a name. {remedy}"
            )
        if "clean" in self.labels and bool((self.labels["clean"] < 0).any()):
            raise NotARun(
                f"Expected only inputs of the dataset in {self.folder}, got some from elsewhere."
                f" {remedy}"
            )
        data = get_dataset(str(source["spec"]), self.data_root)
        validation = (
            _labelled_part(self, data, "validation.") if "validation.given" in self.labels else None
        )
        options = {key: source[key] for key in ("paper", "augment", "data_dir") if key in source}
        train = _labelled_part(self, data, "")
        return _same_data(self, make_task(data, train, validation, noise=self.noise, **options))

    @property
    def data_root(self) -> str | Path | None:
        """Where the dataset's files are; None for the default folder."""
        return self.data_dir or self.config["source"].get("data_dir")

    def result(self, accelerator: str = "cpu") -> Result:
        """Return the run as of its last checkpoint, on that device: models, loss and strategies
        with their state.
        """
        recorded = self.config["precision"]
        precision = next((short for short, name in PRECISIONS.items() if name == recorded), "32")
        fabric = make_fabric(precision, accelerator=accelerator, devices=1)
        task = self.task
        method = self.method
        settings = self.settings
        try:
            return reopen(task, method, settings, seed=self.seed, fabric=fabric, folder=self.folder)
        except (
            RuntimeError,
            KeyError,
            TypeError,
        ) as error:  # weights of other shapes, an incomplete state
            raise NotARun(
                f"Expected a checkpoint of this run in {self.folder}, got: {error}"
            ) from error

    @cached_property
    def _result(self) -> Result:
        return self.result()

    def models(self, which: Which = "last") -> list[nn.Module]:
        """Return the models that predict, on the CPU in evaluation mode: of the last checkpoint or
        of the best epoch.

        Normalise inputs with ``task.normalise`` first; ``log_probs`` does so itself.
        """
        if which == "last":
            return [model.eval() for model in self._result.models]
        models = self.result().models
        path = self.folder / f"{which}.safetensors"
        if not path.is_file():
            raise NotARun(
                f"Expected {path}, got none: there were no validation rows to choose an epoch by."
            )
        tensors = _read(path)
        for m, model in enumerate(models):
            prefix = f"models.{m}."
            model.load_state_dict(
                {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            )
        return [model.eval() for model in models]

    def inputs(self, part: Part) -> Inputs:
        """Return the inputs of a part, not normalised."""
        check_word("part", part, get_args(Part))
        rows = getattr(self.task, part)
        if rows is None:
            raise NotARun(f"Expected {part} rows in the run of {self.folder}, got none.")
        return rows.x  # type: ignore[no-any-return]

    def log_probs(self, part: Part = "test") -> Array:
        """Return log-probabilities (N, K) of the rows of a part, not augmented, averaged over
        models.
        """
        return predict_log_probs(self._result.run, self.inputs(part)).numpy()


Runs = Mapping[str, RunFolder]


def _labelled_part(run: RunFolder, data: Dataset, part: str) -> NoisyData:
    """Return the rows of a part of the data, with the labels in the folder of the run."""
    given = run.labels[f"{part}given"]
    index = run.labels[f"{part}index"]
    if int(index.max()) >= len(data.train) or data.classes != run.classes:
        raise NotARun(
            f"Expected the data that {run.folder} was trained on, got another version of"
            f" {data.name}."
        )
    raw = None if data.train.raw is None else [data.train.raw[i] for i in index.tolist()]
    clean = run.labels.get(f"{part}clean")
    soft = run.labels.get(f"{part}soft")
    return NoisyData(take(data.train.x, index), given, data.classes, index, clean, raw, soft)


def _same_data(run: RunFolder, task: Task) -> Task:
    """Return the task, refused unless it has the labels and inputs of the run."""
    labels = run.config["source"].get("labels")
    same = task.train.given.cpu().tolist() == run.given.tolist()
    if not same or (labels is not None and task.source.get("labels", labels) != labels):
        raise NotARun(
            f"Expected the data that {run.folder} was trained on, got other rows or labels."
        )
    if digest(task.train.x) != run.config["inputs"]:
        raise NotARun(f"Expected the data that {run.folder} was trained on, got other inputs.")
    return task


def is_of_sweep(run: RunFolder) -> bool:
    """Return whether a run is of a sweep, whose folder has its result."""
    folder = run.folder.absolute()
    return (folder.parent.parent / f"{folder.name}.json").is_file()


def open_run(
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    task: Task | None = None,
    method: Method | None = None,
) -> RunFolder:
    """Open a folder that ``noiseproof train --out``, ``train(out=…)`` or a benchmark
    (``RESULTS/runs/``) wrote.

    Args:
        data_dir: where the dataset's files are, if they have moved.
        task, method: what the folder cannot describe: your own data, strategies that are not
            registered.

    >>> import tempfile
    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import Settings, prepare, train
    >>> task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    >>> short = Settings(epochs=2, model="mlp:hidden=[8]")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = train(task, "gce", short, out=folder, samples=True)
    ...     run = open_run(folder)
    ...     print(run.name, run.noise, run.num_classes, run.sample_epochs)
    ...     print(run.samples(2)["margin"].shape)
    gce symmetric:rate=0.4 10 (1, 2)
    (1437,)
    """
    path = Path(folder)
    file = path / "run.json"
    if not file.is_file():
        problem = "no such folder"
        remedy = "`noiseproof train --out FOLDER` writes one."
        if path.is_dir():
            problem = "no run.json in it"
        elif path.exists():
            problem = "a file"
        if (path / "runs").is_dir():
            remedy = f"Its runs are {path / 'runs'}/*."
        raise NotARun(f"Expected the folder of a run, got {path}: {problem}. {remedy}")
    _check(path, file.name)
    try:
        config = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise NotARun(f"Expected JSON in {file}, got: {error}.") from error
    absent = [key for key in NEEDED if not isinstance(config, dict) or key not in config]
    if absent:
        raise NotARun(
            f"Expected the description of a run in {file}, got none of {', '.join(absent)}."
        )
    parts = {name: part for name, part in (("task", task), ("method", method)) if part is not None}
    return RunFolder(path, config, data_dir, parts)


def open_runs(folders: Sequence[str | Path], **options: Any) -> dict[str, RunFolder]:
    """Return several runs by name: their method, then noise, dataset, settings and seed as far as
    they differ.

    Runs of sweeps, whose folders are named by their keys, come in the order of dataset, method,
    noise and seed.
    """
    runs = [open_run(folder, **options) for folder in folders]
    if all(map(is_of_sweep, runs)):
        runs.sort(key=lambda run: (run.dataset, run.name, run.noise, run.seed))
    return dict(zip(distinct_names([run.name for run in runs], runs), runs, strict=True))


def distinct_names(names: list[str], runs: Sequence[RunFolder]) -> list[str]:
    """Return names of runs with what else differs between runs of one name; seeds only where they
    are needed.
    """
    for key in ("noise", "dataset", *(f.name for f in fields(Settings)), "seed"):
        if len(set(names)) == len(names):
            break
        values = [run.config.get(key) for run in runs]
        pairs = list(zip(names, values, strict=True))
        differ = {
            name
            for name in names
            if len({str(value) for other, value in pairs if other == name}) > 1
        }
        named = differ if key == "seed" or not differ else set(names)
        names = [f"{name} · {key}={value}" if name in named else name for name, value in pairs]
    count = Counter(names)
    return [
        f"{name} · {run.folder}" if count[name] > 1 else name
        for name, run in zip(names, runs, strict=True)
    ]


def _method(text: str) -> Method:
    loss, *parts = text.split(" × ")
    head = "linear"
    if parts and parts[0].partition(":")[0] in HEADS:
        head = parts.pop(0)
    return Method(get_loss(loss), head, tuple(map(get_strategy, parts)))


def _check(folder: Path, name: str) -> None:
    try:
        check_files(folder, name)
    except Damaged as error:
        raise NotARun(str(error)) from error


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return read_tensors(path)[0]
    except (OSError, Damaged) as error:
        raise NotARun(
            f"Expected a safetensors file of this run in {path}, got: {error}."
        ) from error


# Several runs


def seeds_of(runs: Runs) -> dict[str, list[RunFolder]]:
    """Return runs that differ only in their seed as groups, by their common name."""
    groups: dict[str, tuple[str, list[RunFolder]]] = {}
    for name, run in runs.items():
        key = run.alike()
        while any(run.seed == other.seed for other in groups.get(key, ("", []))[1]):
            key += "'"  # they differ in something that run.json does not record
        groups.setdefault(key, (name, []))[1].append(run)
    short = Counter(_without_seed(name) for name, _ in groups.values())
    named = {}
    for name, group in groups.values():
        if len(group) > 1 and short[_without_seed(name)] == 1:
            name = _without_seed(name)
        elif len(group) > 1:  # another group has the same name but for its seeds
            name = re.sub(r"\bseed=\d+", f"seeds={','.join(str(run.seed) for run in group)}", name)
        named[name] = group
    return named


def _without_seed(name: str) -> str:
    return re.sub(r" · seed=\d+( · .*)?$", "", name)


def runs_table(runs: Runs) -> list[dict[str, Any]]:
    """Return the table of runs at the top of a page."""
    measured = {"validation_accuracy": "noisy validation", "test_accuracy": "test accuracy"}
    rows = []
    for name, run in runs.items():
        last = run.rows.iloc[-1]
        row = {
            "run": name,
            "dataset": run.dataset,
            "noise": run.noise,
            "wrong labels": "unknown" if run.rate is None else f"{run.rate:.1%}",
            "model": str(run.config.get("model", "")),
            "epochs": int(run.rows["epoch"].max()),
            "seed": run.seed,
        }
        row |= {words: f"{last[name]:.4f}" for name, words in measured.items() if name in last}
        rows.append(row)
    return rows


def page_title(runs: Runs) -> str:
    """Return the title of a page about these runs."""
    datasets = " and ".join(dict.fromkeys(run.dataset for run in runs.values()))
    if len(runs) == 1:
        return f"{next(iter(runs))} on {datasets}"
    return f"{len(runs)} runs on {datasets}"
