# SPDX-License-Identifier: Apache-2.0
"""Guarded means guarded, whatever handlers and masks the process has: every guarded call against every way to take the
signal from us (docs/safety.md)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from obmm import emulator

CALLS = """
import ctypes, faulthandler, json, os, signal, sys, threading
from faulthandler import disable as bound_disable, enable as bound_enable  # before anybody could wrap them
import numpy as np
import obmm
from obmm.emulator.control import ControlClient
from obmm.prefetch import PolyHasher
from obmm.blocks import Pieces
from obmm.exchange import ArrayManifest, connect, serve
from obmm.prefetch import EngramPrefetcher, PrefetchLayer
from obmm.rows import Manifest, RowStore, TableSpec

BOTH = (signal.SIGBUS, signal.SIGSEGV)
libc = ctypes.CDLL(None)
HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)

def from_c(handler):
    for number in BOTH:
        libc.signal(number, ctypes.cast(handler, ctypes.c_void_p))

def block_from_c():
    full = (ctypes.c_ulong * 16)(*[2**64 - 1] * 16)
    libc.pthread_sigmask(0, full, None)

def alternate_stack():
    class Stack(ctypes.Structure):
        _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
    alternate_stack.memory = memory = ctypes.create_string_buffer(1 << 16)
    libc.sigaltstack(ctypes.byref(Stack(ctypes.addressof(memory), 0, len(memory))), None)

BEFORE = {
    "before": faulthandler.enable,
    "python_before": lambda: [signal.signal(number, lambda *_: None) for number in BOTH],
    "ignored_before": lambda: [signal.signal(number, signal.SIG_IGN) for number in BOTH],
}
# what a process does between two guarded calls; those that Python cannot see are noticed within a bounded number of calls
AFTER = {
    "after": lambda: faulthandler.enable(),
    "disabled": lambda: (faulthandler.enable(), faulthandler.disable()),
    "python_after": lambda: [signal.signal(number, lambda *_: None) for number in BOTH],
    "ignored_after": lambda: [signal.signal(number, signal.SIG_IGN) for number in BOTH],
    "default_after": lambda: [signal.signal(number, signal.SIG_DFL) for number in BOTH],
    "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals)),
    "alternate_stack": alternate_stack,
}
UNSEEN = {
    "c_after": lambda: from_c(None),
    "c_blocked": block_from_c,
    "bound_after": bound_enable,
    "bound_disabled": lambda: (bound_enable(), bound_disable()),
}

device, socket, way, journal = sys.argv[1:]
a = obmm.open(device)
if way in BEFORE:
    BEFORE[way]()
if way == "disabled_after_before":
    faulthandler.enable()
    AFTER[way] = lambda: faulthandler.disable()
region, other = a.export_region("4MiB"), a.export_region("4MiB")
m, good = region.map("rw"), other.map("rw")
m.write(0, np.zeros(1 << 20, "u1"))
manifest = Manifest((TableSpec("t", 1000, 64),))
rows, good_rows = m.rows(64), good.rows(64)
store = RowStore.attach(m, manifest, verify="none", plan=False)
good_store = RowStore.attach(good, manifest, verify="none", plan=False)
ids, out = np.array([1, 2, 3]), np.empty((3, 64), "u1")
prepared = store.prepare("t", ids, out)
dead, hasher = m.as_numpy("<i8", (64,)), PolyHasher(1000, 500, 3, 2, None)
dead_out = np.empty((64, 64), "u1")
b = obmm.open(device.replace("#a", "#b"))
array = ArrayManifest(np.dtype("<f4"), (1000, 16)).to_json()
served = {"good": (other, array), "gone": (region, array)}
server = serve(served, host="127.0.0.1", port=0, plain=True, journal=journal)
peer = connect(f"127.0.0.1:{server.port}", plain=True)
table, lost = peer.open("good", b), peer.open("gone", b)
at, layer = dead_out.ctypes.data, PrefetchLayer(1, "t", 1)
prefetcher = EngramPrefetcher(good_store, [layer], 64)

CALLS = {
    "load": lambda: m.load("<u8", 0),
    "store": lambda: m.store("<u8", 0, 1),
    "read": lambda: m.read(0, 1364),
    "read of 1 MiB": lambda: m.read(0, 1 << 20),
    "read_into": lambda: m.read_into(bytearray(4096)),
    "write": lambda: m.write(0, bytes(4096)),
    "snapshot": lambda: m.snapshot(),
    "rows": lambda: rows.gather([1, 5, 9]),
    "gather_into": lambda: store.gather_into("t", ids, out),
    "gather": lambda: store.gather("t", [1, 2]),
    "gather, faulty rows zero": lambda: store.gather("t", [1, 2], faulty="zero"),
    "submit": lambda: store.submit("t", ids, out).result(),
    "prepared": lambda: prepared(),
    "ids": lambda: good_rows.gather(dead, dead_out),
    "ids that NumPy converts": lambda: good_rows.gather(dead.view(np.int32)[::2]),
    "ids of a store": lambda: good_store.gather_into("t", dead, dead_out),
    "ids of a ticket": lambda: good_store.submit("t", dead, dead_out).result(),
    "out": lambda: good_rows.gather(ids[:1], m.as_numpy("u1", (64,), writable=True)),
    "source": lambda: good.write(0, dead),
    "target": lambda: good.read_into(m.as_numpy("u1", (64,), writable=True)),
    "populate": lambda: good_store.populate("t", dead.reshape(-1, 8)[:4]),
    "tokens": lambda: hasher.hash(dead, [0, len(dead)]),
    "tokens in a list of views": lambda: hasher.hash([dead[:8], dead[8:16]], [0, 8, 16]),
    "ids in a list of views": lambda: good_rows.gather([dead[:2], memoryview(dead[2:4])]),
    "remote table": lambda: lost.gather([1, 2]),
    "remote table, a slice": lambda: lost[3:9],
    "remote table, all": lambda: np.asarray(lost),
    "remote table's ids": lambda: table.gather(dead),
    "remote table's ids of 32 bits": lambda: table.gather(dead.view(np.int32)),
    "remote table's ids without a sign": lambda: table.gather(dead.view(np.uint64)),
    "remote table's out": lambda: table.gather([1], m.as_numpy("<f4", (1, 16), writable=True)),
    "addresses of blocks": lambda: Pieces.of_addresses(4, dead.view(np.uint64)[:4], 64),
    "sizes of blocks": lambda: Pieces.of_addresses(4, [at] * 4, dead.view(np.uint32)[:4]),
    "slots of blocks": lambda: Pieces.of_slots(at, 64, dead[:4], 64),
    "ids of a prefetcher": lambda: prefetcher.begin([dead.reshape(-1, 1)], 64, 64),
    "ids of a prefetcher's array": lambda: prefetcher.begin(dead.reshape(-1, 1, 1), 64, 64),
}
with ControlClient(socket) as control:
    control.request("inject", node="a", fault="revoke", arguments={"mem_id": region.mem_id})

answers = {}

def attempt_all():
    for name, call in CALLS.items():
        if way in AFTER:
            AFTER[way]()
        if way in UNSEEN:
            UNSEEN[way]()
            for _ in range(257):
                good.load("<u8", 0)
        try:
            call()
            answers[name] = "no error"
        except obmm.RemoteMemoryError:
            continue
        except BaseException as error:
            answers[name] = repr(error)

if way == "blocked_thread":
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
    thread = threading.Thread(target=attempt_all)
    thread.start()
    thread.join()
else:
    attempt_all()
print(json.dumps(answers), flush=True)
os._exit(0)
"""

WAYS = [
    "nothing",
    *("before", "python_before", "ignored_before"),
    *("after", "disabled", "disabled_after_before", "python_after", "ignored_after", "default_after"),
    *("blocked", "blocked_thread", "alternate_stack", "c_after", "c_blocked"),
    *("bound_after", "bound_disabled"),
]


@pytest.fixture(scope="module")
def fabric():
    with emulator.start(nodes=2) as fabric:
        yield fabric


@pytest.mark.parametrize("way", WAYS)
def test_every_guarded_call_raises(fabric, way, tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-c", CALLS, fabric.device("a"), fabric.socket, way, str(tmp_path / "leases.journal")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )
    assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr[-3000:]


STRANGER = """
import ctypes, faulthandler, os, signal, sys
import obmm
a = obmm.open(sys.argv[1])
region = a.export_region("4MiB")
m = region.map("rw")
for _ in range(int(sys.argv[2])):
    faulthandler.enable()
    m.load("<u8", 0)
    if "again" in sys.argv:
        faulthandler.disable()
faulthandler.enable()
if "sent" in sys.argv:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise SystemExit("alive")
ctypes.string_at(8)
"""


@pytest.mark.parametrize("options", [["1"], ["100", "again"], ["1", "sent"]], ids=" ".join)
def test_a_strangers_crash_is_reported_once_and_as_what_it_was(fabric, options):
    done = subprocess.run(
        [sys.executable, "-P", "-c", STRANGER, fabric.device("a"), *options],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )
    assert done.returncode == -11
    assert done.stderr.count("Fatal Python error") == 1, done.stderr[-2000:]


BETWEEN = """
import os, signal, sys, threading, time
import obmm
from obmm.emulator.control import ControlClient
device, socket, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
a = obmm.open(device)
region = a.export_region("4MiB")
m = region.map("rw")
with ControlClient(socket) as control:
    control.request("inject", node="a", fault="revoke", arguments={"mem_id": region.mem_id})
over, faults = threading.Event(), [0, 0]

def fault_away(number):
    while not over.is_set():
        try:
            m.read(0, 8)
        except obmm.RemoteMemoryError:
            faults[number] += 1

threads = [threading.Thread(target=fault_away, args=(number,), daemon=True) for number in (0, 1)]
for thread in threads:
    thread.start()
end, rounds = time.monotonic() + seconds, 0
while time.monotonic() < end or rounds < 1000 or min(faults) < 100:
    for number in (signal.SIGBUS, signal.SIGSEGV):
        for handler in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, handler)
            assert signal.getsignal(number) is handler
    rounds += 1
over.set()
print("alive", flush=True)
os._exit(0)
"""


def test_no_fault_comes_between_pythons_handler_and_ours(fabric):
    """The kernel never has SIG_DFL or SIG_IGN for a moment in which another thread's fault ends the process."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", BETWEEN, fabric.device("a"), fabric.socket, "1"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-3000:]


ASKED = """
import os, signal, sys, threading
import obmm
region = obmm.open(sys.argv[1]).export_region("4MiB")
first = signal.signal(signal.SIGBUS, lambda *_: None)
m = region.map("rw")
mine = signal.getsignal(signal.SIGBUS)
assert callable(mine)
assert signal.signal(signal.SIGBUS, signal.SIG_IGN) is mine
os.kill(os.getpid(), signal.SIGBUS)  # ignored
assert signal.signal(signal.SIGBUS, mine) is signal.SIG_IGN
assert signal.getsignal(signal.SIGBUS) is mine
assert signal.signal(signal.SIGBUS, signal.SIG_DFL) is mine
assert signal.getsignal(signal.SIGBUS) is signal.SIG_DFL
refusals = []
def elsewhere():
    try:
        signal.signal(signal.SIGBUS, signal.SIG_IGN)
    except ValueError as error:
        refusals.append(str(error))
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
assert len(refusals) == 1 and signal.getsignal(signal.SIGBUS) is signal.SIG_DFL
print("asked", flush=True)
os.kill(os.getpid(), signal.SIGBUS)
print("alive", flush=True)
"""


def test_signal_signal_answers_and_acts_as_without_us(fabric):
    done = subprocess.run(
        [sys.executable, "-P", "-c", ASKED, fabric.device("a")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONFAULTHANDLER": ""},
    )
    assert (done.returncode, done.stdout) == (-7, "asked\n"), done.stderr[-3000:]
