# SPDX-License-Identifier: Apache-2.0
"""System calls that look for the struct page behind an address: none finds one behind driver memory."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable

from .raw import CHUNK, PAGE

_LIBC = ctypes.CDLL(None, use_errno=True)
_X86 = platform.machine() == "x86_64"
_FUTEX, _VMSPLICE, _MOVE_PAGES, _MBIND = (202, 278, 279, 237) if _X86 else (98, 75, 239, 235)
_RING_SETUP, _RING_REGISTER = 425, 427
_FUTEX_WAIT, _FUTEX_WAKE, _SPLICE_F_GIFT = 0, 1, 8
_MADV_POPULATE_READ, _MADV_HWPOISON = 22, 100
_MPOL_BIND, _MPOL_MF_STRICT = 2, 1


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _call(number: int, *arguments: object) -> int:
    """A system call's result, or its negative errno."""
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = _LIBC.syscall(ctypes.c_long(number), *words)
    return -ctypes.get_errno() if result < 0 else result


def _vmsplice(at: int, flags: int) -> int:
    reader, writer = os.pipe()
    try:
        return _call(_VMSPLICE, writer, ctypes.byref(_Piece(at, PAGE)), 1, flags)
    finally:
        os.close(reader)
        os.close(writer)


def _futex(at: int, operation: int) -> int:
    """On a futex that processes share: its key is the page."""
    return _call(_FUTEX, at, operation, 1, None, None, 0)


def _other_process(at: int, name: str) -> int:
    here = ctypes.create_string_buffer(8)
    local, remote = _Piece(ctypes.addressof(here), 8), _Piece(at, 8)
    call = getattr(_LIBC, name)
    call.restype = ctypes.c_ssize_t
    one, none = ctypes.c_ulong(1), ctypes.c_ulong(0)
    result = call(os.getpid(), ctypes.byref(local), one, ctypes.byref(remote), one, none)
    return -ctypes.get_errno() if result < 0 else result


def _fixed_buffer(at: int) -> int:
    """A buffer that io_uring keeps; 0 where this kernel has no io_uring."""
    ring = _call(_RING_SETUP, 4, ctypes.create_string_buffer(120))
    if ring == -errno.ENOSYS:
        return -errno.EFAULT
    try:
        return _call(_RING_REGISTER, ring, 0, ctypes.byref(_Piece(at, PAGE)), 1)
    finally:
        os.close(ring)


def _page_status(at: int) -> int:
    """What move_pages says of the page."""
    status = ctypes.c_int(0)
    result = _call(_MOVE_PAGES, 0, 1, ctypes.byref(ctypes.c_void_p(at)), None, ctypes.byref(status), 0)
    return result or status.value


def _advise(at: int, advice: int) -> int:
    result = _LIBC.madvise(ctypes.c_void_p(at), ctypes.c_size_t(PAGE), advice)
    return -ctypes.get_errno() if result < 0 else result


def _strict_policy(at: int) -> int:
    """mbind that asks where every page lies: it walks what is mapped, and skips what it may not move only without STRICT."""
    start, mask = at & ~(CHUNK - 1), ctypes.c_ulong(1)
    return _call(_MBIND, start, CHUNK, _MPOL_BIND, ctypes.byref(mask), 64, _MPOL_MF_STRICT)


WAYS: dict[str, Callable[[int], int]] = {
    "vmsplice": lambda at: _vmsplice(at, 0),
    "vmsplice, gift": lambda at: _vmsplice(at, _SPLICE_F_GIFT),
    "futex wait": lambda at: _futex(at, _FUTEX_WAIT),
    "futex wake": lambda at: _futex(at, _FUTEX_WAKE),
    "process_vm_readv": lambda at: _other_process(at, "process_vm_readv"),
    "process_vm_writev": lambda at: _other_process(at, "process_vm_writev"),
    "io_uring buffer": _fixed_buffer,
    "move_pages": _page_status,
    "madvise populate": lambda at: _advise(at, _MADV_POPULATE_READ),
    "mbind strict": _strict_policy,
    "madvise hwpoison": lambda at: _advise(at, _MADV_HWPOISON),
}
#: EFAULT, but where the call has another word for "not memory of this kernel".
_OTHER = {
    "madvise populate": (errno.EFAULT, errno.EINVAL),
    "madvise hwpoison": (errno.EFAULT, errno.EINVAL),
    "mbind strict": (0, errno.EIO),  # the policy of a mapping without pages is a word and nothing else
}


def wrong(at: int) -> dict[str, int]:
    """The ways that found a page at `at`, which is mapped and was touched: name -> result."""
    found = {name: way(at) for name, way in WAYS.items()}
    return {name: result for name, result in found.items() if -result not in _OTHER.get(name, (errno.EFAULT,))}
