# SPDX-License-Identifier: Apache-2.0
"""What others published of URMA, to be read beside a run and never ranked with it (URMA specification 13)."""

from __future__ import annotations

from typing import Any, Final

TITLE: Final = "Published by others, not measured here"
FIGURES: Final = (
    ("one read of 1,364 B, mean", "1.973 and 2.104 us (slowest 12.150 us)"),
    ("one read of 320 B", "1.920 us, about 0.3 of it posting, 1.3 the transfer, 0.3 polling"),
    ("lists of 320 B: 8, 64, 512, 2,048 reads", "2.80, 6.96, 40.4, 154 us; 74-79 ns a row, 4.06-4.35 GB/s"),
    ("1,536 rows of 1,364 B", "0.116-0.117 ms (17-18 GB/s)"),
    ("1,536 rows of 320 B", "0.115-0.121 ms, derived from 75-79 ns a row"),
    ("a non-cacheable load of 320 B over UB", "1.25-1.29 us each, no gain in batches"),
    ("TCP between the same machines, one row, 1,536 rows of 1,364 B", "60-63 us, 5.4-6.2 ms"),
    ("reads of 16 MiB, 8 at a time", "5,888 MiB/s"),
    ("registering, a token id, unregistering", "0.15 ms, 8 ms, 0.07 ms"),
)
"""(what, figure): the source project's two nodes, the last two a field report of another project."""
SOURCE: Final = "two nodes over UB (RM, CTP): the source project; the last two lines a field report of another project"


def beside(document: dict[str, Any]) -> bool:
    """Whether a document has what they are to be read beside."""
    return any(result["arm"] == "urma" for result in document["results"])
