"""The papers, one TOML file each: citation, presets, protocols, augmentation, search grids,
published tables.

docs/extending/paper.md describes the format of a file. A file is parsed when it is first needed, in
1 to 3 ms.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal, NamedTuple

PAPERS = {
    "ln": "LN paper",
    "sln": "SLN paper",
    "bias": "bias paper",
    "nal": "NAL paper",
    "curriculum": "curriculum paper",
    "sop": "SOP paper",
    "pes": "PES paper",
    "promix": "ProMix paper",
}
QUALIFIERS = ("dataset", "num_classes", "noise", "rate")  # what a preset may depend on
NUM_CLASSES = {
    "mnist": 10,
    "fashion-mnist": 10,
    "cifar10": 10,
    "cifar10n": 10,
    "clothing1m": 14,
    "cifar100": 100,
    "cifar100n": 100,
    "webvision": 1000,
}


class Preset(NamedTuple):
    """A paper's hyperparameters of a loss or a method for some data."""

    name: str
    paper: str
    data: dict[str, Any]  # values of QUALIFIERS
    spec: str

    def __str__(self) -> str:
        return f"{format_data(self.data)} → {self.spec}"


@dataclass(frozen=True, eq=False)
class Paper:
    """A paper's file, parsed."""

    name: str
    content: Mapping[str, Any]

    @property
    def citation(self) -> str:
        """Authors, title, venue and year."""
        return "{authors}: {title} ({venue} {year})".format_map(self.content)

    @cached_property
    def loss_presets(self) -> tuple[Preset, ...]:
        """Settings of losses, which can also be chosen by the number of classes of the dataset."""
        presets = self._expand("losses")
        return tuple(
            p._replace(data=p.data | {"num_classes": NUM_CLASSES[p.data["dataset"]]})
            for p in presets
        )

    @cached_property
    def method_presets(self) -> tuple[Preset, ...]:
        """Settings of methods; settings of losses hold for the methods of the same name."""
        as_methods = (
            p._replace(name="bitemp") if p.name == "bitempered" else p for p in self.loss_presets
        )
        return (*self._expand("methods"), *as_methods)

    def _expand(self, kind: Literal["losses", "methods"]) -> Iterator[Preset]:
        """Return one preset for each row and column of the blocks."""
        for block in self.content["preset"]:
            data = {key: value for key, value in block.items() if key in QUALIFIERS}
            width = max(
                (len(value) for value in data.values() if isinstance(value, list)), default=1
            )
            values_of = by_column(data, width)
            columns = [{key: values_of[key][i] for key in data} for i in range(width)]
            for name, template, *values in block.get(kind, ()):
                for column, value in zip(columns, values or [[]] * width, strict=True):
                    arguments = value if isinstance(value, list) else [value]
                    yield Preset(
                        name, self.name, column, template.format(*arguments) if values else template
                    )

    @cached_property
    def protocols(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Settings of a run, by whose protocol it is (this paper's, or one that it repeats) and
        dataset.
        """
        return self._by_dataset("protocol")

    @cached_property
    def augmentations(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Transformations in ``train`` and ``test``, ``mean`` and ``std``, by the same."""
        return self._by_dataset("augmentation")

    def _by_dataset(self, kind: str) -> dict[tuple[str, str], dict[str, Any]]:
        blocks = [
            {"papers": [block.get("paper", self.name)], **block} for block in self.content[kind]
        ]
        return {
            (paper, dataset): {
                k: v for k, v in block.items() if k not in ("paper", "papers", "datasets")
            }
            for block in blocks
            for paper in block["papers"]
            for dataset in block["datasets"]
        }

    def grids(self, dataset: str) -> dict[str, str]:
        """Return what the paper searches on ``dataset``, by method; empty if it reports no search.

        >>> get_paper("ln").grids("cifar10")["ln"], get_paper("ln").grids("mnist")["ln"]
        ('ln:tau=[0.1,0.5,1],lam=[0.5,1],start=1', 'ln:tau=[0.1,0.5,1],lam=[0.1,0.5,1],start=1')
        """
        on = self.content.get("grids_on", {}).get(dataset.partition(":")[0], {})
        return {
            method: grid for method, grid in {**self.content.get("grids", {}), **on}.items() if grid
        }

    @property
    def tables(self) -> list[dict[str, Any]]:
        """Published tables, which ``noiseproof.bench.tables`` reads."""
        tables: list[dict[str, Any]] = self.content["table"]
        return tables


@cache
def get_paper(name: str) -> Paper:
    """Return the paper of this name.

    >>> get_paper("curriculum").citation
    'Ou, Zhang: A Curriculum View of Robust Loss Functions (arXiv 2023)'
    """
    if name not in PAPERS:
        raise ValueError(f"Expected a paper of {', '.join(PAPERS)}, got {name!r}.")
    return Paper(name, tomllib.loads((files(__package__) / f"{name}.toml").read_text("utf-8")))


def by_column(values: Mapping[str, Any], width: int) -> dict[str, list[Any]]:
    """Return one value for each of ``width`` columns: lists as they are, anything else repeated."""
    for key, value in values.items():
        if isinstance(value, list) and len(value) != width:
            raise ValueError(
                f"Expected {width} values of `{key}`, one for each column, got {len(value)}:"
                f" {value}."
            )
    return {
        key: value if isinstance(value, list) else [value] * width for key, value in values.items()
    }


def format_data(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in data.items())


def pop_qualifiers(params: dict[str, Any]) -> dict[str, Any]:
    """Take what describes the data out of ``params``; ``noise=none`` is a kind of noise, not a
    missing value.
    """
    data = {key: params.pop(key) for key in QUALIFIERS if key in params}
    return data | ({"noise": "none"} if "noise" in data and data["noise"] is None else {})


def loss_presets(paper: str | None = None) -> list[Preset]:
    """Return settings of losses in one paper, or in all; none of an unknown paper."""
    return [
        preset
        for name in PAPERS
        if paper in (None, name)
        for preset in get_paper(name).loss_presets
    ]


def method_presets(paper: str | None = None) -> list[Preset]:
    """Return settings of methods in one paper, or in all; none of an unknown paper."""
    return [
        preset
        for name in PAPERS
        if paper in (None, name)
        for preset in get_paper(name).method_presets
    ]


def loss_preset(loss: str, paper: str, data: Mapping[str, Any]) -> str:
    """Return the spec that ``paper`` gives ``loss``; where it depends on the data, ``data`` must
    decide.
    """
    candidates = [preset for preset in loss_presets(paper) if preset.name == loss]
    if not candidates:
        known = ", ".join(sorted({f"{preset.name}@{preset.paper}" for preset in loss_presets()}))
        raise ValueError(f"No preset {loss}@{paper}. There are: {known}.")
    matches = [
        p for p in candidates if all(p.data.get(key) == value for key, value in data.items())
    ]
    return _only_spec(matches, candidates, data, f"Give {', '.join(QUALIFIERS)}")


def presets_of(method: str, paper: str) -> list[Preset]:
    """Return all settings of ``method`` in ``paper``, one at least."""
    if candidates := [preset for preset in method_presets(paper) if preset.name == method]:
        return candidates
    papers = dict.fromkeys(preset.paper for preset in method_presets() if preset.name == method)
    known = ", ".join(f"{method}@{name}" for name in sorted(papers)) or "none of this method"
    raise ValueError(f"No setting {method}@{paper} in the papers. There are: {known}.")


def method_preset(method: str, paper: str, data: Mapping[str, Any]) -> str:
    """Return the spec that ``paper`` gives ``method`` for ``data``: what is known of
    ``QUALIFIERS``.
    """
    candidates = presets_of(method, paper)
    matches = [
        p for p in candidates if all(data.get(key, value) == value for key, value in p.data.items())
    ]
    near = [p for p in candidates if p.data.get("dataset") == data.get("dataset")]
    example = f"{method}@{paper}:{QUALIFIERS[0]}=…"
    if not matches and not near:
        datasets = ", ".join(dict.fromkeys(str(p.data.get("dataset")) for p in candidates))
        raise ValueError(
            f"{method}@{paper} has no setting for {format_data(data)}. Choose another dataset's, as"
            f" in {example}: {datasets}."
        )
    return _only_spec(
        matches, near, data, f"Choose one, as in {example}, with {', '.join(QUALIFIERS)}"
    )


def _only_spec(
    matches: list[Preset], near: list[Preset], data: Mapping[str, Any], remedy: str
) -> str:
    specs = {preset.spec for preset in matches}
    if len(specs) == 1:
        return specs.pop()
    name = f"{near[0].name}@{near[0].paper}"
    fault = "several settings" if matches else "no setting"
    listing = "; ".join(map(str, matches or near))
    raise ValueError(
        f"{name} has {fault} for {format_data(data) or 'unknown data'}. {remedy}: {listing}."
    )
