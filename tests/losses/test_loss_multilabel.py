"""Losses of rows with several labels, against formulas typed here and the engine of two classes."""

from __future__ import annotations

import inspect
import math
import pickle
from typing import Any

import pytest
import torch
from reference import MARGIN, reference
from torch import Tensor

from noiseproof.losses import LOSSES, MultiLabel, get_loss

B, K = 7, 4
g = torch.Generator().manual_seed(0)
LOGITS = 3 * torch.randn(B, K, generator=g, dtype=torch.float64)
TARGET = (torch.rand(B, K, generator=g) < 0.4).double()
REAL = TARGET + 0.5 * torch.randn(B, K, generator=g, dtype=torch.float64)
of_one_label = pytest.mark.parametrize("name", sorted(MARGIN))


def pairs(z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Each question as a row of the two classes yes and no, with the logits (z, 0)."""
    return torch.stack([z.flatten(), torch.zeros_like(z).flatten()], 1), 1 - t.flatten().long()


def with_gradient(loss: Any, z: Tensor, *args: Tensor) -> tuple[Tensor, Tensor]:
    z = z.clone().requires_grad_()
    value = loss(z, *args)
    return value.detach(), torch.autograd.grad(value.sum(), z)[0]


@of_one_label
def test_each_question_is_the_papers_formula_with_two_classes(name: str) -> None:
    loss = MultiLabel(name, reduction="none")

    def wanted(z: Tensor, t: Tensor) -> Tensor:
        return reference(name, *pairs(z, t)).view_as(z).sum(1)

    for got, want in zip(
        with_gradient(loss, LOGITS, TARGET), with_gradient(wanted, LOGITS, TARGET), strict=True
    ):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "spec",
    [
        "ce + 0.5*mae",
        "unit:loss=mae",
        "remargin:loss=mae,shift=2",
        "remargin:loss=gce,shift=-1,scale=0.5",
    ],
)
def test_sums_and_wrappers_are_the_engine_of_two_classes(spec: str) -> None:
    loss, engine = MultiLabel(spec, reduction="none"), get_loss(spec, reduction="none", exact=True)
    for mode in (True, False):
        got = loss.train(mode)(LOGITS, TARGET)
        torch.testing.assert_close(
            got, engine.train(mode)(*pairs(LOGITS, TARGET)).view(B, K).sum(1)
        )


def test_cross_entropy_is_that_of_torch() -> None:
    want = K * torch.nn.BCEWithLogitsLoss()(LOGITS, TARGET)
    torch.testing.assert_close(MultiLabel("ce")(LOGITS, TARGET), want)
    weight = torch.tensor([1.0, 2.0, 0.5, 0.0], dtype=torch.float64)
    want = K * torch.nn.BCEWithLogitsLoss(weight)(LOGITS, TARGET)
    torch.testing.assert_close(MultiLabel("ce", weight=weight)(LOGITS, TARGET), want)


@of_one_label
def test_targets_between_labels_interpolate(name: str) -> None:
    loss = MultiLabel(name, reduction="none")
    yes, no = (
        get_loss(name, reduction="none", exact=True)(*pairs(LOGITS, t)).view(B, K)
        for t in (TARGET * 0 + 1, TARGET * 0)
    )
    torch.testing.assert_close(loss(LOGITS, REAL), (REAL * yes + (1 - REAL) * no).sum(1))


def asl(z: Tensor, t: Tensor, gamma_pos: float, gamma_neg: float, m: float) -> Tensor:
    """Ridnik et al. 2021, Eqs. 4-6, as they stand."""
    p = 1 / (1 + torch.exp(-z))
    p_m = torch.maximum(p - m, torch.zeros_like(p))
    return -(t * (1 - p) ** gamma_pos * p.log() + (1 - t) * p_m**gamma_neg * (1 - p_m).log()).sum(1)


@pytest.mark.parametrize(
    ("gamma_pos", "gamma_neg", "m"),
    [(0, 4, 0.05), (1, 4, 0.05), (0, 0, 0), (2, 2, 0), (0, 1, 0.2), (0.5, 1.5, 0.01)],
)
def test_asymmetric_loss(gamma_pos: float, gamma_neg: float, m: float) -> None:
    loss = get_loss("asl", gamma_pos=gamma_pos, gamma_neg=gamma_neg, shift=m, reduction="none")
    got = with_gradient(loss, LOGITS, TARGET)
    want = with_gradient(lambda z, t: asl(z, t, gamma_pos, gamma_neg, m), LOGITS, TARGET)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_asymmetric_loss_ignores_absent_labels_of_low_probability() -> None:
    z = torch.logit(torch.tensor([[0.04, 0.05, 0.0501, 0.3]], dtype=torch.float64))
    for gamma in (0.0, 0.5, 4.0):
        loss = get_loss("asl", gamma_neg=gamma, reduction="sum")
        _, gradient = with_gradient(loss, z, torch.zeros_like(z))
        assert gradient[0, 0] == 0 and (gradient[0, 2:] > 0).all() and gradient.isfinite().all()


@pytest.mark.parametrize(
    "spec", [*sorted(MARGIN), "asl", "asl:gamma_neg=0.5", "asl:shift=0,gamma_pos=1"]
)
def test_gradients(spec: str) -> None:
    loss = get_loss(spec) if spec.startswith("asl") else MultiLabel(spec)
    z = LOGITS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda z: loss(z, TARGET), (z,))
    assert torch.autograd.gradcheck(lambda z: loss(z, REAL), (z,))


@pytest.mark.parametrize("spec", [*sorted(MARGIN), "asl", "asl:gamma_neg=0.5"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_logits_stay_finite(spec: str, dtype: torch.dtype) -> None:
    loss = (
        get_loss(spec, reduction="none")
        if spec.startswith("asl")
        else MultiLabel(spec, reduction="none")
    )
    z = torch.tensor([[-500.0, -200, -30, 0], [0, 30, 200, 500]], dtype=dtype)
    for t in (torch.zeros_like(z), torch.ones_like(z)):
        value, gradient = with_gradient(loss, z, t)
        assert value.isfinite().all() and gradient.isfinite().all()


def test_weights_of_rows_reduction_and_one_question() -> None:
    each = MultiLabel("mae", reduction="none")(LOGITS, TARGET)
    assert each.shape == (B,)
    weight = torch.arange(B, dtype=torch.float64)
    torch.testing.assert_close(
        MultiLabel("mae", reduction="sum")(LOGITS, TARGET, weight), (each * weight).sum()
    )
    torch.testing.assert_close(MultiLabel("mae")(LOGITS, TARGET), each.mean())
    torch.testing.assert_close(
        MultiLabel("mae", reduction="none")(LOGITS[:, :1], TARGET[:, :1]),
        get_loss("mae", reduction="none")(*pairs(LOGITS[:, :1], TARGET[:, :1])),
    )


def test_the_spec_builds_it_again() -> None:
    for spec in (
        "multilabel:loss=(gce:q=0.5)",
        "multilabel:loss=ce,absent=mae",
        "asl:gamma_neg=2",
        "multilabel:loss=(ce + mae)",
    ):
        loss = get_loss(spec)
        for again in (
            get_loss(str(loss)),
            pickle.loads(pickle.dumps(loss)),
            loss.with_hyperparameters(),
        ):
            assert str(again) == str(loss)
            assert torch.equal(again(LOGITS, TARGET), loss(LOGITS, TARGET))


def test_what_is_not_a_matrix_of_labels_is_refused() -> None:
    loss = get_loss("asl")
    for target in (torch.zeros(B, dtype=torch.int64), TARGET.long(), TARGET[:, :2], TARGET[:2]):
        with pytest.raises(
            ValueError, match=r"target of shape \(7, 4\), 1 for each label of a row"
        ):
            loss(LOGITS, target)
    with pytest.raises(ValueError, match="`weight` of 4 classes, got 3"):
        get_loss("asl", weight=torch.ones(3))(LOGITS, TARGET)
    with pytest.raises(ValueError, match=r"logits of shape \(B, K\)"):
        loss(LOGITS[None], TARGET[None])


@pytest.mark.parametrize("name", [name for name in sorted(LOSSES) if name not in MARGIN])
def test_losses_that_need_more_than_a_margin_are_refused(name: str) -> None:
    made = LOSSES[name]
    required = [k for k, v in LOSSES.parameters(name).items() if v is inspect.Parameter.empty]
    if required:
        pytest.skip("wrappers and corrections have arguments")
    if (
        getattr(made, "kind", "") == "margin"
        and not getattr(made, "multilabel", False)
        and name != "peer"
    ):
        pytest.skip("a margin loss")
    with pytest.raises(ValueError, match="Expected a loss of the label's probability alone"):
        MultiLabel(name)


def test_sums_of_losses_for_several_labels_are_refused() -> None:
    for combine in (
        lambda a: a + get_loss("ce"),
        lambda a: 2 * a,
        lambda a: get_loss("remargin", loss=a),
    ):
        with pytest.raises(ValueError, match=r"multilabel:loss=\(ce \+ mae\)"):
            combine(get_loss("asl"))


def test_probabilities_are_those_of_each_question() -> None:
    from noiseproof.core.output import Output

    assert math.isclose(float(get_loss("asl").probabilities(Output(torch.zeros(1, 3)))[0, 0]), 0.5)
    torch.testing.assert_close(get_loss("ce").probabilities(Output(LOGITS)), LOGITS.softmax(1))
