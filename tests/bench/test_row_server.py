# SPDX-License-Identifier: Apache-2.0
"""The row server of the TCP arm admits only those who have its secret."""

from __future__ import annotations

import contextlib
import resource
import socket
from contextlib import contextmanager

import numpy as np
import pytest

from obmm.bench import content, row_protocol
from obmm.bench.arms.row_server import RowServer
from obmm.bench.far import Far, connection
from obmm.bench.row_protocol import NONCE_BYTES, PROOF_BYTES, REQUEST, new_secret, proof, received

NBYTES = 1 << 20


@pytest.fixture
def lent():
    """How many clients have the table now."""
    return []


@pytest.fixture
def server(lent):
    @contextmanager
    def table():
        lent.append(1)
        yield content.words(0, NBYTES).view(np.uint8)

    secret = new_secret()
    one = RowServer(table, (secret,))
    one.secret = secret
    yield one
    one.close()


def _row(client, number):
    client.sendall(REQUEST.pack(b"rows", 64, 1, 1, NBYTES) + np.array([number], np.int64).tobytes())
    return received(client, 64)


def test_a_client_with_the_secret_gets_rows(server):
    with connection(("127.0.0.1", server.port), server.secret) as client:
        assert _row(client, 5) == content.words(5 * 64, 64).tobytes()


def test_a_stranger_is_refused_before_any_row_is_touched(server, lent):
    with pytest.raises(ConnectionError), connection(("127.0.0.1", server.port), new_secret()):
        pass
    assert lent == []


def test_a_stranger_that_asks_at_once_gets_nothing(server, lent):
    with socket.create_connection(("127.0.0.1", server.port), 10) as stranger:
        received(stranger, NONCE_BYTES)
        stranger.sendall(REQUEST.pack(b"read", 0, 0, 0, 64).ljust(PROOF_BYTES, b"\0"))
        with pytest.raises(ConnectionError):
            received(stranger, 1)
    assert lent == []


def test_a_proof_is_good_for_one_connection(server):
    with socket.create_connection(("127.0.0.1", server.port), 10) as first:
        overheard = proof(server.secret, received(first, NONCE_BYTES))
        first.sendall(overheard)
        assert received(first, 1) == row_protocol.WELCOME
    with socket.create_connection(("127.0.0.1", server.port), 10) as second:
        received(second, NONCE_BYTES)
        second.sendall(overheard)
        with pytest.raises(ConnectionError):
            received(second, 1)


def test_a_stranger_that_says_nothing_is_dropped(server, monkeypatch):
    monkeypatch.setattr(row_protocol, "HANDSHAKE_S", 0.05)
    with socket.create_connection(("127.0.0.1", server.port), 10) as silent:
        received(silent, NONCE_BYTES)
        with pytest.raises(ConnectionError):
            received(silent, 1)


@pytest.mark.parametrize(
    "request_",
    [
        (b"rows", 64, 1, 1 << 40, NBYTES),
        (b"rows", 64, 3, 1, NBYTES),
        (b"rows", 0, 1, 1, NBYTES),
        (b"rows", 64, 1, 1, 32),
        (b"read", 0, 0, NBYTES - 1, 64),
        (b"what", 0, 0, 0, 0),
    ],
)
def test_a_request_that_does_not_fit_ends_the_connection(server, request_):
    with connection(("127.0.0.1", server.port), server.secret) as client:
        client.sendall(REQUEST.pack(*request_))
        with pytest.raises(ConnectionError):
            received(client, 1)


def test_the_secret_is_not_in_what_the_far_node_prints():
    secret = new_secret()
    assert secret.hex() not in repr(Far(None, 1, ("h", 1), secret))
    assert repr(secret) not in repr(Far(None, 1, ("h", 1), secret))


def test_a_stranger_that_says_little_at_a_time_is_dropped_as_one_that_says_nothing(server, monkeypatch):
    """Each byte of a proof must not start the five seconds anew: 64 such strangers would keep all others out."""
    monkeypatch.setattr(row_protocol, "HANDSHAKE_S", 0.2)
    with socket.create_connection(("127.0.0.1", server.port), 10) as slow:
        received(slow, NONCE_BYTES)
        with pytest.raises(ConnectionError):
            for _ in range(PROOF_BYTES - 1):
                slow.sendall(b"x")
                slow.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    received(slow, 1)


def test_rows_of_one_byte_do_not_ask_for_more_ids_than_bytes(server):
    with connection(("127.0.0.1", server.port), server.secret) as client:
        client.sendall(REQUEST.pack(b"rows", 1, 1, 1 << 29, NBYTES))
        with pytest.raises(ConnectionError):
            received(client, 1)


def test_the_server_outlives_a_time_without_descriptors(server):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as first, socket.socket() as client:
        first.settimeout(10)
        client.settimeout(10)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            # an accept that waits may have its descriptor already: that is the first one's
            first.connect(("127.0.0.1", server.port))
            first.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                first.recv(1)
            client.connect(("127.0.0.1", server.port))
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.settimeout(10)
        assert len(received(client, NONCE_BYTES)) == NONCE_BYTES
