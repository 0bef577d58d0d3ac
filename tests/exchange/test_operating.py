# SPDX-License-Identifier: Apache-2.0
"""What an operator does with a running server: ends leases, changes keys, says who may fetch what, watches it."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from obmm import ObmmArgumentError
from obmm.background import Background, BackgroundLogger
from obmm.cli.elsewhere import printed
from obmm.cli.logs import DescriptorHandler
from obmm.cli.observing import observed
from obmm.exchange import (
    Access,
    AuthenticationError,
    DeadlineError,
    Key,
    LeaseStatus,
    Limits,
    Peer,
    RequestRefusedError,
    Server,
)
from obmm.exchange.audit import LINES as AUDIT
from obmm.exchange.control import ControlSocket, ask, control_path
from obmm.exchange.journal_lines import replay
from obmm.exchange.observing import Observatory, ServerFigures, exposition
from obmm.exchange.tls import name_of
from tests.exchange.conftest import FakeRegion, until

Start = Callable[..., Server]
Join = Callable[..., Peer]


def leases(server: Server) -> list[dict[str, Any]]:
    return [item for item in server.status()["items"] if item["kind"] == "lease"]


# --- ending leases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["lease", "holder", "address", "identity", "region"])
def test_leases_of_the_dead_are_ended_one_by_one_or_by_holder(
    start: Start, join: Join, tmp_path: Path, by: str
) -> None:
    regions = {"table": FakeRegion(), "other": FakeRegion()}
    server = start(regions)
    dead, living = join(server, name="dead"), join(server, name="living")
    gone = dead.fetch("table")
    kept = living.fetch("other")
    record = next(item for item in leases(server) if item["client"] == "dead")
    which = {
        "lease": record["lease"], "holder": "dead", "address": "127.0.0.1", "identity": "nobody", "region": "table",
    }[by]  # fmt: skip
    expected = {"address": 2, "identity": 0}.get(by, 1)
    assert len(server.find_leases(**{by: which})) == expected
    assert len(leases(server)) == 2, "finding ends nothing"
    assert len(server.end_leases(**{by: which})) == expected
    assert len(leases(server)) == 2 - expected
    if expected == 1:
        assert not regions["table"].holds
        until(lambda: gone.status is LeaseStatus.REVOKED), "a holder that lives is told"
        assert kept.usable
        until(lambda: [each.region for each in replay(tmp_path / "leases.journal")] == ["other"])


def test_ending_needs_to_know_which(start: Start) -> None:
    with pytest.raises(ObmmArgumentError, match="no lease was named"):
        start().end_leases()


def test_force_reaches_leases_of_an_earlier_export(start: Start, join: Join, tmp_path: Path) -> None:
    server = start({"table": FakeRegion()})
    join(server).fetch("table")
    service = server._service
    service.desk.journal.close = service.desk.journal.abandon  # type: ignore[method-assign]
    service.mailbox.post(service.stop)
    server._thread.join()
    server._closed.set()
    server = start({"table": FakeRegion()})
    assert [item["state"] for item in leases(server)] == ["unknown"]
    server.revoke("table", timeout=0.05, force=True)
    assert leases(server) == []
    until(lambda: replay(tmp_path / "leases.journal") == [])


# --- keys and rules ----------------------------------------------------------------------------------------------------


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """Keys of two teams, and who may fetch what."""
    for name in ("serving", "training"):
        Key.generate(tmp_path / f"{name}.key")
    path = tmp_path / "access.toml"
    path.write_text(
        '[[key]]\nname = "serving"\nfile = "serving.key"\n[[key]]\nname = "training"\nfile = "training.key"\n'
        '[[allow]]\nkeys = ["serving"]\nregions = ["embeddings*"]\n[[allow]]\nkeys = ["*"]\nregions = ["public"]\n'
    )
    path.chmod(0o600)
    return path


def test_each_key_fetches_what_its_rules_name(start: Start, join: Join, rules: Path, tmp_path: Path) -> None:
    server = start({"embeddings/1": FakeRegion(), "public": FakeRegion()}, key=None, access=rules)
    serving = join(server, key=tmp_path / "serving.key")
    training = join(server, key=tmp_path / "training.key")
    assert sorted(serving.list()) == ["embeddings/1", "public"]
    assert sorted(training.list()) == ["public"], "what is not allowed is not told"
    lease = serving.fetch("embeddings/1")
    assert [item["identity"] for item in leases(server)] == ["serving"]
    with pytest.raises(RequestRefusedError, match="no region 'embeddings/1'"):
        training.fetch("embeddings/1")
    assert [item["region"] for item in training.status()["items"]] == ["public"]
    assert training.fetch("public").release()
    assert lease.release()


def test_a_lease_belongs_to_its_keys_name_and_survives_a_rotation(
    start: Start, join: Join, rules: Path, tmp_path: Path
) -> None:
    server = start({"public": FakeRegion()}, key=None, access=rules)
    serving = join(server, key=tmp_path / "serving.key")
    training = join(server, key=tmp_path / "training.key")
    lease = serving.fetch("public")
    from obmm.exchange.messages import Release

    with pytest.raises(RequestRefusedError, match="no such lease"):
        training._ask(lambda: training._client.request(Release(lease._id), 5), 5)
    Key.generate(tmp_path / "new.key")
    rules.write_text(rules.read_text() + '[[key]]\nname = "serving"\nfile = "new.key"\n')
    server.reload(access=rules)
    moved = join(server, key=tmp_path / "new.key")
    moved._ask(lambda: moved._client.request(Release(lease._id), 5), 5)
    assert leases(server) == []


def test_rules_that_change_take_effect_and_a_missing_key_ends_its_sessions(
    start: Start, join: Join, rules: Path, tmp_path: Path
) -> None:
    server = start({"embeddings/1": FakeRegion(), "public": FakeRegion()}, key=None, access=rules)
    training = join(server, key=tmp_path / "training.key")
    lease = training.fetch("public")
    rules.write_text('[[key]]\nname = "serving"\nfile = "serving.key"\n[[allow]]\nkeys = ["*"]\nregions = ["*"]\n')
    assert server.reload(access=rules) == 1
    with pytest.raises(DeadlineError, match="does not accept this key"):
        training.list(timeout=0.5)
    assert len(leases(server)) == 1, "its lease stays until it is released or ended"
    assert lease.handle


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x", "is not TOML"),
        ("[" * 30_000, "is not TOML"),
        ("allow = 5", "allow = 5"),
        ("key = [1]", "key = "),
        ("[other]", "unknown keys"),
        ('[[allow]]\nkeys = ["a"]', "allows nothing"),
        ('[[allow]]\nkeys = [1]\nregions = ["*"]', "a list of texts"),
        ('[[allow]]\nkeys = "a"\nregions = ["*"]', "a list of texts"),
        ("[[allow]]\nwho = 1", "unknown keys"),
        ('[[key]]\nname = "a"', "name = "),
        ('[[key]]\nname = "*"\nfile = "serving.key"', "none of them"),
        ('[[key]]\nname = "a"\nfile = "gone.key"', "cannot be read"),
        (
            '[[key]]\nname = "a"\nfile = "serving.key"\n[[allow]]\nkeys = ["b"]\nregions = ["*"]',
            "no \\[\\[key\\]\\] is called",
        ),
    ],
)
def test_unfit_rules_are_named_with_their_place(rules: Path, text: str, problem: str) -> None:
    rules.write_text(text)
    with pytest.raises(ObmmArgumentError, match=problem) as caught:
        Access.load(rules)
    assert str(rules.parent) in str(caught.value)


def test_rules_that_others_could_write_are_refused(rules: Path) -> None:
    rules.chmod(0o666)
    with pytest.raises(ObmmArgumentError, match="others could write it"):
        Access.load(rules)


def test_unfit_credentials_change_nothing(start: Start, join: Join, tmp_path: Path, key: Path) -> None:
    server = start()
    (tmp_path / "bad").write_text("x")
    (tmp_path / "bad").chmod(0o600)
    with pytest.raises(ObmmArgumentError):
        server.reload(key=tmp_path / "bad")
    assert join(server).list()


def test_a_session_has_an_age_and_its_client_comes_back(start: Start, join: Join) -> None:
    server = start(limits=Limits(session_s=0.2))
    peer = join(server)
    lease = peer.fetch("table")
    until(lambda: server.status()["server"]["refused"].get("timeout", 0) >= 2)
    assert peer.list()
    assert lease.usable
    assert len(leases(server)) == 1


def test_a_systemd_credential_is_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from obmm.exchange.keys import CREDENTIAL, default_key_path

    Key.generate(tmp_path / CREDENTIAL)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert Key.load(default_key_path()).identity


# --- identities --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        ({"subjectAltName": (("DNS", "a.b"), ("URI", "spiffe://prod/llm")), "subject": ((("commonName", "c"),),)}, "spiffe://prod/llm"),
        ({"subjectAltName": (("IP Address", "1.2.3.4"), ("DNS", "a.b")), "subject": ()}, "a.b"),
        ({"subject": ((("countryName", "DE"),), (("commonName", "node 7 [/x]"),))}, "node 7 [/x]"),
        ({"subject": ((("commonName", "a?"),),)}, "a?"),
        ({"subject": ()}, ""),
        ({"subject": ((("commonName", "spiffe://prod/llm"),),)}, ""),
        ({"subject": (), "subjectAltName": (("DNS", "spiffe://prod/llm"),)}, ""),
        ({"subject": ((("commonName", "c"),),), "subjectAltName": (("DNS", "spiffe://prod/llm"),)}, ""),
        ({"subject": ((("commonName", "c"),),), "subjectAltName": (("URI", ""), ("DNS", "a.b"))}, ""),
        ({"subject": ((("emailAddress", "a@b"),),), "subjectAltName": (("email", "a@b"), ("IP Address", "1.2.3.4"))}, ""),
        ({"subject": ((("commonName", "a\x1b[31m"),),)}, ""),
        ({"subject": ((("commonName", "a" * 5000),),)}, ""),
        (None, ""),
    ],
)  # fmt: skip
def test_a_certificates_name_is_its_uri_else_its_dns_else_its_common_name_exactly(certificate: Any, name: str) -> None:
    assert name_of(certificate) == name


def test_a_certificate_without_a_name_is_refused_and_uri_names_are_told_apart(
    start: Start, join: Join, tmp_path: Path
) -> None:
    x509 = pytest.importorskip("cryptography.x509", reason="certificates are made with cryptography")
    from obmm.bench.certificates import Authority

    authority = Authority(tmp_path)
    rules = tmp_path / "access.toml"
    rules.write_text('[[allow]]\nidentities = ["spiffe://prod/llm/*"]\nregions = ["*"]\n')
    rules.chmod(0o600)
    server = start(tls=authority.issue("server"), access=rules)

    def uri(name: str) -> Any:
        return authority.issue(
            name.replace("/", "-"), alternatives=[x509.UniformResourceIdentifier(f"spiffe://{name}")]
        )

    lease = join(server, tls=uri("prod/llm/1")).fetch("table")
    assert leases(server)[0]["identity"] == "spiffe://prod/llm/1"
    with pytest.raises(RequestRefusedError, match="no region"):
        join(server, tls=uri("prod/train/1")).fetch("table")
    with pytest.raises(AuthenticationError):
        join(server, tls=authority.issue("bell\x07", alternatives=[]))
    assert lease.release()


def test_a_revoked_certificate_is_refused_from_the_next_reload_on(start: Start, join: Join, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="certificates are made with cryptography")
    from dataclasses import replace

    from obmm.bench.certificates import Authority

    authority = Authority(tmp_path)
    files, good, bad = (authority.issue(name) for name in ("server", "good", "bad"))
    server = start(tls=files)
    peers = [join(server, tls=each) for each in (good, bad)]
    held = [peer.fetch("table") for peer in peers]
    assert server.reload(tls=replace(files, revoked=authority.revoke(bad))) == 2
    assert peers[0].list(timeout=10), "who is not on the list comes back by itself"
    with pytest.raises(DeadlineError, match=r"revocation list|not accepted|revoked"):
        peers[1].list(timeout=1)
    assert len(leases(server)) == 2
    assert held[0].usable


# --- watching ----------------------------------------------------------------------------------------------------------


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_health_and_metrics_have_a_port_of_their_own(start: Start, join: Join) -> None:
    server = start()
    lease = join(server).fetch("table")
    with Observatory(server, "127.0.0.1", 0, [ServerFigures(server)]) as watched:
        assert get(watched.port, "/healthz") == (200, "ok\n")
        status, text = get(watched.port, "/metrics")
        assert status == 200
        assert 'obmm_exchange_leases{state="active"} 1.0' in text
        assert 'obmm_exchange_events_total{event="granted"} 1.0' in text
        assert get(watched.port, "/other")[0] == 404
        silent = [socket.create_connection(("127.0.0.1", watched.port)) for _ in range(6)]
        assert get(watched.port, "/healthz")[0] == 200, "a client that says nothing keeps no other out"
        for each in silent:
            each.close()
        lease.release()
        server.close()
        assert get(watched.port, "/healthz")[0] == 503


@pytest.mark.parametrize("said", [b"", b"G", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"])
def test_no_number_of_unfinished_requests_keeps_a_monitor_out(start: Start, said: bytes) -> None:
    server = start()
    with Observatory(server, "127.0.0.1", 0, [ServerFigures(server)]) as watched, ExitStack() as stack:
        for _ in range(100):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", watched.port)))
            with suppress(OSError):
                stranger.sendall(said)
            if _ % 10 == 0:
                assert get(watched.port, "/healthz") == (200, "ok\n")
        assert get(watched.port, "/healthz") == (200, "ok\n")


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), MemoryError(), OSError(1, "no")])
def test_a_monitor_is_answered_after_its_listener_failed(
    start: Start, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    server = start()
    with Observatory(server, "127.0.0.1", 0, [ServerFigures(server)]) as watched:
        real, failures = watched._http.socket, iter([error, error])

        class Listener:
            def accept(self) -> Any:
                for failure in failures:
                    raise failure
                return real.accept()

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        monkeypatch.setattr(watched._http, "socket", Listener())
        assert get(watched.port, "/healthz") == (200, "ok\n")


def test_metrics_show_no_secret(start: Start, join: Join) -> None:
    server = start()
    lease = join(server).fetch("table")
    text = exposition([ServerFigures(server)]).decode()
    for secret in (str(lease.handle.uba), str(lease.handle.tokenid), lease._id.hex()):
        assert secret not in text


def test_grants_releases_and_refusals_are_audited(start: Start, join: Join, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "obmm.exchange.audit")
    server = start()
    peer = join(server, name="reader")
    peer.fetch("table").release()
    with pytest.raises(RequestRefusedError):
        peer.fetch("other")
    peer.fetch("table")
    server.end_leases(holder="reader")
    server.rekey(Key(os.urandom(32)))
    assert AUDIT.flush(5)
    lines = [json.loads(each.message) for each in caplog.records if each.name == "obmm.exchange.audit"]
    assert [line["event"] for line in lines if line["event"] != "refused-session"] == [
        "granted", "released", "refused", "granted", "ended", "reload",
    ]  # fmt: skip
    assert lines[0] | {"time": 0, "lease": ""} == {
        "time": 0, "event": "granted", "region": "table", "lease": "", "client": "reader", "address": "127.0.0.1",
        "identity": "",
    }  # fmt: skip


def test_a_log_without_a_reader_costs_lines_and_nothing_else(start: Start, join: Join) -> None:
    """E2: a stopped pipe behind the log while strangers knock and clients work."""
    reader, writer = os.pipe()
    logger = logging.getLogger("obmm.exchange")
    lines = Background("test-log")
    handler = DescriptorHandler(writer, logging.Formatter("%(message)s" + "x" * 4000), lines)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        server = start()
        peer = join(server)
        for _ in range(300):
            socket.create_connection(("127.0.0.1", server.port)).close()
        slowest = 0.0
        for _ in range(50):
            began = time.monotonic()
            peer.fetch("table").release()
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 5
        until(lambda: lines.dropped)
    finally:
        logger.removeHandler(handler)
        os.close(reader)
        os.close(writer)


def test_a_handler_that_never_returns_drops_lines_and_counts_them() -> None:
    stuck, entered = threading.Event(), threading.Event()

    class Stuck(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            entered.set()
            stuck.wait(30)

    logger = logging.getLogger("obmm.test.stuck")
    logger.addHandler(Stuck())
    logger.propagate = False
    lines = Background("test-stuck", most=10)
    log = BackgroundLogger("obmm.test.stuck", lines)
    log.warning("one")
    assert entered.wait(5)
    for number in range(30):
        log.warning("line %d", number)
    assert lines.dropped == 20
    stuck.set()
    assert lines.flush(5)


def test_lines_about_strangers_are_counted_and_not_all_written() -> None:
    now = [0.0]
    lines = Background("test-strangers")
    log = BackgroundLogger("obmm.test.strangers", lines, clock=lambda: now[0])
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    logger = logging.getLogger("obmm.test.strangers")
    logger.addHandler(Keep())
    logger.propagate = False
    for number in range(1000):
        log.stranger("refused %d", number)
    assert log.suppressed == 950
    now[0] = 10.0
    log.stranger("refused again")
    assert lines.flush(5)
    assert len(seen) == 52
    assert seen[-2:] == ["950 more lines like these were not written", "refused again"]


def test_a_slow_disk_holds_up_grants_and_nothing_else(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E2: fdatasync takes its time; renewals, listings and releases do not."""
    server = start(term_s=30)
    peer, other = join(server), join(server)
    lease = peer.fetch("table")
    going, real = threading.Event(), os.fdatasync

    def slow(fd: int) -> None:
        going.wait(20)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", slow)
    waiting = peer._client.mailbox.post(lambda: None)
    fetching = threading.Thread(target=lambda: other.fetch("table", timeout=20))
    fetching.start()
    until(lambda: server.counts()["grants_waiting"] == 1)
    before = lease.expires
    for _ in range(20):
        assert peer.list(timeout=2)
    peer._call(lambda: peer._client.holdings._renew(lease))
    until(lambda: lease.expires > before)
    assert server.counts()["grants_waiting"] == 1, "the disk has not answered yet"
    going.set()
    fetching.join(20)
    assert len(leases(server)) == 2
    assert waiting.done()


def test_grants_that_wait_for_the_disk_are_bounded(start: Start, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(limits=Limits(grants_waiting=2))
    peer = join(server)
    going = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda fd: going.wait(20))
    threads = [threading.Thread(target=lambda: peer.fetch("table", timeout=20)) for _ in range(2)]
    for each in threads:
        each.start()
    until(lambda: server.counts()["grants_waiting"] == 2)
    with pytest.raises(RequestRefusedError, match="disk is behind"):
        peer.fetch("table")
    going.set()
    for each in threads:
        each.join(20)
    assert peer.fetch("table")


# --- the control socket ------------------------------------------------------------------------------------------------


def test_the_operator_reaches_the_server_through_its_socket(start: Start, join: Join, tmp_path: Path) -> None:
    server = start()
    join(server, name="dead").fetch("table")
    path = control_path(tmp_path, server.port)
    with ControlSocket(server, path):
        assert path.stat().st_mode & 0o077 == 0
        assert ask(path, {"do": "status"})["status"]["server"]["leases"] == 1
        assert len(ask(path, {"do": "match", "holder": "dead"})["ended"]) == 1
        assert len(leases(server)) == 1
        assert [each["region"] for each in ask(path, {"do": "end", "holder": "dead"})["ended"]] == ["table"]
        assert leases(server) == []
        for bad in ({"do": "x"}, {}, {"do": "end", "holder": 5}, {"do": "end"}):
            with pytest.raises(Exception, match=r"unknown|texts|no lease was named"):
                ask(path, bad)
        for garbage in (b"[" * 50_000 + b"\n", b"\xff\n", b"{}"):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
                sock.sendall(garbage)
        assert ask(path, {"do": "status"})["status"]
    assert not path.exists()


def test_no_server_behind_the_socket_is_said(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no server of this user answers"):
        ask(tmp_path / "serve-1.sock", {"do": "status"})


# --- addresses ---------------------------------------------------------------------------------------------------------


def test_several_addresses_share_one_port(start: Start, join: Join) -> None:
    hosts = ["127.0.0.1", "127.0.0.2"]
    server = start(host=hosts)
    assert server.addresses == tuple(f"{host}:{server.port}" for host in hosts)
    assert join(server).list()
    with socket.create_connection(("127.0.0.2", server.port), 5):
        pass


def test_a_port_that_is_taken_is_named(start: Start, tmp_path: Path) -> None:
    server = start()
    with pytest.raises(ObmmArgumentError, match=r"cannot listen on 127\.0\.0\.1, port \d+: Address already in use"):
        start(port=server.port, journal=tmp_path / "other")


def test_a_runtime_folder_whose_name_is_too_long_for_a_socket_costs_only_obmm_lease(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    server = start()
    with observed(server, None):
        assert server.alive
    said = capsys.readouterr().err
    assert "`obmm lease` cannot reach this server" in said
    assert "a shorter XDG_RUNTIME_DIR" in said


@pytest.mark.parametrize("number", [errno.EPERM, errno.EPROTO, errno.EHOSTUNREACH, errno.ENETDOWN])
def test_connections_that_fail_while_they_are_accepted_hold_up_no_other(
    start: Start, join: Join, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """accept(2) takes a connection off the queue and says what happened to it: the next one may be good."""
    server = start()
    (door,) = server._service._doors
    real = door.listener
    bad = iter(range(20))

    class Listener:
        def accept(self) -> Any:
            for _ in bad:
                raise OSError(number, os.strerror(number))
            return real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    server._call(lambda: monkeypatch.setattr(door, "listener", Listener()))
    began = time.monotonic()
    assert join(server).list()
    assert time.monotonic() - began < 5
    assert door.failures == 20
    server._call(lambda: monkeypatch.setattr(door, "listener", real))


def test_the_operators_socket_survives_what_accept_says(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()
    with ControlSocket(server, tmp_path / "c") as control:
        real, failures = control._listener, iter([MemoryError(), OSError(24, "Too many open files"), ValueError("?")])

        class Listener:
            def accept(self) -> Any:
                for failure in failures:
                    raise failure
                return real.accept()

            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

        monkeypatch.setattr(control, "_listener", Listener())
        ask(tmp_path / "c", {"do": "status"})  # this one the real listener took, which was in it
        assert ask(tmp_path / "c", {"do": "status"})["status"]["server"]["leases"] == 0


def test_a_control_socket_that_cannot_be_made_leaves_no_name(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start()

    def refused(*arguments: Any) -> None:
        raise OSError(errno.EPERM, "no")

    for target, name in ((Path, "chmod"), (threading.Thread, "start"), (socket.socket, "listen")):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, refused)
            with pytest.raises(OSError, match="no"):
                ControlSocket(server, tmp_path / "c")
        assert not (tmp_path / "c").exists()


def test_two_names_for_one_key_are_refused(tmp_path: Path) -> None:
    """The holder of one would be taken for the other, and could release its leases."""
    Key.generate(tmp_path / "k")
    rules = tmp_path / "rules.toml"
    table = '[[key]]\nname = "{}"\nfile = "k"\n'
    rules.write_text(table.format("a") + table.format("a"))
    rules.chmod(0o600)
    assert len(Access.load(rules).keys) == 2
    rules.write_text(table.format("a") + table.format("b"))
    with pytest.raises(ObmmArgumentError, match="'b' has the same key as 'a'"):
        Access.load(rules)


def test_a_key_without_a_name_is_no_named_one_too(start: Start, rules: Path, tmp_path: Path) -> None:
    with pytest.raises(ObmmArgumentError, match=r"'serving' has the same key as .*serving.key, which has no name"):
        start({"public": FakeRegion()}, key=tmp_path / "serving.key", access=rules)


def test_what_rules_refuse_is_counted_logged_and_told_apart(
    start: Start, join: Join, rules: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start({"embeddings/1": FakeRegion()}, key=None, access=rules)
    training = join(server, key=tmp_path / "training.key")
    for name in ("embeddings/1", "embeddings/1", "nowhere", "public"):
        with pytest.raises(RequestRefusedError, match="no region"):
            training.fetch(name)
    expected = {"not allowed": 3, "no such region": 1}
    assert server.status()["server"]["refused"] == server.counts()["refused"] == expected
    text = exposition([ServerFigures(server)]).decode()
    assert 'obmm_exchange_refused_total{reason="not allowed"} 3.0' in text
    until(lambda: "request refused: 'embeddings/1' to training: not allowed" in caplog.text)


@pytest.mark.parametrize(
    ("region", "unnamed", "named"),
    [("embeddings/1", True, "serving.key"), ("public", True, "other.key"), ("public", False, "serving.key")],
)
def test_the_printed_command_has_a_key_that_may_fetch(rules: Path, region: str, unnamed: bool, named: str) -> None:
    how = {"plain": False, "tls": None, "key": [rules.parent / "other.key"] if unnamed else None, "access": rules}
    assert printed(how, region) == f"--key {rules.parent / named}"
