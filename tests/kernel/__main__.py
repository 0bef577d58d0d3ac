# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.kernel x86|arm64|pair``: build, boot, run, judge."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .architecture import ARCHITECTURES, Architecture
from .build import Build
from .image import Image
from .machine import Machine
from .packages import Archive, install_tools, refresh_host_lists

#: What a single guest runs (tests/kernel/guest/<part>.py).
PARTS = ("kernel_rules", "smoke", "replay")
LIMIT_S = 580.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.kernel", description=__doc__)
    parser.add_argument("what", nargs="+", choices=("x86", "arm64", "pair"))
    parser.add_argument("--run", default=",".join(PARTS), help="parts of a single guest, comma separated")
    options = parser.parse_args()
    single = [ARCHITECTURES[name] for name in options.what if name in ARCHITECTURES]
    refresh_host_lists()
    install_tools(single)
    failed = [one.name for one in single if not run_single(one, options.run)]
    return len(failed)


def prepare(architecture: Architecture) -> tuple[Archive, Path]:
    """The archive and the initramfs of an architecture."""
    started = time.monotonic()
    archive = Archive(architecture)
    archive.fetch()
    initramfs = Image(archive, Build(archive)).make()
    print(
        f"== {architecture.name}: Linux {archive.version}, image of {initramfs.stat().st_size >> 20} MiB "
        f"in {time.monotonic() - started:.1f} s",
        flush=True,
    )
    return archive, initramfs


def run_single(architecture: Architecture, parts: str) -> bool:
    archive, initramfs = prepare(architecture)
    console = archive.folder / "console.log"
    machine = Machine(architecture, archive.image, initramfs, console, parts)
    verdict = machine.finish(LIMIT_S)
    print(machine.text, flush=True)
    print(f"== {architecture.name}: verdict {verdict} after {machine.seconds:.1f} s", flush=True)
    return verdict == 0


if __name__ == "__main__":
    sys.exit(main())
