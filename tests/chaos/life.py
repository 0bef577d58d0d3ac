# SPDX-License-Identifier: Apache-2.0
"""One life: a process that does random things with regions, mappings, stores and the exchange, in several threads, while
interrupts, forks and revocations come in between.  Everything follows from the seed but the scheduler's part.

Exit status 0: every promise was kept.  3: one was not, and stderr says which.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import obmm
from obmm._native import lib
from obmm.emulator.control import ControlClient
from obmm.exchange import connect, serve
from obmm.prefetch import EngramPrefetcher, PrefetchLayer
from obmm.rows import GatherEngine, Manifest, RowStore, TableSpec

MIB = 1 << 20
WORDS = 1 << 15  # of each region, 8 bytes each
ROW = 64
MANIFEST = Manifest((TableSpec("t", WORDS * 8 // ROW, ROW),))

_WATCHED = (obmm.Device, obmm.Peer, obmm.Server, obmm.Mapping, RowStore, GatherEngine)
_FOR_EVER = ("obmm-log", "obmm-held")  # threads of the process, one for all

PEER = """
import sys, obmm
from tests.chaos.life import pattern
device = obmm.open(sys.argv[1])
region = device.export_region(1 << 20, label="7")
with region.map("rw") as m:
    m.write(0, pattern(7))
    m.publish()
server = obmm.serve({"peer": region}, host="127.0.0.1", port=0, plain=True, journal=sys.argv[2], term_s=2.0)
print(server.port, flush=True)
sys.stdin.read()
"""


class BrokenPromise(Exception):
    """What a life is for."""


def pattern(tag: int) -> np.ndarray[Any, Any]:
    """The content of every region that was made as `tag`, for ever."""
    return np.arange(WORDS, dtype="<u8") | np.uint64(tag << 32)


class Life:
    """The objects of a life and what may be done with them.  Any thread may do anything to any of them."""

    def __init__(self, seed: int, socket: str, folder: Path) -> None:
        self.random = random.Random(seed)
        self.socket, self.folder = socket, folder
        self.devices = [obmm.open(f"emulator:{socket}#{node}") for node in "ab"]
        self.engine = GatherEngine(2)
        self.regions: list[tuple[int, obmm.ExportedRegion]] = []
        self.imports: list[tuple[int, obmm.ImportedRegion]] = []
        self.mappings: list[tuple[int, obmm.Mapping]] = []
        self.stores: list[tuple[int, RowStore]] = []
        self.servers: list[Any] = []
        self.peers: list[Any] = []
        self.views: list[Any] = []
        self.processes: list[tuple[int, subprocess.Popen[str]]] = []
        self.tags = iter(range(8, 1 << 20))
        self.revoked: set[int] = set()
        self.counts: dict[str, int] = {}
        self.broken: list[str] = []

    # --- what a thread does ------------------------------------------------------------------------------------------

    def step(self, rng: random.Random, *, may_fork: bool) -> None:
        """One random operation; only errors of the package may come out of it."""
        names = [name for name in dir(self) if name.startswith("do_")]
        name = rng.choice(names)
        if name == "do_fork" and not may_fork:
            return
        try:
            getattr(self, name)(rng)
            self.counts[name] = self.counts.get(name, 0) + 1
        except (obmm.ObmmError, IndexError, MemoryError):
            self.counts[name + "!"] = self.counts.get(name + "!", 0) + 1
        except (KeyboardInterrupt, BrokenPromise):
            raise
        except BaseException:
            raise BrokenPromise(f"{name}: not an error of ours:\n{traceback.format_exc()}") from None

    def do_export(self, rng: random.Random) -> None:
        if len(self.regions) > 12:
            return
        tag = next(self.tags)
        region = self.devices[rng.randrange(2)].export_region(MIB, label=str(tag), pmd=rng.random() < 0.2)
        try:
            with region.map("rw", cache=rng.choice(["cc", "nc"])) as mapping:
                mapping.write(0, pattern(tag))
                mapping.publish()
        except BaseException:
            region.close(force=True)
            raise
        self.regions.append((tag, region))

    def do_import(self, rng: random.Random) -> None:
        tag, region = rng.choice(self.regions)
        handle = region.handle()
        self.imports.append((tag, self.devices[rng.randrange(2)].import_region(handle, cache=rng.choice(["cc", "nc"]))))

    def do_map(self, rng: random.Random) -> None:
        tag, region = rng.choice(self.regions + self.imports)
        access = rng.choice(["r", "r", "rw", "none"])
        self.mappings.append((tag, region.map(access)))

    def do_read(self, rng: random.Random) -> None:
        tag, mapping = rng.choice(self.mappings)
        low = rng.randrange(WORDS)
        high = min(WORDS, low + rng.choice([1, 8, 170, 5000]))
        found = np.frombuffer(mapping.read(low * 8, (high - low) * 8), "<u8")
        self.same(tag, found, pattern(tag)[low:high], "read")

    def do_load(self, rng: random.Random) -> None:
        tag, mapping = rng.choice(self.mappings)
        for _ in range(20):
            at = rng.randrange(WORDS)
            self.same(tag, mapping.load("<u8", at * 8), int(pattern(tag)[at]), "load")

    def do_store(self, rng: random.Random) -> None:
        tag, mapping = rng.choice(self.mappings)
        at = rng.randrange(WORDS)
        mapping.store("<u8", at * 8, int(pattern(tag)[at]))

    def do_write(self, rng: random.Random) -> None:
        tag, mapping = rng.choice(self.mappings)
        low = rng.randrange(WORDS)
        mapping.write(low * 8, pattern(tag)[low : low + 600])

    def do_rows(self, rng: random.Random) -> None:
        tag, mapping = rng.choice(self.mappings)
        ids = np.array([rng.randrange(MANIFEST.tables[0].n_rows) for _ in range(rng.choice([1, 7, 300]))])
        found = mapping.rows(ROW, n_rows=MANIFEST.tables[0].n_rows).gather(ids)
        self.same(tag, found, pattern(tag).view("u1").reshape(-1, ROW)[ids], "rows")

    def do_view(self, rng: random.Random) -> None:
        _, mapping = rng.choice(self.mappings)
        self.views.append(mapping.view(0, 4096) if rng.random() < 0.5 else mapping.as_numpy("<u8", (8,)))

    def do_drop_views(self, _: random.Random) -> None:
        self.views.clear()

    def do_rights(self, rng: random.Random) -> None:
        _, mapping = rng.choice(self.mappings)
        getattr(mapping, rng.choice(["publish", "refresh", "release"]))()
        mapping.acquire(rng.choice("rw"))

    def do_phase(self, rng: random.Random) -> None:
        tag, mapping = rng.choice(self.mappings)
        with mapping.writing() if rng.random() < 0.5 else mapping.reading():
            self.same(tag, mapping.load("<u8", 8), int(pattern(tag)[1]), "phase")

    def do_unmap(self, rng: random.Random) -> None:
        entry = rng.choice(self.mappings)
        entry[1].close(force=rng.random() < 0.3)
        self.remove(self.mappings, entry)

    def do_close_import(self, rng: random.Random) -> None:
        entry = rng.choice(self.imports)
        entry[1].close(force=rng.random() < 0.3)
        self.remove(self.imports, entry)

    def do_close_region(self, rng: random.Random) -> None:
        entry = rng.choice(self.regions)
        if any(tag == entry[0] for tag, _ in self.imports + self.mappings):
            return  # on hardware an error of the machine, and here the reader's memory is gone
        self.revoked.add(entry[0])
        entry[1].close(force=rng.random() < 0.3)
        self.remove(self.regions, entry)

    def do_revoke(self, rng: random.Random) -> None:
        if rng.random() > 0.2:
            return
        tag, region = rng.choice(self.regions)
        self.views.clear()
        gc.collect()
        self.revoked.add(tag)
        try:
            with ControlClient(self.socket) as control:
                control.request(
                    "inject",
                    node="ab"[self.devices.index(region.device)],
                    fault="revoke",
                    arguments={"mem_id": region.mem_id},
                )
        except OSError:
            return  # closed meanwhile, or no descriptor for the control connection

    def do_attach_store(self, rng: random.Random) -> None:
        tag, mapping = rng.choice(self.mappings)
        if len(self.stores) < 8:
            store = RowStore.attach(mapping, MANIFEST, verify="none", plan=False, engine=self.engine)
            self.stores.append((tag, store))

    def do_gather(self, rng: random.Random) -> None:
        tag, store = rng.choice(self.stores)
        ids = np.array([rng.randrange(4096) for _ in range(rng.choice([1, 64, 2000]))])
        out = np.empty((len(ids), ROW), "u1")
        if rng.random() < 0.5:
            store.gather_into("t", ids, out)
        else:
            ticket = store.submit("t", ids, out)
            if rng.random() < 0.2:
                ticket.abandon()
                return
            ticket.result(20.0)
        self.same(tag, out, pattern(tag).view("u1").reshape(-1, ROW)[ids], "gather")

    def do_prefetch(self, rng: random.Random) -> None:
        tag, store = rng.choice(self.stores)
        ids = np.array([[rng.randrange(4096)] for _ in range(8)])
        with EngramPrefetcher(store, [PrefetchLayer(1, "t", 1)], 8) as prefetcher:
            prefetcher.begin([ids], 8, 8)
            prefetcher.start()
            rows = prefetcher.consume(1)
            found = np.array(rows.buffer).reshape(-1, ROW)[:8]
            if rows.status.value in ("zeroed", "failed", "empty"):
                return  # zeros, and a status that says so
            self.same(tag, found, pattern(tag).view("u1").reshape(-1, ROW)[ids[:, 0]], "prefetch")

    def do_close_store(self, rng: random.Random) -> None:
        entry = rng.choice(self.stores)
        entry[1].close()
        self.remove(self.stores, entry)

    def do_serve(self, rng: random.Random) -> None:
        if len(self.servers) < 2:
            tag, region = rng.choice(self.regions)
            journal = self.folder / f"{os.getpid()}-{next(self.tags)}.journal"
            server = serve({str(tag): region}, host="127.0.0.1", port=0, plain=True, journal=journal, term_s=2.0)
            self.servers.append(server)

    def do_connect(self, rng: random.Random) -> None:
        if len(self.peers) < 4:
            ports = [server.port for server in self.servers] + [port for port, _ in self.processes]
            self.peers.append(connect(f"127.0.0.1:{rng.choice(ports)}", plain=True, timeout=2.0))

    def do_fetch(self, rng: random.Random) -> None:
        peer = rng.choice(self.peers)
        name = rng.choice(list(peer.list()))
        tag = 7 if name == "peer" else int(name)
        lease = peer.fetch(name)
        try:
            with self.devices[1].import_region(lease) as region, region.map("r") as mapping:
                self.same(tag, mapping.load("<u8", 80), int(pattern(tag)[10]), "fetched")
        finally:
            lease.release(1.0)

    def do_disconnect(self, rng: random.Random) -> None:
        peer = rng.choice(self.peers)
        peer.close(timeout=1.0, force=True)
        self.remove(self.peers, peer)

    def do_stop_server(self, rng: random.Random) -> None:
        server = rng.choice(self.servers)
        server.close(timeout=0.2, force=True)
        self.remove(self.servers, server)

    def do_peer_process(self, rng: random.Random) -> None:
        if len(self.processes) > 1 or rng.random() > 0.3:
            return
        journal = str(self.folder / f"peer-{os.getpid()}-{next(self.tags)}.journal")
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", PEER, f"emulator:{self.socket}#a", journal],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                preexec_fn=_as_usual,
            )
        except OSError:
            return  # no descriptors for it
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if line:
                self.processes.append((int(line), process))
                return
        except BaseException:
            end(process)
            raise
        end(process)

    def do_kill_peer(self, rng: random.Random) -> None:
        entry = rng.choice(self.processes)
        self.revoked.add(7)  # its region goes with `gc`, or stays: its rows are not asked for any more
        if rng.random() < 0.3:
            entry[1].send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            entry[1].send_signal(signal.SIGCONT)
            return
        end(entry[1])
        self.remove(self.processes, entry)

    def do_fork(self, rng: random.Random) -> None:
        if rng.random() > 0.3:
            return
        tags = list(self.mappings)
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            return
        status = 0
        try:  # the child has nothing: each answer is an error that says so
            for _, mapping in tags:
                try:
                    mapping.read(0, 8)
                    status = 9
                except obmm.ObmmError:
                    pass
            with obmm.open(f"emulator:{self.socket}#a") as device:
                device.export_region(MIB).close()
        except obmm.ObmmError:
            pass
        except BaseException:
            traceback.print_exc()
            status = 8
        finally:
            os._exit(status)

    def do_faulthandler(self, rng: random.Random) -> None:
        rng.choice([faulthandler.enable, faulthandler.disable])()

    def do_handler(self, rng: random.Random) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(rng.choice([signal.SIGBUS, signal.SIGSEGV]), rng.choice([signal.SIG_DFL, signal.SIG_IGN]))

    def do_mask(self, _: random.Random) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGBUS, signal.SIGSEGV})

    def do_collect(self, _: random.Random) -> None:
        gc.collect()

    def do_ask(self, rng: random.Random) -> None:
        device = rng.choice(self.devices)
        assert repr(device)
        assert device.controllers
        device.remove_forgotten()

    # --- promises ----------------------------------------------------------------------------------------------------

    def same(self, tag: int, found: Any, expected: Any, what: str) -> None:
        if not np.array_equal(found, expected) and tag not in self.revoked:
            here, there = np.ravel(found), np.ravel(expected)
            wrong = np.flatnonzero(here != there) if here.shape == there.shape else here
            raise BrokenPromise(
                f"{what}: {len(wrong)} of {len(there)} numbers are wrong in region {tag}: from {wrong[:1]} on "
                f"{here[wrong[:4]]}, not {there[wrong[:4]]}; to {wrong[-1:]}, {here[wrong[-4:]]}"
            )

    @staticmethod
    def remove(things: list[Any], thing: Any) -> None:
        if thing in things:
            with contextlib.suppress(ValueError):  # another thread was faster
                things.remove(thing)

    def end(self) -> None:
        """Close all, in an order that succeeds whatever happened before; twice, if an interrupt came."""
        for _, process in list(self.processes):
            end(process)
        self.processes.clear()
        self.views.clear()
        for _, store in self.stores:
            store.close()
        for peer in self.peers:
            peer.close(timeout=1.0, force=True)
        for server in self.servers:
            server.close(timeout=0.1, force=True)
        gc.collect()
        for device in reversed(self.devices):
            device.close(force=True)
        self.engine.close()
        for things in (self.stores, self.peers, self.servers, self.mappings, self.imports, self.regions):
            things.clear()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _as_usual() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def held() -> dict[str, int]:
    gc.collect()
    return {
        # pipes are those of children, which the standard library loses when it is interrupted
        "descriptors": sum(not name.startswith("pipe:") for name in _descriptors()),
        "threads": sum(name.startswith("obmm-") and name not in _FOR_EVER for name in _threads()),
        "mappings": Path("/proc/self/maps").read_text().count("memfd:"),
        "ranges": lib.obmm_guard_count(),
    }


def _descriptors() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found


def _threads() -> list[str]:
    """Of Python by their names, of native code by what they are called in /proc."""
    found = [thread.name for thread in threading.enumerate()]
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            found.append(Path(f"/proc/self/task/{task}/comm").read_text().strip())
    return found


def settled(before: dict[str, int]) -> dict[str, int]:
    """What is held once threads had time to end."""
    deadline = time.monotonic() + 10
    while (now := held()) != before and time.monotonic() < deadline:
        time.sleep(0.01)
    return now


def interrupt(_signum: int, frame: FrameType | None) -> None:
    """As Python's own, but for the lines of this program that run what is interrupted."""
    if frame is None or frame.f_code not in (quietly.__code__, live.__code__):
        raise KeyboardInterrupt


def quietly(call: Callable[[], object]) -> None:
    """Again after each interrupt, until it was through."""
    while True:
        try:
            call()
            return
        except KeyboardInterrupt:
            continue


def live(seed: int, socket: str, folder: Path, seconds: float) -> None:
    rng = random.Random(seed)
    before = held()
    life = Life(seed, socket, folder)
    over, ready = threading.Event(), threading.Event()
    if rng.random() < 0.2:
        low = rng.randrange(40, 120)
        resource.setrlimit(resource.RLIMIT_NOFILE, (low, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    n_threads, interrupts, forks = rng.randrange(4), rng.random() < 0.5, rng.random() < 0.4
    deadline = time.monotonic() + seconds

    def work(own: random.Random) -> None:
        try:
            while time.monotonic() < deadline and not life.broken:
                life.step(own, may_fork=False)
        except BaseException:
            life.broken.append(traceback.format_exc())

    def pester(own: random.Random) -> None:
        ready.wait()
        while not over.wait(own.random() * 0.05):
            os.kill(os.getpid(), signal.SIGINT)

    threads = [
        threading.Thread(target=work, args=(random.Random(f"{seed}-{i}"),), daemon=True) for i in range(n_threads)
    ]
    for thread in threads:
        thread.start()
    pest = threading.Thread(target=pester, args=(random.Random(f"{seed}-pest"),), daemon=True)
    if interrupts:
        pest.start()
    quietly(ready.set)

    def main_thread() -> None:
        """Entered again after each interrupt."""
        while time.monotonic() < deadline and not life.broken:
            try:
                life.step(rng, may_fork=forks)
            except BrokenPromise as error:
                over.set()
                life.broken.append("".join(traceback.format_exception(error)))

    quietly(main_thread)
    quietly(over.set)
    for thread in [*([pest] if interrupts else []), *threads]:
        quietly(lambda thread=thread: thread.join(60))
        if thread.is_alive():
            life.broken.append(f"{thread} hangs")
            faulthandler.dump_traceback(all_threads=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGBUS, signal.SIGSEGV})
    if not life.broken:
        quietly(life.end)
        counts = dict(life.counts)
        thread = None
        del life, threads, thread
        after = settled(before)
        if after != before:
            raise BrokenPromise(f"held before {before}, after {after}: {_what()}")
        print(f"{sum(counts.values())} operations", flush=True)
        return
    raise BrokenPromise(life.broken[0])


def _what() -> str:
    frames = sys._current_frames()
    doing = {
        thread.name: "".join(traceback.format_stack(frames[thread.ident])[-4:])
        for thread in threading.enumerate()
        if thread.ident in frames and thread is not threading.main_thread()
    }
    kept = [
        (each, [type(by).__name__ for by in gc.get_referrers(each)])
        for each in gc.get_objects()
        if isinstance(each, _WATCHED)
    ]
    return f"descriptors {_descriptors()}, threads {_threads()}, {doing}, kept {kept}"


def main() -> None:
    seed, socket, folder, seconds = sys.argv[1:]
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, interrupt)
    warnings.simplefilter("ignore")
    try:
        live(int(seed), socket, Path(folder), float(seconds))
    except BrokenPromise as broken:
        print(f"BROKEN: {broken}", file=sys.stderr, flush=True)
        os._exit(3)


if __name__ == "__main__":
    main()
