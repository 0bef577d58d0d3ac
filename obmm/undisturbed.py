# SPDX-License-Identifier: Apache-2.0
"""A call of a library and the note of its result, with no interrupt in between.

Python raises out of signal handlers in the main thread only, after any instruction.  So a call of that thread that makes
or removes something is made, and noted, on a thread of its own; an interrupt of the waiting one comes through afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def undisturbed(work: Callable[[], T]) -> T:
    """What `work` returns or raises; a KeyboardInterrupt is raised when it has ended, and then it *has* ended."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    done: Future[T] = Future()
    thread = threading.Thread(target=_answer, args=(done, work), name="obmm-call", daemon=True)
    interrupt: BaseException | None = None
    while True:
        try:
            if thread.ident is None:
                thread.start()
            thread.join()
            break
        except RuntimeError as error:
            if "new thread" in str(error):  # none can be started: a limit, or the interpreter's end
                return work()
            # else an interrupt came into start(): it began, and can be joined in a moment
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    return done.result()


def _answer(done: Future[Any], work: Callable[[], Any]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)
