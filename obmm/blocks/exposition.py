# SPDX-License-Identifier: Apache-2.0
"""Metrics of a user's store and of an owner for Prometheus, through the `prometheus-client` package (extra ``metrics``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from obmm.errors import ObmmError
from obmm.exposition import Families

Facts = Callable[[], Mapping[str, Any]]


class StoreCollector:
    """A store's counters: ``REGISTRY.register(StoreCollector(store.stats, {"door": "vllm"}))``.

    The counters are read when they are scraped; counting costs nothing extra.  `constant_labels` tell stores apart.
    A store that is closed shows nothing any more.
    """

    def __init__(self, stats: Facts, constant_labels: Mapping[str, str] | None = None) -> None:
        self._stats = stats
        self._families = Families("obmm_kv_", constant_labels)

    def describe(self) -> tuple[()]:
        """Nothing: a registry that asks for names must not ask a store that is not attached yet."""
        return ()

    def collect(self) -> Iterator[Any]:
        try:
            stats = self._stats()
        except ObmmError:
            return
        show = self._families
        for name, text, value in (
            ("hits", "blocks loaded, right to the last byte", stats["hits"]),
            ("stored", "blocks stored", stats["stored"]),
            ("existed", "blocks that were stored already: not copied again", stats["existed"]),
            ("loaded_bytes", "bytes from slots to memory", stats["bytes"]["loaded"]),
            ("stored_bytes", "bytes from memory to slots", stats["bytes"]["stored"]),
            ("evictions_noticed", "known blocks that the owner has evicted", stats["evictions_noticed"]),
            ("attached", "owners attached to since the store was opened", stats["attached"]),
        ):
            yield show.counter(name, text, value)
        for name, text in (("misses", "blocks not loaded"), ("not_stored", "blocks not stored")):
            by_reason = {(str(reason),): count for reason, count in stats[name].items()}
            yield show.counter(name, f"{text}, by reason", by_reason, "reason")
        for name, kind in (("load", "get"), ("store", "put"), ("lookup", "lookup")):
            text = f"batches of {kind}, and what callers waited for them"
            yield show.summary(f"{name}_seconds", text, stats["batches"].get(kind, 0), stats["seconds"][kind])
        yield show.gauge("known_blocks", "blocks known here", stats["known"])
        yield show.gauge("ready", "1 with an owner", int(stats["ready"]))


class OwnerCollector:
    """An owner's directory: ``OwnerCollector(owner.status)``; ``obmm blocks serve --metrics`` shows it."""

    def __init__(self, status: Facts) -> None:
        self._status = status
        self._families = Families("obmm_kv_owner_")

    def describe(self) -> tuple[()]:
        """Nothing: names are known when the directory was asked."""
        return ()

    def collect(self) -> Iterator[Any]:
        try:
            facts = self._status()
        except ObmmError:
            return
        show = self._families
        for name, text in (
            ("slots", "slots of the region"),
            ("blocks", "blocks stored"),
            ("bytes", "bytes of the blocks stored"),
            ("free", "slots that are free"),
            ("reserved", "slots that users may write now"),
            ("pinned", "blocks that somebody keeps from eviction"),
            ("lost", "slots given up: their header could not be cleared"),
        ):
            yield show.gauge(name, text, facts[name])
        yield show.gauge("users", "users attached", len(facts["users"]))
        slots = {(tenant,): share["slots"] for tenant, share in facts["tenants"].items()}
        yield show.gauge("tenant_slots", "slots by tenant", slots, "tenant")
        events = {(str(event),): count for event, count in facts["counts"].items()}
        yield show.counter("events", "what became of blocks: stored, evicted, deleted, ...", events, "event")
