# SPDX-License-Identifier: Apache-2.0
"""`reference.c` and `reference_team.c`, compiled where the benchmark runs."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI

_HERE = Path(__file__).parent
# the limit is that of this CPU: what its instructions allow
_NATIVE = ["-march=native"] if platform.machine() in ("x86_64", "AMD64") else []
_DECLARATIONS = """
void ref_nothing(const void *a, const void *b, uint64_t n);
void ref_gather(uint8_t *out, const uint8_t *table, const int64_t *ids, uint64_t n, uint64_t row_bytes, uint64_t stride);
void ref_in_order(uint8_t *out, const uint8_t *table, const int64_t *ids, uint64_t n, uint64_t row_bytes, uint64_t stride,
                  int past_caches);
void ref_by_address(uint8_t *out, const uint8_t *table, const int64_t *ids, uint64_t n, uint64_t row_bytes, uint64_t stride,
                    uint64_t *keys);
void ref_sequential(uint8_t *out, const uint8_t *from, uint64_t bytes);
int ref_reads(void *copy, uint8_t *out, const uint8_t *table, const int64_t *offsets, uint64_t n, uint64_t length);
int ref_loads(void *load, const uint8_t *table, const int64_t *offsets, uint64_t n);
"""


_TEAM_DECLARATIONS = """
uint64_t ref_team_gather(uint8_t *out, const uint8_t *table, const int64_t *ids, uint64_t n, uint64_t row_bytes,
                         uint64_t stride, int past_caches, int threads);
uint64_t ref_team_nothing(int threads);
uint64_t ref_team_claims(uint64_t *counters, uint64_t pieces, int own, int threads);
"""


@functools.cache
def load() -> tuple[FFI, Any]:
    """(ffi, library).  RuntimeError without a C compiler: there is nothing to compare with then."""
    return _compiled("reference.c", _DECLARATIONS)


@functools.cache
def load_team() -> tuple[FFI, Any]:
    """The same for the limit of many cores: an OpenMP team of its own, whose threads go on spinning after each call."""
    return _compiled("reference_team.c", _DECLARATIONS + _TEAM_DECLARATIONS, "-fopenmp")


def _compiled(source: str, declarations: str, *options: str) -> tuple[FFI, Any]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "reference.so"
        command = [os.environ.get("CC", "cc"), "-O3", *_NATIVE, *options, "-shared", "-fPIC", "-o", str(target)]
        command.append(str(_HERE / source))
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise RuntimeError(f"the comparison needs a C compiler: {command[0]} is missing") from error
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{' '.join(command)}: {error.stderr}") from error
        ffi = FFI()
        ffi.cdef(declarations)
        return ffi, ffi.dlopen(str(target))
