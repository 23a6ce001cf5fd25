"""Runs stacked into one network: each learns what it would learn alone, up to the rounding of
float64.
"""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from killed_run import make_task
from lightning_fabric import Fabric
from torch import Tensor, nn

from noiseproof.accelerate import Job, Outcome, fit_many
from noiseproof.accelerate import stacks as stacks_module
from noiseproof.accelerate.networks import StackedLinear
from noiseproof.accelerate.stacks import Joint, JointSGD, Stacked, StackPool
from noiseproof.core.output import Output
from noiseproof.losses import get_loss
from noiseproof.models import MODELS
from noiseproof.models.base import Backbone
from noiseproof.strategies import STRATEGIES as REGISTERED
from noiseproof.strategies import Batch, Run, Strategy
from noiseproof.train import Diverged, Interrupted, Method, Result, Settings, train
from noiseproof.train.guard import StopRequest
from noiseproof.train.step import Stepper

CNN = Settings(
    model="wrn-28-2:depth=10,width=1",
    epochs=2,
    batch_size=24,
    optimizer="sgd:lr=0.02,momentum=0.9",
    clip=9,
)
METHODS = [
    "ce",
    "gce:q=0.5",
    "sln-mo",
    "noise-f",
    "noise-theta",
    "forward:warmup=1",
    "elr",
    "sigua",
    "sop",
    "remargin:loss=mae,shift=2",
    "sln-mo-lc:start=1",
]


def double() -> Fabric:
    return Fabric(accelerator="cpu", devices=1, precision="64-true")


def jobs(
    methods: list[str] = METHODS, settings: Settings = CNN, out: Path | None = None
) -> list[Job]:
    task = make_task()
    return [
        Job(task, method, settings, seed, None if out is None else out / str(seed))
        for seed, method in enumerate(methods)
    ]


def unaugmented(jobs: list[Job]) -> list[Job]:
    task = replace(jobs[0].task, augment=jobs[0].task.normalise)
    return [replace(job, task=task) for job in jobs]


def fly(jobs: list[Job], **options: Any) -> list[Outcome]:
    return fit_many(
        jobs, fabric=double(), at_once=options.pop("at_once", len(jobs)), stack=True, **options
    )


def assert_as_alone(job: Job, outcome: Outcome) -> None:
    alone = train(job.task, job.method, job.settings, seed=job.seed, fabric=double())
    assert isinstance(outcome, Result), outcome
    pairs = zip(
        *([model.plain for model in r.run.models] + r.models for r in (alone, outcome)), strict=True
    )
    for a, b in pairs:
        for (name, left), right in zip(
            a.state_dict().items(), b.state_dict().values(), strict=True
        ):
            torch.testing.assert_close(
                right, left, rtol=1e-7, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}"
            )
    for one, other in zip(alone.metrics, outcome.metrics, strict=True):
        assert {k: v for k, v in other.items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in one.items() if k != "seconds"}, rel=1e-7, nan_ok=True
        )


def stacks(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Sizes of the stacks that were made."""
    return [
        int(record.args[0]) for record in caplog.records if record.msg.endswith("into one network")
    ]  # type: ignore[index,arg-type]


@pytest.fixture(autouse=True)
def listen(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, "noiseproof")
    monkeypatch.setitem(MODELS._factories, "test-leaky", Leaky)


def test_each_learns_what_it_would_alone(caplog: pytest.LogCaptureFixture) -> None:
    for job, outcome in zip(jobs(), fly(jobs()), strict=True):
        assert_as_alone(job, outcome)
    assert sorted(stacks(caplog)) == [3, 8]


def test_several_steps_at_once_pause_where_a_checkpoint_is_due(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pauses: dict[int, list[int]] = {2: [], 3: [], 100: []}

    def note(every: int) -> Any:
        def progress(epoch: int, step: int, steps: int, row: object) -> None:
            if row is None:
                pauses[every].append(epoch * steps + step)

        return progress

    together = [
        replace(job, settings=replace(CNN, checkpoint_steps=every), progress=note(every))
        for job, every in zip(jobs(["ce", "gce", "sln-mo"], out=tmp_path), pauses, strict=True)
    ]
    for job, outcome in zip(together, fly(together), strict=True):
        assert_as_alone(job, outcome)
    assert stacks(caplog) == [3]
    # Epochs have five steps: checkpoints after every second or third, and the ends of the epochs.
    assert pauses[100] == [5, 10]
    for every in (2, 3):
        assert {*range(every, 11, every), 5, 10} <= set(pauses[every]), pauses[every]


def test_only_like_runs_are_stacked(caplog: pytest.LogCaptureFixture) -> None:
    mixed = [
        *jobs(["ce", "co-teaching", "ce & class-balanced:per_class=5", "dividemix:warmup=1", "ln"]),
        *jobs(["ce", "mae"], replace(CNN, model="mlp:hidden=[6]")),
        *jobs(["ce"], replace(CNN, batch_size=25)),
        *jobs(["gce", "het:samples=5", "het:samples=9"]),
    ]
    for job, outcome in zip(mixed, fly(mixed), strict=True):
        assert_as_alone(job, outcome)
    assert sorted(stacks(caplog)) == [2, 2, 2]


def test_who_cannot_be_stacked_goes_alone(caplog: pytest.LogCaptureFixture) -> None:
    wide = replace(CNN, model="wrn-28-2:depth=10,width=3", epochs=1)
    for job, outcome in zip(jobs(["ce", "gce"], wide), fly(jobs(["ce", "gce"], wide)), strict=True):
        assert_as_alone(job, outcome)
    assert stacks(caplog) == [] and "channels fill a GPU by themselves" in caplog.text


def test_the_others_go_on_when_one_leaves(caplog: pytest.LogCaptureFixture) -> None:
    """One diverges, one ends after its first epoch."""
    all_jobs = jobs(["ce", "gce", "sln", "ce"])
    all_jobs[1] = replace(all_jobs[1], settings=replace(CNN, optimizer="sgd:lr=1e308"))
    all_jobs[2] = replace(all_jobs[2], settings=replace(CNN, epochs=1))
    outcomes = fly(all_jobs)
    assert isinstance(outcomes[1], Diverged)
    for i in (0, 2, 3):
        assert_as_alone(all_jobs[i], outcomes[i])
    assert stacks(caplog)[0] == 4 and stacks(caplog)[-1] == 2


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[int, int]]]:
    """The groups of one loss in each stack whose members did all but their updates together."""
    groups: list[list[tuple[int, int]]] = []
    made = Joint.__init__

    def remember(self: Joint, members: Sequence[Stacked], network: Any) -> None:
        made(self, members, network)
        groups.append(self.groups)

    monkeypatch.setattr(Joint, "__init__", remember)
    return groups


def test_runs_without_strategies_do_all_but_their_updates_together(
    joined: list[list[tuple[int, int]]],
) -> None:
    """Among them one that diverges: the others go on from the tables that they shared."""
    all_jobs = unaugmented(jobs(["ce", "ce", "gce:q=0.5", "mae", "mae", "ce"]))
    all_jobs[3] = replace(all_jobs[3], settings=replace(CNN, optimizer="sgd:lr=1e308"))
    outcomes = fly(all_jobs)
    assert joined[0] == [(0, 2), (2, 3), (3, 5), (5, 6)] and joined[-1] == [
        (0, 2),
        (2, 3),
        (3, 4),
        (4, 5),
    ]
    assert isinstance(outcomes[3], Diverged)
    for i in (0, 1, 2, 4, 5):
        assert_as_alone(all_jobs[i], outcomes[i])


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of members of each joint update."""
    sizes: list[int] = []
    made = JointSGD.__init__

    def remember(self: JointSGD, steppers: Sequence[Stepper], network: Any) -> None:
        made(self, steppers, network)
        sizes.append(len(steppers))

    monkeypatch.setattr(JointSGD, "__init__", remember)
    return sizes


def with_optimizers(specs: Sequence[str], **settings: Any) -> list[Job]:
    changed = [replace(CNN, clip=0, optimizer=spec, **settings) for spec in specs]
    return [
        replace(job, settings=each)
        for job, each in zip(unaugmented(jobs(["ce"] * len(specs))), changed, strict=True)
    ]


@pytest.mark.parametrize(
    "options", ["momentum=0.9", "momentum=0.5,weight_decay=0.1", "momentum=0.9,nesterov=true"]
)
def test_one_update_serves_members_of_different_learning_rates(
    options: str, updates: list[int]
) -> None:
    """One of them diverges: the others go on with momenta of their own."""
    together = with_optimizers(
        [f"sgd:lr={rate},{options}" for rate in (0.02, 1e300, 0.05)], schedule="cosine"
    )
    outcomes = fly(together)
    assert isinstance(outcomes[1], Diverged)
    for i in (0, 2):
        assert_as_alone(together[i], outcomes[i])
    assert updates == [3, 2]


@pytest.mark.parametrize("few", [0, 128])
def test_linear_layers_leave_their_gradients_to_a_joint_update(
    few: int, updates: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of few rows; one of the layers is called twice in a step, and one member diverges."""
    monkeypatch.setattr("noiseproof.accelerate.networks.FEW_ROWS", few)
    monkeypatch.setattr("noiseproof.accelerate.stacks.SPARE", 10**9 if few else 16)
    left: list[nn.Module] = []
    made = stacks_module.update_products

    def remember(layer: Any, *values: Any) -> None:
        left.append(layer)
        made(layer, *values)

    monkeypatch.setattr(stacks_module, "update_products", remember)
    rates = (0.02, 1e300, 0.05)
    together = with_optimizers(
        [f"sgd:lr={r},momentum=0.9,nesterov=true" for r in rates], model="test-leaky:odd=twice"
    )
    outcomes = fly(together)
    assert isinstance(outcomes[1], Diverged)
    for i in (0, 2):
        assert_as_alone(together[i], outcomes[i])
    # three layers, in two stacks
    assert updates == [3, 2] and (len(set(left)) == 6 if few else not left)


def test_rounded_weights_are_those_of_the_last_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16, where the products of a CPU are the same numbers with deferred gradients and
    without.
    """
    ends = []
    for few in (128, 0):
        monkeypatch.setattr("noiseproof.accelerate.networks.FEW_ROWS", few)
        specs = ["sgd:lr=0.05,momentum=0.9", "sgd:lr=0.01,momentum=0.9"]
        together = with_optimizers(specs, model="mlp:hidden=[16,8]")
        fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
        ends.append(fit_many(together, fabric=fabric, at_once=2, stack=True))
    for one, other in zip(*ends, strict=True):
        assert isinstance(one, Result) and isinstance(other, Result), (one, other)
        for left, right in zip(
            one.models[0].parameters(), other.models[0].parameters(), strict=True
        ):
            assert torch.equal(left, right)


@pytest.mark.parametrize("other", ["sgd:lr=0.02,momentum=0.5", "sgd:lr=0.02,momentum=0", "adam"])
def test_different_optimisers_make_their_updates_apart(other: str, updates: list[int]) -> None:
    pair = with_optimizers(["sgd:lr=0.02,momentum=0.9", other])
    for job, outcome in zip(pair, fly(pair), strict=True):
        assert_as_alone(job, outcome)
    assert updates == []


def test_a_joint_update_resumes(tmp_path: Path, updates: list[int]) -> None:
    specs = ["sgd:lr=0.02,momentum=0.9", "sgd:lr=0.01,momentum=0.9"]
    together = [
        replace(job, out=tmp_path / str(job.seed))
        for job in with_optimizers(specs, checkpoint_steps=3)
    ]

    def stop(epoch: int, step: int, steps: int, row: object) -> None:
        if (epoch, step) == (1, 1) and row is None:  # the sixth step
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        fly([replace(together[0], progress=stop), together[1]])
    for job, outcome in zip(together, fly(together), strict=True):
        assert_as_alone(replace(job, out=None), outcome)
    assert updates == [2, 2]


STRATEGIES = {
    "augmented": "ce",
    "noise": "sln:sigma=0.3,until=1,max_norm=none",
    "average": "gce:q=0.5 & momentum:alpha=0.9",
    "both": "sln-mo:alpha=0.8,max_norm=none",
    "clipped": "sln-mo:alpha=0.8,max_norm=0.5",
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_runs_of_the_same_strategies_make_their_steps_together(
    name: str, joined: list[list[tuple[int, int]]], updates: list[int]
) -> None:
    """With crops and flips. One diverges: the others go on with averages of their own."""
    settings = replace(
        CNN, clip=None, optimizer="sgd:lr=0.02,momentum=0.9,weight_decay=0.01", epochs=3
    )
    together = jobs([STRATEGIES[name]] * 4, settings)
    assert together[0].task.augment.columns  # type: ignore[union-attr]
    together[1] = replace(
        together[1],
        settings=replace(settings, optimizer="sgd:lr=1e300,momentum=0.9,weight_decay=0.01"),
    )
    outcomes = fly(together)
    assert isinstance(outcomes[1], Diverged)
    for i in (0, 2, 3):
        assert_as_alone(together[i], outcomes[i])
        for value in outcomes[i].models[0].parameters():  # type: ignore[union-attr]
            assert value.untyped_storage().nbytes() == value.numel() * 8
    assert {groups[-1][1] for groups in joined} == {4, 3} and updates[0] == 4 and updates[-1] == 3


@pytest.mark.parametrize("name", ["both"])
def test_joint_strategies_resume(
    name: str, tmp_path: Path, joined: list[list[tuple[int, int]]]
) -> None:
    settings = replace(CNN, clip=None, checkpoint_steps=3)

    def stop(epoch: int, step: int, steps: int, row: object) -> None:
        if (epoch, step) == (1, 1) and row is None:  # the sixth step
            os.kill(os.getpid(), signal.SIGTERM)

    together = jobs([STRATEGIES[name]] * 2, settings, tmp_path)
    with pytest.raises(Interrupted):
        fly([replace(together[0], progress=stop), together[1]])
    for job, outcome in zip(together, fly(together), strict=True):
        assert_as_alone(replace(job, out=None), outcome)
    assert len(joined) >= 2


@pytest.mark.parametrize("other", ["ce & momentum:alpha=0.9", "sln", "noise-f"])
def test_runs_that_do_other_things_make_their_steps_apart(
    other: str, joined: list[list[tuple[int, int]]]
) -> None:
    pair = unaugmented(jobs(["ce", other]))
    for job, outcome in zip(pair, fly(pair), strict=True):
        assert_as_alone(job, outcome)
    assert joined == []


class Alternates(Strategy):
    """Leaves every other epoch as it is, which a copy for several runs would not know."""

    capturable = joins = True
    name = "alternates"
    is_on = False

    def start_epoch(self, run: Run) -> None:
        self.is_on = run.epoch % 2 == 1

    def targets(self, batch: Batch, run: Run) -> Batch:
        return (
            batch.with_target(1 - batch.soft_target(run.num_classes, batch.x))
            if self.is_on
            else batch
        )


class Unregistered(Alternates):
    """Has no name by which two of them could be told apart."""

    name = ""
    start_epoch = Strategy.start_epoch
    is_on = True


@pytest.mark.parametrize("cls", [Alternates, Unregistered])
def test_strategies_that_one_copy_cannot_serve_make_their_steps_apart(
    cls: type[Strategy], joined: list[list[tuple[int, int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(REGISTERED._factories, "alternates", cls)
    methods = [Method(get_loss("ce"), strategies=(cls(),)) for _ in range(2)]
    pair = [
        replace(job, method=method) for job, method in zip(jobs(["ce", "ce"]), methods, strict=True)
    ]
    outcomes = fly(pair)
    assert joined == [] and all(isinstance(outcome, Result) for outcome in outcomes), outcomes


def test_factors_of_a_backward_pass_that_failed_are_forgotten(
    updates: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that ran out of memory while its graph was captured."""
    begun, left = stacks_module.RunStack._joint_step, list[Any]()

    def step(self: Any, network: Any, size: int) -> None:
        for layer, _ in network.layers:
            if layer.rounded is not None:
                seats, outputs, *inputs = layer.weight.shape
                layer.factors = (
                    torch.ones(seats, 3, outputs),
                    torch.ones(seats, 3, math.prod(inputs)),
                )
                left.append(layer)
        begun(self, network, size)

    monkeypatch.setattr(stacks_module.RunStack, "_joint_step", step)
    together = with_optimizers(["sgd:lr=0.02,momentum=0.9"] * 2, model="test-leaky:odd=twice")
    for job, outcome in zip(together, fly(together), strict=True):
        assert_as_alone(job, outcome)
    assert updates == [2] and left


class Fails(Strategy):
    """Raises in the fourth step."""

    capturable = True
    name = ""

    def __init__(self, hook: str) -> None:
        self.hook = hook

    def _maybe(self, hook: str, run: Run) -> None:
        if hook == self.hook and run.step == 3:
            raise ArithmeticError("It fails.")

    def targets(self, batch: Batch, run: Run) -> Batch:
        self._maybe("targets", run)
        return batch

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> None:
        self._maybe("weights", run)

    def after_step(self, run: Run) -> None:
        self._maybe("after_step", run)


def test_a_stack_that_fails_lets_its_members_go_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the third step, after the first layers have counted its batch."""
    steps = iter(range(10**6))
    forward = StackedLinear.forward

    def fail(self: StackedLinear, x: Tensor) -> Tensor:
        if next(steps) == 2:
            raise MemoryError("No memory left.")
        return forward(self, x)

    monkeypatch.setattr(StackedLinear, "forward", fail)
    for job, outcome in zip(jobs(["ce", "sln"]), fly(jobs(["ce", "sln"])), strict=True):
        assert_as_alone(job, outcome)
    assert "are not stacked: MemoryError: No memory left." in caplog.text


def test_a_step_that_fails_is_made_again_by_who_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the third step's backward pass, after memories have moved."""
    steps, backward = iter(range(10**6)), Fabric.backward

    def fail(self: Fabric, *args: Any, **options: Any) -> None:
        if next(steps) == 2:
            raise MemoryError("No memory left.")
        backward(self, *args, **options)

    for method in ("elr", "nal:start=0"):
        together = jobs([method, method])
        with monkeypatch.context() as patch:
            patch.setattr(Fabric, "backward", fail)
            outcomes = fly(together)
        steps = iter(range(10**6))
        for job, outcome in zip(together, outcomes, strict=True):
            assert_as_alone(job, outcome)
            alone = train(job.task, job.method, job.settings, seed=job.seed, fabric=double())
            for a, b in zip(alone.strategies, outcome.strategies, strict=True):  # type: ignore[union-attr]
                for one, other in zip(
                    a.state_dict().values(), b.state_dict().values(), strict=True
                ):
                    torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


def test_a_stack_that_cannot_be_made_lets_its_members_go_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any) -> None:
        raise MemoryError("No memory left.")

    monkeypatch.setattr("noiseproof.accelerate.stacks.Stack", fail)
    for job, outcome in zip(jobs(["ce", "sln"]), fly(jobs(["ce", "sln"])), strict=True):
        assert_as_alone(job, outcome)


@pytest.mark.parametrize("hook", ["targets", "weights", "after_step"])
def test_who_fails_in_a_step_fails_alone(hook: str) -> None:
    """And the others make that step once: the memory of ``elr`` and batch statistics would tell."""
    all_jobs = jobs(["ce", "gce", "elr"])
    all_jobs[1] = replace(all_jobs[1], method=Method(get_loss("ce"), "linear", (Fails(hook),)))
    outcomes = fly(all_jobs)
    assert isinstance(outcomes[1], ArithmeticError)
    for i in (0, 2):
        assert_as_alone(all_jobs[i], outcomes[i])


@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize(
    "methods", [["ce", "sln-mo", "elr"], ["gce", "ce", "ce"]], ids=["apart", "together"]
)
def test_an_interrupted_stack_goes_on_where_it_was(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    who: int,
    methods: list[str],
) -> None:
    # so that an epoch of five steps can stop inside
    monkeypatch.setattr("noiseproof.train.step.AT_ONCE", 2)

    def stop(epoch: int, step: int, steps: int, row: object) -> None:
        if (
            (epoch, step) == (1, 2)
            and row is None
            and not caplog.records[-1].msg.startswith("stop")
        ):
            logging.getLogger("noiseproof").info("stop")
            os.kill(os.getpid(), signal.SIGTERM)

    changed = unaugmented if "gce" in methods else list
    stopped = changed(jobs(methods, out=tmp_path))
    stopped[who] = replace(stopped[who], progress=stop)
    with pytest.raises(Interrupted, match="Stopped after 0 of 3 runs"):
        fly(stopped)
    # all after the same step
    assert len({path.name for path in tmp_path.glob("*/checkpoints/*")}) == 1
    caplog.clear()
    again = fly(changed(jobs(methods, out=tmp_path)))
    assert stacks(caplog) == [3]
    for job, outcome in zip(changed(jobs(methods)), again, strict=True):
        assert_as_alone(job, outcome)


def test_finished_runs_own_their_weights() -> None:
    together, wide = (
        jobs(["ce", "gce"]),
        jobs(["ce", "gce"], replace(CNN, model="wrn-28-2:depth=10,width=3", epochs=1)),
    )
    together[1] = replace(together[1], settings=replace(CNN, epochs=1))
    for outcome in fly([*together, *wide]):
        assert isinstance(outcome, Result)
        for value in outcome.models[0].parameters():
            assert value.untyped_storage().nbytes() == value.numel() * 8 and value.is_contiguous()


def test_stacks_are_let_go_when_their_members_have_ended() -> None:
    pools: list[StackPool] = []
    made = StackPool.__init__

    def remember(self: StackPool, stop: StopRequest) -> None:
        made(self, stop)
        pools.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StackPool, "__init__", remember)
        fly(jobs(["ce", "gce"], replace(CNN, epochs=1)))
    assert [stack.network for stack in pools[0].open.values()] == [None]


class Leaky(Backbone):
    """Says nothing of its ``slope``; ``odd`` makes it something that no stack can train."""

    num_features = 6

    def __init__(self, *, in_channels: int = 1, slope: float = 0.1, odd: str = "") -> None:
        super().__init__("pytorch")
        self.slope, self.odd = slope, odd
        self.conv = nn.Conv2d(in_channels, 6, 3)
        self.again = nn.Linear(6, 6)
        self.last = self.again if odd == "shared" else nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        if odd == "tied":
            self.last.weight = self.again.weight
        if odd == "frozen":
            self.conv.weight.requires_grad_(False)

    def train(self, mode: bool = True) -> Leaky:
        super().train(mode)
        if self.odd == "evaluated":
            self.norm.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.again(F.leaky_relu(self.conv(x), self.slope).mean((2, 3))))
        x = self.again(x) if self.odd == "twice" else x
        if self.odd == "draws":
            x = F.dropout(x, 0.3, self.training)
        return self.last(x)  # type: ignore[no-any-return]


def test_what_differs_beneath_the_layers_is_not_stacked(caplog: pytest.LogCaptureFixture) -> None:
    two = [replace(CNN, model=f"test-leaky:slope={slope}") for slope in (0.1, 0.5)]
    all_jobs = [*jobs(["ce"], two[0]), *jobs(["ce"], two[1])]
    for job, outcome in zip(all_jobs, fly(all_jobs), strict=True):
        assert_as_alone(job, outcome)
    assert stacks(caplog) == []


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ("shared", "share their weights"),
        ("tied", "share their weights"),
        ("frozen", "frozen"),
        ("evaluated", "not trained"),
        ("draws", "draw random numbers"),
    ],
)
def test_what_a_stack_would_train_otherwise_goes_alone(
    odd: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    two = jobs(["ce", "gce"], replace(CNN, model=f"test-leaky:odd={odd}", epochs=1))
    for job, outcome in zip(two, fly(two), strict=True):
        assert_as_alone(job, outcome)
    assert stacks(caplog) == [] and why in caplog.text
