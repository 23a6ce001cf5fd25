"""The choice of a method from the number of classes, the number of rows and an estimate of the
noise.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.probs import confident_counts, mean_label_probability
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.data.images import read_batches
from noiseproof.train.task import BLOCK, Task, blocks

MAX_ROWS = 1000  # that the noise is estimated from: the time grows with their cube
MIN_ROWS = 50  # below which the noise cannot be estimated
CLEAN_RATE = 0.03  # below which an estimate is no evidence of noise
MAX_MEMORY = 2 * 10**8  # entries (rows × classes) of a table of past predictions
_LENGTHS = (0.5, 1.0)  # of the kernel, in units of the median distance
_RIDGES = tuple(10 ** (step / 2) for step in range(-6, 4))


def choose_method(num_classes: int, rows: int, noise: float | None) -> str:
    """Return the method that ``auto`` stands for.

    | where | method | because |
    | --- | --- | --- |
    | the noise is unknown, or below 3 % | ``ce`` | robustness costs a little and gains nothing |
    | else, up to 2·10⁸ rows × classes | ``elr`` | the most consistent under both kinds of noise |
    | more | ``gce`` or, beyond 100 classes, ``gce+`` | they keep no table of rows |

    >>> choose_method(10, 5000, 0.01), choose_method(10, 5000, 0.2), choose_method(1000, 10**6, 0.2)
    ('ce', 'elr', 'gce+')
    """
    if noise is None or noise < CLEAN_RATE:
        return "ce"
    if rows * num_classes <= MAX_MEMORY:
        return "elr"
    if num_classes > 100:
        return "gce+"
    return "gce"


def estimate_noise(task: Task, *, seed: int = 0) -> float | None:
    """Return the share of wrong labels among a task's training rows, without training.

    It is None for fewer than 50 rows.

    Kernel ridge regression predicts the class probabilities of each row from all others
    (``leave_one_out``); rows that are as probable in another class as the rows of that class are on
    average count as wrong (the confident joint of Northcutt et al. 2021, scaled to the number of
    labels of each class). It uses at most 1000 rows, and mistakes overlapping classes, and those
    that a kernel cannot separate (photographs), for noise.
    """
    data = task.train
    num_classes = task.train.num_classes
    if len(data) < MIN_ROWS:
        return None
    rows = shuffled(len(data), derive_generator(seed, 2))[:MAX_ROWS]
    y = data.given[rows]
    p = leave_one_out(squared_distances(_inputs(task, rows)), y, num_classes).clamp_min(0)
    # where all rows are equal, rounding must not decide
    threshold = mean_label_probability(y, p) * (1 - 1e-9)
    joint = confident_counts(y, p, threshold)
    count = torch.bincount(y, minlength=num_classes).double()
    given = joint.sum(0)
    right = joint.diagonal() / given.clamp_min(1)
    return float(1 - (right * count)[given > 0].sum() / count[given > 0].sum())


def _inputs(task: Task, rows: Tensor) -> Tensor:
    """Return the normalised inputs of ``rows``, (N, D), block by block, so that they are in memory
    only once.
    """
    x = torch.empty(0)
    parts = blocks(task.train.x, rows)
    for number, part in enumerate(read_batches(task.train.x, parts)):
        if task.normalise is not None:
            part = task.normalise.apply(part, torch.empty(len(part), 0))
        part = part.flatten(1)
        if number == 0:
            x = part.new_empty(len(rows), part.shape[1])
        x[number * len(parts[0]) :][: len(part)] = part
    return x


def squared_distances(x: Tensor) -> Tensor:
    """Return ‖x_i − x_j‖² of all rows, (N, N) float64, as a sum over blocks of columns, since
    images have many.
    """
    columns = torch.split(x, max(1, BLOCK // len(x)), dim=1)
    return torch.as_tensor(
        sum(torch.cdist(part, part).square() for part in map(Tensor.double, columns))
    )


def leave_one_out(squared: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """Return class probabilities (N, K) of each row by kernel ridge regression on all others, in
    closed form.

    With H = k(k + rI)⁻¹ the prediction without row i is (Hy − H_ii·y)_i/(1 − H_ii). Of two lengths
    of the Gaussian kernel and ten ridges r, the pair with the smallest squared error is used.
    Probabilities may lie slightly outside [0, 1]. ``squared`` (N, N) are the squared distances of
    the rows.
    """
    nonzero = squared[squared > 0]
    onehot = F.one_hot(y, num_classes).double()
    prior = onehot.mean(0)
    centred = onehot - prior
    best = prior.expand_as(onehot)
    least = float(centred.square().mean())
    if not len(nonzero):
        return best
    for length in _LENGTHS:
        kernel = torch.exp(squared / (-2 * length**2 * nonzero.median()))
        values, vectors = torch.linalg.eigh(kernel)
        rotated = vectors.T @ centred
        for ridge in _RIDGES:
            shrink = values.clamp_min(0) / (values.clamp_min(0) + ridge)
            diagonal = (vectors.square() @ shrink)[:, None]  # H_ii
            without = (vectors @ (shrink[:, None] * rotated) - diagonal * centred) / (1 - diagonal)
            error = float((without - centred).square().mean())
            if error < least:
                best = without + prior
                least = error
    return best
