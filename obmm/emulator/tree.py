# SPDX-License-Identifier: Apache-2.0
"""A node's sysfs, procfs and device markers as real files under one root."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class DiskTree:
    """Keeps the files below `root` equal to what the model announces.

    Paths are the node's own, absolute: ``/sys/devices/obmm/obmm_shmdev1/size``.
    """

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.root = root.resolve()
        self._prefix = str(self.root)
        self._replaced: dict[str, tuple[bytes, int]] = {}
        """What files that change say now: pool counters and their like are announced more often than they change."""
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Create or replace a file. Readers see the old text or the new one, never a part.

        A device node stands here as a plain file with its numbers in it.
        """
        target = self._prefix + path
        try:
            self._create(target, data, mode & 0o7777)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
            self._create(target, data, mode & 0o7777)
        except FileExistsError:
            if self._replaced.get(path) == (data, mode):
                return
            staged = f"{self._prefix}/.staged"
            self._create(staged, data, mode & 0o7777)
            os.rename(staged, target)
            self._replaced[path] = data, mode

    def _create(self, target: str, data: bytes, mode: int) -> None:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            if mode & self._umask:
                os.fchmod(descriptor, mode)
            if data.strip(b"\0"):
                os.write(descriptor, data)
            else:
                os.ftruncate(descriptor, len(data))  # all zero: no page of memory
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        target = self._prefix + path
        for known in [one for one in self._replaced if one == path or one.startswith(path + "/")]:
            del self._replaced[known]
        try:
            os.unlink(target)
        except IsADirectoryError:
            shutil.rmtree(target, ignore_errors=True)
        except FileNotFoundError:
            pass
