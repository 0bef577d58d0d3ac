# SPDX-License-Identifier: Apache-2.0
"""Where import addresses come from (docs/windows.md)."""

from __future__ import annotations

import errno
import os

import pytest

import obmm
from obmm import ObmmArgumentError, ObmmError, StaticWindows

MIB = 1 << 20
ENTRY = """
[[window]]
address = {address:#x}
length = "{length}"
cache = "{cache}"
local_cna = {local:#x}
owner_cna = {owner:#x}
"""


@pytest.fixture
def table(tmp_path):
    def write(text: str, mode: int = 0o600):
        path = tmp_path / "windows.toml"
        path.write_text(text)
        os.chmod(path, mode)
        return path

    return write


def test_static_windows_import_at_the_listed_address(a, b, fabric, table):
    with a.export_region(2 * MIB) as region:
        handle = region.handle()
        programmed = b.windows.acquire(handle, b.controllers[0], "cc")
        path = table(
            ENTRY.format(
                address=programmed.address,
                length="4MiB",
                cache="cc",
                local=b.controllers[0].cna,
                owner=handle.owner_cna,
            )
        )
        with obmm.open(fabric.device("b"), windows=path) as device:
            assert "static" in device.windows.name
            with device.import_region(handle) as imported, imported.map("r") as mapping:
                assert imported.window.address == programmed.address
                assert mapping.load("u8", 0) == 0
                with pytest.raises(ObmmError, match="no free window"):
                    device.import_region(handle)
        b.windows.release(programmed)


def test_I13_the_next_matching_entry_is_tried(a, b, fabric, table):
    with a.export_region(2 * MIB) as region:
        handle = region.handle()
        windows = [b.windows.acquire(handle, b.controllers[0], "cc") for _ in range(2)]
        common = {"length": "4MiB", "cache": "cc", "local": b.controllers[0].cna, "owner": handle.owner_cna}
        path = table("".join(ENTRY.format(address=window.address, **common) for window in windows))
        with b.import_region(handle, window=windows[0].address), obmm.open(fabric.device("b"), windows=path) as device:
            with device.import_region(handle) as imported:
                assert imported.window.address == windows[1].address
        for window in windows:
            b.windows.release(window)


@pytest.mark.parametrize("mode", [0o644, 0o660, 0o604])
def test_a_table_that_others_can_read_is_refused(table, mode):
    with pytest.raises(ObmmArgumentError, match="chmod 0600") as caught:
        StaticWindows(table("", mode))
    assert caught.value.errno == errno.EACCES


GOOD = {"address": 0xA0000000, "length": "128MiB", "cache": "cc", "local": 1, "owner": 2}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "not TOML"),
        ("[other]\n", "unknown keys"),
        ("[[window]]\naddress = 2097152\n", "missing"),
        (ENTRY.format(**GOOD) + "colour = 1\n", "unknown \\['colour'\\]"),
        (ENTRY.format(**GOOD | {"cache": "wb"}), "cache = 'wb'"),
        (ENTRY.format(**GOOD | {"address": 0xA0000001}), "multiple of 2 MiB"),
        (ENTRY.format(**GOOD | {"length": "3 miles"}), "not a unit"),
        (ENTRY.format(**GOOD) + ENTRY.format(**GOOD | {"address": 0xA4000000}), "overlap"),
    ],
)
def test_errors_in_a_table_are_named(table, text, problem):
    with pytest.raises(ObmmArgumentError, match=problem):
        StaticWindows(table(text))


def test_uba_as_address_is_named(a, b):
    with a.export_region(2 * MIB) as region, pytest.raises(ObmmArgumentError, match="UBA"):
        b.import_region(region.handle(), window=region.handle().uba)
