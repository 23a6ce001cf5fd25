"""Engines: the same results from all of them, and nothing lost or made twice, whoever is killed and
when.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from typer.testing import CliRunner

from noiseproof.accelerate import fit_many
from noiseproof.bench import (
    BadExperiment,
    Experiment,
    load_experiments,
    read_results,
    run_all,
    status,
)
from noiseproof.bench.duration import expected_seconds
from noiseproof.bench.engines import MAX_DEATHS, _claim, _train
from noiseproof.bench.results import holder, lock_run, result_path, write_result
from noiseproof.cli import app
from noiseproof.core.messages import install_command
from noiseproof.core.plugins import import_module
from noiseproof.data import get_dataset
from noiseproof.train import Interrupted, Settings, train
from noiseproof.train.checkpoint import BadCheckpoint

# A checkpoint after every step makes runs of a second or so, and lets one that is killed go on from
# where it was.
SPEC = """
[[experiment]]
dataset = "digits"
noise = "symmetric:rate=0.4"
method = ["ce", "sln:sigma=0.5"]
seed = [0, 1]
model = "mlp:hidden=[8]"
epochs = 10
validation = 0.1
checkpoint_steps = 1
"""
SWEEP = load_experiments(SPEC)
SHORT = Settings(model="mlp:hidden=[8]", epochs=1)
ONE = Experiment("digits", "symmetric:rate=0.4", "ce", settings=SHORT)
MEASURED = ("seconds", "peak_memory", "provenance")  # not the same twice


def without_times(results: dict[str, Any]) -> dict[str, Any]:
    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(v) for key, v in value.items() if key not in MEASURED}
        return value

    return {key: strip(result) for key, result in sorted(results.items())}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The sweep without any trouble."""
    return without_times(run_all(SWEEP, tmp_path_factory.mktemp("expected")))


# What is written


def test_a_result_says_what_train_says(tmp_path: Path) -> None:
    two = replace(ONE, seed=3, validation=0.1, settings=replace(SHORT, epochs=3))
    (result,) = run_all([two], tmp_path).values()
    task = two.make_task()
    direct = train(task, "ce", two.settings, seed=3)
    for name in ("last", "best", "best_true", "oracle"):
        row = dict(getattr(direct, name))
        assert {**result[name], "seconds": 0} == {**row, "seconds": 0}
    assert result["rate"] == task.train.rate
    assert result["epochs"] == 3 and result["status"] == "done" and result["error"] is None
    assert Experiment.from_dict(result["experiment"]) == two
    assert result["seconds"] > 0 and result["peak_memory"] > 10**6
    made_by = result["provenance"]
    assert made_by["versions"]["torch"] == torch.__version__ and made_by["threads"] == 1
    assert made_by["engine"] == "local" and made_by["cores"] == os.cpu_count()
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    if commit.returncode == 0:
        assert made_by["commit"].removesuffix("-dirty") == commit.stdout.strip()


def test_precision_is_part_of_a_run(tmp_path: Path) -> None:
    pair = [replace(ONE, precision=precision) for precision in ("bf16", "32")]
    results = run_all(pair, tmp_path)
    for experiment, name in zip(pair, ("bf16-mixed", "32-true"), strict=True):
        fabric = Fabric(accelerator="cpu", devices=1, precision=name)  # type: ignore[arg-type]
        direct = train(experiment.make_task(), "ce", SHORT, fabric=fabric)
        assert results[experiment.key]["last"]["train_loss"] == direct.last["train_loss"]
    assert results[pair[0].key]["last"]["train_loss"] != results[pair[1].key]["last"]["train_loss"]
    assert Experiment.from_dict(results[pair[0].key]["experiment"]) == pair[0]


def test_the_expected_time_is_by_a_few_steps_of_each_kind() -> None:
    other = replace(ONE, seed=5, noise="none")
    wild = replace(ONE, settings=replace(SHORT, optimizer="sgd:lr=1e30"))
    expected = expected_seconds([ONE, other, wild])
    assert expected[wild] is None
    assert expected[ONE] is not None and expected[ONE] == expected[other] > 0


def own_csv(folder: Path, rows: int) -> Path:
    numbers = np.random.default_rng(rows).normal(size=(rows, 2))
    lines = [f"{a:.3f},{b:.3f},{i % 2}" for i, (a, b) in enumerate(numbers)]
    path = folder / "own.csv"
    path.write_text("\n".join(["a,b,y", *lines]) + "\n")
    return path


@pytest.mark.parametrize("engine", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_table_that_is_edited_in_a_sweep_spoils_no_result(engine: str, tmp_path: Path) -> None:
    """What was trained on its old rows is filed as theirs; the rest is left out, and said to be."""
    table, folder = own_csv(tmp_path, 40), tmp_path / "results"
    text, runs = table.read_text(), []
    for seed in range(3):
        settings = replace(SHORT, epochs=1 if seed == 0 else 40, checkpoint_steps=None)
        runs.append(
            replace(ONE, dataset=f"table:table={table},label=y", seed=seed, settings=settings)
        )
    keys = [run.key for run in runs]

    def edit(*told: Any) -> None:
        own_csv(tmp_path, 60)

    options = {} if engine == "local" else {"workers": 1}
    with pytest.raises(
        (BadExperiment, ChildProcessError), match="as they were when this sweep began|output above"
    ):
        run_all(runs, folder, engine=engine, progress=edit, **options)
    # nothing is said of the new rows
    assert {run.key for run in runs}.isdisjoint(read_results(folder))
    done = set(read_results(folder))
    assert keys[0] in done <= set(keys)
    table.write_text(text)
    whole = without_times(run_all(runs, tmp_path / "whole"))
    assert without_times(run_all(runs, folder)) == whole and set(whole) == set(keys)


def test_a_folder_that_cannot_be_written_is_no_failure_of_runs(tmp_path: Path) -> None:
    """With room again, the same call goes on."""
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(OSError, match=f"Expected a folder, got the file {tmp_path / 'runs'}"):
        run_all([ONE], tmp_path)
    assert not read_results(tmp_path)
    (tmp_path / "runs").unlink()
    assert run_all([ONE], tmp_path)[ONE.key]["status"] == "done"


def test_what_another_driver_has_mended_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = replace(ONE, settings=replace(SHORT, optimizer="sgd:lr=1e30"))
    assert run_all([wild], tmp_path)[wild.key]["status"] == "failed"
    path = result_path(tmp_path, wild.key)
    mended = {**json.loads(path.read_text()), "status": "done", "last": {}, "seconds": 0.0}
    del mended["checksum"]

    def meanwhile(*args: Any) -> None:
        write_result(tmp_path, mended)

    monkeypatch.setattr("noiseproof.bench.engines.check", meanwhile)
    assert run_all([wild], tmp_path, retry_failed=True)[wild.key] == mended


@pytest.mark.parametrize("text", ["{}", "null", '{"key": ', "[" * 10**6, '{"rate": NaN}', "\x00"])
def test_a_file_that_is_no_result_is_refused_before_anything_trains(
    text: str, tmp_path: Path
) -> None:
    result_path(tmp_path, ONE.key).write_text(text)
    for call in (
        lambda: run_all([replace(ONE, seed=1), ONE], tmp_path),
        lambda: status([ONE], tmp_path),
    ):
        with pytest.raises(
            ValueError,
            match=f"Expected a result in .*{ONE.key}.json, got .*Remove it to run it again",
        ):
            call()
    assert [path.name for path in tmp_path.iterdir()] == [f"{ONE.key}.json"]


@pytest.fixture(scope="module")
def a_result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("results")
    run_all([ONE], folder)
    content: dict[str, Any] = json.loads(result_path(folder, ONE.key).read_text())
    return content


def test_a_flipped_bit_in_a_result_is_seen(a_result: dict[str, Any], tmp_path: Path) -> None:
    path = result_path(tmp_path, ONE.key)
    data = json.dumps(a_result).encode()
    path.write_bytes(data)
    (whole,) = read_results(tmp_path).values()
    assert "checksum" not in whole and whole["last"] == a_result["last"]
    for bit in range(0, 8 * len(data), 41):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            assert list(read_results(tmp_path).values()) == [whole]  # a space that is a tab now
        except ValueError as error:
            assert str(error).startswith(f"Expected a result in {path}")


def test_the_expected_time_is_for_as_many_threads_as_the_runs_will_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def estimate(*args: Any, **options: Any) -> Any:
        seen.append(torch.get_num_threads())
        return SimpleNamespace(seconds=1.5)

    monkeypatch.setattr("noiseproof.bench.duration.estimate", estimate)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert expected_seconds([ONE]) == {ONE: 1.5}
        assert seen == [1] and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_results_are_plain_json_without_nan(tmp_path: Path) -> None:
    """Without a wrong label there is no accuracy on wrong labels."""
    (key,) = run_all([replace(ONE, noise="none")], tmp_path)
    text = result_path(tmp_path, key).read_text("utf-8")
    found = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert found["last"]["false_label_accuracy"] is None


def test_checkpoints_go_and_the_record_stays(tmp_path: Path) -> None:
    held_out = replace(ONE, validation=0.1)
    run_all([held_out], tmp_path)
    left = sorted(path.name for path in (tmp_path / "runs" / held_out.key).iterdir())
    assert left == ["checksums.json", "labels.safetensors", "record.csv", "run.json"]


# What is done, failed, or cannot be


def fails(*args: Any, **options: Any) -> Any:
    raise AssertionError("This was to be done already.")


def test_what_is_done_is_never_redone(tmp_path: Path) -> None:
    before = run_all([ONE], tmp_path)
    assert run_all([ONE, ONE], tmp_path, fit=fails) == before


def test_a_failed_run_is_written_down_and_retried_only_when_asked(tmp_path: Path) -> None:
    wild = replace(ONE, settings=replace(SHORT, optimizer="sgd:lr=1e30"))
    results = run_all([wild, ONE], tmp_path)
    assert results[ONE.key]["status"] == "done"
    failed = results[wild.key]
    assert failed["status"] == "failed" and failed["last"] is None
    assert failed["error"].startswith("Diverged: Loss or weights are not finite at step ")
    assert run_all([wild, ONE], tmp_path, fit=fails) == results
    calls = []

    def fit(jobs: Any, **options: Any) -> Any:
        asked = list(jobs)
        calls.extend(job.settings for job in asked)
        return fit_many(asked, **options)

    again = run_all([wild, ONE], tmp_path, retry_failed=True, fit=fit)
    assert calls == [wild.settings]
    assert again[wild.key]["error"] == failed["error"] and again[ONE.key] == results[ONE.key]


def test_what_is_retried_begins_anew_unless_something_else_is_refused(tmp_path: Path) -> None:
    wild = replace(ONE, settings=replace(SHORT, optimizer="sgd:lr=1e30"))
    run_all([wild], tmp_path)
    left = tmp_path / "runs" / wild.key / "left"
    left.write_text("of before")
    with pytest.raises(BadExperiment, match="Unknown method 'nothing'"):
        run_all([wild, replace(ONE, method="nothing")], tmp_path, retry_failed=True)
    assert status([wild], tmp_path) == {wild: "failed"} and left.exists()
    run_all([wild], tmp_path, retry_failed=True)
    assert status([wild], tmp_path) == {wild: "failed"} and not left.exists()


def test_another_spelling_goes_on_where_the_first_was_stopped(tmp_path: Path) -> None:
    gce = replace(ONE, method="gce", settings=replace(SHORT, epochs=2))
    whole = run_all([gce], tmp_path / "whole")[gce.key]
    with pytest.raises(Interrupted):
        train(gce.make_task(), "gce", gce.settings, out=tmp_path / "runs" / gce.key, max_steps=14)
    again = replace(gce, method="gce:q=0.70", noise="symmetric:rate=.40")
    result = run_all([again], tmp_path)[gce.key]
    assert result["experiment"]["method"] == "gce:q=0.70"
    assert {**result["last"], "seconds": 0} == {**whole["last"], "seconds": 0}


@pytest.mark.parametrize("engine", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_runs_find_the_data_folder_that_they_are_given(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path / "elsewhere"))
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "mine.npy", (get_dataset("digits").train.y + 1) % 10)
    wrong = replace(ONE, noise="file:path=mine.npy")
    found = run_all([wrong], tmp_path / engine, data_dir=tmp_path / "data", engine=engine)
    assert found[wrong.key]["rate"] == 1.0


@pytest.mark.parametrize(
    "trouble",
    [
        OSError("No space left"),
        BadCheckpoint("Expected labels=1 to resume"),
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError("none left"),
    ],
)
def test_trouble_that_is_not_the_runs_own_is_no_result(trouble: Exception, tmp_path: Path) -> None:
    def fit(jobs: Any, *, finished: Any, **options: Any) -> Any:
        next(iter(jobs))
        finished(0, trouble)

    with pytest.raises((type(trouble), MemoryError), match=str(trouble)):
        run_all([ONE], tmp_path, fit=fit)
    assert read_results(tmp_path) == {} and status([ONE], tmp_path) == {ONE: "to do"}


@pytest.mark.parametrize("engine", ["local", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_checkpoint_that_cannot_be_read_stops_its_own_run_only(
    engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    torn, well = replace(ONE, settings=replace(SHORT, epochs=2)), replace(ONE, seed=1)
    where = tmp_path / "runs" / torn.key
    with pytest.raises(Interrupted):
        train(torn.make_task(), torn.method, torn.settings, seed=torn.seed, out=where, max_steps=3)
    for checkpoint in (where / "checkpoints").iterdir():
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    with pytest.raises((BadCheckpoint, ChildProcessError)) as told:
        run_all([torn, well], tmp_path, engine=engine, workers=1 if engine == "processes" else None)
    assert str(where) in str(told.value) + capfd.readouterr().err
    assert status([torn, well], tmp_path) == {torn: "interrupted", well: "done"}


def test_nothing_trains_if_one_experiment_cannot(tmp_path: Path) -> None:
    with pytest.raises(BadExperiment, match="Unknown method 'nothing'"):
        run_all([ONE, replace(ONE, method="nothing")], tmp_path, fit=fails)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"engine": "cluster"}, "Expected an engine of local, processes, ray, got 'cluster'"),
        (
            {"engine": "processes", "workers": 0},
            "Expected `workers` to be an integer of at least 1, got 0",
        ),
        ({"engine": "ray", "gpus": -1}, "Expected `gpus` in [0, inf), got -1"),
        (
            {"workers": 2},
            "Expected the engine processes or ray with `workers`, got local, which ignores it.",
        ),
        ({"gpus": 0.5}, "Expected the engine ray with `gpus`, got local, which ignores it."),
        (
            {"engine": "processes", "address": "auto"},
            "Expected the engine ray with `address`, got processes",
        ),
        (
            {"engine": "ray", "at_once": 4},
            "Expected the engine local or processes with `at_once`, got ray",
        ),
        ({"at_once": 0}, "Expected `at_once` to be an integer of at least 1, got 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        run_all([ONE], tmp_path, **options)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "words",
    [
        ("run", "ln-table1", "--dry-run", "--gpus", "1"),
        ("run", "ln-table1", "--engine", "ray", "--at-once", "4"),
        ("compare", "--data", "digits", "--workers", "2"),
        ("search", "gce:q=[0.1,0.7]", "--workers", "2"),
    ],
)
def test_the_command_line_refuses_options_of_other_engines(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """By the names that they have there."""
    ran = CliRunner().invoke(app, ["bench", *words, "--results", str(tmp_path)])
    message = " ".join(ran.stderr.split())
    assert (
        ran.exit_code == 2
        and f"with {words[-2]}, got" in message
        and f"leave {words[-2]} out" in message
    )
    assert not list(tmp_path.iterdir())


def test_spellings_of_a_run_are_one(tmp_path: Path) -> None:
    ce, gce, again = (replace(ONE, method=method) for method in ("ce", "gce", "gce:q=0.70"))
    assert status([ce, gce, again], tmp_path) == {ce: "to do", gce: "to do"}
    run_all([again], tmp_path)
    assert status([again, ce, gce], tmp_path) == {again: "done", ce: "to do"}


# Locks


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    script = (
        "import time; from pathlib import Path; from noiseproof.core.files import Lock; l ="
        f" Lock(Path({str(tmp_path)!r}) / 'locks' / 'k'); print(l.held, flush=True)"
    )
    with python("-c", script + "; time.sleep(60)", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"True\n"
        assert not lock_run(tmp_path, "k").held
        found = holder(tmp_path, "k")
        assert found is not None and found["pid"] == process.pid
        process.kill()
        process.wait()
        assert lock_run(tmp_path, "k").held


def test_a_driver_waits_for_another_one_and_takes_over_where_it_gives_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two = [ONE, replace(ONE, seed=1)]
    lock = lock_run(tmp_path, ONE.key)
    assert status(two, tmp_path) == {two[0]: "running", two[1]: "to do"}
    order: list[int] = []
    timer = threading.Timer(1.0, lock.release)

    def tell(experiment: Experiment, *others: object) -> None:
        if not order:
            timer.start()  # the other driver ends only now
        order.append(experiment.seed)

    run_all(two, tmp_path, progress=tell)
    timer.join()
    assert order == [1, 0]
    assert (
        caplog.text.count(
            f"waiting for 1 run of others: process {os.getpid()} on {socket.gethostname()}"
        )
        == 1
    )


def test_runs_side_by_side_are_those_one_after_another(tmp_path: Path) -> None:
    """As the fleet on a GPU has them: all at once, and what is not begun is another driver's to
    take.
    """
    three = [
        replace(ONE, seed=seed, method=method)
        for seed, method in ((0, "ce"), (0, "sln"), (1, "ce"))
    ]
    expected = run_all(three, tmp_path / "one by one")
    folder = tmp_path / "together"
    told: list[str] = []
    seen: list[int] = []  # of others, when so many jobs have been taken

    def fit(jobs: Any, **options: Any) -> Any:
        taken = []
        for job in jobs:
            taken.append(job)
            others = list(_claim(three, folder))
            seen.append(len(others))
            for _, lock in others:
                lock.release()
        return fit_many(taken, at_once=3, **options)

    claims = _claim(three, folder)
    _train(
        claims,
        folder,
        Experiment.make_task,
        {},
        lambda e, result: told.append(result["key"]),
        {},
        fit,
    )
    assert sorted(told) == sorted(expected) and seen == [2, 1, 0]
    assert without_times(read_results(folder)) == without_times(expected)


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"engine": "processes", "workers": 2}, marks=pytest.mark.slow)],
    ids=["local", "processes"],
)
def test_each_process_trains_as_many_runs_at_once_as_asked(
    options: dict[str, Any], tmp_path: Path, expected: dict[str, Any]
) -> None:
    results = run_all(SWEEP, tmp_path, at_once=2, **options)
    assert without_times(results) == expected


# The command line


def test_the_command_line_refuses_with_the_block(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(SPEC.replace("sln:sigma=0.5", "sln:sigma=-1"))
    ran = CliRunner().invoke(
        app, ["bench", "run", str(path), "--results", str(tmp_path / "results")]
    )
    assert (
        ran.exit_code == 2 and f"{path}, [[experiment]] 1, method: Expected `sigma`" in ran.stderr
    )
    assert not (tmp_path / "results").exists()


def test_a_dry_run_says_what_would_run_and_runs_nothing(tmp_path: Path) -> None:
    path, folder = tmp_path / "sweep.toml", tmp_path / "results"
    path.write_text(
        '[[experiment]]\ndataset = "digits"\nmodel = "mlp:hidden=[8]"\nepochs = 1\nseed = [0, 1]\n'
    )
    run_all(load_experiments(path)[:1], folder)
    command = ["bench", "run", str(path), "--results", str(folder), "--dry-run"]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    head, line, last = ran.stdout.splitlines()
    assert head.split() == ["dataset", "noise", "method", "runs", "a", "run"]
    assert line.split()[:4] == ["digits", "none", "ce", "1"]
    assert (
        last.startswith("1 run to do, 1 done, 0 failed; about ") and len(read_results(folder)) == 1
    )
    (found,) = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert found["key"] == load_experiments(path)[1].key and found["seconds"] > 0
    half = json.loads(CliRunner().invoke(app, [*command, "--json", "--precision", "bf16"]).stdout)
    assert {one["precision"] for one in half} == {"bf16"} and len(half) == 2
    assert CliRunner().invoke(app, [*command, "--precision", "16"]).exit_code == 2


def test_a_dry_run_says_what_it_measures_and_that_it_saves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        '[[experiment]]\ndataset = "digits"\nmodel = "mlp:hidden=[8]"\nmethod = ["ce", "gce"]\nseed'
        " = [0, 1]\n"
    )
    announced: list[tuple[str, int, int]] = []
    expected_seconds(
        load_experiments(path), progress=lambda run, *k: announced.append((run.method, *k))
    )
    assert announced == [("ce", 1, 2), ("gce", 2, 2)]

    def stop(*_: object, progress: Any, **__: object) -> NoReturn:
        progress(load_experiments(path)[0], 1, 2)
        raise Interrupted("Nothing was saved: no folder was given.")

    monkeypatch.setattr("noiseproof.bench.duration.expected_seconds", stop)
    command = ["bench", "run", str(path), "--results", str(tmp_path), "--dry-run"]
    ran = CliRunner().invoke(app, command)
    timing = "timing 1/2: digits, mlp:hidden=[8], ce\n"
    assert (ran.exit_code, ran.stderr) == (
        130,
        f"{timing}noiseproof: Stopped. A dry run saves nothing.\n",
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
@pytest.mark.usefixtures("any_accelerator")
@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_device_that_is_not_there_is_refused_in_one_line(engine: str, tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text('[[experiment]]\ndataset = "digits"\n')
    command = ["bench", "run", str(tmp_path / "sweep.toml"), "--results", str(tmp_path / "results")]
    ran = CliRunner().invoke(app, [*command, "--accelerator", "cuda", "--engine", engine])
    assert ran.exit_code == 2 and ran.stderr.startswith("noiseproof: `CUDAAccelerator` can not run")


def test_the_command_line_runs_and_says_what_is_there(tmp_path: Path) -> None:
    path, folder = tmp_path / "sweep.toml", str(tmp_path / "results")
    path.write_text(
        '[[experiment]]\ndataset = "digits"\nmodel = "mlp:hidden=[8]"\nepochs = 1\nseed = [0, 1]\n'
    )
    run_all(load_experiments(path)[:1], folder)
    ran = CliRunner().invoke(app, ["bench", "status", str(path), "--results", folder, "--json"])
    assert [row["status"] for row in json.loads(ran.stdout)] == ["done", "to do"]
    ran = CliRunner().invoke(app, ["bench", "run", str(path), "--results", folder])
    assert ran.exit_code == 0 and ran.stdout == f"2 runs done, 0 failed, in {folder}\n"
    assert "2/2 " in ran.stderr and "seed 1: loss " in ran.stderr and "seed 0" not in ran.stderr
    ran = CliRunner().invoke(app, ["bench", "status", str(path), "--results", folder])
    assert ran.stdout.endswith("2 done\n")
    path.write_text(path.read_text().replace("seed = [0, 1]", 'optimizer = "sgd:lr=1e30"'))
    for form in ([], ["--json"]):
        ran = CliRunner().invoke(app, ["bench", "run", str(path), "--results", folder, *form])
        assert ran.exit_code == 3  # for scripts: something failed


# Several processes, and their deaths


def python(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *arguments], env=environment, **options)


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts ``noiseproof bench run`` on the sweep."""
    (tmp_path / "sweep.toml").write_text(SPEC)
    started: list[subprocess.Popen[bytes]] = []

    def start(
        engine: str, *options: str, stderr: Any = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        command = (
            "-m",
            "noiseproof",
            "bench",
            "run",
            str(tmp_path / "sweep.toml"),
            "--engine",
            engine,
            *options,
        )
        quiet = {"stdout": subprocess.DEVNULL, "stderr": stderr}
        started.append(python(*command, "--results", str(tmp_path / "results"), **quiet))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "It never came."
        time.sleep(0.01)


def results_in(folder: Path) -> dict[str, str]:
    return {
        e.key: result_path(folder, e.key).read_text()
        for e in SWEEP
        if result_path(folder, e.key).exists()
    }


def is_mid_sweep(folder: Path) -> bool:
    """One is finished, and another one is in its third epoch or later."""
    done = results_in(folder)
    records = [folder / "runs" / e.key / "record.csv" for e in SWEEP if e.key not in done]
    begun = any(path.exists() and path.read_text().count("\n") > 3 for path in records)
    return bool(done) and begun


def first_seconds(folder: Path, key: str) -> list[str]:
    """What the first epochs took: not the same when they are trained again."""
    path = folder / "runs" / key / "record.csv"
    return (
        [row["seconds"] for row in csv.DictReader(path.read_text().splitlines())][:2]
        if path.exists()
        else []
    )


@pytest.mark.parametrize(
    "engine",
    ["local", *(pytest.param(engine, marks=pytest.mark.slow) for engine in ("processes", "ray"))],
)
def test_a_driver_killed_mid_sweep_loses_and_repeats_nothing(
    engine: str,
    drive: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    expected: dict[str, Any],
    request: pytest.FixtureRequest,
) -> None:
    folder, options = tmp_path / "results", ["--workers", "2"] if engine == "processes" else []
    if engine == "ray":
        options = [
            "--address",
            request.getfixturevalue("ray").get_runtime_context().gcs_address,
            "--gpus",
            "0",
        ]
    driver = drive(engine, *options)
    wait_for(lambda: is_mid_sweep(folder))
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_for(lambda: all(holder(folder, e.key) is None for e in SWEEP))  # workers notice, and save
    finished = results_in(folder)
    begun = {e.key: times for e in SWEEP if len(times := first_seconds(folder, e.key)) == 2}
    assert 1 <= len(finished) < len(SWEEP)
    states = status(SWEEP, folder)
    assert all(
        states[e] == ("done" if e.key in finished else "interrupted")
        for e in SWEEP
        if e.key in begun
    )

    assert drive(engine, *options).wait() == 0
    after = results_in(folder)
    assert {key: after[key] for key in finished} == finished  # not touched
    # gone on with, not begun again
    assert {key: first_seconds(folder, key) for key in begun} == begun
    assert without_times(read_results(folder)) == expected


@pytest.mark.slow
def test_two_drivers_share_one_folder(
    drive: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No experiment is trained twice: one process alone ever opens a file of its run to write."""
    spy, seen = tmp_path / "spy", tmp_path / "seen"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(
        f"import os, sys\nseen = os.open({str(seen)!r}, os.O_CREAT | os.O_WRONLY |"
        " os.O_APPEND)\ndef watch(event, args):\n    path = str(args[0]) if event == 'open' and"
        " args[2] & (os.O_WRONLY | os.O_RDWR) else ''\n    if f'{os.sep}runs{os.sep}' in"
        " path:\n        key = path.split(f'{os.sep}runs{os.sep}')[1].split(os.sep)[0]\n      "
        "  os.write(seen, f'{key} {os.getpid()}\\n'.encode())\nsys.addaudithook(watch)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(spy), os.environ.get("PYTHONPATH", "")]))
    drivers = [drive("local"), drive("local")]
    assert [driver.wait() for driver in drivers] == [0, 0]
    assert without_times(read_results(tmp_path / "results")) == expected
    writers = {tuple(line.split()) for line in seen.read_text().splitlines()}
    assert sorted(key for key, _ in writers) == sorted(e.key for e in SWEEP)
    assert {pid for _, pid in writers} <= {str(driver.pid) for driver in drivers}


@contextmanager
def one_worker_killed(folder: Path) -> Iterator[None]:
    """While the body runs the sweep, a process that holds one of its runs is killed."""
    killed: list[int] = []

    def kill_one() -> None:
        wait_for(lambda: is_mid_sweep(folder))
        holders = [found for e in SWEEP if (found := holder(folder, e.key))]
        killed.append(holders[0]["pid"])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    yield
    killer.join()
    assert killed and killed[0] != os.getpid()


def test_a_workers_death_costs_nothing(tmp_path: Path, expected: dict[str, Any]) -> None:
    with one_worker_killed(tmp_path):
        results = run_all(SWEEP, tmp_path, engine="processes", workers=2)
    assert without_times(results) == expected


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [None, 3])
def test_an_experiment_that_kills_its_workers_is_given_up(
    at_once: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that takes more memory than there is; those beside it are not to blame."""
    sick = tmp_path / "sick"
    sick.mkdir()
    (sick / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "def watch(event, args):\n"
        f"    if event == 'os.mkdir' and str(args[0]).endswith({ONE.key!r}):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "sys.addaudithook(watch)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(sick), os.environ.get("PYTHONPATH", "")]))
    well = [replace(ONE, seed=seed) for seed in (1, 2, 3)]
    results = run_all(
        [*well[:2], ONE, *well[2:]],
        tmp_path / "results",
        engine="processes",
        workers=1,
        at_once=at_once,
    )
    assert [results[one.key]["status"] for one in well] == ["done"] * 3
    assert results[ONE.key]["status"] == "failed"
    assert (
        f"its workers died {MAX_DEATHS} times, the last with exit code -9"
        in results[ONE.key]["error"]
    )


@pytest.mark.slow
def test_what_a_run_prints_does_not_confuse_its_driver(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_loud.py").write_text(
        "import os, signal\n"
        "from noiseproof.strategies import Strategy, register\n"
        "@register('loud')\n"
        "class Loud(Strategy):\n"
        "    'Says something and dies.'\n"
        "    def start_epoch(self, run):\n"
        "        if run.num_rows > 100:  # not in the trial before\n"
        "            print('é' * 40, flush=True)\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    import_module("own_loud", str(tmp_path / "own_loud.py"))
    loud = replace(ONE, method="ce & loud")
    result = run_all([loud], tmp_path / "results", engine="processes", workers=1)[loud.key]
    assert f"its workers died {MAX_DEATHS} times" in result["error"]
    assert capfd.readouterr().err.count("é" * 40) == MAX_DEATHS


@pytest.mark.slow
def test_modules_that_are_called_as_pythons_own_do_not_reach_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("csv", "queue", "select", "random"):
        (tmp_path / f"{name}.py").write_text("print('not this one')\nraise RuntimeError\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in a session
    (result,) = run_all([ONE], tmp_path / "results", engine="processes", workers=1).values()
    assert (result["status"], result["error"]) == ("done", None)


def test_workers_that_print_and_die_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nprint({'é' * 40!r}, flush=True)\nos._exit(7)\n"
    )
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    )
    with pytest.raises(
        ChildProcessError, match=f"Expected workers that start, got {MAX_DEATHS} with exit code 7"
    ):
        run_all([ONE], tmp_path / "results", engine="processes", workers=1)


def test_workers_that_cannot_start_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ChildProcessError, match="Expected workers that start"):
        run_all([ONE], tmp_path, engine="processes", workers=1)


def test_asked_to_stop_it_saves_and_goes_on_later(tmp_path: Path, expected: dict[str, Any]) -> None:
    def interrupt() -> None:
        wait_for(lambda: is_mid_sweep(tmp_path))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted) as stopped:
        run_all(SWEEP, tmp_path)
    thread.join()
    assert all(holder(tmp_path, e.key) is None for e in SWEEP)
    count = Counter(status(SWEEP, tmp_path).values())
    assert count["done"] and count["interrupted"]
    done, begun = f"{count['done']} of {len(SWEEP)} runs done", f"{count['interrupted']} begun"
    assert str(stopped.value) == f"Stopped: {done}, {begun}."
    assert without_times(run_all(SWEEP, tmp_path)) == expected


def test_a_stop_between_two_runs_is_told_like_one_within(tmp_path: Path) -> None:
    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"^Stopped: 1 of 2 runs done\.$"):
        run_all([ONE, replace(ONE, seed=5)], tmp_path, progress=stop)


# Ray


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One for all tests."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    ray = importlib.import_module("ray")
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.slow
def test_ray_gives_the_same_results_though_a_worker_is_killed(
    ray: Any, tmp_path: Path, expected: dict[str, Any]
) -> None:
    told: list[str] = []
    with one_worker_killed(tmp_path):
        results = run_all(
            SWEEP,
            tmp_path,
            engine="ray",
            workers=2,
            gpus=0,
            progress=lambda e, *others: told.append(e.key),
        )
    assert without_times(results) == expected
    assert sorted(told) == sorted(expected)


class RayTaskError(Exception):
    """Ray's errors are all of one class; this one is raised by a task."""


class LocalRay:
    """What the engine uses of Ray, in this process: a task runs when it is waited for."""

    def __init__(self, *problems: Any) -> None:
        self.problems = list(problems)  # of the first tasks; None: it runs
        self.options: dict[str, Any] = {}
        self.tasks: dict[int, Callable[[], Any]] = {}
        self.cancelled: list[int] = []
        self.exceptions = SimpleNamespace(
            RayError=(OSError, RayTaskError), RayTaskError=RayTaskError
        )
        self.running = False

    def is_initialized(self) -> bool:
        return self.running

    def init(self, **options: Any) -> None:
        self.running, self.options = True, options

    def shutdown(self) -> None:
        self.running = False

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": float(self.options["num_cpus"])}

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        def submit(function: Callable[..., Any], *arguments: Any) -> int:
            self.tasks[len(self.tasks)] = partial(function, *arguments)
            return len(self.tasks) - 1

        return lambda function: SimpleNamespace(remote=partial(submit, function))

    def wait(self, refs: list[int], **options: Any) -> tuple[list[int], list[int]]:
        return refs[:1], refs[1:]

    def get(self, ref: int) -> Any:
        problem = self.problems.pop(0) if self.problems else None
        if isinstance(problem, Exception):
            raise problem
        return problem(self.tasks[ref]) if problem else self.tasks[ref]()

    def cancel(self, ref: int) -> None:
        self.cancelled.append(ref)


def test_tasks_of_ray_that_fail_die_or_meet_another_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for Ray; the slow tests do it with Ray itself."""
    runs = [replace(ONE, seed=seed) for seed in range(3)]
    died = OSError("its worker died")
    # the first is given up; another driver has the second, which comes again
    ray = LocalRay(died, lambda task: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    told: list[str] = []
    results = run_all(
        runs,
        tmp_path,
        engine="ray",
        workers=2,
        gpus=0,
        progress=lambda e, *others: told.append(e.key),
    )
    assert [results[run.key]["status"] for run in runs] == ["failed", "done", "done"]
    assert "its Ray task failed: its worker died" in results[runs[0].key]["error"]
    assert sorted(told) == sorted(results) and not ray.running and len(ray.tasks) == 4
    assert ray.options["num_cpus"] == 2 and ray.options["address"] == "local"
    alone = run_all(runs[1:], tmp_path / "alone")
    assert {key: without_times(results)[key] for key in alone} == without_times(alone)

    ray = LocalRay(RayTaskError("no such dataset"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(RayTaskError, match="no such dataset"):
        run_all([replace(ONE, seed=7)], tmp_path, engine="ray", gpus=0)
    assert not ray.running

    def stop(task: Callable[[], Any]) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return task()

    ray = LocalRay(stop)
    ray.init(num_cpus=2)  # by others: it goes on
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(Interrupted, match=r"^Stopped: 1 of 2 runs done\.$"):
        run_all([replace(ONE, seed=8), replace(ONE, seed=9)], tmp_path, engine="ray", gpus=0)
    assert ray.running and ray.cancelled == [1]


def test_ray_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=re.escape(install_command("ray"))):
        run_all([ONE], tmp_path, engine="ray")
