"""A run's folder, opened again: its record, its samples, its labels, and, built anew, its task and its models."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from noiseproof.data import Dataset, Inputs, NoisyData, get_dataset
from noiseproof.data.base import take
from noiseproof.heads import HEADS
from noiseproof.losses import get_loss
from noiseproof.models.timm import without_weights
from noiseproof.strategies import get_strategy, predict_log_probs
from noiseproof.train import Method, Result, Settings, Task
from noiseproof.train.identity import checksum
from noiseproof.train.loop import reopen
from noiseproof.train.settings import PRECISIONS, make_fabric
from noiseproof.train.task import make_task

if TYPE_CHECKING:
    import pandas as pd

Part = Literal["train", "validation", "test"]
Which = Literal["last", "best"]
Array = NDArray[Any]

# What differs between seeds in run.json, or may: inputs are normalised by the rows that are not held out. The source
# says how they were prepared else.
OF_A_SEED = ("seed", "labels", "inputs", "input_shape", "augment", "normalise", "source")
_NAME = re.compile(r"epoch-(\d+)\.safetensors")


class NotARun(ValueError):
    """A folder that is no run's, or lacks what was asked of it."""


@dataclass(frozen=True, eq=False)
class RunFolder:
    """What a run has left in ``folder``; everything is read, or built, when it is first asked for.

    Nothing in a folder is executed: it holds JSON, CSV and safetensors, and names that are looked up in registries.
    """

    folder: Path
    config: dict[str, Any]  # run.json: name, method, dataset, noise, seed, classes and all settings
    data_dir: str | Path | None = None
    own: dict[str, Any] = field(default_factory=dict)  # a task and a method that the folder cannot describe

    # What was recorded

    @property
    def name(self) -> str:
        """The method as it was asked for."""
        return str(self.config.get("name", self.config["method"]))

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
        if "classes" not in self.config:
            raise self._lacks("the names of its classes")
        return tuple(map(str, self.config["classes"]))

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def alike(self, *but: str) -> str:
        """What the run shares with those that differ in their seed, and in the keys ``but`` of run.json, alone."""
        same = {key: value for key, value in self.config.items() if key not in (*OF_A_SEED, *but)}
        source = self.config.get("source") or {}
        return repr((sorted(same.items()), [source.get(key) for key in ("spec", "paper", "augment")]))

    @cached_property
    def rows(self) -> pd.DataFrame:
        """record.csv: one row an epoch (docs/training.md says what the columns are)."""
        import pandas as pd

        path = self.folder / "record.csv"
        if not path.is_file():
            raise NotARun(f"Expected record.csv in {self.folder}, got none: not one epoch was finished. Resume it.")
        try:
            with path.open(encoding="utf-8", newline="") as file:  # pandas would round the last digit
                rows = pd.DataFrame([{name: float(v) for name, v in row.items()} for row in csv.DictReader(file)])
            rows["epoch"] = rows["epoch"].astype(int)
        except (ValueError, TypeError, KeyError) as error:
            raise NotARun(f"Expected the record of a run in {path}, got: {error!r}.") from error
        return rows

    @cached_property
    def sample_epochs(self) -> tuple[int, ...]:
        """The epochs, counted from 1, whose samples were recorded; none without ``--samples``."""
        found = [_NAME.fullmatch(path.name) for path in (self.folder / "samples").glob("*.safetensors")]
        if not any(found):
            return ()
        # A run that goes on from an earlier checkpoint has files of epochs that it has yet to train again.
        return tuple(sorted({int(match[1]) for match in found if match} & set(self.rows["epoch"].tolist())))

    def samples(self, epoch: int) -> dict[str, Array]:
        """Of every training row in that epoch: ``margin``, ``prediction``, ``weight``, ``pull`` and, of NAL, ``trust``.

        NaN, and −1 as the prediction, stand for rows that the epoch left out. Earlier versions wrote no ``pull``.
        """
        if epoch not in self.sample_epochs:
            few = _few(self.sample_epochs)
            known = f"has those of {few}" if few else "was trained without --samples"
            raise NotARun(f"Expected samples of epoch {epoch} in {self.folder}, but it {known}.")
        tensors = _read(self.folder / "samples" / f"epoch-{epoch:04d}.safetensors")
        return {name: (v.float() if v.is_floating_point() else v.long()).numpy() for name, v in tensors.items()}

    @cached_property
    def labels(self) -> dict[str, Tensor]:
        """``given``, ``clean`` (where it is known) and ``index`` of training rows; ``validation.given`` and so on."""
        path = self.folder / "labels.safetensors"
        if not path.is_file():
            raise self._lacks("its labels (labels.safetensors)")
        labels = {name: values.long() for name, values in _read(path).items()}
        if not {"given", "index"} <= labels.keys():
            raise NotARun(f"Expected labels in {path}, got {', '.join(labels) or 'nothing'}.")
        return labels

    @property
    def given(self) -> Array:
        """The labels that were trained on, (N,)."""
        return self.labels["given"].numpy()

    @property
    def clean(self) -> Array | None:
        """The true classes (N,), −1 for none of these; None where the truth is not known."""
        return self.labels["clean"].numpy() if "clean" in self.labels else None

    @property
    def is_flipped(self) -> NDArray[np.bool_] | None:
        """Where the given label is wrong, (N,); None where the truth is not known."""
        return None if self.clean is None else self.given != self.clean

    @property
    def rate(self) -> float | None:
        """The realised share of wrong labels."""
        return None if self.is_flipped is None else float(self.is_flipped.mean())

    # What is built again

    @cached_property
    def settings(self) -> Settings:
        """How the run was trained."""
        known = {f.name for f in fields(Settings)}
        settings = Settings(**{key: value for key, value in self.config.items() if key in known})
        try:
            model = without_weights(settings.model)
        except ValueError as error:
            raise NotARun(str(error)) from error
        return replace(settings, model=model, compile=False)  # what is only looked at need not be compiled

    @cached_property
    def method(self) -> Method:
        """The method, with its parameters as they were found."""
        if "method" in self.own:
            return self.own["method"]  # type: ignore[no-any-return]
        try:
            return _method(str(self.config["method"]))
        except (ValueError, TypeError) as error:
            raise NotARun(
                f"Expected a method of registered parts in {self.folder}, got {self.config['method']!r}: {error} "
                "Give it: open_run(folder, method=…)."
            ) from error

    @cached_property
    def task(self) -> Task:
        """The data, with the labels that the folder holds."""
        if "task" in self.own:
            return self._checked(self.own["task"])
        source = self.config.get("source") or {}
        remedy = "Give it: open_run(folder, task=…)."
        if not source.get("spec"):
            raise NotARun(f"Expected the name of the data of {self.folder}, got data of somebody's own. {remedy}")
        if "clean" in self.labels and bool((self.labels["clean"] < 0).any()):
            raise NotARun(f"Expected the dataset's own inputs in {self.folder}, got some from elsewhere. {remedy}")
        data = get_dataset(str(source["spec"]), self.data_root)
        held = self._part(data, "validation.") if "validation.given" in self.labels else None
        options = {key: source[key] for key in ("paper", "augment", "data_dir") if key in source}
        return self._checked(make_task(data, self._part(data, ""), held, noise=self.noise, **options))

    @property
    def data_root(self) -> str | Path | None:
        """Where the dataset's files are; None for the usual place."""
        return self.data_dir or (self.config.get("source") or {}).get("data_dir")

    def _part(self, data: Dataset, part: str) -> NoisyData:
        given, index = (self.labels[part + name] for name in ("given", "index"))
        if int(index.max()) >= len(data.train) or data.classes != self.classes:
            raise NotARun(f"Expected the data that {self.folder} was trained on, got another version of {data.name}.")
        raw = None if data.train.raw is None else [data.train.raw[i] for i in index.tolist()]
        return NoisyData(take(data.train.x, index), given, data.classes, index, self.labels.get(part + "clean"), raw)

    def _checked(self, task: Task) -> Task:
        labels, inputs = self.config.get("source", {}).get("labels"), self.config.get("inputs")
        same = task.train.given.cpu().tolist() == self.given.tolist()
        if not same or (labels is not None and task.source.get("labels", labels) != labels):
            raise NotARun(f"Expected the data that {self.folder} was trained on, got other rows or labels.")
        if inputs is not None and checksum(task.train.x) != inputs:
            raise NotARun(f"Expected the data that {self.folder} was trained on, got other inputs.")
        return task

    def result(self, accelerator: str = "cpu") -> Result:
        """The run as its last checkpoint has it, on that device: models, loss, strategies with what they remember."""
        said = self.config.get("precision")
        precision = next((short for short, name in PRECISIONS.items() if name == said), "32")
        fabric = make_fabric(precision, accelerator=accelerator, devices=1)
        task, method, settings = self.task, self.method, self.settings
        try:
            return reopen(task, method, settings, seed=self.seed, fabric=fabric, folder=self.folder)
        except (RuntimeError, KeyError, TypeError) as error:  # weights of other shapes, a state that lacks something
            raise NotARun(f"Expected a checkpoint of this run in {self.folder}, got: {error}") from error

    @cached_property
    def _result(self) -> Result:
        return self.result()

    def models(self, which: Which = "last") -> list[nn.Module]:
        """The models that predict, on the CPU in evaluation mode: of the last checkpoint or of the best epoch.

        Inputs go through ``task.normalise`` first; ``log_probs`` does so by itself.
        """
        models = (self._result if which == "last" else self.result()).models
        if which == "best":
            path = self.folder / "best.safetensors"
            if not path.is_file():
                raise NotARun(f"Expected {path}, got none: no rows were held out to choose an epoch by.")
            tensors = _read(path)
            for m, model in enumerate(models):
                own = f"models.{m}."
                model.load_state_dict({k.removeprefix(own): v for k, v in tensors.items() if k.startswith(own)})
        return [model.eval() for model in models]

    def inputs(self, part: Part) -> Inputs:
        """The inputs of a part, as the dataset has them."""
        if part not in get_args(Part):
            raise ValueError(f"Expected a part of {', '.join(get_args(Part))}, got {part!r}.")
        rows = getattr(self.task, part)
        if rows is None:
            raise NotARun(f"Expected {part} rows in the run of {self.folder}, got none.")
        return rows.x  # type: ignore[no-any-return]

    def log_probs(self, part: Part = "test") -> Array:
        """Logarithms of what the run predicts for each row of a part, not augmented: (N, K), averaged over models."""
        return predict_log_probs(self._result.run, self.inputs(part)).numpy()

    def _lacks(self, what: str) -> NotARun:
        return NotARun(f"Expected {what} in {self.folder}, got none: an earlier version trained it. Train it again.")


def open_run(
    folder: str | Path,
    *,
    data_dir: str | Path | None = None,
    task: Task | None = None,
    method: Method | None = None,
) -> RunFolder:
    """Open what ``noiseproof train --out`` or ``train(out=…)`` has written, or one of ``RESULTS/runs/`` of a benchmark.

    Args:
        data_dir: where the dataset's files are, if not where they were.
        task, method: what the folder cannot describe: data of your own, strategies that are not registered.

    >>> import tempfile
    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import Settings, prepare, train
    >>> task, short = prepare(get_dataset("digits"), "symmetric:rate=0.4"), Settings(epochs=2, model="mlp:hidden=[8]")
    >>> folder = tempfile.TemporaryDirectory()
    >>> result = train(task, "gce", short, out=folder.name, samples=True)
    >>> run = open_run(folder.name)
    >>> run.name, run.noise, run.num_classes, run.sample_epochs, run.samples(2)["margin"].shape
    ('gce', 'symmetric:rate=0.4', 10, (1, 2), (1437,))
    >>> float((run.log_probs("test").argmax(1) == run.task.test.y.numpy()).mean()) == result.last["test_accuracy"]
    True
    >>> folder.cleanup()
    """
    path = Path(folder)
    file = path / "run.json"
    if not file.is_file():
        what = "no such folder" if not path.exists() else "no run.json in it" if path.is_dir() else "a file"
        raise NotARun(f"Expected the folder of a run, got {path}: {what}. `noiseproof train --out FOLDER` writes one.")
    try:
        config = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise NotARun(f"Expected JSON in {file}, got: {error}.") from error
    needed = {"method", "seed", "dataset", "noise"}
    if not isinstance(config, dict) or not needed <= config.keys():
        missing = sorted(needed - config.keys()) if isinstance(config, dict) else sorted(needed)
        raise NotARun(f"Expected the description of a run in {file}, got none of {', '.join(missing)}.")
    own = {name: value for name, value in (("task", task), ("method", method)) if value is not None}
    return RunFolder(path, config, data_dir, own)


def open_runs(folders: Sequence[str | Path], **options: Any) -> dict[str, RunFolder]:
    """Several runs, each by what tells it from the others: method, then noise, dataset, settings and seed as needed."""
    runs = [open_run(folder, **options) for folder in folders]
    names = [run.name for run in runs]
    for key in ("noise", "dataset", *(f.name for f in fields(Settings)), "seed"):
        if len(set(names)) == len(names):
            break
        values = [run.config.get(key) for run in runs]
        twice = {name for name in names if len({str(v) for n, v in zip(names, values, strict=True) if n == name}) > 1}
        names = [
            f"{name} · {key}={value}" if name in twice else name for name, value in zip(names, values, strict=True)
        ]
    count = Counter(names)
    names = [f"{name} · {run.folder}" if count[name] > 1 else name for name, run in zip(names, runs, strict=True)]
    return dict(zip(names, runs, strict=True))


def _method(text: str) -> Method:
    """The method that ``str(method)`` writes."""
    loss, *parts = text.split(" × ")
    head = parts.pop(0) if parts and parts[0].partition(":")[0] in HEADS else "linear"
    return Method(get_loss(loss), head, tuple(map(get_strategy, parts)))


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise NotARun(f"Expected a safetensors file in {path}, got: {error}.") from error


def _few(epochs: Sequence[int]) -> str:
    return ", ".join(map(str, epochs if len(epochs) < 6 else (*epochs[:3], "…", epochs[-1])))
