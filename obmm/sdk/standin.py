# SPDX-License-Identifier: Apache-2.0
"""A cluster of SDK daemons on the emulator, for machines without the SDK (SDK specification 16).

Nothing here is ever used by itself: programs get the stand-in library only by naming it.  Timings of the stand-in say
nothing about UB hardware, the engine or the cluster.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from obmm.emulator import Fabric
from obmm.sdk import standin_wire as wire
from obmm.sdk.abi import MIB
from obmm.sdk.codes import Code
from obmm.sdk.library import ENVIRONMENT
from obmm.sdk.standin_wire import Op

SENTENCE: Final = (
    "stand-in: timings say nothing about UB hardware, the engine or the cluster; they are a lower bound of socket and "
    "mapping overhead on this machine"
)
"""What every report of a stand-in's timings must carry (16.3 B2)."""


LIBRARY: Final = str(Path(__file__).resolve().parents[1] / "libubsm_sdk_standin.so")
"""The stand-in library, installed beside the package; loaded only by programs that name it."""


class StandIn:
    """A running stand-in cluster over the nodes of `fabric`, in units of `unit` bytes.  Ends with this process.

    `environment` is what a process on a node needs to use it.
    """

    def __init__(self, fabric: Fabric, *, unit: int = 128 * MIB) -> None:
        self.library = LIBRARY
        self._fabric = fabric.socket
        self._folder = tempfile.mkdtemp(prefix="obmm-standin-")
        self.socket = str(Path(self._folder) / "daemon.sock")
        orders = {"fabric": fabric.socket, "nodes": list(fabric.nodes), "unit": unit, "socket": self.socket}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "obmm.sdk.standin_daemon", json.dumps(orders)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._close = weakref.finalize(self, _end, self._process, self._folder)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.close()
            raise RuntimeError(f"the stand-in's daemon did not start: exit status {self._process.returncode}")

    def environment(self, node: str, *, user: tuple[int, int] | None = None) -> dict[str, str]:
        """Variables of a process on `node`, taken for uid and gid `user` (default: its own)."""
        variables = {
            ENVIRONMENT: self.library,
            "OBMM_SDK_STANDIN": self.socket,
            "OBMM_SDK_STANDIN_NODE": node,
            "OBMM_DEVICE": f"emulator:{self._fabric}#{node}",
        }
        if user is not None:
            variables["OBMM_SDK_STANDIN_USER"] = f"{user[0]}:{user[1]}"
        return variables

    def status(self) -> dict[str, Any]:
        """Objects with the processes that map them, leases, names that are being cleaned up."""
        found: dict[str, Any] = self._order(op="status")
        return found

    def inject(self, call: Op, *, code: Code | int = 0, delay: float = 0.0, lost: bool = False, times: int = 1) -> None:
        """Let the next `times` requests `call` fail with `code`, take `delay` seconds more, or lose their answers."""
        fault = {"code": int(code), "delay": delay, "lost": lost, "times": times}
        self._order(op="inject", call=call.name, fault=fault)

    def fire(self, name: str, kind: int) -> int:
        """Report a fault to every process that registered for them -> how many."""
        reached: int = self._order(op="fire", name=name, kind=int(kind))
        return reached

    def close(self) -> None:
        """Stop the daemon.  Idempotent."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<StandIn {self.socket}{'' if self._close.alive else ' closed'}>"

    def _order(self, **order: Any) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(self.socket)
            connection.sendall(wire.request(Op.HELLO))
            wire.receive_answer(connection)
            connection.sendall(wire.request(Op.CONTROL, body=json.dumps(order).encode()))
            return json.loads(wire.receive_answer(connection)[1])


def _end(process: subprocess.Popen[bytes], folder: str) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)
