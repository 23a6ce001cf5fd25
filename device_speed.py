"""What the fused kernels, pairs of pixels and tiles gain on an H200. Not part of the library.

check K N | compile K N | step NAME | tune | epoch old|new
"""
import fcntl, json, os, statistics, sys, time, types
from pathlib import Path

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
OUT = Path(os.environ.get("OUT", "/tmp/out"))
OUT.mkdir(exist_ok=True, parents=True)
sys.path[:0] = ["src", "tests/accelerate", "benchmarks"]
import torch
import torch.nn.functional as F
from noiseproof.accelerate import layer_kernels as L
from noiseproof.accelerate import networks

NEW = dict(fused=True, moments=True, sums=True, paired=(32,), weights=(32,), ca=False)
OLD = dict(fused=False, moments=False, sums=False, paired=(), weights=(), ca=False)
VARIANTS = {
    "old": OLD,
    "R": OLD | dict(fused=True),
    "R+F1": OLD | dict(fused=True, moments=True),
    "R+F1+F2": OLD | dict(fused=True, moments=True, sums=True),
    "R+F1+F2+P32": NEW,
    "R+F1+F2+P64": NEW | dict(paired=(32, 64), weights=(32, 64)),
    "R+F1+F2+P32+ca": NEW | dict(ca=True),
    "R+F1+F2+P32+L1": NEW | dict(l1=True),
}


def use_ca():
    """cp.async of 16 bytes through the first-level cache, which Triton 3.6 does not emit, whatever cache_modifier says."""
    import triton

    os.environ["TRITON_CACHE_DIR"] = "/tmp/triton-ca"  # the key of the cache does not know of this

    def hook(backend, stages, options, language, capability):
        make = stages["ptx"]
        stages["ptx"] = lambda src, metadata: make(src, metadata).replace("cp.async.cg.shared", "cp.async.ca.shared")

    triton.knobs.runtime.add_stages_inspection_hook = hook


def apply(config):
    networks.FUSED, L.MOMENTS, L.GRADIENT_SUMS = config["fused"], config["moments"], config["sums"]
    L.PAIRED, L.PAIRED_WEIGHTS = tuple(config["paired"]), tuple(config["weights"])
    if config["ca"]:
        use_ca()
    if config.get("l1"):
        import triton.language as tl
        L.THROUGH_L1 = tl.constexpr(True)
    L.TUNED.clear()
    for kind, columns, outputs, *tile in config.get("tuned", []):
        L.TUNED[kind, columns, outputs] = L.Tile(*tile)


def graph_ms(run, calls=1, rounds=12):
    """Median milliseconds of a call, as a CUDA graph of ``calls``."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                run()
        graph.replay()
        times = []
        for _ in range(rounds):
            a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            a.record(); graph.replay(); b.record(); b.synchronize()
            times.append(a.elapsed_time(b) / calls)
    return statistics.median(times)


def check(k=0, of=1):
    try:
        import pytest  # noqa: F401
    except ImportError:  # decorators that do nothing
        class Any:
            def __getattr__(self, name): return self
            def __call__(self, *a, **k): return a[0] if len(a) == 1 and callable(a[0]) and not k else self
        stub = types.ModuleType("pytest"); stub.mark = Any(); stub.fixture = lambda *a, **k: (lambda f: f)
        stub.skip = stub.raises = None; stub.MonkeyPatch = object
        sys.modules["pytest"] = stub
    import test_kernels as t
    torch.backends.cudnn.allow_tf32 = False
    t.BLOCKS |= {"s1": (2, 80, 32, 32, 32, 32, 1), "s1-s2": (2, 48, 32, 64, 32, 32, 2), "s3": (2, 80, 128, 128, 8, 8, 1)}  # 80: the last batch of 50 000
    bad = 0
    bf16, blocks = torch.bfloat16, t.test_fused_blocks_are_those_of_each_network
    cases = [(blocks, (n, bf16)) for n in ("s1", "s1-s2", "s3", "pairs", "odd", "halving", "long")]
    cases += [(t.test_a_fused_block_does_not_depend_on_the_other_networks, (n,)) for n in ("s1-s2", "pairs")]
    cases += [(blocks, (n, torch.float32)) for n in ("pairs", "odd")]
    cases += [(t.test_convolutions_are_those_of_each_network, (n, bf16)) for n in ("pairs-of-inputs", "pairs-of-outputs")]
    cases = cases[int(k) :: int(of)]
    for f, a in cases:
        try:
            f(*a)
        except Exception as e:
            bad += 1
            print("FAILED", f.__name__, a, type(e).__name__, str(e)[:300].replace("\n", " "), flush=True)
    print(f"check: {len(cases) - bad} of {len(cases)} passed")


def network(seats=8, batch=128):
    from noiseproof.models.classifier import build_classifier

    def make(seed):
        return build_classifier("wrn-28-2-sln", "linear", input_shape=(3, 32, 32), num_outputs=10,
                                generator=torch.Generator().manual_seed(seed)).cuda().train()

    stack = networks.Stack([make(s) for s in range(seats)])
    x = torch.randn(seats * batch, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (seats * batch,), device="cuda")

    def run():
        stack.clear_gradients()
        with torch.autocast("cuda", torch.bfloat16):
            out = stack(x).logits
        F.cross_entropy(out.float(), y).backward()

    return run


def step(name):
    config = json.loads((OUT / "tuned.json").read_text()) if name == "tuned" else VARIANTS[name]
    apply(config)
    torch.manual_seed(0)
    run = network()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    if name != "tuned":
        (OUT / f"ready-{name}").touch()
        while not (OUT / "go").exists():
            time.sleep(0.1)
    with open(OUT / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        torch.cuda.empty_cache()
        ms = graph_ms(run, 1, 25)
        peak = torch.cuda.max_memory_reserved() / 2**30
        row = f"{name:18s} {ms:7.3f} ms a step of eight (forward and backward) = {ms * 391 / 8e3:.4f} s a model-epoch, {peak:.1f} GiB"
        print(row, flush=True)
        with open(OUT / "steps.jsonl", "a") as f:
            f.write(json.dumps([name, ms, config]) + "\n")


# kind, seats, channels in, out, side
WRN = [("wrn", 8, 32, 32, 32), ("wrn", 8, 64, 64, 16), ("wrn", 8, 128, 128, 8)]
RESNET = [("resnet34", 3, 64, 64, 32), ("resnet34", 3, 128, 128, 16), ("resnet34", 3, 256, 256, 8), ("resnet34", 3, 512, 512, 4)]
LAYERS = {"wrn": [8, 8, 8], "resnet34": [6, 7, 11, 5]}  # 3×3 convolutions of stride 1 of each shape, about


def tiles(kind, op, c, n, pair):
    k, bn = 3 * (2 + pair) * c, min(pair * n, 128)
    if op == "weight":
        now = L.weight_tile(k, pair * n, torch.bfloat16)
        more = [(64, bn, 128, 8, 3), (128, bn, 128, 8, 2), (64, bn, 256, 8, 3), (64, bn, 128, 4, 3), (64, bn, 64, 4, 4), (32, bn, 128, 4, 4), (64, bn, 128, 8, 1)]
        if kind != "wrn":
            more = more[:4]
    else:
        now = L.product_tile(k, pair * n, torch.bfloat16)
        more = [(128, bn, 64, 4, 3), (128, bn, 64, 8, 3), (256, bn, 64, 8, 2), (256, bn, 64, 8, 3), (128, bn, 64, 4, 4), (128, bn, 64, 8, 4),
                (128, bn, 64, 4, 2), (128, bn, 64, 4, 1), (256, bn, 64, 8, 1)]
        if bn == 32:
            more = [(256, 32, 32, 4, 3), (128, 32, 32, 4, 4)]
        if kind != "wrn":
            more = [(128, bn, 64, 8, 4), (256, bn, 64, 8, 3)]
            if n >= 256:
                more.append((128, 256, 64, 8, 3))
    return list(dict.fromkeys([now, *(L.Tile(*t) for t in more)]))


def configs():
    for shape in [*WRN, *RESNET]:
        kind, seats, c, n, side = shape
        for pair in (1, 2) if kind == "wrn" and n <= 64 else (1,):
            for op in ("forward", "back", "weight"):
                for tile in tiles(kind, op, c, n, pair):
                    yield shape, op, pair, tile


def prepare(shape):
    _, s, c, n, side = shape
    g = torch.Generator("cuda").manual_seed(0)
    new = lambda *a: torch.randn(*a, generator=g, device="cuda")
    image = lambda k: new(s * 128, side, side, k).bfloat16().permute(0, 3, 1, 2)
    return dict(x=image(c), g=image(n), w=(new(s, n, 3, 3, c) / (9 * c) ** 0.5).bfloat16(), b=new(s, n), beside=image(n),
                norm=(image(c), new(s, c), new(s, c), new(2, s, c).abs()))


def product(shape, op, pair, tile, v, parts=True):
    _, s, c, n, side = shape
    k, outputs = 3 * (2 + pair) * (n if op == "back" else c), pair * (c if op == "back" else n)

    def run():
        L.PAIRED = L.PAIRED_WEIGHTS = (n,) if pair == 2 else ()
        L.TUNED.clear()
        L.TUNED["weight" if op == "weight" else "product", k, outputs] = tile
        if op == "forward":
            return L._multiply(v["x"], v["w"], v["b"], side, side, 1, 1, False, v["beside"] if parts else None, parts)
        if op == "back":
            return L._multiply(v["g"], v["w"], None, side, side, 1, 1, True, None, parts, v["norm"] if parts else ())
        return L._weights_gradient(v["x"], v["g"], s, 3, 3, 1, 1, True)

    return run


def cudnn(shape, op, v):
    _, s, c, n, side = shape
    xs, gs, bs = v["x"].chunk(s), v["g"].chunk(s), v["b"].bfloat16()
    ws = [w.permute(0, 3, 1, 2) for w in v["w"]]

    def run():
        for i in range(s):
            if op == "forward":
                F.conv2d(xs[i], ws[i], bs[i], 1, 1)
            else:
                torch.ops.aten.convolution_backward(gs[i], xs[i], ws[i], [n], [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
                                                    [op == "back", op == "weight", False])
    return run


def compile_part(k, of):
    values = {}
    for shape, op, pair, tile in list(configs())[k::of]:
        if shape not in values:
            values.clear()
            values[shape] = prepare(shape)
        try:
            product(shape, op, pair, tile, values[shape])()
        except Exception as e:
            print("cannot compile", shape, op, pair, tile, str(e)[:100].replace("\n", " "))
    torch.cuda.synchronize()


def tune():
    torch.backends.cudnn.benchmark = True
    rows, best, values = [], {}, {}
    begin = time.time()
    for shape, op, pair, tile in list(configs()):
        if time.time() - begin > float(os.environ.get("TUNE_S", 22)):
            print("tune: out of time at", shape, op, pair)
            break
        kind, s, c, n, side = shape
        if shape not in values:
            values.clear()
            values[shape] = prepare(shape)
        v = values[shape]
        flop = 2 * s * 128 * side * side * 9 * c * n
        if (shape, op) not in best:
            best[shape, op] = dict(now=None, cudnn=graph_ms(cudnn(shape, op, v), 2, 7), flop=flop)
        try:
            ms = graph_ms(product(shape, op, pair, tile, v), 3, 7)
        except Exception as e:
            rows.append([shape, op, pair, tile, str(e)[:200]])
            continue
        rows.append([shape, op, pair, tile, ms])
        b = best[shape, op]
        if b["now"] is None:
            b["now"] = ms  # the first tile is the present one, without pairs; product with its epilogue
            b["plain"] = graph_ms(product(shape, op, pair, tile, v, False), 3, 7)
        b.setdefault(pair, (ms, tile))
        b[pair] = min(b[pair], (ms, tile))
    (OUT / "tune.json").write_text(json.dumps(rows, indent=0))
    print(f"{'stack of S × in→out@side':28s} {'op':8s} {'now':>7s} {'bare':>7s} {'best':>7s} {'pairs':>7s} {'cuDNN':>7s}  TFLOP/s of best; tiles (rows, outputs, columns, warps, stages)")
    sums = {}
    config = dict(NEW) | dict(paired=[], weights=[], tuned=[])
    for (shape, op), b in best.items():
        kind, s, c, n, side = shape
        one, two = b.get(1, (9e9, None)), b.get(2, (9e9, None))
        top = min(one, two)
        print(f"{kind:8s} {s} × {c:3d}→{n:3d}@{side:<2d}      {op:8s} {b['now'] or 0:7.4f} {b.get('plain', 0):7.4f} {one[0]:7.4f} {two[0] if two[1] else 0:7.4f} {b['cudnn']:7.4f}"
              f"  {b['flop'] / top[0] / 1e9:5.0f}; {tuple(one[1] or ())} pairs {tuple(two[1] or ())}")
        shapes = WRN if kind == "wrn" else RESNET
        count = LAYERS[kind][shapes.index(shape)]
        for name, ms in (("now", b["now"]), ("best", top[0]), ("cudnn", b["cudnn"])):
            sums[kind, name] = sums.get((kind, name), 0) + count * (ms or 0) / s * 391 / 1e3
        if kind == "wrn" and top[1] is not None:
            pair = 2 if two < one else 1
            if pair == 2:
                config["weights" if op == "weight" else "paired"].append(n)
            cc, nn = (n, c) if op == "back" else (c, n)
            config["tuned"].append(["weight" if op == "weight" else "product", 3 * (2 + pair) * cc, pair * nn, *top[1]])
    for (kind, name), s in sums.items():
        print(f"3×3 convolutions of {kind} with {name}: {s:.3f} s a model-epoch of 50 000")
    # Forward and back share a key where in = out channels: of two measured tiles the last would win; take the one with
    # the smaller sum over both.
    both = {}
    for shape, op, pair, tile, ms in rows:
        if shape[0] == "wrn" and op != "weight" and isinstance(ms, float):
            both.setdefault((shape, pair, tile), []).append(ms)
    config["paired"], config["tuned"] = [], [t for t in config["tuned"] if t[0] == "weight"]
    for shape in WRN:
        found = [(sum(ms), pair, tile) for (sh, pair, tile), ms in both.items() if sh == shape and len(ms) == 2]
        if found:
            _, pair, tile = min(found)
            n = shape[3]
            config["paired"] += [n] if pair == 2 else []
            config["tuned"].append(["product", 3 * (2 + pair) * n, pair * n, *tile])
    (OUT / "tuned.json").write_text(json.dumps(config))
    print("to land: PAIRED =", tuple(config["paired"]), " PAIRED_WEIGHTS =", tuple(sorted(set(config["weights"]))), " TUNED = {")
    for kind, columns, outputs, *tile in config["tuned"]:
        print(f'    ("{kind}", {columns}, {outputs}): Tile{tuple(tile)},')
    print("}")


def epoch(which):
    config = OLD
    if which == "new":
        rows = [json.loads(line) for line in (OUT / "steps.jsonl").read_text().splitlines()]
        name, _, config = min((row for row in rows if not row[2]["ca"]), key=lambda row: row[1])
        print("epoch new:", name, config)
    apply(config)
    import gpu
    sys.argv = ["gpu.py", "--only", "wrn-paper", "--models", "8", "--epochs", os.environ.get("EPOCHS", "4"), "--out", str(OUT / f"gpu-{which}.json")]
    gpu.main()


if __name__ == "__main__":
    command, *rest = sys.argv[1:]
    {"check": check, "step": step, "tune": tune, "epoch": epoch,
     "compile": lambda k, of: compile_part(int(k), int(of))}[command](*rest)
