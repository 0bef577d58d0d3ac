# SPDX-License-Identifier: Apache-2.0
"""Private borrowed memory (SDK specification 9)."""

from __future__ import annotations

import errno
from types import TracebackType
from typing import Self

from obmm.closing import close_on_exit
from obmm.errors import ClosedError, MappingBusyError
from obmm.sdk.session import Session
from obmm.views import ViewLedger


class Lease:
    """`nbytes` of borrowed memory at `address`, readable and writable.  Made by `Session.lease`.

    Not erased when it is given back.  Access is unguarded, as through any view.
    """

    def __init__(self, session: Session, address: int, nbytes: int) -> None:
        self.session, self.nbytes = session, nbytes
        self._address = address
        self._views = ViewLedger()
        self._open = True

    @property
    def address(self) -> int:
        """Where it lies in this process."""
        self._check_open()
        return self._address

    @property
    def closed(self) -> bool:
        return not self._open

    def view(self) -> memoryview:
        """The memory without a copy."""
        self._check_open()
        return self._views.make(self, self._address, 0, self.nbytes, True, f"memoryview of {self!r}")

    def refuse_if_busy(self) -> None:
        """MappingBusyError while views live."""
        if self._views:
            raise MappingBusyError(
                errno.EBUSY, f"{self!r}: views live; fix: drop them (del) first", operation="lease_free"
            )

    def close(self) -> None:
        """Give it back.  Idempotent.  MappingBusyError while views live; SdkError leaves it to be closed again."""
        if not self._open or self.session.closed:
            return
        self.refuse_if_busy()
        self.session.calls.lease_free(self._address)
        self._open = False
        self.session.drop_lease(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        close_on_exit(self, error)

    def __repr__(self) -> str:
        return f"<sdk.Lease {self.nbytes} bytes at {self._address:#x}{'' if self._open else ' closed'} of {self.session.library}>"

    def _check_open(self) -> None:
        self.session.check_open()
        if not self._open:
            raise ClosedError.of(self)
