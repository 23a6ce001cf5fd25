"""Scratch: the last run on the card. Removed before merging."""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

from noiseproof.accelerate import hopper as h
from noiseproof.accelerate import layer_kernels as lk

WRN = {(32, 32, 32): 7, (16, 64, 64): 6, (8, 128, 128): 6, (32, 32, 64): 1, (16, 64, 128): 1, (32, 16, 32): 1}
RESNET = {(32, 64, 64): 6, (16, 128, 128): 7, (8, 256, 256): 11, (4, 512, 512): 5}
BF = torch.bfloat16
START = time.time()


def say(*what):
    print(f"[{time.time() - START:.0f} s]", *what, flush=True)


def part(run, *args):
    try:
        return run(*args)
    except Exception:
        traceback.print_exc()
        sys.stdout.flush()
    return None


def data(side, c, n, s, b, dtype=BF, seed=0):
    g = torch.Generator("cuda").manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    return (make(s * b, side, side, c).to(dtype), (make(s, n, 3, 3, c) / (9 * c) ** 0.5).to(dtype), make(s, n),
            make(s * b, side, side, n).to(dtype))  # fmt: skip


def error(a, r):
    return float((a.double() - r).abs().max() / r.abs().max())


def check(side, c, n, s, b, dtype=BF):
    """Everything that is covered against float64."""
    x, w, bias, gr = data(side, c, n, s, b, dtype)
    X, W, B = (v.double().requires_grad_() for v in (x, w, bias))
    with torch.backends.cudnn.flags(enabled=False):
        ref = torch.cat([F.conv2d(part.permute(0, 3, 1, 2), W[k].permute(0, 3, 1, 2), B[k], 1, 1)
                         for k, part in enumerate(X.unflatten(0, (s, b)))]).permute(0, 2, 3, 1)  # fmt: skip
        gx, gw, gb = torch.autograd.grad(ref, (X, W, B), gr.double())
    ref = ref.detach()
    found = {}
    if h.product_tile(side, c, n) is not None:
        plain = h.product(x, w, bias, False)[0]
        found["fwd"] = error(plain, ref)
        again, parts = h.product(x, w, bias, False, None, gr, True)
        found["beside"] = error(again, ref + gr.double())
        rows = again.double().view(s, -1, n)
        mean, var = torch.zeros(s, n, device="cuda"), torch.ones(s, n, device="cuda")
        moments = h.statistics(parts, mean, var, rows.shape[1], 1.0, 1e-5)
        found["mean"] = float((moments[0] - rows.mean(1)).abs().max())
        found["scale"] = error(moments[1], (rows.var(1, correction=0) + 1e-5).rsqrt())
        found["var"] = error(var, rows.var(1))
        third, fourth = h.product(x, w, bias, False, None, gr, True)
        found["same"] = float(not (torch.equal(again, third) and torch.equal(parts, fourth)))
        half = h.product(x[b:], w[1:], bias[1:], False, None, gr[b:], True)
        found["alone"] = float(not (torch.equal(half[0], again[b:]) and torch.equal(half[1], parts[1:])))
    if h.product_tile(side, n, c) is not None:
        found["back"] = error(h.product(gr, w, None, True)[0], gx)
    whole = h.weight_gradient(x, gr, s, True).sum(0)
    found["weight"], found["bias"] = error(whole[: gw.numel()], gw.flatten()), error(whole[gw.numel() :], gb.flatten())
    half = 4.5e-3 if dtype == BF else 6e-4
    limits = {
        "fwd": half,
        "beside": half,
        "back": half,
        "weight": 4e-5,
        "bias": 4e-5,
        "mean": 1e-5,
        "scale": 1e-5,
        "var": 1e-5,
    }
    wrong = {name for name, value in found.items() if not value <= limits.get(name, 0)}
    say(
        "WRONG" if wrong else "ok",
        (side, c, n, s, b),
        {name: f"{value:.1e}" for name, value in found.items()},
        wrong or "",
    )
    return bool(wrong)


def timed(calls):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(2):
            for call in calls:
                call()
    graph.replay()
    found = []
    for _ in range(5):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        found.append(a.elapsed_time(b) / (2 * len(calls)))
    return statistics.median(found)


def texts_of(shapes):
    """Sources of all kernels that shapes need."""
    texts, kernel = [], h._Kernel
    h._Kernel = lambda device, name, text, threads, memory: texts.append(text)
    for side, c, n in shapes:
        for back, (a, b) in enumerate(((c, n), (n, c))):
            tile = h.product_tile(side, a, b)
            for beside, sums in (
                ((False, False), (False, True), (True, True)) if tile and not back else ((False, False),)
            ):
                for bias in (False, True) if tile else ():
                    h._product(0, BF, side, a, b, bool(back), bias and not back, tile, beside, sums)
        for bias in (False, True):
            h._weight_gradient(0, BF, side, c, n, bias, h.weight_tile(side, c, n))
    h._Kernel = kernel
    h._product.cache_clear(), h._weight_gradient.cache_clear()
    return list(dict.fromkeys(texts))


MAIN = {
    shape: (WRN | RESNET)[shape] for shape in ((32, 32, 32), (16, 64, 64), (8, 128, 128), (32, 64, 64), (16, 128, 128))
}


def set_mode(cache, stages, shapes=None):
    h.CACHE, h.STAGES = cache, stages
    h._product.cache_clear(), h._weight_gradient.cache_clear()
    library, shapes = h._library(0), shapes or MAIN
    with ThreadPoolExecutor(14) as pool:
        list(pool.map(lambda text: h.compiled(library.nvrtc, text, library.architecture), texts_of(shapes)))


def times(shape, s=8, b=128):
    side, c, n = shape
    sets = [data(side, c, n, s, b, seed=k) for k in range(3)]
    bias = shape in WRN
    calls = {"weight": [lambda d=d: lk._summed(h.weight_gradient(d[0], d[3], s, bias)) for d in sets]}
    if h.product_tile(side, c, n) is not None:
        calls["fwd"] = [lambda d=d: h.product(d[0], d[1], d[2] if bias else None, False) for d in sets]
        calls["sums"] = [
            lambda d=d: h.product(d[0], d[1], d[2] if bias else None, False, None, None, True) for d in sets
        ]
        calls["both"] = [
            lambda d=d: h.product(d[0], d[1], d[2] if bias else None, False, None, d[3], True) for d in sets
        ]
    if h.product_tile(side, n, c) is not None:
        calls["back"] = [lambda d=d: h.product(d[3], d[1], None, True) for d in sets]
    return {kind: timed(call) for kind, call in calls.items()}


def choose():
    """How to copy: past the first cache or through it, and how much of the memory is left to it."""
    totals = {}
    for mode in (("cg", 8), ("ca", 4), ("ca", 8)):
        if part(set_mode, *mode) is None and not h.is_enabled:
            h.is_enabled = True
            continue
        total = 0.0
        for shape, count in MAIN.items():
            found = part(times, shape) or {"failed": 9e9}
            total += count * sum(ms for kind, ms in found.items() if kind in ("fwd", "back", "weight", "failed"))
            say(mode, shape, {kind: f"{ms:.4f}" for kind, ms in found.items()})
        totals[mode] = total
        say(mode, f"{total:.3f} ms")
    best = min(totals, key=totals.get)
    set_mode(*best, [*WRN, *RESNET])
    say("chosen", best, {mode: f"{total:.3f}" for mode, total in totals.items()})


def epochs(key, models, count, new, fused=True, profiled=False):
    """Seconds a model and epoch, as benchmarks/gpu.py measures them."""
    import gpu

    from noiseproof.train import Settings, prepare

    h.is_enabled = new
    fuses = h.fuses
    if not fused:
        h.fuses = lambda *values: False
    slow = "sgd:lr=0.001,momentum=0.9,weight_decay=5e-4"
    tasks = {
        "wrn-paper": ("cifar10", 50_000, (3, 32, 32), 10, "wrn-28-2-sln", "sln-mo:max_norm=none", 128),
        "resnet": ("cifar100", 50_000, (3, 32, 32), 100, "resnet34", "ce", 128),
    }
    name, n, shape, classes, model, method, batch = tasks[key]
    task = prepare(gpu.images(name, n, shape, classes), "symmetric:rate=0.4")
    settings = Settings(model, epochs=count, batch_size=batch, optimizer=slow, schedule="constant")
    measure = gpu.profiled if profiled else gpu.side_by_side
    try:
        row = measure(task, method, settings, models, "bf16-mixed", True)
    finally:
        h.fuses = fuses
    say("EPOCHS", "new" if new else "old", "fused" if fused else "not fused", row, "kernels on:", h.is_enabled)


def main():
    say(torch.__version__, torch.cuda.get_device_name())
    part(set_mode, "ca", 4, [*WRN, *RESNET])
    say("compiled")
    wrong = [part(check, *shape, 2, 19) for shape in (*WRN, *RESNET)] + [part(check, 16, 64, 64, 3, 5, torch.float16)]
    say("wrong:", wrong)
    part(choose)
    if h.CACHE != "ca" or h.STAGES != 4:
        say("wrong:", [part(check, *shape, 2, 37) for shape in (*WRN, *RESNET)])
    if (Path(__file__).parent / "norms.py").exists():
        import norms

        say("norms:", part(norms.tune, lk))
    left = partial(lambda limit: time.time() - START < limit)
    part(epochs, "wrn-paper", 8, 4, True)
    part(epochs, "resnet", 8, 3, True)
    if left(170):
        part(epochs, "wrn-paper", 8, 3, True, False)
    if left(155):
        part(epochs, "wrn-paper", 8, 3, False)
    if left(180):
        part(epochs, "wrn-paper", 8, 3, True, True, True)
    say("end")


if __name__ == "__main__":
    main()
