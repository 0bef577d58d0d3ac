# SPDX-License-Identifier: Apache-2.0
"""Runs a command once for each of its system calls, which fails; the rule is one sentence, and nothing stays.

In ``make test`` some calls of each command fail, the same ones each time: ``OBMM_INJECT_SEED`` chooses others.  ``make
every-call`` makes all of them fail.
"""

from __future__ import annotations

import errno
import gc
import os
import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import click
import pytest
from click.testing import CliRunner

from obmm.cli.main import main
from tests import seeds
from tests.exchange.conftest import until
from tests.exchange.injection import Injector

MOST = 5000  # calls of a command, beyond which something is wrong
WHOLE = bool(os.environ.get("OBMM_EVERY_CALL"))  # all of them take an hour; every run takes a share
FROM = int(os.environ.get("OBMM_EVERY_CALL_FROM", "0"))
ERRORS: tuple[Callable[[], BaseException], ...] = (
    *(
        partial(OSError, number, os.strerror(number))
        for number in (errno.EIO, errno.ENOMEM, errno.EACCES, errno.ENOSPC)
    ),
    KeyboardInterrupt,  # what SIGINT and SIGTERM are, at each step
    partial(OSError, errno.EMFILE, os.strerror(errno.EMFILE)),
    MemoryError,
)
SPARED = ("close", "unlink")  # they close and remove also when they fail, and in here they would not


def at_once(server: Any, how: Any, grace: float, announce: Callable[[], None], *more: Any) -> bool:
    """In place of waiting for a signal."""
    announce()
    server.close(timeout=grace)
    return False


def play(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, left: Callable[[], Any], share: int,
    after: Callable[[], object] = lambda: None,
) -> int:  # fmt: skip
    """Every failure of a command, or ``share`` of them -> how many were tried.

    `left`: what exists that a command might leave; `after`: puts back what the command is there to change.
    """
    first = _run(arguments, monkeypatch, Injector(MOST, OSError(), SPARED))
    after()
    calls = len(first.calls)
    assert calls < MOST, arguments
    gc.collect()  # what the test before this one left to the collector goes now, not below
    before = left()
    chosen = range(FROM, calls) if WHOLE else some_of(calls, share)
    for at in chosen:
        injector = _run(arguments, monkeypatch, Injector(at, ERRORS[at % len(ERRORS)](), SPARED))
        after()
        gc.collect()
        try:
            until(lambda: left() == before, 10)
        except AssertionError:
            what = f"call {at} ({injector.hit}) of {arguments} ended in {injector.error!r} (OBMM_INJECT_SEED={seeds.INJECT})"
            raise AssertionError(f"{what}: {left()} stayed, not {before}") from None
    return len(chosen)


def some_of(calls: int, share: int) -> list[int]:
    """One of each of ``share`` stretches of the numbers below `calls`: beginning, middle and end are all among them."""
    chooser = random.Random(seeds.INJECT)
    bounds = [calls * part // share for part in range(share + 1)]
    return [chooser.randrange(*stretch) for stretch in pairwise(bounds) if stretch[0] < stretch[1]]


def _run(arguments: list[str], monkeypatch: pytest.MonkeyPatch, injector: Injector) -> Injector:
    with monkeypatch.context() as patched:
        patched.setattr(click.Command, "invoke", injector.around(click.Command.invoke))
        answer = CliRunner().invoke(main, arguments)
    what = f"call {injector.at} ({injector.hit}) of {arguments} ended in {injector.error!r}"
    assert answer.exception is None or isinstance(answer.exception, SystemExit), (what, answer.exc_info)
    assert answer.exit_code in (0, 1), (what, answer.exit_code, answer.output)
    assert "Traceback" not in answer.output, (what, answer.output)
    return injector
