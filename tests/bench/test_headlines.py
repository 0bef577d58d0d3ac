# SPDX-License-Identifier: Apache-2.0
"""The headline figures: which they are, and how far they spread."""

from __future__ import annotations

import copy
import json

import jsonschema
import pytest
from click.testing import CliRunner

from obmm.bench import headlines, report_html, report_markdown, results
from obmm.bench.presets import PRESETS
from obmm.cli.bench import bench

from .scaling import scaled

NAMES = {"load", "row", "batch", "step", "rows", "rate", "read", "write", "flag", "hand-over", "fetch", "life"}


def _run(path, *options):
    command = ["run", "--preset", "smoke", "--arms", "local,obmm-nc", "-o", str(path), *options]
    ran = CliRunner().invoke(bench, command)
    assert ran.exit_code == 0, ran.output
    return results.read(path), ran.output


@pytest.fixture(scope="module")
def repeated(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OBMM_DEVICE", raising=False)
        return _run(tmp_path_factory.mktemp("repeat") / "r.json", "--repeat", "3", "--workloads", "row,read,control")


def _twice(document, factor):
    """The document, and one in which every figure is so many times as large."""
    return [document, scaled(document, factor)]


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_has_the_same_headlines(preset):
    assert {each.name for each in headlines.of(PRESETS[preset])} == NAMES


def test_an_arm_with_every_workload_has_every_headline(document):
    found = {f["headline"] for f in document["headlines"] if f["arm"] == "obmm-cc"}
    assert found == NAMES - {"flag"}  # CC hands over by ownership, NC by a flag
    assert {f["headline"] for f in document["headlines"] if f["arm"] == "obmm-nc"} == NAMES - {"hand-over"}


def test_a_headline_is_one_figure_of_the_results(document):
    for figure in document["headlines"]:
        (headline,) = (h for h in headlines.of(PRESETS["smoke"]) if h.name == figure["headline"])
        shown = [r for r in document["results"] if r["arm"] == figure["arm"] and headline.shows(r)]
        assert [r[headline.figure] for r in shown] == figure["values"], figure


def test_repeated_headlines_have_a_value_of_every_run_and_their_spread(repeated, schema):
    document, _ = repeated
    jsonschema.validate(document, schema)
    assert document["repeat"] == 3
    assert {f["headline"] for f in document["headlines"]} == {"row", "read", "life"}
    for figure in document["headlines"]:
        low, middle, high = sorted(figure["values"])
        assert (figure["min"], figure["median"], figure["max"]) == (low, middle, high)
        assert figure["spread"] == pytest.approx((high - low) / middle)


def test_only_the_headlines_are_measured_again(repeated):
    document, _ = repeated
    keys = [(r["arm"], r["workload"], r["case"], r["working_set"]) for r in document["results"]]
    assert len(keys) == len(set(keys))
    assert {r["case"] for r in document["results"] if r["workload"] == "control"} > {"export, 4 MiB"}


def test_the_terminal_shows_the_spread(repeated):
    _, output = repeated
    assert "Headline figures (3 x)" in output
    assert "(max - min) / median" in output


def test_one_value_has_no_spread():
    assert headlines.spread([7.0])["spread"] is None
    assert headlines.spread([0.0, 1.0, 0.0])["spread"] is None
    assert headlines.spread([1.0, 2.0, 4.0]) == {"median": 2.0, "min": 1.0, "max": 4.0, "spread": 1.5}


def test_several_files_are_one_repeated_run(document):
    for figure in headlines.across(_twice(document, 3.0)):
        assert len(figure["values"]) == 2
        assert figure["spread"] in (None, pytest.approx(1.0))


def test_figures_of_other_sizes_are_not_one_series(document):
    other = copy.deepcopy(document)
    for figure in other["headlines"]:
        figure["title"] += " of another preset"
    assert {len(f["values"]) for f in headlines.across([document, other])} == {1}


def test_reports_of_several_files_begin_with_their_spread(document, tmp_path):
    names = []
    for number, each in enumerate(_twice(document, 1.5)):
        names.append(str(tmp_path / f"{number}.json"))
        (tmp_path / f"{number}.json").write_text(json.dumps(each))
    ran = CliRunner().invoke(bench, ["report", *names, "-o", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    assert "All 2 files: data plane" in ran.output
    text = (tmp_path / "out" / "report.md").read_text()
    assert text.index("## All 2 files") < text.index("## 0.json")
    assert "| 2 |" in text
    assert "40.0%" in text
    assert "<h2>All 2 files</h2>" in (tmp_path / "out" / "report.html").read_text()


def test_reports_say_how_much_of_the_run_was_harness(document):
    share = f"{document['harness']['harness_share']:.0%}"
    assert f"of which {share} in the harness" in report_markdown.text([document], ["x"], ())
    assert f"{share} of it harness" in report_html.page([document], ["x"], (), lambda: None)
    assert 0 < document["harness"]["open_s"] < document["harness"]["wall_s"]
