# SPDX-License-Identifier: Apache-2.0
"""Views as other libraries take them: DLPack through NumPy, torch when it is installed (design section 8)."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import obmm
from obmm import MappingBusyError, OwnershipError, emulator

MIB = 1 << 20


@pytest.fixture(scope="module")
def fabric():
    with emulator.start(nodes=1) as fabric:
        yield fabric


@pytest.fixture
def region(fabric):
    with obmm.open(fabric.device()) as device, device.export_region(MIB) as region:
        yield region


def test_dlpack_of_a_writable_mapping_shares_its_memory(region):
    with region.map("rw") as mapping:
        array = np.from_dlpack(mapping)
        mapping.store("u1", 3, 77)
        assert array[3] == 77
        with pytest.raises(MappingBusyError):
            mapping.close()
        del array


def test_a_consumer_may_outlive_its_producer(region):
    mapping = region.map("rw")
    mapping.store("u1", 9, 5)
    array = np.from_dlpack(mapping.as_numpy("u1", 100))
    del mapping
    gc.collect()
    assert array[9] == 5
    with pytest.raises(MappingBusyError):
        region.close()
    del array
    gc.collect()
    region.close()


def test_a_capsule_never_consumed_gives_its_view_back(region):
    with region.map("rw") as mapping:
        capsule = mapping.__dlpack__()
        with pytest.raises(MappingBusyError):
            mapping.close()
        del capsule
        gc.collect()
        assert mapping.views == ()


def test_a_read_only_mapping_is_never_exported_as_writable(region):
    with region.map("r") as mapping:
        with pytest.raises(BufferError):
            mapping.as_numpy().__dlpack__()
        assert mapping.__dlpack_device__() == (1, 0)
        gc.collect()


class TestTorch:
    """torch is no dependency: these run where it is installed."""

    @pytest.fixture(autouse=True)
    def torch(self):
        return pytest.importorskip("torch", reason="torch is not installed")

    def test_a_tensor_shares_the_memory(self, region, torch):
        with region.map("rw") as mapping:
            tensor = mapping.as_torch(torch.float32, (4, 8))
            tensor[1, 2] = 2.5
            assert mapping.load("<f4", (8 + 2) * 4) == 2.5
            assert tensor.shape == (4, 8)
            with pytest.raises(MappingBusyError):
                mapping.close()
            del tensor
            gc.collect()

    def test_read_only_needs_the_opt_in(self, region, torch):
        with region.map("r") as mapping:
            with pytest.raises(OwnershipError, match="allow_readonly"):
                mapping.as_torch(torch.uint8, (16,))
            tensor = mapping.as_torch(torch.uint8, (16,), allow_readonly=True)
            assert tensor.sum() == 0
            del tensor
            gc.collect()
