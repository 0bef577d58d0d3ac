# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

import obmm
from obmm import Device, Handle, HandleFlag, MappingBusyError, eid, emulator
from obmm.exchange import Key, Peer, Server, connect, serve

# A busy machine is slow; that says nothing about what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

UBA = 0xFFFFF7654321
TOKEN = 0x5EC4E7A9
_generations = itertools.count(0x1000)


class FakeHold:
    def __init__(self, region: FakeRegion, why: str) -> None:
        self.region, self.why = region, why
        region.holds.append(self)

    def release(self) -> None:
        self.region.holds.remove(self)


class FakeRegion:
    """What the server sees of an exported region, without a driver."""

    def __init__(self, nbytes: int = 2 << 20, generation: int | None = None) -> None:
        self.nbytes = nbytes
        self.generation = next(_generations) if generation is None else generation
        self.holds: list[FakeHold] = []
        self.exported = True

    def handle(self) -> Handle:
        return Handle(
            mem_id=1,
            length=self.nbytes + (2 << 20),
            uba=UBA,
            tokenid=TOKEN,
            owner_cna=0x10,
            owner_eid=eid(1),
            flags=HandleFlag.HEADER,
            generation=self.generation,
        )

    def hold(self, why: str) -> FakeHold:
        return FakeHold(self, why)

    def close(self) -> None:
        if self.holds:
            raise MappingBusyError(16, self.holds[0].why)
        self.exported = False


def until(condition: Callable[[], Any], timeout: float = 20.0) -> Any:
    """Wait for a condition that other threads make true."""
    deadline = time.monotonic() + timeout
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {timeout} s: {condition}"
        time.sleep(0.005)
    return result


@pytest.fixture
def key(tmp_path: Path) -> Path:
    Key.generate(tmp_path / "cluster.key")
    return tmp_path / "cluster.key"


@pytest.fixture
def start(tmp_path: Path, key: Path) -> Iterator[Callable[..., Server]]:
    """Start servers on a free port of loopback, with the cluster key unless told otherwise."""
    with ExitStack() as stack:

        def start(regions: dict[str, Any] | None = None, **options: Any) -> Server:
            options.setdefault("host", "127.0.0.1")
            options.setdefault("port", 0)
            options.setdefault("journal", tmp_path / "leases.journal")
            if not options.keys() & {"key", "tls", "plain"}:
                options["key"] = key
            server = serve({"table": FakeRegion()} if regions is None else regions, **options)
            stack.callback(server.close, timeout=0, force=True)
            return server

        yield start


@pytest.fixture
def join(key: Path) -> Iterator[Callable[..., Peer]]:
    """Connect to a server (or a port) with the cluster key unless told otherwise."""
    with ExitStack() as stack:

        def join(server: Server | int, **options: Any) -> Peer:
            if not options.keys() & {"key", "tls", "plain"}:
                options["key"] = key
            port = server if isinstance(server, int) else server.port
            peer = connect(f"127.0.0.1:{port}", **options)
            stack.callback(peer.close, timeout=0.2, force=True)
            return peer

        yield join


@pytest.fixture(scope="session")
def fabric() -> Iterator[emulator.Fabric]:
    """Two emulated nodes for the whole run; nothing may break inside their server."""
    with emulator.start(nodes=2) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


def left_behind(fabric: emulator.Fabric) -> dict[str, Any]:
    """What exists in the fabric: empty when everything was given back."""
    return {
        f"{name}.{key}": node[key]
        for name, node in fabric.status()["nodes"].items()
        for key in ("regions", "windows", "open_files")
        if node[key]
    }


@pytest.fixture
def a(fabric: emulator.Fabric) -> Iterator[Device]:
    """The exporter.  Whatever a test leaves in the fabric fails it, and no test after it."""
    before = left_behind(fabric)
    with obmm.open(fabric.device("a")) as device:
        yield device
    until(lambda: left_behind(fabric) == before)


@pytest.fixture
def b(fabric: emulator.Fabric, a: Device) -> Iterator[Device]:
    """The importer."""
    with obmm.open(fabric.device("b")) as device:
        yield device
