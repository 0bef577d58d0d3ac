# SPDX-License-Identifier: Apache-2.0
"""What stands for a key."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from obmm import ObmmArgumentError
from obmm.blocks import Namespace
from tests.seeds import seed


def test_hashes_are_keyed_blake2b_whatever_the_length() -> None:
    random = np.random.default_rng(seed())
    lengths = [*range(300), 4095, 65_535, 65_536, *random.integers(0, 2_000, 200).tolist()]
    keys = [random.integers(0, 256, length, dtype=np.uint8).tobytes() for length in lengths]
    digest = hashlib.blake2b(b'{"model":"m"}', digest_size=40, person=b"obmm blocks 1").digest()
    expected = [hashlib.blake2b(key, digest_size=16, key=digest[:32]).digest() for key in keys]
    assert Namespace(model="m").hashes(keys) == b"".join(expected)
    assert Namespace(model="m").hash(keys[129]) == expected[129]


def test_text_is_hashed_as_its_utf8() -> None:
    space = Namespace(model="m")
    assert space.hashes(["ä", b"x"]) == space.hashes(["ä".encode(), "x"]) == space.hash("ä") + space.hash("x")
    assert space.hashes([]) == b""


class Liar(bytes):
    def __len__(self) -> int:
        return 1 << 10


def test_a_key_that_says_another_length_than_it_has_is_refused() -> None:
    with pytest.raises(ObmmArgumentError, match="another length"):
        Namespace(model="m").hashes([b"a", Liar(b"b")])
