"""Soft labels: distributions (N, K) through noise, losses, strategies, the record and a resume,
against numpy.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor

from noiseproof.analysis import open_run
from noiseproof.core.output import Output
from noiseproof.data import Dataset, from_arrays, from_torch
from noiseproof.strategies import Batch, Run, Strategy
from noiseproof.train import Interrupted, Method, Result, Settings, Task, get_method, prepare
from noiseproof.train import train as train_anywhere
from noiseproof.train.checkpoint import BadCheckpoint

K, N = 4, 60
FULL = Settings(
    model="mlp:hidden=[9]", epochs=1, batch_size="full", optimizer="sgd:lr=0.5,momentum=0"
)
SHORT = Settings(model="mlp:hidden=[9]", epochs=3, batch_size=16, optimizer="sgd:lr=0.05")
Array = np.ndarray


def votes(n: int = N, seed: int = 0) -> tuple[Array, Array]:
    """Points around one centre for each class, and ten votes on each."""
    g = np.random.default_rng(seed)
    y = g.integers(K, size=n)
    centres = 3 * np.random.default_rng(99).normal(size=(K, 5))
    p = np.where(np.arange(K) == y[:, None], 0.7, 0.1)
    return centres[y] + g.normal(size=(n, 5)), np.stack([g.multinomial(10, row) for row in p])


def data(**options: Any) -> Dataset:
    x, counts = votes()
    return from_arrays(x, counts, classes=list("abcd"), **options)


def task(noise: str = "none", **options: Any) -> Task:
    return prepare(data(test=votes(20, 5)), noise, **options)


def train(*args: Any, **options: Any) -> Result:
    return train_anywhere(*args, **{"fabric": Fabric(accelerator="cpu", devices=1), **options})


class Spy(Strategy):
    """The first outputs of the model, by row."""

    def outputs(self, outs: list[Output], batch: Batch, run: Run) -> list[Output]:
        if not hasattr(self, "out"):
            order = batch.rows.argsort()
            self.out = Output._make(
                None if v is None else v.detach()[order].double() for v in outs[0]
            )
            self.target = batch.target[order]
        return outs


def first_outputs(method: str, settings: Settings = FULL, **options: Any) -> tuple[Result, Spy]:
    made = get_method(method, task(), settings)
    result = train(
        task(), Method(made.loss, made.head, (*made.strategies, Spy())), settings, **options
    )
    spy = result.strategies[-1]
    assert isinstance(spy, Spy)
    return result, spy


def log_softmax(z: Array) -> Array:
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


# Reading


def test_counts_and_probabilities_are_distributions() -> None:
    x, counts = votes()
    shares = counts / counts.sum(1, keepdims=True)
    for rows in (
        counts,
        shares,
        torch.from_numpy(shares),
        pd.DataFrame(counts),
        counts.tolist(),
        shares.astype("f4"),
    ):
        split = from_arrays(x, rows).train
        assert split.soft is not None and split.soft.dtype is torch.float32
        np.testing.assert_allclose(split.soft.numpy(), shares, atol=1e-7)
        assert split.y.tolist() == shares.argmax(1).tolist()  # NumPy's argmax, too, is the first
    assert from_arrays(x, pd.DataFrame(counts, columns=list("wxyz"))).classes == (
        "w",
        "x",
        "y",
        "z",
    )
    items = [
        (torch.from_numpy(row).float(), torch.from_numpy(label))
        for row, label in zip(x, counts, strict=True)
    ]
    split = from_torch(items).train
    assert split.soft is not None
    np.testing.assert_allclose(split.soft.numpy(), shares, atol=1e-7)


def test_ties_are_reported_and_the_first_class_is_given() -> None:
    made = from_arrays(np.eye(3), [[5, 5, 0], [0, 2, 2], [0, 0, 1]])
    assert made.train.y.tolist() == [0, 1, 2]
    assert made.notes == (
        (
            "2 of 3 soft labels in `y` have several most probable classes: accuracy and margins"
            " take the first of them as the given label."
        ),
    )


@pytest.mark.parametrize(
    "rows, error",
    [
        (
            [[0.5, 0.5], [0.9, 0.4]],
            (
                "Expected rows of probabilities that sum to one, or of whole counts, in `y`, got "
                "the sum 1.3 in row 1. Divide each row by its sum."
            ),
        ),
        (
            [[1, 2], [0, 0]],
            "got 0.0, 0.0 in row 1; 1 of 2 rows are negative, missing or zero everywhere",
        ),
        ([[1.0, 0.0], [math.nan, 1.0]], "got nan, 1.0 in row 1; 1 of 2 rows are negative, missing"),
        (
            np.ma.array([[1, 0], [0, 1]], mask=[[False, False], [True, False]]),
            "got nan, 1.0 in row 1",
        ),
    ],
)
def test_rows_that_are_no_distributions_are_refused(rows: Any, error: str) -> None:
    with pytest.raises(ValueError, match=".") as refusal:
        from_arrays(np.eye(2), rows)
    assert error in str(refusal.value)


def test_names_and_columns_must_agree() -> None:
    x, counts = votes()
    with pytest.raises(
        ValueError,
        match="Expected a name for each of the 4 columns of `y`, each once, got 2: 'a', 'b'",
    ):
        from_arrays(x, counts, classes=["a", "b"])
    with pytest.raises(ValueError, match="Expected 4 columns in `test.1.`, as in training, got 3"):
        from_arrays(x, counts, test=(x, counts[:, :3]))
    test = data(test=(x, ["a"] * N)).test
    assert test is not None and test.soft is None  # other parts may have one label a row


# Noise


def test_noise_exchanges_the_probabilities_of_the_two_classes() -> None:
    clean = task().train
    noisy = task("symmetric:rate=0.4").train
    hard = prepare(from_arrays(data().train.x, clean.given.numpy()), "symmetric:rate=0.4").train
    assert noisy.clean is not None and noisy.soft is not None and clean.soft is not None
    assert noisy.given.tolist() == hard.given.tolist() and noisy.rate == hard.rate
    expected = clean.soft.numpy().copy()
    for row, (a, b) in enumerate(zip(noisy.clean.tolist(), noisy.given.tolist(), strict=True)):
        expected[row, [a, b]] = expected[row, [b, a]]
    assert np.array_equal(noisy.soft.numpy(), expected)
    assert bool((noisy.soft.amax(1) == noisy.soft.gather(1, noisy.given[:, None])[:, 0]).all())


def test_held_out_rows_keep_their_distributions() -> None:
    made = task(validation=0.25)
    assert (
        made.validation is not None
        and made.train.soft is not None
        and made.validation.soft is not None
    )
    soft = data().train.soft
    assert soft is not None
    for part in (made.train, made.validation):
        assert part.soft is not None and torch.equal(part.soft, soft[part.index])


# Losses


def test_a_step_is_gradient_descent_on_cross_entropy_against_the_distributions() -> None:
    linear = replace(FULL, model="mlp:hidden=[]")
    result, spy = first_outputs("ce", linear)
    made = task()
    assert (
        made.train.soft is not None
        and made.normalise is not None
        and isinstance(made.train.x, Tensor)
    )
    x = made.normalise.apply(made.train.x, torch.empty(N, 0)).double().numpy()
    q, z = made.train.soft.double().numpy(), spy.out.logits.numpy()
    residual = (np.exp(log_softmax(z)) - q) / N
    layer: Any = result.models[0].get_submodule("head.logits")
    start = get_start(linear)
    np.testing.assert_allclose(
        layer.weight.detach().numpy(), start[0] - 0.5 * residual.T @ x, atol=1e-6
    )
    np.testing.assert_allclose(
        layer.bias.detach().numpy(), start[1] - 0.5 * residual.sum(0), atol=1e-6
    )
    assert result.last["train_loss"] == pytest.approx(-(q * log_softmax(z)).sum(1).mean(), rel=1e-6)


def get_start(settings: Settings) -> tuple[Array, Array]:
    """Weights and bias before the first step."""

    class Start(Strategy):
        def setup(self, run: Run) -> None:
            layer: Any = run.models[0].plain.get_submodule("head.logits")
            self.values = (
                layer.weight.detach().clone().double().numpy(),
                layer.bias.detach().clone().double().numpy(),
            )

    made = get_method("ce", task(), settings)
    (start,) = train(task(), Method(made.loss, made.head, (Start(),)), settings).strategies
    return start.values  # type: ignore[attr-defined, no-any-return]


def ln_by_hand(out: Output, q: Array, lam: float = 1.0, tau: float = 0.5, t: float = 0.01) -> Array:
    """½ rᵀΣ⁻¹r + ½ log|Σ| with Σ^½ = ccᵀ + λI, r = τ·S_C⁻¹(smoothed q) − μ and a dummy class."""
    smoothed = (1 - t) * np.pad(q, ((0, 0), (0, 1))) + t / (K + 1)
    r = tau * np.log(smoothed[:, :-1] / smoothed[:, -1:]) - out.logits.numpy()
    assert out.root is not None
    values = []
    for row, c in zip(r, out.root.numpy(), strict=True):
        root = np.outer(c, c) + lam * np.eye(K)
        values.append(0.5 * row @ np.linalg.solve(root @ root, row) + np.linalg.slogdet(root)[1])
    return np.array(values)


def nal_by_hand(out: Output, q: Array, lam: float = 0.5) -> Array:
    assert out.attention is not None
    tau = 1 / (1 + np.exp(-out.attention.numpy()))[:, None]
    mix = tau * np.exp(log_softmax(out.logits.numpy())) + (1 - tau) * q
    value: Array = -(q * np.log(mix)).sum(1) - lam * np.log(tau[:, 0])
    return value


BY_HAND = {
    "ce": lambda out, q: -(q * log_softmax(out.logits.numpy())).sum(1),
    "mae": lambda out, q: (q * (1 - np.exp(log_softmax(out.logits.numpy())))).sum(1),
    "gce:q=0.7": (
        lambda out, q: (q * (1 - np.exp(0.7 * log_softmax(out.logits.numpy()))) / 0.7).sum(1)
    ),
    "ln:lam=1": ln_by_hand,
    "nal:lam=0.5,start=0,every=5,alpha=1,warmup=0": nal_by_hand,
}


@pytest.mark.parametrize("method", BY_HAND)
def test_losses_of_soft_labels(method: str) -> None:
    settings = (
        replace(FULL, epochs=2, optimizer="sgd:lr=0.01") if method.startswith("nal") else FULL
    )
    result, spy = first_outputs(method, settings)
    soft = task().train.soft
    assert soft is not None and torch.equal(spy.target, soft)
    expected = BY_HAND[method](spy.out, soft.double().numpy())  # type: ignore[no-untyped-call]
    assert result.metrics[0]["train_loss"] == pytest.approx(expected.mean(), rel=1e-5)


def test_one_hot_rows_train_as_classes_do() -> None:
    x, counts = votes()
    onehot = np.eye(K)[counts.argmax(1)]
    for method in (
        "ce",
        "gce",
        "ln",
        "elr",
        "selc:start=1",
        "sln-mo-lc:start=1,alpha=0.9",
        "dividemix:warmup=1",
        "gp",
    ):
        soft, hard = (
            train(prepare(from_arrays(x, y)), method, SHORT) for y in (onehot, counts.argmax(1))
        )
        for row, other in zip(soft.metrics, hard.metrics, strict=True):
            assert row["train_loss"] == pytest.approx(other["train_loss"], rel=1e-4, abs=1e-5), (
                method
            )
            assert row["train_accuracy"] == pytest.approx(other["train_accuracy"], abs=0.03), method


@pytest.mark.parametrize("method", ["mae*:shift=1", "gce**", "mae-shift:tau=3"])
def test_losses_of_one_labelled_logit_refuse_them_before_the_first_step(method: str) -> None:
    with pytest.raises(ValueError, match=r"soft labels.*a shift needs one labelled logit"):
        train(task(), method, SHORT, progress=lambda *_: pytest.fail("a step was made"))


# Strategies


def test_tables_of_targets_start_from_the_distributions() -> None:
    made = task()
    assert made.train.soft is not None
    result = train(made, "selc:start=2,alpha=1", SHORT)  # α = 1: targets never move
    assert torch.equal(result.strategies[0].table[:, 0], made.train.soft)  # type: ignore[attr-defined]


def test_label_correction_mixes_the_distributions_with_predictions() -> None:
    made = task()
    assert made.train.soft is not None

    class Look(Strategy):
        def targets(self, batch: Batch, run: Run) -> Batch:
            if run.epoch == 1 and not hasattr(self, "target"):
                self.seen, self.target = batch.rows, batch.target
            return batch

    method = get_method("ce & label-correction:start=1", made, SHORT)
    result = train(
        made,
        Method(method.loss, method.head, (*method.strategies, Look())),
        replace(SHORT, epochs=2),
    )
    correction, look = result.strategies
    assert isinstance(look, Look)
    kept, predicted = (
        getattr(correction, name)[look.seen].numpy() for name in ("kept", "predicted")
    )
    q = made.train.soft[look.seen].numpy()
    np.testing.assert_allclose(
        look.target.numpy(),
        kept[:, None] * q + (1 - kept[:, None]) * np.eye(K)[predicted],
        atol=1e-6,
    )


def test_the_prior_of_cr_is_halfway_from_the_mean_distribution_to_equal_shares() -> None:
    made = task()
    assert made.train.soft is not None
    prior: Any = get_method("cr", made, SHORT).loss.prior
    mean = made.train.soft.double().mean(0).numpy()
    np.testing.assert_allclose(prior.numpy(), (mean + 1 / len(mean)) / 2, atol=1e-7)


# Record and resume


def test_the_record_counts_by_the_most_probable_class_and_its_losses_are_of_distributions(
    tmp_path: Path,
) -> None:
    made = task(validation=0.2)
    assert (
        made.validation is not None and made.validation.soft is not None and made.test is not None
    )
    result = train(made, "ce", SHORT, out=tmp_path / "run", samples=True)
    model = result.models[0]
    for part, soft, y, name in (
        (made.validation.x, made.validation.soft, made.validation.given, "validation"),
        (made.test.x, made.test.soft, made.test.y, "test"),
    ):
        assert isinstance(part, Tensor) and made.normalise is not None and soft is not None
        with torch.no_grad():
            z = model(made.normalise.apply(part, torch.empty(len(part), 0))).logits.double().numpy()
        expected = -(soft.double().numpy() * log_softmax(z)).sum(1).mean()
        assert result.last[f"{name}_loss"] == pytest.approx(expected, rel=1e-5)
        assert result.last[f"{name}_accuracy"] == pytest.approx((z.argmax(1) == y.numpy()).mean())
    reopened = open_run(tmp_path / "run", task=made)
    assert made.train.soft is not None and torch.equal(reopened.labels["soft"], made.train.soft)
    assert torch.equal(reopened.labels["validation.soft"], made.validation.soft)
    pull = reopened.samples(1)["pull"]
    assert np.isfinite(pull).all() and (pull > 0).all()


def test_the_pull_of_a_soft_label_is_half_the_distance_to_the_prediction(tmp_path: Path) -> None:
    result, spy = first_outputs("ce", out=tmp_path / "run", samples=True)
    q = task().train.soft
    assert q is not None
    p = np.exp(log_softmax(spy.out.logits.numpy()))
    pull = open_run(tmp_path / "run", task=task()).samples(1)["pull"]
    np.testing.assert_allclose(pull, np.abs(p - q.double().numpy()).sum(1) / 2, rtol=1e-5)
    assert len(result.metrics) == 1


@pytest.mark.parametrize("method", ["ce", "nal:start=1", "sln-mo-lc:start=1,alpha=0.9"])
def test_a_run_on_soft_labels_resumes_exactly(method: str, tmp_path: Path) -> None:
    whole = train(task(), method, SHORT)
    with pytest.raises(Interrupted):
        train(task(), method, SHORT, out=tmp_path / "run", max_steps=6)
    resumed = train(task(), method, SHORT, out=tmp_path / "run", resume=True)
    for a, b in zip(whole.models, resumed.models, strict=True):
        assert all(torch.equal(v, b.state_dict()[name]) for name, v in a.state_dict().items())
    without = [{k: v for k, v in row.items() if k != "seconds"} for row in whole.metrics]
    assert [{k: v for k, v in row.items() if k != "seconds"} for row in resumed.metrics] == without


def test_a_run_is_not_resumed_on_other_distributions_of_the_same_classes(tmp_path: Path) -> None:
    x, counts = votes()
    train(prepare(from_arrays(x, counts)), "ce", replace(SHORT, epochs=1), out=tmp_path / "run")
    sharper = counts + 5 * (counts == counts.max(1, keepdims=True))
    assert (sharper.argmax(1) == counts.argmax(1)).all()
    with pytest.raises(BadCheckpoint, match="Expected soft_labels="):
        train(
            prepare(from_arrays(x, sharper)),
            "ce",
            replace(SHORT, epochs=1),
            out=tmp_path / "run",
            resume=True,
        )
