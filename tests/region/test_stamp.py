# SPDX-License-Identifier: Apache-2.0
"""The owner stamp in `priv` (driver specification 11.1 and 18)."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm.driver import process as process_module
from obmm.driver.process import boot_id, start_time
from obmm.region import stamp as stamp_module
from obmm.region.stamp import OwnerStamp, hardware_word

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


# The main thread ends for good; a second one goes on with the descriptors until its input ends.
OUTLIVES = """
import ctypes, os, sys, threading
def rest():
    main = f"/proc/self/task/{os.getpid()}/stat"
    while open(main).read().rpartition(")")[2].split()[0] != "Z":
        os.sched_yield()
    os.write(1, b"ended\\n")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=rest).start()
ctypes.CDLL(None).syscall(%d, 0)  # exit(2): of this thread alone
"""


def test_a_process_whose_main_thread_ended_is_alive_until_its_last_thread_ends():
    exit_of_one_thread = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    child = subprocess.Popen(
        [sys.executable, "-c", OUTLIVES % exit_of_one_thread], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    stamp = dataclasses.replace(STAMP, pid=child.pid, start_time=start_time(child.pid) or 0)
    assert child.stdout.readline() == b"ended\n"
    assert stamp.liveness() == "alive"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert stamp.liveness() == "dead"
    child.communicate()


# Two processes of one namespace: the parent asks whether its child lives.
ASKS = """
import subprocess, sys
from obmm.region.stamp import OwnerStamp
make = "from obmm.region.stamp import *; import os; s = OwnerStamp.of_this_process(''); print(s.pack(0).hex(), flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", make], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
stamp = OwnerStamp.find(bytes.fromhex(child.stdout.readline()))
print(stamp.liveness(), flush=True)
child.kill(); child.wait(); print(stamp.liveness())
"""


def in_namespace(*command: str) -> list[str]:
    if subprocess.run(["unshare", "-m", "-p", "-T", "-f", "true"], capture_output=True).returncode:
        pytest.skip("namespaces need CAP_SYS_ADMIN")
    done = subprocess.run(["unshare", *command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_where_proc_is_another_namespaces_no_process_is_declared_dead():
    assert in_namespace("-p", "-f", sys.executable, "-c", ASKS) == ["unknown", "unknown"]


def test_in_a_namespace_with_its_own_proc_the_dead_are_dead():
    assert in_namespace("-m", "-p", "-f", "--mount-proc", sys.executable, "-c", ASKS) == ["alive", "dead"]


def test_a_process_that_proc_hides_is_not_declared_dead(monkeypatch, tmp_path):
    boot_id()  # cached: it is not hidden
    monkeypatch.setattr(stamp_module, "Path", lambda path: tmp_path / path.lstrip("/"))
    monkeypatch.setattr(process_module, "Path", lambda path: tmp_path / path.lstrip("/"))
    assert STAMP.liveness() == "unknown"
    assert dataclasses.replace(STAMP, pid=1 << 30).liveness() == "dead"


def test_a_start_time_is_the_same_in_every_time_namespace():
    show = f"from obmm.region.stamp import start_time; print(start_time({os.getpid()}))"
    assert in_namespace("-T", "--boottime", "5000", "-f", sys.executable, "-c", show) == [str(start_time(os.getpid()))]
