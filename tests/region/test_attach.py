# SPDX-License-Identifier: Apache-2.0
"""Regions that another program made (docs/windows.md)."""

from __future__ import annotations

import errno
import gc

import pytest

import obmm
from obmm import ObmmArgumentError, ObmmError

MIB = 1 << 20


@pytest.fixture
def made(a):
    """mem_id of a raw 4 MiB region that somebody else made and mapped nowhere."""
    mem_id = a.driver.export({0: 4 * MIB}, 1, pxm_numa=0, deid=bytes(16), vendor_info=b"", priv=b"other").mem_id
    yield mem_id
    a.driver.unexport(mem_id)


def test_attached_memory_is_used_and_stays(a, made):
    region = a.attach(made)
    assert (region.nbytes, region.data_offset) == (4 * MIB, 0)
    assert "unverified" in repr(region)
    with region.map("rw") as mapping:
        mapping.write(0, b"through us")
    region.close()
    with a.attach(made, 4 * MIB) as again, again.map("r") as mapping:
        assert mapping.read(0, 10) == b"through us"


def test_module_level_attach_opens_its_own_device(a, made, fabric):
    region = obmm.attach(made, device=fabric.device("a"))
    with region.map("rw") as mapping:
        mapping.store("u8", 0, 3)
    region.close()
    del region, mapping
    gc.collect()


def test_a_cache_mode_that_the_region_does_not_have_is_the_drivers_refusal(a, b, made):
    with a.export_region(2 * MIB) as region, b.import_region(region.handle(cache="nc")) as imported:
        with b.attach(imported.mem_id) as attached, pytest.raises(ObmmError, match=r"OPEN2"):
            attached.map("r", cache="cc")


@pytest.mark.parametrize("mem_id", [0, -1, 1 << 20])
def test_impossible_ids_are_refused(a, mem_id):
    with pytest.raises(ObmmArgumentError, match=f"mem_id={mem_id}"):
        a.attach(mem_id)


def test_an_unknown_id_is_enoent(a):
    with pytest.raises(ObmmError) as caught:
        a.attach(77)
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("length", [0, -4096, 100])
def test_impossible_lengths_are_refused(a, made, length):
    with pytest.raises(ObmmArgumentError, match="length="):
        a.attach(made, length)
