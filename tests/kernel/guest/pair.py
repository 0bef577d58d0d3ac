# SPDX-License-Identifier: Apache-2.0
"""Two guests, one fabric: A lends memory and dies, B imports it, verifies it, answers through it and survives.

What both know beforehand is what a cluster's admin and a key ceremony would provide: the key and the table of
windows.  Everything else goes over TCP.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import obmm
from obmm._native import ffi
from obmm.errors import ObmmError

from . import borders, fabric, simulator

MIB = 1 << 20
SHAPE = (65536, 16)  # of little-endian 32-bit words: 4 MiB
TABLE_REGION = 6 * MIB  # with its header, in whole 2 MiB
MAIL_BYTES = 2 * MIB
MAIL_PORT = 13858
ROUNDS = 200
PATIENCE_S = 150.0
#: Short, so that B notices a death soon; long enough for a busy machine to renew in time.
TERM_S = 8.0
KEY = Path("/tmp/cluster.key")
SECRET = bytes(range(32))
OBMM = [sys.executable, "-m", "obmm.cli.main"]

#: In the mailbox, payload offsets: B's word to A, A's answer, both counting up.
TO_A, TO_B = 0, 64
LAST = 0xFFFF_FFFF


def content() -> np.ndarray:
    """What the table holds; both sides know it, so that B can verify every byte."""
    return np.frombuffer(random.Random(13857).randbytes(4 * MIB), "<u4").reshape(SHAPE)


def main(side: str) -> bool:
    """`side` is "a" (lends, and is killed) or "b" (borrows, and tells how it went)."""
    host = "ab".index(side)
    base = fabric.join(host)
    KEY.touch(0o600)
    KEY.write_text(SECRET.hex() + "\n")
    return _lend(base) if side == "a" else _borrow()


def _wait_for(what: str, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not happen within {PATIENCE_S:.0f} s")


# --- A ---------------------------------------------------------------------------------------------------------------


def _lend(base: int) -> bool:
    np.save("/tmp/table.npy", content())
    words = ["serve", "/tmp/table.npy", "--pmd", "--key", str(KEY), "--journal", "/tmp/table.journal", "--json"]
    with (
        open("/tmp/serve.log", "w+") as log,
        subprocess.Popen([*OBMM, *words], stdout=subprocess.PIPE, stderr=log, text=True) as serving,
        obmm.open() as device,
    ):
        assert serving.stdout is not None
        line = serving.stdout.readline()
        assert line, Path("/tmp/serve.log").read_text()
        facts = json.loads(line)
        print(f"A: obmm serve publishes {facts['region']}, {facts['bytes']} bytes, {facts['mode']} mode", flush=True)
        mail = device.export_region(MAIL_BYTES, header=False, label="mail")
        for mem_id, offset in ((1, 0), (mail.mem_id, TABLE_REGION)):
            pa = device.driver.query_pa(mem_id, 0)
            assert pa == base + offset, f"region {mem_id} lies at {pa - base:#x} of the fabric, not at {offset:#x}"
        letters = mail.map("rw", cache="nc")
        letters.store("<u8", TO_A, 0)
        letters.store("<u8", TO_B, 0)
        with obmm.serve({"mail": mail}, key=KEY, port=MAIL_PORT, term_s=TERM_S, journal="/tmp/mail.journal"):
            _answer(letters)
            print("A: ready to die", flush=True)
            time.sleep(PATIENCE_S)
    return False  # A was not killed


def _answer(letters: obmm.Mapping) -> None:
    """Ping-pong: every word of B's is answered with the same word."""
    for word in [*range(1, ROUNDS + 1), LAST]:
        _wait_for(f"B's word {word}", lambda word=word: letters.load("<u8", TO_A) == word)
        letters.store("<u8", TO_B, word)
    print(f"A: saw {ROUNDS} stores of B", flush=True)


# --- B ---------------------------------------------------------------------------------------------------------------


def _borrow() -> bool:
    table = Path("/tmp/windows.toml")
    fabric.window_table(table, 1, {0: ("cc", 0, TABLE_REGION), 1: ("nc", TABLE_REGION, MAIL_BYTES)})
    with obmm.open(windows=obmm.StaticWindows(table)) as device, _connected() as peer:
        _fetch(table)
        mail = device.import_region(peer.fetch("mail"), cache="nc", pmd=True)
        letters = mail.map("rw")
        _ping(letters)
        _find_no_page(letters)
        print("B: kill A now", flush=True)
        _see_the_death(peer, letters)
        letters.close()
        mail.close(force=True)
    left = list(Path("/sys/devices/obmm").glob("obmm_shmdev*"))
    print(f"B: {len(left)} regions left", flush=True)
    return not left


def _connected() -> obmm.Peer:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return obmm.connect(f"{fabric.ADDRESSES[0]}:{MAIL_PORT}", key=KEY, timeout=10)
        except ObmmError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)  # A is not there yet


def _fetch(windows: Path) -> None:
    words = ["fetch", fabric.ADDRESSES[0], "table", "--all", "-o", "/tmp/copy.npy", "--key", str(KEY), "--json"]
    result = subprocess.run(
        [*OBMM, *words],
        env=os.environ | {"OBMM_WINDOWS": str(windows)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    if result.returncode:
        raise AssertionError(f"obmm fetch: status {result.returncode}: {result.stdout}{result.stderr}")
    facts = json.loads(result.stdout)
    assert facts["verified"] == "sha256"
    assert not facts["emulated"]
    assert np.array_equal(np.load("/tmp/copy.npy"), content()), "the copy differs from what A published"
    before = simulator.counters()
    assert before["pte_faults"] + before["pmd_faults"] > 0, "nothing was read through the fabric"
    print(f"B: obmm fetch verified {facts['bytes_read']} bytes, and every one is right", flush=True)


def _ping(letters: obmm.Mapping) -> None:
    trips = []
    for word in range(1, ROUNDS + 1):
        started = time.perf_counter()
        letters.store("<u8", TO_A, word)
        _wait_for(f"A's answer {word}", lambda word=word: letters.load("<u8", TO_B) == word)
        trips.append(time.perf_counter() - started)
    letters.store("<u8", TO_A, LAST)
    _wait_for("A's last answer", lambda: letters.load("<u8", TO_B) == LAST)
    trips.sort()
    print(f"B: {ROUNDS} round trips through the fabric, median {trips[len(trips) // 2] * 1e6:.0f} us (emulated CPU)")


def _find_no_page(letters: obmm.Mapping) -> None:
    """No system call finds a page behind the fabric, which has none at all: a wrong one would be a crash."""
    with letters.view() as view:
        found = borders.wrong(int(ffi.cast("uintptr_t", ffi.from_buffer(view))))
    assert not found, f"pages of the fabric found by {found}"
    counted = simulator.counters()
    assert counted["pte_faults"] > 0, "nothing was mapped"
    assert counted["pmd_faults"] == 0, "a block without pages was mapped: mbind would look for them"
    print(f"B: {len(borders.WAYS)} system calls find no page behind the fabric", flush=True)


def _see_the_death(peer: obmm.Peer, letters: obmm.Mapping) -> None:
    """Calls to A fail within their deadline, and the lease refuses guarded calls once its term runs out."""
    started = time.monotonic()
    try:
        while time.monotonic() - started < PATIENCE_S:
            peer.list(timeout=3)
            time.sleep(0.1)
        raise AssertionError("A was not killed, or B did not notice")
    except ObmmError as error:
        print(f"B: list raised {type(error).__name__} after {time.monotonic() - started:.1f} s: {error}", flush=True)
    try:
        while time.monotonic() - started < PATIENCE_S:
            letters.load("<u8", TO_B)
            time.sleep(0.05)
        raise AssertionError("the expired lease still lets B load")
    except ObmmError as error:
        print(f"B: load raised {type(error).__name__} after {time.monotonic() - started:.1f} s: {error}", flush=True)
