# SPDX-License-Identifier: Apache-2.0
"""A store of blocks on emulated node a, for engines on node b."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obmm
from obmm import emulator
from obmm.blocks import BlockOwner, SlotLayout
from obmm.exchange import Key


@dataclass(frozen=True)
class KvOwner:
    """What an engine is told, and the owner itself."""

    source: str
    key: str
    device: str
    owner: BlockOwner

    @property
    def options(self) -> dict[str, Any]:
        return {"source": self.source, "key": self.key, "device": self.device}

    @property
    def json(self) -> str:
        return json.dumps(self.options)

    @property
    def counts(self) -> dict[str, int]:
        return self.owner.status()["counts"]


@contextmanager
def kv_owner(folder: Path, block_bytes: int, slots: int) -> Iterator[KvOwner]:
    """Serve until the block ends."""
    with ExitStack() as stack:
        fabric = stack.enter_context(emulator.start(nodes=2))
        Key.generate(folder / "key")
        device = stack.enter_context(obmm.open(fabric.device("a")))
        owner = BlockOwner(device, SlotLayout.for_blocks(block_bytes, slots))
        stack.callback(owner.close, force=True)
        server = obmm.serve({}, host="127.0.0.1", port=0, key=folder / "key", journal=folder / "journal")
        stack.callback(server.close, timeout=0, force=True)
        owner.serve(server)
        yield KvOwner(f"127.0.0.1:{server.port}/kv", str(folder / "key"), fabric.device("b"), owner)
