# SPDX-License-Identifier: Apache-2.0
"""Notes of the leases that this process holds, so that `obmm gc` can give them back for it when it is dead.

One file per process in the state folder, of mode 0600: a lease's id is what releases it.  A note is made before the
server is asked, and struck out when the lease is over; the note is not synced to disk, because only a power cut could lose a
note that was written, and it takes the import along.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from obmm.background import Background, BackgroundLogger
from obmm.closing import in_forked_children
from obmm.driver.descriptor import Descriptor
from obmm.driver.process import boot_id
from obmm.exchange.errors import JournalError
from obmm.exchange.journal import state_folder
from obmm.exchange.journal_lines import host_id
from obmm.region.stamp import OwnerStamp

log = BackgroundLogger("obmm.exchange.client")

MOST_BYTES = 16 << 20
LATER = Background("obmm-held")
"""What is done about leases when there is time: notes are struck out, and what an interrupt left is given back."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How a session was protected, by paths: what somebody else of this user can open again."""

    mode: str
    files: tuple[str, ...] = ()
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class HeldLease:
    """A lease that a process may have held when it died; ``device`` where it was imported, "" if it never was."""

    id: bytes
    region: str
    server: str
    proof: Proof
    device: str = ""


@dataclass(frozen=True, slots=True)
class HeldNotes:
    """One process's file."""

    path: Path
    owner: OwnerStamp
    leases: tuple[HeldLease, ...]


class NoteBook:
    """Of this process; a forked child begins its own."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._pid = 0
        self._path: Path | None = None
        self._out: set[bytes] = set()
        in_forked_children(self._forked)

    def note(self, lease: HeldLease) -> None:
        """The server is about to be asked for it.  A disk that refuses is logged, and the lease is granted all the same."""
        proof = lease.proof
        self._write(
            {
                "lease": lease.id.hex(),
                "region": lease.region,
                "server": lease.server,
                "mode": proof.mode,
                "files": list(proof.files),
                "server_name": proof.server_name,
            },
            lease.id,
        )

    def imported(self, lease: bytes, device: str) -> None:
        """It was imported on this device."""
        self._write({"lease": lease.hex(), "device": device}, lease)

    def over(self, lease: bytes) -> None:
        """Released, or never granted: whenever there is time."""
        LATER.put(lambda: self._strike(lease))

    def _strike(self, lease: bytes) -> None:
        with self._mutex:
            self._out.discard(lease)
            if self._path is None or self._pid != os.getpid():
                return
            with suppress(OSError):
                if self._out:
                    _append(self._path, {"over": lease.hex()})
                else:
                    self._path.unlink(missing_ok=True)
                    self._path = None

    def _write(self, line: dict[str, Any], lease: bytes) -> None:
        with self._mutex:
            try:
                if self._path is None or self._pid != os.getpid():
                    self._begin()
                assert self._path is not None
                _append(self._path, line)
                self._out.add(lease)
            except (OSError, AssertionError) as error:
                log.warning(
                    "no note of lease %s: %s; if this process dies, `obmm gc` cannot release it", lease[:4].hex(), error
                )

    def _begin(self) -> None:
        owner = OwnerStamp.of_this_process("")
        folder = state_folder() / "held"
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / f"{host_id()}-{owner.pid}-{owner.start_time}.leases"
        first = {
            "format": 1,
            "boot": owner.boot_id.hex(),
            "namespace": owner.pid_namespace,
            "pid": owner.pid,
            "start": owner.start_time,
        }
        path.unlink(missing_ok=True)
        _append(path, first)
        self._path, self._pid, self._out = path, os.getpid(), set()

    def _forked(self) -> None:
        self._mutex = threading.Lock()
        self._path = None
        self._out = set()


BOOK = NoteBook()


def held_by_others(folder: Path | None = None) -> Iterator[HeldNotes]:
    """The notes of this host's processes but this one; what cannot be read is left out, and logged."""
    try:
        place = (state_folder() if folder is None else folder) / "held"
    except JournalError:
        return
    for path in sorted(place.glob(f"{host_id()}-*.leases")):
        try:
            notes = _read(path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("notes %s cannot be read: %s", path, error)
            continue
        if (notes.owner.pid, notes.owner.boot_id) != (os.getpid(), boot_id()):
            yield notes


def _append(path: Path, line: dict[str, Any]) -> None:
    file = Descriptor.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)
    with closing(file):
        os.write(file.fileno(), json.dumps(line, separators=(",", ":")).encode() + b"\n")


def _read(path: Path) -> HeldNotes:
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError("too long")
    first, *rest = data.split(b"\n")
    head = json.loads(first)
    if head["format"] != 1:
        raise ValueError("made by another version of obmm")
    namespace, pid, start = (_number(head[name]) for name in ("namespace", "pid", "start"))
    owner = OwnerStamp(bytes.fromhex(head["boot"]), namespace, pid, start, "", 0, 0)
    found: dict[bytes, HeldLease] = {}
    for text in rest:
        if not text:
            continue
        try:
            line = json.loads(text)
        except ValueError:
            continue  # torn: its process died while it wrote, before it asked
        if "over" in line:
            found.pop(bytes.fromhex(line["over"]), None)
            continue
        lease = bytes.fromhex(line["lease"])
        if "device" in line:
            if lease in found:
                old = found[lease]
                found[lease] = HeldLease(lease, old.region, old.server, old.proof, str(line["device"]))
            continue
        found[lease] = HeldLease(lease, str(line["region"]), str(line["server"]), _proof(line))
    return HeldNotes(path, owner, tuple(found.values()))


_FILES = {"plain": (0,), "key": (1,), "tls": (3, 4)}


def _proof(line: dict[str, Any]) -> Proof:
    mode, files, name = line["mode"], line["files"], line["server_name"]
    texts = isinstance(files, list) and all(isinstance(each, str) for each in files)
    if not texts or len(files) not in _FILES[mode] or not (name is None or isinstance(name, str)):
        raise ValueError("no way to prove who asks")
    return Proof(mode, tuple(files), name)


def _number(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise ValueError("a number that no process has")
    return value
