"""The shell of all HTML pages: one file that fetches nothing and runs only scripts with known
hashes.
"""

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
    """Return templates of these packages (their folder ``templates``), then of this one; all values
    are escaped.
    """
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loaders = [PackageLoader(package) for package in (*packages, "noiseproof.analysis.page")]
    return Environment(
        loader=ChoiceLoader(loaders),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, *packages: str, scripts: tuple[str, ...], **context: Any) -> str:
    """Return a page made of a template that extends ``shell.html.j2``.

    Only ``scripts``, which are templates, may run: markup in the data has no effect, and the page
    makes no requests.
    """
    from markupsafe import Markup

    sources = environment(*packages)
    texts = [sources.get_template(name).render() for name in ("shell.js", *scripts)]
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in texts
    ]
    policy = (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; img-src"
        " data: blob:; base-uri 'none'; form-action 'none'"
    )
    # our files, not the user's text
    early, *late = (Markup(f"<script>{text}</script>") for text in texts)
    return sources.get_template(template).render(policy=policy, early=early, late=late, **context)


def pack(content: str) -> str:
    """Return text as base64 of gzip: small, and without characters that have a meaning in HTML."""
    return base64.b64encode(gzip.compress(content.encode(), 9, mtime=0)).decode()
