# SPDX-License-Identifier: Apache-2.0
"""Private borrowed memory (SDK specification 9)."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from obmm.closing import Closing
from obmm.errors import MappingBusyError
from obmm.mapping.views import ViewLedger
from obmm.undisturbed import undisturbed

if TYPE_CHECKING:
    from obmm.sdk.session import Session


class Lease(Closing):
    """`nbytes` of borrowed memory at `address`, readable and writable.  Made by `Session.lease`.

    Not erased when it is given back.  Access is unguarded, as through any view.
    """

    def __init__(self, session: Session, nbytes: int) -> None:
        self.session, self.nbytes = session, nbytes
        self._address = 0
        self._lock = threading.RLock()
        self._views = ViewLedger()
        self._open = True

    def take(self, borrow: Callable[[], int]) -> None:
        """Between rooms: for the session, note what `borrow` answers."""

        def noted() -> None:
            self._address = borrow()

        undisturbed(noted)

    @property
    def address(self) -> int:
        """Where it lies in this process."""
        self._check_open()
        return self._address

    def view(self) -> memoryview:
        """The memory without a copy."""
        self._check_open()
        return self._views.make(self, self._address, 0, self.nbytes, True, f"memoryview of {self!r}")

    def _refuse_if_busy(self) -> None:
        if self._views:
            raise MappingBusyError(
                errno.EBUSY, f"{self!r}: views live; fix: drop them (del) first", operation="lease_free"
            )

    def close(self) -> None:
        """Give it back.  Idempotent.  MappingBusyError while views live; SdkError leaves it to be closed again."""
        with self._lock:
            if not self._open or self.session.closed:
                return
            self._refuse_if_busy()
            if self._address:
                undisturbed(self._give_back)
            self.session.drop_lease(self)
            self._open = False

    def _give_back(self) -> None:
        self.session.calls.lease_free(self._address)
        self._address = 0

    def __repr__(self) -> str:
        return f"<sdk.Lease {self.nbytes} bytes at {self._address:#x}{'' if self._open else ' closed'} of {self.session.library}>"

    def _check_open(self) -> None:
        self.session.check_open()
        super()._check_open()
