# SPDX-License-Identifier: Apache-2.0
"""Views as other libraries take them: DLPack through NumPy, torch when it is installed (docs/safety.md)."""

from __future__ import annotations

import gc
import sys

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
    """torch is not a dependency: these run where it is installed."""

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

    def test_the_mapping_closes_when_the_last_tensor_goes(self, region, torch):
        """A slice or a view of another type is the same storage; a clone is memory of its own."""
        mapping = region.map("rw")
        mapping.write(0, bytes(range(64)))
        tensor = mapping.as_torch(torch.uint8, (64,))
        part = tensor[16:32].view(torch.bfloat16)
        copy = tensor.clone()
        del tensor
        gc.collect()
        with pytest.raises(MappingBusyError, match="array"):
            mapping.close()
        with pytest.raises(MappingBusyError):
            region.close()
        assert part.view(torch.uint8).tolist() == list(range(16, 32))
        del part
        gc.collect()
        mapping.close()
        assert copy.tolist() == list(range(64))

    def test_a_tensor_keeps_a_mapping_that_has_no_name(self, region, torch):
        mapping = region.map("rw")
        mapping.write(0, b"kept")
        tensor = torch.from_dlpack(mapping)
        assert tensor.shape == (mapping.nbytes,)
        assert tensor.device.type == "cpu"
        del mapping
        gc.collect()
        assert bytes(tensor[:4].tolist()) == b"kept"
        with pytest.raises(MappingBusyError):
            region.close()
        del tensor
        gc.collect()
        region.close()

    @pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "float8_e8m0fnu", "float32", "int64", "bool"])
    def test_every_type_is_a_view_at_any_offset(self, region, torch, kind):
        dtype = getattr(torch, kind)
        width = torch.empty((), dtype=dtype).element_size()
        with region.map("rw") as mapping:
            mapping.write(0, bytes([1] * 256))
            for offset in (0, 8, 24):
                tensor = mapping.as_torch(dtype, (2, 3), offset)
                assert (tensor.dtype, tuple(tensor.shape)) == (dtype, (2, 3))
                assert tensor.data_ptr() == mapping.address + offset
                assert (tensor.view(torch.uint8) == 1).all()
            assert mapping.as_torch(dtype, offset=mapping.nbytes - 4 * width).shape == (4,)
            assert mapping.as_torch(dtype, 0).shape == (0,)
            with pytest.raises(obmm.ObmmArgumentError):
                mapping.as_torch(dtype, 5, mapping.nbytes - 4 * width)
            del tensor
            gc.collect()

    def test_torch_takes_read_only_memory_as_if_it_could_be_written(self, region, torch):
        """Why `as_torch` asks for the opt-in (Engram specification 13.1): torch itself gives no sign."""
        with region.map("r") as mapping:
            tensor = torch.from_dlpack(mapping)
            assert tensor.sum() == 0
            with pytest.raises(BufferError):
                torch.utils.dlpack.from_dlpack(mapping.as_numpy().__dlpack__())
            del tensor
            gc.collect()

    def test_without_torch_the_error_says_what_to_do(self, region, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        with region.map("rw") as mapping:
            with pytest.raises(ImportError, match=r"as_torch.*pip install torch.*as_numpy"):
                mapping.as_torch()

    def test_read_only_needs_the_opt_in(self, region, torch):
        with region.map("r") as mapping:
            with pytest.raises(OwnershipError, match="allow_readonly"):
                mapping.as_torch(torch.uint8, (16,))
            tensor = mapping.as_torch(torch.uint8, (16,), allow_readonly=True)
            assert tensor.sum() == 0
            del tensor
            gc.collect()
