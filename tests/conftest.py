"""Settings of the whole test session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings
from untested import untested

from noiseproof.core import plugins

# Tests start many processes. Where bytecode is not written, each of them, and the rewriting of
# asserts at every start, compiles all of the sources again: a second for each process and ten for
# pytest itself.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Two workers on two cores: a second thread in each only makes them wait for one another.
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))

# Tests compare bits, which a GPU does not promise: on a machine that has one they train on the CPU
# all the same, those aside that ask for the fixture `any_accelerator`.
os.environ["LT_ACCELERATOR"] = "cpu"

# The same examples on every run, and no verdict from a clock.
settings.register_profile("noiseproof", derandomize=True, deadline=None)
settings.load_profile("noiseproof")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What was not tested here, and the command that would change it; `-rs` lists all reasons."""
    reports = terminalreporter.stats.get("skipped", [])
    line = untested(str(report.longrepr[2]).removeprefix("Skipped: ") for report in reports)
    if line:
        terminalreporter.write_line(line)


@pytest.fixture
def any_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As outside the tests: the accelerator that is asked for."""
    monkeypatch.delenv("LT_ACCELERATOR")


@pytest.fixture
def forget_plugins() -> Iterator[None]:
    """What the test registers is no plug-in of later tests, whose workers would import it."""
    modules, digests = dict(plugins.MODULES), dict(plugins.DIGESTS)
    yield
    for state, before in ((plugins.MODULES, modules), (plugins.DIGESTS, digests)):
        state.clear()
        state.update(before)  # type: ignore[arg-type]
