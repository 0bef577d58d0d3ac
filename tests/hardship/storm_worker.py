# SPDX-License-Identifier: Apache-2.0
"""What one process of the storm does: any call, in any order, until it is killed.

Runs inside an agent (tests/conformance/replay), so that every call goes through the system-call table and every
load and store is a real one.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from obmm._native import ffi, lib

from ..conformance.replay.agent import Agent
from ..conformance.replay.commands import COMMANDS
from ..conformance.replay.system import Fault, errno_name

PAGE, PMD, BLOCK = 4096, 2 << 20, 128 << 20
BIT63 = 1 << 63
VENDOR = bytes(8) + (1).to_bytes(8, "little") + b"\1" + bytes(7)
REGIONS = "sys/devices/obmm"

#: What the driver may answer to what this worker does.  EIO is the server's word for a mistake of its own.
EXPECTED = frozenset(
    [
        "EACCES",
        "EAGAIN",
        "EBADF",
        "EBUSY",
        "EEXIST",
        "EFAULT",
        "EINVAL",
        "ENODEV",
        "ENOENT",
        "ENOMEM",
        "ENOSPC",
        "EOPNOTSUPP",
        "EPERM",
    ]
)
MOST_FILES, MOST_MAPPINGS = 12, 12


class Worker:
    """One process on one node."""

    def __init__(self, agent: Agent, order: dict[str, Any]) -> None:
        self.system = agent.system
        self.table = agent.system._calls._table  # type: ignore[attr-defined]
        self.random = random.Random(order["seed"])
        self.home = Path(order["roots"][order["node"]])
        self.roots = {node: Path(root) for node, root in order["roots"].items()}
        self.owners: dict[str, tuple[int, bytes]] = {
            node: (cna, bytes.fromhex(eid)) for node, (cna, eid) in order["owners"].items()
        }
        self.cna = self.owners[order["node"]][0]
        self.control = self.system.open("/dev/obmm", os.O_RDWR)
        self.files: list[tuple[int, int]] = []
        self.mappings: list[tuple[int, int, int]] = []
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def step(self) -> None:
        actions = [self.export, self.import_, self.remove, self.query] + [self.open] * 3 + [self.close] * 2
        actions += [self.map] * 5 + [self.unmap] * 3 + [self.own] * 6 + [self.touch] * 6 + [self.preimport]
        action = self.random.choice(actions)
        try:
            action()
            self.done[action.__name__] += 1
        except OSError as error:
            name = errno_name(error.errno)
            if name not in EXPECTED:
                raise RuntimeError(f"{action.__name__}: {name}") from error
            self.refused[name] += 1

    # commands

    def ioctl(self, fd: int, name: str, **values: int | bytes) -> dict[str, int]:
        command = COMMANDS[name]
        buffer = ffi.new("char[]", bytes(command.pack(values)))
        self.system.ioctl(fd, command.request, int(ffi.cast("uintptr_t", buffer)))
        return command.unpack(ffi.buffer(buffer, command.size)[:])

    def regions(self, root: Path) -> list[int]:
        try:
            names = os.listdir(root / REGIONS)
        except FileNotFoundError:
            return []
        return [int(name[11:]) for name in names if name.startswith("obmm_shmdev")]

    def attribute(self, root: Path, mem_id: int, name: str) -> str:
        return (root / REGIONS / f"obmm_shmdev{mem_id}" / name).read_text().strip()

    def export(self) -> None:
        vendor = ffi.new("char[]", VENDOR)
        self.ioctl(
            self.control,
            "EXPORT",
            size0=self.random.choice((PMD, 2 * PMD, 3 * PMD, PAGE)),
            length=1,
            flags=self.random.choice((0, 1, 1, 1, 3)),
            vendor_len=24,
            vendor_info=int(ffi.cast("uintptr_t", vendor)),
        )

    def import_(self) -> None:
        """Program the decoder for somebody's export, as a management plane would, and import it."""
        node = self.random.choice(list(self.roots))
        root = self.roots[node]
        known = self.regions(root)
        if not known:
            return
        mem_id = self.random.choice(known)
        if self.attribute(root, mem_id, "type") != "export":
            return
        length = int(self.attribute(root, mem_id, "size"), 0)
        window = ffi.new("struct obmm_emulator_window *")
        window.owner_cna, window.owner_eid = self.owners[node]
        window.tokenid = int(self.attribute(root, mem_id, "export_info/tokenid"), 0)
        window.uba = int(self.attribute(root, mem_id, "export_info/uba"), 0)
        window.length = length
        window.cache = self.random.choice((1, 1, 2))
        address = ffi.new("uint64_t *")
        status = lib.obmm_emulator_program(self.table, window, address)
        if status < 0:
            raise OSError(-status, os.strerror(-status))
        try:
            self.ioctl(self.control, "IMPORT", addr=address[0], length=length, flags=1, scna=self.cna)
        except OSError:
            lib.obmm_emulator_unprogram(self.table, address[0])
            raise

    def preimport(self) -> None:
        pa = (1 << 40) + BLOCK * self.random.randrange(2048, 2052)
        if self.random.random() < 0.5:
            self.ioctl(self.control, "DECLARE_PREIMPORT", pa=pa, length=BLOCK, scna=self.cna)
        else:
            self.ioctl(self.control, "UNDECLARE_PREIMPORT", pa=pa, length=BLOCK)

    def remove(self) -> None:
        known = self.regions(self.home)
        if known:
            name = self.random.choice(("UNEXPORT", "UNIMPORT"))
            self.ioctl(self.control, name, mem_id=self.random.choice(known))

    def query(self) -> None:
        known = self.regions(self.home)
        if known:
            mem_id = self.random.choice(known)
            offset = self.random.randrange(PMD)
            pa = self.ioctl(self.control, "ADDR_QUERY", key_type=1, mem_id=mem_id, offset=offset)["pa"]
            self.ioctl(self.control, "ADDR_QUERY", key_type=0, pa=pa)

    # descriptors and mappings

    def open(self) -> None:
        known = self.regions(self.home)
        if not known:
            return None
        if len(self.files) >= MOST_FILES:
            return self.close()
        mem_id = self.random.choice(known)
        flags = self.random.choice((os.O_RDWR, os.O_RDWR, os.O_RDONLY, os.O_RDWR | os.O_SYNC))
        self.files.append((mem_id, self.system.open(f"/dev/obmm_shmdev{mem_id}", flags)))
        return None

    def close(self) -> None:
        if self.files:
            self.system.close(self.files.pop(self.random.randrange(len(self.files)))[1])

    def map(self) -> None:
        if not self.files:
            return None
        if len(self.mappings) >= MOST_MAPPINGS:
            return self.unmap()
        _, fd = self.random.choice(self.files)
        prot = self.random.choice((0, 1, 3, 3))
        offset = self.random.choice((0, 0, PMD, BIT63, PAGE))
        length = self.random.choice((PMD, PMD, PAGE, 3 * PAGE, 2 * PMD))
        at = self.system.mmap(0, length, prot, 1, fd, offset)
        self.mappings.append((at, length, fd))
        return None

    def unmap(self) -> None:
        if not self.mappings:
            return
        at, length, _ = self.mappings.pop(self.random.randrange(len(self.mappings)))
        if self.random.random() < 0.3 and length > PAGE:
            self.system.munmap(at, PAGE)
            self.system.munmap(at + PAGE, length - PAGE)
        else:
            self.system.munmap(at, length)

    def own(self) -> None:
        if not self.mappings:
            return
        at, length, fd = self.random.choice(self.mappings)
        pages = length // PAGE
        first = self.random.randrange(pages)
        last = self.random.randrange(first, pages) + 1
        if self.random.random() < 0.4:
            first, last = 0, pages
        self.ioctl(
            fd,
            "UPDATE_RANGE",
            start=at + first * PAGE,
            end=at + last * PAGE,
            mem_state=self.random.choice((0x1, 0x9, 0xD, 0xE)),
            cache_ops=self.random.choice((4, 4, 4, 0, 1, 2, 3)),
        )

    def touch(self) -> None:
        if not self.mappings:
            return
        at, length, _ = self.random.choice(self.mappings)
        address = at + 8 * self.random.randrange(length // 8)
        try:
            if self.random.random() < 0.5:
                self.system.store(address, 8, self.random.getrandbits(64))
            else:
                self.system.load(address, 8)
        except Fault as fault:
            # no right (SIGSEGV), or nothing behind the window any more (SIGBUS)
            self.refused[f"signal {fault.signal}"] += 1


def storm(agent: Agent, order: dict[str, Any]) -> dict[str, Any]:
    """Steps until the time is over; most workers are killed before."""
    worker = Worker(agent, order)
    until = time.monotonic() + order["seconds"]
    while time.monotonic() < until:
        worker.step()
    return {"done": dict(worker.done), "refused": dict(worker.refused)}
