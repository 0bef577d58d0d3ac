# SPDX-License-Identifier: Apache-2.0
"""Every system call and callback of the server's loop fails once, in turn; afterwards everything agrees.

What must agree: the book (status), the journal on disk, the holds on regions, what clients believe to have, and the
connections.  No handle is ever out without all three.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from obmm.bench.certificates import Authority
from obmm.errors import ObmmError
from obmm.exchange import Key, Lease, Limits, Peer, Server, connect, serve
from obmm.exchange.journal_lines import replay
from tests import seeds
from tests.exchange.conftest import FakeHold, FakeRegion, until
from tests.exchange.injection import Injector

ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    lambda: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    MemoryError,
    KeyboardInterrupt,
)
# All of them take minutes: every run takes its share, and `OBMM_EVERY_CALL=1` all.
STRIDE = 1 if os.environ.get("OBMM_EVERY_CALL") else 4


class Region(FakeRegion):
    """A region whose hold and release are callbacks of the server's loop, and can fail too."""

    injector: Injector | None = None

    def hold(self, why: str) -> FakeHold:
        if self.injector is None:
            return super().hold(why)
        hold: FakeHold = self.injector.callback("hold", lambda: super(Region, self).hold(why))
        return hold


class Scene:
    """One server, and what its clients hold."""

    def __init__(self, folder: Path, ours: dict[str, Any], theirs: dict[str, Any] | None = None) -> None:
        self.journal = folder / "journal"
        self.region = Region()
        self.ours, self.theirs = ours, theirs or ours  # the credentials of the server, and of its clients
        self.server: Server = serve(
            {"table": self.region}, host="127.0.0.1", port=0, journal=self.journal, term_s=30,
            limits=Limits(handshake_s=3, frame_s=3), **ours,
        )  # fmt: skip
        self.held: list[Lease] = []
        self.peers: list[Peer] = []

    def join(self) -> Peer:
        for _ in range(20):
            try:
                peer = connect(f"127.0.0.1:{self.server.port}", timeout=2, **self.theirs)
            except ObmmError:
                continue
            self.peers.append(peer)
            return peer
        raise AssertionError("no client can connect any more")

    def play(self) -> None:
        """Everything that a server is asked for; a step that is refused is asked for again, as programs do."""
        first, second = self.join(), self.join()
        self.hold(self.step(lambda: first.fetch("table", timeout=2)))
        self.hold(self.step(lambda: second.fetch("table", timeout=2)))
        self.step(lambda: first.list(timeout=2))
        self.step(lambda: first.status(timeout=2))
        self.drop(0)
        self.hold(self.step(lambda: first.fetch("table", timeout=2)))
        self.step(lambda: self.server.reload(**self.ours))
        self.join().close(timeout=0.5)

    def hold(self, lease: Lease | None) -> None:
        assert lease is not None
        self.held.append(lease)

    def drop(self, number: int) -> None:
        lease = self.held.pop(number)
        self.step(lambda: lease.release(2) or None)

    @staticmethod
    def step(call: Callable[[], Any]) -> Any:
        for _ in range(20):
            with contextlib.suppress(ObmmError):
                return call()
        raise AssertionError("refused for ever")

    def close(self) -> None:
        for peer in self.peers:
            peer.close(timeout=0.3, force=True)
        self.server.close(timeout=0, force=True)

    # --- what must agree ---------------------------------------------------------------------------------------------

    def leases(self) -> list[dict[str, Any]]:
        return [item for item in self.server.status()["items"] if item["kind"] == "lease"]

    def agrees(self) -> bool:
        """Whether book, journal, holds, clients and connections say the same (it may take a moment)."""
        book = sorted(item["lease"] for item in self.leases())
        ours = sorted(lease._id[:4].hex() for lease in self.held)
        journal = sorted(record.short for record in replay(self.journal))
        # every lease that a client has is in the book; what is in the book is on the disk; and there is one hold
        return (
            book == ours
            and journal == book
            and len(self.region.holds) == (1 if book else 0)
            and self.server.status()["server"]["connections"] == sum(not peer.closed for peer in self.peers)
            and self.server.status()["server"]["handshakes"] == 0
        )


def on_loop(server: Server, call: Callable[[], None]) -> None:
    """In the server's thread, between two turns (a profile function is set for its own thread)."""
    server._call(call)


def a_key(folder: Path) -> Key:
    """Loaded once: reading the file is not a call of the loop."""
    Key.generate(folder / "key")
    return Key.load(folder / "key")


def in_tls(folder: Path) -> list[dict[str, Any]]:
    authority = Authority(folder)
    return [{"tls": authority.issue("server")}, {"tls": authority.issue("client")}]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # finalizers of earlier rounds fail too
@pytest.mark.parametrize(("where", "mode"), [("loop", "key"), ("loop", "tls"), ("journal", "key")])
def test_every_call_of_the_server_fails_once(tmp_path: Path, where: str, mode: str) -> None:
    credentials = in_tls(tmp_path) if mode == "tls" else [{"key": a_key(tmp_path)}]
    tried = 0
    at = seeds.seed() % STRIDE
    while True:
        error = ERRORS[at % len(ERRORS)]()
        folder = tmp_path / str(at)
        folder.mkdir()
        scene = Scene(folder, *credentials)
        injector = scene.region.injector = Injector(at, error)
        try:
            if where == "loop":
                on_loop(scene.server, injector.arm)
            else:
                arm_journal(scene.server, injector)
            scene.play()
            what = f"call {at} ({injector.hit}) failed with {error!r}"
            assert scene.server.error is None, what
            assert not scene.server.closed, what
            try:
                until(scene.agrees, timeout=10)
            except AssertionError:
                book = sorted(item["lease"] for item in scene.leases())
                ours = sorted(lease._id[:4].hex() for lease in scene.held)
                journal = sorted(record.short for record in replay(scene.journal))
                raise AssertionError(
                    f"{what}: book {book}, clients {ours}, journal {journal}, {len(scene.region.holds)} hold(s), "
                    f"{scene.server.status()['server']}"
                ) from None
        finally:
            scene.close()
        if not injector.hit:
            break
        tried += 1
        at += STRIDE
    print(where, mode, tried, "failures tried")
    assert tried >= (60 if where == "loop" else 4) // STRIDE, "the play has become too short to prove anything"


def arm_journal(server: Server, injector: Injector) -> None:
    """The journal's thread arms itself with its next job."""
    journal = server._service.desk.journal
    write = journal.write
    armed = threading.Event()

    def first(batch: Any) -> None:
        if not armed.is_set():
            armed.set()
            injector.arm()
        write(batch)

    journal.write = first  # type: ignore[method-assign]


def test_a_hold_that_cannot_be_let_go_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("obmm.exchange.desk.AGAIN_S", 0.05)
    scene = Scene(tmp_path, {"key": a_key(tmp_path)})
    try:
        scene.hold(scene.join().fetch("table"))
        release = FakeHold.release
        failures = iter([MemoryError(), OSError(5, "I/O error")])

        def fail(hold: FakeHold) -> None:
            for error in failures:
                raise error
            release(hold)

        monkeypatch.setattr(FakeHold, "release", fail)
        scene.drop(0)
        until(scene.agrees)
    finally:
        scene.close()


def test_fetch_release_fetch_of_one_id_in_one_turn_is_granted_with_a_journal_line(tmp_path: Path) -> None:
    """The client may choose the same id again: what counts is what it has at the end."""
    scene = Scene(tmp_path, {"key": a_key(tmp_path)})
    try:
        peer = scene.join()
        client = peer._client
        from obmm.exchange.messages import Fetch, Release

        lease = os.urandom(16)

        def three() -> list[Any]:
            message = Fetch(lease, "table")
            return [client.request(message, 5), client.request(Release(lease), 5), client.request(message, 5)]

        answers = [future.exception(10) for future in peer._call(lambda: three())]
        assert answers[2] is None, "the third has it"
        until(lambda: [record.id for record in replay(scene.journal)] == [lease])
        assert len(scene.leases()) == 1
        assert len(scene.region.holds) == 1
    finally:
        scene.close()


def test_a_loop_that_ends_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, {"key": a_key(tmp_path)})

    def broken(longest: float) -> list[Any]:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("obmm.exchange.waiter.STUMBLES", 3)
    monkeypatch.setattr(scene.server._service._selector, "select", broken)
    with contextlib.suppress(ObmmError):
        scene.server.status()
    began = time.monotonic()
    assert scene.server.wait(20)
    assert isinstance(scene.server.error, OSError)
    assert not scene.server.alive
    assert time.monotonic() - began < 20
    scene.close()
