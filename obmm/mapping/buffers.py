# SPDX-License-Identifier: Apache-2.0
"""Buffers of callers: what native code may write to them, and where they may lie."""

from __future__ import annotations

import ctypes
import errno
from typing import Any

import numpy as np
from numpy.typing import NDArray

from obmm._native import ffi, lib
from obmm.arguments import wrong_type
from obmm.errors import ObmmArgumentError, RemoteMemoryError
from obmm.mapping.guard import fault_kind

_COMPOUND = (ctypes.Structure, ctypes.Union, ctypes.Array)
_BYTES, _from_buffer = ffi.typeof("char[]"), ffi.from_buffer


def to_fill(operation: str, name: str, buffer: Any) -> Any:
    """The bytes of a caller's writable `buffer` as cffi's ``char[]``; ObmmArgumentError for anything else."""
    try:
        found = _from_buffer(_BYTES, buffer, True)
    except (TypeError, BufferError, ValueError) as error:
        raise wrong_type(
            operation, name, buffer, f"a writable contiguous buffer (bytearray, NumPy array): {error}"
        ) from None
    if type(buffer) is not bytearray and holds_objects(buffer):
        raise _objects(operation, name)
    return found


def to_read(operation: str, name: str, buffer: Any) -> Any:
    """The bytes of a caller's `buffer`, as `to_fill`."""
    try:
        found = _from_buffer(_BYTES, buffer)
    except (TypeError, BufferError, ValueError) as error:
        raise wrong_type(operation, name, buffer, f"a contiguous buffer (bytes, NumPy array): {error}") from None
    if type(buffer) is not bytes and holds_objects(buffer):
        raise _objects(operation, name)
    return found


def _objects(operation: str, name: str) -> ObmmArgumentError:
    return ObmmArgumentError.because(
        operation, errno.EINVAL, f"{name} is an array of Python objects", "bytes, or numbers", "docs/safety.md"
    )


def holds_objects(buffer: Any) -> bool:
    """Whether `buffer` is memory of Python references: bytes written over them crash the interpreter later, and bytes read
    from them are addresses of this process."""
    if type(buffer) is bytearray:
        return False
    if isinstance(buffer, np.ndarray):
        return bool(buffer.dtype.hasobject)
    owner = memoryview(buffer).obj  # a view's own format may be a cast one
    if isinstance(owner, np.ndarray):
        return bool(owner.dtype.hasobject)
    return _of_references(owner)


def _of_references(owner: Any) -> bool:
    """Whether a ctypes object, an array or structure however deep, has fields of Python references."""
    kinds: list[Any] = [type(owner)] if isinstance(owner, _COMPOUND) else []
    while kinds:
        kind = kinds.pop()
        if issubclass(kind, ctypes.py_object):
            return True
        if issubclass(kind, ctypes.Array):
            kinds.append(kind._type_)
        elif issubclass(kind, _COMPOUND):
            kinds.extend(field[1] for base in kind.__mro__ for field in vars(base).get("_fields_", ()))
    return False


def array_here(given: Any) -> NDArray[Any]:
    """``np.asarray(given)`` that NumPy may read: what lies in a view of a mapping is a guarded copy, also in a list of views.

    RemoteMemoryError if such memory is gone; what ``np.asarray`` raises for anything but an array.
    """
    if type(given) in (list, tuple) and given and not isinstance(given[0], int | float):
        try:
            given = [array_here(each) if _may_be_remote(each) else each for each in given]
        except RecursionError:
            raise ValueError("a list that is nested too deeply") from None
    return brought_here(np.asarray(given))


def _may_be_remote(thing: Any) -> bool:
    """Whether its numbers may lie in memory of another's, or a list in it has such ones."""
    return isinstance(thing, np.ndarray | memoryview | list | tuple) or hasattr(thing, "__array_interface__")


def brought_here(array: NDArray[Any]) -> NDArray[Any]:
    """`array` itself, or a guarded copy of it if it is a view of a mapping: NumPy may read the result.

    RemoteMemoryError if that memory is gone.
    """
    if not array.size or not lib.obmm_guard_covers(ffi.cast("void *", array.ctypes.data)):
        return array
    low, high = _bounds(array)
    copy = np.empty(high - low, np.uint8)
    fault = ffi.new("struct obmm_fault *")
    if lib.obmm_copy_from(ffi.from_buffer(copy), ffi.cast("void *", low), high - low, fault):
        raise RemoteMemoryError(
            errno.EFAULT,
            f"an input of type {array.dtype} and shape {array.shape} is a view of remote memory that faulted with "
            f"{fault_kind(fault.signo)} (code {fault.code}) [9.9, 17]; fix: pass a snapshot() of it, or numbers of your own",
            operation="ACCESS",
            kind=fault_kind(fault.signo),
        )
    return np.ndarray(array.shape, array.dtype, copy, array.ctypes.data - low, array.strides)


def _bounds(array: NDArray[Any]) -> tuple[int, int]:
    """Addresses of the first byte and behind the last one of a non-empty array."""
    steps = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    first: int = array.ctypes.data
    return first + sum(s for s in steps if s < 0), first + sum(s for s in steps if s > 0) + array.itemsize
