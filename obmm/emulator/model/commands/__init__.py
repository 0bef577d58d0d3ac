# SPDX-License-Identifier: Apache-2.0
"""The control commands of `/dev/obmm`, one module each (driver specification 6)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .. import structs
from ..structs import Layout
from .addr_query import addr_query
from .export import export
from .export_pid import export_pid
from .import_ import import_
from .preimport import declare_preimport, undeclare_preimport
from .remove import unexport, unimport

if TYPE_CHECKING:
    from ..calls import UserMemory
    from ..process import Process


@dataclass(frozen=True)
class Command:
    """How one request number is read, run and answered.

    `run(process, raw, user)` gets the raw struct and returns it with its outputs filled, or None for
    commands that write nothing back.
    """

    name: str
    layout: Layout
    run: Callable[[Process, bytes, UserMemory], bytes | None]


COMMANDS: dict[int, Command] = {
    structs.CMD_EXPORT: Command("EXPORT", structs.EXPORT, export),
    structs.CMD_IMPORT: Command("IMPORT", structs.IMPORT, import_),
    structs.CMD_UNEXPORT: Command("UNEXPORT", structs.REMOVE, unexport),
    structs.CMD_UNIMPORT: Command("UNIMPORT", structs.REMOVE, unimport),
    structs.CMD_ADDR_QUERY: Command("ADDR_QUERY", structs.ADDR_QUERY, addr_query),
    structs.CMD_EXPORT_PID: Command("EXPORT_PID", structs.EXPORT_PID, export_pid),
    structs.CMD_DECLARE_PREIMPORT: Command("DECLARE_PREIMPORT", structs.PREIMPORT, declare_preimport),
    structs.CMD_UNDECLARE_PREIMPORT: Command("UNDECLARE_PREIMPORT", structs.PREIMPORT, undeclare_preimport),
}
