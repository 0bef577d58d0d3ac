# SPDX-License-Identifier: Apache-2.0
"""The recorded cases of the driver, replayed on the module with the expectations that the emulator has to meet."""

from __future__ import annotations

import collections
import fnmatch
import traceback
from typing import Any

from tests.conformance.replay.judge import compare
from tests.conformance.replay.replay import Replay
from tests.conformance.replay.transcript import Case, Transcript

from . import differences
from .answers import answers
from .kernel_port import KernelPort
from .local_process import fits

#: A case whose calls must overlap depends on how busy the machine is.
TRIES = 3
#: (a reason is written down, the answers differ) -> the verdict; capitals fail the run.
_VERDICTS = {
    (False, False): "equal",
    (False, True): "DIFFERS",
    (True, True): "differs",
    (True, False): "UNEXPECTEDLY-EQUAL",
}


def main(*patterns: str) -> bool:
    """True when every case that the module can run is answered as recorded, or differs for a written reason."""
    port = KernelPort()
    counts: collections.Counter[str] = collections.Counter()
    unable: collections.Counter[str] = collections.Counter()
    for case in sorted(Transcript.load(), key=lambda case: case.config):
        if patterns and not any(fnmatch.fnmatch(case.id, pattern) for pattern in patterns):
            continue
        why = port.unable(case)
        if why:
            counts["unable"] += 1
            unable[why] += 1
            continue
        counts[_replay(port, case)] += 1
    port.close()
    for why, count in unable.most_common():
        print(f"unable: {count:4} {why}")
    print(f"REPLAY {port.name}: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return counts["equal"] > 0 and not counts["DIFFERS"] and not counts["UNEXPECTEDLY-EQUAL"]


def _replay(port: KernelPort, case: Case) -> str:
    """The verdict, printed with the module's answers for the host's table of shared cases."""
    overlapping = "timing" in case.tags
    for _ in range(TRIES if overlapping else 1):
        observed, lines = _once(port, case)
        if not lines:
            break
    why = differences.reason(case.id)
    verdict = "equal" if overlapping and not lines else _VERDICTS[bool(why), bool(lines)]
    print(f"CASE {case.id} {verdict} {answers(observed)}")
    if verdict != "equal":
        print(f"    {why or 'no reason is written down'}")
        for line in lines:
            print("   ", line, flush=True)
    return verdict


def _once(port: KernelPort, case: Case) -> tuple[list[dict[str, Any]], list[str]]:
    """The module's answers and how they differ from the recorded ones."""
    port.play_here = fits(case)
    try:
        observed = Replay(port, case).run()
    except Exception:
        return [], traceback.format_exc().splitlines()[-3:]
    return observed, [str(difference) for difference in compare(case, observed)]
