"""Exported files say what the run says, by PyTorch's runtime and by ONNX's reference one, of raw
inputs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from noiseproof.core.output import Output
from noiseproof.data import get_dataset
from noiseproof.estimator import NoisyLabelClassifier
from noiseproof.heads.base import HEADS, Head
from noiseproof.losses import get_loss
from noiseproof.strategies import log_probs, sweep
from noiseproof.train import Method, Result, Settings, prepare, train
from noiseproof.train.export import Predictor, export
from noiseproof.train.methods import METHODS

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")


def trained(dataset: str, method: str, model: str) -> tuple[Result, torch.Tensor]:
    data = get_dataset(dataset)
    x = (data.test or data.train).x
    assert isinstance(x, torch.Tensor)
    return train(prepare(data), method, Settings(epochs=2, model=model, batch_size=512)), x


@torch.no_grad()
def said(result: Result, x: torch.Tensor) -> torch.Tensor:
    """What the run itself predicts of raw inputs."""
    (outs,) = (outs for _, _, outs in sweep(result.run, x))
    return log_probs(result.run.loss, outs).exp()


def graph_of(path: Path) -> Any:
    return onnx.load(path).graph


def in_onnx(path: Path, x: torch.Tensor) -> Any:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    from onnx.reference import ReferenceEvaluator

    (found,) = ReferenceEvaluator(model).run(["probabilities"], {"input": x.numpy()})
    return found


@pytest.mark.parametrize(
    "dataset, method, model",
    [
        # bytes; a head, a temperature
        pytest.param("digits", "ln", "mlp:hidden=[16]", marks=pytest.mark.slow),
        ("two-moons", "nal", "mlp:hidden=[16]"),  # vectors
        ("digits", "co-teaching", "cnn4"),  # two models, batch statistics
    ],
)
def test_both_formats_say_what_the_run_says(
    dataset: str, method: str, model: str, tmp_path: Path
) -> None:
    result, x = trained(dataset, method, model)
    want = said(result, x[:7])
    torch.testing.assert_close(want.sum(1), torch.ones(7))
    names = [f"class {k}" for k in range(want.shape[1])]
    extra = {"classes.json": ""}
    loaded = torch.export.load(
        export(result, tmp_path / "model.pt2", x, classes=names), extra_files=extra
    ).module()
    assert json.loads(extra["classes.json"]) == names
    file = export(result, tmp_path / "deep" / "model.onnx", x[:1], classes=names)
    assert list(file.parent.iterdir()) == [file]  # weights inside
    axes = {
        value.type.tensor_type.shape.dim[0].dim_param
        for value in (*graph_of(file).input, *graph_of(file).output)
    }
    assert axes == {"batch"}
    properties = {prop.key: prop.value for prop in onnx.load(file).metadata_props}
    assert json.loads(properties["classes"]) == names
    for rows in (7, 1):
        torch.testing.assert_close(loaded(x[:rows]), want[:rows], atol=1e-6, rtol=1e-5)
        np.testing.assert_allclose(in_onnx(file, x[:rows]), want[:rows], atol=1e-6, rtol=1e-4)


def test_the_variance_of_ln_is_exported_where_it_is_asked_for(tmp_path: Path) -> None:
    result, x = trained("two-moons", "ln:lam=0.3", "mlp:hidden=[16]")
    predictor = Predictor.of(result)
    with torch.no_grad():
        p, variance = predictor.with_variance(x[:5])
        out = result.models[0].eval()(result.run.normalise(x[:5]))  # type: ignore[misc]
    sigmas = [torch.outer(c, c) + 0.3 * torch.eye(2) for c in out.root]
    expected = torch.stack([(root @ root).diagonal().mean() for root in sigmas])  # Σ = (ccᵀ + λI)²
    torch.testing.assert_close(variance, expected)
    torch.testing.assert_close(p, said(result, x[:5]))
    loaded = torch.export.load(export(result, tmp_path / "model.pt2", x, variance=True)).module()
    torch.testing.assert_close(loaded(x[:5]), (p, variance))
    plain = torch.export.load(export(predictor, tmp_path / "plain.pt2", x))
    torch.testing.assert_close(plain.module()(x[:5]), p)
    with pytest.raises(
        ValueError, match="whose head predicts a variance, such as ln or het, got `ce`"
    ):
        export(
            trained("two-moons", "ce", "mlp:hidden=[16]")[0], tmp_path / "ce.pt2", x, variance=True
        )


class Folded(Head):
    """More than a linear layer called ``logits``, as a user's own may be."""

    def __init__(self, num_features: int, num_outputs: int) -> None:
        super().__init__()
        self.hidden, self.logits = nn.Linear(num_features, 12), nn.Linear(12, num_outputs)

    def forward(self, features: torch.Tensor) -> Output:
        return Output(-self.logits(self.hidden(features).relu()))


def test_a_head_of_the_users_own_predicts_as_it_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HEADS._factories, "test-folded", Folded)
    monkeypatch.setitem(
        METHODS._factories,
        "test-own",
        lambda setting, /: Method(get_loss("ce"), head="test-folded"),
    )
    result, x = trained("digits", "test-own", "mlp:hidden=[16]")
    path = export(result, tmp_path / "own.pt2", x[:2])
    for found in (Predictor.of(result)(x), torch.export.load(path).module()(x)):
        torch.testing.assert_close(found, said(result, x), rtol=1e-5, atol=1e-6)
    rows, y = x.flatten(1).float().numpy()[:90], np.arange(90) % 3
    fitted = NoisyLabelClassifier("test-own", epochs=1, model="mlp:hidden=[8]").fit(rows, y)
    again = NoisyLabelClassifier.load(fitted.save(tmp_path / "saved"))
    np.testing.assert_array_equal(again.predict_proba(rows), fitted.predict_proba(rows))


@pytest.mark.parametrize(
    ("loss", "head"),
    [
        ("2*ln:dummy=false", "gaussian-root"),
        ("bitempered + mae", "linear"),
        ("0.5*het:samples=8", "gaussian-scale"),
    ],
)
def test_a_loss_inside_another_predicts_as_in_the_run(loss: str, head: str) -> None:
    task = prepare(get_dataset("digits"), "symmetric:rate=0.2")
    result = train(task, Method(get_loss(loss), head), Settings(epochs=1, model="mlp:hidden=[16]"))
    x = get_dataset("digits").test.x[:20]
    torch.testing.assert_close(Predictor.of(result)(x), said(result, x))


def test_het_averages_over_its_noise_in_prediction_too() -> None:
    result, x = trained("two-moons", "het:samples=50", "mlp:hidden=[16]")
    torch.testing.assert_close(Predictor.of(result)(x[:5]), said(result, x[:5]))


@pytest.mark.parametrize("method", ["het:samples=5", "gp"])
def test_what_is_no_plain_network_is_refused(method: str, tmp_path: Path) -> None:
    result, x = trained("two-moons", method, "mlp:hidden=[4]")
    with pytest.raises(ValueError, match="Expected a network with plain logits to export"):
        export(result, tmp_path / "model.onnx", x)
    with pytest.raises(
        ValueError, match="Expected a path that ends in .pt2 or .onnx, got '.*model.h5'"
    ):
        export(result, tmp_path / "model.h5", x)
    assert list(tmp_path.iterdir()) == []


def test_the_estimator_exports_what_it_predicts(tmp_path: Path) -> None:
    images = get_dataset("digits").train
    assert isinstance(images.x, torch.Tensor)
    model = NoisyLabelClassifier("sln-mo", "mlp:hidden=[8]", epochs=2).fit(
        images.x.numpy(), images.y.numpy()
    )
    file = model.export(tmp_path / "model.onnx")
    p = model.predict_proba(images.x[:20].numpy())
    np.testing.assert_allclose(in_onnx(file, images.x[:20]), p, atol=1e-6, rtol=1e-4)
    assert model.predict_proba(images.x[:20].numpy()).tolist() == p.tolist()  # it is as it was
