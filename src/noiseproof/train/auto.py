"""Which method to take where nobody said: by the number of classes, of rows, and how many labels look wrong."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.probs import confident_counts, mean_label_probability
from noiseproof.data.base import derive_generator, shuffled
from noiseproof.data.images import read_batches
from noiseproof.train.task import BLOCK, Task, blocks

LOOKED_AT = 1000  # rows that the noise is estimated from: the time grows with their cube
FEWEST = 50  # rows below which nothing can be said of the noise
CLEAN = 0.03  # an estimated rate that a clean set may have, too
MEMORY = 2 * 10**8  # numbers (rows × classes) that a memory of predictions may hold
_LENGTHS = (0.5, 1.0)  # of the kernel, by the median distance
_RIDGES = tuple(10 ** (step / 2) for step in range(-6, 4))


def choose_method(num_classes: int, rows: int, noise: float | None) -> str:
    """The method that ``auto`` stands for.

    | where | method | because |
    | --- | --- | --- |
    | the noise is not known, or below 3 % | ``ce`` | nothing is to be gained, and robustness costs a little |
    | else, up to 2·10⁸ rows × classes | ``elr`` | the most even under symmetric and asymmetric noise |
    | more | ``gce`` or, beyond 100 classes, ``gce+`` | they remember nothing of rows |

    >>> choose_method(10, 5000, 0.01), choose_method(10, 5000, 0.2), choose_method(1000, 10**6, 0.2)
    ('ce', 'elr', 'gce+')
    """
    if noise is None or noise < CLEAN:
        return "ce"
    if rows * num_classes <= MEMORY:
        return "elr"
    return "gce+" if num_classes > 100 else "gce"


def estimate_noise(task: Task, *, seed: int = 0) -> float | None:
    """The share of wrong labels among a task's training rows, without training; None of fewer than 50 rows.

    Kernel ridge regression says of each row, from all others, how likely each class is (``leave_one_out``); rows that
    it finds as typical of another class as that class's own rows are on average count as wrong (the confident joint of
    Northcutt et al. 2021, scaled to the number of labels of each class). It looks at 1000 rows at most and takes
    classes that overlap, or that a kernel cannot tell apart (photographs), for noise.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import prepare
    >>> task = prepare(get_dataset("digits"), "symmetric:rate=0.2")
    >>> round(task.train.rate, 2), round(estimate_noise(task), 2)
    (0.2, 0.2)
    """
    data, num_classes = task.train, task.train.num_classes
    if len(data) < FEWEST:
        return None
    rows = shuffled(len(data), derive_generator(seed, 2))[:LOOKED_AT]
    y = data.given[rows]
    p = leave_one_out(squared_distances(_inputs(task, rows)), y, num_classes).clamp_min(0)
    threshold = mean_label_probability(y, p) * (1 - 1e-9)  # where all rows are alike, rounding must not decide
    joint = confident_counts(y, p, threshold)
    count = torch.bincount(y, minlength=num_classes).double()
    given = joint.sum(0)
    right = joint.diagonal() / given.clamp_min(1)
    return float(1 - (right * count)[given > 0].sum() / count[given > 0].sum())


def _inputs(task: Task, rows: Tensor) -> Tensor:
    """What a model sees of ``rows``, (N, D); made a block at a time, so that they are held once."""
    x = torch.empty(0)
    parts = blocks(task.train.x, rows)
    for number, raw in enumerate(read_batches(task.train.x, parts)):
        seen = (raw if task.normalise is None else task.normalise.apply(raw, torch.empty(len(raw), 0))).flatten(1)
        x = seen.new_empty(len(rows), seen.shape[1]) if number == 0 else x
        x[number * len(parts[0]) :][: len(seen)] = seen
    return x


def squared_distances(x: Tensor) -> Tensor:
    """‖x_i − x_j‖² of all rows, (N, N) float64: a sum over blocks of columns, since images have many."""
    columns = torch.split(x, max(1, BLOCK // len(x)), dim=1)
    return torch.as_tensor(sum(torch.cdist(part, part).square() for part in map(Tensor.double, columns)))


def leave_one_out(squared: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """Class probabilities (N, K) of each row by kernel ridge regression on all others, in closed form.

    With H = k(k + rI)⁻¹ the prediction without row i is (Hy − H_ii·y)_i/(1 − H_ii). Of two lengths of the Gaussian
    kernel and ten ridges r the pair of least squared error is taken. Probabilities may lie a little outside [0, 1].
    ``squared`` are the rows' squared distances, (N, N).
    """
    apart = squared[squared > 0]
    onehot = F.one_hot(y, num_classes).double()
    prior = onehot.mean(0)
    centred = onehot - prior
    best, least = prior.expand_as(onehot), float(centred.square().mean())
    for length in _LENGTHS if len(apart) else ():
        kernel = torch.exp(squared / (-2 * length**2 * apart.median()))
        values, vectors = torch.linalg.eigh(kernel)
        rotated = vectors.T @ centred
        for ridge in _RIDGES:
            shrink = values.clamp_min(0) / (values.clamp_min(0) + ridge)
            own = (vectors.square() @ shrink)[:, None]  # H_ii
            without = (vectors @ (shrink[:, None] * rotated) - own * centred) / (1 - own)
            error = float((without - centred).square().mean())
            if error < least:
                best, least = without + prior, error
    return best
