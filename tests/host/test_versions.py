# SPDX-License-Identifier: Apache-2.0
"""Each reader of a format answers the next version with one sentence: made by a newer obmm, upgrade."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import zlib
from pathlib import Path

import pytest

import obmm
from obmm import emulator
from obmm._native import ffi, lib
from obmm.broker.broker import Broker
from obmm.broker.policy import Policy
from obmm.driver.backend import Backend
from obmm.emulator import control, protocol
from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.frames import HEADER, MAGIC, VERSION, FrameReader, FrameType
from obmm.handle import Handle
from obmm.host.inventory import plan_removal, regions
from obmm.region.stamp import OwnerStamp
from obmm.rows import Manifest, TableSpec

MIB = 1 << 20


@pytest.fixture
def fabric():
    with emulator.start(nodes=2) as fabric:
        yield fabric


def a_header(fabric, _folder):
    with obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b, a.export_region(MIB) as region:
        with obmm.attach(region.mem_id, region.length, device=fabric.device("a")) as raw, raw.map("rw") as mapping:
            mapping.write(8, struct.pack("<I", 2))
        with b.import_region(region.handle()) as imported:
            imported.map("r")


def a_handle(fabric, _folder):
    with obmm.open(fabric.device("a")) as a, a.export_region(MIB) as region:
        data = bytearray(region.handle().pack())
        data[69] = 2
        Handle.unpack(data)


def an_array(_fabric, _folder):
    ArrayManifest.parse({"format": "obmm-array", "version": 2, "dtype": "<f4", "shape": [1]})


def a_table(_fabric, _folder):
    manifest = Manifest((TableSpec("t", 1, 64),)).to_dict() | {"version": 2}
    Manifest.from_dict(json.loads(json.dumps(manifest)))


def a_policy(_fabric, folder):
    (folder / "policy.toml").write_text("version = 2\n")
    Policy(folder / "policy.toml")


READERS = [a_header, a_handle, an_array, a_table, a_policy]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_the_next_version_is_told_to_upgrade(fabric, tmp_path, read):
    with pytest.raises(obmm.ObmmError, match="is of version 2, made by a newer obmm: upgrade this one") as caught:
        read(fabric, tmp_path)
    assert "fresh handle" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fabric_of_the_next_version_is_told_to_upgrade(fabric, monkeypatch):
    monkeypatch.setattr(protocol, "VERSION", protocol.VERSION - 1)
    with pytest.raises(control.ControlError, match="made by a newer obmm: upgrade"):
        control.ControlClient(fabric.socket)


def test_a_peer_of_the_next_version_is_told_to_upgrade():
    reader = FrameReader(frozenset(FrameType))
    with pytest.raises(obmm.ObmmError, match="made by a newer obmm: upgrade"):
        list(reader.feed(HEADER.pack(MAGIC, VERSION + 1, 1, 0, 0, 0)))


def test_a_region_with_the_next_stamp_is_kept_and_says_why(fabric):
    with obmm.open(fabric.device("a")) as a, a.export_region(MIB, label="x") as region:
        path = Path(f"{a.root}/sys/devices/obmm/obmm_shmdev{region.mem_id}/priv")
        priv = bytearray(path.read_bytes())
        priv[15:16] = b"2"
        priv[120:124] = struct.pack("<I", zlib.crc32(priv[8:120]))
        assert OwnerStamp.find(bytes(priv)) is None
        assert OwnerStamp.newer(bytes(priv)) == 2
        os.chmod(path, 0o600)
        path.write_bytes(bytes(priv))
        (record,) = regions(a.root)
        (plan,) = plan_removal([record], exports=True, force=True, all_released=lambda _: True)
        assert (plan.verdict, record.owner) == ("keep", "unknown")
        assert "is of version 2, made by a newer obmm: upgrade" in plan.reason


def test_a_broker_tells_the_next_version_to_upgrade(fabric, tmp_path):
    rules = tmp_path / "policy.toml"
    rules.write_text("version = 1\n")
    path = tmp_path / "broker.sock"
    with Broker(Backend.parse(fabric.device("a")), Policy(rules), path) as broker:
        thread = threading.Thread(target=broker.serve)
        thread.start()
        request = ffi.new("struct obmm_broker_request *")
        request.magic, request.version, request.kind = lib.OBMM_BROKER_MAGIC, lib.OBMM_BROKER_VERSION + 1, 1
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(path))
            connection.sendall(bytes(ffi.buffer(request)))
            answer = ffi.new("struct obmm_broker_answer *")
            ffi.buffer(answer)[:] = connection.recv(ffi.sizeof("struct obmm_broker_answer"))
        assert os.strerror(answer.error) == "Protocol not supported"
        broker.stop()
        thread.join()
