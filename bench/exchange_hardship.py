# SPDX-License-Identifier: Apache-2.0
"""What a healthy client notices of hardship around its server: connect and renewal, p50 and p99, in one run.

    python -m bench.exchange_hardship [--json FILE] [--quick]

The server is a process of its own on loopback.  Cases: nothing else; 40 sources of silent connections that come again;
a log without a reader, with strangers connecting; a disk that takes a second for each sync; 1,000 clients with leases.
Then the server's memory after 100,000 refused connections and after 100,000 leases.  Ratios against the first case of
the same run are what counts; the times are this machine's.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.exchange import NoMemory, Process, Swarm
from obmm.bench.timing import percentiles
from obmm.exchange import Key, Limits, Peer, connect, serve
from obmm.exchange.messages import Fetch, Message, Renew

SOURCES = 40
DISK_S = 1.0

# Connects from many addresses of loopback, says nothing, and comes again when it is thrown out.
FLOOD = """
import selectors, socket, sys
port, sources, each = map(int, sys.argv[1:])
selector = selectors.DefaultSelector()
def knock(source):
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((source, 0))
    sock.connect_ex(("127.0.0.1", port))
    selector.register(sock, selectors.EVENT_READ, source)
for number in range(sources * each):
    knock(f"127.0.1.{number % sources + 1}")
print("there", flush=True)
while True:
    for key, _ in selector.select():
        selector.unregister(key.fileobj)
        key.fileobj.close()
        knock(key.data)
"""


def serve_alone(key: str, journal: str, hardship: str) -> None:
    """The server process; ``hardship`` is what goes wrong inside it."""
    if hardship == "log":
        from obmm.cli.logs import log_to_stderr

        log_to_stderr(False)
    else:
        logging.getLogger("obmm.exchange").setLevel(logging.CRITICAL)
    if hardship == "disk":
        real = os.fdatasync

        def slow(fd: int) -> None:
            time.sleep(DISK_S)  # what is measured
            real(fd)

        os.fdatasync = slow  # type: ignore[assignment]
    at_once = 512 if hardship == "crowd" else 64
    limits = Limits(
        handshakes_per_address=at_once, connections_per_address=200_000, leases=200_000, leases_per_connection=200_000
    )
    region = {"table": NoMemory(7)}
    with serve(region, host="127.0.0.1", port=0, key=key, journal=journal, term_s=60, limits=limits) as server:
        print(server.port, flush=True)
        for line in sys.stdin:
            if line == "counts\n":
                print(json.dumps(server.counts()), flush=True)
            else:
                break
        server.close(timeout=0, force=True)


class Served:
    """A server process."""

    def __init__(self, stack: ExitStack, hardship: str = "") -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.key = Key.generate(folder / "key")
        command = [sys.executable, "-m", "bench.exchange_hardship"]
        command += ["--serve", str(folder / "key"), str(folder / "journal"), hardship]
        # standard error without a reader: the pipe of a stopped log
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        stack.callback(self._stop)
        assert self._process.stdout
        self.port = int(self._process.stdout.readline())
        self.process = Process(self._process.pid)

    def counts(self) -> dict[str, Any]:
        """The server's own figures."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("counts\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def _stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def measured(served: Served, rounds: int) -> dict[str, Any]:
    """Connect, and renew, again and again."""
    connects, renewals = [], []
    with connect(f"127.0.0.1:{served.port}", key=served.key, timeout=30) as peer:
        lease = peer.fetch("table", timeout=30)
        for _ in range(rounds):
            began = time.perf_counter()
            other = connect(f"127.0.0.1:{served.port}", key=served.key, timeout=30)
            connects.append(time.perf_counter() - began)
            other.close()
            began = time.perf_counter()
            _renew(peer, lease._id, lease.handle.generation)
            renewals.append(time.perf_counter() - began)
    return {"connect": _summary(connects), "renewal": _summary(renewals)}


def _renew(peer: Peer, lease: bytes, generation: int) -> None:
    peer._ask(lambda: peer._client.request(Renew(lease, generation), 30), 30)


def _summary(seconds: list[float]) -> dict[str, float]:
    p50, p99 = (round(value * 1e3, 2) for value in percentiles(seconds, 50, 99))
    return {"count": len(seconds), "p50_ms": p50, "p99_ms": p99, "max_ms": round(max(seconds) * 1e3, 2)}


@contextmanager
def _flood(port: int, each: int = 20) -> Iterator[None]:
    command = [sys.executable, "-P", "-c", FLOOD, str(port), str(SOURCES), str(each)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            yield
        finally:
            process.kill()


@contextmanager
def _knocking(port: int) -> Iterator[None]:
    """Strangers whose refusals are logged, a hundred a second."""
    over = threading.Event()

    def knock() -> None:
        while not over.wait(0.01):
            with socket.create_connection(("127.0.0.1", port)) as sock:
                sock.sendall(b"GET / HTTP/1.0\r\n\r\n")

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _granting(served: Served) -> Iterator[None]:
    """Others fetch and release all the time, so that the disk always has something to do."""
    over = threading.Event()

    def fetch() -> None:
        with connect(f"127.0.0.1:{served.port}", key=served.key, timeout=30) as peer:
            while not over.is_set():
                peer.fetch("table", timeout=30).release()

    threads = [threading.Thread(target=fetch, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextmanager
def _crowd(served: Served, clients: int) -> Iterator[None]:
    swarm = Swarm(served.port, served.key)
    try:
        swarm.grow(clients)
        yield
    finally:
        swarm.close()


def cases(rounds: int, clients: int) -> dict[str, Any]:
    """All of them, each with a fresh server."""
    report = {}
    for name, hardship, around in (
        ("nothing else", "", None),
        (f"{SOURCES} sources of silent connections", "", lambda served: _flood(served.port)),
        ("a log without a reader", "log", lambda served: _knocking(served.port)),
        (f"a disk of {DISK_S:.0f} s per sync", "disk", _granting),
        (f"{clients} clients with leases", "crowd", lambda served: _crowd(served, clients)),
    ):
        print(f"  {name} ...", file=sys.stderr, flush=True)
        with ExitStack() as stack:
            served = Served(stack, hardship)
            if around is not None:
                stack.enter_context(around(served))
            report[name] = measured(served, rounds)
            report[name]["lines_dropped"] = served.counts()["lines_dropped"]
    return report


def memory(many: int) -> dict[str, Any]:
    """What is left in the server after many refused connections, and with many leases."""
    out: dict[str, Any] = {"many": many}
    with ExitStack() as stack:
        served = Served(stack)
        measured(served, 20)
        empty = served.process.rss_bytes()
        for number in range(many):
            with socket.socket() as sock:
                sock.bind((f"127.0.2.{number % 200 + 1}", 0))
                sock.connect(("127.0.0.1", served.port))
                sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        _until(lambda: served.counts()["handshakes"] == 0)
        out["after_refused_mib"] = round((served.process.rss_bytes() - empty) / 2**20, 1)
    with ExitStack() as stack:
        served = Served(stack)
        measured(served, 20)
        empty = served.process.rss_bytes()
        with connect(f"127.0.0.1:{served.port}", key=served.key, timeout=60) as peer:
            for first in range(0, many, 2000):
                ids = [os.urandom(16) for _ in range(min(2000, many - first))]
                pending = [peer._call(partial(_asked, peer, each)) for each in ids]
                for (future,) in pending:
                    future.result(60)
            out["leases"] = sum(served.counts()["leases"].values())  # those not renewed in time too
            out["with_leases_mib"] = round((served.process.rss_bytes() - empty) / 2**20, 1)
            peer.close(timeout=0, force=True)
    return out


def _asked(peer: Peer, lease: bytes) -> tuple[Future[Message]]:
    """A request under way that is not waited for here (a bare future would be)."""
    return (peer._client.request(Fetch(lease, "table"), 60),)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def lines(report: dict[str, Any]) -> Iterator[str]:
    """For people."""
    yield f"exchange under hardship, loopback, {report['machine']}, Python {report['python']}; times are this machine's"
    yield f"{'':<36}{'connect p50':>12}{'p99':>9}{'renew p50':>11}{'p99':>9}   ms"
    for name, case in report["cases"].items():
        c, r = case["connect"], case["renewal"]
        yield f"{name:<36}{c['p50_ms']:>12.2f}{c['p99_ms']:>9.2f}{r['p50_ms']:>11.2f}{r['p99_ms']:>9.2f}"
    used = report["memory"]
    yield (
        f"server memory: {used['after_refused_mib']} MiB more after {used['many']:,} refused connections, "
        f"{used['with_leases_mib']} MiB more with {used['leases']:,} leases"
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, to see that it runs")
    parser.add_argument("--serve", nargs=3, metavar=("KEY", "JOURNAL", "HARDSHIP"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.serve:
        serve_alone(*arguments.serve)
        return
    logging.getLogger("obmm.exchange").setLevel(logging.CRITICAL)
    scale = 10 if arguments.quick else 1
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "cases": cases(300 // scale, 1000 // scale),
        "memory": memory(100_000 // scale),
    }
    for line in lines(report):
        print(line)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
