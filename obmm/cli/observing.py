# SPDX-License-Identifier: Apache-2.0
"""What an operator can reach of a running service: a server's control socket, metrics and health where asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import click

from obmm.cli.logs import tell
from obmm.driver.backend import ensure_runtime_directory
from obmm.exchange import Server
from obmm.exchange.control import ControlSocket, control_path
from obmm.exchange.net import split_address
from obmm.exchange.observing import Observatory, ServerFigures, Watched


@contextmanager
def observed(server: Server, metrics: str | None, collectors: Callable[[], Sequence[Any]] = tuple) -> Iterator[None]:
    """While the block runs ``obmm lease`` reaches the server, and /metrics and /healthz answer on ``metrics``.

    `collectors` makes what is shown there beside the server's own figures.
    """
    with ExitStack() as stack:
        stack.enter_context(watched(server, metrics, lambda: [ServerFigures(server), *collectors()]))
        try:
            path = control_path(ensure_runtime_directory(), server.port)
            stack.enter_context(ControlSocket(server, path))
        except OSError as error:  # a path that is too long for a socket has no errno
            why = error.strerror or f"{error}; fix: a shorter XDG_RUNTIME_DIR"
            tell(f"without a runtime folder `obmm lease` cannot reach this server: {why}")
        yield


def check_metrics(metrics: str | None) -> None:
    """What --metrics needs is here: to be asked before any work."""
    if metrics is not None:
        split_address(metrics)
        if importlib.util.find_spec("prometheus_client") is None:
            raise click.ClickException("--metrics needs the extra `metrics`: pip install prometheus-client")


@contextmanager
def watched(what: Watched, metrics: str | None, collectors: Callable[[], Sequence[Any]]) -> Iterator[None]:
    """While the block runs /metrics and /healthz answer on ``metrics``, if that was asked for."""
    check_metrics(metrics)
    if metrics is None:
        yield
        return
    with Observatory(what, *split_address(metrics), collectors()):
        yield
