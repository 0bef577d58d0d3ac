# SPDX-License-Identifier: Apache-2.0
"""The region header (Engram specification 5.3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm.region.header import RegionHeader, RegionState

headers = st.builds(
    RegionHeader,
    generation=st.integers(1, 2**64 - 1),
    data_bytes=st.integers(0, 2**64 - 1),
    data_offset=st.integers(1, 1000).map(lambda pages: pages * 4096),
    content_version=st.integers(0, 2**64 - 1),
    state=st.sampled_from(RegionState),
    tables=st.integers(0, 2**32 - 1),
    manifest_sha256=st.binary(min_size=32, max_size=32),
    manifest_bytes=st.integers(0, 2**64 - 1),
    heartbeat=st.integers(0, 2**64 - 1),
    writer_boot_id=st.integers(0, 2**64 - 1),
)


@given(headers)
def test_round_trip(header):
    page = header.pack()
    assert len(page) == 4096
    assert RegionHeader.unpack(page) == header


@pytest.mark.parametrize(
    ("field", "offset", "value"),
    [
        ("content_version", 16, 0x1112131415161718),
        ("data_offset", 24, 8192),
        ("data_bytes", 32, 0x2122232425262728),
        ("manifest_bytes", 80, 77),
        ("generation", 88, 0x3132333435363738),
        ("heartbeat", 128, 99),
        ("writer_boot_id", 192, 123),
    ],
)
def test_each_field_stands_at_its_offset(field, offset, value):
    header = RegionHeader(**{"generation": 1, "data_bytes": 1, field: value})
    assert header.pack()[offset : offset + 8] == value.to_bytes(8, "little")


@pytest.mark.parametrize(
    ("position", "byte", "what"),
    [(0, 0, "magic"), (8, 9, "version"), (13, 0, "header of 0 bytes"), (24, 1, "data offset"), (40, 7, "state")],
)
def test_a_page_that_is_no_header_is_refused(position, byte, what):
    page = bytearray(RegionHeader(generation=1, data_bytes=1).pack())
    page[position] = byte
    with pytest.raises(ValueError, match=what):
        RegionHeader.unpack(bytes(page))
