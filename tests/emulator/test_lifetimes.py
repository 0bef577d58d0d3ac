# SPDX-License-Identifier: Apache-2.0
"""Whose death releases what: kill, fork, exec, threads, the starter's end."""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from obmm import emulator
from obmm.emulator import ControlClient, Fabric

from .children import Child
from .node import MIB, Node, memory

PAGE = 4096


def regions(fabric: Fabric, node: str = "a") -> dict[int, dict[str, int]]:
    return {region["mem_id"]: region for region in fabric.status()["nodes"][node]["regions"]}


def test_a_killed_process_leaves_no_busy_region(fabric: Fabric, a: Node) -> None:
    mem_id = a.export().mem_id

    def body() -> None:
        mine = Node(fabric, "a")
        mine.map(mine.open_region(mem_id), 2 * MIB)

    with Child(body) as child:
        with pytest.raises(OSError, match="busy"):
            a.unexport(mem_id)
        child.kill()
        a.unexport(mem_id)


def test_a_region_outlives_the_process_that_exported_it(fabric: Fabric, a: Node) -> None:
    def body() -> None:
        mine = Node(fabric, "a")
        start = mine.map(mine.open_region(mine.export().mem_id), 2 * MIB)
        memory(start, 2 * MIB)[:6] = b"stayed"

    with Child(body) as child:
        child.kill()
    (mem_id,) = regions(fabric)
    start = a.map(a.open_region(mem_id), 2 * MIB)
    assert memory(start, 2 * MIB)[:6] == b"stayed"


def test_a_forked_child_has_no_mapping_and_keeps_the_descriptor(fabric: Fabric, a: Node) -> None:
    mem_id = a.export().mem_id
    fd = a.open_region(mem_id)
    start = a.map(fd, 2 * MIB)
    memory(start, 1)[0:1] = b"p"

    def body() -> None:
        with open("/proc/self/maps") as maps:
            assert not any(line.startswith(f"{start:x}-") for line in maps)
        own = a.map(fd, 2 * MIB)
        assert memory(own, 1)[0:1] == b"p"

    with Child(body) as child:
        a.unmap(start, 2 * MIB)
        os.close(fd)
        with pytest.raises(OSError, match="busy"):
            a.unexport(mem_id)
        assert child.finish() == 0
    a.unexport(mem_id)


def test_the_parents_death_is_seen_although_its_child_lives(fabric: Fabric, a: Node) -> None:
    mem_id = a.export().mem_id
    grandchild = os.pipe()

    def body() -> None:
        mine = Node(fabric, "a")
        fd = mine.open_region(mem_id)
        mine.map(fd, 2 * MIB)
        os.close(fd)
        if not os.fork():
            os.close(grandchild[1])
            os.read(grandchild[0], 1)
            os._exit(0)

    with Child(body) as child:
        assert regions(fabric)[mem_id]["mappings"] == 1
        child.kill()
        a.unexport(mem_id)
    os.close(grandchild[0])
    os.close(grandchild[1])


def test_a_fork_that_runs_no_handlers_gets_a_connection_of_its_own(fabric: Fabric, a: Node) -> None:
    """clone(2) by hand: libc's at-fork handlers do not run."""
    import ctypes

    SYS_fork = {"x86_64": 57}.get(os.uname().machine)
    if SYS_fork is None:
        pytest.skip("this machine has no fork system call, only clone")
    mem_id = a.export().mem_id
    fd = a.open_region(mem_id)
    start = a.map(fd, 2 * MIB)
    pid = ctypes.CDLL(None).syscall(SYS_fork)
    if not pid:
        try:
            a.query(mem_id)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert regions(fabric)[mem_id]["mappings"] == 1
    a.own(fd, start, 2 * MIB, 0x5)


def test_exec_releases_mappings_and_keeps_inherited_descriptors(fabric: Fabric, a: Node) -> None:
    mem_id = a.export().mem_id

    def body() -> Callable[[], object]:
        mine = Node(fabric, "a")
        fd = mine.sys_open(f"/dev/obmm_shmdev{mem_id}", os.O_RDWR)
        mine.map(fd, 2 * MIB)
        return lambda: os.execv("/bin/sleep", ["sleep", "60"])

    with Child(body) as child:
        assert regions(fabric)[mem_id]["mappings"] == 1
        os.close(child._go)
        deadline = time.monotonic() + 20
        while regions(fabric)[mem_id]["mappings"] and time.monotonic() < deadline:
            time.sleep(0.005)
        assert (regions(fabric)[mem_id]["mappings"], regions(fabric)[mem_id]["opens"]) == (0, 1)
        os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        child._ended = True
        a.unexport(mem_id)


def test_closing_every_descriptor_costs_the_mappings_but_not_the_node(fabric: Fabric, a: Node) -> None:
    mem_id = a.export().mem_id

    def body() -> None:
        mine = Node(fabric, "a")
        start = mine.map(mine.open_region(mem_id), 2 * MIB)
        os.closerange(200, 1000)  # where the client keeps its connection
        mine.control = mine.open()
        assert mine.query(mem_id) > 0
        fd = mine.open_region(mem_id)
        with pytest.raises(OSError, match="Bad address"):
            mine.own(fd, start, 2 * MIB, 0x5)

    with Child(body) as child:
        assert child.finish() == 0


def test_threads_share_one_process(fabric: Fabric, a: Node) -> None:
    fd = a.open_region(a.export(64 * PAGE * 8).mem_id)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                start = a.map(fd, 8 * PAGE)
                a.own(fd, start, 8 * PAGE, 0x5)
                a.own(fd, start, PAGE, 0xD)
                a.unmap(start, 8 * PAGE)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    ((_, region),) = regions(fabric).items()
    assert region["mappings"] == 0


def test_forks_in_a_threaded_process_do_not_hang(fabric: Fabric, a: Node) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            os.close(a.open())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            with Child(lambda: os.close(a.open())) as child:
                assert child.finish() == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def test_destroying_the_last_table_closes_the_connection(fabric: Fabric) -> None:
    gc.collect()  # what earlier tests left is not ours, whenever it goes
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        Node(fabric, "b").close()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert fabric.status()["clients"] == 0


def test_the_server_goes_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import obmm.emulator, json, os, signal; f = obmm.emulator.start(); "
        "print(json.dumps([f.server_pid, f.socket, str(f.root('a'))]), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid, socket, root = json.loads(done.stdout)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [Path(path).exists() for path in (f"/proc/{pid}", socket, root)] == [False, False, False]


def test_the_server_does_not_wait_for_a_forked_child_of_its_starter(tmp_path: Path) -> None:
    fabric = emulator.start()
    with Child(lambda: fabric.close()):  # in the child: nothing happens
        assert fabric.status()["name"]
        fabric.close()
        assert not Path(f"/proc/{fabric.server_pid}").exists()


def test_close_is_idempotent_and_removes_every_file() -> None:
    fabric = emulator.start()
    paths = [Path(fabric.socket), fabric.root("a").parent.parent]
    assert all(path.exists() for path in paths)
    fabric.close()
    fabric.close()
    assert not any(path.exists() for path in paths)


def test_what_a_killed_server_left_is_removed_by_the_next_start() -> None:
    first = emulator.start()
    os.kill(first.server_pid, signal.SIGKILL)
    first.close()
    assert Path(first.socket).exists()
    with emulator.start():
        assert not Path(first.socket).exists()


def test_mappings_of_a_closed_fabric_raise_SIGBUS() -> None:
    fabric = emulator.start()

    def body() -> Callable[[], object]:
        node = Node(fabric)
        start = node.map(node.open_region(node.export().mem_id), 2 * MIB)
        memory(start, 1)[0:1] = b"x"
        faulthandler.disable()
        return lambda: memory(start, 1)[0:1]

    with Child(body) as child:
        fabric.close()
        assert child.finish() == -signal.SIGBUS


def test_a_fabric_refuses_a_name_that_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from obmm.emulator.fabric import FabricError, start_daemon

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ready = start_daemon(1)
    try:
        with pytest.raises(FabricError, match="already runs"):
            start_daemon(1)
    finally:
        with ControlClient(tmp_path / "obmm" / "fabric.sock") as control:
            assert control.request("status")["pid"] == ready["pid"]
            control.request("shutdown")


def test_a_runtime_folder_of_others_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "obmm").mkdir(mode=0o755)
    os.chmod(tmp_path / "obmm", 0o755)
    with pytest.raises(PermissionError, match="0700"):
        emulator.start()
