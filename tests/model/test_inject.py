# SPDX-License-Identifier: Apache-2.0
"""Faults on request."""

from __future__ import annotations

import errno
import signal
import threading
import time

import pytest

from .harness import PAGE, PMD, Client, N, R, W, fabric, reach, refusal


@pytest.fixture
def two():
    made = fabric()
    yield Client(made.hosts["a"]), Client(made.hosts["b"])
    made.check()
    made.close()


def inject(client: Client, fault: str, **arguments: object) -> None:
    client.host.fabric.inject(client.host.name, fault, **arguments)


def test_node_death_is_sigbus_at_importers_and_enodev_at_home(two):
    a, b = two
    exported, imported = reach(a, b)
    theirs = b.map(imported, R)
    inject(a, "node-death")
    assert theirs.signal() == signal.SIGBUS
    assert b.map(imported, R).signal() == signal.SIGBUS
    assert refusal(lambda: a.query(exported)).errno == errno.ENODEV
    assert refusal(lambda: a.process.open("/dev/obmm", 0)).errno == errno.ENODEV
    b.process.exit()
    Client(b.host).unimport(imported)


def test_revoked_export_is_sigbus_at_importers_and_the_region_stays(two):
    a, b = two
    exported, imported = reach(a, b)
    theirs = b.map(imported, W)
    inject(a, "revoke", mem_id=exported)
    assert theirs.signal(store=True) == signal.SIGBUS
    assert a.host.regions[exported]


def test_poisoned_page_is_a_sigbus_for_that_page_in_new_mappings(two):
    a, b = two
    exported, imported = reach(a, b)
    inject(a, "poison", mem_id=exported, offset=5 * PAGE + 8)
    for mapped in (a.map(exported), b.map(imported, R)):
        assert mapped.signal(5 * PAGE) == signal.SIGBUS
        assert mapped.signal(4 * PAGE) == mapped.signal(6 * PAGE) == 0


def test_poisoned_page_reaches_an_existing_mapping_with_the_next_call(two):
    a, b = two
    exported, imported = reach(a, b)
    theirs = b.map(imported, R)
    inject(a, "poison", mem_id=exported, offset=PAGE)
    assert theirs.signal(PAGE) == 0
    b.query(imported)
    assert theirs.signal(PAGE) == signal.SIGBUS
    assert theirs.signal(0) == 0


def test_poison_unit_reaches_an_existing_mapping_at_once():
    made = fabric(poison_unit=PAGE)
    a, b = Client(made.hosts["a"]), Client(made.hosts["b"])
    exported, imported = reach(a, b)
    ours, theirs = a.map(exported, length=16 * PAGE), b.map(imported, R, 16 * PAGE)
    ours.store(2 * PAGE, 3)
    inject(a, "poison", mem_id=exported, offset=PAGE)
    assert theirs.signal(PAGE) == ours.signal(PAGE) == signal.SIGBUS
    assert (theirs.load(0), theirs.load(2 * PAGE)) == (0, 3)
    assert b.map(imported, R, 2 * PAGE).signal(PAGE) == signal.SIGBUS
    made.close()


@pytest.mark.parametrize(
    ("fault", "value", "call", "expected"),
    [
        ("alloc-fails", 1, lambda a: a.export(4 << 30), errno.ENOMEM),
        ("no-memory", 1, lambda a: a.export(), errno.ENOMEM),
        ("no-ids", 1, lambda a: a.export(), errno.ENOSPC),
        ("ummu-refuses", 1, lambda a: a.export(), errno.EPERM),
        ("ummu-map-error", "EBUSY", lambda a: a.export(), errno.EIO),
        ("open-error", "EACCES", lambda a: a.process.open("/dev/obmm", 0), errno.EACCES),
        ("no-memory", 1, lambda a: a.import_(a.host.spec.controllers[0].windows[0].base), errno.ENOMEM),
    ],
)
def test_armed_fault_is_the_errno_that_the_caller_sees_until_reset(two, fault, value, call, expected):
    a, _ = two
    inject(a, fault, value=value)
    assert refusal(lambda: call(a)).errno == expected
    inject(a, "reset")
    call(a)


def test_D1_gate_closed_is_eopnotsupp(two):
    a, _ = two
    inject(a, "gate-closed")
    assert refusal(a.export).errno == errno.EOPNOTSUPP


def test_module_absent_is_enoent_and_eagain_while_in_use(two):
    a, _ = two
    assert refusal(lambda: inject(a, "module-absent")).errno == errno.EAGAIN
    a.control.release()
    inject(a, "module-absent")
    assert refusal(lambda: a.process.open("/dev/obmm", 0)).errno == errno.ENOENT
    a.host.insmod("mempool_size=16M")
    a.process.open("/dev/obmm", 0)


def test_O11_failing_flush_rolls_the_rights_back(two):
    a, _ = two
    mapped = a.map(a.export().mem_id, W)
    inject(a, "flush-error", value="EIO")
    assert refusal(lambda: mapped.update(N)).errno == errno.EIO
    assert mapped.signal(store=True) == 0


def test_stuck_flush_ends_with_reset(two):
    a, _ = two
    mapped = a.map(a.export().mem_id, W)
    inject(a, "flush-sleep", value=1e6)
    stuck = threading.Thread(target=mapped.update, args=(N,))
    stuck.start()
    time.sleep(0.05)
    assert stuck.is_alive()
    inject(a, "reset")
    stuck.join(10)
    assert not stuck.is_alive()


def test_latency_delays_control_calls_and_blocks_no_other(two):
    a, b = two
    mem_id = a.export().mem_id
    inject(a, "latency", value=0.2)
    began = time.monotonic()
    slow = threading.Thread(target=a.query, args=(mem_id,))
    slow.start()
    b.export()
    assert slow.is_alive()
    slow.join()
    assert time.monotonic() - began >= 0.2


def test_unknown_fault_is_refused_with_the_list(two):
    a, _ = two
    error = refusal(lambda: inject(a, "flood"))
    assert error.errno == errno.EINVAL
    assert "node-death" in str(error)
    assert refusal(lambda: inject(a, "poison", mem_id=1)).errno == errno.EINVAL
    assert refusal(lambda: a.host.fabric.inject("z", "reset")).errno == errno.ENOENT


def test_every_fault_is_described(two):
    a, _ = two
    described = a.host.fabric.faults()
    assert all(described.values())
    assert {"node-death", "poison", "flush-error", "latency"} <= set(described)


def test_10_low_memory_takes_the_free_part_of_the_pool(two):
    a, _ = two
    a.export()
    inject(a, "low-memory", node=0)
    counters = a.host.pool_counters(0)
    assert counters == {"total": PMD, "used": PMD, "available_cleared": 0, "available_uncleared": 0}
    assert refusal(lambda: a.export(flags=3)).errno == errno.ENOMEM
