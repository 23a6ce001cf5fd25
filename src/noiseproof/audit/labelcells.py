"""The cells of labels: what they stand for, and how new labels are spelled as the data spells its
own.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from noiseproof.audit.described import CellsOf
from noiseproof.audit.files import Audit
from noiseproof.data.labels import read_labels
from noiseproof.data.labelsets import (
    NONE,
    column_cells,
    list_cells,
    split_among,
)


def label_cells(
    audit: Audit,
    labels: Mapping[int, str],
    cells_of: CellsOf,
    class_names: Sequence[str] | None = None,
) -> dict[str, dict[int, Any]]:
    """Return the cells to change in a table for new ``labels``, by column and row, in the table's
    own spelling.

    ``class_names`` are the names in a data set whose lists have numbers of classes.
    """
    multi = audit.multi_label
    if columns := audit.label_columns:
        return column_cells(labels, {name: cells_of(name) for name in columns})
    name = audit.label_name
    if class_names is not None:
        place = f"the class names of {name!r}"
        sets = split_among(
            labels, multi["separator"], class_names, place, "Add them with `cast_column`"
        )
        return {
            name: {row: [class_names.index(label) for label in each] for row, each in sets.items()}
        }
    if audit.has_lists:
        return {name: list_cells(cells_of(name), labels, multi["separator"])}
    spelling = spell_labels(audit, cells_of(name), labels.values())
    return {name: {row: spelling[label] for row, label in labels.items()}}


def spell_labels(audit: Audit, cells: Sequence[Any], names: Collection[str]) -> Mapping[str, Any]:
    """Return how the source spells each of the labels ``names``; ``cells`` are those that it
    has.
    """
    if not audit.multi_label:
        return spell_classes(audit, cells, names)
    return {name: name for name in names} | {NONE: ""} | audit.spellings(cells)


def spell_classes(audit: Audit, cells: Sequence[Any], names: Iterable[str] = ()) -> dict[str, Any]:
    """Return how the source spells each class, most often if in several ways: 1.0, say, for the
    class 1.

    A class without an audited row is spelled as its name, or as its position in the classes that
    the user named, if numbers are positions there and not names. ``names`` may have new classes,
    which are spelled as their names.
    """
    spelling = audit.spellings(cells)
    written = list(spelling.values())
    numbers = read_labels(written)
    are_numbers = numbers.dtype.kind == "i"
    are_names = list(map(str, numbers)) == list(spelling)

    def spell(name: str) -> Any:
        are_words = isinstance(written[0], str)
        is_new = name not in audit.classes
        is_name = are_names and (is_new or name.isdecimal())
        is_position = are_numbers and not is_name and (is_new or audit.config.get("classes_named"))
        word = str(audit.classes.index(name)) if is_position and not is_new else name
        if isinstance(written[0], bytes):
            return word.encode()
        if not is_new:
            return int(word) if are_numbers and not are_words else word
        if are_words and not is_position:
            return name
        if name.isdecimal() and not is_position:
            return int(name)
        raise ValueError(
            "Expected a whole number as the name of a new class, as the labels in the data are"
            f" numbers, got {name!r}. Undo the decisions for it, or save the labels as words and"
            " audit them."
        )

    return {
        name: spell(name) for name in (*audit.classes, *names) if name not in spelling
    } | spelling


def merge_labels(
    audit: Audit,
    changes: Mapping[int, str],
    becomes: Mapping[str, str],
    words: Sequence[str] | None,
) -> dict[int, str]:
    """Return all rows whose label changes if classes are merged, too; ``words`` are the labels of
    the whole source.

    A row that was not audited, such as the only one of its class, is known by its word.
    """
    if not becomes:
        return dict(changes)
    given = audit.given
    labels = dict(enumerate(words or ())) | given | dict(changes)
    merged = {
        row: becomes.get(label, label)
        for row, label in labels.items()
        if row in changes or label in becomes
    }
    return {row: label for row, label in sorted(merged.items()) if label != given.get(row)}
