"""Runs side by side on one GPU: seconds per model and epoch, everything included.

    python benchmarks/gpu.py [--only
    wrn,wrn-paper,lenet,mlp,mlp-cifar10,resnet,parts,losses,ln,het,convolutions]
                             [--models 1,8]
    python benchmarks/gpu.py --only wrn --models 8 --profile

``wrn`` clips gradients, which is the method's default; ``wrn-paper`` does not and has label noise
to the end, as in the SLN paper. ``parts``: what the pass over the test set and label correction's
pass over the training set add to an epoch of WRNs. ``--profile``: how the GPU's time divides among
kernels in an epoch of 12 800 rows, without a pass over the test set. ``--apart`` leaves runs of one
shape on streams of their own instead of stacking them.

``losses``: forward and backward of each margin loss on bfloat16 logits, compiled and captured, as a
multiple of ``F.cross_entropy`` compiled the same way, with the largest memory either takes beyond
its logits. ``ln``: likewise how much faster it is than ``LowRankMultivariateNormal``; ``het``: than
by PyTorch's operators. Times are medians over rounds that interleave contenders.
``convolutions``: milliseconds of those of eight stacked networks, by conv3x3.cu where it serves, by
Triton, and of one network with all images by cuDNN.

The fleet's data are random images of the real sets' shapes and sizes. A row is the median over
epochs and models of the wall time of an epoch divided by the number of models; its epochs include
augmentation, label noise, momentum model, record and the pass over the test set. The first two, in
which kernels are chosen and graphs captured, don't count.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

# else streams share eight queues; read when CUDA starts
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

import torch
import torch.nn.functional as F
from gaussian import LAM, TAU, T, low_rank
from lightning_fabric import Fabric
from losses import compile_alone
from timing import write_rows
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from noiseproof import get_loss
from noiseproof.accelerate import Job, fit_many, hopper
from noiseproof.core.output import Output
from noiseproof.data import Dataset, Split
from noiseproof.losses import LOSSES, Loss, MarginLoss
from noiseproof.losses import het as het_module
from noiseproof.models.classifier import build_classifier
from noiseproof.train import Settings, Task, prepare


def images(name: str, n: int, shape: tuple[int, int, int], classes: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)

    def split(rows: int) -> Split:
        x = torch.randint(0, 256, (rows, *shape), generator=generator, dtype=torch.uint8)
        return Split(x, torch.randint(0, classes, (rows,), generator=generator))

    return Dataset(name, tuple(map(str, range(classes))), split(n), split(10_000))


class Told(logging.Handler):
    """What the library says on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


told, log = Told(), logging.getLogger("noiseproof")
log.addHandler(told)
log.setLevel(logging.INFO)


def side_by_side(
    task: Task, method: str, settings: Settings, models: int, precision: str, stack: bool
) -> dict[str, object]:
    """Seconds per model-epoch of ``models`` runs."""
    ends: list[float] = []
    told.texts.clear()

    def note(epoch: int, step: int, steps: int, row: object) -> None:
        if row is not None and step == steps:
            ends.append(time.perf_counter())

    fabric = Fabric(accelerator="cuda", devices=1, precision=precision)
    jobs = [Job(task, method, settings, seed=seed, progress=note) for seed in range(models)]
    torch.cuda.reset_peak_memory_stats()
    outcomes = fit_many(jobs, fabric=fabric, at_once=models, stack=stack)
    failed = [o for o in outcomes if isinstance(o, Exception)]
    if failed:
        raise failed[0]
    # From one run's end to its next: when the last of them ends an epoch, the first have begun the
    # one that follows.
    each = [(after - before) / models for before, after in pairwise(ends[::models])]
    return {
        "model": settings.model,
        "method": method,
        "models": models,
        "precision": precision,
        "compiled": settings.compile,
        "stacked": any("are stacked" in text for text in told.texts),
        "seconds_per_model_epoch": [round(v, 4) for v in each],
        "median_after_two": round(statistics.median(each[1:]), 4),
        "memory_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2),
    }


KINDS = {  # parts of the names of kernels, the first that fits
    "convolutions": (
        "product",
        "weight_gradient",
        "_add_up",
        "conv",
        "xmma",
        "implicit_gemm",
        "cutlass",
    ),
    "normalisation": ("_moments", "_statistics", "_affine", "_gradient_sums", "batch_norm", "bn_"),
    "products": ("gemm", "nvjet", "cublas"),
    "optimiser": ("_sgd", "multi_tensor", "adam"),
}


def profiled(
    task: Task, method: str, settings: Settings, models: int, precision: str, stack: bool
) -> dict[str, object]:
    """Shares of the kernels of each kind in the GPU's time of the third epoch, and how many a step
    of all has.
    """
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])

    def note(epoch: int, step: int, steps: int, row: object) -> None:
        if row is not None and step == steps and epoch in (1, 2):  # counted from 0
            torch.cuda.synchronize()
            profiler.start() if epoch == 1 else profiler.stop()

    rows = torch.arange(12_800)
    task = replace(task, train=task.train.subset(rows), test=None)
    settings = replace(settings, epochs=3)
    jobs = [
        Job(task, method, settings, seed=seed, progress=None if seed else note)
        for seed in range(models)
    ]
    fit_many(
        jobs,
        fabric=Fabric(accelerator="cuda", devices=1, precision=precision),
        at_once=models,
        stack=stack,
    )
    seconds: dict[str, float] = {}
    events = [event for event in profiler.key_averages() if event.self_device_time_total]
    for event in events:
        kind = next(
            (kind for kind, parts in KINDS.items() if any(part in event.key for part in parts)),
            "others",
        )
        seconds[kind] = seconds.get(kind, 0.0) + event.self_device_time_total / 1e6
    total, steps = sum(seconds.values()), len(rows) // int(settings.batch_size)
    return {
        "model": settings.model,
        "method": method,
        "models": models,
        "precision": precision,
        "shares": {kind: round(part / total, 3) for kind, part in sorted(seconds.items())},
        "seconds_per_model_epoch_of_50_000": round(total / models * 50_000 / len(rows), 3),
        "kernels_a_step": round(sum(event.count for event in events) / steps),
    }


def parts(measure: Callable[..., dict[str, object]], task: Task, method: str) -> dict[str, object]:
    """Epochs without a test set, with it, and with label correction's pass over the training set
    beside it.
    """
    found = {
        "steps": measure(replace(task, test=None), method),
        "and test set": measure(task, method),
        "and label correction": measure(task, f"{method} & label-correction:start=1"),
    }
    seconds = {name: float(row["median_after_two"]) for name, row in found.items()}  # type: ignore[arg-type]
    return {
        "parts": seconds,
        "models": found["steps"]["models"],
        "share_of_test_set": round(1 - seconds["steps"] / seconds["and test set"], 3),
        "share_of_label_correction": round(
            1 - seconds["and test set"] / seconds["and label correction"], 3
        ),
    }


def timed(run: Callable[[], object], calls: int = 10) -> float:
    """Milliseconds of a call on the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def captured(run: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph: what the GPU takes for it, without the host's part."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(keeps: Callable[[], object] = run) -> None:  # whose tensors the graph reads
        graph.replay()

    return replay


def compared(contenders: dict[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
    """Median milliseconds of each, in rounds that interleave them."""
    for run in contenders.values():
        timed(run, 3)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            times[name].append(timed(run))
    return {name: statistics.median(found) for name, found in times.items()}


def step(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, y: Tensor) -> Callable[[], None]:
    compiled = compile_alone(loss)

    def run() -> None:
        logits.grad = None
        compiled(logits, y).backward()

    return run


def peak(run: Callable[[], object]) -> int:
    """Bytes that a call takes at most, beyond what was there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def margin_losses(
    rows: int, classes: int, names: Sequence[str] = ()
) -> Iterator[dict[str, object]]:
    """Every margin loss, or those named, against cross entropy."""
    generator = torch.Generator("cuda").manual_seed(0)
    logits = torch.randn(
        rows, classes, generator=generator, device="cuda", dtype=torch.bfloat16
    ).requires_grad_()
    y = torch.randint(classes, (rows,), generator=generator, device="cuda")
    simple = [
        name
        for name in LOSSES
        if "T" not in LOSSES.parameters(name) and isinstance(LOSSES[name], type)
    ]
    every = [name for name in simple if issubclass(LOSSES[name], MarginLoss)]  # type: ignore[arg-type]
    names = names or [*every, "remargin:loss=mae,shift=3"]
    contenders = {name: step(get_loss(name), logits, y) for name in names}
    contenders["F.cross_entropy"] = step(F.cross_entropy, logits, y)
    contenders["control"] = step(lambda z, t: F.cross_entropy(z, t), logits, y)
    memory = {}
    for name, run in contenders.items():
        run()
        logits.grad = None
        memory[name] = peak(run)
    times = compared({name: captured(run) for name, run in contenders.items()})
    for name, ms in times.items():
        yield {
            "loss": name,
            "size": [rows, classes],
            "dtype": "bfloat16",
            "ms": round(ms, 4),
            "over_cross_entropy": round(ms / times["F.cross_entropy"], 3),
            "bar": 1.05,
            "peak_over_cross_entropy": round(memory[name] / memory["F.cross_entropy"], 4),
        }


def logistic_normal(rows: int, classes: int) -> Iterator[dict[str, object]]:
    """LN against the distribution that one would write it with."""
    generator = torch.Generator("cuda").manual_seed(0)
    mean, root = (
        torch.randn(rows, classes, generator=generator, device="cuda").requires_grad_()
        for _ in range(2)
    )
    y = torch.randint(classes, (rows,), generator=generator, device="cuda")
    loss = get_loss("ln", lam=LAM, tau=TAU, t=T)
    ours = lambda m, r, t: loss(Output(m, r), t)  # noqa: E731
    forms: dict[str, Callable[..., Tensor]] = {
        "LowRankMultivariateNormal": low_rank,
        "ln": ours,
        "ln, compiled": torch.compile(ours, dynamic=False),
    }

    def run(form: Callable[..., Tensor]) -> None:
        mean.grad = root.grad = None
        form(mean, root, y).backward()

    calls: dict[str, Callable[[], object]] = {
        name: partial(run, form) for name, form in forms.items()
    }
    calls["ln, captured"] = captured(calls["ln, compiled"])
    times = compared(calls)
    for name, ms in times.items():
        yield {
            "loss": name,
            "size": [rows, classes],
            "ms": round(ms, 4),
            "bar": 10,
            "times_faster": round(times["LowRankMultivariateNormal"] / ms, 1),
        }


def het(rows: int, classes: int, samples: int = 2000) -> Iterator[dict[str, object]]:
    """Het's forward and backward, captured, by its kernels and by PyTorch's operators."""
    generator = torch.Generator("cuda").manual_seed(0)
    mean, scale = (
        torch.randn(rows, classes, generator=generator, device="cuda").requires_grad_()
        for _ in range(2)
    )
    y = torch.randint(classes, (rows,), generator=generator, device="cuda")

    def run(loss: Loss) -> None:
        mean.grad = scale.grad = None
        loss(Output(mean, scale=scale.exp()), y).backward()

    calls = {}
    kernels = het_module._kernels_for
    for name, choose in {"operators": lambda mean, factors: None, "kernels": kernels}.items():
        het_module._kernels_for = choose
        loss = get_loss("het", samples=samples)
        # all noise is drawn at the first call: what is measured is the rest
        loss.set_step(0, generator)
        calls[name] = captured(partial(run, loss))
    het_module._kernels_for = kernels
    times = compared(calls)
    for name, ms in times.items():
        yield {
            "loss": f"het, {name}",
            "samples": samples,
            "size": [rows, classes],
            "ms": round(ms, 4),
            "times_faster": round(times["operators"] / ms, 1),
        }


def convolutions(models: int, batch: int) -> Iterator[dict[str, object]]:
    """The 3×3 convolutions of WRN-28-2, and those of ResNet-34."""
    from noiseproof.accelerate import layer_kernels  # needs Triton

    wrn = [(32, 16, 32), (32, 32, 32), (32, 32, 64), (16, 64, 64), (16, 64, 128), (8, 128, 128)]
    for side, c, n in [*wrn, (32, 64, 64), (16, 128, 128), (8, 256, 256), (4, 512, 512)]:
        x, grad = (
            torch.randn(
                models * batch, side, side, width, device="cuda", dtype=torch.bfloat16
            ).permute(0, 3, 1, 2)
            for width in (c, n)
        )
        weight = torch.randn(models, n, 3, 3, c, device="cuda", dtype=torch.bfloat16)
        one = weight[0].permute(0, 3, 1, 2)
        back = partial(
            torch.ops.aten.convolution_backward,
            grad,
            x,
            one,
            None,
            [1, 1],
            [1, 1],
            [1, 1],
            False,
            [0, 0],
            1,
        )
        calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "forward": (
                partial(layer_kernels._multiply, x, weight, None, side, side, 1, 1, False),
                partial(F.conv2d, x, one, padding=1),
            ),
            "input": (
                partial(layer_kernels._multiply, grad, weight, None, side, side, 1, 1, True),
                partial(back, [True, False, False]),
            ),
            "weight": (
                partial(layer_kernels._weights_gradient, x, grad, models, 3, 3, 1, 1, False),
                partial(back, [False, True, False]),
            ),
        }
        for kind, (ours, cudnn) in calls.items():
            runs = {"cuDNN": captured(cudnn)}
            for hopper.is_enabled, name in ((False, "Triton"), (True, "ours")):
                runs[name] = captured(ours)
            times = {name: round(ms, 4) for name, ms in compared(runs, 5).items()}
            tflops = 2 * models * batch * side**2 * 9 * c * n / times["ours"] / 1e9
            yield {
                "convolution": kind,
                "side": side,
                "channels": [c, n],
                "ms": times,
                "tflops": round(tflops),
            }


def share_of_the_card(
    row: dict[str, object], model: str, classes: int, batch: int, n: int
) -> dict[str, float]:
    """The rate of a training's multiplications against that of a large bfloat16 matrix product,
    measured here.
    """
    net = build_classifier(
        model, "linear", input_shape=(3, 32, 32), num_outputs=classes, generator=torch.Generator()
    ).cuda()
    with FlopCounterMode(display=False) as counter:
        net(torch.zeros(batch, 3, 32, 32, device="cuda")).logits.sum().backward()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    card = 2 * 8192**3 / timed(lambda: a @ a, 30) * 1e3
    ours = counter.get_total_flops() * (n / batch) / float(row["median_after_two"])  # type: ignore[arg-type]
    return {
        "tflops": round(ours / 1e12, 1),
        "card_tflops": round(card / 1e12, 1),
        "share": round(ours / card, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="wrn,wrn-paper,lenet,resnet")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--models", default="1,8")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--classes", default="32000,1000", help="of losses")
    parser.add_argument(
        "--losses", default="", help="which, by spaces; by default every margin loss"
    )
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "gpu.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(0, "There is no GPU here: nothing was measured.\n")
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, object]] = []
    slow = "sgd:lr=0.001,momentum=0.9,weight_decay=5e-4"
    tasks = {
        "wrn": ("cifar10", 50_000, (3, 32, 32), 10, "wrn-28-2-sln", "sln-mo", 128),
        "wrn-paper": (
            "cifar10",
            50_000,
            (3, 32, 32),
            10,
            "wrn-28-2-sln",
            "sln-mo:max_norm=none,until=none",
            128,
        ),
        "lenet": ("mnist", 60_000, (1, 28, 28), 10, "lenet5", "ce", 256),
        "mlp": ("fashion-mnist", 60_000, (1, 28, 28), 10, "mlp1024", "ce", 32),
        "mlp-cifar10": ("cifar10", 50_000, (3, 32, 32), 10, "mlp1024", "ce", 32),
        "resnet": ("cifar100", 50_000, (3, 32, 32), 100, "resnet34", "ce", 128),
    }
    sizes = {
        "losses": [(8192, int(classes)) for classes in options.classes.split(",")],
        "ln": [(1024, 100)],
        "het": [(256, 10), (128, 100)],
        "convolutions": [(8, 128)],
    }
    measures: dict[str, Callable[[int, int], Iterator[dict[str, object]]]] = {
        "losses": partial(margin_losses, names=options.losses.split()),
        "ln": logistic_normal,
        "het": het,
        "convolutions": convolutions,
    }
    for key in options.only.split(","):
        if key in measures:
            for size in sizes[key]:
                for row in measures[key](*size):
                    rows.append(row)
                    print(row, flush=True)
                write_rows(Path(options.out), rows)
            continue
        name, n, shape, classes, model, method, batch = tasks["wrn" if key == "parts" else key]
        task = prepare(images(name, n, shape, classes), "symmetric:rate=0.4")
        for models in map(int, options.models.split(",")):
            settings = Settings(
                model,
                epochs=options.epochs,
                batch_size=batch,
                optimizer=slow,
                schedule="constant",
                compile=options.compile,
            )
            measure = partial(
                profiled if options.profile else side_by_side,
                settings=settings,
                models=models,
                precision=options.precision,
                stack=not options.apart,
            )
            row = parts(measure, task, method) if key == "parts" else measure(task, method)
            with_share = key == "resnet" and not options.profile
            rows.append(
                row | (share_of_the_card(row, model, classes, batch, n) if with_share else {})
            )
            print(rows[-1], flush=True)
            write_rows(Path(options.out), rows)


if __name__ == "__main__":
    main()
