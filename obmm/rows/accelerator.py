# SPDX-License-Identifier: Apache-2.0
"""An accelerator as far as rows need it: pinned memory, device memory, streams, asynchronous copies.

CUDA and Ascend are reached through their own libraries, opened at run time: nothing is linked, and nothing is needed to
build.  The fake device is memory of this process with streams that are threads; it is for tests, and says so.
"""

from __future__ import annotations

import errno
import math
from typing import Any, NoReturn

import numpy as np

from obmm._native import ffi, lib
from obmm.arguments import U64, listed, text, whole, wrong_type
from obmm.closing import Owner
from obmm.errors import ObmmError


def _failed(code: int, what: str, why: str, fix: str) -> ObmmError:
    return ObmmError(-code, f"DEVICE: {what}: {why} [docs/device.md]; fix: {fix}", operation="DEVICE")


_FIXES = {
    errno.ENOSYS: "install the accelerator's driver, or keep rows in host memory (device=None)",
    errno.ENODEV: "name a device that this process may use (CUDA_VISIBLE_DEVICES, ASCEND_RT_VISIBLE_DEVICES)",
    errno.ELIBBAD: "update the accelerator's driver",
    errno.ENOMEM: "free memory of the device, or raise the limit of locked memory; fewer or smaller buffers",
    errno.EINVAL: "a stream of this device and context, and a capture that takes host functions and copies",
    errno.EPERM: "rows of another node go through host memory; a replica of this node's own memory can be read directly",
}


_MOST = (1 << 63) - 1
_MOST_DEVICES = 1 << 16

_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_OTHER, _DLPACK_CUDA_MANAGED = 1, 2, 12, 13


class Accelerator(Owner):
    """One device.  Made by `cuda`, `ascend` or `fake`; any thread may use it.  Freed when nothing uses it any more."""

    def __init__(self, pointer: Any) -> None:
        self.pointer = ffi.gc(pointer, lib.obmm_accelerator_drop)
        self.name: str = ffi.string(pointer.name).decode()
        """``"cuda"``, ``"acl"`` or ``"fake"``."""
        self.ordinal: int = pointer.ordinal

    @classmethod
    def cuda(cls, ordinal: int = 0, library: str | None = None) -> Accelerator:
        """An NVIDIA device, by its number among those that this process may use.

        ObmmError ENOSYS: no driver library; ENODEV: no such device; ELIBBAD: the driver is too old.
        """
        return cls._open(lib.obmm_accelerator_cuda, ordinal, library)

    @classmethod
    def ascend(cls, ordinal: int = 0, library: str | None = None) -> Accelerator:
        """An Ascend device.  Not run on hardware: tested against a library that records the calls.  Errors as `cuda`."""
        return cls._open(lib.obmm_accelerator_acl, ordinal, library)

    @classmethod
    def fake(cls) -> Accelerator:
        """A device of this process, for tests: figures of it say nothing about an accelerator."""
        out = ffi.new("struct obmm_accelerator **")
        code = lib.obmm_accelerator_fake(out)
        if code:
            raise _failed(code, "fake device", "no memory", _FIXES[errno.ENOMEM])
        return cls(out[0])

    def places(self, device: tuple[int, int]) -> bool:
        """Whether what DLPack calls that device (kind, number) is this one."""
        kind, number = device
        if self.name == "fake":
            return kind == _DLPACK_CPU
        if self.name == "cuda":
            return kind in (_DLPACK_CUDA, _DLPACK_CUDA_MANAGED) and number == self.ordinal
        return kind == _DLPACK_OTHER and number == self.ordinal

    @classmethod
    def _open(cls, entrance: Any, ordinal: int, library: str | None) -> Accelerator:
        ordinal = whole("DEVICE", "ordinal", ordinal, low=0, high=_MOST_DEVICES)
        name = ffi.NULL if library is None else text("DEVICE", "library", library).encode()
        out, why = ffi.new("struct obmm_accelerator **"), ffi.new("const char **")
        code = entrance(name, ordinal, out, why)
        if code:
            reason = ffi.string(why[0]).decode(errors="replace") if why[0] != ffi.NULL else "no memory"
            raise _failed(code, f"device {ordinal}", reason, _FIXES.get(-code, "see the driver's own log"))
        return cls(out[0])

    def check(self, code: int, what: str) -> None:
        """Raise what a call of the table answered, unless it is 0."""
        if code:
            self.refuse(code, what)

    def refuse(self, code: int, what: str) -> NoReturn:
        """Raise, in the words of the device's library."""
        why = ffi.string(self.pointer.why(self.pointer)).decode(errors="replace")
        raise _failed(code, what, why, _FIXES.get(-code, "see the device's log; a program before may have broken it"))

    def synchronize(self, stream: Any = 0) -> None:
        """Wait on the host until everything in a stream is done."""
        self.check(self.pointer.synchronize(self.pointer, handle_of(stream)), "synchronize")

    def __repr__(self) -> str:
        return f"<Accelerator {self.name}:{self.ordinal}>"


class PinnedMemory(Owner):
    """Host memory that the device copies from and to directly: zeroed, `nbytes` at `address`, and a buffer."""

    def __init__(self, accelerator: Accelerator, nbytes: int) -> None:
        check_accelerator(accelerator)
        self.accelerator = accelerator
        self.nbytes = whole("DEVICE", "nbytes", nbytes, low=0, high=_MOST)
        out = ffi.new("void **")
        accelerator.check(
            accelerator.pointer.pin(accelerator.pointer, max(self.nbytes, 1), out), f"{nbytes} pinned bytes"
        )
        table = held(accelerator)
        self._memory = ffi.gc(out[0], lambda memory: lib.obmm_accelerator_unpin(table, memory))
        self.address = int(ffi.cast("uintptr_t", out[0]))

    @property
    def buffer(self) -> memoryview:
        """Its bytes; they live while this object does."""
        return memoryview(ffi.buffer(self._memory, self.nbytes))

    def array(self, dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        """Its bytes as an array that keeps this object alive."""
        array: np.ndarray[Any, Any] = np.asarray(_Holding(self)).view(dtype).reshape(shape)
        return array


class _Holding:
    """A buffer whose array keeps the pinned memory: NumPy holds on to what it was made from."""

    def __init__(self, memory: PinnedMemory) -> None:
        self._memory = memory
        self.__array_interface__ = {
            "shape": (memory.nbytes,),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 3,
        }


class DeviceArray(Owner):
    """Bytes in device memory at an address that never changes: uint8, contiguous, zeroed when it was made.

    Other libraries see it without a copy: ``torch.as_tensor(array)``, ``cupy.asarray(array)`` (by
    ``__cuda_array_interface__``), and consumers of DLPack (by way of torch or CuPy).  A slice of the first axis is a view.
    """

    def __init__(
        self, accelerator: Accelerator, shape: tuple[int, ...], _of: DeviceArray | None = None, _at: int = 0
    ) -> None:
        check_accelerator(accelerator)
        self.accelerator = accelerator
        self.shape = tuple(
            whole("DEVICE", "shape", length, low=0, high=_MOST)
            for length in listed("DEVICE", "shape", shape, "lengths of axes")
        )
        self.nbytes = whole("DEVICE", f"bytes of shape {shape}", math.prod(self.shape), high=_MOST)
        self._base: Any = _of
        self.address: int
        if _of is not None:
            self.address = _of.address + _at
            return
        out = ffi.new("uint64_t *")
        table = accelerator.pointer
        accelerator.check(table.allocate(table, max(self.nbytes, 1), out), f"{self.nbytes} bytes of device memory")
        self.address = int(out[0])
        address = self.address
        table = held(accelerator)
        self._memory = ffi.gc(ffi.cast("void *", address), lambda _: lib.obmm_accelerator_release(table, address))

    @classmethod
    def at(cls, accelerator: Accelerator, shape: tuple[int, ...], address: int, owner: Any) -> DeviceArray:
        """Memory that is there already and that `owner` keeps."""
        array = cls.__new__(cls)
        array.accelerator, array.shape, array.address, array._base = accelerator, shape, address, owner
        array.nbytes = int(np.prod(shape, dtype=np.int64))
        return array

    def __getitem__(self, rows: slice) -> DeviceArray:
        if not isinstance(rows, slice) or not self.shape:
            raise wrong_type("DEVICE", "index", rows, "a slice of the first axis")
        first, stop, step = rows.indices(self.shape[0])
        if step != 1:
            raise _failed(-errno.EINVAL, "slice of a device array", f"step {step}", "slices of neighbouring rows")
        width = self.nbytes // self.shape[0] if self.shape[0] else 0
        return DeviceArray(self.accelerator, (max(0, stop - first), *self.shape[1:]), self, first * width)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.accelerator.name != "cuda":
            raise AttributeError(f"{self.accelerator} is not a CUDA device")
        return {"shape": self.shape, "typestr": "|u1", "data": (self.address, False), "version": 3, "stream": None}

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.accelerator.name != "fake":
            raise AttributeError("device memory is not memory of this process")
        return {"shape": self.shape, "typestr": "|u1", "data": (self.address, False), "version": 3}

    def tensor(self) -> Any:
        """As a torch tensor over the same memory."""
        import torch

        if self.accelerator.name == "fake":
            return torch.from_numpy(np.asarray(self))
        return torch.as_tensor(self, device=f"cuda:{self.accelerator.ordinal}")

    def __dlpack__(self, **options: Any) -> Any:
        if self.accelerator.name == "fake":
            return np.asarray(self).__dlpack__(**options)
        try:
            return self.tensor().__dlpack__(**options)
        except ImportError:
            import cupy

            return cupy.asarray(self).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self.accelerator.name == "fake" else (2, self.accelerator.ordinal)

    def __repr__(self) -> str:
        return f"<DeviceArray uint8 {list(self.shape)} at {self.address:#x} of {self.accelerator}>"


class Stream(Owner):
    """A stream of our own; `handle` is the library's."""

    def __init__(self, accelerator: Accelerator) -> None:
        check_accelerator(accelerator)
        out = ffi.new("struct obmm_lane **")
        accelerator.check(lib.obmm_lane_create(accelerator.pointer, out), "make a stream")
        self.pointer = ffi.gc(out[0], lib.obmm_lane_drop)
        self.handle = int(lib.obmm_lane_stream(self.pointer))


class SharedRows(Owner):
    """Rows in this node's own memory that the device reads by itself: a replica, for the policy "local" and beyond.

    `rows`: uint8 ``[n, row_bytes]``, contiguous and writable memory of this process; it is kept alive, and registered with
    the device until this object goes.  The device sees them where `on_device` is, by the same protocols as a
    `DeviceArray`.  ObmmError EPERM: the memory is a mapping of another node's, whose pages no device driver can hold.
    ENOSYS: this device reads no host memory.
    """

    def __init__(self, accelerator: Accelerator, rows: np.ndarray[Any, Any]) -> None:
        check_accelerator(accelerator)
        if not isinstance(rows, np.ndarray):
            raise wrong_type("DEVICE", "rows", rows, "a NumPy array, uint8 [n, bytes]")
        if rows.dtype != np.uint8 or rows.ndim != 2 or not rows.flags.c_contiguous:
            raise _failed(
                -errno.EINVAL, f"rows {rows.dtype}{list(rows.shape)}", "not that", "contiguous uint8 [n, bytes]"
            )
        self.accelerator = accelerator
        self.rows = rows
        out = ffi.new("uint64_t *")
        address = ffi.cast("void *", rows.ctypes.data)
        code = lib.obmm_accelerator_share(accelerator.pointer, address, rows.nbytes, out)
        if code == -errno.EPERM:
            raise _failed(code, f"{rows.nbytes} bytes", "they are mapped from another node", _FIXES[errno.EPERM])
        accelerator.check(code, f"register {rows.nbytes} bytes of host memory")
        table = held(accelerator)
        self._registered = ffi.gc(address, lambda memory: lib.obmm_accelerator_unshare(table, memory))
        self.on_device = DeviceArray.at(accelerator, rows.shape, int(out[0]), self)
        """The same rows as the device addresses them."""


class Event(Owner):
    """A place in a stream that others can wait for."""

    def __init__(self, accelerator: Accelerator) -> None:
        check_accelerator(accelerator)
        out = ffi.new("uint64_t *")
        accelerator.check(accelerator.pointer.make_event(accelerator.pointer, out), "make an event")
        self.handle = handle = int(out[0])
        table = held(accelerator)
        self._kept = ffi.gc(ffi.cast("void *", handle), lambda _: lib.obmm_accelerator_end_event(table, handle))


def check_accelerator(accelerator: object) -> None:
    """ObmmArgumentError for what is none."""
    if not isinstance(accelerator, Accelerator):
        raise wrong_type("DEVICE", "accelerator", accelerator, "what Accelerator.cuda() or .ascend() returned")


def held(accelerator: Accelerator) -> Any:
    """The native device with one user more, for who gives it back by a native call: collection comes in any order."""
    lib.obmm_accelerator_hold(accelerator.pointer)
    return ffi.cast("struct obmm_accelerator *", accelerator.pointer)


def handle_of(stream: Any) -> int:
    """The library's handle of a stream: a number, None for the default one, or torch's, CuPy's or another library's object."""
    if stream is None:
        return 0
    if isinstance(stream, int | np.integer):
        return whole("DEVICE", "stream", stream, low=0, high=U64)
    if isinstance(stream, Stream):
        return stream.handle
    for name in ("cuda_stream", "npu_stream", "ptr"):
        found = getattr(stream, name, None)
        if isinstance(found, int):
            return found
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        return int(protocol()[1])
    raise _failed(-errno.EINVAL, f"stream={stream!r}", "no stream that is known here", "torch's, CuPy's, or its handle")
