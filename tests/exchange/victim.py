# SPDX-License-Identifier: Apache-2.0
"""A client or a server that is killed: does one step per line on its standard input, and names the step it has done.

python -m tests.exchange.victim client DEVICE PORT KEY
python -m tests.exchange.victim server DEVICE PORT KEY JOURNAL
python -m tests.exchange.victim half DEVICE PORT KEY       (killed by itself as soon as IMPORT has answered)
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import obmm
import obmm.region.device as device_module
from obmm.exchange import LeasesOutstandingError


def client(device: str, port: str, key: str) -> Iterator[str]:
    local = obmm.open(device)
    yield "opened"
    peer = obmm.connect(f"127.0.0.1:{port}", key=key)
    yield "connected"
    lease = peer.fetch("table")
    yield "fetched"
    region = local.import_region(lease)
    yield "imported"
    mapping = region.map("r")
    assert mapping.load("<u4", 0) == 7
    yield "mapped"
    mapping.close()
    yield "unmapped"
    region.close()
    yield "released"
    peer.close()
    local.close()
    yield "closed"


def half(device: str, port: str, key: str) -> Iterator[str]:
    def dies(*arguments: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    local = obmm.open(device)
    lease = obmm.connect(f"127.0.0.1:{port}", key=key).fetch("table")
    yield "fetched"
    device_module.ImportedRegion = dies  # type: ignore[assignment, misc]
    local.import_region(lease)


def server(device: str, port: str, key: str, journal: str) -> Iterator[str]:
    local = obmm.open(device)
    region = local.export_region("2MiB", label="table")
    with region.map("rw") as mapping:
        with mapping.writing():
            mapping.store("<u4", 0, 7)
        mapping.publish()
    yield "exported"
    running = obmm.serve({"table": region}, host="127.0.0.1", port=int(port), key=key, journal=journal, term_s=1.0)
    yield "served"
    while not running.status()["server"]["leases"]:
        running.wait(0.01)
    yield "granted"
    try:
        running.revoke("table", timeout=0.2)
    except LeasesOutstandingError:
        yield "revoked"
    running.close(timeout=10)
    yield "closed"
    region.close()
    local.close()
    yield "unexported"


if __name__ == "__main__":
    steps = {"client": client, "server": server, "half": half}[sys.argv[1]](*sys.argv[2:])
    for _ in sys.stdin:
        print(next(steps), flush=True)
