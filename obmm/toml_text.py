# SPDX-License-Identifier: Apache-2.0
"""TOML that somebody wrote: bounded before it is read, and one kind of error for all that it may not be."""

from __future__ import annotations

import errno
import os
import tomllib
from typing import Any

from obmm.regular import read_regular

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


def read_toml(path: str | os.PathLike[str], most: int = MOST_BYTES) -> dict[str, Any]:
    """The document in a regular file of at most ``most`` bytes; ValueError for another, OSError if it cannot be read.

    >>> read_toml("/dev/zero")
    Traceback (most recent call last):
    ValueError: not a regular file
    """
    try:
        text = read_regular(path, most)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EFBIG):
            raise ValueError(error.strerror) from None
        raise
    return parse_toml(text)
