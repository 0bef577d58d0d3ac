# SPDX-License-Identifier: Apache-2.0
"""What is cited can be read: each rule id that is printed or cited is an anchor of docs/spec.  (Pages: test_docs.)"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import obmm
from obmm import sdk, urma
from obmm.explanations import EXPLANATIONS

PACKAGE = Path(obmm.__file__).parent
DOCS = PACKAGE.parent / "docs"
SPECIFICATIONS = {"driver": "driver.md", "Engram": "engram.md", "SDK": "sdk.md", "URMA": "urma.md"}


def anchors(page: str) -> set[str]:
    return set(re.findall(r'<a id="([^"]+)">', (DOCS / "spec" / page).read_text()))


ANCHORS = {name: anchors(page) for name, page in SPECIFICATIONS.items()}
OTHER = {"vfs"}  # every kernel's file layer: no rule of the driver


def unresolved(citation: str) -> list[str]:
    """The parts of one that lead nowhere: ``"X8/X9"``, ``"I6-I9"``, ``"docs/rows.md"``, ``"Engram specification 5.3"``."""
    if citation in OTHER:
        return []
    if citation.startswith("docs/"):
        return [] if (DOCS.parent / citation.split("#")[0].split(",")[0]).exists() else [citation]
    found = re.fullmatch(r"(driver|Engram|SDK|URMA) specification (.*)", citation)
    known = ANCHORS[found[1]] if found else ANCHORS["driver"]
    missing = []
    for part in (found[2] if found else citation).split("/"):
        ends = re.fullmatch(r"([A-Z]+\d+)-([A-Z]+\d+)", part)
        missing += [one for one in (ends.groups() if ends else (part.strip(),)) if one not in known]
    return missing


@pytest.mark.parametrize(("operation", "name"), list(EXPLANATIONS))
def test_the_rules_of_an_explanation_can_be_read(operation, name):
    for cause in EXPLANATIONS[operation, name]:
        assert unresolved(cause.rules) == [], cause.rules


@pytest.mark.parametrize(
    ("citation", "number"),
    [
        *(("SDK specification 4.3", code) for code in sdk.Code),
        *(("SDK specification 10", kind) for kind in sdk.FaultKind),
        *(("URMA specification 5", status) for status in urma.Status),
    ],
    ids=str,
)
def test_a_number_that_a_library_answers_can_be_read(citation, number):
    """Errors print it."""
    assert unresolved(f"{citation}-{int(number)}") == []


def rules_given(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, rule) of each literal rule of an ``ObmmArgumentError.because``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "because" and len(node.args) >= 5:
            rule = node.args[4]
            if isinstance(rule, ast.Constant) and isinstance(rule.value, str) and rule.value:
                yield node.lineno, rule.value


def sections(text: str) -> Iterator[tuple[str, str]]:
    """(specification, section) of each citation in running text."""
    cited = r"(driver|Engram|SDK|URMA) specification (\d+(?:\.\d+)*)(-\d+)?"
    for name, section, row in re.findall(cited, " ".join(text.split())):
        yield name, section + row if section + row in ANCHORS[name] else section
        if row and section + row not in ANCHORS[name]:
            yield name, row[1:]  # "11-13": two sections


def printed(text: str) -> Iterator[str]:
    """What stands in brackets before a fix: ``[9.9, 17]; fix: ...``."""
    for found in re.findall(r"\[([^\]\[{}]{1,60})\]; fix", text):
        yield from (part.strip() for part in found.split(","))


OF_ITS_OWN = {"sdk": "SDK", "sdk_standin": "SDK", "urma": "URMA", "urma_standin": "URMA"}
"""Rooms that have a specification of their own, in obmm/ and native/: it is what a bare number there cites."""


def bare(text: str, name: str) -> Iterator[str]:
    """Rules and sections that prose of such a room cites in parentheses: ``(7.6, U11)``, ``(15 rule 4)``, ``(L3, L4)``."""
    one = r"[A-Z]\d+|\d+(?:\.\d+)*(?: (?:rule|step|row) \d+)?"
    for found in re.findall(rf"\(((?:{one})(?:, (?:{one}))*)\)", text):
        parts = [re.sub(" (rule|step|row) ", "-", part) for part in found.split(", ")]
        # prose cites what has a dot, a letter or a row; alone, a number of one or two digits may be an argument or a tuple
        yield from (part for part in parts if not part.isdigit() or (len(parts) == 1 and part in ANCHORS[name]))


def prose(path: Path) -> str:
    """Docstrings and comments."""
    text = path.read_text()
    if path.suffix != ".py":
        return "\n".join(re.findall(r"/\*.*?\*/|//[^\n]*", text, re.DOTALL))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    written = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    return "\n".join([*written, *re.findall(r"#[^\n]*", text)])


NATIVE = PACKAGE.parent / "native"
ROOMS_OF_LIBRARIES = sorted(
    path
    for folder in (PACKAGE / "sdk", PACKAGE / "urma", *(NATIVE / room for room in OF_ITS_OWN))
    for path in folder.glob("*.[pch]*")
    if path.suffix in (".py", ".c", ".h")
)


@pytest.mark.parametrize("path", ROOMS_OF_LIBRARIES, ids=lambda path: path.relative_to(PACKAGE.parent).as_posix())
def test_what_a_room_cites_of_its_own_specification_can_be_read(path):
    name = OF_ITS_OWN[path.parent.name]
    assert [part for part in bare(prose(path), name) if part not in ANCHORS[name]] == []


def test_bare_citations_are_found():
    assert list(bare("as (7.6, U11), (15 rule 4) and (L3, L4), not f(0, 1) or (4096)", "URMA")) == [
        *("7.6", "U11", "15-4", "L3", "L4"),
    ]


SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_what_a_module_cites_can_be_read(path):
    text = path.read_text()
    missing = [
        f"{line}: {rule}"
        for line, rule in rules_given(ast.parse(text))
        if not rule.startswith("docs/") and unresolved(rule)
    ]
    missing += [f"{name} specification {section}" for name, section in sections(text) if section not in ANCHORS[name]]
    joined = re.sub(r'"\s*\n\s*f?"', "", text)  # a text that goes on in the next line
    missing += [citation for citation in printed(joined) if unresolved(citation)]
    assert missing == []


KINDS = {".py", ".c", ".h", ".go", ".md"}
ELSEWHERE = sorted(
    path
    for folder in ("native", "tests", "bench", "examples", "docs")
    for path in (DOCS.parent / folder).rglob("*")
    if path.suffix in KINDS and path.name != Path(__file__).name and "__pycache__" not in path.parts
)


def test_what_the_other_folders_cite_can_be_read():
    """Of a specification that is a page here, under the name that it has."""
    missing = []
    for path in ELSEWHERE:
        text = " ".join(re.sub(r"\n\s*\* ", " ", path.read_text()).split())
        of = re.findall(r"(\w+) specification,? (?:section )?\d", text)
        missing += [f"{path}: {name} specification" for name in of if name not in ("Driver", *SPECIFICATIONS)]
        missing += [f"{path}: {name} {section}" for name, section in sections(text) if section not in ANCHORS[name]]
    assert len(ELSEWHERE) > 500
    assert missing == []
