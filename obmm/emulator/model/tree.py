# SPDX-License-Identifier: Apache-2.0
"""The files that a host shows: sysfs, procfs, module parameters, device nodes (driver specification 11-13).

Nothing is stored: every text is made from the model's state when somebody asks or watches.
"""

from __future__ import annotations

import errno
import stat
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from .calls import KernelError
from .region import ExportRegion, ImportRegion, Region
from .structs import MAX_PRIV_LEN

if TYPE_CHECKING:
    from ..topology import Controller
    from .host import Host
    from .preimport import Preimport

REGIONS = "/sys/devices/obmm"
POOLS = "/sys/kernel/obmm_mempool"
MODULE = "/sys/module/obmm"
PARAMETERS = f"{MODULE}/parameters"
MISC = "/sys/devices/virtual/misc/obmm"
MISC_CLASS = "/sys/class/misc/obmm"
NUMBERS = "/sys/dev/char"
"""Links from device numbers to devices."""
PREIMPORTS = "/proc/obmm/preimport_info"
FEATURE_FILE = "/sys/bus/ub/ub_feature"
MISC_MAJOR, MISC_MINOR, SHMDEV_MAJOR = 10, 122, 511
FEATURES = ("borrow_nc", "borrow_cc", "share_nc", "share_cc")
PREIMPORT_HEADER = f"{'pa_start':<16} - {'pa_end':<16} : {'dcna':<8} {'scna':<8}    {'deid':<37} {'seid':<37}    nid\n"

File = tuple[Callable[[], bytes], int]
"""A file: what makes its contents, and its mode (with S_IFCHR for a device node, S_IFLNK for a link)."""


class Sink(Protocol):
    """Somebody who keeps a copy of the files."""

    def write(self, path: str, data: bytes, mode: int) -> None:
        """The file at `path` (absolute) is new or has new contents. A device node has S_IFCHR in its mode
        and ``b"major:minor\\n"`` as contents, ``b"major:minor uid:gid\\n"`` when it is not root's; a link has S_IFLNK and its target."""

    def remove(self, path: str) -> None:
        """The file or folder at `path` is gone."""


class Tree:
    """The files of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._sinks: list[Sink] = []
        self._pools_shown: dict[str, bytes] = {}
        """Pool files as the sinks have them."""
        self._ranges: dict[int, str] = {}
        """Lines of /proc/iomem by the start of their range."""

    # --- looking --------------------------------------------------------------------------------------

    def watch(self, sink: Sink) -> None:
        """Report all files to `sink` now, and every change from now on."""
        with self._host.fabric.lock:
            self._sinks.append(sink)
            for path, (make, mode) in self.files():
                sink.write(path, make(), mode)

    def refresh(self) -> float | None:
        """Report files that changed by time alone (pool counters); seconds until that happens next."""
        host = self._host
        with host.fabric.lock:
            due = [at for at in (pool.settle() for pool in host.pools.values()) if at is not None]
            self.changed_pools()
            return max(0.0, min(due) - host.fabric.clock()) if due else None

    def read(self, path: str, uid: int = 0) -> bytes:
        """Contents of a file as `uid` would get them (ENOENT, EACCES)."""
        with self._host.fabric.lock:
            make, mode = self._find(path)
            if uid and not mode & 0o004:
                raise KernelError(errno.EACCES, "11", f"{path} has mode {mode & 0o7777:#o}")
            return make()

    def list(self, path: str) -> list[str]:
        """Names in a folder, sorted (ENOENT when nothing is below `path`)."""
        with self._host.fabric.lock:
            prefix = path.rstrip("/") + "/"
            names = {p[len(prefix) :].split("/", 1)[0] for p, _ in self.files() if p.startswith(prefix)}
            if not names:
                raise KernelError(errno.ENOENT, "11", path)
            return sorted(names)

    def mode(self, path: str) -> int:
        """Mode of a file, with S_IFCHR for device nodes and S_IFDIR for folders (ENOENT)."""
        with self._host.fabric.lock:
            try:
                return self._find(path)[1]
            except KernelError:
                prefix = path.rstrip("/") + "/"
                if any(p.startswith(prefix) for p, _ in self.files()):
                    return stat.S_IFDIR | 0o755
                raise

    def files(self) -> Iterator[tuple[str, File]]:
        """Every file of the host."""
        host = self._host
        yield from self._hardware_files()
        if not host.loaded:
            return
        yield from self._module_files()
        yield from self._pool_files()
        for region in host.regions.values():
            yield from self._region_files(region)

    def _find(self, path: str) -> File:
        for known, file in self.files():
            if known == path:
                return file
        raise KernelError(errno.ENOENT, "11", path)

    # --- changes ------------------------------------------------------------------------------------

    def module_loaded(self) -> None:
        """The module's own files appear."""
        self._write(self._module_files())
        self._pools_shown.clear()
        self.changed_pools()
        self._changed_devices()

    def module_unloaded(self) -> None:
        """They go away again."""
        number = f"{NUMBERS}/{MISC_MAJOR}:{MISC_MINOR}"
        for path in ("/dev/obmm", number, MISC_CLASS, MISC, MODULE, REGIONS, POOLS, "/proc/obmm"):
            self._remove(path)
        self._changed_devices()

    def region_added(self, region: Region) -> None:
        """A region's node and attributes appear."""
        self._write(self._region_files(region))
        self._region_changed_others(region)

    def region_removed(self, region: Region) -> None:
        """They go away again."""
        self._remove(f"/dev/obmm_shmdev{region.mem_id}")
        self._remove(f"{NUMBERS}/{SHMDEV_MAJOR}:{region.mem_id}")
        self._remove(f"{REGIONS}/obmm_shmdev{region.mem_id}")
        self._region_changed_others(region)

    def changed_node(self, region: Region | None) -> None:
        """Mode or owner of a region's node, or of the control node, changed."""
        self._write(self._control_files() if region is None else self._node_files(region))

    def changed_preimport(self, preimport: Preimport) -> None:
        """A preimport appeared or went."""
        self._changed_range(preimport.start)
        self._write(self._only(PREIMPORTS))

    def changed_features(self) -> None:
        """The firmware reports other features."""
        if self._host.features is None:
            self._remove(FEATURE_FILE)
        self._write(self._only(FEATURE_FILE))

    def changed_pools(self) -> None:
        """Pool counters may have moved."""
        if not self._sinks:
            return
        for path, (make, mode) in self._pool_files():
            data = make()
            if self._pools_shown.get(path) != data:
                self._pools_shown[path] = data
                for sink in self._sinks:
                    sink.write(path, data, mode)

    def _region_changed_others(self, region: Region) -> None:
        if isinstance(region, ImportRegion):
            self._changed_range(region.preimport.start if region.preimport else region.pa)
        else:
            self.changed_pools()

    def _changed_range(self, start: int) -> None:
        """What a window range holds has changed."""
        lines = self._range_lines(start)
        if lines:
            self._ranges[start] = lines
        else:
            self._ranges.pop(start, None)
        self._write(self._only("/proc/iomem"))

    def _changed_devices(self) -> None:
        self._write(self._only("/proc/devices"))

    def _only(self, *paths: str) -> Iterator[tuple[str, File]]:
        if self._sinks:
            yield from ((path, file) for path, file in self._global_files() if path in paths)

    def _write(self, files: Iterator[tuple[str, File]]) -> None:
        if not self._sinks:
            return
        for path, (make, mode) in files:
            data = make()
            for sink in self._sinks:
                sink.write(path, data, mode)

    def _remove(self, path: str) -> None:
        for sink in self._sinks:
            sink.remove(path)

    # --- contents -----------------------------------------------------------------------------------

    def _hardware_files(self) -> Iterator[tuple[str, File]]:
        yield from ((path, file) for path, file in self._global_files() if path != PREIMPORTS)
        for index, controller in enumerate(self._host.spec.controllers):
            entity = f"{index + 1:05x}"
            for name, content in self._controller_texts(controller).items():
                yield f"/sys/devices/ub_bus_controller{index}/{entity}/{name}", (_text(content), 0o444)
                yield f"/sys/bus/ub/devices/{entity}/{name}", (_text(content), 0o444)

    def _global_files(self) -> Iterator[tuple[str, File]]:
        yield "/proc/devices", (self._devices, 0o444)
        yield "/proc/iomem", (self._iomem, 0o444)
        if self._host.features is not None:
            yield FEATURE_FILE, (self._features, 0o444)
        if self._host.loaded:
            yield PREIMPORTS, (self._preimports, 0o444)

    def _module_files(self) -> Iterator[tuple[str, File]]:
        host = self._host
        device = f"{MISC_MAJOR}:{MISC_MINOR}"
        yield from self._control_files()
        yield f"{MISC}/dev", (_text(device), 0o444)
        yield f"{MISC}/uevent", (_text(f"MAJOR={MISC_MAJOR}\nMINOR={MISC_MINOR}\nDEVNAME=obmm"), 0o644)
        yield f"{MISC}/power/control", (_text("auto"), 0o644)
        yield f"{MISC}/subsystem", _link("../../../../class/misc")
        yield MISC_CLASS, _link("../../devices/virtual/misc/obmm")
        yield f"{NUMBERS}/{device}", _link("../../devices/virtual/misc/obmm")
        for name, (text, mode) in host.module.files.items():
            yield f"{PARAMETERS}/{name}", (_text(text), mode)
        # a device without bus and class has no properties to tell: its uevent is empty (2)
        yield f"{REGIONS}/uevent", (bytes, 0o644)
        yield f"{REGIONS}/power/control", (_text("auto"), 0o644)
        yield f"{REGIONS}/module", _link("../../module/obmm")
        yield PREIMPORTS, (self._preimports, 0o444)

    def _pool_files(self) -> Iterator[tuple[str, File]]:
        for node, pool in self._host.pools.items():
            counters = pool.counters()
            for name in ("total", "used", "available_cleared", "available_uncleared"):
                yield f"{POOLS}/obmm-{node}/{name}", (_text(hex(counters[name])), 0o400)

    def _control_files(self) -> Iterator[tuple[str, File]]:
        host = self._host
        device = f"{MISC_MAJOR}:{MISC_MINOR}{_owner(host.control_owner)}"
        yield "/dev/obmm", (_text(device), stat.S_IFCHR | host.control_mode)

    def _node_files(self, region: Region) -> Iterator[tuple[str, File]]:
        device = f"{SHMDEV_MAJOR}:{region.mem_id}{_owner(region.owner)}"
        yield f"/dev/obmm_shmdev{region.mem_id}", (_text(device), stat.S_IFCHR | region.mode)

    def _region_files(self, region: Region) -> Iterator[tuple[str, File]]:
        yield from self._node_files(region)
        folder = f"{REGIONS}/obmm_shmdev{region.mem_id}"
        yield f"{folder}/size", (_text(hex(region.size)), 0o400)
        yield f"{folder}/type", (_text(region.kind), 0o400)
        yield f"{folder}/priv_len", (_text(str(len(region.priv))), 0o400)
        yield f"{folder}/priv", (lambda: region.priv.ljust(MAX_PRIV_LEN, b"\0"), 0o400)
        yield f"{folder}/allow_mmap", (_text(str(int(region.allow_mmap))), 0o400)
        yield f"{folder}/dev", (_text(f"{SHMDEV_MAJOR}:{region.mem_id}"), 0o444)
        yield f"{folder}/uevent", (bytes, 0o644)
        yield f"{folder}/power/control", (_text("auto"), 0o644)
        yield f"{NUMBERS}/{SHMDEV_MAJOR}:{region.mem_id}", _link(f"../../devices/obmm/obmm_shmdev{region.mem_id}")
        for name, text in region_attributes(region).items():
            yield f"{folder}/{region.kind}_info/{name}", (_text(text), 0o400)

    def _controller_texts(self, controller: Controller) -> dict[str, str]:
        texts = {
            "eid": str(int.from_bytes(controller.eid, "little")),
            "primary_cna": f"{controller.cna:#06x}",
            "ummu_map": f"{controller.ummu:#04x}",
            "ubc": hex(self._host.spec.controllers.index(controller)),
        }
        if controller.node is not None:
            texts["numa"] = f"{controller.node:#04x}"
        return texts

    def _devices(self) -> bytes:
        lines = ["Character devices:", f" {MISC_MAJOR} misc"]
        if self._host.loaded:
            lines.append(f"{SHMDEV_MAJOR} OBMM_SHMDEV")
        return ("\n".join(lines) + "\n\nBlock devices:\n").encode()

    def _features(self) -> bytes:
        mask = self._host.features or 0
        lines = [f"{name}{'+' if mask >> bit & 1 else '-'}" for bit, name in enumerate(FEATURES)]
        return "\n".join([hex(mask), *lines, ""]).encode()

    def _preimports(self) -> bytes:
        lines = [PREIMPORT_HEADER]
        for one in reversed(self._host.preimports):
            lines.append(
                f"{one.start:<16x} - {one.end - 1:<16x} : {one.dcna:<#8x} {one.scna:<#8x}    "
                f"{_long_eid(one.deid)} {_long_eid(one.seid)}    {one.node:<3d}\n"
            )
        return "".join(lines).encode()

    def _iomem(self) -> bytes:
        return "".join(self._ranges[start] for start in sorted(self._ranges)).encode()

    def _range_lines(self, start: int) -> str:
        """The resource at `start` and what lies in it; nothing while it is made or when it is gone."""
        host = self._host
        held = host.imports.at(start)
        if held is None:
            return ""
        if isinstance(held.owner, ImportRegion):
            region = held.owner
            if region.mem_id not in host.regions:
                return ""
            lines, inside = _resource(0, held.start, held.end, "DIRECT_IMPORT_UBMEM"), [region]
            numa = region.numa_remote
        else:
            lines, numa = _resource(0, held.start, held.end, "PREIMPORT_UBMEM"), True
            inside = [r for r in host.regions.values() if isinstance(r, ImportRegion) and r.preimport is held.owner]
        if numa:
            lines += _resource(1, held.start, held.end, "System RAM (Remote)")
        for region in sorted(inside, key=lambda r: r.pa):
            lines += _resource(1 + numa, region.pa, region.pa + region.size, f"MEMID_{region.mem_id}")
        return lines


def region_attributes(region: Region) -> dict[str, str]:
    """The files below `export_info` or `import_info`."""
    if isinstance(region, ExportRegion):
        return {
            "node_mem_size": ",".join(map(hex, region.node_sizes)),
            "uba": hex(region.uba),
            "tokenid": hex(region.tokenid),
            "memory_from_user": str(int(region.from_user)),
            "deid": _eid(region.deid),
        }
    assert isinstance(region, ImportRegion)
    texts = {
        "pa": hex(region.pa),
        "scna": hex(region.scna),
        "dcna": hex(region.dcna),
        "seid": _eid(region.seid),
        "deid": _eid(region.deid),
    }
    if region.numa_remote:
        texts["numa_id"] = str(region.numa_id)
        texts["preimport"] = str(int(region.preimport is not None))
    return texts


def _owner(owner: tuple[int, int]) -> str:
    """What a device node's text says behind its numbers, when root gave it away."""
    return " {}:{}".format(*owner) if any(owner) else ""


def _link(target: str) -> File:
    return target.encode, stat.S_IFLNK | 0o777


def _text(line: str) -> Callable[[], bytes]:
    return lambda: line.encode() + b"\n"


def _eid(eid: bytes) -> str:
    return f"{int.from_bytes(eid[8:], 'little'):#x}:{int.from_bytes(eid[:8], 'little'):#x}"


def _long_eid(eid: bytes) -> str:
    return f"{int.from_bytes(eid[8:], 'little'):#018x}:{int.from_bytes(eid[:8], 'little'):#018x}"


def _resource(depth: int, start: int, end: int, name: str) -> str:
    return f"{'  ' * depth}{start:08x}-{end - 1:08x} : {name}\n"
