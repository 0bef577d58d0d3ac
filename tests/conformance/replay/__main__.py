# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.conformance.replay [case ...]``: replay and print the differences.

Runs on the driver model in process by default; see ``--help``.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import sys
import time
import traceback

from .judge import compare
from .port import Port
from .replay import Replay
from .transcript import Transcript


def main() -> int:
    parser = argparse.ArgumentParser(prog="replay", description=__doc__)
    parser.add_argument("cases", nargs="*", help="case ids, * and ? allowed; default all")
    parser.add_argument("--port", choices=("model", "table", "preload"), default="model")
    parser.add_argument("--tag", help="only cases with this tag; 'none' = untagged")
    parser.add_argument("-v", "--verbose", action="store_true", help="every step of the named cases")
    parser.add_argument("-q", "--quiet", action="store_true", help="counts only")
    options = parser.parse_args()
    transcript = Transcript.load()
    port = _port(options.port, transcript)
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    started = time.monotonic()
    for case in transcript:
        if options.cases and not any(fnmatch.fnmatch(case.id, pattern) for pattern in options.cases):
            continue
        if options.tag and options.tag not in (case.tags or {"none"}):
            continue
        reason = port.unable(case)
        if reason:
            verdict, lines = "unable", [reason]
        else:
            verdict, lines = _judge(port, case, options.verbose)
        for tag in case.tags or {"none"}:
            counts[tag][verdict] += 1
        counts["all"][verdict] += 1
        if not options.quiet and (verdict != "equal" or options.verbose):
            print(f"{verdict}: {case.id} [{case.rule}] {' '.join(sorted(case.tags))}")
            for line in lines:
                print("   ", line)
    close = getattr(port, "close", None)
    if close is not None:
        close()
    for tag, counter in sorted(counts.items()):
        print(f"{tag:14}", "  ".join(f"{verdict} {count}" for verdict, count in sorted(counter.items())))
    print(f"{time.monotonic() - started:.1f} s on {port.name}")
    return 0 if set(counts["all"]) <= {"equal"} else 1


def _judge(port: Port, case: object, verbose: bool) -> tuple[str, list[str]]:
    replay = Replay(port, case)  # type: ignore[arg-type]
    try:
        observed = replay.run()
    except Exception:
        return "failed", traceback.format_exc().splitlines()[-3:]
    differences = compare(case, observed)  # type: ignore[arg-type]
    lines = [str(difference) for difference in differences]
    if verbose:
        lines += [f"{i} {s['op']} {s['in']}\n        -> {o}" for i, (s, o) in enumerate(zip(case.steps, observed))]  # type: ignore[attr-defined]  # noqa: B905
    return ("differs" if differences else "equal"), lines


def _port(name: str, transcript: Transcript) -> Port:
    if name == "model":
        from .model_port import ModelPort

        return ModelPort(transcript)
    if name == "table":
        from .table_port import TablePort

        return TablePort(transcript)
    from .preload_port import PreloadPort

    return PreloadPort(transcript)


if __name__ == "__main__":
    sys.exit(main())
