"""An experiment is data: dataset × noise × method × settings × seed, with a key over all that
changes its result.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.core import plugins
from noiseproof.core.checks import check_count, check_flag, check_number, check_seed
from noiseproof.core.files import file_digest
from noiseproof.core.grammar import canonical_number, parse_call
from noiseproof.core.messages import ELSEWHERE
from noiseproof.core.plugins import load_plugins, plugin_digests
from noiseproof.core.registry import Registry, near_names
from noiseproof.data import DATASETS, Dataset, Split, get_dataset
from noiseproof.data.base import take
from noiseproof.data.sources import FILES, PathLike, data_root, find
from noiseproof.models import MODELS
from noiseproof.models.classifier import build_classifier
from noiseproof.noise import NOISES, get_noise
from noiseproof.train import Diverged, Interrupted, Method, Settings, Task, get_method, prepare
from noiseproof.train.job import Job
from noiseproof.train.loop import training
from noiseproof.train.methods import check_method, plain_method
from noiseproof.train.protocols import protocol, protocols
from noiseproof.train.settings import PRECISIONS

# parameters of datasets and noise: a user's files
PATHS = ("path", "table", "test", "validation", "trusted", "T")
# raise it when the same experiment gives another result: earlier results then have other keys
RESULT_VERSION = 1
# see ``bench.results.measure``
MEASURES = {"sample-weights": "alpha, snr", "annotators": "annotator_nll"}
OUTSIDE_KEY = ("samples", "weights", "measures")


class BadExperiment(ValueError):
    """An experiment that cannot be run; ``field`` is what is wrong with it."""

    def __init__(self, message: str, experiment: Experiment | None = None, field: str = "") -> None:
        super().__init__(message)
        self.experiment = experiment
        self.field = field


@dataclass(frozen=True)
class Experiment:
    """One run, described by data.

    Args:
        seed: of weights, batches, augmentation and whatever the method draws.
        settings: model, epochs, batches, optimiser.
        validation: the share of noisy rows that is held out.
        paper: prepares inputs as this paper does (``noiseproof.train.prepare``).
        noise_seed: of the wrong labels and the rows held out; None: ``seed``, as in the LN paper.
        foreign: the dataset from which open-set noise takes images.
        rows: train on the first ``rows`` only; None: all. The LN paper trains on 50 000 of MNIST.
        precision: 32, bf16 (the network's arithmetic, not the loss) or 64.
        augment: False only normalises training inputs.
        samples: record margin, weight and prediction of every sample in every epoch, for figures.
        weights: keep the last checkpoint, for figures that need the model.
        measures: what to measure in addition to the metrics of epochs, of ``MEASURES``, separated
            by spaces.

    The last three do not change the run, and so not its key; a result that lacks what they ask for
    is made again.

    >>> first = Experiment("digits", "symmetric:rate=0.4", "gce:q=0.7", seed=1)
    >>> first.key == replace(first, noise_seed=1).key, first.key == replace(first, seed=2).key
    (True, False)
    """

    dataset: str
    noise: str = "none"
    method: str = "ce"
    seed: int = 0
    settings: Settings = field(default_factory=Settings)
    validation: float = 0.0
    paper: str | None = None
    noise_seed: int | None = None
    foreign: str | None = None
    rows: int | None = None
    precision: str = "32"
    augment: bool = True
    samples: bool = False
    weights: bool = False
    measures: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.noise, str):
            get_noise(self.noise)  # raises; for a number, it says how a rate is written
        for name in ("dataset", "noise", "method"):
            if not isinstance(value := getattr(self, name), str):
                raise TypeError(f"Expected `{name}` to be a word or a spec, got {value!r}.")
        object.__setattr__(self, "precision", str(self.precision))
        if self.precision not in PRECISIONS:
            raise ValueError(
                f"Expected a precision of {', '.join(PRECISIONS)}, got {self.precision!r}."
            )
        object.__setattr__(self, "seed", check_seed("seed", self.seed))
        if self.noise_seed is not None:
            object.__setattr__(self, "noise_seed", check_seed("noise_seed", self.noise_seed))
        if self.rows is not None:
            object.__setattr__(self, "rows", check_count("rows", self.rows, 1))
        object.__setattr__(
            self, "validation", check_number("validation", self.validation, "[0, 1)")
        )
        for name in ("augment", "samples", "weights"):
            check_flag(name, getattr(self, name))
        if unknown := [word for word in self.measures.split() if word not in MEASURES]:
            known = " or ".join(f"{name} ({gives})" for name, gives in MEASURES.items())
            raise ValueError(f"Expected `measures` of {known}, got {unknown[0]!r}.")

    @property
    def key(self) -> str:
        """16 hexadecimal digits that differ where results may, whatever the spelling, engine or
        folder.

        They depend on the present content of the files that it names, and on the code of plug-ins
        as imported.
        """
        load_plugins()  # a key must not depend on which names were used before
        pinned: str | None = self.__dict__.get("_key")
        # called often in a sweep
        code = plugin_digests(repr(self)).values() if plugins.MODULES else ()
        return pinned or _digest(self, (*_contents(self), *code))

    def pinned(self) -> Experiment:
        """Return a copy that keeps its present key, even if the files that it names change."""
        copy = replace(self)
        copy.__dict__["_key"] = self.key
        return copy

    def check_unchanged(self) -> None:
        """Refuse a pinned experiment if its files, or its code in this process, differ from those
        of its key.
        """
        if replace(self).key != self.key:
            raise BadExperiment(
                "Expected data and code as they were when this sweep began, got others for"
                f" {self.dataset}, {self.noise}, {self.method}. The same command continues with the"
                " present ones.",
                self,
            )

    @cached_property
    def plain(self) -> Experiment:
        """The same run in canonical spelling: ``gce:q=0.70`` is ``gce``."""
        return replace(
            self,
            dataset=_plainly(DATASETS.canonical, self.dataset),
            noise=_plainly(NOISES.canonical, self.noise),
            method=_plainly(plain_method, self.method),
            foreign=self.foreign and _plainly(DATASETS.canonical, self.foreign),
            settings=replace(self.settings, model=_plainly(MODELS.canonical, self.settings.model)),
        )

    @property
    def bare(self) -> Experiment:
        """The run itself, whatever is kept or measured of it."""
        return replace(self, samples=False, weights=False, measures="")

    @property
    def records_samples(self) -> bool:
        return self.samples or "sample-weights" in self.measures.split()

    @property
    def seed_of_noise(self) -> int:
        return self.seed if self.noise_seed is None else self.noise_seed

    @cached_property
    def without_method(self) -> Experiment:
        """Equal for all experiments that can share a task."""
        plain = replace(self.bare, method="ce", settings=Settings(), precision="32")
        return replace(plain, seed=self.seed_of_noise, noise_seed=None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, which ``from_dict`` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], key: str | None = None) -> Experiment:
        """Read what ``as_dict`` wrote; ``key`` pins the key, even if files have changed since."""
        experiment = cls(**{**values, "settings": Settings(**values["settings"])})
        if key is not None:
            experiment.__dict__["_key"] = key
        return experiment

    def load(self, data_dir: PathLike | None = None, data: Dataset | None = None) -> Dataset:
        """Return the dataset, unless it is given, cut to its first ``rows``."""
        data = data or get_dataset(self.dataset, data_dir)
        return data if self.rows is None else replace(data, train=_first(data.train, self.rows))

    def make_task(self, data_dir: PathLike | None = None, *, data: Dataset | None = None) -> Task:
        """Load the data, unless it is given, and corrupt its labels."""
        data = self.load(data_dir, data)
        return prepare(
            data,
            self.noise,
            seed=self.seed_of_noise,
            validation=self.validation,
            paper=self.paper,
            augment=self.augment,
            foreign=foreign_images(self.foreign, data_dir),
            data_dir=data_dir,
        )


@lru_cache(maxsize=65536)  # called often in a sweep
def _digest(experiment: Experiment, contents: tuple[str, ...]) -> str:
    plain = experiment.plain
    content = {
        **{name: value for name, value in plain.as_dict().items() if name not in OUTSIDE_KEY},
        "settings": plain.settings.as_dict(),
        "noise_seed": plain.seed_of_noise,
        "version": RESULT_VERSION,
    }
    if contents:
        content["contents"] = contents
    text = json.dumps(_as_one(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plainly(plain: Callable[[str], str], spec: str) -> str:
    try:
        return plain(spec)
    except (ValueError, TypeError):  # refused later, or of another grammar
        return spec


def _contents(experiment: Experiment) -> Iterator[str]:
    """Yield the digest of each file or folder that it names, except in the data folder, whose files
    are official.
    """
    specs = (
        (DATASETS, experiment.dataset),
        (NOISES, experiment.noise),
        (DATASETS, experiment.foreign),
    )
    for path in (path for registry, spec in specs for path in _paths(registry, spec or "none")):
        with suppress(OSError, ValueError):  # refused later, or not a path
            if not path.resolve().is_relative_to(data_root().resolve()):
                yield folder_digest(str(path)) if path.is_dir() else file_digest(path)


def _paths(registry: Registry[Any], spec: str) -> list[Path]:
    """Return possible files: the parameters ``PATHS`` of built-in names, every word, given or
    default, of plug-ins.
    """
    try:
        name, params = _parsed(spec)
    except ValueError:  # refused later
        return []
    # T may be a list
    given = [str(params[key]) for key in PATHS if not isinstance(params.get(key, []), list)]
    folder = str(params.get("folder", ""))
    # as the noise `file` does
    paths = [Path("" if os.path.exists(word) else folder, word) for word in given]
    if registry.kind in plugins.MODULES.get(name, {}):
        values = {**registry.parameters(name), **params}.values()
        words = (
            word
            for value in values
            for word in (value if isinstance(value, (list, tuple)) else [value])
        )
        paths += [Path(word) for word in words if isinstance(word, (str, Path)) and word != ""]
    return paths


_parsed = lru_cache(maxsize=4096)(parse_call)


@lru_cache(maxsize=64)
def folder_digest(path: str) -> str:
    """Return a digest of names and sizes (there may be millions of images), computed once for a
    sweep.
    """
    files: list[Path] = []
    for folder, inner, names in os.walk(path, followlinks=True):
        inner[:] = [name for name in inner if not _is_circle(Path(folder, name))]
        files += [Path(folder, name) for name in names]
    sizes = sorted(
        (file.relative_to(path).as_posix(), file.stat().st_size) for file in files if file.is_file()
    )
    return hashlib.sha256(repr(sizes).encode()).hexdigest()


def _is_circle(folder: Path) -> bool:
    """Return whether a folder is a link to one that contains it."""
    return folder.is_symlink() and folder.resolve() in {above.resolve() for above in folder.parents}


def _as_one(value: Any) -> Any:
    return (
        {key: _as_one(v) for key, v in value.items()}
        if isinstance(value, dict)
        else canonical_number(value)
    )


def _first(split: Split, n: int) -> Split:
    if n > len(split):
        raise ValueError(f"Expected at most {len(split)} `rows`, got {n}.")
    clean = split.clean
    raw = split.raw
    return Split(
        take(split.x, torch.arange(n)),
        split.y[:n],
        None if clean is None else clean[:n],
        None if raw is None else raw[:n],
    )


def foreign_images(spec: str | None, data_dir: PathLike | None = None) -> Tensor | None:
    """Return the training images of another dataset, for open-set noise; None without a spec."""
    images = get_dataset(spec, data_dir).train.x if spec else None
    if images is not None and not isinstance(images, Tensor):
        raise ValueError(
            f"Expected images in memory in {spec!r}, got files. Use a dataset such as cifar100."
        )
    return images


def with_data(
    experiments: Sequence[Experiment], data_dir: PathLike | None = None
) -> tuple[list[Experiment], dict[str, str]]:
    """Return experiments without those on data that its owners send on request and that is not
    there, and how to get it.

    Raises:
        FileNotFoundError: if none is left.
    """
    absent: dict[str, str] = {}
    for name in dict.fromkeys(_name(experiment) for experiment in experiments):
        if name in FILES and FILES[name].request:
            try:
                find(name, data_dir)
            except FileNotFoundError as error:
                absent[name] = str(error)
    there = [experiment for experiment in experiments if _name(experiment) not in absent]
    if absent and not there:
        raise FileNotFoundError(" ".join(absent.values()))
    return there, absent


def _name(experiment: Experiment) -> str:
    return experiment.dataset.partition(":")[0]


# Refusals


@contextmanager
def _blame(experiment: Experiment, field: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise BadExperiment(str(error), experiment, field) from error


def check_names(experiment: Experiment) -> None:
    """Refuse names that nothing has, for which no data need be there."""
    specs: dict[str, tuple[Registry[Any], str | None]] = {
        "dataset": (DATASETS, experiment.dataset),
        "foreign": (DATASETS, experiment.foreign),
        "noise": (NOISES, experiment.noise),
        "model": (MODELS, experiment.settings.model),
    }
    for name, (registry, spec) in specs.items():
        with _blame(experiment, name):
            _ = spec in (None, "auto") or registry[spec.partition(":")[0].strip()]
    with _blame(experiment, "method"):
        check_method(experiment.method)


def check(experiments: Iterable[Experiment], data_dir: PathLike | None = None) -> None:
    """Refuse experiments that cannot start: no such dataset, noise, method or model.

    Of experiments that differ only in seeds one is checked.
    """
    load = lru_cache(maxsize=2)(partial(get_dataset, data_dir=data_dir))
    make = lru_cache(maxsize=1)(partial(_checked_task, load=load, data_dir=data_dir))
    distinct: dict[Experiment, Experiment] = {}
    tried: set[tuple[object, ...]] = set()
    for experiment in experiments:
        distinct.setdefault(
            replace(experiment.bare, seed=0, noise_seed=0, measures=experiment.measures), experiment
        )
    # by task
    for same, experiment in sorted(distinct.items(), key=lambda item: repr(item[0].without_method)):
        try:
            task = make(same.without_method)
        except BadExperiment as error:
            raise BadExperiment(str(error), experiment, error.field) from error
        settings = experiment.settings
        with _blame(experiment, "method"):
            method = get_method(experiment.method, task, settings)
        with _blame(experiment, "measures"):
            if "annotators" in experiment.measures:
                _check_annotated(experiment, data_dir)
        classes = task.train.num_classes
        with _blame(experiment, "model"):
            model = settings.model_for(task)
        trial = (str(method), model, task.input_shape, classes, task.validation is None)
        if trial in tried:
            continue
        tried.add(trial)
        with _blame(experiment, "model"):
            build_classifier(
                model,
                method.head,
                input_shape=task.input_shape,
                num_outputs=method.loss.num_outputs(classes),
                generator=torch.Generator(),
            )
        with _blame(experiment, "method"):
            _try(task, method, settings)


def _checked_task(
    experiment: Experiment, *, load: Callable[[str], Dataset], data_dir: PathLike | None
) -> Task:
    """Return the task of an experiment without method and settings."""
    with _blame(experiment, "dataset"):
        data = load(experiment.dataset)
    with _blame(experiment, "noise"):
        if get_noise(experiment.noise, data_root(data_dir)).needs == "predictions":
            raise ValueError(
                f"Expected noise that needs no model, got {experiment.noise!r}, which needs the"
                " predictions of one trained on clean labels. Make its labels once"
                " (noiseproof.train.instance.averaged_predictions), save them with numpy.save,"
                " and take the noise file:path=FILE.npy."
            )
    with _blame(experiment, "foreign"):
        foreign_images(experiment.foreign, data_dir)
    with _blame(experiment, "paper"):
        known = sorted({paper for paper, _ in protocols()})
        if experiment.paper is not None and experiment.paper not in known:
            raise ValueError(
                f"Expected a `paper` of {', '.join(known)}, got {experiment.paper!r}. Leave it"
                " out for the usual preparation of inputs."
            )
    with _blame(experiment, "rows"):
        _first(data.train, experiment.rows or 1)
    try:
        return experiment.make_task(data_dir, data=data)
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise BadExperiment(str(error), experiment) from error


def _check_annotated(experiment: Experiment, data_dir: PathLike | None) -> None:
    got = None
    if experiment.dataset != "cifar10":
        got = repr(experiment.dataset)
    elif experiment.rows is not None:
        got = f"rows = {experiment.rows}"
    if got:
        raise ValueError(f"Expected all rows of cifar10 to measure annotators' labels, got {got}.")
    find("cifar10n", data_dir, group=1)


def _try(task: Task, method: Method, settings: Settings) -> None:
    """Train one step on two rows, in which heads, strategies and losses refuse what they cannot
    use.

    The rows come from a few of each class; if these are refused, from all.
    """
    order = task.train.given.argsort(stable=True)
    start = torch.searchsorted(task.train.given[order], torch.arange(task.train.num_classes))
    few = order[torch.unique((start[:, None] + torch.arange(4)).clamp(max=len(order) - 1))]
    short = replace(settings, batch_size=2, compile=False, workers=0)
    fabric = Fabric(accelerator="cpu", devices=1)
    for rows in (few, None):
        part = task if rows is None else replace(task, train=task.train.subset(rows))
        try:
            for _ in training(Job(part, method, short), fabric, max_steps=1):
                pass
        except (Interrupted, Diverged):  # after one step; a run that diverges reports it itself
            return
        except (ValueError, TypeError):
            if rows is None:
                raise
        except Exception:  # perhaps of this machine only; the run may have another
            return
        else:
            return


# Files

FIELDS = [f.name for f in fields(Experiment) if f.name != "settings"]
SETTINGS = [f.name for f in fields(Settings)]
KEYS = [*FIELDS, "protocol", *SETTINGS]


def load_experiments(
    source: PathLike, *, data_dir: PathLike | None = None, check_runs: bool = True
) -> list[Experiment]:
    """Read experiments from a TOML file, or from its text; errors name the block and its key.

    Experiments that cannot start are refused (``check``), for which the data must be there; without
    ``check_runs`` unknown names are.

    Every ``[[experiment]]`` has the fields of ``Experiment`` and ``Settings``; a list of values is
    a grid, and several lists are their product, the last varying fastest. ``protocol`` takes a
    paper's settings and preparation of inputs for the dataset; other keys override them.

    >>> text = '''
    ... [[experiment]]
    ... dataset = "digits"
    ... noise = ["none", "symmetric:rate=0.4"]
    ... method = ["ce", "gce:q=0.7"]
    ... model = "mlp:hidden=[16]"
    ... seed = [0, 1, 2]
    ... '''
    >>> len(load_experiments(text))
    12
    """
    folder_digest.cache_clear()
    name = "text"
    text = str(source)
    if "\n" not in text and not text.lstrip().startswith("["):
        name = text
        try:
            text = Path(source).read_text("utf-8-sig")  # some editors write a byte order mark
        except UnicodeDecodeError as error:
            raise BadExperiment(f"{name}: Expected TOML in UTF-8, got: {error}.") from None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadExperiment(f"{name}: Expected TOML, got: {error}.") from None
    blocks = content.pop("experiment", None)
    if content or not isinstance(blocks, list):
        raise BadExperiment(
            f"{name}: Expected [[experiment]] blocks, in two brackets, and nothing else, got"
            f" {next(iter(content), '[experiment]' if blocks else 'none')}."
        )
    origins: dict[Experiment, int] = {}
    number = 0
    try:
        for number, block in enumerate(blocks, 1):
            for experiment in _product(block):
                origins.setdefault(experiment, number)
        if check_runs:
            check(origins, data_dir)
        else:
            for experiment in origins:
                check_names(experiment)
    except BadExperiment as error:
        if error.experiment is not None:
            number = origins[error.experiment]
        place = f"{name}, [[experiment]] {number}"
        if error.field:
            place += f", {error.field}"
        raise BadExperiment(f"{place}: {error}", error.experiment, error.field) from error
    return list(origins)


def _product(block: Mapping[str, Any]) -> Iterator[Experiment]:
    for key in block:
        if key not in KEYS:
            word, example = ELSEWHERE.get(key, ("", ""))
            remedy = f'Write {word} = "{example}".' if word in KEYS else near_names(key, KEYS)
            raise BadExperiment(f"Unknown key {key!r}. {remedy}")
    if "dataset" not in block:
        raise BadExperiment("Expected a `dataset` in each [[experiment]], got none.")
    grid = {key: value if isinstance(value, list) else [value] for key, value in block.items()}
    for key, values in grid.items():
        if not values:
            raise BadExperiment(f"Expected values for `{key}`, got an empty list.")
    load_plugins()
    noises = {str(noise).partition(":")[0].strip() for noise in grid.get("noise", ["none"])}
    if "foreign" in grid and not noises & {"open-set", *plugins.MODULES}:  # a plug-in may use it
        raise BadExperiment(
            "Expected open-set noise with `foreign`, which gives it images, got"
            f" {', '.join(sorted(noises))}. Leave `foreign` out, or take noise ="
            ' "open-set:rate=…".'
        )
    for chosen in product(*grid.values()):
        try:
            experiment = _experiment(dict(zip(grid, chosen, strict=True)))
        except (ValueError, TypeError) as error:
            raise BadExperiment(str(error)) from error
        yield experiment


def _experiment(point: dict[str, Any]) -> Experiment:
    """Return the experiment with these fields and settings, others as in its protocol."""
    base = Settings()
    paper = point.pop("protocol", None)
    if paper is not None:
        base = protocol(paper, str(point["dataset"]).partition(":")[0])
        point.setdefault("paper", paper)
    of_experiment = {key: point.pop(key) for key in FIELDS if key in point}
    return Experiment(**of_experiment, settings=replace(base, **point))
