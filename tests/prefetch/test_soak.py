# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from soak import soak


def test_a_short_soak_finds_no_wrong_byte_and_no_growth() -> None:
    """Acceptance 15 in small; `make soak` runs it for an hour."""
    outcome = soak(seconds=5, seed=20, steps=300)
    assert outcome.verified_rows > 1_000
    assert outcome.faults > 0
