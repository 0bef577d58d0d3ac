# SPDX-License-Identifier: Apache-2.0
"""What a fabric is made of: nodes, controllers, windows, pools, decided before it starts.

One TOML file describes a whole fabric (driver specification 13, 14, 22.3).
Sizes and addresses are integers or texts with a unit ("2MiB", "1G").

    [fabric]
    strict = false            # model caches: private copies per host
    seed = 0                  # of the random early eviction in strict mode

    [[host]]
    name = "a"
    memseg = "2MiB"
    mempool_size = "1GiB"

    [[host.node]]
    id = 0
    package = 0
    cpus = [0, 1]

    [[host.controller]]
    cna = 0x40a
    eid = 0x12
    node = 0
    ummu = 0

    [[host.controller.window]]
    kind = "CC"
    base = 0x10_0000_0000
    size = "1TiB"
    backed = false            # true: plain memory behind the window
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
PAGE = 4 * KIB
PMD = 2 * MIB
MEMORY_BLOCK = 128 * MIB
MAX_LOCAL_NODES = 16
FIRST_DRAM = 4 * GIB

_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}


class TopologyError(ValueError):
    """The description of a fabric is wrong; the text names the place, the value and the rule."""


def parse_size(value: object, where: str) -> int:
    """Bytes from an integer or a text such as ``"2MiB"``, ``"2M"`` or ``"0x200000"``."""
    if isinstance(value, bool):
        raise TopologyError(f"{where}: {value!r} is no size")
    if isinstance(value, int):
        number = value
    elif isinstance(value, str):
        match = re.fullmatch(r"\s*(0[xX][0-9a-fA-F_]+|[0-9][0-9_]*)\s*([KMGT]?)(?:iB|B)?\s*", value)
        if match is None:
            raise TopologyError(f"{where}: {value!r} is no size; write bytes or a number with KiB, MiB, GiB or TiB")
        number = int(match[1].replace("_", ""), 0) * _UNITS[match[2]]
    else:
        raise TopologyError(f"{where}: {value!r} is no size; write an integer or a text such as '2MiB'")
    if not 0 <= number < 1 << 64:
        raise TopologyError(f"{where}: {value!r} does not fit in 64 bits")
    return number


def parse_eid(value: object, where: str) -> bytes:
    """16 bytes of an EID: an integer (little endian, as sysfs prints it) or 32 hex digits from byte 0."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < 1 << 128:
            raise TopologyError(f"{where}: {value} does not fit in 16 bytes")
        return value.to_bytes(16, "little")
    if isinstance(value, str):
        try:
            raw = bytes.fromhex(value)
        except ValueError:
            raw = b""
        if len(raw) == 16:
            return raw
    raise TopologyError(f"{where}: {value!r} is no EID; write an integer or 32 hex digits")


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


@dataclass(frozen=True)
class Controller:
    """A UB bus controller: its network address, entity id, UMMU and node, and its windows."""

    cna: int
    eid: bytes
    node: int | None = 0
    ummu: int = 0
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True)
class HostSpec:
    """One machine of the fabric."""

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
            f"mempool_size={_size_text(self.mempool_size)} mempool_refill_timeout={self.mempool_refill_timeout} "
            f"mempool_allocator={self.allocator} mem_allocator_granu={_size_text(self.memseg)}"
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

    @classmethod
    def default(cls, hosts: int | Iterable[str] = 2, *, strict: bool = False, seed: int = 0) -> Topology:
        """`hosts` equal machines named a, b, c, ...: one package, one node, one controller, one CC and
        one NC window above DRAM, memseg 2 MiB, pool 1 GiB (driver specification 22.3 rule 3)."""
        names = [_letters(i) for i in range(hosts)] if isinstance(hosts, int) else list(hosts)
        return cls(tuple(default_host(name, i) for i, name in enumerate(names)), strict, seed)

    @classmethod
    def load(cls, path: str | Path) -> Topology:
        """Read a TOML file; raise `TopologyError` that names the place for anything wrong in it."""
        try:
            with open(path, "rb") as file:
                document = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise TopologyError(f"{path}: not TOML: {error}") from None
        return cls.parse(document, str(path))

    @classmethod
    def loads(cls, text: str) -> Topology:
        """Like `load`, from a text."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise TopologyError(f"not TOML: {error}") from None
        return cls.parse(document)

    @classmethod
    def parse(cls, document: Mapping[str, Any], where: str = "topology") -> Topology:
        """Build from a document as `tomllib` gives it."""
        raise NotImplementedError


def default_host(name: str, index: int) -> HostSpec:
    """The synthetic machine of driver specification 22.3 rule 3; CNA and EID differ by `index`."""
    base = 0x100_0000_0000
    return HostSpec(
        name=name,
        controllers=(
            Controller(
                cna=0x40A + 0x100 * index,
                eid=(0x12 + index).to_bytes(16, "little"),
                windows=(Window("CC", base, TIB), Window("NC", base + 2 * TIB, TIB)),
            ),
        ),
    )


def _size_text(size: int) -> str:
    for unit in "TGMK":
        if size and not size % _UNITS[unit]:
            return f"{size // _UNITS[unit]}{unit}"
    return str(size)


def _letters(index: int) -> str:
    text = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        text = chr(ord("a") + digit) + text
    return text
