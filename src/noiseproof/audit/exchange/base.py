"""What the formats of other tools share: rows on their way out, labels on their way in, as
decisions on an audit.
"""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from noiseproof.audit.decisions import (
    BadDecisions,
    Choice,
    Decision,
    Standing,
    find_decisions,
    read_standing,
)
from noiseproof.audit.files import Audit, read_audit
from noiseproof.core.files import PathLike
from noiseproof.core.registry import Registry
from noiseproof.data.labelsets import LabelWords
from noiseproof.judge.labelissues import LabelSetIssues

if TYPE_CHECKING:
    from noiseproof.audit.result import AuditResult
    from noiseproof.audit.sources.base import AuditData

Labels = Sequence[str]  # one, or of rows with several labels all of them
NewLabels = Mapping[int, Labels]  # by position in a file
Files = dict[Path, str]  # the text of each file to write
K = TypeVar("K")
E = TypeVar("E")
KEY = "row-"  # begins the names that stand for rows where a tool keeps nothing but a name
ENDINGS = (".json", ".jsonl", ".xml")  # of files that tools write


@dataclass(frozen=True)
class Row:
    """One row of an audit, as it is written for another tool."""

    row: int
    id: str
    given: str
    suggested: str
    confidence: float  # that the suggestion is right
    facts: dict[str, Any]  # results of the audit by names that no tool uses itself
    labels: dict[str, float]  # the given label, or each of several, with P(it is right)
    suggested_labels: dict[str, float]  # the same of the suggestion

    @property
    def key(self) -> str:
        return f"{KEY}{self.row}"


def exported_rows(report: AuditResult, all_rows: bool) -> Iterator[Row]:
    """Yield the rows of an audit from the worst label to the best; only issues, unless
    ``all_rows``.
    """
    issues = report.label_issues
    flags = [issue.flag for issue in report.issues if issue.flag]
    table = report.table().rename(columns={"id": "source_id"})
    names = ["row", "source_id", "given_label", "suggested_label", "predicted_label"]
    names += ["label_quality", "why", *flags]
    order = report.order
    if not all_rows:
        is_issue = issues.is_issue[order]
        order = order[is_issue]
        table = table[is_issue]
    for i, record in zip(order.tolist(), table.to_dict("records"), strict=True):
        given = record["given_label"]
        suggested = record["suggested_label"]
        confidence = record["suggested_confidence"]
        labels = {given: record["label_quality"]}
        better = {suggested: confidence}
        if isinstance(issues, LabelSetIssues):
            labels = _answered(issues.names, issues.answers[i], issues.label_quality[i])
            better = _answered(issues.names, issues.suggested_answers[i], issues.label_probs[i])
        id = record["source_id"] = str(record["source_id"])
        facts = {name: record[name] for name in names}
        yield Row(record["row"], id, given, suggested, confidence, facts, labels, better)


def _answered(names: Sequence[str], answers: Any, numbers: Any) -> dict[str, float]:
    return {
        name: round(float(number), 6)
        for name, yes, number in zip(names, answers, numbers, strict=True)
        if yes
    }


@dataclass(frozen=True)
class Item:
    """The labels of a text or of a picture in a file of another tool, by one person."""

    at: int  # position of the text or picture in the file
    labels: Labels | None  # None: skipped, or not labelled yet; empty: an answer without a label
    id: str = ""
    row: int | None = None  # of the audit that the file was made from
    given: str | None = None  # the label that it had then
    reviewer: str = ""
    text: str | None = None
    file: Path | None = None
    problem: str = ""  # why the entry can't be read

    @classmethod
    def of(
        cls,
        at: int,
        labels: Labels | None,
        facts: Mapping[str, Any],
        id: Any,
        row: int | None = None,
        **more: Any,
    ) -> Item:
        """Return an item with what `Row.facts` says of its row, else with the tool's own ``id`` and
        ``row``.
        """
        number = facts.get("row", row)
        if not isinstance(number, int) or isinstance(number, bool):
            number = None
        source_id = str(facts.get("source_id", id))
        return cls(at, labels, source_id, number, facts.get("given_label"), **more)

    def alone(self) -> Item:
        """Return the item where one label is expected: without any it is not labelled, and several
        are a problem.
        """
        count = len(self.labels or ())
        if count == 1:
            return self
        problem = self.problem
        if count > 1:
            problem = f"{self.id!r} has {count} labels where one is expected"
        return replace(self, labels=None, problem=problem)


class Tool(ABC):
    """A tool for labels, and the content of a file or folder ``path`` that it wrote."""

    name: ClassVar[str]
    listing: ClassVar[str] = ""  # the file of the labels, where the tool writes a folder
    takes_all_rows: ClassVar[bool] = False  # by default, instead of issues alone
    takes_texts: ClassVar[bool] = True  # as well as pictures
    # whether somebody chose each label, also one that is the given one
    asks: ClassVar[bool] = False

    def __init__(self, content: Any = None, path: Path = Path()) -> None:
        self.content = content
        self.path = path

    def check(self, source: Any) -> None:
        """Refuse a source that the tool can't import."""
        if not self.takes_texts and not source.is_pictures:
            raise ValueError(
                f"Expected pictures to export to {self.name}, got {source.name}. Use label-studio."
            )

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    def file(self, path: Path) -> Path:
        """Return the file of the labels in what the tool wrote, a file or a folder."""
        return path / self.listing if self.listing and path.is_dir() else path

    @abstractmethod
    def files(self, data: AuditData, path: Path, rows: Sequence[Row]) -> Files:
        """Return the files to write for ``rows``; pictures are linked below ``path``."""

    @abstractmethod
    def parse(self, path: Path) -> Any:
        """Return the content of a file of the tool, None if it is another tool's."""

    @abstractmethod
    def items(self) -> Iterator[Item]:
        """Yield the labels in the content."""

    def has_lists(self) -> bool:
        """Return whether the content says that entries may have several labels, also where each of
        them has one.
        """
        return False

    @abstractmethod
    def relabelled(self, changes: NewLabels, left_out: Collection[int]) -> str:
        """Return the content with other labels, by position, and without the positions
        ``left_out``.
        """


TOOLS: Registry[Tool] = Registry("tool to export to", returns=Tool)


def paired(old: Iterable[tuple[K, E]], labels: Sequence[K]) -> list[tuple[K, list[E]]]:
    """Return the entries that stand for each of the new ``labels``: entries that have it, else
    entries of a label that is gone.

    >>> paired([("cat", 1), ("dog", 2), ("dog", 3)], ["dog", "emu", "owl"])
    [('dog', [2, 3]), ('emu', [1]), ('owl', [])]
    """
    entries: dict[K, list[E]] = {}
    for label, entry in old:
        entries.setdefault(label, []).append(entry)
    free = iter([entries[label] for label in entries if label not in labels])
    return [(label, entries.get(label) or next(free, [])) for label in labels]


def is_list_of(labels: Labels, old: Any) -> bool:
    """Return whether new labels are written as a list: a word that becomes another stays a word."""
    return isinstance(old, list) or len(labels) != 1


def find_file(name: str, listing: Path) -> Path:
    """Return a picture that a file names, in the file's folder or one above or right below it,
    where there is one.
    """
    here = listing.resolve().parent
    below = [here / folder for folder in ("", "data", "images", "images/default")]
    places = [place / name for place in (*below, *here.parents)]
    return next((place for place in places if os.path.isfile(place)), places[0])


def only_question(names: Collection[str], ours: str, where: str) -> str:
    """Return the question whose answers are the labels: ``ours``, else the only one; refuse
    several.
    """
    if ours in names or not names:
        return ours
    if len(names) > 1:
        raise ValueError(
            f"Expected one question that has the labels, or one called {ours!r}, in {where}, got"
            f" {', '.join(names)}. Rename the one with the labels to {ours!r} in the file."
        )
    return next(iter(names))


def row_of(key: Any) -> int | None:
    """Return the row that a key stands for, None for other keys."""
    match = re.fullmatch(f"{KEY}([0-9]+)", str(key))
    return int(match[1]) if match else None


def to_json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, None of any other file."""
    try:
        is_json = path.suffix.lower() == ".json" and path.is_file()
        return json.loads(path.read_text("utf-8-sig")) if is_json else None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Expected JSON in {path}, got {error}.") from error


def remove_links(folder: Path) -> None:
    """Remove what `picture_link` made of an earlier audit."""
    for old in folder.glob(f"{KEY}*"):
        if row_of(old.stem) is not None:
            old.unlink()


def picture_link(data: AuditData, row: Row, folder: Path) -> str:
    """Link the picture of a row into ``folder``, by the number of the row, and return the name of
    the link.

    Where links are not allowed, as on some Windows machines, it is copied.
    """
    file = data.source.file(row.id)
    assert file is not None  # of a source of pictures
    name = f"{row.key}{file.suffix.lower()}"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / name).symlink_to(file.absolute())
    except OSError:
        (folder / name).write_bytes(file.read_bytes())
    return name


def find_tool(path: Path) -> Tool | None:
    """Return the tool whose file or folder this is, with its content; None if there is none."""
    if path.is_dir() or path.suffix.lower() in ENDINGS:
        for tool in map(TOOLS.__getitem__, TOOLS):
            if (content := tool().parse(path)) is not None:
                return tool(content, path)
    return None


def read_decided_in(folder: PathLike, decisions: PathLike | None) -> Standing:
    """Return what was decided on the audit in ``folder``: by its review, or in a file of another
    tool.
    """
    path = Path(decisions or find_decisions(folder))
    if not path.is_dir() and path.suffix.lower() not in ENDINGS:
        return read_standing(path)
    if (tool := find_tool(path)) is None:
        raise BadDecisions(
            f"Expected decisions, or labels from {', '.join(TOOLS)}, in {path}, got something else."
        )
    audit = read_audit(folder)
    items = list(tool.items())
    if not audit.words.separator:
        items = [item.alone() for item in items]
    if problem := next((item.problem for item in items if item.problem), ""):
        raise BadDecisions(
            f"Expected labels for each entry of {path}, got {problem}. Correct or drop it."
        )
    return Standing(_decisions(items, audit, path, is_explicit=tool.asks))


def _decisions(
    items: list[Item], audit: Audit, path: Path, *, is_explicit: bool
) -> Iterator[Decision]:
    """Yield a decision for each label: keep, accept or other; skip where someone passed and no one
    answered.

    Without ``is_explicit``, a label that is still the given one decides nothing.
    """
    columns = ["row", "id", "given_label", "suggested_label"]
    known = {row: cells for row, *cells in audit.issues[columns].itertuples(index=False)}
    names = _names({row: id for row, (id, *_) in known.items()})
    answered = {item.at for item in items if item.labels is not None}
    for item in items:
        row = names.get(item.id) if item.row is None else item.row
        id, given, suggested = known.get(-1 if row is None else row, ("", "", ""))
        is_same = item.id in (id, f"{KEY}{row}") or names.get(item.id) == row
        if row is None or row not in known or not is_same or item.given not in (None, given):
            label = "" if item.given is None else f" with the given label {item.given!r}"
            raise BadDecisions(
                f"Expected labels of rows of the audit in {audit.folder}, got one of"
                f" {item.id!r}{label} in {path}, which it does not have. They belong to another"
                " audit: name its folder."
            )
        if item.labels is None:
            if item.reviewer and item.at not in answered:
                yield Decision(row, id, given, "skip", "", item.reviewer)
            continue
        label = _spelled(item.labels, given, suggested, audit.words)
        if label != given or is_explicit:
            # if both are the same, it was kept
            choices: dict[str, Choice] = {suggested: "accept", given: "keep"}
            choice = choices.get(label, "other")
            yield Decision(row, id, given, choice, label, item.reviewer)


def _spelled(labels: Labels, given: str, suggested: str, words: LabelWords) -> str:
    """Return the word of labels: the given or the suggested one where it means the same."""
    separator = words.separator
    parts = words.split(labels[0]) if len(labels) == 1 else []
    if {*parts} <= {*words.names}:
        labels = parts or labels  # of a file that spells sets as words
    for word in (given, suggested):
        if {*words.split(word)} == {*labels}:
            return word
    if odd := [label for label in labels if separator and separator in label]:
        raise BadDecisions(
            f"Expected labels without {separator!r}, which separates the labels of a row in this"
            f" audit, got {odd[0]!r}. Rename it."
        )
    ordered = dict.fromkeys([*words.split(given), *words.names, *labels])
    return words.join(label for label in ordered if label in labels)


def _names(ids: Mapping[int, str]) -> dict[str, int | None]:
    """Return the row that a name stands for, by its id or the end of it, as tools drop folders;
    None for several.
    """
    rows: dict[str, int | None] = {}
    for row, id in ids.items():
        parts = id.split("/")
        for name in ("/".join(parts[k:]) for k in range(1, len(parts))):
            rows[name] = None if name in rows else row
    counts = Counter(ids.values())
    return rows | {id: row if counts[id] == 1 else None for row, id in ids.items()}
