"""Tensors and their devices: what may be done with them here and now, streams, and where Triton
kernels can run.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

# inside vmap, grad and the like
in_torch_func = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)


def eager() -> bool:
    """Whether operations run as they are called: neither compiled nor transformed by torch.func."""
    return not torch.compiler.is_compiling() and not in_torch_func()


def readable(tensor: Tensor) -> bool:
    """Whether reading values costs nothing: on a CPU, in eager mode."""
    return tensor.is_cpu and eager()


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 at least: float16 and bfloat16 have too few digits, or too small a range, for
    sums.
    """
    return torch.promote_types(dtype, torch.float32)


# Makes the device of a tensor the current one, on which kernels start wherever their tensors are.
device_of: Callable[[Tensor], AbstractContextManager[Any]] = torch.cuda.device_of


def check_device(device: torch.device | str | None) -> None:
    """Refuse a device that PyTorch does not know, or that this machine does not have."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"Expected a device of this machine, such as cpu, got {str(device)!r}: {reason}."
        ) from error


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream for all the work of a run, independent of other runs; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)  # the run may read what was made on another stream
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def moved(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on ``device``; to a GPU from pinned memory, without waiting for what the GPU has to do
    before.
    """
    to_gpu = x.is_cpu and device.type == "cuda"
    return x.contiguous().pin_memory().to(device, non_blocking=True) if to_gpu else x.to(device)


def until_done(device: torch.device) -> Iterator[None]:
    """Yield until a GPU has done all work of the current stream so far; nothing on a CPU."""
    if device.type == "cuda":
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        while not event.query():  # type: ignore[no-untyped-call]
            yield


def has_kernels(x: Tensor) -> bool:
    """Whether Triton compiles for the device of ``x``: NVIDIA's GPUs since 2017, with PyTorch for
    Linux.

    False inside ``torch.func.vmap`` and the like, whose tensors stand for several that no kernel
    can see.
    """
    return (
        x.is_cuda
        and torch._C._functorch.peek_interpreter_stack() is None
        and _compiles(x.get_device())
    )


@cache
def is_hopper(index: int) -> bool:
    """Whether a GPU has compute capability 9.0, as H100 and H200 have."""
    return torch.cuda.get_device_capability(index) == (9, 0)


@cache
def _compiles(index: int) -> bool:
    return (
        bool(find_spec("triton"))
        and not torch.version.hip
        and torch.cuda.get_device_capability(index) >= (7, 0)
    )
