# SPDX-License-Identifier: Apache-2.0
"""The pages name what exists: links, anchors, files, tests, and Python that parses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMED = [page.relative_to(ROOT).as_posix() for page in PAGES]
ROOMS = "tests|bench|native|obmm|examples|docs"


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=NAMED)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in _anchors(there), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=NAMED)
def test_files_and_tests_that_a_page_names_exist(page: Path) -> None:
    for path, function in re.findall(rf"`((?:{ROOMS})/[\w/.*-]+)(?:::(\w+))?`", page.read_text()):
        found = list(ROOT.glob(path))
        assert found, f"{page.name}: {path}"
        assert not function or f"def {function}(" in found[0].read_text(), f"{page.name}: {path}::{function}"


@pytest.mark.parametrize("page", PAGES, ids=NAMED)
def test_python_on_a_page_parses(page: Path) -> None:
    for snippet in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        ast.parse(snippet, page.name)


def test_pages_that_the_package_sends_its_reader_to_exist() -> None:
    for source in sorted((ROOT / "obmm").rglob("*.py")):
        for page in re.findall(r"docs/[\w/-]+\.md", source.read_text()):
            assert (ROOT / page).exists(), f"{source.relative_to(ROOT)}: {page}"


def test_no_error_or_docstring_cites_a_document_that_is_not_here() -> None:
    for source in sorted((ROOT / "obmm").rglob("*.py")):
        assert not re.search(r"\bdesign (section )?\d", source.read_text()), source.relative_to(ROOT)


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, todo = set(), [PAGES[0]]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+\.md)", page.read_text())
        todo += [there for link in links if "://" not in link and (there := (page.parent / link).resolve()).exists()]
    assert seen >= set(PAGES)
