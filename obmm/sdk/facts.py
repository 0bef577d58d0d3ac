# SPDX-License-Identifier: Apache-2.0
"""What can be found out about a failed call: the values that section 13 of the SDK specification wants printed."""

from __future__ import annotations

import contextlib
import ctypes.util
import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from obmm.errors import ObmmError
from obmm.sdk.codes import Code
from obmm.sdk.places import place

if TYPE_CHECKING:
    from obmm.sdk.calls import Calls

DAEMON_SOCKET: Final = "/run/matrix/memory/MxmAgentIpcServer"
REFUSED_SECONDS: Final = 0.9
"""A refused connection waits for 2^n - 1 seconds after n attempts; every other failing start is immediate (5)."""

_Fact = Callable[["Calls", float, Mapping[str, Any]], str]


def facts(calls: Calls, operation: str, code: int, elapsed: float, given: Mapping[str, Any]) -> str:
    """What this process sees of the reasons of `code`, or an empty text.  Asks the library where that can help."""
    find = _FACTS.get((operation, code)) or _FACTS.get(("", code))
    if find is None:
        return ""
    with contextlib.suppress(ObmmError, OSError):
        return find(calls, elapsed, given)
    return ""


def entrance(standin: bool) -> str:
    """What must exist before a connection can be made: the daemon's socket, or a stand-in's; empty if none was named."""
    if not standin:
        return DAEMON_SOCKET
    folder = os.environ.get("OBMM_SDK_STANDIN", "")
    name = "state" if os.environ.get("OBMM_SDK_STANDIN_MODE") == "in-process" else "daemon.sock"
    return folder and os.path.join(folder, name)


def open_regions(folder: str = "/proc/self/fd") -> list[str]:
    """Region nodes that this process has open, as often as it has them."""
    found = []
    for entry in os.listdir(folder):
        with contextlib.suppress(OSError):
            target = os.readlink(os.path.join(folder, entry))
            if target.startswith("/dev/obmm_shmdev"):
                found.append(target)
    return sorted(found)


def _start(calls: Calls, elapsed: float, given: Mapping[str, Any]) -> str:
    library = "no libobmm.so.1 on the loader's path"
    if ctypes.util.find_library("obmm") is not None:
        library = "libobmm is on the loader's path"
    waited = f"it waited {elapsed:.1f} s"
    if elapsed >= REFUSED_SECONDS:
        waited += ", so the connection was refused: the daemon is dead, full, or does not let this user in"
    where = place(entrance(calls.library.standin is not None) or "OBMM_SDK_STANDIN")
    return f"{waited}; {where}; {_identity()}" + ("" if calls.library.standin else f"; {library}")


def _identity(*_: object) -> str:
    return f"this process has uid {os.geteuid()}, gid {os.getegid()}, groups {sorted(os.getgroups())}"


def _map_argument(calls: Calls, elapsed: float, given: Mapping[str, Any]) -> str:
    sizes = [entry.size for entry in calls.list_objects(given["name"]) if entry.name == given["name"]]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    known = f"the object has {sizes[0]} bytes" if sizes else "there is no such object"
    return f"{known}, {given['size']} were asked for; RLIMIT_NOFILE is {limit}, one descriptor per unit (128 MiB by default)"


def _groups(calls: Calls, elapsed: float, given: Mapping[str, Any]) -> str:
    groups = (", ".join(repr(host.name) for host in group.hosts) for group in calls.lookup_regions())
    return "the groups of this node: " + "; ".join(groups)


def _hosts(calls: Calls, elapsed: float, given: Mapping[str, Any]) -> str:
    return "the cluster's hosts: " + ", ".join(repr(host.name) for host in calls.cluster())


def _free(calls: Calls, elapsed: float, given: Mapping[str, Any]) -> str:
    hosts = (f"{host.name} {sum(numa.free for numa in host.numa) >> 20} MiB" for host in calls.cluster())
    return "free memory: " + ", ".join(hosts)


def _connection(calls: Calls, elapsed: float, given: Mapping[str, Any]) -> str:
    if not calls.connected:
        return "this process has no connection: initialize was not called, or finalize was"
    if elapsed >= calls.timeout:
        return (
            f"no answer within {calls.timeout:.0f} s: the daemon still finishes the work, so look before you repeat it"
        )
    return "the connection is lost: the daemon stopped or restarts; the library connects again about every second"


def _attachments(calls: Calls, elapsed: float, given: Mapping[str, Any]) -> str:
    found = open_regions()
    return f"open in this process: {', '.join(found)}" if found else ""


def _nodes(calls: Calls, elapsed: float, given: Mapping[str, Any]) -> str:
    nodes = sorted(Path("/dev").glob("obmm_shmdev*"))
    listed = "; ".join(place(node) for node in nodes[:8]) or "there is no /dev/obmm_shmdev* here"
    return f"{listed}; {_identity()}; O_SYNC is used exactly for flags 0x2 and, on importers, 0x8"


_FACTS: Final[dict[tuple[str, int], _Fact]] = {
    ("initialize", Code.MEMLIB): _start,
    ("map", Code.PARAM_INVALID): _map_argument,
    ("map", Code.NOPERM): _identity,
    ("map", Code.OBMM): _nodes,
    ("deallocate", Code.NOPERM): _identity,
    ("create_region", Code.CHECK_RESOURCE): _groups,
    ("allocate_with_provider", Code.NOT_FOUND): _hosts,
    ("allocate", Code.UBSE): _free,
    ("allocate_with_provider", Code.UBSE): _free,
    ("lease_malloc", Code.UBSE): _free,
    ("unmap", Code.UBSE): _attachments,
    ("", Code.NET): _connection,
}
