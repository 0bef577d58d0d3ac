# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 with certificates on both sides; each refusal has its own words."""

from __future__ import annotations

import datetime
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from obmm import ObmmArgumentError
from obmm.background import LINES
from obmm.bench.certificates import Authority
from obmm.exchange import (
    AuthenticationError,
    ExchangeError,
    LeaseStatus,
    Peer,
    RequestRefusedError,
    Server,
    TlsFiles,
)
from tests.exchange.proxy import Proxy

Start = Callable[..., Server]
Join = Callable[..., Peer]
YESTERDAY = -datetime.timedelta(days=1)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_files(authority: Authority) -> TlsFiles:
    return authority.issue("server")


@pytest.fixture(scope="module")
def client_files(authority: Authority) -> TlsFiles:
    return authority.issue("client-1")


def test_the_whole_way_over_tls(start: Start, join: Join, server_files: TlsFiles, client_files: TlsFiles) -> None:
    server = start(tls=server_files, term_s=10)
    lease = join(server, tls=client_files).fetch("table")
    lease.on_change(lambda event: event.lease.release())
    assert server.status()["items"][1]["identity"] == "client-1"
    server.revoke("table", timeout=5)
    assert lease.status is LeaseStatus.RELEASED


def test_a_lease_belongs_to_its_certificate(
    start: Start, join: Join, authority: Authority, server_files: TlsFiles, client_files: TlsFiles
) -> None:
    server = start(tls=server_files)
    lease = join(server, tls=client_files).fetch("table")
    other = join(server, tls=authority.issue("client-2"))
    from functools import partial

    from obmm.exchange.messages import Fetch, Release, Renew

    for message in (Release(lease._id), Renew(lease._id, lease.handle.generation), Fetch(lease._id, "table")):
        with pytest.raises(RequestRefusedError, match=r"no such lease|belongs to another lease"):
            other._ask(partial(other._client.request, message, 5), 5)
    assert server.status()["server"]["leases"] == 1


def test_an_expired_client_certificate_is_refused(
    start: Start, join: Join, authority: Authority, server_files: TlsFiles
) -> None:
    with pytest.raises(ExchangeError, match="certificate has expired"):
        join(start(tls=server_files), tls=authority.issue("late", YESTERDAY))


def test_an_expired_server_certificate_is_refused(
    start: Start, join: Join, authority: Authority, client_files: TlsFiles
) -> None:
    with pytest.raises(AuthenticationError, match=r"server's certificate is not accepted: certificate has expired"):
        join(start(tls=authority.issue("late-server", YESTERDAY)), tls=client_files)


def test_a_certificate_of_another_authority_is_refused(
    start: Start, join: Join, tmp_path: Path, server_files: TlsFiles, client_files: TlsFiles
) -> None:
    foreign = Authority(tmp_path, "foreign authority").issue("foreign")
    mixed = TlsFiles(foreign.certificate, foreign.private_key, server_files.authority)
    with pytest.raises(ExchangeError, match="does not trust the authority"):
        join(start(tls=server_files), tls=mixed)
    with pytest.raises(AuthenticationError, match="server's certificate is not accepted"):
        join(start(tls=foreign, journal=tmp_path / "j"), tls=client_files)


def test_the_servers_certificate_must_name_the_host(
    start: Start, join: Join, server_files: TlsFiles, client_files: TlsFiles
) -> None:
    with pytest.raises(AuthenticationError, match=r"not accepted.*mismatch"):
        join(start(tls=server_files), tls=client_files, server_name="elsewhere.example")
    assert join(start(tls=server_files, journal=None), tls=client_files, server_name="localhost").list()


def test_no_client_certificate_no_session(start: Start, server_files: TlsFiles) -> None:
    server = start(tls=server_files)
    context = ssl.create_default_context(cafile=str(server_files.authority))
    context.set_alpn_protocols(["obmm-exchange/1"])
    with (
        socket.create_connection(("127.0.0.1", server.port), 5) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as wrapped,
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
    ):
        wrapped.recv(1)


def test_downgrade_to_tls_1_2_is_refused(start: Start, server_files: TlsFiles, client_files: TlsFiles) -> None:
    server = start(tls=server_files)
    context = client_files.context(server=False)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", server.port), 5) as raw,
        pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"),
    ):
        context.wrap_socket(raw, server_hostname="localhost")


def test_a_server_below_tls_1_3_is_refused(join: Join, server_files: TlsFiles, client_files: TlsFiles) -> None:
    import threading

    context = server_files.context(server=True)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def old_server() -> None:
            raw, _ = listener.accept()
            with raw, pytest.raises(ssl.SSLError):
                context.wrap_socket(raw, server_side=True)

        thread = threading.Thread(target=old_server)
        thread.start()
        with pytest.raises(AuthenticationError, match=r"below 1\.3|no TLS version in common|protocol"):
            join(listener.getsockname()[1], tls=client_files)
        thread.join()


def test_another_protocol_inside_tls_is_refused(start: Start, server_files: TlsFiles, client_files: TlsFiles) -> None:
    server = start(tls=server_files)
    context = client_files.context(server=False)
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", server.port), 5) as raw, pytest.raises((ssl.SSLError, OSError)):
        wrapped = context.wrap_socket(raw, server_hostname="localhost")
        if not wrapped.recv(1):
            raise ConnectionResetError


def test_a_key_client_meets_a_tls_server(start: Start, join: Join, server_files: TlsFiles) -> None:
    with pytest.raises(ExchangeError, match=r"speaks TLS|closed the connection"):
        join(start(tls=server_files))


def test_a_tls_client_meets_a_key_server(start: Start, join: Join, client_files: TlsFiles) -> None:
    with pytest.raises(AuthenticationError, match="does not speak TLS"):
        join(start(), tls=client_files)


def test_the_mode_inside_tls_is_checked(start: Start, server_files: TlsFiles, client_files: TlsFiles) -> None:
    from obmm.exchange.frames import FrameReader
    from obmm.exchange.messages import ErrorMessage, Hello, Mode, pack, parse
    from obmm.exchange.session import SENT_BY_SERVER

    server = start(tls=server_files)
    context = client_files.context(server=False)
    with (
        socket.create_connection(("127.0.0.1", server.port), 5) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as wrapped,
    ):
        wrapped.sendall(pack(Hello(Mode.PLAIN, bytes(16))).raw)
        (frame,) = FrameReader(SENT_BY_SERVER).feed(wrapped.recv(4096))
        message = parse(frame)
        assert isinstance(message, ErrorMessage)
        assert "asked for PLAIN mode" in message.text


def test_the_private_key_must_be_private(server_files: TlsFiles, client_files: TlsFiles, tmp_path: Path) -> None:
    copy = tmp_path / "copy.key"
    copy.write_bytes(Path(client_files.private_key).read_bytes())
    copy.chmod(0o644)
    with pytest.raises(ObmmArgumentError, match="mode 0644 lets group or others in"):
        TlsFiles(client_files.certificate, copy, client_files.authority).context(server=False)


@pytest.mark.parametrize("broken", ["certificate", "authority"])
def test_unfit_files_are_named(client_files: TlsFiles, tmp_path: Path, broken: str) -> None:
    import dataclasses

    bad = tmp_path / "bad.pem"
    bad.write_text("not a certificate")
    for path in (bad, tmp_path / "missing.pem"):
        with pytest.raises(ObmmArgumentError, match=path.name):
            dataclasses.replace(client_files, **{broken: path}).context(server=False)


def test_tampering_with_a_record_costs_a_connection_and_nothing_else(
    start: Start, join: Join, server_files: TlsFiles, client_files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    server = start(tls=server_files)
    with Proxy(server.port) as proxy:
        peer = join(proxy.port, tls=client_files)
        peer.list()
        proxy.flip_next_towards_client()
        assert "table" in peer.list(), "asked again over a new connection"
        assert proxy.connections == 2
    assert LINES.flush(5)
    assert "bad record mac" in caplog.text
