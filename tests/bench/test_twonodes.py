# SPDX-License-Identifier: Apache-2.0
"""A table on one node, measured from another process on another node."""

from __future__ import annotations

import re
import subprocess
import sys

import jsonschema
from click.testing import CliRunner

import obmm
from obmm.bench import results
from obmm.cli.bench import bench


def test_a_served_table_is_measured_from_another_node(tmp_path, schema, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with obmm.emulator.start(nodes=2) as fabric:
        command = [sys.executable, "-m", "obmm.bench", "serve", "--preset", "smoke", "--plain", "--port", "0"]
        pipe = subprocess.PIPE
        with subprocess.Popen([*command, "--device", fabric.device(0)], stdout=pipe, stderr=pipe, text=True) as server:
            try:
                assert server.stdout is not None
                line = server.stdout.readline()
                port = re.search(r"at port (\d+), rows over TCP", line)
                assert port, line + (server.stderr.read() if server.stderr and not line else "")
                path = tmp_path / "two.json"
                ran = CliRunner().invoke(
                    bench,
                    [
                        *("run", f"127.0.0.1:{port[1]}", "--plain", "--preset", "smoke", "--device", fabric.device(1)),
                        *("--arms", "tcp,obmm-cc,obmm-nc,obmm-pmd", "--workloads", "loads,batch,read,write,control"),
                        *("-o", str(path)),
                    ],
                )
                assert ran.exit_code == 0, ran.output
            finally:
                server.terminate()
    document = results.read(path)
    jsonschema.validate(document, schema)
    assert [arm["name"] for arm in document["arms"]] == ["tcp", "obmm-cc", "obmm-nc", "obmm-pmd"]
    assert all(arm["kind"] == "emulated" for arm in document["arms"][1:])
    assert {(each["arm"], each["workload"]) for each in document["skipped"]} == {
        *((arm["name"], "write") for arm in document["arms"]),
        *((arm["name"], "control") for arm in document["arms"]),
    }
