# SPDX-License-Identifier: Apache-2.0
"""Tickets over the exchange."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import obmm
from obmm import urma
from obmm.exchange import RequestRefusedError


@pytest.fixture
def key(tmp_path: Path) -> str:
    file = tmp_path / "key"
    file.write_text(secrets.token_hex(32))
    file.chmod(0o600)
    return str(file)


@pytest.fixture
def served(context: urma.Context, key: str, tmp_path: Path) -> Iterator[tuple[obmm.Peer, urma.PublishedSegments, Any]]:
    with obmm.serve({}, host="127.0.0.1", port=0, key=key, journal=tmp_path / "journal") as server:
        segments = urma.publish(server)
        with obmm.connect(f"127.0.0.1:{server.port}", key=key) as peer:
            yield peer, segments, context


def test_a_segment_is_fetched_and_read(served: Any) -> None:
    peer, segments, context = served
    buffer = context.buffer(4096, "r")
    buffer[:5] = list(b"hello")
    queue = context.queue()
    segments.add("words", context.segment_of(buffer)[0], queue, {"rows": 7})
    found = urma.fetch(peer, "words")
    assert (found.manifest["content"], found.manifest["nbytes"]) == ({"rows": 7}, 4096)
    assert context.queue().attach(found.ticket).read(0, 5) == b"hello"
    assert str(found.ticket.token) not in repr(found)


def test_what_is_not_there_or_revoked_is_refused(served: Any) -> None:
    peer, segments, context = served
    with pytest.raises(RequestRefusedError, match="no URMA segment 'nothing'"):
        urma.fetch(peer, "nothing")
    buffer = context.buffer(4096, "r")
    segments.add("words", context.segment_of(buffer)[0], context.queue())
    context.free(buffer)
    with pytest.raises(RequestRefusedError, match="no URMA segment 'words'"):
        urma.fetch(peer, "words")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not a request"),
        (b"[" * 3000, "not a request"),
        (b'{"format": "obmm-urma", "version": 2, "segment": "x"}', "version 2"),
        (b'{"format": "other", "version": 1, "segment": "x"}', "not a request"),
        (b'{"format": "obmm-urma", "version": 1, "segment": 5}', "not a request"),
    ],
)
def test_requests_of_others(served: Any, body: bytes, why: str) -> None:
    with pytest.raises(RequestRefusedError, match=why):
        served[0].call("urma", body)


def test_an_answer_that_is_no_ticket(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, segments, _ = served
    for answer in (b"short", bytes(200)):
        monkeypatch.setattr(segments, "call", lambda caller, body, answer=answer: answer)
        with pytest.raises(urma.UrmaTicketError):
            urma.fetch(peer, "x")


def test_unfit_names_and_manifests_are_refused(served: Any) -> None:
    _, segments, context = served
    segment = context.segment_of(context.buffer(4096, "r"))[0]
    queue = context.queue()
    for name, manifest in (("", {}), ("a b", {}), ("x", {"x": object()}), ("x", {"x": "y" * 200_000})):
        with pytest.raises(obmm.ObmmArgumentError):
            segments.add(name, segment, queue, manifest)
