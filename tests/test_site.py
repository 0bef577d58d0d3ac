# SPDX-License-Identifier: Apache-2.0
"""`make docs`: the whole reference, without a network, and no link that leads nowhere."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reference.surface import doors

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "docs" / "build_site.py"
OFFLINE = """
import runpy, socket, sys

def refuse(*_):
    raise AssertionError("the build asked the network")

socket.socket.connect = socket.getaddrinfo = refuse
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_site_has_every_door_and_page_without_a_network(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-c", OFFLINE, SCRIPT, site]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "no warning"
    for door in doors():
        page = site / f"{door.replace('.', '/')}.html"
        assert page.is_file() or f"left out: {door} " in done.stdout, door
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / "pages" / page.relative_to(ROOT)).with_suffix(".html").is_file()
    table = (site / "obmm" / "exchange.html").read_text()
    assert all(word in table for word in ("RemoteTable", "gather", "&gt;&gt;&gt;")), "objects, with their examples"


@pytest.mark.parametrize(
    ("link", "leads"),
    [("there.html", True), ("there.html#part", True), ("none.html", False), ("there.html#none", False)],
)
def test_a_link_that_leads_nowhere_is_named(tmp_path, link, leads):
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "here.html").write_text(f'<a href="{link}">x</a>')
    (pages / "there.html").write_text('<h1 id="part">y</h1>')
    broken = runpy.run_path(str(SCRIPT))["broken"]
    assert broken(tmp_path) == ([] if leads else [f"pages/here.html: {link}"])
