# SPDX-License-Identifier: Apache-2.0
"""Control requests at the server: what is not a system call of any node."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .control import receive_frame, send_frame
from .model.calls import KernelError
from .model.inject import armed
from .model.region import ExportRegion
from .protocol import ProtocolError, WindowRequest

if TYPE_CHECKING:
    from .model.host import Host
    from .server import Server

log = logging.getLogger("obmm.emulator")

WAIT_MAX = 30.0
"""Seconds that one request waits for calls to trace."""


class ControlSession:
    """One control connection. Each request is a JSON object with `op`, answered by `result` or `error`."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self._server = server
        self._socket = connection
        self._ends_server = False
        self._operations: dict[str, Callable[..., Any]] = {
            "status": self._status,
            "program": self._program,
            "program_export": self._program_export,
            "unprogram": self._unprogram,
            "windows": self._windows,
            "faults": self._server.fabric.faults,
            "inject": self._inject,
            "stub": self._stub,
            "journal": self._journal,
            "trace": self._trace,
            "check": self._check,
            "insmod": self._insmod,
            "rmmod": self._rmmod,
            "shutdown": self._shutdown,
        }

    def run(self) -> None:
        """Serve until the client is gone."""
        try:
            while True:
                answer = self._answer(receive_frame(self._socket))
                try:
                    send_frame(self._socket, answer)
                finally:
                    if self._ends_server:  # after its answer: the process may be gone before another line of this runs
                        self._server.stop()
        except ProtocolError as error:
            log.warning("control connection dropped: %s", error)
        except OSError:
            pass
        finally:
            self._socket.close()

    def _answer(self, request: Any) -> dict[str, Any]:
        try:
            arguments = dict(request)
            operation = self._operations[arguments.pop("op")]
        except (KeyError, TypeError, ValueError):
            return {"error": f"not a control request: {request!r:.200}", "errno": errno.EINVAL}
        self._server.settle()
        try:
            return {"result": operation(**arguments)}
        except KernelError as error:
            return {"error": str(error), "errno": error.errno}
        except (TypeError, ValueError, LookupError) as error:
            return {"error": f"{request['op']}: {error}", "errno": errno.EINVAL}
        except OSError as error:
            return {"error": str(error), "errno": error.errno or errno.EIO}

    def _host(self, name: str) -> Host:
        try:
            return self._server.fabric.hosts[name]
        except KeyError:
            raise KernelError(
                errno.ENODEV, "fabric", f"no node {name!r}; there are {', '.join(self._server.fabric.hosts)}"
            ) from None

    def _status(self) -> dict[str, Any]:
        server = self._server
        return {
            "name": server.directory.name,
            "socket": str(server.directory.socket),
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - server.started, 3),
            "clients": len(server.clients),
            "open_files": len(server.files),
            "internal_errors": server.internal_errors,
            "modelled": server.modelled,
            "descriptor_limit": server.descriptor_limit,
            "nodes": {name: self._node(host) for name, host in server.fabric.hosts.items()},
        }

    def _node(self, host: Host) -> dict[str, Any]:
        with host.fabric.lock:
            users: dict[int, set[int]] = {}
            for pid, process in host.processes.items():
                for vma in process.vmas:
                    users.setdefault(vma.region.mem_id, set()).add(pid)
            return {
                "root": str(self._server.directory.node(host.name)),
                "processes": sorted(host.processes),
                "open_files": host.open_files,
                "controllers": [
                    {"cna": c.cna, "eid": c.eid.hex(), "node": c.node, "ummu": c.ummu} for c in host.spec.controllers
                ],
                "regions": [
                    {
                        "mem_id": region.mem_id,
                        "kind": region.kind,
                        "size": region.size,
                        "opens": region.opens,
                        "mappings": region.mapping_count,
                        "users": sorted(users.get(region.mem_id, ())),
                    }
                    for region in host.regions.values()
                ],
                "windows": len(list(host.decoder)),
                "decoder": self._entries(host),
                "faults": armed(host),
                "loaded": host.loaded,
            }

    def _program(
        self,
        node: str,
        owner_cna: int,
        owner_eid: str,
        tokenid: int,
        uba: int,
        length: int,
        cache: str,
        pa: int = 0,
        local_cna: int = 0,
    ) -> int:
        """Program a decoder entry of `node`; its local physical address."""
        kinds = {"cc": 1, "nc": 2}
        window = WindowRequest(
            bytes.fromhex(owner_eid), owner_cna, tokenid, uba, length, pa, local_cna, kinds[cache.lower()]
        )
        return self._server.program(self._host(node), window)

    def _program_export(
        self, node: str, owner: str, mem_id: int, cache: str, length: int | None = None, pa: int = 0
    ) -> int:
        """Program a decoder entry of `node` onto an export of `owner` that is named by its mem_id."""
        exporter = self._host(owner)
        with exporter.fabric.lock:
            region = exporter.regions.get(mem_id)
            if not isinstance(region, ExportRegion):
                exports = [r.mem_id for r in exporter.regions.values() if isinstance(r, ExportRegion)]
                raise KernelError(errno.ENOENT, "fabric", f"node {owner} has no export {mem_id}, but {exports}")
        unit = region.ummu.index if region.ummu else None
        controller = next((c for c in exporter.spec.controllers if c.ummu == unit), exporter.spec.controllers[0])
        return self._program(
            node, controller.cna, controller.eid.hex(), region.tokenid, region.uba, length or region.size, cache, pa
        )

    def _unprogram(self, node: str, pa: int) -> None:
        self._host(node).unprogram(pa)

    def _windows(self, node: str) -> list[dict[str, int]]:
        host = self._host(node)
        with host.fabric.lock:
            return self._entries(host)

    @staticmethod
    def _entries(host: Host) -> list[dict[str, int]]:
        return [
            {"pa": e.pa, "length": e.length, "owner_cna": e.dcna, "tokenid": e.tokenid, "uba": e.uba}
            for e in host.decoder
        ]

    def _inject(self, node: str, fault: str, arguments: dict[str, Any]) -> None:
        self._server.fabric.inject(self._host(node).name, fault, **arguments)

    def _stub(self, node: str, name: str, values: list[int]) -> None:
        """A fault under the name that the driver transcript gives it."""
        self._host(node).stub(name, *values)

    def _journal(self, node: str) -> list[dict[str, Any]]:
        """What was asked of the cache engine, the UMMUs and remote NUMA since the last request."""
        host = self._host(node)
        with host.fabric.lock:
            return host.take_journal()

    def _trace(self, node: str | None = None, after: int = 0, wait: float = 0.0) -> dict[str, Any]:
        """Calls after number `after` of one node or all; with `wait`, those of the next seconds when there are none."""
        if node is not None:
            self._host(node)
        if not 0 <= wait <= WAIT_MAX:
            raise ValueError(f"wait {wait} is not between 0 and {WAIT_MAX} seconds")
        records = self._server.trace.since(after, wait)
        last = records[-1].number if records else after
        return {"last": last, "calls": [one.document() for one in records if node in (None, one.node)]}

    def _check(self) -> None:
        """The model's invariants; the error names the broken one."""
        try:
            self._server.fabric.check()
        except AssertionError as error:
            raise KernelError(errno.EPROTO, "invariant", str(error)) from None

    def _insmod(self, node: str, params: str = "") -> None:
        self._host(node).insmod(params)

    def _rmmod(self, node: str) -> None:
        self._host(node).rmmod()

    def _shutdown(self) -> None:
        self._ends_server = True
