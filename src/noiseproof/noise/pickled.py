"""Safe reading of untrusted files that ``pickle`` or ``torch.save`` wrote.

A file can only yield numbers, strings, lists, dicts and arrays of integers; no function in it is called. NumPy and
PyTorch rebuild arrays from flags and strides in the file and crash on forged ones, so stand-ins replace them.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray


class _Kind:
    """Stand-in for ``numpy.dtype``."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: list[Any]) -> None:
        if state[1] in (">", b">"):
            raise pickle.UnpicklingError("numbers in big-endian order")


class Array:
    """Stand-in for ``numpy.ndarray``; the array itself is in ``values``."""

    values: NDArray[Any]

    def __setstate__(self, state: list[Any]) -> None:
        _, shape, kind, fortran, raw = state
        self._fill(kind.code, raw)
        self.values = self.values.reshape(shape, order="F" if fortran else "C")

    def _fill(self, code: object, raw: object) -> Array:
        if code not in ("i1", "i2", "i4", "i8", "u1") or type(raw) is not bytes:
            raise pickle.UnpicklingError("an array of something other than integers")
        self.values = np.frombuffer(bytearray(raw), f"<{code}")
        return self


def _tensor(storage: Array, offset: int, size: list[int], stride: list[int], *_: object) -> Array:
    """Stand-in for the function that rebuilds a tensor; ``as_strided`` refuses views beyond the storage."""
    view = torch.from_numpy(storage.values).as_strided(size, stride, offset)
    if view.numel() > len(storage.values):  # zero strides turn a few bytes into terabytes
        raise pickle.UnpicklingError(f"{view.numel()} labels in a storage of {len(storage.values)}")
    array = Array()
    array.values = view.numpy()
    return array


def _last(count: int) -> Any:
    """A replacement of the opcode that builds a tuple of the last ``count`` objects."""

    def load(self: IntegerUnpickler) -> None:
        self.stack[-count:] = [self.stack[-count:]]

    return load


def _refuse(self: IntegerUnpickler) -> None:
    raise pickle.UnpicklingError("a bytearray, which neither NumPy nor PyTorch writes")


class IntegerUnpickler(pickle._Unpickler):
    """Unpickler of ``blob``; ``files`` are the other members of the archive, which hold the numbers of its tensors.

    Tuples become lists: the hash of a deeply nested tuple overflows the stack.
    """

    stack: list[Any]
    admitted: ClassVar[Mapping[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: Array(),  # NumPy 1
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: Array(),
        ("numpy", "ndarray"): None,
        ("numpy", "dtype"): _Kind,
        ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
        ("collections", "OrderedDict"): lambda: {},
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch", "ByteStorage"): "u1",
        ("torch", "CharStorage"): "i1",
        ("torch", "ShortStorage"): "i2",
        ("torch", "IntStorage"): "i4",
        ("torch", "LongStorage"): "i8",
    }
    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.EMPTY_TUPLE[0]: pickle._Unpickler.dispatch[pickle.EMPTY_LIST[0]],
        pickle.TUPLE[0]: pickle._Unpickler.dispatch[pickle.LIST[0]],
        pickle.TUPLE1[0]: _last(1),
        pickle.TUPLE2[0]: _last(2),
        pickle.TUPLE3[0]: _last(3),
        pickle.BYTEARRAY8[0]: _refuse,  # 14 bytes of a file would allocate any number of them
    }

    def __init__(self, blob: bytes, files: Mapping[str, bytes] | None = None, *, encoding: str = "ASCII") -> None:
        super().__init__(io.BytesIO(blob), encoding=encoding)
        self.files = files or {}

    def find_class(self, module: str, name: str) -> Any:
        try:
            stand_in = self.admitted[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"a call of {module}.{name}") from None
        return partial(stand_in) if callable(stand_in) else stand_in  # a copy, since a file may modify it

    def persistent_load(self, pid: Any) -> Array:
        _, code, key, _, _ = pid
        return Array()._fill(code, self.files["data/" + key])


def load_saved(path: Path) -> Any:
    """What ``torch.save`` wrote to ``path``: an :class:`Array` for each tensor or array, lists, dicts."""
    with zipfile.ZipFile(path) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise pickle.UnpicklingError("compressed members, which PyTorch does not write")
        files = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    if files.get("byteorder", b"little") != b"little":
        raise pickle.UnpicklingError("numbers in big-endian order")
    return IntegerUnpickler(files["data.pkl"], files).load()
