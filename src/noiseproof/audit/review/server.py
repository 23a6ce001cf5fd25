"""The review as a small web server for one person on one machine: loopback, a secret address, no file by its name.

Every decision is on the disk before its answer leaves (``decisions.DecisionLog``). Issues come in pages, so that a
browser holds a few hundred of 100 000. What is shown of a row is found by its number through the dataset's own index,
and only where its id is the one that was audited.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, FastAPI, Header, HTTPException, Query, Response
from fastapi import Path as InPath
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field

from noiseproof.audit.files import read_audit
from noiseproof.audit.review.decisions import Choice
from noiseproof.audit.review.page import describe, served_page
from noiseproof.audit.review.queue import Queue
from noiseproof.audit.review.rows import open_rows

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost")
COUNTABLE = 2**53 - 1  # the largest whole number of a browser
Row = Annotated[int, InPath(ge=0, le=COUNTABLE)]
Class = Annotated[int | None, Query(ge=0, le=COUNTABLE, description="Only issues of the class of this number.")]
PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"description": "The token is missing or wrong."},
    403: {"description": "The request comes from another site."},
    409: {"description": "The page that asks is of another audit."},
}


class Word(BaseModel):
    """A decision as the page sends it; ``label`` goes with other, and only there."""

    model_config = ConfigDict(extra="forbid", strict=True)
    row: int = Field(ge=0, le=COUNTABLE)
    decision: Choice
    label: str | None = Field(default=None, max_length=10_000)


class Guard:
    """Lets nothing through that does not come from this machine's own page, whatever its address is.

    The name in Host must be loopback's (else a site whose name leads here could read on), Origin must be ours, and the
    token must come as a cookie or as ``Authorization: Bearer``; ``/?token=…`` sets the cookie.
    """

    def __init__(self, app: Application, token: str) -> None:
        self.app, self.token = app, token.encode()
        self.cookie = f"noiseproof-{hashlib.sha256(self.token).hexdigest()[:8]}"  # cookies do not tell ports apart
        self.headers = [
            (b"content-security-policy", b"frame-ancestors 'none'"),  # the page itself says what it may load
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # there are no websockets here
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if host.rpartition(":")[0] not in LOOPBACK and host not in LOOPBACK:
            return await self._refuse(send, 403, f"Expected one of {', '.join(LOOPBACK)} as host.")
        if headers.get("origin", f"http://{host}") != f"http://{host}":
            return await self._refuse(send, 403, "Expected a request of this page, got one of another site.")
        asked = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self._is_token(asked):
            cookie = f"{self.cookie}={self.token.decode()}; HttpOnly; SameSite=Strict; Path=/"
            found = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
            return await self._answer(send, 303, b"", found)
        if not any(map(self._is_token, self._tokens(headers))):
            return await self._refuse(send, 401, "Open the address that `noiseproof review` printed.")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [*message["headers"], *self.headers]
                if not any(name == b"cache-control" for name, _ in own):
                    own.append((b"cache-control", b"no-store"))
                message = {**message, "headers": own}
            await send(message)

        return await self.app(scope, receive, send_guarded)

    def _tokens(self, headers: dict[str, str]) -> Iterable[str]:
        yield headers.get("authorization", "").removeprefix("Bearer ")
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return
        if self.cookie in cookies:
            yield cookies[self.cookie].value

    def _is_token(self, word: str) -> bool:
        return hmac.compare_digest(word.encode("utf-8", "surrogateescape"), self.token)

    async def _refuse(self, send: Send, status: int, detail: str) -> None:
        body = json.dumps({"detail": detail}).encode()
        found = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        if status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        await self._answer(send, status, body, found)

    async def _answer(self, send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length, *self.headers]})
        await send({"type": "http.response.body", "body": body})


def make_app(
    folder: str | Path, token: str, *, decisions: str | Path | None = None, everything: bool = False
) -> FastAPI:
    """The web application that reviews the audit in ``folder``; decisions go to its decisions.csv by default."""
    audit = read_audit(folder)
    rows = open_rows(audit.config)
    path = Path(decisions or audit.folder / "decisions.csv").absolute()
    queue = Queue(audit, path, everything)
    page = served_page()

    def same_audit(
        noiseproof_audit: Annotated[str | None, Header(description="The key of the page's audit.")] = None,
    ) -> None:
        """Refuse a page that another audit's server left behind: row numbers mean other rows there."""
        if noiseproof_audit not in (None, audit.key):
            raise HTTPException(
                409, f"This page is of another audit than {audit.folder}, which is served here by now. Reload it."
            )

    app = FastAPI(
        title="noiseproof review", version="1", docs_url=None, redoc_url=None, responses=PROBLEMS,
        dependencies=[Depends(same_audit)],
    )  # fmt: skip
    app.add_middleware(Guard, token=token)
    no_row: dict[int | str, dict[str, Any]] = {404: {"description": "The audit has no issue in this row."}}

    @app.get("/", response_class=HTMLResponse)
    def show_page() -> str:
        return page

    @app.get("/api/audit")
    def show_audit() -> dict[str, Any]:
        """What was audited, its classes and class pairs, and how far the review is."""
        return describe(audit, queue.issues) | {"saved_in": str(path), "progress": queue.progress()}

    @app.get("/api/issues")
    def list_issues(
        offset: Annotated[int, Query(ge=0, le=COUNTABLE)] = 0,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        given: Class = None,
        suggested: Class = None,
    ) -> dict[str, Any]:
        """Some issues from the worst label to the best, with what was decided on each."""
        return queue.page(offset, limit, given, suggested)

    @app.get("/api/issues/next")
    def next_issue(
        after: Annotated[int, Query(ge=-1, le=COUNTABLE)] = -1, given: Class = None, suggested: Class = None
    ) -> dict[str, int | None]:
        """Where the next undecided issue behind ``after`` is, from the top again if there is none; null if all are."""
        return {"position": queue.next_open(after, given, suggested)}

    @app.get("/api/rows/{row}", responses=no_row)
    def show_row(row: Row) -> dict[str, Any]:
        """What the dataset has in this row."""
        return rows.content(row, _id(row))

    @app.get(
        "/api/rows/{row}/picture",
        response_class=Response,
        responses={**no_row, 200: {"content": {"image/png": {}, "image/jpeg": {}}}},
    )
    def show_picture(row: Row, side: Annotated[int, Query(ge=16, le=1024)] = 640) -> Response:
        """The picture in this row, at most ``side`` pixels wide and high."""
        picture = rows.picture(row, _id(row), side)
        if picture is None:
            raise HTTPException(404, "There is no picture to show in this row.")
        return Response(picture[0], media_type=picture[1], headers={"cache-control": "private, max-age=600"})

    unsaved: dict[int | str, dict[str, Any]] = {
        400: {"description": "The body is no text."},
        409: {
            "description": "The label is no class of this audit, is missing or does not belong there; or the page "
            "is of another audit."
        },
        507: {"description": "The disk is full."},
    }

    @app.post("/api/decisions", responses={**no_row, **unsaved})
    def decide(word: Word) -> dict[str, Any]:
        """Save a decision; when the answer comes, it is on the disk."""
        _id(word.row)
        try:
            saved = queue.decide(word.row, word.decision, word.label)
        except ValueError as error:
            raise HTTPException(409, str(error)) from None
        except OSError as error:
            raise HTTPException(507, f"Not saved: {error}") from None
        return {"saved": saved._asdict(), "progress": queue.progress()}

    def _id(row: int) -> str:
        if row not in queue.issues.position:
            raise HTTPException(404, f"The audit has no issue in row {row}.")
        return queue.issues.id[queue.issues.position[row]]

    return app


def bind(port: int = 0) -> socket.socket:
    """A socket on this machine's own address only; port 0 is any free one."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise ValueError(f"Expected a free port, got {port}: {error}. Use --port 0 for any free one.") from error
    return listening


def serve(app: FastAPI, listening: socket.socket) -> None:
    """Answer until interrupted."""
    import uvicorn

    # No log of requests: the first one carries the token.
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="off", timeout_graceful_shutdown=1
    )
    uvicorn.Server(config).run(sockets=[listening])
