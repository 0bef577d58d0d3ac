# SPDX-License-Identifier: Apache-2.0
"""Which kernel answers: the driver's device node, or an emulated fabric."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from obmm._native import ffi, lib
from obmm.arguments import wrong_type
from obmm.driver import abi
from obmm.driver.broker_client import device_behind
from obmm.errors import DeviceNotFoundError, ObmmArgumentError, ObmmError, errno_name


def runtime_directory() -> Path:
    """Where ``obmm emulate up`` keeps its socket: ``$XDG_RUNTIME_DIR/obmm``, or a folder of this user's under /tmp."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "obmm" if base else Path(f"/tmp/obmm-{os.getuid()}")


def ensure_runtime_directory() -> Path:
    """The runtime folder, made if needed; PermissionError when others could reach into it."""
    path = runtime_directory()
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        raise FileNotFoundError(
            errno.ENOENT, f"XDG_RUNTIME_DIR is {os.environ.get('XDG_RUNTIME_DIR')!r}, which does not exist"
        ) from None
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise PermissionError(
            errno.EPERM,
            f"{path} must be a folder of uid {os.geteuid()} with mode 0700, but it is "
            f"{stat.filemode(info.st_mode)} of uid {info.st_uid}; remove it or set XDG_RUNTIME_DIR",
        )
    return path


def fabric_hint() -> str:
    """For who meant the fabric of `obmm emulate up` and did not say so; "" when none is there."""
    node = first_node_up()
    if node is None:
        return ""
    return (
        f"; an emulated fabric is up here: OBMM_DEVICE=emulator#{node} is its node {node}, and another node is another machine "
        "(`obmm emulate status` lists them)"
    )


def first_node_up() -> str | None:
    """The first node of the fabric of `obmm emulate up`; None when none runs."""
    out = ffi.new("struct obmm_sys **")
    try:
        if not stat.S_ISSOCK(default_socket().stat().st_mode):
            return None
        table = Backend(str(default_socket())).connect(out)
    except OSError:
        return None
    try:
        return str(ffi.string(table.name).decode(errors="replace")).rpartition("#")[2]
    finally:
        table.destroy(table)


def default_socket() -> Path:
    """The socket that ``obmm.open("emulator")`` uses."""
    return runtime_directory() / "fabric.sock"


@dataclass(frozen=True, slots=True)
class Backend:
    """One kernel to talk to.

    `socket` is None for the driver; for an emulated fabric it is the server's unix socket, and `node` the emulated
    node (None: the fabric's first).  `broker` is the socket of the broker that opens the nodes for this process, or None.

    >>> obmm.Backend.parse("/dev/obmm").is_emulator
    False
    >>> print(obmm.Backend.parse("emulator:/run/some.socket#b"))
    emulator:/run/some.socket#b
    """

    socket: str | None = None
    node: str | None = None
    broker: str | None = None

    @classmethod
    def parse(cls, text: str | None = None) -> Backend:
        """The backend named by `text`, or by OBMM_DEVICE, or the driver.  Never falls back from one to another.

        Forms: ``/dev/obmm``, ``emulator`` (the fabric of ``obmm emulate up``), ``emulator:<socket>[#<node>]``,
        ``emulator#<node>``, and ``broker:<socket>``: nodes are opened by `obmm open-broker`, which is asked
        at once what stands behind it.

        ObmmArgumentError for a `text` of no such form.
        """
        given = text if text is not None else os.environ.get("OBMM_DEVICE") or abi.DEV_PATH
        if not isinstance(given, str):
            raise wrong_type("OPEN", "device", given, "a text such as '/dev/obmm' or 'emulator'")
        kind, _, node = given.partition("#")
        if kind == abi.DEV_PATH and not node:
            return cls()
        name, _, socket = kind.partition(":")
        if name == "emulator":
            return cls(socket or str(default_socket()), node or None)
        if name == "broker" and socket and not node:
            return replace(cls.parse(device_behind(socket)), broker=socket)
        raise ObmmArgumentError.because(
            "OPEN",
            errno.EINVAL,
            f"{given!r} names no device",
            f"{abi.DEV_PATH!r}, 'emulator[#<node>]', 'emulator:<socket>[#<node>]' or 'broker:<socket>' (argument or OBMM_DEVICE)",
            "docs/emulator.md",
        )

    @property
    def is_emulator(self) -> bool:
        """True when figures measured here say nothing about hardware."""
        return self.socket is not None

    def __str__(self) -> str:
        if self.broker is not None:
            return f"broker:{self.broker} ({replace(self, broker=None)})"
        if self.socket is None:
            return "kernel"
        return f"emulator:{self.socket}" + (f"#{self.node}" if self.node else "")

    def connect(self, out: Any) -> Any:
        """The system-call table of this backend, also in `out` (``struct obmm_sys **``), whose owner destroys it.

        DeviceNotFoundError if nothing answers.

        ObmmError, ObmmArgumentError: it answers, and cannot be used.  Between rooms: programs call `obmm.open`.
        """
        if self.broker is not None:
            replace(self, broker=None).connect(out)
            result = lib.obmm_sys_broker(self.broker.encode(), out[0], out)
            if result < 0:
                raise ObmmError.refused("BROKER_OPEN", -result, socket=self.broker)
            return out[0]
        if self.socket is None:
            out[0] = lib.obmm_sys_kernel()
            return out[0]
        node = ffi.NULL if self.node is None else self.node.encode()
        result = lib.obmm_sys_emulator(self.socket.encode(), node, out)
        if result == 0:
            return out[0]
        if result in (-errno.ENOENT, -errno.ECONNREFUSED):
            raise DeviceNotFoundError(
                -result,
                f"no emulated fabric answers on {self.socket} ({errno_name(-result)}); start one with "
                "`obmm emulate up`, or in a test with obmm.emulator.start()",
                operation="OPEN",
            )
        if result in (-errno.ENXIO, -errno.ENODEV):
            raise ObmmArgumentError.because(
                "OPEN",
                -result,
                f"the fabric on {self.socket} has no node {self.node!r}",
                "a node that `obmm emulate status` lists",
                "docs/emulator.md",
            )
        raise ObmmError.refused("OPEN", -result, socket=self.socket, node=self.node)
