# SPDX-License-Identifier: Apache-2.0
"""A running server's control socket: what only its operator on this host may do.

One request and one answer per connection, each one line of JSON.  Only the server's own user and root are answered
(SO_PEERCRED); a thread of its own serves one at a time, each for at most `PATIENCE_S`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import struct
import threading
import time
from pathlib import Path
from typing import Any

from obmm.background import BackgroundLogger
from obmm.closing import Closing
from obmm.errors import ObmmError
from obmm.exchange.errors import PeerUnreachableError, ProtocolError, Refusal
from obmm.exchange.server import Server
from obmm.undisturbed import joined

log = BackgroundLogger("obmm.exchange.server")

PATIENCE_S = 5.0
MOST_BYTES = 64 * 1024
MOST_ANSWER = 256 << 20
_CREDENTIALS = struct.Struct("iII")
_FILTERS = ("lease", "holder", "address", "identity", "region")


def control_path(folder: Path, port: int) -> Path:
    """Where the server on ``port`` of this user listens."""
    return folder / f"serve-{port}.sock"


class ControlSocket(Closing):
    """Listens for the operator until `close`."""

    def __init__(self, server: Server, path: Path) -> None:
        self._server = server
        self.path = path
        self._listener = _listen(path)
        self._thread = threading.Thread(target=self._run, name=f"obmm-control-{server.port}", daemon=True)
        self._open = True
        try:
            self._thread.start()
        except BaseException:
            self._open = False
            self._listener.close()
            path.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Stop listening, remove the socket.  Idempotent."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        joined(self._thread, PATIENCE_S)

    def __repr__(self) -> str:
        return f"<control socket {self.path}>"

    def _run(self) -> None:
        while self._open:
            try:
                connection, _ = self._listener.accept()
            except Exception as error:  # OSError, or no memory for one more: the operator comes again
                if not self._open:
                    return
                log.stranger("control socket: %r", error)
                time.sleep(0.2)
                continue
            try:
                with connection:
                    self._serve(connection)
            except Exception as error:
                log.stranger("control socket: a request failed: %r", error)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid not in (0, os.geteuid()):
            _send(connection, {"error": f"uid {uid} is not this server's operator"})
            return
        try:
            request = _receive(connection, MOST_BYTES)
            answer = self._answer(request)
        except ObmmError as error:
            answer = {"error": error.strerror or str(error)}
        except (ValueError, RecursionError, TypeError) as error:
            answer = {"error": f"not a request of this version: {error}"}
        _send(connection, answer)

    def _answer(self, request: Any) -> dict[str, Any]:
        if not isinstance(request, dict):
            raise ValueError("a request is an object")
        match request.get("do"):
            case "status":
                return {"status": self._server.status()}
            case "end" | "match" as what:
                which = {name: request.get(name) or "" for name in _FILTERS}
                if not all(isinstance(each, str) for each in which.values()):
                    raise ValueError("names are texts")
                ended = self._server.end_leases(**which) if what == "end" else self._server.find_leases(**which)
                return {
                    "ended": [
                        {"lease": each.short, "region": each.region, "holder": each.holder, "state": each.state.value}
                        for each in ended
                    ]
                }
        raise ValueError(f"{request.get('do')!r:.80} is unknown")


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The answer of the server behind ``path``; PeerUnreachableError, or ExchangeError with the server's refusal."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(4 * PATIENCE_S)
            connection.connect(str(path))
            _send(connection, request)
            answer = _receive(connection, MOST_ANSWER)
    except OSError as error:
        if isinstance(error, ObmmError):
            raise
        why = os.strerror(error.errno) if error.errno else str(error)
        raise PeerUnreachableError(
            f"no server of this user answers on {path}: {why}; is the port right, and does `obmm serve` run as you?"
        ) from None
    except (ValueError, RecursionError):
        raise ProtocolError(Refusal.PAYLOAD, f"{path} does not speak as a server's control socket") from None
    if not isinstance(answer, dict):
        raise ProtocolError(Refusal.PAYLOAD, f"{path} does not speak as a server's control socket")
    if "error" in answer:
        raise ProtocolError(Refusal.PROTOCOL, str(answer["error"]))
    return answer


def _listen(path: Path) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.setblocking(False)  # one whose queue is full lives, and would hold us
                if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    bound = False
    try:
        listener.bind(str(path))
        bound = True
        path.chmod(0o600)
        listener.listen(8)
    except BaseException:
        if bound:
            path.unlink(missing_ok=True)
        listener.close()
        raise
    return listener


def _send(connection: socket.socket, value: dict[str, Any]) -> None:
    connection.sendall(json.dumps(value, separators=(",", ":")).encode() + b"\n")


def _receive(connection: socket.socket, most: int) -> Any:
    data = bytearray()
    deadline = time.monotonic() + 4 * PATIENCE_S
    while not data.endswith(b"\n"):
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        part = connection.recv(65536)
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "the other side hung up")
        data += part
        if len(data) > most:
            raise ValueError(f"more than {most} bytes")
    return json.loads(data)
