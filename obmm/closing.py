# SPDX-License-Identifier: Apache-2.0
"""One life for everything that owns something outside Python: with blocks, copies, forks, leaks.

* `Owner`: cannot be copied or pickled.
* `Scoped`: besides, a with block ends it, and never hides the exception that the block ended with.
* `Closing`: besides, it has `close` and `closed`, may be told of a fork (`tell_of_forks`), and can warn when it was
  forgotten.
"""

from __future__ import annotations

import abc
import os
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Generic, NoReturn, Self, SupportsIndex, TypeVar, final

from obmm.errors import ClosedError, CopyError

T = TypeVar("T")


class Owner:
    """Owns what exists once outside Python: a region, a mapping, a descriptor, a thread, a lease.

    A copy would give it back a second time, perhaps from its next owner: `copy.copy`, `copy.deepcopy` and pickling
    raise `CopyError`.
    """

    __slots__ = ()

    @final
    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise CopyError.of(type(self).__name__)


class Scoped(Owner, abc.ABC):
    """Can be used in a with block, at whose end it lets go of what it owns."""

    __slots__ = ()

    @abc.abstractmethod
    def _leave(self, failed: bool) -> object:
        """The end of a with block; `failed`: an exception is in flight."""

    def __enter__(self) -> Self:
        return self

    @final
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._leave(False)
            return
        try:
            self._leave(True)
        except Exception as refusal:
            error.add_note(f"and {self!r} stayed open: {refusal}")


class Closing(Scoped):
    """Has an ordered, idempotent `close`, which can be called again until it succeeded.

    Using it in a with block closes it at the end.
    """

    _open = False
    """Whether it can be used; its constructor says so."""
    _forked = False
    """Whether it belongs to the process that this one was forked from."""
    _warning: weakref.finalize[..., Closing] | None = None
    """What speaks up when it is forgotten."""

    @abc.abstractmethod
    def close(self) -> object:
        """Let go of what it owns."""

    @property
    def closed(self) -> bool:
        """True once closed, or in a forked child."""
        return not self._open

    def _leave(self, failed: bool) -> object:
        return self.close()

    def _check_open(self) -> None:
        if self.closed:
            raise self._is_closed()

    def _is_closed(self) -> ClosedError:
        if self._forked:
            return ClosedError.of(self, "belongs to the parent of this forked process: open it anew here")
        return ClosedError.of(self)

    def _refuse_if_busy(self) -> None:
        """MappingBusyError that says what keeps it from being closed, if anything does."""

    def _warn_if_forgotten(
        self,
        what: str,
        end: Callable[[], object] | None = None,
        *,
        over: Callable[[], bool] | None = None,
        at_exit: bool = False,
    ) -> None:
        """A ResourceWarning about `what`, and `end`, when it is collected without having been closed.

        `over`: says that it came to its end by itself.  `at_exit`: at the interpreter's end too.  An interrupt may cut the
        collection short, and then what `end` holds is held for ever: let that be little.
        """
        self._warning = weakref.finalize(self, _forgotten, what, os.getpid(), end, over)
        self._warning.atexit = at_exit

    def _need_not_warn(self) -> None:
        """It was closed, or nothing is left when it is forgotten."""
        if self._warning is not None:
            self._warning.detach()

    def _die(self) -> None:
        """In a forked child: what it owns is the parent's.  Forget it without a call or a lock."""
        self._open, self._forked = False, True
        self._need_not_warn()


def refuse_if_busy(*things: Closing) -> None:
    """MappingBusyError that says what keeps one of them from being closed, if anything does."""
    for thing in things:
        thing._refuse_if_busy()


@contextmanager
def ending(end: Callable[[], object], what: str) -> Iterator[None]:
    """A with block that ends with `end`.

    If the block raised and `end` fails too, the block's exception is kept, with a note that `what` failed.
    """
    try:
        yield
    except BaseException as error:
        undo(error, end, what)
        raise
    end()


def undo(error: BaseException, call: Callable[[], object], what: str) -> None:
    """In an ``except``: take back what was made before `error`, which is raised again and gets a note if that fails."""
    try:
        call()
    except Exception as refusal:
        error.add_note(f"and {what} failed: {refusal}")


# --- who is still there ---------------------------------------------------------------------------------------------


class Living(Generic[T]):
    """The objects that somebody still holds, listed while other threads make and drop them.

    A set by weak reference.  A WeakSet cannot be iterated while another thread adds to it.
    """

    def __init__(self) -> None:
        self._objects: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, thing: T) -> None:
        self._objects[id(thing)] = thing

    def discard(self, thing: T) -> None:
        """Leave it out from now on; no error if it was not in."""
        self._objects.pop(id(thing), None)

    def snapshot(self) -> tuple[T, ...]:
        """Those alive now, the oldest first."""
        return tuple(thing for ref in self._objects.valuerefs() if (thing := ref()) is not None)


# --- forks ----------------------------------------------------------------------------------------------------------

_told: Living[Closing] = Living()
_renewals: list[Callable[[], object]] = []


def tell_of_forks(thing: Closing) -> None:
    """Have `thing` die in every forked child."""
    _told.add(thing)


def die(*things: Closing) -> None:
    """In a forked child: `things` are the parent's."""
    for thing in things:
        thing._die()


def in_forked_children(renew: Callable[[], T]) -> Callable[[], T]:
    """A decorator: `renew` is called in every forked child, after objects have died there."""
    _renewals.append(renew)
    return renew


def _after_fork() -> None:
    """One that fails costs the others nothing; the interpreter reports the first failure."""
    failures: list[BaseException] = []
    for call in (*(thing._die for thing in _told.snapshot()), *_renewals):
        try:
            call()
        except BaseException as error:
            failures.append(error)
    if failures:
        raise failures[0]


os.register_at_fork(after_in_child=_after_fork)


# --- leaks ----------------------------------------------------------------------------------------------------------


def _forgotten(what: str, pid: int, end: Callable[[], object] | None, over: Callable[[], bool] | None) -> None:
    if pid != os.getpid() or (over is not None and over()):
        return
    warnings.warn(f"{what} was never closed", ResourceWarning, stacklevel=2)
    if end is not None:
        end()
