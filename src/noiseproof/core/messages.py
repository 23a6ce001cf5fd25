"""Words for messages, short representations of objects, how long work reports how far it is, and
how to add extras.
"""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

Json = dict[str, Any]  # an object of a JSON file, or of an answer

# names of other libraries: the option or key that stands for them here, with an example
ELSEWHERE = {
    **dict.fromkeys(("lr", "learning_rate", "momentum"), ("optimizer", "sgd:lr=0.1,momentum=0.9")),
    "weight_decay": ("optimizer", "sgd:lr=0.1,weight_decay=5e-4"),
    **dict.fromkeys(("loss", "losses", "criterion"), ("method", "gce")),
    **dict.fromkeys(("rate", "noise_rate"), ("noise", "symmetric:rate=0.4")),
    **dict.fromkeys(("backbone", "arch"), ("model", "resnet34")),
    "device": ("accelerator", "cuda"),
}


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


# of the terminal, line separators, directions of text, lone surrogates; line ends and tabs stay
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """A text for a terminal: control characters, which could move the cursor or hide text, as
    escapes.

    >>> printable("dog\\x1b[2J"), printable("é\\n")
    ('dog\\\\x1b[2J', 'é\\n')
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things: ``one`` if there is one, else ``many``, by default with an s.

    >>> counted(1, "row"), counted(0, "row"), counted(2, "class is", "classes are")
    ('1 row', '0 rows', '2 classes are')
    """
    if number == 1:
        return f"{number} {one}"
    return f"{number} {many or f'{one}s'}"


def preview(items: Sequence[Any], most: int = 5) -> str:
    """The first few of ``items`` as a list for a message."""
    shown = ", ".join(map(repr, items[:most]))
    return shown if len(items) <= most else f"{shown} and {len(items) - most} more"


def near_file(path: Path) -> str:
    """A sentence, with a space before it, that names the file or folder nearest to one that does
    not exist, or none.
    """
    try:
        known = os.listdir(path.parent)
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, known, n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


LONGEST = 60  # characters of a value


class Brief:
    """A dataclass (with ``repr=False``) whose representation is one line: arrays by type and shape,
    no empty fields.

    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> @dataclass(repr=False)
    ... class Rows(Brief):
    ...     x: np.ndarray
    ...     ids: np.ndarray | None = None
    ...     rate: float = 0.25
    >>> Rows(np.zeros((500, 3), np.float32))
    Rows(x=float32 (500, 3), rate=0.25)
    """

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        shown = (f"{name}={brief(value)}" for name, value in values.items() if value is not None)
        return f"{type(self).__name__}({', '.join(shown)})"


def brief(value: Any) -> str:
    """A value in a few words: an array by its type and shape, a long collection by its length.

    >>> brief([0] * 1000), brief("a" * 100)[-3:]
    ('list of 1000', 'aa…')
    """
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    text = repr(value)
    if len(text) <= LONGEST or isinstance(value, Brief):
        return text
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return f"{type(value).__name__} of {len(value)}"
    return f"{text[: LONGEST - 1]}…"


class Progress(Protocol):
    """Called with the name of a stage, how much of it is done, and how much there is (None if
    unknown).
    """

    def __call__(self, stage: str, done: int, total: int | None, /) -> None: ...


def install_command(extra: str) -> str:
    """The command that adds an extra, for timm after the torchvision that fits: the newest one
    replaces PyTorch.
    """
    command = _add_extra(extra)
    return f"{torchvision_command()} && {command}" if extra == "timm" else command


def torchvision_command() -> str:
    """The command that adds the torchvision for the installed build of PyTorch."""
    from importlib import metadata

    try:
        version, _, build = f"=={metadata.version('torch')}".partition("+")
    except metadata.PackageNotFoundError:
        version = build = ""
    index = (
        f" --index-url https://download.pytorch.org/whl/{build}"
        if re.match("cpu|cu|rocm|xpu", build)
        else ""
    )
    return f"pip install torch{version} torchvision{index}"


def _add_extra(extra: str) -> str:
    """The command that adds an extra, from where noiseproof was installed (PEP 610), as it is not
    on a package index.
    """
    import json  # these take longer to import than a command that needs none of them takes to start
    from importlib import metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        origin = json.loads(
            metadata.distribution("noiseproof").read_text("direct_url.json") or "{}"
        )
    except metadata.PackageNotFoundError:  # its source was put on the path
        origin = {}
    url = origin.get("url")
    repository = origin.get("vcs_info")
    if not url:
        return f"cd CLONE && pip install '.[{extra}]'"
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install -e '{url2pathname(urlsplit(url).path)}[{extra}]'"
    if repository:
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return f"pip install 'noiseproof[{extra}] @ {url}'"
