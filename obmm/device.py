# SPDX-License-Identifier: Apache-2.0
"""An open OBMM device: makes regions, knows the local controllers, closes in order."""

from __future__ import annotations

import builtins
import errno
import os
import secrets
import threading
import warnings
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from obmm import topology
from obmm.abi import (
    MAX_LOCAL_NUMA_NODES,
    MAX_MEM_ID,
    MAX_PRIV_LEN,
    MAX_VENDOR_LEN,
    MIN_MEM_ID,
    ExportFlag,
    ImportFlag,
)
from obmm.arguments import U64, raw, text, whole, wrong_type
from obmm.attached import AttachedRegion
from obmm.backend import Backend
from obmm.closing import close_on_exit
from obmm.driver import Driver
from obmm.errors import ClosedError, ObmmArgumentError, ObmmError
from obmm.exported import ExportedRegion
from obmm.handle import Handle, HandleFlag
from obmm.header import RegionHeader
from obmm.imported import ImportedRegion
from obmm.leased import Leased
from obmm.living import Living
from obmm.placement import warn_if_far
from obmm.region import PAGE, PMD, Region
from obmm.sizes import parse_size
from obmm.stamp import OwnerStamp
from obmm.stamp import hardware_word as hardware_word_for
from obmm.topology import Controller
from obmm.user_memory import HugePages, UserMemoryRegion
from obmm.window import Cache, ExplicitWindow, Window, WindowProvider
from obmm.window_emulator import EmulatorWindows
from obmm.window_static import StaticWindows


class Device:
    """One open ``/dev/obmm``, of the driver or of an emulated node.  Made by `obmm.open`; usable from any thread.

    A forked child must open its own: objects of the parent are closed there.
    """

    def __init__(self, backend: Backend, windows: WindowProvider | None = None) -> None:
        self.driver = Driver(backend)
        self._windows = windows or _default_windows(self.driver)
        self._regions: Living[Region] = Living()
        self._lock = threading.RLock()
        self._open = True
        self._finalizer = weakref.finalize(self, _forgotten, self.driver, os.getpid())
        self._finalizer.atexit = False
        _DEVICES.add(self)

    # --- description -------------------------------------------------------------------------------------------------

    @property
    def backend(self) -> Backend:
        """Which kernel answers."""
        return self.driver.backend

    @property
    def root(self) -> str:
        """Prefix of this node's /sys, /proc and /dev: empty for the driver."""
        return self.driver.root

    @property
    def controllers(self) -> tuple[Controller, ...]:
        """The local bus controllers (driver specification 13.1)."""
        return topology.controllers(self.root)

    @property
    def granule(self) -> int:
        """The unit of export sizes, bytes (driver specification 10)."""
        return topology.granule(self.root)

    @property
    def windows(self) -> WindowProvider:
        """Where import addresses come from."""
        return self._windows

    @property
    def regions(self) -> tuple[Region, ...]:
        """The open regions made through this object."""
        return tuple(region for region in self._regions.snapshot() if not region.closed)

    @property
    def closed(self) -> bool:
        return not self._open

    def fileno(self) -> int:
        """The control node's descriptor."""
        self._check_open()
        return self.driver.fd

    # --- exporting ---------------------------------------------------------------------------------------------------

    def export_region(
        self,
        size: int | str | Mapping[int, int | str],
        *,
        numa: int = 0,
        header: bool = True,
        pmd: bool = False,
        fast: bool = False,
        label: str = "",
        controller: Controller | int | None = None,
        vendor_info: bytes | None = None,
        hardware_word: int | None = None,
        priv: bytes | None = None,
    ) -> ExportedRegion:
        """Take memory of this host's pool, zero-filled, that other hosts can import (EXPORT, driver specification 6.1).

        `size` is the payload in bytes ("256MiB" works) on NUMA node `numa`, or bytes per node; the header page is
        added and the sum rounded up to the granule.  A raw region (``header=False``) must be whole granules already.
        `pmd` maps it in 2 MiB blocks for its whole life.  `fast` takes cleared memory only.  `controller` is a local
        one, by object or CNA (default: the one on the memory's node).

        The region's private data carries an owner stamp (`obmm.stamp`) behind `hardware_word`, which the management
        plane reads (driver specification 18; default: cacheable, translation on chip); `priv` replaces both.
        """
        self._check_open()
        sizes = self._sizes(size, numa, header)
        local = self._controller(controller, min(sizes))
        vendor = local.vendor_info() if vendor_info is None else raw("EXPORT", "vendor_info", vendor_info)
        generation = secrets.randbits(63) | 1
        stamp = _stamp("EXPORT", label, generation, "cc", hardware_word)
        priv = stamp if priv is None else raw("EXPORT", "priv", priv)
        if len(vendor) > MAX_VENDOR_LEN or len(priv) > MAX_PRIV_LEN:
            raise _bad(
                "EXPORT", f"vendor_info of {len(vendor)} or priv of {len(priv)} bytes", "at most 128 and 512", "X8/X9"
            )
        _refuse_controller("EXPORT", local)
        flags = ExportFlag.ALLOW_MMAP | (ExportFlag.FAST if fast else ExportFlag(0))
        region = exported = None
        try:
            with self._lock:
                self._check_open()
                exported = self.driver.export(
                    sizes, flags, pxm_numa=local.numa, deid=local.eid, vendor_info=vendor, priv=priv
                )
                length = sum(sizes.values())
                region = ExportedRegion(
                    self,
                    exported,
                    local,
                    length,
                    data_offset=RegionHeader.SIZE if header else 0,
                    nbytes=length - RegionHeader.SIZE if header else length,
                    generation=generation,
                    pmd=pmd,
                    label=label,
                )
                self._regions.add(region)
                if header:
                    region.write_header()
                if not self.root:
                    warn_if_far(min(sizes), f"{region!r}")
                return region
        except BaseException:
            if region is not None:
                region.close(force=True)
            elif exported is not None:
                self.driver.unexport(exported.mem_id)
            raise

    def export_user_memory(
        self,
        size: int | str,
        *,
        accept_host_crash_risk: bool = False,
        header: bool = True,
        label: str = "",
        controller: Controller | int | None = None,
    ) -> UserMemoryRegion:
        """Export huge pages of this process instead of pool memory (EXPORT_PID, driver specification 6.2).

        **A system call that touches these pages through the kernel's own map crashes this host**, so the caller has to
        accept that, and gets copies only, never a view.  `size` as in `export_region`, in whole 2 MiB pages.
        ObmmError ENOMEM when no huge pages are free.
        """
        self._check_open()
        if accept_host_crash_risk is not True:
            raise _bad(
                "EXPORT_PID",
                "exported user memory crashes the host if a system call touches it through the kernel's own map",
                "export_region(), or accept_host_crash_risk=True",
                "6.2",
                errno.EPERM,
            )
        wanted = next(iter(self._sizes(size, 0, header).values()))
        length = -(-wanted // PMD) * PMD
        local = self._controller(controller, 0)
        _refuse_controller("EXPORT_PID", local)
        generation = secrets.randbits(63) | 1
        stamp = _stamp("EXPORT_PID", label, generation, "cc", None)
        try:
            pages = HugePages(length)
        except (OSError, OverflowError) as error:
            raise ObmmError(
                (error.errno if isinstance(error, OSError) else None) or errno.ENOMEM,
                f"EXPORT_PID: no {length // PMD} free huge pages of 2 MiB; fix: sysctl vm.nr_hugepages, see `obmm doctor`",
                operation="EXPORT_PID",
            ) from error
        try:
            exported = self.driver.export_user_memory(
                pages.address,
                length,
                pid=0,
                pxm_numa=local.numa,
                deid=local.eid,
                vendor_info=local.vendor_info(),
                priv=stamp,
            )
        except BaseException:
            pages.free()
            raise
        offset = RegionHeader.SIZE if header else 0
        region = UserMemoryRegion(
            self,
            exported,
            local,
            pages,
            length,
            data_offset=offset,
            nbytes=length - offset,
            generation=generation,
            label=label,
        )
        try:
            self._regions.add(region)
            if header:
                region.write_header()
            return region
        except BaseException:
            region.close(force=True)
            raise

    # --- importing ---------------------------------------------------------------------------------------------------

    def import_region(
        self,
        source: Handle | Leased,
        *,
        cache: Cache | None = None,
        window: WindowProvider | int | None = None,
        controller: Controller | int | None = None,
        pmd: bool = False,
        label: str = "",
        hardware_word: int | None = None,
        priv: bytes | None = None,
    ) -> ImportedRegion:
        """Make another host's memory reachable here (IMPORT, driver specification 6.4).

        `source` is its handle, or a lease whose release follows UNIMPORT.  `window` is a provider, or the local
        physical address of a programmed window (then `cache` says its kind, default "cc"); default: the device's
        provider.  `cache` "cc" or "nc" overrides what the handle wants.  `pmd` maps it in 2 MiB blocks.  `hardware_word` and
        `priv` as in `export_region`.
        """
        self._check_open()
        if not isinstance(source, Handle) and not hasattr(source, "handle"):
            raise wrong_type(
                "IMPORT", "source", source, "a Handle (Handle.unpack(bytes)) or a lease (peer.fetch(name))"
            )
        lease = None if isinstance(source, Handle) else source
        handle = source if isinstance(source, Handle) else source.handle
        if lease is not None:
            lease.check()
        wanted = _wanted_cache(handle, cache)
        provider = self._provider(window, wanted, handle)
        local = self._controller(controller, None)
        stamp = _stamp("IMPORT", label, handle.generation, wanted or "cc", hardware_word)
        priv = stamp if priv is None else raw("IMPORT", "priv", priv)
        self._refuse_impossible(handle, priv)
        region = found = None
        try:
            with self._lock:
                self._check_open()
                found, mem_id = self._import(handle, provider, local, wanted, priv)
                region = ImportedRegion(self, mem_id, handle, found, provider, pmd=pmd, label=label, lease=lease)
                self._regions.add(region)
                if not self.root:
                    warn_if_far(local.numa, f"the bus controller of {region!r}")
                return region
        except BaseException:
            if region is not None:
                region.close(force=True)
            elif found is not None:
                self.driver.unimport(mem_id)
                provider.release(found)
            raise

    def _import(
        self, handle: Handle, provider: WindowProvider, local: Controller, wanted: Cache | None, priv: bytes
    ) -> tuple[Window, int]:
        """IMPORT at the first window of the provider's that nobody else uses (rule I13)."""
        taken: list[Window] = []
        found: Window | None = None
        mem_id = None
        try:
            while True:
                found = provider.acquire(handle, local, wanted)
                mem_id = self._import_at(found, handle, local, priv, last=found in taken)
                if mem_id is not None:
                    _release(provider, taken)
                    return found, mem_id
                taken.append(found)
        except BaseException:
            if mem_id is not None:
                self.driver.unimport(mem_id)
            _release(provider, taken if found is None or found in taken else [*taken, found])
            raise

    def _import_at(self, window: Window, handle: Handle, local: Controller, priv: bytes, *, last: bool) -> int | None:
        """IMPORT at `window` -> mem_id, or None when another import uses it (unless `last`)."""
        mem_id = None
        try:
            mem_id, _ = self.driver.import_(
                window.address,
                window.length,
                ImportFlag.ALLOW_MMAP,
                scna=local.cna,
                dcna=handle.owner_cna,
                seid=local.eid,
                deid=handle.owner_eid,
                tokenid=handle.tokenid,
                base_dist=handle.base_dist,
                priv=priv,
            )
            return mem_id
        except ObmmError as error:
            if error.errno != errno.EEXIST or last:
                raise
            return None
        except BaseException:
            if mem_id is not None:
                self.driver.unimport(mem_id)
            raise

    # --- attaching ---------------------------------------------------------------------------------------------------

    def attach(
        self, mem_id: int, length: int | None = None, *, cache: Cache | None = None, pmd: bool = False
    ) -> AttachedRegion:
        """Use a region of this host that another program made, such as a unit of an SDK allocation (docs/windows.md).

        `length` in bytes is read from sysfs when root asks, and must be given otherwise.  `cache` is the mode in which
        the region can be mapped, where it is known; `pmd` must be what its other users map it in (rule M10).
        """
        self._check_open()
        mem_id = whole("SHMDEV_OPEN", "mem_id", mem_id)
        if not MIN_MEM_ID <= mem_id <= MAX_MEM_ID:
            raise _bad("SHMDEV_OPEN", f"mem_id={mem_id}", f"{MIN_MEM_ID}..{MAX_MEM_ID}", "9.1", errno.ENOENT)
        length = self._size_of(mem_id) if length is None else whole("SHMDEV_OPEN", "length", length)
        if length <= 0 or length % PAGE:
            raise _bad("SHMDEV_OPEN", f"length={length} is no positive multiple of 4096", "the region's size", "M11")
        if cache is not None and (not isinstance(cache, str) or cache not in ("cc", "nc")):
            raise _bad("SHMDEV_OPEN", f"cache={cache!r}", "'cc' or 'nc'", "9.1")
        caches: tuple[Cache, ...] = ("cc", "nc") if cache is None else (cache,)
        with self._lock:
            self._check_open()
            region = AttachedRegion(self, mem_id, length, caches, pmd=pmd)
            self._regions.add(region)
            return region

    def _size_of(self, mem_id: int) -> int:
        path = f"{self.root}/sys/devices/obmm/obmm_shmdev{mem_id}/size"
        try:
            with builtins.open(path) as file:
                return int(file.read(), 16)
        except FileNotFoundError:
            raise ObmmError.refused("SHMDEV_OPEN", errno.ENOENT, mem_id=mem_id) from None
        except PermissionError:
            raise _bad(
                "SHMDEV_OPEN",
                f"{path} is readable by root only",
                "length=<bytes>, as its maker knows it",
                "11.1",
                errno.EACCES,
            ) from None

    # --- the rest ----------------------------------------------------------------------------------------------------

    def query_pa(self, mem_id: int, offset: int = 0) -> int:
        """The physical address behind byte `offset` of a region of this host, header included (ADDR_QUERY, 6.8)."""
        self._check_open()
        mem_id = whole("ADDR_QUERY", "mem_id", mem_id, low=0, high=U64)
        return self.driver.query_pa(mem_id, whole("ADDR_QUERY", "offset", offset, low=0, high=U64))

    def query_id(self, pa: int) -> tuple[int, int]:
        """(mem_id, offset) of the region of this host that contains a physical address (ADDR_QUERY, 6.8)."""
        self._check_open()
        return self.driver.query_id(whole("ADDR_QUERY", "pa", pa, low=0, high=U64))

    def ownership_takes_effect(self) -> bool:
        """Whether this driver's ownership calls do anything: some builds of 2026 answered success and did nothing.

        Makes and removes a scratch region of one granule (`obmm.ownership_probe`).
        """
        from obmm.ownership_probe import ownership_takes_effect

        return ownership_takes_effect(self)

    def close(self, force: bool = False) -> None:
        """Close views' mappings, regions, then the node.  Idempotent.  MappingBusyError, and nothing changed, while
        views live; ``force=True`` as in `Region.close`."""
        with self._lock:
            if not self._open:
                return
            if not force:
                for region in self.regions:
                    region.refuse_if_busy()
            for region in self.regions:
                region.close(force=force)
            self._open = False
            self._finalizer.detach()
            self.driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_on_exit(self, error)

    def __bool__(self) -> bool:
        return self._open

    def __repr__(self) -> str:
        return f"<Device {self.backend}{'' if self._open else ' closed'} regions={len(self.regions)}>"

    # --- inside ------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError.of(self)

    def _sizes(self, size: int | str | Mapping[int, int | str], numa: int, header: bool) -> dict[int, int]:
        given = size if isinstance(size, Mapping) else {whole("EXPORT", "numa", numa): size}
        granule = self.granule
        sizes: dict[int, int] = {}
        for node, wanted in given.items():
            if type(node) is not int or not 0 <= node < MAX_LOCAL_NUMA_NODES:
                raise _bad("EXPORT", f"NUMA node {node!r}", "a local node of 0..15", "X1/X3b", errno.E2BIG)
            try:
                count = parse_size(wanted) if isinstance(wanted, str) else whole("EXPORT", "size", wanted)
            except ObmmArgumentError:
                raise
            except ValueError as error:
                raise _bad("EXPORT", f"size {wanted!r}: {error}", "bytes, or a text such as '256MiB'", "X3a") from error
            if count <= 0:
                raise _bad(
                    "EXPORT",
                    f"size {wanted!r} is not a positive number of bytes",
                    f"at least one granule of {granule}",
                    "X4",
                )
            if count > 1 << 63:
                raise _bad("EXPORT", f"size {count:#x} is above 2^63", "what the node has", "X3c", errno.EOVERFLOW)
            if header:
                count += RegionHeader.SIZE if not sizes else 0
                count = -(-count // granule) * granule
            elif count % granule:
                raise _bad(
                    "EXPORT",
                    f"size {count} is not a multiple of the granule {granule}",
                    f"{-(-count // granule) * granule}",
                    "X3a",
                )
            sizes[node] = count
        if not sizes:
            raise _bad("EXPORT", "no size at all", "at least one node with at least one granule", "X4")
        return dict(sorted(sizes.items()))

    def _controller(self, wanted: Controller | int | None, numa: int | None) -> Controller:
        local = self.controllers
        if isinstance(wanted, Controller):
            wanted = wanted.cna
        if wanted is not None:
            wanted = whole("IMPORT" if numa is None else "EXPORT", "controller", wanted, low=0)
            for controller in local:
                if controller.cna == wanted:
                    return controller
            known = ", ".join(f"{controller.cna:#x}" for controller in local) or "none"
            raise _bad(
                "IMPORT" if numa is None else "EXPORT",
                f"CNA {wanted:#x} is no controller of this host",
                f"one of its own: {known}; the owner's CNA travels in the handle",
                "I12",
                errno.ENODEV,
            )
        if not local:
            raise ObmmError(
                errno.ENODEV,
                f"no UB bus controller below {self.root}/sys/devices: this host has no UB hardware, or its bus driver "
                "is not loaded (driver specification 13.1); run `obmm doctor`",
                operation="EXPORT",
            )
        return next((controller for controller in local if controller.numa == numa), local[0])

    def _provider(self, window: WindowProvider | int | None, cache: Cache | None, handle: Handle) -> WindowProvider:
        if window is None:
            return self._windows
        if not isinstance(window, int) and hasattr(window, "acquire"):
            return window
        window = whole("IMPORT", "window", window)
        if window == handle.uba:
            raise _bad(
                "IMPORT",
                "the window address equals the exporter's UBA, which means nothing on this host",
                "the local physical address of a window that was programmed for this memory",
                "I14",
            )
        return ExplicitWindow(window, cache or "cc")

    def _refuse_impossible(self, handle: Handle, priv: bytes) -> None:
        """What the driver accepts or answers with a bare EINVAL, and cannot work."""
        if handle.owner_cna == 0:
            raise _bad(
                "IMPORT", "the handle's owner CNA is 0", "the CNA of the exporter's controller", "I12", errno.ENODEV
            )
        if handle.owner_eid == bytes(16):
            raise _bad("IMPORT", "the handle's owner EID is all zero", "the EID of the exporter's controller", "13.2")
        if handle.length % PMD:
            raise _bad(
                "IMPORT",
                f"the handle's length {handle.length} is no multiple of 2 MiB",
                "an exported region's length",
                "I7",
            )
        if 0 < handle.base_dist <= 10:
            raise _bad("IMPORT", f"base_dist={handle.base_dist}", "0 or 11..255", "I10")
        if len(priv) > MAX_PRIV_LEN:
            raise _bad("IMPORT", f"priv of {len(priv)} bytes", "at most 512", "I5")

    def _die(self) -> None:
        """In a forked child."""
        self._open = False
        self._finalizer.detach()
        for region in self._regions.snapshot():
            region.die()
        self.driver.abandon()


def open(device: str | None = None, *, windows: WindowProvider | str | os.PathLike[str] | None = None) -> Device:
    """Open the OBMM device: the driver's ``/dev/obmm``, or an emulated node.

    `device` (default: OBMM_DEVICE, else ``/dev/obmm``) is ``"/dev/obmm"``, ``"emulator"`` or
    ``"emulator:<socket>#<node>"``.  `windows` (default: OBMM_WINDOWS) is a provider, or the path of a static table.
    Never falls back: DeviceNotFoundError says how to load the module and how to start the emulator.
    """
    if windows is None:
        windows = os.environ.get("OBMM_WINDOWS") or None
    provider = StaticWindows(windows) if isinstance(windows, str | os.PathLike) else windows
    return Device(Backend.parse(device), provider)


def attach(
    mem_id: int, length: int | None = None, *, device: str | None = None, cache: Cache | None = None, pmd: bool = False
) -> AttachedRegion:
    """`Device.attach` on a device of its own, which closes with the region's last reference."""
    opened = open(device)
    try:
        region = opened.attach(mem_id, length, cache=cache, pmd=pmd)
    except BaseException:
        opened.close()
        raise
    weakref.finalize(region, opened.close)
    return region


_DEVICES: weakref.WeakSet[Device] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for device in list(_DEVICES):
        if device._open:
            device._die()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _forgotten(driver: Driver, pid: int) -> None:
    if pid == os.getpid():
        warnings.warn(f"a device on {driver.backend} was never closed", ResourceWarning, stacklevel=2)
        driver.close()


class _NoWindows:
    """What a real host without a table has: nothing, and a text that says so."""

    name = "none"

    def acquire(self, handle: Handle, controller: Controller, cache: Cache | None) -> Window:
        raise ObmmError(
            errno.ENXIO,
            "no window provider: IMPORT takes a local physical address of a UB window that the management plane has "
            "programmed (driver specification 14); fix: pass window=<address>, or a static table by OBMM_WINDOWS, or "
            "attach to a region that the management plane imported",
            operation="IMPORT",
        )

    def release(self, window: Window) -> None:
        pass


def _default_windows(driver: Driver) -> WindowProvider:
    return EmulatorWindows(driver) if driver.backend.is_emulator else _NoWindows()


def _refuse_controller(operation: str, controller: Controller) -> None:
    """A negative pxm_numa crashed drivers before February 2026."""
    if not 0 <= controller.numa < MAX_LOCAL_NUMA_NODES:
        raise _bad(operation, f"pxm_numa={controller.numa}", "a controller on a NUMA node of 0..15", "X2")


def _wanted_cache(handle: Handle, cache: Cache | None) -> Cache | None:
    if cache is not None and (not isinstance(cache, str) or cache not in ("cc", "nc")):
        raise _bad("IMPORT", f"cache={cache!r}", "'cc' or 'nc'", "I14")
    if cache is not None:
        return cache
    if handle.flags & HandleFlag.CC:
        return "cc"
    return "nc" if handle.flags & HandleFlag.NC else None


def _stamp(operation: str, label: str, generation: int, cache: Cache, word: int | None) -> bytes:
    word = hardware_word_for(cache) if word is None else whole(operation, "hardware_word", word, low=0, high=0xFFFF)
    return OwnerStamp.of_this_process(text(operation, "label", label), generation).pack(word)


def _release(provider: WindowProvider, windows: list[Window]) -> None:
    for window in windows:
        provider.release(window)


def _bad(operation: str, problem: str, fix: str, rule: str, code: int = errno.EINVAL) -> ObmmArgumentError:
    return ObmmArgumentError.because(operation, code, problem, fix, rule)
