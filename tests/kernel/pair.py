# SPDX-License-Identifier: Apache-2.0
"""Two guests on one fabric: a shared memory file between them, a network, and a kill."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .image import Image
from .machine import Machine
from .packages import Archive

FABRIC_MIB = 64
LIMIT_S = 300.0
#: QEMU drops atomicity where it sees one possible processor; the other guest is the second.
CPUS = "1,maxcpus=2"


def run_pair(archive: Archive) -> bool:
    """A lends, B borrows, A is killed, B has to notice: B's verdict."""
    initramfs = Image(archive).make()
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="obmm-pair-") as folder:
        fabric = Path(folder) / "fabric"
        with fabric.open("wb") as file:
            file.truncate(FABRIC_MIB << 20)
        a, b = (_boot(archive, initramfs, Path(folder), side) for side in "ab")
        try:
            seen = b.wait_for("B: kill A now", LIMIT_S)
            a.kill()
            verdict = b.finish(LIMIT_S) if seen else None
        finally:
            a.kill()
            b.kill()
    for side, machine in (("A", a), ("B", b)):
        print(f"== pair-{archive.architecture.name}, console of {side}\n{machine.text}", flush=True)
    print(f"== pair-{archive.architecture.name}: B's verdict {verdict} after {b.seconds:.0f} s", flush=True)
    return verdict == 0


def _boot(archive: Archive, initramfs: Path, folder: Path, side: str) -> Machine:
    index = "ab".index(side)
    other = "ba"[index]
    cores = sorted(os.sched_getaffinity(0))
    return Machine(
        archive.architecture,
        archive.image,
        initramfs,
        archive.folder / f"console-{side}.log",
        f"pair:{side}",
        devices=(
            "-object", f"memory-backend-file,id=fabric,mem-path={folder / 'fabric'},size={FABRIC_MIB}M,share=on",
            "-device", "ivshmem-plain,memdev=fabric",
            "-netdev",
            f"dgram,id=net,local.type=unix,local.path={folder / side},remote.type=unix,remote.path={folder / other}",
            "-device", f"virtio-net-pci,netdev=net,mac=52:54:00:00:00:0{index + 1},romfile=",
        ),
        cpus=CPUS,
        core=cores[index % len(cores)],
    )  # fmt: skip
