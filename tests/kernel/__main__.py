# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.kernel WHAT ...``: build, boot, run, judge.

WHAT is x86 or arm64 (one guest each; both are booted at once when both are named), pair-x86 or pair-arm64 (two guests
on one fabric), storm-x86 or storm-arm64 (a guest with two processors; KERNEL_STORM_SECONDS, KERNEL_STORM_SEED).  The exit
status counts the failures.
"""

from __future__ import annotations

import argparse
import resource
import signal
import sys
import time

from .architecture import ARCHITECTURES, Architecture
from .image import Image
from .machine import Boot
from .packages import Archive, install_tools, one_run, refresh_lists
from .pair import run_pair
from .single import PARTS, Guest
from .storm_run import run_storm


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.kernel", description=__doc__)
    kinds = ("", "pair-", "storm-")
    parser.add_argument("what", nargs="+", choices=[kind + name for kind in kinds for name in ARCHITECTURES])
    parser.add_argument("--run", default=",".join(PARTS), help="parts of a single guest, comma separated")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the guests end too
    with one_run():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    started = time.monotonic()
    architectures = {name: ARCHITECTURES[name.rpartition("-")[2]] for name in options.what}
    refresh_lists()
    install_tools(list(architectures.values()))
    boots = {one.name: _boot(one) for one in dict.fromkeys(architectures.values())}
    results: dict[str, bool] = {}
    singles = {name: Guest(boots[name], options.run) for name in options.what if name in ARCHITECTURES}
    for name, guest in singles.items():
        results[name] = guest.judge()
    for name in options.what:
        if name not in singles:
            run = run_pair if name.startswith("pair-") else run_storm
            results[name] = run(boots[architectures[name].name])
    for name, good in results.items():
        print(f"== {name}: {'passed' if good else 'FAILED'}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"== {time.monotonic() - started:.0f} s in all, {used.ru_utime + used.ru_stime:.0f} s of CPU", flush=True)
    return sum(not good for good in results.values())


def _boot(architecture: Architecture) -> Boot:
    archive = Archive(architecture)
    archive.fetch()
    return Boot(architecture, archive.folder, archive.image, Image(archive).make())


if __name__ == "__main__":
    sys.exit(main())
