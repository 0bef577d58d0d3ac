# SPDX-License-Identifier: Apache-2.0
"""The functions of the stand-in library that the real one lacks, for users of a stand-in (``ubs_mem.h`` there)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from cffi import FFI

LIBRARY: Final = str(Path(__file__).resolve().parents[1] / "libubsm_sdk_standin.so")
"""The stand-in library, installed beside the package; loaded only by programs that name it."""

ffi: Final[Any] = FFI()
ffi.cdef(
    """
int ubsmem_standin_create(const char *folder, const char *fabric, const char *nodes, uint64_t unit);
int ubsmem_standin_destroy(const char *folder);
int ubsmem_standin_serve(const char *folder, int engine, int in, int out);
int ubsmem_standin_status(const char *folder, char *text, size_t size);
int ubsmem_standin_inject(const char *folder, uint32_t op, int32_t code, uint32_t delay_ms, int lost, uint32_t times);
int ubsmem_standin_fire(const char *folder, const char *name, uint32_t kind);
"""
)


def load() -> Any:
    """The library with these functions."""
    return ffi.dlopen(LIBRARY, ffi.RTLD_NOW | ffi.RTLD_LOCAL)


def checked(function: str, result: int) -> int:
    """`result` of `function`, or OSError for a negative errno."""
    if result < 0:
        raise OSError(-result, f"stand-in: {function}: {os.strerror(-result)}")
    return result
