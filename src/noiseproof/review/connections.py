"""Connections of the review server: a request arrives whole in time, and no one can keep others
out.
"""

import asyncio
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from noiseproof.core.limits import limit

BACKLOG = 100  # connections that are accepted at a time, before any of them is looked at


class BoundedProtocol(H11Protocol):
    """An HTTP connection with a time-out for each request and for reading its answer.

    Where too many are open, the one that has waited longest for a request to arrive goes.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.seconds = limit("request_seconds")
        self.most_bytes = limit("request_bytes")
        self.received = 0
        self.opened = self.loop.time()
        # until the request is whole, or its answer is read on
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()
        others = [other for other in self.connections if not other.transport.is_closing()]
        if len(others) > limit("connections"):
            waiting = [
                other for other in others if isinstance(other, BoundedProtocol) and other.is_waiting
            ]
            # this one, where all others are being answered
            oldest = min(waiting, key=lambda other: other.opened, default=self)
            oldest.transport.abort()

    @property
    def is_waiting(self) -> bool:
        """Whether no request has arrived whole that is still to be answered."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        if self.received > self.most_bytes:
            self.transport.abort()
            return
        if self.timer is None:  # the first bytes of another request
            self._start_timer()
        super().data_received(data)
        if not self.is_waiting:
            self._stop_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.received = 0
        if self.conn.their_state is h11.SEND_BODY:  # another request, of which a part came along
            self._start_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._stop_timer()
        self.timer = self.loop.call_later(self.seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None


class QuietServer(uvicorn.Server):
    """A server that says once, not thousands of times, what goes wrong with connections."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        reported: set[str] = set()

        def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            message = str(context.get("message"))
            if message not in reported:
                reported.add(message)
                loop.default_exception_handler(context)

        asyncio.get_running_loop().set_exception_handler(report)
        await super().serve(sockets)
