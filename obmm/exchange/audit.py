# SPDX-License-Identifier: Apache-2.0
"""One line of JSON per grant, release and refusal, on the logger ``obmm.exchange.audit`` (level INFO).

Lines go through a bounded queue: a reader that stops costs lines, which are counted (`AuditLog.dropped`), and never a
moment of the server's.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter

from obmm.background import Background, BackgroundLogger
from obmm.exchange.connection import Connection
from obmm.exchange.leases import LeaseRecord

log = BackgroundLogger("obmm.exchange.server")

NAME = "obmm.exchange.audit"

_LOGGER = logging.getLogger(NAME)

LINES = Background("obmm-audit")
"""All audit lines of this process, in their order."""


class AuditLog:
    """What one server tells about who got what."""

    def __init__(self) -> None:
        self._log = BackgroundLogger(_LOGGER, LINES)
        self.refusals: Counter[str] = Counter()
        """Requests that were refused since the start, by reason."""

    @property
    def dropped(self) -> int:
        return self._log.dropped

    def lease(self, event: str, record: LeaseRecord) -> None:
        """A lease was granted, renewed after a silence, released, expired, revoked or ended."""
        self._write(
            event,
            region=record.region,
            lease=record.short,
            client=record.client,
            address=record.address,
            identity=record.identity,
        )

    def refused(self, connection: Connection, region: str, why: str) -> None:
        """A request of an authenticated client was refused: counted, told to the log, and written here."""
        self.refusals[why] += 1
        log.stranger("request refused: %r to %s: %s", region, connection.identity or connection.name, why)
        self._write(
            "refused",
            region=region,
            client=connection.client,
            address=connection.address,
            identity=connection.identity,
            reason=why,
        )

    def refused_session(self, address: str, why: str) -> None:
        """A session was refused before it began; strangers' lines beyond some are counted, not written."""
        self._log.stranger("%s", _line("refused-session", {"address": address, "reason": why}))

    def operator(self, event: str, **facts: object) -> None:
        """Somebody who may did something to the server: a reload, an end of leases."""
        self._write(event, **facts)

    def _write(self, event: str, **facts: object) -> None:
        self._log.info("%s", _line(event, facts))


def _line(event: str, facts: dict[str, object]) -> str:
    return json.dumps({"time": round(time.time(), 3), "event": event, **facts}, separators=(",", ":"))
