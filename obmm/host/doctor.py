# SPDX-License-Identifier: Apache-2.0
"""Is this host ready for OBMM?  Every check that has no side effect (``obmm doctor``).

A check is a function that looks at one thing and says what it saw, whether that is right, and what to do if not.  What
may not be read without privilege is skipped, and says so.  `diagnose` runs them all; one request goes to the driver,
the probe of driver specification 20, which leaves one line in the kernel log.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from obmm._native import ffi, lib
from obmm.driver import abi, topology
from obmm.driver.abi import QueryKey, Request
from obmm.driver.backend import Backend, first_node_up
from obmm.driver.calls import Connection
from obmm.errors import ObmmError, errno_name
from obmm.host import inventory
from obmm.host.check import Check, Status
from obmm.host.machine import machine_checks
from obmm.sizes import format_size
from obmm.windows.static import StaticWindows

Users = Callable[[], dict[int, tuple[int, ...]]]

_PARAMETERS = ("mempool_size", "mempool_allocator", "mem_allocator_granu", "mempool_refill_timeout")
_OWN_NODE = re.compile(r"obmm_shmdev(\d+)")


def diagnose(backend: Backend, *, environ: dict[str, str] | None = None, users: Users | None = None) -> Iterator[Check]:
    """Every check of `backend`'s node, then of the machine that this process runs on, in the order to fix things.

    `users` tells who holds the regions, as for `inventory.regions`.
    """
    environment = dict(os.environ) if environ is None else environ
    try:
        connection = Connection(backend)
    except ObmmError as error:
        yield Check("backend", "error", str(error.strerror), "start the fabric or the broker, or unset OBMM_DEVICE")
        return
    try:
        yield from _node_checks(connection.sys, backend, environment, users)
    finally:
        connection.close()
    yield from machine_checks(environ=environment)


def _node_checks(sys: Any, backend: Backend, environ: dict[str, str], users: Users | None) -> Iterator[Check]:
    root = ffi.string(sys.root).decode()
    yield check_backend(backend, ffi.string(sys.name).decode(), root)
    if not root and (node := first_node_up()) is not None:
        yield check_other_fabric(node)
    yield check_module(root)
    fd = lib.obmm_rw_open(sys)
    yield check_control_node(f"{root}{abi.DEV_PATH}", min(fd, 0), by_broker=backend.broker is not None)
    if fd >= 0:
        try:
            yield check_interface(lambda request, buffer: int(lib.obmm_rw_ioctl(sys, fd, request, buffer)))
        finally:
            lib.obmm_rw_close(sys, fd)
    else:
        yield Check("interface", "skipped", "the control node cannot be opened")
    yield from _looked_at("feature gate", lambda: [check_features(root)])
    yield from _looked_at("parameters", lambda: check_parameters(root))
    yield from _looked_at("pools", lambda: [check_pools(root)])
    yield from _looked_at("controllers", lambda: check_controllers(root))
    yield check_windows(backend, environ)
    yield check_region_nodes(root)
    yield check_leftovers(root, users)
    yield from _looked_at("preimports", lambda: [check_preimports(root)])
    if not root:
        yield check_boot_parameters(Path("/proc/cmdline"))


def _looked_at(name: str, checks: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """`checks`; a file that holds what no driver writes is an error of its own and hides none of the others."""
    try:
        yield from checks()
    except (ValueError, ArithmeticError) as error:
        yield Check(
            name, "error", f"a file of the driver holds what no driver writes: {error}", "report the kernel version"
        )


# --- the driver --------------------------------------------------------------------------------------------------------


def check_backend(backend: Backend, name: str, root: str) -> Check:
    """Which kernel answers: an emulated node must not be taken for hardware."""
    if root:
        how = f"through the broker {backend.broker}, " if backend.broker else ""
        return Check("backend", "ok", f"{how}emulated node {name}: nothing measured here speaks for hardware")
    if backend.broker:
        return Check("backend", "ok", f"the kernel's driver, opened by the broker {backend.broker}")
    return Check("backend", "ok", "the kernel's driver")


def check_other_fabric(node: str) -> Check:
    """A fabric of `obmm emulate up` runs, and this is not it: who started one may have meant it."""
    text = (
        f"an emulated one is up on this machine, and not what is checked here: `obmm doctor --device emulator#{node}`"
    )
    return Check("fabric", "ok", text)


def check_module(root: str) -> Check:
    """The module obmm is loaded."""
    if Path(f"{root}/sys/module/obmm").is_dir():
        return Check("module", "ok", "obmm is loaded")
    return Check(
        "module",
        "error",
        "obmm is not loaded: no /sys/module/obmm",
        "`modprobe obmm` as root on an openEuler kernel with OBMM; without hardware `obmm emulate up` and OBMM_DEVICE=emulator",
    )


def check_control_node(path: str, result: int, *, by_broker: bool = False) -> Check:
    """`result` of opening the control node, 0 or a negative errno, set against its owner and mode."""
    name = "control node"
    if result == 0:
        return Check(name, "ok", f"{path} opens" + (" (through the broker)" if by_broker else ""))
    code = -result
    facts, allowed = _node_mode(path)
    text = f"{path}: {errno_name(code)} ({os.strerror(code)}){facts}"
    if by_broker:
        return Check(
            name, "error", text, "allow it in the broker's policy; its audit log names the rule that is missing"
        )
    if code == errno.ENOENT:
        fix = "load the module; in a container pass the node in (`--device /dev/obmm`)"
    elif code == errno.EACCES:
        fix = "run as root, or `chgrp`/`chmod` the node, or let `obmm open-broker` open it for you"
    elif code == errno.EPERM and allowed:
        text += ": the mode bits would allow it, so the device cgroup of this container denies it"
        fix = "allow the device: `--device /dev/obmm` (docker, podman), a device plugin, or `DeviceAllow=` (systemd)"
    elif code in (errno.ENXIO, errno.ENODEV):
        text += ": a node without a driver behind it"
        fix = "load the module and make the node anew from /sys/class/misc/obmm/dev"
    elif code == errno.EOPNOTSUPP:
        fix = "the firmware's feature gate is closed: enable UB memory borrow or share in the firmware"
    else:
        fix = "`obmm explain OPEN " + errno_name(code) + "`"
    return Check(name, "error", text, fix)


def _node_mode(path: str) -> tuple[str, bool]:
    """Owner, mode and our groups in words, and whether the mode bits let this process read and write."""
    try:
        node = os.stat(path)
    except OSError:
        return "", False
    groups = {os.getegid(), *os.getgroups()}
    shift = 6 if node.st_uid == os.geteuid() else 3 if node.st_gid in groups else 0
    allowed = os.geteuid() == 0 or node.st_mode >> shift & 0o6 == 0o6
    words = f"; owner {node.st_uid}:{node.st_gid}, mode {stat.S_IMODE(node.st_mode):04o}"
    return f"{words}, we are {os.geteuid()} in groups {','.join(map(str, sorted(groups)))}", allowed


def check_interface(ioctl: Callable[[int, Any], int]) -> Check:
    """The probe of driver specification 20: a query that always fails, whose errno tells the interface's generation."""
    name = "interface"
    buffer = ffi.new("struct obmm_cmd_addr_query *", {"key_type": QueryKey.BY_ID_OFFSET})
    code = -ioctl(Request.ADDR_QUERY, buffer)
    if code == errno.ENOENT:
        return Check(name, "ok", "the interface of November 2025 and later (ADDR_QUERY answers)")
    if code == errno.EOPNOTSUPP:
        return Check(
            name,
            "error",
            "the driver refuses every command: the firmware reports none of the four UB memory features (rule D1)",
            "enable UB memory borrow or share in the firmware; see /sys/bus/ub/ub_feature",
        )
    if code == errno.ENOTTY:
        if -ioctl(abi.U23_ADDR_QUERY, buffer) != errno.ENOTTY:
            return Check(
                name,
                "error",
                "unsupported kernel interface: this driver speaks the one of 2023 (request numbers without size)",
                "update the driver to a release of November 2025 or later",
            )
        return Check(
            name,
            "error",
            "the driver knows none of the request numbers: another generation of the interface, or a 32-bit process",
            "update the driver; use a 64-bit Python",
        )
    return Check(
        name,
        "error",
        f"the probe was answered with {errno_name(code) if code > 0 else 'success'}, which no driver does",
        "see the kernel log (prefix OBMM:)",
    )


def check_features(root: str) -> Check:
    """The firmware's feature mask, the source of the gate (rule D1)."""
    name = "feature gate"
    path = Path(f"{root}/sys/bus/ub/ub_feature")
    lines = _lines(path)
    if lines is None:
        return Check(name, "ok", "no feature source: all features count as present")
    features = [line[:-1] for line in lines[1:] if line.endswith("+")]
    try:
        mask = int(lines[0], 16)
    except (IndexError, ValueError):
        return Check(name, "warning", f"{path} says {lines[:1]}, which is not a mask", "report the kernel version")
    if mask == 0:
        return Check(
            name,
            "error",
            f"{path}: mask {mask:#x}, no feature at all",
            "enable UB memory borrow or share in the firmware",
        )
    return Check(name, "ok", f"mask {mask:#x}: {', '.join(features) or 'no names'}")


def check_parameters(root: str) -> Iterator[Check]:
    """Module parameters that change what programs see (driver specification 12)."""
    folder = Path(f"{root}/sys/module/obmm/parameters")
    skip = _lines(folder / "skip_cache_maintain")
    values = {name: _lines(folder / name) for name in _PARAMETERS}
    shown = [f"{name}={lines[0] if lines else ''}" for name, lines in values.items() if lines is not None]
    unit = topology.granule(root)
    if shown:
        yield Check("parameters", "ok", ", ".join(shown))
    elif folder.is_dir():
        yield Check("parameters", "skipped", f"only root reads them; export sizes are rounded to {format_size(unit)}")
    else:
        yield Check("parameters", "skipped", "no parameters: the module is not loaded")
    if skip and skip[0] in ("Y", "1"):
        yield Check(
            "cache maintenance",
            "warning",
            "skip_cache_maintain=Y: nothing is ever written back or invalidated, readers on other hosts see old data",
            "load the module without skip_cache_maintain, except on simulators",
        )
    for path in sorted(Path(f"{root}/sys/module").glob("*/parameters/ubm_granule")):
        text = _lines(path)
        block = abi.BASIC_GRANULARITY << min(int(text[0]), 44) if text and text[0].isdigit() else 0
        if block > unit:
            yield Check(
                "UMMU granule",
                "error",
                f"{path} asks for blocks of {format_size(block)}, the driver allocates {format_size(unit)}: EXPORT will "
                "fail with EINVAL (rule X14)",
                f"load obmm with mem_allocator_granu={block >> 20}M",
            )


def check_pools(root: str) -> Check:
    """What EXPORT can take at once (driver specification 10 and 11.2)."""
    found = []
    empty = True
    for folder in sorted(Path(f"{root}/sys/kernel/obmm_mempool").glob("*")):
        total, used, cleared = (_hex(folder / name) for name in ("total", "used", "available_cleared"))
        if total is None or used is None or cleared is None:
            return Check("pools", "skipped", "only root reads the pools' counters")
        empty = empty and total == 0
        found.append(
            f"{folder.name}: {format_size(total)} held, {format_size(used)} lent, {format_size(cleared)} cleared"
        )
    if not found:
        return Check("pools", "skipped", "no pool counters (module absent, or older than 2026)")
    if empty:
        return Check(
            "pools",
            "warning",
            "; ".join(found) + ": exports allocate from the kernel, FAST ones fail",
            "boot with pmd_mapping=<n>% and raise mempool_size",
        )
    return Check("pools", "ok", "; ".join(found))


def check_controllers(root: str) -> Iterator[Check]:
    """Bus controllers: without one nothing leaves this host (driver specification 13.1)."""
    name = "controllers"
    try:
        found = topology.controllers(root)
    except (OSError, ValueError) as error:
        yield Check(name, "error", str(error), "report the kernel version: this file has a fixed format")
        return
    if not found:
        yield Check(
            name,
            "error",
            f"no UB bus controller below {root}/sys/devices",
            "this host has no UB hardware, or its bus driver is not loaded; in a container mount /sys",
        )
        return
    words = [
        f"#{c.index} CNA {c.cna:#x} EID {int.from_bytes(c.eid, 'little'):#x} UMMU {c.ummu} node {c.numa}" for c in found
    ]
    broken = [c.index for c in found if c.cna == 0 or not any(c.eid)]
    if broken:
        yield Check(
            name,
            "error",
            f"{'; '.join(words)}: controller {broken[0]} has CNA or EID 0",
            "the management plane has not configured the fabric yet",
        )
        return
    yield Check(name, "ok", "; ".join(words))
    if len({c.cna for c in found}) < len(found):
        yield Check(name, "error", "two controllers have the same CNA", "correct the fabric's configuration")
    for c in found:
        if c.numa < 0:
            yield Check(
                name,
                "error",
                f"controller {c.index} has no NUMA node: IMPORT answers ENODEV (I12)",
                "correct the firmware",
            )


def check_windows(backend: Backend, environ: dict[str, str]) -> Check:
    """Where import addresses will come from (docs/windows.md)."""
    name = "windows"
    path = environ.get("OBMM_WINDOWS")
    if path:
        try:
            table = StaticWindows(path)
        except (OSError, ValueError) as error:
            return Check(name, "error", f"OBMM_WINDOWS={path}: {error}", "correct the table")
        return Check(name, "ok", f"{table.name}: {len(table)} windows")
    if backend.is_emulator:
        return Check(name, "ok", "emulator: each import programs its own")
    return Check(
        name,
        "warning",
        "no provider: only window=<address> or attached regions can be imported",
        "name the cluster's table of programmed windows by OBMM_WINDOWS",
    )


def check_region_nodes(root: str) -> Check:
    """Nodes of regions: only root opens them, unless their modes were changed."""
    nodes = {
        int(match[1]): path
        for path in Path(f"{root}/dev").glob("obmm_shmdev*")
        if (match := _OWN_NODE.fullmatch(path.name))
    }
    if not nodes:
        return Check("region nodes", "ok", "none exist")
    closed = sorted(mem_id for mem_id, path in nodes.items() if not os.access(path, os.R_OK))
    if not closed:
        return Check("region nodes", "ok", f"{len(nodes)}, all readable for this process")
    return Check(
        "region nodes",
        "warning",
        f"{len(closed)} of {len(nodes)} cannot be opened by uid {os.geteuid()} (first: {closed[0]})",
        "udev never sees them: chmod each after its creation, or use `obmm open-broker`",
    )


def check_leftovers(root: str, users: Users | None = None) -> Check:
    """Regions whose owner is dead hold memory or windows until somebody removes them."""
    name = "leftovers"
    try:
        records = inventory.regions(root, users)
    except PermissionError:
        return Check(name, "skipped", "only root reads who made the regions")
    except (OSError, ValueError) as error:
        return Check(name, "warning", f"the regions' attributes cannot be read: {error}", "report the kernel version")
    dead = [record for record in records if record.owner == "dead"]
    if not dead:
        return Check(name, "ok", f"{len(records)} regions, none of a dead owner")
    return Check(
        name,
        "warning",
        f"{len(dead)} of {len(records)} regions ({format_size(sum(record.size for record in dead))}) have a dead owner",
        "`obmm gc` lists them, `obmm gc --yes` removes what is safe to remove",
    )


def check_preimports(root: str) -> Check:
    """Declared ranges pin the module and their windows (driver specification 6.6)."""
    lines = _lines(Path(f"{root}/proc/obmm/preimport_info"))
    if lines is None:
        return Check("preimports", "skipped", "no /proc/obmm/preimport_info")
    return Check("preimports", "ok", f"{max(len(lines) - 1, 0)} declared")


def check_boot_parameters(path: Path) -> Check:
    """Kernel command line: the contiguous pool and remote NUMA (driver specification 12)."""
    text = path.read_text() if path.exists() else ""
    pool = re.search(r"\bpmd_mapping=(\S+)", text)
    numa = re.search(r"\bnuma_remote\b\S*", text)
    if pool is None:
        return Check(
            "boot parameters",
            "warning",
            "no pmd_mapping=<n>%: exports find little contiguous memory and end with ENOMEM",
            "boot with pmd_mapping=<n>%, n the share of memory to lend",
        )
    return Check(
        "boot parameters", "ok", f"{pool[0]}, {numa[0] if numa else 'no numa_remote (NUMA imports answer EPERM)'}"
    )


def worst(checks: list[Check]) -> Status:
    """The verdict over all checks: error, warning or ok."""
    found = {check.status for check in checks}
    return "error" if "error" in found else "warning" if "warning" in found else "ok"


def _lines(path: Path) -> list[str] | None:
    """The lines of a file, or None if it may not be read or is not there."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return None


def _hex(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0], 16) if lines else None
