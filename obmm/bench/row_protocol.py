# SPDX-License-Identifier: Apache-2.0
"""What the row server of the TCP arm and its clients say to each other.

The server sends a nonce of 16 bytes; the client answers with HMAC-SHA-256 of it under a secret that it has from the
exchange; the server sends one byte, or closes the connection.  Then requests.  A proof is good for one connection.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct
import time

from obmm.exchange.keys import Key

REQUEST = struct.Struct("<4sIIQQ")
"""Operation, row bytes, tables, ids per table (or offset, or rounds), bytes of the first so many of a table (or length)."""
NONCE_BYTES, PROOF_BYTES, SECRET_BYTES = 16, 32, 32
WELCOME = b"+"
READY, LATE = b"!", b"?"
"""Of the far side of a ping-pong: it waits for the first flag, or has seen the last; a flag never came."""
HANDSHAKE_S = 5.0
_LABEL = b"obmm bench rows"


def new_secret() -> bytes:
    """A secret to hand to clients over the exchange."""
    return secrets.token_bytes(SECRET_BYTES)


def bound(secret: bytes, key: Key | None) -> bytes:
    """`secret` as it is, or bound to the cluster's key: a key protects the exchange, but does not hide what it says."""
    return secret if key is None else bytes(key.derive(_LABEL, secret))


def proof(secret: bytes, nonce: bytes) -> bytes:
    """What only a holder of `secret` can say to `nonce`."""
    return hmac.digest(secret, _LABEL + b"\0" + nonce, hashlib.sha256)


def read_exactly(connection: socket.socket, buffer: memoryview, until: float | None = None) -> None:
    """Fill `buffer`; ConnectionError at the end of the stream, TimeoutError at `until` (monotonic) or the socket's time-out."""
    while buffer:
        if until is not None:
            # one deadline for all of it: bytes that come one by one must not prolong it
            connection.settimeout(max(until - time.monotonic(), 0.001))
        got = connection.recv_into(buffer)
        if not got:
            raise ConnectionError("the other side closed the connection")
        buffer = buffer[got:]


def received(connection: socket.socket, nbytes: int, until: float | None = None) -> bytes:
    """The next `nbytes`, as `read_exactly`."""
    data = bytearray(nbytes)
    read_exactly(connection, memoryview(data), until)
    return bytes(data)


def admit(connection: socket.socket, accepted: tuple[bytes, ...]) -> bool:
    """The server's side of the handshake: whether the client holds one of the secrets `accepted`."""
    connection.settimeout(HANDSHAKE_S)
    nonce = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(nonce)
    said = received(connection, PROOF_BYTES, time.monotonic() + HANDSHAKE_S)
    if not any(hmac.compare_digest(said, proof(each, nonce)) for each in accepted):
        return False
    connection.sendall(WELCOME)
    connection.settimeout(None)
    return True


def introduce(connection: socket.socket, secret: bytes) -> None:
    """The client's side.  ConnectionError when the server does not want it."""
    connection.sendall(proof(secret, received(connection, NONCE_BYTES)))
    if received(connection, len(WELCOME)) != WELCOME:
        raise ConnectionError("the row server speaks another protocol")
