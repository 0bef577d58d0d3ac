# SPDX-License-Identifier: Apache-2.0
"""Reports, comparison and the decision, from one run's results."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from obmm.bench import compare, decision, plots
from obmm.cli.bench import bench

from .scaling import scaled


def test_html_is_one_file_that_loads_nothing(report_folder, document):
    page = (report_folder / "report.html").read_text()
    assert page.count("<svg") == len(plots.all_plots(document))
    assert not re.search(r"<script|<link|<img|\bsrc=|@import|url\((?!#)", page)


def test_html_and_markdown_mark_every_emulated_row(report_folder, document):
    rows, figures, arms = (
        sum(1 for r in document[part] if r["kind"] == "emulated") for part in ("results", "headlines", "arms")
    )
    page = (report_folder / "report.html").read_text()
    assert page.count("<mark>EMULATED</mark>") == rows
    assert page.count("<em>EMULATED</em>") == figures + arms
    assert page.count('class="bar marked"') == figures
    assert (report_folder / "report.md").read_text().count("| EMULATED |") == rows + figures


def test_reports_name_arms_that_did_not_run_and_why(report_folder, document):
    for name in ("report.html", "report.md"):
        text = (report_folder / name).read_text()
        assert all(each["reason"].splitlines()[0].split("'")[0] in text for each in document["unavailable"])


def test_plots_mark_emulated_series(document):
    made = dict(plots.all_plots(document))
    emulated = {title for title in made if "EMULATED" in title}
    assert emulated
    assert emulated != set(made)
    assert all(("EMULATED" in svg) == (title in emulated) for title, svg in made.items())


def test_few_points_are_said_and_not_plotted(document):
    told, made = dict(plots.said(document)), dict(plots.all_plots(document))
    assert "Cost of a step by tokens" in told  # the smoke preset has one
    assert not told.keys() & made.keys()
    assert "local" in told["Cost of a step by tokens"]


def test_what_was_measured_is_ranked_and_what_is_no_hardware_stands_apart(report_folder, document):
    page = (report_folder / "report.html").read_text()
    card = page[page.index("<div class=card>") :].split("<div class=card>")[1]
    measured, apart = card.split("<div class=apart>")
    assert "EMULATED" not in measured
    assert "not to be ranked" in apart
    assert "x local" in measured
    assert "x local" not in apart


def test_the_decision_says_what_it_means_and_what_is_missing(report_folder):
    for name in ("report.html", "report.md"):
        text = (report_folder / name).read_text()
        assert "This run decides nothing" in text
        assert "UB hardware" in text


def test_modelled_steps_stand_in_a_section_of_their_own_with_their_sources(report_folder):
    page = (report_folder / "report.html").read_text()
    modelled = page[page.index("<section class=modelled>") :]
    assert "never to be ranked" in modelled
    assert modelled.count("source project") >= 5
    assert "UB, URMA reads in lists" in modelled


def _with_factor(document, path, factor):
    path.write_text(json.dumps(scaled(document, factor)))
    return str(path)


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.4, 0), (40.0, 1)])
def test_compare_ends_with_status_1_beyond_the_threshold(results_file, document, tmp_path, factor, code):
    other = _with_factor(document, tmp_path / "b.json", factor)
    ran = CliRunner().invoke(bench, ["compare", str(results_file), other, "--threshold", "1.5"])
    assert ran.exit_code == code, ran.output


def test_compare_says_when_the_machines_differ(results_file, document, tmp_path):
    document["environment"]["cpu"] = "another"
    other = _with_factor(document, tmp_path / "b.json", 1.0)
    ran = CliRunner().invoke(bench, ["compare", str(results_file), other])
    assert "not alike" in ran.output


def test_files_without_results_are_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("{}")
    ran = CliRunner().invoke(bench, ["report", str(path)])
    assert ran.exit_code == 1
    assert "no results" in ran.output


def _measured(**p99_us):
    kinds = {"local": "local", "tcp": "network", "loopback": "loopback", "obmm-cc": "hardware", "emulated": "emulated"}
    results = [
        {
            "arm": arm.replace("_", "-"),
            "kind": kinds[arm.replace("_", "-")],
            "mark": "EMULATED: " if arm == "emulated" else "",
            "workload": "batch",
            "temperature": "cold",
            "row_bytes": 1364,
            "tables": 1,
            "count": 128,
            "threads": 1,
            "samples": 100,
            "failures": 0,
            "busy": False,
            "p99": value * 1000,
            "p99_9": None,
            "max": value * 1000,
        }
        for arm, value in p99_us.items()
    ]
    return {"results": results, "arms": [{"name": r["arm"], "title": r["arm"]} for r in results]}


def test_the_path_with_the_least_unhidden_time_serves_a_budget():
    found = decision.verdicts(_measured(local=10, tcp=200, obmm_cc=40), (56_000.0,))
    assert [(v.arm, v.unhidden_ns) for v in found] == [("obmm-cc", 0.0)]
    assert "40 us against 56 us, all hidden" in found[0].why


def test_no_path_serves_a_budget_that_all_exceed_and_the_rest_is_told():
    (found,) = decision.verdicts(_measured(local=10, tcp=200, obmm_cc=100), (56_000.0,))
    assert found.arm is None
    assert found.unhidden_ns == 44_000


def test_emulated_arms_never_serve_a_budget():
    (found,) = decision.verdicts(_measured(local=10, tcp=200, emulated=1), (784_000.0,))
    assert found.arm == "tcp"
    assert "no basis for a decision: emulated" in found.why


def test_local_memory_is_the_yardstick_not_a_path_to_another_node():
    (found,) = decision.verdicts(_measured(local=1), (784_000.0,))
    assert found.arm is None
    assert "no path to another node was measured" in found.why


def test_tcp_without_a_network_is_a_yardstick_not_a_path_to_another_node():
    (found,) = decision.verdicts(_measured(loopback=1), (784_000.0,))
    assert found.arm is None
    assert "TCP without a network would be hidden (1 us)" in found.why


def _one_case(document, p50_a, p50_b):
    case = next(r for r in document["results"] if r["workload"] == "row" and r["arm"] == "local")
    first, second = (
        {**document, "timer": {"c_overhead_ns": 20.0}, "results": [{**case, "p50": p50}]} for p50 in (p50_a, p50_b)
    )
    return compare.ratios(first, second, "p50")[0].ratio


@pytest.mark.parametrize(
    ("first", "second", "ratio"),
    [(0.0, 0.0, 1.0), (0.0, 5.0, 1.0), (0.0, 2000.0, 100.0), (2000.0, 0.0, 0.01), (5.0, 0.0, 1.0), (10.0, 30.0, 3.0)],
)
def test_what_was_below_the_clock_and_is_not_any_more_is_slower_by_at_least_that(document, first, second, ratio):
    assert _one_case(document, first, second) == pytest.approx(ratio)


@pytest.mark.parametrize("gone", ["an arm", "a percentile"])
def test_compare_ends_with_status_1_when_a_case_is_gone(results_file, document, tmp_path, gone):
    if gone == "an arm":
        document["results"] = [r for r in document["results"] if r["arm"] != "obmm-cc"]
    else:
        for result in document["results"]:
            if result["arm"] == "obmm-cc" and result["p99"] is not None:
                result.update(samples=50, p99=None, p99_9=None)
    document["headlines"] = [f for f in document["headlines"] if f["arm"] != "obmm-cc"]
    other = _with_factor(document, tmp_path / "b.json", 1.0)
    both = ["compare", str(results_file), other, "--percentile", "p99"]
    ran = CliRunner().invoke(bench, [*both, "--threshold", "1.5"])
    assert ran.exit_code == 1, ran.output
    assert "only in A: obmm-cc, batch: 1 row, 32 rows" in ran.output
    assert CliRunner().invoke(bench, both).exit_code == 0
    assert CliRunner().invoke(bench, [*both, "--threshold", "1.5", "--arms", "local"]).exit_code == 0


def test_a_decision_from_a_small_table_says_so():
    measured = _measured(tcp=200)
    (found,) = decision.verdicts(measured, (784_000.0,))
    assert "less than 4 times" not in found.why
    measured["results"][0]["temperature"] = "hot/limited"
    (found,) = decision.verdicts(measured, (784_000.0,))
    assert "measured over less than 4 times the last-level cache" in found.why
