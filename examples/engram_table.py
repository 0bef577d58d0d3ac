# SPDX-License-Identifier: Apache-2.0
"""An Engram table in another node's memory: hash, prefetch while the model computes, verify every byte."""

import argparse

import numpy as np
from words import load_model

import obmm
from obmm import prefetch
from obmm.rows import Manifest, RowStore
from obmm.sizes import parse_size

TEXT = "Engram keeps n-grams in a table and looks them up by hash. The table is large, its rows are small. " * 4
ROW_BYTES, HEADS, ORDERS, LAYERS = 264, 8, 3, (1, 14)  # DeepSeek-V4.1 in FP8, with smaller tables

parser = argparse.ArgumentParser()
parser.add_argument("--size", default="256MiB", type=parse_size, help="of both tables, default %(default)s")
base = parser.parse_args().size // ROW_BYTES // (len(LAYERS) * ORDERS * HEADS) * 99 // 100
tokenizer = load_model().tokenizer
token_map = prefetch.build_token_map(tokenizer)
layers = prefetch.engram_layers(LAYERS, vocabulary=int(token_map.max()) + 1, bases=[base] * ORDERS, heads=HEADS)
model = prefetch.engram_model(layers, token_map, pad_token=2)
described = Manifest(prefetch.engram_tables(layers, ROW_BYTES), model=model)


def content(layer: int, rows: np.ndarray) -> np.ndarray:
    """What the rows of a layer hold: a function of their numbers."""
    words = (rows.astype(np.uint64)[..., None] * 33 + np.arange(33, dtype=np.uint64) + layer) * 0x9E3779B97F4A7C15
    return words.view(np.uint8)


with obmm.emulator.start(nodes=2) as fabric, obmm.open(fabric.device("a")) as a, obmm.open(fabric.device("b")) as b:
    with a.export_region(described.nbytes) as region, region.map("rw") as mapping:
        with RowStore.attach(mapping, described, verify="none") as owner:  # node A fills its memory
            for layer in layers:
                for part in np.array_split(np.arange(layer.rows), 64):
                    owner.populate(layer.layer_id, content(layer.layer_id, part), at=int(part[0]))
            published = owner.publish()
        with b.import_region(region.handle()) as imported, RowStore.attach([imported], published) as store:
            print(store, f"{imported.nbytes >> 20} MiB", store.explain(), sep="\n")
            hasher = prefetch.EngramHasher(published.to_dict(), token_map=token_map)
            wanted = [prefetch.PrefetchLayer(layer, layer, hasher.columns) for layer in hasher.layer_ids]
            history, hidden = prefetch.History(hasher.order), np.zeros((512, 512), np.float32)
            tokens = np.array(tokenizer.encode(TEXT).ids)
            with prefetch.EngramPrefetcher(store, wanted, max_tokens=32) as prefetcher:
                for at in range(0, len(tokens), 32):  # prefill in chunks, as an engine would
                    chunk = tokens[at : at + 32]
                    ids = hasher.hash(chunk, [0, len(chunk)], history.windows(["request"], [at]))
                    prefetcher.begin(ids, len(chunk), phase="prefill")
                    prefetcher.start()
                    history.extend("request", chunk)
                    for place, layer in enumerate(LAYERS):
                        hidden = hidden @ hidden.T  # the layers before this one
                        assert (prefetcher.consume(layer).buffer == content(layer, ids[:, place])).all()
                    prefetcher.drain()
            print(f"{len(tokens)} tokens, {hasher.columns * len(LAYERS)} rows each, every byte right")
