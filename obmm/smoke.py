# SPDX-License-Identifier: Apache-2.0
"""The loopback smoke test: one host exports memory, imports it back and compares (``obmm smoke``).

The same steps and the same pattern as ``native/tools/smoke.c``: 256 little-endian 64-bit words, word i = 0xdead0000 +
i * 0x1111, in a raw region.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from obmm.driver.abi import Cache
from obmm.errors import ObmmError
from obmm.mapping.mapping import Mapping
from obmm.region.device import Device
from obmm.region.exported import ExportedRegion
from obmm.region.imported import ImportedRegion
from obmm.region.opening import open as open_device
from obmm.sizes import format_size
from obmm.windows.provider import WindowProvider

WORDS = [0xDEAD0000 + i * 0x1111 for i in range(256)]
LOADS = 2000


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what it did, or the exact reason why it failed.  `status` is "ok", "skipped" or "failed"."""

    name: str
    status: str
    text: str


class LoopbackTest:
    """Runs the steps in order; whatever was made is removed, also after a failure."""

    def __init__(
        self, device: str | None, size: int, *, cache: Cache = "cc", window: WindowProvider | int | None = None
    ) -> None:
        self._spec, self._size, self._cache, self._window = device, size, cache, window
        self._undo = ExitStack()
        self._device: Device
        self._exported: ExportedRegion
        self._writer: Mapping
        self._imported: ImportedRegion | None = None
        self._reader: Mapping
        self.failed = False
        self.latency_ns: float | None = None

    def steps(self) -> Iterator[Step]:
        """Each step as it is done.  Stops at the first failure, and then tears down; so does whatever ends it early."""
        with self._undo:
            yield from self._steps()

    def _steps(self) -> Iterator[Step]:
        plan: list[tuple[str, Callable[[], str]]] = [
            ("open", self._open),
            ("export", self._export),
            ("map export", self._map_export),
            ("write", self._write),
            ("import", self._import),
            ("map import", self._map_import),
            ("verify", self._verify),
            ("load latency", self._measure),
        ]
        for name, action in plan:
            try:
                text = action()
            except (ObmmError, AssertionError) as error:
                self.failed = True
                yield Step(name, "failed", str(error))
                break
            status = "skipped" if text.startswith("skipped: ") else "ok"
            yield Step(name, status, text.removeprefix("skipped: "))
        try:
            self._undo.close()
            yield Step("tear down", "ok", "mappings, regions and device closed in order")
        except ObmmError as error:
            self.failed = True
            yield Step("tear down", "failed", str(error))

    def _open(self) -> str:
        self._device = self._undo.enter_context(open_device(self._spec))
        return f"{self._device.backend}, {len(self._device.controllers)} controller(s), granule {format_size(self._device.granule)}"

    def _export(self) -> str:
        granule = self._device.granule
        size = max(-(-self._size // granule) * granule, granule)
        self._exported = self._undo.enter_context(self._device.export_region(size, header=False, label="smoke"))
        rounded = "" if size == self._size else f" ({self._size} rounded up to the granule)"
        return f"mem_id {self._exported.mem_id}, {format_size(size)}{rounded}"

    def _map_export(self) -> str:
        self._writer = self._undo.enter_context(self._exported.map("rw", cache=self._cache))
        return f"{self._writer.nbytes} bytes {self._cache}, right {self._writer.right.letter}"

    def _write(self) -> str:
        self._writer.write(0, b"".join(word.to_bytes(8, "little") for word in WORDS))
        self._writer.publish()
        return f"{len(WORDS)} words, first {WORDS[0]:#x}, last {WORDS[-1]:#x}; written back"

    def _import(self) -> str:
        handle = self._exported.handle(cache=self._cache)
        if self._window is None and self._device.windows.name == "none":
            return (
                "skipped: no window for loopback: the management plane has to program one (driver specification 14); "
                "pass its address with --window; verifying the exporter's own mapping instead"
            )
        region = self._device.import_region(handle, cache=self._cache, window=self._window, label="smoke loopback")
        self._imported = self._undo.enter_context(region)
        return f"mem_id {region.mem_id} at {region.window.address:#x} ({region.window.cache} window, {self._device.windows.name})"

    def _map_import(self) -> str:
        if self._imported is None:
            self._reader = self._writer
            return "skipped: nothing was imported"
        self._reader = self._undo.enter_context(self._imported.map("r"))
        return f"{self._reader.nbytes} bytes {self._reader.cache}, right {self._reader.right.letter}"

    def _verify(self) -> str:
        for i, word in enumerate(WORDS):
            found = self._reader.load("<u8", 8 * i)
            assert found == word, f"word {i} is {found:#x}, written was {word:#x}"
        side = "the import" if self._imported else "the exporter's own mapping"
        return f"all {len(WORDS)} words equal through {side}"

    def _measure(self) -> str:
        """Guarded loads from Python, one cache line after the other; the C twin measures dependent loads."""
        load, lines = self._reader.load, self._reader.nbytes // 64
        offsets = [(i * 97 % lines) * 64 for i in range(LOADS)]
        times = []
        for offset in offsets:
            begin = time.perf_counter_ns()
            load("<u8", offset)
            times.append(time.perf_counter_ns() - begin)
        self.latency_ns = sorted(times)[len(times) // 2]
        emulated = " (emulator: local memory, says nothing about hardware)" if self._device.backend.is_emulator else ""
        return f"p50 {self.latency_ns:.0f} ns per guarded load from Python{emulated}"
