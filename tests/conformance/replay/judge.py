# SPDX-License-Identifier: Apache-2.0
"""Compares what a backend answered with what was recorded (driver transcript, section 3)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from .transcript import Case, number

PMD = 2 << 20
_NUMBER = re.compile(r"-?(0x[0-9a-f]+|\d+)")
_BIT63 = 1 << 63

Step = dict[str, Any]


@dataclass(frozen=True)
class Difference:
    """One disagreement in one step."""

    step: int
    op: str
    what: str
    recorded: Any
    observed: Any

    def __str__(self) -> str:
        return f"step {self.step} {self.op}: {self.what}: recorded {self.recorded!r}, observed {self.observed!r}"


def compare(case: Case, observed: list[Step]) -> list[Difference]:
    """All differences of a replayed case."""
    return _Judge(case).compare(observed)


class _Judge:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.imports = _ImportMemory()
        self.addresses: dict[str, int] = {}
        #: UMMU calls are recorded only in cases about the UMMU.
        self.ummu = any("ummu_calls" in step for step in case.steps)
        #: What EXPORT flushes to clear memory is recorded only in cases about the pool.
        self.clearing = "pool" in case.tags

    def compare(self, observed: list[Step]) -> list[Difference]:
        differences = []
        for index, (step, seen) in enumerate(zip(self.case.steps, observed, strict=False)):
            for what, recorded, found in self._step(index, step, seen):
                differences.append(Difference(index, step["op"], what, recorded, found))
            self.imports.watch(step)
        if len(observed) != len(self.case.steps):
            differences.append(Difference(len(observed), "-", "steps", len(self.case.steps), len(observed)))
        return differences

    def _step(self, index: int, step: Step, seen: Step) -> list[tuple[str, Any, Any]]:
        found: list[tuple[str, Any, Any]] = []

        def check(what: str, recorded: Any, observed: Any) -> None:
            if recorded != observed:
                found.append((what, recorded, observed))

        if "failure" in seen:
            return [("the step", "an answer", seen["failure"])]
        for key in ("ret", "errno", "signal", "si_code"):
            check(key, step.get(key), seen.get(key))
        check("hang", "hang" in step, "hang" in seen)
        check("copied back on failure", None, seen.get("copied_back_on_failure"))
        self._output(index, step, seen, check)
        if "value" in step and "value" not in seen:
            found.append(("value", step["value"], None))
        elif "value" in step and self.imports.meaningful(step):
            check("value", number(step["value"]), number(seen["value"]))
        if step["op"] in ("start", "join"):
            return found  # the recorder looked at the account after synchronous steps only
        pa_of_import = self.imports.live
        check("flush", self._flushes(step, pa_of_import), self._flushes(seen, pa_of_import))
        check("numa_calls", _plain(step.get("numa_calls", [])), _plain(seen.get("numa_calls", [])))
        if self.ummu:
            check("ummu_calls", _plain(step.get("ummu_calls", [])), _plain(seen.get("ummu_calls", [])))
        return found

    def _output(self, index: int, step: Step, seen: Step, check: Any) -> None:
        recorded, observed = _plain(step.get("out", {})), _plain(seen.get("out", {}))
        if step["op"] == "mmap":
            wanted = number(step["in"]["offset"]) & _BIT63 or "FIXED" in step["in"].get("flags", "")
            if not wanted:
                return
        if step["op"] == "listdir" and "names" in recorded:
            recorded = recorded | {"names": sorted(recorded["names"])}
        if "pa" in recorded and isinstance(recorded["pa"], str):
            token = recorded["pa"]
            if "pa" in observed:
                self.addresses.setdefault(token, observed["pa"])
            recorded = recorded | {"pa": self.addresses.get(token)}
        compared = recorded.keys() if step["op"] in ("stat", "fstat") else recorded.keys() | observed.keys()
        for key in sorted(compared):
            check(f"out.{key}", _fixed(recorded.get(key)), _fixed(observed.get(key)))

    def _flushes(self, step: Step, live: dict[int, int]) -> list[Step]:
        return _joined([self._flush(entry) for entry in step.get("flush", [])], live)

    def _flush(self, entry: Step) -> Step:
        return _plain({key: value for key, value in entry.items() if value is not None})


class _ImportMemory:
    """Which loads mean something: those of exports, and those of imports behind a store in the same case.

    Imports keep what was stored at their physical address before, in other cases too.
    """

    def __init__(self) -> None:
        self.live: dict[int, int] = {}
        self._files: dict[tuple[str, str], int] = {}
        self._maps: dict[tuple[str, str], tuple[int, int]] = {}
        self._written: set[int] = set()

    def watch(self, step: Step) -> None:
        proc, op, given = step.get("proc", "main"), step["op"], step["in"]
        if op == "ioctl IMPORT" and step.get("ret") == 0:
            self.live[number(step["out"]["mem_id"])] = number(given["args"]["addr"])
        elif op == "ioctl UNIMPORT" and step.get("ret") == 0:
            self.live.pop(number(given["args"]["mem_id"]), None)
        elif op == "open" and step.get("ret") == 0:
            found = re.fullmatch(r"/dev/obmm_shmdev(\d+)", given["path"])
            if found:
                self._files[proc, given["fd"]] = int(found[1])
        elif op == "dup":
            self._files[proc, given["new"]] = self._files.get((proc, given["fd"]), 0)
        elif op == "mmap" and step.get("ret") == 0:
            offset = number(given["offset"]) & ~_BIT63
            self._maps[proc, given["map"]] = (self._files.get((proc, given["fd"]), 0), offset)
        elif op == "fork":
            for table in (self._files, self._maps):
                table.update({(given["child"], key[1]): value for key, value in table.items() if key[0] == proc})
        elif op == "store" and "signal" not in step:
            place = self._place(step)
            if place is not None:
                self._written.update(range(place, place + given.get("width", 8)))

    def meaningful(self, step: Step) -> bool:
        place = self._place(step)
        if place is None:
            return True
        return all(byte in self._written for byte in range(place, place + step["in"].get("width", 8)))

    def _place(self, step: Step) -> int | None:
        """The physical address of an access to an import, or None for other memory."""
        mem_id, base = self._maps.get((step.get("proc", "main"), step["in"].get("map", "")), (0, 0))
        if mem_id not in self.live:
            return None
        return self.live[mem_id] + base + number(step["in"].get("off", 0))


def _plain(value: Any) -> Any:
    """The same with every textual number as a number: the recorder wrote some as text."""
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        digits = value.lstrip("-")
        return int(value, 0) if digits == "0" or digits.startswith("0x") or not digits.startswith("0") else value
    return value


def _fixed(value: Any) -> Any:
    """Texts without what differs from boot to boot: dynamic minors of misc devices."""
    if isinstance(value, str):
        return re.sub(r"\b10:(\d+|<dynamic>)", "10:<dynamic>", value)
    return value


def _joined(flushes: list[Step], imports: dict[int, int]) -> list[Step]:
    """Join pieces of an export that meet at a 2 MiB border: that cut follows physical contiguity."""
    joined: list[Step] = []
    for entry in flushes:
        last = joined[-1] if joined else None
        if (last is not None and "target" in entry and last | {"length": 0} == entry | {"length": 0}) or (
            last is not None
            and "offset" in entry
            and "offset" in last
            and entry["mem_id"] == last["mem_id"]
            and entry["mem_id"] not in imports
            and entry["op"] == last["op"]
            and entry.get("ret") == last.get("ret")
            and last["offset"] + last["length"] == entry["offset"]
            and entry["offset"] % PMD == 0
        ):
            joined[-1] = last | {"length": last["length"] + entry["length"]}
        else:
            joined.append(entry)
    return joined
