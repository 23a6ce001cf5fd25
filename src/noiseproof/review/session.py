"""The review of a report from Python: inline in a notebook, in a browser elsewhere."""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import webbrowser
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.audit.decisions import FILE as DECISIONS
from noiseproof.audit.files import FILES, read_audit
from noiseproof.audit.report import LabelReport
from noiseproof.core.messages import install_command
from noiseproof.data.sources import PathLike
from noiseproof.review.guard import Person, check_name

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

_OPEN: dict[Path, ReviewSession] = {}  # by the file of decisions: one server writes it


class ReviewSession:
    """A running review server; in a notebook it is displayed as its page."""

    def __init__(
        self,
        app: FastAPI,
        address: str,
        server: uvicorn.Server,
        listening: socket.socket,
        height: int,
    ):
        self.app = app
        self.address = address
        self.height = height
        self._server = server
        self._thread = threading.Thread(
            target=server.run, kwargs={"sockets": [listening]}, daemon=True
        )
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop the server; every decision is saved already."""
        self._server.should_exit = True
        self._thread.join()
        self.app.state.review.queue.log.close()

    def wait(self) -> None:
        """Serve until interrupted by Ctrl+C."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self.close()

    def __repr__(self) -> str:
        path = self.app.state.review.path
        return f"review: {self.address if self.is_running else 'closed'}\ndecisions: {path}"

    def _repr_html_(self) -> str:
        path = escape(str(self.app.state.review.path))
        if not self.is_running:
            return f"<p>The review is closed; decisions are in {path}.</p>"
        link = escape(self.address)
        return (
            f'<iframe src="{link}" title="Review" width="100%" height="{self.height}"'
            f' style="border: 0"></iframe><p><a href="{link}" target="_blank" rel="noreferrer">Open'
            f" in a tab.</a> Decisions go to {path}.</p>"
        )


def open_review(
    report: LabelReport,
    folder: PathLike = "audit",
    *,
    decisions: PathLike | None = None,
    everything: bool = False,
    reviewer: str = "",
    force: bool = False,
    height: int = 800,
    port: int = 0,
    wait: bool | None = None,
) -> ReviewSession:
    """Save a report in ``folder``, unless it is there already, and open its review page with the
    rows in memory.

    In a notebook the session is the page, inline; elsewhere a browser opens.

    Args:
        decisions: the database of decisions, by default decisions.sqlite in ``folder``.
        everything: review the other rows, too, after the issues.
        reviewer: who decides; the name is kept with each decision.
        force: replace another audit in ``folder``; its decisions stay with their rows.
        height: of the page in a notebook, in pixels.
        port: of the server on this machine; 0 is any free one.
        wait: whether to serve until Ctrl+C; by default in scripts, which would end otherwise.
    """
    try:
        from noiseproof.review.server import bind, make_app, make_server
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Expected fastapi and uvicorn for the review, {error.name} is not installed. "
            f"Run `{install_command('review')}`."
        ) from error
    if reviewer:
        check_name(reviewer)
    folder = Path(folder)
    path = Path(decisions or folder / DECISIONS).absolute()
    running = _OPEN.pop(path, None)
    if running is not None:  # a cell that is run again
        running.close()
    save_once(report, folder, force=force)
    token = secrets.token_urlsafe(32)
    embedded = in_notebook()
    listening = bind(port)  # before the file of decisions is locked
    app = make_app(
        folder,
        [Person(reviewer, token)],
        decisions=path,
        everything=everything,
        data=report.data,
        in_notebook=embedded,
    )
    host = f"http://127.0.0.1:{listening.getsockname()[1]}"
    address = f"{host}/{token}/" if embedded else f"{host}/?token={token}"
    _OPEN[path] = session = ReviewSession(app, address, make_server(app), listening, height)
    if not embedded:
        webbrowser.open(address)
    if wait or (wait is None and is_script()):
        session.wait()
    return session


def save_once(report: LabelReport, folder: Path, *, force: bool = False) -> None:
    """Save ``report`` in ``folder``, unless it is there already; refuse other files there without
    ``force``.
    """
    has_audit = all((folder / name).is_file() for name in FILES)
    if has_audit and not force and _same(read_audit(folder).issues, report.table()):
        return
    if force or not folder.exists() or not any(folder.iterdir()):
        report.save(folder, force=force)
        return
    raise FileExistsError(
        f"Expected a new folder, or that of this audit, got {folder}, which holds other files. Pass"
        " another `folder`, or `force=True` to replace an earlier audit there, whose decisions"
        " stay with their rows."
    )


def _same(issues: Any, table: Any) -> bool:
    """Return whether two tables of issues are of one audit, whatever was decided since."""
    labels = ["row", "given_label", "suggested_label"]
    one = issues.sort_values("row")
    other = table.sort_values("row")
    return np.array_equal(one[labels].astype(str), other[labels].astype(str)) and np.allclose(
        one["model_quality"], other["model_quality"], atol=1e-6, equal_nan=True
    )


def in_notebook() -> bool:
    """Return whether the code runs in the kernel of a notebook: IPython in a terminal has none."""
    return getattr(_ipython_shell(), "kernel", None) is not None


def is_script() -> bool:
    """Return whether the process ends with its code: it runs in no notebook, no IPython and no
    interactive interpreter.
    """
    return _ipython_shell() is None and not hasattr(sys, "ps1") and not sys.flags.interactive


def _ipython_shell() -> Any:
    ipython = sys.modules.get("IPython")
    return None if ipython is None else ipython.get_ipython()
