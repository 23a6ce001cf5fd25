"""Labels of a source: read with gaps, compared with those that were audited, and spelled as the source spells them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audit.files import Audit, read_row_digests, renewing_command, same_id, same_labels
from noiseproof.audit.rows import Digests, follow_rows
from noiseproof.data.labels import encode_labels, read_labels


def is_missing(values: Any) -> NDArray[np.bool_]:
    """Return where there is no value, (N,): None, NaN, or only spaces."""
    import pandas as pd

    column = values if isinstance(values, pd.Series) else pd.Series(values)
    absent = column.isna()
    if column.dtype.kind not in "biufMm":
        absent |= column.astype(str).str.strip() == ""
    return np.asarray(absent.to_numpy(dtype=bool))


def encode_given(
    values: Any, classes: Sequence[str] | None, name: str, known: Sequence[str] | None = None
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return class numbers (N,), −1 where there is no label, and class names: ``known``, else ``classes``, else sorted.

    Numbers are positions in ``classes`` where the user named them.
    """
    import pandas as pd

    absent = is_missing(values) if values.ndim == 1 else np.zeros(len(values), dtype=bool)
    if absent.all():
        raise ValueError(f"Expected labels in `{name}`, got none in any of {len(absent)} rows.")
    present = values[~absent]
    if classes is not None:
        _check_positions(present, classes, name)
    place: Any = slice(None)
    if isinstance(present.dtype, pd.StringDtype):  # each word once: less time and memory
        place, present = pd.factorize(present)
    codes, names = encode_labels(present, known or classes, positions=classes is not None, name=name)
    given = np.full(len(absent), -1)
    given[~absent] = codes.numpy()[place]
    return given, names


def _check_positions(values: Any, classes: Sequence[str], name: str) -> None:
    """Refuse whole numbers that are the names of classes at other positions; words are looked up by name."""
    if isinstance(next(iter(values), None), (str, bytes)):
        return
    numbers = {str(value) for value in read_labels(values, name).tolist()}
    class_at = {str(k): str(c) for k, c in enumerate(classes)}
    if numbers <= {*class_at.values()} and (odd := [number for number in numbers if class_at.get(number) != number]):
        raise ValueError(
            f"Expected whole numbers in `{name}` to be names or positions in `classes`, got {min(odd)}, which is the "
            "name of one class and the position of another. Save the labels as words, which are looked up by name."
        )


def column_names(table: Any) -> list[Any] | None:
    """Return the names of the columns of a DataFrame, None if it has only 0, 1, … as pandas names them, or is none."""
    names = list(getattr(table, "columns", ()))
    return None if list(map(str, names)) == list(map(str, range(len(names)))) else names


def check_unchanged(audit: Audit, labels: Sequence[str]) -> None:
    if not same_labels(audit.config, labels):
        raise ValueError(
            f"Expected the labels that were audited in {audit.config['data'] or audit.config['labels'] or 'memory'}, "
            "they or their order have changed since. Audit the data again."
        )


def row_outcomes(by_row: Mapping[int, object], left_out: Collection[int]) -> dict[int, object]:
    """Return what becomes of rows, for `find_rows`: copies of one that moved must have the same."""
    return {**by_row, **dict.fromkeys(left_out)}


def find_rows(audit: Audit, now: Digests, outcomes: Mapping[int, object]) -> NDArray[np.int64]:
    """Return where the audited rows are in a source whose rows have the digests ``now``, (source_rows,).

    Rows that changed, came or went are refused, and so are copies of a row that moved and have different ``outcomes``.
    """
    before = read_row_digests(audit)
    place, has_copies = follow_rows(before, now)
    where, lost = audit.config["data"] or audit.config["labels"] or "memory", np.flatnonzero(place < 0)
    again = f"Audit the data again, which keeps decisions: {renewing_command(audit.config)}"
    if len(lost) or len(now) != len(before):
        such = f", such as row {lost[0]}" if len(lost) else ""
        raise ValueError(
            f"Expected the {len(before)} rows that were audited in {where}, they or their order have changed since: "
            f"{len(lost)} are gone or have other cells{such}, and there are {len(now)}. {again}"
        )
    outcome: dict[bytes, tuple[int, object]] = {}
    for row in np.flatnonzero(has_copies).tolist():
        first, other = outcome.setdefault(before[row].tobytes(), (row, outcomes.get(row)))
        if other != outcomes.get(row):
            raise ValueError(
                f"Expected the rows of {where} in their order, or one decision for rows {first} and {row}: they are "
                f"copies that have moved, and which is which cannot be told. Decide on both alike. {again}"
            )
    return place


def check_issues(audit: Audit, labels: Sequence[str] | None, ids: Sequence[str] | None) -> None:
    """Refuse an issues.csv whose labels or ids are not those of the source in the same rows; None: it has none."""
    class_of: dict[str, str] = {}
    for row, id, given in audit.issues[["row", "id", "given_label"]].itertuples(index=False):
        word = given if labels is None else labels[row]
        is_same = class_of.setdefault(word, given) == given and (ids is None or same_id(ids[row], id))
        if not is_same:
            found = word if ids is None else f"{word!r} with the id {ids[row]!r}"
            raise ValueError(
                f"Expected the rows of {audit.config['data'] or 'the data'} in {audit.folder / 'issues.csv'}, got "
                f"{given!r} with the id {id!r} for row {row}, which is {found} there. It was changed, or belongs to "
                f"another audit. Audit the data again: {renewing_command(audit.config)}"
            )


def moved_changes(
    audit: Audit,
    now: Digests,
    words: Sequence[str],
    changes: Mapping[int, str],
    becomes: Mapping[str, str],
    left_out: Collection[int],
) -> tuple[Audit, dict[int, str], frozenset[int]]:
    """Return the audit, its changes with those of merged classes, and the rows left out, where the rows are now."""
    place = find_rows(audit, now, row_outcomes(changes, left_out))
    audit, changes = audit.moved(place), {int(place[row]): name for row, name in changes.items()}
    check_issues(audit, words, None)
    return audit, merge_labels(audit, changes, becomes, words), frozenset(place[list(left_out)].tolist())


def spell_classes(audit: Audit, cells: Sequence[Any], names: Iterable[str] = ()) -> dict[str, Any]:
    """Return how the source spells each class, most often if in several ways: 1.0, say, for the class 1.

    A class without an audited row is spelled as its name, or as its position in the classes that the user named, if
    numbers are positions there and not names. ``names`` may have new classes, which are spelled as their names.
    """
    spelling = audit.spellings(cells)
    written = list(spelling.values())
    numbers = read_labels(written)
    is_number = numbers.dtype.kind == "i"
    by_name = list(map(str, numbers)) == list(spelling)  # numbers that are names
    for k, name in enumerate(audit.classes):
        if name in spelling:
            continue
        is_position = is_number and audit.config.get("classes_named") and not (by_name and name.isdecimal())
        word = str(k) if is_position else name
        if isinstance(written[0], bytes):
            spelling[name] = word.encode()
        else:
            spelling[name] = int(word) if is_number and not isinstance(written[0], str) else word
    for name in {*names} - {*spelling}:
        spelling[name] = _spell_new(name, written[0], has_positions=bool(is_number and not by_name))
    return spelling


def _spell_new(name: str, cell: Any, *, has_positions: bool) -> Any:
    """Return a new class as the source would spell it, whose labels are like ``cell``."""
    if isinstance(cell, bytes):
        return name.encode()
    if isinstance(cell, str) and not has_positions:
        return name
    if not has_positions and name.isdecimal():
        return int(name)
    raise ValueError(
        f"Expected a whole number as the name of a new class, as the labels in the data are numbers, got {name!r}. "
        "Undo the decisions for it, or save the labels as words and audit them."
    )


def merge_labels(
    audit: Audit, changes: Mapping[int, str], becomes: Mapping[str, str], words: Sequence[str] | None
) -> dict[int, str]:
    """Return all rows whose label changes if classes are merged, too; ``words`` are the labels of the whole source.

    A row that was not audited, such as the only one of its class, is known by its word.
    """
    if not becomes:
        return dict(changes)
    given = audit.given
    labels = dict(enumerate(words or ())) | given | dict(changes)
    merged = {row: becomes.get(label, label) for row, label in labels.items() if row in changes or label in becomes}
    return {row: label for row, label in sorted(merged.items()) if label != given.get(row)}
