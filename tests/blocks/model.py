# SPDX-License-Identifier: Apache-2.0
"""Random puts, gets, pins, deletions, evictions, deaths and new owners against a model: never a wrong byte.

    python -m tests.blocks.model --operations 1000000 --cache cc

Users sit on both nodes of a fabric with strict caches, three in this process and one in its own.  The owner has a process
of its own too.  Most deaths are kill -9 in the middle of what the process does.  A block's content follows from its key and
the number of its put, so that a byte of another key, of another put or of two puts is found.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import obmm
from obmm import Device, emulator
from obmm.blocks import BlockStore, BlockTicket, SlotLayout
from obmm.exchange import Key, Peer
from tests.blocks.mortal import NAMESPACE, SIZES, Mortal, content, number_in, size_of, wait_until

KEYS, SLOTS, TERM_S = 60, 24, 2.0
MOST_PAUSE_S = 0.004  # between a command and the kill


class Model:
    """The keys that were ever put, with the number of every put that a get may answer; and what has happened."""

    def __init__(self) -> None:
        self.puts: dict[bytes, set[int]] = {}
        self.number = 0
        self.counts: dict[str, int] = {}

    def add(self, what: str, count: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + count

    def new(self, key: bytes) -> int:
        """The number of a put that begins now."""
        self.number += 1
        self.puts.setdefault(key, set()).add(self.number)
        return self.number

    def check(self, key: bytes, number: int) -> None:
        assert number in self.puts.get(key, ()), f"{key!r}: bytes of no put of it (number {number})"

    def got(self, keys: list[bytes], memory: list[npt.NDArray[np.uint8]], found: Any) -> None:
        """AssertionError unless every hit is one whole put of its key."""
        for key, data, there in zip(keys, memory, found, strict=True):
            if there:
                self.check(key, number_in(key, data))
        self.add("hits", int(sum(found)))
        self.add("misses", len(keys) - int(sum(found)))


class World:
    """Owner, users, and what happens to them."""

    def __init__(self, chance: random.Random, model: Model, folder: Path, devices: tuple[Device, Device], cache: Any):
        self.chance, self.model, self.folder, self.devices, self.cache = chance, model, folder, devices, cache
        self.layout = SlotLayout.for_blocks(max(SIZES), SLOTS, cache=cache)
        self.port = 0
        self.start_owner()
        self.users: list[BlockStore] = []
        self.peers: list[Peer] = []
        for node in (1, 1, 0):
            self.add_user(len(self.users), node)
        self.start_mortal()

    # --- processes ---------------------------------------------------------------------------------------------------

    def start_owner(self) -> None:
        device, journal = self.devices[0].backend, self.folder / "journal"
        where = (device, self.port, self.folder / "key", journal)
        self.owner = Mortal("owner", *where, SLOTS, max(SIZES), self.cache, TERM_S)
        facts = self.owner.answer()
        self.port, self.incarnation = facts["port"], f"{facts['incarnation']:016x}"

    def start_mortal(self) -> None:
        """A user in its own process; it is used once it has said that it is ready."""
        node = self.chance.randrange(2)
        self.mortal = Mortal("user", self.devices[node].backend, self.port, self.folder / "key")
        self.asked: tuple[str, list[bytes]] | None = None

    def add_user(self, index: int, node: int) -> None:
        peer = obmm.connect(f"127.0.0.1:{self.port}", key=self.folder / "key")
        self.peers[index : index + 1] = [peer]
        self.users[index : index + 1] = [BlockStore(peer, self.devices[node], NAMESPACE)]

    def close(self) -> None:
        for store, peer in zip(self.users, self.peers, strict=True):
            store.close()
            peer.close(timeout=0.2, force=True)
        self.mortal.kill()
        self.owner.end()

    # --- one of many steps -------------------------------------------------------------------------------------------

    def step(self) -> int:
        """One call of a random user, or something that happens to one; how many operations that was."""
        chance, model = self.chance, self.model
        user = chance.choice(self.users)
        keys = [chance.randrange(KEYS).to_bytes(4, "big") for _ in range(chance.choice((1, 2, 4, 8, 16, 32)))]
        what = chance.random()
        if what < 0.46:
            memory = [np.zeros(size_of(key), np.uint8) for key in keys]
            model.got(keys, memory, user.get(keys, memory))
        elif what < 0.70:
            keys = list(dict.fromkeys(keys))
            model.add("puts", int(user.put(keys, [content(key, model.new(key)) for key in keys]).sum()))
        elif what < 0.77:
            model.add("deleted", int(user.delete(keys).sum()))
        elif what < 0.83:
            self.pin_and_get(user, keys)
        elif what < 0.88:
            user.exists(keys)
        elif what < 0.895:
            model.add("evicted", self.owner.ask("evict", chance.randrange(4)))
        elif what < 0.908:
            slot, offset = chance.randrange(SLOTS), chance.randrange(64) + 64 * chance.randrange(2)
            self.owner.ask("rot", slot, offset, chance.randrange(256))
            model.add("rotten")
        elif what < 0.9985:
            return self.use_mortal(keys)
        elif what < 0.9992:
            self.replace_user()
        elif what < 0.9996:
            self.kill_user()
        elif what < 0.9999:
            self.kill_owner()
        else:
            self.close_owner()
        return len(keys)

    def pin_and_get(self, user: BlockStore, keys: list[bytes]) -> None:
        chosen = [key for key, flag in zip(keys, user.pin(keys), strict=True) if flag]
        memory = [np.zeros(size_of(key), np.uint8) for key in chosen]
        if chosen:
            self.model.got(chosen, memory, user.get(chosen, memory))
        user.unpin(chosen)
        self.model.add("pins", len(chosen))

    def use_mortal(self, keys: list[bytes]) -> int:
        """What the user in the other process has done since the last time, and something more for it."""
        done = 0
        if self.mortal.owes and not self.mortal.answered:
            return 0
        if self.mortal.owes:
            answer, asked = self.mortal.answer(), self.asked
            if asked is not None:
                done = len(asked[1])
                self.model.add("operations of the other process", done)
                if asked[0] == "get":
                    for key, number in zip(asked[1], answer, strict=True):
                        if number >= 0:
                            self.model.check(key, number)
        self.tell_mortal(keys)
        return done

    def tell_mortal(self, keys: list[bytes]) -> None:
        what = self.chance.choice(("put", "put", "get", "get", "pin"))
        keys = list(dict.fromkeys(keys))
        numbers = ([self.model.new(key) for key in keys],) if what == "put" else ()
        self.mortal.tell(what, [key.hex() for key in keys], *numbers)
        self.asked = (what, keys)

    # --- deaths ------------------------------------------------------------------------------------------------------

    def replace_user(self) -> None:
        """One of this process goes, in order or without a word, and another one comes."""
        index = self.chance.randrange(len(self.users))
        if self.chance.random() < 0.5:
            self.peers[index].close(timeout=0, force=True)  # it is not renewed any more
        self.users[index].close()
        self.peers[index].close(timeout=0.2, force=True)
        self.add_user(index, self.chance.randrange(2))
        self.model.add("users closed")

    def kill_user(self) -> None:
        """kill -9 of the other process, in the middle of a put, a get or its start."""
        if not self.mortal.owes:
            self.tell_mortal([self.chance.randrange(KEYS).to_bytes(4, "big") for _ in range(32)])
        time.sleep(self.chance.random() * MOST_PAUSE_S)
        self.mortal.kill()
        self.start_mortal()
        self.model.add("users killed")

    def kill_owner(self) -> None:
        """kill -9 under puts, and another one comes: users find it, and nothing of the old one is ever read."""
        tickets = self.begin_puts()
        time.sleep(self.chance.random() * MOST_PAUSE_S)
        self.owner.kill()
        self.model.add("owners killed")
        self.next_owner(tickets)

    def close_owner(self) -> None:
        """In order."""
        self.owner.end()
        self.model.add("owners closed")
        self.next_owner([])

    def next_owner(self, tickets: list[BlockTicket]) -> None:
        self.start_owner()
        for ticket in tickets:
            assert ticket.wait(60), f"{ticket!r} does not end"
        for user in self.users:
            wait_until(lambda user=user: self.found(user), f"{user!r} did not find the new owner")  # type: ignore[misc]

    def begin_puts(self) -> list[BlockTicket]:
        """Something under way in every user, and in the owner: evictions too, because the store is full."""
        if not self.mortal.owes:
            self.tell_mortal([key.to_bytes(4, "big") for key in range(KEYS)])
        tickets = []
        for user in self.users:
            keys = [key.to_bytes(4, "big") for key in self.chance.sample(range(KEYS), 20)]
            tickets.append(user.submit_put(keys, [content(key, self.model.new(key)) for key in keys], timeout=10))
        return tickets

    def found(self, user: BlockStore) -> bool:
        user.exists([b"x"])
        return user.attached and user.incarnation == self.incarnation


def run(
    operations: int, seed: int, cache: str, *, strict: bool = True, kills: int = 0, progress: bool = False
) -> dict[str, int]:
    """Random operations, and `kills` of each kind besides those by chance -> what happened; AssertionError at a wrong byte."""
    chance, model = random.Random(seed), Model()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        Key.generate(folder / "key")
        fabric = stack.enter_context(emulator.start(nodes=2, strict=strict, seed=seed))
        a = stack.enter_context(obmm.open(fabric.device("a")))
        b = stack.enter_context(obmm.open(fabric.device("b")))
        world = World(chance, model, folder, (a, b), cache)
        stack.callback(world.close)
        done, killed, told = 0, 0, time.monotonic()
        while done < operations:
            done += world.step()
            if killed < kills and done > operations * (killed + 1) // (kills + 1):
                killed += 1
                world.kill_user()
                world.kill_owner()
            if progress and time.monotonic() - told > 5:
                told = time.monotonic()
                hits = model.counts.get("hits", 0)
                print(f"\r{done:,} of {operations:,} operations, {hits:,} hits", end="", file=sys.stderr)
        assert fabric.status()["internal_errors"] == 0
    model.add("operations", done)
    return model.counts


def main(arguments: Any = None) -> int:
    parser = argparse.ArgumentParser(description="Random operations on blocks against a model.")
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--cache", choices=("nc", "cc"), default="cc")
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # deaths and rot are what this is about
    print(
        f"== blocks: {options.operations:,} operations, {options.cache}, strict caches, seed {options.seed}", flush=True
    )
    began = time.monotonic()
    counts = run(options.operations, options.seed, options.cache, progress=True)
    happened = ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
    print(f"\n{happened}; no wrong byte; {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
