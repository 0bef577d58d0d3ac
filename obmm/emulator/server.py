# SPDX-License-Identifier: Apache-2.0
"""The fabric's process: accepts clients, hands their system calls to the model, and ends in good order.

One thread per client, so that each waits for its own client only; one main thread that accepts,
notices closed files and obeys signals and the lifeline.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

from . import protocol
from .clients import Clients
from .control_session import ControlSession
from .directory import FabricDirectory
from .model.calls import KernelError
from .model.fabric import Fabric
from .model.host import Host
from .open_files import OpenFiles
from .protocol import Kind, WindowRequest
from .session import Session
from .topology import Topology
from .trace import Trace
from .tree import DiskTree

log = logging.getLogger("obmm.emulator")

BACKLOG = 1024
REFRESH_MS = 1000
"""How long the trees on disk may lag behind what changes by time alone: the pools."""
HELLO_SECONDS = 10.0
REFRESH_SECONDS = 0.05
_CREDENTIALS = struct.Struct("3i")


class Server:
    """One running fabric."""

    def __init__(self, topology: Topology, directory: FabricDirectory) -> None:
        self.started = time.monotonic()
        self.directory = directory
        self.fabric = Fabric(topology)
        self.files = OpenFiles(os.getpid())
        self.clients = Clients()
        self.trace = Trace()
        self.internal_errors = 0
        self.modelled: str | None = None
        """The profile that its imports are modelled by: told, and waited for by its readers."""
        self.descriptor_limit = _raise_descriptor_limit()
        self._uid = os.geteuid()
        self._trees = {name: DiskTree(directory.node(name)) for name in self.fabric.hosts}
        for name, host in self.fabric.hosts.items():
            host.tree.watch(self._trees[name])
        self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        self._wakeup, self._alarm = socket.socketpair()
        self._wakeup.setblocking(False)
        self._alarm.setblocking(False)
        self._stopping = False
        self._refreshing = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(directory.socket))
        self._listener.listen(BACKLOG)
        self._listener.setblocking(False)

    # --- the main thread --------------------------------------------------------------------------

    def serve(self, lifeline: socket.socket | None = None) -> None:
        """Work until `stop`, or until the other end of `lifeline` is gone."""
        poll = select.poll()
        watched = [self._listener.fileno(), self.files.fileno(), self._wakeup.fileno()]
        if lifeline is not None:
            watched.append(lifeline.fileno())
        for descriptor in watched:
            poll.register(descriptor, select.POLLIN)
        due: float | None = None
        while not self._stopping:
            ready = {descriptor for descriptor, _ in poll.poll(None if due is None else max(0.0, due) * 1000)}
            if self._listener.fileno() in ready:
                self._accept()
            if self.files.fileno() in ready:
                self.settle()
            if lifeline is not None and lifeline.fileno() in ready:
                log.info("the process that started this fabric is gone")
                self._stopping = True
            if self._wakeup.fileno() in ready:
                self._wakeup.recv(4096)
                due = REFRESH_SECONDS
            elif not ready:
                due = self._refresh()

    def pools_moved(self) -> None:
        """A call may have changed the pools: their files follow soon, and as time goes on."""
        if not self._refreshing:
            self._refreshing = True
            with contextlib.suppress(BlockingIOError):
                self._alarm.send(b"\0")

    def _refresh(self) -> float | None:
        """Bring the files up to date that change by time alone; seconds until that happens next."""
        self._refreshing = False
        waits = [wait for host in self.fabric.hosts.values() if (wait := host.tree.refresh()) is not None]
        return max(min(waits), REFRESH_SECONDS) if waits else None

    def stop(self) -> None:
        """Make `serve` return. From any thread or signal handler."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._alarm.send(b"\0")

    def close(self) -> None:
        """Drop the clients, destroy the memory, delete the files."""
        self._listener.close()
        self.trace.close()
        for session in self.clients:
            session.close()
        for session in self.clients:
            session.done.wait(1.0)
        self.files.close()
        self.fabric.close()
        for tree in self._trees.values():
            tree.close()
        os.close(self._spare)
        self._wakeup.close()
        self._alarm.close()
        self.directory.remove()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse(error)
            return
        threading.Thread(target=self._welcome, args=(connection,), daemon=True).start()

    def _refuse(self, error: OSError) -> None:
        """No descriptor for one more client: free the spare one to tell it so."""
        self.out_of_resources(error)
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return
        os.close(self._spare)
        try:
            connection, _ = self._listener.accept()
            with connection:
                connection.send(_welcome(errno.ENFILE))
        except OSError:
            pass
        finally:
            self._spare = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)

    def _welcome(self, connection: socket.socket) -> None:
        """On the client's own thread: who is it, what does it want?"""
        try:
            connection.settimeout(HELLO_SECONDS)
            raw = connection.recv(protocol.HELLO.size, socket.MSG_WAITALL)
            if len(raw) < protocol.HELLO.size:
                raise ConnectionResetError(errno.ECONNRESET, "no hello")
            magic, version, kind, node = protocol.HELLO.unpack(raw)
            if magic != protocol.MAGIC:
                raise ConnectionResetError(errno.ECONNRESET, "not a client of this emulator")
            pid, uid, _ = _CREDENTIALS.unpack(
                connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            )
            host = self._host(protocol.text(node))
            refusal = 0
            if uid not in (0, self._uid):
                refusal = errno.EACCES
            elif version != protocol.VERSION or kind not in (Kind.CALLS, Kind.CONTROL):
                refusal = errno.EPROTO
            elif host is None:
                refusal = errno.ENODEV
            if refusal or host is None:
                connection.sendall(_welcome(refusal))
                connection.close()
                return
            connection.sendall(_welcome(0, host.name, str(self._trees[host.name].root), os.getpid()))
            connection.settimeout(None)
        except OSError as error:
            log.debug("dropped before its first request: %s", error)
            connection.close()
            return
        if kind == Kind.CONTROL:
            ControlSession(self, connection).run()
            return
        session = Session(self, host, connection, pid, uid)
        self.clients.add(session, connection)
        session.run()

    def _host(self, name: str) -> Host | None:
        return self.fabric.hosts.get(name) if name else next(iter(self.fabric.hosts.values()))

    # --- what sessions need -----------------------------------------------------------------------

    def settle(self) -> None:
        """Let everything happen that processes did without asking: deaths and last closes."""
        self.clients.settle()
        self.files.settle()

    def forget(self, session: Session, connection: socket.socket) -> None:
        """The session's process has exited."""
        self.clients.remove(session, connection)

    def kernel_uid(self, uid: int) -> int:
        """The uid that the model sees: who started the fabric is root there."""
        return 0 if uid == self._uid else uid

    def out_of_resources(self, error: OSError) -> int:
        """The errno for a client whose call failed in the server itself; the log says why."""
        if error.errno in (errno.EMFILE, errno.ENFILE):
            self._out_of_descriptors()
            return errno.ENFILE
        log.error("a call failed in the emulator itself: %s", error)
        return error.errno or errno.EIO

    def out_of_memory(self) -> None:
        """A call ended with ENOMEM: say so when the real reason is this process's descriptor limit."""
        try:
            os.close(os.dup(self._spare))
        except OSError as error:
            self.out_of_resources(error)

    def _out_of_descriptors(self) -> None:
        log.error(
            "out of descriptors: the hard RLIMIT_NOFILE of this fabric is %d (one per region, open file and "
            "client); raise it with `ulimit -Hn` before starting the fabric",
            self.descriptor_limit,
        )

    def program(self, host: Host, window: WindowRequest) -> int:
        """Program `host`'s decoder; ENOENT when no node has the owner's CNA and EID."""
        owner = self.owner(window.owner_cna, window.owner_eid)
        if owner is None:
            raise KernelError(errno.ENOENT, "22.3", f"no node has CNA {window.owner_cna:#x} and that EID")
        if window.cache not in (1, 2):
            raise KernelError(errno.EINVAL, "22.3", f"cache {window.cache} is neither 1 (CC) nor 2 (NC)")
        return host.program(
            window.owner_cna,
            window.tokenid,
            window.uba,
            window.length,
            "CC" if window.cache == 1 else "NC",
            scna=window.local_cna or None,
            address=window.pa or None,
        )

    def owner(self, cna: int, eid: bytes) -> Host | None:
        """The node whose controller has this CNA and EID."""
        for host in self.fabric.hosts.values():
            controller = host.controller(cna)
            if controller is not None and controller.eid == eid:
                return host
        return None


def _welcome(error: int, node: str = "", root: str = "", tag: int = 0) -> bytes:
    return protocol.WELCOME.pack(protocol.MAGIC, protocol.VERSION, 0, error, tag, node.encode(), os.fsencode(root))


def _raise_descriptor_limit() -> int:
    """Lift the soft RLIMIT_NOFILE to the hard one, which is returned."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def main(lifeline: socket.socket) -> None:
    """The server process: its orders come as one JSON line over `lifeline`, its readiness goes back so."""
    orders: dict[str, Any] = json.loads(_line(lifeline))
    directory = FabricDirectory(Path(orders["runtime"]), orders["name"])
    try:
        topology = _topology(orders)
        directory.claim()
        try:
            logging.basicConfig(
                filename=directory.log, level=orders["log_level"], format="%(asctime)s %(levelname)s %(message)s"
            )
            _write_beside(directory, orders["beside"])
            server = Server(topology, directory)
            server.modelled = orders["modelled"]
        except BaseException:
            directory.remove()
            raise
    except (OSError, ValueError) as error:
        lifeline.sendall(json.dumps({"error": str(error)}).encode() + b"\n")
        sys.exit(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    lifeline.sendall(json.dumps({"nodes": list(server.fabric.hosts), "pid": os.getpid()}).encode() + b"\n")
    try:
        server.serve(None if orders["outlive"] else lifeline)
    finally:
        server.close()


def _write_beside(directory: FabricDirectory, files: dict[str, str | None]) -> None:
    """What the starter has to tell other processes; None: nothing, and nothing that a dead fabric of that name left."""
    for name, text in files.items():
        (directory.path / name).unlink(missing_ok=True)
        if text is not None:
            (directory.path / name).write_text(text)


def _topology(orders: dict[str, Any]) -> Topology:
    if orders.get("topology") is not None:
        return Topology.loads(orders["topology"])
    return Topology.default(orders["nodes"], strict=orders["strict"], seed=orders["seed"])


def _line(stream: socket.socket) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        part = stream.recv(65536)
        if not part:
            sys.exit(1)  # the starter died before it gave its orders
        line += part
    return bytes(line)
