# SPDX-License-Identifier: Apache-2.0
"""What docs/safety.md lets any number of threads use: eight threads on one object, with freed memory poisoned.

In ``make test`` each has a second; ``make threads`` gives each 20 seconds (OBMM_THREAD_SECONDS), with the
native module under the address sanitizer in ``make threads-asan`` (OBMM_THREAD_ASAN).
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from obmm import emulator
from obmm.sdk.standin import StandIn as SdkStandIn
from obmm.urma.standin import StandIn as UrmaStandIn

SECONDS = float(os.environ.get("OBMM_THREAD_SECONDS", "1"))

# glibc gives freed memory back filled with 0x5a at once: a late read of it gives nonsense
POISONED = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "MALLOC_PERTURB_": "165"}

ASAN = bool(os.environ.get("OBMM_THREAD_ASAN"))


def sanitized() -> dict[str, str]:
    """The module that ``make asan-module`` built, with freed memory filled and kept out of use for long."""
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], check=True, capture_output=True, text=True).stdout
    options = "detect_leaks=0:allow_user_segv_handler=1:use_sigaltstack=0:handle_segv=0:handle_sigbus=0"
    return {
        "PYTHONPATH": os.pathsep.join(("build/asan", ".")),
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": library.strip(),
        "ASAN_OPTIONS": f"{options}:max_free_fill_size=65536:free_fill_byte=90",
    }


PROGRAM = """
import sys, threading, time
import numpy as np
import obmm
from obmm.exchange import connect, serve
from obmm.prefetch import PolyHasher
from obmm.rows import GatherEngine, Manifest, RowStore, TableSpec

fabric, what, seconds, folder = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
ROWS, ROW = 4096, 64
local = np.arange(ROWS * ROW // 8, dtype="<u8").view("u1").reshape(ROWS, ROW)
a = obmm.open(fabric)
region = a.export_region("1MiB")
m = region.map("rw")
m.write(0, local)
rows, engine = m.rows(ROW, n_rows=ROWS), GatherEngine(2)
store = RowStore.attach(m, Manifest((TableSpec("t", ROWS, ROW),)), verify="none", plan=False, engine=engine)
hasher = PolyHasher(1000, 500, 3, 2, None)
tokens = np.arange(300)
hashes = hasher.hash(tokens, [0, 300])
server = serve({"t": region}, host="127.0.0.1", port=0, plain=True, journal=folder + "/leases.journal")
peer = connect(f"127.0.0.1:{server.port}", plain=True)

def some(rng):
    return rng.integers(0, ROWS, int(rng.choice([1, 3, 200, 20_000])))

def device(rng):
    with a.export_region("1MiB") as mine, mine.map("rw") as mapping:
        mapping.write(0, local[:2])
        assert mapping.read(0, 128) == local[:2].tobytes()
        assert mine.mem_id not in a.forgotten  # afterwards the number may be another thread's
    assert a.controllers and repr(a)

def the_region(rng):
    with region.map("r") as mapping, region.hold("a thread"):
        assert mapping.load("<u8", 8) == 1
    assert region.holds is not None and region.mappings

def mapping(rng):
    at = int(rng.integers(0, ROWS)) * ROW
    assert m.read(at, ROW) == local[at // ROW].tobytes()
    assert m.load("<u8", at) == at // 8
    m.store("<u8", at, at // 8)
    view = m.view(at, at + ROW)
    assert bytes(view) == local[at // ROW].tobytes()

def rowview(rng):
    ids = some(rng)
    assert np.array_equal(rows.gather(ids), local[ids])

def rowstore(rng):
    ids = some(rng)
    out = np.empty((len(ids), ROW), "u1")
    store.gather_into("t", ids, out)
    assert np.array_equal(out, local[ids])
    assert np.array_equal(store.column_slice([0], 1).gather("t", ids.reshape(-1, 1))[:, 0], local[ids])

def the_engine(rng):
    ids = some(rng)
    out = np.empty((len(ids), ROW), "u1")
    ticket = store.submit("t", ids, out)
    if rng.random() < 0.2:
        ticket.abandon()
        ticket.wait()
        return
    ticket.result()
    assert np.array_equal(out, local[ids])

def the_hasher(rng):
    assert np.array_equal(hasher.hash(tokens, [0, 300]), hashes)

def the_peer(rng):
    assert "t" in peer.list()
    lease = peer.fetch("t")
    assert lease.usable
    lease.release()

def the_server(rng):
    name = f"n{threading.get_ident()}"
    with a.export_region("1MiB") as mine:
        server.publish(name, mine)
        assert name in peer.list()
        server.revoke(name, timeout=1)

def lease(rng, held=[]):
    held or held.append(peer.fetch("t"))
    assert held[0].usable and held[0].remaining > 0 and held[0].users == () and held[0].fileno() >= 0

others = []
if what == "BlockStore":
    from obmm.blocks import BlockOwner, BlockStore, Namespace, SlotLayout
    b = obmm.open(fabric.replace("#a", "#b"))
    owner = BlockOwner(a, SlotLayout.for_blocks(4096, 64, cache="nc"), term=5.0)
    owner.serve(server)
    blocks = BlockStore(peer, b, Namespace(model="m", dtype="u1"), engine=engine)
    others = [lambda: blocks.close(), lambda: b.close(force=True)]
    def bytes_of(key):
        return np.full(4096, key, "u1")

def block_store(rng):
    keys = [int(key) for key in rng.integers(0, 40, 3)]
    named = [b"%d" % key for key in keys]
    blocks.put(named, [bytes_of(key) for key in keys])
    out = [np.zeros(4096, "u1") for _ in keys]
    for key, found, block in zip(keys, blocks.get(named, out), out):
        assert not found or np.array_equal(block, bytes_of(key))

if what == "SharedObject":
    from obmm import sdk
    session = sdk.connect()
    shared = sdk.SharedObject.create(session, "threads", 4 << 20)
    others = [lambda: shared.delete(), lambda: session.close()]

def shared_object(rng):
    try:
        shared.map("rw")
        with shared.regions("r") as memory:
            assert memory.read(0, 8) == bytes(8)
    except obmm.ObmmError:
        pass  # another thread has mapped it, or unmapped it meanwhile
    try:
        shared.unmap()
    except obmm.MappingBusyError:
        pass  # another thread reads
    assert any(entry.name == "threads" for entry in session.list("threads"))

if what == "UrmaContext":
    import mmap
    from obmm import urma
    context = urma.Context(library=urma.load())
    pages = mmap.mmap(-1, 4096)
    segment, mine = context.register(pages), context.queue()
    ticket = segment.ticket(mine)
    others = [lambda: context.close()]

def urma_context(rng):
    with context.queue(depth=64, list_max=64) as queue, queue.attach(ticket) as target:
        assert target.read(0, 8) == bytes(8)

work = {
    "BlockStore": block_store, "SharedObject": shared_object, "UrmaContext": urma_context,
    "Device": device, "Region": the_region, "Mapping": mapping, "RowView": rowview, "RowStore": rowstore,
    "GatherEngine": the_engine, "NgramHasher": the_hasher, "Peer": the_peer, "Server": the_server, "Lease": lease,
}[what]
end, wrong, turns = time.monotonic() + seconds, [], []

def run(seed):
    rng, n = np.random.default_rng(seed), 0
    try:
        while time.monotonic() < end and not wrong:
            work(rng)
            n += 1
    except BaseException as error:
        wrong.append(repr(error))
    turns.append(n)

threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong, wrong
assert min(turns) > 0, turns
for end in others:
    end()
peer.close(force=True)
server.close(timeout=1, force=True)
store.close()
engine.close()
a.close(force=True)
"""

SHARED = (
    *("Device", "Region", "Mapping", "RowView", "RowStore", "GatherEngine", "NgramHasher"),
    *("Peer", "Server", "Lease", "BlockStore", "SharedObject", "UrmaContext"),
)


@pytest.fixture(scope="module")
def fabric():
    with emulator.start(nodes=2) as fabric:
        yield fabric
        fabric.check()


@pytest.fixture
def around(fabric, what):
    """Variables of the stand-in that the object needs."""
    if what == "SharedObject":
        with SdkStandIn(fabric, unit=4 << 20, mode="in-process") as standin:
            yield standin.environment("a")
    elif what == "UrmaContext":
        with UrmaStandIn(("a",)) as standin:
            yield standin.environment("a")
    else:
        yield {}


@pytest.mark.timeout(0)
@pytest.mark.parametrize("what", SHARED)
def test_eight_threads_on_one(fabric, tmp_path, what, around):
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", PROGRAM, fabric.device("a"), what, str(SECONDS), str(tmp_path)],
        env={**os.environ, **around, **(sanitized() if ASAN else POISONED)},
        capture_output=True,
        text=True,
        timeout=SECONDS + 60,
    )
    assert done.returncode == 0, done.stderr[-3000:]
