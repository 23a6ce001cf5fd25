"""What happened in training, computed a second time from what strategies saw of it, in numpy and by
autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.analysis import collect
from noiseproof.analysis.during import curves, samples, variants
from noiseproof.analysis.figures import Figure, MissingFigure, histogram
from noiseproof.analysis.runs import RIGHT, WRONG, open_run, open_runs
from noiseproof.core.output import Output
from noiseproof.data import NoisyData, get_dataset
from noiseproof.losses import get_loss
from noiseproof.strategies import Batch, Run, Strategy
from noiseproof.train import Interrupted, Method, Result, Settings, Task, get_method, prepare
from noiseproof.train import train as train_anywhere
from noiseproof.train.record import pull

NOISE = "symmetric:rate=0.4"
SHORT = Settings(epochs=6, model="mlp:hidden=[32]")
Array = np.ndarray


def train(*args: Any, **options: Any) -> Result:
    """On the CPU, also where there is a GPU."""
    return train_anywhere(*args, **{"fabric": Fabric(accelerator="cpu", devices=1), **options})


def during(runs: Any) -> list[Figure | MissingFigure]:
    return collect(runs, stage="during")


def digits(seed: int = 0) -> Task:
    return prepare(get_dataset("digits"), NOISE, seed=seed, validation=0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Trains a method on digits, once."""
    root, made = tmp_path_factory.mktemp("runs"), dict[str, Path]()

    def make(method: str, seed: int = 0, samples: bool = True, **settings: Any) -> Path:
        key = f"{method} {seed} {samples} {settings}"
        if key not in made:
            made[key] = root / str(len(made))
            own = replace(SHORT, **settings)
            train(digits(seed), method, own, seed=seed, out=made[key], samples=samples)
        return made[key]

    return make


class Spy(Strategy):
    """Keeps what the first model said of every row in each epoch, in the order of the steps."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, Tensor, Output]] = []

    def revise(self, batch: Batch, outs: list[Output], run: Run) -> Batch:
        self.steps.append(
            (run.epoch, batch.rows, Output._make(v if v is None else v.detach() for v in outs[0]))
        )
        return batch


class Doubtful(Strategy):
    """Gives every third row a quarter of its weight."""

    def weights(self, losses: Tensor, outs: list[Output], batch: Batch, run: Run) -> Tensor:
        return torch.where(batch.rows % 3 == 0, 0.25, 1.0).expand_as(losses)


def two_classes() -> Task:
    g = torch.Generator().manual_seed(0)
    x, clean = torch.randn(90, 2, generator=g), torch.arange(90) % 2
    x[:, 0] += 3.0 * clean
    given = torch.where(torch.rand(90, generator=g) < 0.3, 1 - clean, clean)
    return Task(NoisyData(x, given, ("a", "b"), torch.arange(90), clean))


# α_t and snr (curriculum paper, §4, App. C.2)


@pytest.mark.parametrize("own", [(), (Doubtful(),)])
def test_alpha_and_snr_are_what_the_curriculum_paper_defines(
    own: tuple[Strategy, ...], tmp_path: Path
) -> None:
    task, settings = (
        two_classes(),
        Settings(epochs=4, model="mlp:hidden=[8]", batch_size=20, schedule="cosine"),
    )
    method = Method(get_loss("mae"), strategies=(*own, Spy()))
    result = train(task, method, settings, out=tmp_path, samples=True)
    spy = result.strategies[-1]
    assert isinstance(spy, Spy) and task.train.clean is not None

    # Every step again: w by autograd of 1 − p, weighed by the rate of its step.
    rate, sums = {row["epoch"] - 1: row["lr"] for row in result.metrics}, np.zeros((2, 2))
    expected = {}
    for epoch, rows, out in spy.steps:
        z, y = out.logits.clone().requires_grad_(), task.train.given[rows]
        (1 - z.softmax(1)[torch.arange(len(y)), y]).sum().backward()
        assert z.grad is not None
        w = z.grad.abs().sum(1).double() / 2
        if own:
            w = torch.where(rows % 3 == 0, 0.25, 1.0) * w
        flipped = (y != task.train.clean[rows]).numpy()
        for group, member in enumerate((~flipped, flipped)):
            sums[group] += rate[epoch] * np.array([w.numpy()[member].sum(), member.sum()])
        expected[epoch + 1] = (
            sums[:, 0].sum() / sums[:, 1].sum(),
            np.divide(*(sums[:, 0] / sums[:, 1])),
        )
    computed = samples.sample_weights(open_run(tmp_path)).set_index("epoch")
    assert len(set(rate.values())) == 4  # else their part in it would not show
    for epoch, (alpha, snr) in expected.items():
        assert computed.loc[epoch, "alpha"] == pytest.approx(alpha, rel=1e-5)
        assert computed.loc[epoch, "snr"] == pytest.approx(snr, rel=1e-5)


@pytest.mark.parametrize(
    "spec",
    ["ce", "mae", "gce:q=0.7", "agce:a=0.6,q=0.6", "remargin:loss=mae,shift=2", "unit:loss=mae"],
)
def test_pull_is_the_weight_of_a_loss_that_has_one(spec: str) -> None:
    z = 3 * torch.randn(50, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.arange(50) % 7
    own = z.gather(1, y[:, None])[:, 0]
    delta = own - z.scatter(1, y[:, None], -torch.inf).logsumexp(1)
    loss = get_loss(spec, reduction="none")
    torch.testing.assert_close(
        pull(loss, Output(z), y), loss.sample_weight(delta).abs(), rtol=1e-9, atol=1e-12
    )


def test_pull_of_other_losses_is_half_the_length_of_their_gradient() -> None:
    z = torch.randn(
        20, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True
    )
    y = torch.arange(20) % 5
    log_p = z.log_softmax(1)
    (log_p[torch.arange(20), y] / log_p.sum(1)).sum().backward()  # NCE
    assert z.grad is not None
    torch.testing.assert_close(
        pull(get_loss("nce", reduction="none"), Output(z), y), z.grad.abs().sum(1) / 2
    )


def test_snr_without_wrong_labels_or_truth(tmp_path: Path) -> None:
    task = two_classes()
    blind = replace(task, train=replace(task.train, clean=None))
    train(blind, "gce", Settings(epochs=1, model="mlp:hidden=[4]"), out=tmp_path, samples=True)
    result = samples.sample_weights(open_run(tmp_path))
    assert np.isnan(result["snr"]).all() and result["alpha"].iloc[0] == pytest.approx(
        result["mean"].iloc[0]
    )
    assert result["alpha"].iloc[0] == pytest.approx(
        open_run(tmp_path).samples(1)["pull"].mean(), rel=1e-6
    )


# Distributions


def test_margins_are_counted_as_numpy_counts_them(folder: Callable[..., Path]) -> None:
    run = open_run(folder("gce"))
    table = samples.margin_distributions(run)
    assert sorted(set(table["epoch"])) == [1, 3, 6]
    margins = {epoch: run.samples(epoch)["margin"].astype(float) for epoch in (1, 3, 6)}
    low, high = min(m.min() for m in margins.values()), max(m.max() for m in margins.values())
    assert run.is_flipped is not None
    for epoch, values in margins.items():
        for name, member in ((WRONG, run.is_flipped), (RIGHT, ~run.is_flipped)):
            rows = table[(table["epoch"] == epoch) & (table["labels"] == name)]
            counts, edges = np.histogram(values[member], 60, (low, high))
            assert rows["samples"].tolist() == counts.tolist() and counts.sum() == member.sum()
            np.testing.assert_allclose(rows["low"], edges[:-1])
            assert (rows["density"] * (rows["high"] - rows["low"])).sum() == pytest.approx(1)
    p = 1 / (1 + np.exp(-table["margin"]))
    # w(Δ) of GCE, curriculum paper, Table 1
    np.testing.assert_allclose(table["weight"], p**0.7 * (1 - p), rtol=1e-6)


def test_trust_is_the_attention_that_the_head_gave(tmp_path: Path) -> None:
    task = digits()
    nal = get_method("nal", task, SHORT)
    result = train(
        task, replace(nal, strategies=(*nal.strategies, Spy())), SHORT, out=tmp_path, samples=True
    )
    spy, run = result.strategies[-1], open_run(tmp_path)
    assert isinstance(spy, Spy)
    for epoch in (1, 6):
        expected = np.full(len(run.given), np.nan)
        for e, rows, out in spy.steps:
            if e == epoch - 1:
                assert out.attention is not None
                expected[rows.numpy()] = 1 / (1 + np.exp(-out.attention.double().numpy()))
        np.testing.assert_allclose(run.samples(epoch)["trust"], expected, rtol=2**-10)
        np.testing.assert_allclose(run.samples(epoch)["pull"] > 0, True)
        table = samples.distributions(run, "trust", [epoch], edges=np.linspace(0, 1, 11))
        rounded = expected.astype(np.float16).astype(float)
        counts = [
            ((rounded >= i / 10) & ((rounded < (i + 1) / 10) | (i == 9))).sum() for i in range(10)
        ]
        assert table.groupby("trust")["samples"].sum().tolist() == counts


def test_margins_beyond_half_precision_do_not_stop_the_others() -> None:
    values = np.array([0.1, np.inf, -np.inf, np.nan, 0.9])
    table = histogram(values, {"all": np.full(5, True)}, np.array([0.0, 0.5, 1.0]), "margin")
    assert table["samples"].tolist() == [1, 1]


# Curves


def test_curves_are_means_over_seeds(folder: Callable[..., Path]) -> None:
    runs = open_runs([folder("ce", seed) for seed in (0, 1, 2)] + [folder("gce")])
    assert list(runs) == ["ce · seed=0", "ce · seed=1", "ce · seed=2", "gce"]
    table = curves.curves(runs, ["test_accuracy", "train_loss"])
    assert set(table["method"]) == {"ce", "gce"} and len(table) == 2 * 2 * 6
    for quantity in ("test_accuracy", "train_loss"):
        each = np.stack([run.rows[quantity] for name, run in runs.items() if name != "gce"])
        rows = table[(table["method"] == "ce") & (table["quantity"] == quantity)]
        np.testing.assert_allclose(rows["value"], each.mean(0))
        assert (
            rows["low"].tolist() == each.min(0).tolist()
            and rows["high"].tolist() == each.max(0).tolist()
        )
        assert set(rows["runs"]) == {3} and rows["epoch"].tolist() == list(range(1, 7))


def test_accuracy_curves_keep_right_and_wrong_labels_apart(folder: Callable[..., Path]) -> None:
    run = open_run(folder("ce"))
    figure = curves.accuracy_figure({"ce": run})
    assert isinstance(figure, Figure)
    data = figure.data[figure.data["rows"] == "training rows"].set_index(["labels", "epoch"])[
        "value"
    ]
    assert run.is_flipped is not None
    for epoch in (1, 6):
        agrees = run.samples(epoch)["prediction"] == run.given
        assert data[RIGHT, epoch] == pytest.approx(agrees[~run.is_flipped].mean())
        assert data[WRONG, epoch] == pytest.approx(agrees[run.is_flipped].mean())


def test_false_label_accuracy_is_that_of_the_bias_paper(folder: Callable[..., Path]) -> None:
    """Accuracy on rows that were mislabelled in training, against their true class (bias paper,
    Fig. 4, lower panels).
    """
    run = open_run(folder("gce"))
    figure = curves.false_label_figure({"gce": run})
    assert isinstance(figure, Figure) and run.is_flipped is not None
    data = figure.data.set_index(["predicted", "epoch"])["value"]
    for epoch in (1, 6):
        predicted = run.samples(epoch)["prediction"][run.is_flipped]
        assert run.clean is not None
        assert data["true class", epoch] == pytest.approx(
            (predicted == run.clean[run.is_flipped]).mean()
        )
        assert data["wrong label", epoch] == pytest.approx(
            (predicted == run.given[run.is_flipped]).mean()
        )
    assert data["true class", 6] > 0.5 > data["wrong label", 6]


def test_noise_variants_stand_side_by_side_with_none(folder: Callable[..., Path]) -> None:
    specs = ["ce", "sln:sigma=0.2", "sln:sigma=1.0", "noise-f:sigma=0.1", "noise-theta:sigma=0.1"]
    left_out = [folder("ce", epochs=3), folder("sln-mo"), folder("gce")]
    runs = open_runs([*map(folder, specs), *left_out])
    table = variants.noise_variants(runs)
    kinds = table.groupby("variant", sort=False)["sigma"].unique().map(set).to_dict()
    assert kinds == {
        "noise on labels (z_y)": {0.0, 0.2, 1.0},
        "noise on ∇ in logits (z_f)": {0.0, 0.1},
        "noise on ∇ in weights (z_θ)": {0.0, 0.1},
    }
    assert len(table) == 7 * 6  # of the two runs of ce that with as many epochs
    assert list(table["size"].cat.categories) == ["σ = 0", "σ = 0.1", "σ = 0.2", "σ = 1"]
    one = table[(table["sigma"] == 1.0)]
    assert one["value"].tolist() == open_run(folder("sln:sigma=1.0")).rows["test_accuracy"].tolist()


def test_schedules_of_one_method(folder: Callable[..., Path]) -> None:
    slow = folder("ce", optimizer="sgd:lr=0.001,momentum=0.9", schedule="constant")
    figure = variants.schedule_figure(
        open_runs([folder("ce"), folder("ce", 1), slow, folder("gce")])
    )
    assert isinstance(figure, Figure)
    assert set(figure.data["schedule"]) == {
        "sgd, lr=0.001, constant, 6 epochs",
        "sgd, lr=0.05, cosine, 6 epochs",
    }
    assert set(figure.data["kind"]) == {"ce"}
    averaged = figure.data[
        (figure.data["schedule"].str.contains("cosine")) & (figure.data["epoch"] == 6)
    ]
    assert set(averaged["runs"]) == {2}


# Label correction


def test_correction_that_has_not_begun_is_missing(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        train(digits(), "sln-mo-lc:start=2", replace(SHORT, epochs=3), out=tmp_path, max_steps=14)
    figure = variants.correction_figure(variants.corrected_runs(open_runs([tmp_path])))
    assert isinstance(figure, MissingFigure) and "epoch 3" in figure.needs


def test_what_label_correction_keeps(folder: Callable[..., Path]) -> None:
    straight, inverted = folder("sln-mo-lc:start=3"), folder("sln-mo-lc:start=3,invert=true")
    run = open_run(straight)
    (kept,) = (s.state_dict()["kept"] for s in run.result().strategies if "kept" in s.state_dict())
    table = variants.kept_shares(run)
    assert run.is_flipped is not None
    for name, member in ((WRONG, run.is_flipped), (RIGHT, ~run.is_flipped)):
        counts = np.histogram(kept.double().numpy()[member], 60, (0, 1))[0]
        assert table[table["labels"] == name]["samples"].tolist() == counts.tolist()
    runs = open_runs([straight, inverted, folder("sln-mo"), folder("gce")])
    figure = variants.correction_figure(variants.corrected_runs(runs))
    assert isinstance(figure, Figure)
    targets = figure.data.groupby("method")["target"].unique().map(list).to_dict()
    assert targets == {
        "sln-mo-lc:start=3": ["ω·label + (1 − ω)·prediction"],
        "sln-mo-lc:start=3,invert=true": ["(1 − ω)·label + ω·prediction"],
        "sln-mo": ["label"],
    }
    assert figure.data["epoch"].min() == 3 and "mixed from epoch 4 on" in figure.reading


# Logistic-Normal


@pytest.mark.parametrize(
    "method", ["ln", "ln:dummy=false", "ln-identity", "ln-diagonal", "ln-isotropic"]
)
def test_residuals_are_those_of_whole_matrices(method: str, folder: Callable[..., Path]) -> None:
    run = open_run(folder(method))
    result = samples.residuals(run)
    loss, (model,) = run.method.loss, run.models()
    rows, x = slice(0, 40), run.task.train.x
    assert isinstance(x, Tensor) and run.task.normalise is not None
    with torch.no_grad():
        out = model(run.task.normalise(x[rows]))
    K = 10 + (1 if "dummy=true" in str(loss) else 0)
    q = np.full((40, K), 0.01 / K)
    q[np.arange(40), run.given[rows]] += 0.99
    e = 0.5 * np.log(q[:, :-1] / q[:, -1:]) - out.logits.double().numpy()  # τ·S_C⁻¹(q) − μ
    np.testing.assert_allclose(result["Σ = I"][rows], (e**2).sum(1), rtol=1e-5)
    if method == "ln-identity":
        assert result.keys() == {"Σ = I"}
        return
    D = e.shape[1]
    for i in range(40):
        if out.root is not None:
            c = out.root[i].double().numpy()
            root = np.outer(c, c) + np.eye(D)  # λ = 1
        else:
            assert out.scale is not None
            root = np.diag(np.broadcast_to(out.scale[i].double().numpy(), D) + 1)
        assert result["Σ_θ"][i] == pytest.approx(e[i] @ np.linalg.inv(root @ root) @ e[i], rel=1e-5)


# What is missing


def test_figures_without_their_data_say_what_records_it(folder: Callable[..., Path]) -> None:
    figures = {figure.name: figure for figure in during(open_runs([folder("ce", samples=False)]))}
    needs = {
        name: figure.needs for name, figure in figures.items() if isinstance(figure, MissingFigure)
    }
    assert sorted(needs) == [
        "attention",
        "kept-labels",
        "label-correction",
        "margins",
        "residuals",
        "sample-weights",
        "schedules",
        "sgd-noise",
    ]
    assert needs["margins"] == needs["sample-weights"] == samples.RECORDED
    assert needs["attention"] == f"a run of `nal` with {samples.RECORDED}"
    assert "invert=true" in needs["label-correction"] and "--schedule" in needs["schedules"]
    assert {figure.stage for figure in figures.values()} == {"During training"}


def test_a_run_without_truth_and_test_rows(tmp_path: Path) -> None:
    task = two_classes()
    blind = replace(task, train=replace(task.train, clean=None))
    for name, method in (("a", "sln:sigma=0.1"), ("b", "sln-mo-lc:start=1"), ("c", "ce")):
        own = Settings(epochs=2, model="mlp:hidden=[4]")
        train(blind, method, own, out=tmp_path / name, samples=True)
    runs = open_runs([tmp_path / name for name in "abc"], task=blind)
    figures = {figure.name: figure for figure in during(runs)}
    shown = {name for name, figure in figures.items() if isinstance(figure, Figure)}
    assert shown == {"accuracy-curves", "loss-curves", "margins", "sample-weights", "kept-labels"}
    margins = figures["margins"]
    assert isinstance(margins, Figure) and set(margins.data["labels"].dropna()) == {"all"}
