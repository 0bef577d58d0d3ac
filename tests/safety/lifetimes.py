# SPDX-License-Identifier: Apache-2.0
"""Random lifetimes against a model that knows what must succeed, what must be refused, and every byte.

``python -m tests.safety.lifetimes --steps 1000000``: open, export, import, map, view, copy, rights, close in any order,
references dropped under live views, garbage collection, forks, exports that go under their importers.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import time
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import obmm
from obmm import (
    ClosedError,
    MappingBusyError,
    ObmmArgumentError,
    OwnershipError,
    RemoteMemoryError,
    StaleHandleError,
    emulator,
)

SIZE = 64 << 10  # bytes of each payload that the model follows
GONE = (RemoteMemoryError, StaleHandleError)


@dataclass(eq=False)
class Memory:
    """Bytes of one export, and whether they still exist."""

    data: bytearray = field(default_factory=lambda: bytearray(SIZE))
    alive: bool = True


@dataclass(eq=False)
class Place:
    """A region of one node and what the model knows of it."""

    region: Any
    memory: Memory
    exported: bool
    maps: list[Mapped] = field(default_factory=list)


@dataclass(eq=False)
class Mapped:
    """A mapping; `mapping` is None once only its views hold it."""

    mapping: Any
    place: Place
    access: str
    right: int
    views: list[tuple[Any, int, int, bool]] = field(default_factory=list)  # (view, start, stop, writable)


class Lifetimes:
    """One run.  AssertionError, with the step's number in a note, when the library does not do as the model says."""

    def __init__(self, fabric: emulator.Fabric, seed: int) -> None:
        self.random = random.Random(seed)
        self.devices = [obmm.open(fabric.device(node)) for node in ("a", "b")]
        self.fabric = fabric
        self.places: list[Place] = []
        self.counts: dict[str, int] = {}
        self.closed: deque[Any] = deque(maxlen=20)
        self.steps = {
            self.load: 300,
            self.store: 220,
            self.read: 120,
            self.write: 100,
            self.view: 90,
            self.look: 120,
            self.drop_view: 80,
            self.rights: 12,
            self.map: 9,
            self.close_mapping: 6,
            self.forget_mapping: 2,
            self.closed_objects: 10,
            self.export: 1.2,
            self.import_: 1.5,
            self.close_region: 2,
            self.collect: 0.4,
            self.fork: 0.1,
            self.reopen: 0.2,
        }

    def run(self, steps: int) -> None:
        kinds, weights = list(self.steps), list(self.steps.values())
        for number, step in enumerate(self.random.choices(kinds, weights, k=steps)):
            try:
                step()
            except BaseException as error:
                error.add_note(f"step {number}: {step.__name__}")
                raise
            self.counts[step.__name__] = self.counts.get(step.__name__, 0) + 1

    def finish(self) -> None:
        """Close everything; nothing may be left on any node."""
        for place in self.places:
            for mapped in place.maps:
                mapped.views.clear()
        gc.collect()
        for device in self.devices:
            device.close()
        for name, node in self.fabric.status()["nodes"].items():
            assert (name, node["regions"], node["windows"], node["open_files"]) == (name, [], 0, 0)

    # --- who --------------------------------------------------------------------------------------------------------

    def mapped(self) -> Mapped | None:
        found = [m for place in self.places for m in place.maps if m.mapping is not None]
        return self.random.choice(found) if found else None

    def span(self, limit: int = 4096) -> tuple[int, int]:
        start = self.random.randrange(SIZE - 1)
        return start, min(start + self.random.randrange(1, limit), SIZE)

    def expected(self, mapped: Mapped, need: int) -> tuple[type[BaseException], ...]:
        """What an access that needs a right must raise; () when it must succeed."""
        if mapped.right < need:
            return (OwnershipError,)
        return () if mapped.place.memory.alive else GONE

    @contextlib.contextmanager
    def outcome(self, refused: tuple[type[BaseException], ...]) -> Iterator[None]:
        try:
            yield
        except refused:
            return
        assert not refused, f"not refused with {refused}"

    # --- access -----------------------------------------------------------------------------------------------------

    def load(self) -> None:
        if (m := self.mapped()) is not None:
            offset = self.random.randrange(SIZE // 8) * 8
            with self.outcome(self.expected(m, 1)):
                value = m.mapping.load("<u8", offset)
                assert value == int.from_bytes(m.place.memory.data[offset : offset + 8], "little")

    def store(self) -> None:
        if (m := self.mapped()) is not None:
            offset, value = self.random.randrange(SIZE // 4) * 4, self.random.getrandbits(32)
            with self.outcome(self.expected(m, 2)):
                m.mapping.store("<u4", offset, value)
                m.place.memory.data[offset : offset + 4] = value.to_bytes(4, "little")

    def read(self) -> None:
        if (m := self.mapped()) is not None:
            start, stop = self.span()
            with self.outcome(self.expected(m, 1)):
                assert m.mapping.read(start, stop - start) == m.place.memory.data[start:stop]

    def write(self) -> None:
        if (m := self.mapped()) is not None:
            start, stop = self.span()
            data = self.random.randbytes(stop - start)
            with self.outcome(self.expected(m, 2)):
                m.mapping.write(start, data)
                m.place.memory.data[start:stop] = data

    # --- views ------------------------------------------------------------------------------------------------------

    def view(self) -> None:
        m = self.mapped()
        if m is None or len(m.views) >= 8 or not m.place.memory.alive:
            return
        start, stop = self.span()
        kind = self.random.randrange(3)
        with self.outcome((OwnershipError,) if m.right < 1 else ()):
            if kind == 0:
                view: Any = m.mapping.view(start, stop)
            elif kind == 1:
                view = m.mapping.as_numpy("u1", stop - start, start)
            else:
                array = m.mapping.as_numpy("u1", stop - start, start)
                view = np.from_dlpack(array) if array.flags.writeable else array[::1]
                del array
            m.views.append((view, start, stop, m.right == 2))

    def look(self) -> None:
        """Bytes through a view, also of mappings that only it keeps."""
        found = [m for place in self.places for m in place.maps if m.views]
        if not found:
            return
        m = self.random.choice(found)
        view, start, stop, writable = self.random.choice(m.views)
        assert bytes(view) == m.place.memory.data[start:stop]
        if writable:
            view[0] = value = self.random.getrandbits(8)
            m.place.memory.data[start] = value
        else:
            with contextlib.suppress(TypeError, ValueError):
                view[0] = 1
                raise AssertionError("a read-only view was written")

    def drop_view(self) -> None:
        found = [m for place in self.places for m in place.maps if m.views]
        if found:
            m = self.random.choice(found)
            m.views.pop(self.random.randrange(len(m.views)))
            self.sweep(m)

    def sweep(self, m: Mapped) -> None:
        """A mapping without a holder is gone."""
        if m.mapping is None and not m.views:
            m.place.maps.remove(m)

    # --- rights -----------------------------------------------------------------------------------------------------

    def rights(self) -> None:
        m = self.mapped()
        if m is None or not m.place.memory.alive:
            return
        wanted = self.random.randrange(3)
        writable_views = any(view[3] for view in m.views)
        if wanted == 2 and m.access == "r":
            refused: tuple[type[BaseException], ...] = (ObmmArgumentError,)
        elif wanted < m.right and (writable_views if wanted else bool(m.views)):
            refused = (MappingBusyError,)
        else:
            refused = ()
        with self.outcome(refused):
            if wanted == 0:
                m.mapping.release()
            elif wanted == 1 and m.right == 2:
                m.mapping.release(keep="r")
            else:
                m.mapping.acquire("rw"[wanted - 1])
            m.right = wanted

    # --- regions and mappings ---------------------------------------------------------------------------------------

    def export(self) -> None:
        if sum(place.exported for place in self.places) < 5:
            region = self.random.choice(self.devices).export_region(1 << 20, label="fuzz")
            self.places.append(Place(region, Memory(), True))

    def import_(self) -> None:
        exports = [place for place in self.places if place.exported]
        if exports and len(self.places) < 11:
            place = self.random.choice(exports)
            region = self.random.choice(self.devices).import_region(place.region.handle())
            self.places.append(Place(region, place.memory, False))

    def map(self) -> None:
        if not self.places:
            return
        place = self.random.choice(self.places)
        if len(place.maps) >= 4:
            return
        access = self.random.choice(["none", "r", "rw"])
        with self.outcome(() if place.memory.alive else GONE):
            mapping = place.region.map(access)
            place.maps.append(Mapped(mapping, place, access, ["none", "r", "rw"].index(access)))

    def close_mapping(self) -> None:
        if (m := self.mapped()) is None:
            return
        if m.views and self.random.random() < 0.1:
            m.mapping.close(force=True)  # the views are sealed: touching one would be a defined SIGSEGV
            m.views.clear()
        else:
            with self.outcome((MappingBusyError,) if m.views else ()):
                m.mapping.close()
            if m.views:
                return
        for use in (m.mapping.view, lambda: m.mapping.load("u1", 0), lambda: m.mapping.acquire("r")):
            with self.outcome((ClosedError,)):
                use()
        m.place.maps.remove(m)
        self.closed.append(m.mapping)

    def forget_mapping(self) -> None:
        if (m := self.mapped()) is not None:
            m.mapping = None
            self.sweep(m)

    def close_region(self) -> None:
        if not self.places:
            return
        place = self.random.choice(self.places)
        busy = any(m.views for m in place.maps)
        with self.outcome((MappingBusyError,) if busy else ()):
            if place.exported and not busy:
                self.drop_views_of(place.memory)
            place.region.close()
        if not busy:
            self.closed.append(place.region)
            if place.exported:
                place.memory.alive = False
            self.places.remove(place)

    def drop_views_of(self, memory: Memory) -> None:
        """An unguarded look at memory that is gone would end this process: none may be kept."""
        for place in self.places:
            if place.memory is memory:
                for m in list(place.maps):
                    m.views.clear()
                    self.sweep(m)

    def closed_objects(self) -> None:
        """What is closed stays closed, and closing it again is nothing."""
        if not self.closed:
            return
        thing = self.random.choice(self.closed)
        assert thing.closed
        thing.close()
        thing.close(force=True)
        for use in (thing.map, thing.handle) if hasattr(thing, "handle") else ():
            with self.outcome((ClosedError,)):
                use()
        for use in (thing.read, thing.view, thing.publish) if hasattr(thing, "publish") else ():
            with self.outcome((ClosedError,)):
                use()

    # --- the rest ---------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        gc.collect()

    def fork(self) -> None:
        """In a child everything is closed, and nothing it does reaches the parent's regions."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for place in self.places:
                    assert place.region.closed
                    place.region.close()
                    for m in place.maps:
                        if m.mapping is not None:
                            with self.outcome((ClosedError,)):
                                m.mapping.load("u1", 0)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def reopen(self) -> None:
        """Close a device with everything on it, in its order, and open it again."""
        index = self.random.randrange(2)
        device = self.devices[index]
        mine = [place for place in self.places if place.region.device is device]
        for place in mine:
            if place.exported:
                self.drop_views_of(place.memory)
        busy = any(m.views for place in mine for m in place.maps)
        with self.outcome((MappingBusyError,) if busy else ()):
            device.close()
        if not busy:
            for place in mine:
                assert place.region.closed
                place.memory.alive = place.memory.alive and not place.exported
                self.places.remove(place)
            self.devices[index] = obmm.open(self.fabric.device(index))


def run(steps: int, seed: int) -> dict[str, Any]:
    """The figures of one run."""
    with emulator.start(nodes=2) as fabric, warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        lifetimes = Lifetimes(fabric, seed)
        started = time.monotonic()
        lifetimes.run(steps)
        seconds = time.monotonic() - started
        lifetimes.finish()
        assert fabric.status()["internal_errors"] == 0
        fabric.request("check")
    return {"steps": steps, "seed": seed, "seconds": seconds, "steps_per_s": steps / seconds, "kinds": lifetimes.counts}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    print(run(options.steps, options.seed))
