"""Scratch: which tiles of conv3x3.cu are right and fast on this GPU. Removed before merging."""

from __future__ import annotations

import statistics
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F

from noiseproof.accelerate import hopper as h
from noiseproof.accelerate import layer_kernels as lk

WRN = [(32, 32, 32), (16, 64, 64), (8, 128, 128), (32, 32, 64), (16, 64, 128), (32, 16, 32)]
RESNET = [(32, 64, 64), (16, 128, 128), (8, 256, 256), (4, 512, 512)]
BF = torch.bfloat16
swapped = False
plain_source = h.source


def source(*args):
    text = plain_source(*args)
    if swapped:
        if args[-1][0][1]:
            text = text.replace("(u64)along << 16 | (u64)across << 32", "(u64)across << 16 | (u64)along << 32")
        else:
            text = text.replace("BACK ? 8 : LINE, BACK ? LINE : 8", "LINE, 8")
    return text


h.source = source


def say(*what):
    print(*what, flush=True)


def data(side, c, n, s, b, dtype=BF, seed=0):
    g = torch.Generator("cuda").manual_seed(seed)
    make = lambda *shape: torch.randn(*shape, generator=g, device="cuda")  # noqa: E731
    return (make(s * b, side, side, c).to(dtype), (make(s, n, 3, 3, c) / (9 * c) ** 0.5).to(dtype), make(s, n),
            make(s * b, side, side, n).to(dtype))  # fmt: skip


def error(a, r):
    return float((a.double() - r).norm() / r.norm()), float((a.double() - r).abs().max() / r.abs().max())


def check(side, c, n, s, b, dtype=BF):
    """Every tile against float64."""
    x, w, bias, gr = data(side, c, n, s, b, dtype)
    X, W, B = (v.double().requires_grad_() for v in (x, w, bias))
    with torch.backends.cudnn.flags(enabled=False):
        ref = torch.cat([F.conv2d(part.permute(0, 3, 1, 2), W[k].permute(0, 3, 1, 2), B[k], 1, 1)
                         for k, part in enumerate(X.unflatten(0, (s, b)))]).permute(0, 2, 3, 1)  # fmt: skip
        gx, gw, gb = torch.autograd.grad(ref, (X, W, B), gr.double())
    bad = 0
    for kind, tiles in (("fwd", h.product_tiles(side, c, n)), ("back", h.product_tiles(side, n, c)),
                        ("weight", h.weight_tiles(side, c, n))):  # fmt: skip
        for tile in tiles:
            h.is_enabled = True
            try:
                torch.full((1 << 24,), float("nan"), device="cuda")  # poison what is allocated next
                if kind == "fwd":
                    found = [error(h.product(x, w, bias, False, tile), ref.detach())]
                elif kind == "back":
                    found = [error(h.product(gr, w, None, True, tile), gx)]
                else:
                    whole = h.weight_gradient(x, gr, s, True, tile).sum(0)
                    found = [error(whole[: gw.numel()], gw.flatten()), error(whole[gw.numel() :], gb.flatten())]
            except Exception:
                traceback.print_exc()
                bad += 1
                continue
            limit = (3e-3 if dtype == BF else 4e-4, 4.5e-3 if dtype == BF else 6e-4)
            limit = (4e-5, 4e-5) if kind == "weight" else limit
            wrong = any(not (e[0] < limit[0] and e[1] < limit[1]) for e in found)
            bad += wrong
            say(
                "WRONG" if wrong else "ok",
                kind,
                (side, c, n, s, b),
                tuple(tile),
                [f"{v:.1e}" for e in found for v in e],
            )
    return bad


def timed(calls):
    """Milliseconds of one call, in a graph that goes round the inputs."""
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


def kernels_of(side, c, n):
    return ([("fwd", t) for t in h.product_tiles(side, c, n)] + [("back", t) for t in h.product_tiles(side, n, c)]
            + [("weight", t) for t in h.weight_tiles(side, c, n)])  # fmt: skip


def make(side, c, n, kind, tile, bias, dtype=BF):
    if kind == "weight":
        return h._weight_gradient(0, dtype, side, c, n, bias, tile)
    a, b = (n, c) if kind == "back" else (c, n)
    return h._product(0, dtype, side, a, b, kind == "back", bias and kind == "fwd", tile)


def compile_all(shapes, bias, dtype=BF):
    """Text to machine code in parallel; loading is done later, on this thread."""
    texts = []
    library, kernel = h._library(0), h._Kernel
    h._Kernel = lambda device, name, text, threads, memory: texts.append(text)
    for shape in shapes:
        for kind, tile in kernels_of(*shape):
            make(*shape, kind, tile, bias, dtype)
    h._Kernel = kernel
    h._product.cache_clear(), h._weight_gradient.cache_clear()
    texts = list(dict.fromkeys(texts))
    start = time.time()
    with ThreadPoolExecutor(14) as pool:
        list(pool.map(lambda text: h.compiled(library.nvrtc, text, library.architecture), texts))
    say(f"{len(texts)} kernels compiled in {time.time() - start:.1f} s")


def race(shape, s, b, bias):
    side, c, n = shape
    sets = [data(side, c, n, s, b, seed=k) for k in range(3)]
    flop = 2 * s * b * side**2 * 9 * c * n
    best: dict[str, tuple] = {}
    for kind, tile in kernels_of(*shape):
        try:
            kernel = make(*shape, kind, tile, bias)
            facts = f"regs {kernel.attribute(4)} local {kernel.attribute(3)} slots {kernel.slots}"
            if kind == "fwd":
                calls = [lambda d=d: h.product(d[0], d[1], d[2] if bias else None, False, tile) for d in sets]
            elif kind == "back":
                calls = [lambda d=d: h.product(d[3], d[1], None, True, tile) for d in sets]
            else:
                calls = [lambda d=d: lk._summed(h.weight_gradient(d[0], d[3], s, bias, tile)) for d in sets]
            ms = timed(calls)
            best[kind] = min(best.get(kind, (9e9,)), (ms, tile))
            say(f"  {kind:6} {shape} x{s} {tuple(tile)} {ms:.4f} ms {flop / ms / 1e9:.0f} TF/s  {facts}")
        except Exception:
            say("FAILED", kind, shape, tile)
            traceback.print_exc()
    return {"shape": shape, "s": s, "flop": flop, "best": best}


def cudnn(shape, s, b):
    side, c, n = shape
    x, w, _, gr = data(side, c, n, s, b)
    x, gr, w = (
        x.permute(0, 3, 1, 2),
        gr.permute(0, 3, 1, 2),
        w[0].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last),
    )
    back = lambda mask: torch.ops.aten.convolution_backward(
        gr, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask
    )  # noqa: E731
    return {"fwd": timed([lambda: F.conv2d(x, w, None, 1, 1)]), "back": timed([lambda: back([True, False, False])]),
            "weight": timed([lambda: back([False, True, False])])}  # fmt: skip


def triton_times(shape, s, b, bias):
    side, c, n = shape
    x, w, bi, gr = data(side, c, n, s, b)
    x, gr = x.permute(0, 3, 1, 2), gr.permute(0, 3, 1, 2)
    h.is_enabled = False
    try:
        return {"fwd": timed([lambda: lk._multiply(x, w, bi if bias else None, side, side, 1, 1, False)]),
                "back": timed([lambda: lk._multiply(gr, w, None, side, side, 1, 1, True)]),
                "weight": timed([lambda: lk._weights_gradient(x, gr, s, 3, 3, 1, 1, bias)])}  # fmt: skip
    finally:
        h.is_enabled = True


def part(run, *args):
    try:
        return run(*args)
    except Exception:
        traceback.print_exc()
        sys.stdout.flush()
    return None


OLD = {  # of the run before: Triton's and cuDNN's
    (32, 32, 32): ((0.1073, 0.1050, 0.1405), (0.1111, 0.1002, 0.1933)),
    (16, 64, 64): ((0.0543, 0.0538, 0.0690), (0.0532, 0.0501, 0.0545)),
    (8, 128, 128): ((0.0358, 0.0397, 0.0605), (0.0352, 0.0355, 0.0459)),
    (32, 32, 64): ((0.1341, 0.1881, 0.1709), (0.1176, 0.1653, 0.1976)),
    (16, 64, 128): ((0.0845, 0.0952, 0.1088), (0.0674, 0.0891, 0.0778)),
    (32, 16, 32): ((0.0916, 0.0836, 0.1073), (0.1173, 0.0979, 0.1640)),
    (32, 64, 64): ((0.1902, 0.1939, 0.2300), (0.1659, 0.1646, 0.1681)),
    (16, 128, 128): ((0.1317, 0.1547, 0.2049), (0.1104, 0.1120, 0.1198)),
    (8, 256, 256): ((0.1225, 0.1400, 0.4376), (0.1055, 0.1026, 0.1233)),
    (4, 512, 512): ((0.1180, 0.1384, 1.3372), (0.0980, 0.0979, 0.1035)),
}


def main():
    start = time.time()
    say(torch.__version__, torch.cuda.get_device_name())
    part(compile_all, WRN + RESNET, True)
    part(compile_all, RESNET, False)
    wrong = Counter()
    for shape in WRN + RESNET:
        wrong[shape] = part(check, *shape, 2, 19)
    part(check, 8, 64, 32, 2, 5, torch.float16)
    say("wrong tiles:", dict(wrong), f"{time.time() - start:.0f} s")
    results = [part(race, shape, 8, 128, shape in WRN) for shape in WRN + RESNET]
    say(f"{time.time() - start:.0f} s")
    for result in filter(None, results):
        shape, flop = result["shape"], result["flop"]
        for place, kind in enumerate(("fwd", "back", "weight")):
            ms, tile = result["best"].get(kind, (9e9, None))
            triton, cudnn_ms = (times[place] for times in OLD[shape])
            side, c, n = shape
            key = (
                ("weight", side, c, n)
                if kind == "weight"
                else ("product", side, *((c, n) if kind == "fwd" else (n, c)), kind)
            )
            h.TABLE[key] = tile if ms < triton else None
            say(
                f"BEST {kind:6} {shape} {tuple(tile or ())} {ms:.4f} ms {flop / ms / 1e9:.0f} TF/s, Triton {triton}, cuDNN {cudnn_ms}"
            )
    say(h.TABLE)
    say(f"{time.time() - start:.0f} s")
    part(epochs, "wrn-paper", 8, 4, False)
    say(f"{time.time() - start:.0f} s")
    part(epochs, "wrn-paper", 8, 4, True)
    say(f"{time.time() - start:.0f} s")
    part(epochs, "wrn-paper", 8, 3, True, True)
    say(f"{time.time() - start:.0f} s")
    part(epochs, "resnet", 8, 3, True)
    say(f"{time.time() - start:.0f} s")
    part(epochs, "resnet", 8, 3, True, True)
    say(f"{time.time() - start:.0f} s")


def epochs(key, models, count, new, profiled=False):
    """Seconds a model and epoch, as benchmarks/gpu.py measures them."""
    import gpu

    from noiseproof.accelerate import networks
    from noiseproof.train import Settings, prepare

    networks.WIDEST = 512
    h.is_enabled = new
    slow = "sgd:lr=0.001,momentum=0.9,weight_decay=5e-4"
    tasks = {
        "wrn-paper": ("cifar10", 50_000, (3, 32, 32), 10, "wrn-28-2-sln", "sln-mo:max_norm=none", 128),
        "resnet": ("cifar100", 50_000, (3, 32, 32), 100, "resnet34", "ce", 128),
    }
    name, n, shape, classes, model, method, batch = tasks[key]
    task = prepare(gpu.images(name, n, shape, classes), "symmetric:rate=0.4")
    settings = Settings(model, epochs=count, batch_size=batch, optimizer=slow, schedule="constant")
    measure = gpu.profiled if profiled else gpu.side_by_side
    say("EPOCHS", "new" if new else "old", measure(task, method, settings, models, "bf16-mixed", True), h.is_enabled)


def profile():
    for shape in [(32, 32, 32), (16, 64, 64), (8, 128, 128)]:
        x, w, bias, gr = data(*shape, 8, 128)
        h.product(x, w, bias, False)
        h.product(gr, w, None, True)
        h.weight_gradient(x, gr, 8, True)
    torch.cuda.synchronize()


if __name__ == "__main__":
    if "--profile" in sys.argv:
        profile()
    elif "--first" in sys.argv:
        compile_all(WRN[:2], True)
        sys.exit(bool(check(32, 32, 32, 2, 5) + check(16, 64, 64, 2, 5)))
    else:
        main()
