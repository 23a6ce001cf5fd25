"""A training run as its strategies see it: models, noisy data, random numbers, passes over the whole set."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from lightning_fabric import Fabric
from torch import Tensor, nn

from noiseproof.core.output import Output
from noiseproof.data import Inputs, NoisyData
from noiseproof.data.augment import Transform
from noiseproof.data.base import derive_generator, derive_seed, derive_seeds
from noiseproof.data.images import read_batches
from noiseproof.losses import Loss
from noiseproof.losses.gaussian import LN
from noiseproof.strategies.batch import Batch

if TYPE_CHECKING:
    from noiseproof.strategies.base import Strategy

SWEEP = 1024  # rows of a forward pass without gradients; more on a GPU, as `sweep_rows` says


def sweep_rows(rows: int, numbers: int, memory: int) -> int:
    """Rows of a pass without gradients over ``rows`` of so many ``numbers``, on a GPU with ``memory`` bytes.

    In equal parts, and few: a small network waits for the host, which starts every kernel of every part.

    >>> [sweep_rows(n, 3 * 32 * 32, gigabytes * 10**9) for n, gigabytes in [(10_000, 24), (10_000, 140), (50_000, 140)]]
    [2500, 5000, 5556]
    """
    # By memory, so that a wide network's activations fit beside a fleet that fills its share (`fleet.SPARE`).
    most = max(SWEEP, min(16 * SWEEP, max(2**23, memory // 8192) // numbers))
    return math.ceil(rows / math.ceil(rows / most))


def _transformed(x: Tensor, transform: Transform | None, params: Tensor, dtype: torch.dtype) -> Tensor:
    x = (x if transform is None else transform.apply(x, params)).to(dtype)
    # Convolutions of a GPU's tensor cores want the channels last.
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.dim() == 4 else x


@cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(_transformed, dynamic=False)


def check_scores(loss: Loss, who: str) -> None:
    """Refuse a loss that predicts a class which no label has, for ``who`` wants a score for each class and no more."""
    if any(isinstance(part, LN) and part.predict == "released" and part.dummy for part in loss.modules()):
        raise ValueError(
            f"Expected a score for each class for {who}, got one more of the dummy class (predict=released). "
            "Use predict=classes."
        )


def check_real_targets(loss: Loss, who: str) -> None:
    """Refuse a loss of class indices alone, for ``who`` makes targets that are distributions."""
    if loss.class_indices_only:
        raise ValueError(
            f"Expected a loss that takes real-valued targets for {who}, got `{loss}`: a shift needs one labelled "
            "logit. Use the loss without remargin."
        )


@contextmanager
def evaluating(models: Sequence[nn.Module]) -> Iterator[None]:
    """Models in evaluation mode, for a while."""
    was_training = [model.training for model in models]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model, training in zip(models, was_training, strict=True):
            model.train(training)


class Run:
    """The state of a run. Nothing in it knows a clean label.

    Random numbers come from ``generator``, ``normal`` and ``uniform``: they depend on the seed, a purpose and the step
    alone and are drawn for the rows of all processes, so neither a resume nor the number of processes changes them.
    """

    def __init__(
        self,
        *,
        fabric: Fabric,
        data: NoisyData,
        loss: Loss,
        epochs: int,
        seed: int,
        augment: Transform | None = None,
        normalise: Transform | None = None,
        workers: int = 0,
        compiled: bool = False,
    ) -> None:
        assert data.clean is None, "the truth stays with the record"
        self.fabric = fabric
        self.data = data
        self.loss = loss
        parts = [part for part in loss.modules() if isinstance(part, Loss)]
        self.loss_draws = any(type(part).set_step is not Loss.set_step for part in parts)  # and wants a seed a step
        self.plain_models: list[nn.Module] = []  # what the optimisers change, without DDP around it
        self.models: list[nn.Module] = []  # the same, to train: ``forward(model, x)``
        self.trained: list[nn.Module] = []  # the same, to ask
        self.evaluated: list[nn.Module] = []  # what predicts; a momentum model takes the place of the trained one
        self.strategies: Sequence[Strategy] = ()  # of the method, all of them
        self.optimizers: list[torch.optim.Optimizer] = []
        self.epochs = epochs
        self.seed = seed
        self.augment = augment
        self.normalise = normalise
        self.workers = workers
        self.compiled = compiled  # whether models and augmentation of a step go through torch.compile
        self.batch_size = 0  # rows of a full step over all processes; known from the first epoch on
        self.count = 0  # rows of the current step over all processes
        self.epoch = 0  # counted from 0
        self.step = 0  # over all epochs
        self.stopped: str | None = None
        self.device = fabric.device
        self.world_size = fabric.world_size
        self.rank = fabric.global_rank
        double = getattr(fabric._precision, "precision", "") == "64-true"
        self.dtype = torch.float64 if double else torch.float32
        # On one GPU all random numbers of a step come from one generator, which a CUDA graph can hold.
        alone = self.device.type == "cuda" and self.world_size == 1
        self.step_generator = torch.Generator(self.device) if alone else None
        self.draws = True  # whether a step asks that one for numbers, as far as is known
        self._in_step = False
        self._layers_draw: bool | None = None  # not known yet
        self._block, self._step_seeds = -1, [0] * 1024

    @property
    def num_classes(self) -> int:
        return self.data.num_classes

    @property
    def num_rows(self) -> int:
        return len(self.data)

    @property
    def is_sharded(self) -> bool:
        """Whether no process holds all weights."""
        return "FSDP" in type(self.fabric.strategy).__name__

    def add(
        self,
        model: nn.Module,
        build: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        """Take a model to train, and its optimiser."""
        # Without Fabric's own wrapper, which rounds float64 outputs to float32; ``forward`` does the rest of its work.
        wrapped: nn.Module = self.fabric.setup_module(self._laid_out(model))._forward_module
        optimizer = build(wrapped.parameters())
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
            if self.step_generator is not None:  # as a tensor, which a CUDA graph reads anew
                group["lr"] = torch.tensor(group["lr"], device=self.device)
        self.plain_models.append(model)
        self.models.append(torch.compile(wrapped, dynamic=False) if self.compiled else wrapped)  # type: ignore[arg-type]
        self.trained.append(wrapped if self.is_sharded else model)  # sharded weights only the wrapper can run
        self.evaluated.append(self.trained[-1])
        self.optimizers.append(self.fabric.setup_optimizers(optimizer))  # type: ignore[arg-type]

    def _laid_out(self, model: nn.Module) -> nn.Module:
        return model.to(memory_format=torch.channels_last) if self.device.type == "cuda" else model  # type: ignore[call-overload]

    def set_rate(self, group: dict[str, Any], factor: float) -> None:
        """The learning rate of an optimiser's group, as a factor on its first one."""
        rate = group["initial_lr"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def forward(self, model: nn.Module, x: Tensor) -> Output:
        """What ``model`` says of ``x``, computed in the run's precision, answered in that of the data."""
        with self.fabric.autocast():
            out: Output = model(x)
        return Output._make(v if v is None else v.to(self.dtype) for v in out)

    def backward(self, losses: Tensor, batch: Batch) -> None:
        """The gradient of the mean of ``losses`` (M, b) over all processes' rows, of each model by itself."""
        self.fabric.backward(self.mean(losses, batch))

    def mean(self, losses: Tensor, batch: Batch) -> Tensor:
        """The scalar that ``backward`` derives."""
        if batch.counts is not None:
            losses = losses * batch.counts
        # DDP averages over processes, which hold their share of the rows each.
        return losses.sum() * (self.world_size / batch.count)

    @contextmanager
    def own_randomness(self) -> Iterator[None]:
        """A step's random numbers; what layers draw (dropout) comes from this run's seed, step and process, too."""
        with self.in_step(), nullcontext() if self._layers_draw is False else self._seeded_globally():
            yield
        self.note_draws()

    def note_draws(self) -> None:
        """After an eager step: whether it has asked ``step_generator``."""
        if self.step_generator is not None:
            self.draws = self.step_generator.get_offset() > 0

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Between ``begin_step`` and the step's end: on one GPU its numbers come from ``step_generator``."""
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False

    @contextmanager
    def _seeded_globally(self) -> Iterator[None]:
        """Layers can only draw from the global generators: theirs for a step, as they were afterwards."""
        on_gpu = self.device.type == "cuda"
        with torch.random.fork_rng(devices=[self.device] if on_gpu else []):
            seed = self.seed_for("layers", self.step, self.rank)
            torch.default_generator.manual_seed(seed)  # torch.manual_seed writes down who called it, which takes longer
            if on_gpu:
                torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)
            yield
            if on_gpu:  # where all this takes longer than a small model's step: spare it where nothing was drawn
                self._layers_draw = torch.cuda.default_generators[self.device.index or 0].get_offset() > 0

    def check_reached(self, name: str, epoch: int) -> None:
        """Refuse the parameter ``name`` of a strategy where it begins in an ``epoch`` that never comes."""
        if epoch >= self.epochs:
            raise ValueError(
                f"Expected `{name}` below the {self.epochs} epochs of the run (counted from 0), got {epoch}. "
                f"Lower `{name}`, or train longer."
            )

    def stop(self, reason: str) -> None:
        """End the training after this epoch."""
        self.stopped = self.stopped or reason

    def drained(self) -> Iterator[None]:
        """Yields until a GPU has done all that this run asked of it; nothing to wait for elsewhere."""
        if self.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
            while not event.query():  # type: ignore[no-untyped-call]
                yield

    # Random numbers

    def seed_for(self, purpose: str, *numbers: int) -> int:
        """A seed for one purpose and occasion of this run."""
        return derive_seed(self.seed, zlib.crc32(purpose.encode()), *numbers)

    def generator(self, purpose: str, *numbers: int, device: torch.device | str | None = None) -> torch.Generator:
        """A generator for one purpose and occasion of this run, on the run's device."""
        if self._in_step and device is None and self.step_generator is not None:
            return self.step_generator
        numbers = (self.seed, zlib.crc32(purpose.encode()), *numbers)
        return derive_generator(*numbers, device=self.device if device is None else device)

    def begin_step(self) -> None:
        """Seed what the coming step draws."""
        if self.step_generator is not None:
            block, place = divmod(self.step, len(self._step_seeds))
            if block != self._block:  # many at once: one by one they take longer than a small model's step
                numbers = (self.seed, zlib.crc32(b"step"), block)
                self._step_seeds = derive_seeds(len(self._step_seeds), *numbers)
                self._block = block
            self.step_generator.manual_seed(self._step_seeds[place])

    def normal(self, purpose: str, batch: Batch, *shape: int) -> Tensor:
        """Standard normal numbers for the rows of ``batch``, (b, *shape)."""
        return self._draw(torch.randn, purpose, batch, shape)

    def uniform(self, purpose: str, batch: Batch, *shape: int) -> Tensor:
        """Numbers in [0, 1) for the rows of ``batch``, (b, *shape)."""
        return self._draw(torch.rand, purpose, batch, shape)

    def _draw(self, draw: Callable[..., Tensor], purpose: str, batch: Batch, shape: tuple[int, ...]) -> Tensor:
        # Exactly for the rows of the step: what a generator gives to the first of n numbers depends on n.
        generator = self.generator(purpose, self.step)
        drawn = draw(batch.count, *shape, generator=generator, device=self.device, dtype=self.dtype)
        return self.share(drawn, batch)

    # Processes

    def gather(self, values: Tensor, batch: Batch) -> Tensor:
        """The values of all processes' rows, (count, …), in the order of ``batch.all_rows``."""
        if self.world_size == 1:
            return values
        parts = [torch.empty_like(values) for _ in range(self.world_size)]
        torch.distributed.all_gather(parts, values.contiguous())
        return torch.cat(parts)[: batch.count]

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world_size > 1:
            values = values.clone()
            torch.distributed.all_reduce(values)
        return values

    def largest(self, value: Tensor) -> Tensor:
        """The maximum over all processes."""
        if self.world_size > 1:
            value = value.clone()
            torch.distributed.all_reduce(value, torch.distributed.ReduceOp.MAX)
        return value

    def any_process(self, answer: bool) -> bool:
        """Whether any process says so."""
        return bool(self.largest(torch.tensor(int(answer), device=self.device)))

    def share(self, values: Tensor, batch: Batch) -> Tensor:
        """This process's part of values (count, …) of all rows; filled-up rows repeat the first."""
        if self.world_size == 1:
            return values
        return values[(self._places(batch.count) % batch.count).to(values.device)]

    # Batches, and passes over a set

    def shares(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """This process's rows of each part; filled-up rows repeat the first."""
        return [rows[self._places(len(rows)) % len(rows)] for rows in parts]

    def _places(self, count: int) -> Tensor:
        """Where in a step of ``count`` rows this process's lie; all processes have equally many."""
        share = -(-count // self.world_size)
        return torch.arange(self.rank * share, (self.rank + 1) * share)

    def make_batch(self, rows: Tensor, raw: Tensor | None = None) -> Batch:
        """This process's share of ``rows``, augmented; rows that don't count fill shares up to one length."""
        count, several = len(rows), self.world_size > 1
        place = self._places(count) if several else torch.empty(0)
        params = None
        if self.augment is not None and self.augment.columns:
            drawn = self.augment.draw(count, self.generator("augment", self.step))
            params = drawn[(place % count).to(drawn.device)] if several else drawn
        index = (rows[place % count] if several else rows).to(self.device, non_blocking=True)
        given = self.data.given[index]
        return Batch(
            x=self.prepare(self.data.x[index] if raw is None else raw, self.augment, params),  # type: ignore[index]
            target=given,
            given=given,
            rows=index,
            all_rows=rows.to(self.device, non_blocking=True),
            counts=(place < count).to(self.device, self.dtype) if len(index) * self.world_size > count else None,
            count=count,
        )

    def fetch(self, x: Inputs, rows: Tensor, transform: Transform | None, params: Tensor | None = None) -> Tensor:
        """The inputs ``rows`` of ``x`` on the device, transformed."""
        return self.prepare(next(read_batches(x, [rows])), transform, params)

    def prepare(self, x: Tensor, transform: Transform | None, params: Tensor | None = None) -> Tensor:
        """Raw inputs as the models take them."""
        x = x.to(self.device, non_blocking=True)
        params = x.new_empty(len(x), 0, dtype=torch.float32) if params is None else params
        apply = _compiled() if self.compiled and self._in_step else _transformed
        return apply(x, transform, params, self.dtype)

    @torch.no_grad()
    def sweep(
        self, x: Inputs | None = None, models: Sequence[nn.Module] | None = None, *, augment: str | None = None
    ) -> Iterator[tuple[Tensor, Tensor, list[Output]]]:
        """Every row once, without gradients and in evaluation mode: row numbers, whether they count, outputs.

        ``x`` is the training set unless another is given. ``augment`` names the purpose of random numbers, drawn for
        all rows at once, for passes with the training augmentation. Each process sees its share; ``merge`` joins.
        """
        x = self.data.x if x is None else x
        models = self.evaluated if models is None else models
        self.share_buffers(models)
        transform, params = self.normalise, None
        if augment is not None and self.augment is not None:
            transform = self.augment
            params = transform.draw(len(x), self.generator(augment, self.epoch)).to(self.device)
        places = self._places(len(x))
        order = places % len(x)  # what is added at the end does not count
        size = SWEEP
        if self.device.type == "cuda" and isinstance(x, Tensor) and len(x):
            memory = torch.cuda.get_device_properties(self.device).total_memory
            size = sweep_rows(len(places), x[0].numel(), memory)
        parts = torch.split(order, size)
        counted = torch.split((places < len(x)).to(self.device), size)
        with evaluating([*models, self.loss]):  # a loss that draws its scores draws the same ones for every such pass
            for rows, counts, raw in zip(parts, counted, read_batches(x, parts, self.workers), strict=True):
                rows = rows.to(self.device)
                ready = self.prepare(raw, transform, None if params is None else params[rows])
                yield rows, counts, [self.forward(model, ready) for model in models]

    def predict(self, x: Inputs | None = None) -> Tensor:
        """Logarithms of the predicted distribution of every row, (N, K), of the training set unless ``x`` is given."""
        parts = [(rows, counts, self.log_probs(outs)) for rows, counts, outs in self.sweep(x)]
        return self.merge(parts, self.num_rows if x is None else len(x))

    def log_probs(self, outs: Sequence[Output]) -> Tensor:
        """Logarithms of the predicted distribution (b, K), averaged over models where there are several."""
        each = torch.stack([self.loss.scores(out).log_softmax(1) for out in outs])
        return each.logsumexp(0) - math.log(len(outs)) if len(outs) > 1 else each[0]

    def merge(self, values: Sequence[tuple[Tensor, Tensor, Tensor]], num_rows: int | None = None) -> Tensor:
        """Per-sample values of all processes by row number, from (rows, counts, values) of their sweeps: (N, …)."""
        rows, counts, parts = (torch.cat(column) for column in zip(*values, strict=True))
        whole = parts.new_zeros(self.num_rows if num_rows is None else num_rows, *parts.shape[1:])
        whole[rows[counts]] = parts[counts]
        return self.sum(whole)

    def share_buffers(self, models: Sequence[nn.Module]) -> None:
        """Give all processes the first one's batch statistics."""
        if self.world_size > 1:
            for model in models:
                for buffer in model.buffers():
                    torch.distributed.broadcast(buffer, 0)
