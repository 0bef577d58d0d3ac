# SPDX-License-Identifier: Apache-2.0
"""Profiles against the published tables that they are of, and an emulator that waits as long."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner

import obmm
from obmm.cli.emulate import emulate
from obmm.driver.modelled import fabric_of
from obmm.emulator.profile import FOLDER, NAMES, Profile, names
from obmm.errors import ObmmArgumentError
from obmm.rows import Manifest, RowStore, TableSpec

SHIPPED = {"ub-cacheable", "ub-noncacheable", "ub-urma", "cxl-switch", "rdma", "local-dram"}


def test_what_ships() -> None:
    assert set(names()) >= SHIPPED


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_every_figure_has_its_source_and_what_is_assumed_has_a_range(name: str) -> None:
    profile = Profile.named(name)
    for key, figure in profile.figures.items():
        assert key in NAMES
        assert len(figure.source) > 10
        assert figure.low <= figure.value <= figure.high
        assert (figure.kind == "assumed") <= (figure.low < figure.high)


# rows of five lines (264 B), one token has 24: the source project's table
TOKENS = {1: (30e3, 4e3), 8: (244e3, 17e3), 32: (0.98e6, 60e3), 64: (1.95e6, 117e3), 128: (3.90e6, 233e3)}
TOKENS |= {256: (7.80e6, 465e3), 1024: (31.2e6, 1.86e6), 8192: (250e6, 14.9e6)}


@pytest.mark.parametrize("tokens", TOKENS)
def test_the_source_projects_tables_by_tokens(tokens: int) -> None:
    nc, urma = TOKENS[tokens]
    assert Profile.named("ub-noncacheable").gather_ns(24 * tokens, 264) == pytest.approx(nc, rel=0.15)
    assert Profile.named("ub-urma").gather_ns(24 * tokens, 264) == pytest.approx(urma, rel=0.15)


@pytest.mark.parametrize(
    ("rows", "row_bytes", "us"),
    [
        *((1, 320, 1.920), (1, 1364, 2.104), (1, 1364, 1.973), (8, 320, 2.80), (64, 320, 6.96), (512, 320, 40.4)),
        *((2048, 320, 154), (1536, 1364, 116.5), (1536, 320, 118)),
    ],
)
def test_the_source_projects_urma_reads(rows: int, row_bytes: int, us: float) -> None:
    assert Profile.named("ub-urma").gather_ns(rows, row_bytes) == pytest.approx(us * 1000, rel=0.15)


@pytest.mark.parametrize(("row_bytes", "lines", "line_ns"), [(320, 5, 254), (1364, 22, 308)])
def test_the_source_projects_non_cacheable_lines(row_bytes: int, lines: int, line_ns: float) -> None:
    assert Profile.named("ub-noncacheable").gather_ns(1, row_bytes) == pytest.approx(lines * line_ns, rel=0.15)


def test_our_own_local_rows() -> None:
    assert 60 <= Profile.named("local-dram").row_ns(264) <= 110


def test_more_rows_threads_and_bytes_never_turn_the_wrong_way() -> None:
    for profile in map(Profile.named, names()):
        for row_bytes in (64, 264, 1364, 4096):
            times = [profile.gather_ns(rows, row_bytes) for rows in (0, 1, 2, 100, 4096, 5000)]
            assert times == sorted(times)
            assert times[0] == 0
            threads = [profile.gather_ns(4096, row_bytes, n) for n in (1, 2, 8)]
            assert threads == sorted(threads, reverse=True)
        quick, slow = profile.extremes()
        assert quick.gather_ns(1536, 264) <= profile.gather_ns(1536, 264) <= slow.gather_ns(1536, 264)


GOOD = {"value": 1.0, "source": "somewhere", "kind": "published"}
WHOLE = {
    "title": "x",
    "path": "loads",
    **dict.fromkeys(("line_ns", "lines_in_flight", "core_gbps", "node_gbps", "call_ns"), GOOD),
}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"path": "tubes"}, "path"),
        ({"title": "\x1b[2J"}, "title"),
        ({"line_ns": None}, "line_ns"),
        ({"node_gbps": {**GOOD, "value": 0}}, "above 0"),
        ({"node_gbps": {**GOOD, "value": float("nan")}}, "number"),
        ({"node_gbps": {**GOOD, "value": True}}, "number"),
        ({"node_gbps": {**GOOD, "source": " "}}, "source"),
        ({"node_gbps": {**GOOD, "kind": "guessed"}}, "kind"),
        ({"node_gbps": {**GOOD, "kind": "assumed"}}, "low and high"),
        ({"node_gbps": {**GOOD, "low": 2.0}}, "outside"),
        ({"speed": GOOD}, "one of"),
        ({"nc_line_ns": {**GOOD, "lines": [5, 1], "values": [1.0, 2.0]}}, "rising"),
        ({"nc_line_ns": {**GOOD, "lines": [5], "values": []}}, "same length"),
    ],
)
def test_a_file_that_is_no_profile(change: dict, why: str) -> None:
    assert Profile.of("right", WHOLE).way == "loads"
    with pytest.raises(ObmmArgumentError, match=why):
        Profile.of("wrong", {**WHOLE, **change})


def test_a_name_that_is_no_profile() -> None:
    with pytest.raises(ObmmArgumentError, match="ub-urma"):
        Profile.named("ub-nothing")


ROWS, ROW = 4096, 320


def test_guarded_calls_and_gathers_wait_as_long_as_is_modelled_and_views_do_not(tmp_path) -> None:
    profile = Profile.named("ub-noncacheable")
    manifest = Manifest((TableSpec("t", ROWS, ROW),), generation=2)
    with obmm.emulator.start(nodes=2, fabric="ub-noncacheable") as fabric:
        owner, reader = obmm.open(fabric.device(0)), obmm.open(fabric.device(1))
        with owner.export_region("4MiB", header=False) as region:
            with region.map("rw") as mapping:
                mapping.as_numpy()[: ROWS * ROW] = np.arange(ROWS * ROW) % 251
            with (
                obmm.serve({"t": region}, plain=True, port=0, journal=tmp_path / "journal") as server,
                obmm.connect(f"127.0.0.1:{server.port}", plain=True) as peer,
                reader.import_region(peer.fetch("t"), cache="nc") as imported,
                imported.map("r") as mapping,
            ):
                store = RowStore.attach(mapping, manifest, verify="none")
                ids = np.arange(0, ROWS, 4)
                took = _least(lambda: store.gather("t", ids))
                assert took >= profile.gather_ns(len(ids), ROW) * 0.95
                assert took < profile.gather_ns(len(ids), ROW) * 30  # it is not asleep for ever
                assert (store.gather("t", ids)[:, 0] == ids * ROW % 251).all()
                assert _least(lambda: mapping.read(0, 6400)) >= profile.gather_ns(1, 6400)
                assert _least(lambda: mapping.load("<u8", 8)) >= profile.gather_ns(1, 8)
                assert _least(lambda: mapping.rows(ROW).gather(ids)) >= profile.gather_ns(len(ids), ROW)
                assert _least(lambda: mapping.as_numpy()[:640_000].copy()) < profile.gather_ns(1, 640_000)
            local = region.map("r")
            assert _least(lambda: local.read(0, 640_000)) < profile.gather_ns(1, 640_000)  # the owner's own memory
            local.close()
        owner.close()
        reader.close()


PROGRAM = """
import json, sys, time
import numpy as np
import obmm
from obmm.rows import Manifest, RowStore, TableSpec
device, port = sys.argv[1:]
with obmm.open(device) as reader, obmm.connect(f"127.0.0.1:{port}", plain=True) as peer:
    with reader.import_region(peer.fetch("t"), cache="nc") as imported, imported.map("r") as mapping:
        store = RowStore.attach(mapping, Manifest((TableSpec("t", 4096, 320),), generation=2), verify="none")
        ids, times = np.arange(0, 4096, 4), []
        for _ in range(5):
            began = time.perf_counter_ns()
            store.gather("t", ids)
            times.append(time.perf_counter_ns() - began)
        print(json.dumps(min(times)))
"""


def _elsewhere(device: str, exporter: str, tmp_path) -> float:
    """Nanoseconds of a gather of 1,024 rows by a process that was told nothing but the device."""
    with obmm.open(exporter) as owner, owner.export_region("4MiB", header=False) as region:
        with obmm.serve({"t": region}, plain=True, port=0, journal=tmp_path / "journal") as server:
            command = [sys.executable, "-c", PROGRAM, device, str(server.port)]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
            assert ran.returncode == 0, ran.stderr
            return json.loads(ran.stdout)


def test_a_fabric_tells_other_processes_what_it_is_modelled_as(tmp_path) -> None:
    modelled = Profile.named("ub-noncacheable").gather_ns(1024, ROW)
    with obmm.emulator.start(nodes=2, fabric="ub-noncacheable") as fabric:
        assert fabric.status()["modelled"] == "ub-noncacheable"
        assert _elsewhere(fabric.device(1), fabric.device(0), tmp_path) >= 0.95 * modelled


def test_a_fabric_of_the_command_line_waits_until_it_is_started_without(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = tmp_path / "mine.toml"
    own.write_text((FOLDER / "ub-noncacheable.toml").read_text().replace("254", "508"))
    modelled = Profile.named(str(own)).gather_ns(1024, ROW)
    assert modelled > 1.2 * Profile.named("ub-noncacheable").gather_ns(1024, ROW)
    for options, waits in ((["--fabric", str(own)], True), ([], False)):
        ran = CliRunner().invoke(emulate, ["up", *options])
        assert ran.exit_code == 0, ran.output
        assert ("MODELLED" in ran.output) is waits
        try:
            assert ("MODELLED" in CliRunner().invoke(emulate, ["status"]).output) is waits
            assert (_elsewhere("emulator#b", "emulator#a", tmp_path) >= 0.95 * modelled) is waits
        finally:
            assert CliRunner().invoke(emulate, ["down"]).exit_code == 0


def test_a_process_may_say_otherwise_for_itself(tmp_path) -> None:
    with obmm.emulator.start(nodes=2, fabric="ub-urma") as fabric:
        device = fabric.device(1)
        found = fabric_of(fabric.socket)
        assert found is not None
        assert found.name == "ub-urma"
        obmm.emulator.wait_as(device, None)
        assert fabric_of(fabric.socket) is None
        obmm.emulator.wait_as(device, "rdma")
        found = fabric_of(fabric.socket)
        assert found is not None
        assert found.name == "rdma"


def test_up_with_a_profile_that_is_none_starts_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    ran = CliRunner().invoke(emulate, ["up", "--fabric", "ub-nothing"])
    assert ran.exit_code == 1
    assert "ub-urma" in ran.output
    assert not list(tmp_path.glob("**/*.sock"))


def _least(call) -> float:
    """Nanoseconds of the quickest of some calls."""
    times = []
    for _ in range(5):
        began = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - began)
    return min(times)
