"""A run's folder holds all that it takes to look at the run again, and nothing in it is
executed.
"""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.analysis.during.samples import sample_weights
from noiseproof.analysis.runs import NotARun, RunFolder, open_run, open_runs, seeds_of
from noiseproof.bench.engines import run_all
from noiseproof.bench.experiment import Experiment
from noiseproof.core.files import write_checked, write_tensors
from noiseproof.data import from_arrays, get_dataset
from noiseproof.losses import get_loss
from noiseproof.strategies import Strategy
from noiseproof.train import (
    METHODS,
    Interrupted,
    Method,
    Result,
    Settings,
    Task,
    get_method,
    prepare,
)
from noiseproof.train import train as train_anywhere

SHORT = Settings(epochs=2, model="mlp:hidden=[16]", batch_size=256)
NOISE = "symmetric:rate=0.4"


def train(*args: Any, **options: Any) -> Result:
    """On the CPU, also where there is a GPU."""
    return train_anywhere(*args, **{"fabric": Fabric(accelerator="cpu", devices=1), **options})


@pytest.fixture(scope="module")
def task() -> Task:
    return prepare(get_dataset("digits"), NOISE, seed=3, validation=0.1)


@pytest.fixture(scope="module")
def trained(task: Task, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("run")
    return folder, train(task, "sln-mo-lc:start=1", SHORT, seed=5, out=folder, samples=True)


def same_tensors(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(value.nan_to_num(), b[name].nan_to_num()) for name, value in a.items()
    )


# What comes back is what there was


def test_the_record_and_the_description(trained: tuple[Path, Result]) -> None:
    folder, result = trained
    run = open_run(folder)
    assert run.rows.to_dict("records") == result.metrics
    assert (run.name, run.noise, run.dataset, run.seed) == ("sln-mo-lc:start=1", NOISE, "digits", 5)
    assert run.settings == SHORT and run.classes == tuple("0123456789")
    assert run.sample_epochs == (1, 2)
    assert (
        str(run.method)
        == run.config["method"]
        == str(get_method("sln-mo-lc:start=1", run.task, SHORT))
    )


def test_the_labels_and_the_task(task: Task, trained: tuple[Path, Result]) -> None:
    run = open_run(trained[0])
    again = run.task
    for part in ("train", "validation"):
        mine, theirs = getattr(task, part), getattr(again, part)
        for name in ("x", "given", "clean", "index"):
            assert torch.equal(getattr(mine, name), getattr(theirs, name)), (part, name)
    assert (
        task.test is not None and again.test is not None and torch.equal(task.test.x, again.test.x)
    )
    assert task.normalise is not None and again.normalise is not None and task.augment is not None
    assert torch.equal(task.normalise(task.train.x), again.normalise(task.train.x))
    assert type(again.augment) is type(task.augment)
    assert (again.dataset, again.noise, again.source) == (task.dataset, task.noise, task.source)
    assert run.rate == task.train.rate and task.train.is_flipped is not None
    assert run.is_flipped is not None and np.array_equal(
        run.is_flipped, task.train.is_flipped.numpy()
    )


def test_the_models_predict_as_they_did(task: Task, trained: tuple[Path, Result]) -> None:
    folder, result = trained
    run = open_run(folder)
    (model,), (before,) = run.models(), result.models  # the momentum model, which is what predicts
    assert not model.training and same_tensors(model.state_dict(), before.state_dict())
    assert task.test is not None and task.normalise is not None
    with torch.no_grad():
        logits = before.eval()(task.normalise(task.test.x)).logits
    np.testing.assert_allclose(
        run.log_probs("test"), logits.log_softmax(1).numpy(), rtol=1e-5, atol=1e-6
    )
    assert (run.log_probs("test").argmax(1) == task.test.y.numpy()).mean() == result.last[
        "test_accuracy"
    ]
    assert task.validation is not None
    held = run.log_probs("validation").argmax(1) == task.validation.given.numpy()
    assert held.mean() == result.last["validation_accuracy"]


def test_strategies_come_back_with_what_they_remember(trained: tuple[Path, Result]) -> None:
    mine, theirs = (
        r.strategies[-1].state_dict() for r in (trained[1], open_run(trained[0]).result())
    )
    assert mine["kept"] is not None and torch.equal(mine["kept"], theirs["kept"])


@pytest.mark.parametrize("method", ["co-teaching", "forward:warmup=1", "ln", "gp", "elr", "mae**"])
def test_methods_of_every_kind_open(method: str, task: Task, tmp_path: Path) -> None:
    result = train(task, method, replace(SHORT, model="mlp:hidden=[8]"), out=tmp_path)
    run = open_run(tmp_path)
    assert task.test is not None
    accuracy = (run.log_probs("test").argmax(1) == task.test.y.numpy()).mean()
    assert accuracy == result.last.get("test_accuracy_ensemble", result.last["test_accuracy"])
    assert len(run.models()) == len(result.models)
    for mine, theirs in zip(result.models, run.models(), strict=True):
        assert same_tensors(mine.state_dict(), theirs.state_dict())


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_read_from_what_it_writes(name: str, task: Task, tmp_path: Path) -> None:
    method = get_method(name, task, Settings())
    run = RunFolder(tmp_path, {"method": str(method)})
    assert str(run.method) == str(method) and run.method.models == method.models
    assert [type(s) for s in run.method.strategies] == [type(s) for s in method.strategies]


# What else writes such folders


def test_benchmarks_write_it(tmp_path: Path) -> None:
    experiment = Experiment("digits", NOISE, "gce", 2, SHORT, validation=0.1, rows=500)
    results = run_all([experiment], tmp_path, accelerator="cpu")
    run = open_run(tmp_path / "runs" / experiment.key)
    assert run.rows["test_accuracy"].iloc[-1] == results[experiment.key]["last"]["test_accuracy"]
    expected = experiment.make_task()
    assert torch.equal(run.task.train.x, expected.train.x)  # type: ignore[arg-type]
    assert np.array_equal(run.given, expected.train.given.numpy())
    with pytest.raises(
        FileNotFoundError, match="Benchmarks keep theirs with `weights = true` only"
    ):
        run.models()


# Samples


@pytest.mark.parametrize("method", ["peer", "het:samples=5", "nal", "sln-mo", "co-teaching"])
def test_recording_samples_changes_nothing_of_the_run(
    method: str, task: Task, tmp_path: Path
) -> None:
    plain = train(task, method, SHORT)
    watched = train(task, method, SHORT, out=tmp_path, samples=True)
    for mine, theirs in zip(plain.models, watched.models, strict=True):
        assert same_tensors(mine.state_dict(), theirs.state_dict())
    assert [{**row, "seconds": 0} for row in plain.metrics] == [
        {**row, "seconds": 0} for row in watched.metrics
    ]


def test_samples_of_a_resumed_run_are_those_of_a_whole_one(task: Task, tmp_path: Path) -> None:
    train(task, "nal", SHORT, out=tmp_path / "whole", samples=True)
    with pytest.raises(Interrupted):
        train(task, "nal", SHORT, out=tmp_path / "parts", samples=True, max_steps=3)
    train(task, "nal", SHORT, out=tmp_path / "parts", samples=True, resume=True)
    complete, parts = (open_run(tmp_path / name) for name in ("whole", "parts"))
    for epoch in (1, 2):
        mine, theirs = complete.samples(epoch), parts.samples(epoch)
        assert mine.keys() == {"margin", "weight", "pull", "trust", "prediction"} == theirs.keys()
        for name, values in mine.items():
            assert np.array_equal(values, theirs[name]) and not np.isnan(values).any(), name


def test_samples_of_epochs_that_are_to_be_trained_again_do_not_count(
    trained: tuple[Path, Result], tmp_path: Path
) -> None:
    shutil.copytree(trained[0], tmp_path / "run")
    record = tmp_path / "run" / "record.csv"
    # resumed an epoch ago
    write_checked(record, "".join(record.read_text().splitlines(keepends=True)[:-1]))
    run = open_run(tmp_path / "run")
    assert run.sample_epochs == open_run(trained[0]).sample_epochs[:-1]
    assert sample_weights(run)["epoch"].tolist() == list(run.sample_epochs)


# What a folder cannot tell


class Idle(Strategy):
    """Of nobody's registry."""


def test_unregistered_data_and_strategies_are_passed(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    data = from_arrays(torch.randn(60, 3, generator=g), torch.arange(60) % 2)
    task, method = prepare(data, "symmetric:rate=0.2"), Method(get_loss("ce"), strategies=(Idle(),))
    result = train(task, method, SHORT, out=tmp_path)
    with pytest.raises(NotARun, match="task="):
        _ = open_run(tmp_path).task
    with pytest.raises(NotARun, match="method="):
        open_run(tmp_path, task=task).models()
    (model,) = open_run(tmp_path, task=task, method=method).models()
    assert same_tensors(model.state_dict(), result.models[0].state_dict())
    with pytest.raises(NotARun, match="other rows or labels"):
        _ = open_run(tmp_path, task=prepare(data, "symmetric:rate=0.2", seed=1)).task


def test_images_from_elsewhere_are_given(tmp_path: Path) -> None:
    data = get_dataset("digits")
    assert isinstance(data.train.x, Tensor)
    task = prepare(data, "open-set:rate=0.3", foreign=data.train.x.flip(0))
    train(task, "ce", SHORT, out=tmp_path)
    run = open_run(tmp_path)
    assert run.clean is not None and (run.clean < 0).mean() == pytest.approx(0.3, abs=0.01)
    with pytest.raises(NotARun, match="from elsewhere"):
        _ = run.task
    assert open_run(tmp_path, task=task).task is task


def test_other_data_of_the_same_name_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train(prepare(get_dataset("two-moons:n=80"), "none"), "ce", SHORT, out=folder)
    about = json.loads((folder / "run.json").read_text())
    for spec, why in (
        ("two-moons:n=40", "another version"),
        ("two-moons:n=90,seed=7", "other rows or labels"),
    ):
        write_checked(
            folder / "run.json", json.dumps({**about, "source": {**about["source"], "spec": spec}})
        )
        with pytest.raises(NotARun, match=why):
            _ = open_run(folder).task


# Folders that are none, and folders of strangers


ABOUT = {
    "name": "ce",
    "method": "ce",
    "seed": 0,
    "dataset": "digits",
    "noise": "none",
    "classes": [],
    "source": {},
    "inputs": "",
    "precision": "32-true",
}


def test_folders_without_a_run_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match="no such folder"):
        open_run(tmp_path / "nowhere")
    with pytest.raises(NotARun, match=r"no run\.json"):
        open_run(tmp_path)
    file = tmp_path / "run.json"
    with pytest.raises(NotARun, match="a file"):
        file.write_text("{")
        open_run(file)
    with pytest.raises(NotARun, match="Expected JSON"):
        open_run(tmp_path)
    for text in ("[]", "3", '{"method": "ce", "seed": 0}'):
        file.write_text(text)
        with pytest.raises(NotARun, match="none of"):
            open_run(tmp_path)
    file.write_text(json.dumps(ABOUT))
    with pytest.raises(NotARun, match="no epoch was finished"):
        _ = open_run(tmp_path).rows
    (tmp_path / "record.csv").write_text("a,b\n1,2\n")
    with pytest.raises(NotARun, match="the record of a run"):
        _ = open_run(tmp_path).rows


class Bomb:
    def __reduce__(self) -> Any:
        return Path.write_text, (Path("exploded"), "")


def test_nothing_in_a_folder_is_executed(
    trained: tuple[Path, Result], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    about = json.loads((trained[0] / "run.json").read_text())
    (tmp_path / "samples").mkdir()
    (tmp_path / "checkpoints").mkdir()
    bomb = pickle.dumps(Bomb())
    for name in ("labels", "samples/epoch-0001", "checkpoints/step-000000001", "best"):
        (tmp_path / f"{name}.safetensors").write_bytes(bomb)
    (tmp_path / "run.json").write_text(json.dumps(about))
    shutil.copy(trained[0] / "record.csv", tmp_path)
    run = open_run(tmp_path)
    for ask in (lambda: run.given, lambda: run.samples(1)):
        with pytest.raises(NotARun, match="safetensors"):
            ask()
    (tmp_path / "labels.safetensors").write_bytes((trained[0] / "labels.safetensors").read_bytes())
    with pytest.raises(ValueError, match="checkpoint"):
        open_run(tmp_path).models()
    for model in (
        "timm:resnet18,checkpoint_path=bomb.pth",
        "timm:hf-hub:stranger/bomb",
        "timm:HF-HUB:stranger/bomb",
        "timm:hf-\thub:stranger/bomb",
        "timm:name=local-dir:bomb",
        "timm :local-dir:bomb",
        'timm:resnet18,pretrained=1,pretrained_cfg={"file": "bomb.pth"}',
    ):
        (tmp_path / "run.json").write_text(json.dumps({**about, "model": model}))
        with pytest.raises(NotARun, match="without files"):
            open_run(tmp_path).models()
    (tmp_path / "run.json").write_text(
        json.dumps({**about, "method": "os.system('touch exploded')"})
    )
    with pytest.raises(NotARun, match="registered parts"):
        _ = open_run(tmp_path).method
    assert not (tmp_path / "exploded").exists()


def test_labels_and_weights_that_do_not_belong(
    trained: tuple[Path, Result], task: Task, tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_bytes((trained[0] / "run.json").read_bytes())
    write_tensors(tmp_path / "labels.safetensors", {"something": torch.zeros(1)})
    with pytest.raises(NotARun, match="something"):
        _ = open_run(tmp_path).given
    other = tmp_path / "other"
    train(task, "sln-mo-lc:start=1", replace(SHORT, model="mlp:hidden=[9]"), seed=5, out=other)
    write_checked(other / "run.json", (trained[0] / "run.json").read_text())
    with pytest.raises(NotARun, match="a checkpoint of this run"):
        open_run(other).models()
    with pytest.raises(ValueError, match="Expected `part` to be one of"):
        open_run(trained[0]).log_probs("training")  # type: ignore[arg-type]
    untested = replace(task, test=None)
    train(untested, "ce", SHORT, out=tmp_path / "untested")
    with pytest.raises(NotARun, match="test rows"):
        open_run(tmp_path / "untested", task=untested).log_probs("test")


@pytest.mark.parametrize(
    "option", ["pretrained=true", "pretrained=True", "pretrained = true", "pretrained=1"]
)
def test_pretrained_weights_are_not_fetched_again(option: str, tmp_path: Path) -> None:
    run = RunFolder(
        tmp_path, {"model": f"timm:resnet50.tv_in1k,{option},drop_rate=0.1", "compile": True}
    )
    assert run.settings.model == "timm:name=resnet50.tv_in1k,pretrained=false,drop_rate=0.1"
    assert not run.settings.compile


# Several runs


def test_runs_are_named_by_what_differs(tmp_path: Path) -> None:
    def described(number: int, **own: Any) -> Path:
        folder = tmp_path / "runs" / str(number)
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({**ABOUT, "epochs": 2, **own}))
        return folder

    folders = [
        described(0),
        described(1, seed=1),
        described(2, name="gce"),
        described(3, noise="symmetric:rate=0.4"),
    ]
    assert list(open_runs(folders)) == [
        "ce · noise=none · seed=0",
        "ce · noise=none · seed=1",
        "gce · noise=none",
        "ce · noise=symmetric:rate=0.4",
    ]
    for number in range(4):  # a result beside each: of a sweep, whose folders have no order
        (tmp_path / f"{number}.json").touch()
    assert [run.folder for run in open_runs(folders[::-1]).values()] == [
        folders[n] for n in (0, 1, 3, 2)
    ]
    assert list(open_runs(folders[:1])) == ["ce"]
    assert list(open_runs([folders[0], described(4, epochs=5)])) == [
        "ce · epochs=2",
        "ce · epochs=5",
    ]
    twins = [folders[0], described(5)]
    assert list(open_runs(twins)) == [f"ce · {folder}" for folder in twins]
    assert list(open_runs([*twins, folders[2]]))[-1] == "gce"  # which has no twin
    pairs = [
        described(6, seed=1, rows=5),
        described(7, seed=1, rows=9),
        described(8, rows=5),
        described(9, rows=9),
    ]
    assert list(seeds_of(open_runs(pairs))) == [
        f"ce · seeds=1,0 · {folder}" for folder in pairs[:2]
    ]


def test_inputs_that_have_changed_are_refused(tmp_path: Path) -> None:
    """As other labels are: a model that is shown other numbers says nothing of the run."""
    table = tmp_path / "mine.csv"
    lines = [f"{i % 7},{i % 5},{'uv'[i % 2]}" for i in range(40)]
    table.write_text("\n".join(["a,b,y", *lines]))
    task = prepare(get_dataset(f"table:table={table},label=y"), "symmetric:rate=0.2")
    train(task, "ce", Settings(epochs=1, model="mlp:hidden=[4]"), out=tmp_path / "run")
    assert open_run(tmp_path / "run").task.train.x.shape == task.train.x.shape  # type: ignore[union-attr]
    table.write_text(
        "\n".join(["a,b,y", *(f"{7 - i % 7},{i % 5},{'uv'[i % 2]}" for i in range(40))])
    )
    with pytest.raises(NotARun, match="got other inputs"):
        open_run(tmp_path / "run").task  # noqa: B018
