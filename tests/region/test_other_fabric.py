# SPDX-License-Identifier: Apache-2.0
"""A handle that TCP carried to a node of another emulated fabric: the refusal says that it may be one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import obmm
from obmm import Device, RemoteMemoryError, StaleHandleError, emulator


@pytest.fixture
def stranger() -> Iterator[Device]:
    with emulator.start(nodes=2) as fabric, obmm.open(fabric.device("b")) as device:
        yield device


@pytest.mark.parametrize("taken", [False, True], ids=["nothing there", "another export there"])
def test_memory_of_another_fabric_is_told(a: Device, stranger: Device, taken: bool) -> None:
    own = emulator_neighbour(stranger)
    with own, a.export_region("2MiB") as region:
        there = own.export_region("2MiB") if taken else None
        expected = StaleHandleError if taken else RemoteMemoryError
        with stranger.import_region(region.handle()) as imported:
            with pytest.raises(
                expected, match=r"a node of another emulated fabric than .*: both must be of one"
            ) as caught:
                imported.map("r")
            assert str(stranger.backend.socket) in str(caught.value)
        if there is not None:
            there.close()


def test_a_fault_of_the_same_fabric_keeps_what_it_knows(a: Device, b: Device) -> None:
    with a.export_region("2MiB") as region:
        handle = region.handle()
    with b.import_region(handle) as imported, pytest.raises(RemoteMemoryError) as caught:
        imported.map("r")
    assert caught.value.kind == "SIGBUS"
    assert caught.value.peer == imported.peer
    assert caught.value.operation == "ACCESS"


def emulator_neighbour(device: Device) -> Device:
    """Node a of the fabric of `device`."""
    return obmm.open(f"emulator:{device.backend.socket}#a")
