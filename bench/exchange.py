# SPDX-License-Identifier: Apache-2.0
"""What an exchange of handles costs, on one machine over loopback.

    python -m bench.exchange [--json FILE] [--quick]

* From nothing to readable memory: connect; fetch, import and map; fetch alone.  The modes take turns within one run.
  IMPORT and mmap are the emulator's here, so only the exchange's part says something about hardware.
* One server with 1,000 clients, each with a lease: its CPU time and memory.  The server is a process of its own.
* From a revocation to the last release, with 100 clients.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import resource
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import obmm
from obmm import Handle, HandleFlag, eid, emulator
from obmm.bench.timing import percentiles
from obmm.exchange import Key, LeaseEvent, Limits, connect, serve
from obmm.exchange.link import Link
from obmm.exchange.messages import Fetch, Grant, Mode, Renew, Renewed
from obmm.exchange.session import ClientSession
from obmm.exchange.tls import PlainTransport

TICK = os.sysconf("SC_CLK_TCK")


class NoMemory:
    """A region without memory, where only its handle is exchanged."""

    nbytes = (2 << 20) - 4096

    def __init__(self, generation: int) -> None:
        self._handle = Handle(
            mem_id=1,
            length=2 << 20,
            uba=0xFFFFFFE00000,
            tokenid=0,
            owner_cna=1,
            owner_eid=eid(1),
            flags=HandleFlag.HEADER,
            generation=generation,
        )

    def handle(self) -> Handle:
        return self._handle


def summary(seconds: list[float]) -> dict[str, float]:
    """p50 and p99 in microseconds."""
    p50, p99 = (round(value * 1e6, 1) for value in percentiles(seconds, 50, 99))
    return {"count": len(seconds), "p50_us": p50, "p99_us": p99}


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


# --- latency -----------------------------------------------------------------------------------------------------------


def protections(folder: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Arguments of serve and of connect for each mode; without TLS where `cryptography` is missing."""
    key = Key.generate(folder / "key")
    modes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "plain": ({"plain": True}, {"plain": True}),
        "key": ({"key": key}, {"key": key}),
    }
    try:
        from obmm.bench.certificates import Authority
    except ModuleNotFoundError:
        print("no package cryptography: TLS is not measured", file=sys.stderr)
    else:
        authority = Authority(folder)
        modes["tls"] = ({"tls": authority.issue("server")}, {"tls": authority.issue("client")})
    return modes


def latency(rounds: int) -> list[dict[str, Any]]:
    """One record per mode and step."""
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as scratch, emulator.start(nodes=2) as fabric, ExitStack() as stack:
        a = stack.enter_context(obmm.open(fabric.device("a")))
        b = stack.enter_context(obmm.open(fabric.device("b")))
        peers = {}
        for mode, (server_side, client_side) in protections(Path(scratch)).items():
            region = stack.enter_context(a.export_region("2MiB"))
            with region.map("rw") as mapping:
                mapping.publish()
            server = serve(
                {"table": region}, host="127.0.0.1", port=0, journal=Path(scratch) / f"{mode}.journal", **server_side
            )
            stack.enter_context(server)
            address = f"127.0.0.1:{server.port}"
            peers[mode] = stack.enter_context(connect(address, **client_side)), address, client_side
        for _ in range(rounds):
            for mode, (peer, address, client_side) in peers.items():
                taken, fresh = timed(lambda: connect(address, **client_side))  # noqa: B023 - called here
                times.setdefault((mode, "connect"), []).append(taken)
                fresh.close()
                taken, lease = timed(lambda: peer.fetch("table"))  # noqa: B023
                times.setdefault((mode, "fetch"), []).append(taken)
                lease.release()
                began = time.perf_counter()
                imported = peer.import_region("table", b)
                mapping = imported.map("r")
                times.setdefault((mode, "fetch+import+map"), []).append(time.perf_counter() - began)
                mapping.load("<u8", 0)
                mapping.close()
                imported.close()
    return [{"mode": mode, "step": step, **summary(taken)} for (mode, step), taken in times.items()]


# --- many clients ------------------------------------------------------------------------------------------------------


def _release(event: LeaseEvent) -> None:
    event.lease.release()


class Process:
    """CPU time and memory of a process, from /proc."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")

    def cpu_s(self) -> float:
        fields = (self._folder / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def rss_bytes(self) -> int:
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise LookupError("no VmRSS")

    def threads(self) -> int:
        return len(list((self._folder / "task").iterdir()))


def serve_alone(key: str, journal: str, term_s: float) -> None:
    """The server process of `many_clients`."""
    logging.getLogger("obmm.exchange").setLevel(logging.CRITICAL)
    limits = Limits(connections_per_address=100_000, handshakes_per_address=512)
    with serve(
        {"table": NoMemory(7)}, host="127.0.0.1", port=0, key=key, journal=journal, term_s=term_s, limits=limits
    ) as server:
        print(server.port, flush=True)
        sys.stdin.readline()
        server.close(timeout=0, force=True)


class Swarm:
    """Many clients in one thread: each connects, fetches a lease, and renews it at a third of the term."""

    def __init__(self, port: int, key: Key) -> None:
        self._port = port
        self._key = key
        self._selector = selectors.DefaultSelector()
        self._leases: dict[Link, bytes] = {}
        self.granted = 0
        self.renewed = 0

    def grow(self, count: int) -> None:
        """Add clients, 256 handshakes at a time, until each has its lease."""
        for first in range(0, count, 256):
            wanted = self.granted + min(256, count - first)
            for _ in range(min(256, count - first)):
                sock = socket.create_connection(("127.0.0.1", self._port))
                link = Link(sock, PlainTransport(), ClientSession(Mode.KEY, self._key, "swarm"))
                self._selector.register(link, selectors.EVENT_READ)
                self._leases[link] = os.urandom(16)
                link.flush()
            while self.granted < wanted:
                self._turn(1.0)

    def renew_for(self, seconds: float, term_s: float) -> None:
        """Renewals spread evenly over a third of the term."""
        links = list(self._leases)
        interval = term_s / 3 / len(links)
        began = time.monotonic()
        sent = 0
        while (now := time.monotonic()) < began + seconds:
            while began + sent * interval <= now:
                link = links[sent % len(links)]
                link.send(Renew(self._leases[link], 7), 2)
                link.flush()
                sent += 1
            self._turn(max(0.0, min(began + sent * interval, began + seconds) - time.monotonic()))

    def _turn(self, timeout: float) -> None:
        for key, _ in self._selector.select(timeout):
            link = key.fileobj
            assert isinstance(link, Link)
            established = link.session.established
            for message, _ in link.receive():
                self.granted += isinstance(message, Grant)
                self.renewed += isinstance(message, Renewed)
            if link.session.established and not established:
                link.send(Fetch(self._leases[link], "table"), 1)
            link.flush()

    def close(self) -> None:
        for link in self._leases:
            link.close()
        self._selector.close()


def many_clients(clients: int, seconds: float, term_s: float) -> dict[str, Any]:
    """CPU and memory of a server whose clients all hold a lease and renew it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as scratch:
        key = Key.generate(Path(scratch) / "key")
        command = [sys.executable, "-m", "bench.exchange", "--serve", f"{scratch}/key", f"{scratch}/journal"]
        process = subprocess.Popen([*command, str(term_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        server = Process(process.pid)
        swarm = Swarm(int(process.stdout.readline()), key)
        try:
            empty = server.rss_bytes()
            swarm.grow(1)  # the first lease starts the journal's own thread
            threads, cpu = server.threads(), server.cpu_s()
            took, _ = timed(lambda: swarm.grow(clients))
            growing = server.cpu_s() - cpu
            cpu, began = server.cpu_s(), time.monotonic()
            swarm.renew_for(seconds, term_s)
            busy, passed = server.cpu_s() - cpu, time.monotonic() - began
            return {
                "clients": clients,
                "term_s": term_s,
                "threads_added": server.threads() - threads,
                "connect_and_fetch_s": round(took, 3),
                "connect_and_fetch_cpu_ms_per_client": round(growing / clients * 1e3, 3),
                "renewals_per_s": round(swarm.renewed / passed, 1),
                "cpu_percent_of_one_core": round(100 * busy / passed, 2),
                "rss_mib": round(server.rss_bytes() / 2**20, 1),
                "rss_kib_per_client": round((server.rss_bytes() - empty) / clients / 1024, 1),
            }
        finally:
            swarm.close()
            process.communicate("\n", timeout=60)


# --- revocation --------------------------------------------------------------------------------------------------------


def revocation(clients: int, rounds: int) -> dict[str, Any]:
    """Seconds from `revoke` until the last of ``clients`` has released, each in its callback."""
    taken = []
    with tempfile.TemporaryDirectory() as scratch:
        key = Key.generate(Path(scratch) / "key")
        with (
            serve({}, host="127.0.0.1", port=0, key=key, journal=Path(scratch) / "journal") as server,
            ExitStack() as stack,
        ):
            peers = [stack.enter_context(connect(f"127.0.0.1:{server.port}", key=key)) for _ in range(clients)]
            for round_ in range(rounds):
                server.publish("table", NoMemory(100 + round_))
                for peer in peers:
                    peer.fetch("table").on_change(_release)
                seconds, left = timed(lambda: server.revoke("table", timeout=60))
                assert left == ()
                taken.append(seconds)
    return {
        "clients": clients,
        "rounds": rounds,
        "p50_ms": round(percentiles(taken, 50)[0] * 1e3, 1),
        "max_ms": round(max(taken) * 1e3, 1),
    }


# --- report ------------------------------------------------------------------------------------------------------------


def lines(report: dict[str, Any]) -> Iterator[str]:
    yield f"exchange over loopback, {report['machine']}, Python {report['python']}; IMPORT and mmap by the emulator"
    yield f"{'mode':<8}{'step':<20}{'p50 us':>10}{'p99 us':>10}"
    for each in report["latency"]:
        yield f"{each['mode']:<8}{each['step']:<20}{each['p50_us']:>10,.0f}{each['p99_us']:>10,.0f}"
    many = report["many_clients"]
    yield (
        f"{many['clients']} clients with leases (term {many['term_s']:.0f} s, {many['renewals_per_s']:.0f} renewals/s, "
        f"{many['threads_added']} threads added): {many['cpu_percent_of_one_core']:.1f} % of one core, {many['rss_mib']:.0f} MiB, "
        f"{many['rss_kib_per_client']:.1f} KiB per client; all connected and granted in {many['connect_and_fetch_s']:.2f} s, "
        f"{many['connect_and_fetch_cpu_ms_per_client']:.2f} ms of server CPU each"
    )
    told = report["revocation"]
    yield f"revocation to last release, {told['clients']} clients: p50 {told['p50_ms']:.0f} ms, worst {told['max_ms']:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there too")
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, to see that it runs")
    parser.add_argument("--serve", nargs=3, metavar=("KEY", "JOURNAL", "TERM"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        key, journal, term = arguments.serve
        serve_alone(key, journal, float(term))
        return
    logging.getLogger("obmm.exchange").setLevel(logging.CRITICAL)
    scale = 10 if arguments.quick else 1
    report = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
        "backend": "emulator",
        "latency": latency(300 // scale),
        "many_clients": many_clients(1000 // scale, 20 / scale, 60.0),
        "revocation": revocation(100 // scale, 10),
    }
    for line in lines(report):
        print(line)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
