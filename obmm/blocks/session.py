# SPDX-License-Identifier: Apache-2.0
"""A user's side of the directory's protocol, over a peer."""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from obmm.blocks.wire import OPENED, Answer, Op, Question
from obmm.exchange import ExchangeError, Peer, ProtocolError, Refusal, RequestRefusedError

log = logging.getLogger("obmm.blocks.user")

OPEN_S = 5.0
_HOLDING = (Op.RESERVE, Op.COMMIT, Op.GIVE_BACK, Op.PIN)  # what the owner keeps for us, whether we heard of it or not
_MOST_UNSETTLED = 4096


class UnknownUserError(Exception):
    """The directory does not know this user any more: its lease ended, or the owner is another one."""


class DirectorySession:
    """One user, known to the directory under a random name.  Any number of threads."""

    def __init__(self, peer: Peer, name: str, tenant: str, fingerprint: int) -> None:
        self.peer, self.name = peer, name
        self.incarnation = 0
        self.term = 0.0
        self.sequence = 0
        self.unsettled: deque[tuple[Op, bytes]] = deque(maxlen=_MOST_UNSETTLED)
        """Questions that were not answered in time, but that the owner may have taken: to be asked again as they were."""
        self._tenant, self._fingerprint = tenant, fingerprint
        self._user = os.urandom(16)
        self._serials = itertools.count(1)

    def open(self, timeout: float = OPEN_S) -> None:
        """Make the user known; what it had reserved and pinned is over.  ExchangeError when that cannot be."""
        question = Question(Op.OPEN, self._user, 0, text=self._tenant, fingerprint=self._fingerprint)
        body = _checked(self.peer.call(self.name, question.pack(), timeout=timeout))
        if len(body) != OPENED.size + 8:
            raise ProtocolError(Refusal.PAYLOAD, f"an answer of {len(body)} bytes to OPEN")
        self.unsettled.clear()
        self.incarnation, term_ms, _ = OPENED.unpack_from(body)
        self.term = term_ms / 1000
        self.sequence = int.from_bytes(body[OPENED.size :], "little")

    def ask(self, op: Op, items: Sequence[bytes] = (), argument: int = 0, *, timeout: float) -> bytes:
        """One question's answer; ExchangeError, UnknownUserError."""
        body = self._pack(op, items, argument)
        try:
            return _checked(self.peer.call(self.name, body, timeout=timeout))
        except BaseException as error:  # an interrupt as well: the owner may have taken the question
            self._unheard(op, body, error)
            raise

    def submit(
        self,
        op: Op,
        items: Sequence[bytes],
        argument: int,
        timeout: float,
        then: Callable[[bytes | BaseException], None],
    ) -> None:
        """The same without waiting: `then` gets the answer or the error, in the peer's thread."""
        self.submit_again(op, self._pack(op, items, argument), timeout, then)

    def submit_again(self, op: Op, body: bytes, timeout: float, then: Callable[[bytes | BaseException], None]) -> None:
        """A question of `unsettled`, under the serial that it had."""

        def finish(future: Future[bytes]) -> None:
            try:
                answer: bytes | BaseException = _checked(future.result())
            except BaseException as error:
                answer = error
                if isinstance(error, ExchangeError):
                    self._unheard(op, body, error)
            then(answer)

        self.peer.submit_call(self.name, body, timeout=timeout).add_done_callback(finish)

    def _unheard(self, op: Op, body: bytes, error: BaseException) -> None:
        if op in _HOLDING and not isinstance(error, RequestRefusedError | UnknownUserError):
            self.unsettled.append((op, body))

    def _pack(self, op: Op, items: Sequence[bytes], argument: int) -> bytes:
        serial = self.sequence if op is Op.RENEW else next(self._serials)
        return Question(op, self._user, serial, argument, tuple(items)).pack()


def _checked(answer: bytes) -> bytes:
    if not answer or answer[0] not in (Answer.OK, Answer.UNKNOWN_USER):
        raise ProtocolError(Refusal.PAYLOAD, "an answer that is none of a directory of blocks")
    if answer[0] == Answer.UNKNOWN_USER:
        raise UnknownUserError
    return answer[1:]
