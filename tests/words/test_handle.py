# SPDX-License-Identifier: Apache-2.0
"""The 80-byte handle (docs/exchange-protocol.md)."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm import Handle, HandleFlag, ObmmArgumentError, eid

GOLDEN = Handle(
    mem_id=0x0102,
    length=4 << 20,
    uba=0xFFFFFFC00000,
    tokenid=0x4A9,
    owner_cna=0x40A,
    owner_eid=eid(0x12),
    peer_eid=eid(0x34),
    pxm_numa=-1,
    base_dist=20,
    flags=HandleFlag.CC | HandleFlag.HEADER,
    generation=0x1122334455667788,
)
GOLDEN_BYTES = bytes.fromhex(
    "0201000000000000" "0000400000000000" "0000c0ffffff0000" "a9040000" "0a040000"
    "12000000000000000000000000000000" "34000000000000000000000000000000"
    "ffffffff" "14" "01" "0900" "8877665544332211"
)  # fmt: skip

handles = st.builds(
    Handle,
    mem_id=st.integers(0, 2**64 - 1),
    length=st.integers(1, 2**64 - 1),
    uba=st.integers(0, 2**64 - 1),
    tokenid=st.integers(0, 2**32 - 1),
    owner_cna=st.integers(0, 2**32 - 1),
    owner_eid=st.binary(min_size=16, max_size=16),
    peer_eid=st.binary(min_size=16, max_size=16),
    pxm_numa=st.integers(-(2**31), 2**31 - 1),
    base_dist=st.integers(0, 255),
    flags=st.sampled_from([HandleFlag(bits) for bits in range(16) if bits & 3 != 3]),
    generation=st.integers(1, 2**64 - 1),
)


def test_golden_bytes():
    assert GOLDEN.pack() == GOLDEN_BYTES
    assert Handle.unpack(GOLDEN_BYTES) == GOLDEN


@given(handles)
def test_round_trip(handle):
    packed = handle.pack()
    assert len(packed) == 80
    assert Handle.unpack(packed) == handle


@given(st.binary(min_size=80, max_size=80))
def test_any_80_bytes_are_a_handle_or_a_named_refusal(data):
    try:
        handle = Handle.unpack(data)
    except ObmmArgumentError as error:
        assert "fix:" in str(error)
    else:
        assert handle.pack() == data


@pytest.mark.parametrize("size", [0, 1, 72, 79, 81, 160])
def test_wrong_size_is_refused(size):
    with pytest.raises(ObmmArgumentError, match=f"{size} bytes, a handle has 80"):
        Handle.unpack(bytes(size))


def test_wrong_version_is_refused():
    data = bytearray(GOLDEN_BYTES)
    data[69] = 2
    with pytest.raises(ObmmArgumentError, match="version 2"):
        Handle.unpack(data)


@pytest.mark.parametrize("bit", range(4, 16))
def test_reserved_flag_bits_are_refused(bit):
    data = bytearray(GOLDEN_BYTES)
    data[70 + bit // 8] |= 1 << bit % 8
    with pytest.raises(ObmmArgumentError, match="reserved"):
        Handle.unpack(data)


def test_both_cache_flags_are_refused():
    with pytest.raises(ObmmArgumentError, match="CC and NC"):
        dataclasses.replace(GOLDEN, flags=HandleFlag.CC | HandleFlag.NC)


def test_zero_generation_is_refused():
    with pytest.raises(ObmmArgumentError, match="generation=0"):
        Handle.unpack(GOLDEN_BYTES[:72] + bytes(8))


@pytest.mark.parametrize("length", [0, 4, 15, 17])
def test_eid_of_wrong_length_is_refused(length):
    with pytest.raises(ObmmArgumentError, match="16 raw bytes"):
        dataclasses.replace(GOLDEN, owner_eid=bytes(length))


def test_secrets_stay_out_of_repr_and_errors():
    text = repr(GOLDEN) + str(GOLDEN)
    for secret in (GOLDEN.uba, GOLDEN.tokenid):
        assert str(secret) not in text
        assert f"{secret:x}" not in text
    with pytest.raises(ObmmArgumentError) as caught:
        dataclasses.replace(GOLDEN, tokenid=1 << 40)
    assert str(1 << 40) not in str(caught.value)


def test_tokenid_zero_is_legal():
    assert Handle.unpack(dataclasses.replace(GOLDEN, tokenid=0).pack()).tokenid == 0
