"""Seeds and draws that are the same on every machine.

Every random number is a float64 uniform from a ``torch.Generator`` on the CPU (mt19937), drawn in a
fixed order; permutations, integers and normals are computed from those. Seeds that are equal modulo
2³² are the same seed. No global generator is used.
"""

from numbers import Integral

import numpy as np
import torch
from torch import Generator, Tensor

from noiseproof.core.tensors import moved


def derive_seeds(n: int, *numbers: int) -> list[int]:
    """Return ``n`` seeds that depend on all ``numbers`` and differ from them."""
    state = np.random.SeedSequence(numbers).generate_state(n, np.uint64) >> np.uint64(1)
    return [int(seed) for seed in state]


def derive_seed(*numbers: int) -> int:
    """Return a seed that depends on all ``numbers`` and differs from them."""
    return derive_seeds(1, *numbers)[0]


def derive_generator(*numbers: int, device: torch.device | str = "cpu") -> Generator:
    """Return a generator seeded by ``derive_seed``.

    It is independent of generators seeded with any of the ``numbers``.
    """
    return Generator(device).manual_seed(derive_seed(*numbers))


def as_generator(generator: Generator | int) -> Generator:
    """Return ``generator`` itself, or a new one for a seed."""
    if isinstance(generator, Integral) and not isinstance(generator, bool):
        return Generator("cpu").manual_seed(int(generator))
    if not isinstance(generator, Generator):
        raise TypeError(
            f"Expected a torch.Generator or an integer seed, got {type(generator).__name__}."
        )
    if generator.device.type != "cpu":
        raise ValueError(
            "Expected a generator on the CPU, because labels must be the same everywhere, got"
            f" {generator.device}. Use torch.Generator().manual_seed(seed)."
        )
    return generator


def uniform(generator: Generator | None, *shape: int) -> Tensor:
    """Draw float64 in [0, 1), multiples of 2⁻⁵³."""
    if generator is None:
        raise TypeError(
            "Expected a torch.Generator or an integer seed, got None. Use corrupt(labels,"
            " generator=0)."
        )
    return torch.rand(shape, generator=generator, dtype=torch.float64, device="cpu")


def shuffled(n: int, generator: Generator, device: torch.device | str = "cpu") -> Tensor:
    """Return a random permutation of 0 … n−1, the same on every machine.

    ``torch.randperm`` does not guarantee that.
    """
    return moved(uniform(generator, n), torch.device(device)).argsort(stable=True)
