# SPDX-License-Identifier: Apache-2.0
"""A client that speaks the emulator's wire protocol by hand, well or badly."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct

HELLO = struct.Struct("<IHH64s")
WELCOME_SIZE = 336
REQUEST = struct.Struct("<IHHQ6Q")
ANSWER = struct.Struct("<IiqHHIQQ")
MAGIC, VERSION = 0x4D4D424F, 2
CALLS, CONTROL = 1, 2
OPEN, IOCTL, MEMORY = 1, 2, 12
LAST_CALL = 16
LARGEST_PAYLOAD = 16384


class RawClient:
    """One connection."""

    def __init__(self, path: str, kind: int = CALLS, node: bytes = b"", timeout: float = 5.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.hello(kind, node)

    def hello(self, kind: int, node: bytes) -> None:
        self.socket.sendall(HELLO.pack(MAGIC, VERSION, kind, node))
        welcome = self.receive(WELCOME_SIZE)
        (error,) = struct.unpack_from("<i", welcome, 8)
        if error:
            raise OSError(error, os.strerror(error))

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError("the server hung up")
            data += part
        return data

    def send(self, call: int, file: int = 0, args: tuple[int, ...] = (), payload: bytes = b"", flags: int = 0) -> None:
        padded = (*args, 0, 0, 0, 0, 0, 0)[:6]
        self.socket.sendall(REQUEST.pack(len(payload), call, flags, file, *padded) + payload)

    def open(self, path: bytes, flags: int = os.O_RDWR) -> int:
        """Open a device; the inode of the descriptor that comes back, which stays open here."""
        self.send(OPEN, args=(flags, os.geteuid()), payload=path)
        data, fds, _, _ = socket.recv_fds(self.socket, ANSWER.size, 1)
        kind, error, *_ = ANSWER.unpack(data)
        if error:
            raise OSError(error, os.strerror(error))
        assert (kind, len(fds)) == (1, 1)
        return os.fstat(fds[0]).st_ino

    def drain(self) -> None:
        """Throw away whatever the server says, until it hangs up or is silent."""
        self.socket.settimeout(0.05)
        with contextlib.suppress(OSError):
            while True:
                data, fds, _, _ = socket.recv_fds(self.socket, 1 << 16, 64)
                for fd in fds:
                    os.close(fd)
                if not data:
                    return

    def close(self) -> None:
        self.socket.close()


def random_request(chance: random.Random, files: list[int]) -> bytes:
    """A frame that is well formed as a frame, with anything in it."""
    call = chance.choice((*range(1, LAST_CALL + 1), IOCTL, IOCTL, IOCTL, 0, 99, 0xFFFF))
    number = chance.choice((0xC0E07800, 0xC0607801, 0x40107802, 0x40107803, 0xC0207804, 0xC0687805, 0xC0507806))
    interesting = (0, 1, 3, 0x40185800, number, 4096, 2 << 20, 1 << 40, (1 << 63) + 4096, (1 << 64) - 1)
    args = [chance.choice((*interesting, chance.getrandbits(64))) for _ in range(6)]
    if call == IOCTL:
        args[0] = chance.choice((number, 0x40185800, chance.getrandbits(32)))
    size = chance.choice((0, 1, 16, 24, 32, 80, 96, 104, 224, chance.randrange(LARGEST_PAYLOAD)))
    payload = chance.randbytes(size) if chance.random() < 0.7 else bytes(size)
    file = chance.choice((*files, 0, chance.getrandbits(64)))
    return REQUEST.pack(size, call, chance.choice((0, 0, 0, 1, 0xFFFF)), file, *args) + payload
