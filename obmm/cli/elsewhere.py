# SPDX-License-Identifier: Apache-2.0
"""The command for another node that a server prints: where, with which device and with which credentials, to copy."""

from __future__ import annotations

import shlex
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from obmm.errors import ObmmError
from obmm.exchange import Access, Server
from obmm.region.device import Device


def reachable(server: Server) -> str:
    """An address that a client can be given: the first one, or this host's name where it is every interface."""
    host, _, port = server.addresses[0].rpartition(":")
    where = f"{socket.gethostname()}:{port}" if host in ("[::]", "0.0.0.0", "") else server.addresses[0]
    return shlex.quote(where)  # to a shell the brackets of an IPv6 address are a pattern


def other_node(local: Device) -> str:
    """Another node of the same emulated fabric, as words before a command; real nodes need none."""
    backend = local.backend
    if not backend.is_emulator:
        return ""
    return f"OBMM_DEVICE={shlex.quote(f'emulator:{backend.socket}#' + ('b' if backend.node in (None, 'a') else 'a'))} "


def printed(how: dict[str, Any], region: str = "") -> str:
    """The protection of a server as options of a client: its key is this one, its certificate its own.

    Of the keys that rules of access name, the first one that may fetch `region`.
    """
    if how["plain"]:
        return "--plain"
    if how["tls"] is not None:
        return f"--tls CLIENT.pem CLIENT.key {shlex.quote(str(Path(how['tls'].authority).absolute()))}"
    if how["key"]:
        return f"--key {shlex.quote(str(how['key'][0].absolute()))}"
    with suppress(ObmmError):  # the file may have changed since
        rules = Access.load(how["access"])
        for key in rules.keys:
            if rules.allows(key.who, region):
                return f"--key {shlex.quote(str(Path(key.name).absolute()))}"
    return "--key YOUR.key"
