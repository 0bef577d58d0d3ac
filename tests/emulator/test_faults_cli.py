# SPDX-License-Identifier: Apache-2.0
"""The injector as a user types it, fault by fault: armed, seen in `status`, undone."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from obmm.cli.emulate import emulate
from obmm.emulator.model.inject import faults

from .node import Node

WITHOUT_WAY_BACK = ("revoke", "poison", "low-memory")
SAMPLES = {
    "latency": ["0.25"],
    "flush-sleep": ["0.25"],
    "add-sleep": ["1"],
    "numa-remote": ["0"],
    "drain-state": ["0", "-5"],
    "blocker": ["[4096, 8192]"],
    "alloc-limit": ["0", "5"],
    "token-max": ["7"],
    "open-error": ["EACCES", "13"],
}
NEVER = ["nan", "NaN", "inf", "-1e999", "maybe", "", "5.5", "[1]", "{}", "99999999999999999999"]


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(emulate, arguments, catch_exceptions=False)


def armed() -> dict[str, Any]:
    result = invoke("status", "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)["nodes"]["a"]["faults"]
    return found


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        patch.delenv("OBMM_DEVICE", raising=False)
        assert invoke("up").exit_code == 0
        yield folder / "obmm" / "fabric.sock"
        invoke("down")


@pytest.fixture(autouse=True)
def healthy(fabric: Path) -> Iterator[None]:
    assert armed() == {}
    yield
    invoke("inject", "reset")
    assert armed() == {}


def settable() -> list[str]:
    return [name for name, text in faults().items() if text.startswith("value=")]


@pytest.mark.parametrize("fault", settable())
def test_a_fault_is_armed_seen_and_undone(fault: str) -> None:
    for value in SAMPLES.get(fault, ["1"]):
        result = invoke("inject", fault, f"value={value}")
        assert (result.exit_code, list(armed())) == (0, [fault]), result.output
        assert fault in invoke("status").output
        assert invoke("inject", "reset", f"name={fault}").exit_code == 0
        assert armed() == {}


@pytest.mark.parametrize("fault", ["gate-closed", "module-absent", "node-death"])
def test_an_action_is_seen_and_undone(fabric: Path, fault: str) -> None:
    for undo in ((f"name={fault}",), ()):
        assert invoke("inject", fault).exit_code == 0
        assert list(armed()) == [fault]
        assert invoke("inject", "reset", *undo).exit_code == 0
        assert armed() == {}
        node = Node(str(fabric))
        node.unexport(node.export().mem_id)
        node.close()


def test_what_hit_an_export_is_seen_until_the_export_goes(fabric: Path) -> None:
    node = Node(str(fabric))
    mem_id = node.export().mem_id
    assert invoke("inject", "poison", f"mem_id={mem_id}", "offset=8192").exit_code == 0
    assert armed() == {"poison": {str(mem_id): [[8192, 12288]]}}
    assert invoke("inject", "revoke", f"mem_id={mem_id}").exit_code == 0
    assert armed()["revoke"] == [mem_id]
    for fault in WITHOUT_WAY_BACK:
        result = invoke("inject", "reset", f"name={fault}")
        assert (result.exit_code, "no way back" in result.output) == (1, True)
    node.unexport(mem_id)
    node.close()


@pytest.mark.parametrize("fault", settable())
@pytest.mark.parametrize("value", NEVER)
def test_a_value_without_a_meaning_is_refused(fault: str, value: str) -> None:
    result = invoke("inject", fault, f"value={value}")
    if fault in ("latency", "flush-sleep", "add-sleep") and value == "5.5":
        assert result.exit_code == 0
        return
    assert result.exit_code == 1, result.output
    assert fault in result.output
    assert "argument" not in result.output
    assert armed() == {}


@pytest.mark.parametrize(
    "arguments", [(), ("valu=1",), ("value=1", "more=2"), ("value",)], ids=["none", "misspelled", "too many", "no sign"]
)
def test_arguments_that_a_fault_does_not_take_are_refused(arguments: tuple[str, ...]) -> None:
    assert invoke("inject", "latency", *arguments).exit_code in (1, 2)
    assert invoke("inject", "gate-closed", "value=1").exit_code == 1
    assert armed() == {}


def test_a_limit_is_lifted_by_none() -> None:
    assert invoke("inject", "alloc-limit", "value=3").exit_code == 0
    assert invoke("inject", "alloc-limit", "value=none").exit_code == 0
    assert armed() == {}


@pytest.mark.parametrize("command", ["up", "inject", "program-window", "status", "trace", "tree", "run"])
def test_help_names_what_an_option_takes(command: str) -> None:
    output = invoke(command, "--help").output
    assert "LAMBDA" not in output
    assert "PARSE_SIZE" not in output


def test_status_shows_regions_users_and_decoder_entries(fabric: Path) -> None:
    a, b = Node(str(fabric), "a"), Node(str(fabric), "b")
    exported = a.export()
    fd = a.open_region(exported.mem_id)
    address = a.map(fd, 2 << 20)
    pa = b.program("a", exported, 2 << 20)
    output = invoke("status").output
    for shown in ("export", "2097152", hex(pa), "decoder entries", "mapped by"):
        assert shown in output
    a.unmap(address, 2 << 20)
    a.close()
    b.close()


def test_trace_shows_calls_with_the_rule_that_refused_them(fabric: Path) -> None:
    node = Node(str(fabric))
    with pytest.raises(OSError, match="Invalid"):
        node.export(3 << 20)
    lines = [json.loads(line) for line in invoke("trace", "--failed", "--json", "-n", "1").output.splitlines()]
    assert [(one["call"], one["errno"], one["rule"][:2]) for one in lines] == [("ioctl", "EINVAL", "X3")]
    assert "OBMM_CMD_EXPORT, {size=[0x300000]" in lines[0]["text"]
    output = invoke("trace", "--node", "a").output
    assert 'open("/dev/obmm", O_RDWR' in output
    assert invoke("trace", "--node", "z").exit_code == 1
    node.close()


def test_a_traced_refusal_keeps_nothing_alive() -> None:
    """Not the exception with its frames: they hold regions, memory and descriptors."""
    from obmm.emulator.model.calls import KernelError
    from obmm.emulator.protocol import Call
    from obmm.emulator.trace import Trace

    class Held:
        pass

    def refused() -> tuple[weakref.ref[Held], KernelError]:
        held = Held()
        try:
            raise KernelError(5, "X1", f"{held}")
        except KernelError as error:
            return weakref.ref(held), error

    trace = Trace()
    alive, error = refused()
    trace.add("a", 1, Call.MUNMAP, "-", (0, 0), None, 0, error)
    del error
    gc.collect()
    assert alive() is None
    assert trace.since(0, 0)[0].document()["rule"] == "X1"
