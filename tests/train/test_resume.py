"""Nothing is lost: a run that was interrupted anywhere ends as if nothing had happened, bit for
bit.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killed_run import SETTINGS, STEPS, cpu, folder, make_task
from safetensors.torch import load_file
from torch import Tensor, nn

from noiseproof.core import plugins
from noiseproof.core.files import CHECKSUMS, check_files
from noiseproof.data import get_dataset
from noiseproof.data.augment import Normalise, Transform
from noiseproof.models import MODELS, Backbone
from noiseproof.strategies import STRATEGIES, Batch, Run, Strategy
from noiseproof.train import (
    Interrupted,
    Method,
    Result,
    Settings,
    Task,
    get_method,
    prepare,
)
from noiseproof.train import train as train_anywhere
from noiseproof.train.checkpoint import BadCheckpoint, checkpoints, latest, load
from noiseproof.train.job import Job
from noiseproof.train.loop import training

HELPERS = Path(__file__).parents[1] / "helpers"
# labels are corrected from step 6 on, the second time from what the first made
LC = "sln-mo-lc:alpha=0.9,start=1"

# The defaults of methods that remember more in a longer training.
LONGER = {
    "sln-mo": "sln-mo:alpha=0.9",
    "sln-mo-lc": LC,
    "elr+": "elr+:alpha=0.9",
    "tgce": "tgce:start=1,k=0.1",
    "promix": "promix:tau=0.2,guess_from=1",
    "pes-semi": "pes-semi:start=1,lambda_u=5",
}
# one for each strategy, and for each loss and head with a state, a schedule or draws of its own
NAMED = [
    LONGER.get(name, name)
    for name in (
        *("ce", "mae**", "peer", "ln", "het", "tgce", "forward", "sln-mo-lc", "nal", "elr", "elr+"),
        *("sop+", "pes", "pes-semi", "sln-co-teaching", "sigua", "dividemix", "promix", "gp"),
    )
]
MORE = [
    "ce & early-stopping:patience=1",
    "ce & small-loss:forget=0.4,ramp=2 & momentum",
    "backward & sigua-bc",
    "forward:restart=false & momentum:alpha=0.9",
    "ce & mixup:alpha=2",
    (
        "sln & noise-f & noise-theta & momentum:alpha=0.9 &"
        " label-correction:start=1,soft=true,invert=true"
    ),
    "gce & class-balanced:per_class=10",
    "ce & crowd-layer:kind=transition,lr=0.01",
    "ce & progressive-stopping:start=1,block_epochs=1,head_epochs=0 & momentum:alpha=0.9",
]

# they may end early: how many of STOPS they see
SHORT = {"ce & early-stopping:patience=1": (3, 4), "gp": (2,)}

task = cache(make_task)


def train(*args: Any, **options: Any) -> Result:
    """On the CPU, where the same steps give the same bits."""
    return train_anywhere(*args, **{"fabric": cpu(), **options})


def same(a: Any, b: Any, where: str = "") -> None:
    """Two trees are equal: types, keys in their order, and tensors bit for bit."""
    assert type(a) is type(b), where
    if isinstance(a, Tensor):
        assert a.dtype is b.dtype and a.shape == b.shape, where
        raw = [t.contiguous().flatten().view(torch.uint8) for t in (a, b)]
        assert torch.equal(*raw), f"{where}: {a} {b}"
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            if key != "seconds":
                same(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}.{i}")
    else:
        assert repr(a) == repr(b), where  # NaN is itself here


def left_behind(out: Path) -> dict[str, Any]:
    """All that a finished run wrote, but times: its last checkpoint holds weights, averages,
    optimisers, records.
    """
    path = latest(out / "checkpoints")
    assert path is not None
    with open(out / "record.csv", newline="") as file:
        record = list(csv.DictReader(file))
    assert not list(out.rglob("*.part"))
    files = {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    check_files(out, "run.json", "record.csv")  # whose checksums are not those of another time
    timed = ("record.csv", CHECKSUMS)
    others = {n: b for n, b in files.items() if n not in timed and not n.startswith("checkpoints")}
    return {"checkpoint": load(path), "name": path.name, "record": record, "files": others}


def whole(
    method: Method | str, out: Path, data: Task | None = None, settings: Settings = SETTINGS
) -> dict[str, Any]:
    """What a run that nothing interrupts leaves behind, without checkpoints on its way."""
    settings = replace(settings, checkpoint_steps=None)
    train(data or task(), method, settings, out=out, samples=True)
    return left_behind(out)


def stop_after(
    steps: list[int], method: Method | str, out: Path, data: Task | None = None
) -> list[int]:
    """Interrupt a run after each of ``steps`` and finish it; where it was interrupted."""
    settings = replace(SETTINGS, checkpoint_steps=None)
    behind, found = 0, []
    for step in steps:
        try:
            train(
                data or task(),
                method,
                settings,
                out=out,
                resume=True,
                samples=True,
                max_steps=step - behind,
            )
        except Interrupted as said:
            assert f"after step {step} " in str(said) and "Resume to continue." in str(said)
            found.append(step)
        behind = step
    train(data or task(), method, settings, out=out, resume=True, samples=True)
    return found


# In the middle of an epoch, at its last step, right after labels were corrected for the first time,
# and in between them once more.
STOPS = [3, STEPS, STEPS + 1, 2 * STEPS + 1]


@pytest.mark.parametrize("method", [*NAMED, *MORE])
def test_every_method_is_resumed_exactly(method: str, tmp_path: Path) -> None:
    expected = whole(method, tmp_path / "whole")
    stopped = stop_after(STOPS, method, tmp_path / "stopped")
    assert len(stopped) in SHORT.get(method, (4,))
    same(left_behind(tmp_path / "stopped"), expected)
    assert expected["checkpoint"]["step"] >= 2 * STEPS + 1 or method in SHORT
    assert len(expected["record"]) == expected["checkpoint"]["epoch"]


def test_every_strategy_is_among_them() -> None:
    """So that a new one can't be forgotten."""
    used = {
        s.name for spec in [*NAMED, *MORE] for s in get_method(spec, task(), SETTINGS).strategies
    }
    # needs a pretrained backbone: test_strategies_freeze.py
    assert used == set(STRATEGIES) - {"freeze"}


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return whole(LC, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("step", [1, STEPS - 1, STEPS, 2 * STEPS + 2])
def test_any_step_will_do(step: int, tmp_path: Path, corrected: dict[str, Any]) -> None:
    assert stop_after([step], LC, tmp_path) == [step]
    same(left_behind(tmp_path), corrected)


@pytest.mark.parametrize("every", [1, 7])
def test_checkpoints_on_the_way_change_nothing(every: int, tmp_path: Path) -> None:
    train(
        task(), LC, replace(SETTINGS, checkpoint_steps=every), out=tmp_path / "some", samples=True
    )
    same(left_behind(tmp_path / "some"), whole(LC, tmp_path / "none"))
    assert len(checkpoints(tmp_path / "some" / "checkpoints")) == 2


@pytest.mark.parametrize("method", [LC])
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd:lr=0.05,momentum=0.9,nesterov=true", "schedule": "step:at=[1,2]"},
        {"optimizer": "sgd:lr=0.05,momentum=0", "clip": 0.1, "drop_last": True},
        {"model": "mlp:hidden=[6,6]", "schedule": "cosine:every=1"},
    ],
)
def test_whatever_the_settings(method: str, options: dict[str, Any], tmp_path: Path) -> None:
    settings = replace(SETTINGS, checkpoint_steps=None, **options)
    expected = whole(method, tmp_path / "whole", settings=settings)
    for steps in (2, 3, 4):
        with pytest.raises(Interrupted):
            train(
                task(),
                method,
                settings,
                out=tmp_path / "cut",
                resume=True,
                samples=True,
                max_steps=steps,
            )
    train(task(), method, settings, out=tmp_path / "cut", resume=True, samples=True)
    same(left_behind(tmp_path / "cut"), expected)


@pytest.mark.parametrize("optimizer", ["adam", "sgd:lr=0.05,momentum=0.9"])
def test_what_an_optimiser_remembers_lies_as_its_weights_do(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused optimisers refuse all else; on a GPU, where they run, convolutions have their channels
    last.
    """
    add = Run.add
    last = lambda run, model, build: add(run, model.to(memory_format=torch.channels_last), build)  # noqa: E731
    monkeypatch.setattr(Run, "add", last)
    settings = replace(SETTINGS, model="lenet5", optimizer=optimizer)
    with pytest.raises(Interrupted):
        train(task(), "ce", settings, out=tmp_path, max_steps=4)
    result = train(task(), "ce", settings, out=tmp_path, resume=True)
    assert any(not weight.is_contiguous() for weight in result.models[0].parameters())
    for weight, kept in result.run.models[0].optimizer.state.items():
        assert all(
            value.stride() == weight.stride()
            for value in kept.values()
            if value.shape == weight.shape
        )
    whole = train(task(), "ce", settings)
    same(result.models[0].state_dict(), whole.models[0].state_dict())


def test_changed_code_of_ones_own_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of another's module, and one of noiseproof's, which knows nothing of that."""
    monkeypatch.setattr(plugins, "MODULES", {"mae": {"loss": "mine"}})
    for code in ("before", "after"):
        monkeypatch.setattr(plugins, "DIGESTS", {"mine": code})
        result = train(task(), "gce", SETTINGS, out=tmp_path / "gce", resume=True)
        assert (result.new_steps > 0) == (code == "before")
        if code == "before":
            with pytest.raises(Interrupted):
                train(task(), "mae", SETTINGS, out=tmp_path / "mae", max_steps=2)
    with pytest.raises(
        BadCheckpoint,
        match=r"Expected code={'mine': 'before'} to .*, got {'mine': 'after'}. .* code",
    ):
        train(task(), "mae", SETTINGS, out=tmp_path / "mae", resume=True)
    monkeypatch.setattr(plugins, "DIGESTS", {"mine": "before"})
    result = train(task(), "mae", SETTINGS, out=tmp_path / "mae", resume=True)
    assert result.new_steps == result.run.step - 2


def test_a_forgotten_state_would_be_noticed(tmp_path: Path) -> None:
    """The tests above can fail: a strategy that does not save what it remembers is not resumed
    exactly.
    """

    class Forgetful(Strategy):
        def __init__(self) -> None:
            self.seen = 0

        def weights(self, losses: Tensor, outs: Any, batch: Batch, run: Run) -> Tensor:
            self.seen += 1
            return torch.full_like(losses, 1 / self.seen)

    from noiseproof.losses import get_loss

    method = Method(get_loss("ce"), strategies=(Forgetful(),))
    expected = whole(method, tmp_path / "whole")
    stop_after([3], method, tmp_path / "stopped")
    with pytest.raises(AssertionError):
        same(left_behind(tmp_path / "stopped"), expected)


# Killed, for real


def killed_twice(methods: list[str], tmp_path: Path) -> None:
    """Killed between two checkpoints, then while the next one is being written; each time another
    interpreter.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(HELPERS.parents[1] / "src"),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PYTHONHASHSEED", None)
    for when, last in (("after-7", "step-000000005"), ("saving-10", "step-000000005")):
        command = [sys.executable, str(HELPERS / "killed_run.py"), str(tmp_path), when, *methods]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        assert done.returncode == 0, done.stderr[-3000:]
        for method in methods:
            found = latest(folder(tmp_path, method) / "checkpoints")
            assert found is not None and found.stem == last
    for method in methods:
        out = folder(tmp_path, method)
        torn = out / "checkpoints" / "step-000000010.safetensors.part"
        assert torn.exists()
        train(task(), method, SETTINGS, out=out, resume=True, samples=True)
        same(left_behind(out), whole(method, tmp_path / "whole" / out.name))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes to fork")
def test_killed_twice(tmp_path: Path) -> None:
    killed_twice([LC], tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes to fork")
def test_killed_twice_whatever_the_method(tmp_path: Path) -> None:
    killed_twice([method for method in [*NAMED, *MORE] if method not in SHORT], tmp_path)


# Asked to stop


class At(Strategy):
    """Sends this process signals in the middle of the step of a number, counted from 0."""

    def __init__(self, step: int, *signals: int) -> None:
        self.when, self.signals, self.survived = step, signals, False

    def targets(self, batch: Batch, run: Run) -> Batch:
        if run.step == self.when:
            for number in self.signals:
                os.kill(os.getpid(), number)
        return batch


def with_(*strategies: Strategy) -> Method:
    method = get_method("sln-mo:alpha=0.9", task(), SETTINGS)
    return Method(method.loss, method.head, (*method.strategies, *strategies))


PLAIN = replace(SETTINGS, checkpoint_steps=None)


@pytest.mark.parametrize(
    ("number", "step"),
    [(signal.SIGINT, 3), (signal.SIGTERM, STEPS - 1), (signal.SIGINT, 3 * STEPS - 1)],
)
def test_a_signal_ends_the_run_after_a_whole_step_with_a_checkpoint(
    tmp_path: Path, number: int, step: int
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    out = tmp_path / "asked"
    with pytest.raises(
        Interrupted, match=f"Stopped after step {step + 1} in epoch .* of 3. Resume to continue."
    ):
        train(task(), with_(At(step, number)), PLAIN, out=out, samples=True)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    found = checkpoints(out / "checkpoints")
    assert [load(path)["step"] for path in found] == [step + 1]
    # that step is not taken again
    train(task(), with_(At(step, number)), PLAIN, out=out, resume=True, samples=True)
    same(left_behind(out), whole(with_(At(-1)), tmp_path / "whole"))


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    reached: list[int] = []

    class Reached(Strategy):
        def after_step(self, run: Run) -> None:
            reached.append(run.step)

    settings = replace(PLAIN, checkpoint_steps=2)
    method = with_(At(3, signal.SIGTERM, signal.SIGINT), Reached())
    with pytest.raises(KeyboardInterrupt):
        train(task(), method, settings, out=tmp_path)
    assert reached == [0, 1, 2]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    path = latest(tmp_path / "checkpoints")
    assert path is not None and load(path)["step"] == 2


class AfterEpoch(Strategy):
    """Sends this process a signal while the metrics of an epoch, counted from 1, are being looked
    at.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        if metrics["epoch"] == self.epoch:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_between_epochs_waits_for_a_step(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=f"Stopped after step {STEPS + 1} in epoch 2 of 3"):
        train(task(), with_(AfterEpoch(1)), PLAIN, out=tmp_path / "asked", samples=True)
    train(task(), with_(AfterEpoch(1)), PLAIN, out=tmp_path / "asked", resume=True, samples=True)
    same(left_behind(tmp_path / "asked"), whole(with_(AfterEpoch(0)), tmp_path / "whole"))


def test_a_signal_after_the_last_step_finds_a_finished_run(tmp_path: Path) -> None:
    result = train(task(), with_(AfterEpoch(3)), PLAIN, out=tmp_path)
    assert (
        len(result.metrics) == 3
        and len(list(csv.DictReader((tmp_path / "record.csv").read_text().splitlines()))) == 3
    )


def test_in_a_thread_signals_are_left_to_others(tmp_path: Path) -> None:
    found: list[Result] = []
    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(
        target=lambda: found.append(train(task(), "ce", PLAIN, out=tmp_path / "thread"))
    )
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGINT) == before
    train(task(), "ce", PLAIN, out=tmp_path / "main")
    same(left_behind(tmp_path / "thread"), left_behind(tmp_path / "main"))


# What was prepared otherwise, and what is left of others


def stopped(data: Task, out: Path, settings: Settings = SETTINGS, **options: Any) -> None:
    with pytest.raises(Interrupted):
        train(data, "ce", settings, out=out, max_steps=3, **options)


@pytest.mark.parametrize("part", ["augment", "normalise"])
def test_inputs_that_are_prepared_otherwise_do_not_go_on(part: str, tmp_path: Path) -> None:
    data = task()
    other = Normalise((0.5,), (2.0,))
    stopped(data, tmp_path)
    with pytest.raises(BadCheckpoint, match=f"Expected {part}=.*to resume .*got 'Normalise"):
        train(replace(data, **{part: other}), "ce", SETTINGS, out=tmp_path, resume=True)
    again = replace(data, normalise=Normalise((0.25 + 1e-12,), (0.5,)), augment=Nameless())
    stopped(again, tmp_path / "again")
    # but for a last digit
    same_to_all = replace(again, normalise=Normalise((0.25,), (0.5,)), augment=Nameless())
    assert train(same_to_all, "ce", SETTINGS, out=tmp_path / "again", resume=True).new_steps


class Nameless(Transform):
    """As somebody writes one: Python shows it with an address."""

    def transform(self, x: Tensor, u: Tensor) -> Tensor:
        return x


def test_an_epochs_seconds_are_those_of_all_its_sittings(tmp_path: Path) -> None:
    """By a clock that passes one second with each look at it."""
    looks = iter(range(10**6))

    def sitting(**options: Any) -> Result:
        steps = training(
            Job(task(), "ce", SETTINGS, out=tmp_path),
            cpu(),
            clock=lambda: float(next(looks)),
            **options,
        )
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                return finished.value  # type: ignore[no-any-return]

    with pytest.raises(Interrupted):
        sitting(max_steps=3)
    spent = load(latest(tmp_path / "checkpoints"))["seconds"]  # type: ignore[arg-type]
    assert spent > 0
    assert sitting(resume=True).metrics[0]["seconds"] > spent


def test_numbers_of_numpy_are_saved_as_pythons(tmp_path: Path) -> None:
    settings = replace(
        SETTINGS, clip=np.float32(1.0), workers=np.int64(0), checkpoint_seconds=np.float32(0.0)
    )
    found = train(task(), "ce", settings, seed=np.int64(3), out=tmp_path)  # type: ignore[arg-type]
    assert load(latest(tmp_path / "checkpoints"))["config"]["seed"] == 3  # type: ignore[arg-type]
    assert found.metrics == train(task(), "ce", settings, seed=3, out=tmp_path, resume=True).metrics
    for seed, message in ((2**63, "below 2"), (1.5, "integer"), (-1, "at least 0")):
        with pytest.raises(ValueError, match=message):
            train(task(), "ce", SETTINGS, seed=seed)
    assert train(task(), "ce", SETTINGS, seed=2**53 + 1).run.random.seed == 2**53 + 1
    with pytest.raises(
        ValueError, match="Expected `max_steps` to be an integer of at least 1, got 0"
    ):
        train(task(), "ce", SETTINGS, max_steps=0)


def test_what_a_run_without_a_checkpoint_left_is_not_the_next_ones(tmp_path: Path) -> None:
    def kill(epoch: int, step: int, steps: int, row: object) -> None:
        if epoch == 1:
            raise KeyboardInterrupt

    never = replace(SETTINGS, checkpoint_steps=None, checkpoint_seconds=1e9)
    held_out = prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1)
    with pytest.raises(KeyboardInterrupt):
        train(held_out, "mae", never, out=tmp_path, samples=True, progress=kill)
    assert (tmp_path / "best.safetensors").exists() and (
        tmp_path / "samples" / "epoch-0001.safetensors"
    ).exists()
    (tmp_path / "samples" / "mine.txt").write_text("mine")
    train(replace(task(), validation=None), "gce", never, out=tmp_path)
    assert not (tmp_path / "best.safetensors").exists()
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["mine.txt"]


class Tied(Backbone):
    """Two layers that share their weights."""

    num_features = 8

    def __init__(self, *, in_features: int = 2, init: str = "pytorch") -> None:
        super().__init__(init)
        self.first, self.second, self.third = (
            nn.Linear(in_features, 8),
            nn.Linear(8, 8),
            nn.Linear(8, 8),
        )
        self.third.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.third(self.second(self.first(x.flatten(1)).relu()).relu()).relu()
        return out


def test_tied_weights_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS._factories, "test-tied", Tied)
    held_out = prepare(get_dataset("digits"), "symmetric:rate=0.4", validation=0.1)
    train(held_out, "ce", replace(SETTINGS, model="test-tied"), out=tmp_path)
    best = load_file(tmp_path / "best.safetensors")
    assert torch.equal(
        best["models.0.backbone.second.weight"], best["models.0.backbone.third.weight"]
    )
