"""Words for messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any


def quoted(label: str) -> str:
    """A label in quotes, with a remark on spaces that one would not see."""
    places = {
        "a space at the beginning": label[:1] == " ",
        "a space at the end": label[-1:] == " ",
        "two spaces in a row": "  " in label.strip(" "),
    }
    remarks = [place for place, is_there in places.items() if is_there]
    return f"{label!r} (with {' and '.join(remarks)})" if remarks else repr(label)


def plain(label: str) -> str:
    """A label as it is, in quotes with a remark where it has spaces that one would not see.

    >>> plain("dog"), plain(" dog")
    ('dog', "' dog' (with a space at the beginning)")
    """
    return label if quoted(label) == repr(label) else quoted(label)


_CONTROL = re.compile(  # of the terminal, line separators, directions of text, lone surrogates; line ends and tabs stay
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """A text for a terminal: control characters, which could move the cursor or hide text, as escapes.

    >>> printable("dog\\x1b[2J"), printable("é\\n")
    ('dog\\\\x1b[2J', 'é\\n')
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things: ``one`` if there is one, else ``many``, by default with an s.

    >>> counted(1, "row"), counted(0, "row"), counted(2, "class is", "classes are")
    ('1 row', '0 rows', '2 classes are')
    """
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def preview(items: Sequence[Any], most: int = 5) -> str:
    """The first few of ``items`` as a list for a message."""
    return ", ".join(map(repr, items[:most])) + (f" and {len(items) - most} more" if len(items) > most else "")
