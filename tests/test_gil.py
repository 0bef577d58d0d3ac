# SPDX-License-Identifier: Apache-2.0
"""Other Python threads run while a call blocks in the kernel (driver specification 21, threads)."""

import ctypes
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from obmm._native import ffi, lib

SOURCE = Path(__file__).resolve().parents[1] / "native" / "tests" / "blocking_sys.c"

CALLS: dict[str, Callable] = {
    "open": lambda sys: lib.obmm_rw_open(sys),
    "close": lambda sys: lib.obmm_rw_close(sys, 3),
    "ioctl": lambda sys: lib.obmm_rw_ioctl(sys, 3, 0, ffi.NULL),
    "export": lambda sys: lib.obmm_rw_export(sys, 3, ffi.NULL),
    "export_useraddr": lambda sys: lib.obmm_rw_export_useraddr(sys, 3, ffi.NULL),
    "unexport": lambda sys: lib.obmm_rw_unexport(sys, 3, 1, 0),
    "import": lambda sys: lib.obmm_rw_import(sys, 3, ffi.NULL),
    "unimport": lambda sys: lib.obmm_rw_unimport(sys, 3, 1, 0),
    "declare_preimport": lambda sys: lib.obmm_rw_declare_preimport(sys, 3, ffi.NULL),
    "undeclare_preimport": lambda sys: lib.obmm_rw_undeclare_preimport(sys, 3, ffi.NULL),
    "query_pa": lambda sys: lib.obmm_rw_query_pa(sys, 3, 1, 0, ffi.new("uint64_t *")),
    "query_id": lambda sys: lib.obmm_rw_query_id(sys, 3, 1, ffi.new("uint64_t *"), ffi.new("uint64_t *")),
    "shmdev_open": lambda sys: lib.obmm_rw_shmdev_open(sys, 1, 0),
    "map": lambda sys: lib.obmm_rw_map(sys, 3, ffi.NULL, 0, 4096, 0, 0, ffi.new("void **")),
    "unmap": lambda sys: lib.obmm_rw_unmap(sys, ffi.NULL, 4096),
    "seal": lambda sys: lib.obmm_rw_seal(sys, ffi.NULL, 4096),
    "set_ownership": lambda sys: lib.obmm_rw_set_ownership(sys, 3, 0, 4096, 1, 4),
}


@pytest.fixture(scope="module")
def make_table(tmp_path_factory) -> Callable:
    library = tmp_path_factory.mktemp("blocking") / "blocking_sys.so"
    subprocess.run(["cc", "-std=gnu11", "-shared", "-fPIC", SOURCE, "-o", library], check=True, timeout=60)
    make = ctypes.CDLL(str(library)).blocking_sys
    make.restype = ctypes.c_void_p
    return make


@pytest.fixture
def pipes() -> Iterator[list[int]]:
    ends = [*os.pipe(), *os.pipe()]
    yield ends
    for end in ends:
        os.close(end)


def test_every_call_of_the_core_is_tried():
    assert {f"obmm_rw_{name}" for name in CALLS} == {name for name in dir(lib) if name.startswith("obmm_rw_")}


@pytest.mark.parametrize("name", CALLS)
def test_python_runs_while_the_call_blocks(name, make_table, pipes):
    entered, says_entered, gate, opens_gate = pipes
    table = ffi.cast("struct obmm_sys *", make_table(says_entered, gate))
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(CALLS[name], table)
        os.read(entered, 1)
        # with the GIL held, the call would wait for this line in vain and answer -ETIMEDOUT
        os.write(opens_gate, b"!")
        assert blocked.result(timeout=10) == 0
