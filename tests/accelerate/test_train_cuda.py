"""The loop on a GPU: captured steps equal eager ones, runs don't notice each other, sharded and
rounded runs work.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file

from noiseproof.accelerate import Job, Outcome, fit_many, stacks
from noiseproof.core.tensors import moved
from noiseproof.data import get_dataset
from noiseproof.data.augment import Compose, PadCrop
from noiseproof.train import Interrupted, Result, Settings, Task, prepare, train

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("any_accelerator"),
]
METHODS = [
    "ce",
    "sln-mo-lc:start=2",
    "nfl+mae**",
    "noise-f",
    "noise-theta",
    "tgce",
    "nal:start=1",
    "co-teaching:forget=0.4",
    "elr",
    "sop",
    "pes",
    "forward:warmup=2",
    "ln",
    "het:samples=50",
    "ce & class-balanced:per_class=90",
]
SETTINGS = Settings(epochs=4, batch_size=96, optimizer="sgd:lr=0.05,momentum=0.9")


@pytest.fixture(scope="module")
def task() -> Task:
    return prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1)


def gpu(precision: str = "32-true", strategy: str = "auto") -> Fabric:
    fabric = Fabric(accelerator="cuda", devices=1, precision=precision, strategy=strategy)
    assert fabric.device.type == "cuda"  # whatever the environment says
    return fabric


def assert_same(a: Result, b: Result) -> None:
    for (name, left), right in zip(
        a.models[0].state_dict().items(), b.models[0].state_dict().values(), strict=True
    ):
        assert torch.equal(left, right), name
    for one, other in zip(a.metrics, b.metrics, strict=True):
        assert str({**one, "seconds": 0}) == str({**other, "seconds": 0})


@pytest.fixture(autouse=True)
def deterministic() -> None:
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = True


def test_data_moves_to_the_gpu_as_bytes(task: Task) -> None:
    moved = task.train.to("cuda")
    assert (
        moved.x.dtype is torch.uint8
        and moved.x.is_cuda
        and moved.given.is_cuda
        and moved.clean.is_cuda
    )
    assert (
        torch.equal(moved.x.cpu(), task.train.x)
        and moved.subset(torch.tensor([3], device="cuda")).x.is_cuda
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_captured_step_is_the_eager_step(
    task: Task, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = train(task, method, SETTINGS, fabric=gpu())
    monkeypatch.setattr("noiseproof.accelerate.graphs.WARM_UP", 10**9)
    assert_same(captured, train(task, method, SETTINGS, fabric=gpu()))


@pytest.mark.parametrize("method", ["gce", "nal:start=1"])
def test_captured_steps_note_every_sample(
    task: Task, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(task, method, SETTINGS, fabric=gpu(), samples=True, out=tmp_path / "captured")
    monkeypatch.setattr("noiseproof.accelerate.graphs.WARM_UP", 10**9)
    train(task, method, SETTINGS, fabric=gpu(), samples=True, out=tmp_path / "eager")
    files = sorted(path.name for path in (tmp_path / "eager" / "samples").iterdir())
    assert len(files) == SETTINGS.epochs
    for name in files:
        captured, eager = (
            load_file(tmp_path / kind / "samples" / name) for kind in ("captured", "eager")
        )
        assert captured.keys() == eager.keys() and ("trust" in eager) == method.startswith("nal")
        for key, values in eager.items():
            assert torch.equal(captured[key], values) and not values.float().isnan().any(), key


@pytest.mark.parametrize("method", METHODS)
def test_interrupted_and_resumed(task: Task, method: str, tmp_path: Path) -> None:
    whole = train(task, method, SETTINGS, fabric=gpu())
    for _ in range(3):
        with pytest.raises(Interrupted):
            train(task, method, SETTINGS, fabric=gpu(), out=tmp_path, resume=True, max_steps=11)
    assert_same(whole, train(task, method, SETTINGS, fabric=gpu(), out=tmp_path, resume=True))


@pytest.mark.parametrize("optimizer", ["adam", "sgd:lr=0.05,momentum=0.9"])
def test_convolutions_are_resumed(task: Task, optimizer: str, tmp_path: Path) -> None:
    settings = replace(SETTINGS, model="lenet5", optimizer=optimizer)
    whole = train(task, "ce", settings, fabric=gpu())
    with pytest.raises(Interrupted):
        train(task, "ce", settings, fabric=gpu(), out=tmp_path, max_steps=27)
    assert_same(whole, train(task, "ce", settings, fabric=gpu(), out=tmp_path, resume=True))


def test_a_stack_is_resumed(task: Task, tmp_path: Path) -> None:
    # the loop looks at every third
    settings = replace(SETTINGS, model="lenet5", optimizer="adam", checkpoint_steps=3)

    def fly(folder: Path, stop: bool) -> list[Outcome]:
        def note(epoch: int, step: int, steps: int, row: object) -> None:
            if epoch * steps + step == 3 * (steps // 2) and row is None:
                os.kill(os.getpid(), signal.SIGTERM)

        first = Job(task, "ce", settings, 0, folder / "0", progress=note if stop else None)
        jobs = [first, Job(task, "gce", settings, 1, folder / "1")]
        return fit_many(jobs, fabric=gpu("bf16-mixed"), at_once=2, stack=True)

    whole = fly(tmp_path / "whole", stop=False)
    with pytest.raises(Interrupted):
        fly(tmp_path / "cut", stop=True)
    for one, other in zip(whole, fly(tmp_path / "cut", stop=False), strict=True):
        assert isinstance(one, Result) and isinstance(other, Result), (one, other)
        assert_same(one, other)


def test_a_run_does_not_notice_the_fleet(task: Task) -> None:
    alone = [
        train(task, method, SETTINGS, fabric=gpu(), seed=seed)
        for seed, method in enumerate(METHODS)
    ]
    jobs = [Job(task, method, SETTINGS, seed=seed) for seed, method in enumerate(METHODS)]
    diverges = Job(task, "ce", Settings(epochs=4, optimizer="sgd:lr=1e30"))
    *many, failed = fit_many([*jobs, diverges], fabric=gpu())
    for one, other in zip(alone, many, strict=True):
        assert isinstance(other, Result), other
        assert_same(one, other)
    assert "not finite" in str(failed)


@pytest.mark.parametrize("model", ["wrn-28-2:depth=10", "lenet5", "mlp:hidden=[32]"])
def test_a_stack_learns_what_its_members_would_alone(
    task: Task, model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "noiseproof")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    methods = [
        "ce",
        "gce",
        "sln-mo-lc:start=1",
        "noise-f",
        "noise-theta",
        "elr",
        "forward:warmup=1",
        "remargin:loss=mae",
    ]
    settings = Settings(model, epochs=2, batch_size=96, optimizer="sgd:lr=0.01,momentum=0.9")
    jobs = [Job(task, method, settings, seed=seed) for seed, method in enumerate(methods)]
    outcomes = fit_many(jobs, fabric=gpu(), stack=True, at_once=len(jobs))
    assert "8 runs are stacked into one network" in caplog.text and "stays eager" not in caplog.text
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert isinstance(outcome, Result), outcome
        alone = train(task, job.method, settings, seed=job.seed, fabric=gpu())
        for one, other in zip(alone.metrics, outcome.metrics, strict=True):
            assert other["train_loss"] == pytest.approx(one["train_loss"], rel=2e-3), job.method
            assert other["test_loss"] == pytest.approx(one["test_loss"], rel=2e-2), job.method


@pytest.mark.parametrize("max_norm", ["none", "1"])
def test_runs_that_make_their_steps_together_draw_as_alone(
    task: Task, max_norm: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With random crops, label noise and averaged weights, captured."""
    # noise that ends is a phase, which captures again
    method = f"sln-mo:alpha=0.9,max_norm={max_norm},until=none"
    caplog.set_level("INFO", "noiseproof")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    joined: list[int] = []
    made = stacks.JointSGD.__init__
    monkeypatch.setattr(
        stacks.JointSGD,
        "__init__",
        lambda self, *values: (joined.append(len(values[0])), made(self, *values))[1],
    )
    assert task.normalise is not None
    task = replace(task, augment=Compose([PadCrop(1), task.normalise]))
    settings = Settings(
        "wrn-28-2:depth=10", epochs=2, batch_size=96, optimizer="sgd:lr=0.01,momentum=0.9"
    )
    jobs = [Job(task, method, settings, seed=seed) for seed in range(3)]
    outcomes = fit_many(jobs, fabric=gpu(), stack=True, at_once=3)
    assert (
        joined == [3] and "stays eager" not in caplog.text and "are not stacked" not in caplog.text
    )
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert isinstance(outcome, Result), outcome
        alone = train(task, method, settings, seed=job.seed, fabric=gpu())
        for one, other in zip(alone.metrics, outcome.metrics, strict=True):
            assert other["train_loss"] == pytest.approx(one["train_loss"], rel=2e-3)
            assert other["test_loss"] == pytest.approx(one["test_loss"], rel=2e-2)
        for left, right in zip(
            alone.models[0].parameters(), outcome.models[0].parameters(), strict=True
        ):
            assert float((left - right).detach().norm()) < 0.01 * float(left.detach().norm()) + 1e-3
            assert right.untyped_storage().nbytes() == 4 * right.numel()


def test_a_joint_update_from_factors_is_that_from_gradients(
    task: Task, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "noiseproof")
    optimizer = "sgd:lr=0.01,momentum=0.9,weight_decay=5e-4"
    settings = Settings("mlp:hidden=[96,40]", epochs=2, batch_size=32, optimizer=optimizer)
    calls: list[int] = []
    made = stacks.update_products
    monkeypatch.setattr(stacks, "update_products", lambda *values: (calls.append(1), made(*values)))
    ends: list[list[Outcome]] = []
    for few in (128, 0):
        monkeypatch.setattr("noiseproof.accelerate.networks.FEW_ROWS", few)
        jobs = [Job(task, "ce", settings, seed=seed) for seed in range(3)]
        ends.append(fit_many(jobs, fabric=gpu("bf16-mixed"), at_once=3, stack=True))
        assert bool(calls) == bool(few)
        calls.clear()
    assert "stays eager" not in caplog.text and "are not stacked" not in caplog.text
    for one, other in zip(*ends, strict=True):
        assert isinstance(one, Result) and isinstance(other, Result), (one, other)
        for left, right in zip(
            one.models[0].parameters(), other.models[0].parameters(), strict=True
        ):
            if left.dim() > 1:
                assert float((left - right).detach().norm()) < 0.005 * float(right.detach().norm())
        assert one.last["train_loss"] == pytest.approx(other.last["train_loss"], rel=5e-3)


@pytest.mark.parametrize(
    "method", ["ce", "co-teaching:forget=0.4", "dividemix:warmup=1", "nal", "ln", "het:samples=50"]
)
def test_rounded_to_bfloat16_it_still_learns(task: Task, method: str) -> None:
    result = train(task, method, Settings(epochs=6, batch_size=96), fabric=gpu("bf16-mixed"))
    assert result.last["test_accuracy"] > 0.5


def test_sharded(task: Task, tmp_path: Path) -> None:
    sharded = train(task, "gce", SETTINGS, fabric=gpu(strategy="fsdp"), out=tmp_path)
    whole = train(task, "gce", SETTINGS, fabric=gpu())
    assert sharded.last["test_accuracy"] == pytest.approx(whole.last["test_accuracy"], abs=0.02)
    with pytest.raises(ValueError, match="Train with DDP"):
        train(task, "sln-mo", SETTINGS, fabric=gpu(strategy="fsdp"))


def test_numbers_that_share_memory_are_moved() -> None:
    shared = torch.zeros(1, dtype=torch.int64).expand(5)
    assert moved(shared, torch.device("cuda")).tolist() == [0] * 5
