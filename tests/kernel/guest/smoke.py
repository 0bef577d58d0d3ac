# SPDX-License-Identifier: Apache-2.0
"""The loopback smoke tests, in C and in Python: a window of this host leads to its own export."""

from __future__ import annotations

import json
import subprocess
import sys

from . import simulator

WINDOW = 0xA0000000
SIZE = 4 << 20
#: The tests export into an empty host: the first token (driver specification 7).
TOKEN = 0


def main() -> bool:
    simulator.load()
    simulator.decoder(WINDOW, SIZE, TOKEN)
    words = [str(SIZE), "--window", hex(WINDOW), "--json"]
    python = "import sys; from obmm.cli.smoke import smoke; smoke(sys.argv[1:])"
    return all([_passed("C", ["/payload/smoke", *words]), _passed("Python", [sys.executable, "-c", python, *words])])


def _passed(name: str, command: list[str]) -> bool:
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    print(f"smoke {name}: status {result.returncode}")
    try:
        report = json.loads(result.stdout)
        steps = [(step.get("step") or step["name"], step["status"]) for step in report["steps"]]
    except (ValueError, LookupError, TypeError):
        print(result.stdout, result.stderr)
        return False
    print("   ", ", ".join(f"{name} {status}" for name, status in steps))
    good = result.returncode == 0 and not report.get("emulated") and all(status == "ok" for _, status in steps)
    if not good:
        print(result.stdout, result.stderr)
    return good
