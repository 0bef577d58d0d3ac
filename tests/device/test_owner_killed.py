# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the process that serves the table, while a captured graph is replayed over it."""

from __future__ import annotations

import errno
import gc
import signal
from functools import partial

import pytest

from bench.device_owner import RIGHT, ZEROS, on_fake, owner_killed
from obmm import RemoteMemoryError
from obmm.exchange import LeaseError
from obmm.rows.fake_accelerator import FakeAccelerator


@pytest.fixture(scope="module")
def device():
    return FakeAccelerator()


@pytest.fixture(scope="module")
def seen(device):
    """One whole story: its phases are looked at apart."""
    return owner_killed(device, partial(on_fake, device), replays=200, term=2.4)


def test_every_row_is_right_before(seen):
    assert seen["before"] == {RIGHT: 200}


def test_the_owner_was_killed_and_every_answer_afterwards_is_right(seen):
    """Regions outlive their process (driver specification 8): a graph goes on."""
    assert seen["owner's exit code"] == -signal.SIGKILL
    assert set(seen["after the kill"]) == {RIGHT}
    assert seen["after the kill"][RIGHT] > 200
    assert seen["replays"]["failed"] == 0


def test_check_says_that_the_lease_is_over_though_no_run_failed(seen):
    assert LeaseError.__name__ in seen["check raises, once the lease is over"]
    assert "'rows' is suspect" in seen["check raises, once the lease is over"]


def test_memory_that_goes_afterwards_gives_whole_zeros_and_a_status(seen):
    """A row, or zeros with a status: never other bytes."""
    assert set(seen["after the memory went"]) <= {RIGHT, ZEROS}
    assert seen["after the memory went"][ZEROS] > 200
    assert seen["status then"] == errno.errorcode[errno.EFAULT]
    assert seen["check raises, once the memory is gone"].startswith((LeaseError.__name__, RemoteMemoryError.__name__))


def test_all_of_it_closes_without_the_owner(seen, device):
    assert seen["a replay after close"] == ZEROS
    assert seen["closed"] is True
    assert seen["errors in the emulator"] == 0
    gc.collect()
    assert device.left == {"memories": 0, "streams": 0, "events": 0}
