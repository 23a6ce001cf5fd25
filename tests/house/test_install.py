"""The package as a stranger gets it: built, checked and installed alone. Needs a package index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "docs")]
PINS = ROOT / "constraints.txt"
pytestmark = pytest.mark.slow


def run(*command: object, cwd: Path = ROOT) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_environment(folder: Path, *packages: object) -> Path:
    run(sys.executable, "-m", "venv", folder)
    for package in packages:
        run(folder / "bin" / "pip", "install", "--quiet", "-c", PINS, package)
    return folder / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist, which `twine` accepts for a package index."""
    folder = tmp_path_factory.mktemp("built")
    tools = make_environment(folder / "tools", "build", "twine")
    run(tools / "python", "-m", "build", "--outdir", folder / "dist")
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    checked = run(tools / "twine", "check", "--strict", wheel, sdist)
    assert checked.count("PASSED") == 2
    return wheel, sdist


@pytest.fixture(scope="module")
def fresh(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment that has nothing but the wheel and what it requires."""
    pin = next(line for line in PINS.read_text().splitlines() if line.startswith("torch=="))
    return make_environment(tmp_path_factory.mktemp("fresh") / "venv", pin, built[0])


def test_the_wheel_and_the_sdist_have_the_package_and_no_more(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    with zipfile.ZipFile(wheel) as parts:
        names = parts.namelist()
    code = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file()
    }
    code = {name for name in code if "__pycache__" not in name and ".egg-info" not in name}
    assert {
        name for name in names if ".dist-info/" not in name
    } == code and "noiseproof/py.typed" in code
    with tarfile.open(sdist) as packed:
        tops = {name.split("/")[1] for name in packed.getnames() if "/" in name}
    assert {
        "src",
        "tests",
        "docs",
        "LICENSE",
        "README.md",
        "pyproject.toml",
    } <= tops and ".ci" not in tops


def test_it_works_alone_in_a_fresh_environment(fresh: Path, tmp_path: Path) -> None:
    state = json.loads(run(fresh / "noiseproof", "doctor", "--json", cwd=tmp_path))
    assert state["problems"] == []
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 3)) + np.arange(200)[:, None] % 2 * 3
    labels = np.where(np.arange(200) % 20 == 0, 1, np.arange(200) % 2)
    pd.DataFrame(x, columns=list("abc")).assign(y=labels).to_csv(tmp_path / "t.csv", index=False)
    run(
        fresh / "noiseproof",
        "audit",
        "t.csv",
        "--label",
        "y",
        "--epochs",
        "3",
        "--json",
        cwd=tmp_path,
    )
    assert (tmp_path / "audit" / "issues.csv").exists()
    used = run(
        fresh / "python", "-c", "import noiseproof; print(noiseproof.__file__)", cwd=tmp_path
    )
    assert Path(used.strip()).is_relative_to(fresh.parent)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_can_be_installed(
    extra: str, fresh: Path, built: tuple[Path, Path], tmp_path: Path
) -> None:
    """Its packages exist, and fit beside the others: nothing of what is installed would change."""
    report = tmp_path / "report.json"
    run(
        fresh / "pip",
        "install",
        "--dry-run",
        "--quiet",
        "-c",
        PINS,
        "--report",
        report,
        f"{built[0]}[{extra}]",
    )
    names = {
        one["metadata"]["name"].lower().replace("_", "-")
        for one in json.loads(report.read_text())["install"]
    }
    assert names.isdisjoint(
        {"torch", "numpy", "pandas", "scikit-learn", "torchvision"} - _wanted(extra)
    )
    assert names


def _wanted(extra: str) -> set[str]:
    """timm requires torchvision; with the torch of constraints.txt, that of the same index."""
    return {"torchvision"} if extra == "timm" else set()


def test_the_command_for_timm_changes_no_torch(fresh: Path, tmp_path: Path) -> None:
    """Its first half finds the torchvision that fits; without it, pip takes the newest one and its
    torch.
    """
    command = run(
        fresh / "python",
        "-c",
        "from noiseproof.core.messages import install_command as i; print(i('timm'))",
    )
    first, report = command.partition(" --index-url")[0].split()[2:], tmp_path / "report.json"
    run(fresh / "pip", "install", "--dry-run", "--quiet", "--report", report, *first, "timm")
    names = {one["metadata"]["name"].lower() for one in json.loads(report.read_text())["install"]}
    assert (
        {"torchvision", "timm"} <= names
        and "torch" not in names
        and not [n for n in names if "nvidia" in n]
    )
