# SPDX-License-Identifier: Apache-2.0
"""The stand-in's daemon: a server process on a unix socket that ends with whoever started it.

``python -m obmm.sdk.standin_daemon '{"fabric": ..., "socket": ..., "nodes": [...], "unit": ...}'``; it says ``ready``
on its standard output, and stops at the end of its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import sys
import threading
from typing import Any, Final

from obmm.sdk import standin_wire as wire
from obmm.sdk.codes import Code
from obmm.sdk.standin_cluster import StandinCluster
from obmm.sdk.standin_objects import Caller
from obmm.sdk.standin_wire import Op, Refused, Request

_CREDENTIALS: Final = struct.Struct("3i")


class StandinDaemon:
    """Accepts processes, one thread each."""

    def __init__(self, path: str, cluster: StandinCluster) -> None:
        self._cluster = cluster
        self._injected: dict[Op, list[dict[str, Any]]] = {}
        self._subscribers: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        os.chmod(path, 0o600)
        self._listener.listen(128)

    def serve(self) -> None:
        """Until the listener is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._process, args=(connection,), daemon=True).start()

    def close(self) -> None:
        self._stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _process(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            hello = Request.receive(connection)
            if hello is None or hello.op is not Op.HELLO:
                return
            pid, uid, gid = _CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            uid, gid = hello.identity or (uid, gid)
            node = hello.name or self._cluster.nodes[0]
            if node not in self._cluster.nodes:
                connection.sendall(wire.answer(0, Code.PARAM_INVALID))
                return
            connection.sendall(wire.answer(0, 0, wire.welcome(self._cluster.fabric, node)))
            caller = Caller(pid, uid, gid, node)
            try:
                while request := Request.receive(connection):
                    self._answer(connection, caller, request)
            finally:
                with self._lock:
                    self._subscribers.discard(connection)
                self._cluster.gone(caller)

    def _answer(self, connection: socket.socket, caller: Caller, request: Request) -> None:
        if request.op is Op.SUBSCRIBE:
            connection.sendall(wire.answer(request.id, 0))
            with self._lock:
                self._subscribers.add(connection)
            return
        if request.op is Op.CONTROL:
            body = json.dumps(self._control(json.loads(request.body))).encode()
            connection.sendall(wire.answer(request.id, 0, body))
            return
        fault = self._next_fault(request.op)
        self._stopping.wait(fault.get("delay", 0.0))
        code, body = fault.get("code", 0), b""
        if not code:
            try:
                body = self._cluster.answer(caller, request)
            except Refused as refusal:
                code = refusal.code
        if not fault.get("lost"):
            connection.sendall(wire.answer(request.id, code, body))

    def _next_fault(self, op: Op) -> dict[str, Any]:
        with self._lock:
            waiting = self._injected.get(op)
            if not waiting:
                return {}
            waiting[0]["times"] -= 1
            return waiting[0] if waiting[0]["times"] else waiting.pop(0)

    def _control(self, order: dict[str, Any]) -> Any:
        if order["op"] == "status":
            return self._cluster.status()
        if order["op"] == "inject":
            with self._lock:
                self._injected.setdefault(Op[order["call"]], []).append({"times": 1, **order["fault"]})
            return None
        if order["op"] == "fire":
            event = wire.answer(0, order["kind"], order["name"].encode())
            with self._lock:
                for subscriber in self._subscribers:
                    subscriber.sendall(event)
                return len(self._subscribers)
        raise ValueError(f"no such order: {order['op']}")


def main() -> None:
    """The process."""
    orders = json.loads(sys.argv[1])
    cluster = StandinCluster(orders["fabric"], orders["nodes"], orders["unit"])
    daemon = StandinDaemon(orders["socket"], cluster)
    threading.Thread(target=daemon.serve, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.buffer.read()
    daemon.close()
    cluster.close()


if __name__ == "__main__":
    main()
