# SPDX-License-Identifier: Apache-2.0
"""Walks one recorded case over a port and collects what the backend answered."""

from __future__ import annotations

import re
import time
from typing import Any

from .inputs import Inputs
from .port import Port, Process
from .transcript import Case, number

MAIN = "main"
#: Time that a started call gets before the next step (driver transcript, operation `start`).
HEAD_START_S = 0.25
#: An access that takes longer counts as hanging.
HANG_S = 3.0

_TOKEN = re.compile(r"@pa(\d+)")
_MAY_HANG = frozenset({"load", "store", "call"})
_LEAVING = frozenset({"exec", "exit"})


class Replay:
    """One case on one port; `run` may be called once."""

    def __init__(self, port: Port, case: Case) -> None:
        self.port = port
        self.case = case
        self.processes: dict[str, Process] = {}
        self.addresses: dict[str, int] = {}
        self.observed: list[dict[str, Any]] = []

    def run(self) -> list[dict[str, Any]]:
        """The observed steps, with the keys of the recorded ones."""
        self.port.begin(self.case.config, clearing="pool" in self.case.tags)
        try:
            for index, step in enumerate(self.case.steps):
                self._fork_unrecorded_child(index)
                self.port.account()
                result = self._step(step["op"], step.get("proc", MAIN), step["in"])
                account = self.port.account()
                self.observed.append(result | {key: value for key, value in vars(account).items() if value})
                self._learn_token(index, step, result)
        finally:
            self.port.end(list(self.processes.values()))
        return self.observed

    def _process(self, name: str) -> Process:
        if name not in self.processes:
            self.processes[name] = self.port.spawn(name)
        return self.processes[name]

    def _step(self, op: str, name: str, given: dict[str, Any]) -> dict[str, Any]:
        inputs = Inputs(given)
        result = self._own_step(op, name, inputs)
        if result is not None:
            inputs.all_read_by(op)
            return result
        process = self._process(name)
        given = self._resolve(given)
        if op == "start":
            process.start(given["op"], {key: value for key, value in given.items() if key != "op"})
            time.sleep(HEAD_START_S)
            return {}
        result = process.perform(op, given, HANG_S if op in _MAY_HANG else None)
        if op in _LEAVING:
            process.settle()
            return {"gone": True}
        return self.port.augment(process, op, given, result)

    def _own_step(self, op: str, name: str, given: Inputs) -> dict[str, Any] | None:
        """What the machine and the replay itself do; None for what a process does."""
        if op in self.port.world_operations:
            return self.port.world(op, given)
        if op == "sleep":
            time.sleep(given["ms"] / 1000)
            return {"ret": 0}
        if op == "kill":
            self._process(name).kill()
            return {"ret": 0}
        if op == "fork":
            self.processes[given["child"]] = self._process(name).fork()
            return {}
        if op == "join":
            return self._process(name).join()
        return None

    def _resolve(self, given: dict[str, Any]) -> dict[str, Any]:
        """Tokens for physical addresses, and the two phrases that point into another process."""
        args = given.get("args")
        if not args:
            return given
        args = {
            key: self.addresses[value] if isinstance(value, str) and value in self.addresses else value
            for key, value in args.items()
        }
        target = re.fullmatch(r"process (\w+)", str(args.get("pid")))
        if target:
            args["pid"] = self._process(target[1]).pid
        place = re.fullmatch(r"start of the mapping of process (\w+)", str(args.get("va")))
        if place:
            args["va"] = self._process(place[1]).perform("where", {"map": "h"})["address"]
        return given | {"args": args}

    def _learn_token(self, index: int, step: dict[str, Any], result: dict[str, Any]) -> None:
        """`@paN` is the address first returned in step N, wherever it appears."""
        expected = step.get("out", {}).get("pa") if isinstance(step.get("out"), dict) else None
        token = f"@pa{index}"
        if expected == token and "pa" in result.get("out", {}):
            self.addresses[token] = number(result["out"]["pa"])

    def _fork_unrecorded_child(self, index: int) -> None:
        """A process that a case only ever kills was forked before the main process's first close."""
        step = self.case.steps[index]
        if step["op"] != "close" or step.get("proc", MAIN) != MAIN:
            return
        first_seen: dict[str, str] = {}
        for later in self.case.steps:
            if later["op"] == "fork":
                first_seen.setdefault(later["in"]["child"], "fork")
            first_seen.setdefault(later.get("proc", MAIN), later["op"])
        for name, op in first_seen.items():
            if op == "kill" and name not in self.processes:
                self.processes[name] = self._process(MAIN).fork()
