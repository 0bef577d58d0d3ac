# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs, and measures what it says."""

from __future__ import annotations

import pytest

from bench import exchange

pytestmark = pytest.mark.alone  # thousands of regions, or clients, and what they cost


def test_latency_has_every_mode_and_step() -> None:
    records = exchange.latency(2)
    assert {(each["mode"], each["step"]) for each in records} == {
        (mode, step) for mode in ("plain", "key", "tls") for step in ("connect", "fetch", "fetch+import+map")
    }
    assert all(each["count"] == 2 for each in records)


def test_many_clients_all_get_their_lease_from_one_thread() -> None:
    record = exchange.many_clients(20, 0.5, 1.0)
    assert record["renewals_per_s"] > 0
    assert record["threads_added"] == 0, "no thread per client"


def test_revocation_reaches_all_holders() -> None:
    assert exchange.revocation(5, 2)["clients"] == 5
