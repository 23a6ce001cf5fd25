"""What happened while runs were trained: their curves, their margins, what their losses pulled at.

Functions of one run return tables; those called ``…_figure`` take runs by name (``open_runs``), and
``dynamics_figures`` makes them all. Curves are averaged over runs that differ in their seed alone; of such runs the
first shows its samples.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.analysis.figure import Figure, Layer, Missing
from noiseproof.analysis.predictions import histogram, stacked
from noiseproof.analysis.runs import OF_A_SEED, NotARun, RunFolder
from noiseproof.core.checks import check_count
from noiseproof.core.grammar import parse_call
from noiseproof.core.output import Output
from noiseproof.heads import HEADS
from noiseproof.losses.gaussian import LN
from noiseproof.losses.logistic_normal import negative_log_normal
from noiseproof.strategies import per_row
from noiseproof.strategies.correction import LabelCorrection

if TYPE_CHECKING:
    import pandas as pd

Array = NDArray[Any]
Runs = Mapping[str, RunFolder]

STAGE = "During training"
BINS = 60
SHOWN = 3  # epochs of a distribution: the first, one in the middle, the last
SAMPLES = "noiseproof train --samples"
TESTED = "a dataset with test rows"
CORRECTION = "label-correction"
SCHEDULED = ("optimizer", "schedule", "epochs")
RIGHT, WRONG, ALL = "right", "wrong", "all"
SGD_NOISE = {
    "sln": "noise on labels (z_y)",
    "noise-f": "noise on ∇ in logits (z_f)",
    "noise-theta": "noise on ∇ in weights (z_θ)",
}
TARGETS = {  # by whether label correction inverts ω; None: there is none
    None: "label",
    False: "ω·label + (1 − ω)·prediction",
    True: "(1 − ω)·label + ω·prediction",
}


# Several runs as one


def seeds_of(runs: Runs) -> dict[str, list[RunFolder]]:
    """Runs that differ in nothing but their seed together, by their common name."""
    found: dict[str, tuple[str, list[RunFolder]]] = {}
    for name, run in runs.items():
        kind = run.alike()
        while any(run.seed == other.seed for other in found.get(kind, ("", []))[1]):
            kind += "'"  # they differ in what run.json does not say
        found.setdefault(kind, (name, []))[1].append(run)
    short = Counter(_without_seed(name) for name, _ in found.values())
    named = {}
    for name, group in found.values():
        if len(group) > 1 and short[_without_seed(name)] == 1:
            name = _without_seed(name)
        elif len(group) > 1:  # groups differ in what names don't say
            name = re.sub(r"\bseed=\d+", f"seeds={','.join(str(run.seed) for run in group)}", name)
        named[name] = group
    return named


def _without_seed(name: str) -> str:
    return re.sub(r" · seed=\d+( · .*)?$", "", name)


def _first_of_each(runs: Runs) -> dict[str, RunFolder]:
    return {name: min(group, key=lambda run: run.seed) for name, group in seeds_of(runs).items()}


def _of_one_seed(make: Callable[[Runs], Figure | Missing]) -> Callable[[Runs], Figure | Missing]:
    """A figure of samples, which has the first seed of each run alone, says so."""

    @wraps(make)
    def made(runs: Runs) -> Figure | Missing:
        figure = make(runs)
        if isinstance(figure, Missing) or all(len(group) == 1 for group in seeds_of(runs).values()):
            return figure
        return replace(figure, reading=f"{figure.reading} Of several seeds the smallest alone is shown.")

    return made


def curves(runs: Runs, columns: Sequence[str]) -> pd.DataFrame:
    """Columns of the record by epoch: mean, smallest and largest over seeds, and how many runs have come so far.

    Returns columns ``method``, ``epoch``, ``quantity``, ``value``, ``low``, ``high`` and ``runs``, without epochs in
    which a quantity was not measured.
    """
    import pandas as pd

    tables = []
    for name, group in seeds_of(runs).items():
        rows = pd.concat([run.rows for run in group])
        present = [column for column in columns if column in rows]
        long = rows.melt("epoch", present, "quantity").dropna(subset="value")
        merged = long.groupby(["quantity", "epoch"], sort=False)["value"].agg(["mean", "min", "max", "count"])
        tables.append(merged.reset_index().assign(method=name))
    order = {column: place for place, column in enumerate(columns)}
    whole = pd.concat(tables).rename(columns={"mean": "value", "min": "low", "max": "high", "count": "runs"})
    whole = whole.sort_values("quantity", key=lambda column: column.map(order), kind="stable", ignore_index=True)
    return whole[["method", "epoch", "quantity", "value", "low", "high", "runs"]]


def _curve(runs: Runs, columns: Mapping[str, tuple[str, str]], names: tuple[str, str]) -> pd.DataFrame:
    """``curves`` with two columns, called ``names``, that say in words what each quantity is."""
    table = curves(runs, list(columns))
    for place, name in enumerate(names):
        table[name] = [columns[quantity][place] for quantity in table["quantity"]]
    return table


def _lines(color: str = "method", dash: str | None = None) -> Layer:
    return Layer("line", "epoch", "value", color=color, low="low", high="high", dash=dash)


# Curves


def accuracy_figure(runs: Runs) -> Figure | Missing:
    """Accuracy on test rows and on training rows, with right and wrong labels apart."""
    title, paper = "Accuracy by epoch", "LN paper, Fig. 4, SLN paper, Fig. 1, bias paper, Fig. 5, NAL paper, Figs. 7-10"
    columns = {
        "test_accuracy": ("test rows", ALL),
        "validation_accuracy_clean": ("held-out rows, true labels", ALL),
        "train_accuracy": ("training rows", ALL),
        "train_accuracy_clean": ("training rows", RIGHT),
        "false_label_accuracy": ("training rows", WRONG),
    }
    return Figure(
        "accuracy-curves",
        title,
        "Whether the model comes to agree with wrong labels of training rows, and what that does to its accuracy on "
        "test rows.",
        paper,
        _curve(runs, columns, ("rows", "labels")),
        (_lines(dash="labels"),),
        "epoch",
        "accuracy",
        panel="rows",
        stage=STAGE,
    )


def loss_figure(runs: Runs) -> Figure | Missing:
    """Loss of training rows, with right and wrong labels apart, and −log p on test rows."""
    columns = {
        "train_loss": ("training rows", ALL),
        "train_loss_clean": ("training rows", RIGHT),
        "train_loss_flipped": ("training rows", WRONG),
        "test_loss": ("test rows, −log p", ALL),
    }
    return Figure(
        "loss-curves",
        "Loss by epoch",
        "A loss that falls for wrong labels too is learning them by heart; losses of different methods have no common "
        "scale.",
        "SLN paper, Fig. 1",
        _curve(runs, columns, ("rows", "labels")),
        (_lines(dash="labels"),),
        "epoch",
        "loss",
        panel="rows",
        share_y=False,
        stage=STAGE,
    )


def false_label_figure(runs: Runs) -> Figure | Missing:
    """What the model says of training rows whose label is wrong, beside its test accuracy."""
    title, paper = "Rows with a wrong label", "bias paper, Fig. 4"
    columns = {
        "test_accuracy": ("test rows: true class", "test"),
        "train_accuracy_corrected": ("mislabelled rows: true class", "true class"),
        "false_label_accuracy": ("mislabelled rows: their wrong label", "wrong label"),
    }
    table = _curve(runs, columns, ("panel", "predicted"))
    if not set(table["predicted"]) - {"test"}:
        return Missing("false-labels", title, paper, "a dataset with wrong labels whose truth is known", STAGE)
    return Figure(
        "false-labels",
        title,
        "Of rows whose label is wrong, how many the model gives their true class all the same (the bias paper's "
        "false-label "
        "accuracy), and how many their wrong label.",
        paper,
        table,
        (_lines(),),
        "epoch",
        "accuracy",
        panel="panel",
        stage=STAGE,
    )


def noise_figure(runs: Runs) -> Figure | Missing:
    """Test accuracy under the variants of SGD noise of SLN paper, Eqs. 1-3, for each σ."""
    title, paper = "Noise in SGD, by where it is put", "SLN paper, Fig. 5"
    table = noise_variants(runs)
    if not len(table):
        needs = "runs of `sln`, `noise-f` and `noise-theta` beside `ce`: noiseproof train --method sln:sigma=0.5 …"
        return Missing("sgd-noise", title, paper, needs, STAGE)
    return Figure(
        "sgd-noise",
        title,
        "Look for a σ between plain cross entropy (σ = 0), which learns wrong labels, and one that learns nothing; the "
        "SLN paper "
        "finds much room between them for noise on the labels alone.",
        paper,
        table,
        (_lines("size"),),
        "epoch",
        "test accuracy",
        panel="variant",
        stage=STAGE,
    )


def noise_variants(runs: Runs) -> pd.DataFrame:
    """Test accuracy by epoch of runs with one kind of SGD noise and nothing else; σ = 0 stands beside each kind.

    Returns the columns of ``curves``, ``variant`` (which part of a step the noise is added to), ``sigma`` and ``size``,
    σ in words.
    """
    import pandas as pd

    table = curves(runs, ["test_accuracy"])
    groups = {name: group[0] for name, group in seeds_of(runs).items()}
    plain = {_but_method(run): name for name, run in groups.items() if not _strategies(run)}
    noisy = {name: next(iter(_strategies(run).items()), ("", {})) for name, run in groups.items()}
    noisy = {
        name: (kind, params)
        for name, (kind, params) in noisy.items()
        if kind in SGD_NOISE and len(_strategies(groups[name])) == 1 and params.get("until") is None
    }
    apart = _apart({name: groups[name] for name in noisy})
    found = []
    for name, (kind, params) in noisy.items():
        variant = SGD_NOISE[kind] + apart[name]
        sizes = {plain.get(_but_method(groups[name]), name): 0.0, name: float(params["sigma"])}
        found += [table[table["method"] == one].assign(variant=variant, sigma=sigma) for one, sigma in sizes.items()]
    if not found:
        return table.iloc[:0].assign(variant="", sigma=0.0, size="")
    whole = pd.concat(found, ignore_index=True).drop_duplicates(["variant", "method", "epoch"], ignore_index=True)
    words = [f"σ = {sigma:g}" for sigma in sorted(whole["sigma"].unique())]
    size = [f"σ = {sigma:g}" for sigma in whole["sigma"]]
    return whole.assign(size=pd.Categorical(size, words, ordered=True))


def _strategies(run: RunFolder) -> dict[str, dict[str, Any]]:
    """The parameters of a run's strategies, by name."""
    calls = (parse_call(part) for part in str(run.config["method"]).split(" × ")[1:])
    return {name: params for name, params in calls if name not in HEADS}


def _but_method(run: RunFolder) -> str:
    """What a run shares with those that differ in strategies and seed alone."""
    return str(run.config["method"]).split(" × ")[0] + run.alike("method", "name")


def _apart(runs: Runs, *but: str) -> dict[str, str]:
    """In what else than their method and ``but`` the runs differ, in words after a comma, for each of them."""
    known = (*OF_A_SEED, "method", "name", "classes", "rows", *but)
    keys = dict.fromkeys(key for run in runs.values() for key in run.config if key not in known)
    differing = [key for key in keys if len({repr(run.config.get(key)) for run in runs.values()}) > 1]
    return {name: "".join(f", {key}={run.config.get(key)}" for key in differing) for name, run in runs.items()}


def schedule_figure(runs: Runs) -> Figure | Missing:
    """Test accuracy of one method under several learning rates, schedules or lengths."""
    title, paper = "The schedule decides, too", "curriculum paper, Fig. 4"
    groups = {name: group[0] for name, group in seeds_of(runs).items()}
    said = {name: _schedule(run) for name, run in groups.items()}
    apart = _apart(groups, *SCHEDULED)
    kind = {name: run.name + apart[name] for name, run in groups.items()}
    several = {k for k in kind.values() if len({said[name] for name in groups if kind[name] == k}) > 1}
    if not several:
        needs = "runs of one method that differ in --optimizer, --schedule or --epochs"
        return Missing("schedules", title, paper, needs, STAGE)
    table = curves(runs, ["test_accuracy", "false_label_accuracy"])
    table = table[[kind[name] in several for name in table["method"]]]
    if not len(table):
        return Missing("schedules", title, paper, TESTED, STAGE)
    words = {"test_accuracy": "test rows: true class", "false_label_accuracy": "mislabelled rows: their wrong label"}
    table = table.assign(kind=table["method"].map(kind), schedule=table["method"].map(said))
    table["panel"] = [f"{k}: {words[q]}" for k, q in zip(table["kind"], table["quantity"], strict=True)]
    return Figure(
        "schedules",
        title,
        "Whether a bounded loss comes to learn wrong labels when it is trained for long, and whether a larger or a "
        "smaller learning rate spares cross entropy, as the curriculum paper finds.",
        paper,
        table.sort_values("kind", kind="stable", ignore_index=True),
        (_lines("schedule"),),
        "epoch",
        "accuracy",
        panel="panel",
        stage=STAGE,
    )


def _schedule(run: RunFolder) -> str:
    name, params = parse_call(str(run.config["optimizer"]))
    return f"{name}, lr={params.get('lr', '?')}, {run.config['schedule']}, {run.config['epochs']} epochs"


# Label correction


def correction_figure(runs: Runs) -> Figure | Missing:
    """Test accuracy from shortly before label correction begins, by which weight the label keeps."""
    title, paper = "Label correction: ω or 1 − ω", "SLN paper, Fig. 10"
    corrected = [frozenset(_strategies(run)) for run in runs.values() if CORRECTION in _strategies(run)]
    if not corrected:
        needs = "runs of `sln-mo-lc`, with `invert=true` and without"
        return Missing("label-correction", title, paper, needs, STAGE)
    alike = {*corrected, *(parts - {CORRECTION} for parts in corrected)}  # the same without correction
    runs = {name: run for name, run in runs.items() if frozenset(_strategies(run)) in alike}
    table = curves(runs, ["test_accuracy"])
    if not len(table):
        return Missing("label-correction", title, paper, TESTED, STAGE)
    calls = {name: _strategies(group[0]).get(CORRECTION) for name, group in seeds_of(runs).items()}
    begins = min(int(call["start"]) + 1 for call in calls.values() if call)
    last = int(table["epoch"].max())
    if last < begins:
        needs = f"a run that reaches epoch {begins}, where its correction begins"
        return Missing("label-correction", title, paper, needs, STAGE)
    table = table[table["epoch"] >= begins - max(1, (last - begins) // 2)]
    targets = {name: TARGETS[bool(call["invert"]) if call else None] for name, call in calls.items()}
    table["target"] = [targets[name] for name in table["method"]]
    return Figure(
        "label-correction",
        title,
        f"From epoch {begins} on targets are mixed with predictions: whether a label that keeps more weight the larger "
        "its loss (ω) guards the model against its own mistakes better than 1 − ω does, as the SLN paper finds.",
        paper,
        table.reset_index(drop=True),
        (_lines(dash="target"),),
        "epoch",
        "test accuracy",
        stage=STAGE,
    )


def kept_shares(run: RunFolder, bins: int = BINS) -> pd.DataFrame:
    """How much of each given label was left in the last epoch's targets, as histograms of right and wrong labels."""
    strategies = run.result().strategies
    kept = next((s.kept for s in strategies if isinstance(s, LabelCorrection) and s.kept is not None), None)
    if kept is None:
        raise NotARun(f"Expected label correction to have begun in {run.folder}, got none. Use `sln-mo-lc`.")
    return histogram(kept.double().cpu().numpy(), _groups(run), np.linspace(0, 1, bins + 1), "kept")


@_of_one_seed
def kept_figure(runs: Runs) -> Figure | Missing:
    """Histograms of what label correction left of right and of wrong labels."""
    title, paper = "What label correction leaves of a label", "SLN paper, section 3.3"
    tables, why = {}, ""
    for name, run in _first_of_each(runs).items():
        if CORRECTION in _strategies(run):
            try:
                tables[name] = kept_shares(run)
            except (ValueError, OSError) as error:
                why += f" ({name}: {error})"
    if not tables:
        return Missing("kept-labels", title, paper, f"a run of `sln-mo-lc` that has reached its correction{why}", STAGE)
    return Figure(
        "kept-labels",
        title,
        "The share of the given label in the last targets; the rest is the model's own prediction.",
        paper,
        stacked(tables),
        (Layer("area", "kept", "density", color="labels"),),
        "share of the given label",
        "density",
        panel="method",
        share_y=False,
        stage=STAGE,
    )


# Distributions over samples


def _groups(run: RunFolder) -> dict[str, Array]:
    """The training rows by whether their label is right, all of them where nobody knows."""
    flipped = run.is_flipped
    if flipped is None:
        return {ALL: np.full(len(run.given), True)}
    return {name: member for name, member in ((WRONG, flipped), (RIGHT, ~flipped)) if member.any()}


def _some_epochs(epochs: Sequence[int]) -> list[int]:
    """The first, the last, and one whose share of the training is small: most happens early."""
    if len(epochs) <= SHOWN:
        return list(epochs)
    return [epochs[0], epochs[max(1, round((len(epochs) - 1) * 0.3))], epochs[-1]]


def distributions(
    run: RunFolder, quantity: str, epochs: Sequence[int] | None = None, bins: int = BINS, edges: Array | None = None
) -> pd.DataFrame:
    """Histograms of a recorded ``quantity`` of right and wrong labels, by epoch, with the same bins in all of them.

    Args:
        quantity: ``margin`` (Δ of the given label), ``trust`` (NAL's τ), ``pull`` (½‖∂L/∂z‖₁) or ``weight``.
        epochs: by default the first, one at 30 % and the last.
        edges: of the bins, by default ``bins`` from the smallest to the largest value.
    """
    check_count("bins", bins, 1)
    chosen = _some_epochs(run.sample_epochs) if epochs is None else list(epochs)
    found = {epoch: run.samples(epoch) for epoch in chosen}
    if not found or any(quantity not in samples for samples in found.values()):
        raise NotARun(f"Expected recorded samples with `{quantity}` in {run.folder}, got none. Use {SAMPLES}.")
    values = {epoch: samples[quantity].astype(np.float64) for epoch, samples in found.items()}
    values = {epoch: v for epoch, v in values.items() if np.isfinite(v).any()}
    if not values:
        raise NotARun(
            f"Expected steps of single samples in {run.folder}, got only mixtures: they have no `{quantity}`."
        )
    if edges is None:
        edges = np.histogram_bin_edges(np.concatenate([v[np.isfinite(v)] for v in values.values()]), bins)
    tables = {epoch: histogram(v, _groups(run), edges, quantity) for epoch, v in values.items()}
    return stacked(tables, "epoch")


def margin_distributions(run: RunFolder, epochs: Sequence[int] | None = None, bins: int = BINS) -> pd.DataFrame:
    """Histograms of Δ of right and wrong labels by epoch, and w(Δ) of the loss where it is a function of Δ alone."""
    table = distributions(run, "margin", epochs, bins)
    with torch.no_grad():
        try:
            weight = run.method.loss.sample_weight(torch.from_numpy(table["margin"].to_numpy(copy=True)))
        except (TypeError, ValueError):  # it looks at the other classes, too, or is none of the registered
            return table.assign(weight=np.nan)
    return table.assign(weight=weight.numpy())


@_of_one_seed
def margin_figure(runs: Runs) -> Figure | Missing:
    """Distributions of Δ of right and wrong labels at the beginning, on the way and at the end."""
    import pandas as pd

    title, paper = "Margins of right and wrong labels", "curriculum paper, Figs. 3, 9, 10"
    tables = {}
    for name, run in _first_of_each(runs).items():
        try:
            table = margin_distributions(run)
        except NotARun:
            continue
        # As the curriculum paper draws it: the weight, which is on no scale of the density's, to the same height; in
        # rows of its own.
        peak = table.groupby("epoch")["density"].transform("max")
        line = table[["epoch", "margin"]].assign(weight=table["weight"] / table["weight"].max() * peak)
        tables[name] = pd.concat([table.drop(columns="weight"), line.drop_duplicates().dropna()])
    if not tables:
        return Missing("margins", title, paper, SAMPLES, STAGE)
    return Figure(
        "margins",
        title,
        "The further the margins of right and wrong labels part, the less the wrong ones were learned; w(Δ) shows "
        "which margins the loss pulls at.",
        paper,
        _with_panels(tables),
        (
            Layer("area", "margin", "density", color="labels"),
            Layer("line", "margin", "weight", label="w(Δ), as high as the distributions"),
        ),
        "margin Δ of the given label",
        "density",
        panel="panel",
        share_y=False,
        stage=STAGE,
    )


@_of_one_seed
def trust_figure(runs: Runs) -> Figure | Missing:
    """Distributions of NAL's τ of right and wrong labels at the beginning, on the way and at the end."""
    title, paper = "How much noise attention trusts its labels", "NAL paper, Figs. 11-13"
    tables = {}
    for name, run in _first_of_each(runs).items():
        try:
            tables[name] = distributions(run, "trust", edges=np.linspace(0, 1, BINS + 1))
        except NotARun:
            continue
    if not tables:
        return Missing("attention", title, paper, f"{SAMPLES} --method nal", STAGE)
    return Figure(
        "attention",
        title,
        "In the NAL paper τ is alike for all samples at first and then rises to one for right labels only; where the "
        "two do not "
        "part, attention has not told wrong labels from right ones.",
        paper,
        _with_panels(tables),
        (Layer("area", "trust", "density", color="labels"),),
        "attention τ",
        "density",
        panel="panel",
        share_y=False,
        stage=STAGE,
    )


def _with_panels(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Tables of several runs as one, with a panel for each run and epoch."""
    table = stacked(tables)
    table["panel"] = [f"{m}, epoch {e}" for m, e in zip(table["method"], table["epoch"], strict=True)]
    return table


# What a loss pulls at


def sample_weights(run: RunFolder) -> pd.DataFrame:
    """α_t and snr of the curriculum paper, by epoch, from every sample's recorded ``pull`` times the method's own
    ``weight``.

    With w = ½‖∂L/∂z‖₁ of each sample, which is w(Δ) where the loss has one, and η the learning rate,

        α_t = Σ η·w / Σ η over all samples of steps 1 … t (curriculum paper, §5.1, whose ‖∇Δ‖₁ must be the loss's
        gradient) snr = w̄_right / w̄_wrong, both averaged the same way over the samples with right and wrong labels
        (App. C.2).

    Returns ``epoch``, ``lr``, ``alpha``, ``snr`` (over all epochs so far), ``mean``, ``mean_right`` and ``mean_wrong``
    (of this epoch).
    """
    import pandas as pd

    rates = run.rows.set_index("epoch")["lr"]
    right = np.full(len(run.given), True) if run.is_flipped is None else ~run.is_flipped
    sums, counts, rows = np.zeros(2), np.zeros(2), []
    for epoch in run.sample_epochs:
        samples = run.samples(epoch)
        if "pull" not in samples:
            raise NotARun(f"Expected the samples' `pull` in {run.folder}, got none. Use {SAMPLES} once more.")
        pull = samples["pull"].astype(np.float64) * samples["weight"]
        seen = ~np.isnan(pull)
        groups = [seen & right, seen & ~right]
        here, many = np.array([pull[g].sum() for g in groups]), np.array([g.sum() for g in groups], dtype=np.float64)
        lr = float(rates[epoch])
        sums, counts = sums + lr * here, counts + lr * many
        with np.errstate(invalid="ignore", divide="ignore"):
            (mean_right, mean_wrong), (so_right, so_wrong) = here / many, sums / counts
            row = {"alpha": sums.sum() / counts.sum(), "snr": so_right / so_wrong, "mean": here.sum() / many.sum()}
        rows.append({"epoch": epoch, "lr": lr, **row, "mean_right": mean_right, "mean_wrong": mean_wrong})
    if not rows:
        raise NotARun(f"Expected recorded samples in {run.folder}, got none. Use {SAMPLES}.")
    return pd.DataFrame(rows)


@_of_one_seed
def weight_figure(runs: Runs) -> Figure | Missing:
    """α_t, the mean weight of right and wrong labels, and snr by epoch."""
    import pandas as pd

    title, paper = "How hard the loss pulls, and at which labels", "curriculum paper, Fig. 1, Table 5, App. C.2"
    tables = {}
    for name, run in _first_of_each(runs).items():
        try:
            table = sample_weights(run)
        except NotARun:
            continue
        parts = {
            ("α_t: mean weight so far", ALL): "alpha",
            ("mean weight of the epoch", RIGHT): "mean_right",
            ("mean weight of the epoch", WRONG): "mean_wrong",
            ("snr: right to wrong, so far", ALL): "snr",
        }
        tables[name] = pd.concat(
            [
                table[["epoch"]].assign(panel=panel, labels=labels, value=table[column])
                for (panel, labels), column in parts.items()
            ]
        ).dropna(subset="value")
    if not tables:
        return Missing("sample-weights", title, paper, SAMPLES, STAGE)
    return Figure(
        "sample-weights",
        title,
        "A loss whose α_t starts near zero or falls to it underfits; an snr above one means that right labels pull "
        "harder than wrong ones.",
        paper,
        stacked(tables),
        (Layer("line", "epoch", "value", color="method", dash="labels"),),
        "epoch",
        "sample weight w, or ratio",
        panel="panel",
        share_y=False,
        stage=STAGE,
    )


# The Logistic-Normal likelihood


def residuals(run: RunFolder) -> dict[str, Array]:
    """eᵀΣ⁻¹e of every training row, e = τy − μ, as the last checkpoint has it: with Σ = I and with the learned Σ_θ.

    This is the part of LN paper, Eq. 5 that depends on the label. Inputs are not augmented. A run with Σ = I has no
    Σ_θ.
    """
    result = run.result()
    if not isinstance(loss := result.run.loss, LN):
        raise NotARun(f"Expected a Logistic-Normal likelihood in {run.folder}, got `{loss}`. Use the method `ln`.")

    def compute(rows: torch.Tensor, outs: list[Output]) -> torch.Tensor:
        error = loss.error(outs[0].logits, result.run.data.given[rows])
        plain = error.square().sum(1)
        spread = loss.distribution(outs[0])
        with_error, without = (
            negative_log_normal(e, spread.lam, spread.root, spread.scale) for e in (error, torch.zeros_like(error))
        )
        return torch.stack([plain, 2 * (with_error - without)], 1)

    plain, learned = per_row(result.run, compute).cpu().numpy().T
    return {"Σ = I": plain} if loss.covariance == "identity" else {"Σ = I": plain, "Σ_θ": learned}


def residual_histograms(found: Mapping[str, Array], groups: Mapping[str, Array], bins: int = BINS) -> pd.DataFrame:
    """Histograms of ``residuals`` over bins that are even in their logarithm, the same for each Σ."""
    logs = {name: np.log10(np.maximum(values, 1e-12)) for name, values in found.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(logs.values())), bins)
    tables = {name: histogram(values, groups, edges, "log10") for name, values in logs.items()}
    table = stacked(tables, "covariance")
    return table.assign(residual=10 ** table["log10"])


@_of_one_seed
def residual_figure(runs: Runs) -> Figure | Missing:
    """Residuals of right and wrong labels under the Logistic-Normal likelihood."""
    title, paper = "Residuals of the Logistic-Normal likelihood", "LN paper, Figs. 6, 7"
    tables, why = {}, ""
    for name, run in _first_of_each(runs).items():
        if not str(run.config["method"]).startswith("ln:"):
            continue
        try:
            tables[name] = residual_histograms(residuals(run), _groups(run))
        except (ValueError, OSError) as error:
            why += f" ({name}: {error})"
    if not tables:
        return Missing("residuals", title, paper, f"a run of `ln`, and one of `ln-identity` beside it{why}", STAGE)
    table = stacked(tables)
    table["panel"] = [f"{m}, evaluated with {c}" for m, c in zip(table["method"], table["covariance"], strict=True)]
    return Figure(
        "residuals",
        title,
        "With Σ = I wrong labels that keep a large residual were not fitted; with the learned Σ_θ large residuals are "
        "meant to count less, and small ones more.",
        paper,
        table,
        (Layer("area", "residual", "density", color="labels"),),
        "(y − μ)ᵀ Σ⁻¹ (y − μ)",
        "density of its logarithm",
        panel="panel",
        log_x=True,
        share_y=False,
        stage=STAGE,
    )


FIGURES = (
    accuracy_figure, loss_figure, false_label_figure, margin_figure, weight_figure, trust_figure, noise_figure,
    correction_figure, kept_figure, schedule_figure, residual_figure,
)  # fmt: skip


def dynamics_figures(runs: Runs) -> list[Figure | Missing]:
    """Every figure of this module; those whose data was not recorded say what records it."""
    return [figure(runs) for figure in FIGURES]
