# SPDX-License-Identifier: Apache-2.0
"""Which nodes a run on one machine measures."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import obmm
from obmm.errors import ObmmArgumentError
from obmm.sdk.standin import StandIn


@dataclass(frozen=True, slots=True)
class Nodes:
    """Device texts of `obmm.open`: where the tables are, and where they are measured."""

    exporting: str
    measuring: str


def nodes(stack: ExitStack, device: str | None) -> Nodes:
    """The device named here or by OBMM_DEVICE, twice (loopback), or two nodes of an emulated fabric that ends with `stack`;
    the document says which it was."""
    named = device or os.environ.get("OBMM_DEVICE")
    if named:
        return Nodes(named, named)
    fabric = stack.enter_context(obmm.emulator.start(nodes=2))
    return Nodes(fabric.device(0), fabric.device(1))


def stand_in_nodes(stack: ExitStack, device: str | None) -> Nodes:
    """Two nodes of an emulated fabric with a stand-in for the SDK on them, named in this process's environment."""
    named = device or os.environ.get("OBMM_DEVICE")
    if named:
        raise ObmmArgumentError.because(
            "BENCH",
            errno.EINVAL,
            f"--stand-in with device {named}",
            "the stand-in plays an emulated cluster of its own: leave out --device and OBMM_DEVICE",
        )
    fabric = stack.enter_context(obmm.emulator.start(nodes=2))
    standin = stack.enter_context(StandIn(fabric))
    environment = standin.environment(fabric.nodes[1])
    stack.enter_context(_set(environment))
    return Nodes(fabric.device(0), fabric.device(1))


@contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
