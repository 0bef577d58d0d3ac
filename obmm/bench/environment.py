# SPDX-License-Identifier: Apache-2.0
"""Where a run took place, as every result file records it."""

from __future__ import annotations

import mmap
import os
import platform
import subprocess
from pathlib import Path

import obmm
from obmm.bench import machine
from obmm.sizes import parse_size

UNKNOWN = "not readable"


def describe(backend: str) -> dict[str, object]:
    """Kernel, driver profile, page size, NUMA, CPU, governor, git revision, backend, versions and load."""
    return {
        **machine.describe(),
        "machine": platform.machine(),
        "backend": backend,
        "driver_profile": driver_profile(backend),
        "page_size": mmap.PAGESIZE,
        "numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1,
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or UNKNOWN,
        "shared_memory_huge_pages": _read("/sys/kernel/mm/transparent_hugepage/shmem_enabled") or UNKNOWN,
        "last_level_cache": last_level_cache(),
        "memory_available": memory_available(),
        "git_revision": git_revision(),
        "obmm": obmm.__version__,
    }


def driver_profile(backend: str) -> str:
    """Which driver answers: the module's version, or the emulator's model of it."""
    if backend.startswith("emulator"):
        return "emulator: the model of the OBMM driver of this package"
    if not Path("/sys/module/obmm").exists():
        return "no obmm module loaded"
    return f"obmm module {_read('/sys/module/obmm/version') or _read('/sys/module/obmm/srcversion') or 'of unknown version'}"


def last_level_cache(root: str = "/sys/devices/system/cpu") -> int:
    """Bytes of all level 3 caches of the machine together, however many there are; 0 where sysfs tells of none.

    A smaller cache that happens to be the largest is not a last level: what lies behind it is not known.
    """
    found: dict[str, int] = {}
    for index in Path(root).glob("cpu[0-9]*/cache/index*"):
        if _read(index / "level") == "3" and _read(index / "type") != "Instruction":
            shared = _read(index / "shared_cpu_list") or _read(index / "id") or "all"
            found[shared] = parse_size((_read(index / "size") or "0").replace("K", "KiB"))
    return sum(found.values())


def memory_available() -> int:
    """Bytes that can be taken without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return 0


def git_revision() -> str:
    """The revision of the source tree this code runs from, "+" when it was changed."""
    folder = Path(__file__).resolve().parent
    try:
        revision = _git(folder, "rev-parse", "--short=12", "HEAD")
        return revision + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "not in a git tree"


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


def _read(path: str | os.PathLike[str]) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
