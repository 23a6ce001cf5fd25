"""`noiseproof doctor`: what this installation has, and what it lacks."""

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import typer

from noiseproof.cli.main import INSTALLATION, app
from noiseproof.cli.show import AsJson, DataDir, echo, examples, refusals, show, show_json
from noiseproof.core.messages import counted, install_command

NOT_FOR_USERS = ("dev", "docs")  # extras


@app.command(
    epilog=examples("doctor", "doctor --data-dir /srv/data --json | jq .problems"),
    rich_help_panel=INSTALLATION,
)
@refusals()
def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show versions, devices, optional packages and the data folder, and what is wrong with them.

    The exit code is 1 where a package that noiseproof needs is missing or too old.
    """
    packages, extras = _packages(), _extras()
    problems = [
        f"{package['name']}: {package['problem']}" for package in packages if package["problem"]
    ]
    # Nothing of ours can be imported without them.
    devices, data = ([], {}) if problems else (_devices(), _data(data_dir))
    if as_json:
        show_json(
            {
                "packages": packages,
                "devices": devices,
                "extras": extras,
                "data": data,
                "problems": problems,
            }
        )
    else:
        where = (
            f"{sys.executable}, {platform.system()} {platform.machine()},"
            f" {counted(os.cpu_count() or 1, 'core')}"
        )
        echo(f"Python {platform.python_version()} ({where})\n")
        show(
            ("package", "version", "wanted", "problem"),
            [(p["name"], p["version"] or "", p["wanted"], p["problem"]) for p in packages],
        )
        echo()
        show(("device", "what it is"), [(device["name"], device["what"]) for device in devices])
        echo()
        show(
            ("extra", "installed", "get it by"),
            [
                (e["name"], _state(e), install_command(e["name"]) * bool(e["missing"]))
                for e in extras
            ],
        )
        if data:
            datasets = ", ".join(data["datasets"]) or "none; see noiseproof data list"
            echo(f"\ndata folder: {data['folder']}\ndatasets there: {datasets}")
        echo()
        for line in [f"problem: {problem}" for problem in problems] or ["No problems found."]:
            echo(line)
    if problems:
        raise typer.Exit(1)


def _packages() -> list[dict[str, Any]]:
    """Noiseproof and each package that it needs: its version, the versions wanted, and what is
    wrong.
    """
    ours = {
        "name": "noiseproof",
        "version": metadata.version("noiseproof"),
        "wanted": "",
        "problem": "",
    }
    rows: list[dict[str, Any]] = [ours]
    for name, wanted, extra in _requirements():
        if not extra:
            version = _version(name)
            problem = (
                ""
                if version and _is_wanted(version, wanted)
                else "is missing"
                if version is None
                else "too old"
            )
            remedy = f"; pip install '{name}{wanted}'" if problem else ""
            rows.append(
                {"name": name, "version": version, "wanted": wanted, "problem": problem + remedy}
            )
    return rows


def _extras() -> list[dict[str, Any]]:
    extras: dict[str, dict[str, Any]] = {}
    for name, _, extra in _requirements():
        if extra and extra not in NOT_FOR_USERS:
            row = extras.setdefault(extra, {"name": extra, "installed": [], "missing": []})
            row["missing" if _version(name) is None else "installed"].append(name)
    return list(extras.values())


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Name, versions and extra ("" for what is always needed) of each requirement of noiseproof."""
    from packaging.requirements import Requirement

    extras = metadata.metadata("noiseproof").get_all("Provides-Extra") or ()
    for text in metadata.requires("noiseproof") or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            yield requirement.name, str(requirement.specifier), ""
            continue
        for extra in extras:
            if marker.evaluate({"extra": extra}):
                yield requirement.name, str(requirement.specifier), extra


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _is_wanted(version: str, wanted: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(wanted).contains(version, prereleases=True)


def _devices() -> list[dict[str, str]]:
    import torch

    from noiseproof.core.tensors import has_kernels

    devices = [{"name": "cpu", "what": f"{counted(torch.get_num_threads(), 'thread')}"}]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        kernels = (
            ""
            if has_kernels(torch.empty(1, device=f"cuda:{index}"))
            else ", no Triton: runs are not stacked"
        )
        what = (
            f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA"
            f" {torch.version.cuda}{kernels}"
        )
        devices.append({"name": f"cuda:{index}", "what": what})
    return devices


def _data(data_dir: str | None) -> dict[str, Any]:
    from noiseproof.cli.data import find_files
    from noiseproof.data.sources import FILES, data_root

    datasets = [name for name in sorted(FILES) if find_files(name, data_dir) is not None]
    return {"folder": str(data_root(data_dir)), "datasets": datasets}


def _state(extra: dict[str, Any]) -> str:
    if not extra["missing"]:
        return "yes"
    return f"without {', '.join(extra['missing'])}" if extra["installed"] else "no"
