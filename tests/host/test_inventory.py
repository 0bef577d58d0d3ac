# SPDX-License-Identifier: Apache-2.0
"""`obmm ls` and `obmm gc` on the emulator: everything the dead left, nothing of the living."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import obmm
from obmm import emulator
from obmm.cli.main import main
from obmm.host import inventory

MIB = 1 << 20


@pytest.fixture
def fabric():
    with emulator.start(nodes=2) as fabric:
        yield fabric


def run(*arguments: str) -> dict:
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def dead_process(program: str, *arguments: str) -> str:
    """Run `program` until it prints a line, then kill it -> the line."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    line = child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    return line.strip()


EXPORT = """
import sys, obmm
device = obmm.open(sys.argv[1])
region = device.export_region(1 << 21, label="left behind")
mapping = region.map("rw")
print(region.handle().pack().hex(), flush=True)
input()
"""
IMPORT = """
import sys, obmm
device = obmm.open(sys.argv[1])
region = device.import_region(obmm.Handle.unpack(bytes.fromhex(sys.argv[2])), label="left import")
mapping = region.map("r")
print("ready", flush=True)
input()
"""


def test_ls_tells_owner_kind_size_users_and_age(fabric):
    with obmm.open(fabric.device("a")) as device, device.export_region(2 * MIB, label="mine") as region, region.map():
        device.driver.export({0: 2 * MIB}, 1, pxm_numa=0, deid=device.controllers[0].eid, vendor_info=b"", priv=b"tag")
        mine, foreign = run("ls", "--device", fabric.device("a"))["regions"]
        assert (mine["kind"], mine["size"], mine["owner"]) == ("export", 4 * MIB, "alive")
        assert mine["stamp"]["label"] == "mine"
        assert len(mine["users"]) == 1
        assert 0 <= mine["age_s"] < 60
        assert (foreign["owner"], foreign["stamp"], foreign["users"]) == ("foreign", None, [])
        text = CliRunner().invoke(main, ["ls", "--device", fabric.device("a")]).output
        assert "mine" in text
        assert "foreign" in text
        device.driver.unexport(foreign["mem_id"])


def test_gc_shows_a_plan_and_touches_nothing(fabric):
    dead_process(EXPORT, fabric.device("a"))
    (row,) = run("gc", "--device", fabric.device("a"))["regions"]
    assert row["verdict"] == "needs --exports --force"
    assert len(run("ls", "--device", fabric.device("a"))["regions"]) == 1


def test_gc_removes_imports_of_the_dead_and_their_windows(fabric):
    with obmm.open(fabric.device("a")) as device, device.export_region(2 * MIB) as region:
        dead_process(IMPORT, fabric.device("b"), region.handle().pack().hex())
        assert fabric.status()["nodes"]["b"]["windows"] == 1
        (row,) = run("gc", "--yes", "--device", fabric.device("b"))["regions"]
        assert (row["kind"], row["verdict"], row["error"]) == ("import", "remove", None)
        assert fabric.status()["nodes"]["b"]["regions"] == []
        assert fabric.status()["nodes"]["b"]["windows"] == 0


@pytest.mark.parametrize("options", [["--yes"], ["--yes", "--exports"], ["--yes", "--force"]])
def test_gc_keeps_exports_of_the_dead_that_somebody_may_import(fabric, options):
    dead_process(EXPORT, fabric.device("a"))
    run("gc", *options, "--device", fabric.device("a"))
    assert len(fabric.status()["nodes"]["a"]["regions"]) == 1


def test_gc_removes_exports_when_forced_and_says_what_that_means(fabric):
    dead_process(EXPORT, fabric.device("a"))
    result = CliRunner().invoke(main, ["gc", "--yes", "--exports", "--force", "--device", fabric.device("a")])
    assert "machine-level error" in result.output
    assert fabric.status()["nodes"]["a"]["regions"] == []


def test_gc_never_touches_the_living_or_the_foreign(fabric):
    with obmm.open(fabric.device("a")) as device, device.export_region(2 * MIB):
        foreign = device.driver.export({0: 2 * MIB}, 1, pxm_numa=0, deid=bytes(16), vendor_info=b"", priv=b"")
        rows = run("gc", "--yes", "--exports", "--force", "--device", fabric.device("a"))["regions"]
        assert [row["verdict"] for row in rows] == ["keep", "keep"]
        assert len(fabric.status()["nodes"]["a"]["regions"]) == 2
        device.driver.unexport(foreign.mem_id)


SERVE = """
import sys, obmm
device = obmm.open(sys.argv[1])
region = device.export_region(1 << 21, label="served")
server = obmm.serve({"t": region}, port=0, plain=True, journal=sys.argv[2])
print(server.port, flush=True)
sys.stdin.readline()
"""


def test_gc_keeps_a_served_export_while_a_lease_is_out(fabric, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "obmm").mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", SERVE, fabric.device("a"), str(tmp_path / "obmm" / "leases-7.journal")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    port = int(child.stdout.readline())
    with obmm.connect(f"127.0.0.1:{port}", plain=True) as peer:
        kept = peer.fetch("t")
        peer.fetch("t").release()
        child.kill()
        child.communicate()
        (row,) = run("gc", "--device", fabric.device("a"))["regions"]
        assert row["verdict"] == "needs --exports --force"
        assert kept.handle.generation
        peer.close(timeout=0.1)


def test_gc_removes_a_served_export_after_the_last_release(fabric, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "obmm").mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", SERVE, fabric.device("a"), str(tmp_path / "obmm" / "leases-7.journal")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    port = int(child.stdout.readline())
    with obmm.connect(f"127.0.0.1:{port}", plain=True) as peer:
        peer.fetch("t").release()
    child.kill()
    child.communicate()
    (row,) = run("gc", "--yes", "--device", fabric.device("a"))["regions"]
    assert row["verdict"] == "remove"
    assert fabric.status()["nodes"]["a"]["regions"] == []


# Opens a region's node; its main thread ends for good, a second one goes on with the descriptor until its input ends.
HOLDS_AND_OUTLIVES = """
import ctypes, os, sys, threading
node = open(sys.argv[1])
def rest():
    main = f"/proc/self/task/{os.getpid()}/stat"
    while open(main).read().rpartition(")")[2].split()[0] != "Z":
        os.sched_yield()
    os.write(1, b"ended\\n")
    os.read(0, 1)
    os._exit(0)
threading.Thread(target=rest).start()
ctypes.CDLL(None).syscall(int(sys.argv[2]), 0)  # exit(2): of this thread alone
"""


def test_a_process_whose_main_thread_ended_still_uses_its_region(tmp_path, monkeypatch):
    monkeypatch.setattr(inventory, "SHMDEV_PREFIX", str(tmp_path / "obmm_shmdev"))
    (tmp_path / "obmm_shmdev7").touch()
    exit_of_one_thread = {"x86_64": "60", "aarch64": "93"}[os.uname().machine]
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS_AND_OUTLIVES, str(tmp_path / "obmm_shmdev7"), exit_of_one_thread],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout.readline() == b"ended\n"
    assert inventory.processes_with_regions() == {7: (child.pid,)}
    child.communicate()
    assert inventory.processes_with_regions() == {}
