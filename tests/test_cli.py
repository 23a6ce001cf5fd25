"""The command line as a user meets it: tables on a terminal, plain text in a pipe, JSON for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

import noiseproof
from noiseproof.cli import app
from noiseproof.demo import Row, demo
from noiseproof.losses import LOSSES, get_loss
from noiseproof.losses.presets import PRESETS


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
        "004 Table 1; 002 Table 1",
    ]


def test_presets_are_listed_and_can_be_built() -> None:
    listed = run_json("losses", "--presets")
    assert len(listed) == len(PRESETS)
    for row in listed:
        assert str(get_loss(row["preset"], **row["holds_for"])) == str(get_loss(row["loss"]))
    assert "nce + 4*agce:a=6,q=1.5" in run("losses", "--presets").stdout


def test_calibrate_gives_the_papers_numbers() -> None:
    found = run_json("calibrate", "gce", "--classes", "1000")
    assert found["params"]["q"] == pytest.approx(0.481581, abs=1e-5)  # 002 section 3.3
    assert found["average_error"] == pytest.approx(-0.028234, abs=1e-6)
    assert found["logit_bias"] == pytest.approx(5.357589, abs=1e-5)  # 002 Eq. 4
    assert found["expected_margin"] == pytest.approx(-7.40590, abs=1e-5)
    assert get_loss(found["loss"]).hyperparameters == found["params"]
    assert run_json("calibrate", "gce", "--classes", "100")["params"]["q"] == pytest.approx(0.7, abs=1e-9)

    plain = run("calibrate", "gce", "--classes", "1000").stdout
    assert plain.splitlines()[1].split()[:2] == ["q", "0.481581"]
    assert "5.35759" in plain and "-7.4059" in plain


def test_calibrate_options_reach_the_library() -> None:
    assert run_json("calibrate", "gce", "--classes", "50", "--like", "50")["params"]["q"] == pytest.approx(
        0.7, abs=1e-9
    )
    assert run_json("calibrate", "gce", "--classes", "1000", "--sigma", "0.5")["logit_bias"] != pytest.approx(
        5.3576, abs=0.1
    )
    one = run_json("calibrate", "agce:a=0.6,q=0.6", "--classes", "1000", "--free", "a")
    assert set(one["params"]) == {"a"} and one["curve"] == []
    pair = run_json("calibrate", "agce:a=0.6,q=0.6", "--classes", "1000", "--free", "a, q")
    assert pair["loss"] is None and len(pair["curve"]) > 5
    assert all(set(point) == {"a", "q"} for point in pair["curve"])
    plain = run("calibrate", "agce:a=0.6,q=0.6", "--classes", "1000", "--free", "a,q").stdout
    assert plain.splitlines()[-len(pair["curve"]) - 1].split() == ["a", "q"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("nope", "--classes", "10"), "Unknown loss 'nope'"),
        (("gce:q=3", "--classes", "10"), "Expected `q` in (0, 1], got 3"),
        (("gce:p=3", "--classes", "10"), "'p'"),
        (("gce", "--classes", "1"), "got 1"),
        (("gce", "--classes", "10"), "logit_bias(10)"),  # it would be 1.34: said, not faked
        (("agce", "--classes", "10"), "several hyperparameters"),
        (("agce", "--classes", "10", "--free", "a,q,x"), "`free`"),
        (("gce", "--classes", "10", "--sigma", "-1"), "`sigma`"),
    ],
)
def test_a_refusal_is_one_line_on_stderr_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    result = run("calibrate", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_help_shows_an_example_of_every_command() -> None:
    for command in ("losses", "calibrate", "demo"):
        assert f"noiseproof {command}" in run(command, "--help").stdout.split("Examples")[1]
    assert "--install-completion" in run("--help").stdout


def test_version_has_one_source() -> None:
    assert run("--version").stdout == f"noiseproof {noiseproof.__version__}\n"


def test_demo_prints_a_row_for_each_loss() -> None:
    rows = run_json("demo", "--epochs", "1")
    assert rows[0]["loss"] == "ce" and len(rows) == 4
    assert all(0 <= row["accuracy"] <= 1 and 0 <= row["memorised"] <= 1 and row["seconds"] > 0 for row in rows)
    assert len(run("demo", "--epochs", "1").stdout.splitlines()) == 5


def test_demo_depends_on_its_seed_alone() -> None:
    def outcome(seed: int) -> list[tuple[float, float]]:
        return [(row.accuracy, row.memorised) for row in demo(["ce", "gce"], epochs=3, seed=seed)]

    before = torch.get_rng_state()
    first = outcome(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)  # moves the global generator
    assert outcome(0) == first != outcome(1)


@pytest.mark.slow
def test_demo_shows_what_it_is_for() -> None:
    rows = {row.loss: row for row in demo(["ce", "gce:q=0.7"])}
    assert isinstance(rows["ce"], Row)
    assert 0.6 < rows["ce"].accuracy < 0.75 and rows["ce"].memorised > 0.95
    assert rows["gce:q=0.7"].accuracy > 0.9 and rows["gce:q=0.7"].memorised < 0.15


def test_a_pipe_that_knows_no_minus_sign_gets_question_marks() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "noiseproof", "losses"]
    output = subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode("latin-1")
    assert "(1 ? p^q)/q" in output


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_a_table() -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"}
    command = [sys.executable, "-m", "noiseproof", "calibrate", "gce", "--classes", "1000"]
    with subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        output = b""
        while chunk := _read(ours):
            output += chunk
    os.close(ours)
    assert "│" in output.decode() and "0.481581" in output.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other end is closed
        return b""
