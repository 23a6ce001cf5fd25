"""Loss landscapes against closed forms; directions by their definition; models that come out as
they went in.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from noiseproof.analysis.after.landscape import (
    Landscape,
    filter_normalised_direction,
    keep_landscape,
    kept_landscape,
    landscape,
    landscape_figures,
    run_landscape,
)
from noiseproof.analysis.runs import open_run
from noiseproof.data import get_dataset
from noiseproof.models.classifier import Classifier, build_classifier
from noiseproof.strategies import sweep
from noiseproof.train import Settings, prepare, train


def seeded(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def network(name: str = "cnn4", size: int = 8) -> Classifier:
    """A small classifier with batch statistics that are not those of a new one."""
    model = build_classifier(
        name, "linear", input_shape=(1, size, size), num_outputs=3, generator=seeded()
    )
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("running_mean"):
            buffer.normal_(0, 0.1, generator=seeded(1))
    return model


def images(n: int = 50, size: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, size, size, generator=seeded(2)), torch.randint(
        0, 3, (n,), generator=seeded(3)
    )


# Directions


def test_each_filter_of_a_direction_is_as_long_as_the_model_s() -> None:
    model = network()
    direction = filter_normalised_direction(model, seeded())
    moved = 0
    for name, weight in model.named_parameters():
        assert direction[name].shape == weight.shape
        if weight.dim() == 1:
            assert not direction[name].any(), name
            continue
        for d, w in zip(direction[name], weight, strict=True):
            assert float(d.norm()) == pytest.approx(float(w.detach().norm()), rel=1e-5)
            moved += 1
    assert moved == 32 + 64 + 128 + 3  # two convolutions, the hidden layer, the head


def test_what_does_not_move_are_biases_and_batch_normalisation() -> None:
    direction = filter_normalised_direction(network(), seeded())
    still = {name for name, d in direction.items() if not d.any()}
    model = network()
    expected = {
        f"{name}.bias" for name, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))
    }
    norms = {
        name for name, m in model.named_modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))
    }
    assert still == expected | {f"{name}.{part}" for name in norms for part in ("weight", "bias")}


def test_directions_come_from_their_generator_alone() -> None:
    state = torch.get_rng_state()
    one, two = (filter_normalised_direction(network(), seeded(5)) for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = filter_normalised_direction(network(), seeded(6))
    assert not torch.equal(one["head.logits.weight"], other["head.logits.weight"])
    assert torch.equal(state, torch.get_rng_state())


# Values


class Linear(nn.Module):
    """z = W x, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, generator=seeded(), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


def squared(out: Tensor, target: Tensor) -> Tensor:
    return ((out - F.one_hot(target, 3)) ** 2).sum(1)


@pytest.fixture(scope="module")
def bowl() -> tuple[Landscape, Tensor, Tensor, Tensor, Tensor, Linear]:
    model = Linear()
    x = torch.randn(300, 4, generator=seeded(1), dtype=torch.float64)  # two passes
    y = torch.randint(0, 3, (300,), generator=seeded(2))
    generator = seeded(3)
    d1, d2 = (filter_normalised_direction(model, generator)["weight"] for _ in range(2))
    result = landscape(model, x, y, generator=seeded(3), criterion=squared, points=5)
    return result, x, y, d1, d2, model


def test_squared_error_of_a_linear_model_is_its_quadratic_form(bowl) -> None:  # type: ignore[no-untyped-def]
    result, x, y, d1, d2, model = bowl
    # ‖(W + αA + βB)x − t‖² = ‖r‖² + 2α⟨r, Ax⟩ + 2β⟨r, Bx⟩ + α²‖Ax‖² + β²‖Bx‖² + 2αβ⟨Ax, Bx⟩
    r, a, b = x @ model.weight.detach().T - F.one_hot(y, 3), x @ d1.T, x @ d2.T

    def mean(u: Tensor, v: Tensor) -> float:
        return float((u * v).sum(1).mean())

    assert result.points.tolist() == [-1, -0.5, 0, 0.5, 1]
    for i, alpha in enumerate(result.points.tolist()):
        for j, beta in enumerate(result.points.tolist()):
            expected = (
                mean(r, r)
                + 2 * alpha * mean(r, a)
                + 2 * beta * mean(r, b)
                + alpha**2 * mean(a, a)
                + beta**2 * mean(b, b)
                + 2 * alpha * beta * mean(a, b)
            )
            assert float(result.losses[i, j]) == pytest.approx(expected, rel=1e-6)
    # half of 2‖Ax‖² + 2‖Bx‖²
    assert result.curvature == pytest.approx(mean(a, a) + mean(b, b), rel=1e-6)


def test_sharpness_is_the_relative_rise_within_a_radius(bowl) -> None:  # type: ignore[no-untyped-def]
    losses = torch.tensor([[9.0, 3.0, 8.0], [2.0, 1.0, 4.0], [5.0, 1.5, 7.0]], dtype=torch.float64)
    result = Landscape(torch.tensor([-0.1, 0.0, 0.1], dtype=torch.float64), losses)
    assert result.centre == 1.0
    assert result.sharpness(0.1) == 100 * (4 - 1) / (1 + 1)
    assert result.sharpness(0.15) == 100 * (9 - 1) / (1 + 1)  # the corners, at 0.1·√2, too
    assert result.curvature == pytest.approx((3 + 1.5 + 2 + 4 - 4) / (2 * 0.01))
    with pytest.raises(ValueError, match="to reach a point next to the model, got 0.01"):
        result.sharpness(0.01)
    steps = torch.arange(-3, 4, dtype=torch.float64) * 0.1
    wide = Landscape(steps, (steps[:, None] ** 2 + steps**2) * 100)
    assert wide.sharpness(0.3) == pytest.approx(100 * 9)  # 3 · 0.1 counts as 0.3


def test_the_middle_is_the_model_itself_to_the_last_bit() -> None:
    model, (x, y) = network(), images(300)
    result = landscape(model, x, y, generator=seeded(), points=3)
    model.eval()
    total = torch.zeros((), dtype=torch.float64)
    with torch.no_grad():
        for rows in torch.split(torch.arange(300), 256):
            total += (
                F.cross_entropy(model(x[rows]).logits, y[rows], reduction="none").double().sum()
            )
    assert result.centre == float(total / 300)


def test_points_are_the_models_with_these_weights() -> None:
    model, (x, y) = network(), images()
    result = landscape(model, x, y, generator=seeded(4), points=3)
    generator = seeded(4)
    directions = [filter_normalised_direction(model, generator) for _ in range(2)]
    moved = copy.deepcopy(model).eval()
    with torch.no_grad():
        for name, weight in moved.named_parameters():
            weight.sub_(directions[0][name]).add_(directions[1][name])
        expected = F.cross_entropy(moved(x).logits, y)
    assert float(result.losses[0, 2]) == pytest.approx(float(expected), rel=1e-5)
    table = result.table()
    row = table[(table["alpha"] == -1) & (table["beta"] == 1)]
    assert row["loss"].item() == float(result.losses[0, 2])


def test_rescaled_layers_have_the_same_landscape() -> None:
    """What the normalisation is for: filters c times as large, and the next ones 1/c, are the same
    function.
    """
    model, x = network("lenet5", 8), images()[0]
    for name, bias in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(bias)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.backbone.features[0].weight.mul_(8)
        other.backbone.features[3].weight.div_(8)
        expected = model(x).logits
        assert torch.equal(other(x).logits, expected)
    y = expected.argmax(1)
    one, two = (landscape(m, x, y, generator=seeded(), points=3) for m in (model, other))
    torch.testing.assert_close(one.losses, two.losses, rtol=1e-4, atol=1e-6)


# The model


@pytest.mark.parametrize("training", [True, False])
def test_the_model_comes_out_as_it_went_in(training: bool) -> None:
    model, (x, y) = network().train(training), images()
    model(x[:8]).logits.sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    places = {name: value.data_ptr() for name, value in model.named_parameters()}
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    def stop(stage: str, done: int, total: int | None) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        landscape(model, x, y, generator=seeded(), points=3, progress=stop)
    landscape(model, x, y, generator=seeded(), points=3)
    assert model.training is training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for name, p in model.named_parameters():
        assert p.requires_grad and p.data_ptr() == places[name]
        assert p.grad is not None and torch.equal(p.grad, gradients[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 4}, "odd number of `points`"),
        ({"points": 1}, "`points` to be an integer of at least 3"),
    ],
)
def test_refusals(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        landscape(network(), *images(), generator=seeded(), **options)
    with pytest.raises(ValueError, match="as many labels as inputs"):
        landscape(network(), images()[0], images()[1][:-1], generator=seeded())


def test_what_has_no_weights_has_no_landscape(tmp_path: Path) -> None:
    task = prepare(get_dataset("two-moons:n=60"), "symmetric:rate=0.2")
    train(task, "gp", Settings(epochs=1), out=tmp_path)
    with pytest.raises(
        ValueError, match="Expected a model with weights, got one without. A Gaussian process"
    ):
        run_landscape(open_run(tmp_path), rows=20, points=3)


# Runs and figures


def test_landscape_of_a_run(tmp_path: Path) -> None:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    result = train(
        task, "ln & momentum:alpha=0.9", Settings(epochs=2, model="mlp:hidden=[16]"), out=tmp_path
    )
    run = open_run(tmp_path)
    computed = run_landscape(run, rows=10_000, points=3)  # all of the 1437
    scores = torch.cat([result.run.loss.scores(outs[0]) for _, _, outs in sweep(result.run)])
    expected = F.cross_entropy(scores, task.train.given)
    assert computed.centre == pytest.approx(float(expected), rel=1e-5)
    few = run_landscape(run, rows=100, points=3)
    assert few.centre != computed.centre
    assert torch.equal(few.losses, run_landscape(run, rows=100, points=3).losses)
    other = run_landscape(run, rows=100, points=3, seed=1)
    assert not torch.equal(few.losses, other.losses)
    assert (computed.seed, computed.rows) == (0, 1437)
    assert (other.seed, other.rows) == (1, 100)
    for one in (few, other):
        keep_landscape(run, one)
        kept = kept_landscape(run)
        assert (
            kept is not None
            and (kept.seed, kept.rows) == (one.seed, one.rows)
            and torch.equal(kept.losses, one.losses)
        )
    with pytest.raises(ValueError, match="Expected landscapes of one seed.*Make them together"):
        landscape_figures({"a": few, "b": other})
    assert all("by seed 1." in figure.reading for figure in landscape_figures({"a": other}))
