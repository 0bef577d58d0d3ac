# SPDX-License-Identifier: Apache-2.0
"""Answers users' questions from the directory: bytes in, bytes out."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from obmm.blocks.directory import Directory, User
from obmm.blocks.wire import COUNT, NEWS, NOWHERE, OPENED, Answer, Op, Question
from obmm.exchange.calls import Caller
from obmm.exchange.errors import Refusal, RequestRefusedError

_OK = bytes((Answer.OK,))


class BlockService:
    """A `CallHandler` for one directory; also called from other threads of the owner, one at a time."""

    def __init__(self, directory: Directory, incarnation: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._directory = directory
        self._incarnation = incarnation
        self._clock = clock
        self._mutex = threading.Lock()

    def call(self, caller: Caller, body: bytes) -> bytes:
        question = Question.unpack(body)
        with self._mutex:
            return self._answer(caller, question)

    def status(self) -> dict[str, Any]:
        with self._mutex:
            return self._directory.status(self._clock()) | {"incarnation": f"{self._incarnation:016x}"}

    def evict(self, count: int, tenant: str = "") -> int:
        with self._mutex:
            return self._directory.evict(count, tenant)

    def _answer(self, caller: Caller, question: Question) -> bytes:
        directory, now = self._directory, self._clock()
        if question.op is Op.STATUS:
            facts = directory.status(now) | {"incarnation": f"{self._incarnation:016x}"}
            facts["users"] = facts["users"][:256]
            return _OK + json.dumps(facts, separators=(",", ":")).encode()
        if question.op is Op.EVICT:
            return _OK + COUNT.pack(directory.evict(question.argument, question.text), 0)
        if question.op is Op.OPEN:
            return self._open(caller, question, now)
        user = directory.user(question.user, now)
        if user is None:
            return bytes((Answer.UNKNOWN_USER,))
        return _OK + self._of_user(user, question)

    def _open(self, caller: Caller, question: Question, now: float) -> bytes:
        # a certificate says whose it is; without one the name is only a wish
        user = self._directory.open(question.user, caller.identity or question.text or "default", caller.name, now)
        if user is None:
            raise RequestRefusedError(Refusal.LIMIT, "the directory has as many users as it takes")
        term_ms = round(self._directory.term * 1000)
        opened = OPENED.pack(self._incarnation, term_ms, self._directory.slots)
        return _OK + opened + self._directory.sequence.to_bytes(8, "little")

    def _of_user(self, user: User, question: Question) -> bytes:
        directory, items = self._directory, question.items
        match question.op:
            case Op.RESERVE:
                return directory.reserve(user, min(question.argument, 1024), question.serial)
            case Op.COMMIT:
                return self._commit(user, question)
            case Op.LOOKUP:
                return b"".join(directory.lookup(key) or NOWHERE for key in items)
            case Op.PIN:
                return b"".join(directory.pin(user, key) or NOWHERE for key in items)
            case Op.UNPIN:
                for key in items:
                    directory.unpin(user, key)
            case Op.DELETE:
                return bytes(directory.delete(items))
            case Op.RENEW:
                for key in items:
                    directory.touch(key)
                # the serial of this one question says which news the user has
                sequence, lost, news = directory.news(question.serial)
                return NEWS.pack(sequence, lost, len(news)) + b"".join(news)
            case Op.GIVE_BACK:
                directory.give_back(user, items)
            case Op.BAD:
                for item in items:
                    directory.bad(item)
            case Op.CLOSE:
                directory.close(user)
        return b""

    def _commit(self, user: User, question: Question) -> bytes:
        """A byte for each block, the places where they are, and the slots that the user wants next."""
        verdicts, places = self._directory.commit(user, question.items)
        more = self._directory.reserve_ahead(user, min(question.argument, 1024), question.serial)
        return bytes(verdicts) + b"".join(places) + more
