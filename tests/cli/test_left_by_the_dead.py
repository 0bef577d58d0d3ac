# SPDX-License-Identifier: Apache-2.0
"""A server that was killed leaves its exports: whoever serves next on the node says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import obmm
from obmm import Device, emulator
from obmm.cli import serving

DIES = "import obmm, os, sys\nobmm.open(sys.argv[1]).export_region('2MiB', label=sys.argv[2])\nos._exit(0)"


@pytest.fixture
def device() -> Iterator[Device]:
    with emulator.start(nodes=2) as fabric, obmm.open(fabric.device("a")) as device:
        yield device


def told_of(device: Device, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(serving, "tell", said.append)
    serving.tell_of_the_dead(device)
    return said


def test_exports_of_the_dead_are_told_and_others_are_not(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    with device.export_region("2MiB", label="alive"):
        assert told_of(device, monkeypatch) == []
        for label in ("words", "more"):
            subprocess.run([sys.executable, "-c", DIES, str(device.backend), label], check=True, timeout=60)
        (said,) = told_of(device, monkeypatch)
        assert said == "dead processes left 2 export(s) of 8 MiB here (more, words); `obmm gc` says what can go"


def test_a_node_that_cannot_be_looked_at_is_served_on(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(serving, "regions", refused)
    assert told_of(device, monkeypatch) == []


@pytest.mark.parametrize("command", ["serve", "blocks", "engram"])
def test_every_command_that_serves_asks(command: str) -> None:
    module = __import__(f"obmm.cli.{command}", fromlist=["x"])
    assert module.tell_of_the_dead is serving.tell_of_the_dead
