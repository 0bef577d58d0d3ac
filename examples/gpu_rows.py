# SPDX-License-Identifier: Apache-2.0
"""Rows of another (emulated) node's table on a device: prefetched, and as a gather in a stream.

python examples/gpu_rows.py          on CUDA device 0
python examples/gpu_rows.py --fake   on a device of this process: the same steps where there is no accelerator
"""

import sys
from contextlib import ExitStack

import numpy as np

import obmm
from obmm import emulator
from obmm.prefetch import Deadlines, EngramPrefetcher, PrefetchLayer
from obmm.prefetch.landing import NativeDevice
from obmm.rows import Manifest, RowStore, TableSpec
from obmm.rows.accelerator import Accelerator
from obmm.rows.stream_gather import StreamGather

ROWS, ROW_BYTES, TOKENS = 10_000, 264, 8
accelerator = Accelerator.fake() if "--fake" in sys.argv else Accelerator.cuda(0)


def on_host(array):
    """Device rows as an array here, to look at."""
    accelerator.synchronize()
    if accelerator.name == "fake":
        return np.asarray(array)
    import torch

    return torch.as_tensor(array, device="cuda").cpu().numpy()


table = np.random.default_rng(0).integers(0, 256, (ROWS, ROW_BYTES), np.uint8)
ids = np.random.default_rng(1).integers(0, ROWS, (TOKENS, 1, 1))
with ExitStack() as life:
    fabric = life.enter_context(emulator.start(nodes=2))
    a, b = (life.enter_context(obmm.open(fabric.device(node))) for node in "ab")
    region = life.enter_context(a.export_region(table.nbytes, label="rows"))
    with region.map("rw") as m:
        with m.writing():
            m.write(0, table)
        m.publish()
    mapping = life.enter_context(life.enter_context(b.import_region(region.handle())).map("r"))
    store = life.enter_context(RowStore.attach(mapping, Manifest((TableSpec("t", ROWS, ROW_BYTES),)), verify="none"))
    device = NativeDevice(accelerator)
    late = Deadlines(decode=10.0)  # by default rows that come later than a serving loop can wait are zeros, and marked
    with EngramPrefetcher(store, [PrefetchLayer(0, "t", 1)], TOKENS, device=device, deadlines=late) as prefetcher:
        prefetcher.begin(ids, TOKENS)
        prefetcher.start()
        rows = prefetcher.consume(0)
        assert (on_host(rows.buffer)[:, 0] == table[ids[:, 0, 0]]).all()
        print(f"prefetched: {TOKENS} rows in {rows.buffer}")
    with StreamGather(store, "t", TOKENS, accelerator) as gather:
        gather.ids[:] = ids[:, 0, 0]
        gather.enqueue()
        assert (on_host(gather.rows) == table[ids[:, 0, 0]]).all()
        print(f"in a stream: {gather}")
