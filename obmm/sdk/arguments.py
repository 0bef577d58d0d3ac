# SPDX-License-Identifier: Apache-2.0
"""The library's argument rules (SDK specification 4, 6), applied before the call with texts that say what to pass."""

from __future__ import annotations

import mmap
import operator
from collections.abc import Sequence

from obmm.arguments import listed
from obmm.sdk.abi import GRANULE, LEASE_FLAGS, MAX_HOST_NAME, MAX_HOSTS, MAX_NAME, MIB, OBJECT_FLAGS, Flag
from obmm.sdk.codes import Code
from obmm.sdk.errors import SdkArgumentError
from obmm.sdk.records import RegionHost

#: 512 MiB on kernels with 64 KiB pages (4.1)
PMD_SIZE = 512 * MIB if mmap.PAGESIZE == 65536 else 2 * MIB


def check_name(operation: str, name: str, *, longest: int = MAX_NAME) -> None:
    """1..47 bytes, none of them NUL."""
    size = len(_text(operation, "name", name).encode(errors="surrogatepass"))
    if not 1 <= size <= longest or "\0" in name:
        raise SdkArgumentError.because(
            operation, f"the name {name!r} has {size} bytes", f"1..{longest} letters, digits and . : - _"
        )


def check_region(operation: str, name: str) -> None:
    """A name that is not ``default``."""
    if name == "default":
        raise SdkArgumentError.because(operation, "the region 'default' always exists", "another name", Code.NO_NEEDED)
    check_name(operation, name)


def check_host(operation: str, name: str) -> None:
    """1..63 bytes."""
    size = len(_text(operation, "host", name).encode(errors="surrogatepass"))
    if not 1 <= size <= MAX_HOST_NAME or "\0" in name:
        raise SdkArgumentError.because(
            operation, f"the host name {name!r} has {size} bytes", "a name that cluster() lists, 1..63 bytes"
        )


def check_hosts(hosts: Sequence[RegionHost]) -> None:
    """2..16 hosts, one of them with affinity: without, every allocation would fail later with 6050."""
    hosts = listed("SDK", "hosts", hosts, "RegionHost")
    if not all(isinstance(host, RegionHost) for host in hosts):
        raise SdkArgumentError.because("create_region", f"hosts={hosts!r:.80}", "a list of RegionHost")
    if not 2 <= len(hosts) <= MAX_HOSTS:
        raise SdkArgumentError.because("create_region", f"{len(hosts)} hosts", f"2..{MAX_HOSTS} hosts")
    for host in hosts:
        check_host("create_region", host.name)
    if not any(host.affinity for host in hosts):
        raise SdkArgumentError.because(
            "create_region", "no host has affinity, so none would provide memory", "affinity=True for one at least"
        )


def check_object(operation: str, name: str, size: int, flags: int) -> None:
    """Size and flags of a shared object.  The provider call leaves the PMD size to a later, worse failure; we do not."""
    check_name(operation, name)
    size, flags = check_number(operation, "size", size), check_number(operation, "flags", flags)
    _check_size(operation, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, asked=size)
    if flags not in OBJECT_FLAGS:
        valid = ", ".join(hex(value) for value in sorted(OBJECT_FLAGS))
        raise SdkArgumentError.because(operation, f"flags={flags:#x} is not a valid set", f"one of {valid}")
    if flags & Flag.MMAP_HUGETLB_PMD and size % PMD_SIZE:
        raise SdkArgumentError.because(operation, f"size={size} with PMD mapping", f"a multiple of {PMD_SIZE}")


def check_lease(operation: str, size: int, flags: int) -> None:
    """Size and flags of a lease."""
    size, flags = check_number(operation, "size", size), check_number(operation, "flags", flags)
    _check_size(operation, size, asked=size)
    if flags not in LEASE_FLAGS:
        raise SdkArgumentError.because(
            operation, f"flags={flags:#x}", "0x0, 0x20 (PMD) or 0x40 (as a remote NUMA node)"
        )
    if flags & Flag.MMAP_HUGETLB_PMD and size % PMD_SIZE:
        raise SdkArgumentError.because(operation, f"size={size} with PMD mapping", f"a multiple of {PMD_SIZE}")


def check_map(size: int, prot: int) -> None:
    """A whole object, and rights that are documented."""
    size, prot = check_number("map", "size", size), check_number("map", "prot", prot)
    if size <= 0:
        raise SdkArgumentError.because("map", f"size={size}", "the object's size, as list_objects() tells it")
    if prot not in (0, 1, 3):
        raise SdkArgumentError.because("map", f"prot={prot}", "0, 1 (read) or 3 (read-write)")


def check_ownership(size: int, prot: int) -> None:
    """Whole kernel pages: the library rounds up, maybe past the end."""
    size, prot = check_number("set_ownership", "size", size), check_number("set_ownership", "prot", prot)
    if size <= 0 or size % mmap.PAGESIZE:
        raise SdkArgumentError.because("set_ownership", f"size={size}", f"a positive multiple of {mmap.PAGESIZE}")
    if prot not in (0, 1, 3):
        raise SdkArgumentError.because("set_ownership", f"prot={prot}", "0 (give back), 1 (read) or 3 (read-write)")


def check_log_level(level: int) -> None:
    """0 debug .. 4 critical."""
    level = check_number("set_logger_level", "level", level)
    if not 0 <= level <= 4:
        raise SdkArgumentError.because("set_logger_level", f"level={level}", "0 (debug) .. 4 (critical)")


def check_mode(operation: str, mode: int) -> None:
    """Permission bits, as of a file."""
    if not 0 <= check_number(operation, "mode", mode) <= 0o777:
        raise SdkArgumentError.because(operation, f"mode={mode!r}", "permission bits, 0o000..0o777")


def check_number(operation: str, name: str, given: object) -> int:
    """A whole number that the library's C types hold."""
    try:
        number = operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(given, bool) or not -(1 << 63) <= number < 1 << 63:
        raise SdkArgumentError.because(operation, f"{name}={given!r}", "a whole number")
    return number


def _text(operation: str, name: str, given: object) -> str:
    if not isinstance(given, str):
        raise SdkArgumentError.because(operation, f"{name}={given!r}", "a text (str)")
    return given


def _check_size(operation: str, size: int, *, asked: int) -> None:
    if size <= 0 or size % GRANULE:
        following = max(-(-asked // GRANULE), 1) * GRANULE
        raise SdkArgumentError.because(
            operation,
            f"size={asked} is not a positive multiple of 4 MiB",
            f"{following} (older engines refuse less than 128 MiB; objects occupy whole units, 128 MiB by default)",
        )
