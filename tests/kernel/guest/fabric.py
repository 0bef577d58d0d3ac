# SPDX-License-Identifier: Apache-2.0
"""One guest's side of the fabric: shared memory behind a PCI function, and a network to the other guest."""

from __future__ import annotations

import subprocess
from pathlib import Path

from . import simulator

IVSHMEM = ("0x1af4", "0x1110")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
CNAS = (0x40A, 0x50B)

#: Where a host's windows onto the fabric begin (topology.c); they show its first byte first.
WINDOW = {"cc": 0x20_0000_0000, "nc": 0x30_0000_0000}


def shared_memory() -> tuple[int, int]:
    """Physical address and bytes of the memory BAR."""
    for device in Path("/sys/bus/pci/devices").iterdir():
        if ((device / "vendor").read_text().strip(), (device / "device").read_text().strip()) == IVSHMEM:
            (device / "enable").write_text("1")
            start, end, _ = (int(word, 16) for word in (device / "resource").read_text().splitlines()[2].split())
            return start, end - start + 1
    raise SystemExit("this guest has no shared memory")


def join(host: int) -> int:
    """Load the module on the fabric and bring the network up, as host 0 or 1 -> the fabric's physical address."""
    base, size = shared_memory()
    simulator.load(fabric_base=base, fabric_size=size, fabric_share=host)
    for command in (f"addr add {ADDRESSES[host]}/24 dev eth0", "link set eth0 up"):
        subprocess.run(["ip", *command.split()], check=True)
    return base


def window_table(path: Path, host: int, regions: dict[int, tuple[str, int, int]]) -> None:
    """The admin's table of programmed windows, from tokens to (kind, fabric offset, bytes)."""
    entries = [
        f'[[window]]\naddress = {WINDOW[kind] + offset:#x}\nlength = {length}\ncache = "{kind}"\n'
        f"local_cna = {CNAS[host]:#x}\nowner_cna = {CNAS[1 - host]:#x}\ntokenid = {token}\n"
        for token, (kind, offset, length) in regions.items()
    ]
    path.touch(0o600)
    path.write_text("\n".join(entries))
