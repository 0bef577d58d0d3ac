# SPDX-License-Identifier: Apache-2.0
"""The report as a browser renders it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from obmm.bench import plots, report_html, results

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
PROBE = """<script>
addEventListener("load", () => {
  const all = selector => [...document.querySelectorAll(selector)];
  const box = element => element.getBoundingClientRect();
  const apart = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1 || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
  const overlaps = [];
  const outside = [];
  for (const svg of all("figure svg")) {
    const texts = [...svg.querySelectorAll("text")].filter(text => text.textContent.trim());
    texts.forEach((text, i) => {
      for (const other of texts.slice(i + 1))
        if (!apart(box(text), box(other))) overlaps.push(text.textContent + " | " + other.textContent);
      const inner = box(text), outer = box(svg);
      if (inner.left < outer.left - 1 || inner.right > outer.right + 1) outside.push(text.textContent);
    });
  }
  document.title = JSON.stringify({
    plots: all("figure svg").filter(svg => box(svg).width > 300 && box(svg).height > 100).length,
    wide: document.documentElement.scrollWidth,
    rows: all("tbody tr").length,
    marks: all("mark").filter(mark => getComputedStyle(mark).backgroundColor == "rgb(255, 223, 128)").length,
    bars: all(".bar").map(bar => [box(bar).left >= box(bar.parentElement).left - 1, box(bar).right <= box(bar.parentElement).right + 1, box(bar).height]),
    striped: all(".marked").filter(bar => getComputedStyle(bar).backgroundImage.includes("gradient")).length,
    crowded: all(".row").filter(row => [...row.children].some((cell, i, cells) => i && !apart(box(cell), box(cells[i - 1])) || !cell.matches(".track") && cell.scrollWidth > cell.clientWidth + 1)).map(row => row.textContent),
    overlaps, outside,
    shut: all("details td").filter(cell => box(cell).height == 0).length,
    wider: all("table, .card, figure").filter(one => box(one).right > innerWidth + 1).map(one => one.textContent.slice(0, 40)),
    page: getComputedStyle(document.body).backgroundColor,
    ink: [...new Set(all("figure svg text").map(text => getComputedStyle(text).fill))],
    text: getComputedStyle(document.body).color,
  });
});
</script>"""


def _seen(page, folder, width, *flags):
    """What a browser of that width makes of the page."""
    path = folder / "probed.html"
    path.write_text(page.replace("</main>", PROBE + "</main>"))
    shot = folder / "page.png"
    command = [
        CHROMIUM,
        *FLAGS,
        *flags,
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},4000",
        "--dump-dom",
    ]
    ran = subprocess.run(
        [*command, f"--screenshot={shot}", path.as_uri()], capture_output=True, text=True, timeout=90, check=True
    )
    assert shot.read_bytes().startswith(b"\x89PNG")
    title = re.search(r"<title>(.*?)</title>", ran.stdout)
    assert title is not None
    return json.loads(title[1].replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&"))


@pytest.fixture(scope="module")
def two_runs(results_file):
    """The same results twice, as two files: with spreads, and with what stands before both."""
    document = results.read(results_file)
    return report_html.page([document, document], ["a.json", "b.json"], (56_000.0, 784_000.0), lambda: None)


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_renders_with_its_plots_and_marks_inside_the_window(report_folder, document, tmp_path):
    seen = _seen((report_folder / "report.html").read_text(), tmp_path, 1280)
    assert seen["plots"] == len(plots.all_plots(document))
    assert seen["wide"] <= 1280
    assert seen["rows"] >= len(document["results"])
    assert seen["marks"] == sum(bool(r["mark"]) + r["busy"] for r in document["results"])
    assert seen["striped"] == sum(1 for f in document["headlines"] if f["mark"])
    assert len(seen["bars"]) == len(document["headlines"])
    assert all(left and right and height > 10 for left, right, height in seen["bars"])


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 700, 600])
def test_nothing_on_the_page_covers_anything_else(two_runs, tmp_path, width):
    seen = _seen(two_runs, tmp_path, width)
    assert seen["overlaps"] == []
    assert seen["outside"] == []
    assert seen["crowded"] == []


def _light(colour):
    """0 (black) to 255."""
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 600])
def test_a_dark_page_has_light_text_in_its_plots_too(two_runs, tmp_path, width):
    seen = _seen(two_runs, tmp_path, width, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")
    assert _light(seen["page"]) < 60
    assert _light(seen["text"]) > 180
    assert seen["ink"]
    assert all(_light(ink) > 180 for ink in seen["ink"])
    assert (seen["overlaps"], seen["outside"], seen["crowded"]) == ([], [], [])
    assert seen["wide"] <= width


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [718, 1047])
def test_on_paper_nothing_covers_anything_else_and_all_summaries_are_open(two_runs, tmp_path, width):
    """The rules for print, on the screen: A4 upright and lying, within the margins."""
    seen = _seen(two_runs.replace("@media print", "@media all"), tmp_path, width)
    assert (seen["overlaps"], seen["outside"], seen["crowded"]) == ([], [], [])
    assert seen["shut"] == 0
    assert seen["wider"] == []
    assert seen["page"] == "rgb(255, 255, 255)"


def test_dark_is_for_screens_alone(two_runs):
    """Who reads on a dark screen prints dark ink on white paper."""
    assert "@media screen and (prefers-color-scheme: dark)" in two_runs
    assert two_runs.count("prefers-color-scheme") == 1


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_printed_page_has_every_figure(report_folder, document, tmp_path):
    made = tmp_path / "report.pdf"
    page = report_folder / "report.html"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--print-to-pdf={made}", page.as_uri()]
    subprocess.run(command, capture_output=True, timeout=90, check=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", made.read_bytes()))
    # a page of paper holds about 60 rows: those behind a closed summary are printed too
    assert pages >= len(document["results"]) / 90
