# SPDX-License-Identifier: Apache-2.0
"""What programs and files out there count on: names that stay, and the bytes of what is kept or sent.

Something new may be added.  What stands here may only change with a version that says so: of the package for names, of
the format for bytes.  Handles, frames, structs and the region's header are in test_handle, tests/exchange/test_golden,
tests/test_abi and tests/region/test_header.
"""

from __future__ import annotations

import importlib

import pytest

import obmm
from obmm import errors
from obmm.cli.main import main
from obmm.exchange.journal_lines import grant_line
from obmm.exchange.leases import LeaseRecord
from obmm.region.stamp import OwnerStamp
from obmm.rows import Manifest, TableSpec

FRONT_DOOR = """
    AttachedRegion Backend ClosedError Controller Device DeviceNotFoundError ExplicitWindow ExportedRegion Handle HandleFlag
    ImportedRegion Lease Mapping MappingBusyError ObmmArgumentError ObmmError OwnershipError Peer RemoteMemoryError Right
    Server StaleHandleError StaticWindows Window WindowProvider __version__ attach connect eid emulator open serve
"""
COMMANDS = "bench demo doctor emulate explain fetch gc ls open-broker serve smoke"
PACKAGES = "exchange rows prefetch prefetch.pool sdk emulator bench urma"
ERRORS = {
    "ObmmError": (OSError,),
    "ObmmArgumentError": (errors.ObmmError, ValueError),
    "DeviceNotFoundError": (errors.ObmmError,),
    "ClosedError": (errors.ObmmError, ValueError),
    "StaleHandleError": (errors.ObmmError,),
    "MappingBusyError": (errors.ObmmError,),
    "OwnershipError": (errors.ObmmError,),
    "RemoteMemoryError": (errors.ObmmError,),
}


def test_the_front_door_has_every_name_that_it_had():
    assert set(FRONT_DOOR.split()) - set(obmm.__all__) == set()


def test_every_command_is_there():
    assert set(COMMANDS.split()) - set(main.list_commands(None)) == set()


@pytest.mark.parametrize("name", PACKAGES.split())
def test_a_documented_package_is_imported_by_its_name(name):
    module = importlib.import_module(f"obmm.{name}")
    assert all(hasattr(module, each) for each in getattr(module, "__all__", ()))


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_caught_as_what_it_was(name):
    assert getattr(errors, name).__bases__ == ERRORS[name]
    assert getattr(obmm, name) is getattr(errors, name)


def test_bytes_of_an_owner_stamp():
    stamp = OwnerStamp(
        boot_id=bytes(range(16)),
        pid_namespace=0xF0000001,
        pid=4711,
        start_time=123456789,
        label="table ä",
        generation=0x1122334455667788,
        created=1_700_000_000,
    )
    golden = bytes.fromhex(
        "6000000000000000" "4f424d4d4f574e31" "000102030405060708090a0b0c0d0e0f" "010000f000000000" "67120000" "0800" "0000"
        "15cd5b0700000000" "8877665544332211" "00f1536500000000" "7461626c6520c3a4"
    ).ljust(120, b"\0") + bytes.fromhex("73e141f0" "00000000")  # fmt: skip
    assert stamp.pack(0x60) == golden
    assert OwnerStamp.find(golden) == stamp


def test_bytes_of_a_manifest():
    table = TableSpec(
        table_id=3,
        n_rows=100,
        row_bytes=20,
        row_stride=24,
        base_offset=4096,
        dtype="u1",
        values=20,
        head_offsets=(0, 50),
        layer_id=7,
    )
    manifest = Manifest((table,), 9, {3: ((0, 5), (99, 6))}, model={"model": "x"})
    golden = (
        b'{"canary":[{"rows":[[0,5],[99,6]],"table_id":3}],"format":"obmm-table","generation":9,"model":"x","segments":[],'
        b'"tables":[{"data_offset":4096,"dtype":"u1","head_offsets":[0,50],"layer_id":7,"neutral_zero":false,"row_bytes":20,'
        b'"row_stride":24,"rows":100,"scale_layout":"","table_id":3,"values":20}],"version":1}'
    )
    assert manifest.to_json() == golden
    assert Manifest.from_json(golden) == manifest


def test_a_line_of_a_lease_journal(monkeypatch):
    monkeypatch.setattr("obmm.exchange.journal_lines.boot_id", lambda: "boot-1")
    lease = LeaseRecord(
        id=(5).to_bytes(16, "big"),
        region="table",
        generation=0xFEDCBA9876543210,
        client="c/1",
        address="127.0.0.1",
        identity="",
        importer_eid=bytes(16),
        granted=1.5,
    )
    checksum, text = grant_line(lease).split(b" ", 1)
    assert text == (
        b'{"event":"grant","lease":"00000000000000000000000000000005","region":"table","generation":"fedcba9876543210",'
        b'"client":"c/1","address":"127.0.0.1","identity":"","importer_eid":"00000000000000000000000000000000","granted":1.5,'
        b'"boot":"boot-1"}\n'
    )
    assert checksum == b"38429316"
