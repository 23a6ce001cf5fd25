"""The grammar of losses, and the papers' own settings typed from the papers a second time."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from noiseproof import get_loss as from_the_top
from noiseproof.core.grammar import format_call, parse_call
from noiseproof.losses import Loss, get_loss
from noiseproof.losses.base import WeightedSum

LOGITS = 3 * torch.randn(16, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.arange(16) % 10


def equal(one: Loss, other: Loss) -> bool:
    return torch.allclose(one(LOGITS, LABELS), other(LOGITS, LABELS), rtol=1e-13, atol=1e-15)


# --- Grammar -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("spec", "params"),
    [
        ("gce:q=0.7", {"q": 0.7}),
        ("gce: q = 0.7 ", {"q": 0.7}),
        ("  gce:q=7e-1", {"q": 0.7}),
        ("gce:q=.7", {"q": 0.7}),
        ("agce:a=1e-5,q=0.5", {"a": 1e-5, "q": 0.5}),
        ("tce:t=3", {"t": 3}),
        ("gls:r=-0.4", {"r": -0.4}),
        (
            "remargin:loss=mae,shift=[5.2, 4.8],every=11",
            {"loss": "mae", "shift": [5.2, 4.8], "every": 11},
        ),
        ("remargin:loss=(agce:a=0.6,q=0.6),shift=2", {"loss": "agce:a=0.6,q=0.6", "shift": 2}),
        ("cr:prior=[0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1,0.1]", {"prior": [0.1] * 10}),
        ("peer:loss=(10*nce + 0.1*mae)", {"loss": "10*nce + 0.1*mae"}),
    ],
)
def test_spec_equals_keywords(spec: str, params: dict[str, Any]) -> None:
    name = spec.split(":")[0].strip()
    assert str(get_loss(spec)) == str(get_loss(name, **params))
    assert equal(get_loss(spec), get_loss(name, **params))


@pytest.mark.parametrize(
    ("spec", "terms"),
    [
        ("10*nce + 0.1*agce:a=1.8,q=3", [(10, "nce"), (0.1, "agce:a=1.8,q=3")]),
        ("nce+mae", [(1, "nce"), (1, "mae")]),
        ("1e+1*nce+1e-1*mae", [(10, "nce"), (0.1, "mae")]),
        ("-0.5*ce + .5*mae:scale=2", [(-0.5, "ce"), (0.5, "mae:scale=2")]),
        ("2*(nce + 3*mae) + ce", [(2, "nce"), (6, "mae"), (1, "ce")]),
        ("(nce)", [(1, "nce")]),
        ("2*2*ce", [(4, "ce")]),
        ("agce:a=1e+1,q=2 + ce", [(1, "agce:a=10,q=2"), (1, "ce")]),
    ],
)
def test_sums(spec: str, terms: list[tuple[float, str]]) -> None:
    want = sum(c * get_loss(term)(LOGITS, LABELS) for c, term in terms)
    torch.testing.assert_close(get_loss(spec)(LOGITS, LABELS), want)
    built = sum((c * get_loss(term) for c, term in terms[1:]), terms[0][0] * get_loss(terms[0][1]))
    torch.testing.assert_close(built(LOGITS, LABELS), want)


def test_sums_in_python() -> None:
    nce, mae = get_loss("nce"), get_loss("mae")
    for built in (nce + 0.5 * mae, 0.5 * mae + nce, nce + mae * 0.5):
        assert equal(built, get_loss("nce + 0.5*mae"))
    three = nce + mae + get_loss("ce")
    assert isinstance(three, WeightedSum) and len(three.terms) == 3
    assert get_loss("nce + mae", reduction="none")(LOGITS, LABELS).shape == (16,)
    assert from_the_top is get_loss


@pytest.mark.parametrize("factor", [0.123456789012345, 1e-7, 1 / 3, -2.5, 1e22, 100.0])
def test_written_factors_keep_their_digits(factor: float) -> None:
    loss = factor * get_loss("nce") + get_loss("mae")
    again = get_loss(str(loss))
    assert isinstance(again, WeightedSum)
    assert [scale for scale, _ in again.terms] == [factor, 1.0]


@pytest.mark.parametrize(
    "value",
    [
        "007",
        "none",
        "True",
        "(y)",
        "[y]",
        "1e3",
        "0.50",
        "a b",
        "x:y",
        "plain",
        7,
        0.5,
        True,
        None,
        [1, "a"],
    ],
)
def test_whatever_is_written_is_read_back(value: object) -> None:
    read = parse_call(format_call("name", {"key": value}))[1]["key"]
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    "spec",
    [
        "remargin:loss=(2*nce + ael),shift=1.5",
        "unit:loss=(gce:q=0.3)",
        "unit:loss=(0.3*ce + 0.7*mae)",
        "remargin:loss=(unit:loss=(gce:q=0.3)),shift=[1.5, 0.25],every=2",
        "ce + remargin:loss=(nce),shift=2",
    ],
)
def test_nested_specs_round_trip(spec: str) -> None:
    loss = get_loss(spec)
    assert str(get_loss(str(loss))) == str(loss)
    assert equal(get_loss(spec), get_loss(str(get_loss(spec))))


def test_options_in_a_spec() -> None:
    """One grammar everywhere: what Python takes, the command line takes; ``none`` is a reduction
    here.
    """
    assert get_loss("gce:q=0.7,reduction=none")(LOGITS, LABELS).shape == (16,)
    assert get_loss("gce:reduction=sum").reduction == "sum"
    assert get_loss("gce:ignore_index=-1,exact=true").exact is True
    assert get_loss("nce + mae", reduction="none", ignore_index=3)(LOGITS, LABELS)[3] == 0


def test_options_of_the_terms_reach_the_sum() -> None:
    """A sum reduces once: its terms' reductions must agree, and it keeps them."""
    total = get_loss("nce", reduction="none") + get_loss("mae", reduction="none")
    assert total.reduction == "none"
    assert (2 * get_loss("ce", reduction="sum", ignore_index=1)).ignore_index == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "name|NAME"),
        ("gcee:q=0.7", "Did you mean 'gce'"),
        ("nosuchloss", "There are"),
        ("gce:q", "key=value"),
        ("gce:q=", "key=value"),
        ("gce:", "key=value"),
        ("gce:=0.7", "key=value"),
        ("gce:q=0.7,q=0.8", "twice"),
        ("gce:q=0.7,,", "key=value"),
        ("gce:q=abc", "`q` in"),
        ("gce q=0.7", "gce"),
        ("gce(q=0.7)", "gce"),
        ("remargin:loss=(mae", "Missing"),
        ("remargin:loss=mae)", "Unbalanced"),
        ("nce +", "next to each"),
        ("+ nce", "next to each"),
        ("nce + + mae", "next to each"),
        ("x*nce", "x*nce"),
        ("cr:prior=[1,", "Missing|JSON"),
        ("cr:prior=[1,,2]", "JSON"),
        ("nce @ the bias paper @ the NAL paper", "@"),
    ],
)
def test_malformed_specs(spec: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        get_loss(spec)
    assert any(part in str(caught.value) for part in message.split("|")), str(caught.value)


def test_parameter_in_spec_and_as_keyword() -> None:
    with pytest.raises(ValueError, match="both"):
        get_loss("gce:q=0.7", q=0.5)
    with pytest.raises(TypeError, match="spec"):
        get_loss(0.7)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError), match="q"):
        get_loss("nce + gce", q=0.7)  # of which term?


# --- Presets -------------------------------------------------------------------------------------
SYNTHETIC = [
    ("none", 0.0),
    ("symmetric", 0.2),
    ("symmetric", 0.4),
    ("symmetric", 0.6),
    ("asymmetric", 0.2),
    ("asymmetric", 0.3),
    ("asymmetric", 0.4),
]
TABLE_5 = {  # The LN paper: columns as in SYNTHETIC
    ("mnist", "gce"): [0.3, 0.7, 0.9, 0.9, 0.7, 0.5, 0.3],
    ("mnist", "ls"): [0.5, 0.3, 0.9, 0.9, 0.1, 0.5, 0.7],
    ("cifar10", "gce"): [0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.1],
    ("cifar10", "ls"): [0.7, 0.9, 0.9, 0.9, 0.5, 0.3, 0.9],
    ("cifar100", "gce"): [0.5, 0.5, 0.5, 0.5, 0.7, 0.7, 0.5],
    ("cifar100", "ls"): [0.1, 0.9, 0.7, 0.7, 0.9, 0.7, 0.9],
}
PARAMETER = {"gce": "q", "ls": "alpha"}


@pytest.mark.parametrize(("dataset", "loss"), TABLE_5)
def test_paper_000_table_5(dataset: str, loss: str) -> None:
    for (noise, rate), value in zip(SYNTHETIC, TABLE_5[dataset, loss], strict=True):
        found = get_loss(f"{loss}@ln", dataset=dataset, noise=noise, rate=rate)
        assert found.hyperparameters == {PARAMETER[loss]: value}


def test_paper_000_table_6() -> None:
    """Five columns of CIFAR-10N (only the first two heads survive in the text), CIFAR-100N,
    Clothing1M.
    """
    gce, ls = [0.9, 0.7, 0.9, 0.5, 0.9], [0.5, 0.9, 0.5, 0.9, 0.7]
    for i, noise in enumerate(("random1", "random2")):
        assert get_loss("gce@ln", dataset="cifar10n", noise=noise).hyperparameters == {"q": gce[i]}
        assert get_loss("ls@ln", dataset="cifar10n", noise=noise).hyperparameters == {
            "alpha": ls[i]
        }
    every = ("random1", "random2", "random3", "aggregate", "worst")
    for loss, values in (("gce", gce), ("ls", ls)):
        found = [
            get_loss(f"{loss}@ln", dataset="cifar10n", noise=n).hyperparameters[PARAMETER[loss]]
            for n in every
        ]
        assert sorted(found) == sorted(values)
    assert get_loss("gce@ln", dataset="cifar100n").hyperparameters == {"q": 0.5}
    assert get_loss("ls@ln", dataset="cifar100n").hyperparameters == {"alpha": 0.9}
    assert get_loss("gce@ln", dataset="clothing1m").hyperparameters == {"q": 0.9}
    assert get_loss("ls@ln", dataset="clothing1m").hyperparameters == {"alpha": 0.5}


def test_paper_001_appendix_b1() -> None:
    for dataset, noises in (
        ("cifar10", ("symmetric", "asymmetric", "instance", "openset")),
        ("cifar100", ("symmetric", "asymmetric", "instance")),
    ):
        for noise in noises:
            easy = dataset == "cifar10" and noise == "asymmetric"
            where = {"dataset": dataset, "noise": noise}
            assert get_loss("gce@sln", **where).hyperparameters == {"q": 0.7}
            tau = 30 if dataset == "cifar100" else 10 if easy else 2
            assert get_loss("phuber@sln", **where).hyperparameters == {"tau": tau}
            assert get_loss("ls@sln", **where).hyperparameters == {"alpha": 0.5 if easy else 0.8}
    assert get_loss("phuber@sln", dataset="cifar100").hyperparameters == {"tau": 30}
    assert get_loss("phuber@sln", num_classes=100).hyperparameters == {"tau": 30}
    assert get_loss("gce@sln").hyperparameters == {"q": 0.7}


TEN, MANY = ("fashion-mnist", "cifar10"), ("cifar100", "webvision")
# bias paper, appendix Table 1; MAE is 2(1 − p), where β = 20 its mean over classes; b is our a
BIAS_APPENDIX = [
    ("gce", TEN + MANY, "gce:q=0.7"),
    ("mae", TEN + MANY, "mae:scale=2"),
    ("bitempered", TEN + MANY, "bitempered:t1=0.8,t2=1.2"),
    ("agce", TEN, "agce:a=0.6,q=0.6"),
    ("agce", MANY, "agce:a=1e-5,q=0.5"),
    ("nfl+mae", TEN, "nfl:gamma=0.5 + 20*mae:scale=0.2"),
    ("nfl+mae", MANY, "nfl:gamma=0.5 + 0.2*mae:scale=2"),
    ("nce+mae", TEN, "nce + 20*mae:scale=0.2"),
    ("nce+mae", MANY[:1], "nce + 20*mae:scale=0.02"),
    ("nce+mae", MANY[1:], "nce + 20*mae:scale=0.002"),
    ("nce+agce", TEN, "nce + 4*agce:a=6,q=1.5"),
    ("nce+agce", MANY, "10*nce + 0.1*agce:a=1.8,q=3"),
]


@pytest.mark.parametrize(("loss", "datasets", "spec"), BIAS_APPENDIX)
def test_paper_002_appendix_table_1(loss: str, datasets: tuple[str, ...], spec: str) -> None:
    want = get_loss(spec)
    for dataset in datasets:
        assert str(get_loss(f"{loss}@bias", dataset=dataset)) == str(want)
        assert equal(get_loss(f"{loss}@bias:dataset={dataset}"), want)
        classes = {"cifar100": 100, "webvision": 1000}.get(dataset, 10)
        assert str(get_loss(f"{loss}@bias", num_classes=classes)) == str(want)


# The curriculum paper, CIFAR-100; SCE = (1 − q)·CE + q·MAE; † are its inferior settings
TABLE_8 = {
    "ce": ("ce", {}),
    "mae": ("mae", {}),
    "sce": ("0.3*ce + 0.7*mae", {}),
    "gce": ("gce", {"q": 0.3}),
    "aul": ("aul", {"a": 1.1, "q": 5.0}),
    "agce": ("agce", {"a": 0.1, "q": 0.1}),
    "aul-inferior": ("aul", {"a": 3.0, "q": 0.7}),
    "agce-inferior": ("agce", {"a": 1.6, "q": 2.0}),
}
TABLE_12 = {  # The curriculum paper, CIFAR-10
    "sce": ("0.05*ce + 0.95*mae", {}),
    "gce": ("gce", {"q": 0.4}),
    "aul": ("aul", {"a": 2.0, "q": 2.0}),
    "agce": ("agce", {"a": 3.0, "q": 4.0}),
}


@pytest.mark.parametrize(
    ("dataset", "loss"),
    [("cifar100", loss) for loss in TABLE_8] + [("cifar10", loss) for loss in TABLE_12],
)
def test_paper_004_tables_8_and_12(dataset: str, loss: str) -> None:
    """All are scaled to unit maximum weight (curriculum paper, §5)."""
    spec, params = (TABLE_8 if dataset == "cifar100" else TABLE_12)[loss]
    plain, found = get_loss(spec, **params), get_loss(f"{loss}@curriculum", dataset=dataset)
    at = torch.linspace(-30, 30, 2001, dtype=torch.float64)
    torch.testing.assert_close(
        found.sample_weight(at), plain.sample_weight(at) / plain.max_weight, rtol=1e-6, atol=1e-9
    )
    assert float(found.sample_weight(at).max()) == pytest.approx(1, rel=1e-3)
    ratio = found(LOGITS, LABELS) / plain(LOGITS, LABELS)
    assert float(ratio) == pytest.approx(1 / plain.max_weight, rel=1e-6)


def test_paper_004_nce_mae() -> None:
    """Table 8: NCE+MAE with q = 0.3 is 0.7·NCE + 0.3·MAE."""
    assert equal(get_loss("nce+mae@curriculum"), get_loss("0.7*nce + 0.3*mae"))


# --- Nothing is chosen silently ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("spec", "params", "message"),
    [
        ("gce@ln", {}, "several settings"),
        ("gce@ln", {"num_classes": 10}, "several settings"),
        ("gce@ln", {"dataset": "cifar10"}, "several settings"),
        ("gce@ln", {"dataset": "cifar10", "noise": "symmetric", "rate": 0.5}, "no setting"),
        ("agce@bias", {}, "several settings"),
        ("nce+agce@bias", {}, "several settings"),
        ("nce+agce@bias", {"num_classes": 50}, "no setting"),
        ("nce+agce@bias", {"dataset": "imagenet"}, "no setting"),
        ("phuber@sln", {}, "several settings"),
        ("phuber@sln", {"dataset": "cifar10"}, "several settings"),
        ("gce@curriculum", {}, "several settings"),
        ("sce@bias", {}, "No preset"),
        ("gce@005", {}, "No preset"),
        ("gce@", {}, "NAME"),
        ("@bias", {}, "bias"),
        ("nce+nosuch@bias", {}, "No preset"),
    ],
)
def test_a_preset_that_does_not_decide(spec: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        get_loss(spec, **params)
    assert message in str(caught.value)


def test_presets_take_options_and_stand_in_sums_and_wrappers() -> None:
    loss = get_loss("nce+agce@bias", num_classes=10, reduction="none", ignore_index=0)
    assert loss(LOGITS, LABELS).shape == (16,) and loss(LOGITS, LABELS)[0] == 0
    assert equal(get_loss("2*gce@bias + ce"), get_loss("2*gce:q=0.7 + ce"))
    assert equal(
        get_loss("gce@bias + agce@bias", num_classes=10), get_loss("gce:q=0.7 + agce:a=0.6,q=0.6")
    )
    assert equal(
        get_loss("remargin:loss=(gce@bias),shift=1.5"),
        get_loss("remargin:loss=(gce:q=0.7),shift=1.5"),
    )
    nested = get_loss("remargin:loss=(agce@bias:num_classes=10),shift=1.5")
    assert equal(nested, get_loss("remargin:loss=(agce:a=0.6,q=0.6),shift=1.5"))
    assert equal(get_loss("nce + agce@bias", num_classes=10), get_loss("nce + 4*agce:a=6,q=1.5"))


def test_qualifiers_without_a_preset_are_refused() -> None:
    """num_classes does nothing for a plain loss, so it may not be swallowed."""
    for spec, key in itertools.product(("gce", "nce + mae"), ("num_classes", "dataset")):
        with pytest.raises((TypeError, ValueError), match=key):
            get_loss(spec, **{key: 10})


def test_preset_hyperparameters_can_not_be_changed_in_passing() -> None:
    with pytest.raises((TypeError, ValueError), match="q"):
        get_loss("gce@bias", q=0.5)
