"""The command line as a user meets it: tables on a terminal, plain text in a pipe, JSON for
programs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from test_data_fetch import BODY, MD5, Server
from typer.testing import CliRunner, Result

import noiseproof
from noiseproof.cli import app
from noiseproof.data import DATASETS, get_dataset
from noiseproof.data.sources import FILES, Download, OfficialFiles
from noiseproof.losses import LOSSES, get_loss
from noiseproof.models import MODELS
from noiseproof.noise import NOISES, get_noise
from noiseproof.noise.human import CIFAR10N, CIFAR100N
from noiseproof.papers import loss_presets


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def run_json(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_losses_lists_the_whole_registry() -> None:
    listed = {loss["name"]: loss for loss in run_json("losses")}
    assert set(listed) == set(LOSSES)
    assert all(loss["formula"] and loss["source"] and loss["summary"] for loss in listed.values())
    assert listed["agce"]["parameters"] == {"a": 0.6, "q": 0.6}


def test_losses_in_a_pipe_is_one_plain_line_each() -> None:
    result = run("losses")
    header, *lines = result.stdout.splitlines()
    assert header.split() == ["name", "parameters", "formula", "source"]
    assert [line.split()[0] for line in lines] == sorted(LOSSES)
    assert "\x1b" not in result.stdout and "│" not in result.stdout
    gce = next(line for line in lines if line.startswith("gce"))
    assert [cell.strip() for cell in gce.split("  ") if cell.strip()] == [
        "gce",
        "q=0.7",
        "(1 − p^q)/q",
        "curriculum paper, Table 1; bias paper, Table 1",
    ]


def test_presets_are_listed_and_can_be_built() -> None:
    listed = run_json("losses", "--presets")
    assert len(listed) == len(loss_presets())
    for row in listed:
        assert str(get_loss(row["preset"], **row["holds_for"])) == str(get_loss(row["loss"]))
    assert "nce + 4*agce:a=6,q=1.5" in run("losses", "--presets").stdout


def test_calibrate_gives_the_papers_numbers() -> None:
    lines = run("calibrate", "gce", "--classes", "1000").stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "q",
        "average error",
        "logit bias",
        "expected margin",
    ]
    # bias paper, section 3.3 and Eq. 4
    for number, line in zip(
        ("0.481581", "-0.0282336", "5.35759", "-7.4059"), lines[1:], strict=True
    ):
        assert number in line
    agce = ("calibrate", "agce:a=0.1,q=0.1", "--classes", "200", "--like", "10", "--free")
    assert run(*agce, "a").stdout.splitlines()[1].startswith("a ")
    pair = run(*agce, "a, q").stdout.splitlines()
    assert pair[-6].split() == ["a", "q"]
    none = run("calibrate", "gce", "--classes", "2").stdout
    assert "none: the label's mean probability is above 0.15" in none


def test_calibrate_keeps_what_learns_else_gives_the_nearest_and_says_why() -> None:
    # the solution would be 1.34, out of its range
    result = run("calibrate", "gce", "--classes", "10")
    assert result.stdout.splitlines()[1].split()[:2] == ["q", "0.7"]
    said = " ".join(result.stderr.split())
    assert said.endswith("`gce:q=0.7` learns 10 classes as it is.")
    assert "same as" not in result.stdout
    found = run("calibrate", "gce:q=0.95", "--classes", "1000")
    assert found.stderr.strip().endswith("This is the nearest that learns.")


def test_noises_and_models_list_their_registries() -> None:
    noises = {noise["name"]: noise for noise in run_json("noises")}
    assert set(noises) == set(NOISES)
    assert noises["xia"]["required"] == ["rate"] and noises["xia"]["parameters"] == {
        "scale": 1.0,
        "sd": 0.1,
    }
    assert all(noise["summary"].endswith(".") for noise in noises.values())
    assert "rate, scale=1.0, sd=0.1" in run("noises").stdout

    models = {model["name"]: model for model in run_json("models")}
    assert set(models) == set(MODELS)
    # torchvision's
    assert (
        models["resnet50"]["weights"] == 25_557_032 - 990 * 2049
        and models["resnet50"]["features"] == 2048
    )
    assert models["mlp"]["weights"] is None and models["mlp"]["required"] == [
        "in_features",
        "hidden",
    ]
    line = next(line for line in run("models").stdout.splitlines() if line.startswith("wrn-28-2 "))
    assert line.split()[1:3] == ["1,467,610", "128"] and "init=keras-he" in line


def test_data_list_says_what_is_here(tmp_path: Path) -> None:
    def listed() -> dict[str, list[str]]:
        first, _, *lines = run("data", "list", "--data-dir", str(tmp_path)).stdout.splitlines()
        assert first == f"data folder: {tmp_path}"
        return {line.split()[0]: line.split() for line in lines}

    data = listed()
    assert list(data) == list(DATASETS)
    assert data["digits"][1] == "yes" and data["cifar10n"][1] == "no"
    assert " ".join(data["cifar10n"]).endswith("noiseproof data fetch cifar10n")
    assert "https://github.com/Cysu/noisy_label" in " ".join(data["clothing1m"])
    assert " ".join(data["table"]).endswith("your own: table:table=…,label=…")

    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/data_batch_1").touch()
    (tmp_path / "MNIST/raw").mkdir(parents=True)  # all that a fetch without network leaves
    data = listed()
    assert str(tmp_path / "cifar-10-batches-py") in data["cifar10"]
    assert data["cifar10"][1] == "yes" and data["cifar10n"][1] == data["mnist"][1] == "no"
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz").touch()
    (tmp_path / "CIFAR-10_human.pt").touch()
    data = listed()
    assert data["cifar10n"][1] == data["mnist"][1] == "yes"
    (tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz.part").touch()
    assert listed()["mnist"][1] == "no"


def test_data_list_looks_where_the_readers_look(tmp_path: Path) -> None:
    for name in DATASETS:
        reads_files = "data_dir" in DATASETS.parameters(name)
        assert (name in FILES) == reads_files
        places = FILES[name].places[0] if reads_files else ()
        elsewhere = any(Path(place).is_absolute() and Path(place).exists() for place in places)
        if reads_files and not elsewhere:  # Debian's Fashion-MNIST may be installed
            with pytest.raises(FileNotFoundError, match=re.escape(places[0])):
                get_dataset(name, tmp_path)
    for human, name in (
        (CIFAR10N("worst", tmp_path), "cifar10n"),
        (CIFAR100N("noisy", tmp_path), "cifar100n"),
    ):
        for place in FILES[name].places[1]:
            (tmp_path / place).parent.mkdir(exist_ok=True)
            (tmp_path / place).touch()
            assert human._path() == tmp_path / place
            (tmp_path / place).unlink()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that has the one file of a dataset ``toy``."""
    server = Server()
    server.files["/toy.bin"] = BODY
    item = Download(f"{server.url}/toy.bin", MD5, "sub/toy.bin")
    monkeypatch.setitem(FILES, "toy", OfficialFiles((("sub",),), (item,)))
    yield server
    server.http.shutdown()
    server.http.server_close()
    server.thread.join()


def test_fetch_downloads_resumes_and_says_where(toy: Server, tmp_path: Path) -> None:
    arguments = ("data", "fetch", "toy", "--data-dir", str(tmp_path))
    toy.cut = 300_000
    broken = run(*arguments)
    assert broken.exit_code == 2 and broken.stdout == ""
    assert "stopped after 300000 bytes" in broken.stderr.splitlines()[-1]
    toy.cut = None
    result = run(*arguments)
    assert result.exit_code == 0 and result.stdout == f"{tmp_path / 'sub/toy.bin'}\n"
    continuing = f"noiseproof: continuing {tmp_path / 'sub/toy.bin.part'} after 0.3 MB"
    assert result.stderr.splitlines()[0] == continuing
    assert (tmp_path / "sub/toy.bin").read_bytes() == BODY
    assert [range_ for _, range_ in toy.asked] == [None, "bytes=300000-"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_control_c_keeps_what_came(tmp_path: Path) -> None:
    script = f"""
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
from noiseproof.cli import app
from noiseproof.data.research import fetch
def broken(url, path, checksum, *, progress=None, timeout=30):
    path.with_name(path.name + ".part").write_bytes(b"12345")
    os.kill(os.getpid(), signal.SIGINT)
fetch.download = broken
app(["data", "fetch", "cifar10", "--data-dir", {str(tmp_path)!r}])
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 128 + signal.SIGINT
    part = tmp_path / "cifar-10-python.tar.gz.part"
    assert (
        result.stderr
        == f"noiseproof: interrupted. The data so far is in {part}. Run the same command again to"
        " continue.\n"
    )
    assert part.read_bytes() == b"12345"


def test_data_show_without_noise(tmp_path: Path) -> None:
    shown = run_json("data", "show", "digits")
    assert shown["parts"] == [
        {"part": "train", "rows": 1437, "shape": [1, 8, 8], "dtype": "uint8"},
        {"part": "test", "rows": 360, "shape": [1, 8, 8], "dtype": "uint8"},
    ]
    assert shown["noise"] is None and sum(row["rows"] for row in shown["classes"]) == 1437
    table = tmp_path / "mine.csv"
    table.write_text("size,kind\n1.5,Cat\n2.5,dog\n0.5,cat\n1.0,dog\n", "utf-8")
    lines = run("data", "show", f"table:table={table},label=kind").stdout.splitlines()
    assert lines[:2] == ["mine   rows  shape  dtype", "train  4     1      float32"]
    assert any(line.startswith("note: ") and "case" in line for line in lines)
    assert lines[-4:] == ["class  rows", "Cat    1", "cat    1", "dog    2"]


def test_data_show_with_noise_tells_what_became_of_the_labels() -> None:
    arguments = (
        "data",
        "show",
        "digits",
        "--noise",
        "symmetric-all:rate=0.5,count=total",
    )
    shown = run_json(*arguments)
    clean = get_dataset("digits").train.y
    expected = get_noise("symmetric-all:rate=0.5,count=total").corrupt(clean, generator=0)
    noise = shown["noise"]
    assert noise["rate"] == expected.rate < 0.5 == noise["nominal"]
    assert (
        noise["flipped"]
        == sum(row["wrong"] for row in shown["classes"])
        == int(expected.is_flipped.sum())
    )
    T = torch.tensor(noise["transition"], dtype=torch.float64)
    assert torch.equal(T, expected.transition())
    for k, row in enumerate(shown["classes"]):
        assert row["rows"] == int((clean == k).sum()) and row["rate"] == pytest.approx(
            1 - float(T[k, k])
        )
        assert (
            T[k, int(row["mostly given as"])]
            == T[k].clone().index_fill(0, torch.tensor(k), 0).max()
        )
    plain = run(*arguments).stdout
    assert (
        str(expected) in plain
        and "transition:" in plain
        and f"{float(T[9, 9]):.3f}" in plain.splitlines()[-1]
    )


def test_data_show_puts_in_foreign_images() -> None:
    shown = run_json(
        "data", "show", "digits", "--noise", "open-set:rate=0.4", "--foreign", "digits:seed=1"
    )
    assert shown["noise"]["rate"] == pytest.approx(0.4, abs=1 / 1437)
    assert shown["classes"][-1] == {
        "class": "(no class)",
        "rows": 574,
        "wrong": 574,
        "rate": 1.0,
        "mostly given as": shown["classes"][-1]["mostly given as"],
    }
    assert all(row["wrong"] == 0 for row in shown["classes"][:-1])


def test_version_has_one_source() -> None:
    assert run("--version").stdout == f"noiseproof {noiseproof.__version__}\n"


def test_a_pipe_that_knows_no_minus_sign_gets_question_marks() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "noiseproof", "losses"]
    output = subprocess.run(
        command, env=environment, capture_output=True, check=True
    ).stdout.decode("latin-1")
    assert "(1 ? p^q)/q" in output


def test_a_dry_run_in_bfloat16_prints_its_table_alone(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep.toml"
    sweep.write_text('[[experiment]]\ndataset = "digits"\nepochs = 1\nprecision = "bf16"\n')
    command = [sys.executable, "-m", "noiseproof", "bench", "run", str(sweep), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Lightning announces each run otherwise.
    assert done.stdout.startswith("dataset") and done.stderr == "timing 1/1: digits, auto, ce\n"
