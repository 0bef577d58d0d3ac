# SPDX-License-Identifier: Apache-2.0
"""A node's sysfs, procfs and device markers as real files under one root."""

from __future__ import annotations

import logging
import os
import shutil
import stat
from pathlib import Path

log = logging.getLogger("obmm.emulator")


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
        self._spare = _spare()
        self._umask = os.umask(0o077)
        os.umask(self._umask)

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Create or replace a file. Readers see the old text or the new one, never a part.

        A device node stands here as a plain file with its numbers in it. A file that cannot be written is
        logged: the call that it belongs to goes on, as in the kernel.
        """
        try:
            if stat.S_ISLNK(mode):
                self._link(self._prefix + path, data.decode())
            else:
                self._write(self._prefix + path, path, data, mode & 0o7777)
        except OSError as error:
            log.error("%s%s: %s", self._prefix, path, error)

    def _write(self, target: str, path: str, data: bytes, mode: int) -> None:
        try:
            self._create(target, data, mode)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
            self._create(target, data, mode)
        except FileExistsError:
            if self._replaced.get(path) == (data, mode):
                return
            staged = f"{self._prefix}/.staged"
            self._create(staged, data, mode)
            os.rename(staged, target)
            self._replaced[path] = data, mode

    @staticmethod
    def _link(target: str, to: str) -> None:
        try:
            os.symlink(to, target)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
            os.symlink(to, target)
        except FileExistsError:
            pass  # a link of the tree never leads elsewhere

    def _create(self, target: str, data: bytes, mode: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # one descriptor is always ours, open on the file written last: at the limit regions fail, not their files
        os.close(self._spare)
        try:
            self._spare = os.open(target, flags, mode)
        except OSError:
            self._spare = _spare()
            raise
        if mode & self._umask:
            os.fchmod(self._spare, mode)
        if data.strip(b"\0"):
            os.write(self._spare, data)
        else:
            os.ftruncate(self._spare, len(data))  # all zero: no page of memory

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

    def close(self) -> None:
        """Give the descriptor back. The files stay."""
        os.close(self._spare)


def _spare() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
