# SPDX-License-Identifier: Apache-2.0
"""`peer.import_region`: the whole way on two emulated nodes, what undoes it, and handles that went stale."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from obmm import Device, ExportedRegion, HandleFlag, MappingBusyError, ObmmError, StaleHandleError, emulator
from obmm.exchange import LeaseError, LeasesOutstandingError, LeaseStatus, Peer, Server
from tests.exchange.conftest import left_behind, until

Start = Callable[..., Server]
Join = Callable[..., Peer]


@contextmanager
def exported(device: Device, fill: int = 7, **options: Any) -> Iterator[ExportedRegion]:
    with device.export_region("2MiB", label="table", **options) as region:
        with region.map("rw") as mapping:
            with mapping.writing():
                mapping.as_numpy("<u4", (1024,))[:] = np.arange(1024) + fill
            if region.generation is not None:
                mapping.publish()
        yield region


def published(server: Server) -> int:
    count: int = server.status()["server"]["leases"]
    return count


def test_the_whole_way(start: Start, join: Join, a: Device, b: Device) -> None:
    with exported(a) as table, start({"table": table}) as server, join(server) as peer:
        with peer.import_region("table", b) as region, region.map("r") as mapping:
            assert mapping.load("<u4", 4 * 100) == 107
            assert region.generation == table.generation
            assert published(server) == 1
        assert published(server) == 0


def test_without_a_device_the_peer_opens_one_and_closes_it(
    start: Start, join: Join, a: Device, fabric: emulator.Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OBMM_DEVICE", fabric.device("b"))
    with exported(a) as table, start({"table": table}) as server:
        peer = join(server)
        with peer.import_region("table") as region, region.map("r") as mapping:
            assert mapping.load("<u4", 0) == 7
        device = region.device
        assert not device.closed
        peer.close()
        assert device.closed


def test_closing_the_import_releases_the_lease_after_unimport(
    start: Start, join: Join, a: Device, b: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with exported(a) as table, start({"table": table}) as server, join(server) as peer:
        region = peer.import_region("table", b)
        real = b.driver.unimport

        def unimport(mem_id: int) -> None:
            assert published(server) == 1, "the lease must outlive the import"
            real(mem_id)

        monkeypatch.setattr(b.driver, "unimport", unimport)
        region.close()
        assert published(server) == 0


def test_an_export_under_lease_cannot_be_removed(start: Start, join: Join, a: Device, b: Device) -> None:
    with exported(a) as table, start({"table": table}) as server, join(server) as peer:
        with peer.import_region("table", b):
            with pytest.raises(MappingBusyError, match="importers have leases on 'table'"):
                table.close()
            with pytest.raises(MappingBusyError, match="renews the lease"):
                peer.close()


def test_a_revoked_lease_refuses_views_and_guarded_calls_and_can_be_closed(
    start: Start, join: Join, a: Device, b: Device
) -> None:
    with exported(a) as table, start({"table": table}) as server, join(server) as peer:
        with peer.import_region("table", b) as region, region.map("r") as mapping:
            view = mapping.as_numpy("<u4", (16,))
            with pytest.raises(LeasesOutstandingError):
                server.revoke("table", timeout=0.05)
            until(lambda: region.lease is not None and not region.lease.usable)
            for call in (
                lambda: mapping.load("<u4", 0),
                lambda: mapping.read(0, 16),
                lambda: mapping.view(),
                lambda: mapping.as_numpy("<u4", (4,)),
                lambda: region.map("r"),
            ):
                with pytest.raises(LeaseError, match="the owner takes the memory back"):
                    call()
            assert view[3] == 10, "a view that exists is the application's to drop"
            del view
        assert server.revoke("table", timeout=5) == ()


def test_the_importer_lets_go_in_time_through_its_callback(start: Start, join: Join, a: Device, b: Device) -> None:
    with exported(a) as table, start({"table": table}) as server, join(server) as peer:
        region = peer.import_region("table", b)
        assert region.lease is not None
        region.lease.on_change(lambda event: region.close())  # type: ignore[attr-defined]
        assert server.revoke("table", timeout=5) == ()
        assert region.closed


# --- what fails is undone ----------------------------------------------------------------------------------------------

STEPS = ["window", "import", "map", "header"]


@pytest.mark.parametrize("step", STEPS)
def test_a_failure_at_any_step_undoes_the_steps_before(
    start: Start, join: Join, a: Device, b: Device, fabric: emulator.Fabric, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*args: object, **options: object) -> Any:
        raise ObmmError(errno.EIO, f"injected in {step}")

    target = {
        "window": (type(b.windows), "acquire"),
        "import": (type(b.driver), "import_"),
        "map": ("obmm.mapping.piece", "Span"),
        "header": ("obmm.mapping.piece.Piece", "read_header_page"),
    }[step]
    with exported(a) as table, start({"table": table}) as server, join(server) as peer:
        before = left_behind(fabric)
        with monkeypatch.context() as patch:
            if isinstance(target[0], str):
                patch.setattr(f"{target[0]}.{target[1]}", fail)
            else:
                patch.setattr(target[0], target[1], fail)
            with pytest.raises(ObmmError, match=f"injected in {step}"):
                peer.import_region("table", b)
        assert left_behind(fabric) == before
        assert published(server) == 0
        peer.import_region("table", b).close()


# --- stale handles -----------------------------------------------------------------------------------------------------


def test_id_reuse_export_unexport_export_again(a: Device, b: Device) -> None:
    """Pitfall 30: the very next export reuses the number just freed, and the old handle must be refused."""
    with exported(a) as first:
        old = first.handle()
    with exported(a) as second:
        assert second.mem_id == old.mem_id
        assert second.handle().uba == old.uba
        with (
            b.import_region(old) as region,
            pytest.raises(StaleHandleError, match="belongs to another export") as caught,
        ):
            region.map("r")
        assert caught.value.reason == "generation"


def test_a_handle_with_another_generation_is_stale(a: Device, b: Device) -> None:
    with exported(a) as table:
        wrong = dataclasses.replace(table.handle(), generation=table.handle().generation ^ 1)
        with b.import_region(wrong) as region, pytest.raises(StaleHandleError) as caught:
            region.check()
        assert caught.value.reason == "generation"


def test_memory_without_a_header_is_stale(a: Device, b: Device) -> None:
    with exported(a, header=False) as table:
        wrong = dataclasses.replace(table.handle(), flags=HandleFlag.HEADER)
        with b.import_region(wrong) as region, pytest.raises(StaleHandleError, match="no region header") as caught:
            region.map("r")
        assert caught.value.reason == "header"


def test_a_handle_with_a_wrong_length_is_stale(a: Device, b: Device) -> None:
    with exported(a) as table:
        wrong = dataclasses.replace(table.handle(), length=table.handle().length // 2)
        with (
            b.import_region(wrong) as region,
            pytest.raises(StaleHandleError, match="more bytes than the handle") as caught,
        ):
            region.map("r")
        assert caught.value.reason == "length"


def test_a_restarted_exporter_is_noticed_by_lease_and_by_header(start: Start, join: Join, a: Device, b: Device) -> None:
    from tests.exchange.test_server import crash

    with exported(a) as table:
        server = start({"table": table}, term_s=0.6)
        peer = join(server)
        lease = peer.fetch("table")
        port = crash(server)
        table.close(force=True)
        with exported(a) as again:
            start({"table": again}, port=port, term_s=0.6)
            until(lambda: lease.status is LeaseStatus.STALE)
            with pytest.raises(LeaseError, match="exported the region again"):
                b.import_region(lease)
            with b.import_region(lease.handle) as region, pytest.raises(StaleHandleError):
                region.map("r")
            with peer.import_region("table", b) as region:
                assert region.generation == again.generation


def test_nothing_of_a_stale_handle_shows(a: Device, b: Device) -> None:
    with exported(a) as first:
        old = first.handle()
    with exported(a), b.import_region(old) as region:
        with pytest.raises(StaleHandleError) as caught:
            region.map("r")
        assert f"{old.uba:x}" not in str(caught.value)
