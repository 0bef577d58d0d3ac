# SPDX-License-Identifier: Apache-2.0
"""What a server tells its process (`Server.events`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """Something that happened: ``kind`` is connected, granted, renewed, released, expired, revoked, ended or closed.

    `region`, `lease` (its short id) and `holder` say of what.  `Server.events` gives them.
    """

    kind: str
    region: str = ""
    lease: str = ""
    holder: str = ""
