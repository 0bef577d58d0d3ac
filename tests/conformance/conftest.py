# SPDX-License-Identifier: Apache-2.0
"""One backend for the whole run, one freshly loaded driver for each test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .driver import Driver
from .machine import Machine
from .replay.port import Port
from .replay.preload_port import PreloadPort
from .replay.table_port import TablePort
from .replay.transcript import Transcript


@pytest.fixture(scope="session")
def transcript() -> Transcript:
    return Transcript.load()


@pytest.fixture(scope="session")
def port(transcript: Transcript) -> Iterator[Port]:
    """The backend: the emulator through its system-call table, real processes on a real server."""
    port = TablePort(transcript)
    yield port
    port.close()


@pytest.fixture(scope="session")
def preload_port(transcript: Transcript) -> Iterator[Port]:
    """The emulator through its preload library, for what the system-call table does not have."""
    port = PreloadPort(transcript)
    yield port
    port.close()


@pytest.fixture
def machine(port: Port) -> Iterator[Machine]:
    """Topology A: two nodes on one package, one controller."""
    machine = Machine(port, "A")
    yield machine
    machine.close()


@pytest.fixture
def machine_b(port: Port) -> Iterator[Machine]:
    """Topology B: two packages with a controller each, and a node without CPUs."""
    machine = Machine(port, "B")
    yield machine
    machine.close()


@pytest.fixture
def driver(machine: Machine) -> Driver:
    return machine.process()


@pytest.fixture
def driver_b(machine_b: Machine) -> Driver:
    return machine_b.process()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep each test's outcome for the generated pages."""
    if report.when == "call" or report.outcome != "passed":
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    target = os.environ.get("OBMM_CONFORMANCE_RESULTS")
    if target:
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        Path(target).write_text(json.dumps(_outcomes, indent=1, sort_keys=True), encoding="utf-8")


_outcomes: dict[str, str] = {}
