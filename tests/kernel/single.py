# SPDX-License-Identifier: Apache-2.0
"""One guest by itself: page tables and signals, the smoke tests, the recorded cases."""

from __future__ import annotations

from .machine import Boot, Machine

#: What a single guest runs (tests/kernel/guest/<part>.py).
PARTS = ("kernel_rules", "borders_rules", "smoke", "replay")
#: Four times what the slowest of them takes on an idle machine of two cores.
LIMIT_S = 600.0


class Guest:
    """A booting guest; `judge` waits for its verdict."""

    def __init__(self, boot: Boot, parts: str) -> None:
        self._name = boot.architecture.name
        self._machine = Machine(boot, parts.replace(" ", ""))

    def judge(self) -> bool:
        verdict = self._machine.finish(LIMIT_S)
        print(self._machine.text, flush=True)
        print(f"== {self._name}: guest verdict {verdict} after {self._machine.seconds:.0f} s", flush=True)
        return verdict == 0
