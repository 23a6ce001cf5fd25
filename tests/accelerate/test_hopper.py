"""The kernels of conv3x3.cu against PyTorch in float64: their source compiled for a CPU, threads
being coroutines.

On a Hopper GPU, test_kernels.py runs them as they are.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from noiseproof.accelerate import hopper

EMULATOR = Path(__file__).with_name("emulator.h")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

PRODUCTS = """
#ifdef PRODUCT
constexpr bool A = false, B = BACK;
#else
constexpr bool A = true, B = true;
#endif
template <int COLUMNS> void wgmma(float (&acc)[COLUMNS / 2], u64 a, u64 b) {
  multiply(COLUMNS, A, B, acc, a, b);
}
"""


class Emulated:
    """In place of a kernel on a GPU."""

    slots = 5
    folder: Path

    def __init__(self, device: int, name: str, text: str, threads: int, memory: int) -> None:
        assert memory <= hopper.SHARED
        kinds = {"product": "hhfhiii", "weight_gradient": "hhfiii"}[name]
        types = {"h": "half*", "f": "float*", "i": "int"}
        names = [f"v{i}" for i in range(len(kinds))]
        signature = ", ".join(
            f"{types[kind]} {name}" for kind, name in zip(kinds, names, strict=True)
        )
        run = (
            f'\nextern "C" void run(int x, int y, int z, {signature}) {{ is_bfloat16 = TYPE[0] =='
            f" 'b'; launch({{x, y, z}}, {threads}, {memory}, [=] {{ {name}({', '.join(names)});"
            " }); }\n"
        )
        defined = text.replace("constexpr bool DEEP", PRODUCTS + "constexpr bool DEEP", 1)
        built = self.folder / hashlib.sha256(text.encode()).hexdigest()[:16]
        file = built.with_suffix(".cpp")
        file.write_text(f'#include "{EMULATOR}"\n{defined}{run}', "utf-8")
        flags = ["-O1", "-std=c++17", "-shared", "-fPIC", "-Wno-unknown-pragmas", "-o", str(built)]
        subprocess.run(["g++", *flags, str(file)], check=True)
        self.library = ctypes.CDLL(str(built))

    def __call__(self, grid: tuple[int, int, int], *values: Tensor | int) -> None:
        self.library.run(*grid, *hopper.arguments(values))


@pytest.fixture(autouse=True)
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hopper, "_Kernel", Emulated)
    monkeypatch.setattr(hopper, "_suits", lambda *sizes: True)
    monkeypatch.setattr(Emulated, "folder", tmp_path, raising=False)
    hopper._product.cache_clear(), hopper._weight_gradient.cache_clear()


# networks, rows of each, inputs, outputs, side
SHAPES = {
    "16 to 32": (2, 1, 16, 32, 32, torch.bfloat16),
    "side 16": (1, 2, 64, 128, 16, torch.float16),
    "an odd image": (2, 3, 96, 96, 8, torch.bfloat16),
    "side 8, 32 outputs": (1, 2, 32, 32, 8, torch.float16),
    "images of 16 pixels": (2, 17, 64, 64, 4, torch.bfloat16),
}


def close(value: Tensor, exact: Tensor, dtype: torch.dtype) -> bool:
    error = float((value.double() - exact).abs().max() / exact.abs().max())
    return error < 1.1 * {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 8e-6}[dtype]


@pytest.mark.parametrize("name", SHAPES)
def test_convolutions_and_gradients_are_pytorchs(name: str) -> None:
    s, b, i, o, side, dtype = SHAPES[name]
    generator = torch.Generator().manual_seed(0)
    x, grad, weight = (
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((s * b, side, side, i), (s * b, side, side, o), (s, o, 3, 3, i))
    )
    weight, bias = weight / 16, torch.randn(s, o, generator=generator)
    exact = [value.double().requires_grad_() for value in (x, weight, bias)]
    each = [
        F.conv2d(rows.permute(0, 3, 1, 2), exact[1][n].permute(0, 3, 1, 2), exact[2][n], padding=1)
        for n, rows in enumerate(exact[0].unflatten(0, (s, b)))
    ]
    out = torch.cat(each).permute(0, 2, 3, 1)
    to_x, to_weight, to_bias = torch.autograd.grad(out, exact, grad.double())
    found, back = hopper.product(x, weight, bias, False), hopper.product(grad, weight, None, True)
    parts = hopper.weight_gradient(x, grad, s, True)
    # else Triton's serve
    assert parts is not None and all((made is None) == (side < 16) for made in (found, back))
    if found is not None and back is not None:
        assert close(found, out.detach(), dtype) and close(back, to_x, dtype)
    assert close(
        parts.double().sum(0), torch.cat([to_weight.flatten(), to_bias.flatten()]), torch.float32
    )
    # The last network alone: to the bit the same.
    x, grad, weight, bias = (
        value.unflatten(0, (s, -1))[-1:].flatten(0, 1) for value in (x, grad, weight, bias)
    )
    alone = hopper.weight_gradient(x, grad, 1, False)
    assert alone is not None and torch.equal(
        alone, parts[:, : to_weight.numel()].view(len(parts), s, -1)[:, -1]
    )
    one = hopper.product(x, weight, bias, False)
    assert one is None or (found is not None and torch.equal(one, found[-b:]))


@pytest.mark.parametrize("name", ["product", "weight_gradient"])
def test_a_wrong_kernel_is_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    class Wrong(Emulated):
        """As if each program lost what it summed up before its last tile."""

        def __call__(self, grid: tuple[int, int, int], *values: Tensor | int) -> None:
            *tensors, images, tiles, share = values
            super().__call__(grid, *tensors, images, tiles, 1 if share > 1 else share)

    monkeypatch.setattr(hopper, "_Kernel", Wrong)
    monkeypatch.setattr(hopper, "is_enabled", True)
    x, grad, weight = (
        torch.ones(1, 16, 16, 32),
        torch.ones(1, 16, 16, 32),
        torch.ones(1, 32, 3, 3, 32),
    )
    x, grad, weight = (value.bfloat16() for value in (x, grad, weight))
    made = (
        hopper.product(x, weight, None, False)
        if name == "product"
        else hopper.weight_gradient(x, grad, 1, False)
    )
    assert made is None and not hopper.is_enabled
    assert "is off by" in caplog.text and "Convolutions run in Triton" in caplog.text


@pytest.mark.parametrize("side", hopper.SIDES)
@pytest.mark.parametrize(
    ("c", "n"), [(16, 32), (32, 32), (32, 64), (64, 128), (96, 160), (256, 256), (512, 512)]
)
def test_tiles_fit(side: int, c: int, n: int) -> None:
    assert hopper.weight_tile(side, c, n) is not None
    for one, other in ((c, n), (n, c)):
        for tile in (hopper.product_tile(side, one, other), hopper.weight_tile(side, c, n)):
            assert tile is None or tile.memory <= hopper.SHARED
        tile = hopper.product_tile(side, one, other)
        assert tile is None or tile.stages > (tile.teams - 1) * one // tile.channels  # see there


def test_wide_networks_are_stacked_where_the_kernels_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.zeros(1)
    assert hopper.widest(weight, (32, 32)) == 128  # on a CPU
    monkeypatch.setattr(hopper, "serves", lambda x: True)
    assert [
        hopper.widest(weight, sides) for sides in ((32, 32), (32, 16), (28, 28), (784,), ())
    ] == [512, *[128] * 4]
