# SPDX-License-Identifier: Apache-2.0
"""The broker on an emulated node: what is granted, what is not, and who cannot hold it up."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

import obmm
from obmm import Backend, ObmmError, emulator
from obmm.broker.broker import Broker
from obmm.broker.policy import Policy
from obmm.broker.slots import CONNECTIONS, CONNECTIONS_PER_USER, STRANGERS, Slots
from obmm.cli.main import main
from obmm.host.doctor import diagnose
from tests.exchange.conftest import until

MIB = 1 << 20
US = os.geteuid()
STRANGER = 54321

needs_root = pytest.mark.skipif(US != 0, reason="only root can be somebody else")


class Served:
    """A broker in a thread, its audit log, and its policy."""

    def __init__(self, fabric: emulator.Fabric, folder: Path, policy: str) -> None:
        path = folder / "policy.toml"
        path.write_text(policy)
        path.chmod(0o600)
        self.lines: list[dict] = []
        self.broker = Broker(
            Backend.parse(fabric.device("a")),
            Policy(path),
            folder / "broker.sock",
            audit=lambda line: self.lines.append(json.loads(line)),
        )
        self.device = f"broker:{folder / 'broker.sock'}"
        self.thread = threading.Thread(target=self.broker.serve)
        self.thread.start()

    @property
    def log(self) -> list[dict]:
        assert self.broker.flush(10)
        return self.lines

    def stop(self) -> None:
        self.broker.stop()
        self.thread.join(10)
        assert not self.thread.is_alive()
        self.broker.close()
        self.broker.close()


@pytest.fixture(scope="module")
def fabric():
    with emulator.start(nodes=2) as fabric:
        yield fabric
        for name, node in fabric.status()["nodes"].items():
            assert (name, node["regions"], node["open_files"]) == (name, [], 0)


@pytest.fixture
def folder():
    """Not tmp_path: strangers must be able to reach it."""
    path = Path(tempfile.mkdtemp(prefix="obmm-broker-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def serve(fabric, folder):
    with contextlib.ExitStack() as stack:

        def start(rule: str) -> Served:
            served = Served(fabric, folder, f"[[allow]]\nusers = [{US}]\n{rule}")
            stack.callback(served.stop)
            return served

        yield start


def test_everything_works_through_a_broker(serve, fabric):
    served = serve('control = true\nregions = "own"')
    with obmm.open(served.device) as device, device.export_region(MIB, label="mine") as region:
        assert device.backend.is_emulator
        assert "broker:" in repr(device)
        with region.map("rw") as mapping, mapping.writing():
            mapping.write(100, b"through the broker")
        with obmm.open(fabric.device("b")) as other, other.import_region(region.handle()) as imported:
            with imported.map("r") as view:
                assert view.read(100, 18) == b"through the broker"
        with device.import_region(region.handle()) as loop, loop.map("r") as view:
            assert view.read(100, 18) == b"through the broker"
    paths = [(line["path"], line["event"], line["access"]) for line in served.log]
    assert paths[0] == ("/dev/obmm", "granted", "rw")
    assert ("/dev/obmm_shmdev1", "granted", "rw") in paths
    assert {line["pid"] for line in served.log} == {os.getpid()}
    assert all(line["rule"] == "rule 1" for line in served.log)


def test_without_a_rule_the_control_node_stays_shut(serve):
    served = serve('regions = "any"')
    with pytest.raises(ObmmError) as caught:
        obmm.open(served.device)
    assert caught.value.errno == errno.EACCES
    assert "policy" in str(caught.value)
    assert served.log[-1]["event"] == "denied"
    assert served.log[-1]["reason"] == "no rule allows it"


@pytest.mark.parametrize(
    ("rule", "access", "granted"),
    [
        ('regions = "any"', "rw", True),
        ('regions = "any"\naccess = "r"', "r", True),
        ('regions = "any"\naccess = "r"', "rw", False),
        ('regions = "any"\nlabels = ["kv-*"]', "r", True),
        ('regions = "any"\nlabels = ["tables"]', "r", False),
        ('regions = "any"\nkinds = ["import"]', "r", False),
        ('regions = "own"', "rw", True),
    ],
)
def test_region_nodes_follow_the_rule(serve, rule, access, granted):
    served = serve(f"control = true\n{rule}")
    with obmm.open(served.device) as device, device.export_region(2 * MIB, header=False, label="kv-7") as region:
        if granted:
            region.map(access).close()
        else:
            with pytest.raises(ObmmError) as caught:
                region.map(access)
            assert caught.value.errno == errno.EACCES
            assert served.log[-1]["event"] == "denied"


def test_regions_of_others_are_not_own(serve, fabric):
    served = serve('control = true\nregions = "own"')
    make = "import sys, obmm\nr = obmm.open(sys.argv[1]).export_region(1 << 20)\nprint(r.mem_id, flush=True)\ninput()\nr.close()"
    child = subprocess.Popen(
        [sys.executable, "-c", make, fabric.device("a")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    mem_id = int(child.stdout.readline())
    with obmm.open(served.device) as device, pytest.raises(ObmmError) as caught:
        device.driver.open_region(mem_id, writable=False, non_cacheable=False, held=device.driver.new_held())
    assert caught.value.errno == errno.EACCES
    child.communicate("\n")
    assert child.returncode == 0


def test_the_drivers_own_refusal_passes_through(serve):
    served = serve('control = true\nregions = "any"')
    with obmm.open(served.device) as device:
        with pytest.raises(ObmmError) as caught:
            device.driver.open_region(77, writable=False, non_cacheable=False, held=device.driver.new_held())
        assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize(
    ("path", "flags", "number"),
    [
        ("/etc/shadow", os.O_RDONLY, errno.EACCES),
        ("/dev/obmm/../../etc/shadow", os.O_RDONLY, errno.EACCES),
        ("/dev/obmm_shmdev01", os.O_RDONLY, errno.EACCES),
        ("/dev/obmm_shmdev1/../mem", os.O_RDONLY, errno.EACCES),
        ("/dev/obmm_shmdev", os.O_RDONLY, errno.EACCES),
        ("", os.O_RDONLY, errno.EACCES),
        ("/dev/obmm", os.O_WRONLY, errno.EINVAL),
        ("/dev/obmm", os.O_RDWR | os.O_TRUNC, errno.EINVAL),
        ("/dev/obmm", os.O_RDONLY | os.O_DSYNC, errno.EINVAL),
        ("/dev/obmm", 3, errno.EINVAL),
    ],
)
def test_only_nodes_of_obmm_are_ever_opened(serve, path, flags, number):
    served = serve('control = true\nregions = "any"')
    assert ask(served, path, flags) == number
    assert served.log[-1]["path"] == path
    assert served.log[-1]["event"] == "denied"


def request(path: str, flags: int, *, magic: int = 0x4B424F42, version: int = 1, kind: int = 2) -> bytes:
    head = magic.to_bytes(4, "little") + version.to_bytes(2, "little") + kind.to_bytes(2, "little")
    return head + flags.to_bytes(4, "little") + path.encode().ljust(64, b"\0")


def ask(served: Served, path: str, flags: int) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(served.broker.path))
        connection.sendall(request(path, flags))
        data, fds, _, _ = socket.recv_fds(connection, 12, 4)
        for fd in fds:
            os.close(fd)
        error = int.from_bytes(data[4:8], "little")
        assert bool(fds) == (error == 0)
        return error


def test_a_descriptor_is_passed_close_on_exec_and_survives_the_broker(serve):
    served = serve('control = true\nregions = "any"')
    device = obmm.open(served.device)
    assert not os.get_inheritable(device.fileno())
    served.stop()
    assert device.query_pa is not None
    with pytest.raises(ObmmError) as caught:
        device.query_pa(1)
    assert caught.value.errno == errno.ENOENT
    device.close()


def test_no_broker_is_an_error_that_names_the_command(tmp_path):
    with pytest.raises(obmm.DeviceNotFoundError, match="obmm open-broker"):
        obmm.open(f"broker:{tmp_path}/none")
    with pytest.raises(obmm.ObmmArgumentError):
        obmm.open("broker:")


@needs_root
def test_a_stranger_gets_nothing_and_is_written_down(serve):
    served = serve('control = true\nregions = "any"')
    out = as_stranger(
        """
        for make in (request("/dev/obmm", 2), request("/dev/obmm_shmdev1", 0), request("", 0, 1)):
            c = socket.socket(socket.AF_UNIX); c.connect(path); c.sendall(make); print(c.recv(12)[4])
        """,
        served,
    )
    assert out.split() == [str(errno.EACCES)] * 3
    assert [(line["uid"], line["event"]) for line in served.log] == [(STRANGER, "denied")] * 3


@needs_root
def test_a_stranger_with_a_rule_gets_a_working_descriptor(fabric, folder):
    served = Served(fabric, folder, f'[[allow]]\nname = "them"\nusers = [{STRANGER}]\nregions = "any"\naccess = "r"')
    try:
        with obmm.open(fabric.device("a")) as device, device.export_region(MIB) as region:
            out = as_stranger(
                f"""
                c = socket.socket(socket.AF_UNIX); c.connect(path); c.sendall(request("/dev/obmm_shmdev{region.mem_id}", 0))
                print(len(socket.recv_fds(c, 12, 4)[1]))
                """,
                served,
            )
        assert out.strip() == "1"
        assert (served.log[-1]["rule"], served.log[-1]["event"]) == ("them", "granted")
    finally:
        served.stop()


def as_stranger(code: str, served: Served) -> str:
    import textwrap

    prologue = f"""
import os, socket
os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})
path = {str(served.broker.path)!r}
def request(node, flags, kind=2):
    head = (0x4B424F42).to_bytes(4, "little") + (1).to_bytes(2, "little") + kind.to_bytes(2, "little")
    return head + flags.to_bytes(4, "little") + node.encode().ljust(64, b"\\0")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", prologue + textwrap.dedent(code)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_root
def test_clients_that_say_nothing_do_not_keep_others_out(serve):
    served = serve('control = true\nregions = "any"')
    hostile = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-c",
            f"import os, socket, sys\nos.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})\n"
            f"all = [socket.socket(socket.AF_UNIX) for _ in range(60)]\n"
            f"for s in all: s.connect({str(served.broker.path)!r})\n"
            "for s in all[-4:]: s.sendall(b'BOBK')\nprint('there', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert hostile.stdout.readline() == "there\n"
    started = time.monotonic()
    for _ in range(5):
        obmm.open(served.device).close()
    assert time.monotonic() - started < 4  # less than the time that a silent client gets
    assert served.broker.slots.of(STRANGER) <= CONNECTIONS_PER_USER
    hostile.communicate()
    assert sum(line["reason"] == "too many connections" for line in served.log) >= 60 - CONNECTIONS_PER_USER


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.0\r\n\r\n".ljust(76),
        request("/dev/obmm", 2, magic=1),
        request("/dev/obmm", 2, kind=3),
        os.urandom(200),
    ],
)
def test_garbage_ends_its_connection_and_nothing_else(serve, data):
    served = serve("control = true")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(served.broker.path))
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    obmm.open(served.device).close()
    assert any(line["errno"] == "EPROTO" for line in served.log)


def test_without_a_thread_to_be_had_a_peer_is_turned_away_and_the_next_is_served(serve, monkeypatch):
    served = serve('control = true\nregions = "own"')
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ObmmError):
        obmm.open(served.device)
    until(lambda: served.log)  # the audit is written by a thread of its own
    assert served.log[-1]["reason"] == "can't start new thread"
    obmm.open(served.device).close()
    assert served.thread.is_alive()


def test_a_second_broker_on_a_live_socket_is_refused_and_a_dead_ones_is_replaced(serve, fabric, folder):
    served = serve("control = true")
    with pytest.raises(OSError) as caught:
        Broker(Backend.parse(fabric.device("a")), served.broker.policy, served.broker.path)
    assert caught.value.errno == errno.EADDRINUSE
    dead = folder / "dead.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(dead))
    left.close()
    with Broker(Backend.parse(fabric.device("a")), served.broker.policy, dead):
        pass
    assert not dead.exists()


def test_doctor_looks_through_the_broker(serve):
    served = serve("control = true")
    found = {check.name: check for check in diagnose(Backend.parse(served.device))}
    assert "through the broker" in found["backend"].text
    assert "emulated" in found["backend"].text
    assert found["control node"].status == "ok"


def test_the_command_serves_until_it_is_told_to_stop(fabric, folder):
    policy = folder / "p.toml"
    policy.write_text(f"[[allow]]\nusers = [{US}]\ncontrol = true\n")
    policy.chmod(0o600)
    options = ["--policy", str(policy), "--socket", str(folder / "s"), "--device", fabric.device("a")]
    shown = CliRunner().invoke(main, ["open-broker", "--check", *options])
    assert shown.exit_code == 0
    assert '"control": true' in shown.output
    child = subprocess.Popen(
        [sys.executable, "-m", "obmm.cli.main", "open-broker", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "open-broker on" in child.stderr.readline()
    obmm.open(f"broker:{folder / 's'}").close()
    assert json.loads(child.stdout.readline())["event"] == "granted"
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=20)
    assert child.returncode == 0
    assert not (folder / "s").exists()


def test_the_broker_shows_figures_health_and_its_watchdog_a_sign_of_life(fabric, folder, monkeypatch):
    policy = folder / "p.toml"
    policy.write_text(f"[[allow]]\nusers = [{US}]\ncontrol = true\n")
    policy.chmod(0o600)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "400000")
        options = ["--policy", policy, "--socket", folder / "s", "--device", fabric.device("a")]
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "obmm.cli.main", "open-broker", *options, "--metrics", f"127.0.0.1:{port}"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert manager.recv(100) == b"READY=1"
            assert manager.recv(100) == b"WATCHDOG=1"
            assert manager.recv(100) == b"WATCHDOG=1"
            obmm.open(f"broker:{folder / 's'}").close()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=20) as answer:
                assert answer.read() == b"ok\n"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                text = answer.read().decode()
            assert 'obmm_broker_answers_total{errno="",event="granted"} 1.0' in text
            assert "obmm_broker_connections" in text
            assert 'obmm_broker_lines_dropped_total{log="audit"} 0.0' in text
            child.send_signal(signal.SIGTERM)
            while (state := manager.recv(100)) == b"WATCHDOG=1":
                pass
            assert state == b"STOPPING=1"
            child.communicate(timeout=20)
            assert child.returncode == 0
        finally:
            child.kill()
            child.communicate()


def test_a_broker_whose_loop_is_over_or_stuck_is_not_alive(serve, monkeypatch):
    broker = serve("control = true").broker
    deadline = time.monotonic() + 20
    while not broker.alive:
        assert time.monotonic() < deadline
    monkeypatch.setattr("obmm.broker.broker.LATE_S", -100.0)
    assert not broker.alive, "it has not looked up for too long"
    monkeypatch.setattr("obmm.broker.broker.LATE_S", 5.0)
    broker.stop()
    while broker.alive:
        assert time.monotonic() < deadline


# --- nothing that a peer, a disk or a log does holds it or ends it -------------------------------------------------------


class Knock:
    """A connection that only the slots look at."""

    def __init__(self) -> None:
        self.thrown_out = False

    def shutdown(self, how: int) -> None:
        self.thrown_out = True


def test_users_without_a_rule_share_their_slots_and_lock_no_other_out():
    slots = Slots(lambda uid: uid == 7)
    for uid in range(100, 130):
        for _ in range(CONNECTIONS_PER_USER):
            slots.enter(Knock(), uid)
    assert len([each for each in slots.guests if not each.sent_away]) == STRANGERS
    for uid in (0, 7):
        guest, gone = slots.enter(Knock(), uid)
        assert guest is not None
        assert gone is None


def test_the_oldest_idle_connection_of_the_busiest_user_goes():
    slots = Slots(lambda uid: True)
    first, _ = slots.enter(Knock(), 1)
    slots.asks(first, True)
    second, _ = slots.enter(Knock(), 1)
    for number in range(CONNECTIONS - 2):
        assert slots.enter(Knock(), 1000 + number)[1] is None
    for _ in range(3):
        slots.enter(Knock(), 1)
    assert second.sent_away
    assert second.connection.thrown_out
    assert not first.sent_away, "it is being answered"


def test_a_user_whose_rule_is_for_its_group_is_known_from_its_first_request_on():
    slots = Slots(lambda uid: False)
    guest, _ = slots.enter(Knock(), 5)
    assert not guest.known
    slots.asks(guest, True)
    slots.leave(guest)
    assert slots.enter(Knock(), 5)[0].known
    assert slots.wait_empty(0.01) is False


def test_an_audit_that_is_stuck_or_full_holds_up_no_request(fabric, folder):
    policy = folder / "p.toml"
    policy.write_text(f"[[allow]]\nusers = [{US}]\ncontrol = true\n")
    policy.chmod(0o600)
    stuck = threading.Event()

    def audit(line: str) -> None:
        stuck.wait(30)
        raise OSError(errno.ENOSPC, "No space left on device")

    with Broker(Backend.parse(fabric.device("a")), Policy(policy), folder / "s", audit=audit) as broker:
        thread = threading.Thread(target=broker.serve)
        thread.start()
        for _ in range(20):
            obmm.open(f"broker:{folder / 's'}").close()
        stuck.set()
        assert broker.flush(10)
        assert broker.lines_dropped["audit"] >= 20
        obmm.open(f"broker:{folder / 's'}").close()
        broker.stop()
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EPERM, errno.EPROTO, errno.EIO])
def test_whatever_accept_says_the_next_peer_is_served(serve, monkeypatch, number):
    served = serve("control = true")
    real = served.broker._socket
    failed = threading.Event()

    class Refusing:
        def accept(self):
            served.broker._socket = real
            failed.set()
            raise OSError(number, os.strerror(number))

        def __getattr__(self, name):
            return getattr(real, name)

    served.broker._socket = Refusing()
    obmm.open(served.device).close()
    assert failed.wait(10)
    obmm.open(served.device).close()
    assert served.thread.is_alive()


def test_a_listener_that_only_fails_ends_the_broker(serve, monkeypatch):
    monkeypatch.setattr("obmm.broker.broker.FAILURES", 3)
    served = serve("control = true")
    ended = []

    class Refusing:
        def accept(self):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

        def __getattr__(self, name):
            return getattr(real, name)

    real, served.broker._socket = served.broker._socket, Refusing()
    with contextlib.suppress(OSError):
        served.broker.serve()
        ended.append("without a word")
    assert ended == []
    served.broker._socket = real


def test_a_full_disk_costs_the_line_and_sighup_reads_the_policy_again(fabric, folder):
    policy = folder / "p.toml"
    policy.write_text(f"[[allow]]\nusers = [{US}]\ncontrol = true\n")
    policy.chmod(0o600)
    command = [
        sys.executable, "-m", "obmm.cli.main", "open-broker", "--policy", policy, "--socket", folder / "s",
        "--device", fabric.device("a"), "--audit", "/dev/full",
    ]  # fmt: skip
    with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True) as child:
        assert "open-broker on" in child.stderr.readline()
        for _ in range(3):
            obmm.open(f"broker:{folder / 's'}").close()
        policy.write_text("allow = 5")
        child.send_signal(signal.SIGHUP)
        assert "stays as it was" in child.stderr.readline()
        policy.write_text("")
        child.send_signal(signal.SIGHUP)
        assert child.stderr.readline() == "policy read again\n"
        with pytest.raises(ObmmError):
            obmm.open(f"broker:{folder / 's'}")
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=20)
        assert child.returncode == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError])
def test_a_thread_that_never_runs_keeps_no_connection(serve, monkeypatch, error):
    """The interpreter keeps a thread whose start was interrupted, and what it was given, for ever."""
    served = serve("control = true")
    start = threading.Thread.start

    def interrupted(thread):
        if thread._target == served.broker._serve:
            threading._limbo[thread] = thread
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with socket.socketpair()[0] as ours:
        place = os.fstat(ours.fileno()).st_ino
        connection = socket.socket(fileno=os.dup(ours.fileno()))
        with contextlib.suppress(error):
            served.broker._take(connection)
        assert place
        assert connection.fileno() == -1
        assert not served.broker.slots.guests
    for thread in [each for each in threading._limbo if each._target == served.broker._serve]:
        del threading._limbo[thread]
