# SPDX-License-Identifier: Apache-2.0
"""Opens device nodes for processes that may not: ``obmm open-broker`` and ``obmm.open("broker:<socket>")``.

Nodes are root:root 0600, udev never sees region nodes, and every attribute of a region is for root only (driver
specification 2 and 11).  The broker runs with that privilege, opens what `obmm.broker_policy` allows, and passes the
descriptor; the client does everything else itself.  It never sits in a data path.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from obmm import abi
from obmm._native import ffi, lib
from obmm.backend import Backend
from obmm.broker_policy import BrokerPeer, Policy, Wanted, groups_of
from obmm.errors import ObmmError, errno_name
from obmm.inventory import Kind
from obmm.stamp import OwnerStamp, start_time

log = logging.getLogger("obmm.broker")

REQUEST_SECONDS = 5.0
"""A peer has this long for its whole request: a connection serves one."""
CONNECTIONS = 256
CONNECTIONS_PER_USER = 16

_MAPPABLE = os.O_RDONLY, os.O_RDWR
_CREDENTIALS = struct.Struct("iII")
_REGION_PATH = re.compile(re.escape(abi.SHMDEV_PREFIX) + r"([1-9]\d{0,6})")
_REQUEST_BYTES: int = ffi.sizeof("struct obmm_broker_request")


class Broker:
    """Serves one socket until `close`.  A context manager.

    `audit` gets one line of JSON per answer; default: the logger ``obmm.broker``.
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
        self._sys: Any = backend.connect()
        self._root = ffi.string(self._sys.root).decode()
        self._users: Counter[int] = Counter()
        self._idle = threading.Condition()
        self._open = True
        self._closed = False
        try:
            self._socket = _listen(self.path)
        except BaseException:
            self._sys.destroy(self._sys)
            raise

    def serve(self) -> None:
        """Answer peers until `close`; never waits for any of them."""
        while self._open:
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if not self._open:
                    return
                # no descriptors left: they come back as connections end
                log.warning("accept: %s", error)
                time.sleep(0.05)
                continue
            self._take(connection)

    def stop(self) -> None:
        """Make `serve` return.  May be called from a signal handler."""
        self._open = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop, remove the socket, wait for answers under way.  What was passed stays open at the peers.  Idempotent."""
        self.stop()
        if self._closed:
            return
        self._closed = True
        self._socket.close()
        self.path.unlink(missing_ok=True)
        with self._idle:
            if self._idle.wait_for(lambda: not self._users, 2 * REQUEST_SECONDS):
                self._sys.destroy(self._sys)

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, connection: socket.socket) -> None:
        """Serve it in a thread of its own, if it may have one."""
        pid, uid, gid = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        with self._idle:
            full = self._users.total() >= CONNECTIONS or self._users[uid] >= CONNECTIONS_PER_USER
            if not full:
                self._users[uid] += 1
        if full:
            self._write(pid, uid, "", 0, None, errno.EAGAIN, "too many connections")
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.sendall(_answer(errno.EAGAIN))
            connection.close()
            return
        try:
            threading.Thread(target=self._serve, args=(connection, pid, uid, gid), daemon=True).start()
        except RuntimeError as error:  # no thread to be had: this peer is turned away, the next may be served
            self._write(pid, uid, "", 0, None, errno.EAGAIN, str(error))
            connection.close()
            self._left(uid)

    def _serve(self, connection: socket.socket, pid: int, uid: int, gid: int) -> None:
        try:
            with connection:
                peer = BrokerPeer(pid, uid, groups_of(uid, gid), start_time(pid))
                request = _receive(connection)
                if request is None:
                    self._write(pid, uid, "", 0, None, errno.EPROTO, "no request within the time, or not one of ours")
                elif request.kind == lib.OBMM_BROKER_HELLO:
                    name = (str(self.backend) if self.backend.is_emulator else abi.DEV_PATH).encode()
                    known = self.policy.knows(peer)
                    connection.sendall(_answer(0, name) if known else _answer(errno.EACCES))
                    if not known:
                        self._write(pid, uid, "", 0, None, errno.EACCES, "no rule speaks of this user")
                else:
                    self._answer_open(
                        connection, peer, ffi.string(request.path).decode(errors="replace"), request.flags
                    )
        except OSError as error:
            log.info("pid %d uid %d: %s", pid, uid, error)
        finally:
            self._left(uid)

    def _left(self, uid: int) -> None:
        with self._idle:
            self._users[uid] -= 1
            if not self._users[uid]:
                del self._users[uid]
            self._idle.notify_all()

    def _answer_open(self, connection: socket.socket, peer: BrokerPeer, path: str, flags: int) -> None:
        rule, code, reason, fd = None, 0, "", -1
        try:
            try:
                rule, fd = self._open_for(peer, path, flags)
            except ObmmError as error:
                code, reason = error.errno or errno.EIO, str(error.strerror).splitlines()[0]
            # the line is written first: nothing is granted that the log does not have
            self._write(peer.pid, peer.uid, path, flags, rule, code, reason)
            if fd >= 0:
                answer, passed, fd = _answer(0), fd, -1
                try:
                    socket.send_fds(connection, [answer[:4]], [passed])
                finally:
                    lib.obmm_rw_close(self._sys, passed)
                # the rest only now: a peer that closes and removes the region at once must not find our copy open
                connection.sendall(answer[4:])
            else:
                connection.sendall(_answer(code))
        finally:
            if fd >= 0:
                lib.obmm_rw_close(self._sys, fd)

    def _open_for(self, peer: BrokerPeer, path: str, flags: int) -> tuple[str, int]:
        """(rule, descriptor), or ObmmError."""
        mode, writable = flags & os.O_ACCMODE, flags & os.O_ACCMODE == os.O_RDWR
        known = flags & ~(os.O_ACCMODE | os.O_SYNC | os.O_CLOEXEC) == 0
        # O_DSYNC alone would select NC too (driver specification 9.1); nobody means that
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

    def _write(self, pid: int, uid: int, path: str, flags: int, rule: str | None, code: int, reason: str) -> None:
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "event": "granted" if rule is not None and not code else "denied",
            "pid": pid,
            "uid": uid,
            "path": path,
            "access": "rw" if flags & os.O_ACCMODE == os.O_RDWR else "r",
            "cache": "nc" if flags & os.O_SYNC else "cc",
            "rule": rule,
            "errno": errno_name(code) if code else None,
            "reason": reason,
        }
        self._audit(json.dumps(line))


def _listen(path: Path) -> socket.socket:
    """A listening socket that every user may connect to: who they are decides, not who reaches it."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.lstat(path).st_mode) and not _answers(path):
            path.unlink()
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o666)
        listener.listen(CONNECTIONS)
    except BaseException:
        listener.close()
        raise
    return listener


def _answers(path: Path) -> bool:
    """Somebody listens there."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


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
    good = request.magic == lib.OBMM_BROKER_MAGIC and request.version == lib.OBMM_BROKER_VERSION
    return request if good and request.kind in (lib.OBMM_BROKER_HELLO, lib.OBMM_BROKER_OPEN) else None


def _answer(code: int, text: bytes = b"") -> bytes:
    answer = ffi.new("struct obmm_broker_answer *")
    answer.magic, answer.error, answer.size = lib.OBMM_BROKER_MAGIC, code, len(text)
    return bytes(ffi.buffer(answer)) + text
