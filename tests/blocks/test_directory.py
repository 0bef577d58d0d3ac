# SPDX-License-Identifier: Apache-2.0
"""The book and its protocol, without memory or network."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm import ObmmArgumentError
from obmm.blocks import Namespace, SlotLayout
from obmm.blocks.directory import Directory, User
from obmm.blocks.errors import BlockStoreError
from obmm.blocks.service import BlockService
from obmm.blocks.wire import GRANT, HEAD, PLACE, Answer, Committed, Op, Question, split
from obmm.exchange.calls import Caller
from obmm.exchange.errors import Refusal, RequestRefusedError

ME = Caller("me@here", "")


class Grant(NamedTuple):
    generation: int
    slot: int

    def pack(self) -> bytes:
        return GRANT.pack(*self, 0)


class Place(NamedTuple):
    hash: bytes
    generation: int
    slot: int
    length: int

    def pack(self) -> bytes:
        return PLACE.pack(*self)


def grants(packed: bytes) -> list[Grant]:
    return [Grant(*GRANT.unpack(each)[:2]) for each in split(packed, GRANT.size)]


class Book:
    """A directory and the slots that it had cleared."""

    def __init__(self, slots: int = 4, **options: object) -> None:
        self.cleared: list[int] = []
        self.works = True
        self.directory = Directory(slots, 100, 10.0, self.clear, **options)  # type: ignore[arg-type]
        self._serial = 0

    def clear(self, slots: object) -> bool:
        self.cleared += list(slots)  # type: ignore[call-overload]
        return self.works

    def user(self, name: bytes = b"u", tenant: str = "t", now: float = 0.0) -> User:
        user = self.directory.open(name * 16, tenant, "name", now)
        assert user is not None
        return user

    def reserve(self, user: User, count: int) -> list[Grant]:
        self._serial += 1
        return grants(self.directory.reserve(user, count, self._serial))

    def give_back(self, user: User, given: list[Grant]) -> None:
        self.directory.give_back(user, [grant.pack() for grant in given])

    def commit(self, user: User, place: Place) -> tuple[Committed, Place]:
        (verdict,), (where,) = self.directory.commit(user, [place.pack()])
        return Committed(verdict), Place(*PLACE.unpack(where))

    def lookup(self, key: bytes) -> Place | None:
        place = self.directory.lookup(key)
        return place and Place(*PLACE.unpack(place))

    def store(self, user: User, *keys: int) -> list[Place]:
        places = []
        for key in keys:
            (grant,) = self.reserve(user, 1)
            place = Place(key.to_bytes(16, "big"), grant.generation, grant.slot, 10)
            assert self.commit(user, place) == (Committed.STORED, place)
            places.append(place)
        return places


def test_a_generation_is_never_given_twice() -> None:
    book = Book(2)
    user = book.user()
    generations = [
        grant.generation for i in range(50) for grant in book.reserve(user, 1) if not book.give_back(user, [grant])
    ]
    assert len(set(generations)) == 50


def test_a_slot_is_cleared_before_another_one_may_write_it() -> None:
    book = Book(2)
    user = book.user()
    first, _ = book.store(user, 1, 2)
    assert book.cleared == []
    (grant,) = book.reserve(user, 1)
    assert book.cleared == [first.slot] == [grant.slot]
    assert book.lookup(first.hash) is None


def test_a_slot_that_could_not_be_cleared_is_not_used_again() -> None:
    book = Book(2)
    user = book.user()
    book.store(user, 1, 2)
    book.works = False
    assert book.reserve(user, 1) == []
    assert book.directory.status(0)["lost"] > 0


def test_the_same_question_twice_reserves_once() -> None:
    book = Book(4)
    user = book.user()
    assert book.directory.reserve(user, 2, 9) == book.directory.reserve(user, 2, 9)
    assert book.directory.status(0)["reserved"] == 2
    place = Place(bytes(16), *grants(book.directory.reserve(user, 2, 9))[0], 10)
    assert book.commit(user, place)[0] is Committed.STORED
    assert book.commit(user, place)[0] is Committed.STORED
    assert book.directory.status(0)["counts"]["stored"] == 1


def test_the_second_writer_of_a_key_is_told_where_the_first_one_is() -> None:
    book = Book(4)
    first, second = book.user(b"1"), book.user(b"2")
    (place,) = book.store(first, 7)
    (grant,) = book.reserve(second, 1)
    verdict, where = book.commit(second, Place(place.hash, grant.generation, grant.slot, 10))
    assert (verdict, where) == (Committed.EXISTED, place)
    assert book.directory.status(0)["free"] == 3


def test_reservations_and_pins_end_with_the_lease() -> None:
    book = Book(2)
    user = book.user(now=0.0)
    book.store(user, 1)
    book.directory.pin(user, (1).to_bytes(16, "big"))
    (grant,) = book.reserve(user, 1)
    assert book.directory.user(user.identity, 9.9) is user  # renewed
    assert book.directory.user(user.identity, 19.8) is user
    assert book.directory.user(user.identity, 29.9) is None
    other = book.user(b"o", now=30.0)
    assert len(book.reserve(other, 2)) == 2
    late = Place(bytes(16), grant.generation, grant.slot, 10)
    assert book.commit(other, late)[0] is Committed.GONE


@pytest.mark.parametrize("jump", [-1e9, -5.0])
def test_a_clock_that_goes_back_ends_and_extends_nothing(jump: float) -> None:
    book = Book(2)
    user = book.user(now=100.0)
    assert book.directory.user(user.identity, 100.0 + jump) is user
    assert book.directory.user(user.identity, 109.0) is user
    assert book.directory.user(user.identity, 119.5) is None


def test_a_clock_that_jumps_ahead_ends_leases_and_keeps_blocks() -> None:
    book = Book(2)
    (place,) = book.store(book.user(), 1)
    assert book.directory.user(b"u" * 16, 1e9) is None
    assert book.lookup(place.hash) == place


def test_what_was_used_last_goes_last_and_pins_never() -> None:
    book = Book(3)
    user = book.user()
    one, two, three = book.store(user, 1, 2, 3)
    book.lookup(one.hash)
    book.directory.pin(user, two.hash)
    assert book.directory.order() == [three.hash, one.hash]
    assert book.directory.evict(5) == 2
    assert book.lookup(two.hash) == two
    assert book.directory.delete([two.hash]) == [False]
    book.directory.unpin(user, two.hash)
    assert book.directory.delete([two.hash]) == [True]


def test_a_tenant_at_its_limit_evicts_its_own() -> None:
    book = Book(4, limits={"small": 1, "none": 0})
    large = book.store(book.user(b"l", "large"), 1, 2)
    small = book.user(b"s", "small")
    book.store(small, 3)
    book.store(small, 4)
    assert book.reserve(book.user(b"n", "none"), 1) == []
    assert all(book.lookup(place.hash) for place in large)
    assert book.lookup((3).to_bytes(16, "big")) is None


def test_news_say_what_was_evicted_since_or_that_some_is_lost() -> None:
    book = Book(4)
    user = book.user()
    start = book.directory.sequence
    book.store(user, 1, 2)
    book.directory.evict(2)
    sequence, lost, hashes = book.directory.news(start)
    assert (lost, [int.from_bytes(each, "big") for each in hashes]) == (False, [1, 2])
    assert book.directory.news(sequence) == (sequence, False, [])
    assert book.directory.news(sequence + 1)[1]
    assert book.directory.news(1 << 60)[1]


def test_a_bad_block_is_dropped_only_where_it_was() -> None:
    book = Book(2)
    user = book.user()
    (place,) = book.store(user, 1)
    book.directory.bad(Place(place.hash, place.generation + 1, place.slot, 10).pack())
    assert book.lookup(place.hash) == place
    book.directory.pin(user, place.hash)
    book.directory.bad(place.pack())
    assert book.lookup(place.hash) is None


def test_random_questions_keep_the_book_whole() -> None:
    chance = random.Random(3)
    book = Book(8, limits={"b": 3})
    now = 0.0
    for _ in range(4_000):
        now += chance.random() * 2
        user = book.directory.user(bytes([chance.randrange(4)]) * 16, now)
        if user is None:
            user = book.user(bytes([chance.randrange(4)]), chance.choice("ab"), now)
        key = chance.randrange(20).to_bytes(16, "big")
        match chance.randrange(7):
            case 0:
                given = book.reserve(user, chance.randrange(4))
                if given and chance.random() < 0.8:
                    book.commit(user, Place(key, *given[0], chance.randrange(120)))
                if chance.random() < 0.5:
                    book.give_back(user, given)
            case 1:
                book.lookup(key)
            case 2:
                book.directory.pin(user, key)
            case 3:
                book.directory.unpin(user, key)
            case 4:
                book.directory.delete([key])
            case 5:
                book.directory.evict(1)
            case 6:
                if chance.random() < 0.2:
                    book.directory.close(user)
        status = book.directory.status(now)
        assert status["free"] + status["reserved"] + status["blocks"] == 8
        assert sum(tenant["slots"] for tenant in status["tenants"].values()) == status["reserved"] + status["blocks"]
        assert status["tenants"].get("b", {"slots": 0})["slots"] <= 3


# --- the protocol -------------------------------------------------------------------------------------------------------


def ask(service: BlockService, question: Question) -> bytes:
    return service.call(ME, question.pack())


def test_an_unknown_user_is_told_so_and_asks_again_after_opening() -> None:
    service = BlockService(Book().directory, 77)
    assert ask(service, Question(Op.LOOKUP, b"x" * 16, 1, items=(bytes(16),))) == bytes((Answer.UNKNOWN_USER,))
    opened = ask(service, Question(Op.OPEN, b"x" * 16, 0, text="t", fingerprint=5))
    assert int.from_bytes(opened[1:9], "little") == 77
    assert ask(service, Question(Op.LOOKUP, b"x" * 16, 1, items=(bytes(16),))) == b"\0" + bytes(PLACE.size)


def test_another_version_is_refused_with_what_to_do() -> None:
    body = bytearray(Question(Op.STATUS, bytes(16), 0).pack())
    body[1] += 1
    with pytest.raises(RequestRefusedError, match="same version of obmm on both nodes") as refusal:
        BlockService(Book().directory, 1).call(ME, bytes(body))
    assert refusal.value.reason is Refusal.VERSION


@given(st.binary(max_size=300))
def test_whatever_comes_is_answered_or_refused(body: bytes) -> None:
    service = BlockService(Book().directory, 1)
    for whole in (body, HEAD.pack(body[0] % 14 if body else 0, 1, 0, 3, b"u" * 16, 7) + body):
        ask(service, Question(Op.OPEN, b"u" * 16, 0, text="t"))
        try:
            assert service.call(ME, whole)[0] in (Answer.OK, Answer.UNKNOWN_USER)
        except RequestRefusedError as refusal:
            assert "directory" in str(refusal) or "tenant" in str(refusal)


@given(
    st.sampled_from(Op),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.data(),
)
def test_questions_are_what_they_were_packed_from(
    op: Op, user: bytes, serial: int, argument: int, data: st.DataObject
) -> None:
    sizes = {Op.COMMIT: PLACE.size, Op.BAD: PLACE.size, Op.GIVE_BACK: GRANT.size}
    size = sizes.get(op, 16 if op in (Op.LOOKUP, Op.PIN, Op.UNPIN, Op.DELETE, Op.RENEW) else 0)
    items = tuple(data.draw(st.lists(st.binary(min_size=size, max_size=size), max_size=4))) if size else ()
    text = data.draw(st.text("abc-", max_size=20)) if op in (Op.OPEN, Op.EVICT) else ""
    fingerprint = data.draw(st.integers(0, 2**64 - 1)) if op is Op.OPEN else 0
    question = Question(op, user, serial, argument, items, text, fingerprint)
    assert Question.unpack(question.pack()) == question


# --- layouts ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 20), st.integers(1, 20_000), st.sampled_from(["nc", "cc"]))
def test_a_layout_survives_its_manifest(block_bytes: int, slots: int, cache: str) -> None:
    layout = SlotLayout.for_blocks(block_bytes, slots, cache=cache)  # type: ignore[arg-type]
    assert layout.stride >= block_bytes + 64
    assert layout.stride % (4096 if cache == "cc" else 64) == 0
    assert SlotLayout.from_json(layout.to_json(9), layout.nbytes) == (layout, 9)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format": "obmm-array"}, "format"),
        ({"version": 2}, "same version"),
        ({"slots": 0}, "slots"),
        ({"slots": "x"}, "slots"),
        ({"capacity": 1 << 60}, "block_bytes"),
        ({"cache": []}, "cache"),
        ({"stride": 1}, "fit each other"),
        ({"incarnation": "0"}, "fit each other"),
        ({"incarnation": None}, "not one of blocks"),
        ({"slots": 1_000_000}, "fit each other"),
    ],
)
def test_a_manifest_that_is_none_is_refused(change: dict, problem: str) -> None:
    layout = SlotLayout.for_blocks(100, 10)
    with pytest.raises(BlockStoreError, match=problem):
        SlotLayout.from_json(layout.to_json(9) | change, layout.nbytes)


@pytest.mark.parametrize("arguments", [(0, 1), (1, 0), (1.5, 1), (1, 1 << 30), (1 << 40, 1), ("1", 1)])
def test_sizes_that_no_region_can_have_are_refused(arguments: tuple) -> None:
    with pytest.raises(ObmmArgumentError):
        SlotLayout.for_blocks(*arguments)


def test_cacheable_slots_are_no_more_than_a_mapping_can_be_split_into() -> None:
    with pytest.raises(ObmmArgumentError, match="splits"):
        SlotLayout.for_blocks(4000, 40_000, cache="cc")


@pytest.mark.parametrize("facts", [{}, {"model": object()}, {"model": {1, 2}}])
def test_a_namespace_needs_facts_that_can_be_compared(facts: dict) -> None:
    with pytest.raises(ObmmArgumentError):
        Namespace(**facts)
