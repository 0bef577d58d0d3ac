# SPDX-License-Identifier: Apache-2.0
"""Cases through plain libc under the emulator's preload library, as a foreign program would."""

from __future__ import annotations

from collections.abc import Sequence

from obmm.emulator.program import environment

from .emulator_world import HOST
from .native_process import Nursery
from .port import Process
from .table_port import TablePort, cannot_execute
from .transcript import Case


class PreloadPort(TablePort):
    """The emulator behind ``libobmm_preload.so``: each case gets a nursery that was started under it."""

    name = "emulator, preload library"

    def unable(self, case: Case) -> str | None:
        return cannot_execute(case)

    def spawn(self, name: str) -> Process:
        assert self._server is not None
        if self._preloaded is None:
            device = f"emulator:{self._server.directory.socket}#{HOST}"
            self._preloaded = Nursery(environment(device))
        return self._preloaded.spawn({"probe": str(self._probe), "real_hugetlb": False})

    def end(self, processes: Sequence[Process]) -> None:
        if self._preloaded is not None:
            self._preloaded.close()
            self._preloaded = None
        super().end(processes)

    _preloaded: Nursery | None = None
