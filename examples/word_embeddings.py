# SPDX-License-Identifier: Apache-2.0
"""Sentence embeddings from a word table in another node's memory, equal to the local ones bit for bit.

python examples/word_embeddings.py    (two emulated nodes; on real ones, serve() and read() run on a node each)
"""

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
from words import load_model

import obmm
from obmm.rows import Manifest, RowStore, TableSpec

SENTENCES = ["The memory of another node, at the speed of a load.", "Liebe auf den ersten Zugriff.", "A bus, a fault."]


def serve(device: str, control: Connection) -> None:
    """Node A: put the model's table into its memory and hand out leases on it."""
    table = load_model().embedding  # float32 [32000, 256]
    spec = TableSpec("words", len(table), table[0].nbytes, dtype="<f4", values=table.shape[1])
    with (
        obmm.open(device) as dev,
        dev.export_region(spec.end, label="words") as region,
        region.map("rw") as mapping,
        RowStore.attach(mapping, Manifest((spec,)), verify="none") as store,
    ):
        store.populate("words", table)
        manifest = store.publish(model="wordllama l2_supercat_256")
        with obmm.serve({"words": (region, manifest.to_dict())}, port=0, plain=True) as server:
            control.send(server.port)
            control.recv()  # until node B is done


def read(device: str, address: str) -> None:
    """Node B: the tokenizer is here, the table is not."""
    model = load_model()
    encoded = model.tokenize(SENTENCES)
    ids = np.array([sentence.ids for sentence in encoded], np.int32)
    mask = np.array([sentence.attention_mask for sentence in encoded], np.float32)
    with obmm.open(device) as dev, obmm.connect(address, plain=True) as peer:
        lease = peer.fetch("words")
        with dev.import_region(lease) as region, RowStore.attach([region], lease.manifest) as store:
            rows = store.gather("words", ids).view("<f4")  # [sentences, tokens, 256]
            remote = model.avg_pool(rows, mask)
            print(f"{ids.size} rows of {store.tables['words'].row_bytes} B over {store.path} from {store.backend}")
    assert remote.tobytes() == model.embed(SENTENCES).tobytes(), "remote and local embeddings differ"
    print(f"{len(SENTENCES)} sentence embeddings equal the local ones bit for bit")


if __name__ == "__main__":
    with obmm.emulator.start(nodes=2) as fabric:
        here, there = multiprocessing.Pipe()
        node_a = multiprocessing.get_context("spawn").Process(target=serve, args=(fabric.device("a"), there))
        node_a.start()
        read(fabric.device("b"), f"127.0.0.1:{here.recv()}")
        here.send("done")
        node_a.join()
