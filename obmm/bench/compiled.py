# SPDX-License-Identifier: Apache-2.0
"""`measure.c`, compiled where the benchmark runs."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI
from numpy.typing import NDArray

_SOURCE = Path(__file__).with_name("measure.c")
_DECLARATIONS = """
void bench_touch(const uint8_t *base, uint64_t nbytes);
void bench_timer(uint64_t n, uint64_t *ns);
double bench_chase(const uint8_t *base, uint64_t lines, uint64_t n, uint64_t seed);
void bench_loads(const uint8_t *base, const uint64_t *offsets, uint64_t n, uint64_t width, uint64_t *ns, uint64_t *values);
uint64_t bench_wrong_rows(const uint8_t *out, const int64_t *ids, const uint64_t *bases, uint64_t tables,
                          uint64_t count, uint64_t row_bytes, uint64_t stride);
void bench_fill(uint64_t *words, uint64_t first, uint64_t n);
uint64_t bench_wrong_words(const uint64_t *words, uint64_t first, uint64_t n, uint64_t flipped);
int bench_await(const uint64_t *flag, uint64_t n, uint64_t patience_ns);
void bench_tell(uint64_t *flag, uint64_t n);
int bench_echo(const uint64_t *ping, uint64_t *pong, uint64_t n, uint64_t patience_ns);
int bench_ping(uint64_t *ping, const uint64_t *pong, uint64_t n, uint64_t patience_ns, uint64_t *ns);
"""

ffi = FFI()
ffi.cdef(_DECLARATIONS)


def pointer(kind: str, array: NDArray[Any]) -> Any:
    """`array` as the C array ``kind``, such as "uint64_t[]"; it must outlive the pointer."""
    return ffi.from_buffer(kind, array.data)


class CompilerError(RuntimeError):
    """`measure.c` could not be compiled here."""


@functools.cache
def library() -> Any:
    """The functions of `measure.c`.  CompilerError without a C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "measure.so"
        command = [os.environ.get("CC", "cc"), "-O3", "-shared", "-fPIC", "-o", str(target), str(_SOURCE)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except FileNotFoundError as error:
            raise CompilerError(
                f"the benchmark needs a C compiler: {command[0]} is missing; fix: install gcc"
            ) from error
        except subprocess.CalledProcessError as error:
            raise CompilerError(f"{' '.join(command)}: {error.stderr}") from error
        return ffi.dlopen(str(target))
