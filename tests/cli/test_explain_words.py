# SPDX-License-Identifier: Apache-2.0
"""`obmm explain WORD`: whatever an error or a page prints can be asked for, and Tab completes it."""

from __future__ import annotations

import errno
import json
import re

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from obmm.cli.explain import explain
from obmm.explanations import EXPLANATIONS
from obmm.operations import Operation

ERRNOS = sorted({name for _, name in EXPLANATIONS})
RULES = sorted(
    {
        part
        for causes in EXPLANATIONS.values()
        for cause in causes
        for part in cause.rules.split("/")
        if re.fullmatch(r"[A-Z]+\d+[a-z]?", part)
    }
)


def said(*words: str) -> str:
    done = CliRunner().invoke(explain, words)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", ERRNOS)
def test_an_errno_alone_lists_every_operation_that_ends_with_it(name):
    listed = {(row["operation"], row["errno"]) for row in json.loads(said(name, "--json"))}
    assert {key for key in EXPLANATIONS if key[1] == name} <= listed
    assert said(name.lower()) == said(name)


@pytest.mark.parametrize("name", ERRNOS)
def test_an_errno_may_be_its_number(name):
    number = getattr(errno, name)
    listed = {(row["operation"], row["errno"]) for row in json.loads(said(str(number), "--json"))}
    assert {key for key in EXPLANATIONS if key[1] == name} <= listed


@pytest.mark.parametrize(
    ("operation", "name"),
    [(of, name) for of, name in EXPLANATIONS if not Operation(of).name.startswith(("SDK", "URMA"))],
)
def test_an_operation_takes_the_number_too(operation, name):
    assert said(operation, str(getattr(errno, name))) == said(operation, name)


@pytest.mark.parametrize("rule", [*RULES, "I7"])
def test_a_rule_shows_what_is_by_it(rule):
    text = said(rule)
    assert re.search(rf"\[[^\]]*{rule}|I6-I9", text)
    assert said(rule.lower()) == text


@pytest.mark.parametrize("signal", ["SIGBUS", "sigsegv"])
def test_a_signal_names_its_page_and_what_to_do(signal):
    assert "docs/safety.md" in said(signal)
    assert "fix:" in said(signal)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("EXPROT",), "did you mean EXPORT"),
        (("9999",), "nothing is known to end with 9999"),
        (("EL2HLT",), "nothing is known to end with EL2HLT"),
        (("X99",), "docs/conformance/rules.md"),
        (("EXPORT", "9999"), "its answers: "),
    ],
)
def test_what_is_not_known_says_what_is(words, problem):
    done = CliRunner().invoke(explain, words)
    assert done.exit_code == 1
    assert problem in done.output


@pytest.mark.parametrize(
    ("before", "begun", "offered"), [([], "IMP", "IMPORT"), ([], "sdk.m", "sdk.map"), (["IMPORT"], "ein", "EINVAL")]
)
def test_tab_completes_operations_and_their_errnos(before, begun, offered):
    found = BashComplete(explain, {}, "explain", "_EXPLAIN_COMPLETE").get_completions(before, begun)
    assert offered in [each.value for each in found]
