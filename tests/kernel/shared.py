# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.kernel.shared``: the recorded cases that emulator and module share, with both answers.

The module's answers come from the consoles of the last guests, the emulator's are made now.  An answer is one word a
step (guest/answers.py).  Exit status 1 when the two differ in a case that neither list of known differences names.
"""

from __future__ import annotations

import re
import sys
from fnmatch import fnmatch

from tests.conformance import known
from tests.conformance.replay.replay import Replay
from tests.conformance.replay.table_port import TablePort
from tests.conformance.replay.transcript import Case, Transcript

from .architecture import ARCHITECTURES
from .guest.answers import answers
from .guest.differences import KNOWN
from .packages import BUILD

#: Differences that are none: what a load finds behind a window before anybody stored there.
MEMORY = (
    (
        "own-import-*",
        "an import keeps what was stored behind its window before: the module's by earlier cases, the emulator's never",
    ),
)

_LINE = re.compile(r"^CASE (\S+) (\S+) (.*?)\r?$", re.MULTILINE)


def module_answers() -> dict[str, dict[str, str]]:
    """Architecture -> case -> answers, from the consoles."""
    found = {}
    for name in ARCHITECTURES:
        console = BUILD / name / "console.log"
        lines = _LINE.findall(console.read_text(errors="replace")) if console.exists() else []
        if lines:
            found[name] = {case: words for case, _, words in lines}
    return found


def main() -> int:
    module = module_answers()
    if not module:
        raise SystemExit("no guest has replayed the cases yet: make kernel-x86 kernel-arm64")
    transcript = Transcript.load()
    emulator = TablePort(transcript)
    unexplained = shared = same = 0
    for case in transcript:
        theirs = {name: cases[case.id] for name, cases in module.items() if case.id in cases}
        if not theirs:
            continue
        why = known.NOT_RUN.get(case.id) or emulator.unable(case)
        if why:
            print(
                f"{case.id} [{case.rule}] only the module: {next(iter(theirs.values()))} (emulator: {why.split('.')[0]})"
            )
            continue
        shared += 1
        ours = answers(Replay(emulator, case).run())
        if set(theirs.values()) == {ours}:
            same += 1
            print(f"{case.id} [{case.rule}] emulator and module: {ours}")
            continue
        print(f"{case.id} [{case.rule}]\n    emulator: {ours}")
        for name, words in theirs.items():
            print(f"    module on {name}: {words}")
        why = _reason(case)
        print(f"    {why or 'no reason is written down'}")
        unexplained += why is None
    emulator.close()
    print(
        f"{shared} cases shared by emulator and module ({', '.join(module)}): {same} with the same answers, "
        f"{shared - same} with other ones, {unexplained} of these without a reason"
    )
    return 1 if unexplained else 0


def _reason(case: Case) -> str | None:
    if case.id in known.DIFFERS:
        return f"the emulator's: {known.DIFFERS[case.id]}"
    for pattern, where, why in KNOWN:
        if fnmatch(case.id, pattern):
            return f"the module's, on {' and '.join(where)}: {why}"
    return next((why for pattern, why in MEMORY if fnmatch(case.id, pattern)), None)


if __name__ == "__main__":
    sys.exit(main())
