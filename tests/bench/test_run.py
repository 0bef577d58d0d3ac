# SPDX-License-Identifier: Apache-2.0
"""A run keeps the rules of docs/benchmark.md."""

from __future__ import annotations

import errno
import io
import os
from contextlib import contextmanager

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from obmm.bench import content
from obmm.bench import run as running
from obmm.bench.arms.arm import Unavailable
from obmm.bench.arms.local import LocalArm
from obmm.bench.arms.shared import SharedMemoryArm
from obmm.bench.footprint import Footprint
from obmm.bench.presets import PRESETS
from obmm.bench.report_terminal import show
from obmm.bench.timing import Series, Timer
from obmm.bench.workloads.rows import OneRow
from obmm.cli.bench import bench
from obmm.errors import ObmmError

MIB = 1 << 20


def test_results_are_what_the_published_schema_says(document, schema):
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document, schema)


def test_every_arm_is_in_the_results_or_listed_with_its_reason(document):
    ran = {arm["name"] for arm in document["arms"]}
    missing = {each["arm"] for each in document["unavailable"]}
    assert ran | missing == set(running.ARM_NAMES)
    assert not ran & missing
    assert {"local", "numpy-shm", "tcp", "obmm-cc", "obmm-nc", "obmm-pmd"} <= ran


def test_every_workload_of_every_arm_is_measured_or_skipped_with_its_reason(document):
    have = {(r["arm"], r["workload"]) for r in document["results"]}
    have |= {(each["arm"], each["workload"]) for each in document["skipped"] if each["reason"]}
    assert have == {(arm["name"], work.name) for arm in document["arms"] for work in running.WORKLOADS}


def test_emulated_rows_are_marked(document):
    direct = [r for r in document["results"] if r["arm"].startswith("obmm-")]
    assert direct
    assert all(r["kind"] == "emulated" and r["mark"].startswith("EMULATED") for r in direct)


def test_emulated_control_plane_times_say_that_they_say_nothing_about_hardware(document):
    control = [r for r in document["results"] if r["plane"] == "control"]
    assert {r["workload"] for r in control} == {"control", "fetch", "pingpong-cc"}
    assert all("say nothing about hardware" in r["caveat"] for r in control)


@pytest.mark.parametrize("field", ["mark", "caveat"])
def test_schema_refuses_emulated_figures_without_their_mark(document, schema, field):
    next(r for r in document["results"] if r["caveat"])[field] = ""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_cold_is_said_only_of_four_times_a_known_last_level_cache():
    footprint = Footprint(nbytes=400 * MIB, cache=100 * MIB)
    assert footprint.temperature(400 * MIB) == "cold"
    assert footprint.temperature(399 * MIB) == "hot/limited"
    assert footprint.temperature(64 << 10) == "hot"
    assert Footprint(400 * MIB, cache=0).temperature(400 * MIB) == "hot/limited"


def test_percentiles_that_the_samples_do_not_carry_are_none():
    series = Series(Timer(0.0, 0.0))
    for value in range(100):
        series.add(float(value))
    summary = series.summary()
    assert summary["p99"] == pytest.approx(98.01)
    assert summary["p99_9"] is None


def test_the_clocks_own_cost_is_subtracted_and_never_gives_less_than_nothing():
    series = Series(Timer(c_ns=20.0, python_ns=100.0))
    series.add(150.0)
    series.add_c(np.array([10, 50], np.uint64))
    assert series.summary()["cdf"][0] == 0.0
    assert series.summary()["max"] == 50.0
    assert series.summary()["p50"] == 30.0


@pytest.mark.parametrize("at", [0, 1363, 3 * 1364 + 5])
def test_one_wrong_byte_of_a_gather_is_found(at):
    table = content.words(0, 1364 * 64).view(np.uint8)
    ids = np.array([[5, 63, 0, 7]], np.int64)
    out = np.ascontiguousarray(table.reshape(64, 1364)[ids])
    bases = np.zeros(1, np.uint64)
    assert content.check_rows(out, ids, bases, 1364) == out.nbytes
    out.reshape(-1)[at] ^= 1
    with pytest.raises(content.VerificationError, match="1 of 4 rows"):
        content.check_rows(out, ids, bases, 1364)


class _WrongArm(LocalArm):
    """A table in which one byte of every row is wrong."""

    @contextmanager
    def open(self, nbytes, progress):
        with super().open(nbytes, progress) as memory:
            for offset in range(0, nbytes, 64):
                memory._array[offset] ^= 1
            yield memory


@pytest.mark.parametrize("workload", ["loads", "row", "batch", "tables", "read"])
def test_a_run_that_fails_verification_writes_no_figures(workload, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "arms", lambda *_: (_WrongArm(),))
    path = tmp_path / "wrong.json"
    ran = CliRunner().invoke(
        bench, ["run", "--preset", "smoke", "--arms", "local", "--workloads", workload, "-o", str(path)]
    )
    assert ran.exit_code == 1
    assert "verification failed" in ran.output
    assert not list(tmp_path.iterdir())


def test_figures_of_an_earlier_run_survive_a_run_that_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "arms", lambda *_: (_WrongArm(),))
    path = tmp_path / "results.json"
    path.write_text("before")
    CliRunner().invoke(bench, ["run", "--preset", "smoke", "--workloads", "row", "-o", str(path)])
    assert path.read_text() == "before"


def test_unknown_names_are_refused_with_the_known_ones():
    ran = CliRunner().invoke(bench, ["run", "--arms", "rdma"])
    assert ran.exit_code == 2
    assert "numpy-shm" in ran.output


def test_what_threads_do_at_once_is_measured_time_once():
    """A gather on two threads is timed as one call; loads on two threads are two loops at the same time."""
    series = Series(Timer(0.0, 0.0))
    for _ in range(2):
        series.add_c(np.full(10, 50, np.uint64), at_once=2)
    assert series.busy_ns == 500.0
    series.add(100.0)
    assert series.busy_ns == 600.0


def test_measured_time_is_what_the_clock_ran_over_all_results(document):
    """Steps are part of their whole cycle, which counts once."""
    whole = [r for r in document["results"] if r["workload"] not in ("control", "fetch") or r["case"][:5] == "whole"]
    least = sum(r["mean"] * r["samples"] for r in whole if r["threads"] == 1) / 1e9
    assert document["harness"]["measured_s"] >= 0.9 * least
    assert document["harness"]["measured_s"] <= document["harness"]["wall_s"]


class _Broken(LocalArm):
    """An arm that fails outside its workloads."""

    name = "broken"

    def __init__(self, opening=None, closing=None):
        self._opening, self._closing = opening, closing

    @contextmanager
    def open(self, nbytes, progress):
        if self._opening:
            raise self._opening
        with super().open(nbytes, progress) as memory:
            yield memory
        raise self._closing


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many files"), MemoryError(), ObmmError(5, "lost")])
def test_an_arm_that_cannot_be_opened_is_listed_and_the_others_are_measured(error):
    run = running.Run(PRESETS["smoke"], Footprint(4 * MIB, 0), [_Broken(error), LocalArm()], [OneRow()])
    document = run.document(_Unwatched())
    assert [(each["arm"], bool(each["reason"])) for each in document["unavailable"]] == [("broken", True)]
    assert {r["arm"] for r in document["results"]} == {"local"}


@pytest.mark.parametrize("error", [OSError(errno.EIO, "gone"), ObmmError(5, "the daemon is gone")])
def test_an_arm_that_cannot_be_closed_keeps_what_was_measured(error, schema):
    run = running.Run(PRESETS["smoke"], Footprint(4 * MIB, 0), [_Broken(closing=error)], [OneRow()])
    document = run.document(_Unwatched())
    assert document["results"]
    assert [each["reason"] for each in document["skipped"]] == [error.strerror]
    jsonschema.validate(document, schema)


def test_a_table_that_this_node_has_no_memory_for_is_no_arm_here(monkeypatch):
    """The far node's memory may be larger than this one's."""
    monkeypatch.setattr("obmm.bench.arms.arm.memory_available", lambda: 7 * MIB)
    run = running.Run(PRESETS["smoke"], Footprint(4 * MIB, 0), [LocalArm(), SharedMemoryArm()], [OneRow()])
    document = run.document(_Unwatched())
    assert {each["arm"] for each in document["unavailable"]} == {"local", "numpy-shm"}
    assert not document["results"]


def test_a_full_shared_memory_file_system_is_a_reason_not_a_signal(monkeypatch):
    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = set(os.listdir("/dev/shm"))
    with pytest.raises(Unavailable, match="/dev/shm has no room"), SharedMemoryArm().open(4 * MIB, lambda _: None):
        pass
    assert not {each for each in set(os.listdir("/dev/shm")) - before if each.startswith("psm_")}


class _OnceOnly(LocalArm):
    """An arm that can be opened once."""

    def __init__(self):
        self.opened = 0

    @contextmanager
    def open(self, nbytes, progress):
        self.opened += 1
        if self.opened > 1:
            raise Unavailable("the far node is gone")
        with super().open(nbytes, progress) as memory:
            yield memory


def test_an_arm_that_is_lost_is_not_waited_for_in_every_repetition(schema):
    arm = _OnceOnly()
    document = running.Run(PRESETS["smoke"], Footprint(4 * MIB, 0), [arm], [OneRow()], 5).document(_Unwatched())
    assert arm.opened == 2
    assert [each["workload"] for each in document["skipped"]] == ["open again"]
    out = io.StringIO()
    show(document, Console(file=out, width=200))
    assert "lost during the run: local (open again): the far node is gone" in out.getvalue()
    assert document["results"]
    jsonschema.validate(document, schema)


def test_operations_that_fail_by_a_timeout_of_their_own_are_given_up_before_the_hundredth(monkeypatch):
    series, now = Series(Timer(0.0, 0.0)), 1000.0
    monkeypatch.setattr("obmm.bench.timing.time.monotonic", lambda: now)
    series.failed(ObmmError(5, "lost"))
    now += 10
    series.add(1.0)
    now += 10
    series.failed(ObmmError(5, "lost"))
    now += 10
    series.failed(ObmmError(5, "lost"))
    now += 10
    with pytest.raises(ObmmError):
        series.failed(ObmmError(5, "lost"))


class _Unwatched:
    def step(self, text, share):
        pass
