# SPDX-License-Identifier: Apache-2.0
"""The URMA arm says what URMA specification 13 asks for (B1 to B7), on one machine and between two."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

import obmm
from obmm import urma
from obmm.bench import decision, headlines, plausible, plots, published, results
from obmm.bench.arms.direct import DirectArm
from obmm.bench.arms.tcp import TcpArm
from obmm.bench.arms.urma import UrmaArm
from obmm.bench.footprint import Footprint
from obmm.bench.nodes import stand_in_nodes
from obmm.bench.own_far import OwnFar
from obmm.bench.presets import PRESETS
from obmm.bench.run import Run
from obmm.bench.timing import Series, Timer
from obmm.bench.workloads.lists import DEAD, DEADLINE_S, PASS, REFUSED, SIZES, UNANSWERED, ReadLists
from obmm.bench.workloads.rows import OneRow
from obmm.bench.workloads.workload import Case
from obmm.cli.bench import bench
from obmm.urma.errors import UrmaTimeout
from obmm.urma.standin import SENTENCE, StandIn, inject

SMOKE = PRESETS["smoke"]
WORKLOADS = "row,batch,step,tables,lists,control-urma"
CONTROL = {
    *("context", "token id", "register 1 MiB", "queue", "attach", "first read"),
    *("close queue", "unregister", "close context", REFUSED, DEAD, UNANSWERED),
}


@pytest.fixture(scope="module")
def urma_file(tmp_path_factory):
    """The arm on a stand-in, and the others that its figures are compared with."""
    path = tmp_path_factory.mktemp("urma") / "urma.json"
    command = ["run", "--preset", "smoke", "--stand-in", "--arms", "local,tcp,obmm-nc,urma", "--workloads", WORKLOADS]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OBMM_DEVICE", raising=False)
        ran = CliRunner().invoke(bench, [*command, "-o", str(path)])
    assert ran.exit_code == 0, ran.output
    return path


@pytest.fixture
def document(urma_file):
    return results.read(urma_file)


@pytest.fixture(scope="module")
def report(urma_file, tmp_path_factory):
    """(terminal, Markdown, HTML)."""
    folder = tmp_path_factory.mktemp("report")
    ran = CliRunner().invoke(bench, ["report", str(urma_file), "-o", str(folder), "--full"])
    assert ran.exit_code == 0, ran.output
    return ran.output, (folder / "report.md").read_text(), (folder / "report.html").read_text()


def _of(document, workload):
    return [r for r in document["results"] if r["arm"] == "urma" and r["workload"] == workload]


def test_the_results_are_what_the_schema_says(document, schema):
    jsonschema.validate(document, schema)
    assert "urma" in {arm["name"] for arm in document["arms"]}, document["unavailable"]


def test_b1_the_label_has_everything_and_says_that_a_stand_in_says_nothing_about_ub(document, report):
    arm = next(each for each in document["arms"] if each["name"] == "urma")
    assert arm["kind"] == "stand-in"
    assert SENTENCE.removeprefix("stand-in: ") in arm["mark"]
    wanted = ("library", "kind", "profile", "device", "EID index", "transport", "priority", "list_max", "depth")
    assert set(wanted) <= arm["facts"].keys()
    assert arm["facts"]["kind"] == "stand-in"
    _, markdown, page = report
    for text in (markdown, page):
        assert "says nothing about UB" in text
        assert all(f"{name}: " in text for name in wanted)


def test_b1_a_stand_in_is_in_no_plot_of_the_data_plane_and_no_basis_of_a_decision(document):
    urma_only = {**document, "results": [r for r in document["results"] if r["arm"] == "urma"]}
    assert plots.all_plots(urma_only) == []
    assert plots.said(urma_only) == []
    assert all(verdict.arm is None for verdict in decision.verdicts(document))


def test_b2_single_reads_and_lists_with_and_without_a_pass_over_what_they_brought(document):
    assert {1, 8, 64, 512, 1536, 4096} == set(PRESETS["honest"].lists) == set(PRESETS["prototype"].lists)
    cases = {(r["count"], r["row_bytes"], r["case"].endswith(PASS), r["working_set"]) for r in _of(document, "lists")}
    sets = {size for *_, size in cases}
    assert len(sets) == 2  # B4: a whole table, and one that stays in the caches
    assert cases == {
        (n, size, with_pass, one) for n in SMOKE.lists for size in SIZES for with_pass in (0, 1) for one in sets
    }


@pytest.mark.parametrize("preset", ["honest", "prototype"])
def test_b3_the_main_case_is_the_same_on_every_arm(document, preset):
    assert (1536, 320) in PRESETS[preset].steps
    assert (1536, 1364) in PRESETS[preset].steps
    same = [r for r in document["results"] if r["workload"] == "step"]
    assert {r["arm"] for r in same} == {"local", "tcp", "obmm-nc", "urma"}
    assert len({(r["count"], r["row_bytes"], r["threads"], r["working_set"]) for r in same}) == 1
    assert {f["arm"] for f in document["headlines"] if f["headline"] == "rows"} == {r["arm"] for r in same}


def test_b4_what_is_called_cold_is_four_times_the_caches(document):
    cache = document["environment"]["last_level_cache"]
    for row in _of(document, "lists"):
        assert (row["temperature"] == "cold") <= (bool(cache) and row["working_set"] >= 4 * cache)
    assert "hot" in {row["temperature"] for row in _of(document, "lists")}


def test_b5_making_the_way_is_in_the_control_table_and_not_in_reads(document):
    steps = {r["case"].split(",")[0] for r in _of(document, "control-urma")}
    assert steps >= {step.split(",")[0] for step in CONTROL}
    assert all(
        r["plane"] == "control" and "say nothing about hardware" in r["caveat"] for r in _of(document, "control-urma")
    )
    assert all(r["plane"] == "data" for r in _of(document, "lists"))


def test_b6_percentiles_failures_timeouts_and_every_byte_compared(document):
    for row in _of(document, "lists"):
        assert None not in (row["p50"], row["p90"], row["p99"], row["max"])
        assert (row["failures"], row["timeouts"]) == (0, 0)
        assert row["verified"] >= row["samples"] * row["count"] * row["row_bytes"]


def test_b6_more_timeouts_than_failures_are_not_believed(document):
    edited = copy.deepcopy(document)
    edited["results"][0]["timeouts"] = 1
    assert any("timeouts" in fault for fault in plausible.faults(edited))


def test_b6_reads_that_end_at_the_deadline_are_counted_and_the_next_ones_have_a_new_queue(nodes):
    series, preset = Series(Timer(0.0, 0.0), 5), SimpleNamespace(iterations=20, seconds=30.0)
    with UrmaArm(nodes[1]).open(8 << 20, lambda share: None) as memory:
        inject("every=500,drop")
        try:
            ReadLists().run(Case("64 reads", 320, count=64, working_set=memory.nbytes), memory, preset, series)
        finally:
            inject("")
    assert 0 < series.timeouts == series.failures < 5
    assert series.summary()["timeouts"] == series.timeouts
    assert series.samples == 20 - series.failures


def test_b6_a_deadline_is_told_apart_from_other_failures():
    series = Series(Timer(0.0, 0.0))
    series.failed(UrmaTimeout(110, "late", errno=110))
    series.failed(obmm.ObmmError(5, "lost"))
    series.add(1.0)
    assert (series.summary()["failures"], series.summary()["timeouts"]) == (2, 1)


def test_b7_a_deadline_and_a_dead_peer_are_in_every_report(document, report):
    found = {r["case"]: r for r in _of(document, "control-urma")}
    dead, unanswered = (next(r for case, r in found.items() if case.startswith(step)) for step in (DEAD, UNANSWERED))
    assert (dead["samples"], unanswered["samples"]) == (1, 1)
    assert DEADLINE_S * 1e9 <= unanswered["p50"] < 5e9
    assert 0 < dead["p50"] < 5e9
    for text in report[1:]:
        assert DEAD in text
        assert UNANSWERED in text


def test_published_figures_stand_beside_with_their_label_and_in_no_ranking(document, report):
    _, markdown, page = report
    for text in (markdown, page):
        assert published.TITLE in text
        assert "0.116-0.117 ms" in text
    assert "0.116-" not in page[page.index("class=cards") : page.index("class=published")]
    assert not published.beside({"results": [r for r in document["results"] if r["arm"] != "urma"]})


def test_no_token_is_in_a_result_file_or_a_report(nodes, tmp_path, monkeypatch):
    tickets = []
    fetch = urma.fetch
    monkeypatch.setattr(urma, "fetch", lambda *given: tickets.append(found := fetch(*given)) or found)
    run = Run(SMOKE, Footprint(8 << 20, 0), [UrmaArm(nodes[1])], [OneRow()])
    document = run.document(SimpleNamespace(step=lambda text, share: None))
    path = tmp_path / "x.json"
    results.write(document, path)
    ran = CliRunner().invoke(bench, ["report", str(path), "-o", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert len(tickets) == 1
    for text in (path.read_text(), ran.output, (tmp_path / "report.html").read_text()):
        for secret in (tickets[0].ticket.token, tickets[0].ticket.target_token):
            assert str(secret) not in text
            assert f"{secret:08x}" not in text


# --- the same rows over every path ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes():
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.delenv("OBMM_DEVICE", raising=False)
        where = stand_in_nodes(stack, None)
        yield where, OwnFar(stack, where.exporting, 8 << 20, where.far_environment)


@pytest.mark.parametrize(("tables", "count", "row_bytes"), [(1, 1536, 320), (1, 1536, 1364), (1, 1, 264), (3, 200, 64)])
def test_the_same_rows_over_urma_direct_and_tcp_are_equal_to_the_bit(nodes, tables, count, row_bytes):
    where, own_far = nodes
    random = np.random.default_rng(count)
    # rows lie as an arm needs them to: the same bytes are the same places of the table
    stride, nbytes = -(-row_bytes // 8) * 8, 8 << 20
    each = nbytes // tables // 4096 * 4096
    ids = random.integers(0, each // stride, (tables, count))
    got = {}
    for arm in (UrmaArm(own_far), DirectArm("cc", where.measuring, own_far), DirectArm("nc", where.measuring, own_far)):
        with arm.open(nbytes, lambda share: None) as memory:
            out = np.zeros((tables, count, row_bytes), np.uint8)
            shape = memory.tables(tables, row_bytes, nbytes)
            assert (shape.stride, shape.rows) == (stride, each // stride)
            memory.gather(shape, ids, out, 1)()
            got[arm.name] = out
    with TcpArm(own_far(lambda share: None)).open(nbytes, lambda share: None) as memory:
        whole = np.zeros(stride, np.uint8)
        out = np.zeros((tables, count, row_bytes), np.uint8)
        for table in range(tables):
            for place, row in enumerate(ids[table].tolist()):
                memory.read(table * each + row * stride, whole)
                out[table, place] = whole[:row_bytes]
        got["tcp"] = out
        if stride == row_bytes:  # where TCP's packed rows are the same rows
            rows = np.zeros((tables, count, row_bytes), np.uint8)
            memory.gather(memory.tables(tables, row_bytes, nbytes), ids, rows, 1)()
            assert np.array_equal(rows, out)
    assert got.keys() == {"urma", "obmm-cc", "obmm-nc", "tcp"}
    assert all(np.array_equal(out, got["urma"]) for out in got.values())
    assert got["urma"].any()


# --- between two machines -------------------------------------------------------------------------------------------------


def test_the_arm_between_two_nodes(tmp_path, schema):
    """`serve` on node a and `run` on node b, each with its own environment, over the network's loopback."""
    path, key = tmp_path / "two.json", tmp_path / "key"
    obmm.exchange.Key.generate(key)
    with obmm.emulator.start(nodes=2) as fabric, StandIn(("a", "b")) as standin:
        on_a, on_b = ({**os.environ, **standin.environment(node)} for node in "ab")
        command = [sys.executable, "-m", "obmm.bench", "serve", "--preset", "smoke", "--port", "0", "--json"]
        command += ["--key", str(key), "--host", "127.0.0.1", "--device", fabric.device(0)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=on_a) as server:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["port"]
            run = [sys.executable, "-m", "obmm.bench", "run", f"127.0.0.1:{port}", "--key", str(key)]
            run += ["--preset", "smoke", "--device", fabric.device(1), "-o", str(path)]
            run += ["--arms", "tcp,obmm-nc,urma", "--workloads", "step,lists,control-urma"]
            ran = subprocess.run(run, env=on_b, capture_output=True, text=True, timeout=300)
            assert ran.returncode == 0, ran.stdout + ran.stderr
            server.terminate()
    document = results.read(path)
    jsonschema.validate(document, schema)
    assert {arm["name"]: arm["kind"] for arm in document["arms"]} == {
        "tcp": "loopback",
        "obmm-nc": "emulated",
        "urma": "stand-in",
    }
    lists = _of(document, "lists")
    assert {r["count"] for r in lists} == set(SMOKE.lists)
    assert {"hot"} < {r["temperature"] for r in lists}
    steps = {r["case"] for r in _of(document, "control-urma")}
    assert any(case.startswith(DEAD) for case in steps)
    assert any(case.startswith(UNANSWERED) for case in steps)
    assert headlines.across([document])


def test_a_far_node_without_a_library_is_the_arms_reason(tmp_path):
    path = tmp_path / "x.json"
    with obmm.emulator.start(nodes=2) as fabric, StandIn(("a", "b")) as standin:
        command = [sys.executable, "-m", "obmm.bench", "serve", "--preset", "smoke", "--port", "0", "--json", "--plain"]
        without = {name: value for name, value in os.environ.items() if not name.startswith("OBMM_URMA")}
        with subprocess.Popen(
            [*command, "--device", fabric.device(0)], stdout=subprocess.PIPE, text=True, env=without
        ) as server:
            assert server.stdout is not None
            port = json.loads(server.stdout.readline())["port"]
            run = [sys.executable, "-m", "obmm.bench", "run", f"127.0.0.1:{port}", "--plain", "--preset", "smoke"]
            run += ["--device", fabric.device(1), "--arms", "tcp,urma", "--workloads", "row", "-o", str(path)]
            ran = subprocess.run(run, env={**os.environ, **standin.environment("b")}, capture_output=True, text=True)
            assert ran.returncode == 0, ran.stdout + ran.stderr
            server.terminate()
    (reason,) = [each["reason"] for each in results.read(path)["unavailable"] if each["arm"] == "urma"]
    assert "the far node has no URMA" in reason
