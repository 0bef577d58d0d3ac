# SPDX-License-Identifier: Apache-2.0
"""Every way to tamper with an authenticated session is refused, each by its own name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from obmm.exchange.call_messages import REGION_NAME, Ping, Pong
from obmm.exchange.errors import AuthenticationError, ProtocolError, Refusal
from obmm.exchange.keys import Key
from obmm.exchange.messages import (
    ErrorMessage,
    Fetch,
    Grant,
    Message,
    Mode,
    Release,
    Renew,
    Welcome,
    pack,
)
from obmm.exchange.session import ClientSession, ServerSession, Session
from tests.exchange.make_golden import HANDLE, LEASE

KEY = Key(bytes(range(32)), "one")
OTHER = Key(bytes(range(1, 33)), "two")
WELCOME = Welcome(bytes(16), 1000, 1000, 0)


def receive(session: Session, raw: bytes | bytearray) -> list[Message]:
    return [message for message, _ in session.receive(raw)]


def refusal(session: Session, raw: bytes | bytearray) -> Refusal:
    with pytest.raises(ProtocolError) as caught:
        receive(session, raw)
    return caught.value.reason


def handshake(client: ClientSession, server: ServerSession) -> None:
    while not (client.established and server.established):
        receive(server, client.take())
        if server.ready and not server.established:
            server.welcome(WELCOME)
        receive(client, server.take())


def pair(mode: Mode = Mode.KEY) -> tuple[ClientSession, ServerSession]:
    client = ClientSession(mode, KEY if mode is Mode.KEY else None, "c", nonce=bytes(16))
    server = ServerSession(mode, [KEY] if mode is Mode.KEY else [], nonce=bytes(15) + b"\1")
    handshake(client, server)
    return client, server


@pytest.mark.parametrize("mode", Mode)
def test_messages_pass_in_every_mode(mode: Mode) -> None:
    client, server = pair(mode)
    client.send(Ping(), 3)
    assert list(server.receive(client.take())) == [(Ping(), 3)]
    server.send(Grant(LEASE, 5, HANDLE, b"{}"), 4)
    assert list(client.receive(server.take())) == [(Grant(LEASE, 5, HANDLE, b"{}"), 4)]


@pytest.mark.parametrize(
    "message", [Ping(), Release(LEASE), Fetch(LEASE, "embeddings")], ids=lambda m: type(m).__name__
)
def test_every_single_bit_change_towards_the_server_is_refused(message: Message) -> None:
    _every_bit(lambda client, server: (client, server), message)


@pytest.mark.parametrize(
    "message",
    [Pong(), ErrorMessage(Refusal.LIMIT, "busy"), Grant(LEASE, 5, HANDLE, b"{}")],
    ids=lambda m: type(m).__name__,
)
def test_every_single_bit_change_towards_the_client_is_refused(message: Message) -> None:
    _every_bit(lambda client, server: (server, client), message)


def _every_bit(roles: Callable[[ClientSession, ServerSession], tuple[Session, Session]], message: Message) -> None:
    client, server = pair()
    sender, _ = roles(client, server)
    sender.send(message, 1)
    raw = sender.take()
    for bit in range(8 * len(raw)):
        _, receiver = roles(*pair())  # the nonces are fixed, so each pair has the same session key
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            got = receive(receiver, changed)
        except ProtocolError:
            continue
        assert got == [], f"bit {bit} was accepted"
        # A larger length makes the receiver wait for more: whatever comes next is refused.
        assert receiver.partial
        with pytest.raises(ProtocolError):
            receive(receiver, raw + bytes(1 << 18))


@given(
    st.one_of(
        st.builds(Release, st.binary(min_size=16, max_size=16)),
        st.builds(Renew, st.binary(min_size=16, max_size=16), st.integers(0, 2**64 - 1)),
        st.builds(Fetch, st.binary(min_size=16, max_size=16), st.from_regex(REGION_NAME, fullmatch=True)),
    ),
    st.integers(1, 2**32 - 1),
    st.data(),
)
def test_any_change_of_any_number_of_bits_is_refused(message: Message, request: int, data: st.DataObject) -> None:
    client, server = pair()
    client.send(message, request)
    raw = client.take()
    changes = data.draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(1, 255)), min_size=1, max_size=5))
    changed = bytearray(raw)
    for where, bits in changes:
        changed[where] ^= bits
    if changed == raw:
        return
    try:
        assert receive(server, changed) == []
    except ProtocolError:
        return
    assert server.partial, "waits for more, and has taken nothing"


def test_a_flipped_bit_is_called_tampering() -> None:
    client, server = pair()
    client.send(Release(LEASE), 1)
    raw = client.take()
    raw[20] ^= 1
    assert refusal(server, raw) is Refusal.TAMPERED


def test_replay_is_refused() -> None:
    client, server = pair()
    client.send(Ping(), 1)
    raw = client.take()
    receive(server, raw)
    assert refusal(server, raw) is Refusal.REPLAYED


def test_reflection_is_refused() -> None:
    """The server's own ERROR frame cannot come back to it by type; a frame of the client's own comes back to the client."""
    client, server = pair()
    server.send(Pong(), 1)
    raw = server.take()
    assert refusal(server, raw) is Refusal.TYPE
    # PROOF and TAG are the only types of both directions: let the tag checker itself see a reflected frame.
    tagger = client._tagger
    assert tagger is not None
    frame = pack(Ping(), 1)
    with pytest.raises(ProtocolError) as caught:
        tagger.check(frame, tagger.tag(frame))
    assert caught.value.reason is Refusal.REFLECTED


def test_reordering_is_refused() -> None:
    client, server = pair()
    client.send(Ping(), 1)
    first = client.take()
    client.send(Ping(), 2)
    assert refusal(server, client.take() + first) is Refusal.REORDERED


def test_a_missing_frame_is_refused() -> None:
    client, server = pair()
    client.send(Release(LEASE), 1)
    client.take()
    client.send(Ping(), 2)
    assert refusal(server, client.take()) is Refusal.REORDERED


def test_truncation_is_refused() -> None:
    client, server = pair()
    client.send(Ping(), 1)
    raw = client.take()
    for end in range(1, len(raw)):
        _, server = pair()
        assert receive(server, raw[:end]) == []
        with pytest.raises(ProtocolError) as caught:
            server.end()
        assert caught.value.reason is Refusal.TRUNCATED


def test_extra_bytes_behind_a_frame_are_refused() -> None:
    client, server = pair()
    client.send(Ping(), 1)
    assert refusal(server, client.take() + b"x") is Refusal.MAGIC


def test_a_frame_without_its_tag_is_refused() -> None:
    _, server = pair()
    assert refusal(server, pack(Ping(), 1).raw + pack(Ping(), 2).raw) is Refusal.UNTAGGED


def test_a_tag_without_its_frame_is_refused() -> None:
    client, server = pair()
    client.send(Ping(), 1)
    assert refusal(server, client.take()[16:]) is Refusal.UNEXPECTED


def test_a_frame_of_another_session_is_refused() -> None:
    client = ClientSession(Mode.KEY, KEY)
    server = ServerSession(Mode.KEY, [KEY])
    handshake(client, server)
    client.send(Ping(), 1)
    _, other = pair()
    assert refusal(other, client.take()) is Refusal.TAMPERED


def test_a_recorded_handshake_is_refused() -> None:
    client, server = ClientSession(Mode.KEY, KEY), ServerSession(Mode.KEY, [KEY])
    hello = client.take()
    receive(server, hello)
    receive(client, server.take())
    proof = client.take()
    again = ServerSession(Mode.KEY, [KEY])
    receive(again, hello)
    with pytest.raises(AuthenticationError, match="could not prove"):
        receive(again, proof)


def test_wrong_key_is_refused_by_the_server() -> None:
    with pytest.raises(AuthenticationError, match="client could not prove"):
        handshake(ClientSession(Mode.KEY, OTHER), ServerSession(Mode.KEY, [KEY]))


def test_a_server_without_the_key_is_refused_by_the_client() -> None:
    client, server = ClientSession(Mode.KEY, KEY), ServerSession(Mode.KEY, [OTHER])
    receive(server, client.take())
    receive(client, server.take())
    client.take()
    from obmm.exchange.messages import Proof

    with pytest.raises(AuthenticationError, match="server could not prove"):
        receive(client, pack(Proof(OTHER.derive(b"anything"))).raw)


def test_a_server_that_sends_the_clients_proof_back_is_refused() -> None:
    client, server = ClientSession(Mode.KEY, KEY), ServerSession(Mode.KEY, [KEY])
    receive(server, client.take())
    receive(client, server.take())
    with pytest.raises(AuthenticationError):
        receive(client, client.take())


def test_a_server_that_sends_the_clients_nonce_back_is_refused() -> None:
    client, server = ClientSession(Mode.KEY, KEY, nonce=bytes(16)), ServerSession(Mode.KEY, [KEY], nonce=bytes(16))
    receive(server, client.take())
    assert refusal(client, server.take()) is Refusal.REFLECTED


def test_key_rotation_a_server_takes_both_keys() -> None:
    for key in (KEY, OTHER):
        server = ServerSession(Mode.KEY, [KEY, OTHER])
        handshake(ClientSession(Mode.KEY, key), server)
        assert server.key is key


@pytest.mark.parametrize("asked", Mode)
@pytest.mark.parametrize("run", Mode)
def test_downgrade_the_server_never_follows_the_client(asked: Mode, run: Mode) -> None:
    if asked is run:
        return
    client = ClientSession(asked, KEY if asked is Mode.KEY else None)
    assert refusal(ServerSession(run, [KEY] if run is Mode.KEY else []), client.take()) is Refusal.MODE


def test_downgrade_the_client_never_follows_the_server() -> None:
    client = ClientSession(Mode.KEY, KEY)
    assert refusal(client, pack(WELCOME).raw) is Refusal.UNEXPECTED


def test_downgrade_on_the_way_is_refused() -> None:
    """A man in the middle rewrites HELLO to plain mode: a key server refuses the mode, a plain server is refused by the client."""
    client = ClientSession(Mode.KEY, KEY)
    hello = client.take()
    hello[16] = Mode.PLAIN
    assert refusal(ServerSession(Mode.KEY, [KEY]), hello) is Refusal.MODE
    server = ServerSession(Mode.PLAIN)
    receive(server, hello)
    server.welcome(WELCOME)
    assert refusal(client, server.take()) is Refusal.UNEXPECTED


def test_every_single_bit_change_of_the_handshake_is_refused() -> None:
    """Whatever is changed in HELLO, CHALLENGE or a PROOF on the way: the session never comes to be."""
    sizes = [16 + 25 + 1, 16 + 16, 16 + 32, 16 + 32]
    for step, size in enumerate(sizes):
        for bit in range(8 * size):
            client, server = ClientSession(Mode.KEY, KEY, "c"), ServerSession(Mode.KEY, [KEY])
            with pytest.raises((ProtocolError, AuthenticationError, _Waits)):
                _handshake_with_a_flip(client, server, step, bit)
            assert not client.established


class _Waits(Exception):
    """A larger length: the receiver waits for more, and its deadline ends that."""


def _handshake_with_a_flip(client: ClientSession, server: ServerSession, step: int, bit: int) -> None:
    for turn in range(4):
        sender, receiver = (client, server) if turn % 2 == 0 else (server, client)
        raw = sender.take()
        if turn == step:
            raw[bit // 8] ^= 1 << bit % 8
        receive(receiver, raw)
        if receiver.partial:
            raise _Waits
    raise AssertionError(f"step {step} bit {bit} was accepted")


def test_handshake_frames_are_refused_later() -> None:
    _, server = pair(Mode.PLAIN)
    assert refusal(server, pack(Ping()).raw + ClientSession(Mode.PLAIN).take()) is Refusal.UNEXPECTED


def test_requests_before_the_handshake_are_refused() -> None:
    assert refusal(ServerSession(Mode.PLAIN), pack(Ping(), 1).raw) is Refusal.UNEXPECTED
    assert refusal(ServerSession(Mode.KEY, [KEY]), pack(Fetch(LEASE, "x"), 1).raw) is Refusal.UNEXPECTED
