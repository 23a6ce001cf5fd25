"""Every number of the record, computed again in numpy from what the models said; the truth stays
with the record.
"""

from __future__ import annotations

import copy
import csv
import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from safetensors.torch import load_file
from torch import Tensor, nn

from noiseproof.core.output import Output
from noiseproof.data import NoisyData, Split
from noiseproof.losses import get_loss
from noiseproof.strategies import Batch, Run, Step, Strategy
from noiseproof.strategies.momentum import MomentumModel
from noiseproof.strategies.perturb import StochasticLabelNoise
from noiseproof.train import Method, Result, Settings, Task
from noiseproof.train import train as train_anywhere
from noiseproof.train.record import VISIBLE, best_epoch, to_csv

D, K = 5, 7
SETTINGS = Settings(model="mlp:hidden=[9]", epochs=3, batch_size=16, optimizer="sgd:lr=0.02")
Array = np.ndarray


def points(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points around one centre for each class, and their classes."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(K, (n,), generator=g)
    centres = torch.randn(K, D, generator=torch.Generator().manual_seed(99))
    return 2 * centres[y] + torch.randn(n, D, generator=g), y


def labelled(n: int, seed: int, *, foreign: int = 0, known: bool = True) -> NoisyData:
    """Rows of which a third have a wrong label, and the first ``foreign`` belong to no class."""
    x, y = points(n, seed)
    g = torch.Generator().manual_seed(seed + 1)
    given = torch.where(torch.rand(n, generator=g) < 1 / 3, (y + 1) % K, y)
    clean = y.clone()
    clean[:foreign] = -1
    return NoisyData(x, given, tuple("abcdefg"), torch.arange(n), clean if known else None)


def task(*, foreign: int = 0, known: bool = True, validation: bool = True) -> Task:
    x, y = points(40, 7)
    held = labelled(30, 5, foreign=foreign // 2, known=known) if validation else None
    clean = Split(*points(25, 11)) if validation else None
    return Task(
        labelled(70, 3, foreign=foreign, known=known), held, Split(x, y), clean_validation=clean
    )


def train(*args: Any, **options: Any) -> Result:
    """On the CPU, also where there is a GPU."""
    return train_anywhere(*args, **{"fabric": Fabric(accelerator="cpu", devices=1), **options})


class Spy(Strategy):
    """Keeps what every model said of every row in each epoch, and what predicts after it."""

    def __init__(self) -> None:
        self.said: list[dict[int, Array]] = []  # row → (M, K), of each epoch
        self.targets_of: list[dict[int, Array]] = []  # row → (K,)
        self.after: list[list[nn.Module]] = []
        self.metrics: list[dict[str, float]] = []

    def start_epoch(self, run: Run) -> None:
        self.said.append({})
        self.targets_of.append({})

    def revise(self, batch: Batch, outs: list[Output], run: Run) -> Batch:
        for i, row in enumerate(batch.rows.tolist()):
            self.said[-1][row] = np.stack([out.logits[i].detach().double().numpy() for out in outs])
            self.targets_of[-1][row] = batch.soft_target(K, outs[0].logits)[i].double().numpy()
        return batch

    def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
        self.after.append([copy.deepcopy(model).eval() for model in run.evaluated])
        self.metrics.append(metrics)


class Two(Strategy):
    """Trains two models and changes nothing."""

    models = 2


class Halve(Strategy):
    """Gives every other row half the weight."""

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor:
        return torch.where(batch.rows % 2 == 0, 1.0, 0.5).expand_as(losses)


def run(
    data: Task, *strategies: Strategy, settings: Settings = SETTINGS, **options: Any
) -> tuple[Result, Spy]:
    result = train(
        data, Method(get_loss("ce"), strategies=(*strategies, Spy())), settings, **options
    )
    spy = result.strategies[-1]
    assert isinstance(spy, Spy)
    return result, spy


def nll(logits: Array, y: Array) -> Array:
    """−log softmax at y, for logits (..., K)."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, np.broadcast_to(y, log_p.shape[:-1])[..., None], -1)[..., 0]


def logits_of(models: list[nn.Module], x: Tensor) -> Array:
    """(M, N, K), by hand: one hidden layer of a perceptron."""
    found = []
    for model in models:
        w1, b1, w2, b2 = (p.detach().double().numpy() for p in model.state_dict().values())
        found.append(np.maximum(x.double().numpy() @ w1.T + b1, 0) @ w2.T + b2)
    return np.stack(found)


def by_hand(data: Task, spy: Spy, epoch: int, *, several: bool = False) -> dict[str, float]:
    """The metrics of an epoch, of M models each by itself and then averaged."""
    seen = sorted(spy.said[epoch])
    z = np.stack([spy.said[epoch][row] for row in seen], 1)  # (M, n, K)
    target = np.stack([spy.targets_of[epoch][row] for row in seen])
    given = data.train.given.numpy()[seen]
    shifted = z - z.max(-1, keepdims=True)
    loss = -(target * (shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))).sum(-1)  # (M, n)
    predicted = z.argmax(-1)
    row = {"train_loss": loss.mean(), "train_accuracy": (predicted == given).mean()}
    if data.train.clean is not None:
        clean = data.train.clean.numpy()[seen]
        right, of_a_class = given == clean, clean >= 0
        row |= {
            "train_loss_clean": loss[:, right].mean(),
            "train_loss_flipped": loss[:, ~right].mean(),
            "train_accuracy_clean": (predicted == given)[:, right].mean(),
            "false_label_accuracy": (predicted == given)[:, ~right].mean(),
            "train_accuracy_true": (predicted == clean)[:, of_a_class].mean(),
            "train_accuracy_corrected": (predicted == clean)[:, of_a_class & ~right].mean(),
        }
    if data.validation is not None:
        z = logits_of(spy.after[epoch], data.validation.x)
        y = data.validation.given.numpy()
        row |= {
            "validation_loss": nll(z, y).mean(),
            "validation_accuracy": (z.argmax(-1) == y).mean(),
        }
        if data.validation.clean is not None:
            truth = data.validation.clean.numpy()
            row["validation_accuracy_clean"] = (z.argmax(-1) == truth)[:, truth >= 0].mean()
    if data.clean_validation is not None:
        z, y = logits_of(spy.after[epoch], data.clean_validation.x), data.clean_validation.y.numpy()
        row |= {
            "clean_validation_loss": nll(z, y).mean(),
            "clean_validation_accuracy": (z.argmax(-1) == y).mean(),
        }
    assert data.test is not None
    z, y = logits_of(spy.after[epoch], data.test.x), data.test.y.numpy()
    ranks = (-z).argsort(-1).argsort(-1)  # 0 for the largest
    row |= {
        "test_loss": nll(z, y).mean(),
        "test_accuracy": (z.argmax(-1) == y).mean(),
        "test_top5": (np.take_along_axis(ranks, y[None, :, None].repeat(len(z), 0), -1) < 5).mean(),
    }
    if several:
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        row["test_accuracy_ensemble"] = (p.mean(0).argmax(-1) == y).mean()
    return row


def check(result: Result, data: Task, spy: Spy, **options: Any) -> None:
    assert len(result.metrics) == SETTINGS.epochs
    for epoch, row in enumerate(result.metrics):
        expected = by_hand(data, spy, epoch, **options)
        assert set(row) == {*expected, "epoch", "lr", "seconds"}
        assert row["epoch"] == epoch + 1 and row["seconds"] > 0
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=1e-5, abs=1e-6), (epoch, name)


def test_every_metric_is_what_it_says() -> None:
    data = task()
    result, spy = run(data)
    check(result, data, spy)
    last = result.last
    assert last["train_loss_clean"] < last["train_loss_flipped"]  # the two are not mixed up
    assert last["false_label_accuracy"] < last["train_accuracy_clean"]
    assert last["validation_accuracy"] != last["validation_accuracy_clean"]
    assert last["test_accuracy"] < last["test_top5"]


def test_rows_of_no_class_are_wrong_labels_without_a_truth() -> None:
    data = task(foreign=20)
    assert data.train.clean is not None and int((data.train.clean < 0).sum()) == 20
    result, spy = run(data)
    check(result, data, spy)


def test_where_the_truth_is_unknown_nothing_is_said_about_it() -> None:
    data = task(known=False)
    result, spy = run(data)
    check(result, data, spy)
    assert not any(
        word in name for name in result.last for word in ("_clean", "flipped", "true", "false")
    )


def test_without_noise_there_is_no_number_for_wrong_labels() -> None:
    data = task()
    clean = dataclasses.replace(data.train, clean=data.train.given)
    result, _ = run(dataclasses.replace(data, train=clean))
    assert math.isnan(result.last["false_label_accuracy"]) and math.isnan(
        result.last["train_loss_flipped"]
    )
    assert (
        result.last["train_accuracy_true"]
        == result.last["train_accuracy"]
        == result.last["train_accuracy_clean"]
    )


def test_what_is_not_held_out_is_not_reported() -> None:
    data = task(validation=False)
    result, spy = run(data)
    check(result, data, spy)
    result = train(dataclasses.replace(data, test=None), "ce", SETTINGS)
    assert not any(
        name.startswith(("test", "validation", "clean_validation")) for name in result.last
    )
    assert result.best is result.best_clean is result.best_true is result.oracle is None


def test_noise_on_targets_is_in_the_loss_and_not_in_the_accuracy() -> None:
    data = task()
    result, spy = run(data, StochasticLabelNoise(1.0))
    check(result, data, spy)


def test_weights_of_a_method_are_not_in_the_loss() -> None:
    """The record's loss is the mean over rows, so that it can be compared between methods that
    select and others.
    """
    data = task()
    result, spy = run(data, Halve())
    check(result, data, spy)


def test_two_models_are_averaged_and_joined() -> None:
    data = task(foreign=10)
    result, spy = run(data, Two())
    assert len(result.models) == 2
    first, second = (list(model.state_dict().values()) for model in result.models)
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    check(result, data, spy, several=True)


def test_the_momentum_model_is_what_is_evaluated() -> None:
    data = task()
    result, spy = run(data, MomentumModel(0.5))
    check(result, data, spy)
    assert (
        spy.after[-1][0].head.logits.weight.ne(result.run.models[0].plain.head.logits.weight).any()
    )  # type: ignore[union-attr]


def test_rows_that_an_epoch_leaves_out_do_not_count() -> None:
    settings = dataclasses.replace(SETTINGS, drop_last=True)
    data = task()
    result, spy = run(data, settings=settings)
    assert all(len(said) == 64 for said in spy.said)
    check(result, data, spy)


def test_more_than_five_of_fewer_classes_are_always_right() -> None:
    data = task()
    few = NoisyData(data.train.x, data.train.given % 3, tuple("abc"), data.train.index)
    result = train(Task(few, test=Split(data.train.x, few.given)), "ce", SETTINGS)
    assert result.last["test_top5"] == 1.0


# Steps that mix samples: their outputs belong to none


class Mixes(Strategy):
    """Trains on sums of two inputs, so that a step has no output of a sample."""

    def step(self, batch: Batch, run: Run) -> Step:
        out = run.forward(run.models[0].wrapped, (batch.x + batch.x.flip(0)) / 2)
        losses = (run.loss(out, batch.target) + run.loss(out, batch.target.flip(0)))[None] / 2
        run.backward(losses, batch)
        return Step([], losses.detach(), None)


def test_where_steps_mix_samples_the_models_are_asked_after_the_epoch() -> None:
    data = task(foreign=8)
    result, spy = run(data, Mixes())
    for epoch in range(SETTINGS.epochs):
        z = logits_of(spy.after[epoch], data.train.x)
        spy.said[epoch] = {row: z[:, row] for row in range(70)}
        spy.targets_of[epoch] = {row: np.eye(K)[int(data.train.given[row])] for row in range(70)}
    check(result, data, spy)


# Samples


def test_samples_have_the_variance_of_ln(tmp_path: Path) -> None:
    data = task()
    settings = dataclasses.replace(SETTINGS, epochs=1, batch_size="full")
    result = train(data, "ln:lam=0.4", settings, out=tmp_path, samples=True)
    stored = load_file(tmp_path / "samples" / "epoch-0001.safetensors")["variance"]
    assert (
        stored.shape == (70,)
        and stored.dtype is torch.float32
        and result.run.loss.needs == {"logits", "root"}
    )
    # its first weights
    again = train(data, "ln:lam=0.4", dataclasses.replace(settings, optimizer="sgd:lr=1e-30"))
    with torch.no_grad():
        c = again.models[0].eval()(data.train.x).root
    roots = c[:, :, None] * c[:, None, :] + 0.4 * torch.eye(K)
    torch.testing.assert_close(stored, (roots @ roots).diagonal(dim1=1, dim2=2).mean(1))


def test_samples_are_what_the_models_said_of_them(tmp_path: Path) -> None:
    data = task()
    _, spy = run(data, Halve(), out=tmp_path, samples=True)
    given = data.train.given.numpy()
    for epoch in range(SETTINGS.epochs):
        z = np.stack([spy.said[epoch][row][0] for row in range(70)])
        others = z.copy()
        np.put_along_axis(others, given[:, None], -np.inf, 1)
        margin = z[np.arange(70), given] - np.log(np.exp(others).sum(1))
        found = load_file(tmp_path / "samples" / f"epoch-{epoch + 1:04d}.safetensors")
        assert {name: values.dtype for name, values in found.items()} == {
            "margin": torch.float16,
            "weight": torch.float16,
            "prediction": torch.int16,
            "pull": torch.float32,
        }
        np.testing.assert_allclose(found["margin"].double().numpy(), margin, rtol=2**-10, atol=1e-3)
        # 1 − p of CE
        np.testing.assert_allclose(found["pull"].numpy(), 1 / (1 + np.exp(margin)), rtol=1e-4)
        assert np.array_equal(found["prediction"].numpy(), z.argmax(1))
        assert np.array_equal(
            found["weight"].double().numpy(), np.where(np.arange(70) % 2, 0.5, 1.0)
        )


def test_samples_of_mixtures_are_what_the_trained_models_say_after_the_epoch(
    tmp_path: Path,
) -> None:
    """Not the averaged ones, which predict."""
    data = task()
    result, _ = run(data, Mixes(), MomentumModel(0.9), out=tmp_path, samples=True)
    given = data.train.given.numpy()
    z = logits_of([model.plain for model in result.run.models], data.train.x)[0]
    assert not np.allclose(z, logits_of(result.models, data.train.x)[0], atol=1e-2)
    found = load_file(tmp_path / "samples" / f"epoch-{SETTINGS.epochs:04d}.safetensors")
    others = z.copy()
    np.put_along_axis(others, given[:, None], -np.inf, 1)
    margin = z[np.arange(70), given] - np.log(np.exp(others).sum(1))
    np.testing.assert_allclose(found["margin"].double().numpy(), margin, rtol=2**-10, atol=1e-3)
    np.testing.assert_allclose(found["pull"].numpy(), 1 / (1 + np.exp(margin)), rtol=1e-4)
    assert np.array_equal(found["prediction"].numpy(), z.argmax(1)) and bool(
        found["weight"].isnan().all()
    )
    assert result.last["train_loss"] == pytest.approx(nll(z, given).mean(), rel=1e-5)


def test_of_two_models_the_first_speaks(tmp_path: Path) -> None:
    _, spy = run(task(), Two(), out=tmp_path, samples=True)
    found = load_file(tmp_path / "samples" / "epoch-0003.safetensors")
    z = np.stack([spy.said[2][row][0] for row in range(70)])
    assert np.array_equal(found["prediction"].numpy(), z.argmax(1)) and bool(
        (found["weight"] == 1).all()
    )


def test_a_row_that_an_epoch_leaves_out_has_no_value_in_it(tmp_path: Path) -> None:
    """Not that of an earlier epoch, which would look like one of this."""
    settings = dataclasses.replace(SETTINGS, drop_last=True)
    _, spy = run(task(), settings=settings, out=tmp_path, samples=True)
    for epoch in range(SETTINGS.epochs):
        found = load_file(tmp_path / "samples" / f"epoch-{epoch + 1:04d}.safetensors")
        missing = sorted(set(range(70)) - set(spy.said[epoch]))
        assert len(missing) == 6 and found["margin"].isnan().nonzero()[:, 0].tolist() == missing
        assert (found["prediction"] == -1).nonzero()[:, 0].tolist() == missing
        assert found["weight"].isnan().nonzero()[:, 0].tolist() == missing


def test_recording_changes_nothing_of_the_run(tmp_path: Path) -> None:
    """Neither samples, nor a folder, nor what is held out, nor the truth, nor a test set."""
    data = task()
    blind = dataclasses.replace(data.train, clean=None)
    runs = [
        train(data, "ce", SETTINGS),
        train(data, "ce", SETTINGS, out=tmp_path / "a", samples=True),
        train(Task(blind), "ce", SETTINGS),
    ]
    first = list(runs[0].models[0].state_dict().values())
    for other in runs[1:]:
        assert all(
            torch.equal(a, b)
            for a, b in zip(first, other.models[0].state_dict().values(), strict=True)
        )


# Files


def test_the_csv_reads_back_exactly(tmp_path: Path) -> None:
    result, _ = run(task(), out=tmp_path)
    with open(tmp_path / "record.csv", newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert rows == result.metrics and list(rows[0]) == list(result.metrics[0])


def test_numbers_that_are_none_are_written_too() -> None:
    rows = [{"epoch": 1, "x": math.nan}, {"epoch": 2, "x": -math.inf}, {"epoch": 3, "x": 0.1 + 0.2}]
    back = [
        {k: float(v) for k, v in row.items()} for row in csv.DictReader(to_csv(rows).splitlines())
    ]
    assert math.isnan(back[0]["x"]) and back[1]["x"] == -math.inf and back[2]["x"] == 0.1 + 0.2
    assert to_csv([]) == ""


def test_the_csv_grows_by_a_line_each_epoch(tmp_path: Path) -> None:
    lines: list[int] = []

    class Count(Strategy):
        def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
            lines.append(len((tmp_path / "record.csv").read_text().splitlines()))

    run(task(), Count(), out=tmp_path)
    assert lines == [2, 3, 4]


def test_the_best_row_is_the_first_of_equals_and_never_nan() -> None:
    rows = [{"a": math.nan}, {"a": 0.5, "n": 1.0}, {"a": 0.7, "n": 2.0}, {"a": 0.7, "n": 3.0}, {}]
    assert (
        best_epoch(rows, "a") is rows[2]
        and best_epoch(rows, "b") is None
        and best_epoch([], "a") is None
    )


# The truth stays with the record


def reachable(value: Any, seen: set[int]) -> list[Any]:
    """All objects that can be come by from ``value`` through attributes, containers and
    closures.
    """
    if id(value) in seen or isinstance(
        value, (str, bytes, int, float, bool, type(None), type, type(math))
    ):
        return []
    seen.add(id(value))
    inside: list[Any] = []
    if isinstance(value, dict):
        inside = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = list(value)
    elif not isinstance(value, Tensor):
        inside = [getattr(value, "__dict__", {})]
        inside += [
            getattr(value, slot, None)
            for slot in getattr(type(value), "__slots__", ())
            if isinstance(slot, str)
        ]
        inside += [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        inside += [
            getattr(value, "__self__", None),
            getattr(value, "args", None),
            getattr(value, "keywords", None),
        ]
    return [value, *(found for part in inside for found in reachable(part, seen))]


@pytest.mark.parametrize("two", [False, True])
def test_nothing_in_a_run_or_a_batch_reaches_a_clean_label(two: bool, tmp_path: Path) -> None:
    data = task(foreign=5)
    assert data.train.clean is not None and data.validation is not None and data.test is not None
    assert data.clean_validation is not None
    secrets = [
        data.train.clean,
        data.validation.clean,
        data.validation.given,
        data.test.y,
        data.clean_validation.y,
    ]
    looked = {"tensors": 0, "given": 0}

    class Look(Strategy):
        def look(self, *values: Any) -> None:
            for found in reachable(values, set()):
                if isinstance(found, Tensor):
                    looked["tensors"] += 1
                    looked["given"] += torch.equal(found, data.train.given)
                    shared = [
                        s
                        for s in secrets
                        if found.untyped_storage().data_ptr() == s.untyped_storage().data_ptr()
                    ]
                    assert not shared and not any(torch.equal(found, s) for s in secrets)
                assert getattr(found, "clean", None) is None, type(found)
                assert not isinstance(found, (Task, Split))

        def setup(self, run: Run) -> None:
            self.look(run)

        def start_epoch(self, run: Run) -> None:
            self.look(run)

        def targets(self, batch: Batch, run: Run) -> Batch:
            self.look(run, batch)
            return batch

        def after_step(self, run: Run) -> None:
            self.look(run)

        def end_epoch(self, metrics: dict[str, float], run: Run) -> None:
            self.look(run)

    strategies = (Two(), Look()) if two else (Look(),)
    settings = dataclasses.replace(SETTINGS, epochs=2)
    train(data, Method(get_loss("ce"), strategies=strategies), settings, out=tmp_path, samples=True)
    assert looked["tensors"] > 100 and looked["given"] > 0  # the search finds what is there
    assert {field.name for field in dataclasses.fields(Batch)} == {
        "x",
        "target",
        "given",
        "rows",
        "all_rows",
        "counts",
        "count",
        "soft",
        "weights",
    }


def test_a_method_sees_no_metric_that_takes_the_truth() -> None:
    """Stopping at the best test accuracy would be cheating: a method is told the noisy metrics of
    an epoch only.
    """
    result, spy = run(task())
    for told, row in zip(spy.metrics, result.metrics, strict=True):
        assert told == {name: row[name] for name in VISIBLE}
        told["epoch"] = 99  # and it can't change the record
    assert [row["epoch"] for row in result.metrics] == [1, 2, 3]
    assert not any(
        word in name for name in VISIBLE for word in ("test", "clean", "flipped", "true", "false")
    )
