# SPDX-License-Identifier: Apache-2.0
"""What a signal means: no call failed, a load or a store did."""

from __future__ import annotations

from obmm.causes import Cause
from obmm.causes import because as _c

FAULTS: dict[str, tuple[Cause, ...]] = {
    "SIGBUS": (
        _c(
            "docs/safety.md",
            "no memory answered: the peer died or took its region back, or the page is damaged. Guarded reads and writes raise "
            "RemoteMemoryError instead; a process that dies of it touched a view (view(), as_numpy, DLPack)",
            "read guarded (table[ids], gather, snapshot); close the region and fetch a fresh handle",
        ),
    ),
    "SIGSEGV": (
        _c(
            "docs/safety.md",
            "the right to the range is missing, or its mapping was closed by force: guarded calls raise instead, views do not",
            "acquire the right first, and drop views before close()",
        ),
    ),
}
"""Signal -> causes."""
