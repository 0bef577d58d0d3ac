# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from obmm.urma.standin import StandIn

from .soak import ACTIONS, soak


def test_a_short_soak_finds_no_wrong_byte_no_endless_batch_and_no_growth(standin: StandIn) -> None:
    """`make soak` runs it for an hour."""
    outcome = soak(8.0, seed=42, batches=150, lives=4, standin=standin)
    assert outcome.right > outcome.batches // 4
    assert outcome.errors
    assert len(outcome.actions) > len(ACTIONS) // 2
