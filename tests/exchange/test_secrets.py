# SPDX-License-Identifier: Apache-2.0
"""tokenid, uba and keys show nowhere: logs, repr, tracebacks with their locals, status, journal, events, listing."""

from __future__ import annotations

import json
import logging
import pickle
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import obmm
from obmm import Handle
from obmm.background import LINES
from obmm.errors import ObmmError
from obmm.exchange import Key, LeasesOutstandingError, Limits, Peer, Server
from obmm.exchange.errors import ProtocolError
from obmm.exchange.frames import FrameReader, FrameType, pack_frame
from obmm.exchange.messages import Grant, Mode, Welcome, pack, parse
from obmm.exchange.secrets import Opaque
from obmm.exchange.session import SENT_BY_SERVER, ClientSession, ServerSession
from tests.exchange.conftest import TOKEN, UBA, FakeRegion, until
from tests.exchange.proxy import Proxy

Start = Callable[..., Server]
Join = Callable[..., Peer]

HANDLE = FakeRegion().handle()


def spellings(key: Path | None = None) -> dict[str, str]:
    """Each secret in every form in which Python might print it."""
    found = {}
    for name, value, size in (("uba", UBA, 8), ("tokenid", TOKEN, 4)):
        raw = value.to_bytes(size, "little")
        found |= {
            f"{name} decimal": str(value),
            f"{name} hex": f"{value:x}",
            f"{name} bytes": repr(raw)[2:-1],
            f"{name} bytes hex": raw.hex(),
            f"{name} list": str(list(raw))[1:-1],
        }
    if key is not None:
        text = key.read_text().strip()
        raw = bytes.fromhex(text)
        found |= {
            "key hex": text[:16],
            "key tail": text[-16:],
            "key bytes": repr(raw[:8])[2:-1],
            "key list": str(list(raw[:6]))[1:-1],
        }
    return found


def assert_clean(text: str, where: str, key: Path | None = None) -> None:
    for what, spelling in spellings(key).items():
        assert spelling not in text, f"{what} shows in {where}"
        assert spelling not in text.lower(), f"{what} shows in {where}"


def with_locals(error: BaseException) -> str:
    """The traceback as tools print it that show local variables, causes and contexts included."""
    seen = error.__traceback__.tb_next if error.__traceback__ else None  # without the test's own frame
    return "".join(traceback.TracebackException(type(error), error, seen, capture_locals=True).format())


def test_the_scan_finds_what_it_looks_for(key: Path) -> None:
    for text in (repr(HANDLE.pack()), HANDLE.pack().hex(), f"{UBA:#x}", f"tokenid={TOKEN}", key.read_text()):
        with pytest.raises(AssertionError, match="shows in here"):
            assert_clean(text, "here", key)


def test_a_whole_life_in_the_logs_shows_nothing(
    start: Start, join: Join, key: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    other = Key.generate(tmp_path / "other")
    server = start({"table": FakeRegion(), "b": FakeRegion()}, term_s=0.3, limits=Limits(frame_s=0.2))
    with Proxy(server.port) as proxy:
        peer = join(proxy.port)
        peer.list()
        lease, kept = peer.fetch("table"), peer.fetch("b")
        with pytest.raises(ObmmError):
            join(server, key=other)
        with pytest.raises(ObmmError):
            peer.fetch("nothing")
        proxy.flip_next_towards_client()
        peer.list()
        proxy.cut(refuse=True)
        until(lambda: not lease.usable)
        proxy.mend()
        until(lambda: lease.usable)
        with pytest.raises(LeasesOutstandingError) as caught:
            server.revoke("table", timeout=0.05)
        lease.release()
        status = json.dumps(server.status()) + json.dumps(peer.status())
        assert LINES.flush(5)
        everything = [caplog.text, status, repr(server.events()), repr(peer.events()), repr(peer.list())]
        everything += [repr(each) for each in (server, peer, lease, kept, kept.handle, caught.value.leases)]
        everything += [server.journal.read_text(), with_locals(caught.value)]
    assert "lease granted" in caplog.text
    assert "suspect" in caplog.text
    for text in everything:
        assert_clean(text, text[:200], key)
        assert kept._id.hex() not in text or text.startswith(everything[-2][:8]), "a whole lease id shows"


def test_tracebacks_of_refused_grants_show_nothing() -> None:
    """Every byte of a GRANT that makes it unfit: the traceback, with all locals, is clean."""
    raw = bytes(pack(Grant(bytes(16), 1000, HANDLE, b"{}"), 1).raw)
    refused = 0
    for byte in range(len(raw)):
        stream = Opaque(raw)
        stream[byte] ^= 0xFF
        try:
            for frame in FrameReader(SENT_BY_SERVER).feed(stream):
                parse(frame)
        except ProtocolError as error:
            refused += 1
            assert_clean(with_locals(error), f"byte {byte}")
    assert refused >= 10


def test_tracebacks_of_tampered_sessions_show_nothing(key: Path) -> None:
    secret = Key.load(key)
    client, server = ClientSession(Mode.KEY, secret), ServerSession(Mode.KEY, [secret])
    for _ in range(2):
        list(server.receive(client.take()))
        list(client.receive(server.take()))
    server.welcome(Welcome(bytes(16), 1, 1, 0))
    list(client.receive(server.take()))
    server.send(Grant(bytes(16), 1000, HANDLE, b"{}"), 1)
    stream = server.take()
    stream[-1] ^= 1
    with pytest.raises(ProtocolError) as caught:
        list(client.receive(stream))
    assert_clean(with_locals(caught.value), "the traceback", key)


def test_tracebacks_of_unfit_keys_show_nothing(tmp_path: Path) -> None:
    good = Key.generate(tmp_path / "good")
    text = (tmp_path / "good").read_text().strip()
    for number, bad in enumerate((text + "x", text[:40], text * 5, text[:-1])):
        path = tmp_path / str(number)
        path.write_text(bad)
        path.chmod(0o600)
        with pytest.raises(ObmmError) as caught:
            Key.load(path)
        shown = with_locals(caught.value)
        assert "keys.py" in shown
        assert text[:12] not in shown
        assert repr(bytes.fromhex(text[:12]))[2:-1] not in shown
    path = tmp_path / "open"
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(ObmmError) as caught:
        Key.load(path)
    assert text[:12] not in str(caught.value)
    assert good.identity not in text


def test_reprs_show_nothing(key: Path) -> None:
    grant = Grant(bytes(16), 1000, HANDLE, b"{}")
    frame = pack(grant, 1)
    secret = Key.load(key)
    session = ClientSession(Mode.KEY, secret)
    for thing in (
        grant,
        frame,
        frame.raw,
        frame.payload,
        secret,
        session,
        grant.pack(),
        secret.derive(b"x"),
        FrameReader(SENT_BY_SERVER),
    ):
        for text in (repr(thing), str(thing), f"{thing}"):
            assert_clean(text, type(thing).__name__, key)


def test_opaque_prints_its_length_only() -> None:
    assert repr(Opaque(b"secret")) == str(Opaque(b"secret")) == "<6 bytes, not shown>"
    wiped = Opaque(b"secret")
    wiped.wipe()
    assert bytes(wiped) == bytes(6)


def test_an_unpacked_bad_handle_shows_nothing() -> None:
    raw = bytearray(HANDLE.pack())
    raw[69] = 9
    frame = pack_frame(FrameType.GRANT, bytes(20) + bytes(raw) + bytes(4))
    frame.raw[16 + 16] = 1
    del raw
    with pytest.raises(ProtocolError, match="version 9") as caught:
        parse(frame)
    assert_clean(with_locals(caught.value), "the traceback")


def test_no_pickle_in_the_package() -> None:
    """Pitfalls 25 and 26: nothing that came over a socket is ever unpickled."""
    root = Path(obmm.__file__).parent
    found = subprocess.run(
        [
            "grep",
            "-rnE",
            r"^\s*(import|from)\s+(pickle|marshal|shelve|dill)|allow_pickle=True|\beval\(|\bexec\(",
            root,
            "--include=*.py",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""


def test_keys_are_not_pickled(key: Path) -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Key.load(key))


def test_handles_compare_and_survive_the_wire() -> None:
    frame = pack(Grant(bytes(16), 5, HANDLE, b"{}"), 1)
    message = parse(frame)
    assert isinstance(message, Grant)
    got: Handle = message.handle
    assert got == HANDLE
