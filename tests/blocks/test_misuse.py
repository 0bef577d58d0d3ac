# SPDX-License-Identifier: Apache-2.0
"""Arguments of the wrong kind, in every public call: our own error with a sentence, or what the documentation promises."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import obmm
from obmm.blocks import BlockOwner, BlockStore, BlockTicket, Namespace, Pieces, SlotLayout
from tests.blocks.rig import BLOCK, Rig, put

WRONG: tuple[Any, ...] = (
    *(None, True, 5, -1, 1.5, float("nan"), float("inf"), 1 << 70, -(1 << 70)),
    *("", "text", b"bytes", "\ud800", object(), object, len, {}, (), np.zeros(3), np.array(5)),
    *([None], [1], [b"x", None], [["a"]], [[]], ["\ud800"]),
)
KEYS, TIMEOUTS = ("exists", "leading", "pin", "unpin", "delete", "submit_exists", "submit_delete"), ("wait", "result")
MEMORY = ("get", "put", "submit_get", "submit_put")

Call = Callable[[Any], object]


class Place:
    """What the calls are made on."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.owner = rig, rig.owner
        self.peer, self.store = rig.peer(), rig.store()
        put(self.store, b"k")

    def store_calls(self) -> dict[str, Call]:
        store, block = self.store, [bytearray(BLOCK)]
        calls: dict[str, Call] = {}
        for name in (*KEYS, "known", "touch"):
            calls[f"{name} keys"] = getattr(store, name)
        for name in KEYS:
            calls[f"{name} timeout"] = lambda it, name=name: getattr(store, name)([b"k"], timeout=it)
        for name in MEMORY:
            call = getattr(store, name)
            calls[f"{name} keys"] = lambda it, call=call: call(it, block)
            calls[f"{name} memory"] = lambda it, call=call: call([b"k"], it)
            calls[f"{name} a buffer"] = lambda it, call=call: call([b"k"], [it])
            calls[f"{name} timeout"] = lambda it, call=call: call([b"k"], block, timeout=it)
        calls["drain timeout"] = store.drain
        for name in TIMEOUTS:
            calls[f"ticket {name}"] = lambda it, name=name: getattr(store.submit_exists([b"k"]), name)(it)
        return calls

    def opening_calls(self) -> dict[str, Call]:
        rig, model = self.rig, Namespace(model="m")
        source, device = f"127.0.0.1:{rig.port}/kv", str(rig.b.backend)

        def opened(**options: Any) -> None:
            BlockStore.open(
                **({"source": source, "namespace": model, "key": rig.key, "device": device} | options)
            ).close()

        def made(**options: Any) -> None:
            BlockStore(**({"peer": self.peer, "device": rig.b, "namespace": model} | options)).close()

        def owned(**options: Any) -> None:
            BlockOwner(**({"device": rig.a, "layout": rig.layout} | options)).close()

        calls: dict[str, Call] = {}
        for name in ("source", "namespace", "key", "tls", "plain", "device", "tenant", "engine", "timeout"):
            calls[f"open {name}"] = lambda it, name=name: opened(**{name: it})
        for name in ("peer", "device", "namespace", "name", "tenant", "engine"):
            calls[f"BlockStore {name}"] = lambda it, name=name: made(**{name: it})
        for name in ("device", "layout", "name", "term", "limits", "numa"):
            calls[f"BlockOwner {name}"] = lambda it, name=name: owned(**{name: it})
        calls["BlockOwner a limit"] = lambda it: owned(limits={"t": it})
        calls["BlockOwner a tenant"] = lambda it: owned(limits={it: 3} if it.__hash__ else it)
        return calls

    def other_calls(self) -> dict[str, Call]:
        owner, layout, calls = self.owner, self.rig.layout, dict[str, Call]()
        two = Pieces.of_addresses(2, [4096, 8192], 8)
        calls["of_buffers count"] = lambda it: Pieces.of_buffers(it, [b"k"], writable=False)
        calls["of_buffers buffers"] = lambda it: Pieces.of_buffers(1, it, writable=False)
        calls["of_addresses count"] = lambda it: Pieces.of_addresses(it, [4096], 8)
        calls["of_addresses addresses"] = lambda it: Pieces.of_addresses(1, it, 8)
        calls["of_addresses sizes"] = lambda it: Pieces.of_addresses(1, [4096], it)
        calls["select"] = two.select
        for at, name in enumerate(("base", "stride", "slots", "size")):
            calls[f"of_slots {name}"] = lambda it, at=at: Pieces.of_slots(
                *[4096, 64, [1], 64][:at], it, *[64, [1], 64][at:]
            )
        calls["Namespace"], calls["hash"] = lambda it: Namespace(model=it), Namespace(model="m").hash
        calls["hashes"] = Namespace(model="m").hashes
        for name in ("for_blocks", "for_bytes"):
            make = getattr(SlotLayout, name)
            calls[f"{name} block_bytes"] = lambda it, make=make: make(it, 8_000)
            calls[f"{name} size"] = lambda it, make=make: make(64, it)
            calls[f"{name} cache"] = lambda it, make=make: make(64, 8_000, cache=it)
        calls["from_json manifest"] = lambda it: SlotLayout.from_json(it, 4096)
        calls["from_json nbytes"] = lambda it: SlotLayout.from_json(owner.manifest, it)
        for name in owner.manifest:
            calls[f"from_json {name}"] = lambda it, name=name: SlotLayout.from_json(
                owner.manifest | {name: it}, layout.nbytes
            )
        calls["to_json"], calls["evict count"] = layout.to_json, owner.evict
        calls["evict tenant"] = lambda it: owner.evict(0, it)
        calls["serve"] = owner.serve
        return calls


@pytest.mark.parametrize("part", ["store_calls", "opening_calls", "other_calls"])
def test_arguments_of_the_wrong_kind_are_our_errors(rig: Callable[..., Rig], part: str) -> None:
    place = Place(rig())
    others = []
    for name, call in getattr(place, part)().items():
        for wrong in WRONG:
            if wrong is None and ("timeout" in name or name.startswith("ticket")):
                continue  # for ever, or as long as it takes
            try:
                call(wrong)
            except obmm.ObmmError as error:
                assert "fix: " in str(error) or len(str(error)) > 10, f"{name}({wrong!r}) says nothing"
            except Exception as error:
                others.append(f"{name}({wrong!r:.40}): {error!r:.80}")
    assert not others, "\n".join(others)
    assert put(place.store, b"after") == [1], "nothing of that has harmed the store"


def test_one_text_for_a_list_of_keys_is_refused(rig: Callable[..., Rig]) -> None:
    """Its letters would be keys."""
    store = rig().store()
    for call in (store.exists, store.pin, store.delete, store.submit_exists, store.known):
        with pytest.raises(obmm.ObmmArgumentError, match="a list of keys"):
            call("abc")


@pytest.mark.parametrize("timeout", [-1, 0, float("-inf"), 1e300])
def test_any_time_to_close_in_ends_the_store(rig: Callable[..., Rig], timeout: float) -> None:
    store = rig().store()
    store.close(timeout)
    assert store.closed
    assert store.completed() == []


@pytest.mark.parametrize("timeout", [None, "x", float("nan"), []])
def test_a_time_to_close_in_that_is_none_is_refused_and_closing_works_after(
    rig: Callable[..., Rig], timeout: Any
) -> None:
    made = rig()
    store, owner = made.store(), BlockOwner(made.a, made.layout, name="other")
    for thing in (store, owner):
        with pytest.raises(obmm.ObmmArgumentError):
            thing.close(timeout=timeout)
        thing.close()
        assert thing.closed


def test_every_public_call_is_here(rig: Callable[..., Rig]) -> None:
    """A new one must be tried, too."""
    place = Place(rig())
    names = " ".join([*place.store_calls(), *place.opening_calls(), *place.other_calls()])
    without = {"close", "completed", "fileno", "stats", "status", "release", "borrowed", "guard", "unguard", "guarded"}
    between_rooms = {"submit_question", "finished", "beat", "end"}
    for kind in (BlockStore, BlockOwner, BlockTicket, Pieces, Namespace, SlotLayout):
        for name, member in inspect.getmembers(kind, inspect.isroutine):
            if not name.startswith("_") and name not in without | between_rooms:
                assert name in names, f"{kind.__name__}.{name}"
                assert member is not None
