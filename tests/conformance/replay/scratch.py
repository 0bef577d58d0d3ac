# SPDX-License-Identifier: Apache-2.0
"""Where a replay keeps its thousands of short-lived files."""

from __future__ import annotations

import os
import tempfile

_MEMORY = "/dev/shm"


def scratch() -> tempfile.TemporaryDirectory[str]:
    """A new folder, in memory where the machine has such a place."""
    return tempfile.TemporaryDirectory(
        prefix="obmm-replay-", dir=_MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None
    )
