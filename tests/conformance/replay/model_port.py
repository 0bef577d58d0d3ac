# SPDX-License-Identifier: Apache-2.0
"""Cases straight on the driver model, in one process: for work on the model."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from obmm.emulator.model.fabric import Fabric

from . import vfs
from .agent import Agent
from .emulator_world import OPERATIONS, EmulatorWorld, topology
from .model_system import ModelSystem
from .port import Account, Process
from .scratch import Scratch
from .transcript import Case, Transcript

Step = dict[str, Any]

_IMPOSSIBLE = frozenset(
    {"fork", "exec", "start", "join", "call", "setuid", "rlimit", "max_map_count", "mmap_many"}
    | {"procmem", "write_from_map", "read_into_map", "vm_readv", "vmsplice", "futex_wake"}
)


def _kills_a_child(case: Case) -> bool:
    seen = set()
    for step in case.steps:
        name = step.get("proc")
        if step["op"] == "kill" and name not in seen:
            return True
        seen.add(name)
    return False


class _Folder:
    """Keeps a host's tree of files on disk."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, data: bytes, mode: int) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(data)
        target.chmod(mode)

    def remove(self, path: str) -> None:
        target = self.root / path.lstrip("/")
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


class _ModelProcess:
    def __init__(self, host: Any, root: str) -> None:
        self._system = ModelSystem(host, root)
        self._agent = Agent(self._system)
        self.pid = self._system.pid

    def perform(self, op: str, given: Step, timeout: float | None = None) -> Step:
        if op == "where":
            at, length = self._agent.mappings[given["map"]]
            return {"address": at, "length": length}
        if op in _IMPOSSIBLE:
            raise NotImplementedError(f"{op} would happen to this process")
        if op == "exit":
            self._system.exit()
            return {"gone": True}
        try:
            return self._agent.perform(op, given)
        except Exception as error:
            return {"failure": f"{type(error).__name__}: {error}"}

    def start(self, op: str, given: Step) -> None:
        raise NotImplementedError

    def join(self) -> Step:
        raise NotImplementedError

    def fork(self) -> Process:
        raise NotImplementedError

    def kill(self) -> None:
        self._system.exit()

    def settle(self) -> None:
        pass


class ModelPort:
    """A fresh fabric for every case."""

    name = "driver model, in process"
    world_operations = OPERATIONS

    def __init__(self, transcript: Transcript) -> None:
        self._header = transcript.header
        self._world: EmulatorWorld | None = None
        self._folder: Scratch | None = None
        self._clearing = False

    def unable(self, case: Case) -> str | None:
        outside = case.operations & (_IMPOSSIBLE | vfs.THROUGH_LIBC)
        if "fork" in outside or _kills_a_child(case):
            return "needs a forked child"
        if outside:
            return f"needs real processes: {', '.join(sorted(outside))}"
        return None

    def begin(self, config: str, clearing: bool = False) -> None:
        self._clearing = clearing
        self._folder = Scratch()
        self._world = EmulatorWorld(Fabric(topology(self._header, config)))
        self._world.host.tree.watch(_Folder(Path(self._folder.name)))

    def spawn(self, name: str) -> Process:
        assert self._world is not None
        assert self._folder is not None
        return _ModelProcess(self._world.host, self._folder.name)

    def world(self, op: str, given: Step) -> Step:
        assert self._world is not None
        return self._world(op, given)

    def account(self) -> Account:
        assert self._world is not None
        return self._world.account(self._clearing)

    def augment(self, process: Process, op: str, given: Step, result: Step) -> Step:
        assert self._world is not None
        if op == "maps":
            where = process.perform("where", {"map": given["map"]})
            return {"ret": 0, "out": {"vmas": self._world.vmas(process.pid, where["address"], where["length"])}}
        if op == "writefile":
            return {"ret": 0}
        if op == "vmpin":
            return {"ret": 0, "out": {"VmPin_kB": self._world.pinned_kib(process.pid)}}
        return result

    def end(self, processes: Sequence[Process]) -> None:
        assert self._world is not None
        assert self._folder is not None
        self._world.fabric.close()
        self._folder.cleanup()
