"""Rows with several labels: the set of a row's labels as one word, ``a|b``, and back.

Files, decisions and pages of an audit know one label per row, a word. The word of a row with
several labels spells all of them, as its cell does; ``(none)`` stands for no label. Columns of
zeros and ones, matrices and lists become such words when they are read, and are written as what
they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from noiseproof.core.arrays import Array, Bools, Ints
from noiseproof.core.messages import Brief, preview
from noiseproof.data.labels import NUMBER, as_array, find_words, is_gap, names_of_columns
from noiseproof.data.votes import Votes

NONE = "(none)"
COLUMNS = "columns"  # in place of a separator: several columns of zeros and ones
SEPARATORS = ("|", ";", "/", " ")
EMPTY = ("", "nan", "none", "<na>", "nat")
LISTS = (list, tuple, set, frozenset, np.ndarray)
MEMBERS = (str, int, float, np.integer, np.floating, np.bool_)  # what lists of labels may have
YES = ("1", "1.0", "true", "yes", "y")
NO = ("0", "0.0", "false", "no", "n", *EMPTY)


def split_set(word: str, separator: str) -> list[str]:
    """The labels that a word spells, each once.

    >>> split_set("b| a|b", "|"), split_set("(none)", "|")
    (['b', 'a'], [])
    """
    if word == NONE:
        return []
    return list(dict.fromkeys(part for part in map(str.strip, word.split(separator)) if part))


def join_set(labels: Iterable[str], separator: str) -> str:
    return separator.join(labels) or NONE


@dataclass(frozen=True)
class LabelWords:
    """How the words of an audit spell the labels of a row: a word is one label, or a set."""

    names: tuple[str, ...]  # of the labels
    separator: str = ""  # between the labels of a set; empty where a word is one label
    joiner: str = ""  # the same as cells have it

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> LabelWords:
        """As config.json says."""
        multi = config.get("multi_label")
        if not multi:
            return cls(tuple(config.get("classes", ())))
        separator = multi["separator"]
        return cls(tuple(multi["labels"] or ()), separator, multi.get("joiner", separator))

    def split(self, word: str) -> list[str]:
        """The labels that a word stands for."""
        return split_set(word, self.separator) if self.separator else [word]

    def join(self, labels: Iterable[str]) -> str:
        """The word of one label, or of a set."""
        return join_set(labels, self.joiner) if self.separator else "".join(labels)


@dataclass(frozen=True, eq=False, repr=False)
class Labels(Brief):
    """The labels of N rows: one for each, or a set of several.

    A row has a word, as in the files of an audit: the name of its class, or what spells its set.
    """

    words: tuple[str, ...]  # (C,)
    codes: Ints  # (N,) the number of the word of each row, −1 for none
    names: tuple[str, ...]  # (K,) classes, or the labels that rows have several of
    members: Bools | None = None  # (C, K): which labels each word spells, of sets
    separator: str = ""  # between the labels of a set
    joiner: str = ""  # the separator as cells have it, with spaces around it or not
    votes: Votes | None = None  # of annotators, on these rows

    @classmethod
    def of_classes(cls, classes: Sequence[str], codes: Ints, votes: Votes | None = None) -> Labels:
        """One label for each row."""
        return cls(tuple(classes), codes, tuple(classes), votes=votes)

    @classmethod
    def of_sets(
        cls,
        words: Sequence[str],
        separator: str,
        names: Sequence[str] | None = None,
        codes: Ints | None = None,
    ) -> Labels:
        """Sets that ``words`` spell; by default each word is a row.

        Args:
            names: the labels; by default those of the words, sorted (numbers as numbers).
        """
        parts = [split_set(word, separator) for word in words]
        known = {part for each in parts for part in each}
        if names is None:
            names = sorted(known)
            if all(map(NUMBER.fullmatch, known)):
                names = sorted(names, key=float)
        if unknown := sorted(known - {*names}):
            raise ValueError(
                f"Expected labels among {preview(list(names))}, got {preview(unknown)}."
            )
        joiners = [f" {separator} ", f"{separator} ", separator]
        used = [
            next(joiner for joiner in joiners if joiner in word)
            for word in words
            if separator in word
        ]
        [(joiner, _)] = Counter(used or [separator]).most_common(1)
        if codes is None:
            codes = np.arange(len(words))
        members = _members(parts, names)
        return cls(tuple(words), codes, tuple(names), members, separator, joiner)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Array) -> Labels:
        """The labels of some rows, by a mask (N,) or numbers."""
        votes = None if self.votes is None else self.votes[rows]
        return replace(self, codes=self.codes[rows], votes=votes)

    @property
    def are_sets(self) -> bool:
        """Whether rows have several labels."""
        return self.members is not None

    @property
    def answers(self) -> Bools:
        """Whether each row has each label of sets, (N, K)."""
        assert self.members is not None
        return self.members[self.codes]

    @property
    def targets(self) -> Ints:
        """What models learn: the class of each row, (N,), or 0 and 1 for each label of sets,
        (N, K).
        """
        return self.codes if self.members is None else self.answers.astype(np.int64)

    @property
    def counts(self) -> Ints:
        """How many rows have each label, (K,)."""
        rows = np.bincount(self.codes, minlength=len(self.words))
        return rows if self.members is None else rows @ self.members

    @property
    def comparable(self) -> Ints:
        """A number for each row, (N,), equal for rows of the same labels."""
        if self.members is None:
            return self.codes
        same = np.unique(self.members, axis=0, return_inverse=True)[1]
        return np.asarray(same).ravel().astype(np.int64)[self.codes]

    def equal(self, other: Labels) -> Bools:
        """Whether the rows of both have the same labels, (N,); ``other`` is what ``read``
        returned.
        """
        if self.members is None:
            return np.asarray(self.codes == other.codes)
        return np.asarray((self.answers == other.answers).all(1))

    def changed(self, codes: Ints) -> Labels:
        """Other labels where ``codes`` (N,), numbers of words, are not −1."""
        return replace(self, codes=np.where(codes >= 0, codes, self.codes))

    def with_words(self, words: Iterable[str]) -> Labels:
        """The same labels with further words, which spell sets of the known labels."""
        all_words = tuple(dict.fromkeys((*self.words, *words)))
        if self.members is None or all_words == self.words:
            return self
        parts = [split_set(word, self.separator) for word in all_words]
        return replace(self, words=all_words, members=_members(parts, self.names))

    def read(self, words: Sequence[str]) -> Labels:
        """The labels of other rows, (n,), from their ``words``; unknown labels do not count."""
        different = tuple(dict.fromkeys(words))
        if self.members is None:
            number = find_words(different, self.words)
            codes = np.array([number.get(word, -1) for word in words], dtype=np.int64)
            return Labels.of_classes(self.words, codes)
        parts = [split_set(word, self.separator) for word in different]
        number = {word: k for k, word in enumerate(different)}
        codes = np.array([number[word] for word in words], dtype=np.int64)
        members = _members(parts, self.names)
        return replace(self, words=different, codes=codes, members=members, votes=None)

    def spell(self, row: int, answers: Bools) -> str:
        """The word of the labels with the answer yes (K,): those that the row has come first, in
        its order.
        """
        like: str = self.words[self.codes[row]]
        has = split_set(like, self.separator)
        wanted = [self.names[k] for k in np.flatnonzero(answers)]
        kept = [name for name in has if name in wanted]
        if len(kept) == len(wanted) == len(has):
            return like
        return join_set([*kept, *(name for name in wanted if name not in kept)], self.joiner)


def _members(sets: Sequence[Sequence[str]], names: Sequence[str]) -> Bools:
    """Which of the K ``names`` are in each set, (n, K); others do not count."""
    number = {name: k for k, name in enumerate(names)}
    members = np.zeros((len(sets), len(names)), dtype=bool)
    for row, each in enumerate(sets):
        members[row, [number[name] for name in each if name in number]] = True
    return members


# What users have


def is_matrix(labels: Any) -> bool:
    """Whether ``labels`` are a matrix (N, K) of zeros and ones, K ≥ 2, and not one-hot: that is one
    label per row.
    """
    return _has_zeros_and_ones(labels) and bool((_array(labels).sum(1) != 1).any())


def are_lists(labels: Any) -> bool:
    """Whether ``labels`` are lists of labels, one list per row; lists of zeros and ones, all as
    long, are a matrix.
    """
    if not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) != 1:
        return False
    cells = [cell for cell in _cells(labels) if cell is not None]
    are_sets = bool(cells) and all(map(is_list, cells))
    return are_sets and not _has_zeros_and_ones(labels)


def _cells(labels: Any) -> list[Any]:
    return labels.tolist() if hasattr(labels, "tolist") else list(labels)


def _has_zeros_and_ones(labels: Any) -> bool:
    try:
        array = _array(labels)
    except ValueError:  # rows of different lengths
        return False
    is_table = array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind in "biuf"
    return bool(is_table and np.isin(array, (0, 1)).all())


def _array(labels: Any) -> Array:
    return as_array(labels.toarray() if hasattr(labels, "toarray") else labels)


def label_names(labels: Any, classes: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names of the columns of a matrix: ``classes``, its own names, or their numbers; None for
    lists.
    """
    if are_lists(labels):
        return None if classes is None else tuple(str(name).strip() for name in classes)
    return names_of_columns(labels, classes, _array(labels).shape[1], "labels")


def as_sets(labels: Any, names: Sequence[str] | None) -> list[list[str] | None]:
    """The labels of each row of a matrix with the columns ``names``, or of lists; None for a row
    without a list.
    """
    if are_lists(labels):
        return lists_as_sets(_cells(labels))
    assert names is not None
    return [[names[k] for k in np.flatnonzero(row).tolist()] for row in _array(labels)]


def join_sets(sets: Iterable[Sequence[str] | None], separator: str) -> list[str | None]:
    """The word of each set, None for a row that is not labelled."""
    return [None if each is None else join_set(each, separator) for each in sets]


def sets_as_words(labels: Any, classes: Sequence[str] | None) -> tuple[Array, dict[str, Any]]:
    """The labels of a matrix or of lists as words, (N,), and how they spell sets, as in
    config.json.
    """
    names = label_names(labels, classes)
    sets = as_sets(labels, names)
    separator = separator_for(names or {name for each in sets for name in each or ()})
    words = np.array(join_sets(sets, separator), dtype=object)
    kind = "lists" if are_lists(labels) else "matrix"
    return words, {"kind": kind, "separator": separator, "labels": names and list(names)}


def read_sets(labels: Any, names: Sequence[str] | None = None) -> Labels:
    """The sets of a matrix, whose columns have ``names``, or of lists."""
    words, multi = sets_as_words(labels, names)
    if num_absent := words.tolist().count(None):
        raise ValueError(
            f"Expected labels of every row, got none in {num_absent}. Leave these rows out."
        )
    return Labels.of_sets(words.tolist(), multi["separator"], multi["labels"])


def separator_for(names: Collection[str]) -> str:
    """A separator that no label contains."""
    if empty := [name for name in names if not name.strip() or name == NONE]:
        raise ValueError(f"Expected names of labels, got {empty[0]!r}. Rename it.")
    for separator in SEPARATORS:
        if not any(separator in name for name in names):
            return separator
    raise ValueError(
        f"Expected labels without one of {' '.join(SEPARATORS[:3])}, got {preview(sorted(names))}."
        " Rename them."
    )


def looks_like_sets(counts: Mapping[str, int]) -> list[str]:
    """A hint, if words seem to spell sets: one label in five has a separator, and few parts make
    many words.

    >>> looks_like_sets({"a|b": 5, "b": 9, "b|c": 4, "a|c": 7, "a|b|c": 3})[0][:54]
    "19 of 28 labels seem to be several ones, such as 'a|c'"
    """
    rows = sum(counts.values())
    for separator in ("|", ";", ","):
        joined = {word: n for word, n in counts.items() if len(split_set(word, separator)) > 1}
        uses = Counter(part for word in counts for part in split_set(word, separator))
        are_reused = sum(count > 1 for count in uses.values()) > len(uses) / 2
        if (
            len(joined) > 2
            and 5 * sum(joined.values()) >= rows
            and len(uses) <= len(counts)
            and are_reused
        ):
            example = max(joined, key=lambda word: joined[word])
            return [
                f"{sum(joined.values())} of {rows} labels seem to be several ones, such as"
                f" {example!r}: to judge each of {len(uses)} labels by itself, audit with"
                f" `--multi-label={separator!r}`, in Python `multi_label={separator!r}`."
            ]
    return []


def yes_no(cells: Iterable[Any], name: str, role: str = "label column") -> Bools:
    """Whether each cell of a column says yes; others than yes and no, true and false, 1 and 0 are
    refused.
    """
    words = [str(cell).strip().lower() for cell in cells]
    if odd := sorted({*words} - {*YES, *NO}):
        raise ValueError(
            f"Expected 1 or 0, yes or no, true or false in the {role} {name!r}, got {preview(odd)}."
        )
    return np.array([word in YES for word in words], dtype=bool)


def empty_cells(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """A note on the empty cells of columns that say yes or no, if there are any."""
    counts = {
        name: sum(str(cell).strip().lower() in EMPTY for cell in cells)
        for name, cells in columns.items()
    }
    shown = [f"{count} in {name!r}" for name, count in counts.items() if count]
    if not shown:
        return []
    return [f"Empty cells of label columns count as no: {', '.join(shown)}."]


def column_words(columns: Mapping[str, Sequence[Any]]) -> list[str]:
    """The word of each row from columns that say yes or no."""
    separator = separator_for(columns.keys())
    answers = np.stack([yes_no(cells, name) for name, cells in columns.items()], 1)
    names = list(columns)
    return [join_set((names[k] for k in np.flatnonzero(row)), separator) for row in answers]


# Columns of lists


def is_list(cell: Any) -> bool:
    return isinstance(cell, LISTS)


def has_lists(cells: Sequence[Any], name: str) -> bool:
    """Whether the cells of a label column are lists, or absent; words among lists, and zeros and
    ones, are refused.
    """
    if not any(map(is_list, cells)):
        return False
    rest = [cell for cell in cells if not is_list(cell) and not is_gap(cell)]
    if rest:
        raise ValueError(
            f"Expected a list of labels in every cell of {name!r} that has any, got {preview(rest)}"
            " as well as lists."
        )
    full = [list(cell) for cell in cells if is_list(cell)]
    answers = all(value in (0, 1) and not isinstance(value, str) for cell in full for value in cell)
    if answers and any(len({*cell}) < len(cell) for cell in full):
        raise ValueError(
            f"Expected the names of labels in the lists of {name!r}, got zeros and ones such as"
            f" {preview(full[:1])}. Pass them as `labels`, a matrix, or make a column of each."
        )
    return True


def spelled_lists(
    names: Collection[str], multi: Mapping[str, Any] | None, where: str
) -> dict[str, Any]:
    """How words spell the labels in the lists of ``where``: by the separator of the user, or any
    that no label has.
    """
    multi = multi or {"separator": separator_for(names), "labels": None}
    if odd := sorted(name for name in names if multi["separator"] in name):
        raise ValueError(
            f"Expected labels without the separator {multi['separator']!r} in the lists of {where},"
            f" got {preview(odd)}. Leave out `multi_label`: lists need none."
        )
    return dict(multi)


def list_values(cells: Iterable[Any]) -> dict[str, Any]:
    """What the lists have for each label, by its name; others than words and numbers are
    refused.
    """
    values: dict[str, Any] = {}
    for cell in filter(is_list, cells):
        for value in cell:
            if not isinstance(value, MEMBERS) or value != value:
                raise ValueError(
                    "Expected words or numbers in lists of labels, such as ['calm', 'sad'], got"
                    f" {value!r} in one. Write each label as one word, and leave missing ones out."
                )
            known = values.setdefault(str(value).strip(), value)
            if known != value or isinstance(known, str) != isinstance(value, str):
                raise ValueError(
                    f"Expected each label written in one way in lists, got {known!r} and {value!r},"
                    " which are one label. Write them alike."
                )
    return values


def lists_as_sets(cells: Sequence[Any]) -> list[list[str] | None]:
    """The labels in each list, None where there is no list."""
    list_values(cells)
    sets: list[list[str] | None] = []
    for cell in cells:
        if is_list(cell):
            sets.append(list(dict.fromkeys(str(value).strip() for value in cell)))
        else:
            sets.append(None)
    return sets


def value_of(name: str, values: Mapping[str, Any]) -> Any:
    """What lists with these ``values`` have for a label; a new one is a number where all of them
    are.
    """
    if name in values or not values or any(isinstance(value, str) for value in values.values()):
        return values.get(name, name)
    are_whole = all(isinstance(value, (int, np.integer)) for value in values.values())
    kind = "a whole number" if are_whole else "a number"
    if not NUMBER.fullmatch(name) or (are_whole and "." in name):
        raise ValueError(
            f"Expected {kind} as a new label, as those in the data are, got {name!r}. Undo the"
            " decisions for it, or write all labels as words and audit them."
        )
    return int(name) if are_whole else float(name)


def list_cells(cells: Sequence[Any], words: Mapping[int, str], separator: str) -> dict[int, Any]:
    """Lists with the labels that ``words`` spell, by row: values and lists have the types that
    ``cells`` have.
    """
    values = list_values(cells)

    def filled(cell: Any, names: Sequence[str]) -> Any:
        wanted = [value_of(name, values) for name in names]
        if not is_list(cell):
            return wanted
        if not isinstance(cell, np.ndarray):
            return type(cell)(wanted)
        if wanted and cell.dtype.kind in "US":  # words may need more room than before
            return np.array(wanted)
        return np.array(wanted, dtype=cell.dtype)

    return {row: filled(cells[row], split_set(word, separator)) for row, word in words.items()}


# Corrected copies


def split_among(
    words: Mapping[int, str], separator: str, names: Collection[str], place: str, remedy: str
) -> dict[int, list[str]]:
    """The labels of each word, by row; others than ``names`` have no ``place`` and are refused."""
    sets = {row: split_set(word, separator) for row, word in words.items()}
    if odd := sorted({name for each in sets.values() for name in each} - {*names}):
        raise ValueError(
            f"Expected labels among {place}, got {preview(odd)}. {remedy}, or undo the "
            f"{'decision' if len(odd) == 1 else 'decisions'}."
        )
    return sets


def _among_columns(
    words: Mapping[int, str], separator: str, names: Collection[str]
) -> dict[int, list[str]]:
    return split_among(
        words, separator, names, f"the columns {preview(list(names))}", "Add a column"
    )


def column_cells(
    changes: Mapping[int, str], columns: Mapping[str, Sequence[Any]]
) -> dict[str, dict[int, Any]]:
    """The cells to change in each of the ``columns`` that say yes or no, by row, in their own
    spelling.
    """
    wanted = _among_columns(changes, separator_for(columns.keys()), columns)
    said = {name: yes_no(cells, name) for name, cells in columns.items()}
    spelled: dict[str, dict[bool, Any]] = {}
    usual: dict[bool, Any] = {True: 1, False: 0}
    for name, cells in columns.items():
        counts = Counter(zip(said[name].tolist(), cells, strict=True)).most_common()
        # the most frequent one comes last
        spelled[name] = {answer: cell for (answer, cell), _ in reversed(counts)}
        usual |= spelled[name]
    return {
        name: {
            row: spelled[name].get(name in labels, usual[name in labels])
            for row, labels in wanted.items()
            if (name in labels) != said[name][row]
        }
        for name in columns
    }


def with_sets(
    labels: Any, changes: Mapping[int, str], separator: str, names: Sequence[str] | None
) -> Any:
    """A copy of a matrix or of lists with other labels in some rows."""
    if are_lists(labels):
        return _with_lists(labels, changes, separator)
    assert names is not None
    parts = _among_columns(changes, separator, names)
    if isinstance(labels, (list, tuple)):
        rows = list(labels)
        for row, wanted in parts.items():
            rows[row] = [int(name in wanted) for name in names]
        return type(labels)(rows)
    matrix = _array(labels).copy()
    for row, wanted in parts.items():
        matrix[row] = [name in wanted for name in names]
    if hasattr(labels, "iloc"):
        return type(labels)(matrix, labels.index, labels.columns).astype(labels.dtypes)
    if isinstance(labels, np.ndarray):
        return matrix
    if hasattr(labels, "new_tensor"):
        return labels.new_tensor(matrix)
    return type(labels)(matrix)  # a sparse one


def _with_lists(labels: Any, changes: Mapping[int, str], separator: str) -> Any:
    """Lists with other labels in some rows: values, cells and their container have the types that
    they had.
    """
    cells = _cells(labels)
    new = list_cells(cells, changes, separator)
    cells = [new.get(row, cell) for row, cell in enumerate(cells)]
    if hasattr(labels, "iloc"):
        return type(labels)(cells, labels.index, object, labels.name)
    if isinstance(labels, np.ndarray):
        return np.fromiter(cells, object, len(cells))
    return type(labels)(cells)
