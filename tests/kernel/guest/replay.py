# SPDX-License-Identifier: Apache-2.0
"""The recorded cases of the driver, replayed on the module with the expectations that the emulator has to meet."""

from __future__ import annotations

import collections
import fnmatch
import traceback

from tests.conformance.replay.judge import compare
from tests.conformance.replay.replay import Replay
from tests.conformance.replay.transcript import Transcript

from .kernel_port import KernelPort


def main(*patterns: str) -> bool:
    """True when every case that the module can run is answered as recorded."""
    port = KernelPort()
    counts: collections.Counter[str] = collections.Counter()
    unable: collections.Counter[str] = collections.Counter()
    cases = sorted(Transcript.load(), key=lambda case: case.config)
    for case in cases:
        if patterns and not any(fnmatch.fnmatch(case.id, pattern) for pattern in patterns):
            continue
        reason = port.unable(case)
        if reason:
            counts["unable"] += 1
            unable[reason] += 1
            continue
        try:
            lines = [str(difference) for difference in compare(case, Replay(port, case).run())]
        except Exception:
            lines = traceback.format_exc().splitlines()[-3:]
        counts["differs" if lines else "equal"] += 1
        if lines:
            print(f"DIFFERS {case.id} [{case.rule}] {' '.join(sorted(case.tags))}")
            for line in lines:
                print("   ", line, flush=True)
    port.close()
    for reason, count in unable.most_common():
        print(f"unable: {count:4} {reason}")
    print(f"REPLAY {port.name}: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return counts["equal"] > 0 and not counts["differs"]
