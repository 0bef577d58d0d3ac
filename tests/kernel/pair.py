# SPDX-License-Identifier: Apache-2.0
"""Two guests on one fabric: a shared memory file between them, a network, and a kill."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .machine import Boot, Machine

FABRIC_MIB = 64
LIMIT_S = 300.0
#: QEMU drops atomicity where it sees one possible processor; the other guest is the second.
CPUS = "1,maxcpus=2"


def run_pair(boot: Boot) -> bool:
    """A lends, B borrows, A is killed, B has to notice: B's verdict."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="obmm-pair-") as folder:
        fabric = Path(folder) / "fabric"
        with fabric.open("wb") as file:
            file.truncate(FABRIC_MIB << 20)
        a, b = (_guest(boot, Path(folder), side) for side in "ab")
        try:
            seen = b.wait_for("B: kill A now", LIMIT_S)
            a.kill()
            verdict = b.finish(LIMIT_S) if seen else None
        finally:
            a.kill()
            b.kill()
    for side, machine in (("A", a), ("B", b)):
        print(f"== pair-{boot.architecture.name}, console of {side}\n{machine.text}", flush=True)
    print(f"== pair-{boot.architecture.name}: B's verdict {verdict} after {b.seconds:.0f} s", flush=True)
    return verdict == 0 and a.sound()


def _guest(boot: Boot, folder: Path, side: str) -> Machine:
    index = "ab".index(side)
    other = "ba"[index]
    cores = sorted(os.sched_getaffinity(0))
    return Machine(
        boot,
        f"pair:{side}",
        f"console-{side}",
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
