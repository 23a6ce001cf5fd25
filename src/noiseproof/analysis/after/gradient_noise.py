"""The noise on the gradients of a trained model, by sample (SLN paper, Propositions 1 and 3)."""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

from noiseproof.analysis.before.label_noise import total_noise, weight_noise
from noiseproof.analysis.figures import READABLE, Layer, each, figure, first_seeds, stack
from noiseproof.analysis.runs import NotARun, RunFolder, Runs
from noiseproof.data.images import read_batches
from noiseproof.losses.gaussian import LN

PASSES = 640  # backward passes for a run: rows times classes
LABELS, LOGITS = "noise on labels (SLN), σ_y = 1", "noise on the gradient in logits, σ_f = 1"


def gradient_noise(run: RunFolder, *, rows: int | None = None) -> pd.DataFrame:
    """The total ``deviation`` of the noise on a sample's gradient, √tr M, by ``kind``, ``confidence`` and ``label``.

    Of ``rows`` training rows, evenly spread, at the last checkpoint of the first model.
    """
    result = run.result()
    if isinstance(result.run.loss, LN):
        raise NotARun(f"Expected a run whose logits are log-odds in {run.folder}, got `{result.run.loss}`.")
    data, model = result.run.data, result.models[0].eval().requires_grad_(True)
    count = min(len(data), max(8, PASSES // data.num_classes) if rows is None else rows)
    index = torch.linspace(0, len(data) - 1, count).round().long()
    table = []
    raw: Tensor = next(read_batches(data.x, [index]))
    for row, x in zip(index.tolist(), result.run.prepare(raw, result.run.normalise), strict=True):
        with torch.no_grad():
            confidence = float(result.run.loss.scores(model(x[None])).softmax(1).max())
        label = "unknown" if run.is_flipped is None else "wrong" if run.is_flipped[row] else "right"
        for kind, on in ((LABELS, "labels"), (LOGITS, "logits")):
            deviation = total_noise(weight_noise(model, x, on=on))  # type: ignore[arg-type]
            table.append({"row": row, "kind": kind, "confidence": confidence, "label": label, "deviation": deviation})
    return pd.DataFrame(table)


@figure(
    "gradient-noise",
    "The noise on the gradient of each sample",
    Layer("points", "confidence", "deviation", color="method"),
    subject=first_seeds,
    reading="Stochastic label noise moves the weights more where the model is certain, and where its outputs change "
    "sharply with the weights; noise on the gradient in the logits depends on the second alone.",
    paper="SLN paper, Propositions 1 and 3, section 3.2",
    axes=("largest predicted probability", "standard deviation over all weights, √tr M"),
    panel="kind",
    share_y=False,
    log_y=True,
)
def gradient_noise_figure(runs: Runs) -> pd.DataFrame:
    return stack(each(runs, gradient_noise, needs=READABLE))
