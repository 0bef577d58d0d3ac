# SPDX-License-Identifier: Apache-2.0
"""An array in another node's memory, as one object to index: what `Peer.open` gives."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from obmm.closing import Closing
from obmm.errors import ObmmArgumentError
from obmm.exchange.array_manifest import ArrayManifest
from obmm.exchange.dtypes import is_foreign
from obmm.exchange.torch_types import tensor_from
from obmm.mapping.buffers import array_here
from obmm.mapping.mapping import Mapping
from obmm.region.imported import ImportedRegion

_ITERATED = 1 << 20
"""Bytes that going through a table reads at a time."""


def _refused(problem: str, fix: str, code: int = errno.EINVAL) -> ObmmArgumentError:
    return ObmmArgumentError.because("TABLE", code, problem, fix, "docs/tutorial.md")


class RemoteTable(Closing):
    """An array that another node published, read row by row.  Made by `Peer.open`; close it, or use it in a with block.

    Indexing copies, guarded: when the owner dies, a read raises `RemoteMemoryError` and the process lives.  The first
    axis is the one that is indexed; a row is everything behind it.  Any number of threads may read.  ObmmArgumentError for
    rows that do not exist, ClosedError after `close`.

    >>> np.save(folder / "words.npy", np.arange(400, dtype="<f4").reshape(100, 4))
    >>> (array,) = obmm.files.open_arrays(folder / "words.npy")
    >>> region = obmm.files.export_for(a, array, "words")
    >>> manifest = obmm.files.fill(region, array)
    >>> server = obmm.serve({"words": (region, manifest.to_json())}, port=0, plain=True)
    >>> peer = obmm.connect(server.addresses[0], plain=True)
    >>> table = peer.open("words", b)
    >>> table.shape, table.ndim, table.dtype, table.nbytes, len(table)
    ((100, 4), 2, dtype('float32'), 1600, 100)
    >>> table[7].tolist(), table[-1].sum()            # one row, a new array of shape (4,)
    ([28.0, 29.0, 30.0, 31.0], ...1590.0...)
    >>> table[[3, 1, 2]].shape, table[10:20].shape     # rows by number, ids of any shape; a slice
    ((3, 4), (10, 4))
    >>> sum(float(row[0]) for row in table)           # row after row
    19800.0
    >>> out = np.empty((2, 4), "<f4")
    >>> table.gather([5, 6], out) is out
    True
    >>> np.asarray(table).shape, np.from_dlpack(table).shape, table.numpy().shape
    ((100, 4), (100, 4), (100, 4))
    >>> view = table.view()                            # unguarded: it dies with the owner
    >>> view[0].tolist(), view.flags.writeable
    ([0.0, 1.0, 2.0, 3.0], False)
    >>> del view
    >>> table.refresh()                                # see a new publication
    >>> table.region.peer
    '...'
    >>> table.close()
    >>> table.closed
    True
    >>> peer.close(), server.close(), region.close()
    (None, (), None)
    """

    def __init__(self, region: ImportedRegion, name: str, manifest: ArrayManifest) -> None:
        self._region = region
        self.name = name
        self.manifest = manifest
        """Its dtype and shape as published."""
        if manifest.nbytes > region.nbytes:
            raise _refused(
                f"{name!r}: the manifest describes {manifest.nbytes} bytes, and the region has {region.nbytes}",
                "publish the table anew",
            )
        self._mapping: Mapping = region.map("r")
        self._rows = self._mapping.rows(manifest.row_bytes, n_rows=manifest.rows) if manifest.nbytes else None
        self._open = True

    # --- what it is -----------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of one number; bfloat16 and the 8-bit floats are those of ml_dtypes."""
        return self.manifest.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self.manifest.shape

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.manifest.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return self.manifest.nbytes

    @property
    def region(self) -> ImportedRegion:
        """The import that it is read through."""
        return self._region

    def __len__(self) -> int:
        if not self.shape:
            raise _refused(f"{self.name!r} is a single number and has no length", "numpy() reads it")
        return self.shape[0]

    # --- guarded copies -------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> npt.NDArray[Any]:
        """A new array: a row for a number, rows for a slice or for ids of any shape (list, array, tensor)."""
        if isinstance(key, slice):
            try:
                first, stop, step = key.indices(len(self))
            except (TypeError, ValueError) as error:
                raise _refused(f"{key}: {error}", "a slice of whole numbers, of a step that is not 0") from None
            return self._slice(first, stop, step)
        if isinstance(key, int | np.integer) and not isinstance(key, bool | np.bool_):
            number = int(key)
            length = len(self)
            if not -length <= number < length:
                raise self._no_row(number)
            row: npt.NDArray[Any] = self.gather([number % length])[0]
            return row
        if isinstance(key, tuple):
            raise _refused(
                f"{len(key)} indices, and only rows are indexed",
                "table[7][3] for a number, table[[7, 3]] for two rows, table[ids][:, column] for a column",
            )
        return self.gather(key)

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Row after row, copied guarded, about a MiB at a time."""
        step = max(1, _ITERATED // max(1, self.manifest.row_bytes))
        for first in range(0, len(self), step):
            yield from self[first : first + step]

    def gather(self, ids: Any, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Rows by number -> `out`, or a new array of shape ``[*ids.shape, *table.shape[1:]]``.

        `ids`: integers of any shape, each 0 to ``len(table) - 1``: a list, an array, or a torch tensor on any device.
        `out`: contiguous, of the table's dtype and of that shape; nothing else is allocated.  ObmmArgumentError names the
        first id that is not a row, before anything is read; RemoteMemoryError when the owner's memory is gone.
        """
        self._check_open()
        length, wanted = len(self), _numbers(ids)
        shape = (*wanted.shape, *self.shape[1:])
        if out is None:
            out = np.empty(shape, self.dtype)
        elif not isinstance(out, np.ndarray) or out.dtype != self.dtype or out.shape != shape:
            got = f"{out.dtype} {list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
            raise _refused(f"out is {got}, not {self.dtype} {list(shape)}", "np.empty(shape, table.dtype)")
        if self._rows is None:
            outside = wanted[(wanted < 0) | (wanted >= length)]
            if outside.size:
                raise self._no_row(int(outside[0]))
            return out
        if not out.flags.c_contiguous:
            raise _refused("out is not contiguous", "np.empty(shape, table.dtype)")
        if wanted.size:
            self._rows.gather(wanted, out.reshape(-1).view(np.uint8))
        return out

    def numpy(self) -> npt.NDArray[Any]:
        """All of it: a guarded copy in this node's memory."""
        self._check_open()
        whole = np.empty(self.shape, self.dtype)
        if whole.nbytes:
            self._mapping.read_into(whole.reshape(-1).view(np.uint8), 0)
        return whole

    def torch(self) -> Any:
        """All of it as a torch tensor: a guarded copy.  bfloat16 and 8-bit floats become torch's own.

        ImportError without torch; ObmmArgumentError for numbers that torch does not have.

        >>> np.save(folder / "words.npy", np.zeros((10, 4), "<f4"))
        >>> (array,) = obmm.files.open_arrays(folder / "words.npy")
        >>> with obmm.files.export_for(a, array, "words") as region:
        ...     manifest = obmm.files.fill(region, array).to_json()
        ...     with obmm.serve({"words": (region, manifest)}, port=0, plain=True) as server:
        ...         with obmm.connect(server.addresses[0], plain=True) as peer, peer.open("words", b) as table:
        ...             try:
        ...                 print(tuple(table.torch().shape))
        ...             except ImportError:
        ...                 print("(10, 4), with torch installed")
        (10, 4)...
        """
        try:
            return tensor_from(self.numpy())
        except (TypeError, ValueError):
            raise _refused(
                f"torch has no {self.dtype}", "numpy(), then astype() to a number of this machine's byte order"
            ) from None

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """For ``np.asarray(table)``: a guarded copy; ``copy=False`` cannot be had."""
        if copy is False:
            raise ValueError(
                f"{self.name!r} lies in another node's memory: only a copy is an ordinary array; see view()"
            )
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """For ``torch.from_dlpack(table)`` and others: a guarded copy."""
        if is_foreign(self.dtype):
            raise BufferError(f"NumPy cannot hand {self.dtype.name} over by DLPack: use table.torch()")
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the CPU's memory

    # --- unguarded ------------------------------------------------------------------------------------------------

    def view(self) -> npt.NDArray[Any]:
        """All of it without a copy, read-only, UNGUARDED: touching it after the owner died ends this process (SIGBUS).

        The table cannot be closed while the view lives.  Never hand it to a system call, as a socket's or a file's write.
        """
        self._check_open()
        if self._rows is None:
            return np.empty(self.shape, self.dtype)
        flat = self._mapping.as_numpy(np.uint8, (self.nbytes,), writable=False)
        return flat.view(self.dtype).reshape(self.shape)

    def refresh(self) -> None:
        """See what the owner published since: gives the right to read up and takes it again (R -> N -> R)."""
        self._check_open()
        self._mapping.refresh()

    # --- life -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Unmap, remove the import, release the lease.  MappingBusyError, and nothing changed, while a view lives."""
        self._region.close()
        self._open = False

    @property
    def closed(self) -> bool:
        """True once closed, or when its region is."""
        return not self._open or self._region.closed

    def _slice(self, first: int, stop: int, step: int) -> npt.NDArray[Any]:
        if step != 1:
            return self.gather(np.fromiter(range(first, stop, step), np.int64))
        self._check_open()
        count = max(0, stop - first)
        rows = np.empty((count, *self.shape[1:]), self.dtype)
        if rows.nbytes:
            self._mapping.read_into(rows.reshape(-1).view(np.uint8), first * self.manifest.row_bytes)
        return rows

    def _no_row(self, number: int) -> ObmmArgumentError:
        fix = f"rows are 0 to {len(self) - 1}" if len(self) else "it has no rows"
        return _refused(f"row {number} does not exist in {self.name!r}", fix, errno.ERANGE)

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<RemoteTable {self.name!r} {self.dtype} {list(self.shape)}{state} on {self._region.device.backend}>"


def _numbers(ids: Any) -> npt.NDArray[Any]:
    """Row numbers from whatever a caller has; a tensor may lie on a device."""
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    if type(ids) is tuple:
        raise _refused(f"{len(ids)} indices, and only rows are indexed", "table[row][i], or a list of rows")
    try:
        wanted = array_here(ids)
    except (TypeError, ValueError, OverflowError) as error:
        raise _refused(f"rows are named by integers: {error}", "a number, a slice, or an array of numbers") from None
    if wanted.dtype == np.bool_ or (wanted.dtype.kind not in "iu" and wanted.size):
        kind = f"{wanted.dtype} {list(wanted.shape)}" if wanted.ndim else type(ids).__name__
        fix = "np.flatnonzero(mask) makes numbers of a mask" if wanted.dtype == np.bool_ else "ids of an integer type"
        raise _refused(f"rows are named by integers, not by {kind}", fix)
    if wanted.dtype == np.uint64 and wanted.size and wanted.max() > np.iinfo(np.int64).max:
        raise _refused(f"row {wanted.max()} does not exist", "row numbers are below the table's length", errno.ERANGE)
    return wanted.astype(np.int64, copy=False)
