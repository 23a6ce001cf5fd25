"""The one training loop; every method is a loss, a head and strategies that it calls at fixed points.

rows of the epoch → batch → targets → models → outputs → revise → losses (M, b) → weights → backward → gradients
→ clip → optimiser's step → after_step
"""

from __future__ import annotations

import copy
import json
import logging
import math
import re
import signal
import threading
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from noiseproof.core.checks import check_count, check_seed
from noiseproof.core.plugins import plugin_digests
from noiseproof.data.augment import Transform
from noiseproof.data.base import Inputs, shuffled
from noiseproof.data.images import read_batches
from noiseproof.losses.base import NotFinite
from noiseproof.models.classifier import build_classifier
from noiseproof.strategies import Batch, Run, Step, Strategy
from noiseproof.strategies.base import call_hook
from noiseproof.train import checkpoint
from noiseproof.train.graphs import ON_CPU, CapturedSteps, Convoy, Seating, obstacle
from noiseproof.train.methods import Method, get_method
from noiseproof.train.record import VISIBLE, Metrics, Record, best_epoch
from noiseproof.train.settings import Settings
from noiseproof.train.step import Stepper
from noiseproof.train.task import Task, find_nonfinite

log = logging.getLogger("noiseproof")

_SAID_LATER = ("inputs", "input_shape", "augment", "normalise")  # what older checkpoints do not say of their run
LOOK = 50  # steps after which several processes ask each other whether their losses are finite

Progress = Callable[
    [int, int, int, Metrics | None], None
]  # epoch, step, steps of the epoch, and at its end its metrics


class Diverged(RuntimeError):
    """Loss or weights are no longer numbers."""


class Interrupted(RuntimeError):
    """The run was asked to stop; its checkpoint holds everything."""


@dataclass(frozen=True, eq=False)
class Job:
    """One run to be made; ``train`` says what its parts are."""

    task: Task
    method: Method | str = "ce"
    settings: Settings | None = None
    seed: int = 0
    out: str | Path | None = None
    samples: bool = False
    progress: Progress | None = None


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run. The last epoch, the best by noisy validation and the oracle's are three different things."""

    metrics: list[Metrics]  # of each epoch
    run: Run
    strategies: tuple[Strategy, ...] = ()  # of the method, with what they remember
    stopped: str | None = None  # why it ended before its last epoch, if it did
    new_steps: int = 0  # of this call: none where the run in its folder was finished

    @property
    def last(self) -> Metrics:
        """The last epoch, which the papers report."""
        return self.metrics[-1]

    @property
    def best(self) -> Metrics | None:
        """The epoch that a user would choose: the best accuracy on noisy validation labels."""
        return best_epoch(self.metrics, "validation_accuracy")

    @property
    def oracle(self) -> Metrics | None:
        """The epoch of the best test accuracy, which nobody can know in practice."""
        return best_epoch(self.metrics, "test_accuracy")

    @property
    def models(self) -> list[nn.Module]:
        """The models that predict, two for methods that train two."""
        return self.run.evaluated


def train(
    task: Task,
    method: Method | str = "ce",
    settings: Settings | None = None,
    *,
    seed: int = 0,
    fabric: Fabric | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    samples: bool = False,
    progress: Progress | None = None,
    max_steps: int | None = None,
) -> Result:
    """Train ``method`` on ``task``; with ``out``, the folder for record and checkpoints, a run can be resumed exactly.

    Args:
        seed: of weights, batches, augmentation and whatever the method draws; the noise has the task's own.
        fabric: device, precision, number of processes; by default the CPU, or a GPU where there is one.
        resume: go on from the last checkpoint in ``out``, or begin where there is none.
        samples: record margin, weight and prediction of every sample in every epoch.
        max_steps: stop with a checkpoint after that many steps of this call.

    >>> from noiseproof.data import get_dataset
    >>> from noiseproof.train import prepare
    >>> task = prepare(get_dataset("digits"), "symmetric:rate=0.4")
    >>> result = train(task, "gce:q=0.7 & momentum:alpha=0.9", Settings(epochs=2, model="mlp:hidden=[16]"))
    >>> [row["epoch"] for row in result.metrics], result.best  # no rows were held out to choose an epoch by
    ([1, 2], None)
    """
    fabric = fabric or Fabric(accelerator="auto", devices=1)
    with asked_to_stop() as asked, torch.cuda.stream(own_stream(fabric)):
        job = Job(task, method, settings, seed, out, samples, progress)
        steps = training(job, fabric, resume=resume, max_steps=max_steps, asked=asked)
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                result: Result = finished.value
                return result


def own_stream(fabric: Fabric) -> torch.cuda.Stream | None:
    """A stream for all that a run does on a GPU, which neither waits for other runs nor makes them wait."""
    if fabric.device.type != "cuda":
        return None
    torch.cuda.synchronize(fabric.device)  # what it reads may have been made on another
    return torch.cuda.Stream(fabric.device)  # type: ignore[no-untyped-call]


def training(
    job: Job,
    fabric: Fabric,
    *,
    resume: bool = False,
    max_steps: int | None = None,
    asked: Sequence[int] = (),
    seating: Seating | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[None, None, Result]:
    """``train`` one step at a time, so that several runs can go side by side; ``asked`` becomes true to stop it.

    With a ``seating``, runs of one shape are stacked: each has to be resumed by turns, for it waits for the others.
    ``clock`` counts the record's seconds.
    """
    task, method, seed, progress = job.task, job.method, check_seed("seed", job.seed), job.progress
    settings = job.settings or Settings()
    if max_steps is not None:
        check_count("max_steps", max_steps, 1)
    fabric.launch()
    # Strategies remember things: a method that is used twice starts afresh.
    method = get_method(method, task, settings) if isinstance(method, str) else copy.deepcopy(method)
    folder = None if job.out is None else Path(job.out)
    run, record = _start(task, method, settings, seed, fabric, folder, job.samples)
    if folder is not None and run.is_sharded and run.processes.world_size > 1:
        raise ValueError(
            "Expected no folder for weights that several processes share: shards cannot be saved yet. Use DDP."
        )
    rate, full = settings.make_schedule(), settings.batch_rows(run.num_rows)
    run.batch_size = full
    if full <= run.processes.world_size and _needs_two_rows(run):
        raise ValueError(
            f"Expected at least {run.processes.world_size + 1} rows a step, since the model's batch normalisation "
            f"cannot learn from one alone, got {full} of {run.num_rows}. Raise the batch "
            "size, or choose a model without it."
        )
    config = {"method": str(method), "seed": seed, "dataset": task.dataset, "noise": task.noise,
              "rows": run.num_rows, "labels": zlib.crc32(task.train.given.cpu().numpy().tobytes()),
              "inputs": checksum(task.train.x) if folder else None, "input_shape": list(task.input_shape),
              "augment": _described(task.augment), "normalise": _described(task.normalise),
              "precision": str(fabric._precision.precision), **settings.as_dict()}  # fmt: skip
    if code := plugin_digests(f"{job.method} {[*config.values()]}"):
        config["code"] = code  # new formulas must not go on with what old ones began
    keeper = _Keeper(folder, config, run, record, method, settings, clock)
    done = keeper.restore(resume, str(job.method))  # steps of the current epoch that lie behind
    first_step = run.step

    def watch(batch: Batch, step: Step) -> None:
        record.observe(batch, step, run)
        keeper.watch(step)

    stepper = Stepper(run, method.strategies, settings.clip, watch)
    why = obstacle(run, method.strategies)
    if why and fabric.device.type == "cuda":
        log.info("steps of %s are not captured as a CUDA graph: %s", method, why)
    steps: CapturedSteps | None = None
    if seating is not None and stepper.is_plain and why in (None, ON_CPU):
        network = settings.model_for(task), method.head, task.input_shape, run.loss.num_outputs(run.num_classes)
        shape = network, run.num_rows, full, settings.drop_last, run.step, done
        steps = CapturedSteps(stepper, seating.convoy_for(shape))
    elif why is None:
        steps = CapturedSteps(stepper, Convoy())

    try:
        while run.epoch < settings.epochs and not run.stopped:
            if not done:
                keeper.began = clock()
            run.loss.set_epoch(run.epoch)
            run.set_learning_rate(rate(run.epoch, settings.epochs))
            if not done:
                for strategy in method.strategies:
                    strategy.start_epoch(run)
            rows = shuffled(
                run.num_rows, run.random.generator("order", run.epoch, device="cpu"), device=run.data.index.device
            )
            for strategy in method.strategies:
                rows = call_hook(strategy, "rows", rows, run)
            parts = _parts(rows, full, settings.drop_last, run)

            for position in steps.epoch(parts, done) if steps else _eager_steps(parts, done, run, stepper):
                if position is None:
                    yield
                    if not (asked and done and steps is not None and steps.wants):
                        continue
                    position = done  # its step is not made: it stops where its stack's others do, to be stacked again
                done = position
                keeper.look()
                if folder is not None and run.step == first_step + 1:
                    keeper.strategy_states()  # what no file can hold is refused now, not after the training
                if progress is not None:
                    progress(run.epoch, position, len(parts), None)
                interrupted = run.processes.world_size == 1 and bool(asked)
                enough = max_steps is not None and run.step - first_step >= max_steps
                if interrupted or enough or keeper.is_due():
                    keeper.save(position)
                if interrupted or (enough and (position < len(parts) or run.epoch + 1 < settings.epochs)):
                    raise Interrupted(
                        f"Stopped after step {run.step} in epoch {run.epoch + 1} of {settings.epochs}. "
                        + ("Resume to go on." if folder else "Nothing was saved: no folder was given.")
                    )
                if steps is None or steps.is_alone:  # else it waits for the others soon enough
                    yield
            done = 0
            keeper.weigh()
            measured = record.measure(run)
            yield from _until_done(
                run.device
            )  # on a GPU other runs go on, while this one's steps are still to be computed
            keeper.check()
            metrics = record.end_epoch(run, measured, clock() - keeper.began)
            fabric.log_dict({k: v for k, v in metrics.items() if not math.isnan(v)}, step=run.epoch + 1)
            for strategy in method.strategies:
                strategy.end_epoch({name: metrics[name] for name in VISIBLE if name in metrics}, run)
            run.epoch += 1
            keeper.end_epoch()
            if progress is not None:
                progress(run.epoch - 1, len(parts), len(parts), metrics)
            if run.processes.world_size > 1 and run.epoch < settings.epochs and run.processes.any(bool(asked)):
                keeper.save(0)  # several processes can only stop together
                raise Interrupted(f"Stopped after epoch {run.epoch} of {settings.epochs}. Resume to go on.")
    except NotFinite as error:
        raise keeper.diverged(run.step, str(error)) from error
    finally:
        if steps is not None:
            steps.convoy.leave(steps)
    if fabric.device.type == "cuda":
        torch.cuda.synchronize(fabric.device)  # the result may be read on any stream
    return Result(record.metrics, run, method.strategies, run.stopped, run.step - first_step)


def _start(
    task: Task, method: Method, settings: Settings, seed: int, fabric: Fabric, folder: Path | None, samples: bool
) -> tuple[Run, Record]:
    """Models, optimisers and the state that strategies keep."""
    num_classes = task.train.num_classes
    loss = method.loss.to(fabric.device)
    loss.reduction = "none"
    run = Run(
        fabric=fabric,
        data=replace(task.train.to(fabric.device), clean=None),
        loss=loss,
        epochs=settings.epochs,
        seed=seed,
        augment=task.augment,
        normalise=task.normalise,
        workers=settings.workers,
        compiled=settings.compile,
    )
    build = settings.make_optimizer()
    for m in range(method.models):
        plain = build_classifier(
            settings.model_for(task),
            method.head,
            input_shape=task.input_shape,
            num_outputs=loss.num_outputs(num_classes),
            generator=run.random.generator("init", m, device="cpu"),
        )
        if missing := loss.needs - plain.head.gives - method.adds:
            raise ValueError(f"Expected a head that gives {sorted(missing)} for `{loss}`, got {method.head!r}.")
        run.add(plain, build)
    run.strategies = method.strategies
    for strategy in method.strategies:
        if strategy.validates and task.validation is None:
            raise ValueError(
                f"Expected noisy labels held out for {strategy.name}, got none. Hold out a share (validation=0.1)."
            )
        strategy.setup(run)
    return run, Record(task, run, samples=samples, folder=folder)


def _parts(rows: Tensor, full: int, drop_last: bool, run: Run) -> tuple[Tensor, ...]:
    """The rows of each step of an epoch, ``full`` of them, fewer in the last one."""
    parts = torch.split(rows, full)
    last = len(parts[-1])
    if drop_last and len(parts) > 1 and last < full:
        return parts[:-1]
    if len(parts) > 1 and last <= run.processes.world_size and _needs_two_rows(run):
        # In the first step, which is then the largest: a captured one makes room for no more rows later.
        return torch.split(rows, [full + last, *[full] * (len(parts) - 2)])
    return parts


def _needs_two_rows(run: Run) -> bool:
    """Whether models refuse to learn from one row, as batch normalisation does where each channel is one number."""
    norms = any(isinstance(layer, _BatchNorm) for layer in run.models[0].plain.modules())
    if run.is_sharded or not norms:
        return False
    model = copy.deepcopy(run.models[0].plain).train()
    x = run.fetch(run.data.x, torch.zeros(1, dtype=torch.int64), run.normalise)
    try:
        with torch.no_grad(), torch.random.fork_rng([run.device] if run.device.type == "cuda" else []):
            run.forward(model, x)
    except ValueError:  # PyTorch's "Expected more than 1 value per channel"
        return True
    return False


def _until_done(device: torch.device) -> Iterator[None]:
    """Yield until a GPU has done all that was asked of it so far."""
    if device.type == "cuda":
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        while not event.query():  # type: ignore[no-untyped-call]
            yield


def _eager_steps(parts: Sequence[Tensor], done: int, run: Run, step: Callable[[Batch], None]) -> Iterator[int]:
    """Train on each part in turn, after the first ``done``; yields how many are done."""
    todo = parts[done:]
    raws = (
        iter(repeat(None))
        if isinstance(run.data.x, Tensor)
        else read_batches(run.data.x, [run.processes.share(part) for part in todo], run.workers)
    )
    for position, (rows, raw) in enumerate(zip(todo, raws, strict=False), done + 1):
        run.random.begin_step()
        with run.random.eager_step():
            step(run.make_batch(rows, raw))
        run.step += 1
        yield position


class _Keeper:
    """Saves the whole state of a run, restores it, and refuses to save one that has diverged."""

    def __init__(
        self,
        folder: Path | None,
        config: dict[str, Any],
        run: Run,
        record: Record,
        method: Method,
        settings: Settings,
        clock: Callable[[], float],
    ) -> None:
        self.folder, self.config = folder, config
        self.run, self.record, self.method, self.settings = run, record, method, settings
        self.best = -math.inf
        self.clock, self.began = clock, clock()  # the current epoch, by that clock
        self.saved_at = time.monotonic()
        self.total = torch.zeros((), dtype=torch.float64, device=run.device)  # of all losses
        self.good_steps = torch.zeros((), dtype=torch.int64, device=run.device)  # as the device counts them

    @property
    def checkpoints(self) -> Path | None:
        return None if self.folder is None else self.folder / "checkpoints"

    def watch(self, step: Step) -> None:
        """Count the steps up to the first loss that is not finite, without waiting for the device."""
        self.total += step.losses.sum()  # once not finite, for ever not finite
        self.good_steps += self.total * 0 == 0

    def look(self) -> None:
        """Look at once where looking is free; several processes ask each other from time to time, a GPU at the end."""
        alone = self.run.processes.world_size == 1
        if self.run.device.type == "cpu" if alone else self.run.step % LOOK == 0:
            self.check()

    def check(self) -> None:
        """Stop a run that has diverged, with the likely cause."""
        good = -int(self.run.processes.max(-self.good_steps))
        if good == self.run.step:
            return
        lr = float(self.run.models[0].optimizer.param_groups[0]["lr"])
        sigmas = [str(s) for s in self.method.strategies if "sigma" in s.parameters]
        causes = [f"a learning rate too large ({lr:g})", *(f"too much noise ({s})" for s in sigmas)]
        why = f"Likely: {' or '.join(causes)}. Lower it, or clip gradients."
        if where := find_nonfinite(self.run.data.x):
            why = f"Nor are the inputs, in {where}. Drop the row, or fill it in."
        raise self.diverged(good, why)

    def diverged(self, good: int, why: str) -> Diverged:
        """The error of a run whose first ``good`` steps went well."""
        last = None if self.checkpoints is None else checkpoint.latest(self.checkpoints)
        return Diverged(
            f"Loss or weights are not finite at step {good + 1} (epoch {self.run.epoch + 1}). {why} "
            + (f"The last good checkpoint is {last}." if last else "No checkpoint was saved.")
        )

    def weigh(self) -> None:
        """Note where a step has left weights behind that are not finite, of which its own loss says nothing."""
        values = [v for model in self.run.models for v in model.plain.state_dict().values() if v.is_floating_point()]
        bad = ~torch.isfinite(torch.stack(torch._foreach_norm(values, math.inf))).all()
        self.good_steps -= (bad & (self.good_steps == self.run.step)).to(self.good_steps.dtype)

    def is_due(self) -> bool:
        every = self.settings.checkpoint_steps
        return self.folder is not None and every is not None and self.run.step % every == 0

    def end_epoch(self) -> None:
        """Save at the end of an epoch where the last time was long ago, and the best models by noisy validation."""
        run = self.run
        if self.folder is None:
            return
        metric = self.record.metrics[-1].get("validation_accuracy", -math.inf)
        if metric > self.best:
            self.best = metric
            if run.processes.rank == 0:
                state = {f"models.{m}.{k}": v for m, model in enumerate(run.evaluated) for k, v in _cpu_state(model)}
                checkpoint.write_tensors(self.folder / "best.safetensors", state)
        last = run.epoch == run.epochs or run.stopped is not None
        due = time.monotonic() - self.saved_at > self.settings.checkpoint_seconds
        if run.processes.world_size > 1:
            due = run.fabric.broadcast(due)
        if last or due:
            self.save(0)

    def save(self, position: int) -> None:
        """Write a checkpoint, ``position`` steps into the epoch."""
        run = self.run
        self.weigh()
        self.check()
        state = {
            "config": self.config,
            "epoch": run.epoch,
            "position": position,
            "seconds": self.clock() - self.began,  # of that epoch
            "step": run.step,
            "stopped": run.stopped,
            "best": self.best,
            "models": [model.plain.state_dict() for model in run.models],
            "optimizers": [model.optimizer.state_dict()["state"] for model in run.models],
            "loss": run.loss.state_dict(),
            "strategies": self.strategy_states(),
            "record": self.record.state_dict(),
        }
        self.saved_at = time.monotonic()
        if self.checkpoints is not None and run.processes.rank == 0:
            checkpoint.save(self.checkpoints, run.step, state)
        run.fabric.barrier()

    def strategy_states(self) -> list[dict[str, Any]]:
        """What each strategy remembers."""
        states = [strategy.state_dict() for strategy in self.method.strategies]
        for strategy, state in zip(self.method.strategies, states, strict=True):
            try:
                json.dumps(state, default=lambda v: None if isinstance(v, Tensor) else json.JSONEncoder().default(v))
            except TypeError as error:
                raise TypeError(
                    f"Expected tensors and plain values in `state_dict` of the strategy `{strategy}`, got: {error}."
                ) from None
        return states

    def restore(self, resume: bool, name: str) -> int:
        """Take the last checkpoint's state; the number of steps that lie behind in its epoch."""
        run = self.run
        path = None if self.checkpoints is None else checkpoint.latest(self.checkpoints)
        if path is None:
            if self.folder is not None and run.processes.rank == 0:
                if (self.folder / "run.json").exists():  # another run's, that came to no checkpoint
                    for left in ("best.safetensors", "record.csv", "samples/epoch-*.safetensors"):
                        for file in self.folder.glob(left):
                            file.unlink()
                self.record.describe({"name": name, **self.config})
            return 0
        if not resume:
            raise FileExistsError(
                f"Expected a new folder, got {self.folder} with the checkpoint {path.name}. "
                "Resume it, or choose another folder."
            )
        state = checkpoint.load(path, run.device)
        then = {key: self.config[key] for key in _SAID_LATER} | state["config"]
        for key in self.config | then:
            if self.config.get(key) != then.get(key):
                raise checkpoint.BadCheckpoint(
                    f"Expected {key}={then.get(key)!r} to resume {path}, got {self.config.get(key)!r}. "
                    "Resume with the same settings and code, or choose another folder."
                )
        for model, saved in zip(run.models, state["optimizers"], strict=True):
            optimizer = model.optimizer
            optimizer.load_state_dict({**optimizer.state_dict(), "state": saved})
            for weight, kept in optimizer.state.items():  # on a GPU weights need not lie as a file has them
                kept |= {
                    name: torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)
                    for name, value in kept.items()
                    if isinstance(value, Tensor) and value.shape == weight.shape
                }
        _load(state, run, self.method, self.record)
        self.best, self.began = state["best"], self.clock() - state.get("seconds", 0.0)
        self.good_steps.fill_(run.step)
        position: int = state["position"]
        return position


def checksum(x: Inputs) -> int | None:
    """Of a thousand rows all over ``x``: enough to tell other data from the same, and quick; None of files."""
    if not isinstance(x, Tensor):
        return None
    rows = x[:: max(1, len(x) // 1000)].cpu().reshape(-1)
    return zlib.crc32(rows.contiguous().view(torch.uint8).numpy().tobytes())


def _described(transform: Transform | None) -> str:
    """What it does, alike on every machine: not to the last digit, nor by where it lies."""

    def text(value: Any) -> str:
        if isinstance(value, Tensor):
            value = value.flatten().tolist()
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(text, value))}]"
        if is_dataclass(value):
            return f"{type(value).__name__}({', '.join(text(getattr(value, field.name)) for field in fields(value))})"
        return f"{value:.6g}" if isinstance(value, float) else re.sub(r" at 0x[0-9a-f]+", "", repr(value))

    said = text(transform)
    return said if len(said) < 200 else f"{said[:200]}… {zlib.crc32(said.encode()):08x}"


def _load(state: dict[str, Any], run: Run, method: Method, record: Record) -> None:
    """Take a checkpoint's models, loss, strategies and record."""
    for model, saved in zip(run.models, state["models"], strict=True):
        model.plain.load_state_dict(saved)
    run.loss.load_state_dict(state["loss"])
    for strategy, saved in zip(method.strategies, state["strategies"], strict=True):
        strategy.load_state_dict(saved)
    record.load_state_dict(state["record"])
    run.epoch, run.step, run.stopped = state["epoch"], state["step"], state["stopped"]


def reopen(task: Task, method: Method, settings: Settings, *, seed: int, fabric: Fabric, folder: str | Path) -> Result:
    """The run in ``folder`` as its last checkpoint has it, to be looked at."""
    path = checkpoint.latest(Path(folder, "checkpoints"))
    if path is None:
        raise FileNotFoundError(
            f"Expected a checkpoint in {folder}, got none. Benchmarks keep theirs no longer than needed."
        )
    fabric.launch()
    method = copy.deepcopy(method)
    run, record = _start(task, method, settings, seed, fabric, None, False)
    _load(checkpoint.load(path, run.device), run, method, record)
    return Result(record.metrics, run, method.strategies, run.stopped)


def _cpu_state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    copies = ((name, value.detach().cpu()) for name, value in model.state_dict().items())
    return ((name, value.clone(memory_format=torch.contiguous_format)) for name, value in copies)  # some may be tied


@contextmanager
def asked_to_stop() -> Iterator[list[int]]:
    """Collects the signals that ask a run to stop, so that it ends after a whole step, with a checkpoint."""
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def note(number: int, frame: Any) -> None:
        if asked:  # asked twice: now
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
