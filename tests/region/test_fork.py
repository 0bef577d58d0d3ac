# SPDX-License-Identifier: Apache-2.0
"""A forked child has no mapping (driver specification 9.4), and its objects say so."""

from __future__ import annotations

import os

import pytest

import obmm

MIB = 1 << 20


def in_child(check) -> int:
    """Run `check` in a forked child -> its exit status; 0 when it returned, 1 when it raised."""
    pid = os.fork()
    if pid == 0:
        try:
            check()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_objects_of_the_parent_are_closed_in_the_child(a):
    with a.export_region(2 * MIB) as region, region.map("rw") as mapping:
        mapping.write(0, b"parent")

        def check() -> None:
            for use in (lambda: mapping.read(0, 1), lambda: region.map(), lambda: a.export_region(2 * MIB)):
                with pytest.raises(obmm.ClosedError):
                    use()
            mapping.close()
            region.close()
            a.close()

        assert in_child(check) == 0
        assert mapping.read(0, 6) == b"parent"


def test_a_child_can_open_its_own_device(a, fabric):
    with a.export_region(2 * MIB) as region:
        handle = region.handle()

        def check() -> None:
            with obmm.open(fabric.device("b")) as device, device.import_region(handle) as imported:
                with imported.map("rw") as mapping:
                    mapping.store("u8", 0, 77)

        assert in_child(check) == 0
        with region.map("r") as mapping:
            assert mapping.load("u8", 0) == 77


def test_a_child_that_lives_on_does_not_keep_the_region_busy(a):
    region = a.export_region(2 * MIB)
    mapping = region.map("rw")
    gate_r, gate_w = os.pipe()
    ready_r, ready_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gate_w)
        os.write(ready_w, b"x")
        os.read(gate_r, 1)
        os._exit(0)
    os.read(ready_r, 1)
    mapping.close()
    region.close()
    os.write(gate_w, b"x")
    os.waitpid(pid, 0)
    for fd in (gate_r, gate_w, ready_r, ready_w):
        os.close(fd)
