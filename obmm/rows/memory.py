# SPDX-License-Identifier: Apache-2.0
"""The memory that tables lie in, as the gather sees it: addresses, gates, a content version."""

from __future__ import annotations

from typing import Any, Protocol

from obmm.driver.modelled import ModelledFabric
from obmm.errors import RemoteMemoryError


class RowMemory(Protocol):
    """One contiguous payload at addresses of this process.

    Native gathers run between `gates`; `fault` turns a faulting address into the error that names its place.

    `offset` and `size` are bytes of the payload.  `RowStore` does all this; programs only make one and hand it over.

    >>> import mmap
    >>> shared = mmap.mmap(-1, 8192)
    >>> obmm.rows.LocalMemory.format(shared, generation=77)
    >>> memory = obmm.rows.LocalMemory(shared, header=True)
    >>> memory.begin()
    >>> memory.write(0, b"rows")
    >>> memory.commit(tables=1, manifest_sha256=bytes(32), manifest_bytes=2)
    >>> memory.beat()
    >>> memory.read(0, 4), memory.version() % 2, memory.header_digest() == bytes(32), memory.alive, memory.heartbeat_age
    (b'rows', 0, True, True, None)
    >>> memory.check(), memory.refresh(), memory.reread_header(), memory.segments, len(memory.gates)
    (None, None, None, [4096], 1)
    >>> memory.view(0, 4, (2, 2), (2, 1)).shape, memory.versioned, memory.fabric, memory.fetch == 0, memory.nbytes
    ((2, 2), True, None, ..., 4096)
    >>> memory.fault("load", memory.address, "SIGBUS", 2).offset
    0
    >>> memory.close()
    """

    address: int
    nbytes: int
    path: str
    """How rows travel: "cacheable", "nc", "shm", "file" or "urma"."""
    region: str
    """What metrics call it: the name that it was leased by, its label, or its memory id."""
    backend: str
    """Which kernel answers for the memory, as banners and benchmark results name it."""
    nc: bool
    version_address: int
    """Where the content version of the region header is mapped; 0: nowhere."""
    heartbeat_address: int
    """Where the heartbeat counter of the region header is mapped; 0: nowhere, or where caches would hide its beats."""
    cached_version: Any
    """``uint64_t *``: the publication that this host's caches may hold rows of (0: not known yet); NULL where caches are
    coherent with the owner's."""
    recheck: Any
    """``struct obmm_recheck *``: how native threads ask memory for the version; NULL where caches are coherent."""

    @property
    def versioned(self) -> bool:
        """Whether there is a content version, in a region header."""
        ...

    @property
    def fabric(self) -> ModelledFabric | None:
        """The modelled fabric whose time gathers take; None: they are as quick as they are."""
        ...

    @property
    def fetch(self) -> Any:
        """``struct obmm_fetch *``: how rows are read that no load reaches; then `address` is an offset.  NULL elsewhere."""
        ...

    gated: bool
    """Whether shut gates say all that `check` would: a gather may leave it out."""

    @property
    def gates(self) -> list[Any]:
        """``struct obmm_gate *`` of every mapping in it."""
        ...

    @property
    def segments(self) -> list[int]:
        """Payload bytes of each mapping, in order."""
        ...

    @property
    def alive(self) -> bool:
        """False once closed, or once the lease is known to be lost.  Reads no remote memory."""
        ...

    @property
    def heartbeat_age(self) -> float | None:
        """Seconds since the owner was last heard from (its lease was renewed); None without a lease."""
        ...

    def check(self) -> None:
        """Raise unless rows can be read now: ClosedError, OwnershipError (no right), or the lease's error."""

    def read(self, offset: int, size: int) -> bytes:
        """A guarded copy of `size` payload bytes at `offset`.

        RemoteMemoryError when the memory is gone, ObmmArgumentError for a range outside of it, ClosedError after `close`.
        """
        ...

    def write(self, offset: int, data: Any) -> None:
        """A guarded copy of `data` into the payload at byte `offset`; errors as for `read`."""

    def version(self) -> int:
        """The content version now (guarded load); 0 without a header."""
        ...

    def reread_header(self) -> None:
        """Reader side: the next look at the header is at memory, not at a cache.  Rows stay cached."""

    def beat(self) -> None:
        """Owner side: one more in the heartbeat counter.  ObmmArgumentError where it cannot be written."""

    def begin(self) -> None:
        """Owner side: content version odd, memory writable.  Nothing to do while it is odd."""

    def commit(self, tables: int, manifest_sha256: bytes, manifest_bytes: int) -> None:
        """Owner side: describe the manifest in the header, write everything back, content version even.

        `tables`: how many; `manifest_sha256`, `manifest_bytes`: of its canonical text.
        """

    def refresh(self) -> None:
        """Reader side: forget what is cached of an older publication."""

    def header_digest(self) -> bytes:
        """The manifest's SHA-256 in the header; zeros when unknown."""
        ...

    def fault(self, what: str, address: int, kind: str, code: int) -> RemoteMemoryError:
        """The error for a fault at `address` while doing `what`; `kind` is "SIGBUS" or "SIGSEGV", `code` the signal's
        si_code.
        """
        ...

    def view(self, offset: int, size: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        """An unguarded NumPy view of `size` payload bytes at `offset`, of that `shape` and byte `strides`;
        ObmmArgumentError.
        """
        ...

    def close(self) -> None:
        """Give back what this object took; idempotent."""
