# SPDX-License-Identifier: Apache-2.0
"""One tensor-parallel rank of an engine, a process of its own: ``rank.py RANK RANKS MEETING [fault]``.

Prints one JSON object: a digest of the rows of a conversation, and what this rank read and copied.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

from stand_ins import without_a_device, without_torchvision

without_torchvision()
without_a_device()

import sglang_world as world  # noqa: E402  (after the stand-ins)
import torch  # noqa: E402


def main(rank: int, ranks: int, meeting: Path, fault: str) -> None:
    group = world.coordinator(rank, ranks, meeting)
    world.load_plugins()
    with world.parallel(ranks, rank, group):
        embeds = world.embeddings(None)
        model = world.Model(embeds, world.hasher())
        manager = world.manager(model)
        door = next(each for each in world.doors())
        before = door.client._source.store.stats().ids
        digest = hashlib.sha256()
        for number, step in enumerate(world.conversation()):
            if fault == "reader dies" and number == 4:
                group.barrier()
                if rank == 0:
                    os._exit(0)
            for rows in step(model, manager):
                digest.update(rows.view(torch.int16).numpy().tobytes())
            if not fault:
                group.barrier()  # the layers' collectives keep ranks together
        print(
            json.dumps(
                {
                    "digest": digest.hexdigest(),
                    "read": door.client._source.store.stats().ids - before,
                    "explain": door.client.explain(),
                    "failing": door.client.failing,
                }
            ),
            flush=True,
        )
        if fault != "reader dies":
            group.barrier()
        world.close_doors()
    os._exit(0)  # gloo's threads may outlive a rank that died


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else "")
