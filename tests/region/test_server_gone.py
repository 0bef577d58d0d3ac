# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the emulator's server under a live client."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest

import obmm
from obmm import ObmmError, emulator


@pytest.mark.parametrize("force", [False, True])
def test_what_is_closed_after_the_server_died_is_gone_from_this_process(force):
    fabric = emulator.start(nodes=1)
    device = obmm.open(fabric.device("a"))
    region = device.export_region("2MiB")
    mapping = region.map("rw")
    mapping.write(0, b"mine")
    address = mapping.address & ~0xFFF
    os.kill(fabric.server_pid, signal.SIGKILL)
    with pytest.raises(ObmmError) as refused:
        mapping.acquire("w")
    assert refused.value.errno == errno.ESHUTDOWN
    assert mapping.read(0, 4) == b"mine"
    for thing in (mapping, region, device):
        thing.close(force=force)
        assert thing.closed
    assert not any(
        int(line.split("-")[0], 16) == address - 4096 for line in Path("/proc/self/maps").read_text().splitlines()
    )
    fabric.close()


def test_closing_a_mapping_that_only_reads_is_local():
    fabric = emulator.start(nodes=1)
    device = obmm.open(fabric.device("a"))
    region = device.export_region("2MiB")
    mapping = region.map("r")
    os.kill(fabric.server_pid, signal.SIGKILL)
    for thing in (mapping, region, device):
        thing.close()
        assert thing.closed
    fabric.close()
