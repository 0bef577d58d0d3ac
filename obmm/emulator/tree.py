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
        self.root = root
        self._prefix = str(root)
        root.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Create or replace a file. Readers see the old text or the new one, never a part."""
        target = self._prefix + path
        staged = f"{self._prefix}/.staged"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(target, flags, mode)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
            descriptor = os.open(target, flags, mode)
            staged = ""
        except FileExistsError:
            descriptor = os.open(staged, flags, mode)
        else:
            staged = ""
        try:
            if data.strip(b"\0"):
                os.write(descriptor, data)
            else:
                os.ftruncate(descriptor, len(data))  # all zero: no page of memory
        finally:
            os.close(descriptor)
        if staged:
            os.rename(staged, target)

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        target = self._prefix + path
        try:
            os.unlink(target)
        except IsADirectoryError:
            shutil.rmtree(target, ignore_errors=True)
        except FileNotFoundError:
            pass
