# SPDX-License-Identifier: Apache-2.0
"""What a get, a put or a lookup does, step by step, independent of the caller.

Each is a generator: it yields what it needs next (`Ask` a question, `Move` a batch) and gets the result sent in, or an
exception thrown.  A blocking call drives it on its own thread, a submitted one is driven by the store's.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from obmm.blocks.attachment import Attachment
from obmm.blocks.buffers import Pieces
from obmm.blocks.index import PlaceIndex
from obmm.blocks.keys import HASH_BYTES, Key, Namespace
from obmm.blocks.memory import Batch
from obmm.blocks.reasons import SUCCESSES, WORTH_ANOTHER_LOOK, Reason
from obmm.blocks.session import UnknownUserError
from obmm.blocks.stash import Stash
from obmm.blocks.wire import GRANT, MOST_ITEMS, NOWHERE, PLACE, Committed, Op, batches, hashes_of, split
from obmm.exchange import ExchangeError, ProtocolError, Refusal

_FATES = np.array([Reason.OK, Reason.EXISTED, Reason.GONE], np.int8)  # by what the directory says to a commit
# a grant's generation and slot stand in a place as they are in the grant
_GRANTED = 12
_PLACE = np.dtype([("hash", "V16"), ("grant", "V12"), ("length", "<u4")])
assert _PLACE.itemsize == PLACE.size

Reasons: TypeAlias = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the directory; the answer's body is sent in, or ExchangeError or UnknownUserError thrown."""

    op: Op
    items: Sequence[bytes] = ()
    argument: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """A batch to run; sent in is 0, or the engine's refusal."""

    batch: Batch


Steps: TypeAlias = Generator["Ask | Move", Any, None]


@dataclass(slots=True)
class Work:
    """One call of a user, and what has come of it."""

    keys: list[Key]
    reasons: Reasons
    deadline: float | None = None  # on the monotonic clock
    moved: int = 0
    asked: int = 0
    corrupt: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Means:
    """What the steps work with; the attachment as it was when they began."""

    attachment: Attachment
    namespace: Namespace
    index: PlaceIndex
    stash: Stash
    bell: int

    def hashes(self, keys: Sequence[Key]) -> list[bytes]:
        """What the directory calls each of these keys."""
        return split(self.namespace.hashes(keys), HASH_BYTES)


def _ask_all(op: Op, items: Sequence[bytes], each: int) -> Generator[Ask | Move, Any, bytes]:
    """As many questions as the items need -> the answers, `each` bytes for an item; ProtocolError for others."""
    answers: list[bytes] = []
    for some in batches(items):
        answer = yield Ask(op, some)
        if len(answer) != each * len(some):
            raise _no_answer(op, answer)
        answers.append(answer)
    return b"".join(answers)


def _ask_places(op: Op, hashes: Sequence[bytes]) -> Generator[Ask | Move, Any, list[bytes]]:
    """Where each of these blocks is; ProtocolError for the place of another one."""
    places = split((yield from _ask_all(op, hashes, PLACE.size)), PLACE.size)
    for hashed, place in zip(hashes, places, strict=True):
        if place[:HASH_BYTES] != hashed and place != NOWHERE:
            raise ProtocolError(Refusal.PAYLOAD, f"the place of another block in answer to {op.name}")
    return places


def lookup_steps(means: Means, work: Work) -> Steps:
    """OK for what is known here or to the directory."""
    places = yield from _find(means, work, means.index.places(work.keys))
    for i, place in enumerate(places):
        if place is not None and place != NOWHERE:
            work.reasons[i] = Reason.OK


def _find(means: Means, work: Work, places: list[bytes | None]) -> Generator[Ask | Move, Any, list[bytes | None]]:
    """Places of all keys: the directory is asked for those that are not known; None where it did not answer."""
    cold = [i for i, place in enumerate(places) if place is None]
    if not cold:
        return places
    work.asked += len(cold)
    try:
        found = yield from _ask_places(Op.LOOKUP, means.hashes([work.keys[i] for i in cold]))
    except (ExchangeError, UnknownUserError):
        work.reasons[cold] = Reason.NO_ANSWER
        return places
    for i, place in zip(cold, found, strict=True):
        places[i] = place
        work.reasons[i] = Reason.ABSENT
    means.index.add([work.keys[i] for i in cold], found)
    return places


def get_steps(means: Means, work: Work, pieces: Pieces) -> Steps:
    """Slots -> the caller's memory.  What an old answer led astray is looked up once more."""
    known = means.index.places(work.keys)
    fresh = {i for i, place in enumerate(known) if place is None}
    places = yield from _find(means, work, known)
    yield from _load(means, work, pieces, [place or NOWHERE for place in places], None)
    yield from _load_astray(means, work, pieces, places, fresh)
    # what was not right is not known any more: the next put of it is a copy
    means.index.drop([work.keys[i] for i in np.flatnonzero(np.isin(work.reasons, WORTH_ANOTHER_LOOK))])


def _load_astray(
    means: Means, work: Work, pieces: Pieces, places: list[bytes | None], fresh: set[int]
) -> Generator[Ask | Move, Any, None]:
    astray = [i for i in np.flatnonzero(np.isin(work.reasons, WORTH_ANOTHER_LOOK)) if int(i) not in fresh]
    if not astray:
        return
    blocks = np.array(astray, np.intp)
    means.index.drop([work.keys[i] for i in astray])
    again = Work([work.keys[i] for i in astray], work.reasons[blocks].copy(), work.deadline)
    found = yield from _find(means, again, [None] * len(astray))
    work.asked += again.asked
    moved = [new is not None and new != NOWHERE and new != places[i] for i, new in zip(astray, found, strict=True)]
    work.reasons[blocks[[new == NOWHERE for new in found]]] = Reason.ABSENT
    if any(moved):
        chosen = blocks[moved]
        retry = [new or NOWHERE for new, is_moved in zip(found, moved, strict=True) if is_moved]
        yield from _load(means, work, pieces, retry, chosen)


def _load(
    means: Means, work: Work, pieces: Pieces, places: list[bytes], blocks: npt.NDArray[np.intp] | None
) -> Generator[Ask | Move, Any, None]:
    """Load these blocks (None: all); those without a place keep the reason that they have."""
    there = np.array([place != NOWHERE for place in places], bool)
    if not there.any():
        return
    if blocks is not None or not there.all():
        everything = np.arange(pieces.count) if blocks is None else blocks
        blocks = everything[there]
        pieces = pieces.select(blocks)
        places = [place for place in places if place != NOWHERE]
    batch = Batch(
        means.attachment.memory,
        b"".join(places),
        pieces,
        to_slots=False,
        bell=means.bell,
        deadline=work.deadline,
    )
    refusal = yield Move(batch)
    status = batch.status if not refusal else np.full(pieces.count, Reason.CLOSED, np.int8)
    if blocks is None:
        work.reasons[:] = status
    else:
        work.reasons[blocks] = status
    work.moved += batch.bytes_moved
    bad = np.flatnonzero(status == Reason.CORRUPT)
    if len(bad):
        work.corrupt += [places[i] for i in bad]


def put_steps(means: Means, work: Work, pieces: Pieces) -> Steps:
    """The caller's memory -> slots that were granted, then the directory is told."""
    todo = _not_stored(means, work, pieces)
    if not todo:
        _same_as_first(work)
        return
    grants = means.stash.take(len(todo))
    try:
        yield from _reserve_and_store(means, work, pieces, todo, grants)
    except BaseException:  # an interrupt, or the caller's end
        means.stash.owe(grants)
        raise
    _same_as_first(work)


def _reserve_and_store(
    means: Means, work: Work, pieces: Pieces, todo: list[int], grants: list[bytes]
) -> Generator[Ask | Move, Any, None]:
    if len(grants) < len(todo):
        missing = len(todo) - len(grants)
        try:
            yield from _reserve(missing, grants)
        except (ExchangeError, UnknownUserError):
            work.reasons[todo[len(grants) :]] = Reason.NO_ANSWER
        else:
            work.reasons[todo[len(grants) :]] = Reason.FULL
    todo = todo[: len(grants)]
    if todo:
        yield from _store(means, work, pieces, np.array(todo, np.intp), grants)


def _reserve(count: int, grants: list[bytes]) -> Generator[Ask | Move, Any, None]:
    """Add up to `count` grants; what came before a failure is there."""
    most = len(grants) + count
    while len(grants) < most:
        wanted = min(most - len(grants), MOST_ITEMS)
        answer = yield Ask(Op.RESERVE, argument=wanted)
        if len(answer) % GRANT.size or len(answer) > wanted * GRANT.size:
            raise _no_answer(Op.RESERVE, answer)
        if not answer:
            break
        grants += split(answer, GRANT.size)


def _not_stored(means: Means, work: Work, pieces: Pieces) -> list[int]:
    """Blocks to copy: of a size that a slot takes, not known to be stored, the first of each key."""
    totals = pieces.totals
    fits = (totals > 0) & (totals <= means.attachment.layout.capacity)
    work.reasons[~fits] = Reason.LENGTH
    known = np.array(means.index.known(work.keys), bool)
    work.reasons[fits & known] = Reason.EXISTED
    todo: list[int] = np.flatnonzero(fits & ~known).tolist()
    keys = [work.keys[i] for i in todo]
    if len(set(keys)) == len(todo):
        return todo
    return sorted(dict(zip(reversed(keys), reversed(todo), strict=True)).values())


def _same_as_first(work: Work) -> None:
    """A key that came twice in a batch is stored once: both have the first one's fate."""
    pending = np.flatnonzero(work.reasons == Reason.PENDING)
    if not len(pending):
        return
    fates: dict[Key, int] = {}
    for key, reason in zip(work.keys, work.reasons, strict=True):
        if reason not in (Reason.PENDING, Reason.LENGTH):
            fates.setdefault(key, int(reason))
    for i in pending:
        fate = fates.get(work.keys[i], Reason.PENDING)
        work.reasons[i] = Reason.EXISTED if fate == Reason.OK else fate


def _store(
    means: Means, work: Work, pieces: Pieces, blocks: npt.NDArray[np.intp], grants: list[bytes]
) -> Generator[Ask | Move, Any, None]:
    packed = _places(means, [work.keys[i] for i in blocks.tolist()], grants, pieces.totals[blocks])
    places = split(packed, PLACE.size)
    batch = Batch(
        means.attachment.memory,
        packed,
        pieces if len(blocks) == pieces.count else pieces.select(blocks),
        to_slots=True,
        bell=means.bell,
        deadline=work.deadline,
    )
    refusal = yield Move(batch)
    status = batch.status if not refusal else np.full(len(blocks), Reason.CLOSED, np.int8)
    work.reasons[blocks] = status
    work.moved += batch.bytes_moved
    done = status == Reason.OK
    waiting = blocks[done]
    work.reasons[waiting] = Reason.NO_ANSWER  # until the directory has said what it has taken
    with suppress(ExchangeError, UnknownUserError):
        yield from _commit(means, work, waiting, [places[j] for j in np.flatnonzero(done).tolist()])
    used = done & (work.reasons[blocks] != Reason.NO_ANSWER)
    means.stash.owe([grants[j] for j in np.flatnonzero(~used).tolist()])


def _places(means: Means, keys: list[Key], grants: list[bytes], totals: npt.NDArray[np.uint64]) -> bytes:
    """Which block goes to which slot, as native code and the directory take it."""
    places = np.empty(len(keys), _PLACE)
    places["hash"] = np.frombuffer(means.namespace.hashes(keys), "V16")
    places["grant"] = np.frombuffer(b"".join([grant[:_GRANTED] for grant in grants]), "V12")
    places["length"] = totals
    return places.tobytes()


def _commit(
    means: Means, work: Work, blocks: npt.NDArray[np.intp], places: list[bytes]
) -> Generator[Ask | Move, Any, None]:
    """Only what the directory has taken is stored."""
    done = 0
    for some in batches(places):
        count = len(some)
        wanted = means.stash.wanted() if done + count == len(places) else 0
        answer = yield Ask(Op.COMMIT, some, min(wanted, MOST_ITEMS))
        end = count * (1 + PLACE.size)
        verdicts = np.frombuffer(answer[:count], np.uint8)
        if len(answer) < end or (len(answer) - end) % GRANT.size or (verdicts >= len(_FATES)).any():
            raise _no_answer(Op.COMMIT, answer)
        found = split(answer[count:end], PLACE.size)
        if hashes_of(found) != hashes_of(some):
            raise ProtocolError(Refusal.PAYLOAD, "the place of another block in answer to COMMIT")
        means.stash.add(split(answer[end:], GRANT.size))
        these = blocks[done : done + count]
        work.reasons[these] = _FATES[verdicts]
        taken = np.flatnonzero(verdicts != Committed.GONE).tolist()
        at = these.tolist()
        means.index.add([work.keys[at[i]] for i in taken], [found[i] for i in taken])
        done += count


def _no_answer(op: Op, answer: bytes) -> ProtocolError:
    return ProtocolError(Refusal.PAYLOAD, f"an answer of {len(answer)} bytes to {op.name}")


def delete_steps(means: Means, work: Work) -> Steps:
    """OK for what is gone now."""
    hashes = means.hashes(work.keys)
    means.index.drop_hashes(hashes)
    try:
        answers = yield from _ask_all(Op.DELETE, hashes, 1)
    except (ExchangeError, UnknownUserError):
        work.reasons[:] = Reason.NO_ANSWER
        return
    work.reasons[:] = np.where(np.frombuffer(answers, np.uint8) == 1, Reason.OK, Reason.ABSENT)


def pin_steps(means: Means, work: Work) -> Steps:
    """OK for what is pinned now; where it lies is remembered."""
    try:
        places = yield from _ask_places(Op.PIN, means.hashes(work.keys))
    except (ExchangeError, UnknownUserError):
        work.reasons[:] = Reason.NO_ANSWER
        return
    for i, place in enumerate(places):
        work.reasons[i] = Reason.ABSENT if place == NOWHERE else Reason.OK
    means.index.add(work.keys, places)


def unpin_steps(means: Means, work: Work) -> Steps:
    """OK for what the directory was told."""
    try:
        yield from _ask_all(Op.UNPIN, means.hashes(work.keys), 0)
        work.reasons[:] = Reason.OK
    except (ExchangeError, UnknownUserError):
        work.reasons[:] = Reason.NO_ANSWER


def succeeded(reasons: Reasons) -> npt.NDArray[np.uint8]:
    """1 for each block that is there."""
    return np.isin(reasons, SUCCESSES).astype(np.uint8)
