# SPDX-License-Identifier: Apache-2.0
"""Control of a running fabric: status, decoder, faults, shutdown. JSON over the fabric's socket."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

from obmm.closing import Closing
from obmm.errors import other_version

from . import protocol

FRAME = struct.Struct("<I")
FRAME_MAX = 16 << 20


class ControlError(OSError):
    """The fabric refused a control request; errno and text are its answer.

    >>> fabric.request("no such thing")
    Traceback (most recent call last):
    obmm.emulator.control.ControlError: ...
    """


class ControlClient(Closing):
    """A connection for control requests.

    Not for system calls, and not a process of any node. Raises OSError (FileNotFoundError,
    ConnectionRefusedError, ...) when no fabric answers on `path`.

    `path` is the fabric's socket, `timeout` the seconds that an answer may take.  ControlError when the fabric refuses.

    >>> with obmm.emulator.ControlClient(fabric.socket, timeout=30) as control:
    ...     sorted(control.request("status")["nodes"])
    ['a', 'b']
    >>> control.close()
    >>> control.closed
    True
    """

    def __init__(self, path: str | os.PathLike[str], timeout: float = 60.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(os.fspath(path))
            self._socket.sendall(protocol.HELLO.pack(protocol.MAGIC, protocol.VERSION, protocol.Kind.CONTROL, b""))
            welcome = receive(self._socket, protocol.WELCOME.size)
            error = protocol.WELCOME.unpack(welcome)[3]
            if error:
                theirs = protocol.WELCOME.unpack(welcome)[1]
                why = f"the fabric refuses this user: {os.strerror(error)}"
                raise ControlError(
                    error,
                    why
                    if theirs == protocol.VERSION
                    else other_version("the fabric's protocol", theirs, protocol.VERSION),
                )
        except BaseException:
            self._socket.close()
            raise

    def request(self, operation: str, **arguments: Any) -> Any:
        """Ask for `operation` with its `arguments`; its result, or ControlError with the fabric's reason."""
        send_frame(self._socket, {"op": operation, **arguments})
        answer = receive_frame(self._socket)
        if "error" in answer:
            raise ControlError(answer["errno"], answer["error"])
        return answer["result"]

    @property
    def closed(self) -> bool:
        return self._socket.fileno() < 0

    def close(self) -> None:
        """Close the connection. The fabric goes on."""
        self._socket.close()


def send_frame(stream: socket.socket, document: Any) -> None:
    """One JSON document behind its length."""
    data = json.dumps(document).encode()
    stream.sendall(FRAME.pack(len(data)) + data)


def receive_frame(stream: socket.socket) -> Any:
    """The next document; ConnectionError at the end of the stream, ProtocolError for anything else."""
    (size,) = FRAME.unpack(receive(stream, FRAME.size))
    if size > FRAME_MAX:
        raise protocol.ProtocolError(f"a control frame of {size} bytes; the limit is {FRAME_MAX}")
    try:
        return json.loads(receive(stream, size))
    except ValueError as error:
        raise protocol.ProtocolError(f"not JSON: {error}") from None


def receive(stream: socket.socket, size: int) -> bytes:
    """Exactly `size` bytes, or ConnectionResetError."""
    data = bytearray()
    while len(data) < size:
        part = stream.recv(min(size - len(data), 1 << 20))
        if not part:
            raise ConnectionResetError("the fabric has closed the connection")
        data += part
    return bytes(data)
