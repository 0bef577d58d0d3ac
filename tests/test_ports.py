# SPDX-License-Identifier: Apache-2.0
"""The default port is one test's at a time, on the whole machine, and a stranger's server there is named."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import default_port

ROOT = Path(__file__).resolve().parent.parent
HOLDS = "import signal; from tests.ports import default_port\nwith default_port({}): print('held', flush=True); signal.pause()"


def some_port() -> int:
    """Free, and no other test's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_who_has_the_port_keeps_others_waiting_until_it_dies():
    port = some_port()
    command = [sys.executable, "-c", HOLDS.format(port)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(AssertionError, match="another run of the tests"), default_port(port, patience=0.1):
                raise RuntimeError("two have it")
            os.kill(holder.pid, signal.SIGKILL)
            with default_port(port, patience=30) as got:
                assert got == port
        finally:
            holder.kill()


def test_a_strangers_server_is_named_and_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with (
            pytest.raises(AssertionError, match=rf"port {port} is in use.*ss -ltnp sport = :{port}"),
            default_port(port, patience=0.1),
        ):
            raise RuntimeError("it is taken")
    with default_port(port) as got, socket.create_server(("127.0.0.1", got)):
        pass
