# SPDX-License-Identifier: Apache-2.0
"""What is wrong is told in a sentence: the operation, the value, what the code means for it, and the fix."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from obmm import urma
from obmm.urma.abi import FUNCTIONS
from obmm.urma.standin import StandIn

from .conftest import NBYTES, OwnerProcess
from .test_library import built

Cases = dict[str, Callable[[], Any]]


class World:
    """A context, an owner on node b, and what can go wrong between them."""

    def __init__(self, context: urma.Context, standin: StandIn, owner: OwnerProcess, spawn: Callable[..., Any]) -> None:
        self.context, self.standin, self.owner, self.spawn = context, standin, owner, spawn
        self.number, self.ticket = owner.register()
        self.out = context.buffer(1 << 16)

    def attach(self, **changes: Any) -> urma.TargetSegment:
        return self.context.queue().attach(dataclasses.replace(urma.Ticket.unpack(self.ticket), **changes))

    def real(self) -> urma.Ticket:
        return urma.Ticket.unpack(self.ticket)

    def wrong_token(self) -> None:
        self.attach(token=self.real().token ^ 1).read_many([0], 8, self.out)

    def wrong_token_id(self) -> None:
        self.attach(token_id=self.real().token_id + 256).read_many([0], 8, self.out)

    def wrong_right(self) -> None:
        self.attach().write_many([0], 8, self.out[:8])

    def wrong_eid(self) -> None:
        eid = bytes([0xFD, *[0] * 13, 0x77, 0x77])
        self.attach(eid=eid, target_eid=eid).read_many([0], 8, self.out)

    def out_of_bounds(self) -> None:
        self.attach().read_many([0, NBYTES - 4], 8, self.out)

    def out_of_bounds_of_the_owner(self) -> None:
        self.attach(length=2 * NBYTES).read_many([NBYTES - 4], 8, self.out)

    def overflowing_offset(self) -> None:
        self.attach().read_many(np.array([(1 << 64) - 8], np.uint64), 16, self.out)

    def destroyed_segment(self) -> None:
        target = self.attach()
        self.owner.ask("revoke", self.number)
        target.read_many([0], 8, self.out)

    def full_queue(self) -> None:
        self.standin.inject("at=0,list=3")
        self.attach().read_many(np.arange(8) * 8, 8, self.out)

    def list_over_the_queue(self) -> None:
        self.context.queue(depth=64, list_max=65)

    def queue_over_the_device(self) -> None:
        self.context.queue(depth=1 << 20)

    def more_than_the_buffer(self) -> None:
        self.attach().read_many([0] * 5, 1 << 14, self.out)

    def longer_than_a_read(self) -> None:
        self.attach().read_many([0], 1 << 40, self.out)

    def dead_peer(self) -> None:
        owner = self.spawn()
        _, ticket = owner.register()
        target = self.context.queue().attach(ticket)
        owner.kill()
        target.read_many([0], 8, self.out)

    def unreachable_peer(self) -> None:
        target = self.attach()
        self.standin.reach("b", False)
        try:
            target.read_many([0], 8, self.out)
        finally:
            self.standin.reach("b", True)

    def silent_peer(self) -> None:
        self.standin.inject("at=0,drop")
        self.attach().read_many([0], 8, self.out, timeout=0.05)

    def dead_queue(self) -> None:
        target = self.attach()
        self.standin.inject("at=0,status=16")
        with pytest.raises(urma.UrmaError):
            target.read_many([0], 8, self.out)
        target.read_many([0], 8, self.out)

    def landing_elsewhere(self) -> None:
        self.attach().read_many([0], 8, np.zeros(8, np.uint8))

    def bytes_that_are_no_ticket(self) -> None:
        self.context.queue().attach(self.ticket[:-1])

    def unknown_device(self) -> None:
        urma.Context("udma9", library=self.context.library)

    def unknown_eid_index(self) -> None:
        urma.Context(eid_index=7, library=self.context.library)


SENTENCES: dict[str, tuple[type[urma.UrmaError], str]] = {
    "wrong_token": (urma.UrmaRefused, r"read_many: piece 0 of 1 ended with status 8 REM_ACCESS_ABORT_ERR"),
    "wrong_token_id": (urma.UrmaRefused, r"read_many.*8 REM_ACCESS_ABORT_ERR"),
    "wrong_right": (urma.UrmaRefused, r"write_many.*8 REM_ACCESS_ABORT_ERR"),
    "wrong_eid": (urma.UrmaError, r"read_many.*9 ACK_TIMEOUT_ERR"),
    "out_of_bounds": (
        urma.UrmaArgumentError,
        rf"piece 1 is \[{NBYTES - 4}, {NBYTES + 4}\) of a segment of {NBYTES} bytes",
    ),
    "out_of_bounds_of_the_owner": (urma.UrmaRefused, r"read_many.*8 REM_ACCESS_ABORT_ERR"),
    "overflowing_offset": (urma.UrmaArgumentError, r"piece 0 is \[18446744073709551608, "),
    "destroyed_segment": (urma.UrmaRefused, r"read_many.*8 REM_ACCESS_ABORT_ERR"),
    "full_queue": (urma.UrmaError, r"post was refused with 12 ENOMEM at piece 3 of 8"),
    "list_over_the_queue": (urma.UrmaArgumentError, r"depth 64, list_max 65"),
    "queue_over_the_device": (urma.UrmaArgumentError, r"depth 1048576.*8192, the device's limit"),
    "more_than_the_buffer": (urma.UrmaArgumentError, r"the buffer is full before piece 4 of 16384 bytes"),
    "longer_than_a_read": (urma.UrmaArgumentError, r"length 1099511627776"),
    "dead_peer": (urma.UrmaError, r"read_many.*9 ACK_TIMEOUT_ERR"),
    "unreachable_peer": (urma.UrmaError, r"read_many.*9 ACK_TIMEOUT_ERR"),
    "silent_peer": (urma.UrmaTimeout, r"read_many: no completion within \d\.\d+ s"),
    "dead_queue": (urma.UrmaQueueDead, r"read_many: .* is dead: an earlier batch failed"),
    "landing_elsewhere": (urma.UrmaArgumentError, r"8 bytes outside every registered segment"),
    "bytes_that_are_no_ticket": (urma.UrmaTicketError, r"127 bytes"),
    "unknown_device": (urma.UrmaError, r"get_device_by_name\(name='udma9'.*19 ENODEV"),
    "unknown_eid_index": (urma.UrmaArgumentError, r"eid_index 7"),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_each_is_told_with_its_value_meaning_and_fix(
    case: str, context: urma.Context, standin: StandIn, owner: OwnerProcess, spawn: Callable[..., OwnerProcess]
) -> None:
    kind, sentence = SENTENCES[case]
    world = World(context, standin, owner, spawn)
    with pytest.raises(kind, match=sentence) as caught:
        getattr(world, case)()
    text = str(caught.value)
    assert "fix: " in text or "\n  - " in text, text
    assert caught.value.operation
    secrets = (world.real().token, world.real().target_token)
    assert not any(str(secret) in text or f"{secret:x}" in text for secret in secrets)


def test_no_case_is_left_out() -> None:
    assert {name for name in vars(World) if not name.startswith("_")} - {"attach", "real"} == SENTENCES.keys()


def test_a_library_that_lacks_a_function_is_told_with_its_name(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("obmm.urma.library._loaded", {})
    lacking = built(tmp_path, [name for name in FUNCTIONS if name not in ("urma_read", "urma_poll_jfc")])
    with pytest.raises(
        urma.UrmaLibraryError, match=r"it lacks urma_read, urma_poll_jfc|it lacks urma_poll_jfc, urma_read"
    ) as caught:
        urma.load(lacking)
    assert str(lacking) in str(caught.value)
