# SPDX-License-Identifier: Apache-2.0
"""Owners and users of the random model in processes of their own, so that they can be killed.

    python -m tests.blocks.mortal owner DEVICE PORT KEY JOURNAL SLOTS BLOCK_BYTES CACHE TERM
    python -m tests.blocks.mortal user DEVICE PORT KEY

A command is a line of JSON on standard input, its answer a line on standard output; the first line says that it is ready.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import obmm
from obmm.blocks import BlockOwner, BlockStore, Namespace, SlotLayout

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = Namespace(model="random")
SIZES = (64, 100, 1_000, 4_000, 5_000)
PATIENCE_S = 120.0


def size_of(key: bytes) -> int:
    return SIZES[key[-1] % len(SIZES)]


def content(key: bytes, number: int) -> npt.NDArray[np.uint8]:
    """What put `number` of this key stores: every byte follows from both."""
    data = np.random.default_rng([int.from_bytes(key, "big"), number]).integers(0, 256, size_of(key), dtype=np.uint8)
    data[:8] = np.frombuffer(number.to_bytes(8, "big"), np.uint8)  # so that a reader can say which put it has
    return data


def number_in(key: bytes, memory: npt.NDArray[np.uint8]) -> int:
    """Which put of this key that is; AssertionError unless it is one to the last byte."""
    number = int.from_bytes(memory[:8].tobytes(), "big")
    assert np.array_equal(memory, content(key, number)), f"{key!r}: mixed bytes of put {number}"
    return number


class Mortal:
    """Such a process, from its caller's side.  One command at a time."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-P", "-m", "tests.blocks.mortal", *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environment)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self.owes = True  # its first line

    def tell(self, *command: object) -> None:
        assert not self.owes
        self._in.write(json.dumps(command) + "\n")
        self._in.flush()
        self.owes = True

    @property
    def answered(self) -> bool:
        """Whether `answer` has one at once."""
        return bool(select.select([self._out], [], [], 0)[0])

    def answer(self) -> Any:
        readable, _, _ = select.select([self._out], [], [], PATIENCE_S)
        assert readable, f"no answer in {PATIENCE_S} s"
        line = self._out.readline()
        assert line, f"it ended by itself with {self.process.wait(10)}"
        self.owes = False
        return json.loads(line)

    def ask(self, *command: object) -> Any:
        self.tell(*command)
        return self.answer()

    def kill(self) -> None:
        """SIGKILL: nothing in it runs any more."""
        self.process.kill()
        self._ended()

    def end(self) -> None:
        """In order: it closes what it has."""
        self._in.close()
        self._ended()

    def _ended(self) -> None:
        self.process.wait(PATIENCE_S)
        self._out.close()
        with contextlib.suppress(BrokenPipeError):  # a command whose output is not read any more
            self._in.close()


def owner(device: str, port: str, key: str, journal: str, slots: str, block_bytes: str, cache: Any, term: str) -> None:
    with obmm.open(device) as local:
        server = obmm.serve({}, host="127.0.0.1", port=int(port), key=key, journal=journal)
        made = BlockOwner(local, SlotLayout.for_blocks(int(block_bytes), int(slots), cache=cache), term=float(term))
        made.serve(server)
        mapping, stride = made.memory.mapping, made.layout.stride

        def rot(slot: int, offset: int, value: int) -> None:
            """As a stray store would."""
            start = slot * stride
            if cache == "cc":
                with mapping.writing(start, start + stride):
                    mapping.store("u1", start + offset, value)
            else:
                mapping.store("u1", start + offset, value)

        obey({"evict": made.evict, "rot": rot, "status": made.status}, port=server.port, incarnation=made.incarnation)
        made.close(timeout=0, force=True)
        server.close(timeout=0, force=True)


def attached(stack: ExitStack, local: obmm.Device, port: str, key: str) -> BlockStore:
    """A store; the owner may be dying while this user begins."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with ExitStack() as undo:
                peer = undo.enter_context(obmm.connect(f"127.0.0.1:{port}", key=key))
                store = undo.enter_context(BlockStore(peer, local, NAMESPACE))
                stack.enter_context(undo.pop_all())
                return store
        except obmm.ObmmError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def user(device: str, port: str, key: str) -> None:
    with obmm.open(device) as local, ExitStack() as stack:
        store = attached(stack, local, port, key)

        pins: list[bytes] = []

        def put(keys: list[str], numbers: list[int]) -> list[int]:
            names = [bytes.fromhex(key) for key in keys]
            flags: list[int] = store.put(names, list(map(content, names, numbers))).tolist()
            return flags

        def get(keys: list[str]) -> list[int]:
            """The number of each one's put; -1 for a miss."""
            names = [bytes.fromhex(key) for key in keys]
            memory = [np.zeros(size_of(key), np.uint8) for key in names]
            flags = store.get(names, memory)
            return [number_in(k, m) if f else -1 for k, m, f in zip(names, memory, flags, strict=True)]

        def pin(keys: list[str]) -> int:
            """Until the next time, or for ever: a kill ends them."""
            store.unpin(pins)
            names = [bytes.fromhex(key) for key in keys]
            pins[:] = [name for name, flag in zip(names, store.pin(names), strict=True) if flag]
            return len(pins)

        obey({"put": put, "get": get, "pin": pin})


def obey(commands: dict[str, Callable[..., object]], **facts: object) -> None:
    """Until the end of standard input."""
    print(json.dumps(facts), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(commands[name](*arguments)), flush=True)


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


if __name__ == "__main__":
    {"owner": owner, "user": user}[sys.argv[1]](*sys.argv[2:])
