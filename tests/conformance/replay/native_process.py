# SPDX-License-Identifier: Apache-2.0
"""Real processes for a replay, forked cheaply from a nursery and driven over a socket each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .agent_process import LARGEST

Step = dict[str, Any]

#: No call of a case takes longer unless it hangs; `flush_sleep` and `add_sleep` stay below.
PATIENCE_S = 30.0


class NativeProcess:
    """An agent in a process of its own."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self._control = control

    def perform(self, op: str, given: Step, timeout: float | None = None) -> Step:
        self.start(op, given)
        self._control.settimeout(timeout or PATIENCE_S)
        try:
            return self.join()
        except TimeoutError:
            self.kill()
            return {"hang": f"no return within {timeout or PATIENCE_S} s"}

    def start(self, op: str, given: Step) -> None:
        self._control.settimeout(PATIENCE_S)
        self._control.send(json.dumps({"op": op, "in": given}).encode())

    def join(self) -> Step:
        try:
            data = self._control.recv(LARGEST)
        except ConnectionResetError:
            data = b""
        if not data:
            return {"failure": "the process is gone"}
        result: Step = json.loads(data)
        return result

    def fork(self) -> NativeProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            message = json.dumps({"op": "fork", "in": {}}).encode()
            socket.send_fds(self._control, [message], [theirs.fileno()])
        return NativeProcess(self.join()["pid"], ours)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.settle()

    def settle(self) -> None:
        """The control socket is closed with the process's other files: its end of file is the exit or exec."""
        self._control.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            while self._control.recv(LARGEST):
                pass


class Nursery:
    """Forks agents from one small, warm process."""

    def __init__(self, environment: dict[str, str] | None = None) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        script = Path(__file__).with_name("agent_process.py")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(script), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=os.environ | (environment or {}),
                stdin=subprocess.DEVNULL,
            )

    def spawn(self, order: Step) -> NativeProcess:
        """A fresh agent; `order` names its probe library and, for the emulator, its table."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [json.dumps(order).encode()], [theirs.fileno()])
        return NativeProcess(json.loads(self._control.recv(LARGEST))["pid"], ours)

    def close(self) -> None:
        self._control.close()
        self._process.wait(10)
