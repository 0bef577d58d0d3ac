# SPDX-License-Identifier: Apache-2.0
"""The lease journal: leases survive the server that granted them.

A first line says what the file is; then one line per event, ``CRC32 JSON``, only ever appended.  A line holds no
handle and no key.

* *grant* is on the disk (fsync) before the handle leaves the server: no importer is ever forgotten.
* *release* and *force* are written at once and reach the disk with the next fsync: losing one in a power cut only
  leaves a lease that counts as unknown, which is the safe side.
* A reboot removes all exports (driver specification 8), so the leases of an earlier boot are dropped.
* A torn last line is cut off; damage anywhere else is refused, because a lost grant is a lost importer.
* Opening rewrites the file with the leases that are still out (into a new file, fsync, rename).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from obmm.exchange.errors import JournalError
from obmm.exchange.leases import LeaseRecord, LeaseState

log = logging.getLogger("obmm.exchange.journal")

COMPACT_BYTES = 16 << 20
FIRST_LINE = b"obmm lease journal 1\n"


def default_journal(port: int) -> Path:
    """``$XDG_STATE_HOME/obmm/leases-<port>.journal``; the folder is made with mode 0700."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "obmm"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(base, error) from None
    return base / f"leases-{port}.journal"


class LeaseJournal:
    """An open, locked journal.  ``recovered`` are the leases that were out when it was opened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        _refuse_what_is_no_file(self.path)
        self._lock = _lock(self.path)
        try:
            self.recovered = _replay(self.path)
            self._fd = self._rewrite(self.recovered)
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError) and not isinstance(error, JournalError):
                raise _unusable(self.path, error) from None
            raise
        self._size = os.fstat(self._fd).st_size
        self._lines: list[bytes] = []
        self._grants: list[bytes] = []

    def grant(self, record: LeaseRecord) -> None:
        """Note a grant; it counts only once `commit` has returned."""
        self._grants.append(_line(_grant(record)))

    def release(self, record: LeaseRecord, *, forced: bool = False) -> None:
        """Note that a lease is over: released by its holder, or given up by force."""
        self._lines.append(_line({"event": "force" if forced else "release", "lease": record.id.hex()}))

    def commit(self) -> None:
        """Write everything noted so far, and fsync if there are grants among it.

        JournalError when the disk refuses: the grants are then dropped, the releases are kept for the next time.
        """
        if not self._lines and not self._grants:
            return
        data = b"".join(self._lines + self._grants)
        try:
            _write_all(self._fd, data)
            if self._grants:
                os.fdatasync(self._fd)
        except OSError as error:
            self._grants.clear()
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise JournalError(f"the lease journal {self.path} cannot be written: {error.strerror}") from None
        self._size += len(data)
        self._lines.clear()
        self._grants.clear()

    def compact(self, records: Iterable[LeaseRecord]) -> None:
        """Rewrite the file with the leases that are out, once it has grown by `COMPACT_BYTES`.

        A disk that refuses is only logged: the long file is as good as the short one.
        """
        if self._size < COMPACT_BYTES:
            return
        try:
            fd = self._rewrite(records)
        except OSError as error:
            log.error("journal %s: not compacted: %s", self.path, error.strerror)
            return
        os.close(self._fd)
        self._fd = fd
        self._size = os.fstat(fd).st_size

    def close(self) -> None:
        """Commit and let go; a journal without a lease in it is removed. Idempotent."""
        if self._fd < 0:
            return
        try:
            self.commit()
            os.fdatasync(self._fd)
            if not _replay(self.path):
                self.path.unlink(missing_ok=True)
                _lock_path(self.path).unlink(missing_ok=True)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptors and nothing else (in a forked child, say)."""
        for fd in (self._fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock = -1

    def _rewrite(self, records: Iterable[LeaseRecord]) -> int:
        """Replace the file by one that holds these leases; its descriptor.  OSError, and nothing changed."""
        fresh = self.path.with_name(self.path.name + ".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(fresh, flags, 0o600)
        try:
            _write_all(fd, FIRST_LINE + b"".join(_line(_grant(record)) for record in records))
            os.fsync(fd)
            os.replace(fresh, self.path)
        except BaseException:
            os.close(fd)
            fresh.unlink(missing_ok=True)
            raise
        try:
            _sync_folder(self.path.parent)
        except OSError as error:
            log.error("journal %s: its folder cannot be synced: %s", self.path, error.strerror)
        return fd


def boot_id() -> str:
    """What tells this boot of the machine from every other."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def released_everywhere(generation: int) -> bool | None:
    """Whether every lease on this export generation is released, by the journals in the default folder.

    None when no journal knows the generation, or one that might is damaged: then nothing is proven.
    """
    known, out = False, set()
    for path in default_journal(0).parent.glob("leases-*.journal"):
        try:
            for event in _events(path):
                if event["event"] != "grant":
                    out.discard(event["lease"])
                elif int(event["generation"], 16) == generation:
                    known = True
                    out.add(event["lease"])
        except JournalError:
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


def _lock(path: Path) -> int:
    """The locked descriptor of a lock file that still has its name (its last owner removes it when it is done)."""
    name = _lock_path(path)
    while True:
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(path, error) from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(name)):
                return fd
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise _unusable(path, error) from None
            raise JournalError(
                f"the lease journal {path} is in use by another server; give each server its own (journal=PATH)"
            ) from None
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _grant(record: LeaseRecord) -> dict[str, object]:
    return {
        "event": "grant",
        "lease": record.id.hex(),
        "region": record.region,
        "generation": f"{record.generation:016x}",
        "client": record.client,
        "address": record.address,
        "identity": record.identity,
        "importer_eid": record.importer_eid.hex(),
        "granted": round(record.granted, 3),
        "boot": boot_id(),
    }


def _line(event: dict[str, object]) -> bytes:
    text = json.dumps(event, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> dict[str, str] | None:
    """The event in a whole line, None when the line is damaged."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    event: dict[str, str] = json.loads(text)
    return event


def _events(path: Path) -> Iterator[dict[str, str]]:
    """What the journal holds, oldest first; JournalError for a file that is none, or damaged before its end."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    if not content.startswith(FIRST_LINE):
        if FIRST_LINE.startswith(content):
            return  # new, or torn before anything was in it
        raise JournalError(f"{path} is something else than a lease journal and is left alone; name another file")
    *lines, torn = content[len(FIRST_LINE) :].split(b"\n")
    for number, line in enumerate(lines):
        event = _parse(line)
        if event is not None:
            yield event
        elif number == len(lines) - 1 and not torn:
            torn = line  # a tail whose newline reached the disk before the rest did
        else:
            raise JournalError(
                f"the lease journal {path} is damaged in line {number + 2}: leases may be missing from it. Make sure "
                "that no importer is left, then move the file away"
            )
    if torn:
        log.warning("journal %s: torn last line of %d bytes dropped", path, len(torn))


def _replay(path: Path) -> list[LeaseRecord]:
    """The leases that are out."""
    out: dict[str, LeaseRecord] = {}
    boot = boot_id()
    for event in _events(path):
        if event["event"] == "grant" and event["boot"] == boot:
            out[event["lease"]] = LeaseRecord(
                id=bytes.fromhex(event["lease"]),
                region=event["region"],
                generation=int(event["generation"], 16),
                client=event["client"],
                address=event["address"],
                identity=event["identity"],
                importer_eid=bytes.fromhex(event["importer_eid"]),
                granted=float(event["granted"]),
                state=LeaseState.UNKNOWN,
            )
        else:
            out.pop(event["lease"], None)
    return list(out.values())
