# SPDX-License-Identifier: Apache-2.0
"""How each class that owns something outside Python is made, used and closed once, for the injector.

A recipe is a context manager that prepares what the class needs and yields (operation, close what can be named): after
an interrupted operation a program still has what it had before, a device say, and closes what that one names.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import obmm
from obmm import emulator
from obmm.broker.broker import Broker
from obmm.broker.policy import Policy
from obmm.driver.backend import Backend
from obmm.emulator.control import ControlClient
from obmm.exchange import aio, connect, serve
from obmm.exchange.array_manifest import ArrayManifest
from obmm.mapping import checker
from obmm.prefetch import EngramPrefetcher, PrefetchLayer, SharedStaging, StagingFollower
from obmm.rows import GatherEngine, LocalMemory, Manifest, RowStore, TableSpec

from .place import MIB, Place, Steps, close_regions
from .recipes_above import ABOVE

LOOP_S = 3.0  # a server that answers is told at once


def nothing() -> None:
    pass


@contextmanager
def device(place: Place) -> Iterator[Steps]:
    def operation() -> None:
        with obmm.open(place.fabric.device("a")) as opened:
            assert opened.controllers

    yield operation, nothing


@contextmanager
def attach(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, _), a.export_region(2 * MIB) as region:

        def operation() -> None:
            region_of_another = obmm.attach(region.mem_id, region.length, device=place.fabric.device("a"))
            with region_of_another, region_of_another.map("r") as mapping:
                mapping.read(0, 8)
            region_of_another.device.close()

        yield operation, nothing


@contextmanager
def exported(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, _):

        def operation() -> None:
            with a.export_region(2 * MIB, label="injected"):
                pass

        yield operation, lambda: close_regions(a)


@contextmanager
def imported(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, b), a.export_region(2 * MIB) as region:
        handle = region.handle()

        def operation() -> None:
            with b.import_region(handle):
                pass

        yield operation, lambda: close_regions(b)


@contextmanager
def mapped(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, _), a.export_region(2 * MIB) as region:

        def operation() -> None:
            with region.map("rw") as mapping, mapping.writing():
                mapping.write(0, b"x")
                view = mapping.view(0, 8)
                del view
                mapping.rows(64).gather([1, 2])

        yield operation, lambda: [mapping.close(force=True) for mapping in region.mappings]


@contextmanager
def imported_and_mapped(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, b), a.export_region(2 * MIB) as region, b.import_region(region.handle()) as imported:

        def operation() -> None:
            with imported.map("r") as mapping, mapping.reading():
                mapping.load("<u8", 0)
            imported.check()

        yield operation, lambda: [mapping.close(force=True) for mapping in imported.mappings]


@contextmanager
def hold(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, _), a.export_region(2 * MIB) as region:

        def operation() -> None:
            with region.hold("injected"):
                pass

        yield operation, nothing
        assert not region.holds


@contextmanager
def checked(place: Place) -> Iterator[Steps]:
    """OBMM_CHECK's accounts."""
    before = os.environ.get("OBMM_CHECK")
    os.environ["OBMM_CHECK"] = "1"
    assert checker.enabled()
    try:
        with mapped(place) as steps:
            yield steps
    finally:
        os.environ.pop("OBMM_CHECK") if before is None else os.environ.update(OBMM_CHECK=before)


@contextmanager
def rowstore(place: Place) -> Iterator[Steps]:
    manifest = Manifest((TableSpec("t", 1000, 64),))
    engine = GatherEngine(1)
    with place.devices() as (a, _), a.export_region(2 * MIB) as one, a.export_region(2 * MIB) as two:

        def operation() -> None:
            with RowStore.attach([one], manifest, verify="none", plan=False, engine=engine, access="rw") as store:
                ids, out = np.arange(4), np.empty((4, 64), np.uint8)
                store.gather_into("t", ids, out)
                ticket = store.submit("t", ids, out)
                ticket.result()

        yield operation, lambda: [m.close(force=True) for region in (one, two) for m in region.mappings]
    engine.close()


@contextmanager
def heartbeat(place: Place) -> Iterator[Steps]:
    manifest = Manifest((TableSpec("t", 1000, 64),))
    engine = GatherEngine(1)
    with place.devices() as (a, _), a.export_region(2 * MIB) as region, region.map("rw", cache="nc") as mapping:
        with RowStore.attach(mapping, manifest, verify="none", plan=False, engine=engine) as store:

            def operation() -> None:
                with store.heartbeat():
                    pass

            yield operation, nothing
    engine.close()


@contextmanager
def engine(_: Place) -> Iterator[Steps]:
    def operation() -> None:
        made = GatherEngine(2)
        assert made.threads == 2
        made.close()

    yield operation, nothing


@contextmanager
def prefetcher(_: Place) -> Iterator[Steps]:
    memory = LocalMemory(np.zeros(64_000, np.uint8))
    shared = GatherEngine(1)
    store = RowStore.attach(memory, Manifest((TableSpec("t", 1000, 64),)), verify="none", plan=False, engine=shared)
    layers = [PrefetchLayer(1, "t", 1)]

    def operation() -> None:
        with (
            SharedStaging(store, layers, 8) as staging,
            StagingFollower(staging.fileno()) as follower,
            EngramPrefetcher(store, layers, 8, staging=staging.allocate) as made,
        ):
            made.begin([np.zeros((4, 1), np.int64)], 4, 8)
            made.start()
            made.consume(1)
            made.drain()
            assert follower

    yield operation, shared.reap
    store.close()
    shared.close()


@contextmanager
def server(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, _), a.export_region(2 * MIB) as region:
        journal = place.folder / "leases.journal"

        def operation() -> None:
            with serve({"t": region}, host="127.0.0.1", port=0, plain=True, journal=journal) as made:
                assert made.port

        yield operation, nothing


@contextmanager
def peer(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, _), a.export_region(2 * MIB) as region:
        journal = place.folder / "leases.journal"
        with serve({"t": region}, host="127.0.0.1", port=0, plain=True, journal=journal, term_s=5.0) as running:

            def operation() -> None:
                with connect(f"127.0.0.1:{running.port}", plain=True) as made:
                    assert made.list()

            yield operation, nothing


@contextmanager
def lease(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, b), a.export_region(2 * MIB) as region:
        journal = place.folder / "leases.journal"
        with (
            serve({"t": region}, host="127.0.0.1", port=0, plain=True, journal=journal, term_s=5.0) as running,
            connect(f"127.0.0.1:{running.port}", plain=True) as partner,
        ):

            def operation() -> None:
                with partner.fetch("t") as held, b.import_region(held) as imported, imported.map("r") as mapping:
                    mapping.load("<u8", 0)

            def close() -> None:
                close_regions(b)
                for held in partner.leases:
                    held.release()

            yield operation, close


@contextmanager
def in_a_loop(place: Place) -> Iterator[Steps]:
    """A program's only loop: an interrupt ends it, with whatever it had.  The server does not wait for a term's end."""
    with place.devices() as (a, b), a.export_region(2 * MIB) as region:
        journal = place.folder / "leases.journal"
        with serve({"t": region}, host="127.0.0.1", port=0, plain=True, journal=journal, term_s=600.0) as running:

            async def main() -> None:
                async with await aio.connect(f"127.0.0.1:{running.port}", plain=True) as made:
                    first = await made.fetch("t")
                    with b.import_region(first):
                        await made.renew(first)
                    second, _ = await asyncio.gather(made.fetch("t"), made.fetch("t"))
                    await made.release(second)
                    await made.list()

            def operation() -> None:
                began = time.monotonic()
                try:
                    asyncio.run(main())
                finally:
                    assert time.monotonic() - began < LOOP_S, "a loop that was interrupted ends"

            def close() -> None:
                close_regions(b)
                aio.sweep()  # as the next connect does: an interrupt may have come into what a collection began
                end = time.monotonic() + LOOP_S
                while any(item["kind"] == "lease" for item in running.status()["items"]):
                    assert time.monotonic() < end, running.status()["items"]
                    gc.collect()
                    time.sleep(0.001)

            lines = logging.getLogger("asyncio")
            lines.disabled = True  # pytest keeps them, with the frames of tasks that an interrupt ended
            yield operation, close
            lines.disabled = False


@contextmanager
def control(place: Place) -> Iterator[Steps]:
    def operation() -> None:
        with ControlClient(place.fabric.socket) as client:
            client.request("status")

    yield operation, nothing


@contextmanager
def fabric(_: Place) -> Iterator[Steps]:
    def operation() -> None:
        with emulator.start(nodes=1) as made:
            assert made.nodes

    yield operation, nothing


@contextmanager
def broker(place: Place) -> Iterator[Steps]:
    rules = place.folder / "policy.toml"
    rules.write_text("")
    policy, backend = Policy(rules), Backend.parse(place.fabric.device("a"))

    def operation() -> None:
        with Broker(backend, policy, place.folder / "broker.sock") as made:
            assert made.path

    yield operation, lambda: (place.folder / "broker.sock").unlink(missing_ok=True)


@contextmanager
def remote_table(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, b), a.export_region(2 * MIB) as region:
        journal = place.folder / "leases.journal"
        published = {"t": (region, ArrayManifest(np.dtype("<f4"), (100, 4)).to_json())}
        with (
            serve(published, host="127.0.0.1", port=0, plain=True, journal=journal, term_s=5.0) as running,
            connect(f"127.0.0.1:{running.port}", plain=True) as partner,
        ):

            def operation() -> None:
                with partner.open("t", b) as table:
                    assert len(table) == 100

            def close() -> None:
                close_regions(b)
                for held in partner.leases:
                    held.release()

            yield operation, close


RECIPES = {
    "device": device,
    "attach": attach,
    "exported": exported,
    "imported": imported,
    "mapped": mapped,
    "imported and mapped": imported_and_mapped,
    "hold": hold,
    "checked": checked,
    "rowstore": rowstore,
    "heartbeat": heartbeat,
    "engine": engine,
    "prefetcher": prefetcher,
    "server": server,
    "peer": peer,
    "lease": lease,
    "in a loop": in_a_loop,
    "control": control,
    "fabric": fabric,
    "broker": broker,
    "remote table": remote_table,
    **ABOVE,
}

COVERS = {
    "device": ("Device",),
    "attach": ("AttachedRegion",),
    "exported": ("ExportedRegion",),
    "imported": ("ImportedRegion",),
    "mapped": ("Mapping",),
    "hold": ("Hold",),
    "rowstore": ("RowStore", "Strip"),
    "heartbeat": ("Heartbeat",),
    "engine": ("GatherEngine",),
    "prefetcher": ("EngramPrefetcher", "SharedStaging", "StagingFollower"),
    "server": ("Server",),
    "peer": ("Peer",),
    "lease": ("Lease",),
    "control": ("ControlClient",),
    "fabric": ("Fabric",),
    "broker": ("Broker",),
    "block owner": ("BlockOwner",),
    "block store": ("BlockStore",),
    "shared object": ("SharedObject", "ObjectMemory"),
    "sdk lease": ("sdk.lease.Lease",),
    "urma memory": ("UrmaMemory",),
    "session": ("Session",),
    "urma": ("Context", "Queue", "Segment", "TargetSegment"),
    "remote table": ("RemoteTable",),
}
"""Which recipe makes and closes objects of a class."""

NOT_COVERED = {
    "StreamGather": "memory of the fake device is given back by a finalizer in Python, which the injector cuts short",
    "Checkpoint": "files only, opened by name and given back with their descriptors",
    "ControlSocket": "of the command that serves, whose process an interrupt ends",
    "Observatory": "of the command that serves, whose process an interrupt ends",
    "TableClient": "owns a table link, which owns what other recipes make",
    "TableLink": "owns a peer and a store, which have recipes",
    "TokenGather": "needs torch",
    "UserMemoryRegion": "needs huge pages, which not every machine has",
    "sdk.standin.StandIn": "a process of its own, for tests and demonstrations",
    "urma.standin.StandIn": "a folder of its own, for tests and demonstrations",
}
"""Why a class has no recipe."""
