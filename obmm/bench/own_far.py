# SPDX-License-Identifier: Apache-2.0
"""The far node of a run on one machine: a process of its own on the exporting device, started when an arm needs it.

``python -m obmm.bench.own_far DEVICE BYTES`` prints how far it is and then its port, and serves until standard input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from obmm.bench import twonodes
from obmm.bench.far import Far
from obmm.children import python_module
from obmm.errors import ObmmError
from obmm.exchange.errors import LeasesOutstandingError

PLAIN = {"plain": True}
GRACE_S = 5.0


class NoFarNode(Exception):
    """The process could not serve; the text says why."""


class OwnFar:
    """Starts it once; `stack` ends it."""

    def __init__(
        self, stack: ExitStack, device: str, nbytes: int, environment: Mapping[str, str] | None = None
    ) -> None:
        self._stack, self._device, self._nbytes = stack, device, nbytes
        self._environment = {**os.environ, **(environment or {})}
        self._far: Far | None = None
        self._reason = ""

    def __call__(self, progress: Callable[[float], None]) -> Far:
        """The node.  NoFarNode when it cannot be had, also the second time."""
        if self._reason:
            raise NoFarNode(self._reason)
        if self._far is None:
            try:
                self._far = twonodes.connected(self._stack, f"127.0.0.1:{self._started(progress)}", PLAIN)
            except NoFarNode as reason:
                self._reason = str(reason)
                raise
        return self._far

    def _started(self, progress: Callable[[float], None]) -> int:
        command = python_module("obmm.bench.own_far", self._device, self._nbytes)
        pipe = subprocess.PIPE
        # a session of its own: Ctrl-C is for this process, which ends the other one in order
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, start_new_session=True, env=self._environment
        )
        self._stack.callback(_end, process)
        assert process.stdout is not None
        said: dict[str, object] = {}
        for line in process.stdout:
            said = json.loads(line)
            if "share" not in said:
                break
            progress(float(str(said["share"])))
        if "port" not in said:
            raise NoFarNode(str(said.get("reason") or f"the exporting process ended with status {process.wait()}"))
        return int(str(said["port"]))


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def main() -> None:
    """The helper process: a node of its own that publishes the tables of a run."""
    device, nbytes = sys.argv[1], int(sys.argv[2])

    def say(**words: object) -> None:
        print(json.dumps(words), flush=True)

    with ExitStack() as stack:
        try:
            served = twonodes.serving(
                stack, nbytes, "127.0.0.1", 0, device, PLAIN, lambda text, share: say(share=round(share, 3))
            )
        except ObmmError as error:
            say(reason=error.strerror or str(error))
            return
        say(port=served.server.port)
        sys.stdin.read()
        try:
            served.server.close(timeout=GRACE_S)
        except LeasesOutstandingError as error:
            # the importer died: what it still imports must not be removed here
            print(f"{error.strerror}; the regions stay, see `obmm gc`", file=sys.stderr, flush=True)
            os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the reader is gone
        os._exit(1)
