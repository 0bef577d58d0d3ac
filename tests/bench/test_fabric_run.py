# SPDX-License-Identifier: Apache-2.0
"""`obmm bench run --fabric`: gathers that wait as on a modelled fabric are modelled, and told so everywhere."""

from __future__ import annotations

import jsonschema
import pytest
from click.testing import CliRunner

from obmm.bench import decision, plots, results
from obmm.bench.run import MODELLED, NOT_MODELLED, WORKLOADS
from obmm.cli.bench import bench
from obmm.emulator.profile import Profile

PROFILE = Profile.named("ub-noncacheable")


@pytest.fixture(scope="module")
def modelled_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("modelled") / "modelled.json"
    command = ["run", "--preset", "smoke", "--fabric", PROFILE.name, "--arms", "local,obmm-nc", "-o", str(path)]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OBMM_DEVICE", raising=False)
        ran = CliRunner().invoke(bench, command)
    assert ran.exit_code == 0, ran.output
    return path


@pytest.fixture
def document(modelled_file):
    return results.read(modelled_file)


def test_the_results_are_what_the_schema_says(document, schema):
    jsonschema.validate(document, schema)
    arm = next(each for each in document["arms"] if each["name"] == "obmm-nc")
    assert (arm["kind"], arm["facts"]) == ("modelled", {"fabric": PROFILE.name})
    assert all(r["mark"].startswith("MODELLED: ") for r in document["results"] if r["arm"] == "obmm-nc")


@pytest.mark.parametrize("change", [{"mark": ""}, {"mark": "EMULATED: x"}, {"kind": "hardware"}, {"kind": "emulated"}])
def test_the_schema_refuses_modelled_figures_as_anything_else(document, schema, change):
    next(r for r in document["results"] if r["arm"] == "obmm-nc").update(change)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_every_gather_took_what_is_calculated_for_it(document):
    gathers = [r for r in document["results"] if r["arm"] == "obmm-nc" and r["workload"] != "read"]
    assert {r["workload"] for r in gathers} == set(MODELLED) - {"read"}
    for row in gathers:
        rows = row["tables"] * row["count"]
        assert row["cdf"][0] >= 0.95 * PROFILE.gather_ns(rows, row["row_bytes"]), row["case"]


def test_what_does_not_wait_is_not_measured_and_the_reason_is_told(document):
    told = {each["workload"]: each["reason"] for each in document["skipped"] if each["arm"] == "obmm-nc"}
    assert set(told) == {work.name for work in WORKLOADS} - set(MODELLED)
    assert set(told.values()) == {NOT_MODELLED}
    assert "loads" in {r["workload"] for r in document["results"] if r["arm"] == "local"}


def test_a_report_ranks_modelled_gathers_with_nothing_that_was_measured(modelled_file, document, tmp_path):
    ran = CliRunner().invoke(bench, ["report", str(modelled_file), "-o", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    page = (tmp_path / "report.html").read_text()
    cards = page[: page.index("<h3>Which path serves")]
    for card in cards.split("<div class=card>")[1:]:
        measured, *apart = card.split("<div class=apart>no hardware, not to be ranked: ")
        assert "MODELLED" not in measured
        assert [each.split("<")[0] for each in apart] in ([], ["MODELLED"])
    titles = [title for title, _ in plots.all_plots(document) + plots.said(document)]
    assert any(title.endswith("MODELLED, no hardware") for title in titles)
    assert {verdict.arm for verdict in decision.verdicts(document)} == {None}
    assert "nothing was measured" in page


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--stand-in",), "leave out --stand-in"),
        (("127.0.0.1:1",), "HOST:PORT"),
        (("--device", "emulator:/nowhere"), "--fabric with device emulator:/nowhere"),
    ],
)
def test_a_modelled_fabric_is_of_the_runs_own_nodes(options, why):
    ran = CliRunner().invoke(bench, ["run", "--fabric", PROFILE.name, *options])
    assert ran.exit_code in (1, 2)
    assert why in ran.output


def test_a_profile_that_is_none_is_a_sentence(monkeypatch):
    monkeypatch.delenv("OBMM_DEVICE", raising=False)
    ran = CliRunner().invoke(bench, ["run", "--fabric", "ub-nothing"])
    assert ran.exit_code == 1
    assert "ub-urma" in ran.output
