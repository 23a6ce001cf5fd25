"""What a user has, as rows to audit: a table, texts, a folder of pictures, arrays, or another model's predictions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from noiseproof.audit.files import as_words, labels_digest
from noiseproof.audit.pictures import SMALLEST, PatchFeatures, backbone_features
from noiseproof.core.progress import Progress
from noiseproof.data.arrays import check_features
from noiseproof.data.images import ImageFiles, decode, from_image_folder
from noiseproof.data.labels import describe_labels, encode_labels, find_words, read_labels, some
from noiseproof.data.sources import PathLike
from noiseproof.data.tables import fit_columns, moments, read_table, shift_of
from noiseproof.data.text import TextFeatures
from noiseproof.noise.human import majority_vote

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["table", "text", "folder", "arrays", "predictions"]
TABLES = (".csv", ".tsv", ".parquet", ".pq", ".csv.gz", ".tsv.gz")
INPUTS, LABELS = ("x", "X", "features", "embeddings", "data"), ("y", "labels", "label", "given", "targets")
THUMBNAIL, BACKBONE_SIZE = 32, 224
DAY_AND_MONTH = r"^\s*(\d{1,2})[-/.](\d{1,2})[-/.]\d{2,4}(?!\d)"  # in this order or the other
YES, NO = ("1", "1.0", "true", "yes", "y"), ("0", "0.0", "false", "no", "n", "")


@dataclass(frozen=True, eq=False)
class Skipped:
    """Rows of the source that can't be audited, and why."""

    reason: str
    rows: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AuditData:
    """N rows with a label each, and whatever is known of them; ``row`` −1 marks trusted rows from another file."""

    kind: Kind
    classes: tuple[str, ...]
    given: NDArray[np.int64]  # (N,)
    row: NDArray[np.int64]  # (N,) number in the source
    source_rows: int
    x: NDArray[np.float32] | None = None  # (N, D) what a model sees and neighbours are found in
    pred_probs: NDArray[np.float32] | None = None  # (N, K) of another model
    ids: NDArray[Any] | None = None  # (N,) str
    groups: NDArray[np.int64] | None = None  # (N,)
    time: NDArray[np.float64] | None = None  # (N,)
    trusted: NDArray[np.bool_] | None = None  # (N,)
    annotators: NDArray[np.int64] | None = None  # (N, A), −1: none
    frame: pd.DataFrame | None = field(default=None, repr=False)  # the table, by number in the source
    source: dict[str, Any] = field(default_factory=dict)  # how to read it again
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0  # that reading took

    def __len__(self) -> int:
        return len(self.given)

    def subset(self, keep: NDArray[Any], reason: str | None = None) -> AuditData:
        """The rows where ``keep`` is true; the others are listed as skipped for ``reason``."""
        if keep.all():
            return self
        columns = ("given", "row", "x", "pred_probs", "ids", "groups", "time", "trusted", "annotators")
        kept = {name: value[keep] for name in columns if (value := getattr(self, name)) is not None}
        left = self.row[~keep]
        skipped = (Skipped(reason, left[left >= 0]),) if reason else ()
        return replace(self, **kept, skipped=(*self.skipped, *skipped))

    @property
    def names(self) -> NDArray[Any]:
        """The id of each row, (N,): its number in the source where it has no other."""
        return self.row.astype(str).astype(object) if self.ids is None else self.ids

    def file(self, i: int) -> Path | None:
        """The picture of row ``i``."""
        return Path(self.source["data"], self.names[i]) if self.kind == "folder" else None

    def show(self, i: int) -> str:
        """What a person should see of row ``i``: its text, its cells, its file name, its number."""
        if self.frame is None:
            return str(self.names[i])
        row, columns = int(self.row[i]), self.frame.columns
        if self.kind == "text":
            return str(self.frame[self.source["text"]].iloc[row])
        # Cell by cell: a whole row would be of one type, which rounds large whole numbers beside real ones.
        cells: list[tuple[str, Any]] = [
            (name, self.frame.iloc[row, j]) for j, name in enumerate(columns) if name != self.source["label"]
        ]
        return "\n".join(f"{name}: {value}" for name, value in cells)


def read_rows(
    data: PathLike | pd.DataFrame | NDArray[Any] | Tensor | None = None,
    *,
    label: str | None = None,
    text: str | None = None,
    id: str | None = None,
    group: str | None = None,
    time: str | None = None,
    ignore: Sequence[str] = (),
    trusted: str | PathLike | Any = None,
    annotators: Sequence[str] = (),
    labels: Any = None,
    pred_probs: Any = None,
    embeddings: Any = None,
    classes: Sequence[str] | None = None,
    backbone: str | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> AuditData:
    """Read what is to be audited; a row that can't be is left out and listed, what can't be audited at all is refused.

    Args:
        data: a DataFrame, a .csv, .tsv or .parquet file, a folder with a folder of pictures for each class, a .npz
            file with ``x`` and ``labels``, or an array or a .npy file of inputs beside ``labels``; none where there are
            ``labels`` with ``pred_probs`` or ``embeddings``.
        label: column of the given labels; without it, the majority of ``annotators``.
        text: column of texts, which are audited by their words; the other columns are not looked at.
        id: column that names a row.
        group: column whose equal values belong together, such as a patient: never split between folds.
        time: column of numbers or dates: folds are blocks of time.
        ignore: columns that no model should see.
        trusted: labels known to be right: a column of yes and no, or an array or a .npy file of booleans or row
            numbers, or a table with the same columns, whose rows help but are not audited.
        annotators: columns with the labels of several annotators.
        labels: labels beside arrays, predictions or embeddings: an array, or a .npy file.
        pred_probs: out-of-sample class probabilities (N, K) of another model: nothing is trained. An array, a .npy
            file, or a DataFrame, whose columns are found by name where they have names.
        embeddings: features (N, F) from elsewhere: an array, a DataFrame, or a .npy file.
        classes: names of the classes, in the order of the columns of ``pred_probs``; whole numbers are then positions
            in it, unless they came as words and numbers are among the names.
        backbone: ``timm:NAME`` for pictures, where timm is installed.
        seed: of what the features of texts and pictures draw.
        progress: is told how far the reading of pictures is.
    """
    began = perf_counter()
    path = Path(os.path.abspath(data)) if isinstance(data, (str, os.PathLike)) else None
    if path is not None and not path.exists():
        raise FileNotFoundError(f"Expected a file or a folder to audit at {path}, found none.")
    columns = {
        "label": label, "text": text, "id": id, "group": group, "time": time, "annotators": list(annotators),
        "ignore": list(ignore),
    }  # fmt: skip
    source: dict[str, Any] = {
        "data": path and str(path), "labels": _where(labels), "labels_key": None, "pred_probs": _where(pred_probs),
        "embeddings": _where(embeddings), **columns, "backbone": backbone, "trusted": _where(trusted),
        "classes_named": classes is not None,
    }  # fmt: skip
    if odd := [value for value in source.values() if isinstance(value, str) and not _is_utf8(value)]:
        raise ValueError(
            f"Expected names in UTF-8, which config.json can hold, got {some(odd)}. Give them other names."
        )
    in_memory = isinstance(data, (np.ndarray, Tensor, list, tuple))
    is_table = data is not None and not in_memory and (path is None or path.name.lower().endswith(TABLES))
    is_array = in_memory or (path is not None and path.suffix.lower() in (".npy", ".npz"))
    if path is not None and not (is_table or is_array or path.is_dir()):
        raise ValueError(
            f"Expected a table ({', '.join(TABLES[:3])}), arrays (.npy, .npz) or a folder of pictures, got {path.name}."
        )
    if not is_table and (asked := [name for name, value in columns.items() if value]):
        what = path or ("arrays" if in_memory else "predictions")
        raise ValueError(f"Expected no columns for {what}, got {some(asked)}. Only tables have columns.")
    if is_table and labels is not None:
        raise ValueError("Expected `label`, the column of the labels in the table, got `labels`.")
    if backbone is not None and not (path and path.is_dir()):
        raise ValueError(f"Expected a folder of pictures for the backbone {backbone!r}, got {path or 'none'}.")
    needs_features = embeddings is None and pred_probs is None
    if is_table:
        found = _from_table(path or data, source, classes, trusted, seed, needs_features)
    elif is_array:
        found = _from_arrays(path or data, labels, classes, seed)
    elif path is None:
        found = _from_predictions(labels, pred_probs, embeddings, classes)
    else:
        if labels is not None:
            raise ValueError(
                "Expected no `labels` beside a folder of pictures: the names of its folders are the labels."
            )
        found = _from_folder(path, classes, backbone, seed, progress, needs_features)
    rows = data if is_table else labels
    if pred_probs is not None:
        _check_order(pred_probs, rows, "pred_probs")
        found = _with_pred_probs(found, pred_probs, classes is not None)
    if embeddings is not None:
        _check_order(embeddings, rows, "embeddings")
        found = _with_features(found, _load(embeddings, "embeddings"), "embeddings")
    if trusted is not None and found.trusted is None:
        found = replace(found, trusted=_trusted_rows(found, _load(trusted, "trusted")))
    found = _comparable(replace(found, source={"kind": found.kind, **source, **found.source}))
    return replace(found, seconds=perf_counter() - began)


def _comparable(found: AuditData) -> AuditData:
    """Without the rows whose class has no other row: there is nothing to compare them with."""
    name = found.source["label"] or "labels"
    notes = describe_labels(torch.from_numpy(found.given), found.classes, name)
    counts = np.bincount(found.given, minlength=len(found.classes))
    if (several := int((counts > 1).sum())) < 2:
        raise ValueError(
            f"Expected at least two classes of two rows or more in `{name}`, got {several} among {len(found.classes)} "
            f"classes of {len(found)} rows. Is it an identifier rather than a label?"
        )
    found = replace(found, notes=tuple(dict.fromkeys([*found.notes, *notes])))
    return found.subset(counts[found.given] > 1, "the only row of its class: there is nothing to compare it with")


def _where(value: Any) -> str | None:
    return os.path.abspath(value) if isinstance(value, (str, os.PathLike)) else None


def _is_utf8(name: str) -> bool:
    """Whether a name can be written down; of one that is other bytes Python keeps lone surrogates."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _load(value: Any, name: str) -> NDArray[Any]:
    """An array, or that of a .npy file; reading one executes nothing."""
    if not isinstance(value, (str, os.PathLike)):
        return np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    arrays = _open(Path(value), name)
    if len(arrays) > 1:
        raise ValueError(f"Expected one array of {name} in {value}, got {some(list(arrays))}. Save it with numpy.save.")
    return next(iter(arrays.values()))


def _check_order(table: Any, rows: Any, name: str) -> None:
    """Refuse a DataFrame that has the ``rows``, by its index and theirs (0, 1, … without one), in another order."""
    if not hasattr(table, "iloc"):
        return
    found = table.index.tolist()
    expected = rows.index.tolist() if hasattr(rows, "iloc") else list(range(len(found)))
    if found != expected and len(found) == len(expected) and {*found} == {*expected}:
        raise ValueError(
            f"Expected the rows of `{name}` in the order of the data, its index has them in another. Sort them with "
            f"`{name}.loc[…]` by the index of the data, or, if they are in order, give `{name}.to_numpy()`."
        )


def _open(path: Path, name: str) -> dict[str, NDArray[Any]]:
    """The arrays of a .npz file by name, or the one of a .npy file."""
    if not path.exists():
        raise FileNotFoundError(f"Expected {name} at {path}, found no such file.")
    try:
        loaded = np.load(path, allow_pickle=False)
        return {"": loaded} if isinstance(loaded, np.ndarray) else {key: loaded[key] for key in loaded}
    except Exception as error:  # zip files and headers break in many ways
        raise ValueError(
            f"Expected arrays of numbers or words in {path}, got {type(error).__name__}: {error}. "
            "Save them with numpy.save; words as array(words, dtype=str)."
        ) from error


def _missing(values: Any) -> NDArray[np.bool_]:
    """Where there is no value, (N,): None, NaN, nothing but spaces."""
    import pandas as pd

    column = values if isinstance(values, pd.Series) else pd.Series(values)
    absent = column.isna()
    if column.dtype.kind not in "biufMm":
        absent |= column.astype(str).str.strip() == ""
    return np.asarray(absent.to_numpy(dtype=bool))


def _check_positions(values: Any, classes: Sequence[str], name: str) -> None:
    """Refuse whole numbers that name classes at other positions than their own; words are known by name."""
    if isinstance(next(iter(values), None), (str, bytes)):
        return
    found = {str(value) for value in read_labels(values, name).tolist()}
    at = {str(k): str(c) for k, c in enumerate(classes)}
    if found <= {*at.values()} and (other := [value for value in found if at.get(value) != value]):
        raise ValueError(
            f"Expected whole numbers in `{name}` to be names or positions in `classes`, got {min(other)}, which is the "
            "name of one class and the position of another. Save the labels as words, which are looked up by name."
        )


# --- tables and texts -------------------------------------------------------------------------------------------------


def _from_table(
    table: Any, source: dict[str, Any], classes: Sequence[str] | None, trusted: Any, seed: int, features: bool
) -> AuditData:
    label, text, annotators = source["label"], source["text"], source["annotators"]
    if label is None and not annotators:
        raise ValueError("Expected `label`, the name of the column with the given labels, got none.")
    words = [label or annotators[0], text, source["id"], source["group"], *annotators]
    frame = read_table(table, *words).reset_index(drop=True)
    roles = {role: source[role] for role in ("label", "text", "id", "group", "time") if source[role] is not None}
    if isinstance(trusted, str) and trusted in frame.columns:
        roles["trusted"] = trusted
    special = [*roles.values(), *annotators]
    if absent := [c for c in [*special, *source["ignore"]] if c not in frame.columns]:
        raise ValueError(
            f"Expected the columns {some(absent)} in the table, there are {some(list(frame.columns), 20)}."
        )
    if twice := sorted({c for c in special if special.count(c) > 1}):
        raise ValueError(f"Expected each column in one role, got {some(twice)} in two.")
    row = np.arange(len(frame))
    whole = frame
    if (extra := _trusted_table(trusted, roles, frame, words)) is not None:
        import pandas as pd

        whole = pd.concat([frame, extra], ignore_index=True)
        row = np.concatenate([row, np.full(len(extra), -1)])
    votes, names = _votes(whole, annotators, label, classes)
    if label is not None:
        absent_label = _missing(whole[label])
        present = whole[label][~absent_label]
        if len(present) == 0:
            raise ValueError(f"Expected labels in column {label!r}, got none in any of {len(frame)} rows.")
        if classes is not None:
            _check_positions(present, classes, label)
        labelled, names = encode_labels(present, names or classes, positions=classes is not None, name=label)
        given = np.full(len(whole), -1)
        given[~absent_label] = labelled.numpy()
    else:
        assert votes is not None and names is not None  # there are annotators
        given = majority_vote(torch.from_numpy(votes)).numpy()  # −1 where nobody spoke
    notes: list[str] = []
    skip = [("no label", given < 0)]
    if text is not None:
        skip.append((f"no text in {text!r}", _missing(whole[text])))
    times = _times(whole[roles["time"]]) if "time" in roles else None
    if times is not None:
        skip.append((f"no time in {source['time']!r}", np.isnan(times)))
    keep = ~np.logical_or.reduce([mask for _, mask in skip])
    x = None
    if features:
        chosen = [c for c in frame.columns if c not in {*special, *source["ignore"]}]
        if text is None:
            x, notes = _columns(whole, chosen, given)
        else:
            x = _texts(whole, text, keep, seed)
            skip.append((f"no words in {text!r}", (x == 0).all(1)))  # which would all be the same to neighbours
            notes = [f"Only the text was looked at, not the columns {some(chosen)}."] if chosen else []
    ids = whole[roles["id"]].astype(str).to_numpy(dtype=object) if "id" in roles else None
    if ids is not None:
        notes += _same_ids(ids[row >= 0], source["id"])
    known = _yes_no(whole[roles["trusted"]], trusted) if "trusted" in roles else row < 0
    found = AuditData(
        "text" if text else "table", names, given, row, len(frame), x,
        ids=ids, groups=_codes(whole[roles["group"]]) if "group" in roles else None, time=times,
        trusted=known if "trusted" in roles or extra is not None else None, annotators=votes, frame=frame,
        source={
            "labels_sha256": labels_digest(as_words(frame[label])) if label else None,
            **({"trusted": trusted} if "trusted" in roles else {}),
        },
        notes=tuple(notes),
    )  # fmt: skip
    return _leave_out(found, skip)


def _leave_out(found: AuditData, skip: Sequence[tuple[str, NDArray[np.bool_]]]) -> AuditData:
    """Without the rows of each mask, each listed for the first reason that holds."""
    listed, out = [], np.zeros(len(found), dtype=bool)
    for reason, mask in skip:
        rows = found.row[mask & ~out]
        listed += [Skipped(reason, rows[rows >= 0])] if len(rows) else []
        out |= mask
    return replace(found.subset(~out), skipped=(*found.skipped, *listed))


def _columns(frame: pd.DataFrame, chosen: list[str], given: NDArray[np.int64]) -> tuple[NDArray[np.float32], list[str]]:
    """Numbers in units of their spread and words one-hot, gaps filled, (N, D)."""
    if not chosen:
        raise ValueError(
            "Expected columns beside the label to audit by, got none. Name a `text`, or bring `embeddings`."
        )
    columns, notes = fit_columns(frame, chosen, "impute", requested=False, labels=given)
    return columns.standardise(columns.encode(frame)).numpy(), notes


def _texts(frame: pd.DataFrame, text: str, keep: NDArray[np.bool_], seed: int) -> NDArray[np.float32]:
    """Texts by their words, (N, D); zeros where there is none."""
    words = frame[text].astype(str).where(keep, "").tolist()
    if not any(words):
        raise ValueError(f"Expected texts in column {text!r}, got none.")
    return np.asarray(TextFeatures([word for word in words if word], seed=seed).encode(words).numpy())


def _trusted_table(
    trusted: Any, roles: dict[str, str], frame: pd.DataFrame, words: Sequence[Any]
) -> pd.DataFrame | None:
    """The rows of another table, known to be right."""
    in_memory = hasattr(trusted, "columns")
    is_path = isinstance(trusted, (str, os.PathLike)) and not str(trusted).lower().endswith(".npy")
    if "trusted" in roles or not (is_path or in_memory):
        return None
    if is_path and not str(trusted).lower().endswith(TABLES):
        raise ValueError(
            f"Expected `trusted` to be a column, a table or a .npy file, got {str(trusted)!r}. "
            f"The columns are {some(list(frame.columns), 20)}."
        )
    as_words = [str(c) for c in frame.columns if frame[c].dtype.kind == "O"]  # where it happens to hold numerals, too
    extra = read_table(trusted, *words, categories=as_words).reset_index(drop=True)
    where, free = "`trusted`" if in_memory else trusted, (roles.get("id"), roles.get("group"))
    if absent := [c for c in frame.columns if c not in extra.columns and c not in free]:
        raise ValueError(f"Expected the columns of the audited table in {where}, {some(absent)} are not there.")
    known = set(frame[words[0]].astype(str))
    if unknown := sorted(set(extra[words[0]].astype(str)) - known):
        raise ValueError(
            f"Expected labels of the audited table in {where}, got {some(unknown)}, which it never has. "
            "Correct these labels, or drop their rows."
        )
    return extra


def _votes(
    frame: pd.DataFrame, annotators: Sequence[str], label: str | None, classes: Sequence[str] | None
) -> tuple[NDArray[np.int64] | None, tuple[str, ...] | None]:
    """What each annotator said, (N, A), −1 for nothing, and all the classes anybody named."""
    if not annotators:
        return None, None
    import pandas as pd

    said = pd.concat([frame[c] for c in [*annotators, *([label] if label else [])]])
    absent = _missing(said)
    if classes is not None:
        _check_positions(said[~absent], classes, ", ".join(annotators))
    spoken, names = encode_labels(said[~absent], classes, positions=classes is not None, name=", ".join(annotators))
    votes = np.full(len(said), -1)
    votes[~absent] = spoken.numpy()
    return votes.reshape(-1, len(frame)).T[:, : len(annotators)].copy(), names


def _times(column: pd.Series[Any]) -> NDArray[np.float64]:
    """Numbers or dates as numbers, (N,); NaN where there is none."""
    import pandas as pd

    absent = _missing(column)
    numbers = pd.to_numeric(column, errors="coerce").where(~absent)  # a missing date is a number to pandas
    if (numbers.isna() & ~absent).any():
        cells = column.where(~absent)
        dates = pd.to_datetime(cells, errors="coerce", utc=True, format="mixed")  # month first, where that can be
        if column.dtype.kind == "O":
            numerals = cells.astype(str).str.extract(DAY_AND_MONTH).astype(float)
            if _day_first(numerals, column):
                swapped = pd.to_datetime(cells, errors="coerce", utc=True, format="mixed", dayfirst=True)
                dates = dates.where(numerals[0].isna(), swapped)
        if bad := column[dates.isna() & ~absent].tolist():
            raise ValueError(f"Expected numbers or dates in column {column.name!r}, got {some(bad)}.")
        return np.where(absent, np.nan, dates.astype("int64").to_numpy(dtype=np.float64))
    return np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))


def _day_first(numerals: pd.DataFrame, column: pd.Series[Any]) -> bool:
    """Whether dates such as 31/12/2020, of which ``numerals`` are the first two, begin with the day: all or none."""
    is_day = numerals > 12
    first, second = (bool(is_day[k].any()) for k in (0, 1))
    unlike = (numerals[0] - numerals[1]).abs() > 0
    if first == second and bool(unlike.any()):
        shown = column[is_day[0]].tolist()[:1] + column[is_day[1]].tolist()[:1] or column[unlike].tolist()
        raise ValueError(
            f"Expected dates in column {column.name!r} that all begin with the day, or all with the month, and say "
            f"with which, got {some(shown)}. Write them as 2020-12-31."
        )
    return first


def _codes(column: pd.Series[Any]) -> NDArray[np.int64]:
    """A number for each value, (N,); a row without a value is a group of its own."""
    import pandas as pd

    codes = pd.factorize(column)[0].astype(np.int64)
    alone = _missing(column)
    codes[alone] = codes.max(initial=0) + 1 + np.arange(int(alone.sum()))
    return codes


def _yes_no(column: pd.Series[Any], name: str) -> NDArray[np.bool_]:
    words = column.fillna("").astype(str).str.strip().str.lower()
    if odd := sorted(set(words) - {*YES, *NO}):
        raise ValueError(f"Expected yes or no, true or false, 1 or 0 in column {name!r}, got {some(odd)}.")
    return np.asarray(words.isin(YES).to_numpy(dtype=bool))


def _same_ids(ids: NDArray[Any], name: str) -> list[str]:
    import pandas as pd

    twice = pd.unique(ids[pd.Series(ids).duplicated(keep=False).to_numpy()])
    if not len(twice):
        return []
    return [f"{len(twice)} ids in {name!r} name several rows: {some(twice.tolist())}. Tell them apart by `row`."]


# --- pictures ---------------------------------------------------------------------------------------------------------


def _from_folder(
    path: Path,
    classes: Sequence[str] | None,
    backbone: str | None,
    seed: int,
    progress: Progress | None,
    features: bool,
) -> AuditData:
    dataset = from_image_folder(path, size=BACKBONE_SIZE if backbone else THUMBNAIL, fit="squash")
    files = dataset.train.x
    assert isinstance(files, ImageFiles)
    classes = dataset.classes if classes is None else tuple(classes)
    if sorted(classes) != sorted(dataset.classes):
        odd, absent = sorted({*classes} - {*dataset.classes}), sorted({*dataset.classes} - {*classes})
        raise ValueError(
            f"Expected each of the {len(dataset.classes)} folders of {files.root} once in `classes`, got "
            f"{len(classes)} names. No folders: {some(odd) or 'none'}; not named: {some(absent) or 'none'}."
        )
    if odd := [name for name in classes if not _is_utf8(name)]:
        raise ValueError(f"Expected names of folders in UTF-8 in {files.root}, got {some(odd)}. Give them other names.")
    notes = [note for note in dataset.notes if "training example" not in note]  # said again of the rows that are left
    if files.root != path:
        notes.append(f"Only {files.root.name}/ was audited. Name another folder to audit that one.")
    readable = np.ones(len(files), dtype=bool)
    damage: dict[str, list[int]] = {}
    pictures = torch.zeros(len(files), 3, THUMBNAIL, THUMBNAIL, dtype=torch.uint8)
    ids = np.array([files.path(i).relative_to(files.root).as_posix() for i in range(len(files))], dtype=object)
    for i in range(len(files)):
        trouble = None if _is_utf8(ids[i]) else "file name is no UTF-8"  # issues.csv could not hold it
        try:
            pictures[i] = decode(files.path(i), THUMBNAIL, "squash")
        except ValueError as error:
            trouble = f"not a readable picture ({error.__cause__ and type(error.__cause__).__name__})"
        if trouble:
            readable[i] = False
            damage.setdefault(trouble, []).append(i)
        if progress is not None and (i % 100 == 99 or i + 1 == len(files)):
            progress("reading pictures", i + 1, len(files))
    if not readable.any():
        raise ValueError(f"Expected pictures that can be read in {path}, got {len(files)} that can't.")
    x = None
    if features and backbone is not None:
        rows = np.flatnonzero(readable)
        seen = backbone_features(backbone, lambda i: files[int(rows[i])], len(rows), progress).numpy()
        x = np.zeros((len(files), seen.shape[1]), np.float32)
        x[rows] = seen
    elif features:
        x = _picture_features(pictures, readable, seed)
        notes.append(
            f"The pictures were audited by features learned from their own patches at {THUMBNAIL} × {THUMBNAIL} "
            "pixels. A pretrained backbone sees more: --backbone timm:NAME, or --embeddings with your own features."
        )
    names = [dataset.classes[k] for k in dataset.train.y.tolist()]
    given = np.array([classes.index(name) for name in dataset.classes])[dataset.train.y.numpy()]
    found = AuditData(
        "folder", classes, given, np.arange(len(files)), len(files), x, ids=ids,
        source={"data": str(files.root), "labels_sha256": labels_digest(names)},
        notes=tuple(notes),
    )  # fmt: skip
    return _leave_out(found, [(reason, np.isin(found.row, rows)) for reason, rows in damage.items()])


def _picture_features(pictures: Tensor, readable: NDArray[np.bool_], seed: int) -> NDArray[np.float32]:
    """Features of uint8 pictures (N, C, H, W); small ones are their own pixels, of unit spread all together."""
    if min(pictures.shape[2:]) < SMALLEST:
        pixels = pictures.flatten(1).float()
        return ((pixels - pixels.mean(0)) / pixels.std(0).square().mean().sqrt().clamp(min=1e-6)).numpy()
    return PatchFeatures(pictures[torch.from_numpy(readable)], seed=seed).encode(pictures).numpy()


# --- arrays and predictions -------------------------------------------------------------------------------------------


def _from_arrays(inputs: Any, labels: Any, classes: Sequence[str] | None, seed: int) -> AuditData:
    arrays = _open(inputs, "inputs") if isinstance(inputs, Path) else {"": _load(inputs, "inputs")}
    key = next((name for name in ("", *INPUTS) if name in arrays), None)
    if key is None:
        raise ValueError(f"Expected inputs in {inputs}, called {' or '.join(INPUTS)}, got {some(list(arrays))}.")
    labels_key = None
    if labels is None:
        if not isinstance(inputs, Path):
            raise ValueError("Expected `labels` beside the array of inputs, got none.")
        labels_key = next((name for name in LABELS if name in arrays), None)
        if labels_key is None:
            raise ValueError(
                f"Expected labels with the inputs of {inputs}, got none. Name their .npy file with `labels`, or save "
                f"them in the .npz file as {LABELS[0]}."
            )
        labels = arrays[labels_key]
    found = _with_labels("arrays", _load(labels, "labels"), classes)
    found = replace(found, source={**found.source, "labels_key": labels_key})
    return _with_features(found, arrays[key], "inputs", seed, scale=True)


def _from_predictions(labels: Any, pred_probs: Any, embeddings: Any, classes: Sequence[str] | None) -> AuditData:
    if labels is None or (pred_probs is None and embeddings is None):
        given = {"labels": labels, "pred_probs": pred_probs, "embeddings": embeddings}
        got = " and ".join(f"`{name}`" for name, value in given.items() if value is not None)
        raise ValueError(
            "Expected data to audit, or both `labels` and `pred_probs` (or `embeddings`), got "
            f"{f'{got} alone' if got else 'none'}."
        )
    labels = _load(labels, "labels")
    if classes is None and pred_probs is not None and _names(pred_probs) is None and labels.dtype.kind in "iuf":
        probabilities = _load(pred_probs, "pred_probs")
        if probabilities.ndim == 2:
            classes = [str(k) for k in range(probabilities.shape[1])]  # a label is the number of its column
    return _with_labels("predictions", labels, classes)


def _with_labels(kind: Kind, labels: NDArray[Any], classes: Sequence[str] | None) -> AuditData:
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    absent = _missing(labels) if labels.ndim == 1 else np.zeros(len(labels), dtype=bool)
    if absent.all():
        raise ValueError(f"Expected labels, got none in any of {len(labels)} rows.")
    if classes is not None:
        _check_positions(labels[~absent], classes, "labels")
    given, names = encode_labels(labels[~absent], classes, positions=classes is not None, name="labels")
    rows = np.flatnonzero(~absent)
    skipped = (Skipped("no label", np.flatnonzero(absent)),) if absent.any() else ()
    source = {"labels_sha256": labels_digest(as_words(labels))}
    return AuditData(kind, names, given.numpy(), rows, len(labels), source=source, skipped=skipped)


def _aligned(found: AuditData, array: NDArray[Any], name: str) -> NDArray[Any]:
    """The rows of ``array`` that belong to those found; it has one for each row of the source."""
    if (found.row < 0).any():
        raise ValueError(f"Expected no trusted table beside `{name}`, which have no rows for it. Use a column or .npy.")
    if array.ndim < 2 or len(array) != found.source_rows:
        remedy = ""
        if array.ndim == 1 and name == "pred_probs":
            remedy = " Of two classes, make columns 1 − p and p, the second one's: stack([1 - p, p], axis=1)."
        elif array.ndim == 1:
            remedy = " Of one number a row, make a column of them: array[:, None]."
        raise ValueError(
            f"Expected `{name}` with {found.source_rows} rows, as the data has, got shape {array.shape}.{remedy}"
        )
    return array[found.row]


def _names(table: Any) -> list[Any] | None:
    """What the columns of a DataFrame are called; None where it has none, or calls them 0, 1, … as pandas does."""
    names = list(getattr(table, "columns", ()))
    return None if list(map(str, names)) == list(map(str, range(len(names)))) else names


def _with_pred_probs(found: AuditData, pred_probs: Any, named: bool) -> AuditData:
    names, array = _names(pred_probs), _load(pred_probs, "pred_probs")
    p = _aligned(found, array, "pred_probs")
    K = len(found.classes)
    if p.ndim != 2 or p.shape[1] != K or p.dtype.kind not in "fiu":
        raise ValueError(
            f"Expected `pred_probs` of shape ({found.source_rows}, {K}), a column for each class in the order "
            f"{some(list(found.classes))}, got {array.shape}, {array.dtype}. Name all classes with `classes`."
        )
    if names is not None:
        place = list(find_words(map(str, names), found.classes).values())
        if {*place} == {*range(K)}:
            p, named = p[:, [place.index(k) for k in range(K)]], True
        elif not all(isinstance(name, (int, float, np.number)) for name in names):
            raise ValueError(
                f"Expected the columns of `pred_probs` to be called as the classes, {some(list(found.classes))}, got "
                f"{some(names)}. Rename them, name all classes with `classes`, or, if they are in this order, give "
                "`pred_probs.to_numpy()`."
            )
    p = p.astype(np.float32)
    finite = np.isfinite(p).all(1)
    sums = p[finite].sum(1)
    if (p[finite] < 0).any() or (np.abs(sums - 1) > 0.01).any():
        raise ValueError(
            "Expected probabilities in `pred_probs`, none negative, rows that sum to one, got "
            f"{float(p[finite].min()):.4g} as the smallest and sums from {sums.min():.4g} to {sums.max():.4g}. "
            "Take the softmax of logits first."
        )
    p[finite] /= sums[:, None]
    by_word = sorted(range(K), key=lambda k: found.classes[k])  # 0, 1, 10, 2 …: so torchvision sorts folders
    column, given = p[finite].argmax(1), found.given[finite]
    hits, hits_by_word = int((column == given).sum()), int((np.array(by_word)[column] == given).sum())
    if hits_by_word > hits and not named:
        raise ValueError(
            f"Expected the columns of `pred_probs` in the order {some(list(found.classes))}, in which they meet {hits} "
            f"of {len(given)} labels, got columns that meet {hits_by_word} in the order "
            f"{some([found.classes[k] for k in by_word])}. Name all classes in the order of the columns with `classes`."
        )
    return replace(found, pred_probs=p).subset(finite, "NaN or infinite predictions")


def _with_features(found: AuditData, array: NDArray[Any], name: str, seed: int = 0, scale: bool = False) -> AuditData:
    """With what a model sees; rows that are not finite are left out."""
    array = _aligned(found, array, name)
    if array.dtype.kind not in "biufO":
        raise TypeError(
            f"Expected numbers in `{name}`, got dtype {array.dtype}. Audit words as a column of a table: texts with "
            "`text`, categories as they are."
        )
    finite: NDArray[np.bool_] = np.ones(len(array), dtype=bool)
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):  # too large for float32 is as good as infinite
            finite = np.asarray(np.isfinite(array.astype(np.float32).reshape(len(array), -1)).all(1))
    if not finite.any():
        raise ValueError(f"Expected finite numbers in `{name}`, got none in any row.")
    if array.dtype == np.float64 and array.ndim == 2:
        array = array - shift_of(*moments(array[finite]))  # before float32 blurs what differs
    inputs, notes = check_features(np.where(finite.reshape(-1, *[1] * (array.ndim - 1)), array, 0), name)
    if scale and inputs.dtype is not torch.uint8 and inputs.dim() > 2 and min(inputs.shape[-2:]) >= SMALLEST:
        if inputs.dim() == 4 and inputs.shape[1] in (1, 3, 4):
            inputs, note = _as_bytes(inputs, torch.from_numpy(finite), name)
        else:
            note = f"`{name}` of shape {array.shape} were audited as loose numbers. Save pictures as (N, C, H, W)."
        notes = [*notes, note]
    if inputs.dtype is torch.uint8:
        x = _picture_features(inputs, finite, seed)
    else:
        x = inputs.flatten(1).numpy()
        x = _scaled(x, finite) if scale else x
        if (largest := float(np.abs(x).max())) > 1e12 or 0 < largest < 1e-12:  # whose squares float32 has not
            x = x / np.float32(largest)
    found = replace(found, x=x, notes=(*found.notes, *notes))
    return found.subset(finite, f"NaN, infinite or too large numbers in {name}")


def _as_bytes(pictures: Tensor, finite: Tensor, name: str) -> tuple[Tensor, str]:
    """Numbers (N, C, H, W) as uint8, all pictures in the same range, and a note that says which."""
    low, high = min(0.0, pictures[finite].min().item()), pictures[finite].max().item()
    note = f"`{name}` were read as pictures, {low:g} as black, {high:g} as white. If that is wrong, save them as uint8."
    return ((pictures - low) * (255 / max(high - low, 1e-12))).round().clamp(0, 255).to(torch.uint8), note


def _scaled(x: NDArray[np.float32], finite: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Centred and of unit spread, each column alone where their spreads differ more than tenfold, else all together."""
    mean, std = x[finite].mean(0, dtype=np.float64), x[finite].std(0, dtype=np.float64)
    usual = float(np.median(std[std > 0])) if (std > 0).any() else 1.0
    apart = (std[std > 0] > 10 * usual).any() or (std[std > 0] < usual / 10).mean() > 0.5
    return np.asarray((x - mean) / (np.where(std > 0, std, 1) if apart else usual), np.float32)


def _trusted_rows(found: AuditData, trusted: NDArray[Any]) -> NDArray[np.bool_]:
    """Booleans for each row of the source, or numbers of rows, as booleans for the rows found."""
    flags = np.zeros(found.source_rows, dtype=bool)
    if trusted.dtype == bool and trusted.shape == flags.shape:
        flags |= trusted
    elif trusted.ndim == 1 and trusted.dtype.kind in "iu" and len(trusted) and 0 <= trusted.min():
        if trusted.max() >= len(flags):
            raise ValueError(f"Expected numbers of rows below {len(flags)} in `trusted`, got {int(trusted.max())}.")
        flags[trusted] = True
    else:
        raise ValueError(
            f"Expected `trusted` to hold {len(flags)} booleans or numbers of rows, got {trusted.dtype} of shape "
            f"{trusted.shape}."
        )
    return np.asarray(flags[found.row])
