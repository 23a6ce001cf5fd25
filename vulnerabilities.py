"""Ask pip-audit for known vulnerabilities of what a Python has installed, and say what was not
asked about.

    .venv/bin/python vulnerabilities.py .venv/security/bin/pip-audit

The packages are those of the Python that runs this, without noiseproof itself and without local
versions (`+cpu`), which no database knows. pip-audit alone says "No known vulnerabilities found"
where its database knows none of the packages.

Exit status: 0 where all packages were audited and none is vulnerable, 1 where one is, 2 where some
were not audited.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def installed() -> list[str]:
    """The pins of all packages that are not editable."""
    command = [sys.executable, "-m", "pip", "list", "--format=freeze", "--exclude-editable"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.partition("+")[0] for line in listed.splitlines()]


def audited(pip_audit: str, pins: list[str]) -> list[dict[str, Any]]:
    """What pip-audit says of each package; nothing where it ends without an answer."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "asked.txt"), Path(folder, "answer.json")
        asked.write_text("\n".join(pins), "utf-8")
        command = [
            pip_audit,
            "--no-deps",
            "--disable-pip",
            "--progress-spinner=off",
            "--format=json",
        ]
        ended = subprocess.run(
            [*command, f"--output={answer}", f"--requirement={asked}"],
            capture_output=True,
            text=True,
        )
        if answer.exists():
            packages: list[dict[str, Any]] = json.loads(answer.read_text("utf-8"))["dependencies"]
            return packages
        print(ended.stderr.strip().rpartition("\n")[2])
        return []


def verdict(pins: list[str], packages: list[dict[str, Any]]) -> tuple[str, int]:
    """What is to be printed, and the exit status."""
    known = [package for package in packages if "vulns" in package]
    if not known:
        return f"Nothing was audited: no database answered for any of {len(pins)} packages.", 2
    lines = [
        f"{package['name']} {package['version']}: {found['id']}, fixed in"
        f" {', '.join(found['fix_versions']) or 'none'}."
        for package in known
        for found in package["vulns"]
    ]
    is_vulnerable = bool(lines)
    lines.append(
        f"{len(known)} of {len(pins)} packages were audited, {len(lines)} vulnerabilities are"
        " known."
    )
    if len(known) < len(pins):
        others = sorted(package["name"] for package in packages if "vulns" not in package)
        lines.append(f"Not audited: {', '.join(others)}.")
    if is_vulnerable:
        return "\n".join(lines), 1
    return "\n".join(lines), 0 if len(known) == len(pins) else 2


if __name__ == "__main__":
    pins = installed()
    text, status = verdict(pins, audited(sys.argv[1], pins))
    print(text)
    sys.exit(status)
