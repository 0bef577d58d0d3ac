# SPDX-License-Identifier: Apache-2.0
"""Which modelled fabric the imports of an emulated one play: how long guarded calls and gathers on them take."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol


class ModelledFabric(Protocol):
    """How long reading takes (`obmm.emulator.profile.Profile` has it); nanoseconds."""

    @property
    def name(self) -> str: ...

    def gather_ns(self, rows: int, row_bytes: int, threads: int = 1) -> float:
        """Until `rows` rows are here."""
        ...

    def row_ns(self, row_bytes: int) -> float:
        """One more row of a large batch."""
        ...


TOLD: Final = "modelled.json"
"""In the folder of an emulated fabric: the profile that all processes' imports from it are modelled by."""
Reader = Callable[[str], ModelledFabric]

_fabrics: dict[str, ModelledFabric | None] = {}
_read: dict[str, tuple[tuple[int, int], ModelledFabric]] = {}
_readers: list[Reader] = []


def set_fabric(socket: str, fabric: ModelledFabric | None) -> None:
    """Imports of this process from the emulated fabric at `socket` take as long as on `fabric`, from the next mapping on; None:
    as quick as they are.  Either way whatever the fabric itself says.
    """
    _fabrics[socket] = fabric


def fabrics_are_read_by(reader: Reader) -> None:
    """`reader` makes a fabric of the text of a `TOLD` file: the room that knows profiles is above this one."""
    _readers[:] = [reader]


def fabric_of(socket: str | None) -> ModelledFabric | None:
    """The modelled fabric of a backend's imports, if there is one: what `set_fabric` said, else what the fabric itself says."""
    if socket is None or socket in _fabrics:
        return _fabrics.get(socket) if socket is not None else None
    file = Path(socket).with_suffix("") / TOLD
    try:
        found = os.stat(file)
    except OSError:
        return None
    known = _read.get(socket)
    if known is None or known[0] != (found.st_ino, found.st_mtime_ns):
        known = _read[socket] = (found.st_ino, found.st_mtime_ns), _readers[0](file.read_text("utf-8"))
    return known[1]
