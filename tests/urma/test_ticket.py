# SPDX-License-Identifier: Apache-2.0
"""The 128 bytes (URMA specification 8.1; conformance list 29)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm import urma
from obmm._native import ffi, lib

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)


@st.composite
def tickets(draw: Any) -> urma.Ticket:
    length = draw(st.integers(1, 1 << 48))
    eid = st.binary(min_size=16, max_size=16)
    return urma.Ticket(
        draw(st.booleans()), draw(eid), draw(U32), draw(U32), draw(st.integers(0, (1 << 64) - length)), length,
        draw(U32) & ~(1 << 14), draw(U32), draw(st.integers(0, 1)), draw(U32), draw(U32), draw(st.integers(0, 1)),
        draw(U32), draw(eid), draw(U32), draw(st.sampled_from("AC")), draw(st.integers(1, (1 << 64) - 1)),
    )  # fmt: skip


@given(tickets())
def test_round_trip(ticket: urma.Ticket) -> None:
    assert len(ticket.pack()) == 128
    assert urma.Ticket.unpack(ticket.pack()) == ticket


@given(tickets(), st.integers(0, 127), st.integers(1, 255))
def test_a_flipped_byte_is_refused(ticket: urma.Ticket, at: int, flip: int) -> None:
    raw = bytearray(ticket.pack())
    raw[at] ^= flip
    with pytest.raises(urma.UrmaTicketError, match="no usable ticket"):
        urma.Ticket.unpack(raw)


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(urma.UrmaTicketError):
        urma.Ticket.unpack(data)


def with_crc(raw: bytearray) -> bytes:
    raw[120:124] = struct.pack("<I", lib.obmm_crc32c(0, ffi.from_buffer(raw), 120))
    return bytes(raw)


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (8, b"\x02\x00", "newer obmm"),
        (10, b"\x7f\x00", "127 bytes"),
        (12, b"\x07\x00", "unknown flags"),
        (12, b"\x01\x00", "no target"),
        (48, bytes(8), "0 bytes"),
        (40, b"\xff" * 8, "no address space"),
        (76, b"\x02", "transport mode 2"),
        (108, b"\x03", "ABI profile 3"),
        (110, b"\x01", "spare"),
        (57, b"\x40", "information behind"),
    ],
)
def test_each_field_that_this_side_cannot_use_is_named(at: int, value: bytes, why: str) -> None:
    raw = bytearray(
        urma.Ticket(True, bytes(16), 1, 256, 4096, 8192, 0x20C1, 5, 1, 2, 1, 1, 2, bytes(16), 6, "C", 9).pack()
    )
    raw[at : at + len(value)] = value
    with pytest.raises(urma.UrmaTicketError, match=why):
        urma.Ticket.unpack(with_crc(raw))


def test_a_ticket_of_hardware_is_not_for_a_stand_in(context: urma.Context) -> None:
    real = urma.Ticket(False, bytes(16), 1, 256, 4096, 8192, 0x20C1, 5, 1, 2, 1, 1, 2, bytes(16), 6, "C", 9)
    with pytest.raises(urma.UrmaTicketError, match="real hardware"):
        context.queue().attach(real.pack())
