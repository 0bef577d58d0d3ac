# SPDX-License-Identifier: Apache-2.0
"""RowStore over exported and imported regions of the emulator, from one node to another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest
from row_shelf import expected, publish

import obmm
from obmm import ClosedError, Device, MappingBusyError, ObmmArgumentError, RemoteMemoryError, StaleHandleError, emulator
from obmm.rows import GatherEngine, Manifest, RowStore, TableSpec

MIB = 1 << 20
RNG = np.random.default_rng(11)


@pytest.fixture(scope="module")
def fabric() -> Iterator[emulator.Fabric]:
    with emulator.start(nodes=2) as fabric:
        yield fabric
        assert fabric.status()["internal_errors"] == 0


@pytest.fixture
def a(fabric: emulator.Fabric) -> Iterator[Device]:
    """Whatever a test leaves in the fabric fails it."""
    with obmm.open(fabric.device("a")) as device:
        yield device
    nodes = fabric.status()["nodes"]
    assert not any(nodes[name][kind] for name in nodes for kind in ("regions", "windows", "open_files")), nodes


@pytest.fixture
def b(fabric: emulator.Fabric, a: Device) -> Iterator[Device]:
    with obmm.open(fabric.device("b")) as device:
        yield device


@pytest.mark.parametrize("cache", ["cc", "nc"])
def test_rows_published_on_one_node_are_gathered_on_another(
    a: Device, b: Device, engine: GatherEngine, cache: obmm.windows.provider.Cache
) -> None:
    spec = TableSpec("t", 5000, 264)
    with a.export_region("2MiB") as exported, exported.map("rw", cache=cache) as mapping:
        owner = RowStore.attach(mapping, Manifest((spec,)), verify="none", engine=engine)
        manifest = publish(owner)
        with (
            b.import_region(exported.handle(cache=cache)) as imported,
            imported.map("r") as remote,
            RowStore.attach(remote, manifest, engine=engine) as store,
        ):
            assert store.path == {"cc": "cacheable", "nc": "nc"}[cache]
            assert "measured (emulator: local memory, says nothing about hardware)" in store.explain()
            ids = RNG.integers(0, 5000, 3000)
            assert (store.gather("t", ids) == expected(ids, 264)).all()
            assert 0 < store.stats().rows <= 3016
            assert store.healthy()

            owner.populate("t", expected([17], 264, salt=3), at=17)
            with pytest.raises(StaleHandleError, match="being published"):
                store.gather("t", ids)
            second = owner.publish()
            with pytest.raises(StaleHandleError, match="the manifest describes 2"):
                store.refresh(manifest)
            store.refresh(second)
            assert (store.gather("t", [17, 18]) == [expected(17, 264, 3), expected(18, 264)]).all()
            assert store.manifest.segments == ({"ordinal": 0, "bytes": exported.nbytes},)


def test_a_row_may_cross_the_border_of_two_regions(a: Device, b: Device, engine: GatherEngine) -> None:
    exported = [a.export_region("2MiB") for _ in range(3)]
    regions = [b.import_region(region.handle()) for region in exported]
    payload = sum(region.nbytes for region in exported)
    spec = TableSpec("wide", payload // 1368, 1364)
    borders = [exported[0].nbytes // 1368, 2 * exported[0].nbytes // 1368]
    try:
        with RowStore.attach(exported, Manifest((spec,)), verify="none", engine=engine, access="rw") as owner:
            manifest = publish(owner)
        with RowStore.attach(regions, manifest, plan=False, engine=engine) as store:
            ids = np.array(
                [0, *borders, *(n + 1 for n in borders), spec.n_rows - 1, *RNG.integers(0, spec.n_rows, 500)]
            )
            assert (store.gather("wide", ids) == expected(ids, 1364)).all()
            assert store.gather("wide", [spec.n_rows], invalid="zero").any() == 0
            with pytest.raises(MappingBusyError, match="views live"):
                view = regions[1].mappings[0].view()
                store.close()
            del view
        assert not any(region.mappings for region in regions)
        with pytest.raises(ClosedError):
            store.gather("wide", [0])
    finally:
        for region in (*regions, *exported):
            region.close()


def test_segments_that_cannot_lie_side_by_side_leave_nothing_mapped(a: Device, engine: GatherEngine) -> None:
    exported = [a.export_region("2MiB", pmd=True) for _ in range(2)]
    try:
        with pytest.raises(ObmmArgumentError, match="cannot lie next to another"):
            RowStore.attach(exported, Manifest((TableSpec("t", 10, 64),)), verify="none", engine=engine)
        assert not any(region.mappings for region in exported)
    finally:
        for region in exported:
            region.close()


def test_a_failed_attach_leaves_nothing_mapped(a: Device, engine: GatherEngine) -> None:
    manifest = Manifest((TableSpec("t", 10, 64),), generation=8)
    with a.export_region("2MiB") as region:
        with pytest.raises(StaleHandleError, match="holds publication 0, the manifest describes 8"):
            RowStore.attach([region], manifest, engine=engine)
        assert region.mappings == ()


def test_an_exporter_that_takes_its_memory_away_is_an_error(a: Device, b: Device, engine: GatherEngine) -> None:
    exported = a.export_region("2MiB")
    with exported.map("rw") as mapping:
        manifest = publish(
            RowStore.attach(mapping, Manifest((TableSpec("t", 500, 512),)), verify="none", engine=engine)
        )
    with b.import_region(exported.handle()) as imported, imported.map("r") as remote:
        store = RowStore.attach(remote, manifest, plan=False, engine=engine)
        exported.close()
        with pytest.raises(RemoteMemoryError, match=r"SIGBUS.*owner CNA"):
            store.gather("t", [499])
        with pytest.raises(RemoteMemoryError):
            store.submit_probe().result()
        with pytest.raises(RemoteMemoryError):
            RowStore.attach(remote, manifest, plan=False, engine=engine)


def test_a_killed_exporter_leaves_its_rows(fabric: emulator.Fabric, a: Device, b: Device, engine: GatherEngine) -> None:
    """Regions outlive their process (driver specification 8); what it published stays readable."""
    program = textwrap.dedent(
        f"""
        import os, sys, obmm
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from row_shelf import publish
        from obmm.rows import Manifest, RowStore, TableSpec
        region = obmm.open({fabric.device("a")!r}).export_region("2MiB")
        mapping = region.map("rw")
        manifest = publish(RowStore.attach(mapping, Manifest((TableSpec("t", 500, 512),)), verify="none"))
        print(region.mem_id, region.handle().pack().hex(), manifest.to_json().decode(), flush=True)
        sys.stdin.read()
        """
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    mem_id, handle, manifest = child.stdout.readline().split(" ", 2)
    with (
        b.import_region(obmm.Handle.unpack(bytes.fromhex(handle))) as imported,
        imported.map("r") as remote,
        RowStore.attach(remote, manifest, plan=False, engine=engine) as store,
    ):
        ids = RNG.integers(0, 500, 400)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert (store.gather("t", ids) == expected(ids, 512)).all()
    a.driver.unexport(int(mem_id))


def test_a_forked_child_is_refused(a: Device, engine: GatherEngine) -> None:
    with a.export_region("2MiB") as region, region.map("rw") as mapping:
        owner = RowStore.attach(mapping, Manifest((TableSpec("t", 100, 64),)), verify="none", engine=engine)
        publish(owner)
        ticket = owner.submit("t", np.arange(100), bytearray(6400))
        pid = os.fork()
        if not pid:
            code = 1
            try:
                owner.gather("t", [1])
            except ClosedError:
                code = 5
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        assert ticket.result() == 100
