# SPDX-License-Identifier: Apache-2.0
"""The regions of a host, who made them, and what may be removed (``obmm ls``, ``obmm gc``).

Read from sysfs (driver specification 11.1), which only root may: without it there is nothing to tell, and
PermissionError says so.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from obmm.driver.abi import SHMDEV_PREFIX
from obmm.driver.backend import ensure_runtime_directory
from obmm.driver.descriptor import Descriptor
from obmm.driver.process import living_task
from obmm.errors import other_version
from obmm.region.stamp import OwnerStamp

Kind = Literal["export", "import"]
Verdict = Literal["remove", "keep", "needs --exports --force"]


@dataclass(frozen=True, slots=True)
class RegionRecord:
    """One region of this host.

    `stamp` is None for a foreign region (another program made it), `pa` the window address of an import, `users` the
    processes that have it open or mapped as far as this one can see (None: cannot see).
    """

    mem_id: int
    kind: Kind
    size: int
    allow_mmap: bool
    user_memory: bool
    pa: int | None
    stamp: OwnerStamp | None
    owner: Literal["alive", "dead", "unknown", "foreign"]
    users: tuple[int, ...] | None
    newer: int = 0
    """The version of its stamp, if a newer obmm made it."""

    @property
    def age_s(self) -> float | None:
        """Seconds since it was made; None for a foreign region."""
        return None if self.stamp is None else max(time.time() - self.stamp.created, 0.0)


@dataclass(frozen=True, slots=True)
class Removal:
    """What `plan_removal` decided about one region, and why."""

    record: RegionRecord
    verdict: Verdict
    reason: str


def regions(root: str = "", users: Callable[[], dict[int, tuple[int, ...]]] | None = None) -> tuple[RegionRecord, ...]:
    """All regions below ``<root>/sys/devices/obmm``, by mem_id.

    `users` tells the processes per mem_id; default: every process's descriptors and maps in /proc.
    """
    held = (users or processes_with_regions)()
    found = []
    for folder in Path(f"{root}/sys/devices/obmm").glob("obmm_shmdev*"):
        suffix = folder.name.removeprefix("obmm_shmdev")
        if not (suffix.isascii() and suffix.isdigit()):
            continue
        mem_id = int(suffix)
        try:
            found.append(_record(mem_id, folder, held.get(mem_id, ())))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENODEV):
                raise
            continue  # removed while we looked
    return tuple(sorted(found, key=lambda record: record.mem_id))


def processes_with_regions() -> dict[int, tuple[int, ...]]:
    """mem_id -> pids that have the region's node open or mapped."""
    found: dict[int, set[int]] = {}
    pattern = re.compile(re.escape(SHMDEV_PREFIX) + r"(\d+)")
    for process in Path("/proc").glob("[0-9]*"):
        for text in _open_paths(process):
            match = pattern.match(text)
            if match:
                found.setdefault(int(match[1]), set()).add(int(process.name))
    return {mem_id: tuple(sorted(pids)) for mem_id, pids in found.items()}


@contextmanager
def removal_lock() -> Iterator[None]:
    """Held by a process that removes what dead processes left, from the look to the removal.

    The dead remove nothing themselves, so a number that was found dead cannot pass to a living region in between.
    """
    with closing(Descriptor.open(ensure_runtime_directory() / "gc.lock", os.O_RDWR | os.O_CREAT)) as lock:
        fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield


def plan_removal(
    records: Iterable[RegionRecord],
    *,
    exports: bool = False,
    force: bool = False,
    all_released: Callable[[int], bool | None],
) -> Iterator[Removal]:
    """What `gc` does with each region: only what a proven-dead process of this package left is ever removed.

    `all_released` tells for an export generation whether its lease journal shows every lease released (None: no
    journal knows it).  Other exports of the dead need `exports` and `force`: a live importer on another host may get a
    machine error.
    """
    for record in records:
        if record.owner != "dead":
            reasons = {
                "alive": "its owner lives",
                "unknown": "its owner cannot be seen from here",
                "foreign": "not made by obmm",
            }
            why = other_version("its owner's stamp", record.newer, 1) if record.newer else reasons[record.owner]
            yield Removal(record, "keep", why)
        elif record.users:
            yield Removal(record, "keep", f"in use by pid {', '.join(map(str, record.users))}")
        elif record.kind == "import":
            yield Removal(record, "remove", "its owner is dead, and removing an import does not harm other processes")
        elif record.stamp is not None and all_released(record.stamp.generation):
            yield Removal(record, "remove", "its owner is dead, and every lease on it was released")
        elif exports and force:
            yield Removal(
                record, "remove", "its owner is dead; forced: an importer that still lives may get a machine error"
            )
        else:
            yield Removal(record, "needs --exports --force", "its owner is dead, but somebody may still import it")


def _record(mem_id: int, folder: Path, users: tuple[int, ...] | None) -> RegionRecord:
    def text(name: str) -> str:
        return (folder / name).read_text().strip()

    kind = text("type")
    if kind not in ("export", "import"):  # an import may be removed, so nothing becomes one by default
        raise ValueError(f"region {mem_id} is of the unknown type {kind!r}")
    priv = (folder / "priv").read_bytes()
    stamp, newer = OwnerStamp.find(priv), OwnerStamp.newer(priv)
    return RegionRecord(
        mem_id=mem_id,
        kind="export" if kind == "export" else "import",
        size=int(text("size"), 16),
        allow_mmap=text("allow_mmap") == "1",
        user_memory=kind == "export" and text("export_info/memory_from_user") == "1",
        pa=int(text("import_info/pa"), 16) if kind == "import" else None,
        stamp=stamp,
        owner=stamp.liveness() if stamp is not None else "foreign" if newer is None else "unknown",
        newer=newer or 0,
        users=users,
    )


def _open_paths(process: Path) -> Iterator[str]:
    task = living_task(process) or process
    try:
        for link in (task / "fd").iterdir():
            yield os.readlink(link)
    except OSError:
        pass
    try:
        for line in (task / "maps").read_text().splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6:
                yield fields[5]
    except OSError:
        pass
