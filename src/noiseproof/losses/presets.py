"""The papers' own settings of each loss, as data: which paper, for what data, which spec."""

from __future__ import annotations

from typing import Any

QUALIFIERS = ("dataset", "num_classes", "noise", "rate")

_CLASSES = {"mnist": 10, "fashion-mnist": 10, "cifar10": 10, "cifar10n": 10, "clothing1m": 14, "cifar100": 100,
            "cifar100n": 100, "webvision": 1000}  # fmt: skip

Row = tuple[str, str, dict[str, Any], str]  # loss, paper, what it holds for, spec

# The LN paper's columns: Table 5 (synthetic noise), and Table 6 (human noise), whose heads read random 1-3, aggregate,
# worst, CIFAR-100N, Clothing1M.
SYNTHETIC = [
    ("none", 0.0),
    *(("symmetric", rate) for rate in (0.2, 0.4, 0.6)),
    *(("asymmetric", rate) for rate in (0.2, 0.3, 0.4)),
]
HUMAN = [
    *(("cifar10n", noise) for noise in ("random1", "random2", "random3", "aggregate", "worst")),
    ("cifar100n", "human"),
    ("clothing1m", "human"),
]


def _rows() -> list[Row]:
    rows: list[Row] = []

    def add(loss: str, paper: str, spec: str, **holds: Any) -> None:
        if "dataset" in holds:
            holds["num_classes"] = _CLASSES[holds["dataset"]]
        rows.append((loss, paper, holds, spec))

    # The LN paper: q of GCE and α of LS, searched for each noise.
    for dataset, gce, ls in (
        ("mnist", (0.3, 0.7, 0.9, 0.9, 0.7, 0.5, 0.3), (0.5, 0.3, 0.9, 0.9, 0.1, 0.5, 0.7)),
        ("cifar10", (0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 0.1), (0.7, 0.9, 0.9, 0.9, 0.5, 0.3, 0.9)),
        ("cifar100", (0.5, 0.5, 0.5, 0.5, 0.7, 0.7, 0.5), (0.1, 0.9, 0.7, 0.7, 0.9, 0.7, 0.9)),
    ):
        for (noise, rate), q, alpha in zip(SYNTHETIC, gce, ls, strict=True):
            add("gce", "ln", f"gce:q={q}", dataset=dataset, noise=noise, rate=rate)
            add("ls", "ln", f"ls:alpha={alpha}", dataset=dataset, noise=noise, rate=rate)
    for (dataset, noise), q, alpha in zip(
        HUMAN, (0.9, 0.7, 0.9, 0.5, 0.9, 0.5, 0.9), (0.5, 0.9, 0.5, 0.9, 0.7, 0.9, 0.5), strict=True
    ):
        add("gce", "ln", f"gce:q={q}", dataset=dataset, noise=noise)
        add("ls", "ln", f"ls:alpha={alpha}", dataset=dataset, noise=noise)

    # SLN paper, appendix B.1: all of 40 %.
    for dataset in ("cifar10", "cifar100"):
        for noise in ("symmetric", "asymmetric", "instance", "openset")[: 4 if dataset == "cifar10" else 3]:
            said = {"dataset": dataset, "noise": noise, "rate": 0.4}
            easy = dataset == "cifar10" and noise == "asymmetric"
            tau = 30 if dataset == "cifar100" else 10 if noise == "asymmetric" else 2
            add("gce", "sln", "gce:q=0.7", **said)
            add("phuber", "sln", f"phuber:tau={tau}", **said)
            add("ls", "sln", f"ls:alpha={0.5 if easy else 0.8}", **said)

    # bias paper, appendix Table 1. Its MAE is Σ_n |y_n − p_n| = 2(1 − p); where its β is 20 it is read as the mean over
    # classes, without which it does not learn at the rates that its own Table 2 reports (docs/results.md).
    for dataset in ("fashion-mnist", "cifar10", "cifar100", "webvision"):
        small, mean = _CLASSES[dataset] == 10, 2 / _CLASSES[dataset]
        agce = "agce:a=0.6,q=0.6" if small else "agce:a=1e-5,q=0.5"
        add("bitempered", "bias", "bitempered:t1=0.8,t2=1.2", dataset=dataset)
        add("gce", "bias", "gce:q=0.7", dataset=dataset)
        add("mae", "bias", "mae:scale=2", dataset=dataset)
        add("agce", "bias", agce, dataset=dataset)
        beta, scale = (20, mean) if small else (0.2, 2)
        add("nfl+mae", "bias", f"nfl:gamma=0.5 + {beta}*mae:scale={scale}", dataset=dataset)
        add("nce+mae", "bias", f"nce + 20*mae:scale={mean}", dataset=dataset)
        add("nce+agce", "bias", "nce + 4*agce:a=6,q=1.5" if small else "10*nce + 0.1*agce:a=1.8,q=3", dataset=dataset)

    # curriculum paper, Tables 8 (tuned on clean CIFAR-100, used for sections 5.1 and C.1) and 12 (CIFAR-10, section
    # 5.2), all scaled to unit maximum weight (section 5); its SCE is (1 − q)·CE + q·MAE. † rows are its inferior
    # settings.
    def add_curriculum(loss: str, spec: str, table: int) -> None:
        add(loss, "curriculum", f"unit:loss=({spec})", dataset="cifar100" if table == 8 else "cifar10")

    for loss, spec in (
        ("ce", "ce"), ("mae", "mae"), ("sce", "sce:alpha=0.3,beta=0.7,A=-1"), ("gce", "gce:q=0.3"),
        ("aul", "aul:a=1.1,q=5"), ("agce", "agce:a=0.1,q=0.1"), ("aul-inferior", "aul:a=3,q=0.7"),
        ("agce-inferior", "agce:a=1.6,q=2"),
    ):  # fmt: skip
        add_curriculum(loss, spec, 8)
    for loss, spec in (
        ("ce", "ce"), ("mae", "mae"), ("sce", "sce:alpha=0.05,beta=0.95,A=-1"), ("gce", "gce:q=0.4"),
        ("aul", "aul:a=2,q=2"), ("agce", "agce:a=3,q=4"),
    ):  # fmt: skip
        add_curriculum(loss, spec, 12)
    add("nce+mae", "curriculum", "0.7*nce + 0.3*mae", dataset="cifar100")
    return rows


PRESETS: tuple[Row, ...] = tuple(_rows())


def said_of_data(params: dict[str, Any]) -> dict[str, Any]:
    """What ``params`` say of the data, taken out of them; ``noise=none`` is a word of its own, not a missing value."""
    said = {key: params.pop(key) for key in QUALIFIERS if key in params}
    return said | ({"noise": "none"} if "noise" in said and said["noise"] is None else {})


def preset(loss: str, paper: str, qualifiers: dict[str, Any]) -> str:
    """The spec that ``paper`` gives ``loss`` for the data described by ``qualifiers``.

    >>> preset("gce", "bias", {})
    'gce:q=0.7'
    """
    named = [row for row in PRESETS if row[:2] == (loss, paper)]
    if not named:
        known = ", ".join(sorted({f"{row[0]}@{row[1]}" for row in PRESETS}))
        raise ValueError(f"No preset {loss}@{paper}. There are: {known}.")
    rows = [row for row in named if all(row[2].get(key) == value for key, value in qualifiers.items())]
    specs = {row[3] for row in rows}
    if len(specs) == 1:
        return specs.pop()
    listing = "; ".join(
        ", ".join(f"{key}={value}" for key, value in row[2].items()) + f" → {row[3]}" for row in rows or named
    )
    asked = ", ".join(f"{key}={value}" for key, value in qualifiers.items()) or "no further word"
    fault = "several settings" if rows else "no setting"
    raise ValueError(f"{loss}@{paper} has {fault} for {asked}. Say {', '.join(QUALIFIERS)}: {listing}.")
