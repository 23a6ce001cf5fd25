"""`noiseproof doctor`: what this installation has, and what it lacks."""

import os
import platform
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import typer

from noiseproof.cli.main import INSTALLATION, app
from noiseproof.cli.show import AsJson, echo, examples, refusals, show, show_json
from noiseproof.core.messages import counted, install_command

NOT_FOR_USERS = ("dev", "docs")  # extras


@app.command(
    epilog=examples("doctor", "doctor --json | jq .problems"), rich_help_panel=INSTALLATION
)
@refusals()
def doctor(as_json: AsJson = False) -> None:
    """Show versions, devices, optional packages and the data folder, and what is wrong with them.

    The exit code is 1 where a package that noiseproof needs is missing or too old.
    """
    own: str | None = metadata.version("noiseproof")
    packages = [{"name": "noiseproof", "version": own, "wanted": "", "problem": ""}]
    extras: dict[str, dict[str, Any]] = {}
    for name, wanted, extra in _requirements():
        version = _version(name)
        if not extra:
            problem = _problem(name, version, wanted)
            packages.append(
                {"name": name, "version": version, "wanted": wanted, "problem": problem}
            )
        elif extra not in NOT_FOR_USERS:
            row = extras.setdefault(extra, {"name": extra, "installed": [], "missing": []})
            row["installed" if version else "missing"].append(name)
    problems = [f"{one['name']}: {one['problem']}" for one in packages if one["problem"]]
    found: dict[str, Any] = {"packages": packages, "devices": [], "extras": list(extras.values())}
    if not problems:  # else nothing of ours can be imported
        found |= {"devices": _devices(), "data": _data()}
    found["problems"] = problems
    if as_json:
        show_json(found)
    else:
        _show(found)
    if problems:
        raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    cores = counted(os.cpu_count() or 1, "core")
    where = f"{sys.executable}, {platform.system()} {platform.machine()}, {cores}"
    echo(f"Python {platform.python_version()} ({where})\n")
    columns = ("version", "wanted", "problem")
    packages = [(one["name"], *(one[name] or "" for name in columns)) for one in found["packages"]]
    show(("package", *columns), packages)
    echo()
    show(("device", "what it is"), [(one["name"], one["what"]) for one in found["devices"]])
    echo()
    extras = []
    for extra in found["extras"]:
        state, command = "yes", ""
        if extra["missing"]:
            state = f"without {', '.join(extra['missing'])}" if extra["installed"] else "no"
            command = install_command(extra["name"])
        extras.append((extra["name"], state, command))
    show(("extra", "installed", "get it by"), extras)
    if "data" in found:
        datasets = ", ".join(found["data"]["datasets"]) or "none; see noiseproof data list"
        echo(f"\ndata folder: {found['data']['folder']}\ndatasets there: {datasets}")
    problems = [f"problem: {problem}" for problem in found["problems"]]
    echo("\n" + "\n".join(problems or ["No problems found."]))


def _requirements() -> Iterator[tuple[str, str, str]]:
    """Yield name, versions and extra ("" for what is always needed) of each requirement."""
    from packaging.requirements import Requirement

    extras = metadata.metadata("noiseproof").get_all("Provides-Extra") or ()
    for text in metadata.requires("noiseproof") or ():
        requirement = Requirement(text)
        marker = requirement.marker
        for extra in ("", *extras):
            if marker is None or marker.evaluate({"extra": extra}):
                yield requirement.name, str(requirement.specifier), extra
                if not extra:
                    break


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _problem(name: str, version: str | None, wanted: str) -> str:
    from packaging.specifiers import SpecifierSet

    remedy = f"; pip install '{name}{wanted}'"
    if version is None:
        return f"is missing{remedy}"
    # Requirements have lower bounds alone (pyproject.toml), so that no version is too new.
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        return f"too old{remedy}"
    return ""


def _devices() -> list[dict[str, str]]:
    import torch

    from noiseproof.core.tensors import has_kernels

    devices = [{"name": "cpu", "what": counted(torch.get_num_threads(), "thread")}]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        what = (
            f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA"
            f" {torch.version.cuda}"
        )
        if not has_kernels(torch.empty(1, device=f"cuda:{index}")):
            what += ", no Triton: runs are not stacked"
        devices.append({"name": f"cuda:{index}", "what": what})
    return devices


def _data() -> dict[str, Any]:
    from noiseproof.cli.data import find_files
    from noiseproof.data.sources import FILES, data_root

    datasets = [name for name in sorted(FILES) if find_files(name, None)]
    return {"folder": str(data_root()), "datasets": datasets}
