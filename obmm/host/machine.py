# SPDX-License-Identifier: Apache-2.0
"""Checks of the machine and the process that programs of obmm run in, emulated or not."""

from __future__ import annotations

import mmap
import os
import re
import resource
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from obmm.driver.abi import PAGE
from obmm.host.check import Check

DEFAULT_MAP_COUNT = 65530
FEW_DESCRIPTORS = 1024


def machine_checks(environ: Mapping[str, str], root: str = "") -> Iterator[Check]:
    """All of them; `root` is a prefix of /proc and /sys."""
    yield check_process()
    yield check_huge_pages(root)
    yield check_numa(root)
    yield check_map_count(root)
    yield check_descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield check_locked_memory(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0])
    yield check_hash_seed(environ)


def check_process(pointer_bytes: int = struct.calcsize("P"), page: int = mmap.PAGESIZE) -> Check:
    """A 64-bit process on 4 KiB pages: the driver has no 32-bit entry, and rights count in pages."""
    if pointer_bytes != 8:
        return Check("process", "error", "a 32-bit process: every ioctl answers ENOTTY", "use a 64-bit Python")
    if page != PAGE:
        return Check(
            "process",
            "error",
            f"pages of {page} bytes: this version counts rights in pages of {PAGE}",
            "use a kernel with 4 KiB pages, or map with pmd=True at your own risk",
        )
    return Check("process", "ok", f"64 bit, {os.uname().machine}, pages of {page} bytes, kernel {os.uname().release}")


def check_huge_pages(root: str = "") -> Check:
    """hugetlb pages of 2 MiB: only user-memory exports need them (driver specification 6.2)."""
    folder = Path(f"{root}/sys/kernel/mm/hugepages/hugepages-2048kB")
    total, free = _number(folder / "nr_hugepages"), _number(folder / "free_hugepages")
    if total is None:
        return Check("huge pages", "skipped", "no huge pages of 2 MiB on this kernel")
    if total == 0:
        return Check("huge pages", "ok", "none reserved; only exports of a process's own memory need them")
    return Check("huge pages", "ok", f"{free} of {total} free (2 MiB each)")


def check_numa(root: str = "") -> Check:
    """Nodes, and which of them have no CPU: remote memory shows as such a node (driver specification 15)."""
    nodes = sorted(
        int(match[1])
        for path in Path(f"{root}/sys/devices/system/node").glob("node*")
        if (match := re.fullmatch(r"node(\d+)", path.name))
    )
    if not nodes:
        return Check("NUMA", "skipped", "this kernel shows no NUMA nodes")
    without = [n for n in nodes if not _text(Path(f"{root}/sys/devices/system/node/node{n}/cpulist"))]
    words = f"nodes {', '.join(map(str, nodes))}"
    if without:
        words += f"; without CPUs (remote or memory only): {', '.join(map(str, without))}"
    if len(nodes) > 16 + len(without):
        return Check("NUMA", "error", f"{words}: the driver knows 16 local nodes", "use fewer nodes per host")
    return Check("NUMA", "ok", words)


def check_map_count(root: str = "") -> Check:
    """Every ownership call over a part of a mapping splits it for ever (driver specification 9.4)."""
    limit = _number(Path(f"{root}/proc/sys/vm/max_map_count"))
    if limit is None:
        return Check("vm.max_map_count", "skipped", "cannot be read")
    if limit < DEFAULT_MAP_COUNT:
        return Check(
            "vm.max_map_count",
            "warning",
            f"{limit}: many ownership ranges end with ENOMEM (rule O10)",
            f"sysctl vm.max_map_count={DEFAULT_MAP_COUNT}, or more for ranges by the page",
        )
    return Check("vm.max_map_count", "ok", str(limit))


def check_descriptors(limit: int) -> Check:
    """Each mapping of a region holds a descriptor."""
    if limit != resource.RLIM_INFINITY and limit < FEW_DESCRIPTORS:
        return Check(
            "open files",
            "warning",
            f"at most {limit}: each mapping holds one",
            f"ulimit -n {FEW_DESCRIPTORS} or more (LimitNOFILE= in a unit)",
        )
    return Check("open files", "ok", f"at most {_limit(limit)}")


def check_locked_memory(limit: int) -> Check:
    """For information: the driver pins exported user memory without looking at this limit (driver specification 6.2)."""
    return Check("locked memory", "ok", f"limit {_limit(limit)}; region mappings do not count, staging buffers do")


def check_hash_seed(environ: Mapping[str, str]) -> Check:
    """Keys of obmm are content hashes; serving engines that hash with Python's own hash need one seed everywhere."""
    seed = environ.get("PYTHONHASHSEED")
    if seed in (None, "", "random"):
        return Check(
            "PYTHONHASHSEED",
            "ok",
            "not set: right for obmm, but block hashes of serving engines then differ from process to process, and shared "
            "KV caches never hit (set the same number on every node)",
        )
    return Check("PYTHONHASHSEED", "ok", f"{seed}; it must be the same on every node")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
