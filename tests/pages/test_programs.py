# SPDX-License-Identifier: Apache-2.0
"""Every Python block of every page runs, in the order of its page, with what the page says is there.

A page's setting gives these names and looks at what came out.  A block that cannot run here begins with the line
"# needs ..."; a page or a block that is not run fails.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import obmm
from obmm import blocks, emulator, prefetch, sdk, urma
from obmm.exchange import RequestRefusedError
from obmm.exchange.aio import AsyncPeer
from obmm.rows import LocalMemory, Manifest, RowStore, TableSpec
from obmm.rows.accelerator import Accelerator, Stream
from obmm.rows.fake_accelerator import FakeAccelerator
from obmm.sdk.standin import StandIn
from obmm.urma.standin import StandIn as UrmaStandIn
from tests.pages.blocks_of_code import ROOT, programs
from tests.pages.place import Place, until

PROGRAMS = programs()
RUN_ELSEWHERE = {"docs/tutorial.md": "tests/examples/test_tutorial.py"}
SETTINGS: dict[str, Callable[[Place], None]] = {}

ROWS, ROW_BYTES = 500, 264
TABLE = np.random.default_rng(7).integers(1, 256, (ROWS, ROW_BYTES), np.uint8)


def on(page: str) -> Callable[[Callable[[Place], None]], Callable[[Place], None]]:
    def register(setting: Callable[[Place], None]) -> Callable[[Place], None]:
        SETTINGS[page] = setting
        return setting

    return register


@pytest.fixture(scope="module")
def fabric() -> Iterator[emulator.Fabric]:
    with emulator.start(nodes=2) as started:
        yield started
        assert started.status()["internal_errors"] == 0


@pytest.mark.parametrize("page", sorted(PROGRAMS.keys() - RUN_ELSEWHERE))
def test_the_programs_of_a_page_run(page, fabric, tmp_path, monkeypatch):
    assert page in SETTINGS, (
        f"nothing runs the programs of {page}: give it a setting, or begin a block with '# needs ...'"
    )
    place = Place(fabric, tmp_path, monkeypatch, page, PROGRAMS[page])
    SETTINGS[page](place)
    assert place.ran == len(PROGRAMS[page]), f"{page}: block {place.ran + 1} is not run"


def test_pages_that_are_run_elsewhere_are_there():
    assert all((ROOT / page).is_file() and (ROOT / test).is_file() for page, test in RUN_ELSEWHERE.items())
    assert PROGRAMS.keys() >= SETTINGS.keys() | RUN_ELSEWHERE.keys()


# --- what the pages presume -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def lent(place: Place, name: str, table: np.ndarray, manifest: dict[str, Any] | None = None) -> Iterator[obmm.Server]:
    """`table` as the region `name`, served from node a under the hosts' names; this process is on node b afterwards."""
    place.on("a")
    with obmm.open() as device, device.export_region(table.nbytes) as region, region.map("rw") as m:
        with m.writing():
            m.write(0, table)
        m.publish()
        with obmm.serve({name: (region, manifest)}, host="127.0.0.1", port=0, key="cluster.key") as server:
            place.lends(server)
            place.on("b")
            yield server


@contextlib.contextmanager
def local(table: np.ndarray, name: str = "layer0") -> Iterator[RowStore]:
    manifest = Manifest((TableSpec(name, len(table), table.shape[1]),))
    with RowStore.attach(LocalMemory(table.copy().reshape(-1)), manifest, verify="none", plan=False) as store:
        yield store


@on("README.md")
def readme(place: Place) -> None:
    rows, dim = 1000, 16
    table = np.random.default_rng(1).random((rows, dim), np.float32)
    ids = np.array([3, 17, 999])
    place.on("a")
    owner, reader = place.halves("# node B")
    with place.lending(owner, rows=rows, dim=dim, table=table) as owning:
        place.on("b")
        names = place.part(reader, obmm=obmm, rows=rows, dim=dim, ids=ids)
        assert (names["picked"].view("<f4") == table[ids]).all()
        assert names["x"] == table.view("<u8")[0, 0]
        names["dev"].close()
    owning["dev"].close()


@on("docs/rows.md")
def rows(place: Place) -> None:
    with contextlib.ExitStack() as life:
        a = life.enter_context(obmm.open(place.fabric.device("a")))
        b = life.enter_context(obmm.open(place.fabric.device("b")))
        exported = life.enter_context(a.export_region(TABLE.nbytes))
        ids = np.random.default_rng(2).integers(0, ROWS, (5, 24))
        owner, reader = place.halves("# the reader")
        place.part(owner, regions=[exported], rows=TABLE)
        imported = life.enter_context(b.import_region(exported.handle()))
        names = place.part(reader, imported_regions=[imported], ids=ids, tokens=5)
        assert (names["out"] == TABLE[ids]).all()
    with local(TABLE, "layer1") as store:
        out = np.empty((5, 24, ROW_BYTES), np.uint8)
        place.run(store=store, ids=np.empty((5, 24), np.int64), out=out, tokens=[1], hash_of=lambda tokens: ids)
        assert (out == TABLE[ids]).all()


@on("docs/exchange.md")
def exchange(place: Place) -> None:
    events: list[Any] = []
    with lent(place, "table", TABLE) as server:
        with obmm.connect("node-a", key="cluster.key") as peer:
            place.run(peer=peer, stop_using=lambda region: events.append(region))
        until(lambda: not server.status()["server"]["leases"])

        waits = threading.Event()
        real = AsyncPeer.events
        place.takes(AsyncPeer, "events", lambda peer: (waits.set(), real(peer))[1])
        thread = threading.Thread(target=lambda: waits.wait(30) and server.revoke("table"))
        thread.start()
        said: list[Any] = []
        place.run(print=said.append)
        thread.join(30)
        assert [str(each.name).lower() for each in said] == ["revoked"]


@on("docs/blocks.md")
def blocks_page(place: Place) -> None:
    block_1, block_2, into_1, into_2 = (np.full(4096, n, np.uint8) for n in range(4))
    with contextlib.ExitStack() as life:
        a = life.enter_context(obmm.open(place.fabric.device("a")))
        owner = life.enter_context(blocks.BlockOwner(a, blocks.SlotLayout.for_blocks(4096, slots=8), name="kv"))
        server = life.enter_context(obmm.serve({}, host="127.0.0.1", port=0, key="cluster.key"))
        place.lends(server)
        owner.serve(server)
        place.on("b")
        names = place.run(
            block_1=block_1, block_2=block_2, into_1=into_1, into_2=into_2, keys=[b"chunk 2"], memory=[into_2]
        )
        assert (into_1 == block_1).all()
        assert names["ticket"].done


@on("docs/engram-tables.md")
def engram_tables(place: Place) -> None:
    spec = TableSpec("layer1", ROWS, ROW_BYTES, neutral_zero=True, layer_id=1)
    ids = np.array([[1, 2], [3, ROWS - 1]])
    with obmm.open(place.fabric.device("a")) as a, a.export_region(spec.end) as region:
        with region.map("rw") as m, RowStore.attach(m, Manifest((spec,)), verify="none", plan=False) as owner:
            owner.populate("layer1", TABLE)
            manifest = owner.publish(model="toy", engram={"family": "toy", "fingerprint": "0" * 64})
        served = {"flash": (region, manifest.to_dict())}
        with obmm.serve(served, host="127.0.0.1", port=0, key="cluster.key") as server:
            place.lends(server)
            place.on("b")
            names = place.run(ids=ids)
            assert (names["rows"] == TABLE[ids]).all()


@on("docs/prefetch.md")
def prefetch_page(place: Place) -> None:
    vocabulary, columns = 300, 4
    token_map = np.arange(vocabulary, dtype=np.int32)
    layers = prefetch.engram_layers([1, 2], vocabulary=vocabulary, bases=[101, 103], heads=2)
    model = prefetch.engram_model(layers, token_map, pad_token=2)
    described = Manifest(prefetch.engram_tables(layers, ROW_BYTES), model=model)
    contents = {each.layer_id: np.resize(TABLE, (each.rows, ROW_BYTES)) for each in layers}
    with contextlib.ExitStack() as life:
        a = life.enter_context(obmm.open(place.fabric.device("a")))
        b = life.enter_context(obmm.open(place.fabric.device("b")))
        exported = life.enter_context(a.export_region(described.nbytes))
        with exported.map("rw") as m, RowStore.attach(m, described, verify="none", plan=False) as owner:
            for layer_id, content in contents.items():
                owner.populate(layer_id, content)
            manifest = owner.publish()
        region = life.enter_context(b.import_region(exported.handle()))
        tokens = np.array([5, 6, 7, 8])
        names = place.run(
            region=region, lease=SimpleNamespace(manifest=manifest.to_dict()), token_map=token_map, tokens=tokens,
            request_starts=np.array([0, 3, 4]), requests=[0, 1], positions=[0, 0],
        )  # fmt: skip
        life.callback(names["store"].close)
        assert names["ids"].shape == (4, 2, columns)
        assert names["rows"].status is prefetch.RowsStatus.OK
        here, there = (life.enter_context(end) for end in socket.socketpair())
        reader, follower = place.halves("# every other rank")
        published, retire, retired = reader.partition("staging.retire")
        copied, drain, drained = follower.replace("timeout=0.020", "timeout=10").partition("follower.drain")
        names = place.part(published, socket=socket, to_rank=here, step=7)
        life.callback(names["staging"].close)
        life.callback(names["prefetcher"].close)
        (fd,) = socket.recv_fds(there, 64, 1)[1]
        place.part(copied, fd=fd)
        life.callback(names["follower"].close)
        life.callback(os.close, fd)
        assert (names["rows"].buffer[:4] == contents[1][names["ids"][:, 0]]).all()
        place.part(retire + retired)
        place.part(drain + drained)


@on("docs/sdk.md")
def sdk_page(place: Place) -> None:
    ids = np.array([0, 2, ROWS - 1])
    with emulator.start(nodes=["node-a", "b"]) as fabric, StandIn(fabric) as standin:
        place.takes_environment(standin.environment("node-a"))
        owner, reader = place.halves("# on another node")
        first = place.part(owner, rows=TABLE)
        place.takes_environment(standin.environment("b"))
        names = place.part(reader, ids=ids)
        assert (names["picked"] == TABLE[ids]).all()
        assert first["session"].kind == "stand-in"
        place.takes_environment(standin.environment("node-a"))
        place.run()
        place.takes_environment(standin.environment("node-a"))
        with sdk.connect() as session, sdk.SharedObject.open(session, "table", flags=0) as table:
            size = table.size
            names = place.run(session=session, size=size)
            assert names["cost"].round_trips == 1
            session.calls.unmap("table", names["address"], size)
            table.delete()


@on("docs/urma.md")
def urma_page(place: Place) -> None:
    def there() -> bool:
        with obmm.connect("node-a", key="cluster.key") as peer, contextlib.suppress(RequestRefusedError):
            return bool(urma.fetch(peer, "table"))
        return False

    with UrmaStandIn(("a", "b")) as standin:
        place.takes_environment(standin.environment("a"))
        with place.lending(place.next()) as owning:
            assert owning["context"]
            until(there)
            names = place.run()
            assert bytes(names["landing"][:960]) == bytes(960)
        with urma.Context() as context:
            table = context.buffer(1 << 20, access="r")
            described = Manifest((TableSpec("t", ROWS, ROW_BYTES),))
            with RowStore.attach(LocalMemory(table, header=True), described, verify="none", plan=False) as owner:
                owner.populate("t", TABLE)
                manifest = owner.publish().to_dict()
            segment, _, _ = context.segment_of(table)
            with context.queue() as queue:
                found = urma.FetchedSegment(segment.ticket(queue), {})
                store_of = place.run()["store_of"]
                with store_of(context, found, manifest) as store:
                    assert (store.gather("t", np.array([3, 1])) == TABLE[[3, 1]]).all()
    place.run()


@on("docs/device.md")
def device_page(place: Place) -> None:
    """On the device of this process, with the four names of torch that the page uses."""
    accelerator = FakeAccelerator()
    stream = Stream(accelerator)
    place.takes(Accelerator, "cuda", lambda number: accelerator)
    graphs: list[Any] = []

    class Graph:
        def replay(self) -> None:
            graphs[-1].replay(stream)
            accelerator.synchronize(stream.handle)

    @contextlib.contextmanager
    def capture(graph: Graph) -> Iterator[None]:
        accelerator.capture(stream)
        yield
        graphs.append(accelerator.end_capture(stream))

    torch = SimpleNamespace(
        cuda=SimpleNamespace(current_stream=lambda: stream, graph=capture),
        as_tensor=lambda array, device: np.asarray(array),
        index_select=lambda array, axis, ids: array.take(ids, axis),
    )
    ids = np.array([3, 1, 2])
    layers = [prefetch.PrefetchLayer(0, "layer0", 1)]
    hasher = prefetch.PolyHasher(V=300, m=97, n=3, k=2, eos=2)
    with local(TABLE) as store:
        names = place.run(store=store, layers=layers, layer=0, max_tokens=4, ids=ids.reshape(3, 1, 1), torch=torch)
        accelerator.synchronize(stream.handle)
        assert (names["tensor"][:3, 0] == TABLE[ids]).all()
        names["prefetcher"].close()
        names = place.run(count=3, ids=ids, graph=Graph(), model=lambda rows: rows)
        assert (np.asarray(names["gather"].rows) == TABLE[ids]).all()
        names["gather"].close()
        names = place.run(hasher=hasher, tokens=np.arange(8), history=np.zeros((8, 2), np.int64))
        accelerator.synchronize(stream.handle)
        assert names["gather"].runs == 1
        names["gather"].close()
        names = place.run(rows=TABLE, ids=ids)
        assert (names["found"] == TABLE[ids]).all()
