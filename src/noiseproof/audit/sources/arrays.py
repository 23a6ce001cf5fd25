"""Arrays: inputs and labels in .npy or .npz files, or in memory; and features from arrays for every
source.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.audit.copies import cell_table, corrected_labels, label_words, with_labels
from noiseproof.audit.correction import Correction
from noiseproof.audit.files import as_words, labels_digest
from noiseproof.audit.memory import INPUTS, LABELS
from noiseproof.audit.pictures import Picture, encode_picture
from noiseproof.audit.rows import Digests, digest_array, digest_words
from noiseproof.audit.sources.annotations import voted_labels
from noiseproof.audit.sources.base import (
    SOURCES,
    AuditData,
    Columns,
    Content,
    Request,
    Source,
    note_features,
    picture_features,
)
from noiseproof.core.arrays import Array, Bools, Floats32, Ints
from noiseproof.core.files import replacing
from noiseproof.core.limits import LimitExceeded, check_members
from noiseproof.core.messages import near_file, preview
from noiseproof.core.tablefiles import table_kind
from noiseproof.data.arrays import SparseAxes, check_features, is_sparse
from noiseproof.data.given import encode_given
from noiseproof.data.labelsets import NONE as NO_LABEL
from noiseproof.data.labelsets import Labels, are_lists, is_matrix, sets_as_words
from noiseproof.data.pictures import SMALLEST
from noiseproof.data.sources import PATHS
from noiseproof.data.tables import FeatureTable, moments, shift_of

SPARSE = {"format", "shape", "data"}  # arrays of a file that scipy.sparse.save_npz writes
MOST_NUMBERS = 64  # of a vector on the page
MOST_COLUMNS = 100  # of an array for decision trees
WIDEST = 1000  # columns of an array of which the page shows those that separate classes


class LabelSource(Source):
    """Labels in an array, whose rows belong to other arrays by their place."""

    def _with_labels(self, labels: Array, classes: Sequence[str] | None) -> AuditData:
        labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
        self.row_words = as_words(labels)
        # an empty word says that there is no label; what is absent is not labelled
        if self.multi_label and labels.ndim == 1:
            gaps = import_module("pandas").isna(labels)
            words = [
                None if gap else word or NO_LABEL
                for word, gap in zip(self.row_words, gaps, strict=True)
            ]
            labels = np.array(words, dtype=object)
        given, names = encode_given(labels, classes, "labels")
        self.config["labels_sha256"] = labels_digest(self.row_words)
        data = AuditData(
            Labels.of_classes(names, given), np.arange(len(labels)), len(labels), source=self
        )
        return data.without([("no label", given < 0)])

    def _as_words(self, labels: Any, request: Request) -> tuple[Any, Request]:
        """Return a matrix or lists inside a file, a dict or a data set as words, the request
        without their names.
        """
        if self.multi_label or (not is_matrix(labels) and not are_lists(labels)):
            return labels, request
        labels, multi = sets_as_words(labels, request.classes)
        self.config |= {"multi_label": multi, "classes_named": False}
        return labels, replace(request, classes=None)

    @property
    def labels_entry(self) -> str:
        are_apart = self.config.get("labels") or self.config.get("labels_key") is None
        return "labels" if are_apart and not self.is_voted else "data"

    def open_labels(self, path: Path) -> Array:
        """Return the labels in a .npy file, or those among the arrays of a .npz file; no pickled
        objects.
        """
        key = self.config.get("labels_key")
        arrays = open_arrays(path, "labels", LABELS if key is None else (key,))
        return next(iter(arrays.values()))

    @cached_property
    def labels(self) -> list[str] | None:
        path = Path(self.config.get(self.labels_entry) or "")
        if self.is_voted or not path.is_file():
            return None
        return label_words(self, self.open_labels(path))

    @cached_property
    def row_words(self) -> list[str]:
        """The labels, which were just read, or are in a file."""
        return self.labels or []

    @cached_property
    def row_digests(self) -> Digests:
        return digest_words(self.row_words)

    def default_out(self) -> Path:
        return Path(f"corrected{'.csv' if self.is_voted else '.npy'}")

    @property
    def can_leave_out(self) -> bool:
        return False

    def write(self, correction: Correction, out: Path) -> None:
        """Write the labels alone, of the same type and shape; of a consensus, a table of the rows'
        numbers with it.
        """
        wanted = self.default_out().suffix
        if out.suffix != wanted:
            what = "consensus on rows of arrays" if self.is_voted else "corrected labels"
            raise ValueError(f"Expected a {wanted} file for the {what}, got {out}.")
        with replacing(out, overwrite=False) as part:
            if correction.consensus is not None:
                cell_table(correction.consensus).to_csv(part, index=False, lineterminator="\n")
                return
            labels = self.open_labels(Path(self.config[self.labels_entry]))
            with open(part, "wb") as file:
                np.save(file, with_labels(labels, correction))

    def corrected(self, data: Any, correction: Correction) -> Any:
        if correction.consensus is not None:
            return cell_table(correction.consensus)
        return super().corrected(data, correction)


@SOURCES.register_class("arrays")
class ArraySource(LabelSource):
    """An array of inputs, (N, …), and one of labels, (N,)."""

    files = "arrays (.npy, .npz)"
    feature_kind = "pictures"

    def accepts(self, request: Request) -> bool:
        if request.path is not None:
            return request.path.suffix.lower() in (".npy", ".npz")
        return isinstance(request.data, (np.ndarray, Tensor, list, tuple)) or is_sparse(
            request.data
        )

    def read(self, request: Request) -> AuditData:
        path = request.path
        labels = request.labels
        if path is None:
            arrays = {"": load_array(request.data, "inputs")}
        else:
            groups = [INPUTS, LABELS] if labels is None else [INPUTS]
            arrays = open_arrays(path, "inputs", *groups)
        inputs = _first(arrays, INPUTS)
        if inputs is None:
            raise ValueError(f"Expected inputs in {path}, called {' or '.join(INPUTS)}, got none.")
        labels_key = next((name for name in LABELS if name in arrays), None)
        if labels is None and labels_key is not None:
            self.config["labels_key"] = labels_key
            labels = arrays[labels_key]
        elif labels is None and request.annotations is not None:
            labels = voted_labels(request, len(inputs), self.config["consensus"])
            self.config["voted"] = True
        elif labels is None:
            if path is None:
                raise ValueError("Expected `labels` with the array of inputs, got none.")
            raise ValueError(
                f"Expected labels with the inputs of {path}, got none. Name their .npy file with"
                f" `labels`, or save them in the .npz file as {LABELS[0]}."
            )
        labels, request = self._as_words(load_array(labels, "labels"), request)
        data = self._with_labels(labels, request.classes)
        if path is None:
            self.inputs = inputs  # to show them
        if request.embeddings is not None:
            return data
        return with_features(data, inputs, "inputs", request)

    @cached_property
    def inputs(self) -> Array:
        path = Path(self.config["data"])
        if path.suffix == ".npy":
            mapped: Array = np.load(path, mmap_mode="r", allow_pickle=False)
            return mapped
        return next(iter(open_arrays(path, "inputs", INPUTS).values()))

    @cached_property
    def row_digests(self) -> Digests:
        # which is set where they are in memory
        has_inputs = self.config.get("data") or "inputs" in self.__dict__
        words = [""] * len(self.inputs) if has_inputs and self.is_voted else self.row_words
        return self._digest(self.inputs, words) if has_inputs else digest_words(words)

    def _digest(self, inputs: Any, words: Sequence[str]) -> Digests:
        if inputs.shape[0] != len(words):
            raise ValueError(
                f"Expected a label for each row of the inputs, got {len(words)} for"
                f" {inputs.shape[0]}."
            )
        return digest_array(inputs) + digest_words(words)

    def __len__(self) -> int:
        return int(self.inputs.shape[0])

    def _row(self, row: int) -> Array:
        values: Any = self.inputs[[row]]
        return np.asarray((values.toarray() if is_sparse(values) else values)[0])

    @cached_property
    def has_pictures(self) -> bool:
        return len(self) > 0 and as_pixels(self._row(0)) is not None

    def show(self, row: int, id: str) -> Content:
        if self.has_pictures:
            return {"has_image": True}
        values = self._row(row).ravel()
        # of a long row, zeros show least
        most = np.argsort(values == 0, kind="stable")[:MOST_NUMBERS]
        fields = [[str(i), f"{values[i]:.6g}"] for i in sorted(most.tolist())]
        content: Content = {"fields": fields}
        if len(values) > MOST_NUMBERS:
            zeros = int((values == 0).sum())
            rest = f"; {zeros} are 0" if zeros else ""
            content["note"] = f"{MOST_NUMBERS} of {len(values)} numbers{rest}"
        return content

    def picture(self, row: int, id: str, side: int) -> Picture | None:
        from PIL import Image

        pixels = as_pixels(self._row(row))
        return None if pixels is None else encode_picture(Image.fromarray(pixels), side)

    def columns(self, given: Ints) -> Columns:
        inputs = self.inputs
        is_table = inputs.ndim == 2 and not is_sparse(inputs) and inputs.dtype.kind in "biuf"
        if not is_table or inputs.shape[1] > WIDEST:
            return {}
        values = np.where(np.isfinite(inputs), inputs, np.nan).astype(np.float64)
        return {str(k): values[:, k] for k in range(values.shape[1])}

    def corrected(self, data: Any, correction: Correction) -> Any:
        """Return the labels, or a data set of pictures, corrected; of a consensus, a table of the
        rows' numbers.
        """
        if correction.consensus is not None:
            inputs = load_array(data, "inputs")
            found = correction.found_in(self._digest(inputs, [""] * len(inputs)), None)
            return cell_table(found.consensus or {})
        found_inputs = _first(data, INPUTS) if isinstance(data, dict) else None
        if found_inputs is None:
            return super().corrected(data, correction)
        digest = partial(self._digest, load_array(found_inputs, "inputs"))
        return corrected_labels(data[self.config["labels_key"]], correction, digest)


def _first(arrays: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the only array of a .npy file, or the first of the ``names`` that is there, else
    None.
    """
    return next((arrays[name] for name in ("", *names) if name in arrays), None)


def open_arrays(path: Path, what: str, *groups: Sequence[str]) -> dict[str, Array]:
    """Return the arrays of a .npz file, or of each of the ``groups`` of names the first one that is
    there; of a .npy file or a sparse matrix the only one as "".

    No others are read. Pickled objects are refused.
    """
    if not path.exists():
        raise FileNotFoundError(f"Expected {what} at {path}, found no such file.{near_file(path)}")
    if table_kind(path) is not None:
        raise ValueError(
            f"Expected a .npy file of {what}, got {path}. Audit the table, with the name of its"
            " `label`."
        )
    with _readable(path):
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        if {*loaded} >= SPARSE:
            check_members(loaded.zip, path)
            matrix = import_module("scipy.sparse").load_npz(path)
            if hasattr(matrix, "check_format"):
                # indices outside of the matrix would read other memory
                matrix.check_format(full_check=True)
            return {"": matrix}
        wanted = []
        for names in groups or [[name] for name in loaded]:
            wanted += [name for name in names if name in loaded][:1]
        check_members(loaded.zip, path, {*wanted, *(f"{name}.npy" for name in wanted)})
        return {name: loaded[name] for name in wanted}


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except LimitExceeded:
        raise
    except Exception as error:  # zip files and headers break in many ways
        raise ValueError(
            f"Expected arrays of numbers or words in {path}, got {type(error).__name__}: {error}. "
            "Save them with numpy.save; words as array(words, dtype=str)."
        ) from error


def load_array(value: Any, name: str) -> Array:
    """Return an array in memory, or the one of a .npy file; sparse matrices stay such."""
    if is_sparse(value):
        sparse: Array = value
        return sparse
    if not isinstance(value, PATHS):
        return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    arrays = open_arrays(Path(value), name)
    if len(arrays) > 1:
        raise ValueError(
            f"Expected one array of {name} in {value}, got {preview(list(arrays))}. Save it with"
            " numpy.save."
        )
    return next(iter(arrays.values()))


def align(data: AuditData, array: Array, name: str) -> Array:
    """Return the rows of ``array``, which has one for each row of the source, that belong to
    ``data``.
    """
    if (data.row < 0).any():
        raise ValueError(
            f"Expected no trusted table with `{name}`, which have no rows for it. Use a column or"
            " a .npy file."
        )
    if array.ndim < 2 or len(array) != data.source_rows:
        remedy = ""
        if array.ndim == 1 and name == "pred_probs":
            remedy = (
                " For two classes, make columns 1 − p and p, the second one's: stack([1 - p, p],"
                " axis=1)."
            )
        elif array.ndim == 1:
            remedy = " For one number per row, make a column of them: array[:, None]."
        raise ValueError(
            f"Expected `{name}` with {data.source_rows} rows, as the data has, got shape"
            f" {array.shape}.{remedy}"
        )
    return array[data.row]


def _as_pictures(inputs: Tensor, finite: Bools, name: str) -> tuple[Tensor, list[str]]:
    """Return ``inputs`` scaled to bytes if their shape is a picture's, else unchanged; and notes.

    All pictures have the same scale. The notes tell the user how the numbers were read.
    """
    if min(inputs.shape[-2:]) < SMALLEST:
        return inputs, []
    if inputs.dim() != 4 or inputs.shape[1] not in (1, 3, 4):
        return inputs, [
            f"`{name}` of shape {tuple(inputs.shape)} were audited as plain numbers. Save pictures"
            " as (N, C, H, W)."
        ]
    known = inputs[torch.from_numpy(finite)]
    low = min(0.0, known.min().item())
    high = known.max().item()
    scaled = (inputs - low) * (255 / max(high - low, 1e-12))
    return scaled.round().clamp(0, 255).to(torch.uint8), [
        f"`{name}` were read as pictures, {low:g} as black, {high:g} as white. If that is wrong,"
        " save them as uint8."
    ]


def _squarable(x: Floats32) -> Floats32:
    """Return ``x`` divided by its largest number where squares would leave float32."""
    largest = float(np.abs(x).max())
    if largest > 1e12 or 0 < largest < 1e-12:
        return x / np.float32(largest)
    return x


def with_features(
    data: AuditData, array: Array, name: str, request: Request | None = None
) -> AuditData:
    """Return ``data`` with features from ``array``; rows that are not finite are left out.

    With a ``request``, they are the inputs that it asks for, which are scaled; else features made
    elsewhere.
    """
    array, notes = _dense(array, name, 0 if request is None else request.seed)
    # Decision trees split one column at a time: not of pixels, embeddings or axes.
    is_table = array.ndim == 2 and request is not None and not notes
    array = align(data, array, name)
    if array.dtype.kind not in "biufO":
        raise TypeError(
            f"Expected numbers in `{name}`, got dtype {array.dtype}. Audit words as a column of a"
            " table: texts with `text`, categories as they are."
        )
    finite = _finite_rows(array)
    if not finite.any():
        raise ValueError(f"Expected finite numbers in `{name}`, got none in any row.")
    if array.dtype == np.float64 and array.ndim == 2:
        # before float32 rounds the differences away
        array = array - shift_of(*moments(array[finite]))
    usable = finite.reshape(-1, *[1] * (array.ndim - 1))
    inputs, more = check_features(np.where(usable, array, 0), name)
    notes += more
    if request is not None and inputs.dtype is not torch.uint8 and inputs.dim() > 2:
        inputs, more = _as_pictures(inputs, finite, name)
        notes += more
    if inputs.dtype is torch.uint8:
        pictures = inputs if finite.all() else inputs[torch.from_numpy(finite)]
        x, description = picture_features(data.source, pictures, finite, request or Request())
        if description["weights"] is not None:
            notes.append(note_features(data.source, description))
    else:
        if data.source.config["features"] is not None:
            raise ValueError(
                f"Expected pictures (N, C, H, W) for `features`, got `{name}` of shape"
                f" {array.shape}."
            )
        x = inputs.flatten(1).numpy()
        if request is not None:
            x = _standardised(x, finite)
        x = _squarable(x)
    table = FeatureTable.of_numbers(x) if is_table and x.shape[1] <= MOST_COLUMNS else None
    data = replace(data, x=x, table=table, notes=(*data.notes, *notes))
    return data.subset(finite, f"NaN, infinite or too large numbers in {name}")


def _dense(array: Array, name: str, seed: int) -> tuple[Array, list[str]]:
    """Return an array as it is, a sparse matrix on its main axes, and a note on these."""
    if not is_sparse(array):
        return array, []
    dense = SparseAxes(array, seed=seed).encode(array)
    width = array.shape[1]
    if dense.shape[1] == width:
        return dense, []
    return dense, [
        f"The {width} columns of the sparse `{name}` were projected onto their {dense.shape[1]}"
        " main axes."
    ]


def _finite_rows(array: Array) -> Bools:
    if array.dtype.kind != "f":
        return np.ones(len(array), dtype=bool)
    with np.errstate(over="ignore"):  # too large for float32 counts as infinite
        flat = array.astype(np.float32).reshape(len(array), -1)
    return np.asarray(np.isfinite(flat).all(1))


def _standardised(x: Floats32, finite: Bools) -> Floats32:
    """Return columns with mean 0, each with deviation 1 if deviations differ more than tenfold,
    else all together.
    """
    mean = x[finite].mean(0, dtype=np.float64)
    std = x[finite].std(0, dtype=np.float64)
    varying = std[std > 0]
    if not len(varying):
        return np.asarray(x - mean, np.float32)
    median = float(np.median(varying))
    differ = (varying > 10 * median).any() or (varying < median / 10).mean() > 0.5
    scale = np.where(std > 0, std, 1) if differ else median
    return np.asarray((x - mean) / scale, np.float32)


def as_pixels(row: Array) -> NDArray[np.uint8] | None:
    """Return (H, W) or (H, W, 3) bytes of an array with the shape of a picture, else None."""
    pixels = np.asarray(row)
    channels = (1, 3, 4)
    if pixels.ndim == 3 and pixels.shape[0] in channels and pixels.shape[2] not in channels:
        pixels = np.moveaxis(pixels, 0, 2)
    if pixels.ndim == 3 and pixels.shape[2] in channels:
        pixels = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels[:, :, :3]
    elif pixels.ndim != 2:
        return None
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    numbers = np.nan_to_num(pixels.astype(np.float64))
    low = numbers.min()
    high = numbers.max()
    if low >= 0 and high <= 1:
        low = 0.0
        high = 1.0
    scaled = (numbers - low) / max(high - low, 1e-12) * 255
    return np.asarray(scaled.round(), np.uint8)
