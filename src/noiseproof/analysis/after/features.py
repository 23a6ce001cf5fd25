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
from noiseproof.analysis.runs import RIGHT, WRONG, Array, RunFolder, Runs
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.models.classifier import Classifier
from noiseproof.strategies.sweeps import evaluating, predict_log_probs

ROWS = 500  # of a map: t-SNE takes seconds, and the dots stay apart
RESOLUTION = 60  # points along each side of a decision boundary's grid


@torch.no_grad()
def penultimate_features(model: Classifier, x: Tensor) -> Tensor:
    """Return the inputs (N, num_features) of the head of ``model`` for inputs ``x`` (N, …), in
    evaluation mode.
    """
    if not hasattr(model, "backbone"):
        raise ValueError(
            "Expected a model with a backbone, got one without. A Gaussian process has no features:"
            " leave its run out."
        )
    with evaluating([model]):
        features: Tensor = model.backbone(x)
    return features


def tsne(features: ArrayLike) -> Array:
    """Return a map of ``features`` (N, F) in the plane, (N, 2), that keeps neighbours together (van
    der Maaten & Hinton 2008).

    More than 50 features are first reduced to their 50 principal components. The perplexity is 30,
    or less for few rows.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    h = np.asarray(features, dtype=np.float64)
    if h.ndim != 2 or len(h) < 4:
        raise ValueError(f"Expected features (N, F) of at least 4 rows, got {h.shape}.")
    if min(h.shape) > 50:
        h = PCA(50, svd_solver="full").fit_transform(h)
    if not h.std(0).any():  # a model that has learned nothing may map all rows to the same features
        return np.zeros((len(h), 2))
    start = "pca" if h.shape[1] > 1 else "random"
    largest = (len(h) - 1) / 3  # that t-SNE takes
    embedding = TSNE(2, perplexity=min(30.0, largest), init=start, random_state=0)
    positions: Array = embedding.fit_transform(h)
    return positions


def feature_map(run: RunFolder) -> pd.DataFrame:
    """Return a t-SNE map of the penultimate features of 500 training rows, drawn at random (SLN
    paper, Fig. 7).

    Returns ``x``, ``y``, ``row``, the ``given`` label, ``label`` (right, wrong or unknown) and the
    true ``class`` (the given one if it is not known) of each row.
    """
    result = run.result()
    x = run.inputs("train")
    chosen = shuffled(len(x), derive_generator(0, 0))[:ROWS].sort().values
    inputs = result.run.fetch(x, chosen, result.run.normalise)
    features = penultimate_features(result.models[0], inputs)  # type: ignore[arg-type]
    positions = tsne(features.cpu())
    index = chosen.numpy()
    given, clean = part_labels(run, "train")
    given = given[index]
    table = pd.DataFrame({"x": positions[:, 0], "y": positions[:, 1], "row": index})
    table["given"] = _named(given, run.classes)
    if clean is None:
        return table.assign(label="unknown", **{"class": table["given"]})
    clean = clean[index]
    table["label"] = np.where(given == clean, RIGHT, WRONG)
    table["class"] = _named(clean, run.classes)
    return table


def _named(labels: Array, classes: Sequence[str]) -> pd.Series[Any]:
    """Return the names of the classes of ``labels``, ordered as the classes are."""
    names = [*classes, "none of these"]  # −1 is the last one
    return pd.Series(pd.Categorical(np.array(names, object)[labels], categories=names))


def feature_maps(runs: Runs) -> Subjects[pd.DataFrame]:
    """Return the feature maps of runs whose data and weights can be read."""
    return each(runs, feature_map, needs=READABLE)


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


def decision_boundary(run: RunFolder) -> pd.DataFrame:
    """Return the predicted probability of the second class over the plane, and the training points
    (LN paper, Fig. 3).

    Rows of the grid have a ``probability``, rows of points a ``given`` label and ``label`` (right
    or wrong).
    """
    data = run.task.train
    points = data.x
    is_plane = isinstance(points, Tensor) and points.shape[1:] == (2,)
    if not is_plane or run.num_classes != 2:
        raise ValueError(
            f"Expected two classes of points in the plane, got {run.num_classes} classes of"
            f" {run.dataset}."
        )
    x = torch.as_tensor(points).cpu().double().numpy()
    grid = _grid_around(x)
    p = predict_log_probs(run.result().run, torch.as_tensor(grid).float()).exp().cpu().numpy()
    background = pd.DataFrame(
        {"x1": grid[:, 0], "x2": grid[:, 1], "probability": p[:, 1].astype(np.float64)}
    )
    given = data.given.cpu().numpy()
    right = np.ones(len(given), bool) if data.clean is None else given == data.clean.cpu().numpy()
    at = {"x1": x[:, 0], "x2": x[:, 1], "given": _named(given, run.classes)}
    foreground = pd.DataFrame({**at, "label": np.where(right, RIGHT, WRONG)})
    return pd.concat([background, foreground], ignore_index=True)


def _grid_around(x: Array) -> Array:
    """Return a grid over the rectangle of points ``x`` (N, 2), widened by 15 % of its sides."""
    low = x.min(0)
    high = x.max(0)
    border = 0.15 * np.maximum(high - low, 1e-9)
    first, second = np.linspace(low - border, high + border, RESOLUTION).T
    return np.stack(np.meshgrid(first, second, indexing="ij"), -1).reshape(-1, 2)


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
