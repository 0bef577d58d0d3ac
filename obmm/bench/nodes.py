# SPDX-License-Identifier: Apache-2.0
"""Which nodes a run on one machine measures."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import obmm
from obmm.errors import ObmmArgumentError
from obmm.sdk.standin import StandIn
from obmm.urma.standin import StandIn as UrmaStandIn


@dataclass(frozen=True, slots=True)
class Nodes:
    """Device texts of `obmm.open`: where the tables are, and where they are measured."""

    exporting: str
    measuring: str
    far_environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of a process on the exporting node, besides this one's."""


def nodes(stack: ExitStack, device: str | None) -> Nodes:
    """The device named here or by OBMM_DEVICE, twice (loopback), or two nodes of an emulated fabric that ends with `stack`;
    the document says which it was."""
    named = device or os.environ.get("OBMM_DEVICE")
    if named:
        return Nodes(named, named)
    fabric = stack.enter_context(obmm.emulator.start(nodes=2))
    return Nodes(fabric.device(0), fabric.device(1))


def modelled_nodes(stack: ExitStack, device: str | None, profile: str) -> Nodes:
    """Two nodes of an emulated fabric on which gathers take as long as `profile` says (docs/fabric.md)."""
    _refuse_device("--fabric", device)
    fabric = stack.enter_context(obmm.emulator.start(nodes=2, fabric=profile))
    return Nodes(fabric.device(0), fabric.device(1))


def stand_in_nodes(stack: ExitStack, device: str | None) -> Nodes:
    """Two nodes of an emulated fabric with stand-ins for the SDK and for URMA on them, named in this process's environment."""
    _refuse_device("--stand-in", device)
    fabric = stack.enter_context(obmm.emulator.start(nodes=2))
    standin = stack.enter_context(StandIn(fabric))
    environment = standin.environment(fabric.nodes[1])
    urma = stack.enter_context(UrmaStandIn(fabric.nodes))
    stack.enter_context(_set(environment | urma.environment(fabric.nodes[1])))
    return Nodes(fabric.device(0), fabric.device(1), urma.environment(fabric.nodes[0]))


def _refuse_device(option: str, device: str | None) -> None:
    named = device or os.environ.get("OBMM_DEVICE")
    if named:
        raise ObmmArgumentError.because(
            "BENCH",
            errno.EINVAL,
            f"{option} with device {named}",
            "it plays an emulated cluster of its own: leave out --device and OBMM_DEVICE",
        )


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
