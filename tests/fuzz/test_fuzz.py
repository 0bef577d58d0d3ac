# SPDX-License-Identifier: Apache-2.0
"""A short run in every test run; `make fuzz` is the long one."""

from __future__ import annotations

import pytest

from tests.fuzz.run import SHARES, blind
from tests.fuzz.targets import TARGETS, seeds


def test_every_target_has_a_share_and_seeds() -> None:
    assert set(TARGETS) == set(SHARES) == set(seeds())
    assert sum(SHARES.values()) == pytest.approx(1)


@pytest.mark.parametrize("target", TARGETS)
def test_good_input_is_no_finding(target: str) -> None:
    for data in seeds()[target]:
        TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_a_short_run(target: str) -> None:
    assert blind(target, 1000, seed=7) == 1000
