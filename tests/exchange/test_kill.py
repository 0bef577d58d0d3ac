# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at every step, of the client and of the server.

What must hold: an import never exists without a lease that keeps its export; everything that is left can be told from
the server's books and given back; nothing hangs past its deadline.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import obmm
from obmm import Device, MappingBusyError, Window, emulator
from obmm.exchange import LeasesOutstandingError, LeaseStatus, Peer, PeerUnreachableError, Server, connect
from obmm.exchange.journal import LeaseJournal
from tests.exchange.conftest import left_behind, until

Start = Callable[..., Server]

CLIENT_STEPS = ["opened", "connected", "fetched", "imported", "mapped", "unmapped", "released", "closed"]
SERVER_STEPS = ["exported", "served", "granted", "revoked", "closed"]


class Victim:
    """A process of `tests.exchange.victim`."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.exchange.victim", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def go(self) -> str:
        """Let it do one step."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def begin(self) -> None:
        """Let it begin a step without waiting for its end."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()


@contextmanager
def victim(*arguments: object) -> Iterator[Victim]:
    process = Victim(*arguments)
    try:
        yield process
    finally:
        process.kill()


def regions(fabric: emulator.Fabric, node: str) -> Any:
    return left_behind(fabric).get(f"{node}.regions", 0)


def clean_up(fabric: emulator.Fabric, node: str) -> None:
    """What `obmm gc` does on the machine of a dead process: anybody may remove its region, then free its window."""
    with obmm.open(fabric.device(node)) as device:
        if regions(fabric, node):
            remove = device.driver.unexport if node == "a" else device.driver.unimport
            remove(1)
        for window in fabric.request("windows", node=node):
            device.windows.release(Window(window["pa"], window["length"], "cc"))
    until(lambda: f"{node}.windows" not in left_behind(fabric))


@pytest.mark.parametrize("step", range(len(CLIENT_STEPS)), ids=CLIENT_STEPS)
def test_client_killed(start: Start, fabric: emulator.Fabric, a: Device, key: Path, step: int) -> None:
    with a.export_region("2MiB", label="table") as table:
        with table.map("rw") as mapping:
            with mapping.writing():
                mapping.store("<u4", 0, 7)
            mapping.publish()
        server = start({"table": table}, term_s=10)
        with victim("client", fabric.device("b"), server.port, key) as client:
            for name in CLIENT_STEPS[: step + 1]:
                assert client.go() == name
            client.kill()
        until(lambda: server.status()["server"]["connections"] == 0)
        imported = regions(fabric, "b") != 0
        leases = server.status()["server"]["leases"]
        assert leases == (1 if CLIENT_STEPS[step] in ("fetched", "imported", "mapped", "unmapped") else 0)
        assert imported == (CLIENT_STEPS[step] in ("imported", "mapped", "unmapped")), "regions outlive processes"
        if leases:
            # It is unknown whether that machine still reads: the export stays, and its owner is told who it is.
            with pytest.raises(MappingBusyError):
                table.close()
            with pytest.raises(LeasesOutstandingError):
                server.close(timeout=0.05)
        clean_up(fabric, "b")
        server.close(timeout=0.05, force=True)
    assert regions(fabric, "a") == regions(fabric, "b") == 0


@pytest.mark.parametrize("step", range(len(SERVER_STEPS)), ids=SERVER_STEPS)
def test_server_killed(fabric: emulator.Fabric, b: Device, key: Path, tmp_path: Path, step: int) -> None:
    journal = tmp_path / "leases.journal"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    peer: Peer | None = None
    with victim("server", fabric.device("a"), port, key, journal) as server:
        for name in SERVER_STEPS[: step + 1]:
            if name == "granted":
                peer = connect(f"127.0.0.1:{port}", key=key)
                region = peer.import_region("table", b)
            if name == "closed":
                server.begin()
                region.close()
                assert server.process.stdout
                assert server.process.stdout.readline().strip() == name
            else:
                assert server.go() == name
        server.kill()
    began = time.monotonic()
    out = bool(journal.exists() and LeaseJournal(journal).recovered)
    assert out == (SERVER_STEPS[step] in ("granted", "revoked")), "the journal knows every importer"
    if peer is None:
        with pytest.raises(PeerUnreachableError):
            connect(f"127.0.0.1:{port}", key=key)
    else:
        if out:
            lease = region.lease
            assert lease is not None
            until(lambda: not lease.usable)
            want = LeaseStatus.REVOKED if SERVER_STEPS[step] == "revoked" else LeaseStatus.SUSPECT
            assert lease.status is want
            region.close()
            assert lease.status is LeaseStatus.RELEASED
        peer.close(timeout=0.2)
    assert time.monotonic() - began < 15, "nothing hangs past its deadline"
    assert regions(fabric, "a") != 0, "exports outlive processes"
    clean_up(fabric, "a")
    assert regions(fabric, "a") == regions(fabric, "b") == 0


def test_server_killed_again_and_again_while_clients_fetch(
    fabric: emulator.Fabric, b: Device, key: Path, tmp_path: Path
) -> None:
    """Restart-after-crash in a loop: the journal, the port and the lock are usable at once, and no lease is forgotten."""
    journal = tmp_path / "leases.journal"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for round_ in range(3):
        with victim("server", fabric.device("a"), port, key, journal) as server:
            assert server.go() == "exported"
            assert server.go() == "served"
            peer = connect(f"127.0.0.1:{port}", key=key)
            peer.fetch("table")
            server.kill()
        peer.close(timeout=0.05)
        book = LeaseJournal(journal)
        assert len(book.recovered) == round_ + 1
        book.close()
        clean_up(fabric, "a")
