# SPDX-License-Identifier: Apache-2.0
"""Guarded access from Python: real SIGBUS and SIGSEGV, other handlers, many threads."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from obmm._native import ffi, lib
from obmm.mapping import guard

PAGE = mmap.PAGESIZE
LENGTH = 16 * PAGE


@dataclass
class Memory:
    """A memfd mapping under guard; `cut` takes the pages away as a revocation does."""

    fd: int
    map: mmap.mmap
    address: int

    def cut(self, length: int = 0) -> None:
        os.ftruncate(self.fd, length)

    def at(self, offset: int) -> object:
        return ffi.cast("uint8_t *", self.address + offset)


@pytest.fixture
def memory() -> Iterator[Memory]:
    fd = os.memfd_create("obmm-test")
    os.ftruncate(fd, LENGTH)
    mapped = mmap.mmap(fd, LENGTH)
    view = ffi.from_buffer(mapped)
    address = int(ffi.cast("uintptr_t", view))
    slot = guard.register(address, LENGTH, 5)
    yield Memory(fd, mapped, address)
    guard.unregister(slot)
    del view
    mapped.close()
    os.close(fd)


def test_truncation_becomes_an_error_with_offset_and_kind(memory: Memory) -> None:
    out, fault = ffi.new("uint8_t[64]"), ffi.new("struct obmm_fault *")
    assert lib.obmm_copy_from(out, memory.at(3 * PAGE), 64, fault) == 0
    memory.cut(2 * PAGE)
    assert lib.obmm_copy_from(out, memory.at(3 * PAGE), 64, fault) == -errno.EFAULT
    assert (fault.id, guard.fault_kind(fault.signo)) == (5, "SIGBUS")
    assert 3 * PAGE <= fault.offset < 3 * PAGE + 64
    assert lib.obmm_copy_from(out, memory.at(PAGE), 64, fault) == 0


def test_missing_right_becomes_an_error(memory: Memory) -> None:
    fault, value = ffi.new("struct obmm_fault *"), ffi.new("uint64_t *")
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(memory.address), ctypes.c_size_t(LENGTH), mmap.PROT_READ) == 0
    assert lib.obmm_load(memory.at(8), 8, value, fault) == 0
    assert lib.obmm_store(memory.at(8), 8, 1, fault) == -errno.EFAULT
    assert (fault.offset, guard.fault_kind(fault.signo)) == (8, "SIGSEGV")
    libc.mprotect(ctypes.c_void_p(memory.address), ctypes.c_size_t(LENGTH), mmap.PROT_READ | mmap.PROT_WRITE)


def test_64_threads_each_raise_once_and_the_process_lives(memory: Memory) -> None:
    reading = threading.Barrier(65)
    results: list[int] = []

    def hammer() -> None:
        out, fault = ffi.new("uint8_t[1364]"), ffi.new("struct obmm_fault *")
        reading.wait()
        while (result := lib.obmm_copy_from(out, memory.at(PAGE), 1364, fault)) == 0:
            pass
        results.append(result)

    threads = [threading.Thread(target=hammer) for _ in range(64)]
    for thread in threads:
        thread.start()
    reading.wait()
    memory.cut()
    for thread in threads:
        thread.join(60)
    assert results == [-errno.EFAULT] * 64


def test_a_range_stays_guarded_while_anybody_registers_it(memory: Memory) -> None:
    guard.unregister(guard.register(memory.address + PAGE, PAGE, 6))
    memory.cut()
    assert lib.obmm_copy_from(ffi.new("uint8_t[64]"), memory.at(PAGE), 64, ffi.NULL) == -errno.EFAULT


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(OSError) as caught:
        guard.register(4096, 0, 6)
    assert caught.value.errno == errno.EINVAL


def run(code: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter with `memory` mapped, guarded and cut; `read()` is a guarded read of it."""
    prologue = """
    import ctypes, faulthandler, mmap, os, signal, sys
    from obmm import _native
    from obmm.mapping import guard
    ffi, lib = _native.ffi, _native.lib
    fd = os.memfd_create("t"); os.ftruncate(fd, 65536); m = mmap.mmap(fd, 65536)
    view = ffi.from_buffer(m); address = int(ffi.cast("uintptr_t", view))
    def read():
        return lib.obmm_copy_from(ffi.new("uint8_t[64]"), ffi.cast("void *", address), 64, ffi.NULL)
    """
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prologue) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )


def test_faulthandler_installed_before_still_reports_strangers_faults() -> None:
    done = run("""
    faulthandler.enable()
    guard.register(address, 65536, 1)
    os.ftruncate(fd, 0)
    assert read() == -14
    print("alive", flush=True)
    ctypes.string_at(8)
    """)
    assert done.stdout == "alive\n"
    assert done.returncode == -11
    assert "Fatal Python error: Segmentation fault" in done.stderr


def test_an_unguarded_access_of_a_registered_range_is_a_strangers_fault() -> None:
    done = run("""
    faulthandler.enable()
    guard.register(address, 65536, 1)
    os.ftruncate(fd, 0)
    m[0]
    """)
    assert done.returncode == -7
    assert "Fatal Python error: Bus error" in done.stderr


def test_faulthandler_installed_after_is_chained_and_reports_a_strangers_fault_once() -> None:
    done = run("""
    guard.register(address, 65536, 1)
    os.ftruncate(fd, 0)
    guard.verify()
    faulthandler.enable()
    print(read(), flush=True)
    ctypes.string_at(8)
    """)
    assert done.stdout == "-14\n"
    assert done.returncode == -11
    assert done.stderr.count("Fatal Python error: Segmentation fault") == 1


def test_a_gather_is_guarded_whatever_was_installed_after_ours() -> None:
    done = run("""
    from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec
    store = RowStore.attach(LocalMemory(m), Manifest((TableSpec("t", 1000, 64),)), verify="none", plan=False)
    faulthandler.enable()
    os.ftruncate(fd, 0)
    try:
        store.gather("t", [1, 2])
    except OSError as error:
        print(type(error).__name__)
    """)
    assert done.stdout == "RemoteMemoryError\n", done.stderr


def test_without_any_handler_the_signal_kills_as_ever() -> None:
    done = run("""
    guard.register(address, 65536, 1)
    ctypes.string_at(8)
    """)
    assert done.returncode == -11


def test_a_handler_written_in_python_still_runs() -> None:
    done = run("""
    signal.signal(signal.SIGBUS, lambda *a: print("python handler", flush=True))
    guard.register(address, 65536, 1)
    os.kill(os.getpid(), signal.SIGBUS)
    os.ftruncate(fd, 0)
    print(read())
    """)
    assert done.stdout == "python handler\n-14\n"
