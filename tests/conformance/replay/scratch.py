# SPDX-License-Identifier: Apache-2.0
"""Where a replay keeps its thousands of short-lived files."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref

_MEMORY = "/dev/shm"


class Scratch:
    """A new folder, in memory where the machine has such a place.

    It goes with the process that made it: a child that another test forks inherits this object, and must not remove the
    folder when it ends.
    """

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(
            prefix="obmm-replay-", dir=_MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
        )
        self.cleanup = weakref.finalize(self, _remove, self.name, os.getpid())


def _remove(name: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(name, ignore_errors=True)
