# SPDX-License-Identifier: Apache-2.0
"""A short run of what `make soak` does for a million operations."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.blocks.model import run


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("cache", "seed"), [("nc", 1), ("cc", 2)])
def test_random_operations_never_give_a_wrong_byte(cache: str, seed: int) -> None:
    counts = run(4_000, seed, cache, kills=1)
    for what in ("hits", "misses", "puts", "deleted", "pins", "rotten", "users killed", "owners killed"):
        assert counts.get(what, 0) > 0, f"no {what}: this run shows nothing"
