# SPDX-License-Identifier: Apache-2.0
"""How long a step waits (Engram specification 11.3, rule 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from obmm.arguments import seconds
from obmm.prefetch.failures import refused

Phase = Literal["decode", "prefill", "verify"]


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds from `start` until a gather is given up, by phase (`decode`, `verify`, `prefill`), and for a health `probe`.

    >>> obmm.prefetch.Deadlines(decode=0.01).prefill
    0.5
    """

    decode: float = 0.020
    verify: float = 0.020
    prefill: float = 0.500
    probe: float = 0.100

    def __post_init__(self) -> None:
        for name in self.__slots__:
            given = seconds("PREFETCH", name, getattr(self, name))
            if not 0 <= given < math.inf:
                raise refused(f"a deadline {name}={given}", "seconds, 0 or more: every wait has an end", "11.3-3")
