# SPDX-License-Identifier: Apache-2.0
"""No rule without a test, no test for an unknown rule, no page that lags behind."""

from __future__ import annotations

from . import pages


def test_every_rule_has_a_test() -> None:
    found = pages.by_rule()
    assert [rule for rule in pages.rule_ids() if not found.get(rule)] == []


def test_every_tested_rule_is_in_the_catalogue() -> None:
    listed = {*pages.rule_ids(), *pages.RULES["unreachable"]}
    unknown = {rule: tests[0].name for rule, tests in pages.by_rule().items() if rule not in listed}
    assert unknown == {}


def test_unreachable_rules_have_no_test() -> None:
    found = pages.by_rule()
    assert [rule for rule in pages.RULES["unreachable"] if found.get(rule)] == []


def test_rule_page_lists_the_tests_of_today() -> None:
    everything_passes = {f"{test.path}::{test.name}": "passed" for test in pages.tests()}
    committed = (pages.PAGES / "rules.md").read_text(encoding="utf-8")
    assert committed == pages.rules_page(everything_passes), "run `make conformance` and commit"
