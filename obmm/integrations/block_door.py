# SPDX-License-Identifier: Apache-2.0
"""What the doors for KV blocks share: settings, one store, and a rule: nothing is ever raised into the engine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from obmm.blocks import BlockStore, BlockStoreError, BlockTicket, Namespace
from obmm.blocks.exposition import StoreCollector
from obmm.errors import ObmmArgumentError
from obmm.exchange import TlsFiles
from obmm.exchange.keys import default_key_path
from obmm.integrations.exposed import Exposed, expose

T = TypeVar("T")

QUIET_S = 1.0  # an engine that fails in every step is told once a second
DEFAULT_TIMEOUT_S = 5.0
COUNTERS = {
    "obmm_kv_hits_total": "blocks loaded",
    "obmm_kv_misses_total": "blocks not loaded",
    "obmm_kv_stored_bytes_total": "bytes stored",
    "obmm_kv_loaded_bytes_total": "bytes loaded",
    "obmm_kv_errors_total": "calls that failed, and blocks that were not stored",
    "obmm_kv_lookup_seconds_total": "seconds in lookups",
    "obmm_kv_load_seconds_total": "seconds in loads",
    "obmm_kv_store_seconds_total": "seconds in stores",
}  # of `metrics`
_PARENTS = {"vllm": "vllm", "sglang": "sglang"}  # loggers that the engines configure


def logger_of(engine: str) -> logging.Logger:
    """``obmm.integrations.<engine>``; without handlers of its own it uses the engine's."""
    log = logging.getLogger(f"obmm.integrations.{engine}")
    parent = _PARENTS.get(engine)
    if parent and not log.hasHandlers():
        for handler in logging.getLogger(parent).handlers:
            log.addHandler(handler)
    return log


class BlockDoor:
    """One engine's store of blocks.

    `source` is ``host:port/name``; `key` (a path), `tls` ((certificate, key, authority)) or `plain` say how the exchange
    is protected, by default by the cluster's key file.  `timeout` bounds every call of the engine, in seconds.
    `metrics` is ``host:port`` where Prometheus finds the door's counters (extra ``metrics``; off by default); of several
    processes of a host each takes the next free port behind it.

    Opening may raise: BlockStoreError, ExchangeError, ObmmError.  `quietly` never does.
    """

    def __init__(
        self,
        engine: str,
        namespace: Namespace,
        *,
        source: str,
        key: str | None = None,
        tls: tuple[str, str, str] | list[str] | None = None,
        plain: bool = False,
        device: str | None = None,
        tenant: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        metrics: str | None = None,
        block_bytes: int = 0,
    ) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 3600:
            raise ObmmArgumentError.because("BLOCKS", 22, f"timeout={timeout!r}", "0..3600 seconds", "docs/blocks.md")
        self.engine, self.log, self.timeout = engine, logger_of(engine), float(timeout)
        if key is None and tls is None and not plain:
            key = str(default_key_path())
        self.store = BlockStore.open(
            source,
            namespace,
            key=Path(key) if key is not None else None,
            tls=TlsFiles(*tls) if tls is not None else None,
            plain=plain,
            device=device,
            tenant=tenant or engine,
        )
        if block_bytes > self.store.block_bytes:
            room = self.store.block_bytes
            self.store.close()
            raise BlockStoreError.because(
                22,
                f"a block of {engine} has {block_bytes} bytes, a slot of {source} takes {room}",
                f"obmm blocks serve --block-bytes {block_bytes}",
            )
        self.errors = 0
        self._exposed: Exposed | None = None
        if metrics is not None:
            try:
                self._exposed = expose(metrics, StoreCollector(self.store.stats, {"door": engine}))
            except BaseException:
                self.store.close()
                raise
        self._seen = self.store.stats()
        self._mutex = threading.Lock()
        self._told = 0.0
        port = f", metrics on port {self._exposed.port}" if self._exposed is not None else ""
        self.log.info("obmm: blocks of %s in %s, %r%s", engine, source, self.store, port)

    def quietly(self, what: str, call: Callable[[], T], otherwise: T) -> T:
        """`call`'s result, or `otherwise` and a line in the log, whatever it raises."""
        try:
            return call()
        except Exception as error:
            self.failed(what, error)
            return otherwise

    def failed(self, what: str, error: BaseException) -> None:
        """Count it, and say so at most once a second."""
        with self._mutex:
            self.errors += 1
            now = time.monotonic()
            quiet = now - self._told < QUIET_S
            if not quiet:
                self._told = now
        if not quiet:
            self.log.error("obmm: %s: %s (%d such failures so far)", what, error, self.errors)

    def completed(self) -> list[BlockTicket]:
        """What has ended since the last call."""
        nothing: list[BlockTicket] = []
        return self.quietly("completions", self.store.completed, nothing)

    def stats(self) -> dict[str, Any]:
        """What the store has done; once it is closed, what it had done by then."""
        if not self.store.closed:
            self._seen = self.quietly("statistics", self.store.stats, self._seen)
        return self._seen

    def metrics(self) -> dict[str, float]:
        """obmm_kv_* of this door, as sums since it was opened."""
        stats = self.stats()
        return {
            "obmm_kv_hits_total": stats["hits"],
            "obmm_kv_misses_total": sum(stats["misses"].values()),
            "obmm_kv_stored_bytes_total": stats["bytes"]["stored"],
            "obmm_kv_loaded_bytes_total": stats["bytes"]["loaded"],
            "obmm_kv_errors_total": self.errors + sum(stats["not_stored"].values()),
            "obmm_kv_lookup_seconds_total": stats["seconds"]["lookup"],
            "obmm_kv_load_seconds_total": stats["seconds"]["get"],
            "obmm_kv_store_seconds_total": stats["seconds"]["put"],
        }

    def explain(self) -> dict[str, Any]:
        """Which store serves, and what it has done; for people."""
        return {"engine": self.engine, "store": repr(self.store), "errors": self.errors} | self.stats()

    def close(self) -> None:
        """Copies that run are finished first; nothing is raised."""
        self.stats()
        exposed, self._exposed = self._exposed, None
        if exposed is not None:
            self.quietly("closing the metrics' port", exposed.close, None)
        self.quietly("closing the store", self.store.close, None)
