# SPDX-License-Identifier: Apache-2.0
"""Figures that cannot flatter: what is called cold, what is compared, what a network is, who else ran, what a file says."""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from obmm.bench import compare, decision, environment, plausible, results, surroundings
from obmm.bench import run as running
from obmm.bench.arms import tcp
from obmm.bench.arms.local import LocalArm
from obmm.bench.far import Far
from obmm.bench.footprint import HOT_BYTES, Chase, Footprint
from obmm.bench.presets import PRESETS
from obmm.bench.seeds import Seeds
from obmm.bench.shared_table import AlignedPages
from obmm.bench.surroundings import Surroundings, Watch
from obmm.bench.timing import Series, Timer
from obmm.cli.bench import bench

from .scaling import scaled

MIB = 1 << 20
TIMER = Timer(0.0, 0.0)

# --- what is called cold is cold ------------------------------------------------------------------------------------------


def test_every_case_and_thread_has_random_numbers_of_its_own():
    seeds = Seeds(7)
    words = [(0, "local", "loads", width, threads) for width in (4, 8, 64) for threads in (1, 2)]
    words += [(1, "local", "loads", 4, 1), (0, "tcp", "loads", 4, 1)]
    drawn = [
        tuple(Series(TIMER, seeds.of(*each)).random(thread).integers(0, 1 << 40, 50))
        for each in words
        for thread in (0, 1)
    ]
    assert len(set(drawn)) == len(drawn)
    assert len({number for sequence in drawn for number in sequence}) > 0.99 * sum(map(len, drawn))


def test_no_case_of_a_run_repeats_the_rows_of_another(document):
    seeds = {(r["arm"], r["workload"], r["seed"]) for r in document["results"]}
    cases = {
        (r["arm"], r["workload"], r["row_bytes"], r["tables"], r["count"], r["threads"], r["working_set"], r["plane"])
        for r in document["results"]
    }
    assert len({seed for *_, seed in seeds}) >= len(cases) - sum(
        1 for r in document["results"] if r["plane"] == "control"
    )


def test_a_seed_repeats_the_rows_of_an_earlier_run(tmp_path):
    def once(*options):
        path = tmp_path / "one.json"
        command = ["run", "--preset", "smoke", "--arms", "local", "--workloads", "row", "-o", str(path), *options]
        assert CliRunner().invoke(bench, command).exit_code == 0
        return results.read(path)

    first, second, third = once("--seed", "5"), once("--seed", "5"), once()
    assert [r["seed"] for r in first["results"]] == [r["seed"] for r in second["results"]]
    assert first["seed"] == 5 != third["seed"]
    assert [r["seed"] for r in first["results"]] != [r["seed"] for r in third["results"]]


def _sysfs(root, caches):
    for cpu, level, size, shared in caches:
        index = root / f"cpu{cpu}" / "cache" / f"index{level}"
        index.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared), ("type", "Unified")):
            (index / name).write_text(f"{text}\n")
    return str(root)


def test_without_a_level_3_there_is_no_last_level(tmp_path):
    assert environment.last_level_cache(_sysfs(tmp_path, [(0, 1, "64K", "0"), (0, 2, "8192K", "0-3")])) == 0
    assert environment.last_level_cache(str(tmp_path / "nothing")) == 0


def test_level_3_caches_of_all_dies_and_sockets_are_added_up(tmp_path):
    caches = [(cpu, 3, "32768K", "0-1" if cpu < 2 else "2-3") for cpu in range(4)]
    assert environment.last_level_cache(_sysfs(tmp_path, caches)) == 64 * MIB


def test_cold_needs_a_chase_that_leaves_the_caches():
    footprint = Footprint(400 * MIB, 100 * MIB)
    assert footprint.temperature(400 * MIB, Chase(cold_ns=100.0, hot_ns=4.0)) == "cold"
    assert footprint.temperature(400 * MIB, Chase(cold_ns=7.0, hot_ns=4.0)) == "hot/limited"


def test_loads_that_are_quicker_than_the_chase_are_not_called_cold():
    footprint, chase = Footprint(400 * MIB, 100 * MIB), Chase(cold_ns=300.0, hot_ns=4.0)
    assert footprint.temperature(400 * MIB, chase, load_ns=289.0) == "cold"
    assert footprint.temperature(400 * MIB, chase, load_ns=138.0) == "hot/limited"


@pytest.mark.alone
def test_a_chase_over_a_large_table_is_slower_than_one_over_cached_lines():
    pages = AlignedPages(256 * MIB)
    try:
        pages.array[::4096] = 1
        chase = Chase.over(pages.address, 256 * MIB, seed=3)
    finally:
        pages.close()
    assert chase.leaves_caches


def test_cold_loads_of_a_run_take_what_the_chase_of_the_same_run_takes(document):
    chases = {arm["name"]: arm["chase"] for arm in document["arms"]}
    for row in document["results"]:
        if row["workload"] == "loads" and row["temperature"] == "cold" and chases[row["arm"]]:
            assert row["mean"] >= 0.5 * chases[row["arm"]]["cold_ns"]


# --- checks as strong as their words --------------------------------------------------------------------------------------


class _Inverted(LocalArm):
    """A table of which every bit is wrong: the XOR of an even number of words is as it should be."""

    @contextmanager
    def open(self, nbytes, progress):
        with super().open(nbytes, progress) as memory:
            np.invert(memory._array, out=memory._array)
            yield memory


@pytest.mark.parametrize("swap", [False, True])
def test_wide_loads_are_compared_byte_by_byte(tmp_path, monkeypatch, swap):
    class Swapped(LocalArm):
        """Every two words have changed places."""

        @contextmanager
        def open(self, nbytes, progress):
            with super().open(nbytes, progress) as memory:
                words = memory._array.view(np.uint64).reshape(-1, 2)
                words[:] = words[:, ::-1].copy()
                yield memory

    monkeypatch.setattr(running, "arms", lambda *_: (Swapped() if swap else _Inverted(),))
    monkeypatch.setitem(PRESETS, "smoke", PRESETS["smoke"].__class__(**{**_fields(PRESETS["smoke"]), "widths": (64,)}))
    command = ["run", "--preset", "smoke", "--workloads", "loads", "-o", str(tmp_path / "x.json")]
    ran = CliRunner().invoke(bench, command)
    assert ran.exit_code == 1
    assert "verification failed" in ran.output


def _fields(preset):
    return {name: getattr(preset, name) for name in preset.__dataclass_fields__}


def test_rates_are_of_the_mean_and_that_of_the_median_is_named(document):
    row = next(r for r in document["results"] if r["workload"] == "batch")
    size = row["count"] * row["row_bytes"]
    assert row["bytes_per_s"] == pytest.approx(size / row["mean"] * 1e9)
    assert row["bytes_per_s_p50"] == pytest.approx(size / row["p50"] * 1e9)


def _gathers(**change):
    row = {
        "arm": "tcp",
        "kind": "network",
        "mark": "",
        "workload": "batch",
        "temperature": "cold",
        "row_bytes": 64,
        "tables": 1,
        "count": 1,
        "threads": 1,
        "samples": 100,
        "failures": 0,
        "busy": False,
        "p99": 1000.0,
        "p99_9": 1500.0,
        "max": 2000.0,
        **change,
    }
    return {"results": [row], "arms": [{"name": "tcp", "title": "tcp"}]}


def test_a_path_on_which_operations_failed_serves_nothing():
    (found,) = decision.verdicts(_gathers(failures=99), (56_000.0,))
    assert found.arm is None
    assert "99 of 199 failed" in found.why
    assert "hide" not in decision.sentence(_gathers(failures=99), (56_000.0,)).split("none")[0]


def test_a_tail_beyond_the_budget_is_told_where_the_path_is_named():
    (found,) = decision.verdicts(_gathers(p99_9=9e6, max=1e7), (56_000.0,))
    assert (found.arm, found.late_ns) == ("tcp", 9e6 - 56_000)
    assert "tail" in found.short
    (found,) = decision.verdicts(_gathers(), (56_000.0,))
    assert (found.arm, found.late_ns, found.short) == ("tcp", 0.0, "tcp")


CONDITIONS = {
    "governor": lambda d: d["environment"].update(governor="powersave"),
    "git_revision": lambda d: d["environment"].update(git_revision="0123456789ab"),
    "pages": lambda d: d["arms"][0].update(pages="2M"),
    "cpu": lambda d: d["environment"].update(cpu="another"),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_that_differ_are_listed_and_fail_under_a_threshold(results_file, document, tmp_path, name):
    CONDITIONS[name](document)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    both = ["compare", str(results_file), str(other)]
    told = CliRunner().invoke(bench, both)
    assert told.exit_code == 0
    assert f"not alike, so ratios mean less: {name}" in told.output
    assert CliRunner().invoke(bench, [*both, "--threshold", "2"]).exit_code == 1
    assert CliRunner().invoke(bench, [*both, "--threshold", "2", "--allow", name]).exit_code == 0


def test_a_p99_ten_times_worse_is_found_although_the_median_is_as_before(document):
    second = copy.deepcopy(document)
    for row in second["results"]:
        row["busy"] = False
        if row["p99"] is not None:
            row["p99"], row["max"] = row["p99"] * 10, row["max"] * 10
    for row in document["results"]:
        row["busy"] = False
    found = compare.ratios(document, second, "p50")
    assert all(each.ratio == 1.0 and each.beyond(1.5) for each in found if each.tail is not None)
    assert any(each.tail is not None for each in found)


def _repeated(document, wander):
    """As if the headline figures had been measured twice."""
    found = copy.deepcopy(document)
    found["repeat"] = 2
    for figure in found["headlines"]:
        figure["values"] = [figure["values"][0], figure["values"][0] * (1 + wander)]
        figure.update(running.headlines.spread(figure["values"]))
    return found


def test_what_figures_wander_by_themselves_is_not_called_slower(document):
    first = _repeated(document, 0.4)
    for factor, verdict in ((1.3, "same"), (100.0, "slower"), (0.005, "faster")):
        found = compare.ratios(first, scaled(first, factor), "p50")
        same = [each for each in found if each.ratio == pytest.approx(factor)]
        assert same
        assert {each.verdict() for each in same} == {verdict}


def test_noise_is_that_of_the_same_arm_and_of_the_same_kind_of_figure(document):
    first = _repeated(document, 0.1)
    for figure in first["headlines"]:
        if figure["arm"] == "tcp" or figure["title"].endswith("p99"):
            figure["values"][1] = figure["values"][0] * 9
            figure.update(running.headlines.spread(figure["values"]))
    assert compare.between_runs((first, first), "local", "p50") == pytest.approx(0.1 / 1.05)
    assert compare.between_runs((first, first), "local", "p99") > 1
    assert compare.between_runs((first, first), "tcp", "p50") > 1


def test_names_of_emulated_sockets_are_no_difference(document):
    second = copy.deepcopy(document)
    for arm in second["arms"]:
        arm["backend"] += "x" if arm["mark"] else ""
    assert compare.differences(document, second) == []


def test_without_repetitions_nothing_is_called_slower(document):
    assert {each.verdict() for each in compare.ratios(document, scaled(document, 3.0), "p50")} == {"no spread"}


def test_compare_and_report_speak_to_programs(results_file, tmp_path):
    told = CliRunner().invoke(bench, ["compare", str(results_file), str(results_file), "--json", "--threshold", "2"])
    found = json.loads(told.output)
    assert (found["format"], found["ok"], found["missing"], found["differences"]) == (
        "obmm-bench-compare",
        True,
        [],
        [],
    )
    assert {case["ratio"] for case in found["cases"]} == {1.0}
    ran = CliRunner().invoke(bench, ["report", str(results_file), "-o", str(tmp_path), "--json"])
    report = json.loads(ran.stdout)
    assert report["format"] == "obmm-bench-report"
    assert "decides nothing" in report["files"][0]["decision"]["sentence"]


# --- one address is not a network -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("same_host", "kind"), [(True, "loopback"), (False, "network")])
def test_a_far_side_on_this_very_machine_is_no_network(monkeypatch, same_host, kind):
    monkeypatch.setattr(tcp, "is_loopback", lambda address: False)
    one, other = socket.socketpair()

    @contextmanager
    def connection(*_):
        class Named:
            def getpeername(self):
                return ("192.0.2.1", 1)

        yield Named()

    monkeypatch.setattr(Far, "connection", connection)
    arm = tcp.TcpArm(Far(None, 8 * MIB, ("192.0.2.1", 1), b"", same_host))
    with arm.open(8 * MIB, lambda share: None):
        assert arm.kind == kind
    one.close()
    other.close()


# --- what else the machine did --------------------------------------------------------------------------------------------


TICKS = 30  # of a core: 0.3 s, however long a busy machine takes to give them
BURN = (
    "import os, time\nprint(os.getpid(), flush=True)\nend = time.monotonic() + 100\nwhile time.monotonic() < end: pass"
)


@contextmanager
def burning(*before: str):
    """A process that computes -> a function that waits until it has used `TICKS` more."""
    with subprocess.Popen([*before, sys.executable, "-c", BURN], stdout=subprocess.PIPE, text=True) as started:
        pid = int(started.stdout.readline())

        def used() -> int:
            return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))

        def use() -> None:
            end = used() + TICKS
            while used() < end:
                time.sleep(0.01)

        try:
            yield use
        finally:
            os.kill(pid, signal.SIGKILL)


def test_other_processes_are_noticed_and_our_own_are_not():
    with burning() as use:
        before = surroundings._ours()
        use()
        assert surroundings._ours() - before >= TICKS
    with burning("setsid", "--fork") as use:  # it has no parent here
        before, watch = surroundings._ours(), Watch()
        use()
        theirs = watch.end()
        assert surroundings._ours() - before < TICKS
        assert theirs.others > 0


@pytest.mark.parametrize(("others", "steal", "busy"), [(0.0, 0.0, False), (0.2, 0.0, True), (0.0, 0.05, True)])
def test_a_case_on_a_busy_machine_is_marked(others, steal, busy):
    assert Surroundings(others, steal, 1.0, None).busy is busy


def test_reports_say_which_figures_are_of_a_busy_machine(document, tmp_path):
    for row in document["results"]:
        row["surroundings"].update(others=0.5)
        row["busy"] = True
    path = tmp_path / "busy.json"
    path.write_text(json.dumps(document))
    ran = CliRunner().invoke(bench, ["report", str(path), "-o", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    for text in (ran.output, (tmp_path / "out/report.md").read_text(), (tmp_path / "out/report.html").read_text()):
        assert "busy machine" in text


# --- files are not believed -----------------------------------------------------------------------------------------------


def _row(document, workload="batch"):
    return next(r for r in document["results"] if r["workload"] == workload and r["working_set"] > HOT_BYTES)


EDITS = {
    "p99 below p50": lambda d: _row(d).update(p99=_row(d)["p50"] / 2),
    "p50 above max": lambda d: _row(d).update(p50=_row(d)["max"] * 2),
    "max below p99": lambda d: _row(d).update(max=_row(d)["p50"]),
    "another mean": lambda d: _row(d).update(mean=_row(d)["mean"] / 3),
    "another rate": lambda d: _row(d).update(bytes_per_s=_row(d)["bytes_per_s"] * 2),
    "another rate of the median": lambda d: _row(d).update(bytes_per_s_p50=1.0),
    "more rows": lambda d: _row(d).update(rows_per_s=1e12),
    "a falling distribution": lambda d: _row(d)["cdf"].reverse(),
    "another distribution": lambda d: _row(d).update(cdf=[1.0] * 101),
    "false cold": lambda d: _row(d).update(temperature="cold"),
    "a hot one as limited": lambda d: next(r for r in d["results"] if r["temperature"] == "hot").update(
        temperature="cold"
    ),
    "nothing verified": lambda d: d["verification"].update(bytes=0),
    "nothing verified in a case": lambda d: _row(d).update(verified=0),
    "percentiles of few samples": lambda d: _row(d).update(samples=5),
    "more samples": lambda d: _row(d).update(samples=1_000_000),
    "a working set beyond the table": lambda d: _row(d).update(working_set=1 << 50),
    "a busy machine as quiet": lambda d: _row(d).update(busy=not _row(d)["busy"]),
    "another median of a headline": lambda d: d["headlines"][0].update(median=d["headlines"][0]["median"] / 2),
    "another value of a headline": lambda d: d["headlines"][0].update(
        values=[1e-3], **running.headlines.spread([1e-3])
    ),
    "repetitions that were none": lambda d: d["headlines"][0].update(
        values=[d["headlines"][0]["median"]] * 3, spread=0.0
    ),
    "less harness": lambda d: d["harness"].update(harness_share=0.0),
    "another kind of arm": lambda d: next(a for a in d["arms"] if a["name"] == "tcp").update(kind="network"),
    "other blocks": lambda d: _row(d).update(blocks=[0.0] * 5),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_what_can_be_computed_again_is_on_reading(document, tmp_path, edit):
    edit(document)
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(document))
    with pytest.raises(results.NotResults):
        results.read(path)


def test_kept_samples_give_every_figure_again(tmp_path):
    path = tmp_path / "samples.json"
    command = ["run", "--preset", "smoke", "--arms", "local", "--workloads", "row,batch", "--samples", "-o", str(path)]
    assert CliRunner().invoke(bench, command).exit_code == 0
    document = results.read(path)
    assert all(len(row["samples_ns"]) == row["samples"] for row in document["results"])
    document["results"][0]["samples_ns"][0] *= 50
    assert list(plausible.faults(document))
