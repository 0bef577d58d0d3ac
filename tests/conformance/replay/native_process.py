# SPDX-License-Identifier: Apache-2.0
"""Real processes for a replay, forked cheaply from a nursery and driven over a socket each."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
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
        self._pidfd = os.pidfd_open(pid)

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

    def poll(self) -> Step | None:
        """The result of what was started, if it is there already."""
        self._control.settimeout(0)
        try:
            return self.join()
        except BlockingIOError:
            return None

    def fork(self) -> NativeProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            message = json.dumps({"op": "fork", "in": {}}).encode()
            socket.send_fds(self._control, [message], [theirs.fileno()])
        return NativeProcess(self.join()["pid"], ours)

    def kill(self) -> None:
        if self._pidfd < 0:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if not self._ended(PATIENCE_S * 1000):
            raise TimeoutError(f"process {self.pid} survives SIGKILL")

    def settle(self) -> None:
        """Wait until an exit or exec has closed what it closes."""
        comm = Path(f"/proc/{self.pid}/comm")
        until = time.monotonic() + PATIENCE_S
        while not self._ended(1):
            # an exec renames the process after it has closed descriptors
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if comm.read_text() == "sleep\n":
                    return
            if time.monotonic() > until:
                raise TimeoutError(f"process {self.pid} neither ends nor executes")

    def _ended(self, milliseconds: float) -> bool:
        """Whether the process is gone, with all that it had, within this time."""
        if self._pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(milliseconds):
            return False
        os.close(self._pidfd)
        self._pidfd = -1
        self._control.close()
        return True


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
