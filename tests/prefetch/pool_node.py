# SPDX-License-Identifier: Apache-2.0
"""A pool on another node, in a process of its own."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

import obmm
from obmm.prefetch.pool import EngramPool, EngramPoolConfig

DIM, ROWS, TABLES = 31, 500, 3


def table(number: int) -> NDArray[np.float32]:
    return np.random.default_rng(number).standard_normal((ROWS, DIM)).astype(np.float32)


def config(**changes: Any) -> EngramPoolConfig:
    return EngramPoolConfig(**({"hosts": [], "num_tables": TABLES, "embedding_dim": DIM, "ports": [0]} | changes))


def serve(device: str, control: Connection) -> None:
    """Another process on node a: it loads the tables and serves them until told to stop."""
    with obmm.open(device) as opened:
        pool = EngramPool(config(plain=True), device=opened)
        pool.initialize()
        pool.load_table(0, table(0))
        server = pool.serve()
        for number in range(1, TABLES):
            pool.load_table(number, table(number))
        control.send(server.port)
        control.recv()
        pool.shutdown()
