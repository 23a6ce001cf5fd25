"""Instance-dependent noise: Chen et al. 2020 (deterministic) and Xia et al. 2020 (random)."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from noiseproof.core.checks import number
from noiseproof.core.probs import check_probabilities
from noiseproof.core.random import uniform
from noiseproof.noise.base import NoiseModel, rate_field, register, rounded_floor, rows_by_class

ROWS_AT_ONCE = 2048  # of features held in float64


@register("chen")
@dataclass(frozen=True)
class Chen(NoiseModel):
    """The labels that a model trained on clean data doubts most (Chen et al. 2020, Algorithm 1; SLN
    paper, 4.1).

    ``features`` are the predictions S̄ (N, K) averaged over that training's epochs
    (``noiseproof.train.instance.averaged_predictions``). With N(i) = max_{j≠y_i} S̄_ij, the ⌊rN⌋
    rows with the largest N(i) get the class that attains it; nothing is drawn. Ties: the smaller
    class, the earlier row.
    """

    rate: float = rate_field()
    needs = "predictions"
    min_classes = 2

    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> Tensor:
        probs = check_probabilities("features", features, num_classes)
        doubt, rival = probs.scatter(1, clean[:, None], -1).max(1)  # (N,)
        flipped = doubt.argsort(descending=True, stable=True)[
            : rounded_floor(self.rate * len(clean))
        ]
        given = clean.clone()
        given[flipped] = rival[flipped]
        return given


@register("xia")
@dataclass(frozen=True)
class Xia(NoiseModel):
    """Part-dependent noise: which wrong label a sample gets depends on its ``features`` (Xia et al.
    2020, Alg. 2).

    q_i ~ N(r, sd²) truncated to [0, 1]; W_y ∈ R^{d×K} standard normal, one for each class;
    P_i = q_i·softmax(scale·x_i W_y without y), P_i,y = 1 − q_i; the label is drawn from P_i. Order
    of draws: the q of all rows, W_0 … W_{K−1}, one number per row for its label.

    Args:
        rate: mean flip rate r, before truncation: r = 0 with sd = 0.1 gives 8 %.
        scale: factor on the features. The released code uses raw 0 … 255 pixels, whose scores
            differ by thousands, so that each image has one wrong class (CIFAR, K = 10: probability
            above 0.99 for 99.9 % of the images; with ``scale`` = 1/255 for 73 %, with 1/25500 for
            none).
        sd: standard deviation of the flip rates.
    """

    rate: float = rate_field()
    scale: float = number("[0, inf)", 1.0)
    sd: float = number("[0, inf)", 0.1)
    needs = "inputs"
    min_classes = 2

    def draw(
        self, clean: Tensor, num_classes: int, generator: Generator | None, features: Tensor | None
    ) -> Tensor:
        assert features is not None
        flip = self._flip_rates(uniform(generator, len(clean)))
        scores = self._scores(features.detach().flatten(1), clean, num_classes, generator)
        probs = scores.scatter_(1, clean[:, None], -torch.inf).softmax(1).mul_(flip[:, None])
        running = probs.scatter_(1, clean[:, None], 1 - flip[:, None]).cumsum(1)
        u = uniform(generator, len(clean)) * running[:, -1]
        return torch.searchsorted(running, u[:, None], right=True).squeeze(1)

    def _flip_rates(self, u: Tensor) -> Tensor:
        """Draw from N(r, sd²) truncated to [0, 1], by its inverse distribution function."""
        if self.sd == 0:
            return torch.full_like(u, self.rate)
        low, high = torch.special.ndtr(
            (torch.tensor([0.0, 1.0], dtype=torch.float64) - self.rate) / self.sd
        )
        rates: Tensor = self.rate + self.sd * torch.special.ndtri(low + u * (high - low))
        return rates.clamp_(0, 1)

    def _scores(
        self, x: Tensor, clean: Tensor, num_classes: int, generator: Generator | None
    ) -> Tensor:
        """Return scale·x_i W_{y_i}, (N, K) float64, with the W of one class and few rows of x in
        memory at a time.
        """
        scores = torch.empty(len(x), num_classes, dtype=torch.float64)
        for of_class in rows_by_class(clean, num_classes):
            # Drawn for classes without samples, too, so that W of the others does not depend on
            # them.
            W = torch.special.ndtri(
                uniform(generator, x.shape[1], num_classes).clamp_(min=2.0**-54)
            )
            for rows in torch.split(of_class, ROWS_AT_ONCE):
                part = self.scale * (x[rows.to(x.device)].to("cpu", torch.float64) @ W)
                if not bool((finite := torch.isfinite(part).all(1)).all()):
                    row = int(rows[~finite][0])
                    raise ValueError(
                        f"Expected finite `features`, row {row} has NaN, infinite or too large"
                        " ones. Clean or drop it."
                    )
                scores[rows] = part
        return scores
