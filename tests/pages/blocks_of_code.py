# SPDX-License-Identifier: Apache-2.0
"""The blocks of code of all pages, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

NEEDS = re.compile(r"# needs (.+)")
"""The first line of a block that cannot run here: what it needs, visible on the page.  It is then read only."""


def blocks(kinds: set[str]) -> list[tuple[str, str]]:
    """(page, text) of every block of these kinds; a block without a kind is of kind ""."""
    found = []
    for page in PAGES:
        for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
            if kind in kinds:
                found.append((page.relative_to(ROOT).as_posix(), text))
    return found


def programs() -> dict[str, list[str]]:
    """The Python blocks of each page that has some, but those that say what they need."""
    found: dict[str, list[str]] = {}
    for page, text in blocks({"python"}):
        if not NEEDS.match(text):
            found.setdefault(page, []).append(text)
    return found
