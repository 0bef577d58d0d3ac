# SPDX-License-Identifier: Apache-2.0
"""The processor's counters of the calling thread, where the kernel lets them be read (`perf_event_open`)."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

_CALL = {"x86_64": 298, "aarch64": 241}
_WANTED = {"cycles": (0, 0), "instructions": (0, 1), "cache misses": (0, 3), "TLB load misses": (3, 3 | 1 << 16)}
_ATTRIBUTES, _EXCLUDE_KERNEL = 128, 1 << 5


class Counters:
    """Those that could be opened: `names`, and why the others could not: `said`."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._open: list[int] = []
        self.names: list[str] = []
        refused = {}
        for name, (kind, config) in _WANTED.items():
            head = struct.pack("IIQQQQQ", kind, _ATTRIBUTES, config, 0, 0, 0, _EXCLUDE_KERNEL)
            attributes = ctypes.create_string_buffer(head.ljust(_ATTRIBUTES, b"\0"), _ATTRIBUTES)
            descriptor = libc.syscall(_CALL.get(platform.machine(), -1), attributes, 0, -1, -1, 0)
            if descriptor < 0:
                refused[name] = os.strerror(ctypes.get_errno())
                continue
            self._open.append(descriptor)
            self.names.append(name)
        self.said = f"{', '.join(self.names) or 'none'}; refused: {refused or 'none'}"

    def read(self) -> list[int]:
        return [int.from_bytes(os.read(descriptor, 8), "little") for descriptor in self._open]
