"""What was saved of an earlier judgement: the audit, and what people decided on its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, get_args

from noiseproof.core.arrays import Ints
from noiseproof.data.labelsets import LabelWords

if TYPE_CHECKING:
    import pandas as pd

RowChoice = Literal["accept", "keep", "other", "skip", "exclude", "unclear"]  # what decides a row
Choice = RowChoice | Literal["note", "merge", "undo"]
Asked = Literal["", "measure", "repeat"]
ROW_CHOICES: tuple[RowChoice, ...] = get_args(RowChoice)
CHOICES: tuple[Choice, ...] = (*ROW_CHOICES, "note", "merge", "undo")
NO_ROW = -1  # of a merge, which is about classes


class Decision(NamedTuple):
    """A decision on one row; ``label`` is the label that the row should have, empty where the
    choice names none.
    """

    row: int  # NO_ROW for a merge, and for taking one back
    id: str
    given_label: str  # of a merge: the spelling that becomes ``label``
    decision: Choice
    label: str
    reviewer: str = ""
    asked: Asked = ""
    probability: float | None = None  # of being asked, where ``asked`` is measure
    batch: int | None = None  # ≥ 1, shared by all that one action wrote
    note: str = ""  # of the row, where ``decision`` is note

    @property
    def names_label(self) -> bool:
        """Return whether it says what the label of the row is: skip, exclude and unclear do not."""
        return self.decision in ("accept", "keep", "other")

    @property
    def subject(self) -> int | str:
        """Return what is decided on: a row, or the spelling of a class."""
        return self.given_label if self.row == NO_ROW else self.row


class SavedAudit(Protocol):
    """What a fix or an estimate may know of a saved audit."""

    @property
    def issues(self) -> pd.DataFrame: ...

    @property
    def summary(self) -> Mapping[str, Any]: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def words(self) -> LabelWords: ...

    @property
    def decided(self) -> Mapping[int, Decision]: ...

    def class_numbers(self, column: str) -> Ints: ...
