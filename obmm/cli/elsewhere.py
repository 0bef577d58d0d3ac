# SPDX-License-Identifier: Apache-2.0
"""The command for another node that a server prints: where, with which device and with which credentials, to copy."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path
from typing import Any

from obmm.errors import ObmmError
from obmm.exchange import Access, Server
from obmm.exchange.access import EVERYONE
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

    Where there are rules of access, the first key that may fetch `region`: one of ``--key``, which has no name, or a named one.
    """
    if how["plain"]:
        return "--plain"
    if how["tls"] is not None:
        return f"--tls CLIENT.pem CLIENT.key {shlex.quote(str(Path(how['tls'].authority).absolute()))}"
    unnamed = how["key"] or []
    try:
        rules = Access.load(how["access"]) if how.get("access") else EVERYONE
    except ObmmError:  # the file changed since
        return "--key YOUR.key"
    for who, path in [*(("", each) for each in unnamed), *((key.who, Path(key.name)) for key in rules.keys)]:
        if rules.allows(who, region):
            return f"--key {shlex.quote(str(path.absolute()))}"
    return "--key YOUR.key"
