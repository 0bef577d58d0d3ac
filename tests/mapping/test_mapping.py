# SPDX-License-Identifier: Apache-2.0
"""Access, rights, views and publishing through a mapping (driver specification 9, docs/safety.md)."""

from __future__ import annotations

import errno
import gc
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from obmm import ClosedError, MappingBusyError, ObmmArgumentError, OwnershipError, Right
from obmm.driver.process import boot_id
from obmm.mapping.mapping import read_header_page
from obmm.mapping.ownership import RightsMap
from obmm.mapping.scalars import SCALARS
from obmm.region.header import RegionHeader, RegionState

MIB = 1 << 20


@pytest.fixture
def region(a):
    with a.export_region(4 * MIB) as region:
        yield region


@pytest.fixture
def rw(region):
    with region.map("rw") as mapping:
        yield mapping


# --- access -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SCALARS))
def test_every_scalar_survives_store_and_load(rw, name):
    dtype = np.dtype(name)
    values = [0, 1, 100] + ([-1, -7] if dtype.kind != "u" else []) + ([1.5] if dtype.kind == "f" else [])
    for value in values:
        rw.store(name, 64, value)
        assert rw.load(name, 64) == value
        assert rw.as_numpy(name, 1, 64)[0] == value


@pytest.mark.parametrize(("name", "value"), [("u1", 256), ("i2", 1 << 15), ("u8", -1), ("u4", 1.5), ("f2", 1e9)])
def test_a_value_that_does_not_fit_is_refused(rw, name, value):
    with pytest.raises(ValueError):
        rw.store(name, 0, value)


@pytest.mark.parametrize("name", ["O", "c16", "S8", "f16", "", "<u3"])
def test_other_types_are_no_scalars(rw, name):
    with pytest.raises(ObmmArgumentError, match="not a scalar"):
        rw.load(name, 0)


@pytest.mark.parametrize(("name", "offset"), [("u2", 1), ("u4", 2), ("u8", 4), ("f8", 12)])
def test_misaligned_scalars_are_refused(rw, name, offset):
    with pytest.raises(ObmmArgumentError, match="aligned"):
        rw.load(name, offset)


@pytest.mark.parametrize("delta", [(-8, 8), (0, 1), (-4, 8), (8, 8)])
def test_access_outside_the_payload_is_refused(rw, delta):
    offset, size = rw.stop + delta[0] + (8 if delta[0] == -8 else 0), delta[1]
    for use in (
        lambda: rw.read(offset, size),
        lambda: rw.write(offset, bytes(size)),
        lambda: rw.view(offset, offset + size),
    ):
        with pytest.raises(ObmmArgumentError, match="outside the mapped payload"):
            use()
    with pytest.raises(ObmmArgumentError, match="outside"):
        rw.load("u1", -1)


def test_read_into_fills_any_writable_buffer(rw):
    rw.write(100, bytes(range(64)))
    for out in (bytearray(64), np.zeros(16, "<u4"), memoryview(bytearray(64))):
        assert rw.read_into(out, 100) == 64
        assert bytes(out) == bytes(range(64))
    with pytest.raises((BufferError, ValueError, TypeError)):
        rw.read_into(bytes(4))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_write_and_read_at_any_offset_and_size(rw, data):
    offset = data.draw(st.integers(0, rw.nbytes))
    content = data.draw(st.binary(max_size=min(5000, rw.nbytes - offset)))
    rw.write(offset, content)
    assert rw.read(offset, len(content)) == content


# --- partial mappings -------------------------------------------------------------------------------------------------


def test_a_partial_mapping_covers_whole_granules_and_counts_from_the_payload(region, rw):
    rw.write(100_000, b"here")
    with region.map("r", 100_000, 100_004) as part:
        assert part.start <= 100_000
        assert part.stop >= 100_004
        assert part.nbytes < 3 * 4096
        assert part.read(100_000, 4) == b"here"
        with pytest.raises(ObmmArgumentError, match="outside"):
            part.read(0, 1)


@pytest.mark.parametrize(("start", "stop"), [(-1, 10), (10, 10), (10, 5), (0, 1 << 40)])
def test_M11_a_range_outside_the_payload_is_refused(region, start, stop):
    with pytest.raises(ObmmArgumentError, match="M11"):
        region.map("r", start, stop)


@pytest.mark.parametrize("access", ["w", "rwx", "", "R"])
def test_unknown_access_is_refused(region, access):
    with pytest.raises(ObmmArgumentError, match="access="):
        region.map(access)


# --- rights -----------------------------------------------------------------------------------------------------------


def test_a_fresh_mapping_has_the_right_it_was_made_with(region):
    for access, right in (("none", Right.NONE), ("r", Right.READ), ("rw", Right.WRITE)):
        with region.map(access) as mapping:
            assert mapping.right is right


def test_access_without_the_right_is_refused_before_it_faults(region):
    with region.map("none") as mapping:
        for use in (
            lambda: mapping.load("u1", 0),
            lambda: mapping.view(),
            lambda: mapping.as_numpy(),
            lambda: mapping.read(0, 1),
        ):
            with pytest.raises(OwnershipError, match="SIGSEGV"):
                use()
        mapping.acquire("r")
        assert mapping.load("u1", 0) == 0
        with pytest.raises(OwnershipError):
            mapping.store("u1", 0, 1)
        mapping.acquire("w")
        mapping.store("u1", 0, 1)
        mapping.release()
        with pytest.raises(OwnershipError):
            mapping.load("u1", 0)


def test_rights_are_kept_range_by_range(region):
    with region.map("none") as mapping:
        mapping.acquire("w", 0, 8192)
        mapping.acquire("r", 8192, 12288)
        mapping.store("u8", 8184, 5)
        with pytest.raises(OwnershipError):
            mapping.read(8184, 16384)
        assert mapping.read(0, 12288)
        with pytest.raises(OwnershipError):
            mapping.store("u8", 8192, 5)
        assert mapping.right is Right.NONE


def test_O5_ownership_rounds_only_when_asked(region):
    with region.map("none") as mapping:
        with pytest.raises(ObmmArgumentError, match="round_out"):
            mapping.acquire("r", 10, 100)
        mapping.acquire("r", *mapping.round_out(10, 100))
        assert mapping.read(10, 90) == bytes(90)


def test_O6_a_mapping_made_for_reading_is_never_written(region):
    with region.map("r") as mapping, pytest.raises(ObmmArgumentError, match="O6"):
        mapping.acquire("w")


def test_O9_ownership_outside_the_mapping_is_refused(region):
    with region.map("none", 0, 8192) as mapping, pytest.raises(ObmmArgumentError, match="O9"):
        mapping.acquire("r", 0, MIB)


def test_phases_give_rights_and_take_them_back(region):
    with region.map("none") as writer:
        with writer.writing(0, 4096):
            writer.store("u8", 0, 42)
        assert writer.right is Right.NONE
        with writer.reading():
            assert writer.load("u8", 0) == 42
            with pytest.raises(OwnershipError):
                writer.store("u8", 0, 1)
        with pytest.raises(OwnershipError):
            writer.load("u8", 0)


def test_a_phase_ends_also_by_an_exception(region):
    with region.map("none") as mapping:
        with pytest.raises(KeyError), mapping.writing():
            raise KeyError
        assert mapping.right is Right.NONE


def test_release_under_a_live_view_is_refused(region):
    with region.map("rw") as mapping:
        reader = mapping.as_numpy("u1", 10, writable=False)
        with pytest.raises(MappingBusyError, match="array uint8"):
            mapping.release()
        mapping.release(keep="r")
        mapping.acquire("w")
        writer = mapping.as_numpy("u1", 10)
        with pytest.raises(MappingBusyError):
            mapping.release(keep="r")
        mapping.release(8192, 12288)
        del reader, writer


def test_nc_has_no_ownership_and_phases_are_barriers(region):
    with region.map("rw", cache="nc") as mapping:
        with pytest.raises(ObmmArgumentError, match="O2"):
            mapping.acquire("r")
        with mapping.writing(), mapping.reading():
            mapping.store("u8", 0, 3)
        mapping.publish()
        mapping.refresh()
        assert mapping.load("u8", 0) == 3
    with pytest.raises(ObmmArgumentError, match="O2"):
        region.map("none", cache="nc")


def test_M12_cache_modes_exclude_each_other_on_a_host(region):
    with region.map("rw", cache="nc"), pytest.raises(OSError, match="M12") as caught:
        region.map("r", cache="cc")
    assert caught.value.errno == errno.EPERM


@given(
    st.lists(
        st.tuples(st.integers(0, 63), st.integers(1, 64), st.sampled_from(list(Right))).filter(
            lambda x: x[0] + x[1] <= 64
        ),
        max_size=30,
    )
)
def test_rights_map_is_an_array_of_rights(changes):
    runs, plain = RightsMap(0, 64, Right.NONE), [Right.NONE] * 64
    for start, size, right in changes:
        runs.set(start, start + size, right)
        plain[start : start + size] = [right] * size
    assert [right for low, high, right in runs.runs(0, 64) for _ in range(low, high)] == plain
    for low in range(0, 64, 7):
        for high in range(low + 1, 65, 11):
            assert runs.weakest(low, high) == min(plain[low:high])
            assert runs.strongest(low, high) == max(plain[low:high])


# --- PMD --------------------------------------------------------------------------------------------------------------


def test_pmd_regions_work_in_2_mib_units(a, b):
    with a.export_region(4 * MIB, pmd=True) as region, region.map("rw") as mapping:
        assert (mapping.address - 4096) % (2 * MIB) == 0
        assert mapping.granularity == 2 * MIB
        mapping.write(0, b"big pages")
        mapping.publish()
        assert mapping.round_out(0, 1) == (-4096, 2 * MIB - 4096)
        with b.import_region(region.handle(), pmd=True) as imported, imported.map("r") as reader:
            assert reader.read(0, 9) == b"big pages"
            with pytest.raises(ObmmArgumentError, match="O5"):
                reader.release(4096, 8192)


# --- publishing -------------------------------------------------------------------------------------------------------


def test_publish_makes_the_content_version_even_and_ready(a, b):
    with a.export_region(2 * MIB) as region, region.map("rw") as writer:
        with b.import_region(region.handle()) as imported, imported.map("r") as reader:
            before = RegionHeader.unpack(read_header_page(reader))
            assert (before.content_version, before.state) == (0, RegionState.EMPTY)
            assert before.writer_boot_id == int.from_bytes(boot_id()[:8], "little")
        writer.write(0, b"first")
        writer.publish()
        assert writer.right is Right.READ
        with b.import_region(region.handle()) as imported, imported.map("r") as reader:
            header = RegionHeader.unpack(read_header_page(reader))
            assert (header.content_version, header.state) == (2, RegionState.READY)
            assert reader.read(0, 5) == b"first"
            with writer.writing():
                writer.write(0, b"again")
            writer.publish()
            reader.refresh()
            assert reader.read(0, 5) == b"again"
            assert RegionHeader.unpack(read_header_page(reader)).content_version == 4


def test_publish_from_a_mapping_without_the_header(region):
    with region.map("rw", 8192, 16384) as part:
        part.write(8192, b"data")
        part.publish()
    with region.map("r") as mapping:
        assert RegionHeader.unpack(read_header_page(mapping)).content_version == 2


def test_publish_refuses_while_writable_views_live(rw):
    view = rw.as_numpy()
    with pytest.raises(MappingBusyError, match="writable"):
        rw.publish()
    del view
    rw.publish()


def test_refresh_refuses_while_views_live(region):
    with region.map("r") as mapping:
        view = mapping.view(0, 10)
        with pytest.raises(MappingBusyError, match="memoryview"):
            mapping.refresh()
        view.release()
        del view
        mapping.refresh()


# --- views ------------------------------------------------------------------------------------------------------------


def test_views_are_zero_copy_and_honour_the_right(region, rw):
    array = rw.as_numpy("<f4", (10, 100), offset=4)
    array[3, 5] = 2.5
    assert rw.load("<f4", 4 + 4 * 305) == 2.5
    view = rw.view(4, 8)
    assert not view.readonly
    del array, view
    rw.release(keep="r")
    assert rw.view().readonly
    assert not rw.as_numpy().flags.writeable
    with pytest.raises(OwnershipError):
        rw.as_numpy(writable=True)


def test_strided_row_view(rw):
    rw.write(0, bytes(range(240)))
    rows = rw.as_numpy("u1", (5, 3), offset=8, strides=(48, 1))
    assert rows[2].tolist() == [104, 105, 106]


@pytest.mark.parametrize(
    "options",
    [
        {"shape": -1},
        {"shape": (2, -1)},
        {"shape": 4, "strides": (-1,)},
        {"shape": 4, "strides": (1, 1)},
        {"dtype": "O"},
    ],
)
def test_impossible_views_are_refused(rw, options):
    with pytest.raises(ObmmArgumentError):
        rw.as_numpy(**options)


def test_a_view_keeps_mapping_region_and_device_alive(a, fabric):
    import obmm

    device = obmm.open(fabric.device("a"))
    region = device.export_region(2 * MIB)
    array = region.map("rw").as_numpy("<u8")
    slice_of_it = array[10:20]
    del array
    gc.collect()
    slice_of_it[:] = 9
    (mapping,) = region.mappings
    assert mapping.views
    del slice_of_it
    gc.collect()
    assert not mapping.views
    device.close()


def test_dlpack_goes_through_numpy_and_outlives_the_array(rw):
    rw.write(0, b"abcd")
    consumer = np.from_dlpack(rw)
    gc.collect()
    assert consumer[:4].tobytes() == b"abcd"
    with pytest.raises(MappingBusyError):
        rw.close()
    del consumer


def test_force_close_makes_late_access_fault_in_a_defined_way():
    program = """
import numpy, signal, obmm, obmm.emulator
with obmm.emulator.start(nodes=1) as fabric:
    device = obmm.open(fabric.device())
    mapping = device.export_region(1 << 21).map("rw")
    view = mapping.as_numpy()
    device.close(force=True)
    assert mapping.closed
    print("closed", flush=True)
signal.signal(signal.SIGSEGV, signal.SIG_DFL)
view[0]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "closed\n", done.stderr
    assert done.returncode == -11


def test_closed_mapping_refuses_everything(region):
    mapping = region.map("rw")
    mapping.close()
    mapping.close()
    for use in (
        lambda: mapping.read(0, 1),
        lambda: mapping.store("u1", 0, 1),
        mapping.publish,
        mapping.view,
        lambda: mapping.address,
    ):
        with pytest.raises(ClosedError):
            use()
    assert "closed" in repr(mapping)
