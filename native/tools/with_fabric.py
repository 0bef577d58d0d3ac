# SPDX-License-Identifier: Apache-2.0
"""Runs a command with the device that OBMM_DEVICE names, or else on an emulated node made for it."""

import os
import subprocess
import sys


def main() -> int:
    if os.environ.get("OBMM_DEVICE"):
        return subprocess.call(sys.argv[1:])
    import obmm.emulator

    with obmm.emulator.start(nodes=1) as fabric:
        device = fabric.device("a")
        print(f"OBMM_DEVICE is not set: on an emulated node, OBMM_DEVICE={device}", file=sys.stderr)
        return subprocess.call(sys.argv[1:], env={**os.environ, "OBMM_DEVICE": device})


sys.exit(main())
