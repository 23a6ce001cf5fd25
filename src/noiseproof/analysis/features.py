"""How a trained model sees its inputs: a map of its features, and its decision boundary in the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from noiseproof.analysis.figure import Figure, Layer, Missing
from noiseproof.analysis.predictions import STAGE, part_labels, stacked
from noiseproof.core.checks import check_count, check_number
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.models.classifier import Classifier
from noiseproof.strategies.sweeps import evaluating, predict_log_probs

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.analysis.runs import Part, RunFolder

Array: TypeAlias = NDArray[Any]


@torch.no_grad()
def penultimate_features(model: Classifier, x: Tensor, *, batch_size: int = 1024) -> Tensor:
    """What the head of ``model`` sees of inputs ``x`` (N, …), in evaluation mode: (N, num_features)."""
    if not hasattr(model, "backbone"):
        raise ValueError(
            "Expected a model with a backbone, whose features a head sees, got one without. "
            "A Gaussian process has no features: leave its run out."
        )
    with evaluating([model]):
        return torch.cat([model.backbone(part) for part in torch.split(x, batch_size)])


def tsne(features: ArrayLike, *, perplexity: float = 30.0, seed: int = 0) -> Array:
    """A map of ``features`` (N, F) in the plane, (N, 2), that keeps neighbours together (van der Maaten & Hinton 2008).

    More than 50 features are first reduced to their 50 principal components. ``perplexity``, about the number of
    neighbours that count, is lowered for few rows. Rows that are all the same fall onto one point.
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    h = np.asarray(features, dtype=np.float64)
    if h.ndim != 2 or len(h) < 4:
        raise ValueError(f"Expected features (N, F) of at least 4 rows, got {h.shape}.")
    check_number("perplexity", perplexity, "(0, inf)", 0)
    if min(h.shape) > 50:
        h = PCA(50, svd_solver="full").fit_transform(h)
    if not h.std(0).any():  # a model that has learnt nothing may see no difference between any two
        return np.zeros((len(h), 2))
    placed: Array = TSNE(
        2, perplexity=min(perplexity, (len(h) - 1) / 3), init="pca" if h.shape[1] > 1 else "random", random_state=seed
    ).fit_transform(h)
    return placed


def feature_map(
    run: RunFolder, part: Part = "train", *, rows: int = 2000, perplexity: float = 30.0, seed: int = 0
) -> pd.DataFrame:
    """t-SNE of the penultimate features of up to ``rows`` rows, drawn with ``seed`` (SLN paper, Fig. 7).

    One row each: ``x``, ``y``, its ``row``, its ``given`` label, ``label`` (right, wrong or unknown) and its true
    ``class`` (the given one where the truth is not known).
    """
    import pandas as pd

    result = run.result()
    x = run.inputs(part)
    chosen = shuffled(len(x), derive_generator(seed, 0))[: check_count("rows", rows, 4)].sort().values
    features = penultimate_features(result.models[0], result.run.fetch(x, chosen, result.run.normalise))  # type: ignore[arg-type]
    placed = tsne(features.cpu(), perplexity=perplexity, seed=seed)
    given, clean = (None if column is None else column[chosen.numpy()] for column in part_labels(run, part))
    assert given is not None
    label = np.full(len(given), "unknown", object) if clean is None else np.where(given == clean, "right", "wrong")
    columns = {"x": placed[:, 0], "y": placed[:, 1], "row": chosen.numpy()}
    given_class, true_class = _named(given, run.classes), _named(given if clean is None else clean, run.classes)
    return pd.DataFrame(columns | {"given": given_class, "label": label, "class": true_class})


def _named(labels: Array, classes: Sequence[str]) -> pd.Series[Any]:
    """Labels by the names of their classes, which keep their order."""
    import pandas as pd

    names = [*classes, "none of these"]  # of −1, too
    return pd.Series(pd.Categorical(np.array(names, object)[labels], categories=names))


def feature_figure(maps: Mapping[str, pd.DataFrame]) -> Figure:
    """Maps of the penultimate features, by run (SLN paper, Fig. 7)."""
    return Figure(
        "features",
        "Penultimate features, t-SNE",
        "Each dot is a row in the colour of its true class: clouds of one colour are classes that the features tell "
        "apart; distances between clouds mean little.",
        "SLN paper, Fig. 7",
        stacked(maps),
        (Layer("points", "x", "y", color="class"),),
        "",
        "",
        panel="method",
        share_y=False,
        stage=STAGE,
    )


# In the plane


def plane_grid(points: ArrayLike, *, resolution: int = 60, border: float = 0.15) -> Array:
    """A grid over the rectangle of ``points`` (N, 2), wider by ``border`` of its sides: (resolution², 2)."""
    x = np.asarray(points, dtype=np.float64)
    check_count("resolution", resolution, 2)
    low, high = x.min(0), x.max(0)
    wider = border * np.maximum(high - low, 1e-9)
    first, second = np.linspace(low - wider, high + wider, resolution).T
    return np.stack(np.meshgrid(first, second, indexing="ij"), -1).reshape(-1, 2)


def decision_boundary(run: RunFolder, *, resolution: int = 60) -> pd.DataFrame:
    """The predicted probability of the second class over the plane, and the training points (LN paper, Fig. 3).

    Rows of the grid have a ``probability``, rows of points a ``given`` label and ``label`` (right or wrong).
    """
    import pandas as pd

    data = run.task.train
    if not is_in_the_plane(run):
        raise ValueError(
            f"Expected two classes of points in the plane, got {run.num_classes} classes of {run.dataset}."
        )
    state, points = run.result().run, torch.as_tensor(data.x)
    grid = plane_grid(points.cpu(), resolution=resolution)
    p = predict_log_probs(state, torch.as_tensor(grid).float()).exp().cpu().numpy()  # (resolution², 2)
    over = pd.DataFrame({"x1": grid[:, 0], "x2": grid[:, 1], "probability": p[:, 1].astype(np.float64)})
    x, given = points.cpu().double().numpy(), data.given.cpu().numpy()
    right = np.ones(len(given), bool) if data.clean is None else given == data.clean.cpu().numpy()
    at = {"x1": x[:, 0], "x2": x[:, 1], "given": _named(given, run.classes)}
    return pd.concat([over, pd.DataFrame(at | {"label": np.where(right, "right", "wrong")})], ignore_index=True)


def is_in_the_plane(run: RunFolder) -> bool:
    """Whether a run's rows are points with two coordinates, of two classes: two-moons or circles, say."""
    x = run.task.train.x
    return isinstance(x, Tensor) and x.dim() == 2 and x.shape[1] == 2 and run.num_classes == 2


def boundary_figure(tables: Mapping[str, pd.DataFrame]) -> Figure | Missing:
    """Decision boundaries in the plane, by run (LN paper, Fig. 3)."""
    title, paper = "Decision boundary", "LN paper, Fig. 3"
    if not tables:
        return Missing("boundary", title, paper, "a run on points in the plane: --dataset two-moons or circles", STAGE)
    return Figure(
        "boundary",
        title,
        "The colour is the probability of the second class: a boundary that bends around single points has memorised "
        "their labels.",
        paper,
        stacked(tables),
        (
            Layer("heat", "x1", "x2", z="probability", label="probability of the second class"),
            Layer("points", "x1", "x2", color="given"),
        ),
        "",
        "",
        panel="method",
        equal=True,
        stage=STAGE,
    )
