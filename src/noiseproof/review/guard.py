"""Who is let in: one link for each reviewer, with a token of their own, and no request from another
site.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost")
NOBODY = "'none'"  # the page itself has the rest of the content security policy
NOTEBOOKS = (
    " ".join(f"{scheme}://{host}:*" for scheme in ("http", "https") for host in LOOPBACK)
    + " vscode-webview:"
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
        self.app, self.people, self.in_notebook = app, people, in_notebook
        self.hosts = tuple(dict.fromkeys(bracketed(host).lower() for host in hosts))
        self.headers = [
            (
                b"content-security-policy",
                f"frame-ancestors {NOTEBOOKS if in_notebook else NOBODY}".encode(),
            ),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # websockets are not served
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        host = headers.get("host", "")
        if not {host.lower(), host.lower().rpartition(":")[0]} & {*self.hosts}:
            return await self._refuse(
                send, 403, f"Expected {' or '.join(self.hosts)} as host, got another."
            )
        if headers.get("origin", f"http://{host}") not in self._origins(host):
            return await self._refuse(
                send, 403, "Expected a request from this page, got one from another site."
            )
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and (person := self._of_token(self.people, token)) is not None:
            cookie = (
                f"{person.cookie}={person.token}; HttpOnly; SameSite=Strict; Path={person.root}"
            )
            location = (b"location", person.root.encode())
            redirect = [location, (b"set-cookie", cookie.encode()), (b"cache-control", b"no-store")]
            return await self._answer(send, 303, b"", redirect)
        person, path = self._recognise(scope["path"], headers)
        if person is None:
            return await self._refuse(
                send, 401, "Open the address that `noiseproof review` printed."
            )
        state = {**scope.get("state", {}), "reviewer": person.name}
        scope = {**scope, "state": state, "path": path, "raw_path": None}

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                guarded = [*message["headers"], *self.headers]
                if not any(name == b"cache-control" for name, _ in guarded):
                    guarded.append((b"cache-control", b"no-store"))
                message = {**message, "headers": guarded}
            await send(message)

        return await self.app(scope, receive, send_guarded)

    def _origins(self, host: str) -> tuple[str, ...]:
        """The origins of pages of this server; a proxy in front of it may speak TLS, on this
        machine nothing does.
        """
        is_local = host in LOOPBACK or host.rpartition(":")[0] in LOOPBACK
        return (f"http://{host}",) if is_local else (f"http://{host}", f"https://{host}")

    def _recognise(self, path: str, headers: dict[str, str]) -> tuple[Person | None, str]:
        """Return who sends a request, None for a stranger, and the path without the part that is
        the person's own.
        """
        first, _, rest = path.removeprefix("/").partition("/")
        if self.in_notebook and (person := self._of_token(self.people, first)) is not None:
            return person, f"/{rest}"
        owners = [person for person in self.people if person.place and person.place == first]
        if owners:  # the token of that person, not of another whose cookie or header came along
            return self._of_token(owners, *self._tokens(headers, owners)), f"/{rest}"
        everywhere = [person for person in self.people if not person.place]
        found = self._of_token(everywhere, *self._tokens(headers, everywhere))
        return found or self._of_token(self.people, self._bearer(headers)), path

    def _tokens(self, headers: dict[str, str], people: Iterable[Person]) -> Iterable[str]:
        yield self._bearer(headers)
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return
        yield from (cookies[person.cookie].value for person in people if person.cookie in cookies)

    def _bearer(self, headers: dict[str, str]) -> str:
        return headers.get("authorization", "").removeprefix("Bearer ")

    def _of_token(self, people: Iterable[Person], *tokens: str) -> Person | None:
        matches = [person for person in people if any(map(person.has_token, tokens))]
        return matches[0] if matches else None

    async def _refuse(self, send: Send, status: int, detail: str) -> None:
        body = json.dumps({"detail": detail}).encode()
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        if status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        await self._answer(send, status, body, headers)

    async def _answer(
        self, send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]
    ) -> None:
        length = (b"content-length", str(len(body)).encode())
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, length, *self.headers],
            }
        )
        await send({"type": "http.response.body", "body": body})


def bracketed(host: str) -> str:
    """Return an address as it is written in a link."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
