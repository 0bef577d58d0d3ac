# SPDX-License-Identifier: Apache-2.0
"""The two architectures that guests run on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """What differs between an x86-64 and an aarch64 guest."""

    name: str
    #: Debian's name, its kernel flavour, the kernel's own name.
    debian: str
    flavour: str
    kernel: str
    #: Prefix of the compiler's commands; its GNU triplet.
    cross: str
    triplet: str
    #: Tag of binary wheels.
    wheels: str
    #: QEMU and the machine it plays, without memory and disks.
    qemu: tuple[str, ...]
    cmdline: str

    @property
    def foreign(self) -> bool:
        return bool(self.cross)


# KVM opens on many CI machines and then hangs; TCG is named outright.  `-cpu max` on aarch64 would compute
# pointer authentication in software: twice the time.
X86 = Architecture(
    name="x86",
    debian="amd64",
    flavour="cloud-amd64",
    kernel="x86",
    cross="",
    triplet="x86_64-linux-gnu",
    wheels="manylinux2014_x86_64",
    qemu=("qemu-system-x86_64", "-machine", "q35", "-cpu", "max"),
    cmdline="console=ttyS0 mitigations=off net.ifnames=0",
)
ARM64 = Architecture(
    name="arm64",
    debian="arm64",
    flavour="cloud-arm64",
    kernel="arm64",
    cross="aarch64-linux-gnu-",
    triplet="aarch64-linux-gnu",
    wheels="manylinux2014_aarch64",
    qemu=("qemu-system-aarch64", "-M", "virt,gic-version=3", "-cpu", "cortex-a72"),
    cmdline="console=ttyAMA0 net.ifnames=0",
)
ARCHITECTURES = {one.name: one for one in (X86, ARM64)}
