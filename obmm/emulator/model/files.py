# SPDX-License-Identifier: Apache-2.0
"""Open files of the two device nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

O_PATH = 0o10000000

if TYPE_CHECKING:
    from .host import Host
    from .region import Region


class OpenFile:
    """One `struct file`: shared by dup, fork and SCM_RIGHTS, kept alive by descriptors and mappings.

    `region` is None for `/dev/obmm`. A descriptor opened with O_PATH never reaches the driver and does
    not make a region busy.
    """

    __slots__ = ("closed", "flags", "host", "path", "region", "users")

    def __init__(self, host: Host, path: str, flags: int, region: Region | None) -> None:
        self.host = host
        self.path = path
        self.flags = flags
        self.region = region
        self.users = 1
        """Descriptors (as one) and mappings."""
        self.closed = False
        if not self.path_only:
            host.files.add(self)

    @property
    def path_only(self) -> bool:
        return self.flags & O_PATH != 0

    @property
    def readable(self) -> bool:
        return self.flags & os.O_ACCMODE in (os.O_RDONLY, os.O_RDWR)

    @property
    def writable(self) -> bool:
        return self.flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)

    @property
    def noncacheable(self) -> bool:
        """O_SYNC contains O_DSYNC, and the driver tests for any bit: O_DSYNC alone counts (9.1)."""
        return self.flags & os.O_SYNC != 0

    def release(self) -> None:
        """The last descriptor is gone; mappings may still hold the file. A second call does nothing."""
        with self.host.fabric.lock:
            if not self.closed:
                self.closed = True
                self.put()

    def get(self) -> None:
        """One more user: a mapping."""
        self.users += 1

    def put(self) -> None:
        """One user less; the last one closes the region's file."""
        self.users -= 1
        if not self.users and not self.path_only:
            self.host.files.remove(self)
            if self.region is not None:
                self.region.opens -= 1
