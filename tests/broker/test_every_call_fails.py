# SPDX-License-Identifier: Apache-2.0
"""Every system call and callback of a broker fails once, in turn; afterwards everything agrees.

What must agree: what peers were handed, the audit's lines, the counters, the slots, the descriptors of the process and
the open files of the node.  The next peer gets what its rule gives, and no more.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import obmm
from obmm import Backend, emulator
from obmm.broker import broker as broker_module
from obmm.broker.broker import Broker
from obmm.broker.policy import Policy
from tests.exchange.conftest import left_behind, until
from tests.exchange.injection import Injector

MIB = 1 << 20
ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    lambda: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
    lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    lambda: OSError(errno.EPIPE, os.strerror(errno.EPIPE)),
    lambda: OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
    MemoryError,
    KeyboardInterrupt,
)
# all of them take a minute: every run takes its share, and `OBMM_EVERY_CALL=1` all
STRIDE = 1 if os.environ.get("OBMM_EVERY_CALL") else 7
HELLO, OPEN = 1, 2
CONTROL = "/dev/obmm"

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(autouse=True)
def looks_up_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is told to stop ends with its next look."""
    monkeypatch.setattr(broker_module, "LOOK_S", 0.05)


@pytest.fixture(scope="module")
def fabric() -> Iterator[emulator.Fabric]:
    with emulator.start(nodes=1) as fabric:
        yield fabric


class Failing:
    """`lib` of the broker: the calls that open a node count as system calls, and fail with a negative errno."""

    def __init__(self, lib: Any, injector: Injector) -> None:
        self._lib, self._injector = lib, injector

    def obmm_rw_open(self, *arguments: Any) -> int:
        return self._fallible("open the control node", lambda: self._lib.obmm_rw_open(*arguments))

    def obmm_rw_shmdev_open(self, *arguments: Any) -> int:
        return self._fallible("open a region", lambda: self._lib.obmm_rw_shmdev_open(*arguments))

    def _fallible(self, name: str, call: Callable[[], int]) -> int:
        try:
            return int(self._injector.callback(name, call))
        except OSError as error:
            return -int(error.errno)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lib, name)


class Scene:
    """One broker in a thread, its audit, and a peer that writes down what it was handed."""

    def __init__(self, fabric: emulator.Fabric, folder: Path, injector: Injector, region: int) -> None:
        self.region = f"/dev/obmm_shmdev{region}"
        self.injector = injector
        self.policy = folder / "policy.toml"
        self.policy.write_text(f'[[allow]]\nusers = [{os.geteuid()}]\ncontrol = true\nregions = "any"\naccess = "r"\n')
        self.policy.chmod(0o600)
        self.lines: list[dict[str, Any]] = []
        self.handed: list[str] = []
        self.broker = Broker(
            Backend.parse(fabric.device("a")), Policy(self.policy), folder / "socket", audit=self.audit
        )
        self.broker._serve = injector.around(self.broker._serve)  # type: ignore[method-assign]
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        """The loop: an interrupt ends it, as it would in a main thread, and it can be begun again."""
        while self.broker._open:
            with contextlib.suppress(KeyboardInterrupt):
                self.injector.around(self.broker.serve)()

    def audit(self, line: str) -> None:
        self.injector.callback("audit", lambda: self.lines.append(json.loads(line)))

    def ask(self, kind: int, path: str = "", flags: int = os.O_RDWR) -> int | None:
        """The errno that the peer hears, or None: no answer."""
        head = (0x4B424F42).to_bytes(4, "little") + (1).to_bytes(2, "little") + kind.to_bytes(2, "little")
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(20)
            peer.connect(str(self.broker.path))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                peer.sendall(head + flags.to_bytes(4, "little") + path.encode().ljust(64, b"\0"))
                answer, passed, _, _ = socket.recv_fds(peer, 12, 4)
                for fd in passed:
                    os.close(fd)
                    self.handed.append(path)
                while answer and len(answer) < 12 and (more := peer.recv(12 - len(answer))):
                    answer += more
                return int.from_bytes(answer[4:8], "little") if len(answer) == 12 else None
        return None

    def play(self) -> None:
        """What a broker is asked for, good and bad."""
        self.ask(HELLO)
        self.ask(OPEN, CONTROL)
        self.ask(OPEN, self.region, os.O_RDONLY)
        self.ask(OPEN, self.region, os.O_RDWR)
        self.ask(OPEN, "/etc/shadow", os.O_RDONLY)
        self.broker.reload(Policy(self.policy))
        with socket.socket(socket.AF_UNIX) as rude:
            rude.connect(str(self.broker.path))
        self.ask(OPEN, CONTROL)

    def close(self) -> None:
        self.broker.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()
        self.broker.close()

    def agrees(self) -> bool:
        return not self.differences()

    def differences(self) -> list[str]:
        """What the audit, the counters, the slots and the peers do not say alike."""
        self.broker.flush(10)
        said = Counter(line["path"] for line in self.lines if line["event"] == "granted")
        said.subtract(line["path"] for line in self.lines if line["reason"] == "not delivered")
        had = Counter(self.handed)
        lost = self.broker.lines_dropped["audit"]
        wrong = [
            f"{path!r}: handed out {had[path]} times, {said[path]} in the audit, {lost} line(s) lost"
            for path in {*said, *had}
            if abs(said[path] - had[path]) > lost
        ]
        counted = sum(self.broker.answers.all().values())
        if counted != len(self.lines) + lost:
            wrong.append(f"{counted} answers counted, {len(self.lines)} lines written, {lost} lost")
        if self.broker.slots.guests:
            wrong.append(f"slots are taken: {len(self.broker.slots.guests)}")
        return wrong


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_every_call_of_the_broker_fails_once(fabric: emulator.Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="obmm") as place, obmm.open(fabric.device("a")) as device:
        with device.export_region(MIB) as region:
            at = int(os.environ.get("OBMM_EVERY_CALL_FROM", "0"))
            tried = 0
            while True:
                folder = Path(place) / str(at)
                folder.mkdir()
                fds, files = descriptors(), left_behind(fabric)
                injector = Injector(at, ERRORS[(at + at // STRIDE) % len(ERRORS)](), ("close",))
                with monkeypatch.context() as patched:
                    patched.setattr(broker_module, "lib", Failing(broker_module.lib, injector))
                    scene = Scene(fabric, folder, injector, region.mem_id)
                    what = ""
                    try:
                        scene.play()
                        what = f"call {at} ({injector.hit}) failed with {injector.error!r}"
                        assert scene.thread.is_alive(), what
                        until_whole(scene, what)
                        # that the failure comes only now is possible once, for what is asked last
                        for _ in range(2):
                            last = [
                                scene.ask(HELLO), scene.ask(OPEN, CONTROL), scene.ask(OPEN, scene.region, os.O_RDONLY),
                                scene.ask(OPEN, scene.region, os.O_RDWR), scene.ask(OPEN, "/etc/shadow", os.O_RDONLY),
                            ]  # fmt: skip
                            if last == [0, 0, 0, errno.EACCES, errno.EACCES]:
                                break
                        assert last == [0, 0, 0, errno.EACCES, errno.EACCES], what
                        until_whole(scene, f"call {at} ({injector.hit}) failed with {injector.error!r}")
                    except TimeoutError:
                        raise AssertionError(f"a peer waits: {injector.hit} failed with {injector.error!r}") from None
                    finally:
                        scene.close()
                until_closed(fds, what)
                until(lambda: left_behind(fabric) == files, 10)  # noqa: B023
                assert not (folder / "socket").exists(), what
                if not injector.hit:
                    break
                tried += 1
                at += STRIDE
    print("broker", tried, "failures tried")
    assert tried >= 60 // STRIDE, "the play has become too short to prove anything"


def until_closed(fds: int, what: str) -> None:
    try:
        until(lambda: descriptors() <= fds, 10)
    except AssertionError:
        raise AssertionError(f"{what}: {descriptors()} descriptors are open, {fds} were") from None


def until_whole(scene: Scene, what: str) -> None:
    try:
        until(scene.agrees, 10)
    except AssertionError:
        raise AssertionError(f"{what}: {scene.differences()}") from None


def test_every_call_of_a_brokers_start_and_end_fails_once(fabric: emulator.Fabric) -> None:
    """A start that fails leaves no socket, and an end that fails can be repeated."""
    at = tried = 0
    with tempfile.TemporaryDirectory(prefix="obmm") as place:
        policy = Path(place) / "policy.toml"
        policy.write_text(f"[[allow]]\nusers = [{os.geteuid()}]\ncontrol = true\n")
        policy.chmod(0o600)
        rules, backend = Policy(policy), Backend.parse(fabric.device("a"))
        Broker(backend, rules, Path(place) / "first").close()
        while True:
            path = Path(place) / str(at)
            with socket.socket(socket.AF_UNIX) as dead:  # one that a killed broker left
                dead.bind(str(path))
            left = path.stat().st_ino
            fds = descriptors()
            injector = Injector(at, ERRORS[at % len(ERRORS)](), ("close",))
            broker = None
            try:
                broker = injector.around(Broker)(backend, rules, path)
                injector.around(broker.close)()
            except (OSError, MemoryError, KeyboardInterrupt):
                assert injector.hit
                if broker is None:
                    assert not path.exists() or path.stat().st_ino == left, injector.hit
            if broker is not None:
                broker.close()
                assert not path.exists(), injector.hit
            del broker
            until(lambda: descriptors() <= fds, 10)  # noqa: B023
            if not injector.hit:
                break
            tried += 1
            at += 1
    print("broker's start and end", tried, "failures tried")
    assert tried > 8


def test_another_brokers_name_is_not_taken_by_one_that_only_seems_dead() -> None:
    """A listener whose queue is full answers no one, and lives."""
    with tempfile.TemporaryDirectory(prefix="obmm") as place, contextlib.ExitStack() as stack:
        path = Path(place) / "busy"
        busy = stack.enter_context(socket.socket(socket.AF_UNIX))
        busy.bind(str(path))
        busy.listen(0)
        for _ in range(4):  # more than its queue holds
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            waiting.connect_ex(str(path))
        began = time.monotonic()
        with pytest.raises(OSError, match="in use"):
            broker_module._listen(path)
        assert path.exists()
        assert time.monotonic() - began < 20
