# SPDX-License-Identifier: Apache-2.0
"""The plug-in as SGLang loads it: in fresh interpreters, as its spawned processes are."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglang_world as world
import torch
from sglang.srt.layers import engram, engram_staging

from obmm.integrations import versions

HERE = Path(__file__).resolve().parent
_PATHS = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "engram"), str(HERE.parents[2])]

_START = """
import sys
from stand_ins import without_a_device, without_torchvision
without_torchvision(); without_a_device()
from sglang.srt.plugins import load_plugins
"""


def interpreter(code: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_PATHS), **variables}
    command = [sys.executable, "-W", "ignore", "-c", _START + code]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def answered(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=250)
    return process.returncode, out, err


@pytest.mark.timeout(250)
def test_switched_off_it_imports_and_changes_nothing() -> None:
    code, out, err = answered(
        interpreter(
            """
load_plugins()
print([name for name in sys.modules if name.startswith(("obmm.integrations.", "sglang.srt.layers.engram"))])
from sglang.srt.layers import engram
print(engram.EngramEmbedding.__module__)
"""
        )
    )
    assert code == 0, err
    modules, where = out.splitlines()[-2:]
    wanted = [
        "obmm.integrations.sglang",
        "obmm.integrations.settings",
        "obmm.integrations.versions",
        "obmm.integrations.link",
    ]
    assert set(json.loads(modules.replace("'", '"'))) <= set(wanted)
    assert where == "sglang.srt.layers.engram"


@pytest.mark.parametrize(
    ("setting", "patch", "words"),
    [
        ("host", {}, "not a published table"),
        ('{"sauce": 1}', {}, "names no source"),
        ("10.0.0.1:1/x", {"versions.TESTED": {"sglang": ("0.1",)}}, "was not tested with this door"),
        ("10.0.0.1:1/x", {"embedding.forward": lambda self, other: None}, "forward takes other and not indices"),
        ("10.0.0.1:1/x", {"stager.stage": None}, "EngramRowStager.stage is not there"),
    ],
)
def test_what_is_wrong_ends_the_server_before_anything_is_replaced(
    setting: str, patch: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception would only be logged, and a local table made."""
    owners = {"versions": versions, "embedding": engram.EngramEmbedding, "stager": engram_staging.EngramRowStager}
    for path, value in patch.items():
        owner, _, name = path.partition(".")
        if value is None:
            monkeypatch.delattr(owners[owner], name)
        else:
            monkeypatch.setattr(owners[owner], name, value)
    monkeypatch.setenv("SGLANG_OBMM_ENGRAM", setting)
    kept = world.originals()
    with pytest.raises(SystemExit, match=words):
        world.load_plugins()
    assert world.originals() == kept
    world.restore(kept)


def test_an_untested_version_can_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = world.originals()
    monkeypatch.setattr(versions, "TESTED", {"sglang": ("0.1",)})
    monkeypatch.setenv("SGLANG_OBMM_ENGRAM", "10.0.0.1:1/x")
    monkeypatch.setenv("OBMM_ALLOW_UNTESTED", "vllm==1, sglang==0.5.23")
    world.load_plugins()
    assert engram.EngramEmbedding.__module__ == "obmm.integrations.sglang_engram"
    world.restore(kept)


_READ = """
import hashlib, numpy as np, torch
load_plugins()
import sglang_world as world
from obmm.errors import ObmmError
with world.parallel():
    embeds = world.embeddings(None)
digest = hashlib.sha256()
for embed in embeds:
    ids = torch.from_numpy(np.random.default_rng(7).integers(0, embed.rows, (1000, 8)))
    digest.update(embed(ids).view(torch.int16).numpy().tobytes())
print(embed.weight.untyped_storage().nbytes(), digest.hexdigest())
world.close_doors()
"""


@pytest.mark.timeout(280)
def test_engine_processes_on_two_nodes_share_one_table(
    checkpoint: Path, publish: Callable[..., Any], fabric: Any, parallel: None
) -> None:
    """Two fresh engine processes, one on the owner's node and one elsewhere: the rows of the engine's own table here."""
    source = publish(checkpoint).source
    processes = [
        interpreter(
            _READ, SGLANG_OBMM_ENGRAM=json.dumps({"source": source, "plain": True, "device": fabric.device(node)})
        )
        for node in "ab"
    ]
    digest = hashlib.sha256()
    for embed in world.embeddings(checkpoint):
        ids = torch.from_numpy(np.random.default_rng(7).integers(0, embed.rows, (1000, 8)))
        digest.update(embed(ids).view(torch.int16).numpy().tobytes())
    for process in processes:
        code, out, err = answered(process)
        assert code == 0, err[-2000:]
        assert out.split()[-2:] == ["64", digest.hexdigest()]
