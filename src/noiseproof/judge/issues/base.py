"""The contract of an issue type: which rows, columns or classes have it, how bad that is, why, and
what to do.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np

from noiseproof.core.arrays import Array, Bools, Floats, Floats32, Ints
from noiseproof.core.messages import Json, counted
from noiseproof.core.plugins import load_plugins
from noiseproof.core.registry import Registry, unknown_name
from noiseproof.judge.saved import SavedAudit

if TYPE_CHECKING:
    from noiseproof.data.rows import Rows as Rows
    from noiseproof.judge.evidence.gather import AuditEvidence as AuditEvidence
    from noiseproof.judge.labelissues import LabelIssues as LabelIssues
else:  # issue types are listed without PyTorch, which these modules import
    Rows = AuditEvidence = LabelIssues = Any

log = logging.getLogger("noiseproof")

MAX_LISTED = 1000  # rows or groups that summary.json lists
MAX_SHOWN = 5  # findings of one type on a page
# types that every audit has: their columns are part of its format
ALWAYS = ("label", "near-duplicate", "outlier")
PROJECTIONS = 16  # of features that have no columns
NEEDS_ACTION = 0.5  # score of findings that come first in every listing


class Bars(NamedTuple):
    """A picture of a finding: labelled bars."""

    title: str
    bars: Sequence[tuple[str, float]]  # what each one is, and its length
    unit: str  # of the lengths: "rows", "%"
    marked: Sequence[int] = ()  # bars that are the problem


@dataclass(frozen=True)
class Finding:
    """One problem of a dataset, with the figures behind it."""

    about: str  # such as: column 'age'
    score: float  # in [0, 1], 1 is worst; from NEEDS_ACTION on, something should be done
    sentence: str
    picture: Bars | None = None
    columns: tuple[str, ...] = ()  # that it is about
    rows: tuple[int, ...] = ()  # of the source
    details: Mapping[str, Any] = field(default_factory=dict)  # figures that a fix needs

    def as_dict(self) -> Json:
        picture = None
        if self.picture is not None:
            picture = self.picture._asdict()
            picture["bars"] = [list(bar) for bar in self.picture.bars]
            picture["marked"] = list(self.picture.marked)
        return asdict(self) | {
            "score": round(self.score, 4),
            "picture": picture,
            "columns": list(self.columns),
            "rows": list(self.rows[:MAX_LISTED]),
        }


Findings: TypeAlias = Iterator[Finding]


@dataclass(frozen=True)
class Fix:
    """What `apply --fix` does to a copy of the data."""

    left_out: frozenset[int] = frozenset()  # rows of the source
    columns: frozenset[str] = frozenset()  # to leave out
    becomes: Mapping[str, str] = field(default_factory=dict)  # classes that are merged into others
    # new cells of a column, from the old ones
    cells: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    # of words that ``becomes`` merges: the labels that they have
    labels: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.left_out or self.columns or self.becomes or self.cells)

    def __or__(self, other: Fix) -> Fix:
        return Fix(
            self.left_out | other.left_out,
            self.columns | other.columns,
            {**self.becomes, **other.becomes},
            {**self.cells, **other.cells},
            {**self.labels, **other.labels},
        )


class Issue(ABC):
    """One kind of problem among the N rows of an audit: of rows, columns, classes, or of the whole.

    ``issues.csv`` gets the ``columns``, ``summary.json`` the ``summary``, the terminal the
    ``headline``, and the review page a badge for each row with a true value in the columns of
    ``badges``, and the pictures of ``findings``.
    """

    name: ClassVar[str]
    # column of issues.csv: whether a row has the issue; "" for types that are not about rows
    flag: ClassVar[str] = ""
    # columns of booleans, and their text on the review page
    badges: ClassVar[Mapping[str, str]] = {}
    remedy: ClassVar[str]  # what to do about it, one sentence
    multilabel: ClassVar[bool] = False  # whether it can be told of rows with several labels, too
    needs: ClassVar[tuple[str, ...]] = ()  # fields of the rows that must be there
    # what `apply --fix NAME` does, one sentence; "" where only a person can do something
    fixes: ClassVar[str] = ""

    @classmethod
    def applies(cls, data: Rows) -> bool:
        """Whether such data can have the issue."""
        return all(getattr(data, name) is not None for name in cls.needs)

    @classmethod
    @abstractmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> Self:
        """Find it, from the evidence and the judgement of the labels."""

    @classmethod
    def fix(cls, audit: SavedAudit) -> Fix:
        """What `apply --fix NAME` does: by default nothing."""
        return Fix()

    @property
    @abstractmethod
    def mask(self) -> Bools:
        """Rows that have the issue, (N,)."""

    @property
    def findings(self) -> Sequence[Finding]:
        """What was found about columns, classes or the whole, from the worst."""
        return ()

    @property
    def score(self) -> float:
        """How bad it is, in [0, 1]: the score of the worst finding, or whether something can be
        done about some row.
        """
        return max(
            (one.score for one in self.findings), default=NEEDS_ACTION * float(self.mask.any())
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self.mask.sum())} of {len(self.mask)} rows)"

    def columns(self, data: Rows, rows: Ints) -> Json:
        """Columns of issues.csv for ``rows``."""
        return {self.flag: self.mask[rows]} if self.flag else {}

    def explain(self, data: Rows, rows: Ints) -> list[str]:
        """What it adds to the reason why the labels of ``rows`` are called wrong, "" for
        nothing.
        """
        return [""] * len(rows)

    def summary(self, data: Rows) -> Json:
        """Entries of summary.json."""
        entries: Json = {}
        if self.flag:
            entries["rows"] = int((self.mask & (data.row >= 0)).sum())
        if self.findings or not self.flag:
            entries["findings"] = [one.as_dict() for one in self.findings[:MAX_LISTED]]
        return {self.name: entries}

    @classmethod
    def about_rows(cls, summary: Mapping[str, Any]) -> str:
        """How many rows have it, by a summary, one sentence; "" for none."""
        rows = summary.get(cls.name, {}).get("rows", 0)
        return f"{counted(rows, 'row')}." if rows else ""

    def headline(self, summary: Mapping[str, Any]) -> str:
        """One line for the terminal, "" for none."""
        if findings := summary.get(self.name, {}).get("findings", []):
            more = f" ({len(findings) - 1} more in summary.json)" if len(findings) > 1 else ""
            return f"{self.name}: {findings[0]['sentence']}{more}"
        rows = self.about_rows(summary)
        return f"{self.name}: {rows} {self.remedy}" if rows else ""

    def notes(self) -> list[str]:
        """Sentences for whoever reads the summary."""
        return []


@dataclass(frozen=True, eq=False, repr=False)
class FoundIssue(Issue):
    """An issue type that consists of findings, and of the rows among them if it has a ``flag``."""

    found: tuple[Finding, ...]
    is_found: Bools  # (N,)

    @classmethod
    def find(cls, evidence: AuditEvidence, labels: LabelIssues) -> Self:
        """Collect the findings from the worst; with a ``flag``, their rows have the issue."""
        found = sorted(cls.search(evidence, labels), key=lambda one: -one.score)
        marked = [row for one in found if cls.flag for row in one.rows]
        return cls(tuple(found), np.isin(evidence.data.row, marked))

    @staticmethod
    @abstractmethod
    def search(evidence: AuditEvidence, labels: LabelIssues) -> Findings:
        """Yield what there is to find."""

    @property
    def mask(self) -> Bools:
        return self.is_found

    @property
    def findings(self) -> Sequence[Finding]:
        return self.found

    @classmethod
    def fix(cls, audit: SavedAudit) -> Fix:
        """Leave out the rows that have the issue, or where it is not about rows the columns of its
        findings.
        """
        if not cls.fixes:
            return Fix()
        if not cls.flag:
            found = found_columns(cls, audit)
            return Fix(columns=frozenset(name for one in found for name in one["columns"]))
        if cls.flag not in audit.issues:
            raise ValueError(
                f"Expected an audit that looked for {cls.name!r}, this one did not."
                f" Audit the data again with --issues {cls.name}, then fix it."
            )
        marked = audit.issues[cls.flag].astype(str) == "True"
        return Fix(left_out=frozenset(audit.issues.loc[marked, "row"].tolist()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.found)} findings)"


def found_columns(kind: type[Issue], audit: SavedAudit) -> list[Json]:
    """The findings of a type about columns, as summary.json has them."""
    found: list[Json] = audit.summary.get(kind.name, {}).get("findings", [])
    return [one for one in found if one["columns"]]


ISSUES: Registry[Issue] = Registry("issue type")
register_issue = ISSUES.register_class


def issue_types() -> list[type[Issue]]:
    """All issue types, with the types of plug-ins last."""
    load_plugins()
    return [ISSUES[name] for name in ISSUES]  # type: ignore[misc]  # classes alone are registered


def chosen_types(names: Sequence[str] | str | None = None) -> list[type[Issue]]:
    """The types called ``names``, by default all; types in ``ALWAYS`` are always included."""
    kinds = {kind.name: kind for kind in issue_types()}
    if names is None or names == "all":
        return [*kinds.values()]
    wanted = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    for name in wanted:
        if name not in kinds:
            raise ValueError(unknown_name("issue type", name, ["all", *kinds]))
    return [kind for name, kind in kinds.items() if name in wanted or name in ALWAYS]


def find_issues(
    evidence: AuditEvidence, labels: LabelIssues, names: Sequence[str] | str | None = None
) -> tuple[Issue, ...]:
    """Look for every type of ``names`` that such data can have; one that fails does not cost the
    others.
    """
    found = []
    for kind in chosen_types(names):
        try:
            can_be_told = kind.multilabel or not evidence.data.labels.are_sets
            if can_be_told and kind.applies(evidence.data):
                found.append(kind.find(evidence, labels))
        except Exception as error:
            if kind.name in ALWAYS:
                raise
            log.warning(
                "%s could not be looked for: %s: %s.", kind.name, type(error).__name__, error
            )
    return tuple(found)


def list_findings(summary: Mapping[str, Any]) -> list[Json]:
    """The findings in a summary with their type, remedy and fix, from the worst; the five worst of
    each type.

    Rows that have an issue without findings, such as near-duplicates, are one finding.
    """
    found = []
    for kind in issue_types():
        part = summary.get(kind.name)
        findings = part.get("findings", [])[:MAX_SHOWN] if isinstance(part, Mapping) else []
        if not findings and kind.name != "label" and (sentence := kind.about_rows(summary)):
            findings = [Finding("rows", NEEDS_ACTION, sentence).as_dict()]
        found += [
            {"type": kind.name, "remedy": kind.remedy, "fixes": kind.fixes, **one}
            for one in findings
        ]
    return sorted(found, key=lambda one: -one["score"])


def badges() -> dict[str, str]:
    """Columns of issues.csv that are badges on the review page, with their text."""
    return {column: text for kind in issue_types() for column, text in kind.badges.items()}


def graded(size: float, large: float) -> float:
    """Return the score of a problem of some ``size`` in [0, 1], which needs action from ``large``
    on.
    """
    if size >= large:
        return float(min(1.0, max(size, NEEDS_ACTION)))
    return float(0.9 * NEEDS_ACTION * size / large)


def of_column(
    name: str, score: float, sentence: str, picture: Bars | None = None, **details: Any
) -> Finding:
    """Return a finding about one column, with the figures that a fix needs."""
    return Finding(f"column {name!r}", score, sentence, picture, (name,), details=details)


def words_of(column: Any) -> Array:
    """The cells of a column of `evidence.cells` as words, (n,), "" for gaps."""
    cells = column.astype(object)
    return np.array([str(cell) for cell in cells.where(column.notna(), "")], dtype=object)


def projected(x: Array) -> dict[str, Array]:
    """Features (n, F) that have no columns in up to 16 random directions, (n,) each: the same of
    every part of them.
    """
    axes = np.random.default_rng(0).normal(size=(x.shape[1], min(PROJECTIONS, x.shape[1])))
    return {f"direction {k}": values for k, values in enumerate((x @ axes).T)}


def rounded(values: Floats32 | None, rows: Ints) -> Floats:
    """A column of numbers for issues.csv; NaN where there are none."""
    exact = np.full(len(rows), np.nan) if values is None else values[rows].astype(np.float64)
    return np.asarray(np.round(exact, 6))
