"""The shell of every page that noiseproof writes: one file, nothing fetched, scripts known by their hash."""

from __future__ import annotations

import base64
import gzip
import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment


@lru_cache
def environment(*packages: str) -> Environment:
    """Templates of these packages (their folder ``templates``), then of this one; everything shown is escaped."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loaders = [PackageLoader(package) for package in (*packages, "noiseproof.analysis")]
    return Environment(
        loader=ChoiceLoader(loaders), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )


def render(template: str, *packages: str, scripts: tuple[str, ...], later: tuple[str, ...] = (), **context: Any) -> str:
    """A page made of a template that extends ``shell.html.j2``.

    ``scripts`` are files among the templates. Only they may run, and what they insert if it is one of ``later``: markup
    that slipped in with the data stays dead, and no request can leave the page.
    """
    from markupsafe import Markup

    sources = environment(*packages)
    texts = [sources.get_template(name).render() for name in ("shell.js", *scripts)]
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in (*texts, *later)]
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    early, *late = (Markup(f"<script>{text}</script>") for text in texts)  # our own files, not the user's words
    return sources.get_template(template).render(policy=policy, early=early, late=late, **context)


def pack(content: str) -> str:
    """Text as base64 of gzip: small, and without any character that means something in HTML."""
    return base64.b64encode(gzip.compress(content.encode(), 9, mtime=0)).decode()
