# SPDX-License-Identifier: Apache-2.0
"""Registered memory of this process (URMA specification 4.2, 6.3, 10)."""

from __future__ import annotations

import errno
import secrets
import threading
from typing import TYPE_CHECKING, Any, Final, Literal

from obmm.errors import MappingBusyError
from obmm.urma.abi import POLICY_PLAIN, SEG_ACCESS_SHIFT, SEG_TOKEN_ID_VALID, Access, ffi
from obmm.urma.calls import Calls
from obmm.urma.errors import UrmaArgumentError
from obmm.urma.life import Owned
from obmm.urma.ticket import Ticket

if TYPE_CHECKING:
    from obmm.urma.context import Context
    from obmm.urma.queue import Queue

AccessName = Literal["local", "r", "rw"]
_ACCESS: Final = {"local": Access.LOCAL, "r": Access.READ, "rw": Access.READ_WRITE}

_lock = threading.Lock()
_tokens: set[int] = set()
"""Every token value of this process: none is used twice (7.6)."""


class Segment(Owned):
    """Made by `Context.register` and `Context.buffer`.  `generation` is new for every registration; no secret is shown.

    `close` revokes: when it has returned, no new read or write of a peer is served.
    """

    def __init__(
        self, context: Context, calls: Calls, held: Any, address: int, nbytes: int, access: AccessName
    ) -> None:
        if not isinstance(access, str) or access not in _ACCESS:
            raise UrmaArgumentError.because("register", f"access {access!r}", '"local", "r" or "rw"')
        super().__init__(calls)
        self.address, self.nbytes, self.access = address, nbytes, access
        self.generation = secrets.randbelow((1 << 64) - 1) + 1
        self._context, self._held = context, held
        self._token = _new_token()
        self._busy: list[Any] = []
        cfg = ffi.new("urma_seg_cfg_t *")
        cfg.va, cfg.len = address, nbytes
        cfg.token_id = context.token_id()
        cfg.token_value.token = self._token
        cfg.flag = POLICY_PLAIN | _ACCESS[access] << SEG_ACCESS_SHIFT | SEG_TOKEN_ID_VALID
        self.pointer = calls.pointer("register_seg", context._context, cfg, bytes=nbytes, access=access)

    def ticket(self, queue: Queue) -> bytes:
        """128 bytes for a peer, whose requests will name `queue` of this side as their target.  Secret: hand it over an
        authenticated exchange (`obmm.urma.publish`).

        UrmaArgumentError for another context's queue.
        """
        self.check()
        if self.access == "local":
            raise UrmaArgumentError.because(
                "ticket", "a segment for this side only", 'register it with access "r" or "rw"'
            )
        if getattr(queue, "context", None) is not self._context:
            raise UrmaArgumentError.because("ticket", f"{queue!r}", "a queue of this segment's context")
        pointer = self.pointer
        if pointer is None:
            raise self._is_closed()
        seg = pointer.seg
        place = bytes(ffi.buffer(seg.ubva))
        return Ticket(
            standin=self._calls.library.standin is not None,
            eid=place[:16],
            uasid=int.from_bytes(place[16:20], "little"),
            token_id=int(seg.token_id),
            va=int.from_bytes(place[20:28], "little"),
            length=int(seg.len),
            attr=int(seg.attr),
            token=self._token,
            profile=self._calls.library.profile,
            generation=self.generation,
            **queue.as_target(),
        ).pack()

    def keep_for(self, queue: Queue) -> None:
        """Between rooms: a queue that died may still write here: not to be given back before it is deleted."""
        self._busy.append(queue)

    def _end(self) -> None:
        self._busy = [queue for queue in self._busy if not queue.gone]
        if self._busy:
            raise MappingBusyError(
                errno.EBUSY, f"{self!r} may still be written to by {self._busy[0]!r}; fix: close that queue first"
            )
        self._wait_for_transfers()
        if self.pointer is not None:
            self._calls.status("unregister_seg", self.pointer)
            self.pointer = None
        self._held = None
        self._context.drop(self)

    def __repr__(self) -> str:
        return f"<urma.Segment {self.nbytes} bytes {self.access} generation {self.generation:016x}{' closed' if self.closed else ''}>"


def _new_token() -> int:
    """A random 32-bit value, never 0, never one that this process has used."""
    with _lock:
        while True:
            token = secrets.randbits(32)
            if token and token not in _tokens:
                _tokens.add(token)
                return token
