# SPDX-License-Identifier: Apache-2.0
"""Where to talk, and how protected: what server and client ask of their callers alike."""

from __future__ import annotations

import errno
import ipaddress

from obmm.arguments import wrong_type
from obmm.errors import ObmmArgumentError

DEFAULT_PORT = 13857


def is_loopback(address: str) -> bool:
    """True for 127.0.0.0/8 and ::1, also when an IPv4 address is written as IPv6."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return parsed.is_loopback or (mapped is not None and mapped.is_loopback)


def split_address(text: str) -> tuple[str, int]:
    """``host``, ``host:port``, ``[ipv6]:port`` -> (host, port); the port defaults to 13857."""
    if not isinstance(text, str):
        raise wrong_type("CONNECT", "address", text, "host:port")
    host, port = text, str(DEFAULT_PORT)
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _bad(text)
        port = rest[1:] or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or not 1 <= int(port) <= 65535:
        raise _bad(text)
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Host and port as one text; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_one_mode(operation: str, key: object, tls: object, plain: bool) -> None:
    """Exactly one way to protect the exchange, spelled out: nothing is ever chosen for the caller."""
    given = [name for name, value in (("key", key), ("tls", tls), ("plain", plain or None)) if value is not None]
    if len(given) != 1:
        raise ObmmArgumentError.because(
            operation,
            errno.EINVAL,
            f"{' and '.join(given) or 'none'} of key, tls and plain given; exactly one is needed",
            "pass key=PATH (`openssl rand -hex 32`, mode 0600), tls=TlsFiles(...), or plain=True on loopback",
            "docs/exchange.md",
        )


def _bad(text: str) -> ObmmArgumentError:
    return ObmmArgumentError.because(
        "CONNECT", errno.EINVAL, f"{text[:256]!r} is not an address", "write host, host:port or [ipv6]:port"
    )
