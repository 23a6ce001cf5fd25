"""What a run of the tests left out because this machine lacks it, and the command that would change
that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple


class Lack(NamedTuple):
    """Something that tests need: in words, how reasons for skipping name it, and how to get it."""

    name: str
    reason: re.Pattern[str]
    command: str


LACKS = (
    Lack("in a browser", re.compile("chromium|playwright|axe-core"), "apt-get install chromium"),
    Lack(
        "on a GPU",
        re.compile("needs (a GPU|a CUDA device|Triton)|no CUDA device"),
        "pytest tests/accelerate tests/losses on a machine that has one",
    ),
    Lack("of the review server", re.compile("review server"), "make setup"),
    Lack("with other programs", re.compile(r"needs (g\+\+|bash)$"), "apt-get install g++ bash"),
    Lack(
        "with the official files",
        re.compile(
            "NOISEPROOF_(DATA|TABLES|SHARED)|official files are not here|^no"
            " /|dataset-fashion-mnist"
        ),
        "NOISEPROOF_DATA=FOLDER make test",
    ),
)
PACKAGE = re.compile(
    r"could not import '([\w.]+)'|no module (\w+)|needs (optuna)|^([\w-]+) is not installed"
)


def untested(reasons: Iterable[str]) -> str:
    """One line on what was not tested here; none of tests that are skipped on every machine.

    >>> untested(["chromium is not installed", "chromium is not installed", "class indices only"])
    'Not tested here: 2 in a browser (apt-get install chromium).'
    """
    counts: Counter[str] = Counter()
    packages: Counter[str] = Counter()
    for reason in reasons:
        lack = next((lack for lack in LACKS if lack.reason.search(reason)), None)
        package = PACKAGE.search(reason)
        if lack is not None:
            counts[f"{{}} {lack.name} ({lack.command})"] += 1
        elif package is not None:
            packages[next(filter(None, package.groups())).partition(".")[0]] += 1
    parts = [text.format(count) for text, count in counts.most_common()]
    if packages:
        names = " ".join(sorted(packages))
        parts.append(f"{packages.total()} with other packages (pip install {names})")
    return f"Not tested here: {', '.join(parts)}." if parts else ""
