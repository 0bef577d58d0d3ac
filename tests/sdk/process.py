# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from obmm.sdk.standin import StandIn


class Process:
    """A process on an emulated node; its methods are the functions of `tests.sdk.child`."""

    def __init__(self, standin: StandIn, node: str, user: tuple[int, int] | None = None, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sdk.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **standin.environment(node, user=user), **environment},
            text=True,
        )

    def begin(self, name: str, *given: Any, **named: Any) -> None:
        """Call a function without waiting for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, given, named]) + "\n")
        self._process.stdin.flush()

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.begin(name, *given, **named)
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            if not line:
                raise EOFError(f"{name}: the process ended with {self._process.wait(10)}")
            return json.loads(line)

        return call

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int:
        """How it ended."""
        return self._process.wait(10)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()
