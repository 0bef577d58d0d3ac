# SPDX-License-Identifier: Apache-2.0
"""Regions whose removal ended with ENOTRECOVERABLE: they must not be tried again before the host boots anew.

A second removal has crashed hosts (driver specification 6.5).  Such a region stays listed and keeps its number until
reboot, so its number names it; the note is a file, because `obmm gc` runs in another process.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from obmm.driver.backend import runtime_directory
from obmm.driver.process import boot_id

_known: set[tuple[str, int]] = set()


def is_unremovable(root: str, mem_id: int) -> bool:
    """Whether a removal of this region of the node below `root` has failed beyond repair since this boot."""
    return (root, mem_id) in _known or [boot_id().hex(), root, mem_id] in _notes(root)


def note_unremovable(root: str, mem_id: int) -> None:
    """Remember it, for every process of this user."""
    _known.add((root, mem_id))
    path = _path(root)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps([boot_id().hex(), root, mem_id]) + "\n")


def _path(root: str) -> Path:
    folder = Path("/run/obmm") if not root and os.geteuid() == 0 else runtime_directory()
    return folder / "unremovable"


def _notes(root: str) -> list[object]:
    try:
        lines = _path(root).read_text().splitlines()
    except OSError:
        return []
    notes: list[object] = []
    for line in lines:
        with contextlib.suppress(ValueError):  # a line cut off by a full disk says nothing
            notes.append(json.loads(line))
    return notes
