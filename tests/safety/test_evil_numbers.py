# SPDX-License-Identifier: Apache-2.0
"""Numbers whose methods lie, fail, or close what they are an argument of."""

from __future__ import annotations

import errno

import numpy as np
import pytest

import obmm
from obmm import emulator
from obmm.arguments import whole
from obmm.errors import ObmmArgumentError, ObmmError

MIB = 1 << 20


class Liar(int):
    """Is 1 << 40, and says of itself that it is in every range."""

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __lt__

    def __int__(self) -> int:
        return 8

    def __index__(self) -> int:
        return 8


def test_a_subclass_of_int_is_the_number_that_it_is():
    with pytest.raises(ObmmArgumentError) as caught:
        whole("READ", "offset", Liar(1 << 40), low=0, high=MIB)
    assert caught.value.errno == errno.EINVAL
    assert type(whole("READ", "offset", Liar(5), low=0, high=MIB)) is int
    assert whole("READ", "offset", Liar(5)) == 5


class Closes:
    """A number that closes a mapping for good while it is asked."""

    def __init__(self, mapping: obmm.Mapping) -> None:
        self.mapping = mapping

    def __index__(self) -> int:
        self.mapping.close(force=True)
        return 0


@pytest.fixture(scope="module")
def device():
    with emulator.start(nodes=1) as fabric, obmm.open(fabric.device("a")) as opened:
        yield opened


CALLS = {
    "read": lambda mapping, number: mapping.read(number, 8),
    "read bytes": lambda mapping, number: mapping.read(0, number),
    "write": lambda mapping, number: mapping.write(number, b"12345678"),
    "load": lambda mapping, number: mapping.load("<u8", number),
    "store": lambda mapping, number: mapping.store("<u8", number, 1),
    "stored value": lambda mapping, number: mapping.store("<u8", 0, number),
    "snapshot": lambda mapping, number: mapping.snapshot(number, 8),
    "view": lambda mapping, number: mapping.view(number, 8),
    "as_numpy": lambda mapping, number: mapping.as_numpy("<u8", (1,), offset=number),
    "rows": lambda mapping, number: mapping.rows(64, offset=number),
    "acquire": lambda mapping, number: mapping.acquire("r", number, 4096),
    "release": lambda mapping, number: mapping.release(number, 4096),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_mapping_that_its_argument_closes_is_closed(device, name):
    """No address of before is used: an error of ours, or a view of pages that cannot be touched."""
    with device.export_region(2 * MIB) as region:
        mapping = region.map("rw", cache="nc" if "acquire" not in name and "release" not in name else "cc")
        other = region.map("rw", cache="nc") if "acquire" not in name and "release" not in name else None
        if other is not None:
            other.write(0, bytes(8))
        with pytest.raises((ObmmError, TypeError, ValueError)):
            CALLS[name](mapping, Closes(mapping))
        assert mapping.closed
        if other is not None:
            assert not np.frombuffer(other.read(0, 8), "u1").any()
            other.close()
