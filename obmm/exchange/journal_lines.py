# SPDX-License-Identifier: Apache-2.0
"""What stands in a lease journal: a first line that names the format and the host, then ``CRC32 JSON`` lines."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from obmm.exchange.errors import JournalError
from obmm.exchange.leases import LeaseRecord, LeaseState

log = logging.getLogger("obmm.exchange.journal")

NEWEST = 2
_TITLE = b"obmm lease journal "
_HOSTLESS = _TITLE + b"1\n"  # of the first version: it did not say whose it is
_EVENTS = ("grant", "release", "force")
_MACHINE_ID = Path("/etc/machine-id")


def boot_id() -> str:
    """What tells this boot of the machine from every other; "unknown" where no /proc tells it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


@cache
def host_id() -> str:
    """12 hexadecimal digits that tell this host from those it shares a folder with.

    Made from /etc/machine-id (which itself is not to be shown), else from the host's name.
    """
    try:
        source = _MACHINE_ID.read_text().strip()
    except (OSError, UnicodeDecodeError):
        source = ""
    if not _is_hex(source, 16) or not int(source, 16):  # "uninitialized", say: of every machine of one image
        source = ""
    return hashlib.sha256(b"obmm exchange host\0" + (source or os.uname().nodename).encode()).hexdigest()[:12]


def first_line() -> bytes:
    """Of a journal that this host makes now."""
    return _TITLE + f"{NEWEST} host={host_id()}\n".encode()


def grant_line(record: LeaseRecord) -> bytes:
    """The line of a lease that is out, with its newline."""
    return _line(
        {
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
    )


def end_line(record: LeaseRecord, *, forced: bool) -> bytes:
    """The line of a lease that is over."""
    return _line({"event": "force" if forced else "release", "lease": record.id.hex()})


def is_of_this_host(path: Path) -> bool:
    """False for the journal of another machine that has the same folder; True also for one that does not say."""
    try:
        with path.open("rb") as file:
            return file.readline(256) in (first_line(), _HOSTLESS, b"")
    except OSError:
        return False


def may_be_ours(path: Path) -> bool:
    """False for a journal that does not say whose it is, and whose leases are none of this boot's: perhaps another machine's."""
    if not is_of_this_host(path):
        return False
    try:
        with path.open("rb") as file:
            if file.readline(256) == first_line():
                return True
        granted = [event["boot"] for event in events(path) if event["event"] == "grant"]
    except OSError:  # a JournalError too
        return False
    return not granted or boot_id() in granted


def events(path: Path) -> Iterator[dict[str, Any]]:
    """What the journal holds, oldest first.

    JournalError with the file and the line for a file that is none, another machine's, a newer version's, or damaged
    before its end.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return
    head, newline, body = content.partition(b"\n")
    if not newline and (first_line().startswith(content) or _HOSTLESS.startswith(content)):
        return  # new, or torn before anything was in it
    _check_head(path, head + newline)
    *lines, torn = body.split(b"\n")
    for number, line in enumerate(lines):
        event = _parse(line)
        if event is not None:
            problem = _problem(event)
            if problem:
                raise JournalError(
                    f"the lease journal {path}, line {number + 2}: {problem}. Another program or a newer obmm wrote it: "
                    "use that one, or make sure that no importer is left and move the file away"
                )
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


def replay(path: Path) -> list[LeaseRecord]:
    """The leases that are out; those of an earlier boot are over, because a reboot removes every export."""
    out: dict[bytes, LeaseRecord] = {}
    boot = boot_id()
    for event in events(path):
        lease = bytes.fromhex(event["lease"])
        if event["event"] == "grant" and event["boot"] == boot:
            out[lease] = LeaseRecord(
                id=lease,
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
            out.pop(lease, None)
    return list(out.values())


def _check_head(path: Path, head: bytes) -> None:
    if head in (first_line(), _HOSTLESS):
        return
    if not head.startswith(_TITLE):
        raise JournalError(f"{path} is something else than a lease journal and is left alone; name another file")
    number, _, rest = head[len(_TITLE) :].strip().partition(b" ")
    # the rest of the file, if it has no lines: a number of thousands of digits is not a version either
    if not number.isdigit() or len(number) > 9 or (int(number) <= NEWEST and not rest.startswith(b"host=")):
        raise JournalError(
            f"the lease journal {path}, line 1: {head[:80]!r} is something else than a lease journal's first line; "
            "it is left alone, name another file"
        )
    if int(number) > NEWEST:
        raise JournalError(
            f"the lease journal {path} is of version {number.decode()}, made by a newer obmm: upgrade this one, or name "
            "another file with journal=PATH"
        )
    host = rest.removeprefix(b"host=").decode("ascii", "replace")
    raise JournalError(
        f"the lease journal {path} belongs to another machine (host {host}, this one is {host_id()}): its leases are "
        "not ours to drop. Give each machine its own with journal=PATH"
    )


def _line(event: dict[str, object]) -> bytes:
    text = json.dumps(event, separators=(",", ":")).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _parse(line: bytes) -> Any | None:
    """The value in a whole line, None when the line is damaged."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    try:
        value = json.loads(text)
        return text if value is None else value
    except (ValueError, RecursionError):
        return text  # whole, and nothing that was written here


def _problem(event: Any) -> str:
    """What is wrong with a line that is not damaged; "" for one of ours."""
    if not isinstance(event, dict) or event.get("event") not in _EVENTS:
        return "an event that this version does not know"
    fields = {"lease": 16}
    texts: tuple[str, ...] = ()
    if event["event"] == "grant":
        fields |= {"generation": 8, "importer_eid": 16}
        texts = ("region", "client", "address", "identity", "boot")
        granted = event.get("granted")
        if isinstance(granted, bool) or not isinstance(granted, int | float) or not 0 <= granted < 1e12:
            return "no time of the grant"
    for name, size in fields.items():
        if not _is_hex(event.get(name), size):
            return f"{name} is not {size} bytes in hexadecimal"
    wrong = [name for name in texts if not isinstance(event.get(name), str)]
    return f"no {wrong[0]}" if wrong else ""


def _is_hex(value: object, size: int) -> bool:
    if not isinstance(value, str) or len(value) != 2 * size or not value.isascii() or not value.isalnum():
        return False
    try:
        return len(bytes.fromhex(value)) == size
    except ValueError:
        return False
