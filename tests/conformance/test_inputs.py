# SPDX-License-Identifier: Apache-2.0
"""The replay acts on every input of a step, or says which it does not know: none is passed over in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .replay.agent import Agent
from .replay.native_system import LibcCalls, NativeSystem, build_probe
from .replay.system import mmap_flags, open_flags
from .replay.table_port import needs_libc
from .replay.transcript import Case, Transcript

TRANSCRIPT = Transcript.load()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    return Agent(NativeSystem(build_probe(tmp_path_factory.mktemp("probe")), LibcCalls()))


STEPS: dict[str, dict[str, Any]] = {
    "open": {"path": "/dev/null", "flags": "O_RDWR|O_SYNC", "fd": "n"},
    "read": {"fd": "n"},
    "pwrite": {"fd": "n", "offset": 8, "n": 4},
    "reserve": {"map": "r", "length": 2 << 20},
    "hugemap": {"map": "h", "length": 4096, "huge": False},
    "mprotect": {"map": "r", "prot": "NONE"},
    "madvise": {"map": "r", "advice": "RANDOM"},
    "msync": {"map": "r", "flags": "ASYNC|INVALIDATE"},
    "munlock": {"map": "h"},
    "write_from_map": {"map": "h", "off": 8, "n": 16},
    "maps": {"map": "r", "off": 0, "length": 4096},
    "readfile": {"path": "/proc/self/comm"},
}


@pytest.mark.parametrize("op", STEPS)
def test_an_input_that_no_operation_reads_is_named(op: str, agent: Agent) -> None:
    for name in STEPS:
        assert "errno" not in agent.perform(name, STEPS[name]), name
    assert "errno" not in agent.perform(op, STEPS[op] | {"note_": "the recorder's own remark"})
    with pytest.raises(NotImplementedError, match="sideways"):
        agent.perform(op, STEPS[op] | {"sideways": 1})


@pytest.mark.parametrize("op", ["ioctl WHATEVER", "teleport"])
def test_an_unknown_operation_is_an_error(op: str, agent: Agent) -> None:
    with pytest.raises((NotImplementedError, KeyError)):
        agent.perform(op, {"args": {}})


@pytest.mark.parametrize("parse", [open_flags, mmap_flags])
def test_an_unknown_flag_is_an_error(parse: Callable[[str], int]) -> None:
    assert parse("0x10|1") == 0x11
    with pytest.raises(ValueError, match="invalid literal"):
        parse("O_SIDEWAYS")


def test_a_mapping_over_reserved_addresses_is_the_regions() -> None:
    """What changes its protection has to reach the emulator, so the case needs its libc."""
    steps = [
        {"op": "reserve", "in": {"map": "r", "length": 4 << 20}},
        {"op": "mprotect", "in": {"map": "r", "prot": "R"}},
    ]
    over = {"op": "mmap", "in": {"map": "m", "fd": "f", "at": ["r", 0], "flags": "SHARED|FIXED"}}
    model = TRANSCRIPT.cases[0]
    case = Case(**{**vars(model), "steps": tuple(steps)})
    assert needs_libc(case) == frozenset()
    assert needs_libc(Case(**{**vars(model), "steps": (steps[0], over, steps[1])})) == {"mprotect"}
