# SPDX-License-Identifier: Apache-2.0
"""The plug-in that carries staged rows to an accelerator (Engram specification 13.4); the core has none."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from obmm.arguments import wrong_type


class DeviceCopy(Protocol):
    """Pinned staging, an asynchronous copy with an event, and the wait for it.

    A plug-in for `EngramPrefetcher`; this one "copies" within the host:

    >>> class OnTheHost:
    ...     def allocate_pinned(self, nbytes):
    ...         return bytearray(nbytes)
    ...     def allocate(self, shape):
    ...         return np.zeros(shape, "u1")
    ...     def copy(self, destination, source):
    ...         destination[...] = source
    ...     def wait(self, event, stream):
    ...         pass
    ...     def done(self, event):
    ...         return True
    ...     def seconds(self, event):
    ...         return None
    >>> device = OnTheHost()
    >>> pinned = np.frombuffer(device.allocate_pinned(4), "u1")
    >>> there = device.allocate((4,))
    >>> event = device.copy(there, pinned)
    >>> device.wait(event, None), device.done(event), device.seconds(event)
    (None, True, None)
    """

    def allocate_pinned(self, nbytes: int) -> Any:
        """Host memory that the device can copy from: a writable buffer of `nbytes`."""
        ...

    def allocate(self, shape: tuple[int, ...]) -> Any:
        """A uint8 device tensor of that `shape`, zeroed; its address never changes.  Slicing its first axis gives a
        view.
        """
        ...

    def copy(self, destination: Any, source: NDArray[np.uint8]) -> Any:
        """Queue the copy of `source`, uint8 of the shape of `destination`, behind whatever still reads that; returns its
        event.
        """
        ...

    def wait(self, event: Any, stream: Any) -> None:
        """Make `stream` (None: the current one) wait for the event; the host does not wait."""
        ...

    def done(self, event: Any) -> bool:
        """Whether the copy has left the staging memory."""
        ...

    def seconds(self, event: Any) -> float | None:
        """How long the copy took on the device, once done: a time that only the device knows; None: it was not measured."""
        ...


def checked(device: DeviceCopy) -> DeviceCopy:
    """`device`; ObmmArgumentError for what cannot be one, as a device's name."""
    if not all(
        callable(getattr(device, name, None)) for name in ("allocate_pinned", "allocate", "copy", "wait", "done")
    ):
        raise wrong_type("PREFETCH", "device", device, "None, NativeDevice(Accelerator.cuda(0)), or a DeviceCopy")
    return device
