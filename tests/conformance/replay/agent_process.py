# SPDX-License-Identifier: Apache-2.0
"""The nursery: a small process that forks agents, and the loop that each agent runs.

Run as a script with one inherited SOCK_SEQPACKET descriptor.  A message is a
JSON object; a new agent's end of its own socket comes with the message.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from tests.conformance.replay.agent import Agent
    from tests.conformance.replay.native_system import LibcCalls, NativeSystem, TableCalls, tidy
else:
    from .agent import Agent
    from .native_system import LibcCalls, NativeSystem, TableCalls, tidy

LARGEST = 1 << 20


def receive(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    data, fds, _, _ = socket.recv_fds(control, LARGEST, 1)
    for fd in fds:
        os.set_inheritable(fd, False)
    return (json.loads(data), list(fds)) if data else None


def nursery(control: socket.socket) -> None:
    """Fork an agent for every message until the other end is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "LD_PRELOAD" not in os.environ:
        with contextlib.suppress(ImportError):
            import obmm._native  # noqa: F401  (once here instead of once in each agent)
    tidy()
    while (message := receive(control)) is not None:
        order, fds = message
        pid = os.fork()
        if pid == 0:
            control.close()
            _become_agent(order, socket.socket(fileno=fds[0]))
        os.close(fds[0])
        control.send(json.dumps({"pid": pid}).encode())


def _become_agent(order: dict[str, Any], control: socket.socket) -> None:
    try:
        table = order.get("table")
        calls = TableCalls(table["socket"], table.get("node")) if table else LibcCalls()
        if "LD_PRELOAD" in os.environ:
            # connect now: a case's first step may become another user
            with contextlib.suppress(OSError):
                os.close(os.open("/dev/obmm", os.O_RDONLY))
        system = NativeSystem(Path(order["probe"]), calls, order.get("real_hugetlb", True))
        work(Agent(system), control)
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(1)


def work(agent: Agent, control: socket.socket) -> None:
    """Perform one step a message until the other end is gone."""
    while (message := receive(control)) is not None:
        order, fds = message
        op, given = order["op"], order["in"]
        if op == "fork":
            pid = os.fork()
            if pid == 0:
                control.close()
                control = socket.socket(fileno=fds[0])
                continue
            os.close(fds[0])
            result: dict[str, Any] = {"ret": 0, "pid": pid}
        elif op == "exec":
            for fd in agent.files.values():
                os.set_inheritable(fd, True)
            os.execv("/bin/sleep", ["sleep", "600"])
        elif op == "exit":
            os._exit(0)
        elif op == "run":
            result = _run(agent, given)
        elif op == "where":
            at, length = agent.mappings[given["map"]]
            result = {"address": at, "length": length}
        else:
            try:
                result = agent.perform(op, given)
            except Exception as error:
                result = {"failure": f"{type(error).__name__}: {error}"}
        control.send(json.dumps(result).encode())


def _run(agent: Agent, order: dict[str, Any]) -> dict[str, Any]:
    """A function of another test, inside this process."""
    import importlib
    import traceback

    try:
        function = getattr(importlib.import_module(order["module"]), order["function"])
        result: dict[str, Any] = function(agent, order)
    except Exception:
        result = {"failure": traceback.format_exc()}
    return result


if __name__ == "__main__":
    nursery(socket.socket(fileno=int(sys.argv[1])))
