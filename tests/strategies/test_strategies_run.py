"""The parts of a run: models, processes, sweeps, and what strategies remember."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import handmade_run
import pytest
import torch
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.data import get_dataset
from noiseproof.losses import get_loss
from noiseproof.strategies import Batch, Run, Strategy, log_probs, per_row, predict_log_probs, sweep
from noiseproof.strategies.averages import TrainingAverages
from noiseproof.strategies.processes import Processes
from noiseproof.train import prepare

K = 10


def make_run(models: int = 2) -> Run:
    """A run with more rows than one forward pass of a sweep takes."""
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    task = replace(task, train=task.train.subset(torch.arange(1100)))
    build = partial(torch.optim.SGD, lr=0.5)
    return handmade_run.make_run(task, models=models, epochs=3, build=build)


def of_process(rank: int, world_size: int) -> Processes:
    return Processes(
        SimpleNamespace(world_size=world_size, global_rank=rank, device=torch.device("cpu"))
    )  # type: ignore[arg-type]


def make_batch(count: int) -> Batch:
    rows = torch.arange(count)
    return Batch(rows, rows, rows, rows, rows, count=count)


@pytest.mark.parametrize(("count", "world_size"), [(7, 1), (6, 2), (7, 2), (7, 3), (1, 4)])
def test_processes_share_the_rows_of_a_step_evenly(count: int, world_size: int) -> None:
    values = torch.randn(count, 2, generator=torch.Generator().manual_seed(0))
    processes = [of_process(rank, world_size) for rank in range(world_size)]
    shares = [each.share(values) for each in processes]
    assert len({len(share) for share in shares}) == 1
    assert torch.equal(torch.cat(shares)[:count], values)  # what ``gather`` computes
    places = torch.cat([each.places(count) for each in processes])
    assert places.tolist() == list(range(len(places))) and count <= len(places) < count + world_size
    assert torch.equal(torch.cat(shares), values[places % count])


def test_one_process_exchanges_nothing() -> None:
    processes, values = (
        of_process(0, 1),
        torch.randn(5, 2, generator=torch.Generator().manual_seed(0)),
    )
    assert processes.gather(values, make_batch(5)) is values and processes.share(values) is values
    assert processes.sum(values) is values and processes.max(values) is values
    assert processes.any(True) and not processes.any(False)


def test_merge_orders_values_by_row_and_drops_those_that_do_not_count() -> None:
    rows, counts = torch.tensor([2, 0, 1, 2]), torch.tensor([True, True, True, False])
    values = torch.tensor([[20.0], [0.0], [10.0], [99.0]])
    parts = [(rows[:2], counts[:2], values[:2]), (rows[2:], counts[2:], values[2:])]
    assert of_process(0, 1).merge(parts, 4).tolist() == [[0], [10], [20], [0]]


def test_a_sweep_sees_every_row_once_in_evaluation_mode() -> None:
    run, seen = make_run(), []
    for rows, counts, outs in sweep(run):
        assert bool(counts.all()) and not any(model.training for model in run.evaluated)
        assert not any(out.logits.requires_grad for out in outs)
        seen.append(rows)
    assert len(seen) == 2 and torch.cat(seen).tolist() == list(range(1100))
    assert all(model.wrapped.training for model in run.models)


def test_values_of_rows_and_predictions_are_those_of_the_models_that_predict() -> None:
    run = make_run()
    x = run.prepare(torch.as_tensor(run.data.x), run.normalise)
    with torch.no_grad():
        probs = [model.plain(x).logits.softmax(1) for model in run.models]
    close = torch.testing.assert_close
    close(predict_log_probs(run), torch.stack(probs).mean(0).log())
    close(predict_log_probs(run, run.data.x[:5]), torch.stack(probs).mean(0)[:5].log())  # type: ignore[index]

    def first(rows: Tensor, outs: list[Output]) -> Tensor:
        return torch.stack([rows.double(), log_probs(run.loss, outs[:1])[:, 3]], 1)

    close(per_row(run, first), torch.stack([torch.arange(1100).double(), probs[0][:, 3].log()], 1))
    close(per_row(run, first, models=[run.models[1].trained])[:, 1], probs[1][:, 3].log())
    run.models[0].evaluated = run.models[1].evaluated
    close(predict_log_probs(run), probs[1].log())


def test_a_model_has_one_set_of_weights_in_all_its_forms() -> None:
    run = make_run(models=1)
    (model,) = run.models
    weights = {id(p) for p in model.plain.parameters()}
    assert all(
        {id(p) for p in m.parameters()} == weights
        for m in (model.wrapped, model.trained, model.evaluated)
    )
    assert {id(p) for group in model.optimizer.param_groups for p in group["params"]} == weights


def test_learning_rates_are_factors_of_the_first_ones() -> None:
    run = make_run()
    for factor in (0.1, 1.0, 0.0):
        run.set_learning_rate(factor)
        rates = [group["lr"] for model in run.models for group in model.optimizer.param_groups]
        assert rates == [0.5 * factor] * 2


class Counting(Strategy):
    """Remembers two attributes."""

    remembers = ("count", "table")

    def __init__(self) -> None:
        self.count, self.table, self.other = 0, torch.zeros(2), "not saved"


def test_what_a_strategy_remembers_is_saved_and_restored() -> None:
    one, other = Counting(), Counting()
    one.count, one.table, one.other = 3, torch.ones(2), "changed"
    state: dict[str, Any] = one.state_dict()
    assert state.keys() == {"count", "table"}
    other.load_state_dict(state)
    assert (
        other.count == 3 and torch.equal(other.table, torch.ones(2)) and other.other == "not saved"
    )
    assert Strategy().state_dict() == {} and TrainingAverages.remembers == (
        "probs",
        "sums",
        "before",
    )


@pytest.mark.parametrize(
    ("loss", "samples"),
    [("ce", None), ("ln", None), ("het:samples=8", 8), ("0.5*het:samples=8", 8)],
)
def test_losses_know_their_random_draws(loss: str, samples: int | None) -> None:
    assert get_loss(loss).samples == samples
