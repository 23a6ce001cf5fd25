"""The papers' own settings of each method, as data: which paper, for what data, which spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noiseproof.losses.presets import HUMAN, QUALIFIERS, SYNTHETIC, Row
from noiseproof.losses.presets import PRESETS as LOSS_PRESETS
from noiseproof.losses.remargin import BIAS_CYCLE

_CYCLE = f"{list(BIAS_CYCLE)},every=11"


def _rows() -> list[Row]:
    rows: list[Row] = []

    def add(method: str, paper: str, spec: str, **holds: Any) -> None:
        rows.append((method, paper, holds, spec))

    # LN paper, Tables 5 and 6. NAN is sln; LN is [τ, λ], Het-τ-Σ_full [τ, R]. CE and Het have nothing to set; the
    # number of samples is the default in its code.
    columns: list[dict[str, Any]] = [
        {"dataset": d, "noise": n, "rate": r} for d in ("mnist", "cifar10", "cifar100") for n, r in SYNTHETIC
    ]
    columns += [{"dataset": dataset, "noise": noise} for dataset, noise in HUMAN]
    table: dict[str, tuple[Any, ...]] = {
        "het-tau:tau={},samples=2000": (
            0.5, 0.1, 20, 10, 0.5, 0.5, 0.1,
            0.5, 10, 20, 10, 10, 10, 20,
            20, 20, 10, 10, 20, 20, 10,
            10, 20, 20, 0.5, 20, 20, 0.1,
        ),
        "het-tau-full:tau={0[0]},rank={0[1]},samples=2000": (
            (1.0, 1), (0.1, 4), (0.1, 4), (10, 4), (10, 2), (0.5, 1), (10, 1),
            (0.5, 4), (20, 4), (20, 1), (10, 2), (20, 2), (0.1, 2), (0.5, 2),
            (0.5, 4), (10, 4), (10, 4), (10, 1), (20, 2), (20, 1), (20, 1),
            (10, 4), (0.1, 1), (20, 1), (20, 1), (10, 4), (10, 1), (0.1, 1),
        ),
        "sln:sigma={}": (
            0.2, 1.0, 1.0, 1.0, 1.0, 0.75, 1.0,
            0.2, 0.5, 0.75, 0.75, 0.5, 0.1, 0.2,
            0.1, 0.2, 0.2, 0.2, 0.1, 0.2, 0.1,
            0.75, 0.5, 0.5, 0.5, 0.75, 0.2, 0.2,
        ),
        "ln:tau={0[0]},lam={0[1]}": (
            (1.0, 1.0), (1.0, 1.0), (1.0, 0.5), (0.5, 0.1), (0.5, 0.1), (0.5, 0.1), (0.5, 0.1),
            (0.1, 0.5), (0.5, 0.5), (1.0, 0.5), (1.0, 0.5), (0.5, 0.5), (0.5, 0.5), (0.5, 0.5),
            (0.1, 0.5), (1.0, 0.5), (1.0, 0.5), (1.0, 0.5), (0.5, 0.5), (0.5, 1.0), (0.5, 1.0),
            (0.5, 0.5), (1.0, 0.5), (0.5, 0.5), (1.0, 1.0), (0.5, 0.5), (0.5, 0.5), (1.0, 1.0),
        ),
        "ce": (None,) * 28,
        "het:samples=2000": (None,) * 28,
    }  # fmt: skip
    for form, values in table.items():
        for holds, value in zip(columns, values, strict=True):
            add(form.partition(":")[0], "ln", form.format(value), **holds)

    # The SLN paper, appendices B.1 and B.2 (all synthetic noise is of rate 0.4, and tuned for); epochs are counted from
    # 0.
    for dataset in ("cifar10", "cifar100"):
        for noise in ("symmetric", "asymmetric", "instance", "openset")[: 4 if dataset == "cifar10" else 3]:
            data = {"dataset": dataset, "noise": noise, "rate": 0.4}
            if dataset == "cifar10":
                sigma, warm_gce, warm_mix = (1.0 if noise == "symmetric" else 0.5), 50, 10
            else:
                sigma, warm_gce, warm_mix = (0.1 if noise == "instance" else 0.2), 150, 30
            add("ce", "sln", "ce", dataset=dataset, noise=noise)  # which has nothing to tune
            add("sln", "sln", f"sln:sigma={sigma}", **data)
            add("sln-mo", "sln", f"sln-mo:sigma={sigma},alpha=0.999", **data)
            add("sln-mo-lc", "sln", f"sln-mo-lc:sigma={sigma},alpha=0.999,start=250", **data)
            add("tgce", "sln", f"tgce:q=0.7,k=0.5,start={warm_gce},every=10", **data)
            for before, more in (("", ""), ("sln-", f",sigma={sigma}"))[: 2 if dataset == "cifar10" else 1]:
                add(f"{before}co-teaching", "sln", f"{before}co-teaching:forget=0.4,ramp=10{more}", **data)
                add(f"{before}sigua", "sln", f"{before}sigua:forget=0.4,scale=0.001{more}", **data)
            add("dividemix", "sln", f"dividemix:warmup={warm_mix},lambda_u=0", **data)
            if dataset == "cifar10":
                add("sln-dividemix", "sln", f"sln-dividemix:lambda_u=0,sigma={sigma}", **data)
    clothing = {"dataset": "clothing1m", "noise": "human"}
    add("ce", "sln", "ce", **clothing)
    add("sln", "sln", "sln:sigma=0.2", **clothing)
    add("sln-mo", "sln", "sln-mo:sigma=0.2,alpha=0.999", **clothing)
    # Each epoch draws its own images, so there the loss is against the given labels.
    add("sln-mo-lc", "sln", "sln-mo-lc:sigma=0.2,alpha=0.999,start=1,soft=true,against=original", **clothing)
    add("co-teaching", "sln", "co-teaching:forget=0.4,ramp=10", **clothing)

    # bias paper, Tables 2 and 3, appendices 2 and 4.
    for dataset, shift in (("fashion-mnist", 0.5), ("cifar10", 0.5), ("cifar100", 3.0), ("webvision", 5.2)):
        classes = {"webvision": 1000, "cifar100": 100}.get(dataset, 10)
        add("ce", "bias", "ce", dataset=dataset, num_classes=classes)
        add("mae*", "bias", f"remargin:loss=(mae:scale=2),shift={shift}", dataset=dataset, num_classes=classes)
    web = {"dataset": "webvision", "num_classes": 1000}
    add("mae**", "bias", f"remargin:loss=(mae:scale=2),shift={_CYCLE}", **web)
    add("gce**", "bias", f"remargin:loss=(gce:q=0.7),shift={_CYCLE}", **web)
    add("nfl+mae**", "bias", f"remargin:loss=(nfl:gamma=0.5 + 0.2*mae:scale=2),shift={_CYCLE}", **web)
    add("gce+", "bias", "gce:q=0.48", **web)
    add("nce+agce+", "bias", "100*nce + 0.7*agce:a=0.05,q=0.05", **web)

    # NAL paper, appendix B.4; when targets are estimated, and β, are in its released code only (epochs from 0).
    for dataset, lam, start, every, beta in (
        ("cifar10", 0.5, 59, 10, 0.0),
        ("cifar100", 10, 59, 10, 0.0),
        ("animal10n", 0.5, 40, 1, 0.0),
        ("clothing1m", 50, 59, 10, 0.1),
        ("webvision", 50, 199, 10, 0.1),
    ):
        extra = {"num_classes": 50} if dataset == "webvision" else {}
        spec = f"nal:lam={lam},alpha=0.9,start={start},every={every},beta={beta}"
        add("nal", "nal", spec, dataset=dataset, **extra)

    # curriculum paper, Table 9 (τ on CIFAR-100) and Table 4 (WebVision); AGCE as in Table 8, unit maximum weight.
    noises = [("none", 0.0), *(("symmetric", r) for r in (0.2, 0.4, 0.6, 0.8))]
    noises += [("asymmetric", r) for r in (0.1, 0.2, 0.3, 0.4)]
    cifar100: list[dict[str, Any]] = [{"dataset": "cifar100", "noise": n, "rate": r} for n, r in noises]
    cifar100.append({"dataset": "cifar100n", "noise": "human"})
    agce = ",a=0.1,q=0.1"
    for name, more, taus in (
        ("mae-shift", "", (2.0, 2.6, 3.0, 4.0, 4.0, 2.6, 2.6, 3.0, 3.0, 2.6)),
        ("mae-scale", "", (2.0, 2.6, 2.6, 3.0, 4.0, 2.6, 2.6, 3.0, 3.0, 2.6)),
        ("agce-shift", agce, (4.0, 4.0, 4.0, 5.0, 5.0, 4.0, 4.0, 4.0, 4.0, 4.0)),
        ("agce-scale", agce, (2.6, 3.0, 4.0, 5.0, 5.0, 3.0, 3.0, 3.0, 3.0, 4.0)),
    ):
        for holds, tau in zip(cifar100, taus, strict=True):
            add(name, "curriculum", f"{name}:tau={tau}{more}", **holds)
    for classes, tau in ((50, 2.0), (200, 1.8), (400, 1.6)):
        for name in ("mae-shift", "mae-scale"):
            add(name, "curriculum", f"{name}:tau={tau}", dataset="webvision", num_classes=classes)
    # The losses' own rows hold for methods too.
    return rows + [("bitemp" if row[0] == "bitempered" else row[0], *row[1:]) for row in LOSS_PRESETS]


PRESETS: tuple[Row, ...] = tuple(_rows())


def preset(method: str, paper: str, data: Mapping[str, Any]) -> str:
    """The spec that ``paper`` gives ``method`` for ``data``, which says what it knows of ``QUALIFIERS``.

    >>> preset("sln", "sln", {"dataset": "cifar10", "num_classes": 10, "noise": "symmetric", "rate": 0.4})
    'sln:sigma=1.0'
    """
    named = [row for row in PRESETS if row[:2] == (method, paper)]
    if not named:
        papers = sorted({row[1] for row in PRESETS if row[0] == method})
        there = f"{method}@{f', {method}@'.join(papers)}" if papers else "none of this method"
        raise ValueError(f"No setting {method}@{paper} in the papers. There are: {there}.")
    rows = [row for row in named if all(data.get(key, value) == value for key, value in row[2].items())]
    specs = {row[3] for row in rows}
    if len(specs) == 1:
        return specs.pop()
    near = rows or [row for row in named if row[2].get("dataset") == data.get("dataset")] or named
    listing = "; ".join(", ".join(f"{k}={v}" for k, v in row[2].items()) + f" → {row[3]}" for row in near)
    here = ", ".join(f"{key}={value}" for key, value in data.items())
    fault = "several settings" if rows else "no setting"
    raise ValueError(
        f"{method}@{paper} has {fault} for {here}. Say which to take, as in "
        f"{method}@{paper}:{QUALIFIERS[0]}=…, with {', '.join(QUALIFIERS)}: {listing}."
    )
