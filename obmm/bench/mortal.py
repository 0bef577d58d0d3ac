# SPDX-License-Identifier: Apache-2.0
"""An owner that is killed on purpose: how soon does a reader of its registered memory hear of it?

The far node starts it when it is asked to, gives its ticket, and kills it: calls over the exchange, because tickets are
secrets.  ``python -m obmm.bench.mortal`` is the process that dies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Final

from obmm import urma
from obmm.bench import content
from obmm.children import python_module
from obmm.errors import ObmmError
from obmm.exchange import Peer, Refusal, RequestRefusedError
from obmm.exchange.calls import Caller
from obmm.urma import Ticket

CALLS: Final = "bench-mortal"
START, TICKET, KILL = b"start", b"ticket", b"kill"
NBYTES: Final = 64 << 10
_PATIENCE_S: Final = 30.0
_PAUSE_S: Final = 0.02
_LINE: Final = 4096


class Mortals:
    """Answers those calls on the far node.  One process at a time; `stack` ends it."""

    def __init__(self, stack: ExitStack) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        stack.callback(self._kill)

    def call(self, caller: Caller, body: bytes) -> bytes:
        """For the server: start it, ask for its ticket ("" while it is not there yet), or kill it."""
        if body == START:
            self._kill()
            command, pipe = python_module("obmm.bench.mortal"), subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdout.fileno(), False)
            return b""
        if body == TICKET:
            return self._ticket()
        if body == KILL:
            self._kill()
            return b""
        raise RequestRefusedError(Refusal.PROTOCOL, "start, ticket or kill")

    def _ticket(self) -> bytes:
        if self._process is None or self._process.stdout is None:
            raise RequestRefusedError(Refusal.NO_REGION, "no process was started")
        self._said += self._process.stdout.read(_LINE) or b""
        if self._said.endswith(b"\n"):
            try:
                return bytes.fromhex(self._said.decode())
            except ValueError:
                raise RequestRefusedError(Refusal.NO_REGION, self._said.decode(errors="replace")[:200]) from None
        if self._process.poll() is not None:
            raise RequestRefusedError(Refusal.NO_REGION, f"it ended with status {self._process.returncode}")
        return b""

    def _kill(self) -> None:
        if self._process is not None:
            with self._process as process:  # its pipes are closed, and it is waited for
                process.kill()
        self._process, self._said = None, b""


def start(peer: Peer) -> Ticket:
    """A ticket of a process that `kill` ends.  RequestRefusedError with the far side's reason."""
    peer.call(CALLS, START)
    end = time.monotonic() + _PATIENCE_S
    while not (answer := peer.call(CALLS, TICKET)):
        if time.monotonic() > end:
            raise RequestRefusedError(
                Refusal.NO_REGION, f"the process to be killed was not ready in {_PATIENCE_S:.0f} s"
            )
        time.sleep(_PAUSE_S)  # the far side answers at once, whether it is ready or not
    return Ticket.unpack(answer)


def kill(peer: Peer) -> None:
    """When this returns the process is dead."""
    peer.call(CALLS, KILL)


def main() -> None:
    """The process that dies, or ends with its parent."""
    try:
        with urma.Context() as context, context.queue(depth=64, list_max=64) as queue:
            memory = context.buffer(NBYTES, "r")
            content.fill_array(memory, lambda share: None)
            print(context.segment_of(memory)[0].ticket(queue).hex(), flush=True)
            sys.stdin.read()
    except ObmmError as error:
        print(error.strerror or error, flush=True)


if __name__ == "__main__":
    main()
