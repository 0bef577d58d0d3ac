# SPDX-License-Identifier: Apache-2.0
"""Opens device nodes for processes that may not: ``obmm open-broker`` and ``obmm.open("broker:<socket>")``.

Nodes are root:root 0600, udev never sees region nodes, and every attribute of a region is for root only (driver
specification 2 and 11).  The broker runs with that privilege, opens what `obmm.broker.policy` allows, and passes the
descriptor; the client does everything else itself.  It never sits in a data path.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from obmm._native import ffi, lib
from obmm.background import Background, BackgroundLogger, Rate
from obmm.broker.figures import Answers, BrokerFigures
from obmm.broker.policy import BrokerPeer, Policy, Wanted, groups_of
from obmm.broker.slots import CONNECTIONS, Guest, Slots
from obmm.closing import Closing
from obmm.driver import abi
from obmm.driver.backend import Backend
from obmm.driver.calls import Connection
from obmm.driver.process import start_time
from obmm.errors import ObmmError, errno_name, other_version
from obmm.host.inventory import Kind
from obmm.region.stamp import OwnerStamp

log = BackgroundLogger("obmm.broker")

REQUEST_SECONDS = 5.0
"""A peer has this long for its whole request: a connection serves one."""
LOOK_S, LATE_S = 1.0, 5.0  # how often the loop looks up; how late it may be and still count as alive
FAILURES = 100  # of accept(2) in a row, after which there is no point in going on

_MAPPABLE = os.O_RDONLY, os.O_RDWR
_CREDENTIALS = struct.Struct("iII")
_REGION_PATH = re.compile(re.escape(abi.SHMDEV_PREFIX) + r"([1-9]\d{0,6})")
_REQUEST_BYTES: int = ffi.sizeof("struct obmm_broker_request")


class Broker(Closing):
    """Serves one socket until `close`.  A context manager.

    `audit` gets one line of JSON per answer, in a thread of its own; default: the logger ``obmm.broker``.  Lines that it
    does not take in time, or refuses, are counted (`lines_dropped`), and so are those about users without a rule beyond
    some: neither holds up an answer.
    """

    def __init__(
        self, backend: Backend, policy: Policy, path: str | os.PathLike[str], *, audit: Callable[[str], None] = log.info
    ) -> None:
        if backend.broker is not None:
            raise ValueError("a broker does not stand on another broker")
        self.backend = backend
        self.policy = policy
        self.path = Path(path)
        self._audit = audit
        self._lines = Background("obmm-broker-audit")
        self.answers = Answers()
        self._turned = 0.0  # when the loop last looked up; 0: it does not run
        self._strangers = Rate(burst=500, per_second=50)
        self._connection = Connection(backend)
        self._sys = self._connection.sys
        self._root = self._connection.root
        self.slots = Slots(lambda uid: self.policy.lists(uid))
        self._open = True
        self._ended = False
        try:
            self._socket = _listen(self.path)
        except BaseException:
            self._connection.close()
            raise

    def serve(self) -> None:
        """Answer peers until `close`; never waits for any of them.

        Whatever fails costs the peer that it failed for.  OSError when accept(2) does nothing but fail.
        """
        try:
            self._serve_all()
        finally:
            self._turned = 0.0

    def _serve_all(self) -> None:
        failures = 0
        while self._open:
            self._turned = time.monotonic()
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue  # no connection came
            except Exception as error:  # OSError, or no memory for one more
                if not self._open:
                    return
                failures += 1
                if failures >= FAILURES:
                    raise
                # out of descriptors, for instance: they come back as connections end
                log.stranger("accept: %s", error)
                time.sleep(0.05)
                continue
            failures = 0
            try:
                self._take(connection)
            except Exception as error:
                log.stranger("a connection is lost: %r", error)

    @property
    def alive(self) -> bool:
        """The loop of `serve` turns."""
        return bool(self._turned) and time.monotonic() - self._turned < LOOK_S + LATE_S

    @property
    def figures(self) -> BrokerFigures:
        """For `obmm.exchange.observing.Observatory`."""
        return BrokerFigures(self.answers.all, lambda: len(self.slots.guests), lambda: self.lines_dropped)

    @property
    def lines_dropped(self) -> dict[str, int]:
        """Audit lines that were not written: the queue was full, or users without a rule caused too many."""
        return {"audit": self._lines.dropped, "strangers": self._strangers.refused}

    def flush(self, timeout: float) -> bool:
        """Wait until the audit has every line; False after ``timeout`` seconds."""
        return self._lines.flush(timeout)

    def reload(self, policy: Policy) -> None:
        """Ask these rules from now on."""
        self.policy = policy

    def stop(self) -> None:
        """Make `serve` return.  May be called from a signal handler."""
        self._open = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop, remove the socket, wait for answers under way.  What was passed stays open at the peers.

        Idempotent; can be repeated when it was cut short.
        """
        if self._ended:
            return
        self.stop()
        if self._socket.fileno() >= 0:
            # while it still listens: another broker that finds the name without a listener may take it
            self.path.unlink(missing_ok=True)
            self._socket.close()
        if self.slots.wait_empty(2 * REQUEST_SECONDS):
            self._connection.close()
        self._ended = True
        self._lines.flush(1.0)

    def _take(self, connection: socket.socket) -> None:
        """Serve it in a thread of its own, if it may have one; whatever fails, it has no slot and is closed."""
        guest = None
        waiting = [connection]  # whoever takes it out, the new thread or this one, closes it
        try:
            pid, uid, gid = _CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            guest, gone = self.slots.enter(connection, uid)
            if gone is not None:
                self._write(pid, gone.uid, "", 0, None, errno.EAGAIN, "too many connections", gone.known)
            if guest is None:
                self._turn_away(connection, pid, uid, "too many connections", False)
                return
            try:
                threading.Thread(target=self._serve, args=(waiting, guest, pid, gid), daemon=True).start()
            except (RuntimeError, MemoryError, OSError) as error:  # no thread to be had; the next peer may have one
                self.slots.leave(guest)
                with contextlib.suppress(IndexError):  # it runs after all, and answers
                    self._turn_away(waiting.pop(), pid, uid, str(error) or type(error).__name__, guest.known)
        except BaseException:
            # its thread may run after all: then it finds nothing to read; one that never does is kept by the interpreter
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError, IndexError):
                waiting.pop().close()
            if guest is not None:
                self.slots.leave(guest)
            raise

    def _turn_away(self, connection: socket.socket, pid: int, uid: int, why: str, known: bool) -> None:
        """Not now: the peer hears EAGAIN if it can be told at once."""
        self._write(pid, uid, "", 0, None, errno.EAGAIN, why, known)
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.sendall(_answer(errno.EAGAIN))
        connection.close()

    def _serve(self, waiting: list[socket.socket], guest: Guest, pid: int, gid: int) -> None:
        uid = guest.uid
        try:
            with waiting.pop() as connection:
                request = _receive(connection)
                if guest.sent_away:
                    return
                if request is None:
                    why = "no request within the time, or not one of ours"
                    self._write(pid, uid, "", 0, None, errno.EPROTO, why, guest.known)
                    return
                if request.version != lib.OBMM_BROKER_VERSION:
                    why = other_version("the request", request.version, lib.OBMM_BROKER_VERSION)
                    self._write(pid, uid, "", 0, None, errno.EPROTONOSUPPORT, why, guest.known)
                    connection.sendall(_answer(errno.EPROTONOSUPPORT))
                    return
                peer = BrokerPeer(pid, uid, groups_of(uid, gid), start_time(pid))
                known = self.policy.knows(peer)
                self.slots.asks(guest, known)
                if request.kind == lib.OBMM_BROKER_HELLO:
                    name = (str(self.backend) if self.backend.is_emulator else abi.DEV_PATH).encode()
                    if not known:
                        self._write(pid, uid, "", 0, None, errno.EACCES, "no rule speaks of this user", False)
                    connection.sendall(_answer(0, name) if known else _answer(errno.EACCES))
                else:
                    path = ffi.string(request.path).decode(errors="replace")
                    self._answer_open(connection, peer, path, request.flags, known)
        except Exception as error:
            log.stranger("pid %d uid %d: %r", pid, uid, error)
        finally:
            self.slots.leave(guest)

    def _answer_open(self, connection: socket.socket, peer: BrokerPeer, path: str, flags: int, known: bool) -> None:
        rule, code, reason, fd = None, 0, "", -1
        try:
            try:
                rule, fd = self._open_for(peer, path, flags)
            except ObmmError as error:
                code, reason = error.errno or errno.EIO, str(error.strerror).splitlines()[0]
            except Exception as error:  # the system failed the broker, not the peer
                code, reason = _number(error), f"the broker failed: {error!r}"
            # the line comes first: what is granted without one was counted as dropped
            self._write(peer.pid, peer.uid, path, flags, rule, code, reason, known)
            if fd < 0:
                connection.sendall(_answer(code))
                return
            answer = _answer(0)
            try:
                socket.send_fds(connection, [answer[:4]], [fd])
            except BaseException as error:
                self._write(peer.pid, peer.uid, path, flags, rule, _number(error), "not delivered", known)
                raise
            passed, fd = fd, -1
            lib.obmm_rw_close(self._sys, passed)
            # the rest only now: a peer that closes and removes the region at once must not find our copy open
            connection.sendall(answer[4:])
        finally:
            if fd >= 0:
                lib.obmm_rw_close(self._sys, fd)

    def _open_for(self, peer: BrokerPeer, path: str, flags: int) -> tuple[str, int]:
        """(rule, descriptor), or ObmmError."""
        mode, writable = flags & os.O_ACCMODE, flags & os.O_ACCMODE == os.O_RDWR
        known = flags & ~(os.O_ACCMODE | os.O_SYNC | os.O_CLOEXEC) == 0
        # O_DSYNC alone would select NC too (driver specification 9.1); no caller means that
        if not known or mode not in _MAPPABLE or flags & os.O_SYNC not in (0, os.O_SYNC):
            raise ObmmError(errno.EINVAL, f"flags {flags:#x}: only O_RDONLY or O_RDWR, with or without O_SYNC")
        match = _REGION_PATH.fullmatch(path)
        if path == abi.DEV_PATH:
            wanted = Wanted(path, writable)
            rule = self.policy.rule_for(peer, wanted)
            if rule is None:
                raise ObmmError(errno.EACCES, "no rule allows it")
            return rule.name, self._opened(lib.obmm_rw_open(self._sys), path)
        if match is None:
            raise ObmmError(errno.EACCES, "not a node of obmm")
        mem_id = int(match[1])
        if not self.policy.knows(peer):
            raise ObmmError(errno.EACCES, "no rule speaks of this user")
        # opened before it is looked at: an open region cannot be removed, so its number cannot go to another one
        fd = self._opened(lib.obmm_rw_shmdev_open(self._sys, mem_id, mode | flags & os.O_SYNC), path)
        try:
            kind, stamp = self._region(mem_id)
            rule = self.policy.rule_for(peer, Wanted(path, writable, mem_id, kind, stamp))
            if rule is None:
                raise ObmmError(errno.EACCES, "no rule allows it")
        except BaseException:
            lib.obmm_rw_close(self._sys, fd)
            raise
        return rule.name, fd

    def _opened(self, fd: int, path: str) -> int:
        if fd < 0:
            raise ObmmError(-fd, f"open {path}: {errno_name(-fd)}")
        return fd

    def _region(self, mem_id: int) -> tuple[Kind, OwnerStamp | None]:
        folder = Path(f"{self._root}/sys/devices/obmm/obmm_shmdev{mem_id}")
        try:
            kind: Kind = "export" if (folder / "type").read_text().strip() == "export" else "import"
            return kind, OwnerStamp.find((folder / "priv").read_bytes())
        except OSError as error:
            raise ObmmError(errno.EACCES, f"cannot read what region {mem_id} is: {error}") from error

    def _write(
        self, pid: int, uid: int, path: str, flags: int, rule: str | None, code: int, reason: str, known: bool
    ) -> None:
        event = "granted" if rule is not None and not code else "denied"
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "event": event,
            "pid": pid,
            "uid": uid,
            "path": path,
            "access": "rw" if flags & os.O_ACCMODE == os.O_RDWR else "r",
            "cache": "nc" if flags & os.O_SYNC else "cc",
            "rule": rule,
            "errno": errno_name(code) if code else None,
            "reason": reason,
        }
        text = json.dumps(line)
        self.answers.count(event, errno_name(code) if code else "")  # only now: no answer is counted without a line
        if known or self._strangers.allows():
            self._lines.put(lambda: self._audit(text))


def _listen(path: Path) -> socket.socket:
    """A listening socket that every user may connect to: who they are decides, not who reaches it."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode) and not _answers(path):
            path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    bound = False
    try:
        listener.bind(str(path))
        bound = True
        os.chmod(path, 0o666)
        listener.listen(CONNECTIONS)
        listener.settimeout(LOOK_S)
    except BaseException:
        if bound:
            path.unlink(missing_ok=True)
        listener.close()
        raise
    return listener


def _number(error: BaseException) -> int:
    """What a peer hears of a failure that is none of its own."""
    return errno.ENOMEM if isinstance(error, MemoryError) else getattr(error, "errno", None) or errno.EIO


def _answers(path: Path) -> bool:
    """Somebody listens there: also who is too busy to answer, or lets this user not in."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        return probe.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)


def _receive(connection: socket.socket) -> Any | None:
    """The peer's request, or None if it does not send a good one in time."""
    deadline = time.monotonic() + REQUEST_SECONDS
    data = b""
    try:
        while len(data) < _REQUEST_BYTES:
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            part = connection.recv(_REQUEST_BYTES - len(data))
            if not part:
                return None
            data += part
    except TimeoutError:
        return None
    connection.settimeout(REQUEST_SECONDS)
    request = ffi.new("struct obmm_broker_request *")
    ffi.buffer(request)[:] = data
    if request.magic != lib.OBMM_BROKER_MAGIC:
        return None
    known = request.kind in (lib.OBMM_BROKER_HELLO, lib.OBMM_BROKER_OPEN)
    return request if known or request.version != lib.OBMM_BROKER_VERSION else None


def _answer(code: int, text: bytes = b"") -> bytes:
    answer = ffi.new("struct obmm_broker_answer *")
    answer.magic, answer.error, answer.size = lib.OBMM_BROKER_MAGIC, code, len(text)
    return bytes(ffi.buffer(answer)) + text
