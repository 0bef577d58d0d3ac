# SPDX-License-Identifier: Apache-2.0
"""Names that may have been meant by an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NEAR = 5  # names that are suggested at most
SHOWN = 8  # names that are listed at most


def near(wanted: str, names: Iterable[str]) -> list[str]:
    """The names that may have been meant, the likeliest first; none when nothing is like it.

    >>> near("EXPROT", ["EXPORT", "IMPORT", "UNEXPORT", "MMAP"])
    ['EXPORT', 'UNEXPORT', 'IMPORT']
    """
    known = list(dict.fromkeys(names))
    small = wanted.lower()
    holding = [name for name in known if small and (small in name.lower() or name.lower() in small)]
    return list(dict.fromkeys([*holding, *difflib.get_close_matches(wanted, known, NEAR, 0.5)]))[:NEAR]


def listed(wanted: str, names: Iterable[str]) -> str:
    """What there is in place of `wanted`, those like it first, cut after `SHOWN`.

    >>> listed("tabel", ["bias", "table"])
    'table, bias'
    """
    known = list(dict.fromkeys(names))
    order = list(dict.fromkeys([*near(wanted, known), *known]))
    more = f" and {len(order) - SHOWN} more" if len(order) > SHOWN else ""
    return ", ".join(order[:SHOWN]) + more
