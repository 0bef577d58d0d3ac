# SPDX-License-Identifier: Apache-2.0
"""An Engram table in another node's memory: hash, prefetch while the model computes, verify every byte.

python examples/engram_table.py [--size 2GiB]    (two emulated nodes)
"""

import argparse

import numpy as np
from words import load_model

import obmm
from obmm.prefetch import EngramHasher, EngramPrefetcher, History, PrefetchLayer, build_token_map, engram_layers
from obmm.prefetch import token_map_digest as digest
from obmm.rows import Manifest, RowStore, TableSpec
from obmm.sizes import parse_size

TEXT = "Engram keeps n-grams in a table and looks them up by hash. The table is large, its rows are small. " * 4
ROW_BYTES, HEADS, ORDERS, LAYERS = 264, 8, 3, (1, 14)  # DeepSeek-V4.1 in FP8, with smaller tables


def content(layer: int, rows: np.ndarray) -> np.ndarray:
    """What the rows of a layer hold: a function of their numbers."""
    words = (rows.astype(np.uint64)[..., None] * 33 + np.arange(33, dtype=np.uint64) + layer) * 0x9E3779B97F4A7C15
    return words.view(np.uint8)


parser = argparse.ArgumentParser()
parser.add_argument("--size", default="256MiB", type=parse_size, help="of both layers' tables together")
base = parser.parse_args().size // ROW_BYTES // (len(LAYERS) * ORDERS * HEADS) * 99 // 100
tokenizer = load_model().tokenizer
token_map = build_token_map(tokenizer)
vocabulary = int(token_map.max()) + 1
layers = engram_layers(LAYERS, vocabulary=vocabulary, bases=[base] * ORDERS, heads=HEADS)
offsets = np.cumsum([0] + [layer.rows * ROW_BYTES for layer in layers]).tolist()
specs = tuple(
    TableSpec(f"layer{w.layer_id}", w.rows, ROW_BYTES, base_offset=at)
    for w, at in zip(layers, offsets[:-1], strict=True)
)
model = {"algorithm": "engram-xor", "layers": [layer.to_manifest() for layer in layers], "pad_id": int(token_map[2])}
model["token_map"] = {"size": vocabulary, "sha256": digest(token_map)}

with obmm.emulator.start(nodes=2) as fabric, obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b:
    with a.export_region(offsets[-1], label="engram") as region, region.map("rw") as mapping:
        owner = RowStore.attach(mapping, Manifest(specs, model=model), verify="none")
        for layer in layers:  # node A fills its memory
            for at in range(0, layer.rows, 1 << 16):
                rows = np.arange(at, min(at + (1 << 16), layer.rows))
                owner.populate(f"layer{layer.layer_id}", content(layer.layer_id, rows), at)
        published = owner.publish()

        with b.import_region(region.handle()) as imported, RowStore.attach([imported], published) as store:
            print(store, f"{imported.nbytes >> 20} MiB", store.explain(), sep="\n")
            hasher = EngramHasher(published.to_dict(), token_map=token_map)
            wants = [PrefetchLayer(w, f"layer{w}", hasher.columns) for w in LAYERS]
            history, hidden = History(hasher.order), np.zeros((512, 512), np.float32)
            tokens = np.array(tokenizer.encode(TEXT).ids)
            with EngramPrefetcher(store, wants, max_tokens=32) as prefetcher:
                for at in range(0, len(tokens), 32):  # prefill in chunks, as an engine would
                    chunk = tokens[at : at + 32]
                    ids = hasher.hash(chunk, [0, len(chunk)], history.windows(["request"], [at]))
                    prefetcher.begin(ids, len(chunk), phase="prefill")
                    prefetcher.start()
                    history.extend("request", chunk)
                    for place, layer in enumerate(LAYERS):
                        hidden = hidden @ hidden.T  # the layers before it
                        assert (prefetcher.consume(layer).buffer == content(layer, ids[:, place])).all()
                    report = prefetcher.drain()
            print(f"{len(tokens)} tokens, {hasher.columns * len(LAYERS)} rows each, every byte right; last: {report}")
        owner.close()
