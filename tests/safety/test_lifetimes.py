# SPDX-License-Identifier: Apache-2.0
"""Random lifetimes, 100,000 steps; `make fuzz-lifetime` runs a million."""

from __future__ import annotations

import pytest

from tests import seeds
from tests.safety.lifetimes import run


@pytest.mark.timeout(300)
def test_random_lifetimes():
    figures = run(100_000, seeds.seed())
    assert sum(figures["kinds"].values()) == 100_000
