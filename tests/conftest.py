# SPDX-License-Identifier: Apache-2.0
"""For every test: hypothesis judges behaviour, not how busy the machine is, and finds the same examples in every run."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from . import ports, seeds, units

# The background job of a shell has SIGINT ignored, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Images of containers forbid bytecode files: then each of the thousand processes of a run compiles what it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# `make fuzz` looks at others: OBMM_SEED=random
settings.register_profile(
    "obmm", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=seeds.CHOSEN != "random"
)
settings.load_profile("obmm")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return units.scheduler(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Processes beside each other begin with the longest units; one alone keeps the order of the folders."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: units.place_of(item.nodeid))
    elif fleeting := [item.nodeid for item in items if re.search(r"<.* at 0x[0-9a-f]+>", item.nodeid)]:
        raise pytest.UsageError(f"give it an id: each process has another name for {', '.join(fleeting)}")


@pytest.fixture(autouse=True, scope="module")
def what_lives_is_not_walked_again() -> None:
    """Twelve thousand tests and what they imported live until the end: no collection of garbage looks at them again.

    Tests that look for what a finalizer left collect hundreds of times, and each walk of all that took longer than the test.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def state_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals and notes of held leases: what one test leaves on this host is nothing that another one finds."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


@pytest.fixture
def default_port() -> Iterator[int]:
    """The port that a user gets, for this test alone on this machine."""
    with ports.default_port() as port:
        yield port


POISON_UNIT = 16 << 10


@pytest.fixture(scope="session")
def poison_topology(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TOML file of hosts a and b whose memory can lose pieces of `POISON_UNIT` bytes under existing mappings."""
    text = f"[fabric]\npoison_unit = {POISON_UNIT}\n"
    for i, name in enumerate("ab"):
        text += f"""
            [[host]]
            name = "{name}"
            [[host.node]]
            id = 0
            package = 0
            cpus = [0]
            memory = "4GiB"
            [[host.controller]]
            cna = {0x40A + i}
            eid = {0x12 + i}
            node = 0
        """
        for kind, base in (("CC", 4 * i + 1), ("NC", 4 * i + 2)):
            text += f'[[host.controller.window]]\nkind = "{kind}"\nbase = "{base}TiB"\nsize = "1TiB"\n'
    path = tmp_path_factory.mktemp("fabric") / "poison.toml"
    path.write_text(text)
    return path
