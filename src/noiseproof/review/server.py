"""The review as a small web server: a secret address for each reviewer, on this machine by default,
no file names.

Every decision is on the disk before its answer is sent (``audit.decisions.DecisionLog``). Issues
come in pages, so that a browser holds a few hundred of 100 000. Rows are looked up by their number
in the dataset, and shown only if the id is the one that was audited.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field

from noiseproof.audit.decisions import FILE as DECISIONS
from noiseproof.audit.decisions import NO_ROW, Choice
from noiseproof.audit.files import read_audit
from noiseproof.audit.sample import read_population
from noiseproof.audit.sources import open_rows
from noiseproof.audit.sources.base import AuditData
from noiseproof.core.files import PathLike
from noiseproof.core.messages import Json
from noiseproof.judge.measure.design import FIRST_QUESTIONS
from noiseproof.judge.saved import RowChoice
from noiseproof.review.context import Context, hidden_columns, snippet
from noiseproof.review.guard import LOOPBACK, Guard, Person
from noiseproof.review.measuring import (
    Measuring,
    Proposing,
    QuestionPlan,
    command,
    show_estimates,
)
from noiseproof.review.page import Overview, describe, served_page
from noiseproof.review.projection import Projection
from noiseproof.review.queue import COUNTABLE, Filter, Queue, Search, UnknownSelection

if TYPE_CHECKING:
    import uvicorn

Number = Annotated[int, Field(ge=0, le=COUNTABLE)]
Text = Annotated[str, Field(max_length=10_000)]


def reviewer_of(request: Request) -> str:
    return str(request.state.reviewer)


Reviewer = Annotated[str, Depends(reviewer_of)]
Tab = Annotated[
    str, Header(alias="noiseproof-tab", max_length=64, description="Of the reviewer's browser.")
]


async def explain_invalid(request: Request, error: Exception) -> Response:
    """Answer 422 with what is wrong and where, without the value: NaN and lone surrogates can't be
    sent back.
    """
    assert isinstance(error, RequestValidationError)
    wrong = [{name: part[name] for name in ("type", "loc", "msg")} for part in error.errors()]
    return Response(json.dumps({"detail": wrong}), 422, media_type="application/json")


async def explain_selection(request: Request, error: Exception) -> Response:
    """Answer 410 for a selection that is no longer kept."""
    detail = {"detail": "This selection of rows is no longer kept. Select them again."}
    return Response(json.dumps(detail), 410, media_type="application/json")


class Body(BaseModel):
    """What a page sends."""

    model_config = ConfigDict(extra="forbid", strict=True)


class DecisionBody(Body):
    """A decision as the page sends it, with a ``label`` if it is other, a ``note`` if it is note,
    and only then.
    """

    row: Number
    decision: Choice
    label: Text | None = None
    question: Number | None = Field(default=None, description="Its number, while measuring.")
    note: Text | None = None
    new_class: bool = Field(
        default=False, description="Whether the label may be one that the audit does not have."
    )
    settles: bool = Field(
        default=False, description="Whether it ends a conflict that the page shows."
    )


class MergeBody(Body):
    """Two classes that are one, or with the same name twice: two."""

    given_label: Text
    label: Text


class PlaceBody(Body):
    """The row that a tab shows, null for none, and the version of the decisions that it knows."""

    row: Number | None
    since: Number = 0


class UndoBody(Body):
    """Nothing: the log knows what the reviewer did last."""


class SelectionBody(Body):
    """Rows to keep as a selection."""

    rows: list[Number] | None = None
    filter: Filter | None = None


class ManyBody(Body):
    """One choice for many rows: named ones, all of a filter, or ranges of its list."""

    decision: RowChoice
    rows: list[Number] | None = None
    filter: Filter | None = None
    ranges: list[Annotated[list[Number], Field(min_length=2, max_length=2)]] | None = Field(
        default=None, description="Places in the list of the filter: the first, and the end."
    )
    label: Text | None = None
    new_class: bool = False
    also_decided: bool = Field(
        default=False, description="Whether rows that have a decision get this one, too."
    )


class FilterQuery(Filter):
    """A filter among the other parameters of a query, where numbers are words."""

    model_config = ConfigDict(extra="ignore", strict=False)


def query_filter(query: Annotated[FilterQuery, Query()]) -> Filter:
    return query


Listed = Annotated[Filter, Depends(query_filter)]


class Review:
    """The answers of the server: one audit, the rows of its source and the decisions on them."""

    def __init__(
        self,
        folder: PathLike,
        decisions: PathLike | None,
        everything: bool,
        data: AuditData | None = None,
        reviewers: Sequence[str] = ("",),
        overlap: float = 0.0,
    ) -> None:
        self.audit = read_audit(folder)
        self.rows = open_rows(self.audit.config)
        if data is not None and data.source.config["data"] is None:
            self.rows = data.source  # in memory
        path = Path(decisions or self.audit.folder / DECISIONS).absolute()
        self.queue = Queue(self.audit, path, everything, reviewers=reviewers, overlap=overlap)
        self.path = self.queue.log.path
        self.issues = self.queue.issues
        self.queue.search = Search(self.issues, self.rows)
        self.population = read_population(self.audit)
        self.context = Context(self.audit, self.rows, data)
        self.projection = Projection(self.audit, self.context)
        self.overview: Overview | None = None
        self.snippet = lru_cache(maxsize=20_000)(self._snippet)

    def _snippet(self, row: int, id: str, columns: Sequence[str]) -> Json:
        return snippet(self.rows.show(row, id), columns, hidden_columns(self.audit))

    def check_audit(
        self,
        noiseproof_audit: Annotated[
            str | None, Header(description="The key of the page's audit.")
        ] = None,
    ) -> None:
        """Refuse a page left over from the server of another audit, whose row numbers mean other
        rows.
        """
        if noiseproof_audit not in (None, self.audit.key):
            raise HTTPException(
                409,
                f"This page belongs to another audit; {self.audit.folder} is served now. Reload the"
                " page.",
            )

    def show_audit(self, reviewer: Reviewer) -> Json:
        """Return what was audited, its classes and class pairs, and the progress of the review."""
        about = describe(self.audit, self.issues, self.rows) | self._about(reviewer)
        return about | self._classes() | self._progress()

    def _about(self, reviewer: str) -> Json:
        people = self.queue.people
        questions = min(FIRST_QUESTIONS, len(self.audit.issues))
        return {
            "saved_in": str(self.path),
            "reviewer": reviewer,
            "apply": command("apply", self.audit, self.path),
            "first_questions": f"{command('review', self.audit, self.path)} --measure {questions}",
            "several": people.several,
            "version": len(people.changes),
        }

    def _progress(self) -> Json:
        measured = show_estimates(self.population, self.queue.log.answers())
        return {"progress": self.queue.progress(), "measured": measured}

    def _classes(self) -> Json:
        return {"new_classes": self.queue.new_classes(), "spellings": self.queue.spellings()}

    # Lists

    def list_issues(
        self,
        reviewer: Reviewer,
        filter: Listed,
        offset: Number = 0,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
    ) -> Json:
        """Return issues that meet a filter, by default all from the worst label to the best, with
        the decision on each.
        """
        page = self.queue.page(offset, limit, filter, reviewer)
        leading = tuple(self.context.leading)
        for issue in page["issues"]:
            issue["snippet"] = self.snippet(issue["row"], issue["id"], leading)
        return page

    def next_issue(
        self,
        reviewer: Reviewer,
        filter: Listed,
        after: Annotated[int, Query(ge=-1, le=COUNTABLE)] = -1,
        tab: Tab = "",
    ) -> Json:
        """Return the place of the next undecided issue of a filter after ``after``, else of the
        first; null: all are decided.

        The reviewer is at that row then. Rows that others are at are passed over.
        """
        position, names = self.queue.next_open(after, filter, reviewer, tab)
        return {"position": position} | ({"waiting_for": names} if names else {})

    def keep_selection(self, body: SelectionBody, reviewer: Reviewer) -> Json:
        """Keep rows, the rows that meet a filter now, or with both the rows that are in both, as a
        selection to filter by.
        """
        rows = self.issues.row
        if body.filter is not None:
            rows = rows[self.queue.select(body.filter, reviewer)]
        if body.rows is not None:
            rows = rows[np.isin(rows, body.rows)]
        return {"selection": self.queue.keep_selection(rows.tolist()), "total": len(rows)}

    # Rows

    def show_row(self, row: Number, reviewer: Reviewer) -> Json:
        """Return what the dataset has in this row."""
        return self.rows.show(row, self._shown_id(row, reviewer))

    def show_picture(
        self, row: Number, reviewer: Reviewer, side: Annotated[int, Query(ge=16, le=1024)] = 640
    ) -> Response:
        """Return the picture in this row, at most ``side`` pixels wide and high."""
        picture = self.rows.picture(row, self._shown_id(row, reviewer), side)
        if picture is None:
            raise HTTPException(404, "There is no picture to show in this row.")
        headers = {"cache-control": "private, max-age=600"}
        return Response(picture[0], media_type=picture[1], headers=headers)

    def show_context(self, row: Number, reviewer: Reviewer) -> Json:
        """Return what separates the two labels of this row, and the rows to compare it with;
        ``pending``: ask again.
        """
        self._check_issue(row, reviewer)
        return self.context.show(row)

    def show_overview(self) -> Json:
        """Return confused pairs of classes, qualities of the labels, noise by class, and the
        progress in each.
        """
        if self.overview is None:
            self.overview = Overview(self.audit, self.context.issues, self.context.annotators)
        return self.overview.show(self.queue.decided_rows()) | self._progress()

    def show_map(self) -> Json:
        """Return rows in the plane, the labels called wrong first, as base64 of little-endian
        numbers; ``pending``: ask again.

        ``row`` is of 32 bits; ``given``, ``x`` and ``y`` are of 16.
        """
        return self.projection.show()

    def show_map_row(self, row: Number, reviewer: Reviewer) -> Json:
        """Return what names an audited row, and a part of it."""
        self._shown_id(row, reviewer)
        rows = self.context.issues
        suggested = rows.suggested[rows.position[row]]
        return self.context.show_briefly(row) | {"suggested": self.audit.classes[suggested]}

    # Decisions

    def decide(self, body: DecisionBody, reviewer: Reviewer) -> Json:
        """Save a decision; it is on the disk when the answer is sent."""
        self._check_issue(body.row, reviewer)
        with _refusals():
            return self._save(body, reviewer)

    def _save(self, body: DecisionBody, reviewer: str) -> Json:
        if body.question is not None:
            raise ValueError(
                "Expected a decision on an issue, got an answer to a question. Reload the page."
            )
        saved = self.queue.decide(
            body.row,
            body.decision,
            body.label,
            note=body.note,
            new_class=body.new_class,
            settles=body.settles,
            reviewer=reviewer,
        )
        return {"saved": saved._asdict()} | self._progress()

    def decide_many(self, body: ManyBody, reviewer: Reviewer) -> Json:
        """Save one choice on many rows, all or none of them; one undo takes all back."""
        for row in body.rows or ():
            self._check_issue(row, reviewer)
        with _refusals():
            rows = body.rows
            if rows is None:
                if body.filter is None:
                    raise ValueError("Expected `rows` or a `filter`, got none.")
                listed = self.issues.row[self.queue.select(body.filter, reviewer)]
                ranges = [(0, len(listed))] if body.ranges is None else body.ranges
                rows = [row for first, end in ranges for row in listed[first:end].tolist()]
            batch, saved = self.queue.decide_many(
                rows,
                body.decision,
                body.label,
                new_class=body.new_class,
                also_decided=body.also_decided,
                reviewer=reviewer,
            )
        return {"batch": batch, "saved": saved} | self._progress()

    def merge(self, body: MergeBody, reviewer: Reviewer) -> Json:
        """Make two spellings one class, or remember that they are two; undecided issues about that
        become kept.
        """
        with _refusals():
            self.queue.merge(body.given_label, body.label, reviewer)
        return self._classes() | self._progress()

    def undo(self, body: UndoBody, reviewer: Reviewer) -> Json:
        """Take back what this reviewer did last, one decision or a batch, also before the page was
        opened.
        """
        with _refusals():
            undone = self.queue.undo(reviewer)
        rows = [line.row for line in undone if line.row != NO_ROW]
        about: Json = {"batch": None, "choice": None, "position": None, "now": None}
        if undone:
            about |= {"batch": undone[0].batch, "choice": undone[0].decision}
        if rows:  # in the list of all issues
            about["position"] = self.issues.position.get(rows[0])
        if len(rows) == 1:
            about["now"] = self.queue.decided(rows[0], reviewer)
        return {"undone": rows, **about, **self._classes(), **self._progress()}

    # People

    def show_people(self, reviewer: Reviewer, since: Number = 0) -> Json:
        """Return who reviews, where they are and what each decided; and the rows decided since a
        version, null if too many.
        """
        # the version first: what comes between is sent twice
        state = self.queue.people.show(reviewer)
        changes = None
        rows = self.queue.people.changed(since)
        if rows is not None:
            changes = [{"row": row, **self.queue.decided(row, reviewer)} for row in rows]
        return state | {"changes": changes, "progress": self.queue.progress()}

    def move(self, body: PlaceBody, reviewer: Reviewer, tab: Tab = "") -> Json:
        """Note which row a tab shows; no other person is sent there for a few minutes."""
        leases = self.queue.people.leases
        if body.row is None:
            leases.give_back(reviewer, tab)
        else:
            self._check_issue(body.row, reviewer)
            leases.take(body.row, reviewer, tab)
        return self.show_people(reviewer, body.since)

    def _check_issue(self, row: int, reviewer: str) -> None:
        if row not in self.issues.position:
            raise HTTPException(404, f"The audit has no issue in row {row}.")

    def _shown_id(self, row: int, reviewer: str) -> str:
        """Return the id of a row that may be shown: any audited one, to compare issues with."""
        id = self.context.id(row)
        if id is None:
            raise HTTPException(404, f"The audit has no row {row}.")
        return id


@contextmanager
def _refusals() -> Iterator[None]:
    """Answer 409 for what is not allowed, 507 for a full disk."""
    try:
        yield
    except ValueError as error:
        raise HTTPException(409, str(error)) from None
    except OSError as error:
        raise HTTPException(507, f"Not saved: {error}") from None


class MeasuringReview(Review):
    """The answers of a server that asks the questions of a designed sample, and shows no other
    row.
    """

    def __init__(
        self,
        folder: PathLike,
        decisions: PathLike | None,
        plan: QuestionPlan,
        reviewers: Sequence[str],
    ) -> None:
        super().__init__(folder, decisions, True, reviewers=reviewers)
        kind = Proposing if plan.mixture else Measuring
        self.measuring = kind(self.audit, self.queue, plan)

    def show_audit(self, reviewer: Reviewer) -> Json:
        """What was audited, its classes, and what was measured."""
        shown = describe(self.audit, self.issues, self.rows)
        about = {name: shown[name] for name in ("name", "key", "classes", "has_pictures")}
        about |= self._about(reviewer)
        return about | {"measure": self.measuring.describe()} | self.ask(reviewer)

    def ask(self, reviewer: Reviewer) -> Json:
        """The question to answer now (null: there is none), the last answered one, and what was
        measured.
        """
        return self.measuring.state(reviewer)

    def show_row(self, row: Number, reviewer: Reviewer) -> Json:
        """What the dataset has in this row; asked blind, without what may name the label."""
        content = super().show_row(row, reviewer)
        if not self.measuring.plan.blind:
            return content
        hidden = hidden_columns(self.audit)
        content = {name: part for name, part in content.items() if name != "predictions"}
        if "fields" in content:
            content["fields"] = [field for field in content["fields"] if field[0] not in hidden]
        return content

    def show_context(self, row: Number, reviewer: Reviewer) -> Json:
        """Return what a review does; asked blind, nothing, since other rows and votes would name
        the label.
        """
        if self.measuring.plan.blind:
            raise HTTPException(404, "Nothing is shown with a row that is asked blind.")
        return super().show_context(row, reviewer)

    def _save(self, body: DecisionBody, reviewer: str) -> Json:
        if body.note is not None or body.new_class:
            raise ValueError("Expected an answer to the question, got a note or a new class.")
        return self.measuring.answer(body.row, body.question, body.decision, body.label, reviewer)

    def _check_issue(self, row: int, reviewer: str) -> None:
        if not self.measuring.has_asked(row, reviewer):
            raise HTTPException(404, f"Row {row} was not asked about.")
        super()._check_issue(row, reviewer)

    def _shown_id(self, row: int, reviewer: str) -> str:
        if row not in self.context.sent:
            self._check_issue(row, reviewer)
        return super()._shown_id(row, reviewer)


def make_app(
    folder: PathLike,
    people: Sequence[Person],
    *,
    hosts: Collection[str] = LOOPBACK,
    decisions: PathLike | None = None,
    everything: bool = False,
    plan: QuestionPlan | None = None,
    data: AuditData | None = None,
    in_notebook: bool = False,
    overlap: float = 0.0,
) -> FastAPI:
    """Return the web application that reviews the audit in ``folder``; decisions go to its
    decisions.sqlite by default.

    ``people`` review it, each with a link of their own, and browsers know the server by one of
    ``hosts``. With a ``plan`` it asks the questions of a designed sample instead. ``data`` is what
    was audited, if it is still in memory; else it is read from the files in the audit's config.
    ``in_notebook`` allows the frame of a notebook. A share ``overlap`` of the rows is decided by
    two people.
    """
    names = [person.name for person in people]
    review: Review
    if plan is None:
        review = Review(folder, decisions, everything, data, names, overlap)
    else:
        review = MeasuringReview(folder, decisions, plan, names)
    app = FastAPI(docs_url=None, redoc_url=None, dependencies=[Depends(review.check_audit)])
    app.state.review = review
    app.add_exception_handler(RequestValidationError, explain_invalid)
    app.add_exception_handler(UnknownSelection, explain_selection)
    app.add_middleware(Guard, people=people, hosts=hosts, in_notebook=in_notebook)
    page = served_page()
    app.get("/", response_class=HTMLResponse)(lambda: page)
    app.get("/api/audit")(review.show_audit)
    app.get("/api/rows/{row}")(review.show_row)
    app.get("/api/rows/{row}/picture", response_class=Response)(review.show_picture)
    app.get("/api/context/{row}")(review.show_context)
    app.post("/api/decisions")(review.decide)
    if isinstance(review, MeasuringReview):
        app.get("/api/question")(review.ask)
        return app
    app.get("/api/people")(review.show_people)
    app.post("/api/people")(review.move)
    app.get("/api/issues")(review.list_issues)
    app.get("/api/issues/next")(review.next_issue)
    app.post("/api/selections")(review.keep_selection)
    app.get("/api/overview")(review.show_overview)
    app.get("/api/map")(review.show_map)
    app.get("/api/map/{row}")(review.show_map_row)
    app.post("/api/decisions/many")(review.decide_many)
    app.post("/api/merges")(review.merge)
    app.post("/api/undo")(review.undo)
    return app


def bind(port: int = 0, host: str = "127.0.0.1") -> socket.socket:
    """Return a socket that listens on an address of this machine; port 0 takes any free port.

    Requests wait until the server answers.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ValueError(
            "Expected a free port, and a name or an address of this machine for --host, got"
            f" {port} on {host!r}: {error}. Use --port 0 for any free one."
        ) from error
    # Accepted sockets inherit it. Else the body of an answer waits 40 ms for the acknowledgement of
    # its header; asyncio sets the option itself, but only for sockets whose protocol is named.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def make_server(app: FastAPI) -> uvicorn.Server:
    import uvicorn

    from noiseproof.review.connections import BACKLOG, BoundedProtocol, QuietServer

    # Requests are not logged: their paths may contain the token, and anybody could fill the disk.
    return QuietServer(
        uvicorn.Config(
            app,
            http=BoundedProtocol,
            ws="none",
            log_level="error",
            access_log=False,
            server_header=False,
            lifespan="off",
            backlog=BACKLOG,
            timeout_graceful_shutdown=1,
        )
    )


def serve(app: FastAPI, listening: socket.socket) -> None:
    """Serve until interrupted."""
    try:
        make_server(app).run(sockets=[listening])
    finally:
        app.state.review.queue.log.close()
