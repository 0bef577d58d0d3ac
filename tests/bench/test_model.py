# SPDX-License-Identifier: Apache-2.0
"""What is calculated from profiles, and the simulated cluster."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner

from obmm.bench import model
from obmm.bench.cluster import Cluster, simulate
from obmm.bench.units import duration
from obmm.cli.bench import bench
from obmm.emulator.profile import Profile, names
from obmm.errors import ObmmArgumentError

URMA, NC, CC, LOCAL = (Profile.named(name) for name in ("ub-urma", "ub-noncacheable", "ub-cacheable", "local-dram"))
STEP = model.Step(1536, 264)


def test_lists_are_quicker_than_loads_from_exactly_the_row_that_is_said():
    for loads in (NC, CC):
        for row_bytes in (264, 1364):
            start = model.crossing(loads, URMA, row_bytes).start
            assert start is not None
            assert URMA.gather_ns(start, row_bytes) < loads.gather_ns(start, row_bytes)
            if start > 1:
                assert URMA.gather_ns(start - 1, row_bytes) >= loads.gather_ns(start - 1, row_bytes)


def test_a_crossing_has_the_range_that_assumed_figures_leave_it():
    paths = {name: Profile.named(name) for name in names()}
    for one in (path for path in paths.values() if path.way == "loads"):
        for other in (path for path in paths.values() if path.way == "lists"):
            found = model.crossing(one, other, 264)
            starts = [math.inf if rows is None else rows for rows in (found.earliest, found.start, found.surely)]
            assert starts == sorted(starts)
    # 45 million rows a second are a whole NIC's: one thread's reads may well be slower than its own memory
    assert model.crossing(LOCAL, paths["rdma"], 264).surely is None
    assert model.crossing(NC, paths["rdma"], 264).surely is not None


def test_hot_rows_pay_from_the_share_where_both_ways_cost_the_same():
    share = model.hot_share(NC, STEP)
    kept, remote = LOCAL.row_ns(264), NC.row_ns(264)
    assert share * kept + (1 - share) * (remote + kept / 2) == pytest.approx(remote)
    assert model.hot_share(LOCAL, STEP) is None


def test_prefetch_depth_is_what_hides_a_step_and_none_where_nothing_can():
    assert model.depth(URMA, STEP, 200_000.0) == 1
    assert model.depth(URMA, model.Step(24, 264), 2_000.0) == 2
    assert model.depth(NC, STEP, 56_000.0) is None


def test_readers_are_what_the_owners_node_can_send_in_a_period():
    step = model.Step(1000, 1000, period_ns=1e6)
    assert model.readers(URMA, step) == 160


def test_a_reader_alone_takes_the_paths_own_time():
    found = simulate(URMA, STEP, Cluster(1, 1, steps=5))
    assert found.p50_ns == pytest.approx(found.alone_ns) == pytest.approx(URMA.gather_ns(1536, 264), rel=1e-6)
    assert found.late == 0


def test_an_owner_that_is_asked_for_more_than_its_link_carries_makes_its_readers_late():
    step = model.Step(1536, 1364, period_ns=1e6)
    fits = int(0.5 * model.readers(URMA, step))
    few, many = (simulate(URMA, step, Cluster(hosts, 1, steps=30)) for hosts in (fits, 8 * fits))
    assert few.late == 0
    assert many.late > 0.9
    assert many.busiest > 0.95
    assert many.gbps == pytest.approx(URMA["node_gbps"], rel=0.1)


def test_more_owners_help_and_the_same_seed_gives_the_same_outcome():
    step = model.Step(1536, 1364, period_ns=1e6)
    one, many = (simulate(URMA, step, Cluster(400, owners, owners, steps=10)) for owners in (1, 8))
    assert many.p99_ns < one.p99_ns
    assert simulate(URMA, step, Cluster(400, 8, 2, steps=10)) == simulate(URMA, step, Cluster(400, 8, 2, steps=10))


def test_ten_thousand_hosts_can_be_simulated():
    found = simulate(URMA, STEP, Cluster(10_000, 500, 2, steps=3))
    assert found.alone_ns <= found.p50_ns <= found.p99_ns <= found.max_ns


@pytest.mark.parametrize(
    "shape",
    [
        *(Cluster(0, 1), Cluster(10_001, 1), Cluster(4, 5), Cluster(4, 2, 3), Cluster(4, 2, steps=0)),
        *(Cluster(10_000, 10_000, 1000, 1000), Cluster(4, 2, link_gbps=0.0)),
    ],
)
def test_clusters_that_cannot_be_simulated_are_refused(shape):
    with pytest.raises(ObmmArgumentError):
        simulate(URMA, STEP, shape)


def test_the_command_says_of_every_figure_that_it_is_modelled_and_where_it_is_from():
    ran = CliRunner().invoke(bench, ["model", "--fabric", "ub-urma", "--hosts", "20"])
    assert ran.exit_code == 0, ran.output
    assert ran.output.count("MODELLED") == 4
    assert "source project" in ran.output


def test_the_command_speaks_to_programs():
    ran = CliRunner().invoke(bench, ["model", "--json", "--rows", "1536", "--row-bytes", "1364"])
    told = json.loads(ran.output)
    assert told["mark"].startswith("MODELLED")
    steps = {step["fabric"]: step["time_ns"] for step in told["steps"]}
    assert steps["ub-urma"]["value"] == pytest.approx(116_500, rel=0.15)
    assert all(time["low"] <= time["value"] <= time["high"] for time in steps.values())
    crossings = {(each["instead_of"], each["take"]): each for each in told["crossings"]}
    found = crossings["local-dram", "ub-urma"]
    assert found["earliest_rows"] < found["from_rows"] < found["surely_rows"]


def test_the_pages_table_is_what_is_calculated():
    page = (Path(__file__).parents[2] / "docs" / "fabric.md").read_text()
    told = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].strip("`") in names():
            told[cells[0].strip("`")] = cells[1:3]
            assert len(cells[3]) > 10  # its source
    assert set(told) == set(names())
    for name, cells in told.items():
        for row_bytes, cell in zip((264, 1364), cells, strict=True):
            time = model.step_model(Profile.named(name), model.Step(1536, row_bytes)).time_ns
            span = "" if time.low == time.high else f" ({duration(time.low)} .. {duration(time.high)})"
            assert cell == duration(time.value) + span, name
