# SPDX-License-Identifier: Apache-2.0
"""Where recipes live, and what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import obmm
from obmm import emulator

MIB = 1 << 20
Steps = tuple[Callable[[], object], Callable[[], object]]


class Place:
    """What every recipe may use: two nodes, and a folder."""

    def __init__(self, fabric: emulator.Fabric, folder: Path) -> None:
        self.fabric, self.folder = fabric, folder

    @contextmanager
    def devices(self) -> Iterator[tuple[obmm.Device, obmm.Device]]:
        with obmm.open(self.fabric.device("a")) as a, obmm.open(self.fabric.device("b")) as b:
            yield a, b


def close_regions(*devices: obmm.Device) -> None:
    for device in devices:
        for region in device.regions:
            region.close(force=True)
        device.remove_forgotten()
