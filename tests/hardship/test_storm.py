# SPDX-License-Identifier: Apache-2.0
"""Processes that export, import, map, change ownership and are killed at random points."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from .. import seeds
from .storm import Storm

SECONDS = float(os.environ.get("OBMM_STORM_SECONDS", "4"))


def test_workers_get_everywhere(tmp_path: Path) -> None:
    """A storm of refused calls would prove nothing."""
    storm = Storm(tmp_path, 1, workers=4, lifetime=3.0)
    try:
        done: Counter[str] = Counter()
        for worker in storm.workers:
            result = worker.join()
            assert "failure" not in result, result["failure"]
            done.update(result["done"])
        storm.calm()
    finally:
        storm.close()
    wanted = {"export", "import_", "remove", "query", "open", "close", "map", "unmap", "own", "touch", "preimport"}
    assert {name for name in wanted if done[name] < 3} == set(), done


@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("nodes", [1, 2])
def test_invariants_hold_while_processes_die_anywhere(tmp_path: Path, nodes: int) -> None:
    seed = seeds.seed()
    storm = Storm(tmp_path, seed, nodes=nodes)
    try:
        storm.rage(SECONDS, kills=SECONDS)
        storm.calm()
    except BaseException as error:
        error.add_note(f"seed {seed}, {nodes} nodes, {storm.killed} killed, {storm.checks} checks")
        raise
    finally:
        storm.close()
