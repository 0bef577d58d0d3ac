# SPDX-License-Identifier: Apache-2.0
"""The report as a browser renders it."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
PROBE = """<script>
addEventListener("load", () => {
  const boxes = [...document.querySelectorAll("figure svg")].map(svg => svg.getBoundingClientRect());
  document.title = JSON.stringify({
    plots: boxes.filter(box => box.width > 300 && box.height > 100).length,
    wide: document.documentElement.scrollWidth,
    rows: document.querySelectorAll("tbody tr").length,
    marks: [...document.querySelectorAll("mark")].filter(mark => getComputedStyle(mark).backgroundColor == "rgb(255, 223, 128)").length,
  });
});
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_renders_with_its_plots_and_marks_inside_the_window(report_folder, document, tmp_path):
    page = tmp_path / "probed.html"
    page.write_text((report_folder / "report.html").read_text().replace("</main>", PROBE + "</main>"))
    shot = tmp_path / "page.png"
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1280,2600", "--dump-dom"]
    ran = subprocess.run(
        [*command, f"--screenshot={shot}", page.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    title = re.search(r"<title>(.*?)</title>", ran.stdout)
    assert title is not None
    import json

    seen = json.loads(title[1])
    assert seen["plots"] == 5
    assert seen["wide"] <= 1280
    assert seen["rows"] >= len(document["results"])
    assert seen["marks"] == sum(1 for r in document["results"] if r["mark"])
    assert shot.read_bytes().startswith(b"\x89PNG")
