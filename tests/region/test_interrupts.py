# SPDX-License-Identifier: Apache-2.0
"""KeyboardInterrupt at every line of an operation: nothing is left, nothing is lost, nothing is closed twice."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

import obmm

MIB = 1 << 20
ROOT = str(Path(obmm.__file__).parent)


def interrupted(operation, line: int) -> bool:
    """Run `operation`, interrupted at the `line`-th line of the package that it comes to; False when it ended before."""
    left = line

    def trace(frame, event, _argument):
        nonlocal left
        name = frame.f_code.co_filename
        if not name.startswith(ROOT):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        operation()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left <= 0


def held() -> tuple[int, int]:
    """Descriptors and mapped pieces of regions of this process."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text()
    return len(os.listdir("/proc/self/fd")), maps.count("memfd:")


def at_every_line(operation, after=lambda: None, steps: int = 2000) -> int:
    for line in range(1, steps):
        if not interrupted(operation, line):
            return line
        after()
    pytest.fail("the operation never got through")


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer runs already (coverage without sys.monitoring)")
def test_an_interrupted_export_leaves_no_region(a, fabric):
    before = a.regions, held()

    def export():
        made.append(a.export_region(2 * MIB))

    made: list[obmm.ExportedRegion] = []
    assert at_every_line(export, a.remove_forgotten) > 100
    made.pop().close()
    assert (a.regions, held()) == before
    fabric.check()
    assert not [entry for entry in os.listdir(f"{a.root}/sys/devices/obmm") if "shmdev" in entry]


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer runs already (coverage without sys.monitoring)")
def test_an_interrupted_import_leaves_no_region(a, b, fabric):
    with a.export_region(2 * MIB) as region:
        handle = region.handle()
        before = held()
        made: list[obmm.ImportedRegion] = []
        assert at_every_line(lambda: made.append(b.import_region(handle)), b.remove_forgotten) > 50
        made.pop().close()
        assert held() == before
        assert not [entry for entry in os.listdir(f"{b.root}/sys/devices/obmm") if "shmdev" in entry]
    fabric.check()


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer runs already (coverage without sys.monitoring)")
@pytest.mark.parametrize("side", ["owner", "importer"])
def test_an_interrupted_map_or_close_holds_nothing(a, b, fabric, side):
    with a.export_region(2 * MIB) as region, b.import_region(region.handle()) as imported:
        mine = region if side == "owner" else imported
        mine.map("r").close()
        before = held()
        assert at_every_line(lambda: mine.map("r").close(), lambda: [m.close() for m in mine.mappings]) > 100
        assert held() == before
    fabric.check()


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer runs already (coverage without sys.monitoring)")
def test_an_interrupted_change_of_rights_never_claims_a_right_that_the_driver_took(a):
    """A view over a page without the right would kill the process."""
    with a.export_region(2 * MIB) as region, region.map("rw") as mapping:

        def touch_what_is_claimed():
            for low, high, right in mapping._piece.rights.runs(0, region.length):
                if right is not obmm.Right.NONE and low >= region.data_offset:
                    bytes(mapping.view(low - region.data_offset, high - region.data_offset)[:1])
            mapping.acquire("w")

        def phases():
            mapping.publish()
            mapping.refresh()
            mapping.release(4096, 8192)
            with mapping.writing():
                mapping.write(0, b"x")
            mapping.acquire("w")

        assert at_every_line(phases, touch_what_is_claimed) > 100
        assert mapping.load("u1", 0) == ord("x")
