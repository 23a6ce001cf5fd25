"""``noiseproof train`` as a user meets it: exit codes, pipes, JSON, folders, Ctrl-C, several
processes, own data.
"""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from lightning_fabric import Fabric
from test_logs import Service
from typer.testing import CliRunner
from typer.testing import Result as Answer

from noiseproof.cli import app
from noiseproof.data import corrupt, get_dataset
from noiseproof.noise import get_noise
from noiseproof.strategies import Run
from noiseproof.train import Settings, instance, prepare, train
from noiseproof.train.checkpoint import latest, load
from noiseproof.train.instance import averaged_predictions

HELPERS = Path(__file__).parents[1] / "helpers"
SMALL = ("--accelerator", "cpu", "--model", "mlp:hidden=[8]")
NOISY = ("--noise", "symmetric:rate=0.4", *SMALL, "--epochs", "3")
DEFAULT = Path("runs", "digits_symmetric-rate=0.4_gce-q=0.7_seed0_model=mlp-hidden=-8-_epochs=3")


def run(*arguments: str) -> Answer:
    return CliRunner().invoke(app, ["train", *arguments])


def strictly(text: str) -> Any:
    """JSON as other programs read it: no NaN, nothing before or after it."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def run_json(*arguments: str) -> Any:
    answer = run(*arguments, "--json")
    assert answer.exit_code == 0, answer.stderr
    return strictly(answer.stdout)


def start(*arguments: str, cwd: Path, slow: bool = False, **options: Any) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(HELPERS.parents[1] / "src"),
        "OMP_NUM_THREADS": "1",
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    program = [str(HELPERS / "slow_run.py")] if slow else ["-m", "noiseproof"]
    return subprocess.Popen(
        [sys.executable, *program, "train", *arguments],
        cwd=cwd,
        env=environment,
        **{**pipes, **options},
    )


def record(folder: Path) -> list[dict[str, str]]:
    """All rows but the times in them."""
    with open(folder / "record.csv", newline="") as file:
        return [
            {name: value for name, value in row.items() if name != "seconds"}
            for row in csv.DictReader(file)
        ]


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    path = latest(folder / "checkpoints")
    assert path is not None
    found: dict[str, torch.Tensor] = load(path)["models"][0]
    return found


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str, str]:
    """A folder in which a real process has trained, its exit code, and what it said."""
    folder = tmp_path_factory.mktemp("finished")
    process = start(*NOISY, "--method", "gce:q=0.7", "--log", "tensorboard", cwd=folder)
    out, err = process.communicate(timeout=120)
    return folder, process.returncode, out, err


# A run from beginning to end


def test_a_pipe_gets_plain_lines_and_a_table(finished: tuple[Path, int, str, str]) -> None:
    folder, code, out, err = finished
    assert code == 0, err
    assert "\x1b" not in out + err and "\r" not in out + err
    lines = err.splitlines()
    number = r"\d\.\d{3}"
    said = [
        re.fullmatch(
            rf"epoch (\d)/3: loss {number}, noisy validation {number}, test {number}, \d+ s left",
            line,
        )
        for line in lines
    ]
    assert all(said) and [said[0][1], said[-1][1]] == ["1", "3"]  # type: ignore[index]
    header, last, best, best_true, oracle, where = out.splitlines()
    assert re.split("  +", header.strip()) == [
        "epoch",
        "test accuracy",
        "test top5",
        "validation accuracy",
        "train accuracy",
        "train accuracy clean",
        "false label accuracy",
    ]
    rows = record(folder / DEFAULT)
    shown = [
        *(float(rows[2][name]) for name in ("test_accuracy", "test_top5", "validation_accuracy"))
    ]
    assert last.split() == ["last", "3", *(f"{value:.4f}" for value in shown), *last.split()[5:]]
    assert last.split()[-1] == f"{float(rows[2]['false_label_accuracy']):.4f}"
    metrics = ("validation_accuracy", "validation_accuracy_clean", "test_accuracy")
    by = {name: max(rows, key=lambda row: float(row[name])) for name in metrics}
    assert best.startswith("best by noisy validation  ") and best_true.startswith(
        "best by true labels of held-out rows  "
    )
    assert best_true.split()[7] == by["validation_accuracy_clean"]["epoch"]
    assert (
        best.split()[4] == by["validation_accuracy"]["epoch"]
        and oracle.split()[1] == by["test_accuracy"]["epoch"]
    )
    assert where == f"record: {DEFAULT}"


def test_the_folder_says_what_was_run_and_holds_the_librarys_run(
    finished: tuple[Path, int, str, str],
) -> None:
    folder = finished[0] / DEFAULT
    assert {p.name for p in folder.iterdir()} == {
        "best.safetensors",
        "checkpoints",
        "checksums.json",
        "labels.safetensors",
        "record.csv",
        "run.json",
        "tensorboard",
    }
    said = config(folder)
    assert (said["method"], said["noise"], said["seed"]) == ("gce:q=0.7", "symmetric:rate=0.4", 0)
    assert (said["model"], said["epochs"], said["rows"]) == ("mlp:hidden=[8]", 3, 1293)
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1)
    settings = Settings(model="mlp:hidden=[8]", epochs=3)
    result = train(task, "gce:q=0.7", settings, fabric=Fabric(accelerator="cpu", devices=1))
    expected = [
        {name: str(value) for name, value in row.items() if name != "seconds"}
        for row in result.metrics
    ]
    assert record(folder) == expected
    for name, value in result.run.models[0].plain.state_dict().items():
        assert torch.equal(value, weights(folder)[name])


def test_a_finished_run_is_not_trained_again(
    finished: tuple[Path, int, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(finished[0])
    before = files(finished[0])
    again = run(*NOISY, "--method", "gce:q=0.7")
    assert (again.exit_code, again.stdout) == (0, finished[2])
    assert (
        again.stderr
        == f"noiseproof: finished earlier: nothing was trained, this is the record in {DEFAULT}. "
        "Choose another --out to train.\n"
    )
    shown = run_json(*NOISY, "--method", "gce:q=0.7")
    after = files(finished[0])
    assert {name: content for name, (_, content) in after.items()} == {
        name: content for name, (_, content) in before.items()
    }
    # the description is written again, as it may have been damaged; checkpoints are not
    assert all(after[name] == before[name] for name in before if "checkpoints" in name)
    last = {name: float(value) for name, value in record(DEFAULT)[-1].items()}
    assert {name: value for name, value in shown["last"].items() if name != "seconds"} == last
    assert {
        name: shown[name] for name in ("dataset", "noise", "method", "seed", "folder", "stopped")
    } == {
        "dataset": "digits",
        "noise": "symmetric:rate=0.4",
        "method": "gce:q=0.7",
        "seed": 0,
        "folder": str(DEFAULT),
        "stopped": None,
    }
    assert (
        shown["rate"]
        == prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1).train.rate
    )
    rows = [{name: float(value) for name, value in row.items()} for row in record(DEFAULT)]
    chosen = {
        "best": "validation_accuracy",
        "best_true": "validation_accuracy_clean",
        "oracle": "test_accuracy",
    }
    for name, metric in chosen.items():
        assert shown[name]["epoch"] == max(rows, key=lambda row: row[metric])["epoch"]


@pytest.mark.parametrize(
    "change, message",
    [
        (("--epochs", "4"), "Expected epochs=3 to resume"),
        (("--optimizer", "adam"), "Expected optimizer='sgd:"),
        (("--schedule", "constant"), "Expected schedule='cosine'"),
        (("--model", "mlp:hidden=[9]"), "Expected model='mlp:hidden=[8]'"),
        (("--batch-size", "64"), "Expected batch_size=128"),
        (("--clip", "1"), "Expected clip=None"),
        (("--precision", "64"), "Expected precision='32-true'"),
        (("--seed", "1"), "Expected seed=0"),
        (("--method", "gce:q=0.6"), "Expected method='gce:q=0.7'"),
        (("--noise", "symmetric:rate=0.3"), "Expected noise='symmetric:rate=0.4'"),
        (("--validation", "0.2"), "Expected rows=1293"),
        (("--dataset", "digits:seed=1"), "Expected labels="),
        (("--no-resume",), "Resume it, or choose another folder."),
    ],
)
def test_another_run_is_refused_in_the_same_folder(
    finished: tuple[Path, int, str, str], change: tuple[str, ...], message: str
) -> None:
    before = files(finished[0])
    answer = run(*NOISY, "--method", "gce:q=0.7", "--out", str(finished[0] / DEFAULT), *change)
    assert answer.exit_code == 2 and answer.stdout == ""
    assert message in answer.stderr and answer.stderr.count("\n") == 1
    assert files(finished[0]) == before


def test_what_does_not_change_the_result_may_differ(finished: tuple[Path, int, str, str]) -> None:
    folder = str(finished[0] / DEFAULT)
    answer = run(
        *NOISY,
        "--method",
        "gce:q=0.7",
        "--out",
        folder,
        "--workers",
        "1",
        "--checkpoint-steps",
        "2",
    )
    assert answer.exit_code == 0


# Exit codes, and what interrupts


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (("--dataset", "digitz"), 2, "Unknown dataset 'digitz'. Did you mean 'digits'?"),
        (
            ("--optimizer", "sgd:lr=1e30"),
            3,
            "Likely: a learning rate too large (1e+30). Lower it, or clip gradients.",
        ),
    ],
)
def test_a_run_that_fails_says_so_in_one_line(
    arguments: tuple[str, ...],
    code: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = run(*NOISY, *arguments)
    assert answer.exit_code == code and answer.stdout == ""
    err = answer.stderr
    assert message in err and err.startswith("noiseproof: ") and err.count("\n") == 1


def test_a_diverged_run_names_the_last_good_checkpoint(tmp_path: Path) -> None:
    """Every step multiplies the weights by 1 − 10⁴."""
    growing = (
        "--method",
        "ce",
        "--optimizer",
        "sgd:lr=1,momentum=0,weight_decay=10000",
        "--schedule",
        "constant",
    )
    answer = run(*NOISY, *growing, "--checkpoint-steps", "1", "--out", str(tmp_path / "run"))
    path = latest(tmp_path / "run" / "checkpoints")
    assert answer.exit_code == 3 and path is not None
    assert (
        f"The last good checkpoint is {path}." in answer.stderr and answer.stderr.count("\n") == 1
    )
    state = load(path)
    assert all(bool(torch.isfinite(value).all()) for value in state["models"][0].values())
    assert state["step"] >= 2 and f"not finite at step {state['step'] + 1} " in answer.stderr


def interrupt(process: subprocess.Popen[str], number: int = signal.SIGINT) -> tuple[str, str]:
    """Wait for the first epoch, then press Ctrl-C, which every process of the group is told; what
    they said.
    """
    assert process.stderr is not None
    before = ""
    while "epoch 1/" not in before:
        line = process.stderr.readline()
        assert line, before
        before += line
    os.killpg(process.pid, number)
    out, after = process.communicate(timeout=120)
    return out, before + after


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_control_c_stops_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = (*NOISY, "--method", "sln-mo", "--epochs", "20", "--threads", "1")
    process = start(*command, cwd=tmp_path, slow=True, start_new_session=True)
    out, err = interrupt(process)
    folder = Path("runs", "digits_symmetric-rate=0.4_sln-mo_seed0_model=mlp-hidden=-8-_epochs=20")
    assert process.returncode == 130 and out == ""
    *_, last = err.splitlines()
    stopped = re.fullmatch(
        rf"noiseproof: Stopped after step (\d+) in epoch (\d+) of 20\. Resume to continue\. "
        rf"The same command resumes from {folder}\.",
        last,
    )
    assert stopped and "Traceback" not in err
    path = latest(folder / "checkpoints")
    assert (
        path is not None
        and path.name == f"step-{int(stopped[1]):09d}.safetensors"
        and 11 < int(stopped[1]) < 220
    )
    assert len(record(folder)) <= int(stopped[2]) < 20

    assert run(*command).exit_code == 0
    assert run(*command, "--out", "whole").exit_code == 0
    assert record(folder) == record(Path("whole")) and len(record(folder)) == 20
    for name, value in weights(Path("whole")).items():
        assert torch.equal(value, weights(folder)[name])


# Two processes


def test_two_processes_speak_as_one(tmp_path: Path) -> None:
    process = start(
        *NOISY, "--devices", "2", "--method", "sln", "--precision", "64", "--json", cwd=tmp_path
    )
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    shown = strictly(out)  # once, or it were no JSON
    assert err.count("epoch 3/3") == 1
    alone = tmp_path / "alone"
    assert run(*NOISY, "--method", "sln", "--precision", "64", "--out", str(alone)).exit_code == 0
    together = record(tmp_path / shown["folder"])
    for one, two in zip(record(alone), together, strict=True):
        assert {k: float(v) for k, v in two.items()} == pytest.approx(
            {k: float(v) for k, v in one.items()}, rel=1e-6
        )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_two_processes_are_interrupted_together_and_one_goes_on(tmp_path: Path) -> None:
    """What a step draws does not depend on the number of processes, so that this may change on the
    way.
    """
    command = (
        *NOISY,
        "--method",
        "sln",
        "--epochs",
        "20",
        "--precision",
        "64",
        "--out",
        str(tmp_path / "run"),
    )
    process = start(*command, "--devices", "2", cwd=tmp_path, slow=True, start_new_session=True)
    out, err = interrupt(process)
    assert process.returncode == 130 and out == "" and "Traceback" not in err, err
    (said,) = (line for line in err.splitlines() if line.startswith("noiseproof: "))
    stopped = re.match(r"noiseproof: Stopped after epoch (\d+) of 20\. Resume to continue\.", said)
    assert stopped and len(record(tmp_path / "run")) == int(stopped[1])
    assert run(*command).exit_code == 0
    assert run(*command[:-1], str(tmp_path / "whole")).exit_code == 0
    last, expected = (record(tmp_path / name)[-1] for name in ("run", "whole"))
    assert {k: float(v) for k, v in last.items()} == pytest.approx(
        {k: float(v) for k, v in expected.items()}, rel=1e-5
    )


# A terminal


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_terminal_gets_a_bar_with_the_time_that_is_left(tmp_path: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    process = start(*NOISY, "--out", "none", cwd=tmp_path, stdin=theirs, stderr=theirs)
    os.close(theirs)
    said = b""
    while chunk := _read(ours):
        said += chunk
    os.close(ours)
    out, _ = process.communicate(timeout=120)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    assert (
        process.returncode == 0
        and "epoch 3/3" in text
        and "━" in text
        and re.search(r"\d:\d\d:\d\d", text)
    )
    assert re.search(r"loss \d\.\d{3}, noisy validation \d\.\d{3}", text)
    assert out.startswith(" ") and "\x1b" not in out  # stdout is a pipe still


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says so when the other end is closed
        return b""


# Refusals


# JSON, and where files go


def test_what_is_not_known_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run_json(*SMALL, "--epochs", "1", "--out", "none", "--validation", "0")
    assert (
        shown["last"]["false_label_accuracy"] is None
        and shown["last"]["train_loss_flipped"] is None
    )
    assert shown["best"] is None and shown["folder"] is None and shown["oracle"] == shown["last"]
    assert list(tmp_path.iterdir()) == []  # none: no files
    plain = run(*SMALL, "--epochs", "1", "--out", "none", "--validation", "0").stdout
    assert (
        "nan" not in plain
        and "false" not in plain
        and "validation" not in plain
        and "record" not in plain
    )


def test_options_reach_the_run(tmp_path: Path) -> None:
    options = (
        "--batch-size",
        "full",
        "--optimizer",
        "adam:lr=0.01",
        "--schedule",
        "step:at=[1]",
        "--clip",
        "0.5",
        "--precision",
        "64",
        "--seed",
        "7",
        "--samples",
        "--checkpoint-steps",
        "1",
        "--validation",
        "0.25",
    )
    run_json(*SMALL, "--epochs", "2", "--out", str(tmp_path / "a" / "b"), *options)
    said = config(tmp_path / "a" / "b")
    expected = {
        "batch_size": "full",
        "optimizer": "adam:lr=0.01",
        "schedule": "step:at=[1]",
        "clip": 0.5,
        "precision": "64-true",
        "seed": 7,
        "rows": 1437 - round(1437 * 0.25),
    }
    assert {name: said[name] for name in expected} == expected
    rows = record(tmp_path / "a" / "b")
    assert [float(row["lr"]) for row in rows] == pytest.approx([0.01, 0.001])
    assert len(list((tmp_path / "a" / "b" / "samples").iterdir())) == 2
    assert len(list((tmp_path / "a" / "b" / "checkpoints").iterdir())) == 2
    assert next(iter(weights(tmp_path / "a" / "b").values())).dtype is torch.float64


def test_folders_of_different_runs_do_not_collide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ("--accelerator", "cpu", "--dataset", "two-moons:n=40,n_test=10", "--epochs")
    for options in [
        ("1",),
        ("2",),
        ("1", "--seed", "1"),
        ("1", "--method", "2*ce + mae"),
        ("1", "--method", "gce:q=0.3 & momentum"),
        ("1", "--model", "mlp:hidden=[8]"),
        ("1", "--optimizer", "adam:lr=0.1"),
        ("1", "--validation", "0.2"),
        ("1", "--precision", "64"),
        ("1", "--batch-size", "full"),
        ("1", "--schedule", "constant"),
        ("1", "--clip", "1"),
    ]:
        answer = run(*quick, *options)
        assert answer.exit_code == 0 and "finished earlier" not in answer.stderr
    begin = "two-moons-n=40-n_test=10_none_"
    assert sorted(path.name for path in Path("runs").iterdir()) == sorted(
        [
            f"{begin}ce_seed0_epochs=1",
            f"{begin}ce_seed1_epochs=1",
            f"{begin}2*ce-+-mae_seed0_epochs=1",
            f"{begin}gce-q=0.3-momentum_seed0_epochs=1",
            f"{begin}ce_seed0_epochs=2",
            f"{begin}ce_seed0_model=mlp-hidden=-8-_epochs=1",
            f"{begin}ce_seed0_epochs=1_optimizer=adam-lr=0.1",
            f"{begin}ce_seed0_epochs=1_validation=0.2",
            f"{begin}ce_seed0_epochs=1_precision=64",
            f"{begin}ce_seed0_epochs=1_batch_size=full",
            f"{begin}ce_seed0_epochs=1_schedule=constant",
            f"{begin}ce_seed0_epochs=1_clip=1.0",
        ]
    )


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
def test_a_folder_in_which_another_process_trains_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = (*NOISY, "--method", "sln", "--epochs", "20", "--threads", "1", "--out", "mine")
    first = start(*command, cwd=tmp_path, slow=True, start_new_session=True)
    assert first.stderr is not None
    while "epoch 1/" not in first.stderr.readline():
        assert first.poll() is None
    os.killpg(first.pid, signal.SIGSTOP)  # it waits, and holds what it holds
    before = {path.name for path in (tmp_path / "mine").rglob("*")}
    second = run(*command)
    err = second.stderr
    assert (second.exit_code, second.stdout) == (2, "") and "Traceback" not in err
    assert f"in which no other process trains, got mine, in which process {first.pid} on " in err
    assert "Wait for it, stop it, or choose another folder." in err
    assert {path.name for path in (tmp_path / "mine").rglob("*")} == before
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    # a killed process holds nothing
    assert run(*command).exit_code == 0


def test_a_protocol_is_the_papers_and_options_win(tmp_path: Path) -> None:
    small = ("--model", "mlp:hidden=[4]", "--epochs", "2", "--accelerator", "cpu")
    moons = ("--dataset", "two-moons:n=40,n_test=10", "--protocol", "ln")
    run_json(*moons, *small, "--out", str(tmp_path))
    said = config(tmp_path)
    assert (said["batch_size"], said["schedule"]) == ("full", "constant") and "lr=0.0001" in said[
        "optimizer"
    ]
    assert (said["model"], said["epochs"]) == ("mlp:hidden=[4]", 2)


def test_a_run_that_stops_early_says_so(tmp_path: Path) -> None:
    options = (
        *SMALL,
        "--epochs",
        "50",
        "--method",
        "ce & early-stopping:patience=1",
        "--optimizer",
        "sgd:lr=1e-9",
    )
    answer = run(*options, "--out", str(tmp_path))
    assert answer.exit_code == 0
    assert any(line.startswith("stopped early: ") for line in answer.stdout.splitlines())
    assert (
        run_json(*options, "--out", str(tmp_path))["stopped"] in answer.stdout
        and len(record(tmp_path)) < 50
    )


# Own data, and noise that needs more than labels


def test_a_users_table_trains_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    g = torch.Generator().manual_seed(0)
    kinds = torch.randint(3, (300,), generator=g).tolist()
    noise = torch.randn(300, 2, generator=g).tolist()
    with open("mine.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["nr", "length", "weight", "colour", "kind"])
        for nr, (kind, (a, b)) in enumerate(zip(kinds, noise, strict=True)):
            writer.writerow(
                [
                    nr,
                    10 + 3 * kind + a,
                    100 - 50 * kind + 5 * b,
                    ["red", "blue"][kind == 1],
                    "abc"[kind],
                ]
            )
    command = (
        "--dataset",
        "table:table=mine.csv,label=kind",
        "--accelerator",
        "cpu",
        "--epochs",
        "20",
        "--method",
        "gce",
        "--validation",
        "0.2",
    )
    shown = run_json(*command)
    assert shown["last"]["validation_accuracy"] > 0.95 and shown["oracle"] is None
    assert shown["rate"] is None and "test_accuracy" not in shown["last"]
    assert (
        config(Path(shown["folder"]))["rows"] == 240
        and config(Path(shown["folder"]))["model"] == "auto"
    )
    noisy = run_json(*command, "--noise", "symmetric:rate=0.4", "--out", "none")
    assert 0.3 < noisy["rate"] < 0.5 and noisy["last"]["validation_accuracy_clean"] > 0.9
    answer = run(*command)
    assert (
        "Column 'nr' numbers the rows and was left out" in answer.stderr
        and "Column" not in answer.stdout
    )
    text = answer.stdout
    assert (
        "oracle" not in text
        and "test" not in text
        and "validation accuracy" in text
        and "clean" not in text
    )
    with_validation = (
        *command[:1],
        "table:table=mine.csv,label=kind,validation=mine.csv",
        *command[2:],
    )
    shown = run_json(*with_validation, "--noise", "symmetric:rate=0.4", "--out", "none")
    assert (
        shown["best_clean"]["clean_validation_accuracy"]
        >= shown["last"]["clean_validation_accuracy"]
        > 0.9
    )
    text = run(*with_validation, "--out", "none").stdout
    assert "best by clean validation" in text and "clean validation accuracy" in text


CHEN = ("--noise", "chen:rate=0.2", *SMALL, "--epochs", "2", "--seed", "3")


def test_chens_noise_comes_from_a_model_trained_on_clean_labels(tmp_path: Path) -> None:
    answer = run(*CHEN, "--out", str(tmp_path), "--log", "csv")
    assert answer.exit_code == 0
    said = answer.stderr.splitlines()
    assert (
        said[0]
        == "noiseproof: training on clean labels first, for the predictions that chen:rate=0.2"
        " needs"
    )
    assert sum(line.startswith("epoch 2/2") for line in said) == 2  # of both trainings
    data = get_dataset("digits")
    settings = Settings(model="mlp:hidden=[8]", epochs=2)
    S = averaged_predictions(data, settings, seed=3, fabric=Fabric(accelerator="cpu", devices=1))
    task = prepare(data, "chen:rate=0.2", seed=3, validation=0.1, features=S)
    given = task.train.given
    content = f"torch.int64 ({len(given)},) ".encode() + given.numpy().tobytes()
    assert config(tmp_path)["labels"] == xxhash.xxh3_128_hexdigest(content)
    assert corrupt(data, "chen:rate=0.2", features=S).rate == int(0.2 * 1437) / 1437
    with open(tmp_path / "csv" / "version_0" / "metrics.csv", newline="") as file:
        logged = list(csv.DictReader(file))
    # of the run alone
    assert [row["test_loss"] for row in logged] == [row["test_loss"] for row in record(tmp_path)]


def test_what_is_refused_costs_no_training_before_chens_noise() -> None:
    answer = run(*CHEN, "--out", "none", "--method", "gce & dividemix:warmup=1")
    assert answer.exit_code == 2 and "the loss `ce` for dividemix" in answer.stderr
    assert "training on clean labels" not in answer.stderr


def test_the_training_before_chens_noise_is_resumed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    average = instance._Average.end_epoch
    sent: list[int] = []

    def send(self: Any, metrics: dict[str, float], run: Run) -> None:
        average(self, metrics, run)
        if not sent:
            sent.append(run.epoch)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(instance._Average, "end_epoch", send)
    stopped = run(*CHEN, "--out", str(tmp_path / "run"))
    assert stopped.exit_code == 130 and "Stopped after step 13 in epoch 2 of 2" in stopped.stderr
    assert (
        f"The same command resumes from {tmp_path / 'run'}." in stopped.stderr
        and stopped.stdout == ""
    )
    assert run(*CHEN, "--out", str(tmp_path / "run")).exit_code == 0
    assert sent == [0]
    assert run(*CHEN, "--out", str(tmp_path / "whole")).exit_code == 0
    assert record(tmp_path / "run") == record(tmp_path / "whole")
    again = run(*CHEN, "--out", str(tmp_path / "run"))
    assert again.exit_code == 0 and "epoch" not in again.stderr  # neither training happens again


def test_open_set_noise_puts_in_images_of_another_dataset(tmp_path: Path) -> None:
    options = (
        "--noise",
        "open-set:rate=0.3",
        "--foreign",
        "digits:seed=1",
        *SMALL,
        "--epochs",
        "2",
    )
    shown = run_json(*options, "--out", str(tmp_path))
    foreign = get_dataset("digits:seed=1").train.x
    assert isinstance(foreign, torch.Tensor)
    task = prepare(
        get_dataset("digits"), get_noise("open-set:rate=0.3"), validation=0.1, foreign=foreign
    )
    assert task.train.clean is not None
    assert shown["rate"] == task.train.rate == float((task.train.clean < 0).double().mean())
    assert shown["rate"] == pytest.approx(0.3, abs=0.02)
    rows = record(tmp_path)
    assert 0 < float(rows[-1]["train_accuracy_true"]) < 1


# The dry run, and logs


def test_a_dry_run_estimates_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wandb = Service("wandb")
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    options = (*NOISY, "--dry-run", "--log", "csv", "--log", "tensorboard", "--log", "wandb")
    found = run_json(*options)
    assert (
        found["weights"] == 64 * 8 + 8 + 8 * 10 + 10
        and found["steps"] == 33
        and found["seconds"] > 0
    )
    assert found["memory"]["weights"] == 4 * found["weights"]
    assert found["total_memory"] == sum(found["memory"].values())
    lines = [re.split("  +", line) for line in run(*options).stdout.splitlines()]
    assert lines[0] == ["estimate", "from a few steps"]
    shown = dict(lines[1:])  # type: ignore[arg-type]
    assert (
        shown["weights"] == "610" and shown["steps"].startswith("33 of ") and shown["time"] == "0 s"
    )
    assert shown["memory, data"] == "0.1 MB" and {
        f"memory, {name}" for name in found["memory"]
    } <= set(shown)
    assert list(tmp_path.iterdir()) == [] and wandb.started == wandb.metrics == []


def test_a_dry_run_does_not_train_for_chens_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "train", None)
    answer = run(*CHEN, "--dry-run", "--json")
    assert answer.exit_code == 0 and strictly(answer.stdout)["steps"] == 22
    assert answer.stderr.startswith("noiseproof: not estimated: a training on clean labels")


def test_logs_lie_in_the_runs_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = Service("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    names = ("--log", "csv", "--log", "tensorboard", "--log", "mlflow")
    assert run(*NOISY, "--method", "gce", "--out", str(tmp_path), *names).exit_code == 0
    rows = record(tmp_path)
    with open(tmp_path / "csv" / "version_0" / "metrics.csv", newline="") as file:
        logged = list(csv.DictReader(file))
    assert [{name: row[name] for name in rows[0]} for row in logged] == rows
    assert [step for step, _ in mlflow.metrics] == [1, 2, 3]
    assert [str(metrics["test_loss"]) for _, metrics in mlflow.metrics] == [
        row["test_loss"] for row in rows
    ]
    (params,) = mlflow.params
    assert {name: params[name] for name in ("method", "noise", "epochs", "model")} == {
        "method": "gce",
        "noise": "symmetric:rate=0.4",
        "epochs": "3",
        "model": "mlp:hidden=[8]",
    }
    (file_,) = (tmp_path / "tensorboard" / "version_0").iterdir()
    assert file_.name.startswith("events.out.tfevents.")


# Lists


def test_a_long_line_gets_a_folder_of_its_own_that_a_disk_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = " + ".join(["ce"] * 80)
    folders = [
        Path(run_json(*SMALL, "--epochs", "1", "--method", f"{line}{more}")["folder"])
        for more in ("", " + mae")
    ]
    first, second = folders
    assert first != second and first.name[:150] == second.name[:150]
    assert all(
        len(folder.name.encode()) <= 200 and (folder / "record.csv").exists() for folder in folders
    )
    again = run_json(*SMALL, "--epochs", "1", "--method", line)
    assert Path(again["folder"]) == first and len(list(first.parent.iterdir())) == 2
