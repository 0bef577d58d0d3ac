# SPDX-License-Identifier: Apache-2.0
"""An exception at any chosen step of the package's own code, and what exists outside Python before and after.

A step is a line, or with ``opcodes`` every bytecode instruction: there an interrupt can come between a call and the note
of its result.
"""

from __future__ import annotations

import dis
import gc
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import obmm
from obmm import emulator
from obmm.background import LINES
from tests import seeds

ROOT = str(Path(obmm.__file__).parent) + os.sep
SEED = seeds.INJECT
COUNT = 25
"""How many steps are tried where not all are."""
FIRST_TIMES = 3
PATIENCE = float(os.environ.get("OBMM_INJECT_PATIENCE", "30"))


class Injected(KeyboardInterrupt):
    """What the injector raises: no `except Exception` may take it for a failure of its own."""


class Injector:
    """Counts the steps of an operation in this thread, and raises at one of them.

    `order` has the place (function, instruction) of each step, where they were counted.
    """

    def __init__(self, *, opcodes: bool = False) -> None:
        self._opcodes = opcodes
        self.steps = 0
        self.order: list[tuple[str, int]] = []
        self.at = ""

    def run(self, operation: Callable[[], object], step: int) -> bool:
        """Run `operation`, interrupted at its `step`-th step (from 1) -> whether that step was reached.

        Step 0 is never reached: it counts.
        """
        self.steps, self.at, self.order = 0, "", []
        before = sys.gettrace()

        def trace(frame: FrameType, event: str, _argument: object) -> Any:
            if not frame.f_code.co_filename.startswith(ROOT):
                return None
            if self._opcodes:
                frame.f_trace_opcodes = True
            if event == ("opcode" if self._opcodes else "line") and frame.f_lasti not in _never(frame.f_code):
                self.steps += 1
                code: CodeType = frame.f_code
                if step == 0:
                    self.order.append((f"{code.co_filename}:{code.co_firstlineno}", frame.f_lasti))
                if self.steps == step:
                    sys.settrace(None)
                    self.at = f"{code.co_filename.removeprefix(ROOT)}:{frame.f_lineno} in {code.co_qualname}"
                    raise Injected(self.at)
            return trace

        sys.settrace(trace)
        try:
            operation()
        except Injected:
            return True
        finally:
            sys.settrace(before)
        return bool(self.at)


@cache
def _never(code: CodeType) -> frozenset[int]:
    """Where no signal handler runs: between a with block and the call of its end, and before a ``try``.

    A lock that is held there would stay held, which nothing but a tracer can bring about.
    """
    found: set[int] = set()
    call: list[int] = []  # of __exit__(None, None, None), as far as it was seen
    before = None  # a SWAP puts a result that is returned out of the block behind that call
    for instruction in dis.get_instructions(code):
        if instruction.opname == "NOP":
            found.add(instruction.offset)
        if instruction.opname == "LOAD_CONST" and instruction.argval is None:
            if not call and before is not None and before.opname == "SWAP":
                call = [before.offset]
            call = [*call[-3:], instruction.offset]
        elif instruction.opname == "PRECALL" and len(call) >= 3:
            call.append(instruction.offset)
        elif instruction.opname == "CALL" and len(call) >= 3 and instruction.arg == 2:
            found.update((*call, instruction.offset))
            call = []
        else:
            call = []
        before = instruction
    return frozenset(found)


def steps_to_try(steps: int, seed: int) -> list[int]:
    """`COUNT` of the steps 1..steps, chosen by `seed`."""
    return random.Random(seed).sample(range(1, steps + 1), min(COUNT, steps))


def steps_at_each_place(order: list[tuple[str, int]]) -> list[int]:
    """Where each place is reached for the first times and for the last time: what waits in a loop takes thousands of steps."""
    times: dict[tuple[str, int], list[int]] = {}
    for step, place in enumerate(order, 1):
        times.setdefault(place, []).append(step)
    return sorted({step for steps in times.values() for step in (*steps[:FIRST_TIMES], steps[-1])})


@contextmanager
def unraisable_is_not_kept() -> Iterator[None]:
    """An exception that cuts a finalizer short is dropped, as Python's own hook does after it printed it.

    pytest's hook keeps it for its report, with its frames and all that these own.
    """
    before = sys.unraisablehook
    sys.unraisablehook = lambda _report: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def outside(fabric: emulator.Fabric) -> dict[str, object]:
    """What exists outside Python: in the fabric, and of this process."""
    found: dict[str, object] = {}
    for name, node in fabric.status()["nodes"].items():
        for key in ("regions", "windows", "open_files"):
            found[f"{name}.{key}"] = node[key]
    maps = Path("/proc/self/maps").read_text()
    found["mappings"] = maps.count("memfd:")
    found["threads"] = sorted(thread.name for thread in threading.enumerate())
    found["native threads"] = len(os.listdir("/proc/self/task"))
    found["descriptors"] = sorted(_target(fd) for fd in os.listdir("/proc/self/fd"))
    found["guarded ranges"] = obmm._native.lib.obmm_guard_count()
    found["children"] = len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    return found


def _target(fd: str) -> str:
    """What kind of thing a descriptor is; numbers of sockets and pipes say nothing."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}").partition(":[")[0]
    except FileNotFoundError:
        return "gone"  # that of the listing itself


def steady(fabric: emulator.Fabric) -> dict[str, object]:
    """What exists once what is on its way out has gone."""
    LINES.put(lambda: None)  # the thread of the log is the process's, and begins with its first line
    gc.collect()
    found = outside(fabric)
    while True:
        time.sleep(0.1)
        gc.collect()
        again = outside(fabric)
        if again == found:
            return found
        found = again


def difference(before: dict[str, object], after: dict[str, object]) -> dict[str, tuple[object, object]]:
    """What is not as it was; of lists what is gone and what is new."""
    return {key: _apart(before[key], after[key]) for key in before if before[key] != after[key]}


def _apart(before: object, after: object) -> tuple[object, object]:
    if isinstance(before, list) and isinstance(after, list) and all(isinstance(each, str) for each in before + after):
        first, second = Counter(before), Counter(after)
        return sorted((first - second).elements()), sorted((second - first).elements())
    return before, after


def settled(fabric: emulator.Fabric, before: dict[str, object]) -> dict[str, tuple[object, object]]:
    """What is still not as it was once threads had time to end."""
    end = time.monotonic() + PATIENCE
    while True:
        gc.collect()
        subprocess._cleanup()  # children whose Popen was lost are waited for here
        changed = difference(before, outside(fabric))
        if not changed or time.monotonic() > end:
            return changed
        time.sleep(0.002)
