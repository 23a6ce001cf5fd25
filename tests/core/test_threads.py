"""The number of threads follows the size of the work, and is as before afterwards."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noiseproof.audit import audit
from noiseproof.core.cluster import WORK, choose_threads, fixed_threads, threads_for
from noiseproof.data import get_dataset
from noiseproof.estimator import NoisyLabelClassifier
from noiseproof.train import Settings, prepare, train


@pytest.fixture(autouse=True)
def three_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("work", "limit", "expected"),
    [
        (0, 8, 1),
        (WORK - 1, 8, 1),
        (2 * WORK - 1, 8, 1),
        (2 * WORK, 8, 2),
        (100 * WORK, 8, 8),
        (100 * WORK, 1, 1),
    ],
)
def test_choice_is_a_function_of_work_and_limit(work: float, limit: int, expected: int) -> None:
    assert choose_threads(work, limit) == expected


def test_threads_of_a_block_are_restored_also_after_an_error() -> None:
    with threads_for(2 * WORK) as number:
        assert number == torch.get_num_threads() == 2
        with threads_for(100 * WORK) as inner:  # no more than around it
            assert inner == 2
    assert torch.get_num_threads() == 3
    with pytest.raises(KeyError), threads_for(0):
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == 3


def test_a_fixed_number_overrides_the_choice() -> None:
    with fixed_threads(2):
        for work in (0, 100 * WORK):
            with threads_for(work) as number:
                assert number == torch.get_num_threads() == 2
    with fixed_threads(None), threads_for(0) as number:
        assert number == 1
    assert torch.get_num_threads() == 3
    with pytest.raises(ValueError, match="threads"), fixed_threads(0):
        pass


def test_a_small_audit_runs_on_one_thread_and_restores_the_number() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    x = (y[:, None] + rng.normal(size=(60, 3))).astype(np.float32)
    seen = set()

    def watch(stage: str, done: int, total: int | None) -> None:
        seen.add(torch.get_num_threads())

    by_size = audit(x, labels=y, epochs=1, progress=watch)
    assert seen == {1} and torch.get_num_threads() == 3
    with fixed_threads(2):
        seen.clear()
        audit(x, labels=y, epochs=1, progress=watch)
    assert seen == {2}
    with fixed_threads(1):
        one = audit(x, labels=y, epochs=1)
    np.testing.assert_array_equal(by_size.label_issues.quality, one.label_issues.quality)


def test_a_run_trains_on_as_many_threads_as_its_steps_occupy() -> None:
    task, seen = prepare(get_dataset("digits")), set()

    def watch(epoch: int, step: int, steps: int, metrics: object) -> None:
        seen.add(torch.get_num_threads())

    def weights(settings: Settings) -> list[torch.Tensor]:
        seen.clear()
        return [*train(task, "ce", settings, progress=watch).models[0].parameters()]

    small = Settings("mlp:hidden=[16]", epochs=1)
    by_size = weights(small)
    assert seen == {1} and torch.get_num_threads() == 3
    with fixed_threads(2):
        weights(small)
    assert seen == {2}
    with fixed_threads(1):
        assert all(map(torch.equal, by_size, weights(small)))
    # more than 2·WORK/64 weights
    weights(Settings("mlp:hidden=[1024,1024]", epochs=1, batch_size=64))
    assert seen == {2} and torch.get_num_threads() == 3


def test_an_estimator_is_fitted_on_as_many_threads_as_its_steps_occupy() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    x = (y[:, None] + rng.normal(size=(60, 3))).astype(np.float32)
    seen = set()

    def watch(module: torch.nn.Module, *_: object) -> None:
        if module.training:
            seen.add(torch.get_num_threads())

    handle = torch.nn.modules.module.register_module_forward_hook(watch)
    try:
        NoisyLabelClassifier("ce", epochs=1, random_state=0).fit(x, y)
    finally:
        handle.remove()
    assert seen == {1} and torch.get_num_threads() == 3
