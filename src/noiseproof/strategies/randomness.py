"""Random numbers of a run, keyed by seed, purpose and occasion."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from noiseproof.data.base import derive_generator, derive_seed, derive_seeds
from noiseproof.strategies.batch import Batch
from noiseproof.strategies.processes import Processes

SEEDS_AT_ONCE = 1024  # of steps: one by one they take longer than the step of a small model


class Randomness:
    """Draws that depend on the seed, a purpose and the step alone.

    Numbers of a step are drawn for the rows of all processes, so neither a resume nor the number of
    processes changes them. On one GPU all numbers of a step come from ``step_generator``, which a
    CUDA graph can hold.
    """

    def __init__(self, seed: int, processes: Processes, dtype: torch.dtype) -> None:
        self.seed = seed
        self.step = 0  # over all epochs
        self.device = processes.device
        self.dtype = dtype
        self._processes = processes
        one_gpu = self.device.type == "cuda" and processes.world_size == 1
        self.step_generator = torch.Generator(self.device) if one_gpu else None
        self.step_draws = True  # whether steps draw from ``step_generator``, as far as is known
        self.is_in_step = False
        self._layers_draw: bool | None = None  # not known yet
        self._block = -1
        self._step_seeds = [0] * SEEDS_AT_ONCE

    def seed_for(self, purpose: str, *occasion: int) -> int:
        """Return a seed for one purpose and occasion."""
        return derive_seed(self.seed, zlib.crc32(purpose.encode()), *occasion)

    def generator(
        self, purpose: str, *occasion: int, device: torch.device | str | None = None
    ) -> torch.Generator:
        """Return a generator for one purpose and occasion, on the device of the run unless another
        is given.
        """
        if self.is_in_step and device is None and self.step_generator is not None:
            return self.step_generator
        key = (self.seed, zlib.crc32(purpose.encode()), *occasion)
        return derive_generator(*key, device=self.device if device is None else device)

    def normal(self, purpose: str, batch: Batch, *shape: int) -> Tensor:
        """Return standard normal numbers for the rows of ``batch``, (b, *shape)."""
        return self._draw(torch.randn, purpose, batch, shape)

    def uniform(self, purpose: str, batch: Batch, *shape: int) -> Tensor:
        """Return uniform numbers in [0, 1) for the rows of ``batch``, (b, *shape)."""
        return self._draw(torch.rand, purpose, batch, shape)

    def _draw(
        self, draw: Callable[..., Tensor], purpose: str, batch: Batch, shape: tuple[int, ...]
    ) -> Tensor:
        # Exactly for the rows of the step: what a generator gives to the first of n numbers depends
        # on n.
        generator = self.generator(purpose, self.step)
        drawn = draw(batch.count, *shape, generator=generator, device=self.device, dtype=self.dtype)
        return self._processes.share(drawn)

    # Used by the training loop

    def begin_step(self) -> None:
        """Seed ``step_generator`` for the coming step."""
        if self.step_generator is not None:
            block, place = divmod(self.step, SEEDS_AT_ONCE)
            if block != self._block:
                self._step_seeds = derive_seeds(
                    SEEDS_AT_ONCE, self.seed, zlib.crc32(b"step"), block
                )
                self._block = block
            self.step_generator.manual_seed(self._step_seeds[place])

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """A step after ``begin_step``: on one GPU its numbers come from ``step_generator``."""
        self.is_in_step = True
        try:
            yield
        finally:
            self.is_in_step = False

    @contextmanager
    def eager_step(self) -> Iterator[None]:
        """``in_step`` for a step whose layers may draw (dropout): from the run's seed, step and
        process, too.
        """
        with self.in_step(), nullcontext() if self._layers_draw is False else self._seeded_layers():
            yield
        self.note_draws()

    def note_draws(self) -> None:
        """Note whether the eager step that ended drew from ``step_generator``."""
        if self.step_generator is not None:
            self.step_draws = self.step_generator.get_offset() > 0

    @contextmanager
    def _seeded_layers(self) -> Iterator[None]:
        """Seed the global generators, which are all that layers can draw from, and restore them
        afterwards.
        """
        on_gpu = self.device.type == "cuda"
        with torch.random.fork_rng(devices=[self.device] if on_gpu else []):
            seed = self.seed_for("layers", self.step, self._processes.rank)
            # torch.manual_seed records its caller, which takes longer
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)
            yield
            # where all this takes longer than the step of a small model: skip it if nothing is
            # drawn
            if on_gpu:
                self._layers_draw = (
                    torch.cuda.default_generators[self.device.index or 0].get_offset() > 0
                )
