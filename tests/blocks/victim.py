# SPDX-License-Identifier: Apache-2.0
"""An owner or a user that is killed: does one step per line on its standard input, and names the step it has done.

python -m tests.blocks.victim owner DEVICE PORT KEY JOURNAL [MOMENT at which it kills itself]
python -m tests.blocks.victim user DEVICE PORT KEY
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence

import numpy as np

import obmm
from obmm._native import ffi
from obmm.blocks import BlockOwner, BlockStore, Pieces, SlotLayout
from obmm.blocks.steps import put_steps
from obmm.blocks.store import _work
from obmm.blocks.wire import Op
from obmm.exchange.calls import Caller
from tests.blocks.rig import BLOCK, MODEL, content, put


def owner(device: str, port: str, key: str, journal: str, moment: str = "") -> Iterator[str]:
    local = obmm.open(device)
    yield "opened"
    made = BlockOwner(local, SlotLayout.for_blocks(BLOCK, 16), term=3.0 if moment else 1.0)
    yield "exported"
    server = obmm.serve({}, host="127.0.0.1", port=int(port), key=key, journal=journal)
    yield "listening"
    made.serve(server)
    yield "served"
    arm(made, moment)
    while True:
        yield "serving"


def arm(made: BlockOwner, moment: str) -> None:
    """From now on SIGKILL at this moment."""
    clear, call = made.directory._clear, made.service.call

    def clear_and_die(slots: Sequence[int]) -> bool:
        if moment != "slots were chosen":
            clear(slots)
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    def answer_and_die(caller: Caller, body: bytes) -> bytes:
        answer = call(caller, body)
        if body[0] == (Op.COMMIT if moment == "committed" else Op.RESERVE):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    if moment in ("slots were chosen", "slots were cleared"):
        made.directory._clear = clear_and_die
    elif moment in ("committed", "reserved"):
        made.service.call = answer_and_die  # type: ignore[method-assign]


def user(device: str, port: str, key: str) -> Iterator[str]:
    local = obmm.open(device)
    peer = obmm.connect(f"127.0.0.1:{port}", key=key)
    yield "connected"
    store = BlockStore(peer, local, MODEL)
    yield "attached"
    put(store, b"before")
    yield "stored"
    store.pin([b"before"])
    yield "pinned"
    # a put, step by step: reserved, half written, written, never committed
    data = content(b"half")
    keeper = store._keeper
    means = keeper.means(-1)
    work = _work([b"half"], None, 0.0)
    steps = put_steps(means, work, Pieces.of_buffers(1, [data], writable=False))
    effect = next(steps)
    effect = steps.send(keeper.ask(effect, means, 5.0))
    yield "reserved"
    memory = means.attachment.memory
    place = memory.area.base + effect.batch.native.places[0].slot * memory.layout.stride
    half = np.frombuffer(data, np.uint8)[: BLOCK // 2].tobytes()
    ffi.memmove(place + 64, half, len(half))
    yield "half written"
    effect.batch.run(store._engine)
    yield "written"
    store.close()
    yield "closed"


if __name__ == "__main__":
    steps = {"owner": owner, "user": user}[sys.argv[1]](*sys.argv[2:])
    for _ in sys.stdin:
        print(next(steps), flush=True)
