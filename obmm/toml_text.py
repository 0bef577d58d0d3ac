# SPDX-License-Identifier: Apache-2.0
"""TOML that somebody wrote: bounded before it is read, and one kind of error for all that it may not be."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20


def parse_toml(text: bytes) -> dict[str, Any]:
    """The document in `text`; ValueError, in one line, for anything else.

    >>> parse_toml(b"a = 1")
    {'a': 1}
    """
    try:
        return tomllib.loads(text.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except tomllib.TOMLDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from None
    except ValueError:  # of int(), which has a limit of its own
        raise ValueError("a number of thousands of digits") from None


def never_waiting(path: str, flags: int) -> int:
    """An opener for `open`: a pipe without a writer is opened, and refused by its kind, instead of waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_toml(path: str | os.PathLike[str], most: int = MOST_BYTES) -> dict[str, Any]:
    """The document in a regular file of at most ``most`` bytes; ValueError for another, OSError if it cannot be read.

    >>> read_toml("/dev/zero")
    Traceback (most recent call last):
    ValueError: not a regular file
    """
    with open(Path(path), "rb", opener=never_waiting) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        text = file.read(most + 1)
    if len(text) > most:
        raise ValueError(f"more than {most} bytes")
    return parse_toml(text)
