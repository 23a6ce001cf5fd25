"""`make security` says what was audited, and that nothing was where no database answers."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "vulnerabilities.py"))
PINS = ["torch==2.13.0", "jinja2==2.4.1"]
SAFE = {"name": "torch", "version": "2.13.0", "vulns": []}
VULNERABLE = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "PYSEC-2014-8", "fix_versions": ["2.7.2"]}],
}
SKIPPED = {
    "name": "jinja2",
    "skip_reason": "Dependency not found on PyPI and could not be audited: jinja2 (2.4.1)",
}


@pytest.mark.parametrize(
    ("packages", "text", "status"),
    [
        (
            [SAFE, VULNERABLE | {"vulns": []}],
            "2 of 2 packages were audited, 0 vulnerabilities are known.",
            0,
        ),
        (
            [SAFE, VULNERABLE],
            (
                "jinja2 2.4.1: PYSEC-2014-8, fixed in 2.7.2.\n2 of 2 packages were audited, 1"
                " vulnerabilities are known."
            ),
            1,
        ),
        (
            [SAFE, SKIPPED],
            "1 of 2 packages were audited, 0 vulnerabilities are known.\nNot audited: jinja2.",
            2,
        ),
        ([SKIPPED, SKIPPED], "Nothing was audited: no database answered for any of 2 packages.", 2),
        ([], "Nothing was audited: no database answered for any of 2 packages.", 2),
    ],
)
def test_the_verdict_says_what_was_audited(
    packages: list[dict[str, Any]], text: str, status: int
) -> None:
    assert SCRIPT["verdict"](PINS, packages) == (text, status)


def test_all_but_noiseproof_itself_is_asked_about_without_local_versions() -> None:
    pins = SCRIPT["installed"]()
    assert {"numpy", "pytest"} <= {pin.partition("==")[0] for pin in pins}
    assert not [pin for pin in pins if "+" in pin or pin.startswith("noiseproof")]


def test_an_auditor_that_fails_is_no_all_clear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    auditor = tmp_path / "pip-audit"
    auditor.write_text(f"#!{sys.executable}\nraise SystemExit('no route to host')\n")
    auditor.chmod(0o755)
    assert SCRIPT["audited"](str(auditor), PINS) == []
    assert capsys.readouterr().out == "no route to host\n"
