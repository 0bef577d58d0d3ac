# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel ranks, each a process with SGLang's own classes: one of them reads, the others copy."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sglang_world as world
import torch

HERE = Path(__file__).resolve().parent
_PATHS = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "engram"), str(HERE.parents[2])]
_HASHED = 8 * sum((512 + 300, 188 + 1, 2 * 4, 8, 2))
"""Rows of one layer in the conversation: its tokens times columns."""

Ranks = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def ranks(checkpoint: Path, publish: Callable[..., Any], fabric: Any, tmp_path: Path) -> Ranks:
    """Run two ranks on node b -> what they print."""
    served = publish(checkpoint)

    def run(fault: str = "", **options: Any) -> list[dict[str, Any]]:
        setting = {"source": served.source, "plain": True, "device": fabric.device("b"), "decode_ms": 5000, **options}
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(_PATHS),
            "SGLANG_OBMM_ENGRAM": json.dumps({**setting, "prefill_ms": setting["decode_ms"]}),
        }
        command = [sys.executable, "-W", "ignore", str(HERE / "rank.py")]
        processes = [
            subprocess.Popen(
                [*command, str(rank), "2", str(tmp_path / "meeting"), fault],
                env=variables,
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(2)
        ]
        found = []
        for process in processes:
            out, err = process.communicate(timeout=250)
            assert process.returncode == 0, err[-3000:]
            told = [line for line in out.splitlines() if line.startswith("{")]
            found.append(json.loads(told[-1]) if told else {})
        if fault == "reader dies":
            served.kill()  # it would wait for the lease of a process that is gone
        return found

    return run


@pytest.fixture
def engines_digest(checkpoint: Path, parallel: None) -> str:
    """Of the same conversation over the engine's own tables."""
    model = world.Model(world.embeddings(checkpoint), world.hasher())
    manager = world.manager(model)
    digest = hashlib.sha256()
    for step in world.conversation():
        for rows in step(model, manager):
            digest.update(rows.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.timeout(280)
def test_one_rank_reads_and_the_other_copies_the_engines_rows(ranks: Ranks, engines_digest: str) -> None:
    """Prefill in chunks, decode, drafts: bit-equal on both ranks, and every row came over the fabric once."""
    reader, follower = ranks()
    assert reader["digest"] == follower["digest"] == engines_digest
    assert not reader["failing"]
    assert not follower["failing"]
    assert reader["read"] >= 2 * _HASHED
    assert follower["read"] == 0
    assert "rank 0 reads for 2 ranks of this host" in reader["explain"]
    assert "copied from the host's reader" in follower["explain"]


@pytest.mark.timeout(280)
def test_a_reader_that_dies_leaves_ranks_that_read_for_themselves(ranks: Ranks, engines_digest: str) -> None:
    _, follower = ranks("reader dies", decode_ms=300)
    assert follower["digest"] == engines_digest
    assert follower["read"] > 0
