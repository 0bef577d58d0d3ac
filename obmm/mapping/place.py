# SPDX-License-Identifier: Apache-2.0
"""Where a mapping lies, for native code that loads and stores itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from obmm.errors import ClosedError
from obmm.mapping.mapping import Mapping


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses and descriptors of a mapping; good for as long as the mapping is open, which the gate tells.

    `address` is that of payload offset `Mapping.start`; `gate` (``struct obmm_gate *``) is entered around every access;
    `sys` and `fd` are how rights of a cacheable mapping are asked for (driver specification 9.6).  The code that changes
    rights behind the mapping's back leaves them as they were when it closes.
    """

    address: int
    nbytes: int
    gate: Any
    sys: Any
    fd: int
    nc: bool
    granularity: int


def place_of(mapping: Mapping) -> Place:
    """ClosedError when the mapping is closed."""
    if mapping.closed:
        raise ClosedError.of(mapping)
    span = mapping._piece.span
    return Place(mapping.address, mapping.nbytes, span.gate, span._driver.sys, span._fd, span.nc, mapping.granularity)
