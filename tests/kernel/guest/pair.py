# SPDX-License-Identifier: Apache-2.0
"""Two guests, one fabric: A lends memory and dies, B imports it, verifies it, answers through it and survives.

What both know beforehand is what a cluster's admin and a key ceremony would provide: the key and the table of
windows.  Everything else goes over TCP.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import obmm
from obmm.errors import ObmmError

from . import fabric, simulator

MIB = 1 << 20
TABLE_BYTES = 4 * MIB
TABLE_REGION = 6 * MIB  # with its header, in whole 2 MiB
MAIL_BYTES = 2 * MIB
ROUNDS = 200
PATIENCE_S = 60.0
KEY = Path("/tmp/cluster.key")
SECRET = bytes(range(32))

#: In the mailbox, payload offsets: B's word to A, A's answer, both counting up.
TO_A, TO_B = 0, 64
LAST = 0xFFFF_FFFF


def content() -> bytes:
    """What the table holds; both sides know it, so that B can verify every byte."""
    return random.Random(13857).randbytes(TABLE_BYTES)


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
    with obmm.open() as device:
        table = device.export_region(TABLE_BYTES, pmd=True, label="table")
        mail = device.export_region(MAIL_BYTES, header=False, label="mail")
        for region, offset in ((table, 0), (mail, TABLE_REGION)):
            pa = device.driver.query_pa(region.mem_id, 0)
            assert pa == base + offset, f"{region} lies at {pa - base:#x} of the fabric, not at {offset:#x}"
        with table.map("rw") as mapping:
            mapping.write(0, content())
            mapping.publish()
        letters = mail.map("rw", cache="nc")
        letters.store("<u8", TO_A, 0)
        letters.store("<u8", TO_B, 0)
        with obmm.serve({"table": table, "mail": mail}, key=KEY, term_s=2.0, journal="/tmp/leases.journal"):
            print("A: serving", flush=True)
            _answer(letters)
            print("A: ready to die", flush=True)
            time.sleep(PATIENCE_S)
    return False  # nobody killed A


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
        print(f"B: A publishes {', '.join(peer.list())}", flush=True)
        _verify(device, peer)
        mail = device.import_region(peer.fetch("mail"), cache="nc")
        letters = mail.map("rw")
        _ping(letters)
        print("B: kill A now", flush=True)
        _see_the_death(peer, letters)
        letters.close()
        mail.close(force=True)
    print("B: everything removed", flush=True)
    return not list(Path("/sys/devices/obmm").glob("obmm_shmdev*"))


def _connected() -> obmm.Peer:
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return obmm.connect(fabric.ADDRESSES[0], key=KEY, timeout=10)
        except ObmmError as error:
            if time.monotonic() > until:
                raise
            print(f"B: not yet: {error}", flush=True)
            time.sleep(0.5)


def _verify(device: obmm.Device, peer: obmm.Peer) -> None:
    before = simulator.counters()
    with device.import_region(peer.fetch("table"), pmd=True) as region, region.map("r") as mapping:
        assert mapping.read()[:TABLE_BYTES] == content(), "the imported table differs"
        after = simulator.counters()
    blocks = after["pmd_faults"] - before["pmd_faults"]
    assert after["pte_faults"] == before["pte_faults"], "a block import was mapped in pages"
    print(f"B: {TABLE_BYTES} bytes verified through {blocks} block mappings", flush=True)


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
