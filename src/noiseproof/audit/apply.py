"""Corrected datasets: what was decided in the review, in a copy of the original, and what a model gains by it."""

from __future__ import annotations

import filecmp
import gzip
import math
import os
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.audit.decisions import FILE, BadDecisions, Decision, check_decisions, read_decisions
from noiseproof.audit.files import Audit, as_ids, as_words, read_audit, same_id, same_labels
from noiseproof.audit.records import Records
from noiseproof.audit.rows import labels_in, open_labels
from noiseproof.core.files import replacing
from noiseproof.data import NoisyData, Split
from noiseproof.data.labels import read_labels
from noiseproof.strategies import predict_log_probs
from noiseproof.train import Interrupted, Settings, Task, train

if TYPE_CHECKING:
    from noiseproof.audit.inputs import AuditData
    from noiseproof.train.job import Progress

EPOCHS = 50  # where the audit trained nothing
LIKELY = 0.5  # a label of this quality is as likely right as wrong


def corrections(audit: Audit, decisions: Mapping[int, Decision], *, accept_all: bool = False) -> dict[int, str]:
    """The rows whose label changes, and their new labels.

    ``accept_all`` takes the suggestion for the issues that nobody decided on and whose given label is likelier wrong
    than right (``label_quality`` below 0.5): elsewhere it would break more labels than it mends.
    """
    check_decisions(decisions, audit)
    frame = audit.issues.set_index("row")
    changes: dict[Any, str] = {}
    if accept_all:
        changes = frame.loc[frame["is_label_issue"] & (frame["label_quality"] < LIKELY), "suggested_label"].to_dict()
    for row, word in decisions.items():
        changes.pop(row, None)
        if word.decision in ("accept", "other") and word.label != word.given_label:
            if not word.label:
                raise BadDecisions(f"Expected a label with the decision {word.decision} on row {row}, got none.")
            changes[row] = word.label
    return dict(sorted(changes.items()))


def read_decided(folder: str | Path, decisions: str | Path | None, *, accept_all: bool = False) -> dict[int, Decision]:
    """What was decided on the audit in ``folder``; only with ``accept_all`` may there be no file of decisions."""
    path = Path(decisions or Path(folder) / FILE)
    if path.exists():
        return read_decisions(path)
    if not accept_all or decisions is not None:
        raise FileNotFoundError(
            f"Expected decisions in {path}, found none. Run `noiseproof review {folder}`, or use --accept-all."
        )
    return {}


def corrected(folder: str | Path, data: Any, *, decisions: str | Path | None = None, accept_all: bool = False) -> Any:
    """A copy of an audited DataFrame, or of an array of labels, with the labels that were decided on.

    ``corrected("audit", frame)`` is for what was audited in memory; decisions are by default those in the folder. Data
    whose labels, or whose ids in the rows that change, are not those that were audited is refused.
    """
    import pandas as pd

    audit = read_audit(folder)
    changes = corrections(audit, read_decided(folder, decisions, accept_all=accept_all), accept_all=accept_all)
    if not isinstance(data, pd.DataFrame):
        return _relabelled(audit, np.asarray(data), changes)
    label, id = _columns(audit, data.columns)
    _check_unchanged(audit, as_words(data[label]))
    if id is not None:
        _check_ids(audit, changes, as_ids(data[id]))
    cells, dtype, copy = data[label].tolist(), data[label].dtype, data.copy()
    spelling = _spelling(audit, cells)
    for row, name in changes.items():
        cells[row] = spelling[name]
    if isinstance(dtype, pd.CategoricalDtype):
        new = sorted({spelling[name] for name in changes.values()} - {*dtype.categories})
        dtype = pd.CategoricalDtype([*dtype.categories, *new], dtype.ordered)
    copy[label] = pd.Series(cells, copy.index, dtype)
    return copy


def write_corrected(
    audit: Audit, changes: Mapping[int, str], out: str | Path, *, link: bool = False, same_ok: bool = False
) -> Path:
    """Write the dataset with the labels ``changes``; the original stays as it is, and nothing is written over.

    A table keeps every byte but those of the changed cells (Parquet: every column and type). Pictures are copied, or
    with ``link`` linked, into the folders of their classes. Arrays get a .npy file of labels. With ``same_ok`` what is
    there already may stay, if it is byte for byte what would be written.
    """
    out = Path(out)
    if not out.exists() and not out.is_symlink():
        _write(audit, changes, out, link)
    elif out.is_symlink() or not same_ok or not _is_written(audit, changes, out, link):
        raise FileExistsError(
            f"Expected a new place for the corrected data, {out} is there. Choose another with --out."
        )
    return out


def _is_written(audit: Audit, changes: Mapping[int, str], out: Path, link: bool) -> bool:
    """Whether ``out`` is byte for byte what would be written."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder, out.name)
        _write(audit, changes, fresh, link=True)  # links are enough to compare with
        there, wanted = (
            {path.relative_to(top): path for path in (top, *top.rglob("*")) if path.is_file()} for top in (out, fresh)
        )
        return there.keys() == wanted.keys() and all(
            path.is_symlink() == (link and path != out) and filecmp.cmp(path, wanted[name], shallow=False)
            for name, path in there.items()
        )


def _write(audit: Audit, changes: Mapping[int, str], out: Path, link: bool) -> None:
    if audit.config["kind"] == "folder":
        _write_pictures(audit, changes, out, link)
    elif audit.config["kind"] in ("table", "text"):
        _write_table(audit, changes, out)
    else:
        _write_labels(audit, changes, out)


def default_out(audit: Audit) -> Path:
    """Where the corrected data goes unless somebody says otherwise: ``corrected``, with the ending of the original.

    In the current folder: the original may lie where nobody can or should write.
    """
    if audit.config["kind"] == "folder":
        return Path("corrected")
    if audit.config["kind"] in ("table", "text"):
        name = Path(audit.config["data"] or "").name.lower()
        return Path(f"corrected{_ending(name)}{'.gz' * name.endswith('.gz')}")
    return Path("corrected.npy")


def _ending(name: str) -> str:
    """Which kind of table a file holds, by its name."""
    ending = Path(name.lower().removesuffix(".gz")).suffix
    return ".parquet" if ending == ".pq" else ending


def _check_unchanged(audit: Audit, words: Sequence[str]) -> None:
    """Refuse a dataset whose labels are not those that were audited."""
    if not same_labels(audit.config, words):
        raise ValueError(
            f"Expected the labels that were audited in {audit.config['data'] or audit.config['labels'] or 'memory'}, "
            "they or their order have changed since. Audit the data as it is now."
        )


def _check_ids(audit: Audit, changes: Mapping[int, str], ids: Sequence[str]) -> None:
    """Refuse a dataset that has other rows in the places of those that change: labels may be the same in any order."""
    known = dict(zip(audit.issues["row"].tolist(), audit.issues["id"].tolist(), strict=True))
    for row in changes:
        if not same_id(ids[row], known[row]):
            raise ValueError(
                f"Expected {known[row]!r} in row {row} of {audit.config['data'] or 'the table'}, found {ids[row]!r}: "
                "the rows have changed since. Audit it again."
            )


def _source(audit: Audit, key: str = "data") -> Path:
    path = audit.config.get(key)
    if path is None or not Path(path).exists():
        raise FileNotFoundError(
            f"Expected the audited data at {path}, found none." if path else
            "Expected an audit of files, got one of a DataFrame or of arrays in memory. In Python, "
            f"`noiseproof.audit.apply.corrected({str(audit.folder)!r}, data)` returns them corrected."
        )  # fmt: skip
    return Path(path)


def _spelling(audit: Audit, cells: Sequence[Any]) -> dict[str, Any]:
    """How the source writes each class: most often 1.0, say, where the class is called 1.

    One that no audited row bears is its own name, or its position in the classes that the user named, where numbers
    are positions and not themselves the names.
    """
    seen: dict[str, Counter[Any]] = {}
    for row, name in zip(audit.issues["row"].tolist(), audit.issues["given_label"].tolist(), strict=True):
        seen.setdefault(name, Counter())[cells[row]] += 1
    spelling = {name: counts.most_common(1)[0][0] for name, counts in seen.items()}
    written = list(spelling.values())
    numbers = read_labels(written)
    is_number = numbers.dtype.kind == "i"
    by_name = list(map(str, numbers)) == list(spelling)  # numbers that are the names themselves
    for k, name in enumerate(audit.classes):
        if name in spelling:
            continue
        is_position = is_number and audit.config.get("classes_named") and not (by_name and name.isdecimal())
        word = str(k) if is_position else name
        if isinstance(written[0], bytes):
            spelling[name] = word.encode()
        else:
            spelling[name] = int(word) if is_number and not isinstance(written[0], str) else word
    return spelling


def _columns(audit: Audit, there: Iterable[Any]) -> tuple[str, str | None]:
    """The columns of the labels and of the ids; refuses a table without them."""
    label: str | None = audit.config["label"]
    id: str | None = audit.config.get("id")
    if label is None:
        raise ValueError(
            "Expected an audit of a label column, got one of annotators alone. Save a column of labels, and audit that."
            if audit.config["kind"] in ("table", "text") else
            f"Expected the labels that were audited, an array, got a table for the {audit.config['kind']}."
        )  # fmt: skip
    found = list(there)
    for column in (label, id):
        if column is not None and column not in found:
            raise ValueError(
                f"Expected the audited table with its column {column!r}, got {', '.join(map(str, found))}."
            )
    return label, id


def _write_table(audit: Audit, changes: Mapping[int, str], out: Path) -> None:
    path = _source(audit)
    ending = _ending(path.name)
    if _ending(out.name) != ending:
        raise ValueError(f"Expected a {ending} file as the original is, got {out}.")
    if ending == ".parquet":
        return _write_parquet(audit, changes, path, out)
    records = Records(path)
    label, id = _columns(audit, records.header)
    cells = records.column(label)
    _check_unchanged(audit, cells)
    if id is not None:
        _check_ids(audit, changes, records.column(id))
    spelling = _spelling(audit, cells)
    with replacing(out, overwrite=False) as part, open(part, "wb") as file:
        written = {row: spelling[name] for row, name in changes.items()}
        if out.name.lower().endswith(".gz"):
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                records.replace(label, written, packed)  # type: ignore[arg-type]  # it writes like any file
        else:
            records.replace(label, written, file)


def _write_parquet(audit: Audit, changes: Mapping[int, str], path: Path, out: Path) -> None:
    import pandas as pd
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    frame = pd.read_parquet(path)
    label, id = _columns(audit, frame.columns)
    _check_unchanged(audit, as_words(frame[label]))
    if id is not None:
        _check_ids(audit, changes, as_ids(frame[id]))
    table = pq.read_table(path)
    at = table.schema.get_field_index(label)
    field, values = table.schema.field(at), table.column(at).to_pylist()
    spelling = _spelling(audit, values)
    for row, name in changes.items():
        values[row] = spelling[name]
    column = pa.array(values, type=field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
    if pa.types.is_dictionary(field.type):  # categories keep their order, and a new one comes last
        known = table.column(at).unify_dictionaries().chunk(0).dictionary.to_pylist()
        categories = [*known, *sorted(set(values) - {None, *known})]
        places = pa.array([None if v is None else categories.index(v) for v in values], type=field.type.index_type)
        names = pa.array(categories, type=field.type.value_type)
        column = pa.DictionaryArray.from_arrays(places, names, ordered=field.type.ordered)
    with replacing(out, overwrite=False) as part:
        pq.write_table(table.set_column(at, field, column), part)


def _write_labels(audit: Audit, changes: Mapping[int, str], out: Path) -> None:
    if out.suffix != ".npy":
        raise ValueError(f"Expected a .npy file for the corrected labels, got {out}.")
    labels = open_labels(_source(audit, labels_in(audit.config)), audit.config.get("labels_key"))
    written = _relabelled(audit, labels, changes)
    with replacing(out, overwrite=False) as part, open(part, "wb") as file:
        np.save(file, written)


def _relabelled(audit: Audit, labels: NDArray[Any], changes: Mapping[int, str]) -> NDArray[Any]:
    """Labels of the same type and shape, with those that change."""
    _check_unchanged(audit, as_words(labels.ravel()))
    cells = list(labels.ravel())  # of dates, `tolist` would make numbers
    spelling = _spelling(audit, cells)
    for row, name in changes.items():
        cells[row] = spelling[name]
    # Words may need more room than before; numbers keep their type.
    written = np.array(cells, dtype=None if labels.dtype.kind in "US" else labels.dtype)
    return written.astype(np.promote_types(written.dtype, labels.dtype)).reshape(labels.shape)


def _write_pictures(audit: Audit, changes: Mapping[int, str], out: Path, link: bool) -> None:
    from noiseproof.data.images import ImageFiles, from_image_folder

    root = _source(audit)
    if out.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"Expected a place outside {root}, which stays as it is, got {out}.")
    dataset = from_image_folder(root)
    files = dataset.train.x
    assert isinstance(files, ImageFiles)
    _check_unchanged(audit, [dataset.classes[k] for k in dataset.train.y.tolist()])
    names = [files.path(i).relative_to(root).as_posix() for i in range(len(files))]
    _check_ids(audit, changes, names)
    places = _places(root, {names[row]: name for row, name in changes.items()})
    part = out.with_name(f"{out.name}.part")
    try:
        part.mkdir(parents=True)
    except FileExistsError:
        raise FileExistsError(
            f"Expected no {part}, where the copy is made, it is there: another apply makes it now, or one was killed. "
            "Delete it if none is at work, or choose another place with --out."
        ) from None
    try:
        for old, new in places.items():
            (part / new).parent.mkdir(parents=True, exist_ok=True)
            if link:
                (part / new).symlink_to((root / old).absolute())
            else:
                shutil.copy2(root / old, part / new)
        part.rename(out)
    except BaseException:
        shutil.rmtree(part)
        raise


def _places(root: Path, moves: Mapping[str, str]) -> dict[str, str]:
    """Where each file below ``root`` goes: to the folder of its class, under a name that nobody else has there."""
    # A class may be a link to a folder elsewhere, which the audit has followed.
    linked = [folder for folder in root.iterdir() if folder.is_symlink() and folder.is_dir()]
    found = sorted(
        Path(folder, name).relative_to(root).as_posix()
        for top in (root, *linked)
        for folder, _, names in os.walk(top)
        for name in names
        if os.path.isfile(os.path.join(folder, name))  # the audit passed over links that lead nowhere, too
    )
    places = {name: name for name in found if name not in moves}
    taken = set(places.values())
    for old, to in moves.items():
        was, _, rest = old.partition("/")
        stem, ending = os.path.splitext(f"{to}/{rest}")
        tries = (
            f"{stem}{more}{ending}"
            for more in ("", f"-from-{was}", *(f"-from-{was}-{n}" for n in range(2, len(found) + 2)))
        )
        places[old] = next(name for name in tries if name not in taken)
        taken.add(places[old])
    return places


@dataclass(frozen=True)
class Comparison:
    """Accuracy of one method on the same held-out rows, trained on the labels as given and as corrected."""

    method: str
    train_rows: int
    changed: int  # labels of the training rows that were corrected
    held_rows: int
    before: float  # accuracy by the held-out labels as they are after the correction
    after: float
    interval: tuple[float, float]  # of after − before, 95 %, for other rows like those held out
    before_by_given: float  # accuracy by the held-out labels as they were given
    after_by_given: float
    warning: str | None  # why the held-out labels may be wrong, too


@dataclass(frozen=True, eq=False)
class Retraining:
    """One method and the rows that it is to be trained on twice, with their labels as given and as corrected."""

    method: str
    settings: Settings
    seed: int
    classes: tuple[str, ...]
    x: NDArray[np.float32]  # (N, D)
    given: NDArray[np.int64]  # (N,)
    corrected: NDArray[np.int64]  # (N,)
    held: NDArray[np.bool_]  # (N,) the rows to judge by
    warning: str | None  # why their labels may be wrong

    def run(self, progress: Progress | None = None) -> Comparison:
        """Train on the given and on the corrected labels; ``progress`` counts the epochs of both trainings."""
        predicted: dict[str, NDArray[np.int64]] = {}
        for when, labels in (("before", self.given), ("after", self.corrected)):
            past = len(predicted) * self.settings.epochs

            def move(epoch: int, step: int, steps: int, row: Any, past: int = past) -> None:
                if progress is not None:
                    progress(past + epoch, step, steps, row)

            task = self.task(labels)
            assert task.test is not None
            run = train(task, self.method, self.settings, seed=self.seed, progress=move).run
            predicted[when] = predict_log_probs(run, task.test.x).argmax(1).cpu().numpy()
        right = {when: guess == self.corrected[self.held] for when, guess in predicted.items()}
        gain = right["after"].astype(float) - right["before"]
        spread = 1.96 * float(gain.std(ddof=1)) / math.sqrt(len(gain)) if len(gain) > 1 else math.nan
        by_given = {when: float((guess == self.given[self.held]).mean()) for when, guess in predicted.items()}
        return Comparison(
            method=self.method,
            train_rows=int((~self.held).sum()),
            changed=int((self.given != self.corrected)[~self.held].sum()),
            held_rows=int(self.held.sum()),
            before=float(right["before"].mean()),
            after=float(right["after"].mean()),
            interval=(float(gain.mean()) - spread, float(gain.mean()) + spread),
            before_by_given=by_given["before"],
            after_by_given=by_given["after"],
            warning=self.warning,
        )

    def task(self, labels: NDArray[np.int64]) -> Task:
        """The rows to train on and those to judge by, with these labels (N,)."""
        x, y = torch.from_numpy(self.x), torch.from_numpy(labels)
        rows, held = (torch.from_numpy(np.flatnonzero(mask)) for mask in (~self.held, self.held))
        return Task(NoisyData(x[rows], y[rows], self.classes, rows), test=Split(x[held], y[held]))


def plan_retraining(
    audit: Audit,
    changes: Mapping[int, str],
    decided: Mapping[int, Decision],
    *,
    method: str | None = None,
    epochs: int | None = None,
    seed: int = 0,
) -> Retraining:
    """Read what ``compare`` trains on, and try one step: what cannot be trained is refused before anything is written.

    Rows whose labels are trusted are held out where the audit had some, and near-duplicates and groups of them are not
    trained on; else a fifth of the rows, near-duplicates and groups whole, the latest of all where the audit knew their
    time. Method, model and epochs are the audit's, unless others are given.
    """
    data = read_again(audit)
    number = {name: k for k, name in enumerate(audit.classes)}
    given_name = dict(zip(audit.issues["row"].tolist(), audit.issues["given_label"].tolist(), strict=True))
    known = data.row < 0
    keep = known | np.isin(data.row, audit.issues["row"].to_numpy())
    data = data.subset(keep)
    given = np.array(
        [number[given_name[r]] if r >= 0 else g for r, g in zip(data.row.tolist(), data.given, strict=True)]
    )
    corrected = given.copy()
    place = {row: i for i, row in enumerate(data.row.tolist()) if row >= 0}
    for row, name in changes.items():
        if row in place:
            corrected[place[row]] = number[name]
    held = hold_out(audit, data, given, seed)
    together = _together(audit, data)
    keep = held | ~np.isin(together, together[held])  # of trusted rows, copies and groups may be anywhere
    if held.sum() == keep.sum():
        raise ValueError(
            f"Expected rows to train on beside the {held.sum()} trusted ones, got only copies of these and rows of "
            "their groups. Leave out --retrain."
        )
    data, given, corrected, held = data.subset(keep), given[keep], corrected[keep], held[keep]
    assert data.x is not None
    planned = Retraining(
        method=method or audit.config["method"] or "ce",
        settings=Settings(audit.config["model"] or "auto", epochs or audit.config["epochs"] or EPOCHS),
        seed=seed,
        classes=audit.classes,
        x=data.x,
        given=given,
        corrected=corrected,
        held=held,
        warning=_doubt(audit, data, held, decided, changes),
    )
    with suppress(Interrupted):  # by the number of steps
        train(planned.task(given), planned.method, planned.settings, seed=seed, max_steps=1)
    return planned


def compare(
    audit: Audit,
    changes: Mapping[int, str],
    decided: Mapping[int, Decision],
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Train the same method twice, on the given and on the corrected labels, and judge both on rows it never saw.

    The ``options`` are those of ``plan_retraining``; ``progress`` counts the epochs of both trainings.
    """
    return plan_retraining(audit, changes, decided, **options).run(progress)


def read_again(audit: Audit) -> AuditData:
    """The inputs that were audited."""
    from noiseproof.audit.inputs import read_rows

    config = audit.config
    if config["kind"] != "predictions":
        _source(audit)
    has_data = config["data"] is not None
    if not has_data and not config.get("embeddings"):
        raise ValueError("Expected inputs to train on, the audit had labels and predictions only. Leave out --retrain.")
    names = ("label", "text", "id", "group", "time", "trusted", "labels", "embeddings", "backbone")
    options = {name: config[name] for name in names if config.get(name) is not None}
    if config.get("classes_named"):
        options["classes"] = config["classes"]
    if not has_data:
        options["pred_probs"] = config["pred_probs"]
    return read_rows(
        config["data"], **options, ignore=config["ignore"] or (), annotators=config["annotators"] or (),
        seed=config["seed"],
    )  # fmt: skip


def hold_out(audit: Audit, data: AuditData, given: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """The rows to judge by, (N,)."""
    from noiseproof.audit.evidence.folds import make_folds
    from noiseproof.data.base import derive_seed

    if data.trusted is not None and data.trusted.any() and not data.trusted.all():
        return data.trusted
    # A seed that nobody else has: the numbers that made labels wrong, or sorted the rows, must not choose these.
    own = derive_seed(seed, zlib.crc32(b"held out"))
    folds = make_folds(given, folds=5, groups=_together(audit, data), time=data.time, seed=own)
    return np.asarray(folds == (folds.max() if data.time is not None else 0))


def _together(audit: Audit, data: AuditData) -> NDArray[np.int64]:
    """A number for each row, (N,), equal for those of one group and for near-duplicates.

    Of rows that were not audited, such as those of a trusted table, only exact copies are known.
    """
    from noiseproof.audit.evidence.folds import find_duplicates, merge_groups

    group = audit.issues.set_index("row")["duplicate_group"].reindex(data.row)
    copies = np.array([int(float(g)) if g not in ("", None) and g == g else -1 for g in group.tolist()], dtype=np.int64)
    assert data.x is not None
    same = find_duplicates(data.x, data.given).group
    together = merge_groups(data.groups, copies, same)
    assert together is not None
    return together


def _doubt(
    audit: Audit,
    data: AuditData,
    held: NDArray[np.bool_],
    decided: Mapping[int, Decision],
    changes: Mapping[int, str],
) -> str | None:
    """Why the held-out labels may be wrong; None where they are known to be right."""
    if data.trusted is not None and data.trusted[held].all():
        return None
    rows = set(data.row[held].tolist())
    flagged = rows & set(audit.issues.loc[audit.issues["is_label_issue"], "row"].tolist())
    waiting = [row for row in flagged if row not in decided or decided[row].decision == "skip"]
    unseen = sum(row in changes for row in waiting)
    rate = (audit.summary.get("noise_rate") or {}).get("estimate")
    return (
        f"The {len(rows)} held-out labels come from the same source and may be wrong, too: {len(waiting)} of them are "
        "issues that no person decided on"
        + (f", of which {unseen} now bear the audit's own suggestion and favour models like its own" if unseen else "")
        + (f"; the audit estimates {100 * rate:.1f} % wrong labels in all" if rate is not None else "")
        + ". Trust the difference only on labels you know to be right (`noiseproof audit --trusted`)."
    )
