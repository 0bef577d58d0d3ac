# SPDX-License-Identifier: Apache-2.0
"""Opening, arguments that never reach the driver, closing."""

from __future__ import annotations

import dataclasses
import errno

import pytest

import obmm
from obmm import Device, Handle, HandleFlag, ObmmArgumentError, ObmmError

MIB = 1 << 20
HANDLE = Handle(1, 4 * MIB, 0xFFFFFFC00000, 1, 0x40A, obmm.eid(0x12), generation=1)


def test_no_driver_is_an_error_that_names_both_ways_out():
    with pytest.raises(obmm.DeviceNotFoundError) as caught:
        obmm.open("/dev/obmm")
    assert caught.value.errno == errno.ENOENT
    assert "modprobe obmm" in str(caught.value)
    assert "obmm emulate up" in str(caught.value)


def test_no_fabric_is_never_replaced_by_something_else(tmp_path):
    with pytest.raises(obmm.DeviceNotFoundError, match="obmm emulate up"):
        obmm.open(f"emulator:{tmp_path}/none.sock")


@pytest.mark.parametrize("name", ["", "kernel", "/dev/obmm#a", "emulated", "emulator2:x", "/dev/obmm_shmdev1"])
def test_unknown_device_names_are_refused(name, monkeypatch):
    monkeypatch.setenv("OBMM_DEVICE", name)
    with pytest.raises((ObmmArgumentError, obmm.DeviceNotFoundError)):
        obmm.open()


def test_unknown_node_is_refused_by_name(fabric):
    with pytest.raises(ObmmArgumentError, match="'nowhere'"):
        obmm.open(f"emulator:{fabric.socket}#nowhere")


def test_environment_chooses_the_backend(fabric, monkeypatch, a):
    monkeypatch.setenv("OBMM_DEVICE", fabric.device("b"))
    with obmm.open() as device:
        assert str(device.backend) == fabric.device("b")
        assert "emulator:" in repr(device)


def test_controllers_come_from_sysfs(a, b):
    (one,), (two,) = a.controllers, b.controllers
    assert one.cna != two.cna != 0
    assert one.eid != two.eid != bytes(16)
    assert len(one.vendor_info()) == 24
    assert a.granule == 2 * MIB


@pytest.mark.parametrize(
    ("size", "options", "text"),
    [
        (0, {}, "positive"),
        (-1, {}, "positive"),
        (True, {}, "whole number"),
        (1.5, {}, "whole number"),
        ((1 << 63) + 1, {}, "2\\^63"),
        (3 * MIB, {"header": False}, "multiple of the granule"),
        ("3 parsecs", {}, "not a unit"),
        ("lots", {}, "not a size"),
        ({}, {}, "no size at all"),
        ({16: 2 * MIB}, {}, "NUMA node 16"),
        ({-1: 2 * MIB}, {}, "NUMA node -1"),
        (2 * MIB, {"controller": 0xDEAD}, "0xdead is not a controller"),
        (2 * MIB, {"vendor_info": bytes(129)}, "129"),
        (2 * MIB, {"priv": bytes(513)}, "513"),
    ],
)
def test_bad_export_arguments_are_refused_with_value_and_fix(a, size, options, text):
    with pytest.raises(ObmmArgumentError, match=text) as caught:
        a.export_region(size, **options)
    assert "fix:" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "options", "text"),
    [
        ({}, {"cache": "both"}, "'both'"),
        ({}, {"window": HANDLE.uba}, "exporter's UBA"),
        ({}, {"window": 0xA0000001}, "not a multiple of 2 MiB"),
        ({}, {"window": 0}, "zero"),
        ({}, {"controller": 0x999}, "0x999 is not a controller"),
        ({"owner_cna": 0}, {}, "owner CNA is 0"),
        ({"owner_eid": bytes(16)}, {}, "all zero"),
        ({"length": 4 * MIB + 4096}, {}, "multiple of 2 MiB"),
        ({"base_dist": 5}, {}, "base_dist=5"),
        ({}, {"priv": bytes(513)}, "513"),
    ],
)
def test_bad_import_arguments_are_refused_with_value_and_fix(b, change, options, text):
    with pytest.raises(ObmmArgumentError, match=text) as caught:
        b.import_region(dataclasses.replace(HANDLE, **change), **options)
    assert "fix:" in str(caught.value)


def test_the_drivers_refusal_is_explained(a):
    with pytest.raises(ObmmError) as caught:
        a.export_region(2 * MIB, numa=7)
    assert caught.value.errno == errno.ENODEV
    assert "[X3b]" in str(caught.value)


def test_an_address_outside_the_windows_is_explained(b):
    with pytest.raises(ObmmError) as caught:
        b.import_region(HANDLE, window=0x1000 * MIB)
    assert caught.value.errno == errno.EINVAL
    assert "[I14]" in str(caught.value)
    assert "never the exporter's UBA" in str(caught.value)


def test_handle_flags_choose_the_window(a, b):
    with a.export_region(2 * MIB) as region:
        for cache, flag in (("cc", HandleFlag.CC), ("nc", HandleFlag.NC)):
            handle = region.handle(cache=cache)
            assert handle.flags & flag
            with b.import_region(handle) as imported:
                assert imported.window.cache == cache


def test_query_round_trip(a):
    with a.export_region(4 * MIB) as region:
        for offset in (0, 1, 2 * MIB - 1, 2 * MIB, region.length - 1):
            assert a.query_id(a.query_pa(region.mem_id, offset)) == (region.mem_id, offset)
        with pytest.raises(ObmmError) as caught:
            a.query_pa(region.mem_id, region.length)
        assert caught.value.errno == errno.EINVAL


def test_close_is_idempotent_and_ends_every_use(a, fabric):
    device = obmm.open(fabric.device("a"))
    region = device.export_region(2 * MIB)
    device.close()
    device.close()
    assert not device
    assert region.closed
    for use in (lambda: device.export_region(2 * MIB), lambda: device.query_pa(1), device.fileno, lambda: region.map()):
        with pytest.raises(obmm.ClosedError):
            use()


def test_a_forgotten_device_warns_and_closes(a, fabric):
    with pytest.warns(ResourceWarning, match="never closed"):
        Device(obmm.Backend.parse(fabric.device("a")))
