"""What may be done with a tensor here and now."""

from __future__ import annotations

import torch
from torch import Tensor

in_torch_func = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)  # inside vmap, grad and the like


def eager() -> bool:
    """Whether operations run as they are called: neither compiled nor transformed by torch.func."""
    return not torch.compiler.is_compiling() and not in_torch_func()


def readable(tensor: Tensor) -> bool:
    """Whether reading values costs nothing: on a CPU, in eager mode."""
    return tensor.is_cpu and eager()


def wide(dtype: torch.dtype) -> torch.dtype:
    """float32 at least: float16 and bfloat16 have too few digits, or too small a range, for sums."""
    return torch.promote_types(dtype, torch.float32)
