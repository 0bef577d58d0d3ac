# SPDX-License-Identifier: Apache-2.0
"""The owner's book: which block lies in which slot, who may write where, what goes when room is needed.

Plain data and a clock that the caller passes in; no memory, no network, no lock.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from obmm.blocks.wire import GRANT, MOST_NEWS, PLACE, Committed, grants_of, slots_of

log = logging.getLogger("obmm.blocks.owner")

# members bound once: an attribute of an Enum class costs more than what is done with it
_STORED, _EXISTED, _GONE = Committed.STORED, Committed.EXISTED, Committed.GONE

REMEMBERED_EVICTIONS = 1 << 16
REMEMBERED_ANSWERS = 64  # of a user; no more questions of one are under way
MOST_USERS = 4096
SPARE = 64  # of so many slots one may wait for blocks to come

# A batch has a thousand keys: places and grants stay the bytes that they are on the wire, and no object is made of one
_Block: TypeAlias = tuple[bytes, str]
"""The place, and the tenant that stored it."""


@dataclass(eq=False, slots=True)
class User:
    """Who holds reservations and pins; forgotten when its lease ends."""

    identity: bytes
    tenant: str
    name: str
    expires: float
    grants: dict[int, int] = field(default_factory=dict)  # generations by slot
    pins: set[bytes] = field(default_factory=set)
    reserved: OrderedDict[int, bytes] = field(default_factory=OrderedDict)  # a question may come twice


class Directory:
    """Blocks of one store.  Places and grants are given and returned as `PLACE` and `GRANT` pack them.

    `clear(slots)` makes the headers of slots that lose their block unreadable, before another user may write there; it
    returns false when that failed, and those slots are not used again.  `limits` caps the slots of a tenant.
    """

    def __init__(
        self,
        slots: int,
        capacity: int,
        term: float,
        clear: Callable[[Sequence[int]], bool],
        limits: Mapping[str, int] | None = None,
    ) -> None:
        self.slots, self.capacity, self.term = slots, capacity, term
        self.limits = dict(limits or {})
        self.counts: Counter[str] = Counter()
        self._clear = clear
        self._blocks: dict[bytes, _Block] = {}
        self._pins: dict[bytes, set[bytes]] = {}  # who pinned a block, where somebody has
        self._unpinned: dict[str, OrderedDict[bytes, int]] = {}  # by tenant, longest unused first: when it was used
        self._free: deque[int] = deque(range(slots))
        self._used: Counter[str] = Counter()  # slots of a tenant, reservations included
        self._users: dict[bytes, User] = {}
        self._generation = secrets.randbits(48) << 8
        self._uses = 0
        self._now = 0.0
        self._lost = 0
        self._evicted: deque[bytes] = deque(maxlen=REMEMBERED_EVICTIONS)
        self._evictions = 0

    # --- users -------------------------------------------------------------------------------------------------------

    def open(self, identity: bytes, tenant: str, name: str, now: float) -> User | None:
        """Make a user known, or the same one again with nothing reserved or pinned; None when there are too many."""
        self.expire(now)
        known = self._users.get(identity)
        if known is not None:
            self._forget(known)
        if len(self._users) >= MOST_USERS:
            return None
        user = self._users[identity] = User(identity, tenant, name, self._now + self.term)
        return user

    def user(self, identity: bytes, now: float) -> User | None:
        """The user, alive for another term from now on; None when it is unknown, or its lease has ended."""
        self.expire(now)
        user = self._users.get(identity)
        if user is not None:
            user.expires = self._now + self.term
        return user

    def close(self, user: User) -> None:
        self._forget(user)

    def expire(self, now: float) -> None:
        """Forget users whose lease has ended.  A clock that goes back does not move ours."""
        self._now = max(self._now, now)
        for user in [each for each in self._users.values() if each.expires <= self._now]:
            log.warning(
                "user %s is gone: %d reservation(s), %d pin(s) ended", user.name, len(user.grants), len(user.pins)
            )
            self.counts["expired_users"] += 1
            self.counts["expired_reservations"] += len(user.grants)
            self._forget(user)

    # --- slots -------------------------------------------------------------------------------------------------------

    def reserve_ahead(self, user: User, count: int, serial: int) -> bytes:
        """Up to `count` slots for blocks to come: free ones, and in a full store a few in a hundred."""
        reserved = sum(len(each.grants) for each in self._users.values())
        return self.reserve(user, min(count, max(len(self._free), self.slots // SPARE - reserved, 0)), serial)

    def reserve(self, user: User, count: int, serial: int) -> bytes:
        """Up to `count` slots to write, each under a generation of its own; fewer when all others are in use or pinned."""
        known = user.reserved.get(serial)
        if known is not None:
            return known
        slots = self._take(user.tenant, count)
        generations = range(self._generation + 1, self._generation + 1 + len(slots))
        self._generation += len(slots)
        user.grants.update(zip(slots, generations, strict=True))
        if len(slots) < count:
            self.counts["full"] += 1
        granted = user.reserved[serial] = grants_of(generations, slots)
        if len(user.reserved) > REMEMBERED_ANSWERS:
            user.reserved.popitem(last=False)
        return granted

    def give_back(self, user: User, grants: Iterable[bytes]) -> None:
        """Reservations that the user does not need."""
        for generation, slot, _ in map(GRANT.unpack, grants):
            if user.grants.get(slot) == generation:
                self._release(user, slot)

    def commit(self, user: User, places: Sequence[bytes]) -> tuple[bytearray, list[bytes]]:
        """The user has written the blocks: from now on they are found -> what became of each, and where it is."""
        verdicts, found, stored = bytearray(), list(places), 0
        blocks, grants, tenant = self._blocks, user.grants, user.tenant
        line, uses = self._line(tenant), self._uses
        for i, place in enumerate(found):
            key, generation, slot, length = PLACE.unpack(place)
            known = blocks.get(key)
            if known is not None and known[0] == place:
                verdict = _STORED  # asked twice
            elif grants.get(slot) != generation:
                verdict = _GONE
            elif known is not None:
                self._release(user, slot)
                verdict = _EXISTED
                found[i] = known[0]
            elif not 0 < length <= self.capacity:
                self._release(user, slot)
                verdict = _GONE
            else:
                del grants[slot]
                blocks[key] = (place, tenant)
                uses += 1
                line[key] = uses
                stored += 1
                verdict = _STORED
            verdicts.append(verdict)
        self._uses = uses
        for name, count in (
            ("stored", stored),
            ("existed", verdicts.count(_EXISTED)),
            ("gone", verdicts.count(_GONE)),
        ):
            if count:
                self.counts[name] += count
        return verdicts, found

    # --- blocks ------------------------------------------------------------------------------------------------------

    def lookup(self, key: bytes) -> bytes | None:
        block = self._blocks.get(key)
        self.counts["hits" if block is not None else "misses"] += 1
        if block is None:
            return None
        self._use(key, block[1])
        return block[0]

    def touch(self, key: bytes) -> None:
        """It was used, without a question."""
        block = self._blocks.get(key)
        if block is not None:
            self._use(key, block[1])

    def pin(self, user: User, key: bytes) -> bytes | None:
        """Keep the block until the user unpins it or its lease ends."""
        block = self._blocks.get(key)
        if block is None:
            return None
        self._pins.setdefault(key, set()).add(user.identity)
        user.pins.add(key)
        self._line(block[1]).pop(key, None)
        return block[0]

    def unpin(self, user: User, key: bytes) -> None:
        user.pins.discard(key)
        block = self._blocks.get(key)
        if block is None:
            return
        holders = self._pins.get(key, set())
        holders.discard(user.identity)
        if not holders:
            self._pins.pop(key, None)
            self._use(key, block[1])

    def delete(self, keys: Iterable[bytes]) -> list[bool]:
        """Whether each is gone now; a pinned block stays."""
        going: list[int] = []
        answers = []
        for key in keys:
            goes = key in self._blocks and key not in self._pins
            if goes:
                going += self._remove([key])
            answers.append(goes)
        self.counts["deleted"] += len(going)
        self._free_cleared(going)
        return answers

    def bad(self, place: bytes) -> None:
        """A reader found other bytes in its slot: forget the block, so that no reader looks there again."""
        key, _, slot, _ = PLACE.unpack(place)
        block = self._blocks.get(key)
        if block is None or block[0] != place:
            return
        log.error("block in slot %d does not have the bytes that its header promises: dropped", slot)
        for identity in self._pins.pop(key, ()):
            holder = self._users.get(identity)
            if holder is not None:
                holder.pins.discard(key)
        self.counts["bad"] += 1
        self._free_cleared(self._remove([key]))

    def evict(self, count: int, tenant: str = "") -> int:
        """Drop up to `count` unpinned blocks, longest unused first -> how many went."""
        going = self._remove_oldest(count, tenant)
        self._free_cleared(going)
        self.counts["evicted"] += len(going)
        return len(going)

    def news(self, sequence: int) -> tuple[int, bool, list[bytes]]:
        """What lost its slot since `sequence` -> (sequence to ask for next, whether some are not known any more, hashes)."""
        first = self._evictions - len(self._evicted)
        if sequence > self._evictions or sequence < first:
            return self._evictions, True, []
        missed = self._evictions - sequence
        start = len(self._evicted) - missed
        fresh = list(islice(self._evicted, start, start + MOST_NEWS))
        return sequence + len(fresh), False, fresh

    def order(self) -> list[bytes]:
        """Hashes of unpinned blocks, longest unused first."""
        uses = [(used, key) for line in self._unpinned.values() for key, used in line.items()]
        return [key for _, key in sorted(uses)]

    @property
    def sequence(self) -> int:
        """Where the news stand."""
        return self._evictions

    def status(self, now: float) -> dict[str, Any]:
        """For people and metrics; no keys."""
        self.expire(now)
        tenants = {
            name: {"slots": used, "limit": self.limits.get(name)} for name, used in sorted(self._used.items()) if used
        }
        return {
            "slots": self.slots,
            "capacity": self.capacity,
            "blocks": len(self._blocks),
            "bytes": sum(PLACE.unpack(place)[3] for place, _ in self._blocks.values()),
            "free": len(self._free),
            "reserved": sum(len(user.grants) for user in self._users.values()),
            "pinned": len(self._pins),
            "lost": self._lost,
            "users": [
                {
                    "name": user.name,
                    "tenant": user.tenant,
                    "reserved": len(user.grants),
                    "pins": len(user.pins),
                    "expires_in_s": round(user.expires - self._now, 1),
                }
                for user in self._users.values()
            ],
            "tenants": tenants,
            "counts": dict(self.counts),
        }

    # --- inside ------------------------------------------------------------------------------------------------------

    def _line(self, tenant: str) -> OrderedDict[bytes, int]:
        line = self._unpinned.get(tenant)
        if line is None:
            line = self._unpinned[tenant] = OrderedDict()
        return line

    def _use(self, key: bytes, tenant: str) -> None:
        if key not in self._pins:
            self._uses += 1
            line = self._line(tenant)
            line[key] = self._uses
            line.move_to_end(key)

    def _take(self, tenant: str, count: int) -> list[int]:
        """Free slots, made by eviction where there are too few; a tenant at its limit evicts its own."""
        limit = self.limits.get(tenant, self.slots)
        own = min(count, max(0, limit - self._used[tenant]))
        going = self._remove_oldest(count - own, tenant)
        count = own + len(going)
        going += self._remove_oldest(count - len(self._free) - len(going))
        self.counts["evicted"] += len(going)
        self._free_cleared(going)
        taken = [self._free.popleft() for _ in range(min(count, len(self._free)))]
        self._used[tenant] += len(taken)
        return taken

    def _remove_oldest(self, count: int, tenant: str = "") -> list[int]:
        """Take up to `count` unpinned blocks out of the book, longest unused first -> their slots, not cleared yet."""
        lines = [self._line(tenant)] if tenant else list(self._unpinned.values())
        going: list[int] = []
        while len(going) < count and (lines := [line for line in lines if line]):
            oldest = min(lines, key=lambda line: next(iter(line.values())))
            some = count - len(going) if len(lines) == 1 else 1
            going += self._remove(list(islice(oldest, some)))
        return going

    def _remove(self, keys: Sequence[bytes]) -> list[int]:
        """Take blocks out of the book; their slots are free once they were cleared."""
        blocks = list(map(self._blocks.pop, keys))
        for tenant, count in Counter([tenant for _, tenant in blocks]).items():
            self._used[tenant] -= count
        for key, (_, tenant) in zip(keys, blocks, strict=True):
            self._unpinned[tenant].pop(key, None)
        going = slots_of([place for place, _ in blocks])
        self._evicted.extend(keys)
        self._evictions += len(going)
        return going

    def _free_cleared(self, slots: Sequence[int]) -> None:
        if not slots:
            return
        if self._clear(slots):
            self._free.extend(slots)
        else:
            self._lost += len(slots)

    def _release(self, user: User, slot: int) -> None:
        del user.grants[slot]
        self._used[user.tenant] -= 1
        self._free.append(slot)

    def _forget(self, user: User) -> None:
        for slot in tuple(user.grants):
            self._release(user, slot)
        for key in tuple(user.pins):
            self.unpin(user, key)
        del self._users[user.identity]
