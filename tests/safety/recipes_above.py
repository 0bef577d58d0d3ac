# SPDX-License-Identifier: Apache-2.0
"""Recipes of the rooms above the exchange: blocks, pools, the SDK and URMA by their stand-ins."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

import obmm
from obmm import sdk, urma
from obmm.blocks import BlockOwner, BlockStore, Namespace, SlotLayout
from obmm.exchange import connect, serve
from obmm.prefetch.pool import EngramPool, EngramPoolConfig
from obmm.sdk import session as session_module
from obmm.sdk.standin import StandIn as SdkStandIn
from obmm.urma.standin import StandIn as UrmaStandIn

from .place import MIB, Place, Steps, close_regions

NAME = "injected"


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def block_owner(place: Place, device: obmm.Device) -> Iterator[int]:
    """Blocks that are served from `device` -> the port."""
    journal = place.folder / "blocks.journal"
    with (
        BlockOwner(device, SlotLayout.for_blocks(4096, 8, cache="nc"), term=1.0) as owner,
        serve({}, host="127.0.0.1", port=0, plain=True, journal=journal, term_s=5.0) as server,
    ):
        owner.serve(server)
        yield server.port
        server.close(timeout=0, force=True)
        owner.close(force=True)


@contextmanager
def blocks_owner(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, _):

        def operation() -> None:
            with BlockOwner(a, SlotLayout.for_blocks(4096, 8, cache="nc")) as owner:
                assert owner.status()

        yield operation, lambda: close_regions(a)


@contextmanager
def block_store(place: Place) -> Iterator[Steps]:
    with place.devices() as (a, b), block_owner(place, a) as port, connect(f"127.0.0.1:{port}", plain=True) as peer:
        block, out = np.arange(4096, dtype="u2").view("u1")[:4096], np.empty(4096, "u1")

        def operation() -> None:
            with BlockStore(peer, b, Namespace(model="m", dtype="u1")) as store:
                assert store.put([b"k"], [block])[0]
                assert store.get([b"k"], [out])[0]
                assert (ticket := store.submit_get([b"k"], [out])).result()[0], ticket

        def close() -> None:
            close_regions(b)
            for held in peer.leases:
                held.release()

        yield operation, close


@contextmanager
def pool(place: Place) -> Iterator[Steps]:
    table = np.arange(320, dtype=np.float32).reshape(10, 32)
    made: list[EngramPool] = []

    def config(port: int = 0) -> EngramPoolConfig:
        hosts = ["127.0.0.1"] if port else []
        return EngramPoolConfig(hosts=hosts, num_tables=2, embedding_dim=32, ports=[port], plain=True)

    with place.devices() as (a, b):

        def operation() -> None:
            owner = EngramPool(config(), device=a)
            made.append(owner)
            owner.initialize()
            owner.load_table(0, table)
            server = owner.serve(host="127.0.0.1", journal=place.folder / "pool.journal", term_s=5.0)
            reader = EngramPool(config(server.port), device=b)
            made.append(reader)
            reader.initialize()
            assert np.array_equal(reader.batch_lookup(0, [3, 1]), table[[3, 1]])
            reader.shutdown()
            owner.shutdown()

        def close() -> None:
            for each in reversed(made):
                each.shutdown()
            made.clear()
            close_regions(b, a)

        yield operation, close


@contextmanager
def session(place: Place) -> Iterator[sdk.Session]:
    with (
        SdkStandIn(place.fabric, unit=4 * MIB, mode="in-process") as standin,
        environment(**standin.environment("a")),
        sdk.connect() as opened,
    ):
        yield opened
        status = standin.status()
        assert status == {"objects": {}, "leases": 0, "busy": []}


@contextmanager
def shared_object(place: Place) -> Iterator[Steps]:
    """An object outlives its handle: by its name a program finds it again, and deletes it."""
    with session(place) as opened:

        def operation() -> None:
            with sdk.SharedObject.create(opened, NAME, 4 * MIB) as shared:
                shared.map("rw")
                view = shared.view()
                view[0] = 1
                del view
                shared.set_ownership("none")
                with shared.regions("r") as memory:
                    memory.read(0, 8)
                shared.delete()

        def close() -> None:
            for shared in opened.objects:
                shared.close()
            for entry in opened.list(NAME):
                sdk.SharedObject.open(opened, entry.name).delete()

        yield operation, close
        assert not opened.objects


@contextmanager
def locked_object(place: Place) -> Iterator[Steps]:
    with session(place) as opened, sdk.SharedObject.create(opened, NAME, 4 * MIB, flags=1) as shared:
        shared.map("none")

        def operation() -> None:
            with shared.writing():
                pass
            with shared.reading():
                pass

        yield operation, lambda: None
        with shared.writing():  # no lock was left
            pass
        shared.delete()


@contextmanager
def sdk_lease(place: Place) -> Iterator[Steps]:
    with session(place) as opened:

        def operation() -> None:
            with opened.lease(4 * MIB) as lease:
                lease.view()[0] = 1

        def close() -> None:
            for lease in opened.leases:
                lease.close()

        yield operation, close
        assert not opened.leases


@contextmanager
def whole_session(place: Place) -> Iterator[Steps]:
    with (
        SdkStandIn(place.fabric, unit=4 * MIB, mode="in-process") as standin,
        environment(**standin.environment("a")),
    ):

        def operation() -> None:
            with sdk.connect() as opened, opened.lease(4 * MIB) as lease:
                assert lease.nbytes

        def close() -> None:
            for each in tuple(session_module._sessions):
                each.close()
            sdk.connect().close()  # it connects again

        yield operation, close


@contextmanager
def urma_memory(_: Place) -> Iterator[Steps]:
    with UrmaStandIn(("a",)) as standin, environment(**standin.environment("a")):
        with urma.Context(library=urma.load(standin.library)) as context:
            ticket = context.register(mmap.mmap(-1, 4096)).ticket(context.queue())

            def operation() -> None:
                with urma.UrmaMemory(context, ticket, header=False, landing=8192) as memory:
                    assert memory.read(0, 8) == bytes(8)

            yield operation, lambda: None


@contextmanager
def urma_context(_: Place) -> Iterator[Steps]:
    with UrmaStandIn(("a", "b")) as standin, environment(**standin.environment("a")):
        library = urma.load(standin.library)

        def operation() -> None:
            with urma.Context(library=library) as owner, urma.Context(library=library) as reader:
                pages = mmap.mmap(-1, 4096)
                with owner.register(pages) as segment, owner.queue() as mine, reader.queue() as queue:
                    with queue.attach(segment.ticket(mine)) as target:
                        assert target.read(0, 8) == bytes(8)

        def close() -> None:
            for context in urma.contexts():
                context.close()

        yield operation, close


ABOVE = {
    "block owner": blocks_owner,
    "block store": block_store,
    "pool": pool,
    "shared object": shared_object,
    "locked object": locked_object,
    "sdk lease": sdk_lease,
    "urma": urma_context,
    "urma memory": urma_memory,
    "session": whole_session,
}
