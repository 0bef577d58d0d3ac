# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between two nodes that exchange handles.

A message says what was refused and what to do; it never holds a handle's
bytes, a key, a tag or a nonce.
"""

from __future__ import annotations

import enum
import errno as _errno
from typing import ClassVar

from obmm.errors import ObmmError
from obmm.exchange.leases import LeaseRecord


class Refusal(enum.IntEnum):
    """Why a frame, a session or a request was refused.

    The numbers up to 63 travel in ERROR frames; the others are found by the
    receiver and are not sent.

    >>> obmm.exchange.Refusal.OVERSIZE.on_wire.name, obmm.exchange.Refusal.NO_REGION.on_wire.name
    ('PROTOCOL', 'NO_REGION')
    """

    PROTOCOL = 1
    VERSION = 2
    MODE = 3
    AUTHENTICATION = 4
    LIMIT = 5
    NO_REGION = 6
    UNKNOWN_LEASE = 7
    STALE = 8
    REVOKED = 9
    CLOSING = 10
    TIMEOUT = 11
    INTERNAL = 12

    MAGIC = 64
    TYPE = 65
    RESERVED = 66
    OVERSIZE = 67
    TRUNCATED = 68
    PAYLOAD = 69
    UNTAGGED = 70
    TAMPERED = 71
    REFLECTED = 72
    REPLAYED = 73
    REORDERED = 74
    UNEXPECTED = 75

    @property
    def on_wire(self) -> Refusal:
        """The code that the peer is told: what a receiver finds out about a stream stays with the receiver."""
        return self if self < 64 else Refusal.PROTOCOL


class ExchangeError(ObmmError):
    """Anything that went wrong in the handle exchange.

    >>> issubclass(obmm.exchange.ExchangeError, obmm.ObmmError)
    True
    """

    def __init__(self, message: str, *, errno: int = _errno.EPROTO, operation: str = "EXCHANGE") -> None:
        super().__init__(errno, message, operation=operation)


class ProtocolError(ExchangeError):
    """The byte stream is not what the protocol allows; the connection is closed.

    `reason` tells replay, reflection, reordering, tampering, truncation, oversize and wrong version apart.

    >>> obmm.exchange.ProtocolError(obmm.exchange.Refusal.OVERSIZE, "a frame of 5 GiB").reason.name
    'OVERSIZE'
    """

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message, errno=_errno.EPROTO)
        self.reason = reason


class AuthenticationError(ExchangeError):
    """A peer could not prove that it holds the key or a certificate, or this side's own credentials are unfit.

    >>> key, other = obmm.exchange.Key.generate(folder / "key"), obmm.exchange.Key.generate(folder / "other")
    >>> with obmm.serve({}, host="127.0.0.1", port=0, key=key) as server:
    ...     obmm.connect(server.addresses[0], key=folder / "other")
    Traceback (most recent call last):
    obmm.exchange.errors.AuthenticationError: ...
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, errno=_errno.EACCES)


class RequestRefusedError(ExchangeError):
    """The server understood the request and refused it; the connection lives on. `reason` says why.

    >>> with obmm.serve({}, port=0, plain=True) as server, obmm.connect(server.addresses[0], plain=True) as peer:
    ...     try:
    ...         peer.fetch("nothing")
    ...     except obmm.exchange.RequestRefusedError as error:
    ...         error.reason.name
    'NO_REGION'
    """

    _ERRNO: ClassVar[dict[Refusal, int]] = {
        Refusal.NO_REGION: _errno.ENOENT,
        Refusal.UNKNOWN_LEASE: _errno.ENOENT,
        Refusal.STALE: _errno.ESTALE,
        Refusal.REVOKED: _errno.ESHUTDOWN,
        Refusal.CLOSING: _errno.ESHUTDOWN,
        Refusal.LIMIT: _errno.EBUSY,
        Refusal.AUTHENTICATION: _errno.EACCES,
    }

    def __init__(self, reason: Refusal, message: str) -> None:
        super().__init__(message, errno=self._ERRNO.get(reason, _errno.EPROTO))
        self.reason = reason


class PeerUnreachableError(ExchangeError):
    """No connection, or it broke; `import`ed memory may well still work, the fabric is another network.

    >>> obmm.connect("127.0.0.1:1", plain=True)
    Traceback (most recent call last):
    obmm.exchange.errors.PeerUnreachableError: ...
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, errno=_errno.EHOSTUNREACH)


class DeadlineError(ExchangeError, TimeoutError):
    """The other side did not answer in time.

    >>> import socket
    >>> silent = socket.create_server(("127.0.0.1", 0))
    >>> obmm.connect("127.0.0.1:%d" % silent.getsockname()[1], plain=True, timeout=0.1)
    Traceback (most recent call last):
    obmm.exchange.errors.DeadlineError: ...
    >>> silent.close()
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, errno=_errno.ETIMEDOUT)


class LeaseError(ExchangeError):
    """The lease cannot be used: it is suspect, revoked, stale or released.

    >>> with a.export_region("2MiB") as region, obmm.serve({"words": region}, port=0, plain=True) as server:
    ...     with obmm.connect(server.addresses[0], plain=True) as peer:
    ...         lease = peer.fetch("words")
    ...         lease.release()
    ...         lease.check()
    Traceback (most recent call last):
    obmm.exchange.errors.LeaseError: ...
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, errno=_errno.EKEYREVOKED)


class LeasesOutstandingError(ExchangeError):
    """Importers did not release in time: unexporting now would be a machine-level error on their side.

    `leases` is a tuple of `LeaseRecord`, one per unreleased lease.

    >>> with a.export_region("2MiB") as region, obmm.serve({"words": region}, port=0, plain=True) as server:
    ...     with obmm.connect(server.addresses[0], plain=True) as peer:
    ...         lease = peer.fetch("words")
    ...         try:
    ...             server.revoke("words", timeout=0)
    ...         except obmm.exchange.LeasesOutstandingError as error:
    ...             len(error.leases), lease.release()
    (1, True)
    """

    def __init__(self, message: str, leases: tuple[LeaseRecord, ...]) -> None:
        super().__init__(message, errno=_errno.EBUSY)
        self.leases = leases


class JournalError(ExchangeError):
    """The lease journal cannot be used as it is.

    >>> (folder / "journal").write_bytes(b"something else")
    14
    >>> obmm.serve({}, port=0, plain=True, journal=folder / "journal")
    Traceback (most recent call last):
    obmm.exchange.errors.JournalError: ...
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, errno=_errno.EIO, operation="JOURNAL")
