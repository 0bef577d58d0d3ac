# SPDX-License-Identifier: Apache-2.0
"""Where the programs of a page run: a folder with a key, two emulated nodes, and hosts of the names that pages use."""

from __future__ import annotations

import contextlib
import inspect
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import obmm
from obmm import Server, emulator
from obmm.exchange import Key
from obmm.prefetch import Deadlines

HOST = "node-a"
"""What pages call the node that lends."""


class Place:
    """One page's own.  `run` runs its next block with some names given, `on` chooses this process's node."""

    def __init__(self, fabric: emulator.Fabric, folder: Path, patch: pytest.MonkeyPatch, page: str, texts: list[str]):
        self.fabric, self.folder, self.page = fabric, folder, page
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.ran = 0
        self._patch, self._texts, self._port = patch, texts, 0
        Key.generate(folder / "cluster.key")
        patch.chdir(folder)
        resolve = socket.getaddrinfo

        def here(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
            if host == HOST:
                host, port = "127.0.0.1", self._port
            return resolve(host, port, *arguments, **options)

        patch.setattr(socket, "getaddrinfo", here)
        patch.setattr(Deadlines.__init__, "__defaults__", (10.0,) * 4)  # a busy machine is not a fault

    def on(self, node: str) -> None:
        self.takes_environment({"OBMM_DEVICE": self.fabric.device(node)})

    def takes_environment(self, variables: dict[str, str]) -> None:
        for name, value in variables.items():
            self._patch.setenv(name, value)

    def lends(self, server: Server) -> Server:
        """`server` is what the pages' hosts serve, on whatever port it has."""
        self._port = server.port
        return server

    def takes(self, thing: Any, name: str, value: Any) -> None:
        self._patch.setattr(thing, name, value)

    def next(self) -> str:
        """The text of the next block."""
        self.ran += 1
        return self._texts[self.ran - 1]

    def part(self, text: str, **given: Any) -> dict[str, Any]:
        """Run some of a block."""
        self.names |= given
        exec(compile(text, self.page, "exec"), self.names)
        return self.names

    def run(self, **given: Any) -> dict[str, Any]:
        """Run the next block; all names that it left."""
        return self.part(self.next(), **given)

    def halves(self, mark: str) -> tuple[str, str]:
        """The next block, whose second half begins with the line `mark`: it stands for another process."""
        first, found, second = self.next().partition(mark)
        assert found, f"{self.page} has no line {mark!r} any more"
        return first, found + second

    @contextlib.contextmanager
    def lending(self, text: str, server: str = "server", **given: Any) -> Iterator[dict[str, Any]]:
        """Run a program that serves until its `server` is closed, on any free port of this host."""
        real = obmm.serve

        def anywhere(*arguments: Any, **options: Any) -> Server:
            return self.lends(real(*arguments, **options | {"host": "127.0.0.1", "port": 0}))

        names: dict[str, Any] = {"__name__": "__main__", **given}
        failed: list[BaseException] = []

        def work() -> None:
            try:
                exec(compile(text, self.page, "exec"), names)
            except BaseException as error:
                failed.append(error)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(obmm, "serve", anywhere)
            thread = threading.Thread(target=work)
            thread.start()
            try:
                until(lambda: server in names or failed)
                assert not failed, failed
                yield names
            finally:
                if server in names:
                    names[server].close()
                thread.join(30)
            assert not failed, failed
            assert not thread.is_alive()


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {inspect.getsource(condition)}"
        time.sleep(0.005)
    return result
