# SPDX-License-Identifier: Apache-2.0
"""What the stand-in library and its daemon say to each other; ``native/sdk_standin/wire.h`` says the same."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from obmm.sdk.codes import Code

_REQUEST: Final = struct.Struct("=4I4Q64s64s")
_ANSWER: Final = struct.Struct("=IiII")
_UNITS: Final = struct.Struct("=3Q4I")
_WELCOME: Final = struct.Struct("=256s64s")
BODY_MAX: Final = 1 << 20
_NOBODY: Final = (1 << 64) - 1


class Op(IntEnum):
    """Requests.  CONTROL carries JSON and comes from tests, not from the library."""

    HELLO = 1
    SUBSCRIBE = 2
    GROUPS = 5
    RESOLVE = 6
    CREATE = 7
    CREATE_AT = 8
    MAP = 9
    UNMAP = 10
    DELETE = 11
    REGION_CREATE = 15
    REGION_LOOKUP = 16
    REGION_DESTROY = 17
    WRITE_LOCK = 18
    READ_LOCK = 19
    UNLOCK = 20
    CLUSTER = 21
    LIST = 24
    LOOKUP = 25
    SLOT = 30
    LEASE = 40
    LEASE_AT = 41
    LEASE_FREE = 42
    CONTROL = 100


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived."""

    op: Op
    id: int
    arg: tuple[int, int, int, int]
    name: str
    region: str
    body: bytes

    @classmethod
    def receive(cls, connection: socket.socket) -> Self | None:
        """The next request, or None at the end.  ValueError if it is none."""
        head = _exactly(connection, _REQUEST.size)
        if head is None:
            return None
        op, number, size, _, a, b, c, d, name, region = _REQUEST.unpack(head)
        if size > BODY_MAX:
            raise ValueError(f"a body of {size} bytes")
        body = _exactly(connection, size) if size else b""
        if body is None:
            return None
        return cls(Op(op), number, (a, b, c, d), _text(name), _text(region), body)

    @property
    def identity(self) -> tuple[int, int] | None:
        """HELLO: the uid and gid that the process wants to be taken for."""
        return None if self.arg[0] == _NOBODY else (self.arg[0], self.arg[1])


def request(op: Op, *, name: str = "", body: bytes = b"") -> bytes:
    """A request as it travels."""
    return _REQUEST.pack(op, 0, len(body), 0, _NOBODY, _NOBODY, 0, 0, name.encode(), b"") + body


def answer(number: int, code: int, body: bytes = b"") -> bytes:
    """An answer as it travels; also an event, whose code is the fault's kind and whose body is the name."""
    return _ANSWER.pack(number, code, len(body), 0) + body


def receive_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Code and body of the next answer; ConnectionError at the end."""
    head = _exactly(connection, _ANSWER.size)
    if head is None:
        raise ConnectionError("the stand-in's daemon is gone")
    _, code, size, _ = _ANSWER.unpack(head)
    body = _exactly(connection, size) if size else b""
    if body is None:
        raise ConnectionError("the stand-in's daemon is gone")
    return code, body


def units(size: int, unit: int, mem_ids: tuple[int, ...], flags: int, open_mode: int, lease: int = 0) -> bytes:
    """Body of the answer to MAP and LEASE."""
    head = _UNITS.pack(size, unit, lease, len(mem_ids), flags, open_mode, 0)
    return head + struct.pack(f"={len(mem_ids)}Q", *mem_ids)


def welcome(fabric: str, node: str) -> bytes:
    """Body of the answer to HELLO."""
    return _WELCOME.pack(fabric.encode(), node.encode())


class Refused(Exception):
    """A request that is answered with `code`."""

    def __init__(self, code: Code) -> None:
        super().__init__(code)
        self.code = code


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except ConnectionError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="surrogateescape")
