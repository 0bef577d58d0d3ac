# SPDX-License-Identifier: Apache-2.0
"""Recorded cases that the module answers otherwise, knowingly, and why (docs/conformance/simulator.md)."""

from __future__ import annotations

import fnmatch
import os

ARM64 = "aarch64"
X86 = "x86_64"

#: (pattern of case ids, architectures, reason).  A difference that no entry explains fails the run, and so does an
#: entry whose case is answered as recorded.
KNOWN = (
    (
        "m14-remap-error-resets",
        (ARM64, X86),
        "Q13: after a failed first mapping the driver keeps an ownership table of the wrong granularity, the module resets both",
    ),
    (
        "own-nc-close-changes-counters",
        (ARM64, X86),
        "Q11: the driver counts down for NC mappings that it never counted up",
    ),
    (
        "prop-mremap-move*",
        (ARM64, X86),
        "Q29: a refused move runs the driver's release once; the module has no side effect",
    ),
    (
        "race-region-being-destroyed",
        (ARM64, X86),
        "the recording leaves out the flush of a removal that another process waits for; the module logs it",
    ),
    (
        "m-exec-rx-then-*",
        (ARM64,),
        "Q14: the driver's page table lacks what the VMA allows, and the fault repeats for ever; "
        "the module fills page tables from the VMA's rights",
    ),
    ("m-exec-*", (X86,), "the recording jumps into aarch64 machine code"),
    ("m3-*-x", (X86,), "a PROT_EXEC mapping is unreadable on a CPU with protection keys: SEGV_PKUERR"),
)


def reason(case: str) -> str | None:
    """Why this case may differ on this machine; None when it may not."""
    machine = os.uname().machine
    return next((why for pattern, where, why in KNOWN if machine in where and fnmatch.fnmatch(case, pattern)), None)
