"""Where kernels of our own can run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

# For a while, the device of a tensor is the current one, on which kernels start wherever their numbers lie.
device_of: Callable[[Tensor], AbstractContextManager[Any]] = torch.cuda.device_of


def has_kernels(x: Tensor) -> bool:
    """Whether Triton compiles for where ``x`` lies: NVIDIA's GPUs since 2017, with the PyTorch of Linux.

    Inside ``torch.func.vmap`` and the like it is false: tensors are several there, of which no kernel knows.
    """
    return x.is_cuda and torch._C._functorch.peek_interpreter_stack() is None and _compiles(x.get_device())


@cache
def _compiles(index: int) -> bool:
    return bool(find_spec("triton")) and not torch.version.hip and torch.cuda.get_device_capability(index) >= (7, 0)
