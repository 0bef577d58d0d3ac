# SPDX-License-Identifier: Apache-2.0
"""Fabric profiles: what a gather would take on a fabric that is not at hand, from figures with their sources.

Everything computed from a profile is *modelled*, names the profile, and stands in no ranking with what was measured.
"""

from __future__ import annotations

import errno
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args

from obmm.errors import ObmmArgumentError
from obmm.toml_text import read_toml

FOLDER: Final = Path(__file__).with_name("profiles")
LINE: Final = 64
Kind = Literal["measured", "published", "derived", "assumed"]
Way = Literal["loads", "lists"]
NAMES: Final = (
    *("line_ns", "nc_line_ns", "lines_in_flight", "core_gbps", "node_gbps", "call_ns"),
    *("urma_single_ns", "urma_list_ns", "urma_read_ns", "urma_list_max"),
)
_NEEDED: Final[dict[Way, tuple[str, ...]]] = {
    "loads": ("lines_in_flight", "core_gbps", "node_gbps", "call_ns"),
    "lists": ("urma_single_ns", "urma_list_ns", "urma_read_ns", "urma_list_max", "core_gbps", "node_gbps", "call_ns"),
}
_MOST: Final = 1e12


@dataclass(frozen=True, slots=True)
class Figure:
    """A value with the range it may have, where it is from, and how sure that is.

    `points`: (lines of a row, value) where it depends on them; `value` is then that of the first.
    """

    value: float
    low: float
    high: float
    source: str
    kind: Kind
    points: tuple[tuple[float, float], ...] = ()

    def at(self, lines: float) -> float:
        """The value for rows of so many lines: between two points on a straight line, beyond them the nearest."""
        points = self.points
        if not points:
            return self.value
        for (one, first), (two, second) in itertools.pairwise(points):
            if lines <= two:
                return first if lines <= one else first + (second - first) * (lines - one) / (two - one)
        return points[-1][1]


@dataclass(frozen=True, slots=True)
class Profile:
    """A fabric.  Times in nanoseconds, rates in 10^9 bytes a second.  `way`: rows are loaded, or read by requests in lists.

    >>> from obmm.emulator.profile import Profile
    >>> round(Profile.named("ub-urma").gather_ns(1536, 320) / 1000, 1)
    117.4
    """

    name: str
    title: str
    way: Way
    figures: Mapping[str, Figure]

    @classmethod
    def named(cls, name: str) -> Self:
        """One that ships (`names`), or a TOML file.  ObmmArgumentError for neither, and for a file that is not a profile."""
        return cls.of(*_entry(name))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Of what `told` gave."""
        name, entry = json.loads(text)
        return cls.of(name, entry)

    @classmethod
    def of(cls, name: str, entry: Mapping[str, Any]) -> Self:
        """From the content of a file."""
        way: Any = entry.get("path")
        if way not in get_args(Way):
            raise _bad(f"fabric {name!r}: path {way!r}", '"loads" or "lists"')
        title = entry.get("title")
        if not isinstance(title, str) or not title.isprintable():
            raise _bad(f"fabric {name!r}: title {title!r}", "a text")
        figures = {key: _figure(name, key, value) for key, value in entry.items() if key not in ("title", "path")}
        lacks = [key for key in _NEEDED[way] if key not in figures]
        if way == "loads" and not {"line_ns", "nc_line_ns"} & figures.keys():
            lacks.append("line_ns or nc_line_ns")
        if lacks:
            raise _bad(f"fabric {name!r} lacks {', '.join(lacks)}", "every figure, each with value, source and kind")
        return cls(name, title, way, figures)

    @property
    def assumed(self) -> tuple[str, ...]:
        """The figures without a published source."""
        return tuple(key for key, figure in self.figures.items() if figure.kind == "assumed")

    def gather_ns(self, rows: int, row_bytes: int, threads: int = 1) -> float:
        """Nanoseconds until `rows` random rows are here, shared among `threads`, each with a queue of its own."""
        if rows <= 0:
            return 0.0
        threads = max(1, min(threads, rows))
        share = math.ceil(rows / threads)
        alone = self._lists_ns(share, row_bytes) if self.way == "lists" else self._loads_ns(share, row_bytes)
        moved = rows * (row_bytes if self.way == "lists" else LINE * lines_of(row_bytes))
        return self["call_ns"] + max(alone, moved / self["node_gbps"])

    def row_ns(self, row_bytes: int) -> float:
        """What one more row of a large batch costs one thread."""
        return (self.gather_ns(8192, row_bytes) - self.gather_ns(4096, row_bytes)) / 4096

    def extremes(self) -> tuple[Profile, Profile]:
        """(quickest, slowest) within the ranges of its figures."""
        return self._with(quick=True), self._with(quick=False)

    def __getitem__(self, key: str) -> float:
        return self.figures[key].value

    def _loads_ns(self, rows: int, row_bytes: int) -> float:
        lines = lines_of(row_bytes)
        if "nc_line_ns" in self.figures:
            return rows * lines * self.figures["nc_line_ns"].at(lines) / self["lines_in_flight"]
        first = self["line_ns"]  # nothing is there before one trip is over
        return max(first, rows * max(lines * self["line_ns"] / self["lines_in_flight"], row_bytes / self["core_gbps"]))

    def _lists_ns(self, rows: int, row_bytes: int) -> float:
        moving = row_bytes / self["core_gbps"]
        if rows == 1:
            return self["urma_single_ns"] + max(0.0, 2 * moving)
        lists = math.ceil(rows / self["urma_list_max"])
        return lists * self["urma_list_ns"] + rows * max(self["urma_read_ns"], moving)

    def _with(self, *, quick: bool) -> Profile:
        more_is_quick = {"lines_in_flight", "core_gbps", "node_gbps", "urma_list_max"}
        changed = {
            key: replace(figure, value=figure.high if (key in more_is_quick) == quick else figure.low)
            for key, figure in self.figures.items()
        }
        return replace(self, figures=changed)


def told(name: str) -> str:
    """A profile, named as for `Profile.named`, as a text for other processes (`Profile.from_text`)."""
    found = _entry(name)
    Profile.of(*found)
    return json.dumps(found)


def _entry(name: str) -> tuple[str, dict[str, Any]]:
    """(name, content) of a profile that ships, or of a TOML file."""
    file = FOLDER / f"{name}.toml"
    if not file.is_file():
        file = Path(name)
    try:
        return file.stem, read_toml(file)
    except (OSError, ValueError) as error:
        raise _bad(f"fabric {name!r}: {error}", f"one of {', '.join(names())}, or a TOML file of that form") from error


def lines_of(row_bytes: int) -> int:
    """Lines of 64 bytes that a row touches which begins one."""
    return math.ceil(row_bytes / LINE)


def names() -> tuple[str, ...]:
    """The profiles that ship."""
    return tuple(sorted(file.stem for file in FOLDER.glob("*.toml")))


def _figure(profile: str, key: str, entry: Any) -> Figure:
    where = f"fabric {profile!r}: {key}"
    if key not in NAMES:
        raise _bad(where, f"one of {', '.join(NAMES)}")
    if not isinstance(entry, Mapping):
        raise _bad(f"{where} is {entry!r:.60}", "a table with value, source and kind")
    kind: Any = entry.get("kind")
    source = entry.get("source")
    if kind not in get_args(Kind) or not isinstance(source, str) or not source.strip() or not source.isprintable():
        raise _bad(
            f"{where}: kind {kind!r}, source {source!r:.80}", f"a source, and one of {', '.join(get_args(Kind))}"
        )
    points: tuple[tuple[float, float], ...] = ()
    if "lines" in entry:
        lines, values = entry["lines"], entry.get("values")
        if not isinstance(lines, list) or not isinstance(values, list) or len(lines) != len(values) or not lines:
            raise _bad(f"{where}: lines and values", "two lists of the same length")
        points = tuple((_number(where, one), _number(where, two)) for one, two in zip(lines, values, strict=True))
        if sorted(dict(points)) != [one for one, _ in points]:
            raise _bad(f"{where}: lines {lines}", "rising")
    value = points[0][1] if points else _number(where, entry.get("value"))
    low, high = (_number(where, entry.get(name, value)) for name in ("low", "high"))
    if not low <= value <= high:
        raise _bad(f"{where}: {value} outside [{low}, {high}]", "low <= value <= high")
    if kind == "assumed" and low == high:
        raise _bad(f"{where} is assumed", "low and high of what it may be")
    if key != "call_ns" and low <= 0:
        raise _bad(f"{where}: {low}", "above 0")
    return Figure(value, low, high, source, kind, points)


def _number(where: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise _bad(f"{where}: {value!r}", "a number from 0 on")
    return float(value)


def _bad(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("FABRIC", errno.EINVAL, problem, fix, "docs/fabric.md")
