"""Bad input is refused by name: what was expected, what came, and never a silent number."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_loss_contract import CASES, PRIOR, REQUIRED, Case, K, T

from noiseproof.core.margin import LabelProb
from noiseproof.core.output import Output
from noiseproof.losses import LOSSES, Loss, MarginLoss, estimate_transition, get_loss
from noiseproof.losses.base import OPTIONS

every_loss = pytest.mark.parametrize("case", CASES, ids=repr)
LOGITS = torch.randn(4, K, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 4, 2, 2])


# --- Shapes and dtypes ---------------------------------------------------------------------------
BAD: list[tuple[torch.Tensor, torch.Tensor, Any, str]] = [
    (torch.zeros(4, K, 2), LABELS, ValueError, "logits of shape (B, K), got (4, 5, 2)"),
    (torch.zeros(4), LABELS, ValueError, "logits"),
    (torch.zeros(()), LABELS, ValueError, "logits"),
    (
        torch.zeros(4, 1),
        torch.zeros(4, dtype=torch.long),
        ValueError,
        "at least two classes, got shape (4, 1)",
    ),
    (torch.zeros(4, 0), torch.zeros(4, dtype=torch.long), ValueError, "at least two classes"),
    (torch.zeros(4, 1), torch.ones(4, 1), ValueError, "at least two classes"),
    (torch.zeros(1), torch.tensor(0), ValueError, "at least two classes"),
    (
        torch.zeros(4, K, dtype=torch.long),
        LABELS,
        TypeError,
        "floating-point logits, got torch.int64",
    ),
    (
        torch.zeros(4, K, dtype=torch.complex64),
        LABELS,
        TypeError,
        "floating-point logits, got torch.complex64",
    ),
    (LOGITS, LABELS[:3], ValueError, "4 targets, one for each row of logits, got 3"),
    (LOGITS, LABELS.float(), TypeError, "torch.int64 in a target of shape (B,), got torch.float32"),
    (LOGITS, LABELS.bool(), TypeError, "torch.int64"),
    (
        LOGITS,
        torch.zeros(4, K, dtype=torch.long),
        TypeError,
        "floating-point target of shape (B, K)",
    ),
    (LOGITS, torch.zeros(4, K + 1), ValueError, "target of shape (4, 5), got (4, 6)"),
    (LOGITS, torch.zeros(3, K), ValueError, "4 targets"),
    (LOGITS, torch.zeros(4, 1, dtype=torch.long), (TypeError, ValueError), "target"),
    (LOGITS, torch.zeros(4, K, 1), ValueError, "target of shape (B,) or (B, K), got (4, 5, 1)"),
    (LOGITS, torch.tensor(1), ValueError, "target"),
]


@every_loss
def test_shapes_and_dtypes(case: Case) -> None:
    loss = case.make()
    for logits, target, error, message in BAD:
        with pytest.raises(error) as caught:
            loss(logits, target)
        assert message in str(caught.value)


@every_loss
@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
def test_labels_outside_the_classes(case: Case, exact: bool) -> None:
    """In eager mode on a CPU, however the loss is computed; −1 must not mean the last class."""
    for weight in (None, torch.ones(K)):
        for label, ignore_index in ((K, -100), (-1, -100), (10**6, -100), (-K - 1, 2), (-2, -1)):
            labels = torch.tensor([0, ignore_index, label, 1])
            loss = case.make(ignore_index=ignore_index, weight=weight, exact=exact)
            with pytest.raises(
                ValueError, match=f"labels in 0 … {K - 1}, got {label} at position 2"
            ):
                loss(LOGITS, labels)
            assert loss(LOGITS, torch.where(labels == label, 1, labels)).isfinite()


@every_loss
def test_sample_weight_shape(case: Case) -> None:
    for wrong in (torch.ones(3), torch.ones(4, 1), torch.ones(()), torch.ones(4, K)):
        with pytest.raises(ValueError, match="sample_weight"):
            case.make()(LOGITS, LABELS, sample_weight=wrong)


@every_loss
def test_weight_length(case: Case) -> None:
    for target in (LABELS, torch.eye(K)[LABELS]):
        if target.dim() == 1 or case.real_valued:
            for wrong in (torch.ones(K - 1), torch.ones(K + 1), torch.ones(1)):
                with pytest.raises(ValueError, match=f"`weight` of {K} classes, got {len(wrong)}"):
                    case.make(weight=wrong)(LOGITS, target)


BAD_OPTIONS: list[tuple[str, Any]] = [
    ("reduction", "batchmean"),
    ("reduction", None),
    ("weight", torch.ones(K, 1)),
    ("weight", torch.ones(K, dtype=torch.long)),
    ("weight", "heavy"),
    ("weight", {"a": 1}),
    ("ignore_index", "none"),
    ("ignore_index", math.inf),
    ("ignore_index", 0.5),
    ("exact", "maybe"),
]


@pytest.mark.parametrize("name", LOSSES)
def test_options(name: str) -> None:
    for option, value in BAD_OPTIONS:
        with pytest.raises((ValueError, TypeError), match=option):
            Case(name, {}).make(**{option: value})


# --- Hyperparameters -----------------------------------------------------------------------------
OUTSIDE: list[tuple[str, str, tuple[Any, ...]]] = [
    ("focal", "gamma", (-0.1,)),
    ("mae", "scale", (0, -1)),
    ("rce", "A", (0, 1.5)),
    ("gce", "q", (0, -0.1, 1.3)),
    ("tgce", "q", (0, 1.3)),
    ("tgce", "k", (0, 1, -0.5)),
    ("sce", "alpha", (-1,)),
    ("sce", "beta", (-1,)),
    ("sce", "A", (0, 2)),
    ("aul", "a", (1, 0.5)),
    ("aul", "q", (0, -2)),
    ("agce", "a", (0, -1)),
    ("agce", "q", (0, -2)),
    ("ael", "a", (0, -1)),
    ("tce", "t", (0, -1, 1.5)),
    ("phuber", "tau", (0.5, 0, -1)),
    ("nfl", "gamma", (-0.5,)),
    ("mse", "alpha", (-1,)),
    ("gls", "r", (1.5,)),
    ("ls", "alpha", (-0.1, 1.1)),
    ("cr", "beta", (-1,)),
    *[(name, "warmup", (-1, 1.5)) for name in ("peer", "cr", "nal")],
    ("cr", "prior", ([0.5, 0.6], [1.5, -0.5], [[0.5, 0.5]], [math.nan, 1.0], "uniform", {"a": 1})),
    ("bitempered", "t1", (-0.1, 2, 3)),
    ("bitempered", "t2", (0, -1)),
    ("remargin", "scale", (0, -1)),
    ("remargin", "shift", ([], "up", [1.0, "x"], [1.0, math.nan])),
    ("remargin", "every", (0, 1.5)),
    ("remargin", "loss", ("nosuch", 3, None)),
    *[(name, "num_classes", (1, 0, 2.5, -3)) for name in ("tau-shift", "tau-scale")],
    *[(name, "tau", (0, -1)) for name in ("tau-shift", "tau-scale")],
    *[(name, "sigma", (0, -1)) for name in ("tau-shift", "tau-scale")],
    ("peer", "loss", ("nosuch", 3)),
    ("peer", "prior", ([0.5, 0.6], [1.5, -0.5], [[0.5, 0.5]], "uniform")),
    ("unit", "loss", ("nosuch", 3, "nce")),
    ("multilabel", "loss", ("nosuch", 3, "nce", "peer", "nal", "asl")),
    ("multilabel", "absent", ("nosuch", "nce", "peer")),
    ("asl", "gamma_pos", (-0.1,)),
    ("asl", "gamma_neg", (-0.1,)),
    ("asl", "shift", (-0.1, 1, 2)),
    ("forward", "T", ("matrix", {"a": 1}, None)),
    *[("nal", parameter, (-0.1,)) for parameter in ("lam", "beta")],
    ("nal", "floor", (-0.1, 1)),
    ("elr", "lam", (-1,)),
    ("sop", "floor", (0, -0.1, 0.2)),
    *[(name, "clip", (-0.1, 0.5)) for name in ("elr", "backward")],
    ("ln", "lam", (0, -1, 1e-09)),
    ("ln", "tau", (0, -1)),
    ("ln", "t", (0, 1, -0.1)),
    ("ln", "start", (0, -1)),
    ("ln", "covariance", ("low-rank", None)),
    ("ln", "predict", ("mean", None)),
    ("het", "tau", (0, -1)),
    ("het", "samples", (0, -1, 1.5)),
    ("het", "covariance", ("identity", None)),
    ("het", "seed", (-1, 0.5)),
]


@pytest.mark.parametrize(
    ("name", "parameter", "value"),
    [(name, parameter, value) for name, parameter, values in OUTSIDE for value in values],
)
def test_hyperparameters_outside_their_range(name: str, parameter: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        Case(name, {parameter: value}).make()
    message = str(caught.value)
    assert parameter in message or "loss" in message.lower(), message
    assert parameter == "loss" or not isinstance(value, (int, float)) or str(value) in message, (
        message
    )


@pytest.mark.parametrize(
    ("name", "parameter"),
    [
        (name, parameter)
        for name in LOSSES
        for parameter in LOSSES.parameters(name)
        if parameter not in OPTIONS
    ],
)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "q", [0.5, [1]]], ids=str)
def test_nonsense_is_refused_for_every_parameter(name: str, parameter: str, value: Any) -> None:
    """Every parameter of every loss, found in its signature."""
    with pytest.raises((ValueError, TypeError)):
        Case(name, {parameter: value}).make()


# --- Particular losses ---------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["forward", "backward"])
@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.full((2, 3), 1 / 3), "square"),
        (torch.ones(1, 1), "square"),
        (torch.ones(3), "square"),
        (torch.eye(3)[None], "square"),
        (torch.tensor([[0.9, 0.2], [0.1, 0.9]]), "rows of `T` to sum to one, row 0 sums to 1.1"),
        (torch.tensor([[1.5, -0.5], [0.0, 1.0]]), "probabilities"),
        (torch.tensor([[math.nan, 1.0], [0.0, 1.0]]), "probabilities"),
    ],
)
def test_transition_matrix(name: str, matrix: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_loss(name, T=matrix)


def test_transition_matrix_of_the_wrong_size_or_singular() -> None:
    for name in ("forward", "backward"):
        with pytest.raises(ValueError, match="`T` of 5 classes, got 3"):
            get_loss(name, T=torch.eye(3))(LOGITS, LABELS)
    with pytest.raises(ValueError, match="invertible"):
        get_loss("backward", T=torch.full((3, 3), 1 / 3))
    assert get_loss("forward", T=torch.full((K, K), 1 / K))(LOGITS, LABELS).item() == pytest.approx(
        math.log(K)
    )


def test_prior_of_the_wrong_size() -> None:
    with pytest.raises(ValueError, match="`prior` of 5 classes, got 2"):
        get_loss("cr", prior=[0.5, 0.5])(LOGITS, LABELS)


@pytest.mark.parametrize("loss", ["nce", "brier", "nce + mae", "peer"])
def test_scale_needs_a_margin_loss(loss: str) -> None:
    with pytest.raises(ValueError, match="margin loss"):
        get_loss("remargin", loss=loss, scale=0.5)


def test_remargin_refuses_real_valued_targets() -> None:
    for loss in ("mae", "nce"):
        with pytest.raises(ValueError, match="class indices"):
            get_loss("remargin", loss=loss, shift=1.0)(LOGITS, torch.eye(K)[LABELS])
    moved = get_loss("remargin", loss="mae", shift=1.0)
    for outer in (
        get_loss("ce") + moved,
        *(get_loss(name, loss=moved) for name in ("unit", "peer", "cr")),
    ):
        with pytest.raises(ValueError, match="class indices"):
            outer(LOGITS, torch.eye(K)[LABELS])


def test_bitempered_refuses_negative_targets() -> None:
    target = torch.eye(K)[LABELS]
    target[1, 0] = -0.25
    with pytest.raises(ValueError, match="negative"):
        get_loss("bitempered")(LOGITS, target)


def test_wrapped_losses_keep_what_they_were_given() -> None:
    """A wrapper must not change the loss that the user passes in, nor drop its options without a
    word.
    """
    inner = get_loss("ce", ignore_index=3)
    for name in ("remargin", "peer", "unit"):
        with pytest.raises(ValueError, match="Expected `ignore_index` on the outermost loss only"):
            get_loss(name, loss=inner)
        assert get_loss(name, loss=inner, ignore_index=3).loss is inner
        plain = get_loss("ce")
        assert (
            get_loss(name, loss=plain, ignore_index=3).loss.ignore_index == 3
            and plain.ignore_index == -100
        )


def test_adding_something_else() -> None:
    with pytest.raises(TypeError):
        get_loss("ce") + 1  # type: ignore[operator]
    with pytest.raises((TypeError, ValueError)):
        get_loss("ce") * "two"  # type: ignore[operator]
    for scale in (math.nan, math.inf):
        with pytest.raises(ValueError, match="scale"):
            scale * get_loss("ce")
    with pytest.raises(ValueError, match="reduction"):
        get_loss("ce", reduction="sum") + get_loss("mae")
    with pytest.raises(ValueError, match="weight"):
        get_loss("ce", weight=torch.ones(K)) + get_loss("mae")


# --- Specs ---------------------------------------------------------------------------------------
NAMES = st.sampled_from([*LOSSES, "nosuch", "gce@bias", "nce+agce@bias"])
WORDS = st.sampled_from(
    [
        "002",
        "000",
        "cifar10",
        "true",
        "none",
        "1",
        "-2.5",
        "1e999",
        "1e-5",
        "9" * 5000,
        "[1, 2]",
        "{}",
        '{"a": 1}',
        "[[1, 0], [0, 1]]",
        "[[0.5]]",
        "(gce:q=0.7)",
        "nce",
        "()",
        "",
        " ",
        "nan",
        "inf",
        "½",
        "٣",
    ]
)
KEYS = st.sampled_from(
    [
        "q",
        "a",
        "T",
        "loss",
        "shift",
        "scale",
        "every",
        "prior",
        "gamma",
        "t",
        "t1",
        "tau",
        "weight",
        "reduction",
        "ignore_index",
        "exact",
        "self",
        "options",
        "num_classes",
        "dataset",
        "class",
        "1",
        "",
    ]
)
MARKS = st.sampled_from(
    [":", ",", "=", "+", "*", "@", "(", ")", "[", "]", "{", "}", " + ", "2*", " ", "-"]
)
TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(st.one_of(NAMES, WORDS, KEYS, MARKS), max_size=10).map("".join),
    st.tuples(NAMES, st.lists(st.tuples(KEYS, WORDS), max_size=3)).map(
        lambda call: call[0] + ":" + ",".join(f"{key}={value}" for key, value in call[1])
    ),
)


@settings(max_examples=100)
@given(TEXTS)
def test_specs_are_read_or_refused(text: str) -> None:
    """Whatever the text: a loss, or ValueError or TypeError; what is built can be written and read
    again.
    """
    try:
        loss = get_loss(text)
    except (ValueError, TypeError):
        return
    assert isinstance(loss, Loss)
    assert str(get_loss(str(loss))) == str(loss)


@pytest.mark.parametrize(
    "spec",
    [
        "tce:t=1e999",
        "ce:ignore_index=1e999",
        "forward:T={}",
        'cr:prior={"a": 1}',
        "ce:weight={}",
        "ce:exact=3",
        "1e999*ce",
        "(" * 3000 + "ce" + ")" * 3000,
        "cr:prior=" + "[" * 3000 + "]" * 3000,
        "remargin:loss=ce,every=1e999",
    ],
    ids=lambda spec: spec[:30],
)
def test_specs_that_need_care(spec: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        get_loss(spec)


# --- estimate_transition (Patrini et al. 2017, Eq. 12-13 and their 97th percentile) --------------
def anchors(probs: np.ndarray, percentile: float | None) -> np.ndarray:
    """Row i: the prediction at the sample of largest p_i among those below the percentile of p_i;
    rows sum to one.
    """
    rows = []
    for i in range(probs.shape[1]):
        column = probs[:, i].copy()
        if percentile is not None:
            column[column >= np.percentile(column, percentile, method="higher")] = 0.0
        rows.append(probs[column.argmax()])
    return np.array(rows) / np.array(rows).sum(1, keepdims=True)


@pytest.mark.parametrize("percentile", [97.0, 90, 50, None])
@pytest.mark.parametrize("shape", [(1000, 10), (100, 3), (57, 4)])
def test_estimate_transition(shape: tuple[int, int], percentile: float | None) -> None:
    probs = np.random.default_rng(0).dirichlet(np.full(shape[1], 0.3), size=shape[0])
    given_probs = torch.tensor(probs)
    estimate = estimate_transition(given_probs, percentile)
    np.testing.assert_allclose(estimate.numpy(), anchors(probs, percentile), rtol=1e-12)
    assert np.array_equal(given_probs.numpy(), probs), (
        "the released code zeroes its input; this one must not"
    )
    np.testing.assert_allclose(
        estimate_transition(given_probs.float(), percentile).sum(1), 1, rtol=1e-6
    )


def test_estimate_transition_by_hand() -> None:
    """Of the probabilities 0.01 … 1.00 of class 0, 0.98 is the 97th percentile ('higher'), so 0.97
    is the anchor.
    """
    column = torch.arange(1, 101, dtype=torch.float64) / 100
    estimate = estimate_transition(torch.stack([column, 1 - column], 1))
    torch.testing.assert_close(
        estimate, torch.tensor([[0.97, 0.03], [0.04, 0.96]], dtype=torch.float64)
    )
    exact = estimate_transition(torch.stack([column, 1 - column], 1), percentile=None)
    torch.testing.assert_close(exact, torch.tensor([[1.0, 0.0], [0.01, 0.99]], dtype=torch.float64))


def test_estimate_transition_recovers_the_matrix_from_perfect_predictions() -> None:
    clean = np.random.default_rng(1).dirichlet(np.full(K, 0.05), size=5000)
    clean[:K] = np.eye(K)
    estimate = estimate_transition(torch.tensor(clean) @ T, percentile=None)
    torch.testing.assert_close(estimate, T, rtol=1e-9, atol=1e-9)
    assert get_loss("forward", T=estimate)(LOGITS, LABELS).isfinite()


@pytest.mark.parametrize(
    "probs",
    [
        torch.ones(4),
        torch.ones(4, 1),
        torch.ones(0, 3),
        torch.ones(2, 2),
        torch.tensor([[1.5, -0.5]]),
        torch.tensor([[math.nan, 1.0]]),
        torch.randn(5, 3),
    ],
    ids=["1-D", "K=1", "empty", "sum 2", "negative", "nan", "logits"],
)
def test_estimate_transition_refuses(probs: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="pred_probs"):
        estimate_transition(probs)


def test_required_arguments_are_asked_for() -> None:
    for name in LOSSES:
        for parameter, default in LOSSES.parameters(name).items():
            if default is inspect.Parameter.empty:
                assert parameter in REQUIRED
                with pytest.raises(TypeError, match=parameter):
                    get_loss(name)
    assert len(PRIOR) == K


# --- Losses of one's own -------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize(
    "reduce", [torch.mean, lambda nll: nll.mean(0, keepdim=True)], ids=["mean", "kept"]
)
def test_a_value_that_is_not_of_each_row_is_refused(
    reduce: Callable[[torch.Tensor], torch.Tensor], closed: bool
) -> None:
    class Mean(MarginLoss):
        def value(self, y: LabelProb) -> torch.Tensor:
            return reduce(y.nll)

    class Closed(Mean):
        def slope(self, y: LabelProb) -> torch.Tensor:
            return torch.ones_like(y.nll)

    loss = Closed(reduction="none") if closed else Mean(reduction="none")
    for target in (LABELS, torch.eye(K)[LABELS]):
        for used in (loss, 0.5 * loss + get_loss("mae", reduction="none")):
            with pytest.raises(
                ValueError, match=r"Expected `value` of `(Mean|Closed)` .* Leave the mean or sum to"
            ):
                used(LOGITS, target)
    if not closed:
        with pytest.raises(ValueError, match=r"shape \(4,\) as `y.nll`, got \(1?,?\)"):
            Mean()(LOGITS, LABELS)


# What is inside another loss counts


@pytest.mark.parametrize(
    "outer", ["2*{}", "remargin:loss=({}),shift=1.0", "{} + 0.1*ce", "peer:loss=({})"]
)
@pytest.mark.parametrize(
    "inner", ["ln:tau=0.3", "het:tau=0.1", "bitempered:t2=2.0", "ln:dummy=false"]
)
def test_a_loss_around_another_predicts_and_needs_what_that_does(outer: str, inner: str) -> None:
    if "ce" in outer and "dummy" in inner:
        return  # which cannot be added
    alone, around = get_loss(inner).eval(), get_loss(outer.format(inner)).eval()
    assert around.needs == alone.needs and around.num_outputs(K) == alone.num_outputs(K)
    draw = torch.Generator().manual_seed(0)
    fields = {name: torch.rand(3, around.num_outputs(K), generator=draw) for name in alone.needs}
    assert torch.equal(around.scores(Output(**fields)), alone.scores(Output(**fields)))


def test_losses_that_predict_otherwise_are_not_added() -> None:
    for spec in ("ln + het", "ln:tau=0.3 + ln:tau=0.5", "ln:dummy=false + ce"):
        with pytest.raises(ValueError, match="Expected losses that predict alike, got .*ln:"):
            get_loss(spec)


def test_a_shift_of_ln_is_one_of_the_labels_logit_alone() -> None:
    """Its logits are not relative to each other: nothing may be taken off all of them."""
    draw = torch.Generator().manual_seed(0)
    z, root = torch.randn(6, K, generator=draw), torch.rand(6, K, generator=draw)
    y = torch.arange(6) % K
    moved = z.scatter_add(1, y[:, None], torch.ones(6, 1))
    shifted = get_loss("remargin:loss=(ln),shift=1.0", reduction="none")(Output(z, root=root), y)
    assert torch.allclose(shifted, get_loss("ln", reduction="none")(Output(moved, root=root), y))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("spec", ["peer", "cr", "cr:loss=(mae)", "peer:loss=(gce)"])
def test_shares_of_labels_are_counted_in_float32(spec: str, dtype: torch.dtype) -> None:
    """bfloat16 cannot count beyond 256; of rows that are all alike both take off all there is."""
    logits = torch.zeros(8192, 2, dtype=dtype)
    logits[:, 0] = 1
    value = get_loss(spec)(logits, torch.arange(8192) % 2)
    assert value.dtype is dtype and abs(float(value)) < 1e-3


@pytest.mark.parametrize(
    "spec", ["cr", "peer", "cr + 0.5*peer", "peer:loss=(gce)", "cr:loss=(mae)"]
)
def test_a_masked_class_that_nobody_bears_costs_nothing(spec: str) -> None:
    logits, y = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
    masked = torch.cat([logits, torch.full((2, 1), -torch.inf)], 1).requires_grad_()
    value = get_loss(spec)(masked, y)
    value.backward()
    assert torch.allclose(value, get_loss(spec)(logits, y))
    assert masked.grad is not None and bool(masked.grad.isfinite().all())


@pytest.mark.parametrize("spec", ["ls:alpha=0", "gls:r=0"])
def test_without_smoothing_a_masked_class_costs_nothing(spec: str) -> None:
    masked = torch.tensor([[1.0, 2.0, -torch.inf, 0.3]])
    assert torch.allclose(
        get_loss(spec)(masked, torch.tensor([0])), F.cross_entropy(masked, torch.tensor([0]))
    )


def test_a_masked_class_of_het_has_no_gradient_and_spoils_no_other() -> None:
    z = torch.tensor([[1.0, 0.0, -torch.inf]], requires_grad=True)
    scale = torch.full((1, 3), 0.5, requires_grad=True)
    get_loss("het")(Output(z, scale=scale), torch.tensor([0])).backward()
    for grad in (z.grad, scale.grad):
        assert (
            grad is not None
            and bool(grad.isfinite().all())
            and float(grad[0, 2]) == 0 != float(grad[0, 0])
        )


@pytest.mark.parametrize(
    "spec", ["agce", "agce:a=1.6,q=2", "aul:a=3,q=0.7", "unit:loss=(agce)", "agce + mae"]
)
def test_ignored_rows_cost_nothing_though_a_loss_rounds(spec: str) -> None:
    logits = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    y = torch.full((1000,), -100)
    y[:10] = 1
    each = get_loss(spec, reduction="none")(logits, y)
    assert bool((each[10:] == 0).all())
    assert torch.allclose(get_loss(spec)(logits, y), get_loss(spec)(logits[:10], y[:10]), rtol=0.02)


@pytest.mark.parametrize(("t1", "t2"), [(1.5, 0.5), (1.8, 0.5)])
def test_temperatures_without_a_gradient_are_refused(t1: float, t2: float) -> None:
    with pytest.raises(ValueError, match=rf"t1 below 1 \+ t2, got t1={t1} and t2={t2}. Choose"):
        get_loss("bitempered", t1=t1, t2=t2)
    logits = torch.tensor([[9.0, 0.0, -9.0]], requires_grad=True)
    get_loss("bitempered", t1=t1 - 0.4, t2=t2 + 0.1)(logits, torch.tensor([0])).backward()
    assert logits.grad is not None and logits.grad.isfinite().all()


def test_a_target_that_learns_is_refused_by_bitempered() -> None:
    target = torch.full((1, 3), 1 / 3, requires_grad=True)
    with pytest.raises(ValueError, match="Expected a target without a gradient for bitempered"):
        get_loss("bitempered")(torch.zeros(1, 3), target)


@pytest.mark.parametrize("spec", ["phuber:tau=1e5", "bitempered:t2=2.0", "bitempered:t2=5.0"])
def test_float16_is_as_good_as_its_logits(spec: str) -> None:
    logits, y = torch.zeros(2, 1000, dtype=torch.float16), torch.tensor([0, 1])
    assert float(get_loss(spec)(logits, y)) == pytest.approx(
        float(get_loss(spec)(logits.float(), y)), rel=1e-3
    )
