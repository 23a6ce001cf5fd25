"""3×3 convolutions of stacked networks in CUDA C++ (conv3x3.cu) for Hopper GPUs, compiled at run
time by NVRTC.

Triton's kernels serve wherever these cannot, or were not faster on an H200. ``is_enabled = False``
leaves all to them. A kernel is compared with PyTorch in float64 before it is used, since compilers
differ from machine to machine.
"""

from __future__ import annotations

import ctypes
import glob
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.core.tensors import is_hopper
from noiseproof.models.layers import WIDEST

log = logging.getLogger("noiseproof")
SIDES = 4, 8, 16, 32
WIDE = 512  # channels, of images of these sides: several networks run faster together than apart
SHARED = 232_448  # bytes of shared memory that a program can have
is_enabled = True
STAGES = 8  # at most


class ImageTile(NamedTuple):
    """What a program holds: rows of images, outputs, channels at a time; its teams and stages."""

    images: int
    rows: int
    outputs: int
    channels: int
    teams: int
    stages: int
    memory: int  # bytes


def product_tile(side: int, c: int, n: int) -> ImageTile | None:
    """The tile of a product over ``c`` channels to ``n`` outputs; None where Triton's is faster, or
    serves as well.
    """
    outputs = 64 if n % 64 == 0 else n
    if side < 16 or outputs not in (16, 32, 64):
        return None
    rows = 16 if outputs == 16 else 8
    channels = 32 if c % 32 == 0 else 16
    if side == 32 and c % 64 == n % 64 == 0:
        channels = 64
    teams = 3 if c <= 64 and rows * side * outputs <= 64 * 128 else 2  # as many as have registers
    # weights, …
    rest = 256 + 4 * outputs + 9 * 16 * max(outputs // 8 * (c + 1), c // 8 * (outputs + 2))
    # A team that waits for a stage must not be a whole round ahead of it: it could not tell the
    # rounds apart.
    least = (teams - 1) * (c // channels) + 1
    return _fit(
        ImageTile(1, rows, outputs, channels, teams, 0, rest),
        _plane(1, rows + 2, side, channels, channels),
        least,
    )


def weight_tile(side: int, c: int, n: int) -> ImageTile | None:
    """The tile of the gradient of weights from ``c`` channels to ``n`` outputs."""
    outputs = 64 if n % 64 == 0 else 32
    channels = next(width for width in (64, 32, 16) if c % width == 0 and width <= outputs)
    images = {4: 16, 8: 2}.get(side, 1)
    for rows in (min(side, 16), min(side, 8)):
        planes = [
            _plane(images, rows + 2, side, channels, min(channels, outputs)),
            _plane(images, rows, side, outputs, min(channels, outputs)),
        ]
        tile = _fit(ImageTile(images, rows, outputs, channels, 3, 0, 512), sum(planes), 2)
        if tile is not None:
            return tile
    return None


def _plane(images: int, rows: int, side: int, channels: int, least: int) -> int:
    """Bytes of a tile's pixels; of the rows of 8 channels, PITCH is the length."""
    layers, column = (1, images) if side == 4 else (images, 1)
    return layers * rows * channels // 8 * (side * column + (3 if least == 64 else 2)) * 16


def _fit(tile: ImageTile, stage: int, least: int) -> ImageTile | None:
    stages = min(max(STAGES, least), (SHARED - tile.memory) // stage)
    return (
        tile._replace(stages=stages, memory=tile.memory + stages * stage)
        if stages >= least
        else None
    )


def serves(x: Tensor) -> bool:
    """Whether ``x`` is on a GPU that has these kernels."""
    return is_enabled and x.is_cuda and _library(x.get_device()) is not None


def widest(weight: Tensor, sides: Sequence[int]) -> int:
    """Return how many channels stacked convolutions have at most, for images of these ``sides`` and
    weights such as ``weight``.
    """
    return WIDE if len(sides) == 2 and sides[0] == sides[1] in SIDES and serves(weight) else WIDEST


def _suits(x: Tensor, seats: int, side: int, c: int, n: int) -> bool:
    """Whether these kernels can convolve images (S·B, H, W, …) from or to ``c`` channels to or from
    ``n``.
    """
    square = x.shape[1] == x.shape[2] and side in SIDES and c % 16 == 0 and n % 32 == 0
    usable = x.dtype in (torch.bfloat16, torch.float16) and x.data_ptr() % 16 == 0 and serves(x)
    return square and usable and len(x) // seats * side**2 * max(c, n) < 2**31


def product(x: Tensor, weight: Tensor, bias: Tensor | None, back: bool) -> Tensor | None:
    """Images (S·B, H, W, C) times weights (S, O, 3, 3, I), forward or back; None where that is left
    to Triton.
    """
    rows, side, _, c = x.shape
    seats, o, kh, kw, i = weight.shape
    n = i if back else o
    tile = product_tile(side, c, n)
    if tile is None or (kh, kw) != (3, 3) or not _suits(x, seats, side, i, o):
        return None
    kernel = _made(_product, x.get_device(), x.dtype, side, c, n, back, bias is not None, tile)
    if kernel is None:
        return None
    tiles = _tiles(tile, rows // seats, side)
    share = -(-tiles // max(1, kernel.slots // (seats * (n // tile.outputs))))
    return _launch_product(kernel, tile, x, weight, bias, n, share)


def weight_gradient(x: Tensor, grad: Tensor, seats: int, bias: bool) -> Tensor | None:
    """Parts (P, …) of the gradients of weights, (S, O, 3, 3, I), and after them of biases, (S,
    O).
    """
    _, side, _, c = x.shape
    n = grad.shape[3]
    if not _suits(x, seats, side, c, n) or grad.data_ptr() % 16:
        return None
    tile = weight_tile(side, c, n)
    if tile is None:
        return None
    kernel = _made(_weight_gradient, x.get_device(), x.dtype, side, c, n, bias, tile)
    if kernel is None:
        return None
    # Parts of a fixed size, such that a batch of 128 is the work of 16 programs: eight networks
    # fill a GPU.
    share = max(1, _tiles(tile, 128, side) * (n // tile.outputs) * (c // tile.channels) // 16)
    return _launch_weight_gradient(kernel, tile, x, grad, seats, bias, share)


def _tiles(tile: ImageTile, images: int, side: int) -> int:
    return -(-images // tile.images) * (side // tile.rows)


def _launch_product(
    kernel: _Kernel,
    tile: ImageTile,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    n: int,
    share: int,
) -> Tensor:
    """To ``n`` outputs; a program has ``share`` tiles."""
    rows, side, _, _ = x.shape
    seats = len(weight)
    out = torch.empty(rows, side, side, n, dtype=x.dtype, device=x.device)
    tiles = _tiles(tile, rows // seats, side)
    grid = -(-tiles // share), n // tile.outputs, seats
    kernel(grid, x, weight, x if bias is None else bias, out, rows // seats, tiles, share)
    return out


def _launch_weight_gradient(
    kernel: _Kernel, tile: ImageTile, x: Tensor, grad: Tensor, seats: int, bias: bool, share: int
) -> Tensor:
    rows, side, _, c = x.shape
    n = grad.shape[3]
    tiles = _tiles(tile, rows // seats, side)
    blocks = n // tile.outputs * (c // tile.channels)
    parts = -(-tiles // share)
    out = torch.empty(
        parts * 64 // tile.outputs, seats * n * (9 * c + bias), dtype=torch.float32, device=x.device
    )
    kernel((blocks, parts, seats), x, grad, out, rows // seats, tiles, share)
    return out


def _made(make: Callable[..., _Kernel], *key: object) -> _Kernel | None:
    global is_enabled
    try:
        return make(*key)
    except (
        RuntimeError,
        AttributeError,
        OSError,
    ) as error:  # a compiler or a driver of another kind
        is_enabled = False
        log.warning("Convolutions run in Triton, more slowly: %s", error)
        return None


@cache
def _product(
    device: int,
    dtype: torch.dtype,
    side: int,
    c: int,
    n: int,
    back: bool,
    bias: bool,
    tile: ImageTile,
) -> _Kernel:
    more = {"PRODUCT": 1, "BACK": int(back), "BN": tile.outputs}
    text = source(side, c, n, bias, tile, dtype, more, [(tile.outputs, 0, int(back))])
    kernel = _Kernel(device, "product", text, (tile.teams + 1) * 128, tile.memory)
    images = 2 * tile.images + 3
    x, weight = _numbers(
        device, dtype, (2 * images, side, side, c), (2, c, 3, 3, n) if back else (2, n, 3, 3, c)
    )
    biases = x.float().flatten()[: 2 * n].view(2, n) if bias else None
    # each program has several tiles
    found = _launch_product(kernel, tile, x, weight, biases, n, share=3)
    for one in range(2):
        pixels, taps = (
            v.double().permute(0, 3, 1, 2) for v in (x[one * images :][:images], weight[one])
        )
        exact = (
            F.conv_transpose2d(pixels, taps, padding=1)
            if back
            else F.conv2d(pixels, taps, padding=1)
        )
        exact = exact.permute(0, 2, 3, 1) + (0 if biases is None else biases[one])
        _compare(
            found[one * images :][:images], exact, 2**-7 if dtype == torch.bfloat16 else 2**-10
        )
    return kernel


@cache
def _weight_gradient(
    device: int, dtype: torch.dtype, side: int, c: int, n: int, bias: bool, tile: ImageTile
) -> _Kernel:
    columns = (2 + 64 // tile.outputs) * tile.channels
    text = source(side, c, n, bias, tile, dtype, {"BO": tile.outputs}, [(columns, 1, 1), (8, 1, 1)])
    kernel = _Kernel(device, "weight_gradient", text, (tile.teams + 1) * 128, tile.memory)
    images = 2 * tile.images + 3
    x, grad = _numbers(device, dtype, (2 * images, side, side, c), (2 * images, side, side, n))
    found = _launch_weight_gradient(kernel, tile, x, grad, 2, bias, share=3).sum(0)
    for one in range(2):
        pixels, slopes = (
            v[one * images :][:images].double().permute(0, 3, 1, 2) for v in (x, grad)
        )
        # Images and channels change places: the sum is over images and pixels.
        exact = (
            F.conv2d(slopes.transpose(0, 1), pixels.transpose(0, 1), padding=1)
            .flip(2, 3)
            .permute(0, 2, 3, 1)
        )
        _compare(found[one * n * 9 * c :][: n * 9 * c].view(exact.shape), exact, 1e-4)
        if bias:
            _compare(found[2 * n * 9 * c + one * n :][:n], slopes.sum((0, 2, 3)), 1e-4)
    return kernel


def _numbers(device: int, dtype: torch.dtype, *shapes: Sequence[int]) -> Iterable[Tensor]:
    """Random numbers, for a comparison with PyTorch."""
    where = torch.device("cpu") if device < 0 else torch.device("cuda", device)
    generator = torch.Generator(where).manual_seed(0)
    return [torch.randn(shape, generator=generator, device=where).to(dtype) for shape in shapes]


def _compare(found: Tensor, exact: Tensor, tolerance: float) -> None:
    error = float((found.double() - exact).abs().max() / exact.abs().max())
    if not error <= tolerance:
        raise RuntimeError(f"a kernel of conv3x3.cu is off by {error:.1e}, compared with PyTorch")


def source(
    side: int,
    c: int,
    n: int,
    bias: bool,
    tile: ImageTile,
    dtype: torch.dtype,
    more: dict[str, int],
    products: list[tuple[int, int, int]],
) -> str:
    """The text of a kernel; ``products``: columns of a matrix product, and whether its factors are
    transposed.
    """
    kind, one = ("bf16", 0x3F80) if dtype == torch.bfloat16 else ("f16", 0x3C00)
    sizes: dict[str, object] = {
        "SIDE": side,
        "C": c,
        "N": n,
        "IMAGES": tile.images,
        "ROWS": tile.rows,
        "KC": tile.channels,
        "TEAMS": tile.teams,
        "STAGES": tile.stages,
        "LEAST": 8 if tile.channels == 64 else 4,
        "BIAS": int(bias),
        "TYPE": f'"{kind}"',
        "ONES": one * 65537,
        **more,
    }
    instructions = []
    for columns, a, b in products:
        count = columns // 2
        places = ", ".join(f"%{i}" for i in range(count))
        sums = ", ".join(f'"+f"(acc[{i}])' for i in range(count))
        instructions.append(
            f"template <> DEVICE void wgmma<{columns}>(float (&acc)[{count}], u64 a, u64 b) {{\n"
            f'asm volatile("{{ .reg .pred p; setp.ne.u32 p, %{count + 2}, 0;'
            " wgmma.mma_async.sync.aligned."
            f"m64n{columns}k16.f32.{kind}.{kind} {{{places}}}, %{count}, %{count + 1}, p, 1, 1,"
            f" {a}, {b}; }}"
            f'" : {sums} : "l"(a), "l"(b), "r"(1));\n}}'
        )
    text = (
        Path(__file__)
        .with_name("conv3x3.cu")
        .read_text("utf-8")
        .replace("//WGMMA", "\n".join(instructions))
    )
    return "".join(f"#define {name} {value}\n" for name, value in sizes.items()) + text


# NVRTC and the driver


class _Library(NamedTuple):
    """The compiler and the driver of a GPU, on which they were found to work."""

    nvrtc: Any
    cuda: Any
    architecture: str
    processors: int


@cache
def _library(device: int) -> _Library | None:
    if not is_hopper(device):
        return None
    version = str(torch.version.cuda).split(".")[0]
    spec = find_spec("nvidia")
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    names = [
        f"libnvrtc.so.{version}",
        *(p for f in folders for p in glob.glob(f"{f}/*/lib/libnvrtc.so.{version}")),
    ]
    names += [f"/usr/local/cuda/lib64/libnvrtc.so.{version}", "libnvrtc.so"]
    try:
        nvrtc = _first(names)
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        log.info("Convolutions run in Triton: %s", error)
        return None
    return _Library(
        nvrtc, cuda, "sm_90a", torch.cuda.get_device_properties(device).multi_processor_count
    )


def _first(names: list[str]) -> Any:
    """Load the first library that is there."""
    for name in names:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise OSError(f"Expected one of {', '.join(names)}, got none.")


def _check(result: int, what: str) -> None:
    if result:
        raise RuntimeError(f"CUDA error {result} of {what}")


@cache
def compiled(nvrtc: Any, text: str, architecture: str) -> bytes:
    """The machine code of a source."""
    program = ctypes.c_void_p()
    size = ctypes.c_size_t()
    _check(
        nvrtc.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), b"conv3x3.cu", 0, None, None
        ),
        "NVRTC",
    )
    flags = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    if nvrtc.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags)):
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        told = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, told)
        raise RuntimeError(f"NVRTC cannot compile conv3x3.cu: {told.value.decode()[:2000]}")
    _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
    code = ctypes.create_string_buffer(size.value)
    _check(nvrtc.nvrtcGetCUBIN(program, code), "nvrtcGetCUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


def arguments(values: Sequence[Tensor | int]) -> list[Any]:
    """Addresses of tensors, and numbers, as a kernel takes them."""
    return [
        ctypes.c_void_p(v.data_ptr()) if isinstance(v, Tensor) else ctypes.c_int(v) for v in values
    ]


class _Kernel:
    """A compiled kernel on one GPU."""

    def __init__(self, device: int, name: str, text: str, threads: int, memory: int) -> None:
        library = _library(device)
        assert library is not None
        self.cuda = library.cuda
        self.threads = threads
        self.memory = memory
        code = compiled(library.nvrtc, text, library.architecture)
        module = ctypes.c_void_p()
        self.function = ctypes.c_void_p()
        count = ctypes.c_int()
        _check(self.cuda.cuModuleLoadData(ctypes.byref(module), code), "cuModuleLoadData")
        _check(
            self.cuda.cuModuleGetFunction(ctypes.byref(self.function), module, name.encode()),
            "cuModuleGetFunction",
        )
        _check(
            self.cuda.cuFuncSetAttribute(self.function, 8, memory), f"shared memory, {memory} bytes"
        )
        place = self.cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor
        _check(
            place(ctypes.byref(count), self.function, threads, ctypes.c_size_t(memory)),
            "cuOccupancy",
        )
        self.slots = count.value * library.processors  # programs that run at the same time

    def __call__(self, grid: tuple[int, int, int], *values: Tensor | int) -> None:
        made = arguments(values)
        pointers = (ctypes.c_void_p * len(made))(*(ctypes.addressof(value) for value in made))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        block = self.threads, 1, 1
        result = self.cuda.cuLaunchKernel(
            self.function, *grid, *block, self.memory, stream, pointers, None
        )
        _check(result, "cuLaunchKernel")
