# SPDX-License-Identifier: Apache-2.0
"""The page of differences between module and driver keeps up with the lists that the guests use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.replay.transcript import Transcript

from .guest.differences import KNOWN
from .guest.kernel_port import MISSING

PAGE = Path(__file__).resolve().parents[2].joinpath("docs/conformance/simulator.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("pattern", "reason"), [(pattern, reason) for pattern, _, reason in KNOWN])
def test_every_case_that_may_differ_is_on_the_page(pattern: str, reason: str) -> None:
    assert f"| `{pattern}` |" in PAGE
    assert reason in PAGE


@pytest.mark.parametrize("reason", sorted(set(MISSING.values())))
def test_everything_that_the_module_lacks_is_on_the_page(reason: str) -> None:
    assert reason in PAGE


def test_every_pattern_names_recorded_cases_that_are_informative() -> None:
    from fnmatch import fnmatch

    cases = list(Transcript.load())
    for pattern, _, _ in KNOWN:
        named = [case for case in cases if fnmatch(case.id, pattern)]
        assert named, pattern
        assert all(case.informative for case in named), pattern
