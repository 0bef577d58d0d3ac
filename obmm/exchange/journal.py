# SPDX-License-Identifier: Apache-2.0
"""The lease journal: leases survive the server that granted them.

Only ever appended to, line by line (`obmm.exchange.journal_lines`); a line holds no handle and no key.

* *grant* is on the disk (fsync) before the handle leaves the server: no importer is ever forgotten.
* *release* and *force* are written at once and reach the disk with the next fsync: losing one in a power cut only
  leaves a lease that counts as unknown, which is the safe side.
* Lines stand in the order in which things happened, also of one lease id in one batch.
* A reboot removes all exports (driver specification 8), so the leases of an earlier boot are dropped.
* A torn last line is cut off; damage anywhere else is refused, because a lost grant is a lost importer.
* The first line names the host: in a folder that hosts share, another machine's journal is refused and left alone.
* Opening rewrites the file with the leases that are still out (into a new file, fsync, rename).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from obmm.closing import Owner
from obmm.driver.descriptor import Descriptor
from obmm.exchange.errors import JournalError
from obmm.exchange.journal_lines import (
    end_line,
    events,
    first_line,
    grant_line,
    host_id,
    is_of_this_host,
    may_be_ours,
    replay,
)
from obmm.exchange.leases import LeaseRecord

log = logging.getLogger("obmm.exchange.journal")

COMPACT_BYTES = 16 << 20


def default_journal(port: int) -> Path:
    """``$XDG_STATE_HOME/obmm/leases-<host>-<port>.journal``; the folder is made with mode 0700.

    A state folder that cannot be written is replaced, with a warning, by one below the temporary folder, which a reboot
    may empty: so does a reboot with every export.
    """
    folder = state_folder()
    path = folder / f"leases-{host_id()}-{port}.journal"
    earlier = folder / f"leases-{port}.journal"  # the name of the first version
    if not path.exists() and earlier.exists() and may_be_ours(earlier):
        return earlier
    return path


def state_folder() -> Path:
    """``$XDG_STATE_HOME/obmm`` (default ``~/.local/state/obmm``), or what stands in for it."""
    try:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "obmm"
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(base, os.W_OK | os.X_OK):
            return base
        problem = "Permission denied"
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        problem = getattr(error, "strerror", None) or str(error)
    fallback = Path(tempfile.gettempdir()) / f"obmm-state-{os.geteuid()}"
    try:
        fallback.mkdir(mode=0o700, exist_ok=True)
        status = fallback.lstat()
    except OSError as error:
        raise _unusable(fallback, error) from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise JournalError(f"{fallback} is not a folder of this user alone; name a file with journal=PATH")
    log.warning("no state folder (%s): %s is used; set XDG_STATE_HOME to one that lasts", problem, fallback)
    return fallback


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines for one write, in their order; True marks a grant, which must be on the disk before it counts."""

    lines: tuple[tuple[bool, bytes], ...]

    @property
    def grants(self) -> bool:
        return any(grant for grant, _ in self.lines)


class LeaseJournal(Owner):
    """An open, locked journal.  ``recovered`` are the leases that were out when it was opened.

    `grant`, `release` and `take` belong to one thread, and what touches the disk (`write`, `compact`) to one thread, which
    may be another.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: Descriptor | None = None
        self._lock: Descriptor | None = None
        _refuse_what_is_no_file(self.path)
        self._lock = _lock(self.path)
        try:
            self.recovered = replay(self.path)
            self._file = self._rewrite(grant_line(record) for record in self.recovered)
            self._size = os.fstat(self._fd).st_size
        except BaseException as error:
            self.abandon()
            if isinstance(error, OSError) and not isinstance(error, JournalError):
                raise _unusable(self.path, error) from None
            raise
        self._noted: list[tuple[bool, bytes]] = []
        self._kept: list[bytes] = []  # releases that the disk refused
        self._torn = False  # the file may end in half a batch

    @property
    def long(self) -> bool:
        """It has grown enough to be written anew."""
        return self._size >= COMPACT_BYTES

    @property
    def noted(self) -> bool:
        """Something waits for `take`."""
        return bool(self._noted)

    def grant(self, record: LeaseRecord) -> None:
        """Note a grant; it counts only once it was written."""
        self._noted.append((True, grant_line(record)))

    def release(self, record: LeaseRecord, *, forced: bool = False) -> None:
        """Note that a lease is over: released by its holder, or given up by force."""
        self._noted.append((False, end_line(record, forced=forced)))

    def take(self) -> Batch:
        """What was noted since the last call, for `write`."""
        noted, self._noted = self._noted, []
        return Batch(tuple(noted))

    def commit(self) -> None:
        """`take` and `write` in one, for who has one thread."""
        self.write(self.take())

    def write(self, batch: Batch) -> None:
        """Append the lines, and fsync if there are grants among them.

        JournalError when the disk refuses: the grants are then not in the file, the releases are kept for the next time.
        """
        if not batch.lines and not self._kept:
            return
        data = b"".join([*self._kept, *(line for _, line in batch.lines)])
        try:
            self._mend()
            self._torn = True
            _write_all(self._fd, data)
            if batch.grants:
                os.fdatasync(self._fd)
            self._size += len(data)
            self._kept.clear()
            self._torn = False
        except BaseException as error:
            self._kept += [line for grant, line in batch.lines if not grant]
            with contextlib.suppress(OSError):
                self._mend()
            if isinstance(error, OSError):
                problem = f"the lease journal {self.path} cannot be written: {error.strerror}"
                raise JournalError(problem) from None
            raise

    def compact(self, lines: Iterable[bytes]) -> None:
        """Rewrite the file with these lines (of the leases that are out).

        A disk that refuses is only logged: the long file is as good as the short one.
        """
        try:
            file = self._rewrite(lines)
        except OSError as error:
            log.error("journal %s: not compacted: %s", self.path, error.strerror)
            return
        old, self._file = self._file, file
        self._torn = False
        if old is not None:
            old.close()
        self._size = os.fstat(self._fd).st_size

    def close(self) -> None:
        """Commit and let go; a journal without a lease in it is removed. Idempotent."""
        if self._fd < 0:
            return
        try:
            self.commit()
            os.fdatasync(self._fd)
            if not replay(self.path):
                self.path.unlink(missing_ok=True)
                _lock_path(self.path).unlink(missing_ok=True)
        except OSError as error:
            if isinstance(error, JournalError):
                raise
            raise JournalError(f"the lease journal {self.path} cannot be closed well: {error.strerror}") from None
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptors and nothing else (in a forked child, say)."""
        for held in (self._file, self._lock):
            if held is not None:
                held.close()

    @property
    def _fd(self) -> int:
        return -1 if self._file is None else self._file.fileno()

    def _mend(self) -> None:
        """Cut off what a failed write left."""
        if self._torn:
            os.ftruncate(self._fd, self._size)
            self._torn = False

    def _rewrite(self, lines: Iterable[bytes]) -> Descriptor:
        """Replace the file by one that holds these lines; its descriptor.  OSError, and nothing changed."""
        fresh = self.path.with_name(self.path.name + ".new")
        file = Descriptor.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        try:
            _write_all(file.fileno(), first_line() + b"".join(lines))
            os.fsync(file.fileno())
            os.replace(fresh, self.path)
        except BaseException:
            file.close()
            fresh.unlink(missing_ok=True)
            raise
        try:
            _sync_folder(self.path.parent)
        except OSError as error:
            log.error("journal %s: its folder cannot be synced: %s", self.path, error.strerror)
        return file


def released_everywhere(generation: int) -> bool | None:
    """Whether every lease on this export generation is released, by this host's journals in the default folder.

    None when no journal knows the generation, or one that might is damaged: then nothing is proven.
    """
    known, out = False, set()
    for path in state_folder().glob("leases-*.journal"):
        try:
            if not is_of_this_host(path):
                continue
            for event in events(path):
                if event["event"] != "grant":
                    out.discard(event["lease"])
                elif int(event["generation"], 16) == generation:
                    known = True
                    out.add(event["lease"])
        except OSError:  # a JournalError too
            return None
    return not out if known else None


def _unusable(path: Path, error: OSError) -> JournalError:
    return JournalError(f"the lease journal {path} cannot be used: {error.strerror}; name a file with journal=PATH")


def _refuse_what_is_no_file(path: Path) -> None:
    """A device or a pipe would be replaced and removed as a journal is, and reading one may never end."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else str(error)
        raise JournalError(
            f"the lease journal {path} cannot be used: {problem}; name a file with journal=PATH"
        ) from None
    if not stat.S_ISREG(mode):
        raise JournalError(
            f"the lease journal {path} cannot be used: not a regular file; name a file with journal=PATH"
        )


def _lock_path(path: Path) -> Path:
    """The lock lives beside the journal, because the journal itself is replaced."""
    return path.with_name(path.name + ".lock")


def _lock(path: Path) -> Descriptor:
    """The locked descriptor of a lock file that still has its name (its last owner removes it when it is done)."""
    name = _lock_path(path)
    while True:
        try:
            held = Descriptor.open(name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _unusable(path, error) from None
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(held.fileno()), os.stat(name)):
                return held
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise _unusable(path, error) from None
            raise JournalError(
                f"the lease journal {path} is in use by another server; give each server its own (journal=PATH)"
            ) from None
        held.close()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_folder(folder: Path) -> None:
    with contextlib.closing(Descriptor.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as opened:
        os.fsync(opened.fileno())
