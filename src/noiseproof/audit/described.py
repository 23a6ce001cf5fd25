"""What config.json says of the labels of an audit: where they are, and how words spell them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from noiseproof.data.labelsets import LabelWords, column_words, join_sets, lists_as_sets

CellsOf = Callable[[str], Sequence[Any]]  # the cells of a column, as a table stores them


class DescribedLabels:
    """Labels as a ``config`` describes them, of an audit or of its source."""

    config: Mapping[str, Any]

    @property
    def multi_label(self) -> Mapping[str, Any]:
        """How rows with several labels spell them, as in config.json; empty where a row has one."""
        return self.config.get("multi_label") or {}

    @property
    def words(self) -> LabelWords:
        """How words spell the labels of a row."""
        return LabelWords.of(self.config)

    @property
    def is_voted(self) -> bool:
        """Whether the labels are the consensus of annotators, and in no column or file."""
        return bool(self.config.get("voted"))

    @property
    def label_name(self) -> Any:
        """The column of the labels in a table, or their key in a data set."""
        label = self.config["label"]
        return self.config.get("labels_key") if label is None else label

    @property
    def label_columns(self) -> list[str]:
        """Columns that say yes or no, one for each label; empty where one column has the labels."""
        return list(self.multi_label.get("columns") or ())

    @property
    def given_columns(self) -> list[Any]:
        """The columns of the given labels in a table: several that say yes or no, one, or none."""
        label = self.config["label"]
        return self.label_columns or [name for name in [label] if name is not None]

    @property
    def has_lists(self) -> bool:
        """Whether the cells of the labels in a table or in a data set are lists."""
        kind = self.multi_label.get("kind")
        return kind == "cells" or (kind == "lists" and self.config["label"] is None)

    def check_columns(self, header: Sequence[Any]) -> None:
        """Refuse a table without the columns of the labels, or of the ids."""
        for column in (*self.given_columns, self.config["id"]):
            if column is not None and column not in header:
                raise ValueError(
                    f"Expected the audited table with its column {column!r}, got"
                    f" {', '.join(map(str, header))}."
                )

    def set_words(self, cells_of: CellsOf) -> list[str | None] | None:
        """Return the word of each row of a table with several labels per row, in columns or in
        lists; None for others.
        """
        if columns := self.label_columns:
            return list(column_words({name: cells_of(name) for name in columns}))
        if self.has_lists:
            separator = self.multi_label["separator"]
            return join_sets(lists_as_sets(cells_of(self.label_name)), separator)
        return None
