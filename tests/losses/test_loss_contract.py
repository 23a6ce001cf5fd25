"""What every registered loss must do; a new loss is found and tested without editing this file.

Here a loss is a function of logits; those that need more of a head are tested beside their own
reference. A loss that needs arguments gets them by parameter name from ``REQUIRED``; its formula
belongs in ``reference.py``.
"""

from __future__ import annotations

import copy
import inspect
import io
import math
import os
import pickle
import tempfile
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import reference
from torch import Tensor

from noiseproof.core.output import Output
from noiseproof.losses import LOSSES, Loss, fast, get_loss
from noiseproof.losses.remargin import Remargin

B, K = 6, 5
T = 0.75 * torch.eye(K, dtype=torch.float64) + 0.05 * torch.ones(K, K, dtype=torch.float64)
PRIOR = [0.1, 0.3, 0.2, 0.25, 0.15]
# arguments without a default, by name
REQUIRED: dict[str, Any] = {"T": T, "loss": "gce:q=0.7", "num_classes": K}

# Beside each loss as registered, variants whose code differs.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("remargin", {"loss": "mae", "shift": 1.5}),
    ("remargin", {"loss": "gce:q=0.7", "shift": -1.0, "scale": 0.5}),
    ("remargin", {"loss": "nce", "shift": 1.5}),
    ("remargin", {"loss": "peer", "shift": 1.5}),
    ("cr", {"prior": PRIOR}),
    ("peer", {"loss": "nce"}),
    ("peer", {"prior": PRIOR}),
    ("bitempered", {"t1": 0.9, "t2": 1.0}),
    ("bitempered", {"t1": 0.7, "t2": 0.9}),
    *[(name, {"exact": True}) for name in ("ce", "gce", "ael", "nce", "brier")],
    ("sum", {"spec": "10*nce + 0.1*agce:a=1.8,q=3"}),
    ("sum", {"spec": "0.3*ce + 0.7*mae"}),
    ("sum", {"spec": "ce + 0.5*peer"}),
    ("sum", {"spec": "ael + 2*forward", "T": T}),
]
OF_LOGITS = [
    name
    for name in LOSSES  # those of several labels a row are tested in test_loss_multilabel.py
    if getattr(LOSSES[name], "needs", {"logits"}) == {"logits"}
    and not getattr(LOSSES[name], "multilabel", False)
]
BATCHWISE = ("peer", "cr")  # look at the other rows of the batch
CLASSES_ONLY = tuple(
    name for name in LOSSES if inspect.isclass(LOSSES[name]) and issubclass(LOSSES[name], Remargin)
)
NOT_LINEAR = ("bitempered",)  # in the target
ONCE_DIFFERENTIABLE = ("bitempered",)


class Case:
    """A loss with its arguments."""

    def __init__(self, name: str, hp: dict[str, Any]) -> None:
        self.name, self.hp = name, dict(hp)
        if name != "sum":
            for key, default in LOSSES.parameters(name).items():
                if default is inspect.Parameter.empty and key not in hp:
                    assert key in REQUIRED, (
                        f"{name} needs `{key}`: give the contract tests one in REQUIRED."
                    )
                    self.hp[key] = REQUIRED[key]

    def __repr__(self) -> str:
        return f"{self.name}({','.join(f'{k}={v}' for k, v in self.hp.items() if k != 'T')})"

    def make(self, **options: Any) -> Loss:
        if self.name != "sum":
            return get_loss(self.name, **{**self.hp, **options})
        if "T" in self.hp:
            return get_loss("ael", **options) + 2 * get_loss("forward", T=T, **options)
        return get_loss(self.hp["spec"], **options)

    def holds(self, names: tuple[str, ...]) -> bool:
        return self.name in names or any(name in self.hp.get("spec", "") for name in names)

    @property
    def batchwise(self) -> bool:
        # peers of `peer` are other rows' in any case
        given = self.name == "cr" and "prior" in self.hp
        return (self.holds(BATCHWISE) or self.hp.get("loss") in BATCHWISE) and not given

    @property
    def real_valued(self) -> bool:
        return not self.holds(CLASSES_ONLY)

    def targets(self) -> list[Tensor]:
        return (
            [LABELS, REAL.abs() if self.holds(NOT_LINEAR) else REAL]
            if self.real_valued
            else [LABELS]
        )

    def reference(self, logits: Tensor, target: Tensor) -> Tensor:
        hp = {key: value for key, value in self.hp.items() if key != "exact"}
        if self.name == "sum":
            terms = {
                "10*nce + 0.1*agce:a=1.8,q=3": [
                    (10, "nce", {}),
                    (0.1, "agce", {"a": 1.8, "q": 3.0}),
                ],
                "0.3*ce + 0.7*mae": [(0.3, "ce", {}), (0.7, "mae", {})],
                "ce + 0.5*peer": [(1, "ce", {}), (0.5, "peer", {})],
                "ael + 2*forward": [(1, "ael", {}), (2, "forward", {"T": T})],
            }[hp["spec"]]
            return sum(c * reference(name, logits, target, **own) for c, name, own in terms)
        if isinstance(hp.get("loss"), str):
            name, _, params = hp["loss"].partition(":")
            hp["loss"] = (
                name,
                {
                    k: float(v)
                    for k, _, v in (item.partition("=") for item in params.split(","))
                    if k
                },
            )
        return reference(self.name, logits, target, **hp)


CASES = [Case(name, {}) for name in OF_LOGITS] + [Case(*variant) for variant in VARIANTS]
g = torch.Generator().manual_seed(0)
LOGITS = 2 * torch.randn(B, K, generator=g, dtype=torch.float64)
LABELS = torch.tensor([0, 3, 1, 4, 3, 2])
LABELS[0] = LOGITS[0].argmax()
# negative entries too
REAL = F.one_hot(LABELS, K) + 0.5 * torch.randn(B, K, generator=g, dtype=torch.float64)
WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.25, 3.0], dtype=torch.float64)
ROW_WEIGHT = torch.tensor([1.0, 0.0, 2.0, 0.5, 1.5, 1.0], dtype=torch.float64)

every_loss = pytest.mark.parametrize("case", CASES, ids=repr)


def with_gradient(
    loss: Any, logits: Tensor, target: Tensor, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    z = logits.detach().clone().requires_grad_()
    losses = loss(z, target, **kwargs)
    (gradient,) = torch.autograd.grad(losses.sum(), z)
    return losses.detach(), gradient


def same(one: tuple[Tensor, ...], other: tuple[Tensor, ...], tolerance: float = 1e-10) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


# --- The function itself -------------------------------------------------------------------------
@every_loss
def test_value_and_gradient_against_reference(case: Case) -> None:
    loss = case.make(reduction="none")
    state = torch.get_rng_state()
    for target in case.targets():
        z, t = LOGITS.clone(), target.clone()
        same(with_gradient(loss, z, t), with_gradient(case.reference, LOGITS, target), 1e-8)
        assert torch.equal(z, LOGITS) and torch.equal(t, target), "inputs must not be modified"
        torch.testing.assert_close(loss(Output(LOGITS), target), loss(LOGITS, target))
    assert torch.equal(state, torch.get_rng_state()), "the global random state must not be touched"


@every_loss
def test_gradcheck(case: Case) -> None:
    loss = case.make()
    for target in case.targets():
        z = LOGITS[:3].clone().requires_grad_()
        assert torch.autograd.gradcheck(lambda z, t=target[:3]: loss(z, t), z)
        if not case.holds(ONCE_DIFFERENTIABLE):
            assert torch.autograd.gradgradcheck(lambda z, t=target[:3]: loss(z, t), z)


@every_loss
def test_sample_weight_is_minus_the_derivative(case: Case) -> None:
    """w(Δ) = −dl/dΔ: with two classes and z = (Δ, 0), Δ is the margin, so autograd gives it."""
    if case.hp.get("T") is not None or "prior" in case.hp:
        case = Case(
            case.name, {**case.hp, "T": torch.eye(2)} if "T" in case.hp else {"prior": [0.5, 0.5]}
        )
    loss = case.make(reduction="none")
    at = torch.linspace(-30, 30, 121, dtype=torch.float64) + 0.01
    if loss.kind != "margin":
        with pytest.raises(TypeError):
            loss.sample_weight(at)
        return
    _, gradient = with_gradient(
        loss, torch.stack([at, torch.zeros_like(at)], 1), torch.zeros(len(at), dtype=torch.long)
    )
    weight = loss.sample_weight(at)
    torch.testing.assert_close(weight, -gradient[:, 0], rtol=1e-7, atol=1e-12)
    assert weight.dtype == at.dtype and not weight.requires_grad
    assert 0.95 < float((loss.sample_weight(at) / loss.max_weight).max()) < 1 + 1e-6


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_finite_at_extreme_margins(case: Case, dtype: torch.dtype) -> None:
    """Δ = ±200, where p_y is 1 and 0 in every precision."""
    loss = case.make(reduction="none")
    z = torch.zeros(4, K, dtype=dtype)
    z[0, 0], z[1, 0], z[2], z[3] = 200, -200, 200, -200
    for target in (
        torch.zeros(4, dtype=torch.long),
        F.one_hot(torch.zeros(4, dtype=torch.long), K).to(dtype),
    ):
        if target.dim() == 2 and not case.real_valued:
            continue
        losses, gradient = with_gradient(loss, z, target)
        assert losses.dtype == gradient.dtype == dtype
        assert losses.isfinite().all() and gradient.isfinite().all()


@every_loss
def test_nan_logits_never_become_a_finite_loss(case: Case) -> None:
    loss = case.make(reduction="none")
    for target in case.targets():
        for column in range(K):
            z = LOGITS.clone()
            z[1, column] = math.nan
            assert loss(z, target)[1].isnan()


# --- Targets -------------------------------------------------------------------------------------
@every_loss
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weight"])
def test_class_label_equals_one_hot_target(case: Case, weight: Tensor | None) -> None:
    loss = case.make(reduction="none", weight=weight)
    one_hot = F.one_hot(LABELS, K).to(LOGITS.dtype)
    if not case.real_valued:
        with pytest.raises(ValueError, match="class indices"):
            loss(LOGITS, one_hot)
        return
    same(with_gradient(loss, LOGITS, LABELS), with_gradient(loss, LOGITS, one_hot))


@every_loss
def test_linear_in_the_target(case: Case) -> None:
    """L(z, t) = Σ_k t_k L(z, k), with entries of any sign and sum."""
    if case.batchwise or not case.real_valued or case.holds(NOT_LINEAR):
        pytest.skip("looks at other rows' targets, or defines its own")
    loss = case.make(reduction="none")
    each = torch.stack([loss(LOGITS, torch.full((B,), k)) for k in range(K)], 1)
    torch.testing.assert_close(loss(LOGITS, REAL), (REAL * each).sum(1))
    weighted = case.make(reduction="none", weight=WEIGHT)
    if weighted.weighs_classes:
        each = torch.stack([weighted(LOGITS, torch.full((B,), k)) for k in range(K)], 1) / WEIGHT
    torch.testing.assert_close(weighted(LOGITS, REAL), (REAL * WEIGHT * each).sum(1))


@every_loss
def test_order_of_the_batch_and_of_memory_does_not_matter(case: Case) -> None:
    loss = case.make(reduction="none")
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    for target in case.targets():
        losses, gradient = with_gradient(loss, LOGITS, target)
        same(with_gradient(loss, LOGITS[order], target[order]), (losses[order], gradient[order]))
        same(with_gradient(loss, LOGITS.T.contiguous().T, target), (losses, gradient))


@every_loss
def test_rows_do_not_see_each_other(case: Case) -> None:
    if case.batchwise:
        pytest.skip("looks at the batch by definition")
    loss = case.make(reduction="none")
    for target in case.targets():
        alone = torch.cat([loss(LOGITS[i : i + 1], target[i : i + 1]) for i in range(B)])
        torch.testing.assert_close(alone, loss(LOGITS, target))


@every_loss
def test_common_offset_of_the_logits_changes_nothing(case: Case) -> None:
    loss = case.make(reduction="none")
    for target in case.targets():
        same(with_gradient(loss, LOGITS + 64, target), with_gradient(loss, LOGITS, target), 1e-9)


# --- Weights and reduction, as in torch.nn.CrossEntropyLoss --------------------------------------
@every_loss
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weight"])
def test_weights_and_reduction(case: Case, weight: Tensor | None) -> None:
    """By hand: rows times weight[y] times sample_weight; mean over Σ weight[y] of the rows that
    count.

    Smoothing weighs each class of its sum: test_smoothing_is_torchs holds what its rows are.
    """
    counted = torch.tensor([True, True, False, True, False, True])
    labels = torch.where(counted, LABELS, 1)  # 1 is the index to ignore
    labels[1] = 1
    counted = labels != 1
    per_row = torch.zeros(B, dtype=torch.float64)
    # the others are not there at all
    per_row[counted] = case.make(reduction="none")(LOGITS[counted], labels[counted])
    class_weight = (weight if weight is not None else torch.ones(K, dtype=torch.float64))[
        labels
    ] * counted
    if case.make().weighs_classes:
        weighed = case.make(reduction="none", weight=weight)(LOGITS[counted], labels[counted])
        per_row[counted] = weighed / class_weight[counted]
    for row_weight in (None, ROW_WEIGHT):
        rows = per_row * class_weight * (1 if row_weight is None else row_weight)
        by_hand = {"none": rows, "sum": rows.sum(), "mean": rows.sum() / class_weight.sum()}
        for reduction, want in by_hand.items():
            loss = case.make(weight=weight, ignore_index=1, reduction=reduction)
            torch.testing.assert_close(loss(LOGITS, labels, sample_weight=row_weight), want)
    ignored = with_gradient(
        case.make(weight=weight, ignore_index=1, reduction="sum"), LOGITS, labels
    )[1][~counted]
    torch.testing.assert_close(ignored, torch.zeros_like(ignored))


@every_loss
def test_reduction_of_real_valued_targets(case: Case) -> None:
    """The mean of (B, K) targets divides by B, whatever the weights, as torch does."""
    if not case.real_valued:
        pytest.skip("class indices only")
    target = case.targets()[1]
    for weight in (None, WEIGHT):
        rows = case.make(reduction="none", weight=weight)(LOGITS, target)
        for row_weight in (None, ROW_WEIGHT):
            each = rows if row_weight is None else rows * row_weight
            for reduction, want in {
                "none": each,
                "sum": each.sum(),
                "mean": each.sum() / B,
            }.items():
                loss = case.make(reduction=reduction, weight=weight)
                torch.testing.assert_close(loss(LOGITS, target, sample_weight=row_weight), want)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weight"])
def test_ce_is_torchs_cross_entropy(weight: Tensor | None, reduction: Any, exact: bool) -> None:
    ignoring = torch.where(LABELS == 3, -100, LABELS)
    for ignore_index, target in (
        (-100, ignoring),
        (3, LABELS),
        (-100, REAL),
        (-100, torch.full((B,), -100)),
    ):
        ours = get_loss(
            "ce", weight=weight, reduction=reduction, ignore_index=ignore_index, exact=exact
        )
        torchs = torch.nn.CrossEntropyLoss(
            weight=weight, reduction=reduction, ignore_index=ignore_index
        )
        for rows in (slice(None), 0, slice(0, 0)):  # a batch, one sample, nothing
            same((ours(LOGITS[rows], target[rows]),), (torchs(LOGITS[rows], target[rows]),))
        if not target.eq(-100).all():
            same(with_gradient(ours, LOGITS, target), with_gradient(torchs, LOGITS, target))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_smoothing_is_torchs(reduction: Any, exact: bool) -> None:
    """With class weights, too, of which one is zero, and inside of sums."""
    ignoring, soft = torch.where(LABELS == 3, -100, LABELS), REAL.softmax(1)
    weight = WEIGHT * torch.tensor([1, 1, 0, 1, 1])
    for ignore_index, target in ((-100, ignoring), (3, LABELS), (-100, soft)):
        how = {"weight": weight, "reduction": reduction, "ignore_index": ignore_index}
        torchs = torch.nn.CrossEntropyLoss(label_smoothing=0.3, **how)
        plain = torch.nn.CrossEntropyLoss(**how)
        want = with_gradient(torchs, LOGITS, target)
        other = with_gradient(plain, LOGITS, target)
        for spec in ("ls:alpha=0.3", "gls:r=0.3"):
            same(with_gradient(get_loss(spec, exact=exact, **how), LOGITS, target), want)
        both = get_loss("2*ls:alpha=0.3 + ce", exact=exact, **how)
        same(
            with_gradient(both, LOGITS, target),
            tuple(2 * a + b for a, b in zip(want, other, strict=True)),
        )
        # Negative smoothing goes on in the same direction: L is linear in r.
        beyond = get_loss("gls:r=-0.3", exact=exact, **how)
        same(
            with_gradient(beyond, LOGITS, target),
            tuple(2 * b - a for a, b in zip(want, other, strict=True)),
        )


@every_loss
def test_one_sample_without_a_batch(case: Case) -> None:
    """(K,) logits with a scalar label give a scalar, as in torch."""
    for reduction in ("none", "sum", "mean"):
        loss = case.make(reduction=reduction)
        for target in case.targets():
            one, batched = loss(LOGITS[2], target[2]), loss(LOGITS[2:3], target[2:3])
            assert one.shape == ()
            torch.testing.assert_close(one, batched.squeeze())


@every_loss
def test_empty_batch(case: Case) -> None:
    assert case.make(reduction="none")(LOGITS[:0], LABELS[:0]).shape == (0,)


@every_loss
def test_output_has_the_dtype_of_the_logits(case: Case) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for reduction in ("none", "mean"):
            for target in case.targets():
                target = target.to(dtype) if target.dim() == 2 else target
                assert case.make(reduction=reduction)(LOGITS.to(dtype), target).dtype == dtype


# --- Where it must run ---------------------------------------------------------------------------
@every_loss
def test_autocast(case: Case) -> None:
    """Under autocast the logits come in bfloat16; the loss is that of those logits, with a
    gradient.
    """
    x = torch.randn(B, 8, generator=torch.Generator().manual_seed(1))
    layer = torch.nn.utils.skip_init(torch.nn.Linear, 8, K)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(-1, 1, 8 * K).view(K, 8)), layer.bias.zero_()
    for target in case.targets():
        with torch.autocast("cpu", torch.bfloat16):
            logits = layer(x)
            value = case.make()(logits, target.float() if target.dim() == 2 else target)
        assert logits.dtype == torch.bfloat16
        if case.make().kind == "coupled" and target.dim() == 1:
            assert value.dtype == torch.float32  # as cross entropy's
        (gradient,) = torch.autograd.grad(value, logits)
        want, slope = with_gradient(case.make(), logits.double(), target)
        torch.testing.assert_close(value.double(), want, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(gradient.double(), slope, rtol=2e-2, atol=2e-2)


def compiled_equals_eager(case: Case, backend: str, targets: list[Tensor]) -> None:
    torch._dynamo.reset()
    loss = case.make()
    fast = torch.compile(loss, fullgraph=True, backend=backend)
    for target in targets:
        target = target.float() if target.dim() == 2 else target
        want = with_gradient(loss, LOGITS.float(), target)
        same(with_gradient(fast, LOGITS.float(), target), want, 1e-5)


# one loss for each way of the code; the graphs of the others are compiled in the slow tests
COMPILED = ("ce", "gce", "nfl", "ls", "forward", "bitempered", "remargin", "peer", "sum")
FIRST = {case.name: case for case in reversed(CASES)}


@pytest.mark.parametrize(
    "case",
    [
        case
        if FIRST[case.name] is case and case.name in COMPILED
        else pytest.param(case, marks=pytest.mark.slow)
        for case in CASES
    ],
    ids=repr,
)
def test_compile(case: Case) -> None:
    compiled_equals_eager(case, "aot_eager", case.targets())


@pytest.mark.parametrize("name", ["gce", "ls", "forward"])
def test_compile_with_weights(name: str) -> None:
    torch._dynamo.reset()
    loss = Case(name, {}).make(weight=WEIGHT.float(), ignore_index=3)
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    rows = ROW_WEIGHT.float()
    want = with_gradient(loss, LOGITS.float(), LABELS, sample_weight=rows)
    same(with_gradient(fast, LOGITS.float(), LABELS, sample_weight=rows), want, 1e-5)


def test_schedule_moves_inside_compiled_code() -> None:
    torch._dynamo.reset()
    loss = get_loss("remargin", loss="mae", shift=[3.0, 0.5])
    fast = torch.compile(loss, fullgraph=True, backend="aot_eager")
    seen = []
    for epoch in (0, 1, 2):
        loss.set_epoch(epoch)
        torch.testing.assert_close(fast(LOGITS, LABELS), loss(LOGITS, LABELS))
        seen.append(float(fast(LOGITS, LABELS)))
    assert seen[0] == seen[2] < seen[1]
    loss.eval()
    torch.testing.assert_close(fast(LOGITS, LABELS), get_loss("mae")(LOGITS, LABELS))


def test_schedule_moves_inside_a_sum() -> None:
    loss = get_loss("0.5*ce + remargin:loss=mae,shift=[3.0, 0.5]")
    loss.set_epoch(1)
    want = get_loss("0.5*ce + remargin:loss=mae,shift=0.5")
    torch.testing.assert_close(loss(LOGITS, LABELS), want(LOGITS, LABELS))


# The C++ compiler is what takes the time; every loss's graph is compiled without it above.
@pytest.mark.parametrize(
    "name", ["gce", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ce", "nce"))]
)
def test_compile_inductor(name: str) -> None:
    if " " in os.environ.get("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir()):
        pytest.skip(
            "PyTorch 2.13 does not quote names of files that it compiles: set"
            " TORCHINDUCTOR_CACHE_DIR"
        )
    case = Case(name, {})
    # they are in the temporary folder
    with torch._inductor.config.patch(cpp_cache_precompile_headers=False):
        compiled_equals_eager(case, "inductor", case.targets())


@every_loss
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weight"])
def test_gradient_of_each_sample_by_vmap(case: Case, weight: Tensor | None) -> None:
    if case.batchwise:
        pytest.skip("looks at the batch by definition")
    loss = case.make(reduction="sum", weight=weight)
    for target in case.targets():
        _, want = with_gradient(loss, LOGITS, target)
        mapped = torch.func.vmap(torch.func.grad(lambda z, t: loss(z, t)))(LOGITS, target)
        torch.testing.assert_close(mapped, want)
        mapped = torch.func.vmap(torch.func.grad(lambda z, t: loss(z[None], t[None])))(
            LOGITS, target
        )
        torch.testing.assert_close(mapped, want)


@every_loss
def test_large_batches_by_blocks_are_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large batch on the CPU goes through some losses by blocks of rows; here every batch is
    large.
    """
    loss = case.make(weight=WEIGHT, ignore_index=4)
    for target in case.targets():
        want = with_gradient(loss, LOGITS, target)
        with monkeypatch.context() as patch:
            patch.setattr(fast, "LARGE", 4 * K)
            patch.setattr(fast, "BLOCK", 2 * K)
            same(with_gradient(loss, LOGITS, target), want)
            if not case.holds(ONCE_DIFFERENTIABLE):
                z = LOGITS[:4].clone().requires_grad_()
                assert torch.autograd.gradgradcheck(lambda z, t=target[:4]: loss(z, t), z)


@every_loss
@pytest.mark.parametrize("block", [4 * K, 2**18])
def test_gradient_reaches_a_real_valued_target(
    case: Case, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dL/dt_k = L(z, k), as in torch: targets may be learned too."""
    if not case.real_valued or case.batchwise or case.holds(NOT_LINEAR):
        pytest.skip("class indices only, or not linear in its target")
    monkeypatch.setattr(fast, "LARGE", block)
    monkeypatch.setattr(fast, "BLOCK", block // 2)
    loss = case.make(reduction="none")
    z, t = LOGITS.clone().requires_grad_(), REAL.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(z, t).sum(), t)
    each = torch.stack([loss(LOGITS, torch.full((B,), k)) for k in range(K)], 1)
    torch.testing.assert_close(gradient, each)


# --- As a module and as text ---------------------------------------------------------------------
@every_loss
def test_copies_are_the_same_loss(case: Case) -> None:
    loss = case.make(weight=WEIGHT, ignore_index=4, reduction="sum")
    want = with_gradient(loss, LOGITS, LABELS)
    file = io.BytesIO()
    torch.save(loss, file)
    file.seek(0)
    for copied in (
        copy.deepcopy(loss),
        pickle.loads(pickle.dumps(loss)),
        torch.load(file, weights_only=False),
    ):
        same(with_gradient(copied, LOGITS, LABELS), want)
    fresh = case.make(weight=torch.ones_like(WEIGHT), ignore_index=4, reduction="sum")
    fresh.load_state_dict(loss.state_dict())
    same(with_gradient(fresh, LOGITS, LABELS), want)


@every_loss
def test_spec_builds_the_same_loss(case: Case) -> None:
    loss = case.make(reduction="none")
    again = get_loss(str(loss), reduction="none", exact=loss.exact)
    assert str(again) == str(loss)
    same(with_gradient(again, LOGITS, LABELS), with_gradient(loss, LOGITS, LABELS))
    assert str(loss) in repr(loss)


@every_loss
def test_moves_between_precisions(case: Case) -> None:
    loss = case.make(weight=WEIGHT)
    want = loss(LOGITS, LABELS)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-6)):
        got = loss.to(dtype)(LOGITS.to(dtype), LABELS)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", LOSSES)
def test_described(name: str) -> None:
    """One sentence, a formula, a source and an example."""
    factory = LOSSES[name]
    assert getattr(factory, "formula", "") and getattr(factory, "source", "")
    text = inspect.getdoc(factory) or ""
    assert text.split("\n\n")[0].rstrip().endswith((".", ":")) and ">>>" in text
