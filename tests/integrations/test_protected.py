# SPDX-License-Identifier: Apache-2.0
"""The ways in which the exchange of a table is protected, and the path to its rows that follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tables import TABLES, content, fill, specs

import obmm
from obmm import emulator
from obmm.bench.certificates import Authority
from obmm.exchange import AuthenticationError, Key, TlsFiles
from obmm.integrations.engram import TableClient
from obmm.integrations.settings import EngramSettings
from obmm.rows import Manifest, RowStore


@contextmanager
def table(fabric: emulator.Fabric, folder: Path, **protection: Any) -> Iterator[str]:
    """Edition 1, served from node a with this protection -> its source."""
    with ExitStack() as stack:
        device = stack.enter_context(obmm.open(fabric.device("a")))
        region = stack.enter_context(device.export_region(max(spec.end for spec in specs())))
        mapping = stack.enter_context(region.map("rw"))
        store = stack.enter_context(RowStore.attach(mapping, Manifest(specs()), verify="none", plan=False))
        manifest = fill(store, 1)
        server = stack.enter_context(obmm.serve({}, port=0, host="127.0.0.1", journal=folder / "journal", **protection))
        server.publish("toy", region, manifest.to_dict())
        yield f"127.0.0.1:{server.port}/toy"


def reads(fabric: emulator.Fabric, source: str, **options: Any) -> bool:
    ids = np.arange(0, 100, 7)
    with TableClient(source, device=fabric.device("b"), plan=False, **options) as client:
        right = all(np.array_equal(client.gather(name, ids), content(name, ids, 1)) for name in TABLES)
        client.check()
    return right


def test_by_the_clusters_key(fabric: emulator.Fabric, tmp_path: Path) -> None:
    mine, other = tmp_path / "cluster.key", tmp_path / "other.key"
    for path in (mine, other):
        Key.generate(path)
    with table(fabric, tmp_path, key=mine) as source:
        assert reads(fabric, source, key=mine)
        with pytest.raises(AuthenticationError):
            reads(fabric, source, key=other)


def test_by_certificates(fabric: emulator.Fabric, tmp_path: Path) -> None:
    for name in ("authority", "stranger"):
        (tmp_path / name).mkdir()
    authority = Authority(tmp_path / "authority")
    with table(fabric, tmp_path, tls=authority.issue("server")) as source:
        files = authority.issue("client-1")
        assert reads(fabric, source, tls=files)
        names = [str(each) for each in (files.certificate, files.private_key, files.authority)]
        wanted = EngramSettings.of({"source": source, "tls": names}, setting="X").address
        assert wanted.tls == TlsFiles(*names)
        stranger = Authority(tmp_path / "stranger").issue("client-1")
        with pytest.raises(obmm.ObmmError):
            reads(fabric, source, tls=stranger)
