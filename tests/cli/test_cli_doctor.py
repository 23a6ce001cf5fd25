"""`noiseproof doctor` and `noiseproof` alone."""

from __future__ import annotations

import json
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from noiseproof.cli import app, doctor
from noiseproof.cli.main import WELCOME
from noiseproof.core.messages import install_command, torchvision_command

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))[
    "project"
]


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.stdout


def test_the_command_alone_shows_what_people_come_for() -> None:
    assert run() == WELCOME
    assert all(
        f"noiseproof {command}" in WELCOME
        for command in ("audit", "review", "apply", "demo", "doctor")
    )


def test_it_shows_what_the_project_requires_and_what_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path))
    found = json.loads(run("doctor", "--json"))
    versions = {package["name"]: package["version"] for package in found["packages"]}
    assert len(versions) == 1 + len(PROJECT["dependencies"]) and found["problems"] == []
    assert versions["torch"] == metadata.version("torch")
    extras = {extra["name"]: extra for extra in found["extras"]}
    assert extras.keys() == PROJECT["optional-dependencies"].keys() - {"dev", "docs"}
    assert (
        extras["review"]["installed"] == ["fastapi", "uvicorn"]
        and extras["review"]["missing"] == []
    )
    assert found["devices"][0]["name"] == "cpu" and found["data"]["folder"] == str(tmp_path)


def test_datasets_of_the_data_folder_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path))
    (tmp_path / "FashionMNIST" / "raw").mkdir(parents=True)
    (tmp_path / "FashionMNIST" / "raw" / "train-images-idx3-ubyte.gz").touch()
    assert "datasets there: fashion-mnist\n" in run("doctor")


@pytest.mark.parametrize(("version", "problem"), [(None, "is missing"), ("0.1", "too old")])
def test_a_package_that_is_missing_or_too_old_is_a_problem(
    version: str | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = doctor._version
    monkeypatch.setattr(
        doctor, "_version", lambda name: version if name == "scikit-learn" else right(name)
    )
    assert f"problem: scikit-learn: {problem}; pip install 'scikit-learn>=1." in run(
        "doctor", code=1
    )


@pytest.mark.parametrize(
    ("origin", "command"),
    [  # as PEP 610 has them
        ({"url": "{folder}", "dir_info": {"editable": True}}, "pip install -e '{path}[review]'"),
        ({"url": "{folder}", "dir_info": {}}, "pip install 'noiseproof[review] @ {folder}'"),
        (
            {"url": "{folder}/np-1.whl", "archive_info": {}},
            "pip install 'noiseproof[review] @ {folder}/np-1.whl'",
        ),
        (
            {"url": "https://np.org/1.whl", "archive_info": {}},
            "pip install 'noiseproof[review] @ https://np.org/1.whl'",
        ),
        (
            {"url": "https://example.org/np.git", "vcs_info": {"vcs": "git", "commit_id": "a1b2"}},
            "pip install 'noiseproof[review] @ git+https://example.org/np.git@a1b2'",
        ),
        (None, "cd CLONE && pip install '.[review]'"),
    ],
)
def test_an_extra_that_is_not_installed_says_how_to_get_it(
    origin: dict[str, object] | None, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From where this installation came from, since noiseproof is on no package index."""
    folder = tmp_path / "my clone"
    text = None if origin is None else json.dumps(origin).replace("{folder}", folder.as_uri())
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda self, name: text)
    expected = command.format(path=folder, folder=folder.as_uri())
    assert install_command("review") == expected
    monkeypatch.undo()

    right = doctor._version
    monkeypatch.setattr(
        doctor, "_version", lambda name: None if name in ("uvicorn", "faiss-cpu") else right(name)
    )
    monkeypatch.setattr(doctor, "install_command", lambda extra: f"get {extra}")
    shown = {" ".join(line.split()) for line in run("doctor").splitlines()}
    assert {"review without uvicorn get review", "neighbours no get neighbours"} <= shown


@pytest.mark.parametrize(
    "version, command",
    [
        (
            "2.13.0+cpu",
            (
                "pip install torch==2.13.0 torchvision --index-url"
                " https://download.pytorch.org/whl/cpu"
            ),
        ),
        (
            "2.13.0+cu130",
            (
                "pip install torch==2.13.0 torchvision --index-url"
                " https://download.pytorch.org/whl/cu130"
            ),
        ),
        ("2.13.0", "pip install torch==2.13.0 torchvision"),
        (None, "pip install torch torchvision"),
    ],
)
def test_timm_comes_after_the_torchvision_that_fits(
    version: str | None, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest torchvision, which pip would take, replaces torch, on a machine without a GPU by
    gigabytes of CUDA.
    """

    def find(name: str) -> str:
        if version is None or name != "torch":
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(metadata, "version", find)
    assert torchvision_command() == command
    assert (
        install_command("timm")
        == f"{command} && {install_command('review').replace('review', 'timm')}"
    )
