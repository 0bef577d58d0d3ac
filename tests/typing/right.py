# SPDX-License-Identifier: Apache-2.0
"""What a user writes, read by type checkers only: every line is right, and the types are these."""

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.rows import Manifest, RowStore


def owner() -> None:
    with obmm.open() as dev:
        assert_type(dev, obmm.Device)
        with dev.export_region("2MiB", label="embeddings") as region, region.map("rw") as m:
            assert_type(region, obmm.ExportedRegion)
            assert_type(m, obmm.Mapping)
            with m.writing():
                m.write(0, b"bytes")
            m.publish()
            assert_type(region.handle(), obmm.Handle)
            assert_type(region.handle().pack(), bytes)
            with obmm.serve({"embeddings": region}, port=0, key="cluster.key") as server:
                assert_type(server, obmm.Server)


def reader(ids: NDArray[np.int64]) -> None:
    dev = obmm.open("emulator#b")
    with obmm.connect("node-a:13857", key="cluster.key") as peer:
        lease = peer.fetch("embeddings")
        assert_type(lease, obmm.Lease)
        with dev.import_region(lease) as region, region.map("r") as m:
            assert_type(region, obmm.ImportedRegion)
            assert_type(m.read(0, 16), bytes)
            rows = m.rows(64).gather(ids)
            assert_type(rows, NDArray[np.uint8])
            view = m.view(0, 64)
            assert_type(view, memoryview)


def errors() -> None:
    try:
        obmm.open()
    except obmm.DeviceNotFoundError as error:
        code: int | None = error.errno
        print(code, error.strerror)


def tables(m: obmm.Mapping, manifest: Manifest, ids: NDArray[np.int64]) -> None:
    with RowStore.attach(m, manifest) as store:
        assert_type(store, RowStore)
