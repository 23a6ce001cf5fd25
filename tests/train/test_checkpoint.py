"""Checkpoints are whole or not there, hold everything exactly, and refuse what is not theirs."""

from __future__ import annotations

import math
import os
import pickle
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chaos import exact
from lightning_fabric import Fabric
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from noiseproof.analysis import open_run
from noiseproof.analysis.runs import NotARun
from noiseproof.core import files
from noiseproof.data import get_dataset
from noiseproof.train import (
    Interrupted,
    Result,
    Settings,
    Task,
    checkpoint,
    checkpointer,
    job,
    prepare,
)
from noiseproof.train import train as train_anywhere
from noiseproof.train.checkpoint import KEEP, BadCheckpoint, checkpoints, latest, load, save
from noiseproof.train.job import digest

SETTINGS = Settings(
    model="mlp:hidden=[4]", epochs=2, batch_size=32, optimizer="sgd:lr=0.1,momentum=0.9"
)


def moons(seed: int = 0, noise: str = "symmetric:rate=0.4", n: int = 101) -> Task:
    return prepare(get_dataset(f"two-moons:n={n},n_test=20"), noise, seed=seed)


def train(*args: Any, **options: Any) -> Result:
    """On the CPU, also where there is a GPU."""
    return train_anywhere(*args, **{"fabric": Fabric(accelerator="cpu", devices=1), **options})


def interrupted(folder: Path, **options: Any) -> Path:
    """A run that was stopped after 3 of its 8 steps; its checkpoint."""
    with pytest.raises(Interrupted):
        train(moons(), "ce", SETTINGS, out=folder, max_steps=3, **options)
    path = latest(folder / "checkpoints")
    assert path is not None and path.name == "step-000000003.safetensors"
    return path


# What goes in comes out


def test_everything_comes_back_with_its_type_and_in_its_order(tmp_path: Path) -> None:
    state = {
        "z": 1,
        "a": {
            3: "three",
            1: {"deep": [1, [2.5, [None, True]], {}]},
            "1": "a word",
            None: 0,
            False: 1,
        },
        "floats": [math.inf, -math.inf, 0.1, 5e-324, -0.0, 2**63 + 1, 1e308],
        "text": 'quotes " and \n and ω',
        "empty": [[], {}, ""],
    }
    path = save(tmp_path, 7, state)
    back = load(path)
    # repr sees 1 against 1.0, -0.0, and the order of keys
    assert back == state and repr(back) == repr(state)
    nan = load(save(tmp_path, 8, {"x": [math.nan], math.nan: 1}))
    assert math.isnan(nan["x"][0]) and math.isnan(next(k for k in nan if k != "x"))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    ],
)
def test_tensors_come_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    values = (
        torch.tensor([[0.1, -0.0, 3.0], [1e-3, 7.25, 1.0]], dtype=torch.float64).abs().to(dtype)
    )
    if dtype.is_floating_point:
        values[0, 0], values[0, 1], values[1, 0] = math.nan, -math.inf, -0.0
    state = {
        "plain": values,
        "turned": values.T,
        "one": values[0, 2],
        "none": values[:0],
        "list": [{5: values[:, 1]}],
    }
    back = load(save(tmp_path, 1, state))
    for name, was in {**state, "list": state["list"][0][5]}.items():
        now = back["list"][0][5] if name == "list" else back[name]
        assert now.dtype is dtype and now.shape == was.shape
        as_bytes = [
            t.contiguous().view(torch.uint8) if t.dim() else t[None].view(torch.uint8)
            for t in (was, now)
        ]
        assert torch.equal(*as_bytes), name


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    back = load(save(tmp_path, 1, {"whole": whole, "again": whole, "part": whole[2:4]}))
    assert torch.equal(back["whole"], whole) and torch.equal(back["part"], whole[2:4])
    back["again"].zero_()
    assert torch.equal(back["whole"], whole)


def test_names_that_read_alike_are_kept_apart(tmp_path: Path) -> None:
    one, two, three = torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)
    state = {
        "a": {"b.c": one, "b": {"c": two}},
        "a.b": {"c": three},
        0: one,
        "0": two,
        "x": [one],
        "x.0": three,
    }
    back = load(save(tmp_path, 1, state))
    assert (float(back["a"]["b.c"]), float(back["a"]["b"]["c"]), float(back["a.b"]["c"])) == (
        1,
        2,
        3,
    )
    assert (float(back[0]), float(back["0"]), float(back["x"][0]), float(back["x.0"])) == (
        1,
        2,
        1,
        3,
    )


def test_an_optimiser_goes_on_from_it(tmp_path: Path) -> None:
    """Its state has whole numbers as keys, and safetensors sorts names: 10 before 2."""
    weights = [torch.nn.Parameter(torch.full((2,), float(i))) for i in range(12)]
    other = [torch.nn.Parameter(p.detach().clone()) for p in weights]
    first, second = torch.optim.Adam(weights, lr=0.1), torch.optim.Adam(other, lr=0.1)
    for i, p in enumerate(weights):
        p.grad = torch.full_like(p, i + 1.0)
    first.step()
    back = load(save(tmp_path, 1, {"state": first.state_dict()["state"]}))
    assert list(back["state"]) == list(range(12))
    second.load_state_dict({**second.state_dict(), "state": back["state"]})
    for a, b in zip(first.state.values(), second.state.values(), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in ("step", "exp_avg", "exp_avg_sq"))


def test_only_the_last_ones_are_kept_and_they_are_ordered_by_number(tmp_path: Path) -> None:
    for step in (9, 10, 999_999_999, 1_000_000_000):  # the last one has a digit more
        save(tmp_path, step, {"step": step})
    assert [load(path)["step"] for path in checkpoints(tmp_path)] == [999_999_999, 1_000_000_000]
    assert KEEP == 2 and latest(tmp_path) == checkpoints(tmp_path)[-1]
    (tmp_path / "step-5.safetensors.part").touch()
    (tmp_path / "best.safetensors").touch()
    assert len(checkpoints(tmp_path)) == 2
    assert latest(tmp_path / "nowhere") is None


# A file that cannot be used


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _cut_to_its_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _foreign(path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, path)


def _foreign_with_a_header(path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, path, {"format": "pt"})


def _text(path: Path) -> None:
    path.write_text("epoch,loss\n1,2.3\n" * 20)


def _pickled(path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(path.parent / "a pickle was opened"),)

    path.write_bytes(pickle.dumps({"models": [Bomb()]}))


def _torch_saved(path: Path) -> None:
    torch.save({"models": [torch.zeros(3)]}, path)


BROKEN = [
    _truncated,
    _cut_to_its_header,
    _empty,
    _foreign,
    _foreign_with_a_header,
    _text,
    _pickled,
    _torch_saved,
]


def _one_bit(place: float) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(place * (len(data) - 1))] ^= 4
        path.write_bytes(data)

    return flip


FLIPPED = [_one_bit(place) for place in (0, 0.01, 0.5, 1)]  # length, header, tensors, last byte


@pytest.mark.parametrize("damage", [*BROKEN, *FLIPPED], ids=lambda f: f.__qualname__)
def test_a_bad_file_is_set_aside_and_the_run_goes_on_from_the_last_good_one(
    tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Interrupted):
        train(moons(), "ce", replace(SETTINGS, checkpoint_steps=1), out=tmp_path, max_steps=4)
    _, path = checkpoints(tmp_path / "checkpoints")
    # not the last good one, though it lies there
    worse = path.with_name("step-000000001.safetensors")
    shutil.copy(path, worse)
    for bad in (path, worse):
        damage(bad)
    with pytest.raises(BadCheckpoint, match=f"Expected a checkpoint .*{path}.*Use another one"):
        load(path)
    after = train(moons(), "ce", SETTINGS, out=tmp_path, resume=True)
    assert f"{path} is damaged" in caplog.text
    assert not (path.parent / "a pickle was opened").exists()
    assert path.with_suffix(".damaged").exists()
    assert _same_but_time(after.metrics, train(moons(), "ce", SETTINGS).metrics)
    assert _state(checkpoints(path.parent)[-1]) == _state(_finished(tmp_path / "whole"))


def _finished(folder: Path) -> Path:
    train(moons(), "ce", SETTINGS, out=folder)
    return checkpoints(folder / "checkpoints")[-1]


def _state(path: Path) -> str:
    """Everything in a checkpoint that does not tell the time."""
    state = load(path)
    state["record"]["rows"] = [{**row, "seconds": 0} for row in state["record"]["rows"]]
    return repr(exact({**state, "seconds": 0}))


@pytest.mark.parametrize("place", [0, 0.3, 0.7, 1])
def test_no_flipped_bit_goes_unnoticed(place: float, tmp_path: Path) -> None:
    path = save(tmp_path, 1, {"x": torch.arange(5.0), "text": "words"})
    data = path.read_bytes()
    start = int(place * (len(data) - 8))
    for byte in range(start, start + 8):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[byte] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(BadCheckpoint):
                load(path)
    path.write_bytes(data)
    assert torch.equal(load(path)["x"], torch.arange(5.0))


def test_a_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    tensors, header = files.read_tensors(path)
    files.write_tensors(path, tensors, {**header, "format": "noiseproof-checkpoint-1"})
    with pytest.raises(
        BadCheckpoint,
        match="the format 'noiseproof-checkpoint-1' instead of 'noiseproof-checkpoint-2'",
    ):
        load(path)


@pytest.mark.parametrize("name", ["run.json", "record.csv", "labels.safetensors", "checksums.json"])
def test_other_damaged_files_are_refused_by_the_analysis_and_written_again_by_a_resumed_run(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        train(moons(), "ce", SETTINGS, out=tmp_path, max_steps=6)
    before = open_run(tmp_path)
    rows, labels = before.rows, before.labels
    path = tmp_path / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(NotARun, match=f"Expected .*{name}"):
        assert open_run(tmp_path).rows is not None and open_run(tmp_path).labels
    with pytest.raises(Interrupted):
        train(moons(), "ce", SETTINGS, out=tmp_path, resume=True, max_steps=1)
    mended = open_run(tmp_path)
    assert mended.config == before.config and mended.rows.equals(rows)
    assert all(torch.equal(mended.labels[key], value) for key, value in labels.items())


def test_without_another_one_it_says_so(tmp_path: Path) -> None:
    _text(interrupted(tmp_path))
    with pytest.raises(BadCheckpoint, match="There is no other one: start a new run."):
        train(moons(), "ce", SETTINGS, out=tmp_path, resume=True)


def test_a_write_that_was_killed_leaves_the_old_one(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    (path.parent / "step-000000005.safetensors.part").write_bytes(path.read_bytes()[:200])
    assert latest(path.parent) == path
    after = train(moons(), "ce", SETTINGS, out=tmp_path, resume=True)
    whole = train(moons(), "ce", SETTINGS)
    assert _same_but_time(after.metrics, whole.metrics)


@pytest.mark.parametrize("kind", ["tensors", "text"])
def test_a_write_that_fails_leaves_what_was_there(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "file"

    def write(value: float) -> None:
        if kind == "text":
            checkpoint.write_text(path, str(value))
        else:
            checkpoint.write_tensors(path, {"x": torch.tensor(value)})

    def fail(*args: Any) -> None:
        assert path.read_bytes() == old  # nothing has touched it so far
        raise OSError(5, "Input/output error")

    write(1.0)
    old = path.read_bytes()
    with (
        monkeypatch.context() as patch,
        pytest.raises(OSError, match=rf"Expected to write {path}, got: .*output error"),
    ):
        patch.setattr(files.os, "replace", fail)
        write(2.0)
    assert path.read_bytes() == old and list(path.parent.iterdir()) == [path]
    write(2.0)
    assert path.read_bytes() != old


def _same_but_time(a: list[dict[str, float]], b: list[dict[str, float]]) -> bool:
    return [{**row, "seconds": 0} for row in a] == [{**row, "seconds": 0} for row in b]


# Another run's


@pytest.mark.parametrize(
    "key, method, changes, seed",
    [
        ("method", "gce", {}, 0),
        ("method", "ce & momentum", {}, 0),
        ("seed", "ce", {}, 1),
        ("model", "ce", {"model": "mlp:hidden=[5]"}, 0),
        ("epochs", "ce", {"epochs": 3}, 0),
        ("batch_size", "ce", {"batch_size": 16}, 0),
        ("optimizer", "ce", {"optimizer": "adam:lr=0.1"}, 0),
        ("schedule", "ce", {"schedule": "constant"}, 0),
        ("clip", "ce", {"clip": 1.0}, 0),
        ("drop_last", "ce", {"drop_last": True}, 0),
    ],
)
def test_other_settings_are_refused_by_name(
    tmp_path: Path, key: str, method: str, changes: dict[str, Any], seed: int
) -> None:
    path = interrupted(tmp_path)
    other = Settings(**{**SETTINGS.as_dict(), **changes})
    with pytest.raises(BadCheckpoint, match=rf"Expected {key}=.* to resume .*{path.name}, got "):
        train(moons(), method, other, seed=seed, out=tmp_path, resume=True)


def shifted(task: Task) -> Task:
    assert isinstance(task.train.x, Tensor)
    return replace(task, train=replace(task.train, x=task.train.x + 1))


@pytest.mark.parametrize(
    "key, other",
    [
        ("dataset", lambda: prepare(get_dataset("circles:n=101,n_test=20"), "symmetric:rate=0.4")),
        ("noise", lambda: moons(noise="symmetric:rate=0.2")),
        ("rows", lambda: moons(n=102)),
        ("labels", lambda: moons(seed=1)),
        ("inputs", lambda: shifted(moons())),
    ],
)
def test_other_data_is_refused_by_name(tmp_path: Path, key: str, other: Any) -> None:
    interrupted(tmp_path)
    with pytest.raises(BadCheckpoint, match=rf"Expected {key}="):
        train(other(), "ce", SETTINGS, out=tmp_path, resume=True)


def every_part() -> Task:
    """A task with all parts that a task may have, of more rows than a thousand."""
    data = get_dataset("two-moons:n=3000,n_test=2500")
    return prepare(replace(data, validation=data.test), "symmetric:rate=0.4", validation=0.3)


def changed(task: Task, part: str, field: str) -> Task:
    """The task with one number changed, or one label, of the part."""
    data = getattr(task, part)
    values = getattr(data, field).clone()
    row = values[537]
    row.copy_(row + 1e-3 if values.is_floating_point() else 1 - row)
    return replace(task, **{part: replace(data, **{field: values})})


CHANGES = [
    ("train", "x", "inputs", "training inputs"),
    ("train", "given", "labels", "training labels"),
    ("train", "clean", "clean_labels", "true labels"),
    ("validation", "x", "validation_data", "validation data"),
    ("validation", "given", "validation_data", "validation data"),
    ("clean_validation", "y", "clean_validation_data", "clean validation data"),
    ("test", "x", "test_data", "test data"),
    ("test", "y", "test_data", "test data"),
]


@pytest.mark.parametrize("part, field, key, words", CHANGES, ids=lambda value: str(value))
def test_one_changed_number_of_any_data_is_refused(
    part: str, field: str, key: str, words: str, tmp_path: Path
) -> None:
    task, settings = every_part(), replace(SETTINGS, batch_size="full")
    with pytest.raises(Interrupted):
        train(task, "ce", settings, out=tmp_path / "stopped", max_steps=1)
    # must not report the accuracies of other data
    train(task, "ce", settings, out=tmp_path / "finished")
    for folder in (tmp_path / "stopped", tmp_path / "finished"):
        with pytest.raises(
            BadCheckpoint,
            match=f"Expected {key}=.*the same {words}, which changed since, or choose",
        ):
            train(changed(task, part, field), "ce", settings, out=folder, resume=True)
        assert train(task, "ce", settings, out=folder, resume=True).metrics


def test_changed_image_files_are_refused(tmp_path: Path) -> None:
    for name, shade in (("a/1.png", 10), ("a/2.png", 60), ("b/1.png", 200), ("b/2.png", 250)):
        for part in ("train", "test"):
            file = tmp_path / "photos" / part / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (shade, shade, 0)).save(file)

    def run() -> Result:
        task = prepare(get_dataset(f"folder:path={tmp_path / 'photos'},size=8"))
        return train(
            task, "ce", replace(SETTINGS, batch_size="full"), out=tmp_path / "out", resume=True
        )

    whole = run()
    file = tmp_path / "photos" / "test" / "a" / "1.png"
    os.utime(file, ns=(0, 0))  # another time, but the same content
    assert run().metrics == whole.metrics
    Image.new("RGB", (8, 8), (11, 10, 0)).save(file)
    with pytest.raises(BadCheckpoint, match="Expected test_data="):
        run()


def test_inputs_that_lie_otherwise_have_the_same_checksum() -> None:
    column = torch.rand(1, 100).T  # strides (1, 100)
    assert (
        digest(column)
        == digest(column.clone(memory_format=torch.contiguous_format))
        != digest(column.T)
    )
    assert (
        len(
            {
                digest(torch.zeros(5, 2, dtype=kind))
                for kind in (torch.uint8, torch.bfloat16, torch.float64)
            }
        )
        == 3
    )
    assert (
        digest(column, None) != digest(None, column)
        and len(digest(torch.zeros(0, 3), torch.tensor([True]))) == 32
    )


def test_what_a_transform_keeps_for_itself_is_no_part_of_a_run() -> None:
    task = moons()
    assert task.normalise is not None and isinstance(task.train.x, Tensor)
    before = job._describe(task.normalise)
    task.normalise(task.train.x)
    assert (
        job._describe(task.normalise)
        == before
        == "Standardise([0.506088, 0.239847], [0.862688, 0.500588])"
    )


def test_what_does_not_change_the_run_may_differ(tmp_path: Path) -> None:
    interrupted(tmp_path, samples=True)
    other = Settings(**SETTINGS.as_dict(), workers=1, checkpoint_steps=2, checkpoint_seconds=0.0)
    after = train(moons(), "ce", other, out=tmp_path, resume=True)
    assert _same_but_time(after.metrics, train(moons(), "ce", SETTINGS).metrics)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    path = interrupted(tmp_path)
    before = path.read_bytes()
    with pytest.raises(
        FileExistsError, match=r"Expected a new folder, .*Resume it, or choose another folder."
    ):
        train(moons(), "ce", SETTINGS, out=tmp_path)
    assert path.read_bytes() == before and checkpoints(path.parent) == [path]


# A full disk


def test_a_checkpoint_that_is_due_in_the_step_of_a_stop_is_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(checkpointer, "save", lambda folder, step, state: written.append(step))
    with pytest.raises(Interrupted):
        train(moons(), "ce", replace(SETTINGS, checkpoint_steps=1), out=tmp_path, max_steps=3)
    assert written == [1, 2, 3]


def test_a_full_disk_is_a_clear_error_and_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    """A disk on which no file can be longer than 1000 bytes once the second step's checkpoint is
    there.
    """
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_the_disk(epoch: int, step: int, steps: int, row: object) -> None:
        if step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))

    settings = replace(SETTINGS, checkpoint_steps=1)
    try:
        with pytest.raises(OSError) as full:
            train(moons(), "ce", settings, out=tmp_path, progress=fill_the_disk, samples=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    good = tmp_path / "checkpoints" / "step-000000002.safetensors"
    wanted = (
        r"Expected to write .*step-000000003.safetensors, got: .*File too large.*Free some space"
        r" and resume."
    )
    assert re.match(wanted, str(full.value))
    assert not list(tmp_path.rglob("*.part"))
    assert latest(tmp_path / "checkpoints") == good and load(good)["step"] == 2
    resumed = train(moons(), "ce", SETTINGS, out=tmp_path, resume=True, samples=True)
    assert _same_but_time(resumed.metrics, train(moons(), "ce", SETTINGS).metrics)


def test_a_disk_that_is_full_at_an_epochs_end_leaves_no_torn_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files other than checkpoints are whole or as they were, too."""
    interrupted(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def no_space(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    with (
        monkeypatch.context() as patch,
        pytest.raises(OSError, match=r"run.json.*No space left on device.*resume"),
    ):
        patch.setattr(files.os, "replace", no_space)
        train(moons(), "ce", SETTINGS, out=tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    resumed = train(moons(), "ce", SETTINGS, out=tmp_path, resume=True)
    assert _same_but_time(resumed.metrics, train(moons(), "ce", SETTINGS).metrics)


def test_the_best_models_by_clean_validation_are_a_file_of_their_own(tmp_path: Path) -> None:
    data = get_dataset("two-moons:n=101,n_test=40")
    task = prepare(replace(data, validation=data.test), "symmetric:rate=0.4", validation=0.3)
    assert (
        task.clean_validation is data.test and data.test is not None and task.normalise is not None
    )
    whole = train(task, "ce", SETTINGS, out=tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(task, "ce", SETTINGS, out=tmp_path / "resumed", max_steps=whole.run.step - 1)
    train(task, "ce", SETTINGS, out=tmp_path / "resumed", resume=True)
    assert whole.best_clean is not None
    (model,) = open_run(tmp_path / "resumed", task=task).models("best_clean")
    with torch.no_grad():
        predicted = model(task.normalise(data.test.x)).logits.argmax(1)
    accuracy = float((predicted == data.test.y).double().mean())
    assert accuracy == pytest.approx(whole.best_clean["clean_validation_accuracy"])
    assert accuracy == max(row["clean_validation_accuracy"] for row in whole.metrics)


def test_the_best_models_can_be_read_by_anyone(tmp_path: Path) -> None:
    task = prepare(get_dataset("two-moons:n=101,n_test=20"), "symmetric:rate=0.4", validation=0.3)
    result = train(task, "ce", SETTINGS, out=tmp_path)
    names = {f"models.0.{name}" for name in result.models[0].state_dict()}
    best = load_file(tmp_path / "best.safetensors")
    assert set(best) == names
    if result.best is result.last:
        assert all(
            torch.equal(best[f"models.0.{k}"], v) for k, v in result.models[0].state_dict().items()
        )
