# SPDX-License-Identifier: Apache-2.0
"""Where fabrics live on disk, and which of them are alive.

``$XDG_RUNTIME_DIR/obmm``, or ``/tmp/obmm-<uid>`` when that is unset: a folder of this user alone. A fabric
named N has the socket ``N.sock`` in it and the folder ``N/`` with its lock, its log and its nodes' trees.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from obmm.driver.backend import default_socket, runtime_directory

from .directory import FabricDirectory

DEFAULT = default_socket().stem
"""The fabric of ``obmm emulate up`` and ``obmm.open("emulator")``."""


def fabric_directory(name: str) -> FabricDirectory:
    """The place of the fabric `name` of this user."""
    return FabricDirectory(runtime_directory(), name)


def fabrics() -> Iterator[FabricDirectory]:
    """All fabrics of this user, alive or left behind."""
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(runtime_directory().iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                yield fabric_directory(entry.name)


def remove_stale() -> list[str]:
    """Delete what killed servers left; returns their names."""
    return [directory.name for directory in fabrics() if directory.remove_if_dead()]
