# SPDX-License-Identifier: Apache-2.0
"""Files and folders as explanations name them."""

from __future__ import annotations

import os
import stat


def place(path: str | os.PathLike[str]) -> str:
    """A path with its mode and owner, or why it cannot be looked at."""
    try:
        info = os.stat(path)
    except OSError as error:
        return f"{os.fspath(path)}: {error.strerror}"
    return f"{os.fspath(path)} is {stat.filemode(info.st_mode)} of {info.st_uid}:{info.st_gid}"
