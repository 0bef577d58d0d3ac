# SPDX-License-Identifier: Apache-2.0
"""Child processes of a test, made by fork: cheap, and with the parent's descriptors."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from types import TracebackType


class Child:
    """A forked child that runs `body`, tells when it is ready, and then waits to be told or killed.

    `body` returns what the child does once it may go on, or None.
    """

    def __init__(self, body: Callable[[], Callable[[], object] | None]) -> None:
        ready, tell_ready = os.pipe()
        wait_go, self._go = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.close(self._go)
                after = body()
                os.write(tell_ready, b"r")
                os.read(wait_go, 1)
                if after is not None:
                    after()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(tell_ready)
        os.close(wait_go)
        said = os.read(ready, 1)
        os.close(ready)
        self._ended = False
        if said != b"r":
            self.finish()
            raise AssertionError("the child failed before it was ready")

    def finish(self) -> int:
        """Let it go on and wait for its end; the exit status."""
        os.close(self._go)
        self._ended = True
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        """SIGKILL, and wait."""
        os.kill(self.pid, signal.SIGKILL)
        assert self.finish() == -signal.SIGKILL

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)
            self.finish()
