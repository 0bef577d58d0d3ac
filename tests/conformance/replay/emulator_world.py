# SPDX-License-Identifier: Apache-2.0
"""The recorded machine as a fabric of the emulator: topology, injections, module, pool, account.

What a stub was in the recording is a fault or an account of the model here.
"""

from __future__ import annotations

import time
from typing import Any

from obmm.emulator.model.calls import KernelError
from obmm.emulator.model.fabric import Fabric
from obmm.emulator.model.user_memory import Extent
from obmm.emulator.topology import Controller, HostSpec, Node, Topology, Window

from .port import Account
from .system import errno_name
from .transcript import number

Step = dict[str, Any]

HOST = "a"
#: `pool_wait` gives up after this long, as the recorder did.
POOL_WAIT_S = 15.0

OPERATIONS = frozenset(
    {"stub", "fault", "rmmod", "insmod", "feature", "contig_percent", "pool", "pool_wait", "threads"}
    | {"uevent_listen", "uevent_get", "remount_dev"}
)


def topology(header: Step, config: str) -> Topology:
    """Topology A or B of the recording (driver transcript, section 1)."""
    machine = header["configs"][config]
    controllers = []
    for controller in machine["controllers"]:
        windows = tuple(
            Window(window["kind"], number(window["base"]), number(window["size"]), window["backed"])
            for window in header["windows"]
            if window["cna"] == controller["cna"] and window.get("config", config) == config
        )
        cna = number(controller["cna"])
        controllers.append(Controller(cna, cna.to_bytes(16, "little"), controller["node"], controller["ummu"], windows))
    distances = {}
    if isinstance(machine["distance"], dict):
        for pair, value in machine["distance"].items():
            if pair != "local":
                one, other = map(int, pair.split("-"))
                distances[one, other] = value
    # the recording's machine (QEMU "virt") had its memory from 1 GiB up to the first window
    share = (0xA000_0000 - 0x4000_0000) // len(machine["nodes"])
    nodes = tuple(
        Node(node["id"], node["package"], tuple(node["cpus"]), share, 0x4000_0000 + index * share)
        for index, node in enumerate(machine["nodes"])
    )
    parameters = dict(word.split("=") for word in header["module_parameters"].split() if "=" in word)
    return Topology(
        (
            HostSpec(
                HOST,
                nodes,
                tuple(controllers),
                memseg=header["memseg"],
                mempool_size=16 << 20,
                mempool_refill_timeout=int(parameters["mempool_refill_timeout"]),
                distances=distances,
                logical_ummu=True,
            ),
        )
    )


class EmulatorWorld:
    """One fabric with one host, as the recorder's machine was."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.host = fabric.hosts[HOST]
        self._uevents = 0

    def __call__(self, op: str, given: Step) -> Step:
        try:
            result = getattr(self, "_" + op)(given)
        except KernelError as error:
            return {"ret": -1, "errno": errno_name(error.errno)}
        return {} if op in ("stub", "fault") else {"ret": 0} | (result or {})

    def _stub(self, given: Step) -> Step:
        name, *values = given["set"]
        self.host.stub(name, *map(number, values))
        return {}

    def _fault(self, given: Step) -> None:
        """A fault of the emulator that the recording's stubs did not have."""
        self.fabric.inject(HOST, given["name"], value=given["value"])

    # the module

    def _rmmod(self, given: Step) -> None:
        self.host.rmmod()

    def _insmod(self, given: Step) -> None:
        self.host.insmod(given["params"])

    def _feature(self, given: Step) -> None:
        self.host.features = number(given["value"])

    def _contig_percent(self, given: Step) -> None:
        self.host.contiguous_percent = number(given["value"])

    def _threads(self, given: Step) -> Step:
        return {"out": {"names": sorted(self.host.threads())}}

    def _uevent_listen(self, given: Step) -> None:
        self._uevents = len(self.host.uevents)

    def _uevent_get(self, given: Step) -> Step:
        events = list(self.host.uevents[self._uevents :])
        self._uevents = len(self.host.uevents)
        return {"out": {"events": events}}

    def _remount_dev(self, given: Step) -> None:
        self.host.dev_noexec = given["noexec"]

    # the pool

    def _pool(self, given: Step) -> Step:
        return {"out": self._counters(given["nid"])}

    def _pool_wait(self, given: Step) -> Step:
        names = {"cleared": "available_cleared", "uncleared": "available_uncleared", "total": "total"}
        wanted = {name: number(given[key]) for key, name in names.items() if key in given}
        until = time.monotonic() + POOL_WAIT_S
        while True:
            counters = self._counters(given["nid"])
            if all(counters[key] == value for key, value in wanted.items()):
                return {"out": counters}
            if time.monotonic() > until:
                return {"ret": -1, "errno": "ETIMEDOUT", "out": counters}
            time.sleep(0.01)

    def _counters(self, nid: int) -> dict[str, int]:
        return dict(self.host.pool_counters(nid))

    # the account

    def account(self, clearing: bool) -> Account:
        """What the engine, the remote-NUMA layer and the UMMUs were asked since the last call.

        `clearing`: keep what EXPORT flushed to clear memory.
        """
        with self.fabric.lock:
            journal = self.host.take_journal()
            return Account(
                [
                    self._flush(entry)
                    for entry in journal
                    if entry["kind"] == "flush" and not entry.get("thread") and (clearing or not entry.get("clearing"))
                ],
                [_without_kind(entry) for entry in journal if entry["kind"] == "numa"],
                [_without_kind(entry) for entry in journal if entry["kind"] == "ummu"],
            )

    def _flush(self, entry: Step) -> Step:
        """Named as the recorder did: by region while it lives, else by address, else not at all."""
        if entry["op"] == "DRAIN":
            return {"op": "DRAIN", "scna": entry["scna"]}
        flush: Step = {"op": entry["op"], "length": entry["length"]}
        if entry.get("ret"):
            flush["ret"] = _errno(entry["ret"])
        found = self.host.physical.find(entry["pa"])
        if found is not None:
            return flush | {"mem_id": found[0].mem_id, "offset": found[1]}
        if self.host.in_window(entry["pa"]):
            return flush | {"pa": entry["pa"]}
        return flush | {"target": "memory of no live region"}

    # what only a kernel shows

    def vmas(self, pid: int, address: int, length: int) -> list[Step]:
        """The pieces of a mapping as the driver's kernel would list them."""
        letters = ((1, "r"), (2, "w"), (4, "x"))
        with self.fabric.lock:
            return [
                {
                    "off": max(vma.start, address) - address,
                    "len": min(vma.end, address + length) - max(vma.start, address),
                    "perm": "".join(letter if vma.prot & bit else "-" for bit, letter in letters) + "s",
                    "file_offset": f"{vma.offset:x}",
                    "path": vma.file.path,
                    "KernelPageSize": f"{vma.region.unit // 1024}kB",
                }
                for vma in self.host.processes[pid].vmas.overlapping(address, address + length)
            ]

    def declare(self, pid: int, start: int, length: int, huge: bool, node: int, writable: bool = True) -> None:
        """Memory of a process that the model takes as huge pages of `node`: this machine may have neither."""
        with self.fabric.lock:
            memory = self.host.processes[pid].memory
            memory.declare(Extent(start, start + length, huge, writable, node))

    def limit_maps(self, pid: int, value: int | None, spare: int) -> None:
        """vm.max_map_count: `value`, or `spare` more than the process has. The model counts its own pieces only."""
        with self.fabric.lock:
            process = self.host.processes.get(pid)
            now = len(process.vmas) if process is not None else 0
            self.host.max_map_count = now + spare if value is None else value

    def pinned_kib(self, pid: int) -> int:
        """VmPin of a process: what EXPORT_PID pinned."""
        with self.fabric.lock:
            return int(self.host.pinned_bytes(pid)) // 1024


def _without_kind(entry: Step) -> Step:
    plain = {key: value for key, value in entry.items() if key != "kind" and value is not None}
    if isinstance(plain.get("ret"), int) and plain["ret"] < -1:
        plain["ret"] = errno_name(-plain["ret"])
    return plain


def _errno(value: int | str) -> str:
    return value if isinstance(value, str) else errno_name(abs(value))
