"""Who is let in: one link for each reviewer, with a token of their own, and no request from another
site.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost")
NOTEBOOKS = (
    "http://127.0.0.1:* http://localhost:* https://127.0.0.1:* https://localhost:* vscode-webview:"
)
LONGEST_NAME = 100


@dataclass(frozen=True)
class Person:
    """A reviewer, the secret of their link, and the first part of the path of their page, empty for
    a single one.

    Tabs of one browser share their cookies. A path for each person keeps the links of two people
    apart there: a cookie is sent to its path only. The path depends on the name alone, so that a
    tab that was open while the server was started again is let in, too, once its reviewer opens the
    new link.
    """

    name: str
    token: str
    place: str = ""

    @property
    def root(self) -> str:
        return f"/{self.place}/" if self.place else "/"

    @property
    def cookie(self) -> str:
        # cookies are shared between ports
        return f"noiseproof-{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    def has_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self.token.encode())


def invite(names: Sequence[str]) -> list[Person]:
    """Return the reviewers of these names with new tokens.

    >>> [person.place for person in invite(["ann", "José"])]
    ['ann-49915e', 'jos-24c2ab']
    """
    if len(names) == 1:
        return [Person(names[0], secrets.token_urlsafe(32))]
    return [Person(name, secrets.token_urlsafe(32), _place(name)) for name in names]


def _place(name: str) -> str:
    readable = re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")[:20]
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:6]}".removeprefix("-")


def parse_names(text: str) -> list[str]:
    """Return the names in a comma-separated list.

    >>> parse_names("ann, bob")
    ['ann', 'bob']
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        check_name(name)
    if len(names) < 2 or len({name.casefold() for name in names}) < len(names):
        raise ValueError(
            f"Expected different names, such as ann,bob,cy, got {text!r}. Use --reviewer for one"
            " person."
        )
    return names


def check_name(name: str) -> str:
    """Return the name of a reviewer; refuse one that cannot be shown or stored on one line."""
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise ValueError(
            f"Expected names of 1 to {LONGEST_NAME} printable characters on one line for reviewers,"
            f" got {name!r}."
        )
    return name


class Guard:
    """Refuses every request that does not come from a reviewer's page on this server.

    The name in Host must be one of ``hosts`` (against DNS rebinding), Origin must be this server,
    and the token must come as a cookie or as ``Authorization: Bearer``; ``/?token=…`` sets the
    cookie. Inside the frame of a notebook, where browsers send no cookies, the token is the first
    part of every path instead, and pages of this machine may frame it. The application finds the
    reviewer's name in ``request.state.reviewer``.
    """

    def __init__(
        self,
        app: Application,
        people: Sequence[Person],
        hosts: Collection[str] = LOOPBACK,
        in_notebook: bool = False,
    ) -> None:
        self.app = app
        self.people = people
        self.in_notebook = in_notebook
        self.hosts = tuple(dict.fromkeys(bracketed(host).lower() for host in hosts))
        ancestors = NOTEBOOKS if in_notebook else "'none'"
        self.headers = {
            # the page itself has the rest of the content security policy
            "content-security-policy": f"frame-ancestors {ancestors}",
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cross-origin-resource-policy": "same-origin",
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # websockets are not served
        from starlette.datastructures import Headers, MutableHeaders
        from starlette.responses import JSONResponse, RedirectResponse

        headers = Headers(scope=scope)
        host = headers.get("host", "")
        person, path = self._recognise(scope["path"], headers)
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        invited = self._of_token(self.people, token) if scope["path"] == "/" else None
        answer: Application
        if not {host.lower(), host.lower().rpartition(":")[0]} & {*self.hosts}:
            detail = f"Expected {' or '.join(self.hosts)} as host, got another."
            answer = JSONResponse({"detail": detail}, 403)
        elif headers.get("origin", f"http://{host}") not in self._origins(host):
            detail = "Expected a request from this page, got one from another site."
            answer = JSONResponse({"detail": detail}, 403)
        elif invited is not None:
            kept = f"{invited.cookie}={invited.token}; HttpOnly; SameSite=Strict"
            cookie = {"set-cookie": f"{kept}; Path={invited.root}"}
            answer = RedirectResponse(invited.root, 303, cookie)
        elif person is None:
            detail = "Open the address that `noiseproof review` printed."
            answer = JSONResponse({"detail": detail}, 401, {"www-authenticate": "Bearer"})
        else:
            state = {**scope.get("state", {}), "reviewer": person.name}
            answer = self.app
            scope = {**scope, "state": state, "path": path, "raw_path": None}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                guarded = MutableHeaders(raw=message["headers"])
                guarded.update(self.headers)
                guarded.setdefault("cache-control", "no-store")
            await send(message)

        await answer(scope, receive, send_guarded)

    def _origins(self, host: str) -> tuple[str, ...]:
        """Return the origins of pages of this server; a proxy in front of it may speak TLS, on this
        machine nothing does.
        """
        if host in LOOPBACK or host.rpartition(":")[0] in LOOPBACK:
            return (f"http://{host}",)
        return (f"http://{host}", f"https://{host}")

    def _recognise(self, path: str, headers: Mapping[str, str]) -> tuple[Person | None, str]:
        """Return who sends a request, None for a stranger, and the path without the part that is
        the person's own.
        """
        first, _, rest = path.removeprefix("/").partition("/")
        if self.in_notebook:
            person = self._of_token(self.people, first)
            if person is not None:
                return person, f"/{rest}"
        owners = [person for person in self.people if person.place and person.place == first]
        if owners:  # the token of that person, not of another whose cookie or header came along
            return self._of_token(owners, *self._tokens(headers, owners)), f"/{rest}"
        everywhere = [person for person in self.people if not person.place]
        person = self._of_token(everywhere, *self._tokens(headers, everywhere))
        return person or self._of_token(self.people, self._bearer(headers)), path

    def _tokens(self, headers: Mapping[str, str], people: Iterable[Person]) -> Iterable[str]:
        yield self._bearer(headers)
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return
        yield from (cookies[person.cookie].value for person in people if person.cookie in cookies)

    def _bearer(self, headers: Mapping[str, str]) -> str:
        return headers.get("authorization", "").removeprefix("Bearer ")

    def _of_token(self, people: Iterable[Person], *tokens: str) -> Person | None:
        matches = [person for person in people if any(map(person.has_token, tokens))]
        return matches[0] if matches else None


def bracketed(host: str) -> str:
    """Return an address as it is written in a link."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
