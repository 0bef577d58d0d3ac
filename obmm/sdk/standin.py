# SPDX-License-Identifier: Apache-2.0
"""A cluster of SDK daemons on the emulator, for machines without the SDK (SDK specification 16).

Nothing here is ever used by itself: programs get the stand-in library only by naming it.  Timings of the stand-in say
nothing about UB hardware, the engine or the cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import weakref
from typing import Any, Final, Literal

from obmm.children import python_module
from obmm.closing import Closing
from obmm.emulator import Fabric
from obmm.sdk import standin_library
from obmm.sdk.abi import MIB
from obmm.sdk.codes import Code
from obmm.sdk.library import ENVIRONMENT
from obmm.sdk.standin_library import LIBRARY, checked, ffi
from obmm.sdk.standin_op import Op

SENTENCE: Final = (
    "stand-in: timings say nothing about UB hardware, the engine or the cluster; they are a lower bound of socket and "
    "mapping overhead on this machine"
)
"""What every report of a stand-in's timings must carry (16.3 B2)."""

Mode = Literal["daemon", "in-process"]
_STATUS_BYTES: Final = 1 << 20


class StandIn(Closing):
    """A stand-in cluster over the nodes of `fabric`, in units of `unit` bytes.  Ends with this process.

    Its state is a locked file that all its processes share.  In `mode` "daemon" a server process works on it, with the
    round trips of the real library; "in-process" each process does so itself, with none.  `engine` lets the daemon make
    the connections that the real one makes to the UB engine (12.1).  `environment` is what a process on a node needs.
    """

    def __init__(self, fabric: Fabric, *, unit: int = 128 * MIB, mode: Mode = "daemon", engine: bool = False) -> None:
        self.library, self.mode = LIBRARY, mode
        self._fabric, self._engine = fabric.socket, engine
        self._functions = standin_library.load()
        self.folder = tempfile.mkdtemp(prefix="obmm-standin-")
        self._daemon: list[subprocess.Popen[bytes]] = []
        self._close = weakref.finalize(self, _end, os.getpid(), self._functions, self.folder, self._daemon)
        nodes = ",".join(fabric.nodes).encode()
        self._call("create", fabric.socket.encode(), nodes, unit)
        if mode == "daemon":
            self.start()

    def environment(self, node: str, *, user: tuple[int, int] | None = None) -> dict[str, str]:
        """Variables of a process on `node`, taken for uid and gid `user` (default: its own)."""
        variables = {
            ENVIRONMENT: self.library,
            "OBMM_SDK_STANDIN": self.folder,
            "OBMM_SDK_STANDIN_MODE": self.mode,
            "OBMM_SDK_STANDIN_NODE": node,
            "OBMM_DEVICE": f"emulator:{self._fabric}#{node}",
        }
        if user is not None:
            variables["OBMM_SDK_STANDIN_USER"] = f"{user[0]}:{user[1]}"
        return variables

    # --- the daemon --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the daemon again: it knows what the last one knew."""
        if self._daemon:
            raise RuntimeError("the stand-in's daemon runs")
        command = python_module("obmm.sdk.standin_daemon", self.folder)
        if self._engine:
            command.append("--engine")
        # a session of its own: Ctrl-C is for this process, which ends the daemon in order
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._daemon.append(process)
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            self.stop()
            raise RuntimeError(f"the stand-in's daemon did not start: exit status {process.returncode}")

    def stop(self) -> None:
        """End the daemon: its socket is missing then, and `initialize` fails at once.  Idempotent."""
        _end_daemon(self._daemon)

    def kill(self) -> None:
        """SIGKILL the daemon: its socket remains, and `initialize` is refused slowly (5)."""
        for process in self._daemon:
            process.send_signal(signal.SIGKILL)
        _end_daemon(self._daemon)

    # --- looking and injecting ---------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Objects with the processes that map them, leases, names that are being cleaned up."""
        found = self._status()
        return {name: found[name] for name in ("objects", "leases", "busy")}

    @property
    def engine_calls(self) -> int:
        """Connections that the daemon made to the engine's stand-in; 0 without `engine`."""
        return int(self._status()["engine_calls"])

    def inject(self, call: Op, *, code: Code | int = 0, delay: float = 0.0, lost: bool = False, times: int = 1) -> None:
        """Let the next `times` requests `call` fail with `code`, take `delay` seconds more, or lose their answers."""
        self._call("inject", int(call), int(code), round(delay * 1000), lost, times)

    def fire(self, name: str, kind: int) -> int:
        """Report a fault to every process that registered for them -> how many."""
        return self._call("fire", name.encode(), int(kind))

    # --- ending ------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return not self._close.alive

    def close(self) -> None:
        """Stop the daemon, give the memory back unless it is still mapped.  Idempotent."""
        self._close()

    def __repr__(self) -> str:
        return f"<StandIn {self.mode} {self.folder}{' closed' if self.closed else ''}>"

    def _status(self) -> dict[str, Any]:
        text = ffi.new("char[]", _STATUS_BYTES)
        self._call("status", text, _STATUS_BYTES)
        found: dict[str, Any] = json.loads(ffi.string(text))
        return found

    def _call(self, function: str, *given: Any) -> int:
        return checked(function, getattr(self._functions, f"ubsmem_standin_{function}")(self.folder.encode(), *given))


def _end(owner: int, functions: Any, folder: str, daemon: list[subprocess.Popen[bytes]]) -> None:
    if os.getpid() != owner:  # a forked child ends: the stand-in is its parent's
        return
    _end_daemon(daemon)
    functions.ubsmem_standin_destroy(folder.encode())  # what is still mapped stays in the fabric
    shutil.rmtree(folder, ignore_errors=True)


def _end_daemon(daemon: list[subprocess.Popen[bytes]]) -> None:
    while daemon:
        process = daemon.pop()
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it was killed
                process.stdin.write(b".")
                process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
