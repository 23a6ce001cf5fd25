"""Recorded samples: margins, attention and weights of right and wrong labels, and residuals of
LN.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from noiseproof.analysis.figures import Layer, each, figure, first_seeds, histogram, stack
from noiseproof.analysis.runs import ALL, RIGHT, WRONG, Array, NotARun, RunFolder, Runs
from noiseproof.core.output import Output
from noiseproof.losses.gaussian import LN
from noiseproof.losses.logistic_normal import negative_log_normal
from noiseproof.strategies import per_row

BINS = 60
RECORDED = "`noiseproof train --samples`, or `samples = true` in the file of a sweep"


def distributions(
    run: RunFolder,
    quantity: str,
    epochs: Sequence[int] | None = None,
    edges: Array | None = None,
) -> pd.DataFrame:
    """Return histograms of a recorded ``quantity`` of right and wrong labels, by epoch, with the
    same bins in all of them.

    Args:
        quantity: ``margin`` (Δ of the given label), ``trust`` (NAL's τ), ``pull`` (½‖∂L/∂z‖₁) or
            ``weight``.
        epochs: by default the first, one at 30 % and the last.
        edges: of the bins, by default 60 from the smallest to the largest value.
    """
    recorded = run.sample_epochs
    if epochs is None:  # most happens early
        middle = max(1, round((len(recorded) - 1) * 0.3))
        epochs = recorded if len(recorded) <= 3 else (recorded[0], recorded[middle], recorded[-1])
    samples = {epoch: run.samples(epoch) for epoch in epochs}
    if not samples or any(quantity not in columns for columns in samples.values()):
        raise NotARun(
            f"Expected recorded samples with `{quantity}` in {run.folder}, got none. Use"
            f" {RECORDED}."
        )
    values = {epoch: columns[quantity].astype(np.float64) for epoch, columns in samples.items()}
    values = {epoch: v for epoch, v in values.items() if np.isfinite(v).any()}
    if not values:
        raise NotARun(
            f"Expected steps of single samples in {run.folder}, got only mixtures: they have no"
            f" `{quantity}`."
        )
    if edges is None:
        finite = [v[np.isfinite(v)] for v in values.values()]
        edges = np.histogram_bin_edges(np.concatenate(finite), BINS)
    tables = {epoch: histogram(v, run.label_groups, edges, quantity) for epoch, v in values.items()}
    return stack(tables, "epoch")


def margin_distributions(run: RunFolder) -> pd.DataFrame:
    """Return histograms of Δ of right and wrong labels by epoch, and w(Δ) of the loss if it is a
    function of Δ alone.
    """
    table = distributions(run, "margin")
    margins = torch.from_numpy(table["margin"].to_numpy(copy=True))
    with torch.no_grad():
        try:
            weight = run.method.loss.sample_weight(margins)
        except (TypeError, ValueError):  # it depends on the other classes, or is not registered
            return table.assign(weight=np.nan)
    return table.assign(weight=weight.numpy())


def _with_panels(table: pd.DataFrame, words: str, column: str) -> pd.DataFrame:
    """Return a table with a panel for each method and value of ``column``."""
    return table.assign(
        panel=table["method"].astype(str) + f", {words} " + table[column].astype(str)
    )


@figure(
    "margins",
    "Margins of right and wrong labels",
    Layer("area", "margin", "density", color="labels"),
    Layer("line", "margin", "weight", label="w(Δ), as high as the distributions"),
    subject=first_seeds,
    reading=(
        "The further apart the margins of right and wrong labels, the less the wrong ones were"
        " learned; w(Δ) shows which margins the loss pulls at."
    ),
    paper="curriculum paper, Figs. 3, 9, 10",
    axes=("margin Δ of the given label", "density"),
    panel="panel",
    share_y=False,
)
def margin_figure(runs: Runs) -> pd.DataFrame:
    def table_of(run: RunFolder) -> pd.DataFrame:
        table = margin_distributions(run)
        # As in the curriculum paper the weight, which has another scale, is drawn as high as the
        # density; in rows of its own.
        peak = table.groupby("epoch")["density"].transform("max")
        line = table[["epoch", "margin"]].assign(
            weight=table["weight"] / table["weight"].max() * peak
        )
        return pd.concat([table.drop(columns="weight"), line.drop_duplicates().dropna()])

    return _with_panels(stack(each(runs, table_of), needs=RECORDED), "epoch", "epoch")


def sample_weights(run: RunFolder) -> pd.DataFrame:
    """Return α_t and snr of the curriculum paper by epoch.

    They come from each sample's recorded ``pull`` times its ``weight``, w = ½‖∂L/∂z‖₁, which is
    w(Δ) if the loss has one. With the learning rate η,

        α_t = Σ η·w / Σ η
        snr = w̄_right / w̄_wrong

    α_t is a mean over all samples of steps 1 … t (§5.1, which prints ‖∇Δ‖₁ for the gradient of the
    loss); w̄_right and w̄_wrong are the same mean over samples with right and with wrong labels (App.
    C.2).

    Returns ``epoch``, ``lr``, ``alpha``, ``snr`` (over all epochs so far), ``mean``, ``mean_right``
    and ``mean_wrong`` (of this epoch).
    """
    if not run.sample_epochs:
        raise NotARun(f"Expected recorded samples in {run.folder}, got none. Use {RECORDED}.")
    right = np.full(len(run.given), True) if run.is_flipped is None else ~run.is_flipped
    epochs = list(run.sample_epochs)
    rows = []
    for samples in map(run.samples, epochs):
        pull = samples["pull"].astype(np.float64) * samples["weight"]
        groups = [pull[~np.isnan(pull) & group] for group in (right, ~right)]
        rows.append([(group.sum(), len(group)) for group in groups])
    sums, counts = np.array(rows).transpose(2, 0, 1)  # of right and wrong labels, (epochs, 2)
    lr = run.rows.set_index("epoch")["lr"][epochs].to_numpy()
    sums_so_far = (lr[:, None] * sums).cumsum(0)
    counts_so_far = (lr[:, None] * counts).cumsum(0)
    with np.errstate(invalid="ignore", divide="ignore"):  # no label is wrong, or none known
        mean_right, mean_wrong = (sums / counts).T
        right_so_far, wrong_so_far = (sums_so_far / counts_so_far).T
        columns = {
            "epoch": epochs,
            "lr": lr,
            "alpha": sums_so_far.sum(1) / counts_so_far.sum(1),
            "snr": right_so_far / wrong_so_far,
            "mean": sums.sum(1) / counts.sum(1),
            "mean_right": mean_right,
            "mean_wrong": mean_wrong,
        }
    return pd.DataFrame(columns)


@figure(
    "sample-weights",
    "How hard the loss pulls, and at which labels",
    Layer("line", "epoch", "value", color="method", dash="labels"),
    subject=first_seeds,
    reading=(
        "A loss whose α_t starts near zero or falls to it underfits; an snr above one means that"
        " right labels pull harder than wrong ones."
    ),
    paper="curriculum paper, Fig. 1, Table 5, App. C.2",
    axes=("epoch", "sample weight w, or ratio"),
    panel="panel",
    share_y=False,
)
def weight_figure(runs: Runs) -> pd.DataFrame:
    parts = (
        ("alpha", "α_t: mean weight so far", ALL),
        ("mean_right", "mean weight of the epoch", RIGHT),
        ("mean_wrong", "mean weight of the epoch", WRONG),
        ("snr", "snr: right to wrong, so far", ALL),
    )

    def table_of(run: RunFolder) -> pd.DataFrame:
        table = sample_weights(run)
        curves = [
            table[["epoch"]].assign(panel=panel, labels=labels, value=table[c])
            for c, panel, labels in parts
        ]
        return pd.concat(curves).dropna(subset="value")

    return stack(each(runs, table_of), needs=RECORDED)


@figure(
    "attention",
    "How much noise attention trusts its labels",
    Layer("area", "trust", "density", color="labels"),
    subject=first_seeds,
    reading=(
        "In the NAL paper τ is alike for all samples at first and then rises to one for right"
        " labels only; if the two do not part, attention does not separate wrong labels from right"
        " ones."
    ),
    paper="NAL paper, Figs. 11-13",
    axes=("attention τ", "density"),
    panel="panel",
    share_y=False,
)
def trust_figure(runs: Runs) -> pd.DataFrame:
    tables = each(runs, lambda run: distributions(run, "trust", edges=np.linspace(0, 1, BINS + 1)))
    return _with_panels(stack(tables, needs=f"a run of `nal` with {RECORDED}"), "epoch", "epoch")


def residuals(run: RunFolder) -> dict[str, Array]:
    """Return eᵀΣ⁻¹e of every training row, e = τy − μ, at the last checkpoint: with Σ = I and with
    the learned Σ_θ.

    This is the part of LN paper, Eq. 5 that depends on the label. Inputs are not augmented. A run
    with Σ = I has no Σ_θ.
    """
    result = run.result()
    if not isinstance(loss := result.run.loss, LN):
        raise NotARun(
            f"Expected a Logistic-Normal likelihood in {run.folder}, got `{loss}`. Use the method"
            " `ln`."
        )

    def compute(rows: torch.Tensor, outs: list[Output]) -> torch.Tensor:
        error = loss.error(outs[0].logits, result.run.labels(rows))
        plain = error.square().sum(1)
        spread = loss.distribution(outs[0])
        with_error, without = (
            negative_log_normal(e, spread.lam, spread.root, spread.scale)
            for e in (error, torch.zeros_like(error))
        )
        return torch.stack([plain, 2 * (with_error - without)], 1)

    plain, learned = per_row(result.run, compute).cpu().numpy().T
    return {"Σ = I": plain} if loss.covariance == "identity" else {"Σ = I": plain, "Σ_θ": learned}


def residual_histograms(
    residuals: Mapping[str, Array], groups: Mapping[str, Array]
) -> pd.DataFrame:
    """Return histograms of :func:`residuals` with bins of equal width on a logarithmic axis, the
    same for each Σ.
    """
    logs = {name: np.log10(np.maximum(values, 1e-12)) for name, values in residuals.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(logs.values())), BINS)
    tables = {name: histogram(values, groups, edges, "log10") for name, values in logs.items()}
    table = stack(tables, "covariance")
    return table.assign(residual=10 ** table["log10"])


@figure(
    "residuals",
    "Residuals of the Logistic-Normal likelihood",
    Layer("area", "residual", "density", color="labels"),
    subject=first_seeds,
    reading=(
        "With Σ = I wrong labels that keep a large residual were not fitted; with the learned Σ_θ"
        " large residuals are meant to count less, and small ones more."
    ),
    paper="LN paper, Figs. 6, 7",
    axes=("(y − μ)ᵀ Σ⁻¹ (y − μ)", "density of its logarithm"),
    panel="panel",
    log_x=True,
    share_y=False,
)
def residual_figure(runs: Runs) -> pd.DataFrame:
    of_ln = {name: run for name, run in runs.items() if str(run.config["method"]).startswith("ln:")}
    needs = "a run of `ln`, and one of `ln-identity` to compare"
    tables = each(
        of_ln, lambda run: residual_histograms(residuals(run), run.label_groups), needs=needs
    )
    return _with_panels(stack(tables), "evaluated with", "covariance")
