# SPDX-License-Identifier: Apache-2.0
"""What a fabric is made of: nodes, controllers, windows, pools, decided before it starts.

One TOML file describes a whole fabric (driver specification 13, 14, 22.3). Sizes and addresses are
integers or texts with a unit ("2MiB", "1G"). Everything but names, CNAs, EIDs and windows has a default.

    [fabric]
    strict = false                 # model caches: private copies per host
    seed = 0                       # of the random early eviction in strict mode
    poison_unit = 0                # see driver model, injections

    [[host]]
    name = "a"
    memseg = "2MiB"                # unit of EXPORT sizes
    mempool_size = "1GiB"          # over all nodes
    mempool_refill_timeout = 30000 # ms
    mempool_allocator = "buddy_highmem"
    numa_remote = true             # booted with numa_remote
    logical_ummu = true            # takes exports without vendor data
    token_min = 0
    token_max = 0xfffff
    ubm_granule = 0                # physical blocks aligned to 2 MiB << granule
    contiguous_percent = 100       # pmd_mapping=
    max_nodes = 16                 # nodes that the kernel knows
    features = 0xf                 # firmware mask; absent = no source
    discontiguous = true           # neighbours in a region are not neighbours in memory
    distances = [[0, 1, 20]]       # node, node, distance

    [[host.node]]
    id = 0
    package = 0                    # absent = no socket
    cpus = [0, 1]
    memory = "64GiB"
    base = "4GiB"                  # absent = behind the node before
    online = true

    [[host.controller]]
    cna = 0x40a
    eid = 0x12                     # or 32 hex digits from byte 0
    node = 0                       # absent = no NUMA node
    ummu = 0

    [[host.controller.window]]
    kind = "CC"
    base = "1TiB"
    size = "1TiB"
    backed = false                 # true: plain memory behind the window
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from obmm.toml_text import parse_toml, read_toml

from .toml_table import Table, TopologyError, size_text

__all__ = ["Controller", "HostSpec", "Node", "Topology", "TopologyError", "Window"]

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
PAGE = 4 * KIB
PMD = 2 * MIB
MEMORY_BLOCK = 128 * MIB
FIRST_DRAM = 4 * GIB


@dataclass(frozen=True)
class Window:
    """A physical window of a controller: what an import's address must lie in (rule I14)."""

    kind: Literal["CC", "NC"]
    base: int
    size: int
    backed: bool = False

    @property
    def end(self) -> int:
        return self.base + self.size

    @classmethod
    def parse(cls, table: Table) -> Window:
        kind = table.text("kind", choices=("CC", "NC"))
        base = table.size("base", multiple=PMD)
        size = table.size("size", multiple=PMD)
        window = cls("CC" if kind == "CC" else "NC", base, size, table.boolean("backed", False))
        table.finish()
        if not window.size or not window.base or window.end > 1 << 52:
            raise TopologyError(f"{table.where}: an empty window, one at 0, or one past 52 bits")
        return window


@dataclass(frozen=True)
class Node:
    """A local NUMA node. `package` None = memory without CPUs and socket."""

    id: int
    package: int | None = 0
    cpus: tuple[int, ...] = (0,)
    memory: int = 64 * GIB
    base: int | None = None
    """Physical address of its memory; None = behind the memory of the node before it."""
    online: bool = True

    @classmethod
    def parse(cls, table: Table) -> Node:
        cpus = table.get("cpus", [])
        if not isinstance(cpus, list) or not all(isinstance(cpu, int) and cpu >= 0 for cpu in cpus):
            raise TopologyError(f"{table.place('cpus')}: {cpus!r} is not a list of CPU numbers")
        node = cls(
            id=table.integer("id", high=1023),
            package=table.integer("package", None),
            cpus=tuple(cpus),
            memory=table.size("memory", 64 * GIB, multiple=PAGE),
            base=table.size("base", None, multiple=PAGE),
            online=table.boolean("online", True),
        )
        table.finish()
        return node


@dataclass(frozen=True)
class Controller:
    """A UB bus controller: its network address, entity id, UMMU and node, and its windows."""

    cna: int
    eid: bytes
    node: int | None = 0
    ummu: int = 0
    windows: tuple[Window, ...] = ()

    @classmethod
    def parse(cls, table: Table) -> Controller:
        controller = cls(
            cna=table.integer("cna", low=1, high=0xFFFFFFFF),
            eid=_parse_eid(table.get("eid"), table.place("eid")),
            node=table.integer("node", None, high=1023),
            ummu=table.integer("ummu", 0, high=63),
            windows=tuple(Window.parse(one) for one in table.tables("window")),
        )
        table.finish()
        return controller


@dataclass(frozen=True)
class HostSpec:
    """One machine of the fabric. The fields are the keys of `[[host]]`."""

    name: str
    nodes: tuple[Node, ...] = (Node(0),)
    controllers: tuple[Controller, ...] = ()
    memseg: int = PMD
    mempool_size: int = GIB
    mempool_refill_timeout: int = 30000
    allocator: str = "buddy_highmem"
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    numa_remote: bool = True
    logical_ummu: bool = True
    contiguous_percent: int = 100
    token_min: int = 0
    token_max: int = 0xFFFFF
    ummu_granule: int = 0
    max_nodes: int = 16
    features: int | None = None
    discontiguous: bool = True

    @classmethod
    def parse(cls, table: Table) -> HostSpec:
        spec = cls(
            name=table.text("name"),
            nodes=tuple(Node.parse(one) for one in table.tables("node")) or (Node(0),),
            controllers=tuple(Controller.parse(one) for one in table.tables("controller")),
            memseg=table.size("memseg", PMD, multiple=PMD),
            mempool_size=table.size("mempool_size", GIB),
            mempool_refill_timeout=table.integer("mempool_refill_timeout", 30000, high=0x7FFFFFFF),
            allocator=table.text(
                "mempool_allocator", "buddy_highmem", choices=("buddy_highmem", "hugetlb_pmd", "hugetlb_pud")
            ),
            distances=_parse_distances(table.get("distances", []), table.place("distances")),
            numa_remote=table.boolean("numa_remote", True),
            logical_ummu=table.boolean("logical_ummu", True),
            contiguous_percent=table.integer("contiguous_percent", 100, high=100),
            token_min=table.integer("token_min", 0, high=0xFFFFFFFF),
            token_max=table.integer("token_max", 0xFFFFF, high=0xFFFFFFFF),
            ummu_granule=table.integer("ubm_granule", 0, high=7),
            max_nodes=table.integer("max_nodes", 16, low=1, high=1024),
            features=table.integer("features", None),
            discontiguous=table.boolean("discontiguous", True),
        )
        table.finish()
        return spec

    def validate(self, where: str = "host") -> None:
        """Raise TopologyError when the parts do not fit together."""
        where = f"{where} {self.name!r}"
        _unique([node.id for node in self.nodes], f"{where}: node id")
        _unique([controller.cna for controller in self.controllers], f"{where}: controller CNA")
        _unique([controller.eid.hex() for controller in self.controllers], f"{where}: controller EID")
        nodes = {node.id for node in self.nodes}
        for controller in self.controllers:
            if controller.node is not None and controller.node not in nodes:
                raise TopologyError(f"{where}: controller {controller.cna:#x} names node {controller.node}, not there")
            if not any(controller.eid):
                raise TopologyError(f"{where}: controller {controller.cna:#x} has the EID 0, which names no controller")
        ranges = [(low, high, f"memory of node {node}") for node, (low, high) in self.memory_ranges().items()]
        ranges += [
            (window.base, window.end, f"{window.kind} window of controller {controller.cna:#x}")
            for controller in self.controllers
            for window in controller.windows
        ]
        ranges.sort()
        for (_, end, one), (start, _, other) in pairwise(ranges):
            if start < end:
                raise TopologyError(f"{where}: {one} and {other} overlap at {start:#x}")

    def memory_ranges(self) -> dict[int, tuple[int, int]]:
        """Physical [start, end) of every node's memory."""
        ranges: dict[int, tuple[int, int]] = {}
        end = FIRST_DRAM
        for node in self.nodes:
            start = end if node.base is None else node.base
            end = start + node.memory
            ranges[node.id] = start, end
        return ranges

    def parameters(self) -> str:
        """The parameter line that the module is loaded with."""
        return (
            f"mempool_size={size_text(self.mempool_size)} mempool_refill_timeout={self.mempool_refill_timeout} "
            f"mempool_allocator={self.allocator} mem_allocator_granu={size_text(self.memseg)}"
        )

    def distance(self, one: int, other: int) -> int:
        """NUMA distance of two local nodes: as given, else 10 to itself and 20 to others."""
        if one == other:
            return self.distances.get((one, one), 10)
        return self.distances.get((one, other), self.distances.get((other, one), 20))


@dataclass(frozen=True)
class Topology:
    """All hosts of a fabric, in order."""

    hosts: tuple[HostSpec, ...]
    strict: bool = False
    seed: int = 0
    poison_unit: int = 0
    """Not 0: every region is made of pieces of this many bytes, each with memory of its own, so that one of
    them can be poisoned under existing mappings. Costs one descriptor per piece."""

    def __post_init__(self) -> None:
        if not self.hosts:
            raise TopologyError("a fabric needs at least one [[host]]")
        _unique([spec.name for spec in self.hosts], "host name")
        for spec in self.hosts:
            spec.validate()
        controllers = [controller for spec in self.hosts for controller in spec.controllers]
        _unique([controller.cna for controller in controllers], "controller CNA in the fabric")
        _unique([controller.eid.hex() for controller in controllers], "controller EID in the fabric")
        if self.poison_unit and (self.poison_unit % PAGE or self.poison_unit > PMD):
            raise TopologyError(f"fabric.poison_unit: {self.poison_unit} is not a multiple of 4 KiB up to 2 MiB")

    @classmethod
    def default(
        cls, hosts: int | Iterable[str] = 2, *, strict: bool = False, seed: int = 0, poison_unit: int = 0
    ) -> Topology:
        """`hosts` equal machines named a, b, c, ...: one package, one node, one controller, one CC and
        one NC window above DRAM, memseg 2 MiB, pool 1 GiB (driver specification 22.3 rule 3)."""
        names = [_letters(i) for i in range(hosts)] if isinstance(hosts, int) else list(hosts)
        return cls(tuple(default_host(name, i) for i, name in enumerate(names)), strict, seed, poison_unit)

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Read a TOML file; raise `TopologyError` that names the place for anything wrong in it."""
        try:
            document = read_toml(path)
        except ValueError as error:
            raise TopologyError(f"{path}: not TOML: {error}") from None
        return cls.parse(document, str(path))

    @classmethod
    def loads(cls, text: str, where: str = "topology") -> Topology:
        """Like `load`, from a text."""
        try:
            document = parse_toml(text.encode())
        except ValueError as error:
            raise TopologyError(f"{where}: not TOML: {error}") from None
        return cls.parse(document, where)

    @classmethod
    def parse(cls, document: Mapping[str, Any], where: str = "topology") -> Topology:
        """Build from a document as `tomllib` gives it."""
        table = Table(document, where)
        fabric = Table(table.get("fabric", {}), f"{where}.fabric")
        strict = fabric.boolean("strict", False)
        seed = fabric.integer("seed", 0)
        poison_unit = fabric.size("poison_unit", 0)
        fabric.finish()
        hosts = tuple(HostSpec.parse(one) for one in table.tables("host"))
        table.finish()
        return cls(hosts, strict, seed, poison_unit)


def default_host(name: str, index: int) -> HostSpec:
    """The synthetic machine of driver specification 22.3 rule 3; CNA and EID differ by `index`."""
    cc, nc = Window("CC", TIB, TIB), Window("NC", 3 * TIB, TIB)
    eid = (0x12 + index).to_bytes(16, "little")
    return HostSpec(name, controllers=(Controller(0x40A + 0x100 * index, eid, windows=(cc, nc)),))


def _parse_eid(value: object, where: str) -> bytes:
    """16 bytes of an EID: an integer (little endian, as sysfs prints it) or 32 hex digits from byte 0."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 128:
        return value.to_bytes(16, "little")
    if isinstance(value, str):
        try:
            raw = bytes.fromhex(value)
        except ValueError:
            raw = b""
        if len(raw) == 16:
            return raw
    raise TopologyError(f"{where}: {value!r} is not an EID; write an integer or 32 hex digits")


def _parse_distances(value: object, where: str) -> dict[tuple[int, int], int]:
    distances: dict[tuple[int, int], int] = {}
    for one in value if isinstance(value, list) else [value]:
        if not isinstance(one, list) or len(one) != 3 or not all(isinstance(n, int) and n >= 0 for n in one):
            raise TopologyError(f"{where}: {one!r} is not [node, node, distance]")
        if not 10 <= one[2] <= 255:
            raise TopologyError(f"{where}: distance {one[2]} is not between 10 and 255")
        distances[one[0], one[1]] = one[2]
    return distances


def _unique(values: list[Any], what: str) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            shown = hex(value) if isinstance(value, int) else value
            raise TopologyError(f"{what} {shown} is given twice")
        seen.add(value)


def _letters(index: int) -> str:
    text = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        text = chr(ord("a") + digit) + text
    return text
