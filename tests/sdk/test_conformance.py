# SPDX-License-Identifier: Apache-2.0
"""The minimal conformance list (SDK specification 17), in its order, against the stand-in.

Every call is a raw one: nothing of the binding's own checks stands before the library.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from obmm import emulator
from obmm.sdk.abi import OBJECT_FLAGS, FaultKind
from obmm.sdk.codes import Code
from obmm.sdk.standin import StandIn
from obmm.sdk.standin_op import Op

from .conftest import Spawn
from .process import Process

MIB = 1 << 20
SIZE = 4 * MIB
UNIT = 128 * MIB
PAGE = os.sysconf("SC_PAGESIZE")
MAP_FIXED = 0x10


def test_null_attributes(a: Process) -> None:
    assert a.nulls() == [6010, 6010]


def test_finalize_without_initialize_and_twice(a: Process) -> None:
    assert [a.finalize(), a.finalize()] == [0, 0]


def test_initialize_is_not_counted(a: Process) -> None:
    assert [a.start(), a.start(), a.finalize(), a.allocate("x", SIZE)] == [[0, 0], [0, 0], 0, 6040]


def test_logger_arguments(a: Process) -> None:
    assert [a.logger(-1), a.logger(5), a.logger(4), a.extern_logger_null()] == [6010, 6010, 0, 6010]


def test_argument_checks_come_before_the_connection(a: Process) -> None:
    a.finalize()
    assert [a.allocate("x", 5), a.allocate("x", SIZE)] == [6010, 6040]


def test_region_calls_initialize_implicitly(a: Process) -> None:
    a.finalize()
    assert a.lookup_region("none")[0] == 6020
    assert a.slot() == [0, 1]


def test_daemon_missing(spawn: Spawn) -> None:
    process = spawn("a", OBMM_SDK_STANDIN="/nowhere")
    assert process.start() == [0, 6015]
    assert process.lookup_region("none")[0] == 6015
    assert process.allocate("x", SIZE) == 6040
    assert process.faults() == 6050
    assert process.finalize() == 0


def test_create_region_arguments(a: Process) -> None:
    assert a.create_region("default", ["a", "b"]) == 6016
    assert a.create_region("r", ["a", "b"], size=1) == 6010
    assert a.create_region("r", ["a"]) == 6010
    assert a.create_region("r", ["a"] * 17) == 6010
    assert a.create_region("r", ["a", ""]) == 6010


def test_create_region_hosts_and_names(a: Process) -> None:
    assert a.create_region("r", ["a", "absent"]) == 6014
    assert [a.create_region("r", ["a", "b"]), a.create_region("r", ["a", "b"])] == [0, 6021]
    assert a.lookup_region("r") == [0, 0, [["a", True], ["b", False]]]
    assert a.destroy_region("r") == 0


def test_destroy_region_reserved_and_missing(a: Process) -> None:
    assert [a.destroy_region("default"), a.destroy_region("r")] == [6016, 6020]
    assert a.lookup_region("default")[0] == 6020


def test_groups_cluster_and_slots(a: Process, b: Process) -> None:
    assert [a.regions(), b.regions()] == [[0, [["a", "b", "c"]]], [0, [["b", "a", "c"]]]]
    assert a.cluster() == [0, [["a", [1]], ["b", [2]], ["c", [3]]]]
    assert [a.slot(), b.slot()] == [[0, 1], [0, 2]]


def test_allocate_sizes(a: Process) -> None:
    assert [a.allocate("s", size) for size in (0, SIZE - 1, SIZE + 1, 6 * MIB)] == [6010, 0, 6010, 6010]
    assert a.listed("s") == [0, 1, [["s", SIZE]]]
    assert a.deallocate("s") == 0


def test_allocate_accepts_exactly_the_16_flag_sets(a: Process) -> None:
    accepted = set()
    for flags in range(0x80):
        code = a.allocate("f", SIZE, flags=flags)
        assert code in (0, 6010)
        if not code:
            accepted.add(flags)
            assert a.deallocate("f") == 0
    assert accepted == OBJECT_FLAGS


def test_allocate_names(a: Process) -> None:
    assert [a.allocate(name, SIZE) for name in ("n" * 47, "n" * 48, "", None)] == [0, 6010, 6010, 6010]
    assert a.deallocate("n" * 47) == 0
    assert a.allocate("with space", SIZE) == 6050


def test_allocate_unknown_region_and_taken_name(a: Process, b: Process) -> None:
    assert a.allocate("x", SIZE, region="nowhere") == 6020
    assert [a.allocate("x", SIZE), a.allocate("x", SIZE), b.allocate("x", SIZE)] == [0, 6021, 6021]
    assert a.deallocate("x") == 0


def test_region_without_affinity_has_no_provider(a: Process) -> None:
    assert a.create_region("r", ["a", "b"], affinity=0) == 0
    assert a.allocate("x", SIZE, region="r") == 6050
    assert a.lease(SIZE, region="r")[0] == 6010
    assert a.destroy_region("r") == 0


def test_provider_hosts(a: Process) -> None:
    assert [a.allocate_at(host, "x", SIZE) for host in ("", "h" * 64, "absent")] == [6010, 6010, 6020]


def test_lookup_needs_an_attachment(a: Process) -> None:
    assert a.allocate("x", SIZE) == 0
    assert a.lookup("x")[0] == 6020
    address = a.map("x", SIZE)[1]
    code, size, unit, ids = a.lookup("x")
    assert (code, size, unit, len(ids)) == (0, SIZE, UNIT, 1)
    assert a.unmap(address, SIZE) == 0
    assert a.lookup("x")[0] == 6020
    assert a.deallocate("x") == 0


def test_lookup_on_a_node_that_did_not_map(a: Process, b: Process) -> None:
    assert a.allocate("x", SIZE) == 0
    address = a.map("x", SIZE)[1]
    assert b.lookup("x")[0] == 6020
    assert [a.unmap(address, SIZE), a.deallocate("x")] == [0, 0]


def test_list_lookup(a: Process, b: Process) -> None:
    assert a.listed("x") == [6020, 64, []]
    assert [a.allocate("x1", SIZE), a.allocate("x2", 2 * SIZE)] == [0, 0]
    assert b.listed("")[0] == 6010
    assert b.listed("x", room=1) == [6010, 2, []]
    assert b.listed("x2") == [0, 1, [["x2", 2 * SIZE]]]
    assert b.listed("y") == [0, 0, []]
    assert [a.deallocate("x1"), a.deallocate("x2")] == [0, 0]


def test_map_arguments_leave_it_unattached(a: Process, standin: StandIn) -> None:
    assert a.allocate("x", SIZE) == 0
    assert a.map("x", 2 * SIZE)[0] == 6010
    assert standin.status()["objects"] == {"x": {}}
    assert a.map("x", SIZE, offset=1)[0] == 6010
    assert a.map("x", SIZE, prot=4)[0] == 6010
    assert a.map("x", SIZE, flags=1 | MAP_FIXED)[0] == 6010
    assert a.map("x", SIZE, addr=1)[0] == 6010
    assert a.map("x", 0)[0] == 6010
    assert a.deallocate("x") == 0


def test_map_twice(a: Process) -> None:
    assert a.allocate("x", SIZE) == 0
    address = a.map("x", SIZE)[1]
    assert a.map("x", SIZE)[0] == 6010
    assert a.unmap(address, SIZE) == 0
    code, address = a.map("x", SIZE)
    assert [code, a.unmap(address, SIZE), a.deallocate("x")] == [0, 0, 0]


def test_map_and_unmap_of_what_is_not_there(a: Process) -> None:
    assert a.map("missing", SIZE)[0] == 6020
    assert a.unmap(1 << 40, SIZE) == 6020
    assert a.allocate("x", SIZE) == 0
    address = a.map("x", SIZE)[1]
    assert a.unmap(address + 4096, SIZE) == 6020
    assert a.unmap(address, 2 * SIZE) == 6010
    assert [a.unmap(address, SIZE), a.deallocate("x")] == [0, 0]


def test_300_mib_in_three_units(a: Process, a2: Process, fabric: emulator.Fabric) -> None:
    import obmm

    size = 300 * MIB
    assert a.allocate("big", size) == 0
    before = a.descriptors()
    address = a.map("big", size)[1]
    assert a.descriptors() - before == 3
    ids = a.lookup("big")[3]
    assert len(ids) == 3
    a.poke(address + UNIT - 2, "01020304")
    a.poke(address + 2 * UNIT - 1, "0506")
    with obmm.open(fabric.device("a")) as device:
        with device.attach(ids[0], UNIT) as zero, zero.map("r") as m:
            assert m.read(UNIT - 2, 2) == b"\x01\x02"
        with device.attach(ids[1], UNIT) as one, one.map("r") as m:
            assert (m.read(0, 2), m.read(UNIT - 1, 1)) == (b"\x03\x04", b"\x05")
        with device.attach(ids[2], UNIT) as two, two.map("r") as m:
            assert m.read(0, 1) == b"\x06"
    assert [a.unmap(address, size), a.deallocate("big")] == [0, 0]


def test_bytes_reach_the_other_node(a: Process, b: Process) -> None:
    assert a.allocate("x", SIZE, flags=0x2) == 0
    here, there = a.map("x", SIZE)[1], b.map("x", SIZE, prot=1)[1]
    assert b.peek(there, 4) == "00000000"
    a.poke(here, "c0ffee")
    assert b.peek(there, 3) == "c0ffee"
    assert [a.unmap(here, SIZE), b.unmap(there, SIZE), a.deallocate("x")] == [0, 0, 0]


def test_mode_0400(a: Process) -> None:
    assert a.allocate("x", SIZE, mode=0o400) == 0
    assert a.map("x", SIZE, prot=3)[0] == 6011
    for prot in (1, 0):
        code, address = a.map("x", SIZE, prot=prot)
        assert [code, a.unmap(address, SIZE)] == [0, 0]
    assert a.deallocate("x") == 0


def test_mode_0600_keeps_others_and_root_out(spawn: Spawn, fresh: None) -> None:
    owner, other, root = spawn("a", (1000, 100)), spawn("a", (1001, 101)), spawn("a", (0, 0))
    for process in (owner, other, root):
        process.start()
    assert owner.allocate("x", SIZE) == 0
    assert [other.map("x", SIZE)[0], root.map("x", SIZE, prot=0)[0]] == [6011, 6011]
    assert owner.deallocate("x") == 0


def test_first_mapper_decides_the_open_mode(spawn: Spawn, fresh: None) -> None:
    owner, group = spawn("a", (1000, 100)), spawn("a", (1001, 100))
    assert [owner.start(), group.start()] == [[0, 0], [0, 0]]
    assert owner.allocate("x", SIZE, mode=0o640, flags=0x2) == 0
    code, address = group.map("x", SIZE, prot=1)
    assert code == 0
    assert owner.map("x", SIZE, prot=3)[0] == 6010
    assert [group.unmap(address, SIZE), owner.deallocate("x")] == [0, 0]


def test_no_ownership_of_noncacheable_objects(a: Process, b: Process) -> None:
    assert a.allocate("nc", SIZE, flags=0x2) == 0
    address = a.map("nc", SIZE)[1]
    assert a.own("nc", address, SIZE, 3) == 6010
    assert [a.unmap(address, SIZE), a.deallocate("nc")] == [0, 0]
    assert a.allocate_at("a", "half", SIZE, flags=0x8) == 0
    here, there = a.map("half", SIZE)[1], b.map("half", SIZE)[1]
    assert [b.own("half", there, SIZE, 3), a.own("half", here, SIZE, 3)] == [6010, 0]
    assert [a.unmap(here, SIZE), b.unmap(there, SIZE), a.deallocate("half")] == [0, 0, 0]


def test_set_ownership_arguments(a: Process) -> None:
    assert a.own("missing", 1 << 40, 4096, 3) == 6020
    assert a.allocate("x", SIZE) == 0
    address = a.map("x", SIZE, prot=0)[1]
    assert a.own("x", address, 4095, 3) == 6010
    assert a.own("x", address, 4096, 2) == 6010
    assert a.own("x", address + SIZE - 4096, 8192, 3) == 6010
    assert a.own("x", address + 1, 4096, 3) == 6010
    assert a.own("x", 0, 4096, 3) == 6010
    assert a.own("x", address, PAGE, 3) == 0
    assert [a.unmap(address, SIZE), a.deallocate("x")] == [0, 0]


def test_no_right_is_sigsegv(spawn: Spawn, a: Process, standin: StandIn) -> None:
    assert a.allocate("x", SIZE) == 0
    victim = spawn("b")
    assert victim.start() == [0, 0]
    address = victim.map("x", SIZE, prot=3)[1]
    assert [victim.own("x", address, SIZE, 3), victim.peek(address, 1)] == [0, "00"]
    assert victim.own("x", address, SIZE, 0) == 0
    with pytest.raises(EOFError):
        victim.peek(address, 1)
    assert victim.status == -signal.SIGSEGV
    assert _deallocate_soon(a, "x") == 0


def test_locks_need_exactly_flag_1_and_a_whole_unit(a: Process) -> None:
    for name, size, flags, code in (("p", SIZE, 0, 6060), ("q", SIZE, 0x11, 6060), ("r", SIZE, 0x1, 6010)):
        assert a.allocate(name, size, flags=flags) == 0
        address = a.map(name, size, prot=0)[1]
        assert a.lock("write_lock", name) == code
        assert [a.unmap(address, size), a.deallocate(name)] == [0, 0]


def test_lock_unmap_unlock_unlock(a: Process, b: Process) -> None:
    assert a.allocate("l", UNIT, flags=1) == 0
    here, there = a.map("l", UNIT, prot=0)[1], b.map("l", UNIT, prot=0)[1]
    assert a.lock("write_lock", "l") == 0
    a.poke(here, "77")
    assert [a.lock("write_lock", "l"), b.lock("write_lock", "l"), b.lock("read_lock", "l")] == [6061, 6062, 6062]
    assert a.unmap(here, UNIT) == 6061
    assert [a.lock("unlock", "l"), a.lock("unlock", "l")] == [0, 6020]
    assert [b.lock("read_lock", "l"), b.peek(there, 1), b.lock("unlock", "l")] == [0, "77", 0]
    assert [a.unmap(here, UNIT), b.unmap(there, UNIT), a.deallocate("l")] == [0, 0, 0]
    assert a.lock("write_lock", "l") == 6020


def test_deallocate_refusals(a: Process, b: Process, spawn: Spawn) -> None:
    assert a.allocate("x", SIZE) == 0
    here = a.map("x", SIZE)[1]
    assert a.deallocate("x") == 6024
    there = b.map("x", SIZE)[1]
    assert a.unmap(here, SIZE) == 0
    assert a.deallocate("x") == 6024
    assert b.unmap(there, SIZE) == 0
    other = spawn("a", (os.getuid(), os.getgid() + 1))
    assert other.start() == [0, 0]
    assert other.deallocate("x") == 6011
    assert [a.deallocate("x"), a.deallocate("x")] == [0, 6020]


def test_lease_arguments_and_range(a: Process) -> None:
    assert a.lease(SIZE - 1)[0] == 6010
    assert a.lease(SIZE, flags=0x10)[0] == 6010
    assert a.lease(SIZE, distance=1)[0] == 6010
    assert a.lease(SIZE, region="nowhere")[0] == 6020
    assert a.lease(SIZE, flags=0x40)[0] == 6050
    code, address = a.lease(SIZE)
    assert code == 0
    a.poke(address + UNIT - 1, "55")
    assert a.peek(address + UNIT - 1, 1) == "55"
    assert a.lease_free(address) == 0


@pytest.mark.parametrize("slot", [1, 2])
def test_lease_with_location(a: Process, slot: int) -> None:
    code, address = a.lease_at(slot, SIZE)
    assert code == 0
    a.poke(address, "aa")
    assert a.lease_free(address) == 0
    assert a.lease_at(99, SIZE)[0] == 6050


def test_lease_free_twice_and_of_a_shared_mapping(a: Process) -> None:
    address = a.lease(SIZE)[1]
    assert [a.lease_free(address), a.lease_free(address), a.lease_free(0)] == [0, 6010, 6010]
    assert a.allocate("x", SIZE) == 0
    address = a.map("x", SIZE)[1]
    assert a.lease_free(address) == 6010
    assert [a.unmap(address, SIZE), a.deallocate("x")] == [0, 0]


def _deallocate_soon(process: Process, name: str) -> int:
    """The code once the daemon has cleaned up; 6017 and 6024 come before (at most seconds)."""
    end = time.monotonic() + 5
    while True:
        code = int(process.deallocate(name))
        if code not in (6017, 6024) or time.monotonic() > end:
            return code


def test_killed_process_is_cleaned_up(a: Process, spawn: Spawn, standin: StandIn) -> None:
    assert a.allocate("x", SIZE) == 0
    victim = spawn("b")
    assert victim.start() == [0, 0]
    assert [victim.map("x", SIZE)[0], victim.lease(SIZE)[0]] == [0, 0]
    assert standin.status()["leases"] == 1
    victim.kill()
    assert _deallocate_soon(a, "x") == 0
    end = time.monotonic() + 5
    while standin.status()["leases"] and time.monotonic() < end:
        pass
    assert standin.status()["leases"] == 0


def test_finalize_with_a_live_mapping(a: Process, spawn: Spawn) -> None:
    assert a.allocate("x", SIZE) == 0
    careless = spawn("b")
    assert careless.start() == [0, 0]
    address = careless.map("x", SIZE)[1]
    assert careless.finalize() == 0
    assert a.deallocate("x") in (6017, 6024)
    assert careless.peek(address, 1) == "00", "the mapping stays"
    assert careless.unmap(address, SIZE) == 6040
    assert careless.readable(address).startswith("---")
    careless.kill()
    assert _deallocate_soon(a, "x") == 0


def test_killed_in_the_middle_of_anything(a: Process, spawn: Spawn, standin: StandIn, fabric: emulator.Fabric) -> None:
    """With the lock or without, in one mode or the other: no process is stopped, and what they had is released."""
    dice = random.Random(16)
    for turn in range(4):
        victims = [spawn(node) for node in "abc"]
        for number, victim in enumerate(victims):
            assert victim.start() == [0, 0]
            victim.begin("churn", f"v{number}", "bca"[number], 2 * UNIT)
        time.sleep(dice.uniform(0.0, 0.1))  # the instant of the kill is what varies
        for victim in victims:
            victim.kill()
        assert a.slot() == [0, 1]
        for number in range(3):
            assert _deallocate_soon(a, f"v{number}") in (0, 6020), turn
        _wait_until_empty(standin)


def _wait_until_empty(standin: StandIn) -> None:
    end = time.monotonic() + 10
    while standin.status() != {"objects": {}, "leases": 0, "busy": []}:
        assert time.monotonic() < end, standin.status()


def test_5_a_forked_child_gets_no_connection_and_ends_none(a: Process) -> None:
    assert a.allocate("x", SIZE) == 0
    address = a.map("x", SIZE)[1]
    assert a.forked() == [0, 0, 6040, 0]
    assert [len(a.lookup("x")[3]), a.unmap(address, SIZE), a.deallocate("x")] == [1, 0, 0]


def test_6_1_one_node_alone_has_no_groups(standin: StandIn) -> None:
    with emulator.start(nodes=1) as fabric, StandIn(fabric, mode=standin.mode) as alone:
        process = Process(alone, "a")
        assert [process.start(), process.regions()[0]] == [[0, 0], 6050]
        assert [process.allocate("x", SIZE), process.deallocate("x")] == [0, 0]
        process.close()


@pytest.mark.parametrize("unit", [256 * MIB, 512 * MIB])
def test_s5_units_can_be_larger(standin: StandIn, unit: int) -> None:
    with emulator.start(nodes=2) as fabric, StandIn(fabric, unit=unit, mode=standin.mode) as other:
        process = Process(other, "a")
        assert [process.start(), process.allocate_at("b", "x", unit + SIZE)] == [[0, 0], 0]
        address = process.map("x", unit + SIZE)[1]
        code, size, told, ids = process.lookup("x")
        assert (code, size, told, len(ids)) == (0, unit + SIZE, unit, 2)
        process.poke(address + unit - 1, "0102")
        assert process.peek(address + unit - 1, 2) == "0102"
        assert [process.unmap(address, unit + SIZE), process.deallocate("x")] == [0, 0]
        process.close()


def test_fault_callback(a: Process, standin: StandIn) -> None:
    assert a.faults(null=True) == 6010
    a.finalize()
    others = standin.fire("before", 0)  # processes of other tests that are registered still
    assert a.faults() == 0
    for kind in FaultKind:
        assert standin.fire("some", kind) == others + 1
        assert a.event() == ["some", kind, False]


def test_round_trips_and_system_calls(a: Process, standin: StandIn) -> None:
    size, n = 3 * UNIT, 3
    trip = 1 if standin.mode == "daemon" else 0

    def cost(call: object) -> list[int]:
        before = a.counters()
        assert call() == 0  # type: ignore[operator]
        return [now - then for now, then in zip(a.counters(), before, strict=True)]

    where: list[int] = []

    def mapped() -> int:
        code, address = a.map("x", size)
        where.append(address)
        return int(code)

    assert cost(lambda: a.allocate("x", size)) == [2 * trip, 0]
    assert cost(mapped) == [trip, 2 * n + 1]
    assert cost(lambda: a.own("x", where[0] + UNIT - PAGE, 2 * PAGE, 3)) == [0, 2]
    assert cost(lambda: a.unmap(where[0], size)) == [trip, n + 2]
    assert cost(lambda: a.deallocate("x")) == [trip, 0]
    assert cost(lambda: a.allocate_at("b", "x", size)) == [trip, 0]
    assert cost(mapped) == [trip, 2 * n + 1]
    assert cost(lambda: a.unmap(where[1], size)) == [trip, n + 2]
    assert cost(lambda: a.deallocate("x")) == [trip, 0]
    assert cost(lambda: a.create_region("r", ["a", "b"])) == [2 * trip, 0]
    assert cost(lambda: a.destroy_region("r")) == [trip, 0]


def test_marker(a: Process) -> None:
    assert a.kind() == "stand-in"


def test_s14_injected_code_delay_and_lost_answer(spawn: Spawn, standin: StandIn, fresh: None) -> None:
    process = spawn("a", MXM_CHANNEL_TIMEOUT="1")
    assert process.start() == [0, 0]
    standin.inject(Op.CREATE, code=6099)
    standin.inject(Op.CREATE, code=6017)
    assert [process.allocate("x", SIZE), process.allocate("x", SIZE)] == [6099, 6017]
    standin.inject(Op.CREATE, lost=True)
    assert process.allocate("x", SIZE) == 6040
    assert process.allocate("x", SIZE) == 6021, "the daemon had finished the work"
    standin.inject(Op.DELETE, delay=0.01)
    assert process.deallocate("x") == 0


CALLS: dict[Op, Callable[[Process], object]] = {
    Op.GROUPS: lambda p: p.regions()[0],
    Op.RESOLVE: lambda p: p.allocate("x", SIZE),
    Op.CREATE: lambda p: p.allocate("x", SIZE),
    Op.CREATE_AT: lambda p: p.allocate_at("b", "x", SIZE),
    Op.MAP: lambda p: p.map("x", SIZE)[0],
    Op.DELETE: lambda p: p.deallocate("x"),
    Op.REGION_CREATE: lambda p: p.create_region("r", ["a", "b"]),
    Op.REGION_LOOKUP: lambda p: p.lookup_region("r")[0],
    Op.REGION_DESTROY: lambda p: p.destroy_region("r"),
    Op.CLUSTER: lambda p: p.cluster()[0],
    Op.LIST: lambda p: p.listed("x")[0],
    Op.LOOKUP: lambda p: p.lookup("x")[0],
    Op.SLOT: lambda p: p.slot()[0],
    Op.LEASE: lambda p: p.lease(SIZE)[0],
    Op.LEASE_AT: lambda p: p.lease_at(2, SIZE)[0],
}
"""A call that sends each request; those that need a mapping first have tests of their own."""


@pytest.mark.parametrize("op", CALLS)
def test_s14_every_code_at_every_call(a: Process, standin: StandIn, op: Op) -> None:
    for code in set(Code) - {Code.OK}:
        standin.inject(op, code=code)
        assert CALLS[op](a) == code


def test_s14_codes_at_the_calls_of_mappings(a: Process, standin: StandIn) -> None:
    assert a.allocate("l", UNIT, flags=1) == 0
    address, lease = a.map("l", UNIT, prot=0)[1], a.lease(SIZE)[1]
    for op, call in (
        (Op.WRITE_LOCK, lambda: a.lock("write_lock", "l")),
        (Op.READ_LOCK, lambda: a.lock("read_lock", "l")),
        (Op.UNMAP, lambda: a.unmap(address, UNIT)),
        (Op.LEASE_FREE, lambda: a.lease_free(lease)),
    ):
        for code in set(Code) - {Code.OK}:
            standin.inject(op, code=code)
            assert call() == code
    assert [a.unmap(address, UNIT), a.lease_free(lease), a.deallocate("l")] == [0, 0, 0]


def test_7_6_a_failed_unlock_has_lowered_the_local_count(a: Process, standin: StandIn) -> None:
    assert a.allocate("l", UNIT, flags=1) == 0
    address = a.map("l", UNIT, prot=0)[1]
    assert a.lock("write_lock", "l") == 0
    standin.inject(Op.UNLOCK, code=6062)
    assert [a.lock("unlock", "l"), a.lock("unlock", "l")] == [6062, 6020]
    assert [a.unmap(address, UNIT), a.deallocate("l")] == [0, 0]


def test_s15_any_unit_that_is_open_keeps_the_unmap_busy(b: Process, fabric: emulator.Fabric) -> None:
    import obmm

    size = 3 * UNIT
    assert b.allocate_at("a", "x", size) == 0
    with obmm.open(fabric.device("b")) as device:
        for index in range(3):
            address = b.map("x", size, prot=0)[1]
            ids = b.lookup("x")[3]
            with device.attach(ids[index], UNIT) as region, region.map("none"):
                assert b.unmap(address, size) == 6050
                assert b.readable(address).startswith("---")
                assert b.map("x", size)[0] == 6010, "still this process's"
            assert b.unmap(address, size) == 0
    assert b.deallocate("x") == 0


def test_7_5_failed_unmap_is_closed_and_can_be_repeated(a: Process, standin: StandIn) -> None:
    assert a.allocate("x", SIZE) == 0
    address = a.map("x", SIZE)[1]
    standin.inject(Op.UNMAP, code=6050)
    assert a.unmap(address, SIZE) == 6050
    assert a.readable(address).startswith("---")
    assert a.map("x", SIZE)[0] == 6010
    assert [a.unmap(address, SIZE), a.deallocate("x")] == [0, 0]


def test_7_2_only_nodes_of_the_region_attach_but_all_with_provider(a: Process, b: Process, spawn: Spawn) -> None:
    outside = spawn("c")
    assert outside.start() == [0, 0]
    assert a.create_region("r", ["a", "b"]) == 0
    assert a.allocate("x", SIZE, region="r") == 0
    assert outside.map("x", SIZE)[0] == 6050
    there = b.map("x", SIZE)[1]
    assert [b.unmap(there, SIZE), a.deallocate("x"), a.destroy_region("r")] == [0, 0, 0]
    assert a.allocate_at("b", "x", SIZE) == 0
    code, there = outside.map("x", SIZE)
    assert [code, outside.unmap(there, SIZE), a.deallocate("x")] == [0, 0, 0]
