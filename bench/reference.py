# SPDX-License-Identifier: Apache-2.0
"""`reference.c`, compiled where the benchmark runs."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI

_SOURCE = Path(__file__).with_name("reference.c")
_DECLARATIONS = """
void ref_nothing(const void *a, const void *b, uint64_t n);
void ref_gather(uint8_t *out, const uint8_t *table, const int64_t *ids, uint64_t n, uint64_t row_bytes, uint64_t stride);
void ref_sequential(uint8_t *out, const uint8_t *from, uint64_t bytes);
int ref_reads(void *copy, uint8_t *out, const uint8_t *table, const int64_t *offsets, uint64_t n, uint64_t length);
"""


@functools.cache
def load() -> tuple[FFI, Any]:
    """(ffi, library).  RuntimeError without a C compiler: there is nothing to compare with then."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "reference.so"
        command = [os.environ.get("CC", "cc"), "-O3", "-shared", "-fPIC", "-o", str(target), str(_SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise RuntimeError(f"the comparison needs a C compiler: {command[0]} is missing") from error
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{' '.join(command)}: {error.stderr}") from error
        ffi = FFI()
        ffi.cdef(_DECLARATIONS)
        return ffi, ffi.dlopen(str(target))
