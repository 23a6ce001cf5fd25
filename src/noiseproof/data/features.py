"""Features of texts and pictures by name: a registry with one class for each way to compute them,
and their cache.
"""

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import torch

from noiseproof.core.arrays import Floats32
from noiseproof.core.cluster import map_jobs
from noiseproof.core.files import read_tensors, write_tensors
from noiseproof.core.grammar import format_call, parse_call, parse_sum
from noiseproof.core.messages import Progress
from noiseproof.core.registry import Registry
from noiseproof.data.sources import PathLike
from noiseproof.models.pretrained import Weights, check_packages, is_installed, spelled_out

log = logging.getLogger("noiseproof")

Kind = Literal["texts", "pictures"]
FORMAT = "2"  # of cached features: a new one recomputes them


class Extractor(ABC):
    """Computes features (N, F) of N texts or pictures; its options are keyword arguments of the
    class.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind]
    packages: ClassVar[tuple[str, ...]] = ()  # modules that must be installed
    extra: ClassVar[str] = ""  # of noiseproof, which installs them
    # whether it is a library of models, the first option the model's name
    loads_by_name: ClassVar[bool] = False
    summary: ClassVar[str]  # one line for the list

    def fit(self, rows: Any, *, seed: int = 0) -> Self:
        """Learn from the rows what ``encode`` needs, without labels; most pretrained ones learn
        nothing.
        """
        return self

    @abstractmethod
    def encode(self, rows: Any, *, progress: Progress | None = None) -> Floats32:
        """Return features (N, F) of texts (a sequence of strings) or of `Pictures`."""

    def fit_encode(self, rows: Any, *, seed: int = 0, progress: Progress | None = None) -> Floats32:
        """Return the features of the rows that it is fitted to."""
        return self.fit(rows, seed=seed).encode(rows, progress=progress)

    def weights(self) -> Weights | None:
        """Return where the pretrained weights come from; None where all is computed from the
        rows.
        """
        return None

    def checksums(self) -> list[str]:
        """Return the checksum of all pretrained weights."""
        weights = self.weights()
        return [] if weights is None else [weights.sha256]

    @property
    def spec(self) -> str:
        """Return the name with its options."""
        options = {key: getattr(self, key) for key in FEATURES.parameters(self.name)}
        spec = FEATURES.canonical(format_call(self.name, options))
        return spec.replace(":model=", ":", 1) if self.loads_by_name else spec

    @classmethod
    def is_available(cls) -> bool:
        return is_installed(*cls.packages)


FEATURES: Registry[Extractor] = Registry("features", returns=Extractor)


def get_extractor(spec: str, kind: Kind) -> Extractor:
    """Return the extractor that ``spec`` names: ``tfidf:dim=128``, ``timm:resnet50.a1_in1k``,
    ``wordllama + tfidf``.
    """
    if not isinstance(spec, str):
        raise TypeError(f"Expected the name of features for {kind}, got {type(spec).__name__}.")
    terms = [(weight, _create(term, kind)) for weight, term in parse_sum(spec)]
    return terms[0][1] if len(terms) == 1 else Joined(terms)


def _create(spec: str, kind: Kind) -> Extractor:
    name, params = parse_call(spelled_out(spec, "model"))
    cls: Any = FEATURES[name]
    if cls.kind != kind:
        suitable = sorted(name for name in FEATURES if cast(Any, FEATURES[name]).kind == kind)
        raise ValueError(
            f"Expected features for {kind}, one of {', '.join(suitable)}, got {spec!r}."
        )
    check_packages(f"The extractor {spec!r}", cls.packages, cls.extra)
    return FEATURES.create(name, **params)


class Joined(Extractor):
    """Features of several extractors side by side, each with the same total variance times its
    weight squared.
    """

    def __init__(self, terms: Sequence[tuple[float, Extractor]]) -> None:
        self.terms = terms
        self.kind = terms[0][1].kind  # type: ignore[misc]

    def fit(self, rows: Any, *, seed: int = 0) -> Self:
        self.fit_encode(rows, seed=seed)
        return self

    def fit_encode(self, rows: Any, *, seed: int = 0, progress: Progress | None = None) -> Floats32:
        parts = []
        self.scales = []
        for weight, extractor in self.terms:
            part = extractor.fit_encode(rows, seed=seed, progress=progress)
            scale = np.float32(weight / max(float(part.var(0).sum()) ** 0.5, 1e-9))
            self.scales.append(scale)
            parts.append(scale * part)
        return np.hstack(parts)

    def encode(self, rows: Any, *, progress: Progress | None = None) -> Floats32:
        return np.hstack(
            [
                scale * extractor.encode(rows, progress=progress)
                for scale, (_, extractor) in zip(self.scales, self.terms, strict=True)
            ]
        )

    def weights(self) -> Weights | None:
        return next(filter(None, (extractor.weights() for _, extractor in self.terms)), None)

    def checksums(self) -> list[str]:
        return [checksum for _, extractor in self.terms for checksum in extractor.checksums()]

    @property
    def spec(self) -> str:
        return " + ".join(
            extractor.spec if weight == 1 else f"{weight:g}*{extractor.spec}"
            for weight, extractor in self.terms
        )


def encode_blocks(
    function: Callable[..., Any],
    blocks: Iterable[Any],
    *shared: Any,
    total: int,
    what: str,
    progress: Progress | None,
    per_task: int = 1,
) -> Floats32:
    """Join the features ``function(block, *shared)`` of blocks of rows, (N, F).

    ``progress`` is told ``what`` is done to how many of ``total`` rows.
    """
    parts: list[Floats32] = []
    done = 0
    for features in map_jobs(function, blocks, *shared, per_task=per_task):
        parts.append(np.asarray(features, dtype=np.float32))
        done += len(features)
        if progress is not None:
            progress(what, done, total)
    return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)


def describe(extractor: Extractor) -> dict[str, Any]:
    """Return the spec of an extractor and, where it is pretrained, package, version, licence and
    checksum.
    """
    weights = extractor.weights()
    return {"name": extractor.spec, "weights": None if weights is None else asdict(weights)}


def compute(
    extractor: Extractor,
    rows: Any,
    content: Callable[[], str],
    *,
    seed: int,
    progress: Progress | None,
    cache: PathLike | None,
) -> Floats32:
    """Return the features of ``rows``, from the folder ``cache`` if they are in it; ``content()``
    is their digest.
    """
    if cache is None:
        return extractor.fit_encode(rows, seed=seed, progress=progress)
    key = digest([FORMAT, extractor.spec, *extractor.checksums(), str(seed), content()])
    path = Path(cache, f"features-{key[:16]}.safetensors")
    x = read_array(path, key)
    if x is None:
        x = extractor.fit_encode(rows, seed=seed, progress=progress)
        keep_array(path, key, x)
    return x


def digest(parts: Iterable[str | bytes]) -> str:
    """SHA-256 of strings in order; their lengths count, too, so that ["ab", "c"] is not ["a",
    "bc"].
    """
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def read_array(path: Path, key: str) -> Floats32 | None:
    """Return the array in a file of the cache; None if there is none, or it is damaged or of
    something else.
    """
    if not path.is_file():
        return None
    why = "of other data"
    try:
        tensors, header = read_tensors(path)
        if header.get("key") == key:
            return np.asarray(tensors["x"].numpy())
    except Exception as error:
        why = f"not readable ({error})"
    log.warning("what is stored in %s is %s: it is computed again.", path, why)
    return None


def keep_array(path: Path, key: str, x: Floats32) -> None:
    """Store an array; a folder that can't be written to costs only the next computation."""
    x = np.require(x, requirements=["C", "W"])  # PyTorch warns of others
    try:
        write_tensors(path, {"x": torch.from_numpy(x)}, {"key": key})
    except OSError as error:
        log.warning("%s could not be stored: %s.", path, error)
