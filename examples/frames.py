# SPDX-License-Identifier: Apache-2.0
"""Rows for a column of a data frame: pandas or polars, whichever is installed, over a table on another (emulated) node.

python examples/frames.py
"""

import importlib

import numpy as np

import obmm
from obmm import emulator
from obmm.exchange import ArrayManifest


def column(words):
    """A column of row numbers, as the frame library that is here makes it."""
    for name in ("polars", "pandas"):
        try:
            return importlib.import_module(name).DataFrame({"word": words})["word"]
        except ImportError:
            continue
    raise SystemExit("pip install polars (or pandas)")


def main() -> None:
    words = column([3, 1, 4, 1, 5])
    vectors = np.random.default_rng(0).random((1000, 16), np.float32)
    with (
        emulator.start(nodes=2) as fabric,
        obmm.open(fabric.device("a")) as a,
        a.export_region(vectors.nbytes, label="vectors") as region,
    ):
        with region.map("rw") as m:
            with m.writing():
                m.write(0, vectors)
            m.publish()
        manifest = ArrayManifest(vectors.dtype, vectors.shape).to_json()
        with (
            obmm.serve({"vectors": (region, manifest)}, port=0, plain=True) as server,
            obmm.open(fabric.device("b")) as b,
            obmm.connect(f"127.0.0.1:{server.port}", plain=True) as peer,
            peer.open("vectors", b) as table,
        ):
            rows = table[words.to_numpy()]
            assert (rows == vectors[words.to_numpy()]).all()
            print(f"{type(words).__module__.split('.')[0]} column of {len(words)} words -> rows {rows.shape}")


if __name__ == "__main__":
    main()
