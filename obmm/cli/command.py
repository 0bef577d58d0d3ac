# SPDX-License-Identifier: Apache-2.0
"""What every command does alike: SIGTERM ends it as Ctrl-C does, and whatever the system refuses is one sentence."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import click

from obmm.cli.text import in_lines
from obmm.errors import ObmmError
from obmm.names import near

# What to do about an errno that can come from anywhere; operations of the driver have their own table (obmm.explanations).
_FIXES = {
    errno.ENOSPC: "the disk is full: make room, or write elsewhere",
    errno.EDQUOT: "the quota is used up: make room, or write elsewhere",
    errno.EACCES: "check owner and mode, also of the folders above it",
    errno.EPERM: "this needs another user, or root",
    errno.ENOENT: "check the path; folders are not made for you",
    errno.ENOTDIR: "a part of the path is not a folder",
    errno.EISDIR: "name a file, not a folder",
    errno.EROFS: "the file system is read-only: write elsewhere",
    errno.EMFILE: "raise the limit (ulimit -n)",
    errno.ENFILE: "the whole machine has: end programs, or raise fs.file-max",
    errno.ENOMEM: "end programs, or use a machine with more",
    errno.EADDRINUSE: "another program listens there: choose another port",
    errno.ENXIO: "that pipe has no reader: start one first",
    errno.EIO: "the device or the disk failed: see the kernel's log",
}


@contextmanager
def one_sentence() -> Iterator[None]:
    """Errors of the system and of obmm become click's: one sentence on stderr and exit status 1, no traceback."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except BrokenPipeError:
        _close_stdout()  # the reader of our output is gone: end without a message
        raise click.exceptions.Exit(1) from None
    except ObmmError as error:
        raise click.ClickException(error.strerror or str(error)) from error
    except OSError as error:
        with suppress(
            OSError
        ):  # if it was stdout that refused, Python would try once more at its end, and say so its own way
            _flush()
        raise click.ClickException(sentence(error)) from error
    except subprocess.SubprocessError as error:
        raise click.ClickException(f"a process that was started did not do its part: {error}") from error
    except MemoryError as error:
        raise click.ClickException("this process is out of memory") from error
    except (RuntimeError, KeyError) as error:
        if not _is_about_accounts(error):
            raise
        raise click.ClickException(
            f"{str(error).strip(chr(34) + chr(39))}: this user has no entry in the system's accounts; set HOME"
        ) from error
    except UnicodeError as error:
        raise click.ClickException(f"a name that is not text of this system: {error}") from error


@contextmanager
def _as_text() -> Iterator[None]:
    """What a file, a server or a path says in an error is shown as text, and acts on no terminal."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = in_lines(error.message)
        raise


def sentence(error: OSError) -> str:
    """What was refused, why, and what to do."""
    what = ": ".join(str(each) for each in (error.filename, error.filename2) if each is not None)
    why = error.strerror or str(error) or type(error).__name__
    fix = _FIXES.get(error.errno or 0, "")
    return f"{what + ': ' if what else ''}{why}{'; ' + fix if fix else ''}"


def _is_about_accounts(error: Exception) -> bool:
    """The words of Path.home() and the pwd module, whose errors have no class of their own."""
    text = str(error)
    return "home directory" in text or "getpwuid" in text or "getpwnam" in text or "getgrgid" in text


def _close_stdout() -> None:
    """Python writes what is left at its end: into nothing, so that it does not complain either."""
    with suppress(OSError, ValueError, AttributeError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM and a terminal that hangs up raise KeyboardInterrupt, once: what is open is closed in order, and another one
    does not cut that short."""
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread() or not numbers:
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    for each in numbers:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)


class Command(click.Command):
    """A command of obmm; use it as ``@click.command(cls=Command)``."""

    def invoke(self, ctx: click.Context) -> Any:
        """In order, whatever the system says."""
        with terminated_as_interrupted(), _as_text(), one_sentence():
            result = super().invoke(ctx)
            _flush()
            return result


class Group(click.Group):
    """A group of commands, which all behave so."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """A name that no command has is answered with those like it."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            raise click.UsageError(
                f"no command is called {args[0]!r}; there is {', '.join(near(args[0], names) or names)}", ctx
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """In order, whatever the system says."""
        with terminated_as_interrupted(), _as_text(), one_sentence():
            result = super().invoke(ctx)
            _flush()
            return result


def _flush() -> None:
    """What was printed is out, or the command has failed."""
    if sys.stdout is None:  # it was closed before the command began
        return
    try:
        sys.stdout.flush()
    except OSError:
        _close_stdout()
        raise
