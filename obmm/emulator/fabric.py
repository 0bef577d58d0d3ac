# SPDX-License-Identifier: Apache-2.0
"""A running emulated fabric, as the process that started it sees it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from obmm.closing import Closing, in_forked_children
from obmm.driver.backend import Backend, ensure_runtime_directory
from obmm.driver.modelled import TOLD, set_fabric
from obmm.regular import read_regular
from obmm.toml_text import MOST_BYTES

from .control import ControlClient
from .directory import FabricDirectory
from .profile import Profile, told
from .runtime import DEFAULT, fabric_directory, remove_stale

START_SECONDS = 30.0
STOP_SECONDS = 10.0

_BOOT = """
import socket, sys, types
package = sys.modules["obmm"] = types.ModuleType("obmm")
package.__path__ = [sys.argv[1]]
from obmm.emulator.server import main
main(socket.socket(fileno=int(sys.argv[2])))
"""
"""Starts the server without `obmm`'s own imports and without site-packages: it needs the emulator and nothing
else, and loading NumPy would take longer than everything it does until it is ready."""

Nodes = int | Iterable[str]


class FabricError(RuntimeError):
    """A fabric could not be started, found or stopped; the text says which and why.

    >>> obmm.emulator.start(nodes=["a", "a"])
    Traceback (most recent call last):
    obmm.emulator.fabric.FabricError: ...
    """


class Fabric(Closing):
    """An emulated fabric that this process started, and that ends with it.

    Made by `start`. A context manager; `close` is idempotent. The server process watches this one: it goes
    when this process closes the fabric or dies in any way. In a forked child the handle can talk to the
    fabric, but closing it there does nothing.  ValueError for a `node` that the fabric does not have.

    >>> own = obmm.emulator.start(nodes=["left", "right"])
    >>> own.nodes, own.device("left") == own.device(0), own.root("left").is_dir()
    (('left', 'right'), True, True)
    >>> sorted(own.status()["nodes"]), "node-death" in own.faults()
    (['left', 'right'], True)
    >>> own.inject("left", "latency", value=0.001)
    >>> own.inject("left", "reset")
    >>> own.check()
    >>> with obmm.open(own.device("left")) as owner, owner.export_region("2MiB") as region:
    ...     handle = region.handle()
    ...     pa = own.program_window("right", owner_cna=handle.owner_cna, owner_eid=handle.owner_eid,
    ...                             tokenid=handle.tokenid, uba=handle.uba, length=handle.length)
    ...     with obmm.open(own.device("right")) as reader, reader.import_region(handle, window=pa) as imported:
    ...         imported.length == region.length
    True
    >>> len(own.journal("left")) > 0, own.request("status")["internal_errors"]
    (True, 0)
    >>> own.close()
    >>> own.closed
    True
    """

    def __init__(self, directory: FabricDirectory, server: subprocess.Popen[bytes], lifeline: socket.socket) -> None:
        orders = json.loads(_line(lifeline, directory))
        self.name = directory.name
        self.nodes: tuple[str, ...] = tuple(orders["nodes"])
        """Names of the nodes, in order."""
        self.socket = str(directory.socket)
        """Path of the fabric's unix socket."""
        self.server_pid: int = orders["pid"]
        self._directory = directory
        self._close = weakref.finalize(self, _end, server, lifeline, os.getpid())
        _lifelines.add(lifeline)

    def device(self, node: str | int = 0) -> str:
        """What `obmm.open` and OBMM_DEVICE take for `node` (a name or an index)."""
        return f"emulator:{self.socket}#{self._name(node)}"

    def root(self, node: str | int = 0) -> Path:
        """The folder that holds this node's sys, proc and dev."""
        return self._directory.node(self._name(node))

    def request(self, operation: str, **arguments: Any) -> Any:
        """One control request: `operation` with `arguments`, as `ControlClient.request`."""
        with ControlClient(self.socket) as control:
            return control.request(operation, **arguments)

    def status(self) -> dict[str, Any]:
        """Nodes, regions, clients and counters, as `obmm emulate status --json` prints them."""
        result: dict[str, Any] = self.request("status")
        return result

    def inject(self, node: str | int, fault: str, **arguments: Any) -> None:
        """Make something go wrong on `node`: a fault of `faults()` with its arguments ("reset" disarms all).

        Raises ControlError: EINVAL for an unknown fault or wrong arguments, ENOENT for an unknown region.
        """
        self.request("inject", node=self._name(node), fault=fault, arguments=arguments)

    def faults(self) -> dict[str, str]:
        """Every fault that `inject` knows: its name, what it does and which arguments it takes."""
        result: dict[str, str] = self.request("faults")
        return result

    def check(self) -> None:
        """Check the model's invariants; ControlError names the broken one."""
        self.request("check")

    def journal(self, node: str | int = 0) -> list[dict[str, Any]]:
        """What `node`'s driver asked of its cache engine, UMMUs and remote NUMA since the last call."""
        result: list[dict[str, Any]] = self.request("journal", node=self._name(node))
        return result

    def program_window(
        self,
        node: str | int,
        *,
        owner_cna: int,
        owner_eid: bytes,
        tokenid: int,
        uba: int,
        length: int,
        cache: Literal["cc", "nc"] = "cc",
        pa: int = 0,
        local_cna: int = 0,
    ) -> int:
        """Program a decoder entry of `node`, as a management plane would.

        Returns the local physical address that IMPORT takes. `pa` and `local_cna` 0 leave the choice to the
        fabric. Raises ControlError: ENOENT no such owner, ENOSPC window full, EEXIST `pa` taken, EINVAL
        length or address (driver specification 22.3 rule 2).

        `owner_cna`, `owner_eid`, `tokenid`, `uba` and `length` (bytes) as in the owner's `obmm.Handle`; `cache` "cc" or "nc".
        """
        result: int = self.request(
            "program",
            node=self._name(node),
            owner_cna=owner_cna,
            owner_eid=owner_eid.hex(),
            tokenid=tokenid,
            uba=uba,
            length=length,
            cache=cache,
            pa=pa,
            local_cna=local_cna,
        )
        return result

    @property
    def closed(self) -> bool:
        return not self._close.alive

    def close(self) -> None:
        """Stop the server: mappings of its memory get SIGBUS, its files and its socket are deleted."""
        self._close()

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<obmm.emulator.Fabric {self.socket} nodes={','.join(self.nodes)}{state}>"

    def _name(self, node: str | int) -> str:
        if isinstance(node, int):
            return self.nodes[node]
        if node not in self.nodes:
            raise ValueError(f"no node {node!r}; this fabric has {', '.join(self.nodes)}")
        return node


def start(
    nodes: Nodes = 2,
    topology: str | os.PathLike[str] | None = None,
    *,
    strict: bool = False,
    seed: int = 0,
    log_level: str = "INFO",
    fabric: str | None = None,
) -> Fabric:
    """Start a fabric that lives until the returned handle is closed or this process dies.

    `nodes` is a number (they are called a, b, c, ...) or a list of names; `topology` a TOML file that
    describes the whole fabric instead. `strict` models caches with random early evictions from `seed`
    (driver specification 22.3 rule 1). `fabric`: the name of a profile, or its file (docs/fabric.md): guarded calls and
    gathers on imports from it, of all Python processes, take as long as is modelled. Raises FabricError with the server's reason.

    `log_level`: of the server's log.

    >>> with obmm.emulator.start(nodes=3) as own:
    ...     own.nodes
    ('a', 'b', 'c')
    """
    name = f"fabric-{os.getpid()}-{secrets.token_hex(4)}"
    server, lifeline = launch(
        name, nodes, topology, strict=strict, seed=seed, log_level=log_level, fabric=fabric, outlive=False
    )
    try:
        return Fabric(fabric_directory(name), server, lifeline)
    except BaseException:
        _end(server, lifeline, os.getpid())
        raise


def wait_as(device: str, fabric: str | None) -> None:
    """Let this process wait on imports from `device` ("emulator...") as `fabric` is modelled, or not at all (None), whatever
    the fabric itself was started with.  ObmmArgumentError for a profile that is none.

    >>> obmm.emulator.wait_as(fabric.device("b"), "ub-cacheable")
    >>> obmm.emulator.wait_as(fabric.device("b"), None)
    """
    at = Backend.parse(device).socket
    if at is not None:
        set_fabric(at, None if fabric is None else Profile.named(fabric))


def start_daemon(
    nodes: Nodes = 2,
    topology: str | os.PathLike[str] | None = None,
    *,
    name: str = DEFAULT,
    strict: bool = False,
    seed: int = 0,
    log_level: str = "INFO",
    fabric: str | None = None,
) -> dict[str, Any]:
    """Start a fabric that outlives this process (``obmm emulate up``); what the server said when it was ready."""
    server, lifeline = launch(
        name, nodes, topology, strict=strict, seed=seed, log_level=log_level, fabric=fabric, outlive=True
    )
    with lifeline:
        try:
            ready: dict[str, Any] = json.loads(_line(lifeline, fabric_directory(name)))
        except BaseException:
            server.wait(STOP_SECONDS)
            raise
    server.returncode = 0  # not ours to wait for: it goes on without this process
    return ready


def launch(
    name: str,
    nodes: Nodes,
    topology: str | os.PathLike[str] | None,
    *,
    strict: bool,
    seed: int,
    log_level: str,
    fabric: str | None,
    outlive: bool,
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a server process and give it its orders; it answers over the returned socket."""
    modelled = None if fabric is None else told(fabric)
    runtime = ensure_runtime_directory()
    remove_stale()
    orders = {
        "name": name,
        "runtime": str(runtime),
        "nodes": nodes if isinstance(nodes, int) else list(nodes),
        "topology": None if topology is None else read_regular(topology, MOST_BYTES).decode(),
        "strict": strict,
        "seed": seed,
        "log_level": log_level,
        "outlive": outlive,
        "beside": {TOLD: modelled},
        "modelled": fabric,
    }
    ours, theirs = socket.socketpair()
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, str(Path(__file__).resolve().parents[1]), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            # who outlives its starter must not hold the starter's pipes open; its log says what there is to say
            stderr=subprocess.DEVNULL if outlive else None,
            start_new_session=True,
            cwd="/",
        )
    try:
        ours.settimeout(START_SECONDS)
        ours.sendall(json.dumps(orders).encode() + b"\n")
    except BaseException:
        _end(server, ours, os.getpid())
        raise
    return server, ours


def _line(lifeline: socket.socket, directory: FabricDirectory) -> bytes:
    """What the server says when it is ready; FabricError when it refuses or dies."""
    line = bytearray()
    while not line.endswith(b"\n"):
        try:
            part = lifeline.recv(65536)
        except TimeoutError:
            raise FabricError(f"the fabric did not start within {START_SECONDS:.0f} s; see {directory.log}") from None
        except ConnectionError:
            part = b""
        if not part:
            raise FabricError(f"the fabric's server died while starting; see {directory.log}")
        line += part
    answer = json.loads(line)
    if "error" in answer:
        raise FabricError(answer["error"])
    return bytes(line)


def _end(server: subprocess.Popen[bytes], lifeline: socket.socket, owner: int) -> None:
    """Let go of the server and wait until it is gone."""
    if os.getpid() != owner:
        return
    with lifeline:
        lifeline.settimeout(STOP_SECONDS)
        try:
            lifeline.shutdown(socket.SHUT_WR)
            while lifeline.recv(4096):
                pass
        except TimeoutError:
            server.kill()
        except OSError:
            pass
    server.wait()


_lifelines: weakref.WeakSet[socket.socket] = weakref.WeakSet()


@in_forked_children
def _forget_lifelines() -> None:
    """A forked child must not keep the server alive after its parent."""
    for lifeline in tuple(_lifelines):
        with contextlib.suppress(OSError):
            lifeline.close()
