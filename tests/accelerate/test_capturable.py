"""What strategies promise to CUDA graphs, checked without a GPU.

A captured step is replayed as it was: the same operations with the same numbers on the same memory.
So as long as a strategy says the same ``phase``, its hooks inside a step must do just that, and
must never look at a value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import Any

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from noiseproof.accelerate.graphs import IN_STEP
from noiseproof.data import get_dataset
from noiseproof.data.augment import Compose
from noiseproof.strategies import STRATEGIES, Batch, Run, Strategy
from noiseproof.strategies.selection import SmallLoss
from noiseproof.train import Settings, Task, get_method, prepare, train
from noiseproof.train.methods import Method

METHODS = [
    "ce & sln:sigma=0.5,until=2 & momentum:alpha=0.9 & label-correction:start=3",
    "noise-f & noise-theta",
    "nal:start=1,every=2,floor=1e-4",
    "elr",
    "sop",
    "ce & progressive-stopping:start=1,block_epochs=2,head_epochs=1,released=true",
    "elr+:reweigh=true",
    "ce & small-loss:forget=0.4,ramp=3,start=1",
    "ce & co-teaching:forget=0.4,ramp=2",
    "sigua:forget=0.4,ramp=2",
    "backward & sigua-bc:warmup=1",
    "tgce:start=1,every=2,k=0.1",
]
SETTINGS = Settings(model="mlp:hidden=[8]", epochs=6, batch_size=24, optimizer="adam:lr=0.01")
WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique",
    "is_nonzero",
    "repeat_interleave",
    "item",
)


class Operations(TorchDispatchMode):
    """Writes down every operation: its name, its numbers, the shapes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Hashable] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_flatten((args, kwargs))[0]
        masks = "index" in str(func) and any(
            isinstance(v, Tensor) and v.dtype is torch.bool for v in leaves[1:]
        )
        assert not masks and not any(word in str(func) for word in WAITS), (
            f"{func} waits for the GPU"
        )
        self.seen.append((str(func), *map(_known, leaves)))
        return func(*args, **(kwargs or {}))


def _known(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return leaf.dtype, tuple(leaf.shape)
    if isinstance(leaf, (torch.Generator, torch.ScriptObject)):  # whose repr has its address
        return type(leaf).__name__
    return repr(leaf)


def _tensors_of(strategy: Strategy) -> list[Tensor]:
    return [value for value in tree_flatten(strategy.state_dict())[0] if isinstance(value, Tensor)]


class Replayable:
    """Watches the hooks of capturable strategies."""

    def __init__(self, strategies: tuple[Strategy, ...]) -> None:
        self.found: dict[Hashable, set[Hashable]] = defaultdict(set)  # by what a graph is kept for
        self.phases: dict[str, set[Hashable]] = defaultdict(set)
        for strategy in strategies:
            if strategy.capturable:
                for hook in IN_STEP:
                    setattr(strategy, hook, self._watched(strategy, hook))

    def _watched(self, strategy: Strategy, name: str) -> Any:
        hook = getattr(strategy, name)

        def watched(*args: Any) -> Any:
            run = next(value for value in args if isinstance(value, Run))
            phase = strategy.phase(run)
            self.phases[strategy.name].add(phase)
            # an optimiser makes its state in the first step, which is not captured
            memory = len(_tensors_of(strategy))
            with Operations() as operations:
                result = hook(*args)
            self.found[strategy.name, name, run.count, phase, memory].add(tuple(operations.seen))
            tensors = _tensors_of(strategy)
            self.found[strategy.name, "memory", phase, len(tensors)].add(
                tuple(tensor.data_ptr() for tensor in tensors)
            )
            groups = [group for model in run.models for group in model.optimizer.param_groups]
            settings = [
                {k: v for k, v in group.items() if k not in ("params", "lr")} for group in groups
            ]
            if name in ("gradients", "after_step"):
                self.found[strategy.name, "optimiser", phase].add(repr(settings))
            return result

        return watched

    @property
    def different(self) -> list[Hashable]:
        return [kind for kind, found in self.found.items() if len(found) > 1]


@pytest.fixture(scope="module")
def task() -> Task:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    assert task.normalise is not None
    return Task(
        task.train.subset(torch.arange(60)),
        augment=Compose([task.normalise]),
        normalise=task.normalise,
    )


@pytest.fixture(autouse=True)
def without_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU ``one_hot`` looks at its labels; on a GPU it does not."""
    monkeypatch.setattr(
        "torch.nn.functional.one_hot", lambda labels, K: torch.eye(K, dtype=torch.int64)[labels]
    )


class Watch(Strategy):
    """Sees the others as the loop has them, which is in copies."""

    seen: Replayable

    def __init__(self, others: tuple[Strategy, ...]) -> None:
        self.others = others

    def setup(self, run: Run) -> None:
        self.seen = Replayable(self.others)


def watch(method: Method, task: Task) -> Replayable:
    watched = Method(method.loss, method.head, (*method.strategies, Watch(method.strategies)))
    last = train(task, watched, SETTINGS, fabric=Fabric(accelerator="cpu", devices=1)).strategies[
        -1
    ]
    assert isinstance(last, Watch)
    return last.seen


@pytest.mark.parametrize("spec", METHODS)
def test_same_phase_same_operations(spec: str, task: Task) -> None:
    method = get_method(spec, task, SETTINGS)
    seen = watch(method, task)
    assert seen.found and not seen.different
    has_phases = any(strategy.overrides("phase") for strategy in method.strategies)
    assert not has_phases or any(len(phases) > 1 for phases in seen.phases.values())


def test_every_capturable_strategy_is_among_them(task: Task) -> None:
    used = {
        strategy.name
        for spec in METHODS
        for strategy in get_method(spec, task, SETTINGS).strategies
    }
    assert {name for name in STRATEGIES if STRATEGIES[name].capturable} <= used  # type: ignore[attr-defined]


def test_a_wrong_promise_would_be_noticed(task: Task) -> None:
    class Silent(SmallLoss):
        def phase(self, run: Run) -> None:
            return None

        def weights(self, losses: Tensor, outs: Any, batch: Batch, run: Run) -> Tensor:
            kept = batch.count - run.epoch  # another number in each epoch
            return self.select(losses.argsort(1).T, kept, batch, run)

    class Looking(SmallLoss):
        def weights(self, losses: Tensor, outs: Any, batch: Batch, run: Run) -> Tensor:
            return torch.full_like(losses, float(losses.max()))

    ce = get_method("ce", task, SETTINGS).loss
    assert watch(Method(ce, strategies=(Silent(0.4, ramp=2),)), task).different
    with pytest.raises(AssertionError, match="_local_scalar_dense.* waits for the GPU"):
        watch(Method(ce, strategies=(Looking(0.4),)), task)
