# SPDX-License-Identifier: Apache-2.0
"""Builds ``obmm._native``: every room of ``native/`` behind one cffi module.

API mode and the limited API: the C compiler checks each declaration, and one
build serves every CPython from 3.11 on.  Declarations live in ``cdefs/``, one
file per room; each room's sources are listed here.
"""

from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parent
ROOT = NATIVE.parent

ROOMS = ["abi", "core", "emulator", "access", "hash", "gather", "engine", "device", "blocks", "urma", "broker"]

sources = [str(path.relative_to(ROOT)) for room in ROOMS for path in sorted((NATIVE / room).glob("*.c"))]
cdefs = [HERE / "cdefs" / f"{room}.h" for room in ROOMS]
headers = (HERE / "includes.txt").read_text().split()

# cffi's generated check of obmm_cmd_preimport takes the address of its unaligned pointer; the objects become
# libobmm.a too, which any linker has to read, whatever -flto the environment asks for
COMPILE = ["-std=gnu11", "-O3", "-Wall", "-Wextra", "-fvisibility=hidden", "-Wno-address-of-packed-member", "-fno-lto"]

ffibuilder = FFI()
for path in cdefs:
    ffibuilder.cdef(path.read_text())

ffibuilder.set_source(
    "obmm._native",
    "\n".join(f'#include "{name}"' for name in headers),
    sources=sources,
    include_dirs=["native"],
    extra_compile_args=COMPILE,
    extra_link_args=["-pthread"],
    define_macros=[("Py_LIMITED_API", "0x030b0000"), ("_GNU_SOURCE", "1")],
    py_limited_api=True,
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
