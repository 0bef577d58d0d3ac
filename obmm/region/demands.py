# SPDX-License-Identifier: Apache-2.0
"""What users ask of a device, checked before the call: older drivers crashed hosts on what they should have refused."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from obmm.arguments import text, whole
from obmm.driver.abi import MAX_LOCAL_NUMA_NODES, MAX_PRIV_LEN, PMD, Cache
from obmm.driver.topology import Controller
from obmm.errors import ObmmArgumentError, ObmmError
from obmm.handle import Handle, HandleFlag
from obmm.region.header import RegionHeader
from obmm.region.stamp import OwnerStamp, hardware_word
from obmm.sizes import parse_size
from obmm.windows.provider import ExplicitWindow, WindowProvider


def sizes_of(size: int | str | Mapping[int, int | str], numa: int, header: bool, granule: int) -> dict[int, int]:
    """Bytes to take on each NUMA node, the header's page and the granule counted in."""
    given = size if isinstance(size, Mapping) else {whole("EXPORT", "numa", numa): size}
    sizes: dict[int, int] = {}
    for node, wanted in given.items():
        if type(node) is not int or not 0 <= node < MAX_LOCAL_NUMA_NODES:
            raise refused("EXPORT", f"NUMA node {node!r}", "a local node of 0..15", "X1/X3b", errno.E2BIG)
        try:
            count = parse_size(wanted) if isinstance(wanted, str) else whole("EXPORT", "size", wanted)
        except ObmmArgumentError:
            raise
        except ValueError as error:
            raise refused("EXPORT", f"size {wanted!r}: {error}", "bytes, or a text such as '256MiB'", "X3a") from error
        if count <= 0:
            raise refused(
                "EXPORT",
                f"size {wanted!r} is not a positive number of bytes",
                f"at least one granule of {granule}",
                "X4",
            )
        if count > 1 << 63:
            raise refused("EXPORT", f"size {count:#x} is above 2^63", "what the node has", "X3c", errno.EOVERFLOW)
        if header:
            count += RegionHeader.SIZE if not sizes else 0
            count = -(-count // granule) * granule
        elif count % granule:
            raise refused(
                "EXPORT",
                f"size {count} is not a multiple of the granule {granule}",
                f"{-(-count // granule) * granule}",
                "X3a",
            )
        sizes[node] = count
    if not sizes:
        raise refused("EXPORT", "no size at all", "at least one node with at least one granule", "X4")
    return dict(sorted(sizes.items()))


def controller_of(
    local: tuple[Controller, ...], root: str, wanted: Controller | int | None, numa: int | None
) -> Controller:
    """The local controller that is `wanted`; by default the one on NUMA node `numa`, which is None for an import."""
    if isinstance(wanted, Controller):
        wanted = wanted.cna
    if wanted is not None:
        wanted = whole("IMPORT" if numa is None else "EXPORT", "controller", wanted, low=0)
        for controller in local:
            if controller.cna == wanted:
                return controller
        known = ", ".join(f"{controller.cna:#x}" for controller in local) or "none"
        raise refused(
            "IMPORT" if numa is None else "EXPORT",
            f"CNA {wanted:#x} is not a controller of this host",
            f"one of its own: {known}; the owner's CNA travels in the handle",
            "I12",
            errno.ENODEV,
        )
    if not local:
        raise ObmmError(
            errno.ENODEV,
            f"no UB bus controller below {root}/sys/devices: this host has no UB hardware, or its bus driver "
            "is not loaded (driver specification 13.1); run `obmm doctor`",
            operation="EXPORT",
        )
    return next((controller for controller in local if controller.numa == numa), local[0])


def provider_of(
    window: WindowProvider | int | None, default: WindowProvider, cache: Cache | None, handle: Handle
) -> WindowProvider:
    """Where the address of an import comes from: a provider, or an address that somebody programmed."""
    if window is None:
        return default
    if not isinstance(window, int) and hasattr(window, "acquire"):
        return window
    window = whole("IMPORT", "window", window)
    if window == handle.uba:
        raise refused(
            "IMPORT",
            "the window address equals the exporter's UBA, which means nothing on this host",
            "the local physical address of a window that was programmed for this memory",
            "I14",
        )
    return ExplicitWindow(window, cache or "cc")


def refuse_impossible(handle: Handle, priv: bytes) -> None:
    """What the driver accepts or answers with a bare EINVAL, and cannot work."""
    if handle.owner_cna == 0:
        raise refused(
            "IMPORT", "the handle's owner CNA is 0", "the CNA of the exporter's controller", "I12", errno.ENODEV
        )
    if handle.owner_eid == bytes(16):
        raise refused("IMPORT", "the handle's owner EID is all zero", "the EID of the exporter's controller", "13.2")
    if handle.length % PMD:
        raise refused(
            "IMPORT",
            f"the handle's length {handle.length} is not a multiple of 2 MiB",
            "an exported region's length",
            "I7",
        )
    if 0 < handle.base_dist <= 10:
        raise refused("IMPORT", f"base_dist={handle.base_dist}", "0 or 11..255", "I10")
    if len(priv) > MAX_PRIV_LEN:
        raise refused("IMPORT", f"priv of {len(priv)} bytes", "at most 512", "I5")


def refuse_controller(operation: str, controller: Controller) -> None:
    """A negative pxm_numa crashed drivers before February 2026."""
    if not 0 <= controller.numa < MAX_LOCAL_NUMA_NODES:
        raise refused(operation, f"pxm_numa={controller.numa}", "a controller on a NUMA node of 0..15", "X2")


def wanted_cache(handle: Handle, cache: Cache | None) -> Cache | None:
    """The kind of window that is asked for, by the caller or else by the handle; None: any."""
    if cache is not None and (not isinstance(cache, str) or cache not in ("cc", "nc")):
        raise refused("IMPORT", f"cache={cache!r}", "'cc' or 'nc'", "I14")
    if cache is not None:
        return cache
    if handle.flags & HandleFlag.CC:
        return "cc"
    return "nc" if handle.flags & HandleFlag.NC else None


def stamp_of(operation: str, label: str, generation: int, cache: Cache, word: int | None) -> bytes:
    """The private data of a region that this process makes."""
    word = hardware_word(cache) if word is None else whole(operation, "hardware_word", word, low=0, high=0xFFFF)
    return OwnerStamp.of_this_process(text(operation, "label", label), generation).pack(word)


def size_of(root: str, mem_id: int) -> int:
    """Bytes of a region of this host, which root reads from sysfs."""
    path = f"{root}/sys/devices/obmm/obmm_shmdev{mem_id}/size"
    try:
        with open(path) as file:
            return int(file.read(), 16)
    except FileNotFoundError:
        raise ObmmError.refused("SHMDEV_OPEN", errno.ENOENT, mem_id=mem_id) from None
    except PermissionError:
        raise refused(
            "SHMDEV_OPEN",
            f"{path} is readable by root only",
            "length=<bytes>, as its maker knows it",
            "11.1",
            errno.EACCES,
        ) from None


def refused(operation: str, problem: str, fix: str, rule: str, code: int = errno.EINVAL) -> ObmmArgumentError:
    """The error for an argument that breaks `rule`."""
    return ObmmArgumentError.because(operation, code, problem, fix, rule)
