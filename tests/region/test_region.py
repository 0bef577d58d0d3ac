# SPDX-License-Identifier: Apache-2.0
"""Lifetimes of regions: order, idempotence, holds, failures at every step (docs/safety.md)."""

from __future__ import annotations

import errno
import gc

import pytest

import obmm
from obmm import MappingBusyError, ObmmError, StaleHandleError
from obmm.driver.calls import Driver
from tests.two_nodes import left_behind

MIB = 1 << 20


def test_header_is_added_and_the_sum_rounded_up(a):
    with a.export_region(2 * MIB) as region:
        assert region.length == 4 * MIB
        assert region.nbytes == 4 * MIB - 4096
        assert region.data_offset == 4096
    with a.export_region(2 * MIB, header=False) as raw:
        assert (raw.length, raw.nbytes, raw.data_offset) == (2 * MIB, 2 * MIB, 0)
        assert "unverified" in repr(raw)


def test_new_memory_is_zero(a):
    with a.export_region(2 * MIB) as region, region.map() as mapping:
        assert not any(mapping.read())


def test_ids_are_reused_at_once_and_generations_are_not(a):
    with a.export_region(2 * MIB) as first:
        one = first.handle()
    with a.export_region(2 * MIB) as second:
        two = second.handle()
    assert (one.mem_id, one.uba, one.tokenid) == (two.mem_id, two.uba, two.tokenid)
    assert one.generation != two.generation


def test_a_stale_handle_is_refused_although_its_numbers_fit(a, b):
    with a.export_region(2 * MIB) as first:
        stale = first.handle()
    with a.export_region(2 * MIB), b.import_region(stale) as imported:
        with pytest.raises(StaleHandleError) as caught:
            imported.map("r")
        assert caught.value.reason == "generation"
        assert imported.mappings == ()


def test_a_raw_export_behind_a_header_handle_is_refused(a, b):
    with a.export_region(2 * MIB) as first:
        stale = first.handle()
    with a.export_region(stale.length, header=False), b.import_region(stale) as imported:
        with pytest.raises(StaleHandleError) as caught:
            imported.map("r")
        assert caught.value.reason == "header"


def test_memory_of_a_removed_export_is_an_error_not_a_dead_process(a, b):
    region = a.export_region(2 * MIB)
    with b.import_region(region.handle()) as imported, imported.map("r") as mapping:
        assert mapping.load("<u8", 0) == 0
        region.close()
        with pytest.raises(obmm.RemoteMemoryError) as caught:
            mapping.load("<u8", 64)
        assert (caught.value.offset, caught.value.kind) == (64, "SIGBUS")
        assert caught.value.errno == errno.EFAULT


def test_closing_a_region_unmaps_first(a):
    region = a.export_region(2 * MIB)
    mapping = region.map()
    region.close()
    assert mapping.closed
    assert region.mappings == ()
    region.close()


def test_close_with_live_views_names_them_and_changes_nothing(a):
    with a.export_region(2 * MIB) as region:
        mapping = region.map("rw")
        view = mapping.as_numpy("<u4", 10)
        for thing in (mapping, region, a):
            with pytest.raises(MappingBusyError, match=r"array uint32 \(10,\)"):
                thing.close()
        view[3] = 7
        assert mapping.load("<u4", 12) == 7
        del view


def test_a_hold_keeps_the_region(a):
    with a.export_region(2 * MIB) as region, region.hold("lent to b"):
        with pytest.raises(MappingBusyError, match="lent to b"):
            region.close()
        assert not region.closed


def test_with_block_keeps_the_exception_in_flight_and_adds_a_note(a):
    region = a.export_region(2 * MIB)
    with pytest.raises(KeyError) as caught, region:
        view = region.map("rw").view()
        raise KeyError("mine")
    assert "stayed open" in caught.value.__notes__[0]
    assert not region.closed
    del view, caught
    region.close()


def test_another_holder_makes_removal_busy_and_leaves_the_region_usable(a, fabric):
    region = a.export_region(2 * MIB)
    with obmm.open(fabric.device("a")) as other:
        held = other.driver.new_held()
        other.driver.open_region(region.mem_id, writable=False, non_cacheable=False, held=held)
        with pytest.raises(ObmmError) as caught:
            region.close()
        assert caught.value.errno == errno.EBUSY
        assert "[U4]" in str(caught.value)
        assert not region.closed
        other.driver.release(held)
    region.close()


def test_a_forgotten_region_warns_and_stays(a, fabric):
    region = a.export_region(2 * MIB)
    mem_id = region.mem_id
    with pytest.warns(ResourceWarning, match="never closed"):
        del region
        gc.collect()
    assert a.query_pa(mem_id) > 0
    a.driver.unexport(mem_id)


def test_a_forgotten_mapping_is_unmapped(a):
    region = a.export_region(2 * MIB)
    region.map("rw").write(0, b"x")
    gc.collect()
    region.close()


class _Broken(Driver):
    """Fails its n-th call with ENOMEM, or with EEXIST-free EIO where the operation matters."""

    def __init__(self, real: Driver, nth: int) -> None:
        self.__dict__.update(real.__dict__)
        self.left = nth
        self.failed_in = ""

    def __getattribute__(self, name: str):
        value = super().__getattribute__(name)
        undo = {"unexport_owned", "unimport_owned", "release", "close_region", "close", "seal"}
        if name.startswith("_") or name in undo or not callable(value) or name not in vars(Driver):
            return value

        def call(*arguments, **options):
            self.left -= 1
            if self.left == 0:
                self.failed_in = name
                raise ObmmError.refused("EXPORT", errno.ENOMEM)
            return value(*arguments, **options)

        return call


@pytest.mark.parametrize("cache", ["cc", "nc"])
@pytest.mark.parametrize("pmd", [False, True])
def test_nothing_is_left_after_a_failure_at_any_step(a, b, fabric, cache, pmd):
    def main_job(one, two):
        with one.export_region(2 * MIB, pmd=pmd) as region:
            with region.map("rw", cache=cache) as mapping:
                mapping.write(0, b"hello")
                mapping.publish()
            with two.import_region(region.handle(cache=cache), pmd=pmd) as imported, imported.map("r") as mapping:
                assert mapping.read(0, 5) == b"hello"

    real = a.driver, b.driver
    before = left_behind(fabric)  # the two open devices
    steps = []
    for side in (0, 1):
        for nth in range(1, 100):
            a.driver, b.driver = real
            broken = _Broken(real[side], nth)
            if side == 0:
                a.driver = broken
            else:
                b.driver = broken
            try:
                main_job(a, b)
            except ObmmError as error:
                assert error.errno == errno.ENOMEM
                steps.append(broken.failed_in)
            else:
                break
            finally:
                a.driver, b.driver = real
            assert left_behind(fabric) == before
        else:
            pytest.fail("the job never got through")
    assert {"export", "import_", "open_region", "map"} <= set(steps)
