# SPDX-License-Identifier: Apache-2.0
"""Two hosts that are more than one loopback: network namespaces joined by a veth pair, a fabric node in each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from obmm import emulator
from tests.exchange.conftest import left_behind, until

SERVER = """
import sys, obmm
device, key, journal = sys.argv[1:]
dev = obmm.open(device)
with dev.export_region("2MiB", label="table") as region:
    with region.map("rw") as mapping:
        with mapping.writing():
            mapping.store("<u4", 0, 4711)
        mapping.publish()
    with obmm.serve({"table": region}, key=key, journal=journal) as server:
        print("ready", *server.addresses, flush=True)
        sys.stdin.readline()
        server.close(timeout=5)
dev.close()
"""

CLIENT = """
import json, sys, obmm
device, key, address = sys.argv[1:]
with obmm.open(device) as dev, obmm.connect(address, key=key) as peer:
    with peer.import_region("table", dev) as region, region.map("r") as mapping:
        value = mapping.load("<u4", 0)
        (lease,) = [item for item in peer.status()["items"] if item["kind"] == "lease"]
    print(json.dumps({"value": value, "address": lease["address"], "left": peer.status()["server"]["leases"]}))
"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=10)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two namespaces with 10.213.7.1 and 10.213.7.2; the reason is given where the machine has none."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("no `ip` (apt-get install iproute2)")
    tag = uuid.uuid4().hex[:6]
    names = (f"obmm-a-{tag}", f"obmm-b-{tag}")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", f"va{tag}", "netns", names[0], "type", "veth", "peer", "name", f"vb{tag}", "netns", names[1])
        for name, link, address in ((names[0], f"va{tag}", "10.213.7.1"), (names[1], f"vb{tag}", "10.213.7.2")):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
    except subprocess.CalledProcessError as error:
        _forget(names)
        pytest.skip(f"this machine makes no network namespaces: {error.stderr.strip()}")
    yield names
    _forget(names)


def _forget(names: tuple[str, str]) -> None:
    for name in names:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_two_hosts_joined_by_a_cable(
    hosts: tuple[str, str], fabric: emulator.Fabric, key: Path, tmp_path: Path
) -> None:
    def command(host: str, code: str, *arguments: object) -> list[str]:
        return ["ip", "netns", "exec", host, sys.executable, "-c", code, *map(str, arguments)]

    before = left_behind(fabric)
    server = subprocess.Popen(
        command(hosts[0], SERVER, fabric.device("a"), key, tmp_path / "journal"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout
        assert server.stdin
        assert server.stdout.readline().startswith("ready")
        client = subprocess.run(
            command(hosts[1], CLIENT, fabric.device("b"), key, "10.213.7.1"),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert client.returncode == 0, client.stderr
        assert json.loads(client.stdout) == {"value": 4711, "address": "10.213.7.2", "left": 0}
        server.communicate("\n", timeout=20)
        assert server.returncode == 0
    finally:
        server.kill()
        server.wait()
    until(lambda: left_behind(fabric) == before)
