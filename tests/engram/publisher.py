# SPDX-License-Identifier: Apache-2.0
"""``obmm engram publish`` in a process of its own, on node a."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from obmm import emulator


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "obmm.cli.main", "engram", *map(str, arguments)]


class Publisher:
    """A process on node a that serves a checkpoint's tables."""

    def __init__(self, fabric: emulator.Fabric, checkpoint: Path, *options: object) -> None:
        variables = {**os.environ, "OBMM_DEVICE": fabric.device("a")}
        self.process = subprocess.Popen(
            command("publish", checkpoint, "--plain", "--json", "--name", "toy", *options),
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )
        assert self.process.stdout is not None
        self.facts: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        assert self.facts, "it did not start"
        self.source = f"127.0.0.1:{self.facts['port']}/toy"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(30) == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
