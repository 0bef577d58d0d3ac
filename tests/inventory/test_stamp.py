# SPDX-License-Identifier: Apache-2.0
"""The owner stamp in `priv` (driver specification 11.1 and 18)."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from obmm.stamp import OwnerStamp, hardware_word, start_time

STAMP = OwnerStamp.of_this_process("table", 77)

stamps = st.builds(
    OwnerStamp,
    boot_id=st.binary(min_size=16, max_size=16),
    pid_namespace=st.integers(0, 2**64 - 1),
    pid=st.integers(0, 2**32 - 1),
    start_time=st.integers(0, 2**64 - 1),
    label=st.text(max_size=12),
    generation=st.integers(0, 2**64 - 1),
    created=st.integers(0, 2**64 - 1),
)


@given(stamps, st.integers(0, 0xFFFF))
def test_round_trip_behind_the_hardware_word(stamp, word):
    priv = stamp.pack(word)
    assert len(priv) == 128
    assert priv[:8] == word.to_bytes(2, "little") + bytes(6)
    assert OwnerStamp.find(priv) == stamp
    assert OwnerStamp.find(priv.ljust(512, b"\0")) == stamp


@given(st.integers(8 * 8, 124 * 8 - 1))
def test_a_stamp_with_any_bit_changed_is_no_stamp(bit):
    priv = bytearray(STAMP.pack(0))
    priv[bit // 8] ^= 1 << bit % 8
    assert OwnerStamp.find(bytes(priv)) is None


@given(st.binary(max_size=512))
def test_foreign_bytes_are_no_stamp(priv):
    assert OwnerStamp.find(priv) is None


def test_a_long_label_is_cut_between_characters():
    stamp = OwnerStamp.find(dataclasses.replace(STAMP, label="ä" * 40).pack(0))
    assert stamp is not None
    assert stamp.label == "ä" * 24


def test_hardware_word_says_cacheable_as_mapped_and_on_chip():
    assert hardware_word("cc") == 0b1100000
    assert hardware_word("nc") == 0b0100000


def test_this_process_is_alive():
    assert STAMP.liveness() == "alive"


def test_another_boot_is_dead():
    assert dataclasses.replace(STAMP, boot_id=bytes(16)).liveness() == "dead"


def test_a_reused_pid_is_dead():
    assert dataclasses.replace(STAMP, start_time=STAMP.start_time + 1).liveness() == "dead"


def test_a_zombie_is_dead():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    stamp = dataclasses.replace(STAMP, pid=child.pid, start_time=start_time(child.pid) or 0)
    assert stamp.liveness() == "alive"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert stamp.liveness() == "dead"
    child.communicate()
