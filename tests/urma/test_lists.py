# SPDX-License-Identifier: Apache-2.0
"""Lists of requests, and what a queue is after an error (URMA specification 7; conformance list 13 to 16, 23, 26, 28)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from obmm import urma
from obmm.urma.abi import ffi

from .conftest import OwnerProcess
from .owner import content
from .raw import READ, SIGNALLED, WRITE, Raw

SEED, NBYTES = 3, 1 << 16


class Reader(Raw):
    """A send queue, a landing, and an imported segment of the owner process."""

    def __init__(self, library: Any, ticket: urma.Ticket, depth: int = 64, jfc_depth: int = 128) -> None:
        super().__init__(library)
        self.queue_jfc = self.jfc(jfc_depth)
        self.queue = self.jfs(self.queue_jfc, depth)
        self.landing, self.memory = self.register(1 << 20)
        self.at = int(ffi.cast("uintptr_t", self.memory))
        seg, token = ffi.new("urma_seg_t *"), ffi.new("urma_token_t *", {"token": ticket.token})
        place = ticket.eid + ticket.uasid.to_bytes(4, "little") + ticket.va.to_bytes(8, "little")
        ffi.memmove(seg.ubva, place, 28)
        seg.len, seg.attr, seg.token_id = ticket.length, ticket.attr, ticket.token_id
        self.remote_at, self.nbytes = ticket.va, ticket.length
        self.remote = library.urma_import_seg(self.context, seg, token, 0, 0)
        remote = ffi.new("urma_rjetty_t *", {"trans_mode": 1, "type": 1, "tp_type": 1, "flag": 1})
        remote.jetty_id.eid.raw, remote.jetty_id.id = ticket.target_eid, ticket.target_id
        self.target = library.urma_import_jetty(
            self.context, remote, ffi.new("urma_token_t *", {"token": ticket.target_token})
        )

    def read(
        self,
        ctx: int,
        offset: int = 0,
        length: int = 8,
        *,
        signalled: bool = True,
        opcode: int = READ,
        pieces: int = 1,
        remotes: int = 1,
    ) -> Any:
        local = [(self.at + ctx * 64 + i * length, length, self.landing) for i in range(pieces)]
        remote = [(self.remote_at + offset, length * max(1, pieces), self.remote)] * remotes
        return self.wr(opcode, self.target, local, remote, ctx, SIGNALLED if signalled else 0)

    def landed(self, ctx: int, length: int = 8) -> bytes:
        return bytes(ffi.buffer(self.memory + ctx * 64, length))


@pytest.fixture
def make(library: urma.Library, owner: OwnerProcess) -> Iterator[Any]:
    _, ticket = owner.register(SEED, NBYTES)
    assert library.raw.urma_init(ffi.NULL) == 0
    yield lambda **options: Reader(library.raw, urma.Ticket.unpack(ticket), **options)
    library.raw.urma_uninit()


def test_a_list_of_4096_signals_once_and_needs_four_system_calls(make: Any, library: urma.Library) -> None:
    reader = make(depth=8192)
    wrs = [reader.read(i, 8 * i, signalled=i == 4095) for i in range(4096)]
    before = library.counters()
    assert reader.post(reader.queue, *wrs) == (0, None)
    after = library.counters()
    assert before is not None
    assert after is not None
    assert after["copies"] - before["copies"] == 4
    assert reader.poll(reader.queue_jfc) == [(0, 4095)]
    whole = content(SEED, NBYTES)
    assert all(reader.landed(i) == whole[8 * i : 8 * i + 8].tobytes() for i in range(4096))


def test_a_full_queue_takes_what_fits(make: Any) -> None:
    reader = make()
    assert reader.post(reader.queue, *[reader.read(i, 8 * i) for i in range(65)]) == (12, 64)
    assert reader.poll(reader.queue_jfc) == [(0, i) for i in range(64)]


def test_unsignalled_requests_give_their_places_back_with_a_later_completion(make: Any) -> None:
    reader = make()
    assert reader.post(reader.queue, *[reader.read(i, signalled=i == 63) for i in range(64)])[0] == 0
    assert reader.post(reader.queue, reader.read(64)) == (12, 0)
    assert reader.poll(reader.queue_jfc) == [(0, 63)]
    assert reader.post(reader.queue, reader.read(64)) == (0, None)


def test_a_queue_that_never_signals_fills_up_for_ever(make: Any) -> None:
    reader = make()
    assert reader.post(reader.queue, *[reader.read(i, signalled=False) for i in range(64)])[0] == 0
    assert reader.poll(reader.queue_jfc) == []
    assert reader.post(reader.queue, reader.read(0)) == (12, 0)


def test_what_stands_before_a_malformed_request_runs(make: Any) -> None:
    reader = make()
    wrs = [reader.read(0), reader.read(1, 8), reader.read(2, opcode=0x33), reader.read(3)]
    assert reader.post(reader.queue, *wrs) == (22, 2)
    assert reader.poll(reader.queue_jfc) == [(0, 0), (0, 1)]


@pytest.mark.parametrize("shape", [{"pieces": 0}, {"remotes": 2}, {"pieces": 7}])
def test_requests_of_impossible_shape_are_refused(make: Any, shape: dict[str, int]) -> None:
    reader = make()
    assert reader.post(reader.queue, reader.read(1, **shape)) == (22, 0)


def test_requests_without_segments_are_refused(make: Any) -> None:
    reader = make()
    for side in ("local", "remote"):
        wr = reader.read(1)
        (wr.rw.dst if side == "local" else wr.rw.src).sge.tseg = ffi.NULL
        assert reader.post(reader.queue, wr) == (22, 0)


def test_a_read_into_several_pieces_and_one_of_no_bytes(make: Any) -> None:
    reader = make()
    assert reader.post(reader.queue, reader.read(0, 64, 8, pieces=6), reader.read(9, length=0)) == (0, None)
    assert reader.poll(reader.queue_jfc) == [(0, 0), (0, 9)]
    assert reader.landed(0, 48) == content(SEED, NBYTES)[64:112].tobytes()


def test_an_error_ends_the_queue_in_the_order_of_the_guide(make: Any) -> None:
    reader = make()
    wrs = [reader.read(0), reader.read(1), reader.read(2, NBYTES), reader.read(3), reader.read(4)]
    assert reader.post(reader.queue, *wrs) == (0, None)
    statuses = reader.poll(reader.queue_jfc)
    assert statuses[:5] == [(0, 0), (0, 1), (8, 2), (11, 3), (11, 4)]
    assert [status for status, _ in statuses[5:]] == [13]
    assert reader.post(reader.queue, reader.read(5), reader.read(6)) == (0, None)  # a dead queue takes everything
    records = ffi.new("urma_cr_t[]", 8)
    assert reader.lib.urma_flush_jfs(reader.queue, 8, records) == 2
    assert [(records[i].status, records[i].user_ctx, records[i].opcode) for i in range(2)] == [
        (14, 5, 0xFF),
        (14, 6, 0xFF),
    ]
    second_jfc = reader.jfc()
    second = reader.jfs(second_jfc)
    assert reader.post(second, reader.read(7)) == (0, None)
    assert reader.poll(second_jfc) == [(0, 7)]


def test_asking_for_the_error_state_gives_one_marker_and_ready_resets(make: Any) -> None:
    reader = make()
    attr = ffi.new("urma_jfs_attr_t *", {"mask": 1, "state": 3})
    assert reader.lib.urma_modify_jfs(reader.queue, attr) == 0
    assert [status for status, _ in reader.poll(reader.queue_jfc)] == [13]
    attr.state = 1
    assert reader.lib.urma_modify_jfs(reader.queue, attr) == 0
    assert reader.post(reader.queue, reader.read(1)) == (0, None)
    assert reader.poll(reader.queue_jfc) == [(0, 1)]


def test_more_completions_than_the_depth_are_the_end_of_a_completion_queue(make: Any) -> None:
    reader = make(jfc_depth=4)
    assert reader.post(reader.queue, *[reader.read(i) for i in range(5)]) == (0, None)
    assert reader.lib.urma_poll_jfc(reader.queue_jfc, 8, ffi.new("urma_cr_t[]", 8)) == -1
    assert reader.lib.urma_poll_jfc(reader.queue_jfc, 8, ffi.new("urma_cr_t[]", 8)) == -1


def test_a_local_range_outside_its_segment_and_a_local_segment_that_is_gone(make: Any) -> None:
    reader = make()
    beyond = reader.wr(
        READ,
        reader.target,
        [(reader.at + (1 << 20) - 4, 8, reader.landing)],
        [(reader.remote_at, 8, reader.remote)],
        1,
        SIGNALLED,
    )
    assert reader.post(reader.queue, beyond)[0] == 0
    assert reader.poll(reader.queue_jfc)[0] == (4, 1)
    imported = reader.wr(
        READ, reader.target, [(reader.at, 8, reader.remote)], [(reader.remote_at, 8, reader.remote)], 2, SIGNALLED
    )
    second_jfc = reader.jfc()
    assert reader.post(reader.jfs(second_jfc), imported)[0] == 0
    assert reader.poll(second_jfc)[0] == (4, 2)


def test_a_read_longer_than_the_device_reads(make: Any) -> None:
    reader = make()
    wr = reader.read(1)
    wr.rw.dst.sge.len = (256 << 20) + 1
    assert reader.post(reader.queue, wr)[0] == 0
    assert reader.poll(reader.queue_jfc)[0] == (2, 1)


def test_one_wake_up_for_an_armed_queue(make: Any) -> None:
    reader = make()
    jfce = reader.lib.urma_create_jfce(reader.context)
    jfc = reader.jfc(jfce=jfce)
    queue = reader.jfs(jfc)
    assert reader.lib.urma_rearm_jfc(jfc, False) == 0
    assert reader.post(queue, reader.read(1), reader.read(2))[0] == 0
    woken = ffi.new("void *[1]")
    assert reader.lib.urma_wait_jfc(jfce, 1, 1000, woken) == 1
    assert reader.lib.urma_wait_jfc(jfce, 1, 0, woken) == 0
    reader.lib.urma_ack_jfc(woken, ffi.new("uint32_t[1]", [1]), 1)
    assert reader.poll(jfc) == [(0, 1), (0, 2)]
    reader.lib.urma_delete_jfs(queue)
    assert reader.lib.urma_delete_jfc(jfc) == 0


def test_a_completion_queue_may_go_before_its_send_queue(make: Any) -> None:
    reader = make()
    assert reader.lib.urma_delete_jfc(reader.queue_jfc) == 0
    assert reader.post(reader.queue, reader.read(1)) == (0, None)
    assert reader.lib.urma_delete_jfs(reader.queue) == 0


def test_write_needs_the_right(make: Any) -> None:
    reader = make()
    wr = reader.read(1, opcode=WRITE)
    assert reader.post(reader.queue, wr)[0] == 0
    assert reader.poll(reader.queue_jfc)[0] == (8, 1)


@pytest.mark.parametrize(
    ("policy", "registered", "given", "status"),
    [(0, 5, 77, 0), (0, 5, 0, 0), (1, 5, 77, 8), (1, 5, 5, 0), (1, 0, 0, 0), (1, 0, 5, 8)],
)
def test_a_token_value_is_compared_unless_the_policy_is_none(
    library: urma.Library, policy: int, registered: int, given: int, status: int
) -> None:
    """0 is a value like any other (7.6)."""
    assert library.raw.urma_init(ffi.NULL) == 0
    try:
        raw = Raw(library.raw)
        jfc = raw.jfc()
        jfr, queue = raw.jfr(jfc), raw.jfs(jfc)
        source, memory = raw.register(access=2, policy=policy, token=registered)
        ffi.buffer(memory)[:8] = b"contents"
        landing, into = raw.register()
        token = ffi.new("urma_token_t *", {"token": given})
        imported = raw.lib.urma_import_seg(raw.context, ffi.addressof(source.seg), token, 0, 0)
        remote = ffi.new("urma_rjfr_t *", {"trans_mode": 1, "tp_type": 1})
        remote.jfr_id = ffi.cast("urma_named_t *", jfr).id
        target = raw.lib.urma_import_jfr(raw.context, remote, ffi.new("urma_token_t *"))
        here, there = (int(ffi.cast("uintptr_t", each)) for each in (into, memory))
        wr = raw.wr(READ, target, [(here, 8, landing)], [(there, 8, imported)], 1, SIGNALLED)
        assert raw.post(queue, wr) == (0, None)
        assert raw.poll(jfc)[0] == (status, 1)
        assert bytes(ffi.buffer(into, 8)) == (bytes(8) if status else b"contents")
    finally:
        library.raw.urma_uninit()
