"""What a trained model says of each row, as a table: prediction, margin, and what its head or its targets add."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from noiseproof.analysis.after.predictions import corrected_labels, part_labels
from noiseproof.analysis.runs import Part, RunFolder
from noiseproof.core.margin import margin
from noiseproof.core.output import Output
from noiseproof.strategies import per_row
from noiseproof.strategies.memory import EstimatedTargets
from noiseproof.strategies.sweeps import log_probs


def row_table(run: RunFolder, part: Part = "train") -> pd.DataFrame:
    """A row for each row of a part, at the last checkpoint, not augmented; averages over models where there are two.

    ``row`` is the number in the dataset, ``given_label`` and ``clean_label`` (if known) are names of classes, then
    ``predicted_label``, its probability ``confidence``, the ``margin`` Δ of the given label, and of some methods:

    - ``trust``: NAL's attention τ, the share of a label that the prediction has to explain.
    - ``variance``: that of the logits which the head of LN or Het predicts, their mean.
    - ``target_label``: the label that the method corrected a training label to, and ``target_CLASS``, the
      probabilities of the targets that NAL and SELC estimate.
    """
    given, clean = part_labels(run, part)
    result = run.result()
    loss, y = result.run.loss, torch.from_numpy(given).to(result.run.device)

    def compute(rows: Tensor, outs: list[Output]) -> Tensor:  # (b, K + 3)
        columns = [log_probs(loss, outs).double().exp()]
        margins = [margin(loss.scores(out), y[rows]) for out in outs]
        taus = [out.attention.sigmoid() for out in outs if out.attention is not None]
        variances = [variance.mean(1) for out in outs if (variance := loss.variance(out)) is not None]
        for each in (margins, taus, variances):
            mean = torch.stack(each).double().mean(0) if each else torch.full_like(columns[0][:, 0], torch.nan)
            columns.append(mean[:, None])
        return torch.cat(columns, 1)

    values = per_row(result.run, compute, run.inputs(part)).cpu().numpy()
    p, (margins, trust, variance) = values[:, :-3], values[:, -3:].T
    names = np.array(run.classes, dtype=object)
    index = run.labels.get({"train": "index", "validation": "validation.index"}.get(part, ""))
    table = {"row": np.arange(len(given)) if index is None else index.numpy(), "given_label": names[given]}
    if clean is not None and part != "test":
        table["clean_label"] = np.where(clean >= 0, names[clean], "")  # none of the classes (open-set noise)
    predicted = p.argmax(1)
    known = np.append(names, "")[np.minimum(predicted, len(names))]  # LN's dummy class has no name
    table |= {"predicted_label": known, "confidence": p.max(1), "margin": margins}
    table |= {name: column for name, column in (("trust", trust), ("variance", variance)) if np.isfinite(column).any()}
    if part == "train":
        corrected = corrected_labels(result.strategies, run.task.train.labels.cpu())
        table |= {} if corrected is None else {"target_label": names[corrected]}
        targets = next((s.table.mean(1).cpu() for s in result.strategies if isinstance(s, EstimatedTargets)), None)
        if targets is not None:
            table |= {f"target_{name}": column for name, column in zip(names, targets.numpy().T, strict=True)}
    return pd.DataFrame(table)
