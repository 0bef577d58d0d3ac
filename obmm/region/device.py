# SPDX-License-Identifier: Apache-2.0
"""An open OBMM device: makes regions, knows the local controllers, closes in order."""

from __future__ import annotations

import errno
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

from obmm.arguments import U64, raw, whole, wrong_type
from obmm.closing import Closing, Living, die, refuse_if_busy, tell_of_forks
from obmm.driver import topology
from obmm.driver.abi import (
    MAX_MEM_ID,
    MAX_PRIV_LEN,
    MAX_VENDOR_LEN,
    MIN_MEM_ID,
    PAGE,
    PMD,
    Cache,
    ExportFlag,
    ImportFlag,
)
from obmm.driver.backend import Backend
from obmm.driver.calls import Driver
from obmm.driver.placement import warn_if_far
from obmm.driver.topology import Controller
from obmm.errors import ObmmError
from obmm.handle import Handle
from obmm.region.attached import AttachedRegion
from obmm.region.demands import (
    controller_of,
    provider_of,
    refuse_controller,
    refuse_impossible,
    refused,
    size_of,
    sizes_of,
    stamp_of,
    wanted_cache,
)
from obmm.region.exported import ExportedRegion
from obmm.region.header import RegionHeader
from obmm.region.imported import ImportedRegion
from obmm.region.kept import Kept
from obmm.region.leased import Leased
from obmm.region.leaving import has_leases
from obmm.region.region import Region
from obmm.region.user_memory import HugePages, UserMemoryRegion
from obmm.windows.emulator import EmulatorWindows
from obmm.windows.provider import NoWindows, Window, WindowProvider


class Device(Closing):
    """One open ``/dev/obmm``, of the driver or of an emulated node.  Made by `obmm.open`; usable from any thread.

    A forked child must open its own: objects of the parent are closed there.  `obmm` has an example of each call.
    """

    def __init__(self, backend: Backend, windows: WindowProvider | None = None) -> None:
        self.driver = Driver(backend)
        self._windows = windows or _default_windows(self.driver)
        self._regions: Living[Region] = Living()
        self._kept: list[Kept] = []  # what exists on the host through this object
        self._lock = threading.RLock()
        self._open = True
        self._warn_if_forgotten(f"a device on {backend}")  # the driver gives itself back
        tell_of_forks(self)

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

        The region's private data carries an owner stamp (`obmm.region.stamp`) behind `hardware_word`, which the management
        plane reads (driver specification 18; default: cacheable, translation on chip); `priv` replaces both.
        `label`: up to 47 bytes for people.  `vendor_info`: up to 128 bytes for the UMMU.  ObmmArgumentError for what the driver
        would refuse, ObmmError ENOMEM when the pool is used up.
        """
        self._check_open()
        sizes = sizes_of(size, numa, header, self.granule)
        local = controller_of(self.controllers, self.root, controller, min(sizes))
        vendor = local.vendor_info() if vendor_info is None else raw("EXPORT", "vendor_info", vendor_info)
        generation = secrets.randbits(63) | 1
        stamp = stamp_of("EXPORT", label, generation, "cc", hardware_word)
        priv = stamp if priv is None else raw("EXPORT", "priv", priv)
        if len(vendor) > MAX_VENDOR_LEN or len(priv) > MAX_PRIV_LEN:
            raise refused(
                "EXPORT", f"vendor_info of {len(vendor)} or priv of {len(priv)} bytes", "at most 128 and 512", "X8/X9"
            )
        refuse_controller("EXPORT", local)
        flags = ExportFlag.ALLOW_MMAP | (ExportFlag.FAST if fast else ExportFlag(0))
        with self._made("export", priv) as kept:
            exported = self.driver.export(
                sizes, flags, pxm_numa=local.numa, deid=local.eid, vendor_info=vendor, priv=priv, owned=kept.owned
            )
            length = sum(sizes.values())
            region = ExportedRegion(
                self,
                kept,
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
        accept that with `accept_host_crash_risk`, and gets copies only, never a view.  `size` as in `export_region`, in whole
        2 MiB pages; `header`, `label` and `controller` as there.  ObmmError ENOMEM when no huge pages are free.
        """
        self._check_open()
        if accept_host_crash_risk is not True:
            raise refused(
                "EXPORT_PID",
                "exported user memory crashes the host if a system call touches it through the kernel's own map",
                "export_region(), or accept_host_crash_risk=True",
                "6.2",
                errno.EPERM,
            )
        wanted = next(iter(sizes_of(size, 0, header, self.granule).values()))
        length = -(-wanted // PMD) * PMD
        local = controller_of(self.controllers, self.root, controller, 0)
        refuse_controller("EXPORT_PID", local)
        generation = secrets.randbits(63) | 1
        stamp = stamp_of("EXPORT_PID", label, generation, "cc", None)
        offset = RegionHeader.SIZE if header else 0
        with self._made("export", stamp) as kept:
            try:
                kept.pages = pages = HugePages(length)
            except (OSError, OverflowError) as error:
                raise ObmmError(
                    (error.errno if isinstance(error, OSError) else None) or errno.ENOMEM,
                    f"EXPORT_PID: no {length // PMD} free huge pages of 2 MiB; fix: sysctl vm.nr_hugepages, see `obmm doctor`",
                    operation="EXPORT_PID",
                ) from error
            exported = self.driver.export_user_memory(
                pages.address,
                length,
                pid=0,
                pxm_numa=local.numa,
                deid=local.eid,
                vendor_info=local.vendor_info(),
                priv=stamp,
                owned=kept.owned,
            )
            region = UserMemoryRegion(
                self,
                kept,
                exported,
                local,
                pages,
                length,
                data_offset=offset,
                nbytes=length - offset,
                generation=generation,
                label=label,
            )
            self._regions.add(region)
            if header:
                region.write_header()
            return region

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
        provider.  `cache` "cc" or "nc" overrides what the handle wants.  `pmd` maps it in 2 MiB blocks.  `hardware_word`,
        `priv`, `controller` and `label` as in `export_region`, with its errors.
        """
        self._check_open()
        if not isinstance(source, Handle) and not hasattr(source, "handle"):
            raise wrong_type(
                "IMPORT", "source", source, "a Handle (Handle.unpack(bytes)) or a lease (peer.fetch(name))"
            )
        lease = None if isinstance(source, Handle) else source
        handle = source if isinstance(source, Handle) else source.handle
        if lease is not None:
            lease.importing(str(self.backend))
        wanted = wanted_cache(handle, cache)
        provider = provider_of(window, self._windows, wanted, handle)
        local = controller_of(self.controllers, self.root, controller, None)
        stamp = stamp_of("IMPORT", label, handle.generation, wanted or "cc", hardware_word)
        priv = stamp if priv is None else raw("IMPORT", "priv", priv)
        refuse_impossible(handle, priv)
        with self._made("import", priv) as kept:
            found = self._import(kept, handle, provider, local, wanted, priv)
            region = ImportedRegion(self, kept, handle, found, pmd=pmd, label=label, lease=lease)
            self._regions.add(region)
            if lease is not None:
                kept.lease = lease
                lease.attach(kept)
                has_leases(self)
            if not self.root:
                warn_if_far(local.numa, f"the bus controller of {region!r}")
            return region

    def _import(
        self,
        kept: Kept,
        handle: Handle,
        provider: WindowProvider,
        local: Controller,
        wanted: Cache | None,
        priv: bytes,
    ) -> Window:
        """IMPORT at the first window of the provider's that is free (rule I13)."""
        while True:
            window, again = kept.acquire_window(provider, handle, local, wanted)
            try:
                self.driver.import_(
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
                    owned=kept.owned,
                )
            except ObmmError as error:
                if error.errno != errno.EEXIST or again:
                    raise
            else:
                kept.release_windows(but=window)
                return window

    # --- attaching ---------------------------------------------------------------------------------------------------

    def attach(
        self, mem_id: int, length: int | None = None, *, cache: Cache | None = None, pmd: bool = False
    ) -> AttachedRegion:
        """Use a region of this host that another program made, such as a unit of an SDK allocation (docs/windows.md).

        `length` in bytes is read from sysfs when root asks, and must be given otherwise.  `cache` is the mode in which
        the region can be mapped, where it is known; `pmd` must be what its other users map it in (rule M10).
        `mem_id`: its number on this host.  ObmmArgumentError when there is no such region.
        """
        self._check_open()
        mem_id = whole("SHMDEV_OPEN", "mem_id", mem_id)
        if not MIN_MEM_ID <= mem_id <= MAX_MEM_ID:
            raise refused("SHMDEV_OPEN", f"mem_id={mem_id}", f"{MIN_MEM_ID}..{MAX_MEM_ID}", "OPEN1", errno.ENOENT)
        length = size_of(self.root, mem_id) if length is None else whole("SHMDEV_OPEN", "length", length)
        if length <= 0 or length % PAGE:
            raise refused("SHMDEV_OPEN", f"length={length}", "the region's size, a multiple of 4096 above 0", "M11")
        if cache is not None and (not isinstance(cache, str) or cache not in ("cc", "nc")):
            raise refused("SHMDEV_OPEN", f"cache={cache!r}", "'cc' or 'nc'", "OPEN2/OPEN3")
        caches: tuple[Cache, ...] = ("cc", "nc") if cache is None else (cache,)
        with self._lock:
            self._check_open()
            region = AttachedRegion(self, mem_id, length, caches, pmd=pmd)
            self._regions.add(region)
            return region

    # --- the rest ----------------------------------------------------------------------------------------------------

    def query_pa(self, mem_id: int, offset: int = 0) -> int:
        """The physical address behind byte `offset` of region `mem_id` of this host, header included (ADDR_QUERY, 6.8)."""
        self._check_open()
        mem_id = whole("ADDR_QUERY", "mem_id", mem_id, low=0, high=U64)
        return self.driver.query_pa(mem_id, whole("ADDR_QUERY", "offset", offset, low=0, high=U64))

    def query_id(self, pa: int) -> tuple[int, int]:
        """(mem_id, byte offset) of the region of this host that contains the physical address `pa` (ADDR_QUERY, 6.8)."""
        self._check_open()
        return self.driver.query_id(whole("ADDR_QUERY", "pa", pa, low=0, high=U64))

    @property
    def forgotten(self) -> tuple[int, ...]:
        """Numbers of regions made here without a holder: dropped unclosed, or lost to an interrupt."""
        return tuple(kept.mem_id for kept in self.orphans() if kept.mem_id)

    def remove_forgotten(self, *, force: bool = False) -> None:
        """Remove the regions of `forgotten`, as `close` does, with its `force`."""
        with self._lock:
            for kept in self.orphans():
                self.give_back(kept, force=force)

    def orphans(self) -> list[Kept]:
        """Between rooms: what `forgotten` is about, for who gives it back."""
        return [kept for kept in tuple(self._kept) if not any(region.made_as(kept) for region in self.regions)]

    def give_back(self, kept: Kept, *, force: bool = False) -> None:
        """Between rooms: for regions, remove what `kept` notes, and forget it."""
        kept.give_back(force=force)
        with self._lock:
            if kept in self._kept:
                self._kept.remove(kept)

    @contextmanager
    def _made(self, kind: Literal["export", "import"], priv: bytes) -> Iterator[Kept]:
        """A block that makes a region: the device knows of it from before to after, and a failure leaves nothing."""
        kept = Kept(self.driver, kind, priv)
        with self._lock:
            self._check_open()
            self._kept.append(kept)
            try:
                yield kept
            except BaseException as error:
                try:
                    for region in self.regions:
                        if region.made_as(kept):
                            region.close(force=True)
                    self.give_back(kept, force=True)
                except ObmmError as refusal:
                    error.add_note(f"and {kept!r} stayed: {refusal}; fix: close the device")
                raise

    def ownership_takes_effect(self) -> bool:
        """Whether this driver's ownership calls do anything: some builds of 2026 answered success and did nothing.

        Makes and removes a scratch region of one granule (`obmm.mapping.ownership_probe`).
        """
        from obmm.mapping.ownership_probe import ownership_takes_effect

        return ownership_takes_effect(self)

    def close(self, force: bool = False) -> None:
        """Close views' mappings, regions, then the node.  Idempotent.  MappingBusyError, and nothing changed, while
        views live; ``force=True`` as in `Region.close`."""
        with self._lock:
            if not self._open:
                return
            if not force:
                refuse_if_busy(*self.regions)
            for region in self.regions:
                region.close(force=force)
            self.remove_forgotten(force=force)
            if isinstance(self._windows, EmulatorWindows):
                self._windows.forget()
            self.driver.close()
            self._open = False
            self._need_not_warn()

    def __bool__(self) -> bool:
        return self._open

    def __repr__(self) -> str:
        return f"<Device {self.backend}{'' if self._open else ' closed'} regions={len(self.regions)}>"

    # --- inside ------------------------------------------------------------------------------------------------------

    def _die(self) -> None:
        was_open = self._open
        super()._die()
        self._need_not_warn()
        die(*self._regions.snapshot())
        if was_open:
            self.driver.abandon()


def _default_windows(driver: Driver) -> WindowProvider:
    return EmulatorWindows(driver) if driver.backend.is_emulator else NoWindows()
