# SPDX-License-Identifier: Apache-2.0
"""Where commands write their logs.  A reader that stops costs lines, never the command."""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from obmm.background import LINES, Background
from obmm.exchange.audit import LINES as AUDIT_LINES

PATIENCE_MS = 200
PIECE = 4096  # what a pipe that is writable takes without blocking (PIPE_BUF)


class DescriptorHandler(logging.Handler):
    """Writes lines to a descriptor that somebody else may have stopped to read.

    It waits `PATIENCE_MS` for room; a line that is not taken then is counted as dropped.  Nothing is ever held by a lock at
    the end of the process.
    """

    def __init__(self, fd: int, formatter: logging.Formatter, lines: Background) -> None:
        super().__init__()
        self._fd = fd
        self._lines = lines
        self.setFormatter(formatter)

    def createLock(self) -> None:
        self.lock = None  # one thread writes; a lock would outlive it at the end

    def emit(self, record: logging.LogRecord) -> None:
        """A full disk and a reader that stopped cost the line."""
        try:
            self.write(memoryview((self.format(record) + "\n").encode(errors="backslashreplace")))
        except OSError:
            self._lines.dropped += 1

    def write(self, data: memoryview) -> None:
        """All of it, or OSError."""
        while data:
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            if not poll.poll(PATIENCE_MS):
                raise BlockingIOError("the log has no reader")
            data = data[os.write(self._fd, data[:PIECE]) :]


class FileHandler(DescriptorHandler):
    """Appends to a file, and opens it anew after a rotation has moved it away."""

    def __init__(self, path: Path, formatter: logging.Formatter, lines: Background) -> None:
        self._path = path
        super().__init__(self._opened(), formatter, lines)

    def _opened(self) -> int:
        # a pipe without a reader is refused and not waited for, one whose reader stopped costs lines
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        return os.open(self._path, flags, 0o640)

    def write(self, data: memoryview) -> None:
        """To the file that has the name now."""
        try:
            moved = not os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except FileNotFoundError:
            moved = True
        if moved:
            old, self._fd = self._fd, self._opened()
            os.close(old)
        super().write(data)


def tell(text: str) -> None:
    """Say something on stderr from a service that must go on: a reader that stopped costs the line, and no more."""
    try:
        fd = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # none, or a program's own
        click.echo(text, err=True)
        return
    with suppress(OSError):
        DescriptorHandler(fd, logging.Formatter(), LINES).write(
            memoryview(f"{text}\n".encode(errors="backslashreplace"))
        )


def log_to_stderr(verbose: bool) -> None:
    """Log lines of peers, leases and revocations; only programs configure logging, never the library."""
    logger = logging.getLogger("obmm.exchange")
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
    if not any(isinstance(each, DescriptorHandler) for each in logger.handlers):
        formatter = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        logger.addHandler(DescriptorHandler(2, formatter, LINES))
    logging.getLogger("obmm.exchange.audit").propagate = False


def audit_to(path: Path | None) -> None:
    """The audit's lines of JSON go to this file; without one nowhere."""
    logger = logging.getLogger("obmm.exchange.audit")
    logger.propagate = False
    if path is None:
        return
    logger.setLevel(logging.INFO)
    for each in tuple(logger.handlers):
        logger.removeHandler(each)
    logger.addHandler(FileHandler(path, logging.Formatter("%(message)s"), AUDIT_LINES))


def line_writer(path: Path | None) -> Callable[[str], None]:
    """Writes lines to a file, or to stdout; OSError when it does not take one in time."""
    handler = (
        DescriptorHandler(1, logging.Formatter("%(message)s"), LINES)
        if path is None
        else FileHandler(path, logging.Formatter("%(message)s"), LINES)
    )
    return lambda line: handler.write(memoryview(f"{line}\n".encode(errors="backslashreplace")))
