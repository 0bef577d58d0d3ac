# SPDX-License-Identifier: Apache-2.0
"""The SDK arms say what SDK specification 16.3 asks for (B1 to B7), and a stand-in never passes for the SDK."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from types import SimpleNamespace

import jsonschema
import pytest
from click.testing import CliRunner

from obmm.bench import compare, decision, headlines, plots, report_html, report_markdown, results
from obmm.bench.arms.arm import Objects, Unavailable
from obmm.bench.arms.sdk import TRACER, SdkArm
from obmm.bench.presets import PRESETS
from obmm.bench.timing import Series, Timer
from obmm.bench.workloads.control import SDK_UNIT, AllocateCycle
from obmm.cli.bench import bench
from obmm.sdk.errors import SdkError
from obmm.sdk.standin import SENTENCE

ARMS = ("sdk-cacheable", "sdk-nc", "sdk-pmd")
WORKLOADS = "loads,batch,read,write,control,control-sdk"


@pytest.fixture(scope="module")
def standin_file(tmp_path_factory):
    """A run of the SDK arms on a stand-in, and of the direct arms beside them."""
    path = tmp_path_factory.mktemp("sdk") / "sdk.json"
    command = ["run", "--preset", "smoke", "--stand-in", "--arms", ",".join((*ARMS, "obmm-cc", "obmm-nc", "obmm-pmd"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OBMM_DEVICE", raising=False)
        ran = CliRunner().invoke(bench, [*command, "--workloads", WORKLOADS, "-o", str(path)])
    assert ran.exit_code == 0, ran.output
    return path


@pytest.fixture
def document(standin_file):
    return results.read(standin_file)


def _of(document, workload, *arms):
    return [r for r in document["results"] if r["workload"] == workload and (not arms or r["arm"] in arms)]


@pytest.fixture(scope="module")
def terminal(standin_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    ran = CliRunner().invoke(bench, ["report", str(standin_file), "-o", str(folder), "--full"])
    assert ran.exit_code == 0, ran.output
    return ran.output


def test_without_a_library_the_sdk_arms_say_what_was_tried(results_file):
    reasons = {each["arm"]: each["reason"] for each in results.read(results_file)["unavailable"]}
    assert reasons.keys() == {*ARMS, "urma"}
    assert all("libubsm_sdk.so" in reasons[arm] for arm in ARMS)
    assert "liburma.so.0" in reasons["urma"]


def test_a_named_stand_in_is_measured_and_marked(document, schema):
    jsonschema.validate(document, schema)
    assert {arm["name"] for arm in document["arms"]} >= set(ARMS), document["unavailable"]
    mine = [r for r in document["results"] if r["arm"] in ARMS]
    assert all(r["kind"] == "stand-in" and r["mark"].startswith("STAND-IN") for r in mine)
    assert len(_of(document, "control-sdk")) == 5 * len(ARMS)
    assert all(verdict.arm is None for verdict in decision.verdicts(document))


def test_a_stand_in_is_not_set_up_on_a_device_that_was_named():
    ran = CliRunner().invoke(bench, ["run", "--stand-in", "--device", "emulator:/nowhere"])
    assert ran.exit_code == 1
    assert "--stand-in with device emulator:/nowhere" in ran.output


def test_b1_library_kind_mode_unit_and_counted_round_trips_are_told(document, terminal):
    for arm in document["arms"]:
        if arm["name"] in ARMS:
            facts = arm["facts"]
            assert facts["library"].endswith("libubsm_sdk_standin.so")
            assert facts["kind"] == "stand-in"
            assert facts["mode"].startswith("daemon")
            assert facts["unit"] == f"{SDK_UNIT} bytes"
    assert all(r["round_trips"] is not None for r in _of(document, "control-sdk"))
    assert re.search(r"\bRT\b", terminal)
    assert "| round trips | system calls |" in report_markdown.text([document], ["x"], ())


def test_b1_schema_refuses_an_sdk_arm_without_its_facts(document, schema):
    arm = next(arm for arm in document["arms"] if arm["name"] in ARMS)
    del arm["facts"]["unit"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_b2_every_report_of_a_stand_in_carries_the_sentence(document, terminal, schema):
    sentence = SENTENCE.removeprefix("stand-in: ")
    assert sentence in " ".join(terminal.split())
    assert sentence in report_markdown.text([document], ["x"], ())
    assert sentence in report_html.page([document], ["x"], (), lambda: None)
    assert all(sentence in r["mark"] for r in document["results"] if r["kind"] == "stand-in")
    next(r for r in document["results"] if r["kind"] == "stand-in")["mark"] = "STAND-IN: fast"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_b3_the_data_path_of_a_stand_in_is_in_no_plot(document):
    made = "".join(svg for _, svg in plots.all_plots(document))
    assert "obmm-cc" in made
    assert not re.search(r"sdk-(cacheable|nc|pmd)|STAND-IN", made)
    page = report_html.page([document], ["x"], (), lambda: None)
    assert plots.NOT_DRAWN in page
    assert page.count("local memory, not drawn") == sum(
        1 for f in document["headlines"] if f["plane"] == "data" and f["kind"] == "stand-in"
    )


def test_b3_a_stand_in_and_the_real_library_are_never_one_series(document):
    real = copy.deepcopy(document)
    for row in (*real["results"], *real["headlines"]):
        if row["kind"] == "stand-in":
            row.update(kind="hardware", mark="", caveat="")
    merged = headlines.across([document, real])
    assert {len(f["values"]) for f in merged if f["arm"] in ARMS} == {1}
    assert all(each.case["arm"] not in ARMS for each in compare.ratios(document, real, "p50"))


def test_b4_control_and_data_plane_are_separate_tables(document, terminal):
    assert re.search(r"Data plane *\n.*Control plane *\n", terminal, re.S)
    text = report_markdown.text([document], ["x"], ())
    assert "### Data plane" in text
    data, control = text.split("### Control plane")
    assert "| control-sdk |" in control
    assert "| control-sdk |" not in data
    assert "| batch |" not in control


def test_b4_what_real_numbers_depend_on_is_told(document):
    for arm in document["arms"]:
        if arm["name"] in ARMS:
            told = arm["facts"]
            assert "first of its object on this node" in told["map"]
            assert told["role"].startswith("importer, the provider is ")
            assert told["log level"].startswith("4")
            assert re.match(r"CPUs [0-9,-]+, memory nodes [0-9,-]+", told["NUMA binding"])


def test_b5_with_the_tracer_on_the_arm_is_not_run(monkeypatch):
    monkeypatch.setenv(TRACER, "1")
    with pytest.raises(Unavailable, match="results are void"), SdkArm("nc", "").open(1 << 20, lambda share: None):
        pass


class _Object(SimpleNamespace):
    """A shared object that only counts."""

    def map(self, access):
        self.address = 4096

    def unmap(self):
        pass

    def delete(self):
        pass


def _cycles(cycles, fails=()):
    """(made objects, series) of so many cycles; creations of the numbers in `fails` fail."""
    made = []

    def create(nbytes):
        made.append(nbytes)
        if len(made) in fails:
            raise SdkError(6017, "busy", operation="allocate")
        return _Object(nbytes=nbytes, address=0)

    memory = SimpleNamespace(objects=lambda: Objects(create, SDK_UNIT, lambda: None))
    work, series = AllocateCycle(), Series(Timer(0.0, 0.0))
    preset = replace(PRESETS["smoke"], cycles=cycles)
    (case,) = work.cases(preset, memory, None)
    work.run(case, memory, preset, series)
    return made, series


def test_b5_the_first_cycle_is_not_timed():
    made, series = _cycles(12)
    assert len(made) == 13
    assert series.samples == 12


def test_b6_the_direct_cycle_has_the_sdks_size_and_its_counts_stand_beside(document, terminal):
    direct = {r["arm"]: r for r in _of(document, "control") if r["case"] == "whole cycle, 128 MiB"}
    through = {r["arm"]: r for r in _of(document, "control-sdk") if r["case"] == "whole cycle, 128 MiB"}
    assert {r["row_bytes"] for r in (*direct.values(), *through.values())} == {SDK_UNIT}
    # SDK specification 12.3, provider, one unit; direct: one call more gives a written cacheable region back
    assert {(r["round_trips"], r["system_calls"]) for r in through.values()} == {(4, 6)}
    assert {arm: (r["round_trips"], r["system_calls"]) for arm, r in direct.items()} == {
        "obmm-cc": (0, 7),
        "obmm-nc": (0, 6),
        "obmm-pmd": (0, 7),
    }
    text, page = report_markdown.text([document], ["x"], ()), report_html.page([document], ["x"], (), lambda: None)
    for shown in (terminal, text, page):
        assert len(re.findall(r"\b4 RT, 6 calls", shown)) == 3
        assert len(re.findall(r"\b0 RT, [67] calls", shown)) == 3
    steps = {r["case"]: (r["round_trips"], r["system_calls"]) for r in _of(document, "control-sdk", "sdk-nc")}
    assert steps["map, 128 MiB"] == (1, 3)
    assert steps["deallocate, 128 MiB"] == (1, 0)


def test_b7_every_step_has_percentiles(document):
    assert {r["case"] for r in _of(document, "control-sdk", "sdk-nc")} == {
        f"{step}, 128 MiB" for step in ("allocate", "map", "unmap", "deallocate", "whole cycle")
    }
    assert all(r["p50"] <= r["p90"] <= r["max"] for r in _of(document, "control-sdk"))


def test_b7_failures_are_counted_and_never_dropped(document, terminal):
    made, series = _cycles(12, fails=(3, 5))
    assert (len(made), series.samples, series.failures) == (13, 10, 2)
    assert series.summary()["failures"] == 2
    assert "busy" in series.reason
    assert "failed" in terminal
    with pytest.raises(SdkError):
        _cycles(200, fails=range(2, 200))


def test_results_of_the_control_plane_alone_are_results(tmp_path):
    """An allocate cycle has no bytes to compare."""
    path = tmp_path / "x.json"
    options = ["--preset", "smoke", "--stand-in", "--arms", "sdk-nc", "--workloads", "control-sdk", "-o", str(path)]
    ran = CliRunner().invoke(bench, ["run", *options])
    assert ran.exit_code == 0, ran.output
    assert {r["workload"] for r in results.read(path)["results"]} == {"control-sdk"}
