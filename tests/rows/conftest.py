# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest
from row_shelf import Shelf

from obmm.rows import GatherEngine, LocalMemory


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    """16 MiB."""
    fd = os.memfd_create("obmm-rows")
    os.ftruncate(fd, 16 << 20)
    mapped = mmap.mmap(fd, 16 << 20)
    LocalMemory.format(mapped, generation=77)
    yield Shelf(fd, mapped)
    os.close(fd)


@pytest.fixture(scope="session")
def engine() -> Iterator[GatherEngine]:
    """Three workers, whatever the machine has."""
    engine = GatherEngine(3)
    yield engine
    assert engine.abandoned == 0
    assert engine.in_use == 0
    engine.close()
