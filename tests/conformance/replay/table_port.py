# SPDX-License-Identifier: Apache-2.0
"""Cases through the emulator's system-call table: real processes, a real server, a fresh fabric for each case.

The server runs on a thread of this process, so that injections and accounts are calls on its model.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from obmm.emulator.directory import FabricDirectory
from obmm.emulator.server import Server

from . import vfs
from .emulator_world import HOST, OPERATIONS, EmulatorWorld, topology
from .huge_pages import HugePages
from .native_process import Nursery
from .native_system import build_probe
from .port import Account, Process
from .scratch import Scratch
from .transcript import Case, Transcript, number

Step = dict[str, Any]
PMD = 2 << 20

#: Words about a machine that this one need not be.
_HUGEPAGES = "/proc/sys/vm/nr_hugepages"


def needs_libc(case: Case) -> frozenset[str]:
    """Operations on regions or their files that the system-call table does not have."""
    own = {step["in"]["map"] for step in case.steps if step["op"] in ("hugemap", "reserve")}
    for step in case.steps:
        if step["op"] == "mmap":  # a region's under that name, or over a part of it
            own -= {step["in"]["map"], step["in"].get("at", [""])[0]}
    return frozenset(
        step["op"] for step in case.steps if step["op"] in vfs.THROUGH_LIBC and step["in"].get("map") not in own
    )


def cannot_execute(case: Case) -> str | None:
    """Some cases jump into code that they have stored."""
    if "call" in case.operations and os.uname().machine != "aarch64":
        return "executes arm64 instructions"
    if "setuid" in case.operations and os.geteuid() != 0:
        return "only root can become another user"
    return None


class TablePort:
    """The emulator behind its system-call table."""

    name = "emulator, system-call table"
    world_operations = OPERATIONS

    def __init__(self, transcript: Transcript) -> None:
        self._header = transcript.header
        self._folder = Scratch()
        folder = Path(self._folder.name)
        self._probe = build_probe(folder)
        self._runtime = folder / "run"
        self._runtime.mkdir(mode=0o700)
        self._numbers = itertools.count()
        self._nursery = Nursery()
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._world: EmulatorWorld | None = None
        self._clearing = False
        #: (pid, mapping) -> the memory that cases made for EXPORT_PID
        self._own_memory: dict[tuple[int, str], OwnMemory] = {}
        self._huge_pages: HugePages | None = None

    def unable(self, case: Case) -> str | None:
        reason = cannot_execute(case)
        if reason:
            return reason
        outside = needs_libc(case)
        if outside:
            return f"not in the system-call table: {', '.join(sorted(outside))}"
        return None

    def begin(self, config: str, clearing: bool = False) -> None:
        self._clearing = clearing
        directory = FabricDirectory(self._runtime, f"f{next(self._numbers)}")
        directory.claim()
        self._server = Server(topology(self._header, config), directory)
        self._world = EmulatorWorld(self._server.fabric)
        self._huge_pages = HugePages(self._world.host.spec)
        self._own_memory.clear()
        self._thread = threading.Thread(target=self._server.serve, name="fabric", daemon=True)
        self._thread.start()

    def spawn(self, name: str) -> Process:
        assert self._server is not None
        table = {"socket": str(self._server.directory.socket), "node": HOST}
        return self._nursery.spawn({"probe": str(self._probe), "table": table, "real_hugetlb": False})

    def world(self, op: str, given: Step) -> Step:
        assert self._world is not None
        assert self._server is not None
        self._server.settle()
        return self._world(op, given)

    def account(self) -> Account:
        assert self._world is not None
        assert self._server is not None
        self._server.settle()
        return self._world.account(self._clearing)

    def augment(self, process: Process, op: str, given: Step, result: Step) -> Step:
        assert self._world is not None
        assert self._huge_pages is not None
        if op == "maps":
            return self._maps(process, given, result["out"]["vmas"])
        if op == "vmpin":
            return {"ret": 0, "out": {"VmPin_kB": self._world.pinned_kib(process.pid)}}
        if op == "max_map_count":
            self._world.limit_maps(process.pid, given.get("value"), given.get("spare", 0))
        if op == "writefile" and given["path"] == _HUGEPAGES:
            self._huge_pages.resize(int(given["text"]))
            return {"ret": 0}
        if op == "hugemap" and result.get("ret") == 0:
            # its first call makes the process known to the model
            process.perform("open", {"path": "/dev/obmm", "flags": "O_RDONLY", "fd": "-"})
            process.perform("close", {"fd": "-"})
            return self._own(process, given, result)
        memory = self._own_memory.get((process.pid, given.get("map", "")))
        if memory is not None and op in ("mprotect", "munmap") and result.get("ret") == 0:
            offset, length = _span(process, given)
            if op == "mprotect":
                self._declare(process, memory, offset, length, writable="W" in given["prot"])
            else:
                first, last = offset // PMD, -(-(offset + length) // PMD)
                self._huge_pages.give([node for node in memory.nodes[first:last] if memory.huge])
        return result

    def _own(self, process: Process, given: Step, result: Step) -> Step:
        """Memory of the process itself: the model is told of its pages, which this machine may not have."""
        assert self._huge_pages is not None
        length, huge, bound = number(given["length"]), given.get("huge", True), given.get("node")
        nodes = self._huge_pages.take(-(-length // PMD), bound) if huge else [bound or 0] * -(-length // PMD)
        if nodes is None:
            return {"failure": f"{length:#x} bytes of huge pages are more than the recorded machine had"}
        place = process.perform("where", {"map": given["map"]})
        memory = self._own_memory[process.pid, given["map"]] = OwnMemory(place["address"], length, huge, nodes)
        self._declare(process, memory, 0, length, writable=True)
        return result

    def _declare(self, process: Process, memory: OwnMemory, offset: int, length: int, writable: bool) -> None:
        """[offset, offset + length) of it, page by page."""
        assert self._world is not None
        while length > 0:
            part = min(length, PMD - offset % PMD)
            node = memory.nodes[offset // PMD]
            self._world.declare(process.pid, memory.address + offset, part, memory.huge, node, writable)
            offset, length = offset + part, length - part

    def _maps(self, process: Process, given: Step, real: list[Step]) -> Step:
        """Regions as the model says, in the order of addresses with what is the process's own."""
        assert self._world is not None
        place = process.perform("where", given)
        vmas = self._world.vmas(process.pid, place["address"], place["length"])
        wrong = _contradiction(vmas, [piece for piece in real if _emulated(piece)])
        if wrong:
            return {"failure": wrong}
        memory = self._own_memory.get((process.pid, given["map"]))
        own = [
            piece if memory is None else memory.as_recorded(piece) for piece in real if memory or not _emulated(piece)
        ]
        return {"ret": 0, "out": {"vmas": sorted([*vmas, *own], key=lambda piece: piece["off"])}}

    def end(self, processes: Sequence[Process]) -> None:
        assert self._server is not None
        assert self._thread is not None
        for process in processes:
            process.kill()
        try:
            self._server.settle()
            self._server.fabric.check()
        finally:
            self._server.stop()
            self._thread.join(10)
            errors = self._server.internal_errors
            self._server.close()
            self._server = self._world = None
        if errors:
            raise AssertionError(f"{errors} internal errors in the server")

    def close(self) -> None:
        self._nursery.close()
        self._folder.cleanup()


@dataclass(frozen=True)
class OwnMemory:
    """Memory that a case made in its process for EXPORT_PID."""

    address: int
    length: int
    huge: bool
    nodes: list[int]
    """Of each 2 MiB, in order."""

    def as_recorded(self, piece: Step) -> Step:
        """A real piece of it as it was on a machine with huge pages, whatever stands for them here."""
        if not self.huge:
            return piece
        return piece | {
            "perm": piece["perm"][:3] + "p",
            "file_offset": f"{piece['off']:x}",
            "path": "/anon_hugepage (deleted)",
            "KernelPageSize": "2048kB",
        }


def _emulated(piece: Step) -> bool:
    """Whether memory of the emulator's is mapped there: a region's, or pages that EXPORT_PID replaced."""
    return str(piece["path"]).startswith("/memfd:obmm-")


def _span(process: Process, given: Step) -> tuple[int, int]:
    """`off` and `length` of a step, by default the whole mapping."""
    offset = number(given.get("off", 0))
    whole = 0 if "length" in given else process.perform("where", {"map": given["map"]})["length"]
    return offset, number(given.get("length", whole - offset))


#: What page tables give for a VMA's letters: a write right reads as well, execution reads, and never goes with it.
_PAGE_RIGHTS = {
    "-w-s": ("rw-s",),
    # what an ownership call does to an executable mapping reaches its page tables only (Q14)
    "--xs": ("r--s", "r-xs", "---s"),
    "r-xs": ("r--s",),
    "r--s": ("r-xs",),
    "rwxs": ("rw-s",),
    "-wxs": ("rw-s",),
}


def _contradiction(model: list[Step], real: list[Step]) -> str | None:
    """The process's real page protections must be what the model says, however the real pieces are cut."""

    def rights(pieces: list[Step], offset: int) -> str:
        for piece in pieces:
            if piece["off"] <= offset < piece["off"] + piece["len"]:
                return str(piece["perm"])
        return "unmapped"

    for offset in sorted({piece["off"] for piece in (*model, *real)}):
        ours, theirs = rights(model, offset), rights(real, offset)
        if theirs not in {ours, *_PAGE_RIGHTS.get(ours, ())}:
            return f"the model says {ours!r} at {offset:#x}, the process's maps file {theirs!r}"
    return None
