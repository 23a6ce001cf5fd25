"""The Logistic-Normal likelihood (LN paper): attenuation of large residuals, and its density on the
simplex.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from noiseproof.analysis.before.losses import Start, starting_losses
from noiseproof.analysis.figures import Layer, figure
from noiseproof.losses.logistic_normal import LogisticNormal, softmax_centred

# the Logistic-Normal distribution of the simplex figure, and the points along its axes
MEAN = (0.5, 0.3)
ROOT = (0.7, -0.5)
LAM = 0.4
POINTS = 81


def attenuation(lams: Sequence[float]) -> pd.DataFrame:
    """Return LN's ``loss`` term r²/σ² and the size of its ``gradient`` r/σ² over the ``residual``
    r, at the best variance.

    In one dimension the best variance that Σ^½ = c² + λ reaches is σ² = max(λ², r²) (LN paper,
    section 3.1 and B.4).
    """
    r = np.linspace(0, 3, 121)
    tables = []
    for lam in lams:
        variance = np.maximum(lam**2, r**2)
        columns = {"residual": r, "loss": r**2 / variance, "gradient": r / variance}
        tables.append(pd.DataFrame({"lambda": lam, **columns}))
    return pd.concat(tables, ignore_index=True)


@figure(
    "ln-attenuation",
    "How the Logistic-Normal likelihood attenuates large residuals",
    Layer("line", "residual", "value", color="λ"),
    subject=starting_losses,
    reading=(
        "Up to a residual of λ the loss is a squared error; beyond it the learned variance keeps"
        " the loss at one, and the larger the residual, the smaller its gradient."
    ),
    paper="LN paper, Fig. 2",
    axes=("residual r = |y − μ|", "at the best variance"),
    panel="quantity",
    share_y=False,
)
def attenuation_figure(start: Start) -> pd.DataFrame | None:
    if not start.logistic_normal:
        return None
    lams = sorted(
        {0.1, 0.5, 1.0, *(float(loss.hyperparameters["lam"]) for loss in start.logistic_normal)}
    )
    table = attenuation(lams).melt(
        ["lambda", "residual"], ["loss", "gradient"], "quantity", "value"
    )
    table["λ"] = table["lambda"].map("λ = {:g}".format)
    titles = {"loss": "label-dependent loss r²/σ²", "gradient": "gradient |∂L/∂μ| = r/σ²"}
    return table.assign(quantity=table["quantity"].map(titles))


def simplex_density() -> pd.DataFrame:
    """Return the ``density`` of a Logistic-Normal of three classes, in logit space and on the
    simplex (LN paper, Eq. 4).

    ``x`` and ``y`` are the logits; on the simplex they place (p_1, p_2, p_3) in a triangle whose
    corners are the classes: x = p_2 + p_3/2, y = p_3·√3/2. The density there is that of p over the
    area of (p_1, p_2).
    """
    mean = torch.tensor(MEAN, dtype=torch.float64)
    root = torch.tensor(ROOT, dtype=torch.float64)
    distribution = LogisticNormal(mean, root=root, lam=LAM)
    reach = 4 * (LAM + float(root @ root))  # standard deviations along the root
    side = torch.linspace(-reach, reach, POINTS, dtype=torch.float64)
    z = torch.cartesian_prod(mean[0] + side, mean[1] + side)  # (POINTS², 2)
    probs = softmax_centred(z)
    # p(z) = p(q)·|∂q/∂z|, and the determinant of the centred softmax is the product of all
    # probabilities.
    flat = (distribution.log_prob(probs) + probs.log().sum(-1)).exp()
    unit = torch.linspace(0, 1, POINTS, dtype=torch.float64)
    x, p3 = torch.cartesian_prod(unit, unit).T
    p2 = x - p3 / 2
    p = torch.stack([1 - p2 - p3, p2, p3], -1)
    inside = (p > 1e-9).all(-1)
    density = torch.full_like(x, math.nan)
    density[inside] = distribution.log_prob(p[inside]).exp()
    columns = {"x": z[:, 0], "y": z[:, 1], "density": flat}
    logits = pd.DataFrame(columns).assign(space="logits")
    columns = {"x": x, "y": math.sqrt(0.75) * p3, "density": density}
    simplex = pd.DataFrame(columns).assign(space="simplex")
    return pd.concat([logits, simplex], ignore_index=True)


@figure(
    "simplex",
    "A normal distribution of logits is a Logistic-Normal one of probabilities",
    Layer("contour", "x", "y", z="share", label="density over its maximum"),
    subject=starting_losses,
    reading=(
        "The centred softmax maps the ellipse of the logits to the triangle of three classes, so"
        " that regression noise becomes label noise; colours are each density over its maximum."
    ),
    paper="LN paper, Fig. 1",
    axes=("first coordinate", "second coordinate"),
    panel="panel",
    share_y=False,
    equal=True,
)
def simplex_figure(start: Start) -> pd.DataFrame | None:
    if not start.logistic_normal:
        return None
    table = simplex_density()
    titles = {"logits": "logits z_1, z_2", "simplex": "probabilities, a class at each corner"}
    table["panel"] = table["space"].map(titles)
    return table.assign(share=table["density"] / table.groupby("panel")["density"].transform("max"))
