# SPDX-License-Identifier: Apache-2.0
"""A table on one node, measured from another process on another node."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import jsonschema
import pytest
from click.testing import CliRunner

import obmm
from obmm.bench import results, twonodes
from obmm.bench.certificates import Authority
from obmm.bench.far import connection
from obmm.cli.bench import bench
from obmm.exchange.keys import Key
from obmm.host import inventory

MODES = ("plain", "key", "tls")


def _protections(folder):
    """Options of serve and of run for each mode."""
    Key.generate(folder / "key")
    authority = Authority(folder)
    tls = {}
    for side in ("server", "client"):
        files = authority.issue(side)
        tls[side] = ("--tls", str(files.certificate), str(files.private_key), str(files.authority))
    return {
        "plain": (("--plain",), ("--plain",)),
        "key": (("--key", str(folder / "key")), ("--key", str(folder / "key"))),
        "tls": (tls["server"], tls["client"]),
    }


@contextmanager
def _serving(fabric, *options):
    """What `obmm bench serve --json` says of itself, while it serves."""
    command = [sys.executable, "-m", "obmm.bench", "serve", "--preset", "smoke", "--port", "0", "--json", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, "--device", fabric.device(0)], stdout=pipe, stderr=pipe, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            line = server.stdout.readline()
            assert line, server.stderr.read()
            yield {**json.loads(line), "process": server}
        finally:
            server.terminate()


@pytest.mark.parametrize("mode", MODES)
def test_a_served_table_is_measured_from_another_node(mode, tmp_path, schema):
    here, there = _protections(tmp_path)[mode]
    path = tmp_path / "two.json"
    with obmm.emulator.start(nodes=2) as fabric, _serving(fabric, *here, "--host", "127.0.0.1") as server:
        ran = CliRunner().invoke(
            bench,
            [
                *("run", f"127.0.0.1:{server['port']}", *there, "--preset", "smoke", "--device", fabric.device(1)),
                *("--arms", "tcp,obmm-cc,obmm-nc,obmm-pmd", "-o", str(path)),
            ],
        )
    assert ran.exit_code == 0, ran.output
    document = results.read(path)
    jsonschema.validate(document, schema)
    kinds = {arm["name"]: arm["kind"] for arm in document["arms"]}
    assert kinds == {"tcp": "loopback", "obmm-cc": "emulated", "obmm-nc": "emulated", "obmm-pmd": "emulated"}
    direct = {(r["arm"], r["workload"]) for r in document["results"] if r["arm"] != "tcp"}
    across = {"loads", "batch", "read", "write", "control", "fetch"}
    assert direct >= {(arm, work) for arm in kinds if arm != "tcp" for work in across}
    assert direct >= {("obmm-cc", "pingpong-cc"), ("obmm-pmd", "pingpong-cc"), ("obmm-nc", "pingpong-nc")}


def test_the_secret_of_the_row_server_is_not_enough_without_the_clusters_key(tmp_path):
    """A key does not hide what the exchange says, so a listener has the manifest."""
    here, _ = _protections(tmp_path)["key"]
    key = Key.load(tmp_path / "key")
    with obmm.emulator.start(nodes=1) as fabric, _serving(fabric, *here, "--host", "127.0.0.1") as server:
        with obmm.connect(f"127.0.0.1:{server['port']}", key=key) as peer, peer.fetch(twonodes.TABLE) as lease:
            overheard = bytes.fromhex(lease.manifest["secret"])
        with pytest.raises(ConnectionError), connection(("127.0.0.1", server["rows_port"]), overheard):
            pass


@pytest.mark.parametrize("there", [("--plain",), ("--key", "{other}")])
def test_a_run_without_the_servers_protection_is_refused_in_a_sentence(there, tmp_path):
    here, _ = _protections(tmp_path)["key"]
    Key.generate(tmp_path / "other")
    options = [each.format(other=tmp_path / "other") for each in there]
    with obmm.emulator.start(nodes=1) as fabric, _serving(fabric, *here, "--host", "127.0.0.1") as server:
        ran = CliRunner().invoke(bench, ["run", f"127.0.0.1:{server['port']}", *options, "-o", str(tmp_path / "x")])
    assert ran.exit_code == 1
    assert ran.output.startswith("Error: ")
    assert not (tmp_path / "x").exists()


def test_a_server_that_publishes_no_benchmark_table_is_refused(tmp_path):
    with obmm.emulator.start(nodes=1) as fabric, obmm.open(fabric.device()) as device:
        with device.export_region("4MiB") as region:
            with region.map("rw") as mapping:
                mapping.publish()
            published = {twonodes.TABLE: region}
            with obmm.serve(published, port=0, plain=True, journal=tmp_path / "journal") as server:
                ran = CliRunner().invoke(bench, ["run", f"127.0.0.1:{server.port}", "--plain"])
    assert ran.exit_code == 1
    assert "serves no benchmark table" in ran.output


def test_serve_binds_rows_where_the_exchange_listens():
    assert twonodes.rows_host("10.0.0.1", {"key": "k"}) == "10.0.0.1"
    assert twonodes.rows_host(None, {"plain": True}) == "127.0.0.1"
    assert twonodes.rows_host(None, {"plain": False, "key": "k"}) in ("::", "0.0.0.0")


def test_a_terminated_server_leaves_no_region():
    with obmm.emulator.start(nodes=1) as fabric:
        with _serving(fabric, "--plain"):
            assert len(inventory.regions(str(fabric.root()))) == 7
        assert inventory.regions(str(fabric.root())) == ()


def test_a_run_on_one_device_leaves_no_region(tmp_path):
    path = tmp_path / "loopback.json"
    with obmm.emulator.start(nodes=1) as fabric:
        ran = CliRunner().invoke(
            bench,
            [
                *("run", "--preset", "smoke", "--device", fabric.device(), "--arms", "obmm-cc,obmm-nc,obmm-pmd"),
                *("--workloads", "row,pingpong-cc,pingpong-nc,fetch", "-o", str(path)),
            ],
        )
        assert ran.exit_code == 0, ran.output
        assert inventory.regions(str(fabric.root())) == ()
    assert {arm["name"] for arm in results.read(path)["arms"]} == {"obmm-cc", "obmm-nc", "obmm-pmd"}


def test_a_terminated_server_removes_nothing_under_an_importer():
    with obmm.emulator.start(nodes=2) as fabric, _serving(fabric, "--plain") as server:
        with obmm.open(fabric.device(1)) as device, obmm.connect(f"127.0.0.1:{server['port']}", plain=True) as peer:
            lease = peer.fetch(twonodes.SMALL)
            with device.import_region(lease):
                server["process"].terminate()
                while lease.usable:  # until the server has asked for it back
                    time.sleep(0.01)
                assert len(inventory.regions(str(fabric.root()))) == 7
                assert server["process"].poll() is None
        assert server["process"].wait(30) == 0
        assert inventory.regions(str(fabric.root())) == ()


def test_the_own_far_node_of_a_killed_run_keeps_what_is_imported():
    """kill -9 of the measuring process: nothing is removed under its imports."""
    program = (
        "import os, signal, sys, obmm\n"
        "from contextlib import ExitStack\n"
        "from obmm.bench import own_far\n"
        "far = own_far.OwnFar(ExitStack(), sys.argv[1], 8 << 20)(lambda share: None)\n"
        "device = obmm.open(sys.argv[2])\n"
        "region = device.import_region(far.peer.fetch('bench'))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with obmm.emulator.start(nodes=2) as fabric:
        command = [sys.executable, "-c", program, fabric.device(0), fabric.device(1)]
        # standard error is inherited by the far node: it ends when that has ended
        ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        assert "the regions stay" in ran.stderr
        assert len(inventory.regions(str(fabric.root()))) == 7


def test_the_prototypes_preset_measures_what_the_prototype_did(tmp_path, monkeypatch):
    monkeypatch.delenv("OBMM_DEVICE", raising=False)
    path = tmp_path / "p.json"
    ran = CliRunner().invoke(
        bench, ["run", "--preset", "prototype", "--arms", "obmm-cc", "--workloads", "tables", "-o", str(path)]
    )
    assert ran.exit_code == 0, ran.output
    document = results.read(path)
    assert document["preset"]["footprint"] >= 12 * 10_000 * 341 * 4
    assert {(r["tables"], r["row_bytes"], r["samples"]) for r in document["results"]} == {(12, 341 * 4, 200)}


RIGHT = {
    "format": twonodes.FORMAT,
    "version": twonodes.VERSION,
    "nbytes": 8 << 20,
    "rows_port": 7,
    "secret": "00" * 32,
    "boot": "00" * 16,
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("nbytes", each) for each in (0, -1, 1 << 60, "x", None, [])],
        *[("rows_port", each) for each in (0, 70_000, "x", None)],
        *[("secret", each) for each in ("", "zz", 5, None, "00")],
        *[("boot", each) for each in ("zz", 5, None)],
        *[("version", each) for each in (None, 1, "2")],
    ],
)
def test_a_manifest_that_was_not_written_by_serve_is_refused(field, value):
    assert twonodes._understood(RIGHT, 8 << 20) == (8 << 20, 7, bytes(32), bytes(16))
    with pytest.raises((KeyError, TypeError, ValueError)):
        twonodes._understood({**RIGHT, field: value}, 8 << 20)
