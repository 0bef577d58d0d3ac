# SPDX-License-Identifier: Apache-2.0
"""Result files and reports in the hands of others: forged, cut short, not to be written."""

from __future__ import annotations

import copy
import errno
import json
import os
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner

from obmm.bench import results
from obmm.cli.bench import bench

NASTY = '<x-evil a="b">[/bold]`$\\frac{| </td>\n# &'
FIXED = {"format", "kind", "unit", "plane", "temperature", "workload"}
"""Fields with words of their own."""


def _changed(document, path, change):
    forged = copy.deepcopy(document)
    change(forged)
    path.write_text(json.dumps(forged))
    return str(path)


def _without(*names):
    def change(document):
        for name in names:
            del document[name]

    return change


def _with(value, *place):
    def change(document):
        for key in place[:-1]:
            document = document[key]
        document[place[-1]] = value

    return change


def _unmarked(document):
    for part in ("arms", "headlines", "results"):
        for each in document[part]:
            each["mark"] = each["caveat"] = ""


def _as_hardware(document):
    for part in ("arms", "headlines", "results"):
        for each in document[part]:
            if each["mark"]:
                each.update(kind="hardware", mark="")


FORGED = {
    "a section is missing": _without("environment"),
    "another version": _with(4, "version"),
    "an older version": _with(1, "version"),
    "NaN": _with(float("nan"), "results", 0, "p50"),
    "infinity": _with(float("inf"), "headlines", 0, "median"),
    "a negative time": _with(-1.0, "results", 0, "p50"),
    "a text for a number": _with("<script>", "results", 0, "threads"),
    "a text for a count of CPUs": _with("<script>", "environment", "cpus"),
    "no marks": _unmarked,
    "emulated figures as hardware": _as_hardware,
    "wrong bytes": _with(1, "verification", "wrong"),
    "a caveat that says something else": _with("as fast as hardware", "control_plane_caveat"),
    "an escape sequence": _with("\x1b[2J", "environment", "cpu"),
    "half a surrogate pair": _with("\ud800", "environment", "cpu"),
}


@pytest.mark.parametrize("command", ["report", "compare"])
@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_what_the_schema_does_not_allow_is_no_result_file(document, results_file, tmp_path, change, command):
    forged = _changed(document, tmp_path / "forged.json", change)
    more = ["-o", str(tmp_path / "out")] if command == "report" else [str(results_file)]
    ran = CliRunner().invoke(bench, [command, forged, *more])
    assert ran.exit_code == 1
    assert isinstance(ran.exception, SystemExit), ran.exception
    assert "forged.json: " in ran.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", '"x"', "1e999", "\udcff\udcfe"])
def test_what_is_no_json_is_no_result_file(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(results.NotResults, match=r"x\.json"):
        results.read(path)


class _Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text += data


def _spoil(value):
    """Every free text of a document with something to inject behind it."""
    for key in value if isinstance(value, dict) else range(len(value)):
        if isinstance(value[key], dict | list):
            _spoil(value[key])
        elif isinstance(value[key], str) and value[key] and key not in FIXED:
            value[key] += NASTY


def test_texts_of_a_result_file_are_texts_in_every_report(document, tmp_path):
    document["environment"]["backend"] = "a device"
    path = _changed(document, tmp_path / "<x-evil>[_]|.json", _spoil)
    ran = CliRunner().invoke(bench, ["report", path, path, "--full", "-o", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    page = _Tags((tmp_path / "out" / "report.html").read_text("utf-8"))
    assert "x-evil" not in page.tags
    assert "<x-evil>" in page.text
    assert "x-evil" not in _Tags((tmp_path / "out" / "report.md").read_text("utf-8")).tags
    assert "[/bold]" in ran.output


def test_names_of_texts_do_not_break_a_table_of_markdown(document, tmp_path):
    path = _changed(document, tmp_path / "x.json", _spoil)
    CliRunner().invoke(bench, ["report", path, "-o", str(tmp_path / "out")])
    lines = (tmp_path / "out" / "report.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| ")]
    cells = [line.replace("\\|", "").count("|") for line in rows]
    assert rows
    assert set(cells) <= {6, 9, 10, 15, 17}
    assert not [line for line in lines if line.startswith("# &")]


def test_a_file_name_that_is_no_text_is_reported_all_the_same(results_file, tmp_path):
    odd = os.path.join(os.fsencode(tmp_path), b"\xff.json")
    with open(odd, "wb") as file:
        file.write(results_file.read_bytes())
    ran = CliRunner().invoke(bench, ["report", os.fsdecode(odd), "-o", str(tmp_path / "out")])
    assert ran.exit_code == 0, ran.output
    assert "\ufffd.json" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_compare_does_not_take_texts_for_markup(document, tmp_path):
    path = _changed(document, tmp_path / "x.json", _spoil)
    ran = CliRunner().invoke(bench, ["compare", path, path])
    assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize("place", ["nowhere/x.json", "file/x.json", "folder"])
def test_a_place_that_cannot_be_written_is_told_before_the_run(tmp_path, monkeypatch, place):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr("obmm.bench.footprint.Footprint.choose", lambda *_: pytest.fail("it went on"))
    ran = CliRunner().invoke(bench, ["run", "--preset", "smoke", "-o", str(tmp_path / place)])
    assert ran.exit_code in (1, 2)
    assert isinstance(ran.exception, SystemExit), ran.exception


def test_figures_that_cannot_be_written_are_shown_and_the_file_before_stays(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text("before")

    def full(document, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(results, "write", full)
    ran = CliRunner().invoke(
        bench, ["run", "--preset", "smoke", "--arms", "local", "--workloads", "row", "-o", str(path)]
    )
    assert ran.exit_code == 1
    assert "No space left" in ran.output
    assert "Headline figures" in ran.output
    assert path.read_text() == "before"


def test_a_failed_write_leaves_nothing_behind(document, tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text("before")
    document["results"][0]["p50"] = float("nan")
    with pytest.raises(ValueError, match="Out of range"):
        results.write(document, path)
    assert [each.name for each in tmp_path.iterdir()] == ["x.json"]
    assert path.read_text() == "before"


def test_a_report_folder_that_cannot_be_made_is_a_sentence(results_file, tmp_path):
    (tmp_path / "file").touch()
    ran = CliRunner().invoke(bench, ["report", str(results_file), "-o", str(tmp_path / "file" / "out")])
    assert ran.exit_code == 1
    assert isinstance(ran.exception, SystemExit), ran.exception


@pytest.mark.parametrize("budget", ["nan", "inf", "-5", "0"])
def test_budgets_are_times(results_file, tmp_path, budget):
    ran = CliRunner().invoke(bench, ["report", str(results_file), "--budget-us", budget, "-o", str(tmp_path)])
    assert ran.exit_code == 2


@pytest.mark.parametrize("threshold", ["nan", "inf", "0.5"])
def test_a_threshold_is_a_number_that_can_be_exceeded(results_file, threshold):
    ran = CliRunner().invoke(bench, ["compare", str(results_file), str(results_file), "--threshold", threshold])
    assert ran.exit_code == 2


@pytest.mark.parametrize("footprint", ["0", "-1", "2GB", "x"])
def test_a_footprint_is_a_size(tmp_path, footprint):
    ran = CliRunner().invoke(bench, ["run", "--footprint", footprint, "-o", str(tmp_path / "x.json")])
    assert ran.exit_code == 2


@pytest.mark.parametrize(
    ("command", "module"), [("report", "matplotlib"), ("report", "jsonschema"), ("compare", "jsonschema")]
)
def test_without_the_extra_packages_the_command_names_them(results_file, monkeypatch, command, module):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == module else object())
    ran = CliRunner().invoke(bench, [command, str(results_file), str(results_file)])
    assert ran.exit_code == 1
    assert f"needs {module}" in ran.output
    assert f"pip install {module}" in ran.output
