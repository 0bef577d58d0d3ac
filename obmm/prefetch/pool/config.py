# SPDX-License-Identifier: Apache-2.0
"""The source project's configuration (Engram specification 8.1)."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, fields
from typing import Any, Self

from obmm.errors import ObmmArgumentError

DEFAULT_PORT = 18482


@dataclass
class EngramPoolConfig:
    """Where the tables are and how they are read; names and defaults are the source project's.

    `hosts`, `ports`: the nodes that serve tables; one port for all hosts, or one each.  No hosts: this node only loads.
    `shard`, `chunk_size`: accepted for callers' sake; here a table lies where it was loaded, and readers cannot tell.
    `num_prefetch_workers`: how many `batch_lookup_async` run at once.
    `key_file`, `plain`: ours, what `obmm.connect` and `obmm.serve` need; `plain` works on loopback only.

    `num_tables` of `embedding_dim` numbers and at most `table_capacity` rows; `connect_timeout_ms` and `request_timeout_ms` in
    milliseconds (1/1000 second); `max_batch_keys` rows of a lookup; `prefetch_ahead_layers`, `key_prefix`: as there.

    >>> from types import SimpleNamespace
    >>> obmm.prefetch.pool.EngramPoolConfig.from_server_args(SimpleNamespace(engram_num_tables=3)).num_tables
    3
    """

    hosts: list[str] = field(default_factory=lambda: ["localhost"])
    ports: list[int] = field(default_factory=lambda: [DEFAULT_PORT])
    num_tables: int = 12
    embedding_dim: int = 512
    table_capacity: int = 1_000_000
    connect_timeout_ms: int = 60_000
    request_timeout_ms: int = 5_000
    prefetch_ahead_layers: int = 2
    max_batch_keys: int = 10_000
    num_prefetch_workers: int = 4
    key_prefix: str = "engram"
    shard: str = "hash"
    chunk_size: int = 1
    key_file: str | None = None
    plain: bool = False

    @classmethod
    def from_server_args(cls, server_args: Any) -> Self:
        """Every field from the attribute ``engram_<field>`` of `server_args`, where it has one that is not None."""
        given = {each.name: getattr(server_args, f"engram_{each.name}", None) for each in fields(cls)}
        config = cls(**{name: value for name, value in given.items() if value is not None})
        config.validate()
        return config

    def validate(self) -> None:
        """ObmmArgumentError for the first field that cannot be."""
        whole = (
            "num_tables",
            "embedding_dim",
            "table_capacity",
            "connect_timeout_ms",
            "request_timeout_ms",
            "max_batch_keys",
            "num_prefetch_workers",
            "chunk_size",
        )
        for name in whole:
            if getattr(self, name) < 1:
                raise _bad(f"{name}={getattr(self, name)}", "use at least 1")
        if self.prefetch_ahead_layers < 0:
            raise _bad(f"prefetch_ahead_layers={self.prefetch_ahead_layers}", "use 0 or more")
        if len(self.ports) != 1 and len(self.ports) != len(self.hosts):
            raise _bad(f"{len(self.hosts)} hosts and {len(self.ports)} ports", "give one port, or one for each host")
        for port in self.ports:
            if not 0 <= port < 65_536:
                raise _bad(f"port {port}", "use a TCP port")
        if self.shard not in ("hash", "range"):
            raise _bad(f"shard={self.shard!r}", 'use "hash" or "range"')
        if self.plain and self.key_file:
            raise _bad("plain=True and a key_file", "choose one")
        if not self.key_prefix or "/" in self.key_prefix:
            raise _bad(f"key_prefix={self.key_prefix!r}", "use a name without a slash")

    @property
    def credentials(self) -> dict[str, Any]:
        """The arguments of `obmm.connect` that say how to authenticate."""
        return {"plain": True} if self.plain else {"key": self.key_file} if self.key_file else {}

    @property
    def addresses(self) -> list[str]:
        """``host:port`` of every node."""
        ports = self.ports * len(self.hosts) if len(self.ports) == 1 else self.ports
        return [f"{host}:{port}" for host, port in zip(self.hosts, ports, strict=True)]


def _bad(problem: str, fix: str) -> ObmmArgumentError:
    return ObmmArgumentError.because("POOL", errno.EINVAL, problem, fix, "Engram specification 8.1")
