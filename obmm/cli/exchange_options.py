# SPDX-License-Identifier: Apache-2.0
"""Options that ``obmm serve`` and ``obmm fetch`` share: how the exchange is protected, and what is logged."""

from __future__ import annotations

import errno
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from obmm.cli.logs import log_to_stderr
from obmm.errors import ObmmArgumentError
from obmm.exchange.access import Access
from obmm.exchange.keys import default_key_path
from obmm.exchange.net import check_one_mode
from obmm.exchange.secrets import keep_secrets_in_memory
from obmm.exchange.tls import TlsFiles


class _Seconds(click.FloatRange):
    """0 to a year: what clocks and timers can count."""

    name = "seconds"

    def __init__(self) -> None:
        super().__init__(0, 365 * 86_400.0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail("not a number of seconds", param, ctx)
        return seconds


SECONDS = _Seconds()

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--key",
        type=click.Path(),
        multiple=True,
        help="the cluster's key file (repeatable where it serves; default: ~/.config/obmm/cluster.key)",
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


revoked_option = click.option(
    "--revoked", type=click.Path(), metavar="CRL", help="with --tls: revocation lists (PEM) of CA"
)


def protection(
    key: tuple[str, ...],
    tls: tuple[str, str, str] | None,
    plain: bool,
    revoked: str | None = None,
    *,
    access: str | None = None,
) -> dict[str, Any]:
    """The one way that was asked for, as arguments of `obmm.serve` and `obmm.connect` (``access`` only of the first)."""
    with_rules = {"access": access} if access is not None else {}
    if revoked is not None and tls is None:
        raise click.UsageError("--revoked belongs to --tls")
    if not key and not tls and not plain and not (access and Access.load(access).keys):
        default = default_key_path()
        if not default.exists():
            quoted, quoted_parent = shlex.quote(str(default)), shlex.quote(str(default.parent))
            raise ObmmArgumentError.because(
                "EXCHANGE",
                errno.ENOENT,
                f"no --key, --tls or --plain given, and there is no {default}",
                f"(umask 077; mkdir -p {quoted_parent}; openssl rand -hex 32 > {quoted}) and copy that file to the "
                "other nodes, or use --plain between processes of one host",
                "docs/exchange.md",
            )
        key = (str(default),)
    how = {
        "key": [Path(each) for each in key] or None,
        "tls": TlsFiles(*tls, revoked=revoked) if tls else None,
        "plain": plain,
    }
    if key or tls or plain:
        check_one_mode("EXCHANGE", how["key"], how["tls"], plain)
    if how["key"] or with_rules:
        keep_secrets_in_memory()
    return how | with_rules


__all__ = ["SECONDS", "exchange_options", "log_to_stderr", "protection", "revoked_option"]
