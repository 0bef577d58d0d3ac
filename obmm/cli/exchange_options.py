# SPDX-License-Identifier: Apache-2.0
"""Options that ``obmm serve`` and ``obmm fetch`` share: how the exchange is protected, and what is logged."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from obmm.errors import ObmmArgumentError
from obmm.exchange.keys import default_key_path
from obmm.exchange.net import check_one_mode
from obmm.exchange.tls import TlsFiles

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--key", type=click.Path(), multiple=True, help="the cluster's key file (default: ~/.config/obmm/cluster.key)"
    ),
    click.option("--tls", nargs=3, type=click.Path(), metavar="CERT KEY CA", help="TLS 1.3 with these PEM files"),
    click.option("--plain", is_flag=True, help="no protection; loopback only"),
    click.option("--device", help="default: OBMM_DEVICE, else /dev/obmm"),
    click.option("-v", "--verbose", is_flag=True, help="log more"),
    click.option("--json", "as_json", is_flag=True, help="for programs"),
)


def exchange_options(command: F) -> F:
    """Add them to a click command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def protection(key: tuple[str, ...], tls: tuple[str, str, str] | None, plain: bool) -> dict[str, Any]:
    """The one way that was asked for, as arguments of `obmm.serve` and `obmm.connect`."""
    if not key and not tls and not plain:
        default = default_key_path()
        if not default.exists():
            raise ObmmArgumentError.because(
                "EXCHANGE",
                errno.ENOENT,
                f"no --key, --tls or --plain given, and there is no {default}",
                f"(umask 077; mkdir -p {default.parent}; openssl rand -hex 32 > {default}) and copy that file to the "
                "other nodes, or use --plain between processes of one host",
                "docs/exchange.md",
            )
        key = (str(default),)
    how = {
        "key": [Path(each) for each in key] or None,
        "tls": TlsFiles(*tls) if tls else None,
        "plain": plain,
    }
    check_one_mode("EXCHANGE", how["key"], how["tls"], plain)
    return how


def log_to_stderr(verbose: bool) -> None:
    """Log lines of peers, leases and revocations; only programs configure logging, never the library."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("obmm.exchange")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbose else logging.INFO)
