# SPDX-License-Identifier: Apache-2.0
"""Does the door work here?  The engine's real classes on a published toy table, compared with the toy checkpoint.

python tests/engines/try_engine.py toy FOLDER                          # write the toy checkpoint
python tests/engines/try_engine.py sglang FOLDER HOST:PORT/NAME DEVICE # or vllm: look 100,000 rows up, and compare
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_TOKENS = 12_500


def paths(engine: str) -> None:
    sys.path[:0] = [str(HERE / f"on_{engine}"), str(HERE), str(HERE.parent / "engram"), str(HERE.parents[1])]


def write(folder: Path) -> None:
    """Two layers of a million rows."""
    paths("none")
    from toy_checkpoints import deepseek

    deepseek(folder, base=125_000, heads=4, order=3)
    print(f"{folder}: layers 1 and 3, {sum(file.stat().st_size for file in folder.iterdir()) >> 20} MiB")


def sglang(folder: Path, option: dict[str, Any]) -> None:
    from stand_ins import without_a_device, without_torchvision

    without_torchvision()
    without_a_device()
    import sglang_world as world
    import torch

    with world.parallel():
        own = world.embeddings(folder)
        os.environ["SGLANG_OBMM_ENGRAM"] = json.dumps(option)
        world.load_plugins()
        for theirs, mine in zip(own, world.embeddings(folder), strict=True):
            ids = torch.randint(theirs.rows, (_TOKENS, 8))
            tell(mine.table, torch.equal(mine(ids).view(torch.int16), theirs(ids).view(torch.int16)), mine.weight)
    print(world.doors()[0].client.explain())
    world.close_doors()


def vllm(folder: Path, option: dict[str, Any]) -> None:
    from stand_ins import without_a_device

    without_a_device()
    import torch
    import vllm_world as world

    with world.configured(option):
        layers = world.layers(folder)
    for layer, number in zip(layers, world.LAYERS, strict=True):
        weight, scale = world.tensors(folder, number)
        ids = torch.randint(len(weight), (_TOKENS, 8))
        out = torch.empty(_TOKENS, 8, 64, dtype=torch.bfloat16)
        table = layer.embed_tokens
        table.lookup(ids, out)
        theirs = world.looked_up(weight, scale, ids)
        tell(f"layer{number}", torch.equal(out.view(torch.int16), theirs.view(torch.int16)), table.weight)
    print(layers[0].embed_tokens._obmm_door.client.explain())
    world.close_doors()


def tell(table: str, same: bool, weight: Any) -> None:
    held = weight.untyped_storage().nbytes()
    print(f"{table}: {_TOKENS * 8:,} rows {'are bit-equal' if same else 'DIFFER'}; {held} bytes of the table are here")
    if not same:
        sys.exit(1)


def main() -> None:
    match sys.argv[1:]:
        case ["toy", folder]:
            write(Path(folder))
        case ["sglang" | "vllm" as engine, folder, source, device]:
            paths(engine)
            option = {"source": source, "plain": True, "device": device, "decode_ms": 5000, "prefill_ms": 5000}
            (sglang if engine == "sglang" else vllm)(Path(folder), option)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
