# SPDX-License-Identifier: Apache-2.0
"""The recorded cases: one JSON object a line, the first line a header."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "data" / "driver-transcript.jsonl"

#: Tags whose cases may differ when the reason is written down.
INFORMATIVE = frozenset({"vfs", "platform", "stub-decides", "defect"})


@dataclass(frozen=True)
class Case:
    """One recorded sequence of calls on a freshly loaded driver."""

    id: str
    rule: str
    config: str
    tags: frozenset[str]
    steps: tuple[dict[str, Any], ...]
    note: str = ""

    @property
    def informative(self) -> bool:
        return bool(self.tags & INFORMATIVE)

    @property
    def operations(self) -> frozenset[str]:
        return frozenset(step["op"] for step in self.steps)


@dataclass(frozen=True)
class Transcript:
    """The header (topologies, windows, parameters) and the cases."""

    header: dict[str, Any]
    cases: tuple[Case, ...] = field(repr=False)

    @classmethod
    def load(cls, path: Path = DATA) -> Transcript:
        with path.open(encoding="utf-8") as lines:
            header = json.loads(next(lines))["header"]
            return cls(header, tuple(map(_case, lines)))

    def __iter__(self) -> Iterator[Case]:
        return iter(self.cases)

    def __getitem__(self, case_id: str) -> Case:
        return next(case for case in self.cases if case.id == case_id)


def _case(line: str) -> Case:
    raw = json.loads(line)
    return Case(
        raw["case"],
        raw["rule"],
        raw["config"],
        frozenset(raw.get("tags", ())),
        tuple(raw["steps"]),
        raw.get("note", ""),
    )


def number(value: int | str) -> int:
    """Numbers of 2**31 and more are recorded as hex strings."""
    return int(value, 0) if isinstance(value, str) else value
