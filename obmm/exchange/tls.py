# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 with certificates on both sides, driven through memory so that nothing ever blocks in it."""

from __future__ import annotations

import errno
import os
import ssl
from dataclasses import dataclass
from typing import Protocol

from obmm.errors import ObmmArgumentError
from obmm.exchange.errors import AuthenticationError, ExchangeError
from obmm.exchange.keys import check_private
from obmm.exchange.secrets import Opaque

ALPN = "obmm-exchange/1"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one side: its `certificate` chain, its `private_key`, and the authorities it trusts.

    There is no default trust store: only peers whose certificate `authority` signed are accepted.  `revoked` is a file
    of revocation lists (PEM) of that authority: with it, peers whose certificate stands there are refused, and so is
    all once the list has expired.

    >>> files = obmm.exchange.TlsFiles("node.pem", "node.key", "authority.pem")
    >>> files.context(server=True)
    Traceback (most recent call last):
    obmm.errors.ObmmArgumentError: ...
    """

    certificate: str | os.PathLike[str]
    private_key: str | os.PathLike[str]
    authority: str | os.PathLike[str]
    revoked: str | os.PathLike[str] | None = None

    def context(self, server: bool) -> ssl.SSLContext:
        """A context for one side, the `server`'s or the client's; ObmmArgumentError when a file is unfit."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols([ALPN])
        if server:
            context.num_tickets = 0  # no resumption: every session proves its certificate
        key = check_private(self.private_key)
        try:
            context.load_cert_chain(self.certificate, key, password=_no_password)
            context.load_verify_locations(self.authority)
            if self.revoked is not None:
                context.load_verify_locations(self.revoked)
                context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise ObmmArgumentError.because(
                "TLS",
                errno.EINVAL,
                f"certificate {os.fspath(self.certificate)}, authority {os.fspath(self.authority)}: {reason}",
                "pass PEM files: a chain, its unencrypted private key (mode 0600), and the authority of the peers",
                "docs/exchange.md",
            ) from None
        return context


def _no_password() -> str:
    raise ValueError("the private key is encrypted")


class Transport(Protocol):
    """What stands between the socket's bytes and the session's."""

    ready: bool
    peer_identity: str

    def receive(self, raw: bytes) -> Opaque: ...
    def send(self, plain: Opaque) -> None: ...
    def take(self) -> bytes | bytearray: ...


class PlainTransport:
    """The session's bytes are the socket's bytes."""

    def __init__(self) -> None:
        self.ready = True
        self.peer_identity = ""
        self._out = Opaque()

    def receive(self, raw: bytes) -> Opaque:
        return Opaque(raw)

    def send(self, plain: Opaque) -> None:
        self._out += plain

    def take(self) -> Opaque:
        out, self._out = self._out, Opaque()
        return out


class TlsTransport:
    """TLS records from and to memory.  What is sent before the handshake is done waits."""

    def __init__(self, context: ssl.SSLContext, *, server: bool, server_name: str | None = None) -> None:
        self.ready = False
        self.peer_identity = ""
        self._in = ssl.MemoryBIO()
        self._raw = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._in, self._raw, server_side=server, server_hostname=server_name)
        self._waiting = Opaque()
        self._server = server
        if not server:
            self._advance()

    def receive(self, raw: bytes) -> Opaque:
        self._in.write(raw)
        plain = Opaque()
        try:
            if not self.ready and not self._advance():
                return plain
            while True:
                chunk = Opaque(self._object.read(65536))
                if not chunk:
                    break
                plain += chunk
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError as error:
            raise _explain(error, self._server) from None
        return plain

    def send(self, plain: Opaque) -> None:
        if not self.ready:
            self._waiting += plain
            return
        try:
            self._object.write(plain)
        except ssl.SSLError as error:
            raise _explain(error, self._server) from None

    def take(self) -> bytes:
        return self._raw.read()

    def _advance(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _explain(error, self._server) from None
        if self._object.selected_alpn_protocol() != ALPN:
            raise AuthenticationError("the TLS peer does not speak the obmm exchange protocol (ALPN differs)")
        self.ready = True
        self.peer_identity = name_of(self._object.getpeercert())
        if self._waiting:
            self._object.write(self._waiting)
            self._waiting = Opaque()
        return True


MAX_NAME = 2048


def name_of(certificate: object) -> str:
    """Whose a verified certificate is: its URI name (SPIFFE), else its DNS name, else its common name, exactly.

    "" for a certificate that has none of them, or one that cannot be written down as it is: it cannot be told from
    others by it, so a server refuses it.
    """
    if not isinstance(certificate, dict):
        return ""
    alternatives = certificate.get("subjectAltName", ())
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    found = {kind: [value for each, value in alternatives if each == kind] for kind in ("URI", "DNS")} | {"CN": common}
    kind, names = next(((kind, names) for kind, names in found.items() if names), ("", [""]))
    # another name that looks like a URI would pass for a URI name
    return "" if kind != "URI" and "://" in names[0] else _whole(names[0])


def _whole(name: str) -> str:
    fits = 0 < len(name) <= MAX_NAME and name.isprintable() and not name.isspace()
    return name if fits else ""


_ALERTS = (
    ("CERTIFICATE_REVOKED", "this side's certificate is on the other side's revocation list"),
    ("CERTIFICATE_EXPIRED", "this side's certificate has expired; renew it"),
    ("UNKNOWN_CA", "the other side does not trust the authority of this side's certificate"),
    ("CERTIFICATE_REQUIRED", "the server wants a client certificate and got none"),
    ("PROTOCOL_VERSION", "the two sides have no TLS version in common; 1.3 is required"),
    ("UNSUPPORTED_PROTOCOL", "the peer offered a TLS version below 1.3"),
    ("WRONG_VERSION_NUMBER", "the peer does not speak TLS; is it a server in key or plain mode?"),
    ("HTTP_REQUEST", "the peer speaks HTTP, not TLS"),
    ("NO_APPLICATION_PROTOCOL", "the TLS peer does not speak the obmm exchange protocol"),
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "the client sent no certificate"),
    ("BAD_CERTIFICATE", "the other side refused this side's certificate"),
)


def _explain(error: ssl.SSLError, server: bool) -> ExchangeError:
    reason = error.reason or "handshake failed"
    if isinstance(error, ssl.SSLCertVerificationError):
        who = "client" if server else "server"
        return AuthenticationError(f"the {who}'s certificate is not accepted: {error.verify_message}")
    for part, text in _ALERTS:
        if part in reason:
            return AuthenticationError(f"TLS: {text}")
    return AuthenticationError(f"TLS: {reason.lower().replace('_', ' ')}")
