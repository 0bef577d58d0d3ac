# SPDX-License-Identifier: Apache-2.0
"""Control calls of the emulator from C, and the proof that a mapped load is a plain load.

``python -m bench.emulator_calls [--json]``. The emulator's times say nothing about hardware: they bound how
fast a test can be.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import struct
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from cffi import FFI

import obmm
from obmm._native import ffi, lib
from obmm.bench.machine import describe
from obmm.bench.timing import percentiles

SAMPLES = 2000
REGION = 64 << 20
LOADS = 1 << 14
TURNS = 200
GOAL_US = 100.0

_DECLARATIONS = """
int64_t time_ioctl(void *sys, int fd, unsigned long request, void *arg);
int64_t time_open(void *sys, const char *path, int flags);
int64_t time_mmap(void *sys, int fd, size_t length, int prot, int flags);
void chase_build(void *base, const uint32_t *order, size_t lines);
int64_t chase(void *base, uint64_t loads);
"""


class Timers:
    """`emulator_calls.c`, compiled here: no interpreter between the clock and the call."""

    def __init__(self) -> None:
        source = Path(__file__).with_name("emulator_calls.c")
        self.ffi = FFI()
        self.ffi.cdef(_DECLARATIONS)
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "calls.so"
            compiler = os.environ.get("CC", "cc")
            subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", target, source], check=True)
            self.lib: Any = self.ffi.dlopen(str(target))

    def pointer(self, value: Any) -> Any:
        """A pointer of the native module for this library."""
        return self.ffi.cast("void *", int(ffi.cast("uintptr_t", value)))


def _samples(call: Callable[[], int], count: int = SAMPLES) -> np.ndarray[Any, np.dtype[np.int64]]:
    times = np.empty(count, np.int64)
    for at in range(count):
        times[at] = call()
        if times[at] < 0:
            raise OSError(ffi.errno, os.strerror(ffi.errno))
    return times


def _export_command(size: int) -> tuple[Any, Any]:
    vendor = ffi.new("uint8_t[]", struct.pack("<QQB7x", 0, 1, 1))
    command = ffi.new("struct obmm_cmd_export *")
    command.length, command.size[0], command.flags = 1, size, lib.OBMM_EXPORT_FLAG_ALLOW_MMAP
    command.vendor_len, command.vendor_info = 24, vendor
    return command, vendor


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def measure_calls(timers: Timers, sys: Any) -> list[dict[str, Any]]:
    """Microseconds of each call."""
    control = _checked(lib.obmm_rw_open(sys))
    table = timers.pointer(sys)
    command, keep = _export_command(REGION)
    _checked(lib.obmm_rw_export(sys, control, command))
    mem_id = command.mem_id
    region = _checked(lib.obmm_rw_shmdev_open(sys, mem_id, os.O_RDWR))
    mapped = ffi.new("void **")
    _checked(lib.obmm_rw_map(sys, region, ffi.NULL, 0, REGION, 3, 0, mapped))
    start = int(ffi.cast("uintptr_t", mapped[0]))

    query = ffi.new("struct obmm_cmd_addr_query *")
    query.key_type, query.mem_id = lib.OBMM_QUERY_BY_ID_OFFSET, mem_id
    states = [ffi.new("struct obmm_cmd_update_range *") for _ in range(2)]
    for one, state in zip(states, (0x5, 0x9), strict=True):
        one.start, one.end, one.mem_state, one.cache_ops = start, start + REGION, state, 0
    small, keep_small = _export_command(2 << 20)
    path = f"/dev/obmm_shmdev{mem_id}".encode()

    def ioctl(fd: int, request: int, argument: Any) -> int:
        return int(timers.lib.time_ioctl(table, fd, request, timers.pointer(argument)))

    def update() -> int:
        states.reverse()
        return ioctl(region, lib.OBMM_SHMDEV_UPDATE_RANGE, states[0])

    def export() -> int:
        took = ioctl(control, lib.OBMM_CMD_EXPORT, small)
        _checked(lib.obmm_rw_unexport(sys, control, small.mem_id, 0))
        return took

    calls: dict[str, tuple[Callable[[], int], int, bool]] = {
        "ADDR_QUERY": (lambda: ioctl(control, lib.OBMM_CMD_ADDR_QUERY, query), SAMPLES, True),
        "UPDATE_RANGE": (update, SAMPLES, True),
        "open": (lambda: int(timers.lib.time_open(table, path, os.O_RDWR | os.O_CLOEXEC)), SAMPLES, True),
        "mmap": (lambda: int(timers.lib.time_mmap(table, region, REGION, 1, mmap.MAP_SHARED)), SAMPLES, True),
        "EXPORT (2 MiB)": (export, SAMPLES // 10, False),
        "IMPORT (2 MiB)": (_import(timers, sys, control), SAMPLES // 10, False),
    }
    rows = []
    for name, (call, count, bounded) in calls.items():
        _samples(call, count // 10)
        p50, p99 = (ns / 1000 for ns in percentiles(_samples(call, count), 50, 99))
        rows.append({"call": name, "p50_us": p50, "p99_us": p99, "goal_us": GOAL_US if bounded else None})
    _checked(lib.obmm_rw_unmap(sys, mapped[0], REGION))
    os.close(region)
    _checked(lib.obmm_rw_unexport(sys, control, mem_id, 0))
    os.close(control)
    del keep, keep_small
    return rows


def _import(timers: Timers, sys: Any, control: int) -> Callable[[], int]:
    """IMPORT of a window of this node's first controller; what stands behind it does not matter to IMPORT."""
    root = Path(ffi.string(sys.root).decode()) / "sys/devices/ub_bus_controller0"
    (controller,) = root.iterdir()
    cna = int((controller / "primary_cna").read_text(), 0)
    eid = int((controller / "eid").read_text()).to_bytes(16, "little")
    window = ffi.new("struct obmm_emulator_window *")
    window.owner_eid, window.owner_cna, window.length, window.cache = list(eid), cna, 2 << 20, 1
    pa = ffi.new("uint64_t *")
    _checked(lib.obmm_emulator_program(sys, window, pa))
    command = ffi.new("struct obmm_cmd_import *")
    command.flags, command.addr, command.length = lib.OBMM_IMPORT_FLAG_ALLOW_MMAP, pa[0], 2 << 20
    command.scna, command.dcna, command.numa_id = cna, cna, -1
    table = timers.pointer(sys)

    def call() -> int:
        took = int(timers.lib.time_ioctl(table, control, lib.OBMM_CMD_IMPORT, timers.pointer(command)))
        _checked(lib.obmm_rw_unimport(sys, control, command.mem_id, 0))
        return took

    return call


def measure_loads(timers: Timers, sys: Any) -> dict[str, float]:
    """Nanoseconds of one dependent load from a mapped region and from anonymous memory, by turns."""
    control = _checked(lib.obmm_rw_open(sys))
    command, keep = _export_command(REGION)
    _checked(lib.obmm_rw_export(sys, control, command))
    region = _checked(lib.obmm_rw_shmdev_open(sys, command.mem_id, os.O_RDWR))
    mapped = ffi.new("void **")
    _checked(lib.obmm_rw_map(sys, region, ffi.NULL, 0, REGION, 3, 0, mapped))
    area = mmap.mmap(-1, REGION, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    order = np.random.default_rng(1).permutation(REGION // 64).astype(np.uint32)
    steps = timers.ffi.from_buffer("uint32_t[]", order.data)
    bases = {"region": timers.pointer(mapped[0]), "anonymous": timers.ffi.from_buffer(area)}
    for base in bases.values():
        timers.lib.chase_build(base, steps, len(order))
        timers.lib.chase(base, len(order))
    times: dict[str, list[float]] = {name: [] for name in bases}
    for _ in range(TURNS):
        for name, base in bases.items():
            times[name].append(timers.lib.chase(base, LOADS) / LOADS)
    result = {name: float(np.median(values)) for name, values in times.items()}
    del bases, base
    _checked(lib.obmm_rw_unmap(sys, mapped[0], REGION))
    os.close(region)
    _checked(lib.obmm_rw_unexport(sys, control, command.mem_id, 0))
    os.close(control)
    del keep
    return {
        "region_ns": result["region"],
        "anonymous_ns": result["anonymous"],
        "ratio": result["region"] / result["anonymous"],
    }


def measure() -> dict[str, Any]:
    """Everything, on a fabric of its own."""
    timers = Timers()
    with obmm.emulator.start(nodes=1) as fabric:
        out = ffi.new("struct obmm_sys **")
        _checked(lib.obmm_sys_emulator(fabric.socket.encode(), b"a", out))
        sys = out[0]
        try:
            return {
                "backend": "emulator",
                "machine": describe(),
                "calls": measure_calls(timers, sys),
                "load": measure_loads(timers, sys),
            }
        finally:
            sys.destroy(sys)


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="for programs")
    as_json = parser.parse_args().json
    report = measure()
    if as_json:
        print(json.dumps(report, indent=2))
        return
    print(f"backend: emulator (nothing here is a time of hardware); load {report['machine']['load']:.1f}")
    print(f"{'emulator: call from C':<24}{'p50 us':>10}{'p99 us':>10}{'goal':>10}")
    for row in report["calls"]:
        goal = f"< {row['goal_us']:.0f}" if row["goal_us"] else ""
        print(f"{row['call']:<24}{row['p50_us']:>10.1f}{row['p99_us']:>10.1f}{goal:>10}")
    load = report["load"]
    print(
        f"\nemulator: one dependent load, {REGION >> 20} MiB: mapped region {load['region_ns']:.1f} ns, "
        f"shared anonymous memory {load['anonymous_ns']:.1f} ns, ratio {load['ratio']:.3f}"
    )


if __name__ == "__main__":
    main()
