# SPDX-License-Identifier: Apache-2.0
"""Segments over the authenticated exchange: tickets are secrets and travel nowhere else (URMA specification 8.1).

A call to "urma" with ``{"format": "obmm-urma", "version": 1, "segment": NAME}`` is answered by the 128 bytes of a ticket
and a manifest of the same format, as JSON.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from obmm.errors import ObmmArgumentError
from obmm.exchange import Peer, Refusal, RequestRefusedError, Server
from obmm.exchange.call_messages import REGION_NAME
from obmm.exchange.calls import Caller
from obmm.exchange.frames import MAX_CALL
from obmm.urma.errors import UrmaTicketError
from obmm.urma.queue import Queue
from obmm.urma.segment import Segment
from obmm.urma.ticket import Ticket

FORMAT: Final = "obmm-urma"
VERSION: Final = 1
CALLS: Final = "urma"
MOST: Final = MAX_CALL - Ticket.BYTES - 1


@dataclass(frozen=True, slots=True)
class FetchedSegment:
    """What a peer needs: `ticket` for `Queue.attach`, and `manifest`, what the owner says about the content.  Made by
    `fetch`.
    """

    ticket: Ticket = field(repr=False)
    manifest: Mapping[str, Any]

    @property
    def generation(self) -> int:
        """Of the registration: compare it when reads are refused."""
        return self.ticket.generation


class PublishedSegments:
    """The segments that a server hands out.  Made by `publish`; closing a segment revokes all its tickets."""

    def __init__(self, server: Server) -> None:
        self._found: dict[str, tuple[Segment, bytes]] = {}
        server.answer_calls(CALLS, self)

    def add(self, name: str, segment: Segment, queue: Queue, manifest: Mapping[str, Any] | None = None) -> None:
        """Hand `segment` out as `name`; requests of peers name `queue` of this side.  A second one of a name replaces it.

        `manifest`: what the content is, JSON.  ObmmArgumentError for a name or manifest that cannot be.
        """
        if not isinstance(name, str) or not REGION_NAME.fullmatch(name):
            raise ObmmArgumentError.because(
                "SERVE", errno.EINVAL, f"segment name {name!r}", "1..128 characters of A-Z a-z 0-9 . _ : / @ + -"
            )
        told = {"format": FORMAT, "version": VERSION, "nbytes": segment.nbytes, "access": segment.access}
        try:
            text = json.dumps({**told, "content": dict(manifest or {})}, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise ObmmArgumentError.because(
                "SERVE", errno.EINVAL, f"the manifest of {name!r} is not a JSON object: {error}", "use plain JSON types"
            ) from None
        if len(text) > MOST:
            raise ObmmArgumentError.because(
                "SERVE", errno.EMSGSIZE, f"the manifest of {name!r} has {len(text)} bytes", f"at most {MOST}"
            )
        self._found[name] = (segment, segment.ticket(queue) + text)

    def call(self, caller: Caller, body: bytes) -> bytes:
        """Between rooms: for the server, one request; RequestRefusedError for what it cannot be."""
        try:
            asked = json.loads(body)
            name, version = asked["segment"], asked["version"]
            known = asked["format"] == FORMAT and isinstance(name, str)
        except (ValueError, TypeError, KeyError, RecursionError):
            known, name, version = False, "", None
        if not known:
            raise RequestRefusedError(Refusal.PROTOCOL, "not a request for a URMA segment")
        if version != VERSION:
            raise RequestRefusedError(Refusal.VERSION, f"version {version!r} of {FORMAT}; this side speaks {VERSION}")
        segment, answer = self._found.get(name, (None, b""))
        if segment is None or segment.closed:
            raise RequestRefusedError(Refusal.NO_REGION, f"no URMA segment {name!r:.140} here")
        return answer


def publish(server: Server) -> PublishedSegments:
    """Let `server` hand out segments: `PublishedSegments.add` names them."""
    return PublishedSegments(server)


def fetch(peer: Peer, name: str, *, timeout: float = 10.0) -> FetchedSegment:
    """The segment `name` of the peer's server.  RequestRefusedError when it has none; UrmaTicketError for an answer that is
    no ticket of this version.

    `timeout` in seconds.
    """
    body = json.dumps({"format": FORMAT, "version": VERSION, "segment": name}).encode()
    answer = peer.call(CALLS, body, timeout=timeout)
    ticket = Ticket.unpack(answer[: Ticket.BYTES])
    try:
        manifest = json.loads(answer[Ticket.BYTES :])
        fits = (manifest["format"], manifest["version"]) == (FORMAT, VERSION) and isinstance(manifest["content"], dict)
    except (ValueError, TypeError, KeyError, RecursionError):
        fits, manifest = False, {}
    if not fits:
        raise UrmaTicketError(
            errno.EPROTO,
            f"urma.fetch: the manifest of {name!r} is not one of {FORMAT} version {VERSION}; fix: the same obmm on both sides",
            errno=errno.EPROTO,
            operation="fetch",
            name="EPROTO",
        )
    return FetchedSegment(ticket, manifest)
