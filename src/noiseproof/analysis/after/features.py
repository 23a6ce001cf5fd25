"""How a trained model represents its inputs: a map of its features, and its decision boundary in
the plane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from noiseproof.analysis.after.predictions import part_labels
from noiseproof.analysis.figures import READABLE, Layer, Subjects, each, figure, stack
from noiseproof.analysis.runs import RIGHT, WRONG, Array, Part, RunFolder, Runs
from noiseproof.core.checks import check_count, check_number
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.models.classifier import Classifier
from noiseproof.strategies.sweeps import evaluating, predict_log_probs

ROWS = 500  # of a map on a page: t-SNE takes seconds, and the dots stay apart


@torch.no_grad()
def penultimate_features(model: Classifier, x: Tensor, *, batch_size: int = 1024) -> Tensor:
    """Return the inputs (N, num_features) of the head of ``model`` for inputs ``x`` (N, …), in
    evaluation mode.
    """
    if not hasattr(model, "backbone"):
        raise ValueError(
            "Expected a model with a backbone, got one without. A Gaussian process has no features:"
            " leave its run out."
        )
    with evaluating([model]):
        return torch.cat([model.backbone(part) for part in torch.split(x, batch_size)])


def tsne(features: ArrayLike, *, perplexity: float = 30.0, seed: int = 0) -> Array:
    """Return a map of ``features`` (N, F) in the plane, (N, 2), that keeps neighbours together (van
    der Maaten & Hinton 2008).

    More than 50 features are first reduced to their 50 principal components. ``perplexity`` is
    lowered for few rows.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    h = np.asarray(features, dtype=np.float64)
    if h.ndim != 2 or len(h) < 4:
        raise ValueError(f"Expected features (N, F) of at least 4 rows, got {h.shape}.")
    check_number("perplexity", perplexity, "(0, inf)")
    if min(h.shape) > 50:
        h = PCA(50, svd_solver="full").fit_transform(h)
    if not h.std(0).any():  # a model that has learned nothing may map all rows to the same features
        return np.zeros((len(h), 2))
    start = "pca" if h.shape[1] > 1 else "random"
    largest = (len(h) - 1) / 3  # that t-SNE takes
    embedding = TSNE(2, perplexity=min(perplexity, largest), init=start, random_state=seed)
    positions: Array = embedding.fit_transform(h)
    return positions


def feature_map(
    run: RunFolder,
    part: Part = "train",
    *,
    rows: int = 2000,
    perplexity: float = 30.0,
    seed: int = 0,
) -> pd.DataFrame:
    """t-SNE of the penultimate features of up to ``rows`` rows, drawn with ``seed`` (SLN paper,
    Fig. 7).

    Returns ``x``, ``y``, ``row``, the ``given`` label, ``label`` (right, wrong or unknown) and the
    true ``class`` (the given one if it is not known) of each row.
    """
    result = run.result()
    x = run.inputs(part)
    chosen = (
        shuffled(len(x), derive_generator(seed, 0))[: check_count("rows", rows, 4)].sort().values
    )
    inputs = result.run.fetch(x, chosen, result.run.normalise)
    features = penultimate_features(result.models[0], inputs)  # type: ignore[arg-type]
    positions = tsne(features.cpu(), perplexity=perplexity, seed=seed)
    index = chosen.numpy()
    given, clean = part_labels(run, part)
    given = given[index]
    columns: dict[str, Any] = {"x": positions[:, 0], "y": positions[:, 1], "row": index}
    columns["given"] = _named(given, run.classes)
    if clean is None:
        columns |= {"label": "unknown", "class": columns["given"]}
    else:
        clean = clean[index]
        columns |= {
            "label": np.where(given == clean, RIGHT, WRONG),
            "class": _named(clean, run.classes),
        }
    return pd.DataFrame(columns)


def _named(labels: Array, classes: Sequence[str]) -> pd.Series[Any]:
    """Return the names of the classes of ``labels``, ordered as the classes are."""
    names = [*classes, "none of these"]  # −1 is the last one
    return pd.Series(pd.Categorical(np.array(names, object)[labels], categories=names))


def feature_maps(runs: Runs) -> Subjects[pd.DataFrame]:
    """Return the feature maps of runs whose data and weights can be read."""
    return each(runs, lambda run: feature_map(run, rows=ROWS), needs=READABLE)


@figure(
    "features",
    "Penultimate features, t-SNE",
    Layer("points", "x", "y", color="class"),
    subject=feature_maps,
    reading=(
        "Each dot is a row in the colour of its true class: the features separate classes that form"
        " clouds of one colour; distances between clouds mean little."
    ),
    paper="SLN paper, Fig. 7",
    panel="method",
    share_y=False,
)
def feature_figure(maps: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    return stack(maps)


# In the plane


def plane_grid(points: ArrayLike, *, resolution: int = 60, border: float = 0.15) -> Array:
    """Return a grid over the rectangle of ``points`` (N, 2), widened by ``border`` of its sides:
    (resolution², 2).
    """
    x = np.asarray(points, dtype=np.float64)
    check_count("resolution", resolution, 2)
    low = x.min(0)
    high = x.max(0)
    margin = border * np.maximum(high - low, 1e-9)
    first, second = np.linspace(low - margin, high + margin, resolution).T
    return np.stack(np.meshgrid(first, second, indexing="ij"), -1).reshape(-1, 2)


def decision_boundary(run: RunFolder, *, resolution: int = 60) -> pd.DataFrame:
    """Return the predicted probability of the second class over the plane, and the training points
    (LN paper, Fig. 3).

    Rows of the grid have a ``probability``, rows of points a ``given`` label and ``label`` (right
    or wrong).
    """
    data = run.task.train
    points = data.x
    if (
        not isinstance(points, Tensor)
        or points.dim() != 2
        or points.shape[1] != 2
        or run.num_classes != 2
    ):
        raise ValueError(
            f"Expected two classes of points in the plane, got {run.num_classes} classes of"
            f" {run.dataset}."
        )
    state = run.result().run
    grid = plane_grid(points.cpu(), resolution=resolution)
    # (resolution², 2)
    p = predict_log_probs(state, torch.as_tensor(grid).float()).exp().cpu().numpy()
    background = pd.DataFrame(
        {"x1": grid[:, 0], "x2": grid[:, 1], "probability": p[:, 1].astype(np.float64)}
    )
    x = points.cpu().double().numpy()
    given = data.given.cpu().numpy()
    right = np.ones(len(given), bool) if data.clean is None else given == data.clean.cpu().numpy()
    at = {"x1": x[:, 0], "x2": x[:, 1], "given": _named(given, run.classes)}
    return pd.concat(
        [background, pd.DataFrame(at | {"label": np.where(right, RIGHT, WRONG)})], ignore_index=True
    )


def boundaries(runs: Runs) -> Subjects[pd.DataFrame]:
    """Return the decision boundaries of runs on points in the plane."""
    return Subjects(each(runs, decision_boundary))  # most runs have none: no note on them


@figure(
    "boundary",
    "Decision boundary",
    Layer("heat", "x1", "x2", z="probability", label="probability of the second class"),
    Layer("points", "x1", "x2", color="given"),
    subject=boundaries,
    reading=(
        "The colour is the probability of the second class: a boundary that bends around single"
        " points has memorised their labels."
    ),
    paper="LN paper, Fig. 3",
    panel="method",
    equal=True,
)
def boundary_figure(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    return stack(tables, needs="a run on points in the plane: --dataset two-moons or circles")
