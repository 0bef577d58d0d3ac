# SPDX-License-Identifier: Apache-2.0
"""The conformance replay's port for a real kernel: processes are processes, the hardware is the module's debug files."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conformance.replay.native_process import Nursery
from tests.conformance.replay.port import Account, Process
from tests.conformance.replay.system import errno_name
from tests.conformance.replay.transcript import Case, number

from . import simulator
from .local_process import LocalProcess

Step = dict[str, Any]

PROBE = "/payload/probe.so"
REGIONS = Path("/sys/devices/obmm")
REMOVE = {"export": 0x40107802, "import": 0x40107803}

#: Injections that the module has (debug.c).
INJECTIONS = frozenset(
    {"flush_err", "flush_skip", "flush_busy", "flush_sleep", "drain_state", "tdev_fail", "tdev_free_err", "tid_min"}
    | {"tid_max", "map_err", "alloc_fail", "alloc_limit", "lin_err", "split_err", "split_skip", "remap_err"}
    | {"blocker", "reset"}
)

#: Operations without a counterpart in the module, and why.
MISSING = {
    "ioctl EXPORT_PID": "the module has no EXPORT_PID",
    "hugemap": "the module has no EXPORT_PID",
    "vmpin": "the module has no EXPORT_PID",
    "pool": "the module has no memory pool",
    "pool_wait": "the module has no memory pool",
    "threads": "the module has no memory pool",
    "contig_percent": "the module has no memory pool",
    "mmap_many": "65536 mappings of one page take minutes here; the module's counters have 32 bits (Q5)",
    "uevent_listen": "the module is obmm_sim, its uevents name it",
}


UMMU_CALLS = frozenset({"alloc_tdev", "free_tdev", "dma_map", "dma_unmap"})


def _result(text: str) -> int | str:
    """0, or the name that the recording gives an error (-1 stayed a number there)."""
    value = int(text)
    return value if value >= -1 else errno_name(-value)


class KernelPort:
    """A `Port` on the running kernel with obmm_sim."""

    name = f"obmm_sim on Linux {os.uname().release} {os.uname().machine}"
    world_operations = frozenset({"stub", "rmmod", "insmod", "feature", "remount_dev"})

    def __init__(self) -> None:
        self._nursery = Nursery()
        self._config = ""
        self._feature = 0xF
        self._log = simulator.Log()
        self._local = LocalProcess(Path(PROBE))
        #: Set before a case: whether the replay itself plays the case's process.
        self.play_here = False

    def unable(self, case: Case) -> str | None:
        for step in case.steps:
            op, given = step["op"], step["in"]
            if op in MISSING:
                return MISSING[op]
            if op == "stub" and given["set"][0] not in INJECTIONS:
                return f"the module cannot inject {given['set'][0]}"
            if op == "ioctl IMPORT" and step.get("ret") == 0 and number(given["args"].get("flags", 0)) & 4:
                return "the module has no remote NUMA"
            if "numa_calls" in step or (op.endswith("DECLARE_PREIMPORT") and step.get("ret") == 0):
                return "the module has no remote NUMA"
            if op == "insmod" and ("allocator" in given["params"] or "granu" in given["params"]):
                return "the module has no memory pool"
            path = given.get("path", "")
            if path.startswith(("/sys/module/obmm", "/sys/kernel/obmm_mempool", "/proc/obmm", "/proc/iomem")):
                return f"the module has no {path}"
        return None

    def begin(self, config: str, clearing: bool = False) -> None:
        if config != self._config:
            self._config = config
            self._load()
        simulator.inject("reset")
        self._log.take()

    def _load(self) -> None:
        self._log.forget()
        simulator.load(topology=self._config)

    def spawn(self, name: str) -> Process:
        return self._local.renew() if self.play_here else self._nursery.spawn({"probe": PROBE})

    def world(self, op: str, given: Step) -> Step:
        if op == "stub":
            name, *values = given["set"]
            simulator.inject(name, *map(number, values))
            return {}
        if op == "feature":
            self._feature = number(given["value"])
            return {"ret": 0}
        if op == "remount_dev":
            subprocess.run(["mount", "-o", "remount," + ("noexec" if given["noexec"] else "exec"), "/dev"], check=True)
            return {"ret": 0}
        return self._reload(op, given)

    def _reload(self, op: str, given: Step) -> Step:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self._log.forget()
        if op == "rmmod":
            # O_NONBLOCK: refuse at once, as the recorder's rmmod did
            status = libc.delete_module(b"obmm_sim", os.O_NONBLOCK)
        else:
            words = [word for word in given["params"].split() if word.startswith("skip_cache_maintain")]
            words += [f"topology={self._config}", f"feature={self._feature}"]
            fd = os.open(simulator.MODULE, os.O_RDONLY)
            status = libc.syscall({"x86_64": 313, "aarch64": 273}[os.uname().machine], fd, " ".join(words).encode(), 0)
            os.close(fd)
        if status < 0:
            return {"ret": -1, "errno": errno_name(ctypes.get_errno())}
        return {"ret": 0}

    def account(self) -> Account:
        account = Account()
        for name, fields in self._log.take():
            if name in UMMU_CALLS:
                account.ummu_calls.append(self._ummu_call(name, fields))
            else:
                account.flush.append(self._flush(name, fields))
        return account

    @staticmethod
    def _ummu_call(name: str, fields: dict[str, str]) -> Step:
        call: Step = {"call": name} | fields
        if "refused" in fields:
            call["refused"] = True
        if "ret" in fields:
            call["ret"] = _result(fields["ret"])
        return call

    @staticmethod
    def _flush(name: str, fields: dict[str, str]) -> Step:
        if name == "DRAIN":
            return {"op": "DRAIN", "scna": fields["scna"]}
        flush: Step = {"op": name, "length": fields["length"]}
        if fields["ret"] != "0":
            flush["ret"] = _result(fields["ret"])
        if (REGIONS / f"obmm_shmdev{fields['mem_id']}").exists():
            return flush | {"mem_id": int(fields["mem_id"]), "offset": fields["offset"]}
        return flush | {"pa": fields["pa"]}

    def augment(self, process: Process, op: str, given: Step, result: Step) -> Step:
        return result

    def end(self, processes: Sequence[Process]) -> None:
        for process in processes:
            process.kill()
        if not simulator.DEBUG.exists() or self._feature != 0xF:
            self._feature = 0xF
            self._load()
        simulator.inject("reset")
        remove_regions()

    def close(self) -> None:
        self._log.forget()  # an open one keeps the module
        self._nursery.close()


def remove_regions() -> None:
    """Remove every region of this host; fails while one is in use."""
    for region in sorted(REGIONS.glob("obmm_shmdev*")):
        kind = (region / "type").read_text().strip()
        control = os.open("/dev/obmm", os.O_RDWR)
        try:
            fcntl.ioctl(control, REMOVE[kind], struct.pack("QQ", int(region.name.removeprefix("obmm_shmdev")), 0))
        finally:
            os.close(control)
